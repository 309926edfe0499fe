/* SPDX-License-Identifier: Apache-2.0 */
/* NearNodes: which nodes of a job, or of an import of it, have a daemon on this machine, so that a client of this
 * machine can hand bytes to them, and read their chunk files, itself.
 *
 * Happy path: what is known of each node is answered; one of which nothing is known is asked (agent/near). Failure
 * modes: no such job or import. A node that does not answer, or that nobody has had time to ask, is not named. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/near/near.h"
#include "daemon/api/queries/queries.h"
#include "daemon/api/reads/reads.h"
#include "proto/direct_read.h"

#include <string.h>

#define ASK_NS INT64_C(500000000) /* after that no further node is asked: the client waits for us */

static const char *address_of(const struct ptc_view *v, const char *node)
{
	for (size_t i = 0; i < v->nnodes; i++)
		if (!strcmp(v->nodes[i], node))
			return v->addresses[i];
	return "";
}

/* Its control socket; NULL: it is not near. */
static char *socket_of(struct ptc_daemon *d, const struct ptc_view *v, const char *node)
{
	const size_t suffix = strlen(PTC_DIRECT_READ_SUFFIX);
	const char *address = address_of(v, node);
	char path[PTC_NEAR_SOCKET_BYTES];
	size_t len;

	if (!*address || !strcmp(node, d->config.node) || !ptc_near_socket(d->agent->near, node, address, path))
		return NULL;
	len = strlen(path);
	if (len <= suffix || strcmp(path + len - suffix, PTC_DIRECT_READ_SUFFIX) != 0)
		return NULL;
	return ptc_strndup(path, len - suffix);
}

static int near_reply(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_view *v, bool import, bool self,
		      struct ptc_error *err)
{
	const struct ptc_generation_doc *g = import ? &v->to : &v->from;
	const int64_t end = ptc_sys_now_ns() + ASK_NS;
	Ptc__V1__NearNodesReply reply = PTC__V1__NEAR_NODES_REPLY__INIT;
	ptc_auto_free char **nodes = ptc_calloc(g->nnodes + 1, sizeof *nodes);
	ptc_auto_free char **sockets = ptc_calloc(g->nnodes + 1, sizeof *sockets);
	ptc_auto_free char *ranks = ptc_api_ranks_json(g);
	int rc;

	if (!nodes || !sockets || !ranks)
		return ptc_nomem(err);
	for (size_t i = 0; i < g->nnodes && !self && ptc_sys_now_ns() < end; i++)
		if ((sockets[reply.n_sockets] = socket_of(d, v, g->nodes[i])))
			nodes[reply.n_sockets++] = g->nodes[i];
	reply.version = PTC_WIRE_VERSION;
	reply.node = d->config.node;
	reply.config = g->config;
	reply.ranks_json = ranks;
	reply.nodes = nodes;
	reply.sockets = sockets;
	reply.n_nodes = reply.n_sockets;
	rc = ptc_pb_call_send(call, &reply.base, err);
	for (size_t i = 0; i < reply.n_sockets; i++)
		ptc_free(sockets[i]);
	return rc;
}

PTC_API_HANDLER(ptc_api_near_nodes)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__NearNodesRequest *req;
	struct ptc_target t;
	struct ptc_view v;
	int rc = ptc_pb_call_recv(call, &ptc__v1__near_nodes_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = req->import_id ? ptc_api_import_find(d, call, req->job, req->import_id, &t, err)
			    : ptc_api_find(d, call, req->job, &t, err);
	if (rc == 0)
		rc = ptc_api_view(d, &t, req->import_id != 0, !req->import_id, &v, err);
	if (rc == 0) {
		rc = req->import_id && v.switch_id != req->import_id
			     ? ptc_error_set(err, PTC_ESTATE, "import %llu of job %s is not open",
					     (unsigned long long)req->import_id, req->job)
			     : near_reply(d, call, &v, req->import_id != 0, req->self, err);
		ptc_view_done(&v);
	}
	ptc_pb_free(&req->base);
	return rc;
}
