/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of a call's thread. Happy path: what is waited for comes, and the loop wakes the thread. Failure modes: not in
 * time; the caller has gone, which gRPC tells the call's own thread only, so it looks now and then (cluster.c). */
#include "daemon/api/caller/caller.h"

static bool call_gone(void *arg)
{
	return ptc_rpc_call_cancelled(arg);
}

int ptc_api_wait(struct ptc_daemon *d, const struct ptc_rpc_call *call, bool (*holds)(void *arg), void *arg, int64_t ms)
{
	union { /* the call is only looked at */
		const struct ptc_rpc_call *in;
		void *out;
	} who = { .in = call };

	return ptc_cluster_wait(d->cluster, &(struct ptc_cluster_wait){ .holds = holds,
									.arg = arg,
									.ms = ms,
									.gone = call ? call_gone : NULL,
									.gone_arg = who.out });
}
