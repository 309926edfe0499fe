/* SPDX-License-Identifier: Apache-2.0 */
/* The boxes that a set of ranks holds together, as disjoint byte boxes. Ranks list their regions by item, so one cursor
 * per rank merges them; within an item equal boxes collapse to the lowest rank and overlapping ones are cut.
 *
 * Failure modes: memory, and a cut that is not on a byte (which the layout
 * has already refused). */
#include "reshard/layout/holdings.h"
#include "reshard/layout/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

void ptc_holdings_done(struct ptc_holdings *h)
{
	ptc_free(h->v);
	*h = (struct ptc_holdings){ 0 };
}

static int push(struct ptc_holdings *h, uint32_t item, uint32_t rank, const struct ptc_box *box)
{
	if (!PTC_ROOM(h->v, h->n + 1, h->cap))
		return PTC_ENOMEM;
	h->v[h->n++] = (struct ptc_holding){ item, rank, *box };
	return 0;
}

PTC_COMPARE(compare, struct ptc_holding, PTC_THEN(ptc_box_order(&a->box, &b->box), PTC_ORDER(a->rank, b->rank)))

/* Sorted by first byte, so only boxes that start before this one ends along dim 0 can meet it. */
static bool any_overlap(const struct ptc_holding *v, size_t n)
{
	struct ptc_box common;

	for (size_t i = 0; i < n; i++)
		for (size_t k = i + 1; k < n && v[k].box.off[0] < v[i].box.off[0] + v[i].box.ext[0]; k++)
			if (ptc_box_intersect(&v[i].box, &v[k].box, &common))
				return true;
	return false;
}

/* Replaces h->v[mark..] by disjoint boxes with the same union. */
static int cut_overlaps(struct ptc_holdings *h, size_t mark)
{
	struct ptc_holdings out = { 0 };
	struct ptc_boxes taken = { 0 }, left = { 0 };
	int rc = 0;

	for (size_t i = mark; i < h->n && !rc; i++) {
		left.n = 0;
		rc = ptc_boxes_missing(&h->v[i].box, taken.v, taken.n, &left);
		for (size_t k = 0; k < left.n && !rc; k++) {
			rc = push(&out, h->v[i].item, h->v[i].rank, &left.v[k]);
			if (!rc)
				rc = ptc_boxes_push(&taken, &left.v[k]);
		}
	}
	h->n = mark;
	for (size_t k = 0; k < out.n && !rc; k++)
		rc = push(h, out.v[k].item, out.v[k].rank, &out.v[k].box);
	if (!rc)
		qsort(h->v + mark, h->n - mark, sizeof *h->v, compare);
	ptc_boxes_done(&taken);
	ptc_boxes_done(&left);
	ptc_holdings_done(&out);
	return rc;
}

int ptc_holdings_finalize(struct ptc_holdings *h, size_t mark)
{
	size_t n = mark;

	if (h->n == mark)
		return 0;
	if (h->n > mark + 1)
		qsort(h->v + mark, h->n - mark, sizeof *h->v, compare);
	for (size_t i = mark; i < h->n; i++)
		if (i == mark || !ptc_box_equal(&h->v[n - 1].box, &h->v[i].box))
			h->v[n++] = h->v[i];
	h->n = n;
	return any_overlap(h->v + mark, h->n - mark) ? cut_overlaps(h, mark) : 0;
}

struct cursor {
	struct ptc_rank_layout regions;
	uint32_t cell, rank;
	size_t at;
};

/* One cursor per distinct cell, with its lowest rank. */
static int open_cursors(const struct ptc_layout *l, const uint32_t *ranks, size_t nranks, struct cursor *c,
			size_t *ret_n, struct ptc_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < nranks && !rc; i++) {
		uint32_t cell = ptc_layout_cell(l, ranks[i]);
		size_t k = 0;

		while (k < *ret_n && c[k].cell != cell)
			k++;
		if (k < *ret_n) {
			c[k].rank = PTC_MIN(c[k].rank, ranks[i]);
			continue;
		}
		c[k] = (struct cursor){ .cell = cell, .rank = ranks[i] };
		rc = ptc_layout_rank(l, ranks[i], &c[k].regions, err);
		*ret_n += !rc;
	}
	return rc;
}

/* Appends the byte boxes that cursor c has of its current item. */
static int take_item(const struct ptc_layout *l, struct cursor *c, uint32_t item, struct ptc_holdings *h,
		     struct ptc_error *err)
{
	struct ptc_box bytes;

	for (; c->at < c->regions.nregions && c->regions.regions[c->at].item == item; c->at++) {
		const struct ptc_region *r = &c->regions.regions[c->at];
		int rc;

		if (r->padding)
			continue;
		rc = ptc_item_byte_box(ptc_layout_spec(l), item, &r->box, &bytes, err);
		if (rc)
			return rc;
		if (push(h, item, c->rank, &bytes))
			return ptc_nomem(err);
	}
	return 0;
}

static int merge(const struct ptc_layout *l, struct cursor *c, size_t n, struct ptc_holdings *h, struct ptc_error *err)
{
	for (;;) {
		uint32_t item = UINT32_MAX;
		size_t mark = h->n;

		for (size_t i = 0; i < n; i++)
			if (c[i].at < c[i].regions.nregions)
				item = PTC_MIN(item, c[i].regions.regions[c[i].at].item);
		if (item == UINT32_MAX)
			return 0;
		for (size_t i = 0; i < n; i++) {
			int rc = take_item(l, &c[i], item, h, err);

			if (rc)
				return rc;
		}
		if (ptc_holdings_finalize(h, mark))
			return ptc_nomem(err);
	}
}

