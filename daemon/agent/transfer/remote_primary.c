/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a snapshot whose primary replica is on another node, or is made there (max_reduce.c).
 *
 * Happy path: the layout says what primary ranks hold. So each node finds by itself which parts it must ask for, and of
 * whom. These parts get extents here, which a transfer (transfer.h) fills once the rest is captured. The sources'
 * tables need not be sealed, so nodes may wait for each other's parts. A source may still have a part that an earlier
 * attempt captured at another step. If that is read, the digests that the controller compares differ.
 *
 * Failure modes: a source has not captured its part yet: it is asked again, until the controller stops the operation
 * because the source has failed, or for REMOTE_WAIT_MS (PTC_EPEER naming the node and why); memory. */
#include "daemon/agent/transfer/max_reduce.h"
#include "daemon/agent/transfer/remote_primary.h"
#include "daemon/store/store_table.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

/* ---- remote primaries ---- */

struct finder {
	const struct ptc_geometry *g;
	const struct ptc_needs *needs;
	uint32_t self;
	struct ptc_replica *primary; /* of one item; may overlap */
	size_t nprimary, cap;
	struct ptc_parts *remote;
	struct ptc_reduce *reduce;
	struct ptc_error *err;
};

static int primary_regions(struct finder *f, uint32_t item, uint32_t rank)
{
	uint32_t node = f->g->allocation.ranks[rank].node;
	struct ptc_rank_layout l;
	struct ptc_box box;
	int rc = ptc_layout_rank_item(f->g->layout, rank, item, &l, f->err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < l.nregions; i++) {
		if (l.regions[i].padding)
			continue;
		rc = ptc_item_byte_box(f->g->spec, item, &l.regions[i].box, &box, f->err);
		if (!rc && !PTC_ROOM(f->primary, f->nprimary + 1, f->cap))
			rc = ptc_error_set(f->err, PTC_ENOMEM, "no memory for %zu replicas", f->nprimary + 1);
		if (!rc)
			f->primary[f->nprimary++] = (struct ptc_replica){ item, node, box };
	}
	ptc_rank_layout_done(&l);
	return rc;
}

/* What of a need primary ranks hold, and none of them here. *ret_all: primary ranks hold all of it. */
static int remote_of(struct finder *f, const struct ptc_need *need, bool *ret_all)
{
	const struct ptc_part want = { .item = need->item, .box = need->box };
	size_t out = f->remote->n;
	int rc = ptc_parts_cover(&want, f->primary, f->nprimary, NULL, f->self, 0, f->remote, ret_all, f->err);

	for (size_t i = out; !rc && i < f->remote->n; i++)
		if (f->remote->v[i].node != f->self)
			f->remote->v[out++] = f->remote->v[i];
	f->remote->n = out;
	return rc;
}

/* Looks at the primary ranks of this node, or at those of the others. */
static int primaries(struct finder *f, uint32_t item, const struct ptc_rule *rule, bool here)
{
	const struct ptc_config *config = ptc_layout_config(f->g->layout);
	int rc = 0;

	for (uint32_t rank = 0; !rc && rank < f->g->allocation.world; rank++)
		if ((f->g->allocation.ranks[rank].node == f->self) == here && ptc_rule_is_primary(rule, config, rank))
			rc = primary_regions(f, item, rank);
	return rc;
}

/* Needs from..to are of one item. Other nodes' ranks, of which there may be many, are looked at only if need be. */
static int item_remote(struct finder *f, size_t from, size_t to, const struct ptc_rule *rule)
{
	uint32_t item = f->needs->v[from].item;
	bool all = true, some;
	int rc = 0;

	f->nprimary = 0;
	rc = primaries(f, item, rule, true);
	for (size_t i = from; !rc && all && i < to; i++)
		if (!ptc_box_empty(&f->needs->v[i].box))
			rc = remote_of(f, &f->needs->v[i], &all);
	if (rc || all)
		return rc;
	rc = primaries(f, item, rule, false);
	for (size_t i = from; !rc && i < to; i++)
		if (!ptc_box_empty(&f->needs->v[i].box))
			rc = remote_of(f, &f->needs->v[i], &some);
	return rc;
}

int ptc_remote_find(const struct ptc_geometry *g, const struct ptc_spec *rules, uint32_t self,
		    const struct ptc_needs *needs, struct ptc_parts *ret, struct ptc_reduce *ret_reduce,
		    struct ptc_error *err)
{
	struct finder f = { .g = g, .needs = needs, .self = self, .remote = ret, .err = err };
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	int rc = 0;

	for (size_t i = 0, end; !rc && i < needs->n; i = end) {
		uint32_t item = needs->v[i].item;
		const struct ptc_rule *rule =
			ptc_spec_rule_named(rules, ptc_geometry_item_name(g, item, name, sizeof(name)));

		for (end = i; end < needs->n && needs->v[end].item == item;)
			end++;
		if (rule && rule->primary != PTC_AXIS_NONE)
			rc = item_remote(&f, i, end, rule);
		else if (ptc_rule_takes_max(rule))
			rc = ptc_reduce_item(ret_reduce, g, self, needs, i, end, ret, err);
	}
	ptc_free(f.primary);
	if (!rc)
		ptc_reduce_sort(ret_reduce);
	return rc;
}

/* ---- extents of their own ---- */

static int boxes_push(struct ptc_store_boxes *b, size_t *cap, uint32_t item, const struct ptc_boxes *v)
{
	if (!PTC_ROOM(b->v, b->n + v->n, *cap))
		return PTC_ENOMEM;
	for (size_t i = 0; i < v->n; i++) {
		b->v[b->n++] = (struct ptc_store_box){ item, v->v[i] };
		b->bytes += ptc_box_volume(&v->v[i]);
	}
	return 0;
}

int ptc_remote_split(struct ptc_parts *regions, int64_t max_bytes, struct ptc_store_boxes *missing, size_t *ret_n,
		     struct ptc_error *err)
{
	struct ptc_store_boxes out = { 0 };
	struct ptc_boxes remote = { 0 }, cut = { 0 };
	size_t cap = 0, local;
	int rc = 0;

	*ret_n = 0;
	if (!regions->n)
		return 0;
	for (size_t i = 0; !rc && i < missing->n; i++) {
		const struct ptc_store_box *box = &missing->v[i];

		remote.n = cut.n = 0;
		for (size_t k = 0; !rc && k < regions->n; k++)
			if (regions->v[k].item == box->item)
				rc = ptc_boxes_push(&remote, &regions->v[k].box);
		if (rc == 0)
			rc = ptc_boxes_missing(&box->box, remote.v, remote.n, &cut);
		if (rc == 0)
			rc = boxes_push(&out, &cap, box->item, &cut);
	}
	local = out.n;
	for (size_t i = 0; !rc && i < regions->n; i++) {
		cut.n = 0;
		regions->v[i].to = out.n - local;
		rc = ptc_box_chop(&regions->v[i].box, max_bytes, &cut);
		if (rc == 0)
			rc = boxes_push(&out, &cap, regions->v[i].item, &cut);
	}
	ptc_boxes_done(&remote);
	ptc_boxes_done(&cut);
	if (rc) {
		ptc_store_boxes_done(&out);
		return ptc_error_set(err, rc, "no memory for parts of replicas");
	}
	ptc_store_boxes_done(missing);
	*missing = out;
	*ret_n = out.n - local;
	return 0;
}
