/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the nodes that `ptcctl cluster recover` names what they keep of committed jobs. Happy path and failure modes:
 * recover.h. */
#include "daemon/api/recover/recover_work.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "formats/names.h"
#include "rpc/pb/pbcall.h"

#include <string.h>

#define ASK_MS   15000 /* a node looks whether its former etcd answers, too */
#define METHOD   "/ptc.v1.Peer/Committed"
#define SET_MAX  PTC_MAX_NODES
#define DOCS_MAX (2 * (size_t)PTC_DURABLE_MAX_BYTES) /* of a job's documents, with their header */

void ptc_recover_set_done(struct ptc_recover_set *s)
{
	for (size_t i = 0; i < s->n; i++) {
		ptc_free(s->v[i].name);
		ptc_free(s->v[i].address);
		ptc_inventory_done(&s->v[i].has);
	}
	ptc_free(s->v);
	*s = (struct ptc_recover_set){ .d = s->d };
}

static int ask(const struct ptc_recover_set *s, const struct ptc_recover_node *n, Ptc__V1__CommittedRequest *req,
	       Ptc__V1__CommittedReply **ret_reply, struct ptc_error *err)
{
	struct ptc_rpc_channel *channel;
	int rc;

	req->version = PTC_WIRE_VERSION;
	ptc_channels_retry(s->d->channels, n->name);
	rc = ptc_channels_get(s->d->channels, n->name, n->address, false, 0, &channel, err);
	if (rc == 0)
		rc = ptc_pb_unary(channel, METHOD, &req->base, ASK_MS, NULL, 0, &ptc__v1__committed_reply__descriptor,
				  (ProtobufCMessage **)ret_reply, err);
	if (rc)
		ptc_error_wrap(err, "node %s at %s", n->name, n->address);
	return rc;
}

static int parse(struct ptc_recover_node *n, const char *spec, struct ptc_error *err)
{
	const char *eq = strchr(spec, '=');

	if (!eq || eq == spec || !eq[1])
		return ptc_error_set(err, PTC_EINVAL, "node \"%.100s\": write NAME=ADDRESS, as its advertise says",
				     spec);
	n->name = ptc_strndup(spec, (size_t)(eq - spec));
	n->address = ptc_strdup(eq + 1);
	if (!n->name || !n->address)
		return ptc_nomem(err);
	return ptc_name_check_job(n->name, err);
}

static int check_one(const struct ptc_recover_node *n, bool dry, bool old_is_gone, struct ptc_error *err)
{
	if (strcmp(n->has.node, n->name) != 0)
		return ptc_error_set(err, PTC_EINVAL, "the node at %s is %.100s, not %s", n->address, n->has.node,
				     n->name);
	if (!dry && !n->has.waits)
		return ptc_error_set(err, PTC_ESTATE,
				     "node %s runs with its etcd: set coordinator in its ptcd.yaml to the empty etcd, "
				     "and start it again",
				     n->name);
	if (!dry && !old_is_gone && n->has.old[0])
		return ptc_error_set(err, PTC_ESTATE,
				     "the etcd at %s, which node %s had last, still answers: use it, or stop it for "
				     "good; --old-is-gone recovers all the same",
				     n->has.old, n->name);
	return 0;
}

static int ask_one(struct ptc_recover_set *s, struct ptc_recover_node *n, bool dry, bool old_is_gone,
		   struct ptc_error *err)
{
	Ptc__V1__CommittedRequest req = PTC__V1__COMMITTED_REQUEST__INIT;
	Ptc__V1__CommittedReply *reply;
	struct ptc_identity i;
	int rc = ask(s, n, &req, &reply, err);

