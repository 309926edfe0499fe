/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/checksum_avx2.h"
#include "base/number/digest.h"
#include "base/number/search.h"
#include "base/status.h"
#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

static void digest_check_value(void **state)
{
	assert_true(ptc_digest_run("123456789", 9) == UINT64_C(0xf1d27d0a6c25edc8));
	assert_true(ptc_digest_run("", 0) == 0);
}

static void search_is_as_counted(void **state)
{
	struct pair {
		char before;
		uint32_t key;
	} v[64];
	static const uint32_t ends[] = { 0, 1, UINT32_MAX - 1, UINT32_MAX };

	assert_int_equal(ptc_search_u32(NULL, 0, sizeof *v, 0, 7), 0);
	for (size_t n = 0; n <= PTC_ARRAY_LEN(v); n++) {
		for (size_t i = 0; i < n; i++)
			v[i].key = (uint32_t)(i / 3 * 5 + (n % 2 ? 0 : UINT32_MAX - 120));
		for (size_t i = 0; i < 4 * n + PTC_ARRAY_LEN(ends); i++) {
			uint32_t key =
				i < PTC_ARRAY_LEN(ends) ? ends[i] : v[0].key - 2 + (uint32_t)(i - PTC_ARRAY_LEN(ends));
			size_t less = 0;

			while (less < n && v[less].key < key)
				less++;
			assert_int_equal(PTC_SEARCH(struct pair, key, v, n, key), less);
		}
	}
}

/* The definition, bit by bit: the oracle for everything above. */
static uint64_t slow_run(const uint8_t *p, size_t n)
{
	uint64_t r = 0;

	for (size_t i = 0; i < n; i++)
		for (int bit = 7; bit >= 0; bit--) {
			uint64_t in = (p[i] >> bit) & 1;
			uint64_t top = (r >> 63) ^ in;

			r = (r << 1) ^ (PTC_DIGEST_POLY & (0 - top));
		}
	return r;
}

static void digest_matches_definition_and_splits(void **state)
{
	unsigned seed = 1;
	uint8_t data[777];

	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)rand_r(&seed);
	for (int round = 0; round < 200; round++) {
		size_t n = (size_t)rand_r(&seed) % sizeof data;
		size_t cut = n ? (size_t)rand_r(&seed) % n : 0;
		uint64_t whole = ptc_digest_run(data, n);

		assert_true(whole == slow_run(data, n));
		assert_true(whole == ptc_digest_append(ptc_digest_run(data, cut), data + cut, n - cut));
		assert_true(whole == (ptc_digest_shift(ptc_digest_run(data, cut), n - cut) ^
				      ptc_digest_run(data + cut, n - cut)));
	}
}

static void powers_of_the_digest_add_up(void **state)
{
	unsigned seed = 3;
	uint64_t slow = 1;

	for (uint64_t n = 0; n < 300; n++) { /* x^8 at a time */
		assert_true(ptc_digest_xpow(n) == slow);
		slow = ptc_digest_mul(slow, 256);
	}
	for (int round = 0; round < 2000; round++) {
		uint64_t all = (uint64_t)rand_r(&seed) << 33 ^ (uint64_t)rand_r(&seed) << 11 ^ (uint64_t)rand_r(&seed);
		uint64_t part = all >> round % 64;

		assert_true(ptc_digest_xpow(all) == ptc_digest_mul(ptc_digest_xpow(part), ptc_digest_xpow(all - part)));
	}
}

static void take_piece(void *arg, size_t at, size_t n)
{
	size_t *next = arg;

	assert_int_equal(at, *next);
	assert_true(n);
	*next += n;
}

static void check_pieces(const uint8_t *data)
{
	const size_t lengths[] = { 0, 1, 4095, 4096, 4097, 8192, 65472, 65536 };

	for (size_t i = 0; i < PTC_ARRAY_LEN(lengths); i++) {
		size_t next = 0;

		assert_true(ptc_checksum_each_avx2(data + i, lengths[i], take_piece, &next) ==
			    XXH3_64bits(data + i, lengths[i]));
		assert_int_equal(next, lengths[i]);
	}
}

/* What stores of other processors have written must verify here: whichever code sums, the sums are libxxhash's. */
static void checksums_are_those_of_libxxhash(void **state)
{
	const size_t long_ones[] = { 4096, 65519, 65520, 65536 };
	unsigned seed = 2;
	uint8_t *data = ptc_malloc(65536 + 64);

	assert_non_null(data);
	for (size_t i = 0; i < 65536 + 64; i++)
		data[i] = (uint8_t)rand_r(&seed);
	for (size_t n = 0; n < 1500; n++) {
		assert_true(ptc_checksum(data + n % 64, n) == XXH3_64bits(data + n % 64, n));
		if (n % 3 == 0)
			ptc_digest_run(data, n); /* what it leaves behind in registers must not matter */
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(long_ones); i++)
		assert_true(ptc_checksum(data + i, long_ones[i]) == XXH3_64bits(data + i, long_ones[i]));
	if (__builtin_cpu_supports("avx2"))
		check_pieces(data);
	ptc_free(data);
}

