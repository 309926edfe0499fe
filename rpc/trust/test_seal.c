/* SPDX-License-Identifier: Apache-2.0 */
/* Sealing: what opens again, and that nothing else does. */
#include "rpc/trust/seal.h"

#include "base/alloc.h"
#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ptc_seal_key key, other;

static void what_is_sealed_opens_again(void **state)
{
	static const size_t sizes[] = { 0, 1, 15, 16, 17, 4096, 3u << 20 };
	struct ptc_error err = PTC_ERROR_INIT;

	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		size_t len = sizes[i], sealed_len, again_len;
		char *data = malloc(len + 1), *sealed, *twice, *again;

		assert_int_equal(ptc_sys_random(data, len, NULL), 0);
		assert_int_equal(ptc_seal(&key, "a", data, len, &sealed, &sealed_len, &err), 0);
		assert_int_equal(ptc_seal(&key, "a", data, len, &twice, &again_len, &err), 0);
		assert_int_equal(sealed_len, len + 44);
		assert_true(ptc_seal_is(sealed, sealed_len) && !ptc_seal_is(data, len));
		assert_memory_not_equal(sealed, twice, sealed_len); /* nonces differ */
		if (len > 15)
			assert_null(memmem(sealed, sealed_len, data, 16));
		assert_int_equal(ptc_seal_open(&key, "a", sealed, sealed_len, &again, &again_len, &err), 0);
		assert_int_equal(again_len, len);
		assert_memory_equal(again, data, len);
		assert_int_equal(again[len], 0);
		ptc_free(sealed);
		ptc_free(twice);
		ptc_free(again);
		free(data);
	}
}

/* Each bit, each length, another name, another key. */
static void nothing_else_does(void **state)
{
	static const char data[] = "{\"env\":{\"TOKEN\":\"secret\"}}";
	struct ptc_error err = PTC_ERROR_INIT;
	char *sealed, *out = NULL, *copy;
	size_t len, n;

	assert_int_equal(ptc_seal(&key, "job", data, sizeof data, &sealed, &len, &err), 0);
	for (size_t bit = 0; bit < len * 8; bit++) {
		sealed[bit / 8] ^= (char)(1 << bit % 8);
		assert_int_equal(ptc_seal_open(&key, "job", sealed, len, &out, &n, &err), PTC_ESTATE);
		sealed[bit / 8] ^= (char)(1 << bit % 8);
	}
	for (size_t cut = 0; cut < len; cut++) {
		copy = malloc(cut + 1); /* exactly so long, for what watches over memory */
		memcpy(copy, sealed, cut);
		assert_int_equal(ptc_seal_open(&key, "job", copy, cut, &out, &n, &err), PTC_ESTATE);
		free(copy);
	}
	assert_int_equal(ptc_seal_open(&key, "jobs", sealed, len, &out, &n, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "moved to another key"));
	assert_int_equal(ptc_seal_open(&other, "job", sealed, len, &out, &n, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "another key"));
	memcpy(sealed + 8, "\0\0\0\0\0\0\0\0", 8);
	assert_int_equal(ptc_seal_open(&key, "job", sealed, len, &out, &n, &err), PTC_ESTATE);
	assert_null(out);
	ptc_free(sealed);
}

/* The format is for ever: these bytes were made by another implementation of AES-GCM, written in Python from the
 * standards. */
static void a_foreign_seal_opens(void **state)
{
	static const uint8_t sealed[] = {
		0x50, 0x54, 0x43, 0x53, 0x45, 0x41, 0x4c, 0x31, 0x7b, 0xf7, 0x5b, 0xb0, 0x40, 0x3a, 0x16,
		0xdb, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x6f, 0x33, 0x39,
		0xa8, 0x03, 0x0b, 0x9a, 0x3f, 0xf1, 0x50, 0x40, 0x65, 0xd9, 0xa7, 0x9a, 0xb4, 0x99, 0xd2,
		0x6a, 0x7f, 0x2f, 0x1e, 0xf0, 0xc1, 0x56, 0x28, 0x81, 0xc4, 0x78, 0x74,
	};
	struct ptc_seal_key k;
	struct ptc_error err = PTC_ERROR_INIT;
	char *out;
	size_t n;

	for (size_t i = 0; i < sizeof k.bytes; i++)
		k.bytes[i] = (uint8_t)i;
	assert_int_equal(ptc_seal_key_identify(&k), 0);
	if (ptc_seal_open(&k, "00000000-0000-4000-8000-000000000000", sealed, sizeof sealed, &out, &n, &err))
		fail_msg("%s (id %s)", err.text, k.id);
	assert_string_equal(out, "{\"version\":1}");
	ptc_free(out);
}

static void memory_runs_out(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char *sealed, *out;
	size_t len, n;

	ptc_alloc_fail_at(1);
	assert_int_equal(ptc_seal(&key, "a", "x", 1, &sealed, &len, &err), PTC_ENOMEM);
	ptc_alloc_fail_at(0);
	assert_int_equal(ptc_seal(&key, "a", "x", 1, &sealed, &len, &err), 0);
	ptc_alloc_fail_at(1);
	assert_int_equal(ptc_seal_open(&key, "a", sealed, len, &out, &n, &err), PTC_ENOMEM);
	ptc_alloc_fail_at(0);
	ptc_free(sealed);
	assert_int_equal(ptc_alloc_live(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_sealed_opens_again),
		cmocka_unit_test(nothing_else_does),
		cmocka_unit_test(a_foreign_seal_opens),
		cmocka_unit_test(memory_runs_out),
	};

	if (ptc_seal_key_new(&key, NULL) || ptc_seal_key_new(&other, NULL) || strcmp(key.id, other.id) == 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
