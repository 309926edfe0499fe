/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "base/number/units.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void bytes_parse(void **state)
{
	static const struct {
		const char *text;
		uint64_t value;
	} good[] = {
		{ "0", 0 },
		{ "0B", 0 },
		{ "1B", 1 },
		{ "8GiB", UINT64_C(8589934592) },
		{ "8 GiB", UINT64_C(8589934592) },
		{ "500MB", 500000000 },
		{ "1.5TiB", UINT64_C(1649267441664) },
		{ "0.001KiB", 1 },
		{ "1.25kB", 1250 },
		{ "16383PiB", UINT64_C(16383) << 50 },
		{ "18446744073709551615B", UINT64_MAX },
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(good); i++) {
		uint64_t v = 1;

		assert_int_equal(ptc_units_parse_bytes(good[i].text, &v, NULL), 0);
		assert_true(v == good[i].value);
	}
}

static void bytes_refuse(void **state)
{
	static const char *const bad[] = {
		"",       "8",        "GiB",    "8gib", "8G",   "-1B",   "+1B",      " 1B",   "1B ",
		"1  B",   "1.2345MB", "1.MB",   ".5MB", "1e3B", "0x10B", "16384PiB", "8GiBs", "18446744073709551616B",
		"1.5.5B", "1,5GiB",   "1.0000B"
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		uint64_t v = 77;

		if (ptc_units_parse_bytes(bad[i], &v, &err) != PTC_EINVAL)
			fail_msg("\"%s\" was taken as %" PRIu64, bad[i], v);
		assert_true(v == 77);
		assert_true(err.text[0] != '\0');
	}
}

static void durations(void **state)
{
	static const struct {
		const char *text;
		uint64_t value;
	} good[] = { { "0", 0 },         { "250ms", 250 },  { "5s", 5000 },     { "1.5s", 1500 },
		     { "0.25m", 15000 }, { "2h", 7200000 }, { "1d", 86400000 }, { "0.001s", 1 } };
	static const char *const bad[] = { "",    "5", "5S", "5sec", "1.5ms", "0.0001s", "-1s", "99999999999999999d",
					   "5 s " };
	uint64_t v = 0;

	for (size_t i = 0; i < PTC_ARRAY_LEN(good); i++) {
		assert_int_equal(ptc_units_parse_ms(good[i].text, &v, NULL), 0);
		assert_true(v == good[i].value);
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++)
		assert_int_equal(ptc_units_parse_ms(bad[i], &v, NULL), PTC_EINVAL);
}

static void people_read(void **state)
{
	char t[PTC_UNITS_MAX];

	assert_string_equal(ptc_units_format_bytes(0, t), "0 B");
	assert_string_equal(ptc_units_format_bytes(1023, t), "1023 B");
	assert_string_equal(ptc_units_format_bytes(1024, t), "1.00 KiB");
	assert_string_equal(ptc_units_format_bytes(1342177280, t), "1.25 GiB");
	assert_string_equal(ptc_units_format_bytes(UINT64_C(118) << 20, t), "118 MiB");
	assert_string_equal(ptc_units_format_bytes(UINT64_MAX, t), "16384 PiB");
}

static void printed_text_parses_back(void **state)
{
	unsigned seed = 7;

	for (int round = 0; round < 5000; round++) {
		uint64_t v = (uint64_t)rand_r(&seed) << (rand_r(&seed) % 33), back = 0;
		char t[PTC_UNITS_MAX];

		assert_int_equal(ptc_units_parse_bytes(ptc_units_print_bytes(v, t), &back, NULL), 0);
		assert_true(back == v);
		assert_int_equal(ptc_units_parse_ms(ptc_units_print_ms(v, t), &back, NULL), 0);
		assert_true(back == v);
	}
	assert_string_equal(ptc_units_print_bytes(UINT64_C(8) << 30, (char[PTC_UNITS_MAX]){ 0 }), "8GiB");
	assert_string_equal(ptc_units_print_ms(5000, (char[PTC_UNITS_MAX]){ 0 }), "5s");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_parse),
		cmocka_unit_test(bytes_refuse),
		cmocka_unit_test(durations),
		cmocka_unit_test(people_read),
		cmocka_unit_test(printed_text_parses_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
