/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory/chunk_read.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

struct ptc_chunk_kept {
	uint64_t at;
	uint8_t data[PTC_BLOCK_BYTES];
};

static bool read_all(int fd, void *buf, size_t len, uint64_t at)
{
	uint8_t *to = buf;

	while (len) {
		ssize_t n = pread(fd, to, len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		to += n;
		at += (uint64_t)n;
		len -= (size_t)n;
	}
	return true;
}

/* After the bytes were copied: the count is in memory before any byte that follows it, and read after them. */
static bool is_unchanged(int fd, const struct ptc_chunk_sums *c)
{
	uint64_t use;

	atomic_thread_fence(memory_order_seq_cst);
	return read_all(fd, &use, sizeof(use), c->use_at) && use == c->use;
}

static bool check_later(struct ptc_chunk_reader *r, const struct ptc_chunk_sums *c)
{
	bool fine = true;

	for (size_t i = 0; i < r->nnoted; i++)
		if (r->noted[i] == c)
			return true;
	if (r->nnoted == PTC_CHUNK_READER_NOTED)
		fine = is_unchanged(r->fd, r->noted[r->next_noted]);
	else
		r->nnoted++;
	r->noted[r->next_noted++] = c;
	r->next_noted %= PTC_CHUNK_READER_NOTED;
	return fine;
}

/* A block of the chunk, whole, into len bytes of memory. */
static bool read_block(const struct ptc_chunk_reader *r, const struct ptc_chunk_sums *c, uint64_t at, uint8_t *to,
		       size_t len)
{
	return read_all(r->fd, to, len, at) && ptc_checksum(to, len) == c->sums[(at - c->at) / PTC_BLOCK_BYTES];
}

static const uint8_t *keep_block(struct ptc_chunk_reader *r, const struct ptc_chunk_sums *c, uint64_t at, size_t len)
{
	struct ptc_chunk_kept **k = &r->kept[r->next_kept];

	for (size_t i = 0; i < PTC_CHUNK_READER_KEPT; i++)
		if (r->kept[i] && r->kept[i]->at == at)
			return r->kept[i]->data;
	*k = *k ? *k : ptc_malloc(sizeof **k);
	if (!*k)
		return NULL;
	(*k)->at = UINT64_MAX;
	if (!read_block(r, c, at, (*k)->data, len))
		return NULL;
	(*k)->at = at;
	r->next_kept = (r->next_kept + 1) % PTC_CHUNK_READER_KEPT;
	return (*k)->data;
}

/* Blocks that are wanted whole go straight to their place. */
bool ptc_chunk_read(struct ptc_chunk_reader *r, const struct ptc_chunk_sums *c, uint64_t at, void *dst, size_t len)
{
	uint8_t *to = dst;

	while (len) {
		uint64_t off = (at - c->at) / PTC_BLOCK_BYTES * PTC_BLOCK_BYTES, begin = c->at + off;
		size_t block = (size_t)PTC_MIN((uint64_t)PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - off);
		size_t n = (size_t)PTC_MIN((uint64_t)len, begin + block - at);
		const uint8_t *from = n < block ? keep_block(r, c, begin, block) : NULL;

		if (n < block && !from)
			return false;
		if (from)
			memcpy(to, from + (at - begin), n);
		else if (!read_block(r, c, begin, to, block))
			return false;
		to += n;
		at += n;
		len -= n;
	}
	return check_later(r, c);
}

bool ptc_chunk_unchanged(struct ptc_chunk_reader *r)
{
	bool fine = true;

	for (size_t i = 0; fine && i < r->nnoted; i++)
		fine = is_unchanged(r->fd, r->noted[i]);
	r->nnoted = r->next_noted = 0;
	return fine;
}

void ptc_chunk_reader_done(struct ptc_chunk_reader *r)
{
	for (size_t i = 0; i < PTC_CHUNK_READER_KEPT; i++)
		ptc_free(r->kept[i]);
	*r = (struct ptc_chunk_reader){ .fd = r->fd };
}
