/* SPDX-License-Identifier: Apache-2.0 */
/* Inside ptc.v1.Control: what its files share. Handlers run on server
 * threads; they reach the mirror and the controllers through ptc_loop_call. */
#pragma once

#include "daemon/api/daemon.h"
#include "daemon/cluster/job_events.h"
#include "rpc/pbcall.h"
#include "formats/dataset_doc.h"

#include "ptc.pb-c.h"

#include <jansson.h>

/* A job as the caller may see it, copied from the mirror. */
struct ptc_target {
	struct ptc_meta_doc meta;
	bool has_record, has_intent, has_lock;
	bool bad_record; /* see ptc_job_view */
	struct ptc_record_doc record;
	struct ptc_intent_doc intent;
	char controller[PTC_NAME_MAX + 1]; /* "" when nobody holds the lock */
	char address[256];
	uint64_t epoch; /* of the nodes' state */
	bool ours;      /* this daemon is the controller */
	int64_t fence;  /* of the lock; 0: nobody holds it */
};

/* Who asks: the local user, 0 for an administrator's certificate, or whom a node forwards for. */
uid_t ptc_control_uid(const struct ptc_rpc_call *call);
/* PTC_ENOTFOUND for jobs that do not exist and for jobs of others alike. */
int ptc_control_find(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name,
		     struct ptc_target *ret_target, struct ptc_error *err);
/* Same, and waits (10 s) until somebody controls it. */
int ptc_control_find_controlled(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name,
				struct ptc_target *ret_target, struct ptc_error *err);
/* Opens the call there (timeout_ms 0: for as long as it takes) and sends the request; the caller receives and frees. */
int ptc_control_forward_open(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			     const char *method, const ProtobufCMessage *request, int timeout_ms,
			     struct ptc_rpc_stream **ret_stream, struct ptc_error *err);
/* Hands the whole call to the controller's daemon: from now on, in steps, relays every answer, and its status. */
int ptc_control_forward(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, const char *method,
			const ProtobufCMessage *request, struct ptc_error *err);
/* The same for a switch: when its controller goes, it is followed to its end. */
int ptc_control_forward_switch(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			       const char *method, const ProtobufCMessage *request, struct ptc_error *err);
/* control_tail.c: a switch of t's job, asked of a controller that may have gone. Each step of the call looks once: it sends
 * progress and asks for the next step, or sends the summary, or fails with what the switch failed with. */
struct ptc_tail;
int ptc_tail_new(struct ptc_daemon *d, const struct ptc_target *t, uint64_t id, struct ptc_tail **ret_tail,
		 struct ptc_error *err);
struct ptc_tail *ptc_tail_free(struct ptc_tail *tail); /* NULL ok */
int ptc_tail_step(struct ptc_tail *tail, struct ptc_rpc_call *call, struct ptc_error *err);
/* What a call to a controller that goes away may end with. */
bool ptc_tail_worth(int status);
/* The same at once, for what is answered soon; returns the status. */
int ptc_control_forward_now(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			    const char *method, const ProtobufCMessage *request, int timeout_ms, struct ptc_error *err);
/* The committed generation (and the switch under way, with_intent), located. PTC_ESTATE when there is no state yet and
 * need_record. t is brought up to date when what it names has been replaced meanwhile. */
int ptc_control_view(struct ptc_daemon *d, struct ptc_target *t, bool with_intent, bool need_record,
		     struct ptc_view *ret_view, struct ptc_error *err);
/* When the coordinator answered last, where it is away; 0: it is there. And into a document, where it is away: "as_of_ms". */
int64_t ptc_control_as_of(struct ptc_daemon *d);
json_t *ptc_control_dated(struct ptc_daemon *d, json_t *root); /* returns root; NULL ok */
/* PTC_ESTATE unless there is a snapshot to read. */
int ptc_control_need_snapshot(const struct ptc_target *t, struct ptc_error *err);
/* readview.c: the committed generation of a target, ready to be read and kept for the next read. */
struct ptc_read_view {
	struct ptc_view view;
	struct ptc_geometry geometry;
	/* private */
	struct ptc_read_views *owner;
	char manifest_hash[PTC_HASH_HEX];
	uint64_t epoch, used;
	unsigned refs;
	bool kept;
};
int ptc_read_view_get(struct ptc_daemon *d, struct ptc_target *t, struct ptc_read_view **ret_view,
		      struct ptc_error *err);
void ptc_read_view_ref(struct ptc_read_view *v);
void ptc_read_view_put(struct ptc_read_view *v);
/* control_data.c: the committed generation of the caller's job, or one that a reader holds. uuid "": not compared. PTC_ESTATE: the
 * job has moved on. */
