/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a snapshot whose replica that counts is on another node, or is made
 * there (max_reduce.c). Happy
 * path: what primary ranks hold is known from the layout, so each node finds
 * for itself what it must ask for, and of whom; that becomes extents of its
 * own, which are fetched once the rest is captured, from tables that need not
 * be sealed: nodes may wait for each other's parts.
 * What an earlier attempt at another step has left at a source may be read, before it is dropped there: then the digests that the
 * controller compares differ.
 * Failure modes: a source that has not captured its part yet is asked again,
 * until the operation is stopped (the controller does, when the source fails)
 * or for REMOTE_WAIT_MS (PTC_EPEER naming the node and why); memory. */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/store/store_table.h"
#include "daemon/agent/transfer/fetch.h"
#include "daemon/agent/transfer/max_reduce.h"
#include "daemon/agent/transfer/remote_primary.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REMOTE_WAIT_MS     600000
#define REMOTE_TICK_MS     20 /* at first; a thousand nodes that wait for one must leave it time to do what they wait for */
#define REMOTE_TICK_MAX_MS 200

/* ---- remote primaries ---- */

struct finder {
	const struct ptc_geometry *g;
	const struct ptc_needs *needs;
	uint32_t self;
	bool *all;                 /* usable nodes, for ptc_parts_cover */
	struct ptc_remote primary; /* of one item; may overlap */
	struct ptc_remote *remote;
	struct ptc_reduce *reduce;
	struct ptc_error *err;
};

int ptc_remote_add(struct ptc_remote *a, uint32_t item, uint32_t node, const struct ptc_box *box, struct ptc_error *err)
{
	if (a->n == a->cap) {
		size_t more = a->cap ? 2 * a->cap : 16;
		struct ptc_replica *p = ptc_reallocarray(a->v, more, sizeof(*p));

		if (!p)
			return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu parts of replicas", more);
		a->v = p;
		a->cap = more;
	}
	a->v[a->n++] = (struct ptc_replica){ item, node, *box };
	return 0;
}

static int primary_regions(struct finder *f, uint32_t item, uint32_t rank)
{
	uint32_t node = f->g->allocation.ranks[rank].node;
	struct ptc_rank_layout l;
	struct ptc_box box;
	int r = ptc_layout_rank_item(f->g->layout, rank, item, &l, f->err);

	if (r)
		return r;
	for (size_t i = 0; !r && i < l.nregions; i++) {
		if (l.regions[i].padding)
			continue;
		r = ptc_item_byte_box(f->g->spec, item, &l.regions[i].box, &box, f->err);
		r = r ? r : ptc_remote_add(&f->primary, item, node, &box, f->err);
	}
	ptc_rank_layout_done(&l);
	return r;
}

/* What of a need primary ranks hold, and none of them here. *ret_all: primary ranks hold all of it. */
static int remote_of(struct finder *f, const struct ptc_need *need, bool *ret_all)
{
	struct ptc_parts parts = { 0 };
	struct ptc_boxes nobody = { 0 };
	int r = ptc_parts_cover(&need->box, f->primary.v, f->primary.n, f->all, f->self, 0, &parts, &nobody, f->err);

	for (size_t i = 0; !r && i < parts.n; i++)
		if (parts.v[i].node != f->self)
			r = ptc_remote_add(f->remote, need->item, parts.v[i].node, &parts.v[i].box, f->err);
	*ret_all = !nobody.n;
	ptc_parts_done(&parts);
	ptc_boxes_done(&nobody);
	return r;
}

/* Looks at the primary ranks of this node, or at those of the others. */
static int primaries(struct finder *f, uint32_t item, const struct ptc_rule *rule, bool here)
{
	const struct ptc_config *config = ptc_layout_config(f->g->layout);
	int r = 0;

	for (uint32_t rank = 0; !r && rank < f->g->allocation.world; rank++)
		if ((f->g->allocation.ranks[rank].node == f->self) == here && ptc_rule_is_primary(rule, config, rank))
			r = primary_regions(f, item, rank);
	return r;
}

/* Needs from..to are of one item. Other nodes' ranks, of which there may be many, are looked at only if need be. */
static int item_remote(struct finder *f, size_t from, size_t to, const struct ptc_rule *rule)
{
	uint32_t item = f->needs->v[from].item;
	bool all = true, some;
	int r = 0;

	f->primary.n = 0;
	r = primaries(f, item, rule, true);
	for (size_t i = from; !r && all && i < to; i++)
		if (!ptc_box_empty(&f->needs->v[i].box))
			r = remote_of(f, &f->needs->v[i], &all);
	if (r || all)
		return r;
	r = primaries(f, item, rule, false);
	for (size_t i = from; !r && i < to; i++)
		if (!ptc_box_empty(&f->needs->v[i].box))
			r = remote_of(f, &f->needs->v[i], &some);
	return r;
}

