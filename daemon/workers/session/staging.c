/* SPDX-License-Identifier: Apache-2.0 */
/* Gives a rank staging memory, to which it copies its state (copy: fast, and ranks that copy their device memory
 * themselves). Happy path: a rank that has declared gets shared memory, whose pages are all there already. When the
 * rank stops, it copies its state into this memory. Failure modes: there is no room, or the rank's memory is too
 * sparse: the rank gets no staging memory, and its copies are lean. */
#include "daemon/workers/session/internal.h"
#include "daemon/workers/session/session.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"

#include <fcntl.h>
#include <linux/mman.h> /* MADV_COLLAPSE, which glibc 2.36 lacks */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Sparse memory in staging would take more than it saves. */
#define STAGING_SLACK (64u << 20)

struct staging *ptc_staging_unref(struct staging *s)
{
	if (!s || --s->refs)
		return NULL;
	if (s->room != MAP_FAILED)
		munmap(s->room, s->room_bytes);
	ptc_close(&s->fd);
	if (s->w && s->w->env.staging_give)
		s->w->env.staging_give(s->w->env.arg, s->bytes);
	ptc_free(s);
	return NULL;
}

struct stage_task {
	char uuid[37];
	unsigned number;
	struct declared *declared;
};

/* One huge page where the kernel has it, else small ones: into those a rank copies more slowly. */
static int make_pages(int fd, uint8_t *map, uint64_t off, uint64_t bytes)
{
	/* The first page is reserved, for there must be one; the kernel adds the others. */
	if (bytes == PTC_HUGE_PAGE_BYTES && fallocate(fd, 0, (off_t)off, 1) == 0 &&
	    madvise(map + off, PTC_HUGE_PAGE_BYTES, MADV_COLLAPSE) == 0)
		return 0;
	return fallocate(fd, 0, (off_t)off, (off_t)bytes);
}