static void errors_wrap_and_name(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;

	assert_int_equal(ptc_error_set(&err, PTC_ELAYOUT, "dim %d", 0), PTC_ELAYOUT);
	assert_int_equal(ptc_error_wrap(&err, "tensor \"%s\"", "w"), PTC_ELAYOUT);
	assert_string_equal(err.text, "tensor \"w\": dim 0");
	assert_string_equal(ptc_status_name(PTC_EFENCED), "fenced");
	assert_int_equal(ptc_status_from_wire(12345), PTC_EINTERNAL);
	assert_int_equal(ptc_error_errno(&err, 28 /* ENOSPC */, "write x"), PTC_ENOSPC);
}

static void buffer_survives_failed_allocation(void **state)
{
	struct ptc_buf b = PTC_BUF_INIT;

	ptc_buf_puts(&b, "abc");
	ptc_alloc_fail_at(1);
	for (int i = 0; i < 100; i++)
		ptc_buf_printf(&b, "%d", i);
	ptc_alloc_fail_at(0);
	assert_true(ptc_buf_failed(&b));
	assert_null(ptc_buf_steal(&b, NULL));
	assert_int_equal(ptc_alloc_live(), 0);
}

static void files_are_written_whole(void **state)
{
	char dir[] = "/tmp/ptc-base-XXXXXX";
	struct ptc_error err = PTC_ERROR_INIT;
	char path[64], link[32], *data;
	int pipes[2];
	size_t len;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/a/b", dir);
	assert_int_equal(ptc_sys_mkdirs(path, 0700, &err), 0);
	snprintf(path, sizeof path, "%s/a/b/f", dir);
	assert_int_equal(ptc_sys_write_file(path, "hello", 5, 0600, "test.write", &err), 0);
	assert_int_equal(ptc_sys_read_file(path, 4, &data, &len, &err), PTC_ELIMIT);
	assert_int_equal(ptc_sys_read_file(path, 5, &data, &len, &err), 0);
	assert_string_equal(data, "hello");
	ptc_free(data);
	assert_int_equal(ptc_sys_unlink(path, "test.unlink", &err), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(ptc_sys_read_file(path, 5, &data, &len, &err),
			 PTC_EINVAL); /* and does not wait for a writer */
	assert_int_equal(ptc_sys_unlink(path, "test.unlink", &err), 0);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(write(pipes[1], "hello", 5), 5);
	close(pipes[1]);
	snprintf(link, sizeof link, "/dev/fd/%d", pipes[0]);
	assert_int_equal(ptc_sys_read_file(link, 5, &data, &len, &err), 0); /* a shell's <(...) */
	assert_string_equal(data, "hello");
	ptc_free(data);
	close(pipes[0]);
	assert_int_equal(ptc_sys_read_file(path, 5, &data, &len, &err), PTC_ENOTFOUND);
	assert_int_equal(ptc_sys_remove_tree(dir, "test.rmtree", &err), 0);
	assert_int_equal(ptc_sys_remove_tree(dir, "test.rmtree", &err), 0);
}

static mode_t mode_of(const char *dir, const char *name)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	assert_int_equal(stat(path, &st), 0);
	return st.st_mode & 07777;
}

static void folders_have_the_mode_asked_for(void **state)
{
	char dir[] = "/tmp/ptc-base-XXXXXX", path[64];
	struct ptc_error err = PTC_ERROR_INIT;
	mode_t before;

	(void)state;
	assert_non_null(mkdtemp(dir));
	before = umask(077);
	snprintf(path, sizeof path, "%s/a/b", dir);
	assert_int_equal(ptc_sys_mkdirs(path, 0711, &err), 0);
	assert_int_equal(ptc_sys_mkdirs(path, 0700, &err), 0);
	snprintf(path, sizeof path, "%s/c/d", dir);
	assert_int_equal(ptc_sys_mkdirs(path, 0, &err), 0);
	umask(before);
	assert_int_equal(mode_of(dir, "a"), 0755);
	assert_int_equal(mode_of(dir, "a/b"), 0711); /* as it was made */
	assert_int_equal(mode_of(dir, "c"), 0700);
	assert_int_equal(mode_of(dir, "c/d"), 0700);
	assert_int_equal(ptc_sys_remove_tree(dir, "test.rmtree", &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(digest_check_value),
		cmocka_unit_test(search_is_as_counted),
		cmocka_unit_test(digest_matches_definition_and_splits),
		cmocka_unit_test(powers_of_the_digest_add_up),
		cmocka_unit_test(checksums_are_those_of_libxxhash),
		cmocka_unit_test(errors_wrap_and_name),
		cmocka_unit_test(buffer_survives_failed_allocation),
		cmocka_unit_test(files_are_written_whole),
		cmocka_unit_test(folders_have_the_mode_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
