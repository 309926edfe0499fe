/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a new table out of a sealed one. Bytes that stay are referred to. If they lie in chunks that are too empty,
 * they are copied. All other needed bytes are reported missing.
 *
 * Happy path: the needed boxes are made disjoint and merged. If the new table was begun before, the boxes that it has
 * already are taken out. Each needed box is cut along the source's pieces. The share of live bytes in its chunks
 * decides whether a cut is referred to or copied. References, and the extents for copies, are added in one commit.
 * Then the copies are filled, verified at the source, and recorded.
 *
 * Failure modes: a table holding other boxes is PTC_ESTATE (drop it first); no room is PTC_ENOSPC with nothing changed;
 * a corrupt source block is PTC_ECORRUPT with the copies left to be resumed. */
#include "daemon/store/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BOXES 64

/* Boxes by item, grown as needed. */
struct list {
	struct ptc_store_box *v;
	size_t n, cap;
};

/* A part of source piece i that is needed. */
struct cut {
	uint32_t i;
	struct ptc_box box;
	bool alias;
};

/* Boxes that stay where they are, because additions point to them. */
struct block {
	struct block *next;
	size_t n;
	struct ptc_box v[BLOCK_BOXES];
};

struct work {
	struct ptc_table *t, *src;
	const bool *fresh; /* by item: src has nothing that is wanted; NULL: of none */
	bool dry_run;
	bool as_given;           /* the needs are the caller's own list, which is in order */
	struct list needs, rest; /* disjoint and merged, sorted by item; rest: not in t yet */
	int64_t *covered;        /* of each of rest: bytes that src has */
	struct cut *cuts;
	size_t ncuts, cuts_cap;
	struct list missing;
	size_t nresumed;      /* of missing: extents t has reserved already */
	struct addition *add; /* their boxes are needs, those of src, or in blocks */
	size_t nadd, add_cap;
	struct block *blocks;
	struct chunk **chunks; /* aliased */
	size_t nchunks;
	uint64_t *kept; /* of plan_simple: needed bytes of each chunk of src; NULL: build() has planned */
};

void ptc_store_boxes_done(struct ptc_store_boxes *b)
{
	ptc_free(b->v);
	*b = (struct ptc_store_boxes){ 0 };
}

static int push(struct list *l, uint32_t item, const struct ptc_box *boxes, size_t n)
{
	if (!PTC_ROOM(l->v, l->n + n, l->cap))
		return PTC_ENOMEM;
	for (size_t i = 0; i < n; i++)
		l->v[l->n++] = (struct ptc_store_box){ item, boxes[i] };
	return 0;
}

/* Of addresses of boxes: a box is as large as seventeen of them. */
PTC_COMPARE(by_item, struct ptc_store_box *const, PTC_THEN(PTC_ORDER((*a)->item, (*b)->item), PTC_ORDER(*a, *b)))

static size_t group_end(const struct ptc_store_box *v, size_t n, size_t i)
{
	size_t e = i;

	while (e < n && v[e].item == v[i].item)
		e++;
	return e;
}

/* Needs of one item, which may overlap (replicas on this node), as disjoint merged boxes. */
static int normalise_item(struct work *w, const struct ptc_store_box *const *v, size_t n)
{
	struct ptc_boxes b = { 0 };
	int rc = 0;

	if (n == 1)
		return push(&w->needs, v[0]->item, &v[0]->box, 1);
	for (size_t i = 0; i < n && !rc; i++) {
		struct ptc_boxes fresh = { 0 };

		if (b.n == 0)
			rc = ptc_boxes_push(&fresh, &v[i]->box);
		else
			rc = ptc_boxes_missing(&v[i]->box, b.v, b.n, &fresh);
		for (size_t k = 0; k < fresh.n && !rc; k++)
			rc = ptc_boxes_push(&b, &fresh.v[k]);
		ptc_boxes_done(&fresh);
	}
	if (!rc)
		ptc_boxes_join(b.v, &b.n);
	if (!rc)
		rc = push(&w->needs, v[0]->item, b.v, b.n);
	ptc_boxes_done(&b);
	return rc;
}

/* Each item has one need, and they are in order, as those of most layouts. */
static bool in_order(const struct ptc_store_box *needs, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ptc_box_empty(&needs[i].box) || (i && needs[i].item <= needs[i - 1].item))
			return false;
	return true;
}

