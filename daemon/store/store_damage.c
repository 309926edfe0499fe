/* SPDX-License-Identifier: Apache-2.0 */
/* Reports a block that does not match its checksum. Happy path: the error names the item, which of its rows the block
 * has, the block and the chunk; the owner of the store is told, once for each block as long as its chunk holds the same
 * bytes.
 *
 * Failure modes: none. The owner's function must not fail, and is called on any thread that reads. */
#include "daemon/store/internal.h"

#include "base/check.h"
#include "base/number/count.h"

#include <inttypes.h>
#include <stdio.h>

/* Which rows of the piece the block has bytes of; of one dimension, which bytes. */
static void rows_of(const struct ptc_table *t, size_t piece, size_t chunk, unsigned block, int64_t *ret_first,
		    int64_t *ret_last)
{
	const struct ptc_box *e = &t->pieces[piece].extent_box;
	int64_t bytes = ptc_box_volume(e), row = bytes / e->ext[0];
	int64_t begin = (int64_t)(chunk * PTC_CHUNK_BYTES + (size_t)block * PTC_BLOCK_BYTES);
	int64_t first = begin - (int64_t)t->locs[piece].pos;

	*ret_first = e->off[0] + PTC_MAX(first, (int64_t)0) / row;
	*ret_last = e->off[0] + (PTC_MIN(first + (int64_t)PTC_BLOCK_BYTES, bytes) - 1) / row;
}

void ptc_store_damage_describe(const struct ptc_table *t, size_t piece, size_t chunk, unsigned block,
			       struct ptc_store_damage *ret)
{
	struct ptc_store_damage d = {
		.key = t->key, .item = t->pieces[piece].item, .chunk = t->chunks[chunk]->id, .block = block
	};

	rows_of(t, piece, chunk, block, &d.first, &d.last);
	snprintf(d.text, sizeof d.text,
		 "%s %" PRId64 " to %" PRId64 ": block %u of chunk %u does not match its checksum",
		 t->pieces[piece].extent_box.ndim == 1 ? "bytes" : "rows", d.first, d.last, block, d.chunk);
	*ret = d;
}

int ptc_store_damage(const struct ptc_table *t, size_t piece, size_t chunk, unsigned block, struct ptc_error *err)
{
	struct chunk *c = t->chunks[chunk];
	struct ptc_store *s = t->job->s;
	struct ptc_store_damage d;
	uint16_t bit = (uint16_t)(1u << block);

	ptc_count_add(PTC_COUNT_CHECKSUM_ERRORS, 1);
	ptc_store_damage_describe(t, piece, chunk, block, &d);
	if (!(atomic_fetch_or(&c->damaged, bit) & bit) && s->damaged)
		s->damaged(s->damaged_arg, &d);
	return ptc_error_set(err, PTC_ECORRUPT, "item %u, %s", d.item, d.text);
}
