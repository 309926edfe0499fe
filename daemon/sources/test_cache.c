/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of samples: what it gives is what was put under that name, whatever was written over its file; it stays as
 * large as it was made. */
#include "daemon/sources/cache.h"

#include "base/alloc.h"
#include "base/sys/sys.h"
#include "base/test_seed.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SAMPLES 1500 /* of one or two pieces: twice as many as there is room for */
#define READERS 3

struct world {
	char dir[64], path[80];
	struct ptc_cache *cache;
	uint64_t seed;
};

static uint64_t next(struct world *w)
{
	w->seed ^= w->seed << 13;
	w->seed ^= w->seed >> 7;
	return w->seed ^= w->seed << 17;
}

/* What a piece must be, from its name alone. */
static size_t content(const struct ptc_cache_name *n, uint8_t *buf, uint64_t *ret_size)
{
	uint64_t x = n->sample * 2654435761u + n->uid * 97 + (uint64_t)n->reader[0];
	uint64_t size = x % (2 * PTC_CACHE_PIECE);
	size_t len = size > n->piece * PTC_CACHE_PIECE ? (size_t)(size - n->piece * PTC_CACHE_PIECE) : 0;

	len = len < PTC_CACHE_PIECE ? len : PTC_CACHE_PIECE;
	for (size_t i = 0; i < len; i++)
		buf[i] = (uint8_t)((x + i + n->piece * 131) * 2654435761u >> 11);
	*ret_size = size;
	return len;
}

static struct ptc_cache_name any_name(struct world *w)
{
	struct ptc_cache_name n = { .uid = (uid_t)(next(w) % 2), .sample = next(w) % SAMPLES, .piece = next(w) % 2 };

	memset(n.reader, "abc"[next(w) % READERS], 32);
	return n;
}

static void reopen(struct world *w)
{
	ptc_cache_close(w->cache);
	assert_int_equal(0, ptc_cache_open(w->dir, PTC_CACHE_MIN, &w->cache, NULL));
}

static int setup(void **state)
{
	struct world *w = ptc_calloc(1, sizeof *w);

	snprintf(w->dir, sizeof w->dir, "/tmp/ptc-cache-XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	snprintf(w->path, sizeof w->path, "%s/samples", w->dir);
	w->seed = ptc_test_seed() | 1;
	reopen(w);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ptc_cache_close(w->cache);
	unlink(w->path);
	rmdir(w->dir);
	ptc_free(w);
	return 0;
}

static size_t hits(struct world *w, size_t tries)
{
	uint8_t got[PTC_CACHE_PIECE], want[PTC_CACHE_PIECE];
	size_t n = 0;

	for (size_t i = 0; i < tries; i++) {
		struct ptc_cache_name name = any_name(w);
		uint64_t size, expected;
		size_t len, must = content(&name, want, &expected);

		if (!ptc_cache_get(w->cache, &name, got, &len, &size))
			continue;
		assert_int_equal(must, len);
		assert_int_equal(expected, size);
		assert_memory_equal(want, got, len);
		n++;
	}
	return n;
}

static void put_some(struct world *w, size_t n)
{
	uint8_t data[PTC_CACHE_PIECE];

	for (size_t i = 0; i < n; i++) {
		struct ptc_cache_name name = any_name(w);
		uint64_t size;
		size_t len = content(&name, data, &size);

		ptc_cache_put(w->cache, &name, size, data, len);
	}
}

static uint64_t bytes_of(const struct world *w, bool taken)
{
	struct stat st;

	assert_int_equal(0, stat(w->path, &st));
	return taken ? (uint64_t)st.st_blocks * 512 : (uint64_t)st.st_size;
}

static void test_bounded(void **state)
{
	struct world *w = *state;
	struct ptc_cache *second;
	uint64_t before = bytes_of(w, false);

	assert_int_equal(0, hits(w, 1000));
	put_some(w, 20000);
	assert_true(hits(w, 1000) > 20);
	reopen(w);
	assert_true(hits(w, 1000) > 20);
	assert_int_equal(before, bytes_of(w, false));
	assert_true(before <= PTC_CACHE_MIN && bytes_of(w, true) <= PTC_CACHE_MIN + 65536);
	assert_int_equal(PTC_EEXIST, ptc_cache_open(w->dir, PTC_CACHE_MIN, &second, NULL));
	ptc_cache_close(w->cache); /* another size: begun anew */
	assert_int_equal(0, ptc_cache_open(w->dir, PTC_CACHE_MIN + (1 << 20), &w->cache, NULL));
	assert_int_equal(0, hits(w, 1000));
}

/* Bytes, sectors and whole heads are written over, cut off and moved about. */
static void damage(struct world *w)
{
	uint8_t junk[4096], other[4096];
	int fd = open(w->path, O_RDWR | O_CLOEXEC);
	uint64_t size = bytes_of(w, false);

	assert_true(fd >= 0);
	for (int i = 0; i < 60; i++) {
		size_t n = (size_t)1 << next(w) % 13;
		off_t at = (off_t)(4096 + next(w) % (size - 8192)), from = (off_t)(4096 + next(w) % (size - 8192));

		memset(junk, (int)next(w), sizeof junk);
		if (i % 3 == 0) /* among the heads */
			at = (off_t)(4096 + next(w) % 70000);
		if (i % 2)
			assert_int_equal(n, pread(fd, other, n, from));
		assert_int_equal(n, pwrite(fd, i % 2 ? other : junk, n, at));
	}
	close(fd);
}

static void test_damaged(void **state)
{
	struct world *w = *state;

	for (int round = 0; round < 10; round++) {
		put_some(w, 3000);
		damage(w);
		if (round % 2)
			reopen(w);
		assert_true(hits(w, 2000) > 0); /* and each is right */
	}
	assert_int_equal(0, truncate(w->path, 5000));
	hits(w, 1000);
	reopen(w);
	put_some(w, 3000);
	assert_true(hits(w, 2000) > 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_bounded, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damaged, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
