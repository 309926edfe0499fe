/* SPDX-License-Identifier: Apache-2.0 */
/* What all handlers of ptc.v1.Control share: who calls, which job the call means,
 * what its committed generation is, handing a call to the job's controller, and
 * answering with a document. Handlers run on server threads; they reach the
 * mirror and the controllers through ptc_loop_call. */
#pragma once

#include "daemon/api/caller/daemon.h"
#include "rpc/pb/pbcall.h"

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
/* The same on the calling thread: waits for the switch's end, and sends progress but no summary. 0: it was committed.
 * PTC_ECANCELED: the caller is gone, and the switch goes on. */
int ptc_tail_wait(struct ptc_tail *tail, struct ptc_rpc_call *call, struct ptc_error *err);
/* What a call to a controller that goes away may end with. */
bool ptc_tail_worth(int status);
/* The same at once, for what is answered soon; returns the status. */
int ptc_control_forward_now(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			    const char *method, const ProtobufCMessage *request, int timeout_ms, struct ptc_error *err);
/* The committed generation (and the switch under way, with_intent), located. PTC_ESTATE when there is no state yet and
 * need_record. t is brought up to date when what it names has been replaced meanwhile. */
int ptc_control_view(struct ptc_daemon *d, struct ptc_target *t, bool with_intent, bool need_record,
		     struct ptc_view *ret_view, struct ptc_error *err);
/* When the coordinator answered last, where it is unreachable; 0: it is there. And into a document, where it is unreachable: "as_of_ms". */
int64_t ptc_control_as_of(struct ptc_daemon *d);
json_t *ptc_control_dated(struct ptc_daemon *d, json_t *root); /* returns root; NULL ok */
/* PTC_ESTATE unless there is a snapshot to read. */
int ptc_control_need_snapshot(const struct ptc_target *t, struct ptc_error *err);

/* Sends one Document; json is freed. */
int ptc_control_send_json(struct ptc_rpc_call *call, json_t *root, struct ptc_error *err);
int ptc_control_send_text(struct ptc_rpc_call *call, const char *json, struct ptc_error *err);

#define PTC_CONTROL_HANDLER(name) int name(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
