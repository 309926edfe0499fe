/* SPDX-License-Identifier: Apache-2.0 */
/* ptc_past_caches_copy writes the bytes that memcpy would, and no other, for every alignment of both sides and for
 * lengths around those at which it goes another way. */
#include "client/lib/copy/past_caches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* after those */
#include <cmocka.h>

#define LINE  64u
#define LONG  (3u << 20)
#define GUARD 0xa5

static uint8_t *buffer(size_t bytes)
{
	uint8_t *p = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);

	assert_non_null(p);
	return p;
}

static void check(uint8_t *to, size_t at, const uint8_t *from, size_t bytes)
{
	memset(to, GUARD, at + bytes + LINE);
	ptc_past_caches_copy(to + at, from, bytes);
	ptc_past_caches_end();
	assert_memory_equal(to + at, from, bytes);
	for (size_t i = 0; i < LINE; i++) {
		assert_int_equal(to[at + bytes + i], GUARD);
		if (i < at)
			assert_int_equal(to[i], GUARD);
	}
}

static void test_copies(void **state)
{
	static const size_t lengths[] = { 0, 1, 63, 64, 1023, 1024, 1025, 1087, 1088, 1151, 4096, 65536 + 17 };
	uint8_t *from = buffer(LONG + LINE), *to = buffer(LONG + 2 * LINE);

	(void)state;
	for (size_t i = 0; i < LONG + LINE; i++)
		from[i] = (uint8_t)(i * UINT64_C(0x9e3779b97f4a7c15) >> 40);
	for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
		for (size_t a = 0; a < LINE; a++)
			for (size_t b = 0; b < LINE; b += 7)
				check(to, a, from + b, lengths[n]);
	check(to, 5, from + 3, LONG);
	free(from);
	free(to);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_copies) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
