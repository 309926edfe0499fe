/* SPDX-License-Identifier: Apache-2.0 */
/* The boxes that a table has in one block of one of its chunks. The table's lists must not change meanwhile, so it is
 * sealed or locked.
 *
 * Failure modes: PTC_ENOMEM. */
#pragma once

#include "daemon/store/internal.h"

/* The stream position of a block. */
static inline uint64_t ptc_block_begin(size_t at, unsigned block)
{
	return (uint64_t)at * PTC_CHUNK_BYTES + (uint64_t)block * PTC_BLOCK_BYTES;
}

struct ptc_block_parts {
	struct ptc_store_box *boxes; /* live, and wholly in the block */
	size_t *pieces;              /* the table's piece of each box */
	size_t n;
};
int ptc_block_parts_of(const struct ptc_table *t, size_t at, unsigned block, struct ptc_block_parts *ret);
void ptc_block_parts_done(struct ptc_block_parts *p);
/* Finds the first piece with live bytes in the block. */
bool ptc_block_piece(const struct ptc_table *t, size_t at, unsigned block, size_t *ret_piece);
/* put has an entry for each byte of the block. *ret_missing becomes true if a live byte was not put. */
int ptc_block_misses(const struct ptc_table *t, size_t at, unsigned block, const uint8_t *put, bool *ret_missing);
