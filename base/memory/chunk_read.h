/* SPDX-License-Identifier: Apache-2.0 */
/* Reads bytes of chunks in a file that another process owns (daemon/store). The owner may give a chunk to somebody else
 * at any time, so every read is verified: block by block against checksums that the owner has named, and then by the
 * chunk's count of uses.
 *
 * Happy path: read, as often as wanted, then ask whether the chunks are unchanged. Only then are the bytes used.
 * Failure modes: a flipped bit, a count that has changed, a hole, a file that ends before: false; the bytes read since
 * the last true answer are then undefined. The file is read by pread and not mapped: through a mapping, each hole that
 * is read would take a page of memory, and the end of the file would kill this process.
 *
 * Ownership: the caller keeps the file open, and each chunk until ptc_chunk_unchanged. Threads: one uses a reader. */
#pragma once

#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_CHUNK_READER_KEPT  4  /* blocks of which parts are read, for the next part: rows of two shards take turns */
#define PTC_CHUNK_READER_NOTED 16 /* chunks whose counts are compared at the end; another one compares the oldest */

struct ptc_chunk_sums {
	uint64_t at; /* of the chunk's first byte in the file; blocks of PTC_BLOCK_BYTES follow */
	uint64_t use_at, use;
	uint64_t sums[(PTC_CHUNK_BYTES + PTC_BLOCK_BYTES - 1) / PTC_BLOCK_BYTES];
};
struct ptc_chunk_kept;
struct ptc_chunk_reader { /* begins as zeros, but for fd */
	int fd;
	/* Private. */
	const struct ptc_chunk_sums *noted[PTC_CHUNK_READER_NOTED];
	size_t nnoted, next_noted;
	struct ptc_chunk_kept *kept[PTC_CHUNK_READER_KEPT];
	size_t next_kept;
};
/* Reads len bytes at `at` of the file. They lie in the chunk. */
bool ptc_chunk_read(struct ptc_chunk_reader *r, const struct ptc_chunk_sums *c, uint64_t at, void *to, size_t len);
/* Whether all chunks that were read since the last call still have their counts. */
bool ptc_chunk_unchanged(struct ptc_chunk_reader *r);
void ptc_chunk_reader_done(struct ptc_chunk_reader *r); /* does not close fd */
