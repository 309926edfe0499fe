/* SPDX-License-Identifier: Apache-2.0 */
/* Reading chunk files that the daemon owns. Happy path: whole blocks are copied out and match the checksums that the
 * daemon named. Their bytes go to the caller. Then the chunks' counts of uses still have the values that the daemon
 * named. Failure modes: a flipped bit, a count that has changed, a hole, a file that ends before: false. The caller
 * then asks again and, if that fails too, reads through the daemon, which says what is wrong. The file is read by
 * pread, not mapped: through a mapping, each hole that is read would take a page of memory, and the end of the file
 * would kill us. */
#include "fusefs/source/chunk_file.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/limits.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KEPT    4  /* blocks of which parts are read, for the next part: rows of two shards take turns */
#define CHECKED 16 /* chunks whose counts are compared at the end; a span of another one compares the oldest first */

/* Files in use: so that each is open once, and closed when nobody reads it any more. */
static struct {
	pthread_mutex_t lock;
	struct ptc_fs_chunk_file *list; /* newest first */
} lents = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct ptc_fs_chunk_file *ptc_fs_chunk_file_get(const char *uuid)
{
	struct ptc_fs_chunk_file *f;

	pthread_mutex_lock(&lents.lock);
	for (f = lents.list; f && strcmp(f->uuid, uuid) != 0; f = f->next)
		;
	if (f)
		f->refs++;
	pthread_mutex_unlock(&lents.lock);
	return f;
}

struct ptc_fs_chunk_file *ptc_fs_chunk_file_new(const char *uuid, int fd, uint64_t dev, uint64_t ino)
{
	struct ptc_fs_chunk_file *f = ptc_calloc(1, sizeof *f);

	if (!f) {
		close(fd);
		return NULL;
	}
	f->refs = 1;
	snprintf(f->uuid, sizeof(f->uuid), "%s", uuid);
	f->fd = fd;
	f->dev = dev;
	f->ino = ino;
	pthread_mutex_lock(&lents.lock);
	f->next = lents.list;
	lents.list = f;
	pthread_mutex_unlock(&lents.lock);
	return f;
}

void ptc_fs_chunk_file_unref(struct ptc_fs_chunk_file *f)
{
	struct ptc_fs_chunk_file **at = &lents.list;
	bool last;

	if (!f)
		return;
	pthread_mutex_lock(&lents.lock);
	last = --f->refs == 0;
	if (last) {
		while (*at != f)
			at = &(*at)->next;
		*at = f->next;
	}
	pthread_mutex_unlock(&lents.lock);
	if (!last)
		return;
	close(f->fd);
	ptc_free(f);
}

struct ptc_fs_spans *ptc_fs_spans_new(struct ptc_fs_chunk_file *file, struct ptc_fs_span *v, size_t n,
				      struct ptc_fs_chunk *chunks, size_t nchunks)
{
	struct ptc_fs_spans *s = ptc_calloc(1, sizeof *s);
	uint64_t *ends = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof *ends), end = 0;

	if (!s || !ends) {
		ptc_free(s);
		ptc_free(ends);
		ptc_free(v);
		ptc_free(chunks);
		ptc_fs_chunk_file_unref(file);
		return NULL;
	}
	for (size_t i = 0; i < n; i++)
		ends[i] = end += v[i].bytes;
	*s = (struct ptc_fs_spans){ .refs = 1,
				    .file = file,
				    .n = n,
				    .bytes = end,
				    .ends = ends,
				    .v = v,
				    .nchunks = nchunks,
				    .chunks = chunks };
	return s;
}

void ptc_fs_spans_ref(struct ptc_fs_spans *s)
{
	pthread_mutex_lock(&lents.lock);
	s->refs++;
	pthread_mutex_unlock(&lents.lock);
}

void ptc_fs_spans_unref(struct ptc_fs_spans *s)
{
	bool last;

	if (!s)
		return;
	pthread_mutex_lock(&lents.lock);
	last = --s->refs == 0;
	pthread_mutex_unlock(&lents.lock);
	if (!last)
		return;
	ptc_fs_chunk_file_unref(s->file);
	ptc_free(s->ends);
	ptc_free(s->v);
	ptc_free(s->chunks);
	ptc_free(s);
}

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

