/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the boxes of all parts are sorted; equal ones become one piece
 * with the set of its parts. Ranks of one layout rarely hold boxes that meet
 * and are not equal; those are cut along each other. Failure mode: memory. */
#include "reshard/box/pieces.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

void ptc_pieces_done(struct ptc_pieces *p)
{
	ptc_free(p->box);
	ptc_free(p->set);
	ptc_free(p->reach);
	ptc_free(p->set_bytes);
	ptc_lists_done(&p->sets);
	*p = (struct ptc_pieces){ 0 };
}

static int push(struct ptc_pieces *p, const struct ptc_box *box, uint32_t set)
{
	size_t cap = p->cap;

	if (!PTC_ROOM(p->box, p->n + 1, cap) || !PTC_ROOM(p->set, p->n + 1, p->cap))
		return PTC_ENOMEM;
	p->box[p->n] = *box;
	p->set[p->n++] = set;
	return 0;
}

PTC_COMPARE(by_box, struct ptc_part_box, PTC_THEN(ptc_box_order(&a->box, &b->box), PTC_ORDER(a->part, b->part)))

/* A part of a buffer is one box for nearly all tensors, and there are very many: no table of sets, no search. */
static int make_one(struct ptc_pieces *p, const struct ptc_part_box *v)
{
	p->box = ptc_malloc(sizeof *p->box);
	p->set = ptc_calloc(1, sizeof *p->set);
	p->reach = ptc_malloc(sizeof *p->reach);
	p->set_bytes = ptc_malloc(sizeof *p->set_bytes);
	if (!p->box || !p->set || !p->reach || !p->set_bytes)
		return PTC_ENOMEM;
	p->n = p->cap = 1;
	p->box[0] = v->box;
	p->reach[0] = v->box.off[0] + v->box.ext[0];
	p->set_bytes[0] = ptc_box_volume(&v->box);
	return ptc_lists_one(&p->sets, &v->part, 1);
}

/* Equal boxes, one after the other, become a piece each. */
static int collapse(struct ptc_pieces *p, const struct ptc_part_box *v, size_t n)
{
	uint32_t one, *list = n > 1 ? ptc_calloc(n, sizeof *list) : NULL, *parts = n > 1 ? list : &one;
	int rc;

	/* no more pieces than boxes; in buffers nearly all tensors have one box, and there are very many */
	p->box = ptc_calloc(n, sizeof *p->box);
	p->set = ptc_calloc(n, sizeof *p->set);
	p->cap = n;
	rc = parts && p->box && p->set ? 0 : PTC_ENOMEM;
	for (size_t i = 0, k; i < n && !rc; i = k) {
		uint32_t set, count = 0;

		for (k = i; k < n && !ptc_box_order(&v[k].box, &v[i].box); k++)
			if (k == i || v[k].part != v[k - 1].part)
				parts[count++] = v[k].part;
		rc = ptc_lists_intern(&p->sets, parts, count, &set);
		if (!rc)
			rc = push(p, &v[i].box, set);
	}
	ptc_free(list);
	return rc;
}

struct by_dim {
	int64_t off;
	size_t at;
};

PTC_BY2(compare_by_dim, struct by_dim, off, at)

static void sort_by(const struct ptc_pieces *p, uint32_t d, struct by_dim *v)
{
	for (size_t i = 0; i < p->n; i++)
		v[i] = (struct by_dim){ p->box[i].off[d], i };
	if (p->n > 1)
		qsort(v, p->n, sizeof *v, compare_by_dim);
}

/* Pieces in the order of the dim with most distinct offsets. */
static int order(struct ptc_pieces *p)
{
	struct ptc_pieces sorted = { .ndim = p->ndim };
	struct by_dim *v;
	size_t most = 0;
	int rc;

	if (p->n < 2 && p->n == p->cap)
		return 0;
	v = ptc_calloc(p->n, sizeof *v);
	rc = v ? 0 : PTC_ENOMEM;
	for (uint32_t d = 0; d < p->ndim && !rc; d++) {
		size_t distinct = 0;

		sort_by(p, d, v);
		for (size_t i = 0; i < p->n; i++)
			distinct += i == 0 || v[i].off != v[i - 1].off;
		if (distinct > most) {
			most = distinct;
			p->dim = d;
		}
	}
	if (!rc && most)
		sort_by(p, p->dim, v);
	if (!rc) { /* just as many as there are */
		sorted.box = ptc_calloc(p->n, sizeof *sorted.box);
		sorted.set = ptc_calloc(p->n, sizeof *sorted.set);
		sorted.cap = p->n;
		rc = sorted.box && sorted.set ? 0 : PTC_ENOMEM;
	}
	for (size_t i = 0; i < p->n && !rc; i++)
		rc = push(&sorted, &p->box[v[i].at], p->set[v[i].at]);
	ptc_free(v);
	if (rc) {
		ptc_free(sorted.box);
		ptc_free(sorted.set);
		return rc;
	}
	ptc_free(p->box);
	ptc_free(p->set);
	p->box = sorted.box;
	p->set = sorted.set;
	p->cap = sorted.cap;
	return 0;
}

