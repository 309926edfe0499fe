/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the controller: shared by controller_state.c (memory), controller_send.c (calls to nodes), controller_txn.c
 * (etcd), controller_live.c (ranks) and, above them, controller.c (mirror, steps). Loop thread
 * unless a function says otherwise. */
#pragma once

#include "daemon/cluster/job_events.h"
#include "daemon/cluster/quota.h"
#include "daemon/controller/controller.h"
#include "daemon/core/job_core.h"

#define PTC_PHASES_KEPT 24

/* One node's answer to Pull, Capture or Build. */
struct ptc_pull_result {
	uint32_t node; /* cluster number */
	uint32_t *need_index;
	uint64_t *digests; /* both move to the thread that compares them */
	size_t n;
	uint64_t wire_bytes, copied_bytes, verified_bytes;
	struct Ptc__V1__PullReply *capture;   /* of Capture: its last message, for the ranks' state */
	struct Ptc__V1__WorkersReply *layout; /* of Build: what the node's ranks have declared */
};

struct ptc_pull; /* a running call that streams, controller_send.c */

struct ptc_controller {
	struct ptc_controllers *all;
	/* controller.c's, for the files below it: what has happened is handed to the core; a switch is asked for. */
	void (*step)(struct ptc_controller *ctl, const struct ptc_job_event *event);
	int (*submit)(struct ptc_controller *ctl, struct ptc_switch_request *r, struct ptc_error *err);
	int refs;     /* [loop] operations in flight and the daemon's list */
	bool gone;    /* lock lost or job deleted: answers are ignored */
	bool stopped; /* the core performed STOPPED */
	bool untidy;  /* blobs could not be removed: again, while idle */
	char uuid[PTC_UUID_TEXT];
	struct ptc_meta_doc meta;
	int64_t fence;
	struct ptc_job *core;
	/* what START found or the last commit made */
	bool has_record;
	struct ptc_record_doc record;
	/* mod_revisions as last read or written, 0: no such key; every transaction compares them, so that an older one whose
	 * outcome we never learned cannot come through later */
	int64_t record_revision, intent_revision, barrier_revision;
	struct ptc_view view; /* from: the record; to: the switch under way */
	/* the switch under way */
	struct ptc_intent_doc intent;
	char plan_hash[PTC_HASH_HEX]; /* of the first node that answered Prepare */
	char *plan_json;
	char *from_config;                /* the configuration it began with, for its summary */
	struct ptc_watcher *watcher;      /* who started it */
	struct ptc_watcher *fill_watcher; /* import: who waits for the commit */
	uint64_t *expected;
	size_t nexpected; /* import: the client's digests */
	struct ptc_file_doc *files;
	size_t nfiles; /* import */
	struct ptc_pull_result *pulls;
	size_t npulls;
	struct ptc_pull *running; /* list */
	uint64_t *digests;
	size_t ndigests;               /* merged, for the manifest */
	char state_hash[PTC_HASH_HEX]; /* of the state document that AGREE wrote */
	struct ptc_rank_states
		rank_states;       /* of the generation switched to; made before ENDING by whoever comes there */
	uint64_t capture_step;     /* where the ranks wait that were asked for it last */
	struct ptc_ledger cursors; /* as AGREE found them; only name, tag and position */
	uint64_t captured_bytes;   /* from ranks, in all */
	char etcd_said[256];       /* why the last transaction failed; "": it did not */
	int64_t event_after_ns;    /* what follows from the nodes' worker events is not tried again before */
	/* a rank has finished before a step where a switch was to stop it */
	struct {
		uint64_t incarnation,
			due; /* which ranks; snapshots due at that step or before cannot be had any more */
		bool tried;  /* to end the job at one step of all ranks: it ends when all have finished */
	} over;
	struct ptc_watcher *heir;           /* of a switch that ended so: it hears how the job ends */
	uint64_t due_incarnation, due_step; /* of the last snapshot that was due and begun */
	int64_t yield_until_ns; /* no snapshot that is due begins before: somebody waits for the last one's end */
	struct {
		enum ptc_job_phase phase;
		int64_t at_ns;
	} phases[PTC_PHASES_KEPT];
	size_t nphases;
	/* node states told to the core, by cluster number */
	struct {
		bool up;
		int64_t revision;
		int64_t down_ns; /* since when it is down, as far as we know; 0: it is up */
	} * known;
	size_t nknown;
	struct uv_timer_s *timer;
	uint64_t timer_seq;
	struct uv_timer_s *retry; /* of a load that failed */
	uint64_t retry_seq;
};

/* controller.c. Performs the core's updates; may free ctl unless the caller holds a reference. */
static inline void ptc_controller_step(struct ptc_controller *ctl, const struct ptc_job_event *event)
{
	ctl->step(ctl, event);
}
void ptc_controller_progress(struct ptc_controller *ctl);

