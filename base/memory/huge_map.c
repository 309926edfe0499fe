/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings at addresses where huge pages of a file are huge pages of ours. Failure modes: huge_map.h. */
#include "base/memory/huge_map.h"

#include "base/limits.h"

#include <sys/mman.h>
#include <unistd.h>

/* Room for `bytes` bytes that begin at a huge page's boundary *ret_skip bytes into it. */
static char *make_room(size_t bytes, size_t *ret_skip)
{
	char *room =
		mmap(NULL, bytes + PTC_HUGE_PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (room != MAP_FAILED)
		*ret_skip = (PTC_HUGE_PAGE_BYTES - (uintptr_t)room % PTC_HUGE_PAGE_BYTES) % PTC_HUGE_PAGE_BYTES;
	return room;
}

static void unmap(char *at, size_t bytes)
{
	if (bytes)
		munmap(at, bytes);
}

static size_t whole_pages(size_t bytes)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (bytes + page - 1) / page * page;
}

void *ptc_huge_map(int fd, uint64_t offset, size_t bytes, int prot)
{
	const size_t all = whole_pages(bytes), inside = (size_t)(offset % PTC_HUGE_PAGE_BYTES);
	size_t skip;
	char *room = make_room(all + inside, &skip), *map;

	if (room == MAP_FAILED)
		return MAP_FAILED;
	skip += inside;
	map = mmap(room + skip, all, prot, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
	if (map == MAP_FAILED) {
		munmap(room, all + inside + PTC_HUGE_PAGE_BYTES);
		return MAP_FAILED;
	}
	unmap(room, skip);
	unmap(map + all, inside + PTC_HUGE_PAGE_BYTES - skip);
	return map;
}

struct ptc_huge_aim ptc_huge_aim(size_t bytes)
{
	struct ptc_huge_aim aim = { NULL, 0 };
	size_t skip, all = whole_pages(bytes);
	char *room = make_room(all, &skip);

	if (room == MAP_FAILED)
		return aim;
	aim.bytes = PTC_HUGE_PAGE_BYTES - skip;
	aim.filler = room + skip + all;
	munmap(room, skip + all);
	return aim;
}

void ptc_huge_unaim(struct ptc_huge_aim aim)
{
	if (aim.filler)
		munmap(aim.filler, aim.bytes);
}