static int normalise(struct work *w, const struct ptc_store_box *needs, size_t n, struct ptc_error *err)
{
	const struct ptc_store_box **v;
	size_t used = 0;
	int rc = 0;

	if (in_order(needs, n)) {
		w->as_given = true;
		w->needs = (struct list){ (struct ptc_store_box *)(uintptr_t)needs, n, n }; /* read only */
		for (size_t i = 0; i < n && !rc; i++)
			rc = ptc_store_box_check(needs[i].item, &needs[i].box, err);
		return rc;
	}
	v = ptc_reallocarray(NULL, n + 1, sizeof *v);
	if (!v)
		return ptc_nomem(err);
	for (size_t i = 0; i < n && !rc; i++) {
		if (ptc_box_empty(&needs[i].box))
			continue;
		rc = ptc_store_box_check(needs[i].item, &needs[i].box, err);
		v[used++] = &needs[i];
	}
	if (!rc) {
		ptc_sort(v, used, sizeof *v, by_item);
		rc = PTC_ROOM(w->needs.v, used, w->needs.cap) ? 0 : ptc_nomem(err);
	}
	for (size_t i = 1; i < used && !rc; i++)
		if (v[i]->item == v[i - 1]->item && v[i]->box.ndim != v[i - 1]->box.ndim)
			rc = ptc_error_set(err, PTC_EINVAL, "item %u: boxes of different dimensions", v[i]->item);
	for (size_t i = 0, end; i < used && !rc; i = end) {
		for (end = i + 1; end < used && v[end]->item == v[i]->item;)
			end++;
		if (normalise_item(w, v + i, end - i))
			rc = ptc_nomem(err);
	}
	ptc_free(v);
	return rc;
}

/* What an item's bytes may be taken from. */
static struct ptc_table *source(const struct work *w, uint32_t item)
{
	return w->fresh && w->fresh[item] ? NULL : w->src;
}

/* Live boxes of t's pieces of an item. */
static int held(const struct ptc_table *t, uint32_t item, struct ptc_boxes *out)
{
	int rc = 0;

	for (uint32_t i = ptc_store_table_head(t, item); i && !rc; i = t->locs[i - 1].next)
		if (t->pieces[i - 1].item == item)
			rc = ptc_boxes_push(out, &t->pieces[i - 1].live);
	return rc;
}

/* What of the needs t does not have in any state. The needs themselves are not needed any more. */
static int subtract_held(struct work *w)
{
	struct ptc_boxes have = { 0 }, left = { 0 };
	int rc = 0;

	if (w->t->n == 0) {
		w->rest = w->needs;
		return 0;
	}
	for (size_t i = 0; i < w->needs.n && !rc; i++) {
		have.n = left.n = 0;
		rc = held(w->t, w->needs.v[i].item, &have);
		if (!rc && have.n == 0)
			rc = ptc_boxes_push(&left, &w->needs.v[i].box);
		else if (!rc)
			rc = ptc_boxes_missing(&w->needs.v[i].box, have.v, have.n, &left);
		if (!rc && left.n > 0)
			rc = push(&w->rest, w->needs.v[i].item, left.v, left.n);
	}
	ptc_boxes_done(&have);
	ptc_boxes_done(&left);
	return rc;
}

/* A resumed table may hold only what is needed now: total of its pieces inside needs equals its total. */
static int check_resumed(const struct work *w, struct ptc_error *err)
{
	int64_t inside = 0, total = 0;

	if (w->t->n == 0)
		return 0;
	for (size_t i = 0; i < w->needs.n; i++)
		inside += ptc_store_covered(w->t, w->needs.v[i].item, &w->needs.v[i].box);
	for (size_t i = 0; i < w->t->n; i++)
		total += ptc_box_volume(&w->t->pieces[i].live);
	return inside == total ? 0
			       : ptc_error_set(err, PTC_ESTATE,
					       "a table for generation %llu, snapshot %llu was begun "
					       "with other needs: drop it first",
					       (unsigned long long)w->t->key.generation,
					       (unsigned long long)w->t->key.snapshot);
}

