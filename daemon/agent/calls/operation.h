/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and end of every peer call: its request and reply, and its turn.
 *
 * Operations that change a job's tables (Seal, Prepare, Pull, Finish) run one at a time for each job, between
 * ptc_agent_enter and ptc_agent_leave. A newer request cancels the running operation. Put streams are
 * writers: several may run at once, but none beside an operation.
 *
 * Threads: the handler's own. Failure modes: operation.c. */
#pragma once

#include "daemon/agent/calls/agent_state.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"
#include "reshard/box/box.h"
#include "rpc/server/server.h"

/* ---- requests and replies of the server side ---- */
/* Gives the one request message of a call, decoded; ptc_pb_free it. */
int ptc_agent_request(struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret,
		      struct ptc_error *err);
/* Does the same, but allocates the message from the arena, with which the message is freed. arena NULL: as
 * ptc_agent_request. */
int ptc_agent_request_in(struct ptc_pb_arena *arena, struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type,
			 ProtobufCMessage **ret, struct ptc_error *err);
int ptc_agent_reply(struct ptc_rpc_call *call, const ProtobufCMessage *msg, struct ptc_error *err);

/* ---- one operation at a time ---- */
/* The operation of the calling handler, for asking whether it has to stop. */
struct ptc_agent_op {
	struct ptc_agent *agent;
	struct ptc_agent_job *job; /* NULL: only the end of the call stops it */
	const struct ptc_rpc_call *call;
};
bool ptc_agent_op_stopped(void *op); /* a ptc_stop_fn; the handler's thread only */
/* How an operation treats the running one. PTC_TURN_IN_ORDER: cancels it if its request is older. But if the running
 * one brings up ranks, the operation waits for it, at most PTC_AGENT_RECONCILE_MS (PTC_ESTATE after that), because the
 * job would have no ranks otherwise. PTC_TURN_FINISH: cancels any running operation, also one that brings up ranks. */
enum ptc_agent_turn { PTC_TURN_IN_ORDER, PTC_TURN_FINISH };
/* Checks the fence (durably) and the order, waits for its turn, and checks again. seq 0: the request has no order. */
int ptc_agent_enter(struct ptc_agent *agent, const struct ptc_rpc_call *call, const char *uuid, int64_t fence,
		    uint64_t seq, enum ptc_agent_turn turn, struct ptc_agent_op *ret_op, struct ptc_error *err);
void ptc_agent_leave(struct ptc_agent_op *op); /* an op of zeros is accepted */
/* Enters a job that etcd does not know any more, whoever asked last: cancels the running operation, and waits for its
 * end. PTC_ESTATE: ranks are still brought up. */
int ptc_agent_enter_deleted(struct ptc_agent *agent, const char *uuid, struct ptc_agent_op *ret_op,
			    struct ptc_error *err);

/* Notes that the running operation, a Finish, will go on to bring ranks up after ptc_agent_leave. Returns a number for
 * the two functions below. */
uint64_t ptc_agent_reconciles(struct ptc_agent_op *op);
/* Enters the job to bring up ranks under that number. PTC_ECANCELED: a later Finish has come. */
int ptc_agent_enter_reconcile(struct ptc_agent *agent, const char *uuid, int64_t fence, uint64_t number,
			      struct ptc_agent_op *ret_op, struct ptc_error *err);
/* Says that nothing more is brought up under that number. If the caller has entered the job, it calls this before
 * ptc_agent_leave. */
void ptc_agent_reconciled(struct ptc_agent *agent, const char *uuid, uint64_t number);

/* ---- writers of an import ---- */
struct ptc_put_target {
	struct ptc_agent *agent;
	struct ptc_agent_job *job;
	uint64_t import_id;
	struct ptc_table *table;
};
int ptc_put_target_open(struct ptc_agent *agent, const char *uuid, uint64_t import_id, struct ptc_put_target *ret,
			struct ptc_error *err);
int ptc_put_target_write(struct ptc_put_target *t, uint32_t item, const struct ptc_box *box, const void *data,
			 struct ptc_error *err);
void ptc_put_target_close(struct ptc_put_target *t);
