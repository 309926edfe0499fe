/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the controller's files. controller.c (mirror, steps) is above the others. Everything runs on the loop
 * thread unless a function says otherwise. */
#pragma once

#include "daemon/cluster/job_events.h"
#include "daemon/cluster/quota.h"
#include "daemon/controller/ahead.h" /* and controller.h */
#include "daemon/controller/controller_work.h"
#include "daemon/controller/device_claim.h"
#include "daemon/controller/recovery.h"

#define PTC_PHASES_KEPT 24

struct ptc_pull; /* a running call that streams, controller_send.c */

struct ptc_controller {
	struct ptc_controllers *all;
	/* Of controller.c, for the files below it: give the core an event; submit a switch; let rooms begin theirs. */
	void (*step)(struct ptc_controller *ctl, const struct ptc_job_event *event);
	int (*submit)(struct ptc_controller *ctl, struct ptc_switch_request *r, struct ptc_error *err);
	void (*give_turn)(struct ptc_controller *ctl);
	int refs;                   /* [loop] operations in flight and the daemon's list */
	bool gone, stopped, untidy; /* lock lost or job deleted; the core performed STOPPED; blobs are to be removed */
	char uuid[PTC_UUID_TEXT];
	struct ptc_meta_doc meta;
	int64_t fence;
	struct ptc_job *core;
	/* read by START, or made by the last commit */
	bool has_record;
	struct ptc_record_doc record;
	/* mod_revisions as last read or written (0: no key); each transaction compares them */
	int64_t record_revision, intent_revision, barrier_revision;
	struct ptc_view view,
		source; /* from: the record; to: the switch under way. source: what a rollback goes back to */
	/* what etcd says of copies, as last read or written, and what is done about them (copies/) */
	struct ptc_copies_doc copies, maybe;   /* maybe.old: tables named by writes of which no outcome is known ... */
	int64_t copies_revision, maybe_record; /* ... that compared this record; 0: there is none */
	struct ptc_older_kept older;
	struct ptc_archiver *archiver;
	void (*archiver_free)(struct ptc_archiver *a); /* NULL: there is none */
	struct ptc_copy_keeper *keeper;
	struct ptc_copy_keeper *(*keeper_free)(struct ptc_copy_keeper *c); /* NULL: there is none */
	/* the switch under way */
	struct ptc_intent_doc intent;
	char plan_hash[PTC_HASH_HEX];      /* of the first node that answered Prepare */
	struct ptc_plan_report *plan;      /* NULL: another controller planned it, or nobody did */
	char (*emptied)[PTC_NAME_MAX + 1]; /* nodes that have lost their copies; view.copies is without these */
	size_t nemptied;
	char *from_config;                /* the configuration it began with, for its summary */
	struct ptc_watcher *watcher;      /* of the caller who started it */
	struct ptc_watcher *fill_watcher; /* import: of the caller who waits for the commit */
	struct ptc_manifest_doc imported; /* import: what the client says of the state (ptc_controller_filled) */
	struct ptc_pull_result *pulls;
	struct ptc_pull *running; /* list */
	uint64_t *digests;        /* merged, for the manifest */
	size_t npulls, ndigests;
	char state_hash[PTC_HASH_HEX];        /* of the state document that AGREE wrote */
	struct ptc_rank_states rank_states;   /* of the generation switched to; made before ENDING */
	uint64_t capture_step;                /* the step at which ranks wait, of the last Capture */
	struct ptc_ledger cursors;            /* from AGREE; only name, tag and position */
	uint64_t captured_bytes;              /* from ranks, in all */
	struct ptc_restored_devices device;   /* by the switch under way */
	char gone_blobs[256], etcd_said[256]; /* blobs that held ranks lack; why the last transaction failed */
	int64_t event_after_ns;               /* until then nodes' worker events are not acted on again */
	/* Ranks of `incarnation` have finished before step `due`, where a switch was to stop them. */
	struct {
		uint64_t incarnation, due; /* up to step `due`, no due snapshot is possible */
		bool tried; /* no step could be found at which all end; so the job ends when all have finished */
	} over;
	struct ptc_watcher *heir; /* of a caller whose switch a finished rank has ended; hears the job's end */
	uint64_t due_incarnation, due_step; /* of the last due snapshot that was begun */
	bool turn; /* the last tick found a switch under way, so a due snapshot lets rooms begin their switches first */
	int64_t yield_until_ns; /* until then no due snapshot begins, because a caller waits for the last one's end */
	struct {
		enum ptc_job_phase phase;
		int64_t at_ns;
	} phases[PTC_PHASES_KEPT];
	size_t nphases;
	struct ptc_switch_summary *resized; /* the last resize of running ranks that this object has made; NULL: none */
	/* node states told to the core, by cluster number */
	struct {
		bool up, lost, asking, passed, told; /* asking: asked_ns has no answer yet; the last two: while down */
		int64_t revision, captured; /* captured: what it was when the node answered Capture the last time */
		int64_t down_ns;            /* since when this daemon has seen it down; 0: it is up */
		int64_t back_ns;            /* when it came back; 0: it did not */
		int64_t asked_ns;           /* loss/silent_nodes.c: the last question to it while it is down */
		uint8_t silent;             /* so many in a row without an answer; PTC_SILENT_PROBES at most */
	} * known;
	size_t nknown;
	struct ptc_recovery recovery;
	struct ptc_leaving *leaving; /* nodes that will be taken away (leaving/); NULL: none was said to be */
	struct ptc_ahead *ahead;     /* new ranks that build before their switch, until it has ended; NULL: none */
	struct ptc_device_looks devices;
	struct ptc_loss_facts *loss; /* what the loss of a node would cost (loss/loss_cost.h); NULL: nobody has asked */
	struct uv_timer_s *timer, *retry; /* retry: of a load that failed */
	uint64_t timer_seq, retry_seq;
	struct ptc_lock_tenure tenure;
	struct uv_timer_s *next; /* of `soon`: controller.c does then what a tick does for copies and due snapshots */
	void (*soon)(struct ptc_controller *ctl, uint64_t ms);
};

