/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the controller about ranks on this node, and what Finish says of them. Failure modes:
 * rank_calls.c, rank_log.c, reconcile.c. */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "rpc/server/server.h"

struct Ptc__V1__FinishRequest;

int ptc_agent_on_start(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_arm(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_stop(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_end(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_build(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_rendezvous(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_ranks(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_log(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);

/* ---- reconcile.c ---- */
/* Makes what runs here what the request says, or ends all ranks of the job. Waits finish_wait_ms at most, then goes on behind the
 * answer; what fails is reported as a worker event. */
int ptc_reconcile(struct ptc_agent *agent, const struct Ptc__V1__FinishRequest *req, struct ptc_error *err);
void ptc_reconcile_stop(struct ptc_agent *agent); /* ends what goes on; waits for it */
