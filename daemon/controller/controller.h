/* SPDX-License-Identifier: Apache-2.0 */
/* Switches of the jobs that this daemon controls: planning, the shell around the job core, progress, and removing the
 * remains of crashes. Each function says on which thread it runs; [loop] is the loop thread.
 *
 * Happy path: a lock key with this node's name appears; a controller loads the job's record; requests come through
 * ptc_controller_submit; ptc_watcher_finish tells whoever waits for a request how it ended.
 *
 * Failure modes: a lost lock (another daemon goes on), etcd or nodes that do not answer: daemon/core/job_core.h. */
#pragma once

#include "base/number/count.h"
#include "daemon/cluster/channels.h"
#include "daemon/controller/switch_plan.h"
#include "daemon/core/job_core.h"
#include "daemon/planning/measuring.h"
#include "daemon/workers/types/worker_event.h"

#include <stdatomic.h>

struct ptc_controller;

/* All controllers of a daemon, and the services that they use. The services are borrowed and outlive it. */
struct ptc_controllers {
	const char *node, *control_socket; /* this node's name and socket */
	struct ptc_loop *loop;
	struct ptc_cluster *cluster;
	struct ptc_rpc_client *client;
	struct ptc_channels *channels;
	struct ptc_documents docs;
	struct ptc_agent *agent;
	struct ptc_store *store;
	struct ptc_workers *workers;
	struct ptc_planning *planning; /* NULL: jobs are scaled over dp */
	struct ptc_measuring *measuring;
	const atomic_bool *stopping;
	struct ptc_controller **list; /* [loop] one for each job whose lock this node holds */
	size_t n;
	bool reconciled; /* [loop] every job in the store was found in etcd, or is being removed */
	bool cut_off;    /* nodes that are cut off end their ranks, and have the time for it */
	int64_t lease_ttl_ms;
	struct ptc_unreachable *unreachable; /* loss/unreachable.c */
	struct ptc_suspicion *suspicion;     /* taking/suspicion.c */
};

#define PTC_ID_MASK ((UINT64_C(1) << 53) - 1) /* of random ids: every JSON reader can hold them */

/* ---- ending/summary_text.c: the result of a committed switch; never changes, counts its references; NULL ok ---- */
struct ptc_switch_summary *ptc_switch_summary_ref(struct ptc_switch_summary *s);
void ptc_switch_summary_unref(struct ptc_switch_summary *s);
/* Whether its ranks have yet to make their first step, after *ret_step. */
bool ptc_switch_summary_waits(const struct ptc_switch_summary *s, uint64_t *ret_step);
/* As JSON (docs/control.md); ptc_free it. first_step_ms below 0: not known. NULL: out of memory. */
char *ptc_switch_summary_text(const struct ptc_switch_summary *s, double first_step_ms);
/* Adds what `status` says of the last resize of running ranks, as far as ctl has made one. -1: out of memory. */
int ptc_resized_put(const struct ptc_controller *ctl, json_t *job);
/* ---- ending/watcher.c: the progress of a switch, for a waiting client ---------------- */
struct ptc_watcher; /* counts its references; the loop writes it, and each step of one call reads it */
struct ptc_watcher *ptc_watcher_new(uint64_t switch_id);
struct ptc_watcher *ptc_watcher_ref(struct ptc_watcher *w);
void ptc_watcher_unref(struct ptc_watcher *w);
void ptc_watcher_progress(struct ptc_watcher *w, const char *phase, uint64_t done, uint64_t total, const char *text);
void ptc_watcher_finish(struct ptc_watcher *w, int status, const char *text, struct ptc_switch_summary *summary);
/* Says how long the ranks' first step took, for the summary; else leaves *ret_first_step_ms. *later: call it again
 * later. If it fails, no last message is sent. */
typedef int (*ptc_amend_fn)(void *arg, struct ptc_rpc_call *call, const struct ptc_switch_summary *summary, bool *later,
			    double *ret_first_step_ms, struct ptc_error *err);
/* Each may be NULL. */
struct ptc_watch_ops {
	ptc_amend_fn amend;
	/* Once the lock is lost (PTC_EFENCED), each further step of the call calls this instead. */
	int (*lost)(void *arg, struct ptc_rpc_call *call, uint64_t switch_id, struct ptc_error *err);
	void (*release)(void *arg); /* called once, also if ptc_watcher_stream fails */
};
/* For a handler: its call sends Progress messages until the switch ends, with its status, or until the client goes. */
int ptc_watcher_stream(struct ptc_watcher *w, struct ptc_rpc_call *call, const struct ptc_watch_ops *ops, void *arg,
		       struct ptc_error *err);