/* One call's reading. */
struct reading {
	int fd;
	const struct ptc_fs_chunk *checked[CHECKED];
	size_t nchecked, next_checked;
	struct kept {
		uint64_t at;
		uint8_t data[PTC_BLOCK_BYTES];
	} * kept[KEPT];
	size_t next_kept;
};

/* After the bytes were copied: the count is in memory before any byte that follows it, and read after them. */
static bool unchanged(int fd, const struct ptc_fs_chunk *c)
{
	uint64_t use;

	atomic_thread_fence(memory_order_seq_cst);
	return read_all(fd, &use, sizeof(use), c->use_at) && use == c->use;
}

static bool check_later(struct reading *r, const struct ptc_fs_chunk *c)
{
	bool fine = true;

	for (size_t i = 0; i < r->nchecked; i++)
		if (r->checked[i] == c)
			return true;
	if (r->nchecked == CHECKED)
		fine = unchanged(r->fd, r->checked[r->next_checked]);
	else
		r->nchecked++;
	r->checked[r->next_checked++] = c;
	r->next_checked %= CHECKED;
	return fine;
}

/* A block of the chunk, whole, into len bytes of memory. */
static bool read_block(const struct reading *r, const struct ptc_fs_chunk *c, uint64_t at, uint8_t *to, size_t len)
{
	return read_all(r->fd, to, len, at) && ptc_checksum(to, len) == c->sums[(at - c->at) / PTC_BLOCK_BYTES];
}

static const uint8_t *keep_block(struct reading *r, const struct ptc_fs_chunk *c, uint64_t at, size_t len)
{
	struct kept **k = &r->kept[r->next_kept];

	for (size_t i = 0; i < KEPT; i++)
		if (r->kept[i] && r->kept[i]->at == at)
			return r->kept[i]->data;
	*k = *k ? *k : ptc_malloc(sizeof **k);
	if (!*k)
		return NULL;
	(*k)->at = UINT64_MAX;
	if (!read_block(r, c, at, (*k)->data, len))
		return NULL;
	(*k)->at = at;
	r->next_kept = (r->next_kept + 1) % KEPT;
	return (*k)->data;
}

/* Bytes of one chunk, at `at` of the file: blocks that are wanted whole go straight to their place. */
static bool read_span(struct reading *r, const struct ptc_fs_chunk *c, uint64_t at, uint8_t *to, size_t len)
{
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
	return true;
}

static size_t span_at(const struct ptc_fs_spans *s, uint64_t off)
{
	size_t lo = 0, hi = s->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (s->ends[mid] <= off)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool read_spans(struct reading *r, const struct ptc_fs_spans *s, uint64_t off, uint8_t *to, size_t len)
{
	for (size_t i = span_at(s, off); len; i++) {
		const struct ptc_fs_span *v = &s->v[i];
		const struct ptc_fs_chunk *c = &s->chunks[v->chunk];
		uint64_t skip = off - (s->ends[i] - v->bytes);
		size_t n = (size_t)PTC_MIN((uint64_t)len, v->bytes - skip);

		if (!read_span(r, c, v->at + skip, to, n) || !check_later(r, c))
			return false;
		to += n;
		off += n;
		len -= n;
	}
	for (size_t i = 0; i < r->nchecked; i++)
		if (!unchanged(r->fd, r->checked[i]))
			return false;
	return true;
}

bool ptc_fs_spans_read(const struct ptc_fs_spans *s, uint64_t off, void *buf, size_t len)
{
	struct reading r = { .fd = s->file ? s->file->fd : -1 };
	bool fine = len <= s->bytes && off <= s->bytes - len && read_spans(&r, s, off, buf, len);

	for (size_t i = 0; i < KEPT; i++)
		ptc_free(r.kept[i]);
	return fine;
}