/* Pages are there before the rank stops: their first touch costs ten times the copy. */
static int fill_staging(struct staging *s)
{
	int rc = ftruncate(s->fd, (off_t)s->bytes);

	s->room_bytes = s->bytes + 2 * PTC_HUGE_PAGE_BYTES;
	s->room = mmap(NULL, s->room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (rc || s->room == MAP_FAILED)
		return -1;
	s->map = s->room + (PTC_HUGE_PAGE_BYTES - (uintptr_t)s->room % PTC_HUGE_PAGE_BYTES) % PTC_HUGE_PAGE_BYTES;
	if (mmap(s->map, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, s->fd, 0) == MAP_FAILED)
		return -1;
	for (uint64_t at = 0; !rc && at < s->bytes; at += PTC_HUGE_PAGE_BYTES)
		rc = make_pages(s->fd, s->map, at, PTC_MIN(s->bytes - at, PTC_HUGE_PAGE_BYTES));
	if (rc)
		return rc;
	(void)madvise(s->map, s->bytes, MADV_POPULATE_WRITE);
	return fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

static struct staging *make_staging(uint64_t bytes)
{
	struct staging *s = ptc_calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->refs = 1;
	s->bytes = bytes;
	s->room = MAP_FAILED;
	s->fd = memfd_create("ptc-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return s->fd >= 0 && fill_staging(s) == 0 ? s : ptc_staging_unref(s);
}

/* NULL: there is no room for it. */
static struct staging *take_staging(struct ptc_workers *w, const char *job, uint64_t bytes)
{
	struct staging *s;

	if (w->env.staging_take && !w->env.staging_take(w->env.arg, job, bytes))
		return NULL;
	s = make_staging(bytes);
	if (s)
		s->w = w;
	else if (w->env.staging_give)
		w->env.staging_give(w->env.arg, bytes);
	return s;
}

static void send_staging(struct worker *k)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	int fd = fcntl(k->staging->fd, F_DUPFD_CLOEXEC, 0);

	ptc_local_put_staging(&out, k->staging->bytes, k->declared->spans, (uint32_t)k->declared->nspans);
	if (fd >= 0)
		ptc_conn_send_locked(k->conn, PTC_LOCAL_STAGING, &out, fd);
	ptc_free(out.data);
}

static void stage_task(struct ptc_workers *w, void *arg)
{
	struct stage_task *t = arg;
	struct staging *s = take_staging(w, t->uuid, t->declared->span_bytes);
	struct worker *k;

	pthread_mutex_lock(&w->lock);
	k = ptc_worker_find_locked(w, t->uuid, t->number);
	if (s && k && k->declared == t->declared && k->conn && !k->staging) {
		k->staging = s;
		s = NULL;
		send_staging(k);
	}
	ptc_staging_unref(s);
	ptc_declared_unref(t->declared);
	pthread_mutex_unlock(&w->lock);
	ptc_free(t);
}

/* Where there is no thread for it copies are lean, and device memory is tried when it is first copied. */
static void run_task(struct ptc_workers *w, struct worker *k, void (*fn)(struct ptc_workers *w, void *arg))
{
	struct stage_task *t = ptc_calloc(1, sizeof *t);

	if (!t)
		return;
	memcpy(t->uuid, k->job->uuid, sizeof t->uuid);
	t->number = k->number;
	t->declared = k->declared;
	k->declared->refs++;
	if (!ptc_workers_task_locked(w, fn, t)) {
		ptc_declared_unref(t->declared);
		ptc_free(t);
	}
}

void ptc_worker_stage(struct ptc_workers *w, struct worker *k)
{
	const struct declared *d = k->declared;

	if (!d->span_bytes || d->nspans > PTC_LOCAL_SPANS_MAX || d->span_bytes > 2 * d->bytes + STAGING_SLACK) {
		ptc_debug("workers", "job %s: pid %d: no staging memory for %llu bytes in %zu spans", k->job->uuid,
			  (int)k->pid, (unsigned long long)d->span_bytes, d->nspans);
		return;
	}
	run_task(w, k, stage_task);
}

/* ---- device memory ---- */

enum device_path ptc_declared_try(struct ptc_workers *w, struct declared *d, pid_t pid)
{
	struct ptc_error err = PTC_ERROR_INIT;
	enum device_path path;
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	path = d->path;
	pthread_mutex_unlock(&w->lock);
	if (path != DEVICE_UNTRIED)
		return path;
	for (size_t i = 0; i < d->ndevices && !rc; i++)
		rc = ptc_device_try(w->gpu, &d->devices[i], pid, &err);
	pthread_mutex_lock(&w->lock);
	if (d->path == DEVICE_UNTRIED) {
		d->path = rc ? DEVICE_BY_RANK : DEVICE_MAPPED;
		snprintf(d->device_why, sizeof d->device_why, "%.255s", rc ? err.text : "");
		if (rc)
			ptc_warn("workers", "pid %d copies its device memory itself: %s", (int)pid, err.text);
	}
	path = d->path;
	pthread_mutex_unlock(&w->lock);
	return path;
}

static void try_task(struct ptc_workers *w, void *arg)
{
	struct stage_task *t = arg;
	enum device_path path;
	struct worker *k;
	pid_t pid;

	pthread_mutex_lock(&w->lock);
	k = ptc_worker_find_locked(w, t->uuid, t->number);
	pid = k ? k->pid : 0;
	pthread_mutex_unlock(&w->lock);
	path = pid ? ptc_declared_try(w, t->declared, pid) : DEVICE_NONE;
	pthread_mutex_lock(&w->lock);
	k = pid ? ptc_worker_find_locked(w, t->uuid, t->number) : NULL;
	if (k && k->declared == t->declared && k->conn && k->group &&
	    (path == DEVICE_BY_RANK || k->group->desc.fast_copy))
		ptc_worker_stage(w, k);
	ptc_declared_unref(t->declared);
	pthread_mutex_unlock(&w->lock);
	ptc_free(t);
}

void ptc_worker_try_device(struct ptc_workers *w, struct worker *k)
{
	run_task(w, k, try_task);
}
