/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's life, and the list of its peer calls. Happy path: new, register, calls, free. Failure modes: too little
 * staging memory (PTC_EINVAL), no memory. */
#include "daemon/agent/agent.h"
#include "daemon/agent/calls/operation.h"
#include "daemon/agent/capture/capture.h"
#include "daemon/agent/capture/captured_digests.h"
#include "daemon/agent/gateway/gateway.h"
#include "daemon/agent/gateway/send_watch.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/healing/heal.h"
#include "daemon/agent/memory/prefetch.h"
#include "daemon/agent/memory/resident.h"
#include "daemon/agent/near/near.h"
#include "daemon/agent/ranks/ranks.h"
#include "daemon/agent/switch/switch.h"
#include "daemon/agent/tables/node_digest.h"
#include "daemon/agent/tables/rank_tensor.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/agent/transfer/transfer.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/sys/thread.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *method;
	ptc_rpc_handler_fn fn;
} methods[] = {
	{ "/ptc.v1.Peer/Seal", ptc_agent_on_seal },         { "/ptc.v1.Peer/Prepare", ptc_agent_on_prepare },
	{ "/ptc.v1.Peer/Pull", ptc_agent_on_pull },         { "/ptc.v1.Peer/Put", ptc_agent_on_put },
	{ "/ptc.v1.Peer/Finish", ptc_agent_on_finish },     { "/ptc.v1.Peer/Fetch", ptc_agent_on_fetch },
	{ "/ptc.v1.Peer/Digest", ptc_agent_on_digest },     { "/ptc.v1.Peer/FetchRank", ptc_agent_on_fetch_rank },
	{ "/ptc.v1.Peer/Stat", ptc_agent_on_stat },         { "/ptc.v1.Peer/Capture", ptc_agent_on_capture },
	{ "/ptc.v1.Peer/Start", ptc_agent_on_start },       { "/ptc.v1.Peer/Arm", ptc_agent_on_arm },
	{ "/ptc.v1.Peer/Stop", ptc_agent_on_stop },         { "/ptc.v1.Peer/End", ptc_agent_on_end },
	{ "/ptc.v1.Peer/Build", ptc_agent_on_build },       { "/ptc.v1.Peer/Rendezvous", ptc_agent_on_rendezvous },
	{ "/ptc.v1.Peer/Ranks", ptc_agent_on_ranks },       { "/ptc.v1.Peer/Log", ptc_agent_on_log },
	{ "/ptc.v1.Peer/Pin", ptc_agent_on_pin },           { "/ptc.v1.Peer/Drop", ptc_agent_on_drop },
	{ "/ptc.v1.Peer/Evidence", ptc_agent_on_evidence }, { "/ptc.v1.Peer/Near", ptc_agent_on_near },
	{ "/ptc.v1.Peer/Room", ptc_agent_on_room },
};

int ptc_agent_new(const struct ptc_agent_env *env, struct ptc_agent **ret_agent, struct ptc_error *err)
{
	struct ptc_agent *agent;

	if (env->staging_bytes < PTC_AGENT_STAGING_MIN)
		return ptc_error_set(err, PTC_EINVAL, "staging memory of %llu bytes; at least %u are needed",
				     (unsigned long long)env->staging_bytes, PTC_AGENT_STAGING_MIN);
	agent = ptc_calloc(1, sizeof *agent);
	if (!agent)
		return ptc_nomem(err);
	agent->env = *env;
	agent->node = ptc_strdup(env->node);
	agent->sends = ptc_send_watch_new();
	if (!agent->node || !agent->sends) {
		ptc_send_watch_free(agent->sends);
		ptc_free(agent->node);
		ptc_free(agent);
		return ptc_nomem(err);
	}
	ptc_pool_init(&agent->recv, env->staging_bytes / 2);
	ptc_pool_init(&agent->send, env->staging_bytes / 4);
	ptc_pool_init(&agent->gate, env->staging_bytes / 4);
	ptc_pool_init(&agent->push, PTC_AGENT_PUSH_BYTES);
	ptc_geometry_cache_init(agent);
	ptc_require(!pthread_mutex_init(&agent->shared.lock, NULL));
	ptc_cond_init(&agent->shared.cond);
	ptc_thread_count_init(&agent->shared.reconcilers);
	ptc_agent_healing_init(agent);
	ptc_agent_ranks_init(agent);
	if (env->near_socket)
		agent->near =
			ptc_near_new(&(struct ptc_near_opts){ env->near_socket, agent->env.channel, agent->env.arg });
	*ret_agent = agent;
	return 0;
}

int ptc_agent_register(struct ptc_agent *agent, struct ptc_rpc_server *server, struct ptc_error *err)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(methods); i++) {
		int rc = ptc_rpc_server_method(server, methods[i].method, 1u << PTC_ROLE_NODE, methods[i].fn, agent,
					       err);
		if (rc)
			return rc;
	}
	/* Users make nodes do these; what a switch needs does not wait for them. */
	ptc_rpc_server_method_kind(server, "/ptc.v1.Peer/Digest", PTC_RPC_BULK);
	ptc_rpc_server_method_kind(server, "/ptc.v1.Peer/Put", PTC_RPC_BULK);
	ptc_rpc_server_method_kind(server, "/ptc.v1.Peer/Evidence", PTC_RPC_BULK);
	ptc_rpc_server_method_kind(server, "/ptc.v1.Peer/Log", PTC_RPC_BRIEF);
	return 0;
}

struct ptc_agent *ptc_agent_free(struct ptc_agent *agent)
{
	struct ptc_agent_job *job;

	if (!agent)
		return NULL;
	ptc_reconcile_stop(agent);
	agent->sends = ptc_send_watch_free(agent->sends);
	ptc_agent_pins_done(agent);
	ptc_cache_done(&agent->geometries);
	while ((job = agent->shared.jobs)) {
		agent->shared.jobs = job->next;
		ptc_fill_forget(job);
		ptc_captured_keep(job, NULL);
		ptc_free(job);
	}
	agent->near = ptc_near_free(agent->near);
	pthread_cond_destroy(&agent->shared.cond);
	ptc_residents_done(agent);
	ptc_prefetch_done(agent);
	pthread_mutex_destroy(&agent->shared.lock);
	ptc_pool_done(&agent->recv);
	ptc_pool_done(&agent->send);
	ptc_pool_done(&agent->gate);
	ptc_pool_done(&agent->push);
	ptc_free(agent->node);
	ptc_free(agent);
	return NULL;
}
