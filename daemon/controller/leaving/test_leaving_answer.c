/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to Leave: what one daemon writes another reads, and the text is that of docs/control.md. */
#include "daemon/controller/leaving/leaving_answer.h"

#include "base/test_leaks.h"
#include "formats/test_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LATE                                                                                                           \
	"{\"version\":1,\"job\":\"gpt\",\"uuid\":\"u-1\",\"over\":true,\"state\":\"late\",\"snapshot\":7,\"step\":40," \
	"\"why\":\"no node can take 5 bytes of \\\"w\\\"\",\"left_bytes\":5,\"left_tensors\":2}"
#define ELSEWHERE "{\"version\":1,\"job\":\"gpt\",\"over\":true,\"concerned\":false}"

static void an_answer_is_read_as_it_was_written(void **state)
{
	const struct ptc_leaving_answer late = { .job = "gpt",
						 .uuid = "u-1",
						 .concerned = true,
						 .over = true,
						 .state = "late",
						 .snapshot = 7,
						 .step = 40,
						 .why = "no node can take 5 bytes of \"w\"",
						 .left_bytes = 5,
						 .left_tensors = 2 };
	struct ptc_leaving_answer a;

	(void)state;
	test_json_is(LATE, ptc_leaving_answer_json(&late));
	assert_int_equal(0, ptc_leaving_answer_decode(LATE, &a, NULL));
	test_json_is(LATE, ptc_leaving_answer_json(&a));
}

static void a_job_that_has_nothing_there(void **state)
{
	struct ptc_leaving_answer a;

	(void)state;
	test_json_is(ELSEWHERE, ptc_leaving_answer_json(&(struct ptc_leaving_answer){ .job = "gpt", .over = true }));
	assert_int_equal(0, ptc_leaving_answer_decode(ELSEWHERE, &a, NULL));
	assert_true(a.over && !a.concerned && !a.state[0]);
}

static void what_is_no_answer_is_refused(void **state)
{
	static const char *const bad[][2] = {
		{ "", "leave: " },
		{ "[]", "leave: \"the document\" must be a map" },
		{ "{}", "leave: \"job\" is missing" },
		{ "{\"version\":1,\"job\":\"gpt\",\"over\":true}", "leave: \"uuid\" is missing" },
		{ "{\"version\":1,\"job\":7,\"over\":true,\"concerned\":false}", "leave: \"job\" must be a text" },
		{ "{\"version\":1,\"job\":\"gpt\",\"over\":1,\"concerned\":false}",
		  "leave: \"over\" must be true or false" },
		{ "{\"version\":1,\"job\":\"gpt\",\"over\":true,\"concerned\":0}",
		  "leave: \"concerned\" must be true or false" },
	};
	struct ptc_leaving_answer a = { .job = "untouched" };

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ptc_error err = PTC_ERROR_INIT;

		assert_int_equal(PTC_EINVAL, ptc_leaving_answer_decode(bad[i][0], &a, &err));
		if (!strstr(err.text, bad[i][1]))
			fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i][1]);
	}
	assert_string_equal("untouched", a.job);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_answer_is_read_as_it_was_written),
		cmocka_unit_test(a_job_that_has_nothing_there),
		cmocka_unit_test(what_is_no_answer_is_refused),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
