/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: plain interval arithmetic per dimension; copies and digests walk
 * the longest runs that are contiguous on both sides. Shapes were checked for
 * overflow when their spec was made (ptc_spec_lint), so nothing is checked
 * again here. Failure modes: only a failed allocation, PTC_ENOMEM, and then
 * the output list is as long as before the call. */
#include "reshard/box/box.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <stdlib.h>
#include <string.h>

void ptc_boxes_done(struct ptc_boxes *b)
{
	if (!b)
		return;
	ptc_free(b->v);
	*b = (struct ptc_boxes){ 0 };
}

int ptc_boxes_push(struct ptc_boxes *b, const struct ptc_box *box)
{
	struct ptc_box copy = *box; /* box may point into b */

	if (!PTC_ROOM(b->v, b->n + 1, b->cap))
		return PTC_ENOMEM;
	b->v[b->n++] = copy;
	return 0;
}

struct ptc_box ptc_box_whole(uint32_t ndim, const int64_t *shape)
{
	struct ptc_box b = { .ndim = ndim };

	for (uint32_t d = 0; d < ndim; d++)
		b.ext[d] = shape[d];
	return b;
}

/* Boxes are compared and hashed as memory too (lists.c), so dims that are not used are 0. */
bool ptc_box_intersect(const struct ptc_box *a, const struct ptc_box *b, struct ptc_box *ret)
{
	const uint32_t ndim = a->ndim;

	if (ndim != b->ndim)
		return false;
	for (uint32_t d = 0; d < ndim; d++)
		if (PTC_MIN(a->off[d] + a->ext[d], b->off[d] + b->ext[d]) <= PTC_MAX(a->off[d], b->off[d]))
			return false;
	ret->ndim = ndim;
	for (uint32_t d = 0; d < ndim; d++) { /* ret may be a or b */
		int64_t lo = PTC_MAX(a->off[d], b->off[d]);
		int64_t hi = PTC_MIN(a->off[d] + a->ext[d], b->off[d] + b->ext[d]);

		ret->off[d] = lo;
		ret->ext[d] = hi - lo;
	}
	for (uint32_t d = ndim; d < PTC_MAX_DIMS; d++)
		ret->off[d] = ret->ext[d] = 0;
	return true;
}

/* The part of a that lies before (or after) hole along dim d and level with it along the dims outside d. */
static bool slab(const struct ptc_box *a, const struct ptc_box *hole, uint32_t d, bool after, struct ptc_box *ret)
{
	int64_t a_end = a->off[d] + a->ext[d], hole_end = hole->off[d] + hole->ext[d];

	*ret = *a;
	for (uint32_t i = 0; i < d; i++) {
		ret->off[i] = hole->off[i];
		ret->ext[i] = hole->ext[i];
	}
	ret->off[d] = after ? hole_end : a->off[d];
	ret->ext[d] = after ? a_end - hole_end : hole->off[d] - a->off[d];
	return ret->ext[d] > 0;
}

int ptc_box_subtract(const struct ptc_box *a_in, const struct ptc_box *b, struct ptc_boxes *out)
{
	struct ptc_box a = *a_in, hole, part; /* a may point into out */
	size_t mark = out->n;
	int rc = 0;

	if (ptc_box_empty(&a))
		return 0;
	if (!ptc_box_intersect(&a, b, &hole))
		return ptc_boxes_push(out, &a);
	for (uint32_t d = 0; d < a.ndim && !rc; d++)
		if (slab(&a, &hole, d, false, &part))
			rc = ptc_boxes_push(out, &part);
	for (uint32_t d = a.ndim; d-- > 0 && !rc;)
		if (slab(&a, &hole, d, true, &part))
			rc = ptc_boxes_push(out, &part);
	if (rc)
		out->n = mark;
	return rc;
}

static int missing_of_many(const struct ptc_box *need, const struct ptc_box *have, size_t nhave, struct ptc_boxes *out)
{
	struct ptc_boxes left = { 0 }, next = { 0 }, swap;
	struct ptc_box common;
	size_t mark = out->n;
	int rc = ptc_boxes_push(&left, need);

	for (size_t h = 0; h < nhave && left.n && !rc; h++) {
		if (!ptc_box_intersect(need, &have[h], &common))
			continue;
		next.n = 0;
		for (size_t i = 0; i < left.n && !rc; i++)
			rc = ptc_box_subtract(&left.v[i], &common, &next);
		swap = left;
		left = next;
		next = swap;
	}
	for (size_t i = 0; i < left.n && !rc; i++)
		rc = ptc_boxes_push(out, &left.v[i]);
	if (rc)
		out->n = mark;
	ptc_boxes_done(&left);
	ptc_boxes_done(&next);
	return rc;
}

