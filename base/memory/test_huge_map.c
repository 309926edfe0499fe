/* SPDX-License-Identifier: Apache-2.0 */
/* Where mappings begin, for offsets and lengths of any kind, and that nothing else stays mapped. */
#include "base/limits.h"
#include "base/memory/huge_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE 4096
#define HUGE ((size_t)PTC_HUGE_PAGE_BYTES)

static size_t mapped_bytes(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	size_t pages = 0;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%zu", &pages), 1);
	fclose(f);
	return pages * PAGE;
}

static void address_and_offset_have_the_same_place(void **state)
{
	static const size_t offsets[] = { 0, PAGE, HUGE - PAGE, HUGE, HUGE + 3 * PAGE },
			    lengths[] = { 1, PAGE, HUGE, HUGE + 1 };
	int fd = memfd_create("huge-map", MFD_CLOEXEC);

	(void)state;
	assert_int_equal(ftruncate(fd, (off_t)(4 * HUGE)), 0);
	for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++) {
		assert_int_equal(pwrite(fd, &o, sizeof o, (off_t)offsets[o]), sizeof o);
		for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
			const size_t pages = (lengths[l] + PAGE - 1) / PAGE * PAGE, before = mapped_bytes();
			uint8_t *map = ptc_huge_map(fd, offsets[o], lengths[l], PROT_READ);

			assert_true(map != MAP_FAILED);
			assert_int_equal((uintptr_t)map % HUGE, offsets[o] % HUGE);
			assert_memory_equal(map, &o, sizeof o);
			assert_int_equal(mapped_bytes() - before, pages);
			munmap(map, lengths[l]);
			assert_int_equal(mapped_bytes(), before);
		}
	}
	assert_true(ptc_huge_map(-1, 0, PAGE, PROT_READ) == MAP_FAILED);
	close(fd);
}

static void the_next_mapping_begins_where_it_fits(void **state)
{
	const size_t bytes = 64 * HUGE + 5 * PAGE, before = mapped_bytes();

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct ptc_huge_aim aim = ptc_huge_aim(bytes);
		void *map = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		ptc_huge_unaim(aim);
		assert_true(map != MAP_FAILED);
		assert_int_equal((uintptr_t)map % HUGE, 0);
		munmap(map, bytes);
		assert_int_equal(mapped_bytes(), before);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(address_and_offset_have_the_same_place),
		cmocka_unit_test(the_next_mapping_begins_where_it_fits),
	};

	(void)mapped_bytes(); /* stdio has its buffers then */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
