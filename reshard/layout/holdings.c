/* SPDX-License-Identifier: Apache-2.0 */
/* The boxes that a set of ranks holds together, as disjoint byte boxes. Ranks list their regions by item, so one cursor
 * per rank merges them; within an item equal boxes collapse to the lowest rank and overlapping ones are cut. Regions
 * are made for some items at a time, because they take more memory than the boxes.
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

/* ---- of ranks ---- */

#define CHUNK 512 /* items whose regions are made at a time: 108 KiB for a rank with a region of each */

struct cursor {
	struct ptc_rank_layout regions; /* of the items at hand, in order */
	uint32_t cell, rank;
	size_t at;
};

/* What is being listed: the boxes that these ranks hold together. */
struct lister {
	const struct ptc_layout *l;
	const uint32_t *ranks;
	size_t nranks, most;
	struct ptc_needs *to;
	struct ptc_error *err;
};

static int need_push(const struct lister *w, uint32_t item, const struct ptc_box *box)
{
	struct ptc_needs *to = w->to;

	if (to->n >= w->most)
		return PTC_ELIMIT;
	if (!PTC_ROOM(to->v, to->n + 1, to->cap))
		return ptc_nomem(w->err);
	to->v[to->n++] = (struct ptc_need){ item, *box };
	return 0;
}

/* One cursor per distinct cell, with its lowest rank. */
static size_t open_cursors(const struct lister *w, struct cursor *c)
{
	size_t n = 0;

	for (size_t i = 0; i < w->nranks; i++) {
		uint32_t cell = ptc_layout_cell(w->l, w->ranks[i]);
		size_t k = 0;

		while (k < n && c[k].cell != cell)
			k++;
		if (k < n)
			c[k].rank = PTC_MIN(c[k].rank, w->ranks[i]);
		else
			c[n++] = (struct cursor){ .cell = cell, .rank = w->ranks[i] };
	}
	return n;
}

/* Gives the cursor its regions of these items: made for it from rules, or borrowed from what was declared. */
static int cursor_load(const struct lister *w, struct cursor *c, uint32_t first, uint32_t end)
{
	const struct ptc_rank_layout *all;
	size_t lo, hi;

	c->at = 0;
	if (w->l->items) {
		ptc_rank_layout_done(&c->regions);
		return ptc_regions_of_rank(w->l, c->rank, first, end, &c->regions, w->err);
	}
	all = &w->l->cells[c->cell];
	lo = PTC_SEARCH(struct ptc_region, item, all->regions, all->nregions, first);
	hi = PTC_SEARCH(struct ptc_region, item, all->regions, all->nregions, end);
	c->regions = (struct ptc_rank_layout){ all->regions + lo, hi - lo };
	return 0;
}

/* Appends the byte boxes that cursor c has of its current item. */
static int take_item(const struct lister *w, struct cursor *c, uint32_t item, struct ptc_holdings *h)
{
	struct ptc_box bytes;

	for (; c->at < c->regions.nregions && c->regions.regions[c->at].item == item; c->at++) {
		const struct ptc_region *r = &c->regions.regions[c->at];
		int rc;

		if (r->padding)
			continue;
		rc = ptc_item_byte_box(ptc_layout_spec(w->l), item, &r->box, &bytes, w->err);
		if (rc)
			return rc;
		if (push(h, item, c->rank, &bytes))
			return ptc_nomem(w->err);
	}
	return 0;
}

/* Lists the items that the cursors have. h: reused from item to item. */
static int merge(const struct lister *w, struct cursor *c, size_t n, struct ptc_holdings *h)
{
	for (;;) {
		uint32_t item = UINT32_MAX;
		int rc = 0;

		for (size_t i = 0; i < n; i++)
			if (c[i].at < c[i].regions.nregions)
				item = PTC_MIN(item, c[i].regions.regions[c[i].at].item);
		if (item == UINT32_MAX)
			return 0;
		h->n = 0;
		for (size_t i = 0; i < n && !rc; i++)
			rc = take_item(w, &c[i], item, h);
		if (!rc && ptc_holdings_finalize(h, 0))
			rc = ptc_nomem(w->err);
		for (size_t i = 0; i < h->n && !rc; i++)
			rc = need_push(w, item, &h->v[i].box);
		if (rc)
			return rc;
	}
}

static int list_regions(const struct lister *w, uint32_t first, uint32_t end)
{
	struct cursor *c = ptc_calloc(w->nranks, sizeof *c);
	struct ptc_holdings h = { 0 };
	size_t n = c ? open_cursors(w, c) : 0;
	int rc = c ? 0 : ptc_nomem(w->err);

	for (uint32_t at = first, to; at < end && !rc; at = to) {
		to = at + PTC_MIN(end - at, CHUNK);
		for (size_t i = 0; i < n && !rc; i++)
			rc = cursor_load(w, &c[i], at, to);
		if (!rc)
			rc = merge(w, c, n, &h);
	}
	for (size_t i = 0; i < n && w->l->items; i++)
		ptc_rank_layout_done(&c[i].regions);
	ptc_holdings_done(&h);
	ptc_free(c);
	return rc;
}

