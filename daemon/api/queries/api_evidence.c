/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the job's owner the nodes' records of ranks that hung.
 *
 * Happy path: each node's text, one after the other. Failure modes: a node that does not answer (its part says so); no
 * node keeps anything (PTC_ENOTFOUND). */
#include "daemon/api/queries/queries.h"

#include "base/buf.h"

#include <string.h>

#define SEND_BYTES (64u << 10) /* of one message */

struct sending {
	struct ptc_rpc_call *call;
	uint32_t ranks;
	struct ptc_buf silent; /* nodes without a part */
};

/* Bytes of the next message. It ends with a line where it can, for `ptcctl` ends the line after each message. */
static size_t piece(const char *text, size_t len)
{
	const char *end;

	if (len <= SEND_BYTES)
		return len;
	end = memrchr(text, '\n', SEND_BYTES);
	return end ? (size_t)(end - text) + 1 : SEND_BYTES;
}

static int send_text(struct ptc_rpc_call *call, const void *text, size_t len, struct ptc_error *err)
{
	int rc = 0;

	for (size_t n; !rc && len; text = (const char *)text + n, len -= n) {
		Ptc__V1__LogLine line = PTC__V1__LOG_LINE__INIT;

		n = piece(text, len);
		line.version = PTC_WIRE_VERSION;
		line.data.data = (uint8_t *)(uintptr_t)text; /* packing only reads */
		line.data.len = n;
		rc = ptc_pb_call_send(call, &line.base, err);
	}
	return rc;
}

static int send_part(void *arg, const char *node, const Ptc__V1__EvidenceReply *reply, const char *why,
		     struct ptc_error *err)
{
	struct ptc_buf where = PTC_BUF_INIT;
	struct sending *s = arg;
	int rc;

	if (!reply || !reply->ranks) {
		ptc_buf_printf(&s->silent, "==== node %s: %s ====\n", node,
			       reply ? "the node has no records of ranks of this job" : why);
		return 0;
	}
	s->ranks += reply->ranks;
	rc = send_text(s->call, reply->text.data, reply->text.len, err);
	ptc_buf_printf(&where, "==== these files are on node %s in %s ====\n", node, reply->dir);
	if (!rc && !ptc_buf_failed(&where))
		rc = send_text(s->call, where.data, where.len, err);
	ptc_buf_done(&where);
	return rc;
}

PTC_API_HANDLER(ptc_api_evidence)
{
	struct ptc_daemon *d = arg;
	struct sending s = { .call = call, .silent = PTC_BUF_INIT };
	Ptc__V1__EvidenceRequest *req, ask = PTC__V1__EVIDENCE_REQUEST__INIT;
	struct ptc_target t;
	uint32_t ranks = 0;
	int rc = ptc_pb_call_recv(call, &ptc__v1__evidence_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_find(d, call, req->job, &t, err);
	if (rc == 0 && req->collect)
		rc = ptc_api_evidence_collect(d, &t, "asked for by `ptcctl logs --evidence --now`", false, &ranks, err);
	if (rc == 0 && req->collect && !ranks)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "no node that answers has a live rank of job %s", t.meta.name);
	if (rc == 0)
		rc = ptc_api_evidence_ask(d, &t, &ask, send_part, &s, err);
	if (rc == 0 && !s.ranks)
		rc = ptc_error_set(
			err, PTC_ENOTFOUND,
			"no node has records of ranks of job %s that hung; `ptcctl logs %s --evidence --now` "
			"makes records of the ranks that run",
			t.meta.name, t.meta.name);
	if (rc == 0 && s.silent.len && !ptc_buf_failed(&s.silent))
		rc = send_text(call, s.silent.data, s.silent.len, err);
	ptc_buf_done(&s.silent);
	ptc_pb_free(&req->base);
	return rc;
}
