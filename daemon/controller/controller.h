/* SPDX-License-Identifier: Apache-2.0 */
/* Switches of the jobs that this daemon controls: planning, the shell around the job core, progress, and the removal of
 * things that a crash may have left. What each function needs of its thread stands beside it; [loop] is the loop thread.
 *
 * Happy path: a lock key with our name appears, a controller loads the job's record, requests come through
 * ptc_controller_submit, and the watcher of each is finished.
 * Failure modes: the lock is lost (another daemon goes on), etcd unreachable, nodes that do not answer: daemon/core/job_core.h. */
#pragma once

#include "base/number/count.h"
#include "daemon/cluster/channels.h"
#include "daemon/core/job_core.h"
#include "daemon/documents/documents.h"
#include "daemon/planning/measuring.h"
#include "daemon/workers/types/worker_event.h"

#include <stdatomic.h>

struct ptc_controller;

/* All controllers of a daemon, and the services that they use. Services are borrowed and outlive it. */
struct ptc_controllers {
	const char *node; /* our name */
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
	struct ptc_controller **list; /* [loop] one for each job whose lock we hold */
	size_t n;
	bool reconciled; /* [loop] every job in our store was found in etcd, or is being removed */
};

/* Random ids that every JSON reader can hold. */
#define PTC_ID_MASK ((UINT64_C(1) << 53) - 1)

/* ---- watcher.c: what a waiting client sees of a switch ------------------------ */

struct ptc_watcher; /* counted; written by the loop, looked at by the steps of one call */
struct ptc_watcher *ptc_watcher_new(uint64_t switch_id);
struct ptc_watcher *ptc_watcher_ref(struct ptc_watcher *w);
void ptc_watcher_unref(struct ptc_watcher *w);
void ptc_watcher_progress(struct ptc_watcher *w, const char *phase, uint64_t done, uint64_t total, const char *text);
void ptc_watcher_finish(struct ptc_watcher *w, int status, const char *text, const char *summary);
/* What the summary becomes in the last message (ptc_free-able; NULL: as it is); where amend fails there is none. *later:
 * it cannot be told yet. */
typedef int (*ptc_amend_fn)(void *arg, struct ptc_rpc_call *call, const char *summary, bool *later, char **ret_summary,
			    struct ptc_error *err);
/* Each may be NULL. */
struct ptc_watch_ops {
	ptc_amend_fn amend;
	/* The lock was lost (PTC_EFENCED): each of the call's steps from then on. */
	int (*lost)(void *arg, struct ptc_rpc_call *call, uint64_t switch_id, struct ptc_error *err);
	void (*release)(void *arg); /* once, also when ptc_watcher_stream fails */
};
/* From a handler: from now on the call sends Progress messages until the switch ends, with its status, or the client
 * goes. */
int ptc_watcher_stream(struct ptc_watcher *w, struct ptc_rpc_call *call, const struct ptc_watch_ops *ops, void *arg,
		       struct ptc_error *err);
/* Is the switch in that phase (its error if it ended before), or, with phase NULL, has it ended? Does not wait. */
int ptc_watcher_look(struct ptc_watcher *w, const char *phase, bool *ret_there, struct ptc_error *err);
/* For steps: how long to wait when nothing has happened since then. */
int ptc_wait_ms(int64_t since_ns);

/* ---- controller.c: the shell around the job core -------------------------------- */

/* [loop] Mirror changed; job NULL: nodes. */
void ptc_controllers_changed(struct ptc_controllers *all, struct ptc_job_view *job);
/* [loop] Every 200 ms: takes locks nobody holds. */
void ptc_controllers_tick(struct ptc_controllers *all);
/* [loop] Our lease is gone: every lock with it. */
void ptc_controllers_lost(struct ptc_controllers *all);
void ptc_controllers_free(struct ptc_controllers *all);
/* Any thread: blocks until no Pull thread of any controller is left. */
void ptc_pulls_wait(void);
/* [loop] The controlled jobs, one for each call; *at begins as 0. False: no more. */
bool ptc_controllers_next(const struct ptc_controllers *all, size_t *at, const char **ret_uuid,
			  enum ptc_job_phase *ret_phase);
/* [loop] A ptc_measuring_opts.runs; arg: struct ptc_controllers. */
size_t ptc_controllers_runs(void *arg, struct ptc_measuring_run *ret, size_t max);
/* [loop] From time to time: removes again whatever could not be removed before. */
void ptc_controllers_tidy(struct ptc_controllers *all);
struct ptc_controller *ptc_controller_find(struct ptc_controllers *all, const char *uuid);

struct ptc_switch_request {
	enum ptc_switch_kind kind;
	bool run_from, run_to;                   /* ranks run before it; are to run after it */
	enum ptc_run end;                        /* snapshot without run_to, halt: what the record then says */
	uint64_t stop;                           /* first round of arming; 0: as soon as possible */
	struct ptc_generation_doc to;            /* taken over; resize and import */
	uint64_t base_generation, base_snapshot; /* the record it was planned for */
	char *plan_json;                         /* what the summary says of the plan; taken over */
	struct ptc_watcher *watcher;             /* a reference; taken over */
	uint64_t id;
};
/* [loop] 0: accepted (the watcher will be finished); else nothing was taken over. */
int ptc_controller_submit(struct ptc_controller *ctl, struct ptc_switch_request *request, struct ptc_error *err);
/* [loop] Import: everything was sent. expected: one digest per item; files: for the manifest. Both taken over. */
int ptc_controller_filled(struct ptc_controller *ctl, uint64_t id, uint64_t *expected, size_t nexpected,
			  struct ptc_file_doc *files, size_t nfiles, struct ptc_watcher *watcher,
			  struct ptc_error *err);