static int find_cuts(struct work *w)
{
	w->covered = ptc_calloc(w->rest.n + 1, sizeof *w->covered);
	if (!w->covered)
		return PTC_ENOMEM;
	for (size_t k = 0; k < w->rest.n; k++) {
		const struct ptc_store_box *b = &w->rest.v[k];
		const struct ptc_table *src = source(w, b->item);

		for (uint32_t i = src ? ptc_store_table_head(src, b->item) : 0; i; i = src->locs[i - 1].next) {
			struct cut c = { .i = i - 1 };

			if (src->pieces[i - 1].item != b->item || src->pieces[i - 1].live.ndim != b->box.ndim ||
			    !ptc_box_intersect(&src->pieces[i - 1].live, &b->box, &c.box))
				continue;
			/* most needs are cut once */
			if (!PTC_ROOM(w->cuts, w->ncuts ? w->ncuts + 1 : w->rest.n - k, w->cuts_cap))
				return PTC_ENOMEM;
			w->cuts[w->ncuts++] = c;
			w->covered[k] += ptc_box_volume(&c.box);
		}
	}
	return 0;
}

/* The smallest part of an extent that is contiguous in it and holds box: whole rows of its outermost dimensions. As an
 * extent of its own it keeps only the chunks it touches. */
static struct ptc_box slab(const struct ptc_box *extent, const struct ptc_box *box, uint64_t *pos)
{
	struct ptc_box s = *extent;
	int64_t first = 0;

	for (uint32_t d = 0; d < s.ndim; d++) {
		s.off[d] = box->off[d];
		s.ext[d] = box->ext[d];
		if (s.ext[d] > 1)
			break;
	}
	for (uint32_t d = 0; d < s.ndim; d++)
		first = first * extent->ext[d] + s.off[d] - extent->off[d];
	*pos += (uint64_t)first;
	return s;
}

/* Chunks an alias of this cut would keep. */
static void chunks_of(const struct ptc_table *t, const struct cut *c, size_t *ret_first, size_t *ret_last)
{
	uint64_t pos = t->locs[c->i].pos;
	struct ptc_box s = slab(&t->pieces[c->i].extent_box, &c->box, &pos);

	*ret_first = ptc_store_chunk_of(pos);
	*ret_last = ptc_store_chunk_of(pos + (uint64_t)ptc_box_volume(&s) - 1);
}

static void count_run(uint64_t pos, uint64_t end, uint64_t *live)
{
	while (pos < end) {
		size_t k = ptc_store_chunk_of(pos);
		uint64_t upto = PTC_MIN(end, (uint64_t)(k + 1) * PTC_CHUNK_BYTES);

		live[k] += upto - pos;
		pos = upto;
	}
}

/* Adds the cut's bytes to the chunks they lie in. */
static void count_live(const struct ptc_table *t, const struct cut *c, uint64_t *live)
{
	uint64_t pos = t->locs[c->i].pos;
	const struct ptc_box s = slab(&t->pieces[c->i].extent_box, &c->box, &pos);
	struct ptc_runs r;

	if (ptc_box_equal(&s, &c->box)) {
		count_run(pos, pos + (uint64_t)ptc_box_volume(&s), live);
		return;
	}
	for (ptc_runs_init(&r, &t->pieces[c->i].extent_box, &c->box, &c->box); r.done < r.count; ptc_runs_next(&r)) {
		pos = t->locs[c->i].pos + (uint64_t)r.a_off;
		count_run(pos, pos + (uint64_t)r.run_bytes, live);
	}
}

/* A cut is referred to when, of what was ever put into the chunks it would keep, three quarters are still needed: so
 * what the store holds stays within 4/3 of what it must, and an extent is not copied for the sake of its two ends. */
static bool worth_keeping(const struct ptc_table *src, size_t first, size_t last, const uint64_t *live)
{
	uint64_t needed = 0, used = 0;

	for (size_t k = first; k <= last; k++) {
		needed += live[k];
		used += src->chunks[k]->used;
	}
	return needed * 4 >= used * 3;
}

static int classify(struct work *w)
{
	uint64_t *live;

	if (w->ncuts == 0)
		return 0;
	live = ptc_calloc(w->src->nchunks, sizeof *live);
	if (!live)
		return PTC_ENOMEM;
	for (size_t i = 0; i < w->ncuts; i++)
		count_live(w->src, &w->cuts[i], live);
	for (size_t i = 0; i < w->ncuts; i++) {
		size_t first, last;

		chunks_of(w->src, &w->cuts[i], &first, &last);
		w->cuts[i].alias = worth_keeping(w->src, first, last, live);
	}
	ptc_free(live);
	return 0;
}

