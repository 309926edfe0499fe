/* SPDX-License-Identifier: Apache-2.0 */
/* The list of probed layouts: written, read again, made longer, and refused. */
#include "daemon/documents/probed/probed.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/test_leaks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define A "0123456789abcdef0123456789abcdef"
#define B "fedcba9876543210fedcba9876543210"

static void read_it(const char *json, struct ptc_probed *ret)
{
	struct ptc_error err = PTC_ERROR_INIT;

	if (ptc_probed_decode(json, strlen(json), ret, &err))
		fail_msg("%s", err.text);
}

static void written_and_read(void **state)
{
	static const char text[] = "{\"version\":1,\"layouts\":[[\"tp=2\",\"" A "\"],[\"dp=2\",\"" B "\"]]}";
	struct ptc_probed p;
	char *json;

	(void)state;
	read_it(text, &p);
	assert_true(p.n == 2 && p.revision == 0);
	assert_string_equal(p.v[1].config, "dp=2");
	assert_string_equal(p.v[1].layout_hash, B);
	json = ptc_probed_encode(&p);
	assert_string_equal(json, text);
	ptc_free(json);
	ptc_probed_done(&p);
	read_it("{\"version\":2,\"layouts\":[[\"tp=2\",\"" A "\"]],\"later\":{}}", &p); /* the next version */
	assert_int_equal(p.n, 1);
	ptc_probed_done(&p);
}

static void a_new_one_is_the_newest(void **state)
{
	struct ptc_probed p = { 0 };
	char config[16];

	(void)state;
	for (int i = 0; i <= PTC_PROBED_MAX; i++) {
		snprintf(config, sizeof config, "tp=%d", i);
		assert_int_equal(ptc_probed_add(&p, config, A), 0);
	}
	assert_int_equal(p.n, PTC_PROBED_MAX);
	assert_string_equal(p.v[0].config, "tp=1"); /* the oldest is gone */
	assert_int_equal(ptc_probed_add(&p, "tp=5", B), 0);
	assert_int_equal(p.n, PTC_PROBED_MAX); /* it is in the place of an earlier one, so no other goes */
	assert_string_equal(p.v[0].config, "tp=1");
	assert_string_equal(p.v[4].config, "tp=6");
	assert_string_equal(p.v[p.n - 1].config, "tp=5");
	assert_string_equal(p.v[p.n - 1].layout_hash, B);
	ptc_probed_done(&p);
}

static void malformed_ones_are_refused(void **state)
{
	static const struct {
		const char *json, *says;
		int code;
	} bad[] = {
		{ "{\"version\":3,\"layouts\":[]}", "probed: version 3", PTC_EVERSION },
		{ "{\"layouts\":[]}", "probed: no version", PTC_EINVAL },
		{ "{\"version\":1,\"layouts\":{}}", "probed: \"layouts\" must be a list", PTC_EINVAL },
		{ "{\"version\":1,\"layouts\":[[\"tp=2\"]]}", "\"layouts\" must be a list of 2", PTC_EINVAL },
		{ "{\"version\":1,\"layouts\":[[\"tp=2\",\"" A "\"],[2,\"" A "\"]]}", "\"layouts\" must be a text",
		  PTC_EINVAL },
		{ "{\"version\":1,\"layouts\":[[\"tp=2\",\"ab\"]]}", "must be a text of at least 32 bytes",
		  PTC_EINVAL },
		{ "{\"version\":1,\"layouts\":[[\"tp=2\",\"" A "0\"]]}", "must be a text of at most 32", PTC_EINVAL },
		{ "[", "probed", PTC_EINVAL },
	};

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_probed p;

		assert_int_equal(ptc_probed_decode(bad[i].json, strlen(bad[i].json), &p, &err), bad[i].code);
		if (!strstr(err.text, bad[i].says))
			fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].says);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(written_and_read),
		cmocka_unit_test(a_new_one_is_the_newest),
		cmocka_unit_test(malformed_ones_are_refused),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