/* Most needs meet one box or none, and take no memory of their own. */
int ptc_boxes_missing(const struct ptc_box *need, const struct ptc_box *have, size_t nhave, struct ptc_boxes *out)
{
	struct ptc_box common;
	const struct ptc_box *one = NULL;

	if (ptc_box_empty(need))
		return 0;
	for (size_t h = 0; h < nhave; h++) {
		if (!ptc_box_intersect(need, &have[h], &common))
			continue;
		if (one)
			return missing_of_many(need, have, nhave, out);
		one = &have[h];
	}
	return one ? ptc_box_subtract(need, one, out) : ptc_boxes_push(out, need);
}

/* Lexicographic by everything but dim d, then by d: neighbours along d become neighbours in the array. */
static int along(const void *a, const void *b, void *arg)
{
	const struct ptc_box *x = a, *y = b;
	uint32_t d = *(const uint32_t *)arg;

	for (uint32_t k = 0; k < x->ndim; k++) {
		if (k != d && x->off[k] != y->off[k])
			return x->off[k] < y->off[k] ? -1 : 1;
		if (k != d && x->ext[k] != y->ext[k])
			return x->ext[k] < y->ext[k] ? -1 : 1;
	}
	return x->off[d] < y->off[d] ? -1 : x->off[d] > y->off[d];
}

static bool joins(const struct ptc_box *a, const struct ptc_box *b, uint32_t d)
{
	for (uint32_t k = 0; k < a->ndim; k++)
		if (k != d && (a->off[k] != b->off[k] || a->ext[k] != b->ext[k]))
			return false;
	return a->off[d] + a->ext[d] == b->off[d];
}

static bool join_along(struct ptc_box *v, size_t *n, uint32_t d)
{
	size_t out = 0;

	qsort_r(v, *n, sizeof *v, along, &d);
	for (size_t i = 1; i < *n; i++) {
		if (joins(&v[out], &v[i], d))
			v[out].ext[d] += v[i].ext[d];
		else
			v[++out] = v[i];
	}
	if (out + 1 == *n)
		return false;
	*n = out + 1;
	return true;
}

void ptc_boxes_join(struct ptc_box *v, size_t *n)
{
	bool again = *n > 1;

	while (again) {
		again = false;
		for (uint32_t d = v[0].ndim; d-- > 0 && *n > 1;)
			again |= join_along(v, n, d);
	}
	if (*n > 1) {
		uint32_t d = v[0].ndim - 1;

		qsort_r(v, *n, sizeof *v, along, &d);
	}
}

/* Cuts one row of b (idx fixes the dims before d) along d in steps. */
static int chop_row(const struct ptc_box *b, const int64_t *idx, uint32_t d, int64_t step, struct ptc_boxes *out)
{
	for (int64_t at = 0; at < b->ext[d]; at += step) {
		struct ptc_box part = *b;

		for (uint32_t i = 0; i < d; i++) {
			part.off[i] = b->off[i] + idx[i];
			part.ext[i] = 1;
		}
		part.off[d] = b->off[d] + at;
		part.ext[d] = PTC_MIN(step, b->ext[d] - at);
		if (ptc_boxes_push(out, &part))
			return PTC_ENOMEM;
	}
	return 0;
}

/* Next index in row-major order over ext[0..nd); returns the dim that advanced, or -1 at the end. */
static int advance(int64_t *idx, const int64_t *ext, uint32_t nd)
{
	for (int d = (int)nd - 1; d >= 0; d--) {
		if (++idx[d] < ext[d])
			return d;
		idx[d] = 0;
	}
	return -1;
}

int ptc_box_chop(const struct ptc_box *b_in, int64_t max_bytes, struct ptc_boxes *out)
{
	const struct ptc_box box = *b_in, *b = &box; /* b_in may point into out */
	int64_t idx[PTC_MAX_DIMS] = { 0 }, inner = 1;
	size_t mark = out->n;
	uint32_t d;

	if (max_bytes <= 0)
		return PTC_EINVAL;
	if (ptc_box_empty(b))
		return 0;
	if (b->ndim == 0 || ptc_box_volume(b) <= max_bytes)
		return ptc_boxes_push(out, b);
	for (d = b->ndim - 1; d > 0 && inner <= max_bytes / b->ext[d]; d--)
		inner *= b->ext[d];
	do {
		if (chop_row(b, idx, d, max_bytes / inner, out)) {
			out->n = mark;
			return PTC_ENOMEM;
		}
	} while (advance(idx, b->ext, d) >= 0);
	return 0;
}

int ptc_box_from_range(uint32_t ndim, const int64_t *shape, int64_t first, int64_t count, struct ptc_boxes *out)
{
	int64_t inner[PTC_MAX_DIMS], at = first, end = first + count, n = 1;
	struct ptc_box b;
	size_t mark = out->n;
	uint32_t d;

	for (d = ndim; d-- > 0;) {
		inner[d] = n;
		n *= shape[d];
	}
	while (at < end) {
		b = (struct ptc_box){ .ndim = ndim };
		/* the outermost dim whose rows start here and still fit */
		for (d = 0; d < ndim && (at % inner[d] || end - at < inner[d]); d++)
			;
		for (uint32_t i = 0; i < ndim; i++) {
			b.off[i] = at / inner[i] % shape[i];
			b.ext[i] = i < d ? 1 : shape[i];
		}
		if (d < ndim)
			b.ext[d] = PTC_MIN((end - at) / inner[d], shape[d] - b.off[d]);
		if (ptc_boxes_push(out, &b)) {
			out->n = mark;
			return PTC_ENOMEM;
		}
		at += ptc_box_volume(&b);
	}
	return 0;
}

