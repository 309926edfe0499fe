/* SPDX-License-Identifier: Apache-2.0 */
/* Reading chunk files that the daemon owns: which files are open, and reads over many spans. base/memory/chunk_read.h
 * verifies the bytes. If that fails, the caller asks again and, if that fails too, reads through the daemon, which says
 * what is wrong. */
#include "fusefs/source/chunk_file.h"

#include "base/alloc.h"
#include "base/check.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
				      struct ptc_chunk_sums *chunks, size_t nchunks)
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

static bool read_spans(struct ptc_chunk_reader *r, const struct ptc_fs_spans *s, uint64_t off, uint8_t *to, size_t len)
{
	for (size_t i = span_at(s, off); len; i++) {
		const struct ptc_fs_span *v = &s->v[i];
		const struct ptc_chunk_sums *c = &s->chunks[v->chunk];
		uint64_t skip = off - (s->ends[i] - v->bytes);
		size_t n = (size_t)PTC_MIN((uint64_t)len, v->bytes - skip);

		if (!ptc_chunk_read(r, c, v->at + skip, to, n))
			return false;
		to += n;
		off += n;
		len -= n;
	}
	return ptc_chunk_unchanged(r);
}

bool ptc_fs_spans_read(const struct ptc_fs_spans *s, uint64_t off, void *buf, size_t len)
{
	struct ptc_chunk_reader r = { .fd = s->file ? s->file->fd : -1 };
	bool fine = len <= s->bytes && off <= s->bytes - len && read_spans(&r, s, off, buf, len);

	ptc_chunk_reader_done(&r);
	return fine;
}