/* controller.c. Performs the core's updates; may free ctl unless the caller holds a reference. */
static inline void ptc_controller_step(struct ptc_controller *ctl, const struct ptc_job_event *event)
{
	ctl->step(ctl, event);
}
/* controller_state.c */
struct ptc_controller *ptc_controller_ref(struct ptc_controller *ctl);
void ptc_controller_unref(struct ptc_controller *ctl);
void ptc_controller_switch_done(struct ptc_controller *ctl); /* frees everything of one switch */
/* Makes a request of the controller's own, with a new id, for the present record. */
void ptc_controller_request(const struct ptc_controller *ctl, enum ptc_switch_kind kind,
			    struct ptc_switch_request *ret);
/* Gives a generation's nodes by their cluster numbers, each once; ptc_free it. NULL: out of memory. */
uint32_t *ptc_controller_numbers(struct ptc_controller *ctl, const struct ptc_generation_doc *g);
/* Gives the record's nodes that have its snapshot; with intent, without those that it leaves out. */
uint32_t *ptc_controller_placed(struct ptc_controller *ctl, const struct ptc_intent_doc *intent, uint32_t *ret_n);
void ptc_pull_results_done(struct ptc_controller *ctl), ptc_pull_result_done(struct ptc_pull_result *r);
/* The document of the record's generation; in FINISHING this is still the view's `to`. */
const struct ptc_generation_doc *ptc_controller_current(const struct ptc_controller *ctl);
bool ptc_controller_ranks_on(const struct ptc_controller *ctl, const char *node); /* that generation has ranks there */
bool ptc_controller_due(const struct ptc_controller *ctl); /* ranks wait for a snapshot that has not been made */

/* ending.c. The switch under way ended because a rank had finished. Its caller waits for the job's end. why: a line. */
void ptc_ending_begins(struct ptc_controller *ctl, const char *why);
/* Call it after a committed switch: tells waiting callers whether the job has ended or goes on. */
void ptc_ending_over(struct ptc_controller *ctl, struct ptc_switch_summary *summary);
void ptc_ending_lost(struct ptc_controller *ctl); /* the lock is lost, so this daemon does not learn the job's end */
/* Whether the worker event asks for a switch now; it then sets kind and end of r. */
bool ptc_ending_asks(struct ptc_controller *ctl, const struct ptc_job_view *j, const struct ptc_worker_doc *w,
		     struct ptc_switch_request *r);
/* Whether this worker event asks for nothing, or for nothing any more. */
bool ptc_ending_ignores(const struct ptc_controller *ctl, const struct ptc_job_view *j, const struct ptc_worker_doc *w);

/* summary.c: about the switch that has just been committed, before the view moves on. */
const char *ptc_switch_name(const struct ptc_controller *ctl);      /* "resize", "snapshot", ... */
const char *ptc_switch_to_config(const struct ptc_controller *ctl); /* "": there is none */
/* Sums it up, and takes ctl->plan. *ret_end: borrowed from the summary. NULL, both: out of memory. */
struct ptc_switch_summary *ptc_switch_summary_new(struct ptc_controller *ctl, const struct ptc_switch_end **ret_end);
struct ptc_switch_pause ptc_switch_pause(const struct ptc_controller *ctl);
/* What links gave whose sender sent to no other node meanwhile; ptc_free it. NULL: nothing is known. */
struct ptc_link_use *ptc_switch_links(const struct ptc_controller *ctl, size_t *ret_n);