/* [loop] id: only that switch; 0: whichever is under way. */
int ptc_controller_abort(struct ptc_controller *ctl, uint64_t id, const char *why, struct ptc_error *err);
/* [loop] The client of that import is gone: aborts it, unless everything was sent and the commit was asked for. */
void ptc_controller_abandon(struct ptc_controller *ctl, uint64_t id);
/* [loop] Blobs were written that nothing may name: they are removed now, or at the end of the switch under way. */
void ptc_controller_tidy(struct ptc_controller *ctl);
/* [loop] What nodes have told of the job's ranks: submits what follows from it, when nothing is under way. */
void ptc_controller_event(struct ptc_controller *ctl);
bool ptc_controller_idle(const struct ptc_controller *ctl);
/* [loop] What keeps it busy ends soon and by itself: tidying up, or a snapshot. Whoever asks is let in before the next one. */
bool ptc_controller_passing(struct ptc_controller *ctl);
int64_t ptc_controller_fence(const struct ptc_controller *ctl);
/* [loop] Phase and progress for status; text is borrowed until the next step. */
void ptc_controller_status(const struct ptc_controller *ctl, const char **ret_phase, uint64_t *ret_done,
			   uint64_t *ret_total);

/* ---- tidy.c: what a crash may leave ---------------------------------------------------- */

/* [loop] Removes from our store what belongs to jobs that are gone; clears all->reconciled when it has to be asked again. */
void ptc_tidy_store(struct ptc_controllers *all);
void ptc_tidy_job(struct ptc_controllers *all, const char *uuid); /* [loop] that one, if it is gone */
void ptc_tidy_creations(struct ptc_controllers *all);             /* [loop] of daemons that died over them */

/* A job that is being created: a key that the job's own transaction compares (version 1) and deletes. Its spec's blob
 * goes with it when the creator dies before. Any thread, blocking. */
#define PTC_CREATION_KEY 64
void ptc_creation_key(const char *uuid, char ret_key[PTC_CREATION_KEY]);
int ptc_creation_begin(struct ptc_controllers *all, const char *uuid, uid_t uid, size_t bytes, struct ptc_error *err);
int ptc_creation_undo(struct ptc_etcd *e, const char *uuid, uid_t uid, struct ptc_error *err);

/* ---- switch_plan.c, lost_tensors.c: from a request to a feasible switch ------------------- */

/* Which tensors of v's committed generation no live node has any more (docs/control.md, "lost"); *ret_lost NULL when every
 * byte is there. Asks the nodes: blocking, not on the loop. v is located. */
int ptc_lost_find(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_spec *spec, json_t **ret_lost,
		  struct ptc_error *err);
/* The same in one line, for a plan, whose nodes are numbered otherwise: always PTC_ELOST, or worse. */
int ptc_lost_error(const struct ptc_view *v, const struct ptc_spec *spec, const struct ptc_layout *l,
		   const struct ptc_allocation *a, uint32_t nnodes, const bool *usable, char *const *names,
		   struct ptc_error *err);

struct ptc_plan_request {
	const char *config; /* NULL or "": from gpus: the job's table, else the planner */
	uint32_t gpus;
	double horizon_s; /* for the planner; 0: the job's mean time between changes */
	int objective;    /* for the planner: enum ptc_objective */
	bool or_same;     /* neither is given: as the job is, or the largest of its table that fits ... */
	bool or_one;      /* ... or, where none does, one rank */
	char **nodes;
	size_t nnodes;                      /* restrict to these; 0: any */
	bool (*gone)(const void *gone_arg); /* nobody wants advice any more; NULL: somebody does */
	const void *gone_arg;
};
struct ptc_planned {
	struct ptc_generation_doc to;
	char *json; /* documented in docs/control.md */
	bool stays; /* the planner finds that no switch pays; `to` is what is now */
	char why[PTC_WHY_MAX + 256];
};
void ptc_planned_done(struct ptc_planned *p);
/* Blocking; not on the loop. v has from (or generation 0). */
int ptc_plan_switch(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    struct ptc_planned *ret_planned, struct ptc_error *err);

/* What the planner says of req->gpus devices or, with first, of each number from there on, by what the job is now: JSON
 * (docs/control.md). Blocking; not on the loop. */
int ptc_plan_advise(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    uint32_t first, json_t **ret_json, struct ptc_error *err);

/* What the plan of a switch comes to once the layout of v->to is known; its bounds are over the devices of the pool. */
struct ptc_plan_pool;
struct ptc_plan_pool *ptc_plan_pool_new(struct ptc_controllers *all,
					const struct ptc_view *v); /* [loop] NULL: out of memory */
struct ptc_plan_pool *ptc_plan_pool_free(struct ptc_plan_pool *p); /* NULL ok */
/* Blocking; any thread but the loop. v is the one the pool was made with. planned: the plan before, whose choice is kept;
 * NULL: there is none. */
int ptc_plan_of_layout(const struct ptc_plan_pool *pool, const struct ptc_view *v, const char *planned, char **ret_json,
		       struct ptc_error *err);

/* Numbers of the switches that this daemon has controlled since it started. The controllers add to them, metrics reads
 * them; both on the loop thread. Counted whether or not anything is served. */
#define PTC_SWITCH_KINDS 4

struct ptc_switch_tally {
	uint64_t ended[PTC_SWITCH_KINDS][2]; /* [kind][committed] */
	uint64_t between_bytes, within_bytes, captured_bytes, bound_bytes;
	struct ptc_histogram phases[PTC_JOB_PHASE_COUNT]; /* time spent in each */
};

extern struct ptc_switch_tally ptc_switch_tally; /* [loop] */