static int find(struct finder *f, const struct ptc_spec *rules)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	int r = 0;

	for (size_t i = 0, end; !r && i < f->needs->n; i = end) {
		uint32_t item = f->needs->v[i].item;
		const struct ptc_rule *rule =
			ptc_spec_rule_named(rules, ptc_geometry_item_name(f->g, item, name, sizeof(name)));

		for (end = i; end < f->needs->n && f->needs->v[end].item == item;)
			end++;
		if (rule && rule->primary != PTC_AXIS_NONE)
			r = item_remote(f, i, end, rule);
		else if (ptc_rule_takes_max(rule))
			r = ptc_reduce_item(f->reduce, f->g, f->self, f->needs, i, end, f->remote, f->err);
	}
	return r;
}

static int by_node(const void *a, const void *b)
{
	const struct ptc_replica *x = a, *y = b;

	return x->node < y->node ? -1 : x->node > y->node;
}

int ptc_remote_find(const struct ptc_geometry *g, const struct ptc_spec *rules, uint32_t self,
		    const struct ptc_needs *needs, struct ptc_remote *ret, struct ptc_reduce *ret_reduce,
		    struct ptc_error *err)
{
	struct finder f = { .g = g, .needs = needs, .self = self, .remote = ret, .reduce = ret_reduce, .err = err };
	int r = 0;

	f.all = ptc_malloc(g->nnodes);
	if (!f.all)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu nodes", g->nnodes);
	memset(f.all, true, g->nnodes);
	r = find(&f, rules);
	ptc_free(f.all);
	ptc_remote_done(&f.primary);
	if (r)
		return r;
	if (ret->n > 1)
		qsort(ret->v, ret->n, sizeof(*ret->v), by_node);
	ptc_reduce_sort(ret_reduce);
	return 0;
}

void ptc_remote_done(struct ptc_remote *a)
{
	ptc_free(a->v);
	ptc_free(a->nodes);
	*a = (struct ptc_remote){ 0 };
}

/* ---- extents of their own ---- */

static int boxes_push(struct ptc_store_boxes *b, size_t *cap, uint32_t item, const struct ptc_boxes *v)
{
	if (b->n + v->n > *cap) {
		size_t more = 2 * *cap + v->n;
		struct ptc_store_box *p = ptc_reallocarray(b->v, more, sizeof(*p));

		if (!p)
			return PTC_ENOMEM;
		b->v = p;
		*cap = more;
	}
	for (size_t i = 0; i < v->n; i++) {
		b->v[b->n++] = (struct ptc_store_box){ item, v->v[i] };
		b->bytes += ptc_box_volume(&v->v[i]);
	}
	return 0;
}

/* What of a missing box is not remote. */
static int keep_local(const struct ptc_remote *a, const struct ptc_store_box *box, struct ptc_boxes *ret)
{
	struct ptc_boxes remote = { 0 };
	int r = 0;

	for (size_t i = 0; !r && i < a->n; i++)
		if (a->v[i].item == box->item)
			r = ptc_boxes_push(&remote, &a->v[i].box);
	r = r ? r : ptc_boxes_missing(&box->box, remote.v, remote.n, ret);
	ptc_boxes_done(&remote);
	return r;
}

static int remote_boxes(struct ptc_remote *a, int64_t max_bytes, struct ptc_store_boxes *out, size_t *cap)
{
	struct ptc_boxes parts = { 0 };
	uint32_t *nodes;
	int r = 0;

	for (size_t i = 0; !r && i < a->n; i++) {
		parts.n = 0;
		r = ptc_box_chop(&a->v[i].box, max_bytes, &parts);
		r = r ? r : boxes_push(out, cap, a->v[i].item, &parts);
		nodes = r ? NULL : ptc_reallocarray(a->nodes, a->nboxes + parts.n, sizeof(*nodes));
		if (!nodes)
			r = PTC_ENOMEM;
		for (size_t k = 0; !r && k < parts.n; k++)
			nodes[a->nboxes++] = a->v[i].node;
		a->nodes = nodes ? nodes : a->nodes;
	}
	ptc_boxes_done(&parts);
	return r;
}

int ptc_remote_split(struct ptc_remote *a, int64_t max_bytes, struct ptc_store_boxes *missing, struct ptc_error *err)
{
	struct ptc_store_boxes out = { 0 };
	size_t cap = 0;
	int r = 0;

	if (!a->n)
		return 0;
	for (size_t i = 0; !r && i < missing->n; i++) {
		struct ptc_boxes local = { 0 };

		r = keep_local(a, &missing->v[i], &local);
		r = r ? r : boxes_push(&out, &cap, missing->v[i].item, &local);
		ptc_boxes_done(&local);
	}
	r = r ? r : remote_boxes(a, max_bytes, &out, &cap);
	if (r) {
		ptc_store_boxes_done(&out);
		return ptc_error_set(err, PTC_ENOMEM, "no memory for parts of replicas");
	}
	ptc_store_boxes_done(missing);
	*missing = out;
	return 0;
}

