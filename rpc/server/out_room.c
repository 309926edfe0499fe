/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds the bytes of large replies of a user that wait until their caller reads them. Scans under the server's lock;
 * nothing can fail. */
#include "rpc/server/internal.h"

#define OUT_USER_MAX (16u << 20) /* large replies that wait to be read; or one, however large */
#define OUT_MAX      (64u << 20) /* of all users */

bool ptc_rpc_out_room(struct ptc_rpc_call *call, size_t len)
{
	struct ptc_rpc_server *srv = call->srv;
	size_t all = 0, mine = 0;

	if (!ptc_rpc_call_is_user(call))
		return true;
	pthread_mutex_lock(&srv->lock);
	for (int i = 0; i < srv->ncalls; i++) {
		struct ptc_rpc_call *c = srv->calls[i];
		size_t waits = c->counted && ptc_rpc_call_is_user(c) ? atomic_load(&c->out_bytes) : 0;

		all += waits;
		mine += c->counted && c->identity.uid == call->identity.uid ? waits : 0;
	}
	pthread_mutex_unlock(&srv->lock);
	return (!mine || mine + len <= OUT_USER_MAX) && (!all || all + len <= OUT_MAX);
}
