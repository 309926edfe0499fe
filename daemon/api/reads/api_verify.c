/* SPDX-License-Identifier: Apache-2.0 */
/* verify: every block and digest of a job's committed state, on every node that has part of it.
 *
 * Happy path: the tables are pinned on all nodes, so that a switch that commits meanwhile drops none of them. One node
 * after the other reads its part. Replicas are compared with each other, and each tensor's digest with the manifest's.
 *
 * Failure modes: the job moved on before its tables were pinned, or its copies are elsewhere: verify begins again with
 * the new state, a few times. A node is unreachable, a block is damaged, or digests differ: the error names them, and
 * an event has it. (A node that is down is left out if others have all of its bytes.) The caller goes away: the pins
 * end by themselves. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "daemon/api/reads/reads.h"
#include "daemon/cluster/job_events.h"
#include "daemon/agent/geometry/digest_merge.h"
#include "daemon/agent/transfer/transfer.h"

#include <stdio.h>
#include <string.h>

#define ATTEMPTS 5
#define RENEW_NS (INT64_C(1000000) * PTC_PIN_MAX_MS / 4)

struct verify {
	struct ptc_daemon *d;
	struct ptc_rpc_call *call;
	struct ptc_read_view *view;
	struct ptc_digests *digests;
	bool repair;
	uint64_t bytes, healed; /* of the nodes done so far */
	char reader[37];
	int64_t pinned_ns;
	int64_t copies_revision; /* of the document of copies that the view was made from */
};

/* Renewed from time to time: reading may take longer than a hold lasts. */
static int pin_again(struct verify *v, struct ptc_error *err)
{
	int64_t now = ptc_sys_now_ns();
	unsigned pinned;
	int rc;

	if (v->pinned_ns && now < v->pinned_ns + RENEW_NS)
		return 0;
	rc = ptc_pins_nodes(v->d, v->view, v->reader, PTC_PIN_MAX_MS, &pinned, err);
	v->pinned_ns = now;
	return rc;
}

static int send_progress(struct verify *v, uint64_t done, uint64_t total, const char *node, struct ptc_error *err)
{
	Ptc__V1__Progress p = PTC__V1__PROGRESS__INIT;
	char phase[] = "verifying", text[PTC_NAME_MAX + 1];

	snprintf(text, sizeof text, "%s", node);
	p.version = PTC_WIRE_VERSION;
	p.phase = phase;
	p.text = text;
	p.bytes_done = v->bytes + done;
	p.bytes_total = v->bytes + total;
	return ptc_pb_call_send(v->call, &p.base, err);
}

static int verify_reply(struct verify *v, struct ptc_rpc_message *m, uint32_t node, const char *name, bool *ret_done,
			struct ptc_error *err)
{
	Ptc__V1__PullReply *r;
	int rc = ptc_pb_message(m, &ptc__v1__pull_reply__descriptor, (ProtobufCMessage **)&r, err);

	if (rc)
		return rc;
	if (r->finished && r->n_need_index != r->n_digests)
		rc = ptc_error_set(err, PTC_EPEER, "node %s: malformed digests", name);
	else if (r->finished)
		rc = ptc_digests_add(v->digests, node, r->need_index, r->digests, r->n_digests, err);
	else
		rc = send_progress(v, r->bytes_done, r->bytes_total, name, err);
	if (rc == 0)
		rc = pin_again(v, err);
	if (r->finished)
		v->bytes += r->verified_bytes;
	if (r->finished)
		v->healed += r->healed_blocks;
	*ret_done = r->finished;
	ptc_pb_free(&r->base);
	return rc;
}

static int verify_node(struct verify *v, const struct ptc_info *info, uint32_t node, struct ptc_error *err)
{
	Ptc__V1__DigestRequest req = PTC__V1__DIGEST_REQUEST__INIT;
	const char *name = info->pb->nodes[node];
	struct ptc_rpc_stream *s = NULL;
	bool done = false;
	int rc = ptc_peer_open(v->d->agent, &v->view->geometry, node, "/ptc.v1.Peer/Digest", v->call, &s, err);

	req.version = PTC_WIRE_VERSION;
	req.info = info->pb;
	req.repair = v->repair;
	if (rc == 0)
		rc = ptc_peer_ask(s, &req.base, err);
	while (rc == 0 && !done) {
		struct ptc_rpc_message *m;

		rc = ptc_rpc_stream_recv(s, &m, err);
		if (rc == 0 && !m) {
			rc = ptc_rpc_stream_finish(s, err);
			if (rc == 0)
				rc = ptc_error_set(err, PTC_EPEER, "no digests");
		}
		if (rc)
			break;
		rc = verify_reply(v, m, node, name, &done, err);
		ptc_rpc_message_done(m);
	}
	ptc_rpc_stream_free(s);
	if (rc)
		ptc_error_wrap(err, "node %s", name);
	return rc;
}

/* down: those that are down, which fails and says why. Else the others: what the absent ones have must be there, too.
 */
static int verify_nodes(struct verify *v, bool down, struct ptc_error *err)
{
	const struct ptc_view *view = &v->view->view;
	struct ptc_info info;
	int rc = ptc_view_info(view, &info, err);

	if (rc)
		return rc;
	for (uint32_t n = 0; rc == 0 && n < view->nnodes; n++)
		if (!ptc_view_placed(view, view->nodes[n])) {
			if (!down) /* the snapshot was made without it, and it has no copy */
				ptc_digests_leave_out(v->digests, n);
		} else if (view->down[n] == down) {
			rc = verify_node(v, &info, n, err);
		} else if (!down) {
			ptc_digests_leave_out(v->digests, n);
		}
	ptc_info_done(&info);
	return rc;
}

