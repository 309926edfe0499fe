// SPDX-License-Identifier: Apache-2.0
/* Reading what somebody else has. Happy path: the bytes are copied out, and then the counts of those chunks they lie in are as they
 * were when we were told. Failure modes: a count has changed, a hole, a file that ends before: false, and the caller asks anew. It is
 * pread, not a mapping: a mapping would take a page of memory for every hole it is read through, and kill us where there is none. */
#include "fusefs/lent.h"

#include "base/alloc.h"
#include "base/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECKED 16 /* chunks whose counts are compared at the end; a span of another one compares the oldest first */

/* Files in use: so that each is open once, and closed when nobody reads it any more. */
static struct {
	pthread_mutex_t lock;
	struct ptc_fs_lent *list; /* newest first */
} lents = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct ptc_fs_lent *ptc_fs_lent_get(const char *uuid)
{
	struct ptc_fs_lent *f;

	pthread_mutex_lock(&lents.lock);
	for (f = lents.list; f && strcmp(f->uuid, uuid) != 0; f = f->next)
		;
	if (f)
		f->refs++;
	pthread_mutex_unlock(&lents.lock);
	return f;
}

struct ptc_fs_lent *ptc_fs_lent_new(const char *uuid, int fd, uint64_t dev, uint64_t ino)
{
	struct ptc_fs_lent *f = ptc_calloc(1, sizeof(*f));

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

void ptc_fs_lent_unref(struct ptc_fs_lent *f)
{
	struct ptc_fs_lent **at = &lents.list;
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

struct ptc_fs_spans *ptc_fs_spans_new(struct ptc_fs_lent *file, struct ptc_fs_span *v, size_t n)
{
	struct ptc_fs_spans *s = ptc_calloc(1, sizeof(*s));
	uint64_t *ends = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof(*ends)), end = 0;

	if (!s || !ends) {
		ptc_free(s);
		ptc_free(ends);
		ptc_free(v);
		ptc_fs_lent_unref(file);
		return NULL;
	}
	for (size_t i = 0; i < n; i++)
		ends[i] = end += v[i].bytes;
	*s = (struct ptc_fs_spans){ .refs = 1, .file = file, .n = n, .bytes = end, .ends = ends, .v = v };
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
	ptc_fs_lent_unref(s->file);
	ptc_free(s->ends);
	ptc_free(s->v);
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

struct checks {
	const struct ptc_fs_span *v[CHECKED];
	size_t n, next;
};

/* After the bytes were copied: the count is in memory before any byte that follows it, and read after them. */
static bool unchanged(int fd, const struct ptc_fs_span *s)
{
	uint64_t use;

	atomic_thread_fence(memory_order_seq_cst);
	return read_all(fd, &use, sizeof(use), s->use_at) && use == s->use;
}

static bool check_later(struct checks *c, int fd, const struct ptc_fs_span *s)
{
	bool fine = true;

	for (size_t i = 0; i < c->n; i++)
		if (c->v[i]->use_at == s->use_at && c->v[i]->use == s->use)
			return true;
	if (c->n == CHECKED)
		fine = unchanged(fd, c->v[c->next]);
	else
		c->n++;
	c->v[c->next++] = s;
	c->next %= CHECKED;
	return fine;
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

bool ptc_fs_spans_read(const struct ptc_fs_spans *s, uint64_t off, void *buf, size_t len)
{
	struct checks c = { .n = 0 };
	int fd = s->file ? s->file->fd : -1;
	uint8_t *to = buf;

	if (len > s->bytes || off > s->bytes - len)
		return false;
	for (size_t i = span_at(s, off); len; i++) {
		const struct ptc_fs_span *v = &s->v[i];
		uint64_t skip = off - (s->ends[i] - v->bytes);
		size_t n = (size_t)PTC_MIN((uint64_t)len, v->bytes - skip);

		if (!read_all(fd, to, n, v->at + skip) || !check_later(&c, fd, v))
			return false;
		to += n;
		off += n;
		len -= n;
	}
	for (size_t i = 0; i < c.n; i++)
		if (!unchanged(fd, c.v[i]))
			return false;
	return true;
}
