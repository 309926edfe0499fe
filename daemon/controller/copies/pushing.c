/* SPDX-License-Identifier: Apache-2.0 */
/* Makes nodes fetch their copies, and compares the copies with the manifest. Happy path: each target is asked to pull
 * the record's generation, with the copies of the next document beside it. The target keeps the boxes that it has,
 * fetches the others, and digests all of them. A tensor's digest needs all of the tensor: if the copies are only a part
 * of it, the other nodes give digests of their parts. Failure modes: a node's own error (its code), which does not
 * affect other nodes; PTC_EDIGEST. */
#include "daemon/controller/copies/copy_keeper.h"
#include "daemon/agent/geometry/digest_merge.h"
#include "proto/pb.h"
#include "rpc/pb/pbcall.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include "ptc.pb-c.h"

#include <string.h>

/* The record's generation to itself with more copies; its manifest and document are the controller's. */
static void switch_view(const struct ptc_copy_keeper *c, struct ptc_view *ret)
{
	const struct ptc_controller *ctl = c->ctl;
	struct ptc_view v = { .meta = ctl->meta, .fence = ctl->fence, .more = &c->next };

	v.from_generation = v.to_generation = ctl->record.generation;
	v.from_snapshot = v.to_snapshot = ctl->record.snapshot;
	v.manifest = ctl->view.manifest;
	v.copies = ctl->view.copies;
	ptc_require(ptc_generation_doc_copy(&ctl->view.from, &v.from) == 0 &&
		    ptc_generation_doc_copy(&ctl->view.from, &v.to) == 0 && ptc_view_nodes(&v) == 0 &&
		    ptc_view_locate(&v, ctl->all->cluster) == 0);
	for (size_t i = 0; i < c->nwithout; i++)
		for (size_t n = 0; n < v.nnodes; n++)
			if (strcmp(v.nodes[n], c->without[i]) == 0)
				v.down[n] = true;
	*ret = v;
}

static void switch_view_done(struct ptc_view *v)
{
	v->manifest = (struct ptc_manifest_doc){ 0 };
	v->copies = (struct ptc_copies_doc){ 0 };
	ptc_view_done(v);
}

/* ---- calls ---- */

static int take(struct ptc_copy_keeper_push *p, const Ptc__V1__PullReply *r, struct ptc_error *err)
{
	if (r->n_need_index != r->n_digests)
		return ptc_error_set(err, PTC_EPEER,
				     "it answered with %zu places and %zu digests; each place needs one",
				     r->n_need_index, r->n_digests);
	p->index = ptc_calloc(r->n_digests, sizeof *p->index);
	p->digests = ptc_calloc(r->n_digests, sizeof *p->digests);
	if (!p->index || !p->digests)
		return ptc_nomem(err);
	if (r->n_digests) {
		memcpy(p->index, r->need_index, r->n_digests * sizeof *p->index);
		memcpy(p->digests, r->digests, r->n_digests * sizeof *p->digests);
	}
	p->n = r->n_digests;
	p->finished = true;
	return 0;
}

/* The rpc client's thread. */
static int message(void *arg, struct ptc_rpc_message *m, struct ptc_error *err)
{
	struct ptc_copy_keeper_push *p = arg;
	Ptc__V1__PullReply *r;
	int rc = ptc_pb_message(m, &ptc__v1__pull_reply__descriptor, (ProtobufCMessage **)&r, err);

	if (rc)
		return rc;
	atomic_store(&p->moved, r->bytes_done + r->wire_bytes + r->near_bytes + r->copied_bytes);
	if (r->finished && !p->finished)
		rc = take(p, r, err);
	ptc_pb_free(&r->base);
	return rc;
}

static void ended(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	struct ptc_copy_keeper_push *p = arg;
	struct ptc_copy_keeper *c = p->c;
	struct ptc_controller *ctl = c->ctl;

	p->rpc = NULL;
	p->status = p->finished ? 0 : status ? status : PTC_EPEER;
	if (p->status && err)
		p->err = *err;
	if (--c->running == 0)
		c->pushed(c);
	ptc_controller_unref(ctl);
}

/* A call that never left. */
static void never_left(void *arg)
{
	struct ptc_copy_keeper_push *p = arg;

	ended(p, p->status, NULL, NULL, 0);
}

static int encode(const struct ptc_copy_keeper_push *p, struct ptc_view *v, void **data, size_t *len,
		  struct ptc_error *err)
{
	Ptc__V1__PullRequest pull = PTC__V1__PULL_REQUEST__INIT;
	Ptc__V1__DigestRequest digest = PTC__V1__DIGEST_REQUEST__INIT;
	struct ptc_info info;
	int rc;

