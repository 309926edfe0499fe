/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons of this machine beside the one that the handle calls. Happy path: the daemon names them, and each is opened
 * as the first one was. Failure modes: the daemon is on another machine, or older (PTC_EPEER or its own code); a
 * socket that is not the daemon's user's (PTC_EPERM). */
#include "client/admin/internal.h"

#include "base/alloc.h"

#include <string.h>
#include <sys/stat.h>

struct near {
	struct ptc_admin_near seen; /* first: what the caller has */
	Ptc__V1__NearNodesReply *reply;
};

int ptc_admin_near_ask(struct ptc_admin *a, const char *job, uint64_t import_id, bool self,
		       struct ptc_admin_near **ret_near, struct ptc_error *err)
{
	Ptc__V1__NearNodesRequest q;
	ProtobufCMessage *reply = NULL;
	struct near *near;
	int rc;

	if (!a->direct_read.control)
		return ptc_error_set(err, PTC_EPEER, "the daemon is on another machine");
	ptc__v1__near_nodes_request__init(&q);
	q.version = PTC_ADMIN_VERSION;
	q.job = ptc_admin_borrow(job);
	q.import_id = import_id;
	q.self = self;
	rc = ptc_admin_call(a, "/ptc.v1.Control/NearNodes", &q.base, &ptc__v1__near_nodes_reply__descriptor, &reply,
			    err);
	if (rc)
		return rc;
	near = ptc_calloc(1, sizeof *near);
	if (!near) {
		ptc_admin_reply_free(reply);
		return ptc_nomem(err);
	}
	near->reply = (Ptc__V1__NearNodesReply *)reply;
	near->seen = (struct ptc_admin_near){ .node = near->reply->node,
					      .config = near->reply->config,
					      .ranks_json = near->reply->ranks_json,
					      .nodes = near->reply->nodes,
					      .sockets = near->reply->sockets,
					      .n = near->reply->n_nodes };
	if (near->reply->n_sockets < near->seen.n)
		near->seen.n = near->reply->n_sockets;
	*ret_near = &near->seen;
	return 0;
}

void ptc_admin_near_done(struct ptc_admin_near *seen)
{
	struct near *near = (struct near *)seen;

	ptc_admin_reply_free(&near->reply->base);
	ptc_free(near);
}

int ptc_admin_near_open(struct ptc_admin *a, const char *socket, struct ptc_admin **ret_admin, struct ptc_error *err)
{
	const struct ptc_admin_opts opts = { .size = sizeof opts,
					     .socket = socket,
					     .timeout_ms = a->timeout_ms,
					     .stream_timeout_ms = a->stream_timeout_ms };
	struct stat ours, theirs;

	if (stat(a->direct_read.control, &ours) || stat(socket, &theirs) || !S_ISSOCK(theirs.st_mode) ||
	    ours.st_uid != theirs.st_uid)
		return ptc_error_set(err, PTC_EPERM, "%s is not a socket of the daemon's user", socket);
	return ptc_admin_open(&opts, ret_admin, err);
}