static int by_extent(const void *a, const void *b, void *arg)
{
	const struct cut *x = a, *y = b;
	const struct ptc_table *t = arg;
	const struct ptc_piece *p = &t->pieces[x->i], *q = &t->pieces[y->i];

	if (x->alias != y->alias)
		return x->alias ? -1 : 1;
	if (!x->alias)
		return PTC_ORDER(p->item, q->item);
	return PTC_THEN(PTC_ORDER(t->locs[x->i].pos, t->locs[y->i].pos),
			PTC_ORDER(ptc_box_volume(&p->extent_box), ptc_box_volume(&q->extent_box)));
}

static bool same_group(const struct work *w, size_t a, size_t b)
{
	return by_extent(&w->cuts[a], &w->cuts[b], w->src) == 0;
}

static int merged_group(const struct work *w, size_t from, size_t to, struct ptc_boxes *out)
{
	int rc = 0;

	for (size_t i = from; i < to && !rc; i++)
		rc = ptc_boxes_push(out, &w->cuts[i].box);
	if (!rc)
		ptc_boxes_join(out->v, &out->n);
	return rc;
}

/* NULL: no memory. */
static const struct ptc_box *keep(struct work *w, const struct ptc_box *box)
{
	if (!w->blocks || w->blocks->n == BLOCK_BOXES) {
		struct block *more = ptc_malloc(sizeof *more);

		if (!more)
			return NULL;
		more->next = w->blocks;
		more->n = 0;
		w->blocks = more;
	}
	w->blocks->v[w->blocks->n] = *box;
	return &w->blocks->v[w->blocks->n++];
}

/* most: about as many will there be. Boxes that keep() could not keep are NULL. */
static int add(struct work *w, const struct addition *a, size_t most)
{
	if (!a->live || !a->extent_box || !PTC_ROOM(w->add, w->nadd ? w->nadd + 1 : most, w->add_cap))
		return PTC_ENOMEM;
	w->add[w->nadd++] = *a;
	return 0;
}

static int add_alias(struct work *w, uint32_t i, const struct ptc_boxes *live)
{
	const struct ptc_piece *p = &w->src->pieces[i];
	int rc = 0;

	for (size_t k = 0; k < live->n && !rc; k++) {
		struct addition a = { .item = p->item, .pos = w->src->locs[i].pos, .alias = true };
		const struct ptc_box extent_box = slab(&p->extent_box, &live->v[k], &a.pos);

		a.live = keep(w, &live->v[k]);
		a.extent_box = ptc_box_equal(&extent_box, &live->v[k]) ? a.live : keep(w, &extent_box);
		rc = add(w, &a, w->ncuts);
	}
	return rc;
}

static int add_copy(struct work *w, uint32_t item, const struct ptc_boxes *live)
{
	struct ptc_boxes parts = { 0 };
	int rc = 0;

	for (size_t k = 0; k < live->n && !rc; k++)
		rc = ptc_box_chop(&live->v[k], PTC_EXTENT_MAX_BYTES, &parts);
	for (size_t k = 0; k < parts.n && !rc; k++) {
		const struct ptc_box *box = keep(w, &parts.v[k]);

		rc = add(w, &(const struct addition){ .item = item, .live = box, .extent_box = box }, w->ncuts);
	}
	ptc_boxes_done(&parts);
	return rc;
}

/* Needs come by item, and so does most of what a table holds. */
static bool cuts_sorted(const struct work *w)
{
	for (size_t i = 1; i < w->ncuts; i++)
		if (by_extent(&w->cuts[i - 1], &w->cuts[i], w->src) > 0)
			return false;
	return true;
}

static int build_group(struct work *w, const struct cut *first, const struct ptc_boxes *live)
{
	return first->alias ? add_alias(w, first->i, live) : add_copy(w, w->src->pieces[first->i].item, live);
}

