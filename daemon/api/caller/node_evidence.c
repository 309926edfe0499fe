/* SPDX-License-Identifier: Apache-2.0 */
/* Asks nodes for their records of a job's ranks that hung.
 *
 * Happy path: all nodes of the committed generation are asked at once; the answers are taken one after the other.
 * Failure modes: a node is down, does not answer in time, or is of a version that keeps nothing: its part says so. */
#include "daemon/api/caller/caller.h"

#include "base/alloc.h"
#include "base/check.h"
#include "daemon/cluster/job_events.h"

#include <stdio.h>
#include <string.h>

#define ANSWER_MS 10000 /* a node takes about two seconds, and at most three more for dumps */

struct asked {
	const char *node;
	struct ptc_rpc_stream *s; /* NULL: err says why */
	struct ptc_error err;
};

static int open_one(struct ptc_daemon *d, const struct ptc_view *v, size_t i, const void *data, size_t len,
		    struct asked *a)
{
	struct ptc_rpc_channel *channel;
	int rc;

	if (!v->addresses[i][0])
		return ptc_error_set(&a->err, PTC_EPEER, "the node is down");
	rc = ptc_channels_get(d->channels, a->node, v->addresses[i], false, 0, &channel, &a->err);
	if (rc == 0)
		rc = ptc_rpc_stream_open(channel, "/ptc.v1.Peer/Evidence", ANSWER_MS, NULL, 0, &a->s, &a->err);
	if (rc == 0)
		rc = ptc_rpc_stream_send(a->s, &(struct ptc_rpc_part){ .data = data, .len = len }, 1, &a->err);
	return rc ? rc : ptc_rpc_stream_half_close(a->s, &a->err);
}

static int take_one(struct asked *a, Ptc__V1__EvidenceReply **ret)
{
	struct ptc_rpc_message *m = NULL;
	int rc = ptc_rpc_stream_recv(a->s, &m, &a->err);

	if (rc)
		return rc;
	if (!m) {
		rc = ptc_rpc_stream_finish(a->s, &a->err);
		return rc ? rc : ptc_error_set(&a->err, PTC_EPEER, "the node has not answered");
	}
	rc = ptc_pb_message(m, &ptc__v1__evidence_reply__descriptor, (ProtobufCMessage **)ret, &a->err);
	ptc_rpc_message_done(m);
	return rc;
}

int ptc_api_evidence_ask(struct ptc_daemon *d, struct ptc_target *t, const Ptc__V1__EvidenceRequest *like,
			 ptc_evidence_fn fn, void *arg, struct ptc_error *err)
{
	Ptc__V1__EvidenceRequest req = *like;
	struct asked *asked = NULL;
	void *data = NULL;
	struct ptc_view v;
	size_t len = 0;
	int rc = ptc_api_view(d, t, false, true, &v, err);

	if (rc)
		return rc;
	req.version = PTC_WIRE_VERSION;
	req.job = t->meta.uuid;
	asked = ptc_calloc(v.nnodes + 1, sizeof *asked);
	rc = asked ? ptc_pb_encode(&req.base, &data, &len, err) : ptc_nomem(err);
	for (size_t i = 0; !rc && i < v.nnodes; i++) {
		asked[i] = (struct asked){ .node = v.nodes[i], .err = PTC_ERROR_INIT };
		if (open_one(d, &v, i, data, len, &asked[i]) != 0)
			asked[i].s = ptc_rpc_stream_free(asked[i].s);
	}
	for (size_t i = 0; !rc && i < v.nnodes; i++) {
		Ptc__V1__EvidenceReply *reply = NULL;

		if (asked[i].s && take_one(&asked[i], &reply) != 0)
			reply = NULL;
		rc = fn(arg, asked[i].node, reply, asked[i].err.text, err);
		if (reply)
			ptc_pb_free(&reply->base);
	}
	for (size_t i = 0; asked && i < v.nnodes; i++)
		ptc_rpc_stream_free(asked[i].s);
	ptc_free(asked);
	ptc_free(data);
	ptc_view_done(&v);
	return rc;
}

static int count(void *arg, const char *node, const Ptc__V1__EvidenceReply *reply, const char *why,
		 struct ptc_error *err)
{
	(void)node, (void)why, (void)err;
	*(uint32_t *)arg += reply ? reply->ranks : 0;
	return 0;
}

int ptc_api_evidence_collect(struct ptc_daemon *d, struct ptc_target *t, const char *why, bool if_stands,
			     uint32_t *ret_ranks, struct ptc_error *err)
{
	Ptc__V1__EvidenceRequest req = PTC__V1__EVIDENCE_REQUEST__INIT;

	*ret_ranks = 0;
	req.collect = true;
	req.if_stands = if_stands;
	req.why = (char *)(uintptr_t)why; /* packing only reads */
	return ptc_api_evidence_ask(d, t, &req, count, ret_ranks, err);
}

void ptc_api_evidence_keep(struct ptc_daemon *d, struct ptc_target *t)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	uint32_t ranks = 0;

	if (t->has_record && t->record.run == PTC_RUN_LIVE &&
	    ptc_api_evidence_collect(d, t, "ranks that hang are ended (`ptcctl stop --now`)", true, &ranks, &ignored) ==
		    0 &&
	    ranks)
		ptc_event(d->cluster, t->meta.uuid, "evidence",
			  "before they are ended, stacks and states of %u ranks are kept: `ptcctl logs %s --evidence`",
			  ranks, t->meta.name);
}
