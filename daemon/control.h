/* SPDX-License-Identifier: Apache-2.0 */
/* Inside ptc.v1.Control: what its files share. Handlers run on server
 * threads; they reach the mirror and the controllers through ptc_loop_call. */
#pragma once

#include "daemon/daemon.h"
#include "daemon/pbcall.h"

#include "ptc.pb-c.h"

#include <jansson.h>

/* A job as the caller may see it, copied from the mirror. */
struct ptc_target {
	struct ptc_meta_doc meta;
	bool has_record, has_intent, has_lock;
	struct ptc_record_doc record;
	struct ptc_intent_doc intent;
	char controller[PTC_NAME_MAX + 1]; /* "" when nobody holds the lock */
	char address[256];
	uint64_t epoch; /* of the nodes' state */
	bool ours;      /* this daemon is the controller */
};

/* Who asks: the local user, 0 for an administrator's certificate, or whom a node forwards for. */
uid_t ptc_control_uid(const struct ptc_rpc_call *call);
/* PTC_ENOTFOUND for jobs that do not exist and for jobs of others alike. */
int ptc_control_find(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name,
		     struct ptc_target *ret_target, struct ptc_error *err);
/* Same, and waits (10 s) until somebody controls it. */
int ptc_control_find_controlled(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name,
				struct ptc_target *ret_target, struct ptc_error *err);
/* Hands the whole call to the controller's daemon and relays every answer. */
/* Opens the call there and sends the request; the caller receives and frees. */
int ptc_control_forward_open(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			     const char *method, const ProtobufCMessage *request, struct ptc_rpc_stream **ret_stream,
			     struct ptc_error *err);
int ptc_control_forward(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, const char *method,
			const ProtobufCMessage *request, struct ptc_error *err);
/* The committed generation (and the switch under way, with_intent), located. PTC_ESTATE when there is no state yet and
 * need_record. t is brought up to date when what it names has been replaced meanwhile. */
int ptc_control_view(struct ptc_daemon *d, struct ptc_target *t, bool with_intent, bool need_record,
		     struct ptc_view *ret_view, struct ptc_error *err);
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
void ptc_read_view_put(struct ptc_read_view *v);

/* Sends one Document; json is freed. */
int ptc_control_send_json(struct ptc_rpc_call *call, json_t *root, struct ptc_error *err);
int ptc_control_send_text(struct ptc_rpc_call *call, const char *json, struct ptc_error *err);

/* control_switch.c: plans on this thread and hands the switch to the controller, which is on this daemon; waits while it only tidies up. */
int ptc_control_start_switch(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job,
			     enum ptc_switch_kind kind, const struct ptc_plan_request *pr, struct ptc_watcher *w,
			     uint64_t id, struct ptc_error *err);
uint64_t ptc_control_new_id(void);

#define PTC_CONTROL_HANDLER(name) int name(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)

/* control_query.c */
PTC_CONTROL_HANDLER(ptc_control_nodes);
PTC_CONTROL_HANDLER(ptc_control_job_list);
PTC_CONTROL_HANDLER(ptc_control_status);
PTC_CONTROL_HANDLER(ptc_control_snapshots);
PTC_CONTROL_HANDLER(ptc_control_events);
PTC_CONTROL_HANDLER(ptc_control_verify);
/* control_switch.c */
PTC_CONTROL_HANDLER(ptc_control_job_create);
PTC_CONTROL_HANDLER(ptc_control_job_delete);
PTC_CONTROL_HANDLER(ptc_control_plan);
PTC_CONTROL_HANDLER(ptc_control_resize);
PTC_CONTROL_HANDLER(ptc_control_drain);
PTC_CONTROL_HANDLER(ptc_control_abort);
/* control_data.c */
PTC_CONTROL_HANDLER(ptc_control_import_begin);
PTC_CONTROL_HANDLER(ptc_control_import_data);
PTC_CONTROL_HANDLER(ptc_control_import_commit);
PTC_CONTROL_HANDLER(ptc_control_export_info);
PTC_CONTROL_HANDLER(ptc_control_read);
PTC_CONTROL_HANDLER(ptc_control_read_rank);
