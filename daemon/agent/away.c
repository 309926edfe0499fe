/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a snapshot whose replica that counts is on another node. Happy
 * path: what primary ranks hold is known from the layout, so each node finds
 * for itself what it must ask for, and of whom; that becomes extents of its
 * own, which are fetched once the rest is captured, from tables that need not
 * be sealed: nodes may wait for each other's parts.
 * What an earlier attempt at another step has left at a source may be read, before it is dropped there: then the digests that the
 * controller compares differ.
 * Failure modes: a source that has not captured its part yet is asked again,
 * until the operation is stopped (the controller does, when the source fails)
 * or for AWAY_WAIT_MS (PTC_EPEER naming the node and why); memory. */
#include "daemon/agent/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AWAY_WAIT_MS 600000
#define AWAY_TICK_MS 20

/* ---- what is away ---- */

struct finder {
	const struct ptc_geometry *g;
	const struct ptc_needs *needs;
	uint32_t self;
	bool *all; /* usable nodes, for ptc_parts_cover */
	struct ptc_holder *primary;
	size_t nprimary, primary_cap, cap;
	struct ptc_away *away;
	struct ptc_error *err;
};

static int push(struct ptc_holder **v, size_t *n, size_t *cap, const struct ptc_holder *h, struct ptc_error *err)
{
	if (*n == *cap) {
		size_t more = *cap ? 2 * *cap : 16;
		struct ptc_holder *p = ptc_reallocarray(*v, more, sizeof(*p));

		if (!p)
			return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu parts of replicas", more);
		*v = p;
		*cap = more;
	}
	(*v)[(*n)++] = *h;
	return 0;
}

static int primary_regions(struct finder *f, uint32_t item, uint32_t rank)
{
	struct ptc_holder h = { .item = item, .node = f->g->allocation.ranks[rank].node };
	struct ptc_rank_layout l;
	int r = ptc_layout_rank_item(f->g->layout, rank, item, &l, f->err);

	if (r)
		return r;
	for (size_t i = 0; !r && i < l.nregions; i++) {
		if (l.regions[i].padding)
			continue;
		r = ptc_item_byte_box(f->g->spec, item, &l.regions[i].box, &h.box, f->err);
		r = r ? r : push(&f->primary, &f->nprimary, &f->primary_cap, &h, f->err);
	}
	ptc_rank_layout_done(&l);
	return r;
}

/* What of a need primary ranks hold, and none of them here. *ret_all: primary ranks hold all of it. */
static int away_of(struct finder *f, const struct ptc_need *need, bool *ret_all)
{
	struct ptc_parts parts = { 0 };
	struct ptc_boxes nobody = { 0 };
	int r = ptc_parts_cover(&need->box, f->primary, f->nprimary, f->all, f->self, 0, &parts, &nobody, f->err);

	for (size_t i = 0; !r && i < parts.n; i++) {
		struct ptc_holder h = { need->item, parts.v[i].node, parts.v[i].box };

		if (h.node != f->self)
			r = push(&f->away->v, &f->away->n, &f->cap, &h, f->err);
	}
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
static int item_away(struct finder *f, size_t from, size_t to, const struct ptc_rule *rule)
{
	uint32_t item = f->needs->v[from].item;
	bool all = true, some;
	int r = 0;

	f->nprimary = 0;
	r = primaries(f, item, rule, true);
	for (size_t i = from; !r && all && i < to; i++)
		if (!ptc_box_empty(&f->needs->v[i].box))
			r = away_of(f, &f->needs->v[i], &all);
	if (r || all)
		return r;
	r = primaries(f, item, rule, false);
	for (size_t i = from; !r && i < to; i++)
		if (!ptc_box_empty(&f->needs->v[i].box))
			r = away_of(f, &f->needs->v[i], &some);
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
			r = item_away(f, i, end, rule);
	}
	return r;
}

int ptc_away_find(const struct ptc_geometry *g, const struct ptc_spec *rules, uint32_t self,
		  const struct ptc_needs *needs, struct ptc_away *ret, struct ptc_error *err)
{
	struct finder f = { .g = g, .needs = needs, .self = self, .away = ret, .err = err };
	int r = 0;

	*ret = (struct ptc_away){ 0 };
	f.all = ptc_malloc(g->nnodes);
	if (!f.all)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu nodes", g->nnodes);
	memset(f.all, true, g->nnodes);
	r = find(&f, rules);
	ptc_free(f.all);
	ptc_free(f.primary);
	if (r)
		ptc_away_done(ret);
	return r;
}