static bool any_overlap(const struct ptc_pieces *p)
{
	struct ptc_box common;

	for (size_t i = 0; i < p->n; i++)
		for (size_t k = i + 1;
		     k < p->n && p->box[k].off[p->dim] < p->box[i].off[p->dim] + p->box[i].ext[p->dim]; k++)
			if (ptc_box_intersect(&p->box[i], &p->box[k], &common))
				return true;
	return false;
}

/* Set number `set` with the parts of `more` added. */
static int set_union(struct ptc_pieces *p, uint32_t set, const uint32_t *more, size_t nmore, uint32_t *ret)
{
	size_t n, i = 0, k = 0, count = 0;
	const uint32_t *old = ptc_lists_at(&p->sets, set, &n);
	uint32_t *v = ptc_calloc(n + nmore, sizeof *v);
	int rc;

	if (!v)
		return PTC_ENOMEM;
	while (i < n || k < nmore) {
		uint32_t next = k == nmore || (i < n && old[i] < more[k]) ? old[i] : more[k];

		i += i < n && old[i] == next;
		k += k < nmore && more[k] == next;
		v[count++] = next;
	}
	rc = ptc_lists_intern(&p->sets, v, count, ret);
	ptc_free(v);
	return rc;
}

/* Piece i of p meets `box` in common: that becomes a piece of both, the rest of it stays a piece. */
static int split_piece(struct ptc_pieces *p, size_t i, const struct ptc_box *common, const uint32_t *parts,
		       size_t nparts)
{
	struct ptc_boxes rest = { 0 };
	uint32_t old = p->set[i], set;
	int rc = ptc_box_subtract(&p->box[i], common, &rest);

	if (!rc)
		rc = set_union(p, old, parts, nparts, &set);
	if (!rc) {
		p->box[i] = *common;
		p->set[i] = set;
	}
	for (size_t k = 0; k < rest.n && !rc; k++)
		rc = push(p, &rest.v[k], old);
	ptc_boxes_done(&rest);
	return rc;
}

/* box, held by parts, joins pieces that are disjoint, which stay so. */
static int carve(struct ptc_pieces *p, const struct ptc_box *box, const uint32_t *parts, size_t nparts, uint32_t set)
{
	struct ptc_boxes left = { 0 }, next = { 0 }, swap;
	struct ptc_box common;
	size_t n = p->n;
	int rc = ptc_boxes_push(&left, box);

	for (size_t i = 0; i < n && left.n && !rc; i++) {
		if (!ptc_box_intersect(&p->box[i], box, &common))
			continue;
		rc = split_piece(p, i, &common, parts, nparts);
		next.n = 0;
		for (size_t k = 0; k < left.n && !rc; k++)
			rc = ptc_box_subtract(&left.v[k], &common, &next);
		swap = left;
		left = next;
		next = swap;
	}
	for (size_t k = 0; k < left.n && !rc; k++)
		rc = push(p, &left.v[k], set);
	ptc_boxes_done(&left);
	ptc_boxes_done(&next);
	return rc;
}

static int cut_overlaps(struct ptc_pieces *p)
{
	struct ptc_pieces out = { .ndim = p->ndim };
	int rc = 0;

	for (size_t i = 0; i < p->n && !rc; i++) {
		size_t n;
		const uint32_t *parts = ptc_lists_at(&p->sets, p->set[i], &n);
		uint32_t set;

		rc = ptc_lists_intern(&out.sets, parts, n, &set);
		if (!rc)
			rc = carve(&out, &p->box[i], parts, n, set);
	}
	if (rc) {
		ptc_pieces_done(&out);
		return rc;
	}
	ptc_pieces_done(p);
	out.cut = true;
	*p = out;
	return order(p);
}

static int sum_up(struct ptc_pieces *p)
{
	p->reach = ptc_calloc(p->n, sizeof *p->reach);
	p->set_bytes = ptc_calloc(p->sets.n, sizeof *p->set_bytes);
	if (!p->reach || !p->set_bytes)
		return PTC_ENOMEM;
	for (size_t i = 0; i < p->n; i++) {
		int64_t end = p->box[i].off[p->dim] + p->box[i].ext[p->dim];

		p->reach[i] = i ? PTC_MAX(end, p->reach[i - 1]) : end;
		p->set_bytes[p->set[i]] += ptc_box_volume(&p->box[i]);
	}
	return 0;
}

int ptc_pieces_make(struct ptc_pieces *p, struct ptc_part_box *v, size_t n)
{
	int rc;

	*p = (struct ptc_pieces){ .ndim = n ? v[0].box.ndim : 1 };
	if (n == 1) {
		rc = make_one(p, v);
		if (rc)
			ptc_pieces_done(p);
		return rc;
	}
	if (n > 1)
		qsort(v, n, sizeof *v, by_box);
	rc = collapse(p, v, n);
	if (!rc)
		rc = order(p);
	if (!rc && any_overlap(p))
		rc = cut_overlaps(p);
	if (!rc)
		rc = sum_up(p);
	if (!rc && p->sets.n)
		rc = ptc_lists_seal(&p->sets);
	if (rc)
		ptc_pieces_done(p);
	return rc;
}

size_t ptc_pieces_first(const struct ptc_pieces *p, int64_t lo)
{
	size_t a = 0, b = p->n;

	while (a < b) {
		size_t mid = a + (b - a) / 2;

		if (p->reach[mid] <= lo)
			a = mid + 1;
		else
			b = mid;
	}
	return a;
}