	v->seq = p->more ? 0 : ptc_job_take_seq(p->c->ctl->core);
	rc = ptc_view_info(v, &info, err);
	if (rc)
		return rc;
	pull.version = digest.version = PTC_WIRE_VERSION;
	pull.info = digest.info = info.pb;
	pull.background = true;
	pull.urgent = p->c->urgent;
	rc = ptc_pb_encode(p->more ? &digest.base : &pull.base, data, len, err);
	ptc_info_done(&info);
	return rc;
}

static void call(struct ptc_copy_keeper *c, struct ptc_view *v, const char *node, bool more)
{
	struct ptc_copy_keeper_push *p = ptc_calloc(1, sizeof *p);
	struct ptc_controllers *all = c->ctl->all;
	struct ptc_rpc_channel *channel;
	uint32_t at = 0;
	void *data = NULL;
	size_t len = 0;
	int rc = 0;

	ptc_require(p && PTC_MORE(c->pushes, c->npushes));
	p->c = c;
	p->more = more;
	p->moved_ns = ptc_sys_now_ns();
	memcpy(p->node, node, strlen(node) + 1);
	c->pushes[c->npushes++] = p;
	c->running++;
	ptc_controller_ref(c->ctl);
	if (!ptc_cluster_find_node(all->cluster, node, &at) || !ptc_cluster_node(all->cluster, at)->up)
		rc = ptc_error_set(&p->err, PTC_EPEER, "node %s is down", node);
	if (rc == 0)
		rc = ptc_channels_get(all->channels, node, ptc_cluster_node(all->cluster, at)->doc.address, false, 0,
				      &channel, &p->err);
	if (rc == 0)
		rc = encode(p, v, &data, &len, &p->err);
	p->status = rc;
	if (rc == 0)
		p->rpc = ptc_rpc_stream_async(all->client, channel, more ? "/ptc.v1.Peer/Digest" : "/ptc.v1.Peer/Pull",
					      data, len, message, ended, p);
	else if (ptc_loop_post(all->loop, never_left, p) != 0) /* only a loop that has stopped refuses */
		ptc_controller_unref(c->ctl);
	ptc_free(data);
}

void ptc_copy_keeper_push(struct ptc_copy_keeper *c, char *const *targets, size_t n)
{
	struct ptc_view v;

	switch_view(c, &v);
	for (size_t i = 0; i < n; i++)
		call(c, &v, targets[i], false);
	switch_view_done(&v);
}

void ptc_copy_keeper_cancel(struct ptc_copy_keeper *c)
{
	for (size_t i = 0; i < c->npushes; i++)
		ptc_copy_keeper_cancel_push(c->pushes[i]);
}

void ptc_copy_keeper_cancel_push(struct ptc_copy_keeper_push *p)
{
	if (p->rpc)
		ptc_rpc_async_cancel(p->rpc);
}

void ptc_copy_keeper_pushes_done(struct ptc_copy_keeper *c)
{
	for (size_t i = 0; i < c->npushes; i++) {
		ptc_free(c->pushes[i]->index);
		ptc_free(c->pushes[i]->digests);
		ptc_free(c->pushes[i]);
	}
	ptc_free(c->pushes);
	c->pushes = NULL;
	c->npushes = 0;
}

/* ---- digests ---- */

struct check {
	struct ptc_controller *ctl;
	struct ptc_copy_keeper *c;
	struct ptc_view view;
	struct ptc_copies_doc next;
	uint64_t *expected;
	size_t nexpected;
	struct said {
		char node[PTC_NAME_MAX + 1];
		const uint32_t *index; /* of the push, which stays until this has ended */
		const uint64_t *digests;
		size_t n;
	} * said;
	size_t nsaid;
	size_t missing; /* copied tensors of which nodes have not said everything */
	int status;
	struct ptc_error err;
};

