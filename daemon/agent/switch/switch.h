/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the controller that carry out a switch: Seal, Prepare, Pull, Finish, and Stat. Failure
 * modes: switch_calls.c, pull.c. */
#pragma once

#include "rpc/server/server.h"

int ptc_agent_on_seal(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_prepare(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_pull(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_finish(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_stat(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
