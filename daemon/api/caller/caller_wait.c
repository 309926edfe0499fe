/* SPDX-License-Identifier: Apache-2.0 */
/* Lets a control call's thread wait for a change of the mirror, until its caller has gone. Happy path: the awaited
 * change comes, and the loop wakes the thread. Failure modes: it does not come in time; the caller has gone. gRPC
 * tells only the call's own thread that the caller has gone, so this thread looks now and then
 * (daemon/cluster/mirror/cluster_access.c). */
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