static int compare(struct check *k, const struct ptc_geometry *g)
{
	const size_t bytes = k->nexpected / 8 + 1;
	struct ptc_digests *d = NULL;
	uint8_t *copied = ptc_calloc(1, bytes);
	bool *has = ptc_calloc(g->nnodes, sizeof *has);
	int rc = copied && has ? ptc_digests_new(g, &d, &k->err) : ptc_nomem(&k->err);

	if (rc == 0 && k->nexpected != ptc_spec_items(g->spec))
		rc = ptc_error_set(&k->err, PTC_ECORRUPT, "the manifest has %zu digests for %zu items", k->nexpected,
				   ptc_spec_items(g->spec));
	for (size_t i = 0; !rc && i < k->next.nparts; i++)
		for (size_t b = 0, n = k->next.items[k->next.parts[i].items].n; b < PTC_MIN(bytes, n); b++)
			copied[b] |= k->next.items[k->next.parts[i].items].v[b];
	for (size_t i = 0; !rc && i < k->nsaid; i++) {
		uint32_t node;

		rc = ptc_geometry_node(g, k->said[i].node, &node, &k->err);
		if (rc == 0)
			rc = ptc_digests_add(d, node, k->said[i].index, k->said[i].digests, k->said[i].n, &k->err);
		if (rc == 0)
			has[node] = true;
	}
	for (uint32_t n = 0; !rc && n < g->nnodes; n++)
		if (!has[n])
			ptc_digests_leave_out(d, n);
	if (rc == 0)
		rc = ptc_digests_compare(d, k->expected, copied, &k->missing, &k->err);
	ptc_digests_free(d);
	ptc_free(copied);
	ptc_free(has);
	return rc;
}

static void check_work(void *arg, struct ptc_etcd *e)
{
	struct check *k = arg;
	struct ptc_geometry g;

	(void)e;
	k->status = ptc_view_geometry(k->ctl->all->agent, &k->view, true, &g, &k->err);
	if (k->status)
		return;
	k->status = compare(k, &g);
	ptc_geometry_done(&g);
}

/* The other nodes that have the record's table say what they have. False: there is none. */
static bool ask_others(struct ptc_copy_keeper *c)
{
	struct ptc_view v;
	bool any = false;

	switch_view(c, &v);
	c->running++; /* until all are under way */
	for (size_t i = 0; i < v.nnodes; i++) {
		bool asked = v.down[i];

		for (size_t k = 0; k < c->npushes && !asked; k++)
			asked = !c->pushes[k]->status && strcmp(c->pushes[k]->node, v.nodes[i]) == 0;
		if (!asked)
			call(c, &v, v.nodes[i], true);
		any = any || !asked;
	}
	c->running--;
	switch_view_done(&v);
	return any;
}

static void check_done(void *arg)
{
	struct check *k = arg;
	struct ptc_copy_keeper *c = k->c;
	struct ptc_controller *ctl = k->ctl;
	bool more = !k->status && k->missing && !c->checking_more && !c->stopped && !ctl->gone &&
		    c->record_revision == ctl->record_revision;

	ptc_free(k->expected);
	ptc_free(k->said);
	ptc_copies_doc_done(&k->next);
	ptc_view_done(&k->view);
	if (more) {
		c->checking_more = true;
		more = ask_others(c);
	}
	if (!more)
		c->checked(c, k->status, k->err.text);
	ptc_controller_unref(ctl);
	ptc_free(k);
}

void ptc_copy_keeper_check(struct ptc_copy_keeper *c)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, check_work, true }, { 0 } };
	struct ptc_controller *ctl = c->ctl;
	const struct ptc_manifest_doc *m = &ctl->view.manifest;
	struct check *k = ptc_calloc(1, sizeof *k);
	char lane[PTC_LANE_MAX] = "c/";
	struct ptc_view v;

	ptc_require(k);
	*k = (struct check){ .ctl = ptc_controller_ref(ctl), .c = c, .nexpected = m->ndigests };
	switch_view(c, &v);
	k->view = v;
	k->view.manifest = (struct ptc_manifest_doc){ 0 };
	k->view.copies = (struct ptc_copies_doc){ 0 };
	k->expected = ptc_calloc(m->ndigests, sizeof *k->expected);
	k->said = ptc_calloc(c->npushes, sizeof *k->said);
	ptc_require(k->expected && k->said && ptc_copies_doc_copy(&c->next, &k->next) == 0);
	k->view.more = &k->next;
	if (m->ndigests)
		memcpy(k->expected, m->digests, m->ndigests * sizeof *k->expected);
	for (size_t i = 0; i < c->npushes; i++) {
		const struct ptc_copy_keeper_push *p = c->pushes[i];
		struct said *s = &k->said[k->nsaid];

		if (p->status)
			continue;
		memcpy(s->node, p->node, sizeof s->node);
		s->index = p->index;
		s->digests = p->digests;
		s->n = p->n;
		k->nsaid++;
	}
	memcpy(lane + 2, ctl->uuid, sizeof ctl->uuid);
	ptc_require(ptc_cluster_steps(ctl->all->cluster, lane, steps, check_done, k) == 0);
}
