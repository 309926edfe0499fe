/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes: offsets and extents in an index space, and strided copies between buffers that hold boxes. The store and
 * transfers use byte boxes only, whose last dimension counts bytes (see ptc_item_byte_box in reshard/spec/spec.h). So
 * no code below reshard/layout/layout.h knows a dtype.
 *
 * Pure; thread-safe. Failure mode: functions that append return PTC_ENOMEM. */
#pragma once

#include "base/limits.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_box {
	uint32_t ndim; /* 1..PTC_MAX_DIMS for byte boxes; 0 is a scalar in element space */
	int64_t off[PTC_MAX_DIMS];
	int64_t ext[PTC_MAX_DIMS]; /* if any is 0, the box is empty */
};

struct ptc_boxes {
	struct ptc_box *v;
	size_t n, cap;
};
void ptc_boxes_done(struct ptc_boxes *b);
int ptc_boxes_push(struct ptc_boxes *b, const struct ptc_box *box); /* returns 0 or PTC_ENOMEM */

/* The box that covers a whole shape. */
struct ptc_box ptc_box_whole(uint32_t ndim, const int64_t *shape);
/* Elements; bytes for byte boxes. */
static inline int64_t ptc_box_volume(const struct ptc_box *b)
{
	int64_t v = 1;

	for (uint32_t d = 0; d < b->ndim; d++)
		v *= b->ext[d];
	return v;
}
static inline bool ptc_box_empty(const struct ptc_box *b)
{
	for (uint32_t d = 0; d < b->ndim; d++)
		if (b->ext[d] <= 0)
			return true;
	return false;
}
static inline bool ptc_box_equal(const struct ptc_box *a, const struct ptc_box *b)
{
	if (a->ndim != b->ndim)
		return false;
	for (uint32_t d = 0; d < a->ndim; d++)
		if (a->off[d] != b->off[d] || a->ext[d] != b->ext[d])
			return false;
	return true;
}
/* Comparisons of boxes of one shape. The first compares where boxes begin, dim 0 first. The second then compares the
 * extents of boxes that begin at the same place. */
static inline int ptc_box_order_off(const struct ptc_box *a, const struct ptc_box *b)
{
	for (uint32_t d = 0; d < a->ndim; d++)
		if (a->off[d] != b->off[d])
			return a->off[d] < b->off[d] ? -1 : 1;
	return 0;
}
static inline int ptc_box_order(const struct ptc_box *a, const struct ptc_box *b)
{
	int c = ptc_box_order_off(a, b);

	for (uint32_t d = 0; !c && d < a->ndim; d++)
		c = a->ext[d] < b->ext[d] ? -1 : a->ext[d] > b->ext[d];
	return c;
}
static inline bool ptc_box_contains(const struct ptc_box *outer, const struct ptc_box *inner)
{
	if (outer->ndim != inner->ndim)
		return false;
	if (ptc_box_empty(inner))
		return true;
	for (uint32_t d = 0; d < outer->ndim; d++)
		if (inner->off[d] < outer->off[d] || inner->off[d] + inner->ext[d] > outer->off[d] + outer->ext[d])
			return false;
	return true;
}
/* false if the boxes are disjoint or one is empty; *ret is then unchanged. */
bool ptc_box_intersect(const struct ptc_box *a, const struct ptc_box *b, struct ptc_box *ret);
/* Appends a minus b as disjoint boxes (at most 2 * ndim), in row-major order of their first elements. */
int ptc_box_subtract(const struct ptc_box *a, const struct ptc_box *b, struct ptc_boxes *out);
/* Appends `need` minus every box of `have`, as disjoint boxes. */
int ptc_boxes_missing(const struct ptc_box *need, const struct ptc_box *have, size_t nhave, struct ptc_boxes *out);
/* Joins disjoint boxes of one ndim into fewer boxes with the same union, sorted row-major. The input may have any
 * order. */
void ptc_boxes_join(struct ptc_box *v, size_t *n);
/* Cuts byte box b along its outermost dims into boxes of at most max_bytes. Each is a contiguous run of b's row-major
 * order, and they are appended in that order. */
int ptc_box_chop(const struct ptc_box *b, int64_t max_bytes, struct ptc_boxes *out);
/* Appends the row-major flat range [first, first + count) of a shape, in order, as at most 2 * ndim - 1 boxes. */
int ptc_box_from_range(uint32_t ndim, const int64_t *shape, int64_t first, int64_t count, struct ptc_boxes *out);

/* Iterates over the byte runs that are contiguous in two buffers at once. Both buffers are row-major and compact; one
 * holds box a, the other box b. `cut` is a box inside both. Each run is as long as possible: it lies at a_off in a's
 * buffer and at b_off in b's. */
struct ptc_runs {
	int64_t run_bytes, count; /* every run has run_bytes; there are `count` runs */
	int64_t a_off, b_off;     /* of the current run */
	/* private */
	uint32_t nd;
	int64_t idx[PTC_MAX_DIMS], n[PTC_MAX_DIMS], a_step[PTC_MAX_DIMS], b_step[PTC_MAX_DIMS];
	int64_t done;
};
/* cut must lie in both boxes. Then: for (init; r.done < r.count; next) use a_off, b_off, run_bytes. */
void ptc_runs_init(struct ptc_runs *r, const struct ptc_box *a, const struct ptc_box *b, const struct ptc_box *cut);
void ptc_runs_next(struct ptc_runs *r);
/* Copies `cut` from src, a compact buffer that holds src_box, to dst, a compact buffer that holds dst_box. */
void ptc_box_copy(void *dst, const struct ptc_box *dst_box, const void *src, const struct ptc_box *src_box,
		  const struct ptc_box *cut);

/* The share of a byte box in the digest of its tensor, which has the byte shape `shape`. The box's bytes lie compact at
 * `data`. */
uint64_t ptc_box_digest(const void *data, const struct ptc_box *box, uint32_t ndim, const int64_t *shape);
