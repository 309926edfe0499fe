/* SPDX-License-Identifier: Apache-2.0 */
/* The list of backing files, and the threads that make them. A file is in the list from the moment it is wanted: it is
 * being made, then ready or refused. What is to be freed goes to the trash, which is emptied without locks: to free
 * gigabytes takes a while. */
#include "fusefs/backing/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define REFUSED_NS  (10 * INT64_C(1000000000))
#define PROBE_BYTES 4096

/* ---- the list ---- */

static struct fs_backing *find_locked(struct fs_backings *b, uint64_t id)
{
	struct fs_backing *f = b->files;

	while (f && f->id != id)
		f = f->next;
	return f;
}

enum fs_backing_is fs_backings_find(struct fs_backings *b, uint64_t id, struct fs_backing **ret)
{
	enum fs_backing_is is = FS_BACKING_NONE;
	struct fs_backing *f;

	pthread_mutex_lock(&b->lock);
	f = find_locked(b, id);
	if (!f && b->use == FS_USE_REFUSED)
		is = FS_BACKING_REFUSED;
	else if (f && f->making)
		is = FS_BACKING_MAKING;
	else if (f && !f->ready)
		is = f->refused_until_ns > ptc_sys_now_ns() ? FS_BACKING_REFUSED : FS_BACKING_NONE;
	else if (f)
		is = f->bad ? FS_BACKING_BAD : FS_BACKING_READY;
	if (is == FS_BACKING_READY && ret) {
		f->users++;
		f->used_ns = ptc_sys_now_ns();
		*ret = f;
	}
	pthread_mutex_unlock(&b->lock);
	return is;
}

int fs_backing_number(const struct fs_backing *f)
{
	return f->number;
}

void fs_backing_unref(struct fs_backings *b, struct fs_backing *f)
{
	if (!f)
		return;
	pthread_mutex_lock(&b->lock);
	f->users--;
	f->used_ns = ptc_sys_now_ns();
	fs_backing_free_if_gone_locked(b, f);
	pthread_mutex_unlock(&b->lock);
}

void fs_backings_drop(struct fs_backings *b,
		      bool (*gone)(void *arg, const char *uuid, uint64_t snapshot, uint64_t step), void *arg)
{
	pthread_mutex_lock(&b->lock);
	for (struct fs_backing *f = b->files, *next; f; f = next) {
		next = f->next;
		f->gone = f->gone || gone(arg, f->uuid, f->snapshot, f->step);
		fs_backing_free_if_gone_locked(b, f);
	}
	pthread_mutex_unlock(&b->lock);
}

void fs_backings_tend(struct fs_backings *b, uint64_t scrub)
{
	int64_t now = ptc_sys_now_ns();

	fs_backing_scrub(b, scrub);
	pthread_mutex_lock(&b->lock);
	for (struct fs_backing *f = b->files, *next; f; f = next) {
		next = f->next;
		if (!f->making && !f->ready && f->refused_until_ns <= now)
			fs_backing_to_trash_locked(b, f);
	}
	pthread_mutex_unlock(&b->lock);
	fs_backing_empty_trash(b);
}

/* ---- making one ---- */

static struct fs_backing *entry_new(const struct fs_backings *b, const struct fs_backing_of *of)
{
	struct fs_backing *f = ptc_calloc(1, sizeof *f);
	size_t n = of->sf->n;

	if (!f)
		return NULL;
	f->id = of->id;
	f->size = of->size;
	memcpy(f->uuid, of->state->uuid, sizeof(f->uuid));
	f->snapshot = of->state->snapshot;
	f->step = of->state->step;
	f->fd = -1;
	f->nitems = n;
	f->head_len = of->sf->head_len;
	f->ends = ptc_calloc(n, sizeof *f->ends);
	f->digests = ptc_calloc(n, sizeof *f->digests);
	f->making = ptc_calloc(1, sizeof *f->making);
	if (f->making)
		*f->making = (struct fs_making){
			.of = *of,
			.stopping = &b->stopping,
			.sums = ptc_calloc(n, sizeof *f->making->sums),
			.began_ns = ptc_sys_now_ns(),
			.err = PTC_ERROR_INIT,
		};
	if (!f->making || !f->making->sums || !f->ends || !f->digests) {
		fs_making_free(f->making);
		ptc_free(f->ends);
		ptc_free(f->digests);
		ptc_free(f);
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		f->ends[i] = of->start[i + 1];
		f->digests[i] = of->state->digests[of->sf->items[i]];
	}
	return f;
}

