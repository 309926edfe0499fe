/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of ptcd share. Who owns what:
 *   loop thread     cluster mirror, controllers, everything marked [loop]
 *   any thread      specs and channels (their own locks), store, agent
 * Server threads reach [loop] state through ptc_loop_call. */
#pragma once

#include "daemon/agent/agent.h"
#include "daemon/cluster.h"
#include "daemon/config.h"
#include "formats/job.h"
#include "formats/json.h"
#include "rpc/rpc.h"

#include <pthread.h>
#include <stdatomic.h>

/* Random ids that every JSON reader can hold. */
#define PTC_ID_MASK ((UINT64_C(1) << 53) - 1)

struct ptc_controller;
struct ptc_specs;
struct ptc_layouts;
struct ptc_channels;
struct ptc_read_views;
struct ptc_holds;
struct ptc_samples;

#define PTC_CONTROL_METHODS 32

struct ptc_control_method {
	struct ptc_daemon *d;
	ptc_rpc_handler_fn fn;
};

struct ptc_daemon {
	struct ptc_daemon_config config;
	bool insecure;
	struct ptc_rpc_tls tls;
	const struct ptc_rpc_tls *tls_or_null; /* NULL where neither listener nor peers use TLS */
	struct ptc_loop *loop;
	struct ptc_store *store;
	struct ptc_agent *agent;
	struct ptc_cluster *cluster;
	struct ptc_rpc_client *client;
	struct ptc_specs *specs;
	struct ptc_layouts *layouts;
	struct ptc_workers *workers;
	struct ptc_channels *channels;
	struct ptc_read_views *read_views;
	struct ptc_holds *holds;
	struct ptc_samples *samples;
	struct ptc_controller **controllers; /* [loop] one per job whose lock we hold */
	size_t ncontrollers;
	bool reconciled; /* [loop] every job in our store was found in etcd, or is being removed */
	atomic_bool stopping;
	struct ptc_control_method control[PTC_CONTROL_METHODS];
};

/* ---- specs.c: parsed specs by hash, shared, counted ------------------------ */
int ptc_specs_new(struct ptc_daemon *d, struct ptc_specs **ret_specs, struct ptc_error *err);
struct ptc_specs *ptc_specs_free(struct ptc_specs *s);
/* Blocking (etcd on a miss); any thread. ref is released with ptc_specs_release. */
int ptc_specs_get(struct ptc_specs *s, const char *uuid, const char *hash, const struct ptc_job_desc **ret_desc,
		  void **ret_ref, struct ptc_error *err);
void ptc_specs_release(void *ref);

/* ---- layouts.c: layouts made of layout documents, by hash, shared, counted -- */
int ptc_layouts_new(struct ptc_daemon *d, struct ptc_layouts **ret_layouts, struct ptc_error *err);
struct ptc_layouts *ptc_layouts_free(struct ptc_layouts *l); /* NULL ok */
/* Blocking (etcd on a miss); any thread. ref is released with ptc_layouts_release. */
int ptc_layouts_get(struct ptc_layouts *l, const char *uuid, const char *hash, const struct ptc_declared **ret_declared,
		    const struct ptc_layout **ret_layout, void **ret_ref, struct ptc_error *err);
void ptc_layouts_release(void *ref);
/* Puts the callbacks layout_get, layout_release, job_get, job_release and blob_get into env, whose arg is d. */
void ptc_layouts_agent_env(struct ptc_agent_env *env);

/* ---- samples.c: datasets that lie on one node, see daemon/samples.h ------------ */
struct ptc_samples *ptc_samples_new(struct ptc_daemon *d);   /* NULL: out of memory */
struct ptc_samples *ptc_samples_free(struct ptc_samples *s); /* after the servers; NULL ok */
void ptc_samples_expire(struct ptc_samples *s);              /* [loop] from time to time */