/* controller_state.c */
struct ptc_controller *ptc_controller_ref(struct ptc_controller *ctl);
void ptc_controller_unref(struct ptc_controller *ctl);
void ptc_controller_switch_done(struct ptc_controller *ctl); /* frees everything that belongs to one switch */
/* A generation's nodes as the core knows them: cluster numbers, each once; ptc_free it. NULL: out of memory. */
uint32_t *ptc_controller_numbers(struct ptc_controller *ctl, const struct ptc_generation_doc *g);
void ptc_pull_results_done(struct ptc_controller *ctl);
void ptc_pull_result_done(struct ptc_pull_result *r);
/* The document of the record's generation: while FINISHING is under way it is still the view's `to`. */
const struct ptc_generation_doc *ptc_controller_current(const struct ptc_controller *ctl);

/* tidy.c: removes the job's blobs that neither its meta nor its record names. Only while no switch is under way. */
void ptc_tidy_blobs(struct ptc_controller *ctl);

/* ending.c: how a job ends whose ranks finish. */
/* The switch under way ended because a rank had finished: whoever waits for it waits for the job's end. why: one line. */
void ptc_ending_begins(struct ptc_controller *ctl, const char *why);
/* After a switch that is committed: the job has ended, one way or another, or goes on. */
void ptc_ending_over(struct ptc_controller *ctl, const char *summary);
/* The lock is lost: nobody here can say how the job ends. */
void ptc_ending_lost(struct ptc_controller *ctl);
/* What the worker event is for, now: a switch to submit (kind and end are set), or nothing. */
bool ptc_ending_asks(struct ptc_controller *ctl, const struct ptc_job_view *j, const struct ptc_worker_doc *w,
		     struct ptc_switch_request *r);
/* Nothing follows from this worker event (any more). */
bool ptc_ending_ignores(const struct ptc_controller *ctl, const struct ptc_job_view *j, const struct ptc_worker_doc *w);

/* summary.c: of the switch that has just been committed, before the view is rolled on. */
const char *ptc_switch_name(const struct ptc_controller *ctl);      /* "resize", "snapshot", ... */
const char *ptc_switch_to_config(const struct ptc_controller *ctl); /* "" where there is none */
char *ptc_switch_summary(struct ptc_controller *ctl);               /* ptc_free it; NULL: out of memory */
json_t *ptc_switch_brief(struct ptc_controller *ctl);               /* for its event */

/* waits.c: the nodes that the switch under way waits for, and for how long. */
void ptc_controller_saw_node(struct ptc_controller *ctl, uint32_t node, bool up);
/* An event, if the node has a part of what is committed; since_ns: since when it was down. */
void ptc_controller_tell_node(struct ptc_controller *ctl, uint32_t node, bool up, int64_t since_ns);
/* For its progress: in buf, or what etcd said last ("": nothing is waited for). */
const char *ptc_controller_waits_text(const struct ptc_controller *ctl, char *buf, size_t size);
/* For its end: up->node stayed down for up->waited_ms. */
void ptc_controller_waited_text(const struct ptc_controller *ctl, const struct ptc_job_update *up, char *buf,
				size_t size);

/* controller_send.c */
void ptc_controller_send(struct ptc_controller *ctl, const struct ptc_job_update *up);
void ptc_controller_cancel(struct ptc_controller *ctl, uint64_t seq); /* 0: all */
void ptc_controller_bytes(const struct ptc_controller *ctl, uint64_t *ret_done, uint64_t *ret_total);

/* controller_txn.c */
void ptc_controller_txn(struct ptc_controller *ctl, const struct ptc_job_update *up);
void ptc_controller_check_digests(struct ptc_controller *ctl, uint64_t seq);
void ptc_controller_load(struct ptc_controller *ctl,
			 uint64_t seq); /* reads lock, record, intent; then START or LOCK_LOST */

/* controller_live.c */
void ptc_controller_agree(struct ptc_controller *ctl, uint64_t seq);
void ptc_controller_layout(struct ptc_controller *ctl, uint64_t seq);
/* On the coordination thread: written only while the lock of that fence is held. */
int ptc_controller_put_blob(const char *uuid, int64_t fence, struct ptc_etcd *e, const char *data, size_t len,
			    char ret_hash[PTC_HASH_HEX], struct ptc_error *err);
/* Compares what nodes hold, by their answers to Pull or Capture; takes the answers. */
struct ptc_merge {
	struct answer {
		char node[PTC_NAME_MAX + 1];
		uint32_t *need_index;
		uint64_t *digests;
		size_t n;
	} * answers; /* ours: the loop may end the switch meanwhile */
	size_t nanswers;
};
void ptc_merge_take(struct ptc_merge *m, struct ptc_controller *ctl);
void ptc_merge_done(struct ptc_merge *m);
/* ret_items: one per item of g's spec; ptc_free it. */
int ptc_merge_digests(const struct ptc_merge *m, const struct ptc_geometry *g, const uint64_t *expected,
		      size_t nexpected, uint64_t **ret_items, size_t *ret_nitems, struct ptc_error *err);
