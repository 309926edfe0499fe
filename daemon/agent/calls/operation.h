/* SPDX-License-Identifier: Apache-2.0 */
/* What every peer call begins and ends with: its request and reply, and whose turn it is.
 *
 * Operations that change a job's tables (Seal, Prepare, Pull, Finish) run one at a time per job:
 * ptc_agent_enter/leave. A newer fencing token, or Finish, cancels what runs. Put streams are
 * writers: they may be several, but none beside an operation.
 *
 * Threads: the handler's own. Failure modes: operation.c. */
#pragma once

#include "daemon/agent/calls/agent_state.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"
#include "reshard/box/box.h"
#include "rpc/server/server.h"

/* ---- requests and replies of the server side ---- */
/* The one request message of a call, decoded; ptc_pb_free it. */
int ptc_agent_request(struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret,
		      struct ptc_error *err);
int ptc_agent_reply(struct ptc_rpc_call *call, const ProtobufCMessage *msg, struct ptc_error *err);

/* ---- one operation at a time ---- */
/* The operation of the calling handler: what stops it. */
struct ptc_agent_op {
	struct ptc_agent *agent;
	struct ptc_agent_job *job; /* NULL: only the call counts */
	const struct ptc_rpc_call *call;
};
bool ptc_agent_op_stopped(void *op); /* a ptc_stop_fn; the handler's thread only */
/* Checks the fence (durably) and the order, ends what runs of an older request, waits for its turn, checks again.
 * cancel_running: Finish. seq 0: not ordered. */
int ptc_agent_enter(struct ptc_agent *agent, const struct ptc_rpc_call *call, const char *uuid, int64_t fence,
		    uint64_t seq, bool cancel_running, struct ptc_agent_op *ret_op, struct ptc_error *err);
void ptc_agent_leave(struct ptc_agent_op *op); /* an op of zeros is fine */

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