static int build(struct work *w)
{
	struct ptc_boxes b = { 0 };
	int rc = 0;

	if (!cuts_sorted(w))
		qsort_r(w->cuts, w->ncuts, sizeof *w->cuts, by_extent, w->src);
	for (size_t i = 0, e; i < w->ncuts && !rc; i = e) {
		const struct ptc_boxes one = { &w->cuts[i].box, 1, 1 };

		for (e = i + 1; e < w->ncuts && same_group(w, i, e);)
			e++;
		if (w->dry_run && w->cuts[i].alias) /* it takes nothing */
			continue;
		if (e - i == 1) {
			rc = build_group(w, &w->cuts[i], &one);
			continue;
		}
		b.n = 0;
		rc = merged_group(w, i, e, &b);
		if (!rc)
			rc = build_group(w, &w->cuts[i], &b);
	}
	ptc_boxes_done(&b);
	return rc;
}

/* ---- most layouts ---- */

/* Whether box is one run of its extent, without the bytes around it; *pos becomes that of the run. */
static bool one_run(const struct ptc_box *extent, const struct ptc_box *box, uint64_t *pos)
{
	int64_t first = 0;
	bool row = false; /* dims outside have more than one row: the others must be whole */

	for (uint32_t d = 0; d < box->ndim; d++) {
		if (row && box->ext[d] != extent->ext[d])
			return false;
		row |= box->ext[d] > 1;
		first = first * extent->ext[d] + box->off[d] - extent->off[d];
	}
	*pos += (uint64_t)first;
	return true;
}

/* Refers to what source piece i has of the need; *next: the least position of its extent. False: not so simple. */
static bool simple_cut(struct work *w, size_t need, uint32_t i, uint64_t *next, int *rc)
{
	const struct ptc_piece *p = &w->src->pieces[i];
	const struct ptc_box *box = &w->rest.v[need].box;
	uint64_t pos = w->src->locs[i].pos;
	struct ptc_box common;
	int64_t bytes;

	if (ptc_box_contains(box, &p->live)) {
		box = &p->live;
	} else if (!ptc_box_contains(&p->live, box)) {
		if (!ptc_box_intersect(&p->live, box, &common))
			return true;
		box = keep(w, &common);
	}
	if (pos < *next)
		return false;
	*next = pos + 1;
	if (box && !one_run(&p->extent_box, box, &pos))
		return false;
	*rc = add(w,
		  &(const struct addition){
			  .item = p->item, .live = box, .extent_box = box, .pos = pos, .alias = true },
		  w->rest.n - need);
	if (*rc)
		return true;
	bytes = ptc_box_volume(box);
	w->covered[need] += bytes;
	count_run(pos, pos + (uint64_t)bytes, w->kept);
	return true;
}

static bool simple_need(struct work *w, size_t need, uint64_t *next, int *rc)
{
	const uint32_t item = w->rest.v[need].item, ndim = w->rest.v[need].box.ndim;
	const struct ptc_table *src = source(w, item);

	for (uint32_t i = src ? ptc_store_table_head(src, item) : 0; i && !*rc; i = src->locs[i - 1].next)
		if (src->pieces[i - 1].item == item && src->pieces[i - 1].live.ndim == ndim &&
		    !simple_cut(w, need, i - 1, next, rc))
			return false;
	return true;
}

/* Each chunk alone; worth_keeping() asks of several together, so it says the same of any of them. */
static bool all_worth_keeping(const struct work *w)
{
	for (size_t k = 0; k < w->src->nchunks; k++)
		if (w->kept[k] && !worth_keeping(w->src, k, k, w->kept))
			return false;
	return true;
}

/* Whether addition i, a reference, has to become a copy; *ret_whole: it can, as it is. */
static bool becomes_copy(const struct work *w, size_t i, bool *ret_whole)
{
	const struct addition *a = &w->add[i];
	const int64_t bytes = ptc_box_volume(a->live);

	if (worth_keeping(w->src, ptc_store_chunk_of(a->pos), ptc_store_chunk_of(a->pos + (uint64_t)bytes - 1),
			  w->kept))
		return false;
	*ret_whole = bytes <= PTC_EXTENT_MAX_BYTES && (i == 0 || a[-1].item != a->item) &&
		     (i + 1 == w->nadd || a[1].item != a->item);
	return true;
}

/* Makes copies of the references that are not worth their chunks, and puts them behind the others, as build() does.
 * False: one of them has to be cut, or joined with another of its item. */
