/* SPDX-License-Identifier: Apache-2.0 */
/* What ptc-archive says: of a round that succeeded, of one that failed, and what is neither. */
#include "daemon/controller/archiving/archive_said.h"

#include "base/check.h"
#include "base/test_leaks.h"
#include "formats/test_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static char dir[] = "/a";
/* As client/ctl/archive/archive_main.c writes it. */
static const char done[] = "{\"archive\":\"gen-2-step-40\",\"step\":40,\"generation\":2,\"snapshot\":7,\"bytes\":1,"
			   "\"fresh\":true,\"removed\":0,\"time_ms\":1795824383100,\"wait_ms\":0}";

static void a_round_that_succeeded(void **state)
{
	struct ptc_archive_said s;

	(void)state;
	assert_int_equal(0, ptc_archive_said_decode(done, strlen(done), &s, NULL));
	assert_true(!s.error[0] && s.generation == 2 && s.snapshot == 7 && s.fresh && !s.wait_ms);
	test_json_is("{\"dir\":\"/a\",\"running\":true,\"archive\":\"gen-2-step-40\",\"step\":40,"
		     "\"time_ms\":1795824383100}",
		     ptc_archive_state_json(&(struct ptc_archive_state){ .dir = dir, .running = true, .said = s }));
}

static void before_a_round_has_succeeded(void **state)
{
	(void)state;
	test_json_is("{\"dir\":\"/a\",\"running\":false,\"failed\":\"full\"}",
		     ptc_archive_state_json(&(struct ptc_archive_state){ .dir = dir, .failed = "full" }));
	test_json_is("{\"dir\":\"/a\",\"running\":false}",
		     ptc_archive_state_json(&(struct ptc_archive_state){ .dir = dir, .failed = "f\xc3" }));
}

static void a_round_that_failed(void **state)
{
	static const char failed[] = "{\"status\":-7,\"error\":\"the disk is full\"}";
	struct ptc_archive_said s;

	(void)state;
	assert_int_equal(0, ptc_archive_said_decode(failed, strlen(failed), &s, NULL));
	assert_string_equal("the disk is full", s.error);
	assert_string_equal("", s.archive);
}

static void what_is_neither_is_refused(void **state)
{
	static const char *const bad[][2] = {
		{ "{}", "names neither an archive nor an error" },
		{ "{\"archive\":7}", "what ptc-archive says: \"archive\" must be a text" },
		{ "{\"archive\":\"a\",\"step\":-1}", "\"step\" must be a whole number" },
		{ "{\"error\":\"the di", "what ptc-archive says" },
		{ "[]", "must be a map" },
	};

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_archive_said s;

		assert_int_equal(PTC_EINVAL, ptc_archive_said_decode(bad[i][0], strlen(bad[i][0]), &s, &err));
		if (!strstr(err.text, bad[i][1]))
			fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i][1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_round_that_succeeded),
		cmocka_unit_test(before_a_round_has_succeeded),
		cmocka_unit_test(a_round_that_failed),
		cmocka_unit_test(what_is_neither_is_refused),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