int ptc_control_read_view(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job, const char *uuid,
			  uint64_t generation, uint64_t snapshot, struct ptc_read_view **ret_view,
			  struct ptc_error *err);
/* holds.c. Every node of the view holds its table for the holder, for so long; 0: gives it up. *ret_held: how many do. */
int ptc_holds_nodes(struct ptc_daemon *d, const struct ptc_read_view *view, const char *holder, uint32_t ttl_ms,
		    unsigned *ret_held, struct ptc_error *err);
/* A reference to what a reader holds through this daemon. False: nothing such is held. */
bool ptc_holds_view(struct ptc_holds *h, const char *uuid, uint64_t generation, uint64_t snapshot,
		    struct ptc_read_view **ret_view);
/* control_query.c: [{rank, node, device}] of v's committed generation; ptc_free it. NULL: out of memory. */
char *ptc_control_ranks_json(const struct ptc_view *v);

/* Sends one Document; json is freed. */
int ptc_control_send_json(struct ptc_rpc_call *call, json_t *root, struct ptc_error *err);
int ptc_control_send_text(struct ptc_rpc_call *call, const char *json, struct ptc_error *err);

/* control_switch.c: plans on this thread and hands the switch to the controller, which is on this daemon; waits while it only tidies up. */
struct ptc_control_ask {
	enum ptc_switch_kind kind;
	bool start; /* resize: the job's ranks do not run, and are to */
	bool stop;  /* snapshot: the job ends with it; halt: always */
};
int ptc_control_start_switch(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job,
			     const struct ptc_control_ask *ask, const struct ptc_plan_request *pr,
			     struct ptc_watcher *w, uint64_t id, struct ptc_error *err);
/* Streams a switch's progress; when ranks were started or stopped, the last message waits for their first step. */
int ptc_control_stream(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_watcher *w,
		       struct ptc_rpc_call *call, struct ptc_error *err);
/* What the ranks of a job do: docs/control.md, `run`. v: its committed generation; NULL: it has none. */
json_t *ptc_control_run_json(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v);
/* What a node says of the job's ranks there (ptc_workers_json); NULL: it does not answer. */
json_t *ptc_control_ask_ranks(struct ptc_daemon *d, const char *uuid, const char *node, const char *address);
uint64_t ptc_control_new_id(void);

#define PTC_CONTROL_HANDLER(name) int name(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)

/* control_query.c */
PTC_CONTROL_HANDLER(ptc_control_nodes);
PTC_CONTROL_HANDLER(ptc_control_job_list);
PTC_CONTROL_HANDLER(ptc_control_status);
PTC_CONTROL_HANDLER(ptc_control_snapshots);
/* control_events.c, control_verify.c */
PTC_CONTROL_HANDLER(ptc_control_events);
PTC_CONTROL_HANDLER(ptc_control_verify);
/* control_switch.c */
PTC_CONTROL_HANDLER(ptc_control_job_create);
PTC_CONTROL_HANDLER(ptc_control_job_delete);
PTC_CONTROL_HANDLER(ptc_control_plan);
PTC_CONTROL_HANDLER(ptc_control_resize);
PTC_CONTROL_HANDLER(ptc_control_drain);
PTC_CONTROL_HANDLER(ptc_control_abort);
/* control_live.c */
PTC_CONTROL_HANDLER(ptc_control_run);
PTC_CONTROL_HANDLER(ptc_control_stop);
PTC_CONTROL_HANDLER(ptc_control_snapshot);
/* control_logs.c */
PTC_CONTROL_HANDLER(ptc_control_logs);
/* control_data.c */
PTC_CONTROL_HANDLER(ptc_control_import_begin);
PTC_CONTROL_HANDLER(ptc_control_import_data);
PTC_CONTROL_HANDLER(ptc_control_import_commit);
PTC_CONTROL_HANDLER(ptc_control_export_info);
PTC_CONTROL_HANDLER(ptc_control_read);
PTC_CONTROL_HANDLER(ptc_control_read_rank);
/* control_dataset.c */
PTC_CONTROL_HANDLER(ptc_control_dataset_add);
PTC_CONTROL_HANDLER(ptc_control_dataset_remove);
PTC_CONTROL_HANDLER(ptc_control_dataset_list);
PTC_CONTROL_HANDLER(ptc_control_data);
/* The dataset of that name as uid may see it; PTC_ENOTFOUND. Asks etcd. */
int ptc_control_dataset(struct ptc_daemon *d, const char *name, uid_t uid, struct ptc_dataset_doc *ret_doc,
			struct ptc_error *err);
/* control_samples.c */
PTC_CONTROL_HANDLER(ptc_control_dataset_read);
/* holds.c */
PTC_CONTROL_HANDLER(ptc_control_hold);
