/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a snapshot whose replica that counts is on another node, or is made
 * there (max_reduce.c). Happy
 * path: what primary ranks hold is known from the layout, so each node finds
 * for itself what it must ask for, and of whom; that becomes extents of its
 * own, which are fetched once the rest is captured, from tables that need not
 * be sealed: nodes may wait for each other's parts.
 * What an earlier attempt at another step has left at a source may be read, before it is dropped there: then the digests that the
 * controller compares differ.
 * Failure modes: those of remote_fetch.c, memory. */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/store/store_table.h"
#include "daemon/agent/transfer/fetch.h"
#include "daemon/agent/transfer/max_reduce.h"
#include "daemon/agent/transfer/remote_primary.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

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