/* Offset of the first byte of cut in a compact buffer holding b, and the stride of each dim. */
static int64_t locate(const struct ptc_box *b, const struct ptc_box *cut, int64_t *stride)
{
	int64_t off = 0, s = 1;

	for (uint32_t d = b->ndim; d-- > 0;) {
		stride[d] = s;
		off += (cut->off[d] - b->off[d]) * s;
		s *= b->ext[d];
	}
	return off;
}

void ptc_runs_init(struct ptc_runs *r, const struct ptc_box *a, const struct ptc_box *b, const struct ptc_box *cut)
{
	int64_t a_stride[PTC_MAX_DIMS], b_stride[PTC_MAX_DIMS];
	uint32_t d = cut->ndim;

	/* of the arrays only what nd counts is used: to clear them takes longer than all else for a small box */
	r->a_off = r->b_off = r->done = 0;
	r->nd = 0;
	r->run_bytes = r->count = !ptc_box_empty(cut);
	if (!r->count)
		return;
	ptc_require(a->ndim == d && b->ndim == d);
	ptc_assert(ptc_box_contains(a, cut) && ptc_box_contains(b, cut));
	r->a_off = locate(a, cut, a_stride);
	r->b_off = locate(b, cut, b_stride);
	while (d > 0) {
		d--;
		r->run_bytes *= cut->ext[d];
		if (cut->ext[d] != a->ext[d] || cut->ext[d] != b->ext[d])
			break;
	}
	for (uint32_t i = 0; i < d; i++) {
		if (cut->ext[i] == 1)
			continue;
		r->idx[r->nd] = 0;
		r->n[r->nd] = cut->ext[i];
		r->a_step[r->nd] = a_stride[i];
		r->b_step[r->nd] = b_stride[i];
		r->count *= cut->ext[i];
		r->nd++;
	}
}

/* Returns the dim that advanced, -1 after the last run. */
static int runs_step(struct ptc_runs *r)
{
	r->done++;
	for (int d = (int)r->nd - 1; d >= 0; d--) {
		r->a_off += r->a_step[d];
		r->b_off += r->b_step[d];
		if (++r->idx[d] < r->n[d])
			return d;
		r->a_off -= r->a_step[d] * r->n[d];
		r->b_off -= r->b_step[d] * r->n[d];
		r->idx[d] = 0;
	}
	return -1;
}

void ptc_runs_next(struct ptc_runs *r)
{
	runs_step(r);
}

void ptc_box_copy(void *dst, const struct ptc_box *dst_box, const void *src, const struct ptc_box *src_box,
		  const struct ptc_box *cut)
{
	struct ptc_runs r;
	char *to = dst;
	const char *from = src;

	for (ptc_runs_init(&r, dst_box, src_box, cut); r.done < r.count; runs_step(&r)) {
		switch (r.run_bytes) { /* short runs: let the compiler inline the copy */
		case 2:
			memcpy(to + r.a_off, from + r.b_off, 2);
			break;
		case 4:
			memcpy(to + r.a_off, from + r.b_off, 4);
			break;
		case 8:
			memcpy(to + r.a_off, from + r.b_off, 8);
			break;
		default:
			memcpy(to + r.a_off, from + r.b_off, (size_t)r.run_bytes);
		}
	}
}

/* Horner over the runs: the distance between consecutive run starts depends
 * only on the dim that advanced, so each power of x is computed once. */
uint64_t ptc_box_digest(const void *data, const struct ptc_box *box, uint32_t ndim, const int64_t *shape)
{
	struct ptc_box whole = ptc_box_whole(ndim, shape);
	uint64_t xpow[PTC_MAX_DIMS];
	bool known[PTC_MAX_DIMS] = { false };
	uint64_t sum = 0;
	const char *p = data;
	struct ptc_runs r;
	int64_t at;

	ptc_runs_init(&r, box, &whole, box);
	if (r.count == 0)
		return 0;
	for (;;) {
		int d;

		sum ^= ptc_digest_run(p + r.a_off, (size_t)r.run_bytes);
		at = r.b_off;
		d = runs_step(&r);
		if (d < 0)
			break;
		if (!known[d]) {
			xpow[d] = ptc_digest_xpow((uint64_t)(r.b_off - at));
			known[d] = true;
		}
		sum = ptc_digest_mul(sum, xpow[d]);
	}
	return ptc_digest_shift(sum, (uint64_t)(ptc_box_volume(&whole) - at - r.run_bytes));
}