/* Whether the switch is in that phase; phase NULL: whether it has ended. If it ended before that phase, the result is
 * its error. Does not wait. */
int ptc_watcher_look(struct ptc_watcher *w, const char *phase, bool *ret_there, struct ptc_error *err);
/* How long a step waits before it looks again, if nothing has happened since `since_ns`. */
int ptc_wait_ms(int64_t since_ns);

/* ---- controller.c: the shell around the job core -------------------------------- */

/* [loop] Call it after a change of the mirror. job NULL: of nodes. */
void ptc_controllers_changed(struct ptc_controllers *all, struct ptc_job_view *job);
void ptc_controllers_tick(struct ptc_controllers *all); /* [loop] every 200 ms: takes locks that nobody holds */
void ptc_controllers_lost(struct ptc_controllers *all); /* [loop] this node's lease is gone, and every lock with it */
void ptc_controllers_free(struct ptc_controllers *all);
/* [loop] Gives the controlled jobs, one by each call; *at begins as 0. False: no more. */
bool ptc_controllers_next(const struct ptc_controllers *all, size_t *at, const char **ret_uuid,
			  enum ptc_job_phase *ret_phase);
/* [loop] For ptc_measuring_opts.runs; arg: struct ptc_controllers. */
size_t ptc_controllers_runs(void *arg, struct ptc_measuring_run *ret, size_t max);
void ptc_controllers_tidy(struct ptc_controllers *all); /* [loop] now and then: removes what could not be before */
struct ptc_controller *ptc_controller_find(const struct ptc_controllers *all, const char *uuid);

struct ptc_switch_request {
	enum ptc_switch_kind kind;
	bool run_from, run_to, ahead; /* ranks run before it; ranks run after it, and build before it begins */
	enum ptc_run end;             /* snapshot without run_to, halt: the record's `run` afterwards */
	uint64_t stop, reached;       /* as in the intent; stop 0: as soon as possible */
	/* held: a snapshot of ranks that survived a loss; leaves: of ranks that will then start elsewhere */
	bool held, leaves, skip_data, recovers;
	struct ptc_generation_doc to;            /* of a resize and an import; owned */
	struct ptc_view source_view;             /* of an import from an older snapshot, `source`; owned */
	uint64_t base_generation, base_snapshot; /* of the record that it was planned for */
	struct ptc_plan_report *plan;            /* NULL: it was not planned; owned */
	char (*emptied)[PTC_NAME_MAX + 1];       /* nodes that have lost their copies, as the plan found; owned */
	size_t nemptied;
	struct ptc_watcher *watcher; /* a reference; owned */
	uint64_t id, source;         /* source: as in the intent, like skip_data and recovers */
};
/* Takes what was planned: `to`, the plan, `emptied`. Any thread. */
void ptc_switch_request_plan(struct ptc_switch_request *r, struct ptc_planned *planned);
void ptc_switch_request_done(struct ptc_switch_request *r); /* frees owned members that are left; any thread */
/* [loop] 0: accepted; the watcher will be finished, and the owned members are the controller's. */
int ptc_controller_submit(struct ptc_controller *ctl, struct ptc_switch_request *request, struct ptc_error *err);
/* [loop] The client has sent all of an import. imported: what its manifest is to have; emptied on success. */
int ptc_controller_filled(struct ptc_controller *ctl, uint64_t id, struct ptc_manifest_doc *imported,
			  struct ptc_watcher *watcher, struct ptc_error *err);
/* [loop] The layout document of an import's tensors; "": the job's description has them. False: it is not open. */
bool ptc_controller_import_layout(const struct ptc_controller *ctl, uint64_t id, char ret_hash[PTC_HASH_HEX]);
/* [loop] Aborts the switch with that id; id 0: the one under way. */
int ptc_controller_abort(struct ptc_controller *ctl, uint64_t id, const char *why, struct ptc_error *err);
/* [loop] The client of that import is gone: aborts the import, unless the client has asked for the commit. */
void ptc_controller_abandon(struct ptc_controller *ctl, uint64_t id);
/* [loop] Removes blobs that nothing names, now or at the end of the switch under way. */
void ptc_controller_tidy(struct ptc_controller *ctl);
void ptc_controller_event(struct ptc_controller *ctl); /* [loop] if idle, submits what worker events ask for */
bool ptc_controller_idle(const struct ptc_controller *ctl);
/* [loop] It is idle, and the mirror shows its record: a switch can be planned and submitted. */
bool ptc_controller_ready(const struct ptc_controller *ctl);
/* [loop] The work under way ends soon: it is tidying up, or a snapshot. For some time no due snapshot begins, so the
 * caller can begin its switch. */
