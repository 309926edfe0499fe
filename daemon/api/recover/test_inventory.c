/* SPDX-License-Identifier: Apache-2.0 */
/* What a node keeps, as the bytes that it sends to peers of this version and of the one before. */
#include "daemon/api/recover/inventory.h"

#include "base/alloc.h"
#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define A "11111111-2222-4333-8444-555555555555"
#define B "99999999-2222-4333-8444-555555555555"
/* Written by hand: the second job has no documents that can be read. */
#define WHOLE                                                                                                          \
	"{\"version\":1,\"node\":\"n1\",\"cluster\":\"of 3\",\"waits\":true,\"old\":\"https://h:2379\",\"jobs\":["     \
	"{\"uuid\":\"" A "\",\"tables\":[[4,7],[5,9]],\"name\":\"gpt\",\"epoch\":2,\"revision\":90},"                  \
	"{\"uuid\":\"" B "\",\"tables\":[]}]}"

static void writes_and_reads(void **state)
{
	struct ptc_inventory_table tables[] = { { 4, 7 }, { 5, 9 } };
	struct ptc_inventory_job jobs[] = {
		{ .uuid = A, .tables = tables, .ntables = 2, .name = "gpt", .epoch = 2, .revision = 90 },
		{ .uuid = B },
	};
	char cluster[] = "of 3", old[] = "https://h:2379";
	const struct ptc_inventory v = { "n1", cluster, true, old, jobs, 2 };
	struct ptc_error err = PTC_ERROR_INIT;
	char *json = ptc_inventory_encode(&v);
	struct ptc_inventory got;

	(void)state;
	assert_string_equal(json, WHOLE);
	assert_int_equal(ptc_inventory_decode("n1", json, &got, &err), 0);
	assert_string_equal(got.node, "n1");
	assert_string_equal(got.cluster, cluster);
	assert_true(got.waits);
	assert_string_equal(got.old, old);
	assert_int_equal(got.njobs, 2);
	assert_ptr_equal(ptc_inventory_find(&got, A), &got.jobs[0]);
	assert_ptr_equal(ptc_inventory_find(&got, B), &got.jobs[1]);
	assert_null(ptc_inventory_find(&got, "33333333-2222-4333-8444-555555555555"));
	assert_int_equal(got.jobs[0].ntables, 2);
	assert_memory_equal(got.jobs[0].tables, tables, sizeof tables);
	assert_string_equal(got.jobs[0].name, "gpt");
	assert_int_equal(got.jobs[0].epoch, 2);
	assert_int_equal(got.jobs[0].revision, 90);
	assert_int_equal(got.jobs[1].ntables, 0);
	assert_string_equal(got.jobs[1].name, "");
	assert_int_equal(got.jobs[1].revision, 0);
	ptc_inventory_done(&got);
	ptc_free(json);
}

static void later_members_are_skipped(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_inventory got;

	(void)state;
	assert_int_equal(ptc_inventory_decode("n1",
					      "{\"version\":2,\"node\":\"n1\",\"cluster\":\"\",\"waits\":false,"
					      "\"old\":\"\",\"jobs\":[],\"more\":[{}]}",
					      &got, &err),
			 0);
	assert_int_equal(got.njobs, 0);
	assert_false(got.waits);
	ptc_inventory_done(&got);
}

static void bad_ones_are_refused(void **state)
{
	static const char *const bad[][2] = {
		{ "", "n7" },
		{ "[]", "n7" },
		{ "{\"version\":1,\"node\":\"n1\"}", "cluster" },
		{ "{\"version\":1,\"node\":\"n1\",\"cluster\":\"\",\"waits\":1,\"old\":\"\",\"jobs\":[]}", "waits" },
		{ "{\"version\":1,\"node\":\"n1\",\"cluster\":\"\",\"waits\":true,\"old\":\"\",\"jobs\":[{}]}",
		  "uuid" },
		{ "{\"version\":1,\"node\":\"n1\",\"cluster\":\"\",\"waits\":true,\"old\":\"\",\"jobs\":[{\"uuid\":\"" A
		  "0\",\"tables\":[]}]}",
		  "uuid" },
		{ "{\"version\":1,\"node\":\"n1\",\"cluster\":\"\",\"waits\":true,\"old\":\"\",\"jobs\":[{\"uuid\":\"" A
		  "\",\"tables\":[[1]]}]}",
		  "tables" },
	};

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_inventory got;

		assert_int_not_equal(ptc_inventory_decode("n7", bad[i][0], &got, &err), 0);
		if (!strstr(err.text, bad[i][1]) || !strstr(err.text, "n7"))
			fail_msg("\"%s\" for %s", err.text, bad[i][0]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes_and_reads),
		cmocka_unit_test(later_members_are_skipped),
		cmocka_unit_test(bad_ones_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