static bool simple_copies(struct work *w, int *rc)
{
	struct addition *v = ptc_reallocarray(NULL, w->nadd + 1, sizeof *v);
	size_t ncopies = 0, n = 0;
	bool whole = true;

	if (!v) {
		*rc = PTC_ENOMEM;
		return true;
	}
	for (size_t i = 0; whole && i < w->nadd; i++) {
		if (!becomes_copy(w, i, &whole)) {
			w->add[n++] = w->add[i];
			continue;
		}
		v[ncopies] = w->add[i];
		v[ncopies].pos = 0;
		v[ncopies++].alias = false;
	}
	if (whole && ncopies)
		memcpy(w->add + n, v, ncopies * sizeof *v);
	ptc_free(v);
	if (whole) { /* map_chunks() looks for those of references */
		ptc_free(w->kept);
		w->kept = NULL;
	}
	return whole;
}

/* The table is new, and each need is one run of an extent. These extents lie in the order of the needs. So the
 * references and copies follow from the needs, without a list of cuts. False: it is not so simple, and nothing has been
 * planned. */
static bool plan_simple(struct work *w, int *rc)
{
	uint64_t next = 0;
	bool simple = w->src && w->as_given && !w->t->n;

	if (!simple)
		return false;
	w->covered = ptc_calloc(w->rest.n + 1, sizeof *w->covered);
	w->kept = ptc_calloc(w->src->nchunks + 1, sizeof *w->kept);
	if (!w->covered || !w->kept)
		*rc = PTC_ENOMEM;
	for (size_t k = 0; simple && !*rc && k < w->rest.n; k++)
		simple = simple_need(w, k, &next, rc);
	if (simple && !*rc && !all_worth_keeping(w))
		simple = simple_copies(w, rc);
	if (simple || *rc)
		return true;
	ptc_free(w->covered);
	ptc_free(w->kept);
	w->covered = NULL;
	w->kept = NULL;
	w->nadd = 0;
	return false;
}

/* Chunks of aliased extents, in the source's order and without gaps inside an extent; positions become relative. */
static int map_chunks(struct work *w)
{
	const struct ptc_table *src = w->src;
	uint32_t *to;

	if (w->nadd == 0 || !src || src->nchunks == 0)
		return 0;
	to = ptc_calloc(src->nchunks, sizeof *to);
	w->chunks = ptc_malloc(src->nchunks * sizeof(struct chunk *));
	if (!to || !w->chunks) {
		ptc_free(to);
		return PTC_ENOMEM;
	}
	for (size_t k = 0; w->kept && k < src->nchunks; k++)
		to[k] = w->kept[k] > 0;
	for (size_t i = 0; !w->kept && i < w->nadd; i++) {
		uint64_t pos = w->add[i].pos, end = pos + (uint64_t)ptc_box_volume(w->add[i].extent_box);

		for (size_t k = ptc_store_chunk_of(pos); w->add[i].alias && k <= ptc_store_chunk_of(end - 1); k++)
			to[k] = 1;
	}
	for (size_t k = 0; k < src->nchunks; k++)
		if (to[k]) {
			to[k] = (uint32_t)w->nchunks;
			w->chunks[w->nchunks++] = src->chunks[k];
		}
	for (size_t i = 0; i < w->nadd; i++)
		if (w->add[i].alias)
			w->add[i].pos = (uint64_t)to[ptc_store_chunk_of(w->add[i].pos)] * PTC_CHUNK_BYTES +
					w->add[i].pos % PTC_CHUNK_BYTES;
	ptc_free(to);
	return 0;
}

/* The only need of its item is all there, or nothing of it is, as most are. False: it has to be cut. */
static bool whole_or_nothing(struct work *w, size_t i, int *rc)
{
	const struct ptc_store_box *need = &w->rest.v[i];
	int64_t all = ptc_box_volume(&need->box);

	if (w->covered[i] == all)
		return true;
	if (w->covered[i] || all > PTC_EXTENT_MAX_BYTES)
		return false;
	if (!PTC_ROOM(w->missing.v, w->missing.n ? w->missing.n + 1 : w->rest.n - i, w->missing.cap))
		*rc = PTC_ENOMEM;
	else
		w->missing.v[w->missing.n++] = *need;
	return true;
}

