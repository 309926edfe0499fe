/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a file on tmpfs that are huge pages from the beginning. The kernel allocates and clears 2 MiB at once in a
 * sixth of the time that it takes for 512 pages, and a copy into them runs at the rate of memcpy. MADV_COLLAPSE asks
 * for them. It needs no mount option and no rights, but one page of each huge page has to be there.
 *
 * Happy path: a range of holes becomes huge pages, in a few requests. Failure modes: none that anybody sees. What is
 * not filled has no blocks, or only its first page: the caller allocates the rest in small pages. After a request that
 * failed, or that took longer than small pages would have, there is none for 10 s. It takes longer if no huge page is
 * free, so that the kernel moves others, and in a virtual machine that had given the memory back to its host. */
#include "daemon/store/chunks/chunk.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/memory/huge_map.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h> /* MADV_COLLAPSE, which glibc 2.36 lacks */
#include <sys/mman.h>
#include <time.h>

#define BATCH_BYTES     (UINT64_C(128) << 20) /* of a request, which makes all processors flush their lists of pages */
#define GROWS_BY        8                     /* the first request is for one huge page, and tells whether it pays */
#define SLOW_NS_PER_MIB INT64_C(1000000)      /* of CPU time; small pages take about half */
#define NOT_AGAIN_NS    INT64_C(10000000000)
#define FIRST_PAGE      4096
#define ROUND_UP(at)    (((at) + PTC_HUGE_PAGE_BYTES - 1) / PTC_HUGE_PAGE_BYTES * PTC_HUGE_PAGE_BYTES)
#define ROUND_DOWN(at)  ((at) / PTC_HUGE_PAGE_BYTES * PTC_HUGE_PAGE_BYTES)

int ptc_store_huge_collapse(void *map, size_t bytes)
{
	return madvise(map, bytes, MADV_COLLAPSE) == 0 ? 0 : errno;
}

/* Both multiples of a huge page. */
static int fill_batch(int fd, uint64_t off, uint64_t bytes)
{
	void *map;
	int e;

	for (uint64_t at = off; at < off + bytes; at += PTC_HUGE_PAGE_BYTES)
		while (fallocate(fd, 0, (off_t)at, FIRST_PAGE) != 0)
			if (errno != EINTR)
				return errno;
	map = ptc_huge_map(fd, off, (size_t)bytes, PROT_READ);
	if (map == MAP_FAILED)
		return errno;
	e = ptc_store_huge_collapse(map, (size_t)bytes);
	munmap(map, (size_t)bytes);
	return e;
}

static int64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

void ptc_store_huge_fill(struct job *j, uint64_t off, uint64_t bytes)
{
	const uint64_t end = ROUND_DOWN(off + bytes);
	uint64_t step = PTC_HUGE_PAGE_BYTES;
	struct ptc_store *s = j->s;

	if (!j->volatile_fs || ptc_sys_now_ns() < s->huge.fill_again_ns)
		return;
	for (uint64_t at = ROUND_UP(off), now; at < end; at += now) {
		const int64_t since = cpu_ns();

		now = PTC_MIN(end - at, step);
		step = PTC_MIN(step * GROWS_BY, BATCH_BYTES);
		if (fill_batch(j->fd, at, now) || cpu_ns() - since > (int64_t)(now >> 20) * SLOW_NS_PER_MIB) {
			s->huge.fill_again_ns = ptc_sys_now_ns() + NOT_AGAIN_NS;
			return;
		}
	}
}
