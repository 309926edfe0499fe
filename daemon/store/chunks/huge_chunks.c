/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks in huge pages. Bytes in small pages are looked up, mapped and copied 4 KiB at a time: a rank reads its state
 * out of them at half of memcpy's rate, and out of huge pages at the full rate. On tmpfs the kernel is asked to make
 * huge pages, 2 MiB of a file at a time, while nothing has changed in the store for a while. Addresses and bytes do not
 * change. This is done only if the store keeps free chunks (cushion_bytes); otherwise they would be given back before
 * it pays. The same thread makes free chunks ahead (spare_chunks.c), and does so first.
 *
 * Happy path: a thread goes through the files once after chunks have been made; each range that has all its blocks is
 * collapsed and mapped anew. Failure modes: none that anybody sees: a range that cannot move stays as it is; a kernel
 * that does not know the request (before 6.1) is not asked again. */
#include "daemon/store/chunks/chunk.h"

#include "base/limits.h"
#include "base/memory/huge_map.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define QUIET_NS       INT64_C(1000000000)
#define AHEAD_QUIET_NS INT64_C(3000000000) /* a busy machine takes a second between two steps of an import */
#define TICK_MS        200
#define LOOK_NS        INT64_C(1000000000)
#define REST           3 /* times as long as a step of spare_chunks.c, before the next: a quarter of a processor at most */
#define PAGE_MIN       4096

struct range {
	struct job *job; /* one reference is ours */
	uint64_t off;
	uint8_t *memory; /* ours of it */
	int fd;
};

/* What has holes would grow. */
static bool has_all_blocks(void *map)
{
	unsigned char present[PTC_HUGE_PAGE_BYTES / PAGE_MIN];
	size_t n = PTC_HUGE_PAGE_BYTES / (size_t)sysconf(_SC_PAGESIZE);

	if (mincore(map, PTC_HUGE_PAGE_BYTES, present) != 0)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!(present[i] & 1))
			return false;
	return true;
}

static int collapse(int fd, uint64_t off)
{
	void *map = ptc_huge_map(fd, off, PTC_HUGE_PAGE_BYTES, PROT_READ);
	int e;

	if (map == MAP_FAILED)
		return errno;
	e = has_all_blocks(map) ? ptc_store_huge_collapse(map, PTC_HUGE_PAGE_BYTES) : EAGAIN;
	munmap(map, PTC_HUGE_PAGE_BYTES);
	return e;
}

/* The next range of a job; wlock held. */
static bool range_take(struct ptc_store *s, struct range *r)
{
	struct job *j = s->jobs;
	uint64_t page;
	char path[64];

	while (j && (!j->huge_todo || j->bad || !j->env))
		j = j->next;
	if (!j)
		return false;
	*r = (struct range){ .job = j, .off = j->huge_at, .fd = -1 };
	j->huge_at += PTC_HUGE_PAGE_BYTES;
	snprintf(path, sizeof path, "/proc/self/fd/%d", j->fd); /* for reading only */
	if (j->huge_at <= j->alloc_end && j->nchunks && !ptc_store_chunk_page(j, j->chunks[0], &page, NULL))
		r->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (r->fd < 0) {
		j->huge_todo = false;
		return false;
	}
	r->memory = j->chunks[0]->ptr - CHUNK_PAD - PAGE_HEADER - page + r->off;
	pthread_mutex_lock(&s->lock);
	j->refs++;
	pthread_mutex_unlock(&s->lock);
	return true;
}

static void range_done(struct ptc_store *s, struct range *r)
{
	struct job *unused;

	close(r->fd);
	pthread_mutex_lock(&s->lock);
	unused = ptc_store_job_unref_locked(r->job);
	pthread_mutex_unlock(&s->lock);
	ptc_store_job_free(unused);
}

static bool unchanged(struct ptc_store *s, int64_t since_ns)
{
	return ptc_sys_now_ns() - atomic_load(&s->huge.busy_ns) >= since_ns;
}

/* Reads count here: what is made ahead is not worth that anybody waits. They do not for huge pages, which help readers;
 * some stores are read all the time. */
static bool idle(struct ptc_store *s, int64_t since_ns)
{
	return unchanged(s, since_ns) && ptc_sys_now_ns() - atomic_load(&s->huge.read_ns) >= since_ns;
}

/* For how many milliseconds to rest now; 0: there was nothing to do. The thread has the usual priority, as others wait
 * for its lock; so it rests. */
static int64_t spare(struct ptc_store *s)
{
	const int64_t began = ptc_sys_now_ns();
	enum spare allowed;

	if (began - s->huge.look_ns < LOOK_NS)
		return 0;
	allowed = ptc_store_spare_due(s) ? ptc_store_spare_look(s) : SPARE_SAME;
	if ((allowed == SPARE_LESS || idle(s, AHEAD_QUIET_NS)) && ptc_store_spare_step(s, allowed))
		return (ptc_sys_now_ns() - began) * REST / 1000000 + 1;
	s->huge.look_ns = began;
	return 0;
}

/* false: there is nothing to do, or somebody else has something to do. Nobody waits for it but who gives blocks back.
 */
static bool step(struct ptc_store *s)
{
	struct range r;
	bool found;
	int e;

	if (s->huge.never || !unchanged(s, QUIET_NS) || pthread_mutex_trylock(&s->wlock) != 0)
		return false;
	found = range_take(s, &r);
	pthread_mutex_unlock(&s->wlock);
	if (!found)
		return false;
	pthread_mutex_lock(&s->huge.blocks);
	e = collapse(r.fd, r.off);
	pthread_mutex_unlock(&s->huge.blocks);
	if (e == EINVAL || e == ENOSYS)
		s->huge.never = true;
	/* Small pages have gone from our page table; the next switch shall not be the one to find out. */
	if (!e) {
		(void)madvise(r.memory, PTC_HUGE_PAGE_BYTES, MADV_POPULATE_WRITE);
		atomic_fetch_add(&s->huge.bytes, PTC_HUGE_PAGE_BYTES);
	}
	range_done(s, &r);
	return !s->huge.never;
}

static void *huge_main(void *store)
{
	struct ptc_store *s = store;
	bool quit = false;

	while (!quit) {
		int64_t rest = spare(s);

		if (!rest && !step(s))
			rest = TICK_MS;
		pthread_mutex_lock(&s->lock);
		if (rest && !s->huge.quit)
			ptc_cond_wait_ms(&s->huge.cond, &s->lock, rest);
		quit = s->huge.quit;
		pthread_mutex_unlock(&s->lock);
	}
	return NULL;
}

void ptc_store_huge_begin(struct ptc_store *s)
{
	if (!s->cushion)
		return;
	atomic_store(&s->huge.busy_ns, ptc_sys_now_ns()); /* whoever opens the store has other things to do first */
	ptc_cond_init(&s->huge.cond);
	s->huge.runs = ptc_thread_start(&s->huge.thread, "ptc-huge", huge_main, s, NULL) == 0;
	if (!s->huge.runs)
		pthread_cond_destroy(&s->huge.cond);
}

void ptc_store_huge_end(struct ptc_store *s)
{
	if (!s->huge.runs)
		return;
	pthread_mutex_lock(&s->lock);
	s->huge.quit = true;
	pthread_cond_signal(&s->huge.cond);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->huge.thread, NULL);
	pthread_cond_destroy(&s->huge.cond);
	s->huge.runs = false;
}