/* waits.c: the nodes that the switch under way waits for, and since when. */
void ptc_controller_saw_node(struct ptc_controller *ctl, uint32_t node, bool up);
/* A text for the switch's progress: for what it waits (in buf), or etcd's last error; "": it waits for nothing. */
const char *ptc_controller_waits_text(const struct ptc_controller *ctl, char *buf, size_t size);
/* ... for the switch's end: up->node stayed down for up->waited_ms. */
void ptc_controller_waited_text(const struct ptc_controller *ctl, const struct ptc_job_update *up, char *buf,
				size_t size);
/* loss/lost_tensors.c: the error of ptc_lost_covered for a plan, whose node numbers index `names`. Never 0. */
int ptc_lost_error(const struct ptc_view *v, const struct ptc_spec *spec, const struct ptc_layout *l,
		   const struct ptc_allocation *a, uint32_t nnodes, const bool *usable, char *const *names,
		   struct ptc_error *err);
/* loss/node_events.c: tells the core and the job's events which nodes count as lost for this job. May free ctl. */
void ptc_controller_tell_lost(struct ptc_controller *ctl);
/* Writes an event if the node has a part of the committed state. since_ns: since when it was down. */
void ptc_controller_tell_node(struct ptc_controller *ctl, uint32_t node, bool up, int64_t since_ns);
/* A text for the switch's end: up->node, which should get state, is lost. */
void ptc_controller_lost_text(const struct ptc_controller *ctl, const struct ptc_job_update *up, char *buf,
			      size_t size);
/* loss/loss_cover.c: AGREE of a switch whose ranks do not run: checks that the sending nodes hold every tensor. */
void ptc_controller_cover(struct ptc_controller *ctl, uint64_t seq);

void ptc_copy_keeper_tick(struct ptc_controller *ctl); /* every 200 ms: keeps copies of the committed state (copies/) */
/* The record or its manifest has changed, so other copies may be valid. */
void ptc_copy_keeper_committed(struct ptc_controller *ctl);
/* Whether the node has lost the copies that the document names there, so the switch may let it start with new chunks.
 * False if older snapshots were there, because their chunks may come back. */
bool ptc_copy_keeper_emptied(const struct ptc_controller *ctl, const char *node);
/* The first ends all work of the keeper. The second also begins anew, with the bytes of leaving nodes. */
void ptc_copy_keeper_stop(struct ptc_controller *ctl), ptc_copy_keeper_now(struct ptc_controller *ctl);
void ptc_archiver_tick(struct ptc_controller *ctl), ptc_archiver_stop(struct ptc_controller *ctl);
void ptc_leaving_tick(struct ptc_controller *ctl);
bool ptc_leaving_puts_off(const struct ptc_controller *ctl); /* a due snapshot would be on a leaving node alone */

/* controller_send.c */
void ptc_controller_send(struct ptc_controller *ctl, const struct ptc_job_update *up);
void ptc_controller_cancel(struct ptc_controller *ctl, uint64_t seq); /* 0: all */
/* loss/silent_nodes.c: asks a node whether it is there, by a connection of its own; then done, unless there is an
 * error. */
int ptc_controller_probe(struct ptc_controllers *all, const struct ptc_node *n,
			 void (*done)(void *arg, int status, const struct ptc_error *err), void *arg);
void ptc_controller_bytes(const struct ptc_controller *ctl, uint64_t *ret_done, uint64_t *ret_total);

/* taking/suspicion.c. A node that had that lease has not answered: asks it once more, and if that fails, too, revokes
 * the lease. yields: none answers, and they live, so this node gives its locks back. */
void ptc_controller_suspect(struct ptc_controller *ctl, uint32_t node, int64_t lease);
bool ptc_suspicion_yields(const struct ptc_controllers *all);
void ptc_suspicion_tick(struct ptc_controllers *all), ptc_suspicion_free(struct ptc_controllers *all);

/* committing/ */
void ptc_controller_txn(struct ptc_controller *ctl, const struct ptc_job_update *up);
void ptc_controller_check_digests(struct ptc_controller *ctl, uint64_t seq);
/* controller_load.c: reads lock, record and intent, and then gives the core START or LOCK_LOST. */
void ptc_controller_load(struct ptc_controller *ctl, uint64_t seq);
/* controller_live.c */
void ptc_controller_agree(struct ptc_controller *ctl, uint64_t seq);
void ptc_controller_layout(struct ptc_controller *ctl, uint64_t seq);
