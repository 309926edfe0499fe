/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a controller about ranks on this node, and reconciling ranks with a Finish. Failure modes: rank_calls.c,
 * rank_log.c, reconcile.c. */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "rpc/server/server.h"

struct Ptc__V1__FinishReply;
struct Ptc__V1__FinishRequest;
struct Ptc__V1__Generation;
struct Ptc__V1__SwitchInfo;

int ptc_agent_on_start(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_arm(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_stop(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_end(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_build(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_rendezvous(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_ranks(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_log(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_room(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_evidence(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);

struct ptc_agent;
struct ptc_group_start;
/* Call it once ranks have been started. On rank 0's node it puts the rendezvous key that says what samples cost; ranks
 * that ask earlier wait for the key. */
void ptc_rank_cost_tell(struct ptc_agent *agent, const struct ptc_group_start *s);

/* Lets a request wake the operation that it ends; call it before any RPC. */
void ptc_agent_ranks_init(struct ptc_agent *agent);

/* ---- warm.c ---- */
/* The bytes of the generation's table here. An estimate if its layout is not known yet. 0: none, or nobody can say. */
int64_t ptc_warm_bytes(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		       const struct Ptc__V1__Generation *which);

/* ---- reconcile.c ---- */
/* Makes the ranks here those that the request names, or ends all ranks of the job. Waits at most finish_wait_ms, and
 * then goes on after the answer. number: ptc_agent_reconciles. *ret: what was restored to devices until then. A worker
 * event reports a failure. */
int ptc_reconcile(struct ptc_agent *agent, const struct Ptc__V1__FinishRequest *req, uint64_t number,
		  struct Ptc__V1__FinishReply *ret, struct ptc_error *err);
void ptc_reconcile_stop(struct ptc_agent *agent); /* ends all reconciling, and waits for its end */