bool fs_backings_want(struct fs_backings *b, const struct fs_backing_of *of)
{
	struct fs_backing *fresh = of->sf->n ? entry_new(b, of) : NULL, *f, **at = &b->files;
	bool wanted = false;

	if (!fresh)
		return false;
	pthread_mutex_lock(&b->lock);
	f = find_locked(b, of->id);
	if (f && !f->making && !f->ready && f->refused_until_ns <= ptc_sys_now_ns()) {
		fs_backing_to_trash_locked(b, f);
		f = NULL;
	}
	wanted = !f && !atomic_load(&b->stopping) && b->use != FS_USE_REFUSED;
	if (wanted) {
		while (*at)
			at = &(*at)->next;
		*at = fresh;
		pthread_cond_broadcast(&b->work);
	} else {
		fresh->next = b->trash;
		b->trash = fresh;
	}
	pthread_mutex_unlock(&b->lock);
	return wanted;
}

static void log_end(struct fs_backings *b, const struct fs_backing *f, const struct fs_making *m)
{
	if (!m->rc) {
		ptc_debug("fuse",
			  "job %s, snapshot %" PRIu64 ": a backing file of %" PRIu64 " bytes was made in %" PRId64
			  " ms",
			  m->of.state->job, m->of.state->snapshot, f->size, (ptc_sys_now_ns() - m->began_ns) / 1000000);
		return;
	}
	if (m->rc == PTC_ECANCELED || !strcmp(b->said, m->err.text))
		return;
	ptc_warn("fuse", "job %s, snapshot %" PRIu64 ": no backing file, so reads cost more: %s", m->of.state->job,
		 m->of.state->snapshot, m->err.text);
	memcpy(b->said, m->err.text, sizeof(b->said));
}

/* All segments are there, or it failed: it becomes ready or refused. Lock held; it is given up meanwhile. */
static void end_locked(struct fs_backings *b, struct fs_backing *f)
{
	struct fs_making *m = f->making;
	struct ptc_error err = PTC_ERROR_INIT;
	int rc;

	m->phase = FS_MAKING_ENDS;
	pthread_mutex_unlock(&b->lock);
	rc = fs_backing_fill_end(&b->opts.source, m, &err);
	if (!m->rc && rc) {
		m->rc = rc;
		m->err = err;
	}
	if (!m->rc)
		m->rc = fs_backing_verify(m, &m->err);
	if (!m->rc)
		m->rc = fs_backing_seal(b->dir_fd, &f->fd, &m->err);
	if (!m->rc) {
		int number = b->opts.attach(b->opts.arg, f->fd);

		f->number = PTC_MAX(number, 0);
		if (number <= 0)
			m->rc = ptc_error_errno(&m->err, -number, "the kernel does not take a backing file");
	}
	if (m->rc) { /* its memory is free before anybody looks for room, also if ptcd still has the file */
		(void)!ftruncate(f->fd, 0);
		ptc_close(&f->fd);
	}
	pthread_mutex_lock(&b->lock);
	log_end(b, f, m);
	f->ready = !m->rc;
	f->used_ns = ptc_sys_now_ns();
	f->refused_until_ns = f->used_ns + REFUSED_NS;
	f->making = NULL;
	fs_backing_free_if_gone_locked(b, f);
	pthread_mutex_unlock(&b->lock);
	b->opts.done(b->opts.arg, m->of.id, m->of.keep);
	fs_making_free(m);
	pthread_mutex_lock(&b->lock);
}

static int begin(struct fs_backings *b, struct fs_backing *f, struct ptc_error *err)
{
	int rc = fs_backing_room(b, f, err);

	pthread_mutex_lock(&b->lock);
	b->checking = false;
	pthread_cond_broadcast(&b->work);
	pthread_mutex_unlock(&b->lock);
	if (!rc)
		rc = fs_backing_create(b->dir_fd, b->opts.dir != NULL, f->size, &f->fd, err);
	if (!rc && !b->opts.dir) /* a disk could make the source wait */
		fs_backing_fill_begin(&b->opts.source, f->making, f->fd);
	return rc ? rc : fs_backing_head(f->making, f->fd, err);
}

/* Something of the file that a thread can do now: its beginning, a segment, or its end after a failure. */
static bool can_do_locked(const struct fs_backings *b, const struct fs_making *m, uint64_t size)
{
	if (!m || b->use == FS_USE_UNKNOWN)
		return false;
	if (m->phase == FS_MAKING_NEW)
		return !b->checking;
	return m->phase == FS_MAKING_COPIES && (m->rc ? !m->running : m->next_at < size);
}

static void do_locked(struct fs_backings *b, struct fs_backing *f)
{
	struct fs_making *m = f->making;
	struct ptc_error err = PTC_ERROR_INIT;
	bool first = m->phase == FS_MAKING_NEW;
	uint64_t at = m->next_at, to = PTC_MIN(at + FS_BACKING_SEGMENT, f->size);
	int rc;

	if (m->rc) {
		end_locked(b, f);
		return;
	}
	m->running++;
	if (first) {
		m->phase = FS_MAKING_BEGINS;
		b->checking = true;
	} else {
		m->next_at = to;
	}
	pthread_mutex_unlock(&b->lock);
	rc = first ? begin(b, f, &err) : fs_backing_segment(&b->opts.source, m, f->fd, at, to, &err);
	pthread_mutex_lock(&b->lock);
	m->running--;
	if (rc && !m->rc) {
		m->rc = rc;
		m->err = err;
	}
	if (first) {
		m->phase = FS_MAKING_COPIES;
		pthread_cond_broadcast(&b->work);
	}
	if (!m->running && (m->rc || m->next_at >= f->size))
		end_locked(b, f);
}