/* parts: for its memory. */
static int push_chopped(struct list *l, uint32_t item, const struct ptc_box *box, struct ptc_boxes *parts)
{
	int rc;

	if (ptc_box_volume(box) <= PTC_EXTENT_MAX_BYTES)
		return push(l, item, box, 1);
	parts->n = 0;
	rc = ptc_box_chop(box, PTC_EXTENT_MAX_BYTES, parts);
	return rc ? rc : push(l, item, parts->v, parts->n);
}

/* Parts of rest that src does not have, and extents t has reserved but cannot fill from src. */
static int find_missing(struct work *w)
{
	struct ptc_boxes have = { 0 }, left = { 0 }, parts = { 0 };
	int rc = 0;

	for (size_t i = 0; i < w->t->n && !rc; i++) {
		const struct ptc_piece *p = &w->t->pieces[i];

		const struct ptc_table *src = source(w, p->item);

		if (!w->t->locs[i].filled &&
		    (!src || ptc_store_covered(src, p->item, &p->live) != ptc_box_volume(&p->live)))
			rc = push(&w->missing, p->item, &p->live, 1);
	}
	w->nresumed = w->missing.n;
	for (size_t i = 0, e; i < w->rest.n && !rc; i = e) {
		const struct ptc_table *src = source(w, w->rest.v[i].item);

		have.n = left.n = 0;
		e = group_end(w->rest.v, w->rest.n, i);
		if (e - i == 1 && whole_or_nothing(w, i, &rc))
			continue;
		rc = src ? held(src, w->rest.v[i].item, &have) : 0;
		for (size_t k = i; k < e && !rc; k++)
			rc = have.n ? ptc_boxes_missing(&w->rest.v[k].box, have.v, have.n, &left)
				    : ptc_boxes_push(&left, &w->rest.v[k].box);
		if (!rc)
			ptc_boxes_join(left.v, &left.n);
		for (size_t k = 0; k < left.n && !rc; k++)
			rc = push_chopped(&w->missing, w->rest.v[i].item, &left.v[k], &parts);
	}
	ptc_boxes_done(&have);
	ptc_boxes_done(&left);
	ptc_boxes_done(&parts);
	return rc;
}

static int64_t new_bytes(const struct work *w)
{
	uint64_t tail = 0;
	size_t nchunks = 0;

	for (size_t i = 0; i < w->nadd; i++)
		if (!w->add[i].alias)
			ptc_store_place(&tail, &nchunks, ptc_box_volume(w->add[i].live));
	for (size_t i = w->nresumed; i < w->missing.n; i++)
		ptc_store_place(&tail, &nchunks, ptc_box_volume(&w->missing.v[i].box));
	return (int64_t)nchunks * PTC_CHUNK_BYTES;
}

/* Fills every unfilled extent that src can fill: this call's copies, and those a crash interrupted. */
static int copy(struct work *w, struct ptc_error *err)
{
	struct ptc_store *s = w->t->job->s;
	struct ptc_verified seen = { 0 };
	int rc = 0;

	for (uint32_t i = 0; i < w->t->n && !rc && w->src; i++) {
		const struct ptc_piece *p = &w->t->pieces[i];
		struct ptc_table *src = source(w, p->item);
		struct ptc_box box = p->live;
		int64_t bytes = ptc_box_volume(&box);

		if (w->t->locs[i].filled || !src || ptc_store_covered(src, p->item, &box) != bytes)
			continue;
		pthread_rwlock_rdlock(&w->t->lock);
		ptc_store_extent_again(w->t, i);
		rc = ptc_store_gather(src, p->item, &box, w->t, w->t->locs[i].pos, &seen, err);
		pthread_rwlock_unlock(&w->t->lock);
		if (!rc)
			rc = ptc_table_filled(w->t, i, err);
		pthread_mutex_lock(&s->lock);
		s->copied_bytes += rc ? 0 : (uint64_t)bytes;
		pthread_mutex_unlock(&s->lock);
	}
	return rc;
}