bool ptc_controller_passing(struct ptc_controller *ctl);
int64_t ptc_controller_fence(const struct ptc_controller *ctl);
/* [loop] Phase and progress for status; text is borrowed until the next step. */
void ptc_controller_status(const struct ptc_controller *ctl, const char **ret_phase, uint64_t *ret_done,
			   uint64_t *ret_total);
/* [loop] What a recovery waits for, or which ranks hang; why a job with `copies` has no bridge. "": nothing. */
const char *ptc_controller_waits(const struct ptc_controller *c), *ptc_older_why_none(const struct ptc_controller *c);

/* ---- ending/tidy.c: remains of crashes -------------------------------------------------------- */

/* [loop] Removes the bytes of deleted jobs from the store; clears all->reconciled if it has to be called again. */
void ptc_tidy_store(struct ptc_controllers *all);
void ptc_tidy_job(struct ptc_controllers *all, const char *uuid); /* [loop] of that job, if it is deleted */
void ptc_tidy_creations(struct ptc_controllers *all);             /* [loop] creations of dead daemons */

/* The creation of a job is a key that the job's own transaction compares (version 1) and deletes. If the creator dies
 * before, the key and the blob of the job's spec are removed. Any thread, blocking. */
#define PTC_CREATION_KEY 64
void ptc_creation_key(const char *uuid, char ret_key[PTC_CREATION_KEY]);
int ptc_creation_begin(struct ptc_controllers *all, const char *uuid, uid_t uid, size_t bytes, struct ptc_error *err);
int ptc_creation_undo(struct ptc_etcd *e, const char *uuid, uid_t uid, struct ptc_error *err);

/* ---- loss/: what lost nodes held ---------------------------------------------- */

/* Whether each of v's nodes is up and has its table. Call ptc_view_locate on v first. Asks: may block for a second. */
void ptc_lost_ask(struct ptc_controllers *all, const struct ptc_view *v, bool *ret_has);
/* Tensors of a committed generation that no live node has whole any more, and nodes that do not have their part. Nodes
 * are named by the view, from which the names are borrowed. Freed with ptc_lost_report_done; one of zeros is fine. */
struct ptc_lost_report {
	uint64_t ntensors; /* lost, of which `listed` has at most the first PTC_LOST_LISTED */
	int64_t bytes;     /* of all of them */
	struct ptc_lost_tensor *listed;
	struct ptc_absent_node *absent;
	size_t nlisted, nabsent;
};
#define PTC_LOST_LISTED 100
struct ptc_lost_tensor {
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	int64_t bytes;
	uint32_t nnodes;
	const char *nodes[PTC_LOST_NODES];
};
struct ptc_absent_node {
	const char *node, *state; /* state: "left out", "without its bytes", "lost", "passed by" or "down" */
	double down_s;
	char *means; /* a line for people */
};
extern const struct ptc_members ptc_lost_report_members; /* `absent` and `lost` of docs/control.md */
void ptc_lost_report_done(struct ptc_lost_report *r);
/* Blocks as well. */
int ptc_lost_find(struct ptc_controllers *all, const struct ptc_view *v, const bool *has, const struct ptc_spec *spec,
		  const struct ptc_record_doc *record, struct ptc_lost_report *ret, struct ptc_error *err);
/* Whether the usable nodes (by v's numbers) have every byte of v's state. PTC_ELOST: they lack some; the line names
 * tensors. Asks no node. Not on the loop. */
int ptc_lost_covered(struct ptc_controllers *all, const struct ptc_view *v, const bool *usable, struct ptc_error *err);

/* [loop] Numbers of the switches that this daemon has controlled since its start, for metrics. */
#define PTC_SWITCH_KINDS 4
struct ptc_switch_tally {
	uint64_t ended[PTC_SWITCH_KINDS][2]; /* [kind][committed] */
	uint64_t between_bytes, within_bytes, captured_bytes, bound_bytes;
	struct ptc_histogram phases[PTC_JOB_PHASE_COUNT]; /* time spent in each */
	struct ptc_histogram paused, slowed;              /* training time that committed switches cost */
};
extern struct ptc_switch_tally ptc_switch_tally;