void ptc_away_done(struct ptc_away *a)
{
	ptc_free(a->v);
	ptc_free(a->nodes);
	*a = (struct ptc_away){ 0 };
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

/* What of a missing box is not away. */
static int keep_local(const struct ptc_away *a, const struct ptc_store_box *box, struct ptc_boxes *ret)
{
	struct ptc_boxes away = { 0 };
	int r = 0;

	for (size_t i = 0; !r && i < a->n; i++)
		if (a->v[i].item == box->item)
			r = ptc_boxes_push(&away, &a->v[i].box);
	r = r ? r : ptc_boxes_missing(&box->box, away.v, away.n, ret);
	ptc_boxes_done(&away);
	return r;
}

static int away_boxes(struct ptc_away *a, struct ptc_store_boxes *out, size_t *cap)
{
	struct ptc_boxes parts = { 0 };
	uint32_t *nodes;
	int r = 0;

	for (size_t i = 0; !r && i < a->n; i++) {
		parts.n = 0;
		r = ptc_box_chop(&a->v[i].box, PTC_EXTENT_MAX_BYTES, &parts);
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

static int by_node(const void *a, const void *b)
{
	const struct ptc_holder *x = a, *y = b;

	return x->node < y->node ? -1 : x->node > y->node;
}

int ptc_away_split(struct ptc_away *a, struct ptc_store_boxes *missing, struct ptc_error *err)
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
	qsort(a->v, a->n, sizeof(*a->v), by_node);
	r = r ? r : away_boxes(a, &out, &cap);
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
	const struct ptc_away_fetch *job;
	size_t first; /* of the request, of the job's boxes */
};

static int box_begin(void *arg, size_t i, struct ptc_fetch_dst *ret, struct ptc_error *err)
{
	const struct fetching *f = arg;
	const struct ptc_store_box *box = &f->job->boxes[f->first + i];

	ret->outer = box->box;
	ret->niov = ptc_table_extent_iov(f->job->table, f->job->extents[f->first + i], 0, ptc_box_volume(&box->box),
					 ret->iov, (int)PTC_ARRAY_LEN(ret->iov));
	if (ret->niov <= 0)
		return ptc_error_set(err, PTC_ESTATE, "an extent of item %u cannot be filled any more", box->item);
	return 0;
}

static int box_end(void *arg, size_t i, struct ptc_error *err)
{
	return 0;
}

/* One request. *ret_local: asking again is of no use. */
static int request(const struct ptc_away_fetch *job, size_t first, size_t n, bool *ret_local, struct ptc_error *err)
{
	struct fetching f = { job, first };
	const struct ptc_fetch_ops ops = {
		.begin = box_begin, .end = box_end, .arg = &f, .begun = true, .timeout_ms = PTC_AGENT_STALL_MS
	};
	struct ptc_fetch fetch = { 0 };
	uint64_t ticket; /* none is held while the source is waited for */
	int r = ptc_pool_take(&job->agent->recv, PTC_AGENT_RECV_TICKET, job->stop, job->arg, &ticket, err);

	*ret_local = true;
	if (r)
		return r;
	r = ptc_fetch_open(job->agent, job->g, job->away->nodes[first], 0, job->boxes + first, n, &ops, &fetch, err);
	r = r ? r : ptc_fetch_drain(&fetch, err);
	*ret_local = r == PTC_ENOMEM || fetch.local_error;
	ptc_fetch_done(&fetch);
	ptc_pool_give(&job->agent->recv, ticket);
	return r;
}

static int insist(const struct ptc_away_fetch *job, size_t first, size_t n, struct ptc_error *err)
{
	int64_t end = ptc_sys_now_ns() + (int64_t)AWAY_WAIT_MS * 1000000;
	const char *node = job->g->nodes[job->away->nodes[first]];

	for (;;) {
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
		usleep(AWAY_TICK_MS * 1000); /* a server thread: waiting is its job */
	}
}

int ptc_away_fetch(const struct ptc_away_fetch *job, struct ptc_error *err)
{
	size_t n = job->away->nboxes;
	int r = 0;

	for (size_t i = 0, end; !r && i < n; i = end) {
		int64_t bytes = 0;

		for (end = i;
		     end < n && job->away->nodes[end] == job->away->nodes[i] && end - i < PTC_AGENT_REQUEST_BOXES &&
		     (end == i || bytes + ptc_box_volume(&job->boxes[end].box) <= PTC_AGENT_REQUEST_BYTES);
		     end++)
			bytes += ptc_box_volume(&job->boxes[end].box);
		r = insist(job, i, end - i, err);
	}
	return r;
}