/* ---- of the compressed form ---- */

PTC_COMPARE(need_compare, struct ptc_need, ptc_box_order(&a->box, &b->box))

/* Room for all of them at once: a list that grows by halves copies megabytes, each time into new pages. */
static int pieces_room(const struct lister *w, const bool *some, uint32_t first, uint32_t end)
{
	const struct ptc_side *s = w->l->side;
	struct ptc_needs *to = w->to;
	uint32_t spread = UINT32_MAX;
	size_t each = 0, n = to->n;

	for (uint32_t item = first; item < end; item++) {
		const struct ptc_spread *of = &s->spreads[s->item_spread[item]];
		const struct ptc_pieces *p = &s->geometries[of->geometry];

		if (s->item_spread[item] != spread) { /* mostly many items in a row have the same */
			spread = s->item_spread[item];
			each = 0;
			for (size_t i = 0; i < p->n; i++)
				each += some[of->sets[p->set[i]]];
		}
		n += each;
	}
	n = PTC_MIN(n, w->most);
	return n <= to->cap || PTC_ROOM(to->v, n, to->cap) ? 0 : ptc_nomem(w->err);
}

/* The pieces of these items that some of the ranks hold. some: per set of ranks, whether some of them are in it. */
static int take_pieces(const struct lister *w, const bool *some, uint32_t first, uint32_t end)
{
	const struct ptc_side *s = w->l->side;
	struct ptc_needs *to = w->to;

	for (uint32_t item = first; item < end; item++) {
		const struct ptc_spread *spread = &s->spreads[s->item_spread[item]];
		const struct ptc_pieces *p = &s->geometries[spread->geometry];
		const size_t mark = to->n;

		for (size_t i = 0; i < p->n; i++) {
			int rc = some[spread->sets[p->set[i]]] ? need_push(w, item, &p->box[i]) : 0;

			if (rc)
				return rc;
		}
		if (to->n > mark + 1)
			ptc_sort(to->v + mark, to->n - mark, sizeof *to->v, need_compare);
	}
	return 0;
}

static int list_pieces(const struct lister *w, uint32_t first, uint32_t end)
{
	const struct ptc_side *s = w->l->side;
	bool *given = ptc_calloc(w->l->world, sizeof *given), *some = ptc_calloc(s->sets.n, sizeof *some);
	int rc = given && some ? 0 : ptc_nomem(w->err);

	for (size_t i = 0; i < w->nranks && !rc; i++)
		given[w->ranks[i]] = true;
	for (uint32_t k = 0; k < s->sets.n && !rc; k++)
		for (size_t i = s->sets.first[k]; i < s->sets.first[k + 1] && !some[k]; i++)
			some[k] = given[s->sets.v[i]];
	if (!rc)
		rc = pieces_room(w, some, first, end);
	if (!rc)
		rc = take_pieces(w, some, first, end);
	ptc_free(given);
	ptc_free(some);
	return rc;
}

int ptc_layout_ranks_needs(const struct ptc_layout *l, const uint32_t *ranks, size_t nranks, uint32_t first,
			   uint32_t end, size_t most, struct ptc_needs *needs, struct ptc_error *err)
{
	const struct lister w = { .l = l, .ranks = ranks, .nranks = nranks, .most = most, .to = needs, .err = err };
	const size_t mark = needs->n;
	/* in buffers each rank has pieces of its own, so a node would go over very many that it lacks */
	const bool pieces = l->side && (l->side->cut || !l->rank_cells || (l->items && !l->flats));
	int rc = 0;

	if (nranks && first < end)
		rc = pieces ? list_pieces(&w, first, end) : list_regions(&w, first, end);
	if (rc)
		needs->n = mark;
	for (size_t i = mark; i < needs->n; i++)
		needs->bytes += ptc_box_volume(&needs->v[i].box);
	return rc;
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
	struct ptc_needs needs = { 0 };
	struct ptc_need *v;
	uint32_t *ranks;
	size_t n;
	int rc;

	if (a->world != ptc_layout_world(l))
		return ptc_error_set(err, PTC_EINVAL, "the allocation has %u ranks, but the layout has %u", a->world,
				     ptc_layout_world(l));
	ranks = ranks_on(a, node, &n);
	if (!ranks)
		return ptc_nomem(err);
	rc = ptc_layout_ranks_needs(l, ranks, n, 0, (uint32_t)l->nitems, SIZE_MAX, &needs, err);
	ptc_free(ranks);
	v = rc ? NULL : ptc_reallocarray(needs.v, PTC_MAX(needs.n, (size_t)1), sizeof *v);
	if (!v) {
		ptc_needs_done(&needs);
		return rc ? rc : ptc_nomem(err);
	}
	needs.v = v; /* no more than there are: they are kept for long */
	needs.cap = needs.n;
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
