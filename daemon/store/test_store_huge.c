/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks on tmpfs that are huge pages from the beginning, and those that have become cold in between. The
 * thread that moves chunks into huge pages later does not run in the first test. */
#include "base/check.h"
#include "base/limits.h"
#include "base/memory/huge_map.h"
#include "daemon/store/internal.h"
#include "daemon/store/test_store_items.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* glibc 2.36 lacks it */
#endif

#define MIB    (1 << 20)
#define TABLES 24

/* AddressSanitizer maps what LMDB allocates before LMDB maps its file, so the file comes to another place. */
#ifdef __SANITIZE_ADDRESS__
#define PLACES_MAPS false
#else
#define PLACES_MAPS true
#endif

static bool collapses(const char *dir)
{
	char path[96];
	bool can;
	void *map;
	int fd;

	snprintf(path, sizeof path, "%s/probe", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)PTC_HUGE_PAGE_BYTES), 0);
	assert_int_equal(pwrite(fd, "x", 1, 0), 1);
	map = ptc_huge_map(fd, 0, PTC_HUGE_PAGE_BYTES, PROT_READ);
	assert_true(map != MAP_FAILED);
	can = madvise(map, PTC_HUGE_PAGE_BYTES, MADV_COLLAPSE) == 0;
	munmap(map, PTC_HUGE_PAGE_BYTES);
	close(fd);
	unlink(path);
	return can;
}

/* How much of the chunks is mapped here as huge pages. */
static uint64_t in_huge_pages(const struct place *p)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	unsigned long long kib, sum = 0;
	bool ours = false;
	char line[512];

	assert_non_null(f);
	while (fgets(line, sizeof line, f)) {
		if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' '))
			ours = strstr(line, p->chunks) != NULL;
		else if (ours && sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1)
			sum += kib << 10;
	}
	fclose(f);
	return sum;
}

static void new_chunks_are_huge_pages(void **state)
{
	struct ptc_store *s;
	struct place p;
	bool can;

	place_make(&p, fast_base());
	can = PLACES_MAPS && collapses(p.dir);
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(items_make(s, JOB_A, 1, TABLES, err));
	items_expect(s, JOB_A, 1, TABLES);
	/* at least what is tried first, whatever it costs here */
	if (can)
		assert_true(in_huge_pages(&p) >= PTC_HUGE_PAGE_BYTES);
	ptc_store_close(s);
	place_remove(&p);
	if (!can)
		skip(); /* the kernel makes no huge pages here, or maps go elsewhere */
}

static void reopen(struct ptc_store **s, const struct place *p)
{
	const struct ptc_store_opts o = {
		.meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = 64 * MIB, .cushion_bytes = 1
	};

	ptc_store_close(*s);
	ok(ptc_store_open(&o, s, err));
}

/* Drops a random half of the tables, and counts the chunks of the rest. */
static uint32_t drop_half(struct ptc_store *s, uint32_t *chunks, uint64_t ntables, unsigned *seed)
{
	struct ptc_table_key keep[64];
	uint32_t kept = 0, nkeep = 0;

	for (uint64_t g = 1; g < ntables; g++) {
		if (rand_r(seed) % 2)
			chunks[g] = 0;
		if (!chunks[g])
			continue;
		keep[nkeep++] = key_of(JOB_A, g, g);
		kept += chunks[g];
	}
	ok(ptc_store_keep(s, JOB_A, keep, nkeep, err));
	return kept;
}

/* A random half of the tables is dropped, and a new one made where their chunks were, again and again. Bytes stay, and
 * only chunks in use have blocks. Huge pages are tried each time, even if they were slow before. */
static void cold_chunks_get_only_their_own_blocks(void **state)
{
	const unsigned first = (unsigned)time(NULL) ^ (unsigned)getpid();
	uint32_t chunks[64] = { 0 }, used;
	struct ptc_store *s = NULL;
	struct ptc_store_stats st;
	unsigned seed = first;
	struct place p;

	print_message("seed %u\n", first);
	place_make(&p, fast_base());
	reopen(&s, &p);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	for (uint64_t g = 1; g < 64; g++) {
		if (g > 16) {
			used = drop_half(s, chunks, g, &seed);
			s->huge.fill_again_ns = 0;
		} else {
			used = 0;
		}
		chunks[g] = g > 16 ? PTC_MIN(TABLES, 1 + (uint32_t)rand_r(&seed) % 12) : 1;
		ok(items_make(s, JOB_A, g, chunks[g], err));
		for (uint64_t i = 1; i <= g; i++)
			if (chunks[i])
				items_expect(s, JOB_A, i, chunks[i]);
		ptc_store_stats(s, &st);
		if (g > 16 && st.file_bytes > (used + chunks[g] + st.chunks_free + 1) * MIB)
			fail_msg("seed %u, table %llu: the file has %llu bytes, for %u chunks and %llu free ones",
				 first, (unsigned long long)g, (unsigned long long)st.file_bytes, used + chunks[g],
				 (unsigned long long)st.chunks_free);
	}
	ptc_store_close(s);
	place_remove(&p);
}

/* Some node or reader reads all the time. Fails by time; a read every 50 ms. */
static void reads_keep_no_page_small(void **state)
{
	struct ptc_store_stats st = { 0 };
	struct ptc_store *s = NULL;
	struct place p;
	bool can;

	place_make(&p, fast_base());
	can = collapses(p.dir);
	reopen(&s, &p);
	s->huge.fill_again_ns = INT64_MAX;
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(items_make(s, JOB_A, 1, TABLES, err));
	for (int i = 0; can && i < 400 && !st.huge_bytes; i++) {
		items_expect(s, JOB_A, 1, TABLES);
		usleep(50000);
		ptc_store_stats(s, &st);
	}
	if (can)
		assert_true(st.huge_bytes > 0);
	items_expect(s, JOB_A, 1, TABLES);
	ptc_store_close(s);
	place_remove(&p);
	if (!can)
		skip();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(new_chunks_are_huge_pages),
		cmocka_unit_test(cold_chunks_get_only_their_own_blocks),
		cmocka_unit_test(reads_keep_no_page_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