static json_t *left_out(const struct ptc_view *view)
{
	json_t *names = json_array();

	for (size_t n = 0; n < view->nnodes; n++)
		if (view->down[n])
			json_array_append_new(names, json_string(view->nodes[n]));
	return names;
}

static int verify_all(struct verify *v, struct ptc_error *err)
{
	const struct ptc_manifest_doc *m = &v->view->view.manifest;
	const struct ptc_geometry *g = &v->view->geometry;
	struct ptc_error why = PTC_ERROR_INIT;
	uint64_t *items = ptc_calloc(m->ndigests + 1, sizeof *items);
	int rc = items ? ptc_digests_new(g, &v->digests, err) : ptc_nomem(err);

	if (rc == 0)
		rc = verify_nodes(v, false, err);
	if (rc == 0 && ptc_spec_items(g->spec) != m->ndigests)
		rc = ptc_error_set(err, PTC_ECORRUPT, "the manifest has %zu digests, but the job has %zu items",
				   m->ndigests, ptc_spec_items(g->spec));
	if (rc == 0)
		rc = ptc_digests_merge(v->digests, m->digests, items, err);
	if (rc == PTC_ESTATE && verify_nodes(v, true, &why) != 0) /* they do not have everything */
		rc = ptc_error_set(err, why.code, "%s", why.text);
	ptc_free(items);
	v->digests = ptc_digests_free(v->digests);
	return rc;
}

static int verify_pinned(struct verify *v, struct ptc_error *err)
{
	unsigned pinned;
	int rc;

	v->bytes = 0;
	v->pinned_ns = 0;
	rc = ptc_sys_uuid(v->reader, err);
	if (rc == 0)
		rc = pin_again(v, err);
	if (rc)
		return rc;
	rc = verify_all(v, err);
	ptc_pins_nodes(v->d, v->view, v->reader, 0, &pinned, NULL);
	return rc;
}

/* What is damaged is damaged, whatever the job has moved on to. */
static bool moved_on(struct verify *v, const char *job, int rc)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_target now;

	return rc != PTC_ECORRUPT && rc != PTC_EDIGEST && ptc_api_find(v->d, v->call, job, &now, &ignored) == 0 &&
	       now.has_record &&
	       (now.record.generation != v->view->view.from_generation ||
		now.record.snapshot != v->view->view.from_snapshot || now.copies_revision != v->copies_revision);
}

/* v->view is to be put, where it is not NULL. */
static int verify_job(struct verify *v, const char *job, struct ptc_error *err)
{
	struct ptc_target t;
	bool moving = true;
	int rc = 0;

	for (int i = 0; moving && i < ATTEMPTS; i++) {
		if (v->view)
			ptc_read_view_put(v->view);
		v->view = NULL;
		rc = ptc_api_find(v->d, v->call, job, &t, err);
		if (rc == 0)
			rc = ptc_read_view_get(v->d, &t, &v->view, err);
		if (rc)
			return rc;
		v->copies_revision = t.copies_revision;
		if (ptc_fault("api.verify.pin"))
			return ptc_error_set(err, PTC_EIO, "verify: injected failure");
		rc = verify_pinned(v, err);
		moving = rc && moved_on(v, job, rc);
	}
	if (moving)
		return ptc_error_set(err, PTC_ESTATE, "job \"%s\" is being switched again and again; verify it later",
				     job);
	if (rc && rc != PTC_ECANCELED)
		ptc_event(v->d->cluster, v->view->view.meta.uuid, "verify", "failed: %s", err ? err->text : "");
	return rc;
}

static int send_end(struct verify *v, struct ptc_error *err)
{
	const struct ptc_view *view = &v->view->view;
	Ptc__V1__Progress p = PTC__V1__PROGRESS__INIT;
	char phase[] = "done";
	json_t *root =
		ptc_api_dated(v->d, json_pack("{s:i, s:I, s:I, s:I, s:I, s:o}", "version", 1, "snapshot",
					      (json_int_t)view->from_snapshot, "digests_verified",
					      (json_int_t)view->manifest.ndigests, "bytes", (json_int_t)v->bytes,
					      "healed_blocks", (json_int_t)v->healed, "left_out", left_out(view)));
	char *text = root ? ptc_json_text(root) : NULL;
	int rc;

	json_decref(root);
	if (!text)
		return ptc_nomem(err);
	p.version = PTC_WIRE_VERSION;
	p.phase = phase;
	p.bytes_done = p.bytes_total = v->bytes;
	p.finished = true;
	p.summary = text;
	rc = ptc_pb_call_send(v->call, &p.base, err);
	ptc_free(text);
	return rc;
}

PTC_API_HANDLER(ptc_api_verify)
{
	struct verify v = { .d = arg, .call = call };
	ProtobufCMessage *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__job_request__descriptor, &req, err);

	if (rc)
		return rc;
	v.repair = ((Ptc__V1__JobRequest *)req)->repair;
	rc = verify_job(&v, ((Ptc__V1__JobRequest *)req)->job, err);
	if (rc == 0)
		rc = send_end(&v, err);
	if (v.view)
		ptc_read_view_put(v.view);
	ptc_pb_free(req);
	return rc;
}
