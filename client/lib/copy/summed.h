/* SPDX-License-Identifier: Apache-2.0 */
/* Copies out of a mapped chunk file whose blocks have checksums (proto/direct_read.h). Each block that a copy takes
 * bytes from is compared with its checksum, and is summed while it is copied, so the bytes come from memory once.
 *
 * One thread uses a struct; the caller keeps the mapping and the chunks. Failure modes: ptc_summed_copy. */
#pragma once

#include "proto/direct_read.h"

#include <stdbool.h>
#include <stddef.h>

struct summed { /* begins as zeros, but for the first four */
	const uint8_t *map;
	uint64_t map_bytes;
	const struct ptc_direct_read_chunk *chunks;
	size_t nchunks;
	/* Private. */
	size_t last;   /* the chunk that was used last */
	uint64_t seen; /* where in the file the block ends that matched last, and of which a part was copied; 0: none */
};
enum summed_result {
	SUMMED_COPIED,
	SUMMED_ELSEWHERE, /* bytes that are in none of the chunks, or not in the file; some may have been copied */
	SUMMED_DAMAGED,   /* a block does not match its checksum; some of its bytes may have been copied */
};
/* Whether this processor sums fast enough (AVX2); without, do not call ptc_summed_copy. */
bool ptc_summed_able(void);
/* Copies bytes from `at` of the file, past the caches: ptc_past_caches_end has to follow (past_caches.h). */
enum summed_result ptc_summed_copy(struct summed *s, void *to, uint64_t at, uint64_t bytes);
