/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all handlers of ptc.v1.Control: finding the caller, the job of the call and its committed generation;
 * forwarding a call to the job's controller; answering with a document. Handlers run on server threads. They reach the
 * mirror and the controllers through ptc_loop_call. */
#pragma once

#include "daemon/api/caller/daemon.h"
#include "formats/json.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

/* A job that the caller may see, copied from the mirror. */
struct ptc_target {
	struct ptc_meta_doc meta;
	bool has_record, has_intent, has_lock;
	bool bad_record;      /* see ptc_job_view */
	char unreadable[512]; /* why this node cannot read the job; "": it can, or has not looked */
	struct ptc_record_doc record;
	struct ptc_intent_doc intent;
	char controller[PTC_NAME_MAX + 1]; /* "" when nobody holds the lock */
	char address[256];
	uint64_t epoch;   /* ptc_cluster_epoch */
	uint64_t changes; /* number of changes of the job's keys; see ptc_job_view */
	int64_t copies_revision;
	bool ours;     /* this daemon is the controller */
	int64_t fence; /* of the lock; 0: nobody holds it */
};

/* The user who calls: the local user; 0 for an administrator's certificate; the user for whom a node forwards. */
uid_t ptc_api_uid(const struct ptc_rpc_call *call);
/* In a daemon that has just started, waits a few seconds until it has read all keys. PTC_ECOORD: it has not. */
int ptc_api_listed(struct ptc_daemon *d, const struct ptc_rpc_call *call, struct ptc_error *err);
/* Finds a job. PTC_ENOTFOUND: there is none, or it is another user's. */
int ptc_api_find(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name, struct ptc_target *ret_target,
		 struct ptc_error *err);
/* Does the same, and waits at most 10 s until the job has a controller. */
int ptc_api_find_controlled(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name,
			    struct ptc_target *ret_target, struct ptc_error *err);
/* Waits until the job exists and `when`, which the loop calls, is true (may be NULL). *ret_target: the job at that
 * time. PTC_ETIMEOUT: ms have passed. PTC_ENOTFOUND: there is no such job, or with `when` the job is gone. */
int ptc_api_await(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name,
		  bool (*when)(const struct ptc_target *t, const void *arg), const void *arg, int64_t ms,
		  struct ptc_target *ret_target, struct ptc_error *err);
/* Calls ptc_cluster_wait until `holds` is true or the call's caller is gone. call may be NULL. */
int ptc_api_wait(struct ptc_daemon *d, const struct ptc_rpc_call *call, bool (*holds)(void *arg), void *arg,
		 int64_t ms);
/* Opens the call at the controller's daemon and sends the request. timeout_ms 0: no limit. The caller receives and
 * frees the stream. */
int ptc_api_forward_open(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			 const char *method, const ProtobufCMessage *request, int timeout_ms,
			 struct ptc_rpc_stream **ret_stream, struct ptc_error *err);
/* Opens another call on behalf of the caller. If the daemon is not the controller any more, it forwards the call. */
int ptc_api_ask_open(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, const char *method,
		     const ProtobufCMessage *request, struct ptc_rpc_stream **ret_stream, struct ptc_error *err);
/* Forwards the whole call to the controller's daemon, and from then on relays every answer, and its status, in steps.
 */
int ptc_api_forward(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, const char *method,
		    const ProtobufCMessage *request, struct ptc_error *err);
/* Does the same for a switch; if its controller goes, the call follows the switch to its end. id: of a switch that has
 * begun; 0: the first progress tells it. */
int ptc_api_forward_switch(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			   const char *method, const ProtobufCMessage *request, uint64_t id, struct ptc_error *err);
/* api_tail.c: follows a switch of t's job whose controller may have gone. Each step of the call looks once. It
 * sends progress and asks for the next step, or sends the summary, or fails with the switch's error. */
struct ptc_tail;
int ptc_tail_new(struct ptc_daemon *d, const struct ptc_target *t, uint64_t id, struct ptc_tail **ret_tail,
		 struct ptc_error *err);
struct ptc_tail *ptc_tail_free(struct ptc_tail *tail); /* NULL ok */
int ptc_tail_step(struct ptc_tail *tail, struct ptc_rpc_call *call, struct ptc_error *err);
/* Does the same on the calling thread: waits for the switch's end, and sends progress but no summary. 0: the switch was
 * committed. PTC_ECANCELED: the caller is gone, and the switch goes on. */
int ptc_tail_wait(struct ptc_tail *tail, struct ptc_rpc_call *call, struct ptc_error *err);
/* Whether a call may have ended with `status` because its controller has gone. */
bool ptc_tail_worth(int status);
/* Forwards a call that is answered soon, and returns its status. */
int ptc_api_forward_now(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, const char *method,
			const ProtobufCMessage *request, int timeout_ms, struct ptc_error *err);
/* Gives the view of the committed generation, with the nodes' addresses; with_intent: also of the switch under way. If
 * the job has changed since, it updates t. PTC_ESTATE, with need_record: the job has no state yet. */
int ptc_api_view(struct ptc_daemon *d, struct ptc_target *t, bool with_intent, bool need_record,
		 struct ptc_view *ret_view, struct ptc_error *err);
/* Gives the snapshots that the job keeps beside the committed one, as the mirror has them. */
void ptc_api_older(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_older_doc *ret);
/* Changes the record in t as if that kept snapshot were the committed one. generation: that it is of, for two may have
 * the same one; 0: any. False: the job does not keep it. */
bool ptc_api_go_back(struct ptc_daemon *d, struct ptc_target *t, uint64_t generation, uint64_t snapshot);
/* The time of etcd's last answer; 0: etcd is reachable. ptc_api_dated adds it to a document as "as_of_ms" if etcd
 * is unreachable. */
int64_t ptc_api_as_of(struct ptc_daemon *d);
json_t *ptc_api_dated(struct ptc_daemon *d, json_t *root); /* returns root; NULL ok */
/* PTC_ESTATE: there is no snapshot to read. */
int ptc_api_need_snapshot(const struct ptc_target *t, struct ptc_error *err);

/* node_evidence.c: asks the nodes of the job's committed generation what they keep of its ranks. fn is called for each
 * node in turn, with its answer, or with NULL and why there is none. If fn does not return 0, this ends with what it
 * returned. like: the request, without the job. Blocking: some seconds. */
typedef int (*ptc_evidence_fn)(void *arg, const char *node, const Ptc__V1__EvidenceReply *reply, const char *why,
			       struct ptc_error *err);
int ptc_api_evidence_ask(struct ptc_daemon *d, struct ptc_target *t, const Ptc__V1__EvidenceRequest *like,
			 ptc_evidence_fn fn, void *arg, struct ptc_error *err);
/* Has these nodes make new sets of files. *ret_ranks: the number of ranks that the files are of. why: one line for the
 * files. */
int ptc_api_evidence_collect(struct ptc_daemon *d, struct ptc_target *t, const char *why, bool if_stands,
			     uint32_t *ret_ranks, struct ptc_error *err);
/* Call it before the job's ranks are ended without a snapshot: if ranks seem to hang, nodes keep evidence, and an event
 * says so. */
void ptc_api_evidence_keep(struct ptc_daemon *d, struct ptc_target *t);

/* Sends one Document; json is freed. */
int ptc_api_send_json(struct ptc_rpc_call *call, json_t *root, struct ptc_error *err);
int ptc_api_send_text(struct ptc_rpc_call *call, const char *json, struct ptc_error *err);

#define PTC_API_HANDLER(name) int name(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
