/* SPDX-License-Identifier: Apache-2.0 */
/* The document of damaged blocks, to the letter: it is compared with the text that an earlier ptcd has written. It is
 * read again, with members that are not known, and what is malformed is refused with the member's name. */
#include "daemon/scrub/damage_doc.h"

#include "base/test_leaks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define TEXT                                                                                                           \
	"{\"version\":1,\"blocks\":17,\"list\":[{\"generation\":3,\"item\":4,\"text\":\"rows 0 to 1\"},"               \
	"{\"generation\":2,\"item\":5000000000,\"text\":\"a \\\"b\\\"\"}]}"

static void written_and_read(void **state)
{
	struct ptc_damaged_block list[] = { { 3, 4, "rows 0 to 1" }, { 2, 5000000000, "a \"b\"" } };
	struct ptc_damage_doc doc = { .blocks = 17, .list = list, .n = 2 }, again;
	char *text = ptc_damage_doc_encode(&doc);

	(void)state;
	assert_string_equal(TEXT, text);
	assert_int_equal(0, ptc_damage_doc_decode(text, strlen(text), &again, NULL));
	assert_int_equal(17, again.blocks);
	assert_int_equal(2, again.n);
	assert_int_equal(3, again.list[0].generation);
	assert_int_equal(5000000000, again.list[1].item);
	assert_string_equal("a \"b\"", again.list[1].text);
	for (size_t len = 0; len < strlen(text); len++) {
		struct ptc_damage_doc cut;

		assert_int_equal(PTC_EINVAL, ptc_damage_doc_decode(text, len, &cut, NULL));
		assert_true(!cut.list && !cut.n);
	}
	ptc_damage_doc_done(&again);
	ptc_free(text);
}

static void a_later_version_says_more(void **state)
{
	static const char text[] = "{\"version\":2,\"since\":1,\"blocks\":1,\"list\":[{\"generation\":1,\"item\":0,"
				   "\"text\":\"t\",\"node\":{}}]}";
	struct ptc_damage_doc doc;

	(void)state;
	assert_int_equal(0, ptc_damage_doc_decode(text, strlen(text), &doc, NULL));
	assert_int_equal(1, doc.n);
	assert_string_equal("t", doc.list[0].text);
	ptc_damage_doc_done(&doc);
}

static void malformed_ones_are_refused(void **state)
{
	static const struct {
		const char *text, *names;
	} bad[] = {
		{ "[]", "map" },
		{ "{\"version\":1,\"list\":[]}", "\"blocks\" is missing" },
		{ "{\"blocks\":-1,\"list\":[]}", "blocks" },
		{ "{\"blocks\":1}", "\"list\" is missing" },
		{ "{\"blocks\":1,\"list\":{}}", "list" },
		{ "{\"blocks\":1,\"list\":[7]}", "list" },
		{ "{\"blocks\":2,\"list\":[{\"generation\":1,\"item\":0,\"text\":\"t\"},{\"generation\":1,"
		  "\"item\":\"0\",\"text\":\"t\"}]}",
		  "item" },
		{ "{\"blocks\":1,\"list\":[{\"generation\":1,\"item\":0}]}", "\"text\" is missing" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_damage_doc doc;

		assert_int_equal(PTC_EINVAL, ptc_damage_doc_decode(bad[i].text, strlen(bad[i].text), &doc, &err));
		assert_non_null(strstr(err.text, bad[i].names));
		assert_true(!doc.list && !doc.n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(written_and_read),
		cmocka_unit_test(a_later_version_says_more),
		cmocka_unit_test(malformed_ones_are_refused),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