/* From the layout's pieces: those that some of these ranks hold. */
static int take_pieces(const struct ptc_side *s, const uint32_t *low, struct ptc_holdings *h)
{
	for (uint32_t item = 0; item < s->nitems; item++) {
		const struct ptc_spread *spread = &s->spreads[s->item_spread[item]];
		const struct ptc_pieces *p = &s->geometries[spread->geometry];
		size_t mark = h->n;

		for (size_t i = 0; i < p->n; i++) {
			uint32_t rank = low[spread->sets[p->set[i]]];

			if (rank != UINT32_MAX && push(h, item, rank, &p->box[i]))
				return PTC_ENOMEM;
		}
		if (h->n > mark + 1)
			qsort(h->v + mark, h->n - mark, sizeof *h->v, compare);
	}
	return 0;
}

static int holdings_of_side(const struct ptc_layout *l, const uint32_t *ranks, size_t nranks, struct ptc_holdings *h,
			    struct ptc_error *err)
{
	const struct ptc_side *s = l->side;
	bool *given = ptc_calloc(l->world, sizeof *given);
	uint32_t *low = ptc_calloc(s->sets.n, sizeof *low); /* per set: the lowest of the ranks in it */
	int rc = given && low ? 0 : PTC_ENOMEM;

	for (size_t i = 0; i < nranks && !rc; i++)
		given[ranks[i]] = true;
	for (uint32_t k = 0; k < s->sets.n && !rc; k++) {
		low[k] = UINT32_MAX;
		for (size_t i = s->sets.first[k]; i < s->sets.first[k + 1] && low[k] == UINT32_MAX; i++)
			if (given[s->sets.v[i]])
				low[k] = s->sets.v[i];
	}
	if (!rc)
		rc = take_pieces(s, low, h);
	ptc_free(given);
	ptc_free(low);
	return rc ? ptc_error_set(err, rc, "layout: out of memory") : 0;
}

static int holdings_of_ranks(const struct ptc_layout *l, const uint32_t *ranks, size_t nranks, struct ptc_holdings *h,
			     struct ptc_error *err)
{
	struct cursor *c = ptc_calloc(nranks, sizeof *c);
	size_t n = 0;
	int rc;

	if (!c)
		return ptc_nomem(err);
	rc = open_cursors(l, ranks, nranks, c, &n, err);
	if (!rc)
		rc = merge(l, c, n, h, err);
	for (size_t i = 0; i < n; i++)
		ptc_rank_layout_done(&c[i].regions);
	ptc_free(c);
	return rc;
}

/* The boxes that the given ranks hold together, by item, then first byte. Boxes of an item are disjoint. */
static int holdings_of(const struct ptc_layout *l, const uint32_t *ranks, size_t nranks, struct ptc_holdings *ret,
		       struct ptc_error *err)
{
	struct ptc_holdings h = { 0 };
	int rc = l->side && (l->side->cut || !l->rank_cells) ? holdings_of_side(l, ranks, nranks, &h, err)
							     : holdings_of_ranks(l, ranks, nranks, &h, err);

	if (rc) {
		ptc_holdings_done(&h);
		return rc;
	}
	for (size_t i = 0; i < h.n; i++)
		h.bytes += ptc_box_volume(&h.v[i].box);
	*ret = h;
	return 0;
}

/* The ranks on a node, ascending; ptc_free it. */
static uint32_t *ranks_on(const struct ptc_allocation *a, uint32_t node, size_t *ret_n)
{
	uint32_t *v = ptc_calloc(a->world, sizeof *v);
	size_t n = 0;

	for (uint32_t r = 0; v && r < a->world; r++)
		if (a->ranks[r].node == node)
			v[n++] = r;
	*ret_n = n;
	return v;
}

int ptc_layout_node_needs(const struct ptc_layout *l, const struct ptc_allocation *a, uint32_t node,
			  struct ptc_needs *ret_needs, struct ptc_error *err)
{
	struct ptc_holdings h = { 0 };
	struct ptc_needs needs = { 0 };
	uint32_t *ranks;
	size_t n;
	int rc;

	if (a->world != ptc_layout_world(l))
		return ptc_error_set(err, PTC_EINVAL, "the allocation has %u ranks, but the layout has %u", a->world,
				     ptc_layout_world(l));
	ranks = ranks_on(a, node, &n);
	if (!ranks)
		return ptc_nomem(err);
	rc = holdings_of(l, ranks, n, &h, err);
	ptc_free(ranks);
	if (rc)
		return rc;
	needs.v = ptc_calloc(h.n, sizeof *needs.v);
	if (!needs.v) {
		ptc_holdings_done(&h);
		return ptc_nomem(err);
	}
	for (size_t i = 0; i < h.n; i++)
		needs.v[i] = (struct ptc_need){ h.v[i].item, h.v[i].box };
	needs.n = h.n;
	needs.bytes = h.bytes;
	ptc_holdings_done(&h);
	*ret_needs = needs;
	return 0;
}

void ptc_needs_done(struct ptc_needs *n)
{
	if (!n)
		return;
	ptc_free(n->v);
	*n = (struct ptc_needs){ 0 };
}
