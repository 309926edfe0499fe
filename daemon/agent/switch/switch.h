/* SPDX-License-Identifier: Apache-2.0 */
/* Calls by which a controller carries out a switch: Seal, Prepare, Pull, Finish. Also Stat. Failure modes:
 * switch_calls.c, pull.c. */
#pragma once

#include "rpc/server/server.h"

struct ptc_agent;
struct ptc_agent_job;

int ptc_agent_on_seal(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_prepare(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_pull(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_finish(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
/* Frees everything that is kept of a job between its calls. Call it before the job itself is freed. */
void ptc_fill_forget(struct ptc_agent_job *job);
/* Deletes a job that etcd does not know any more: what is kept of it between calls, whose references would keep its
 * chunks in memory, and its state in the store. Cancels what runs for the job, and waits for its end. */
int ptc_agent_job_delete(struct ptc_agent *agent, const char *uuid, struct ptc_error *err); /* missing: fine */
int ptc_agent_on_stat(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