	if (rc) {
		ptc_error_wrap(err, "every node of the set must answer");
		return rc;
	}
	rc = ptc_inventory_decode(n->name, reply->json, &n->has, err);
	ptc_pb_free(&reply->base);
	if (rc == 0)
		rc = check_one(n, dry, old_is_gone, err);
	if (rc == 0)
		rc = ptc_identity_decode(n->name, n->has.cluster, &i, err);
	if (rc)
		return rc;
	if (s->identity.id[0] && strcmp(s->identity.id, i.id) != 0)
		return ptc_error_set(err, PTC_EINVAL, "node %s belongs to another cluster than %s", n->name,
				     s->v[0].name);
	memcpy(s->identity.id, i.id, sizeof i.id);
	s->identity.epoch = PTC_MAX(s->identity.epoch, i.epoch);
	return 0;
}

int ptc_recover_set_ask(struct ptc_recover_set *s, char *const *specs, size_t n, bool dry, bool old_is_gone,
			struct ptc_error *err)
{
	bool self = false;
	int rc = 0;

	if (n > SET_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "--nodes names %zu nodes; at most %d are possible", n, SET_MAX);
	s->v = ptc_calloc(n ? n : 1, sizeof *s->v);
	if (!s->v)
		return ptc_nomem(err);
	for (; rc == 0 && s->n < n; s->n++) {
		rc = parse(&s->v[s->n], specs[s->n], err);
		self = self || (rc == 0 && strcmp(s->v[s->n].name, s->d->config.node) == 0);
		for (size_t k = 0; rc == 0 && k < s->n; k++)
			if (strcmp(s->v[k].name, s->v[s->n].name) == 0)
				rc = ptc_error_set(err, PTC_EINVAL, "node %s is named twice", s->v[k].name);
	}
	if (rc == 0 && !self)
		rc = ptc_error_set(err, PTC_EINVAL, "node %s, which was asked, must be one of --nodes",
				   s->d->config.node);
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = ask_one(s, &s->v[i], dry, old_is_gone, err);
	return rc;
}

int ptc_recover_set_raise(const struct ptc_recover_set *s, const struct ptc_identity *to, struct ptc_error *err)
{
	char *text = ptc_identity_encode(to);
	int rc = text ? 0 : ptc_nomem(err);

	for (size_t i = 0; rc == 0 && i < s->n; i++) {
		Ptc__V1__CommittedRequest req = PTC__V1__COMMITTED_REQUEST__INIT;
		Ptc__V1__CommittedReply *reply;

		req.cluster = text;
		rc = ask(s, &s->v[i], &req, &reply, err);
		if (rc == 0)
			ptc_pb_free(&reply->base);
	}
	ptc_free(text);
	return rc;
}

static int fetch_part(const struct ptc_recover_set *s, const struct ptc_recover_node *n, const char *uuid,
		      struct ptc_buf *b, uint64_t *ret_total, struct ptc_error *err)
{
	Ptc__V1__CommittedRequest req = PTC__V1__COMMITTED_REQUEST__INIT;
	Ptc__V1__CommittedReply *reply;
	int rc;

	req.uuid = (char *)(uintptr_t)uuid; /* packing only reads */
	req.offset = b->len;
	rc = ask(s, n, &req, &reply, err);
	if (rc)
		return rc;
	*ret_total = reply->total;
	if (reply->total > DOCS_MAX || (!reply->data.len && b->len < reply->total))
		rc = ptc_error_set(err, PTC_EPEER, "node %s sends documents of another length than it says", n->name);
	ptc_buf_append(b, reply->data.data, reply->data.len);
	ptc_pb_free(&reply->base);
	return rc;
}

int ptc_recover_fetch(const struct ptc_recover_set *s, size_t node, const char *uuid, struct ptc_durable *ret,
		      struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	uint64_t total = 0;
	int rc;

	do
		rc = fetch_part(s, &s->v[node], uuid, &b, &total, err);
	while (rc == 0 && !ptc_buf_failed(&b) && b.len < total);
	if (rc == 0 && ptc_buf_failed(&b))
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = ptc_durable_decode(s->v[node].name, b.data ? b.data : "", b.len, ret, err);
	ptc_buf_done(&b);
	return rc;
}
