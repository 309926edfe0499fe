/* SPDX-License-Identifier: Apache-2.0 */
/* Live boxes in a block. Happy path: the block's range of each extent becomes boxes, which are cut with the live boxes.
 *
 * Failure modes: block_parts.h. */
#include "daemon/store/scrub/block_parts.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

static uint64_t block_end(size_t at, unsigned block)
{
	return PTC_MIN(ptc_block_begin(at, block) + PTC_BLOCK_BYTES, ((uint64_t)at + 1) * PTC_CHUNK_BYTES);
}

static int parts_push(struct ptc_block_parts *p, uint32_t item, const struct ptc_box *box, size_t piece)
{
	struct ptc_store_box *boxes = ptc_reallocarray(p->boxes, p->n + 1, sizeof *boxes);
	size_t *pieces;

	if (!boxes)
		return PTC_ENOMEM;
	p->boxes = boxes;
	pieces = ptc_reallocarray(p->pieces, p->n + 1, sizeof *pieces);
	if (!pieces)
		return PTC_ENOMEM;
	p->pieces = pieces;
	boxes[p->n] = (struct ptc_store_box){ item, *box };
	pieces[p->n++] = piece;
	return 0;
}

/* What piece i has live in stream range [begin, end). */
static int piece_parts(const struct ptc_table *t, size_t i, uint64_t begin, uint64_t end, struct ptc_block_parts *p)
{
	const struct ptc_piece *piece = &t->pieces[i];
	const struct ptc_box *e = &piece->extent_box;
	uint64_t pos = t->locs[i].pos, stop = pos + (uint64_t)ptc_box_volume(e);
	uint64_t from = PTC_MAX(begin, pos), to = PTC_MIN(end, stop);
	struct ptc_boxes v = { 0 };
	int rc;

	if (from >= to)
		return 0;
	rc = ptc_box_from_range(e->ndim, e->ext, (int64_t)(from - pos), (int64_t)(to - from), &v);
	for (size_t k = 0; rc == 0 && k < v.n; k++) {
		struct ptc_box cut;

		for (uint32_t d = 0; d < e->ndim; d++)
			v.v[k].off[d] += e->off[d];
		if (ptc_box_intersect(&v.v[k], &piece->live, &cut))
			rc = parts_push(p, piece->item, &cut, i);
	}
	ptc_boxes_done(&v);
	return rc;
}

int ptc_block_parts_of(const struct ptc_table *t, size_t at, unsigned block, struct ptc_block_parts *ret)
{
	struct ptc_block_parts p = { 0 };
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < t->n; i++)
		rc = piece_parts(t, i, ptc_block_begin(at, block), block_end(at, block), &p);
	if (rc) {
		ptc_block_parts_done(&p);
		return rc;
	}
	*ret = p;
	return 0;
}

void ptc_block_parts_done(struct ptc_block_parts *p)
{
	ptc_free(p->boxes);
	ptc_free(p->pieces);
	*p = (struct ptc_block_parts){ 0 };
}

bool ptc_block_piece(const struct ptc_table *t, size_t at, unsigned block, size_t *ret_piece)
{
	bool found = false;

	for (size_t i = 0; !found && i < t->n; i++) {
		struct ptc_block_parts p = { 0 };

		/* where memory has run out, the block may well have live bytes */
		found = piece_parts(t, i, ptc_block_begin(at, block), block_end(at, block), &p) != 0 || p.n > 0;
		ptc_block_parts_done(&p);
		if (found)
			*ret_piece = i;
	}
	return found;
}

int ptc_block_misses(const struct ptc_table *t, size_t at, unsigned block, const uint8_t *put, bool *ret_missing)
{
	uint64_t begin = ptc_block_begin(at, block);
	struct ptc_block_parts p = { 0 };
	int rc = ptc_block_parts_of(t, at, block, &p);

	for (size_t k = 0; rc == 0 && k < p.n; k++) {
		const struct ptc_box *e = &t->pieces[p.pieces[k]].extent_box, *box = &p.boxes[k].box;
		struct ptc_runs r;

		for (ptc_runs_init(&r, e, box, box); r.done < r.count; ptc_runs_next(&r)) {
			uint64_t from = t->locs[p.pieces[k]].pos + (uint64_t)r.a_off - begin;

			if (memchr(put + from, 0, (size_t)r.run_bytes))
				*ret_missing = true;
		}
	}
	ptc_block_parts_done(&p);
	return rc;
}