/* ---- channels.c: connections to other daemons, by address and lane ----------- */
int ptc_channels_new(struct ptc_daemon *d, struct ptc_channels **ret_channels, struct ptc_error *err);
struct ptc_channels *ptc_channels_free(struct ptc_channels *c);
int ptc_channels_get(struct ptc_channels *c, const char *node, const char *address, bool bulk, unsigned lane,
		     struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
/* The node lives again: connections to it that wait before they try once more need not. */
void ptc_channels_retry(struct ptc_channels *c, const char *node);

/* A connection of its own, which no back-off delays; the caller frees it. */
int ptc_channels_probe(struct ptc_channels *c, const char *node, const char *address,
		       struct ptc_rpc_channel **ret_channel, struct ptc_error *err);

/* ---- view.c: one generation or switch of a job, ready to be sent or read ------ */

/* Everything a peer must know about a job's generations; owns its memory. */
struct ptc_view {
	struct ptc_meta_doc meta;
	int64_t fence;
	uint64_t seq; /* of the request this becomes; 0: not ordered */
	uint64_t switch_id;
	uint64_t from_generation, from_snapshot, to_generation, to_snapshot; /* 0: absent */
	uint64_t from_launch, to_launch;                                     /* of their ranks; 0: none run */
	struct ptc_generation_doc from, to;
	struct ptc_manifest_doc manifest; /* of from */
	/* every node either uses, in order of first use; addresses "" while down */
	char **nodes, **addresses;
	bool *down;
	size_t nnodes;
};
void ptc_view_done(struct ptc_view *v);
/* Loads the documents named by record and intent (either may be NULL). Blocking; any thread but the loop. */
int ptc_view_load(struct ptc_etcd *e, const struct ptc_meta_doc *meta, const struct ptc_record_doc *record,
		  const struct ptc_intent_doc *intent, struct ptc_view *ret_view, struct ptc_error *err);
/* Collects v->nodes from the generations. 0 or PTC_ENOMEM. */
int ptc_view_nodes(struct ptc_view *v);
/* [loop] Fills addresses and down from the mirror. */
int ptc_view_locate(struct ptc_view *v, struct ptc_cluster *c);
/* Builds the message; parts borrow from v, arrays are released by _done. */
struct ptc_info {
	struct Ptc__V1__SwitchInfo *pb;
	void *memory;
};
int ptc_view_info(const struct ptc_view *v, struct ptc_info *ret_info, struct ptc_error *err);
void ptc_info_done(struct ptc_info *info);
/* Geometry of the view's from or to generation; blocking. */
int ptc_view_geometry(struct ptc_daemon *d, const struct ptc_view *v, bool to, struct ptc_geometry *ret_geometry,
		      struct ptc_error *err);
/* Allocation of a generation document with node numbers of v->nodes. */
int ptc_view_allocation(const struct ptc_view *v, const struct ptc_generation_doc *g, struct ptc_allocation *ret_alloc);

/* ---- progress.c: what a waiting client sees of a switch ------------------------ */

struct ptc_watcher; /* counted; written by the loop, waited on by one server thread */
struct ptc_watcher *ptc_watcher_new(uint64_t switch_id);
struct ptc_watcher *ptc_watcher_ref(struct ptc_watcher *w);
void ptc_watcher_unref(struct ptc_watcher *w);
void ptc_watcher_progress(struct ptc_watcher *w, const char *phase, uint64_t done, uint64_t total, const char *text);
void ptc_watcher_finish(struct ptc_watcher *w, int status, const char *text, const char *summary);
/* Sends Progress messages to the call until the switch ends or the client goes; returns the switch's status. */
int ptc_watcher_stream(struct ptc_watcher *w, struct ptc_rpc_call *call, struct ptc_error *err);
/* The last message carries what amend makes of the summary (ptc_free-able; NULL: as it is); where amend fails there is none. */
typedef int (*ptc_amend_fn)(void *arg, const char *summary, char **ret_summary, struct ptc_error *err);
int ptc_watcher_stream_amended(struct ptc_watcher *w, struct ptc_rpc_call *call, ptc_amend_fn amend, void *arg,
			       struct ptc_error *err);

/* Waits until the switch has ended (0, however it did) or the client has gone (PTC_ECANCELED). */
int ptc_watcher_wait_end(struct ptc_watcher *w, struct ptc_rpc_call *call, struct ptc_error *err);

/* Waits until the switch is in that phase; its error if it ended before. */
int ptc_watcher_wait_phase(struct ptc_watcher *w, const char *phase, struct ptc_rpc_call *call, struct ptc_error *err);

/* ---- controller.c: the shell around the job core -------------------------------- */

/* [loop] Mirror changed; job NULL: nodes. */
void ptc_controllers_changed(struct ptc_daemon *d, struct ptc_job_view *job);
/* [loop] Every 200 ms: takes locks nobody holds. */
void ptc_controllers_tick(struct ptc_daemon *d);
/* [loop] Our lease is gone: every lock with it. */
void ptc_controllers_lost(struct ptc_daemon *d);
void ptc_controllers_free(struct ptc_daemon *d);
struct ptc_controller *ptc_controller_find(struct ptc_daemon *d, const char *uuid);

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
void ptc_controller_news(struct ptc_controller *ctl);
bool ptc_controller_idle(const struct ptc_controller *ctl);
/* [loop] What keeps it busy ends soon and by itself: tidying up, or a snapshot. Whoever asks is let in before the next one. */
bool ptc_controller_passing(struct ptc_controller *ctl);
int64_t ptc_controller_fence(const struct ptc_controller *ctl);
/* [loop] Phase and progress for status; text is borrowed until the next step. */
void ptc_controller_status(const struct ptc_controller *ctl, const char **ret_phase, uint64_t *ret_done,
			   uint64_t *ret_total);

/* ---- events.c ---------------------------------------------------------------------- */

/* Any thread: appends one line to the job's event log (on the coordination thread). */
void ptc_event(struct ptc_daemon *d, const char *uuid, const char *kind, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* ---- tidy.c: what a crash may leave ---------------------------------------------------- */

/* [loop] Removes from our store what belongs to jobs that are gone; clears d->reconciled when it has to be asked again. */
void ptc_tidy_store(struct ptc_daemon *d);
void ptc_tidy_job(struct ptc_daemon *d, const char *uuid); /* [loop] that one, if it is gone */
void ptc_tidy_creations(struct ptc_daemon *d);             /* [loop] of daemons that died over them */

/* A job that is being created: a key that the job's own transaction compares (version 1) and deletes. Its spec's blob
 * goes with it when the creator dies before. Any thread, blocking. */
#define PTC_CREATION_KEY 64
void ptc_creation_key(const char *uuid, char ret_key[PTC_CREATION_KEY]);
int ptc_creation_begin(struct ptc_daemon *d, const char *uuid, struct ptc_error *err);
int ptc_creation_undo(struct ptc_etcd *e, const char *uuid, struct ptc_error *err);

/* ---- live.c: the ranks on this node ---------------------------------------------------- */
int ptc_live_start(struct ptc_daemon *d, struct ptc_error *err); /* d->workers; takes up processes of an earlier life */
void ptc_live_stop(struct ptc_daemon *d);                        /* processes go on */
/* Any thread: tells the job's controller, through etcd; again until etcd has it or the job is gone. */
void ptc_live_news(void *arg, const struct ptc_worker_news *news);

/* ---- plan.c: from a request to a feasible switch ------------------------------------- */

/* Which tensors of v's committed generation no live node has any more (docs/control.md, "lost"); *ret_lost NULL when every
 * byte is there. Asks the nodes: blocking, not on the loop. v is located. */
int ptc_lost_find(struct ptc_daemon *d, const struct ptc_view *v, const struct ptc_spec *spec, json_t **ret_lost,
		  struct ptc_error *err);
/* The same in one line, for a plan, whose nodes are numbered otherwise: always PTC_ELOST, or worse. */
int ptc_lost_error(const struct ptc_view *v, const struct ptc_spec *spec, const struct ptc_layout *l,
		   const struct ptc_allocation *a, uint32_t nnodes, const bool *usable, char *const *names,
		   struct ptc_error *err);

struct ptc_plan_request {
	const char *config; /* NULL or "": from gpus and the job's table */
	uint32_t gpus;
	bool or_same; /* neither is given: as the job is, or the largest of its table that fits ... */
	bool or_one;  /* ... or, where none does, one rank */
	char **nodes;
	size_t nnodes; /* restrict to these; 0: any */
};
struct ptc_planned {
	struct ptc_generation_doc to;
	char *json; /* documented in docs/control.md */
};
void ptc_planned_done(struct ptc_planned *p);
/* Blocking; not on the loop. v has from (or generation 0). */
int ptc_plan_switch(struct ptc_daemon *d, const struct ptc_view *v, const struct ptc_plan_request *req,
		    struct ptc_planned *ret_planned, struct ptc_error *err);

/* What the plan of a switch comes to once the layout of v->to is known; its bounds are over the devices of the pool. */
struct ptc_plan_pool;
struct ptc_plan_pool *ptc_plan_pool_new(struct ptc_daemon *d,
					const struct ptc_view *v); /* [loop] NULL: out of memory */
struct ptc_plan_pool *ptc_plan_pool_free(struct ptc_plan_pool *p); /* NULL ok */
/* Blocking; any thread but the loop. v is the one the pool was made with. */
int ptc_plan_laid(const struct ptc_plan_pool *pool, const struct ptc_view *v, char **ret_json, struct ptc_error *err);

/* ---- readview.c (see control.h) ---------------------------------------------------------- */
struct ptc_read_views *ptc_read_views_new(void); /* NULL: out of memory */
struct ptc_read_views *ptc_read_views_free(struct ptc_read_views *r);

/* ---- mount.c: jobs' state as files ---------------------------------------------------------- */
struct ptc_mount;
/* config is borrowed. */
int ptc_mount_start(const struct ptc_daemon_config *config, struct ptc_mount **ret_mount, struct ptc_error *err);
struct ptc_mount *ptc_mount_stop(struct ptc_mount *m); /* the files stay; NULL ok */

/* ---- hold.c: generations that readers hold through this daemon ----------------------------- */
struct ptc_holds *ptc_holds_new(void);                 /* NULL: out of memory */
struct ptc_holds *ptc_holds_free(struct ptc_holds *h); /* before the read views and the agent */
void ptc_holds_expire(struct ptc_holds *h);            /* any thread; does not block */

/* ---- control.c: ptc.v1.Control -------------------------------------------------------- */
int ptc_control_register(struct ptc_daemon *d, struct ptc_rpc_server *server, struct ptc_error *err);