static int plan(struct work *w, const struct ptc_store_box *needs, size_t n, struct ptc_error *err)
{
	int rc;

	if (w->src && !w->src->sealed)
		return ptc_error_set(err, PTC_ESTATE, "the source table is not sealed");
	if (w->t->sealed)
		return ptc_error_set(err, PTC_ESTATE, "this table is sealed");
	rc = normalise(w, needs, n, err);
	if (!rc)
		rc = check_resumed(w, err);
	if (rc)
		return rc;
	rc = subtract_held(w);
	if (!rc && !plan_simple(w, &rc)) {
		rc = find_cuts(w);
		if (!rc)
			rc = classify(w);
		if (!rc)
			rc = build(w);
	}
	if (!rc)
		rc = map_chunks(w);
	if (!rc)
		rc = find_missing(w);
	return rc ? ptc_error_set(err, rc, "out of memory") : 0;
}

static void work_done(struct work *w)
{
	if (w->rest.v != w->needs.v)
		ptc_free(w->rest.v);
	if (!w->as_given)
		ptc_free(w->needs.v);
	ptc_free(w->covered);
	ptc_free(w->kept);
	ptc_free(w->cuts);
	ptc_free(w->missing.v);
	ptc_free(w->add);
	ptc_free(w->chunks);
	for (struct block *b = w->blocks, *next; b; b = next) {
		next = b->next;
		ptc_free(b);
	}
}

int ptc_table_derive(struct ptc_table *t, struct ptc_table *src, const bool *fresh, const struct ptc_store_box *needs,
		     size_t nneeds, bool dry_run, struct ptc_store_boxes *ret_missing, int64_t *ret_new_bytes,
		     struct ptc_error *err)
{
	struct work w = { .t = t, .src = src, .fresh = fresh, .dry_run = dry_run };
	int rc = plan(&w, needs, nneeds, err);

	if (!rc && !dry_run && w.nadd > 0)
		rc = ptc_store_table_append(t, w.add, w.nadd, w.chunks, w.nchunks, err);
	if (!rc && !dry_run)
		rc = copy(&w, err);
	if (rc == PTC_ECORRUPT)
		*ret_new_bytes = new_bytes(&w);
	if (!rc) {
		struct ptc_store_boxes m = { w.missing.v, w.missing.n, 0 };

		for (size_t i = 0; i < m.n; i++)
			m.bytes += ptc_box_volume(&m.v[i].box);
		*ret_new_bytes = new_bytes(&w);
		*ret_missing = m;
		w.missing.v = NULL;
	}
	work_done(&w);
	return rc;
}

static int alias_locked(struct ptc_store *s, struct ptc_table *src, const struct ptc_table_key *key,
			struct ptc_error *err)
{
	const struct table_save what = { .seal = true };
	struct ptc_table *t = ptc_store_table_new(src->job, key);
	int rc;

	if (!t || !PTC_ROOM(t->chunks, src->nchunks, t->chunks_cap) || ptc_store_table_share(t, src)) {
		ptc_table_unref(t);
		return ptc_nomem(err);
	}
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < src->nchunks; i++) {
		t->chunks[t->nchunks++] = src->chunks[i];
		ptc_store_chunk_use_locked(t->job, src->chunks[i]);
	}
	pthread_mutex_unlock(&s->lock);
	rc = ptc_store_rec_table_save(t, &what, NULL, 0, err);
	if (rc) {
		ptc_table_unref(t);
		return rc;
	}
	t->sealed = true;
	pthread_mutex_lock(&s->lock);
	ptc_store_table_register_locked(t);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

int ptc_table_alias(struct ptc_store *s, const struct ptc_table_key *src, const struct ptc_table_key *dst,
		    struct ptc_error *err)
{
	struct ptc_table *from = NULL, *there = NULL;
	struct job *j;
	int rc;

	if (strcmp(src->uuid, dst->uuid) != 0)
		return ptc_error_set(err, PTC_EINVAL, "a snapshot can refer to state of its own job only");
	rc = ptc_table_open(s, src, &from, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&s->wlock);
	pthread_mutex_lock(&s->lock);
	j = ptc_store_job_find_locked(s, dst->uuid);
	there = j ? ptc_store_table_find_locked(j, dst) : NULL;
	pthread_mutex_unlock(&s->lock);
	if (from->dropped)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "the source was dropped");
	else if (there && !there->sealed)
		rc = ptc_error_set(err, PTC_ESTATE, "that table is under construction");
	else if (!there)
		rc = alias_locked(s, from, dst, err);
	pthread_mutex_unlock(&s->wlock);
	ptc_table_unref(from);
	return rc;
}