static void *make_main(void *arg)
{
	struct fs_backings *b = arg;

	pthread_mutex_lock(&b->lock);
	while (!atomic_load(&b->stopping)) {
		struct fs_backing *f = b->files;

		while (f && !can_do_locked(b, f->making, f->size))
			f = f->next;
		if (f)
			do_locked(b, f);
		else
			pthread_cond_wait(&b->work, &b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

/* ---- life ---- */

static int probe(const struct fs_backings *b, struct ptc_error *err)
{
	int fd = -1, number, rc = fs_backing_create(b->dir_fd, b->opts.dir != NULL, PROBE_BYTES, &fd, err);

	if (!rc)
		rc = fs_backing_seal(b->dir_fd, &fd, err);
	if (!rc) {
		number = b->opts.attach(b->opts.arg, fd);
		if (number > 0)
			b->opts.detach(b->opts.arg, number);
		else
			rc = ptc_error_errno(err, -number, "the kernel does not take a file of %s",
					     b->opts.dir ? b->opts.dir : "memory");
	}
	ptc_close(&fd);
	return rc;
}

/* Files that are listed already, and wait, end as canceled if the kernel refuses: the reason is in the log. */
void fs_backings_begin(struct fs_backings *b)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = probe(b, &err);

	if (rc)
		ptc_warn("fuse", "no backing files, so reads cost more: %s", err.text);
	pthread_mutex_lock(&b->lock);
	b->use = rc ? FS_USE_REFUSED : FS_USE_FINE;
	for (struct fs_backing *f = b->files; rc && f; f = f->next) {
		f->making->rc = PTC_ECANCELED;
		f->making->phase = FS_MAKING_COPIES;
	}
	pthread_cond_broadcast(&b->work);
	pthread_mutex_unlock(&b->lock);
}

int fs_backings_new(const struct fs_backings_opts *opts, struct fs_backings **ret, struct ptc_error *err)
{
	size_t n = PTC_MIN((size_t)FS_BACKING_THREADS, PTC_MAX((size_t)2, (size_t)ptc_thread_processors()));
	struct fs_backings *b = ptc_calloc(1, sizeof *b);
	int rc = 0;

	if (!b)
		return ptc_nomem(err);
	b->opts = *opts;
	b->dir_fd = opts->dir ? open(opts->dir, O_PATH | O_DIRECTORY | O_CLOEXEC) : fs_backing_tmpfs();
	pthread_mutex_init(&b->lock, NULL);
	ptc_cond_init(&b->work);
	ptc_cond_init(&b->rest);
	if (opts->dir && b->dir_fd < 0)
		rc = ptc_error_errno(err, errno, "%s", opts->dir);
	while (!rc && b->nthreads < n) {
		rc = ptc_thread_start(&b->threads[b->nthreads], "ptc-fuse-back", make_main, b, err);
		b->nthreads += !rc;
	}
	if (!rc) {
		rc = ptc_thread_start(&b->threads[b->nthreads], "ptc-fuse-room", fs_backing_room_main, b, err);
		b->nthreads += !rc;
	}
	if (rc) {
		fs_backings_free(b);
		return rc;
	}
	*ret = b;
	return 0;
}

static struct fs_backing *made_locked(struct fs_backings *b)
{
	struct fs_backing *f = b->files;

	while (f && !f->making)
		f = f->next;
	return f;
}

void fs_backings_stop(struct fs_backings *b)
{
	struct fs_backing *f;

	pthread_mutex_lock(&b->lock);
	atomic_store(&b->stopping, true);
	pthread_cond_broadcast(&b->work);
	pthread_cond_broadcast(&b->rest);
	pthread_mutex_unlock(&b->lock);
	while (b->nthreads)
		pthread_join(b->threads[--b->nthreads], NULL);
	pthread_mutex_lock(&b->lock);
	while ((f = made_locked(b))) {
		f->making->rc = PTC_ECANCELED;
		end_locked(b, f);
	}
	pthread_mutex_unlock(&b->lock);
}

struct fs_backings *fs_backings_free(struct fs_backings *b)
{
	if (!b)
		return NULL;
	fs_backings_stop(b);
	while (b->files) {
		ptc_require(!b->files->users);
		fs_backing_to_trash_locked(b, b->files);
	}
	fs_backing_empty_trash(b);
	ptc_close(&b->dir_fd);
	pthread_cond_destroy(&b->work);
	pthread_cond_destroy(&b->rest);
	pthread_mutex_destroy(&b->lock);
	ptc_free(b);
	return NULL;
}
