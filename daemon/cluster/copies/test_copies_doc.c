/* SPDX-License-Identifier: Apache-2.0 */
/* The document of copies: what is encoded is decoded again, nodes are taken out and put back, and what is malformed in
 * any member is refused. */
#include "daemon/cluster/copies/copies_doc.h"

#include "base/alloc.h"
#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t sets[2][2] = { { 0x0f, 0x01 }, { 0xf0, 0x00 } };

static void make(struct ptc_copies_doc *d)
{
	uint32_t keeper, items;

	*d = (struct ptc_copies_doc){ .generation = 7 };
	snprintf(d->generation_hash, sizeof d->generation_hash, "%s", "abc");
	ptc_copies_content((const uint64_t[]){ 1, 2 }, 2, d->content);
	for (uint32_t i = 0; i < 4; i++) {
		char node[8];

		snprintf(node, sizeof node, "n%u", i % 3);
		assert_int_equal(ptc_copies_doc_items(d, sets[i % 2], 2, &items), 0);
		assert_int_equal(items, i % 2);
		assert_int_equal(ptc_copies_doc_hold(d, node, PTC_COPIES_TABLE | (100 + i), &keeper), 0);
		assert_int_equal(ptc_copies_doc_add(d, keeper, i, items), 0);
	}
	assert_int_equal(d->nkeepers, 3);
	d->old = ptc_calloc(1, sizeof *d->old);
	d->old[d->nold++] = (struct ptc_copies_keeper){ "n1", 6, PTC_COPIES_TABLE | 5 };
}

static char *again(const char *json)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_copies_doc d;
	char *text;

	if (ptc_copies_doc_decode(json, strlen(json), &d, &err))
		fail_msg("%s", err.text);
	text = ptc_copies_doc_encode(&d);
	ptc_copies_doc_done(&d);
	return text;
}

static void test_again(void **state)
{
	struct ptc_copies_doc d, copy;
	char *json, *second, *third, *want;

	(void)state;
	make(&d);
	json = ptc_copies_doc_encode(&d);
	want = ptc_asprintf("{\"version\":1,\"generation\":7,\"layout\":\"abc\",\"content\":\"%s\","
			    "\"keepers\":[[\"n0\",7,103],[\"n1\",7,101],[\"n2\",7,102]],"
			    "\"parts\":[[0,0,0],[1,1,1],[2,2,0],[0,3,1]],\"items\":[\"0f01\",\"f000\"],"
			    "\"old\":[[\"n1\",6,5]]}",
			    d.content);
	assert_string_equal(json, want);
	ptc_free(want);
	second = again(json);
	assert_string_equal(json, second);
	assert_int_equal(ptc_copies_doc_copy(&d, &copy), 0);
	third = ptc_copies_doc_encode(&copy);
	assert_string_equal(json, third);
	ptc_free(json);
	ptc_free(second);
	ptc_free(third);
	ptc_copies_doc_done(&copy);
	ptc_copies_doc_done(&d);
}

static void count(void *arg, uint64_t generation, uint64_t table)
{
	uint64_t *sum = arg;

	*sum += generation * 1000 + (table & ~PTC_COPIES_TABLE);
}

static void test_nodes(void **state)
{
	struct ptc_copies_doc d, was;
	uint64_t sum = 0;

	(void)state;
	make(&d);
	assert_int_equal(ptc_copies_doc_copy(&d, &was), 0);
	ptc_copies_tables(&d, "n1", count, &sum);
	assert_int_equal(sum, 7000 + 101 + 6000 + 5);
	ptc_copies_doc_drop(&d, "n0"); /* which has the copies of ranks 0 and 3 */
	ptc_copies_doc_drop(&d, "n9");
	assert_int_equal(d.nkeepers, 2);
	assert_int_equal(d.nparts, 2);
	assert_null(ptc_copies_keeper(&d, "n0"));
	for (size_t i = 0; i < d.nparts; i++)
		assert_int_equal(d.keepers[d.parts[i].keeper].node[1] - '0', d.parts[i].rank);
	assert_int_equal(ptc_copies_doc_restore(&d, &was, "n0"), 0);
	assert_int_equal(ptc_copies_doc_restore(&d, &was, "n9"), 0);
	assert_int_equal(d.nkeepers, 3);
	assert_int_equal(d.nparts, 4);
	assert_int_equal(ptc_copies_keeper(&d, "n0")->table, PTC_COPIES_TABLE | 103);
	ptc_copies_doc_done(&d);
	ptc_copies_doc_done(&was);
}

#define HEAD "{\"version\":1,\"generation\":1,\"layout\":\"a\",\"content\":\"b\",\"keepers\":["

static void test_refused(void **state)
{
	static const char *const wrong[][2] = {
		{ "{}", "document of copies: no version" },
		{ HEAD "[\"n0\",1]],\"parts\":[],\"items\":[],\"old\":[]}", "\"keepers\" must be a list of 3" },
		{ HEAD "[\"\",1,4]],\"parts\":[],\"items\":[],\"old\":[]}",
		  "\"keepers\" must be a text of at least 1" },
		{ HEAD "[\"n0\",1,-1]],\"parts\":[],\"items\":[],\"old\":[]}", "\"keepers\" must be a whole number" },
		{ HEAD "[\"n0\",1,4]],\"parts\":[[1,0,0]],\"items\":[\"01\"],\"old\":[]}", "\"parts\" names a keeper" },
		{ HEAD "[\"n0\",1,4]],\"parts\":[[0,0,1]],\"items\":[\"01\"],\"old\":[]}", "\"parts\" names a keeper" },
		{ HEAD "[\"n0\",1,4]],\"parts\":[[0,-1,0]],\"items\":[\"01\"],\"old\":[]}",
		  "\"parts\" must be a whole" },
		{ HEAD "],\"parts\":[],\"items\":[\"0g\"],\"old\":[]}", "\"items\" must be hexadecimal digits" },
		{ HEAD "],\"parts\":[],\"items\":[\"01\",\"0102\"],\"old\":[]}", "\"items\" has sets of several" },
		{ HEAD "],\"parts\":[],\"items\":[],\"old\":[[\"\",1,4]]}", "\"old\" must be a text of at least 1" },
	};

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(wrong); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_copies_doc d;

		if (!ptc_copies_doc_decode(wrong[i][0], strlen(wrong[i][0]), &d, &err))
			fail_msg("%s", wrong[i][0]);
		if (!strstr(err.text, wrong[i][1]))
			fail_msg("\"%s\" does not say \"%s\"", err.text, wrong[i][1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_again), cmocka_unit_test(test_nodes),
					    cmocka_unit_test(test_refused) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
