/* SPDX-License-Identifier: Apache-2.0 */
/* See summed.h. A block that is wanted whole is copied piece by piece right after the piece was summed. Of another one
 * a part is copied after all of it was summed; so rows of one block that follow each other verify it once. */
#include "client/lib/copy/summed.h"

#include "base/number/checksum_avx2.h"
#include "client/lib/copy/past_caches.h"

#if defined(__x86_64__)
struct block {
	uint64_t begin, bytes, sum; /* of the file */
};

bool ptc_summed_able(void)
{
	return __builtin_cpu_supports("avx2");
}

/* The block that has the byte at `at`. */
static bool find_block(struct summed *s, uint64_t at, struct block *ret)
{
	for (size_t i = 0; i < s->nchunks; i++) {
		const size_t k = (s->last + i) % s->nchunks;
		const struct ptc_direct_read_chunk *c = &s->chunks[k];
		uint64_t off;

		if (at < c->at || at - c->at >= PTC_DIRECT_READ_CHUNK_BYTES)
			continue;
		s->last = k;
		off = (at - c->at) / PTC_DIRECT_READ_BLOCK_BYTES * PTC_DIRECT_READ_BLOCK_BYTES;
		*ret = (struct block){ c->at + off, PTC_DIRECT_READ_CHUNK_BYTES - off,
				       c->sums[off / PTC_DIRECT_READ_BLOCK_BYTES] };
		if (ret->bytes > PTC_DIRECT_READ_BLOCK_BYTES)
			ret->bytes = PTC_DIRECT_READ_BLOCK_BYTES;
		return ret->begin <= s->map_bytes && ret->bytes <= s->map_bytes - ret->begin;
	}
	return false;
}

struct whole {
	uint8_t *to;
	const uint8_t *from;
};

static void copy_piece(void *arg, size_t at, size_t n)
{
	const struct whole *w = arg;

	ptc_past_caches_copy(w->to + at, w->from + at, n);
}

static bool copy_whole(const struct summed *s, uint8_t *to, const struct block *b)
{
	struct whole w = { to, s->map + b->begin };

	return ptc_checksum_each_avx2(w.from, b->bytes, copy_piece, &w) == b->sum;
}

static bool copy_part(struct summed *s, uint8_t *to, uint64_t at, uint64_t bytes, const struct block *b)
{
	if (s->seen != b->begin + b->bytes && ptc_checksum_avx2(s->map + b->begin, b->bytes) != b->sum)
		return false;
	s->seen = b->begin + b->bytes;
	ptc_past_caches_copy(to, s->map + at, bytes);
	return true;
}

enum summed_result ptc_summed_copy(struct summed *s, void *to, uint64_t at, uint64_t bytes)
{
	uint8_t *next = to;

	while (bytes) {
		struct block b;
		uint64_t n;

		if (!find_block(s, at, &b))
			return SUMMED_ELSEWHERE;
		n = b.begin + b.bytes - at < bytes ? b.begin + b.bytes - at : bytes;
		if (n == b.bytes ? !copy_whole(s, next, &b) : !copy_part(s, next, at, n, &b))
			return SUMMED_DAMAGED;
		next += n;
		at += n;
		bytes -= n;
	}
	return SUMMED_COPIED;
}
#else
bool ptc_summed_able(void)
{
	return false;
}

enum summed_result ptc_summed_copy(struct summed *s, void *to, uint64_t at, uint64_t bytes)
{
	(void)s;
	(void)to;
	(void)at;
	(void)bytes;
	return SUMMED_ELSEWHERE;
}
#endif