/* ---- fetching them ---- */

struct fetching {
	const struct ptc_remote_fetch *job;
	size_t first; /* of the request, of the job's boxes */
	void *buffer; /* of a box that is taken */
};

static int box_begin(void *arg, size_t i, struct ptc_fetch_dst *ret, struct ptc_error *err)
{
	const struct fetching *f = arg;
	const struct ptc_store_box *box = &f->job->boxes[f->first + i];
	int64_t bytes = ptc_box_volume(&box->box);

	ret->outer = box->box;
	if (f->buffer) {
		ret->iov[0] = (struct iovec){ f->buffer, (size_t)bytes };
		ret->niov = 1;
		return ptc_fails(bytes <= PTC_REMOTE_TAKE_BYTES)
			       ? ptc_error_set(err, PTC_EINTERNAL, "a box of item %u is too large", box->item)
			       : 0;
	}
	ret->niov = ptc_table_extent_iov(f->job->table, f->job->extents[f->first + i], 0, bytes, ret->iov,
					 (int)PTC_ARRAY_LEN(ret->iov));
	if (ret->niov <= 0)
		return ptc_error_set(err, PTC_ESTATE, "an extent of item %u cannot be filled any more", box->item);
	return 0;
}

static int box_end(void *arg, size_t i, struct ptc_error *err)
{
	const struct fetching *f = arg;

	return f->buffer ? f->job->take(f->job->take_arg, f->first + i, f->buffer, err) : 0;
}

static int receive(struct fetching *f, size_t n, bool *ret_local, struct ptc_error *err)
{
	const struct ptc_remote_fetch *job = f->job;
	const struct ptc_fetch_ops ops = {
		.begin = box_begin, .end = box_end, .arg = f, .begun = true, .timeout_ms = PTC_AGENT_STALL_MS
	};
	struct ptc_fetch fetch = { 0 };
	int r = ptc_fetch_open(job->agent, job->g, job->nodes[f->first], 0, job->boxes + f->first, n, &ops, &fetch,
			       err);

	r = r ? r : ptc_fetch_drain(&fetch, err);
	*ret_local = r == PTC_ENOMEM || fetch.local_error;
	ptc_fetch_done(&fetch);
	return r;
}

/* One request. *ret_local: asking again is of no use. */
static int request(const struct ptc_remote_fetch *job, size_t first, size_t n, bool *ret_local, struct ptc_error *err)
{
	uint64_t bytes = PTC_AGENT_RECV_TICKET + (job->take ? PTC_REMOTE_TAKE_BYTES : 0);
	struct fetching f = { job, first, NULL };
	uint64_t ticket; /* none is held while the source is waited for */
	int r = ptc_pool_take(&job->agent->recv, bytes, job->stop, job->arg, &ticket, err);

	*ret_local = true;
	if (r)
		return r;
	if (job->take && !(f.buffer = ptc_malloc(PTC_REMOTE_TAKE_BYTES)))
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for parts of replicas");
	r = r ? r : receive(&f, n, ret_local, err);
	ptc_free(f.buffer);
	ptc_pool_give(&job->agent->recv, ticket);
	return r;
}

static int insist(const struct ptc_remote_fetch *job, size_t first, size_t n, struct ptc_error *err)
{
	int64_t end = ptc_sys_now_ns() + (int64_t)REMOTE_WAIT_MS * 1000000;
	const char *node = job->g->nodes[job->nodes[first]];

	for (unsigned tick_ms = REMOTE_TICK_MS;; tick_ms = PTC_MIN(2 * tick_ms, REMOTE_TICK_MAX_MS)) {
		struct ptc_error why = PTC_ERROR_INIT;
		bool local = false;
		int r = request(job, first, n, &local, &why);

		if (!r)
			return 0;
		if (job->stop(job->arg))
			return ptc_error_set(err, PTC_ECANCELED, "cancelled while waiting for replicas of node %s",
					     node);
		if (local)
			return ptc_error_set(err, r, "%s", why.text);
		if (ptc_sys_now_ns() > end)
			return ptc_error_set(err, PTC_EPEER, "node %s does not give the replicas that count: %.800s",
					     node, why.text);
		job->tick(job->arg);
		usleep(tick_ms * 1000); /* a server thread: waiting is its job */
	}
}

int ptc_remote_fetch(const struct ptc_remote_fetch *job, struct ptc_error *err)
{
	int r = 0;

	for (size_t i = 0, end; !r && i < job->n; i = end) {
		int64_t bytes = 0;

		for (end = i; end < job->n && job->nodes[end] == job->nodes[i] && end - i < PTC_AGENT_REQUEST_BOXES &&
			      (end == i || bytes + ptc_box_volume(&job->boxes[end].box) <= PTC_AGENT_REQUEST_BYTES);
		     end++)
			bytes += ptc_box_volume(&job->boxes[end].box);
		r = insist(job, i, end - i, err);
	}
	return r;
}
