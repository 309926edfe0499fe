/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to Peer/Ranks: of this version, of older ones, and what is none. */
#include "formats/ranks/rank_rows.h"

#include "base/alloc.h"
#include "base/test_leaks.h"
#include "formats/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void everything_that_a_row_says(void **state)
{
	struct ptc_rank_rows rows;
	const struct ptc_rank_row *r;

	(void)state;
	assert_int_equal(0,
			 ptc_rank_rows_decode(
				 "[{\"rank\": 3, \"generation\": 7, \"incarnation\": 9, \"state\": \"running\", "
				 "\"pid\": 12, \"step\": 40, \"whole\": true, \"step_seconds\": 0.5, \"hangs_s\": 0, "
				 "\"cgroup\": \"c\", \"log\": \"l\", \"device_memory\": {\"copied_by\": \"rank\", "
				 "\"marks\": \"proven\", \"device_step\": 41, \"device_whole\": true, \"why\": \"w\", "
				 "\"copy\": \"lean\", \"copy_why\": \"x\"}, "
				 "\"program_pid\": 13, "
				 "\"start_step\": 30, \"median_step_seconds\": 0.25, \"on_device\": 2, "
				 "\"reports\": {\"own_seconds\": 0.125, \"peak_bytes\": 1e9, \"loss\": null}, "
				 "\"world\": 4, \"since_ms\": 1234}, {\"rank\": 1, \"state\": \"exited\", "
				 "\"on_device\": null, \"step\": null, \"pid\": 0}]",
				 &rows, NULL));
	assert_int_equal(2, rows.n);
	r = &rows.v[0];
	assert_true(r->rank == 3 && r->generation == 7 && r->incarnation == 9 && r->world == 4);
	assert_true(r->since_ms == 1234 && r->lives);
	assert_string_equal("running", r->state);
	assert_true(r->has_step && r->step == 40 && r->has_start && r->start_step == 30);
	assert_true(r->step_s == 0.5 && r->median_step_s == 0.25);
	assert_true(r->has_own && r->own_s == 0.125 && r->peak_bytes == 1e9);
	assert_true(r->says_device && r->on_device && r->device == 2);
	assert_true(r->slot && r->pid == 12 && r->program_pid == 13 && r->has_whole && r->whole);
	assert_true(!r->has_stalled && r->has_hangs && r->hangs_s == 0);
	assert_string_equal("c", r->cgroup);
	assert_string_equal("l", r->log);
	assert_string_equal("rank", r->memory.copied_by);
	assert_string_equal("proven", r->memory.marks);
	assert_true(r->memory.has_step && r->memory.step == 41 && r->memory.whole);
	assert_string_equal("w", r->memory.why);
	assert_string_equal("lean", r->memory.copy);
	assert_string_equal("x", r->memory.copy_why);
	assert_int_equal(3, r->nreports);
	assert_string_equal("own_seconds", r->reports[0].name);
	assert_string_equal("peak_bytes", r->reports[1].name);
	assert_string_equal("loss", r->reports[2].name);
	assert_true(r->reports[0].value == 0.125 && r->reports[1].value == 1e9 && isnan(r->reports[2].value));
	r = &rows.v[1];
	assert_true(r->slot && r->pid == 0 && r->program_pid == 0 && !r->has_whole && !r->log && !r->cgroup &&
		    !r->memory.copied_by);
	assert_true(r->rank == 1 && !r->lives && !r->has_step && !r->has_start && !r->has_own);
	assert_true(r->says_device && !r->on_device);
	assert_true(r->step_s == 0 && r->peak_bytes == 0 && r->world == 0);
	ptc_rank_rows_done(&rows);
}

/* What a node writes is what another reads. */
static void an_answer_is_read_as_it_was_written(void **state)
{
	struct ptc_rank_report reports[] = { { "loss", NAN }, { "own_seconds", 0.5 } };
	const struct ptc_rank_row none = {
		.rank = 1, .state = "waiting", .slot = true, .says_device = true, .cgroup = ""
	};
	const struct ptc_rank_row slot = { .rank = 2,
					   .generation = 3,
					   .state = "running",
					   .slot = true,
					   .pid = 12,
					   .program_pid = 13,
					   .has_step = true,
					   .step = 40,
					   .has_whole = true,
					   .has_hangs = true,
					   .step_s = 0.25,
					   .says_device = true,
					   .on_device = true,
					   .memory = { .copied_by = "rank", .marks = "none", .why = "w" },
					   .says_survives = true,
					   .survives_not = "it \"ended\"",
					   .survives_broken = true,
					   .has_sampled = true,
					   .sampled = 39,
					   .has_checked = true,
					   .checked = 38,
					   .reports = reports,
					   .nreports = 2,
					   .cgroup = "c",
					   .log = "l",
					   .world = 4,
					   .since_ms = 5 };
	json_t *list = json_array();
	struct ptc_rank_rows rows;
	char *text;

	(void)state;
	json_array_append_new(list, ptc_members_to_json(&ptc_rank_row_answer, &none));
	json_array_append_new(list, ptc_members_to_json(&ptc_rank_row_answer, &slot));
	text = ptc_json_text(list);
	json_decref(list);
	assert_string_equal(
		"[{\"rank\":1,\"generation\":0,\"incarnation\":0,\"state\":\"waiting\",\"pid\":0,\"step\":"
		"null,\"on_device\":null,\"reports\":{},\"cgroup\":\"\",\"log\":null,\"step_seconds\":null},"
		"{\"rank\":2,\"generation\":3,\"incarnation\":0,\"state\":\"running\",\"pid\":12,\"step\":"
		"40,\"whole\":false,\"hangs_s\":0,\"on_device\":0,\"device_memory\":{\"copied_by\":\"rank\","
		"\"marks\":\"none\",\"why\":\"w\"},\"survives\":false,\"survives_not\":\"it "
		"\\\"ended\\\"\",\"survives_broken\":true,\"survives_sampled\":39,\"survives_checked\":38,"
		"\"reports\":{\"loss\":null,\"own_seconds\":0.5},\"cgroup\":\"c\",\"log\":"
		"\"l\",\"program_pid\":13,\"world\":4,\"since_ms\":5,\"step_seconds\":0.25}]",
		text);
	assert_int_equal(0, ptc_rank_rows_decode(text, &rows, NULL));
	ptc_free(text);
	assert_true(rows.n == 2 && !rows.v[0].on_device && !rows.v[0].has_step && !rows.v[0].log);
	assert_true(rows.v[1].on_device && rows.v[1].world == 4 && rows.v[1].has_hangs && rows.v[1].own_s == 0.5);
	assert_string_equal("it \"ended\"", rows.v[1].survives_not);
	assert_true(rows.v[1].survives_broken && rows.v[1].sampled == 39 && rows.v[1].checked == 38);
	assert_true(!rows.v[0].survives_broken && !rows.v[0].has_sampled && !rows.v[0].has_checked);
	ptc_rank_rows_done(&rows);
}

static void older_versions_say_less(void **state)
{
	struct ptc_rank_rows rows;

	(void)state;
	assert_int_equal(0, ptc_rank_rows_decode("[{\"rank\": 0}, {\"pid\": 7, \"state\": \"exited\"}]", &rows, NULL));
	assert_int_equal(2, rows.n);
	assert_true(rows.v[0].lives && !rows.v[0].says_device && !rows.v[0].has_start);
	assert_string_equal("", rows.v[0].state);
	assert_false(rows.v[1].lives);
	assert_false(rows.v[0].slot);
	ptc_rank_rows_done(&rows);
	assert_int_equal(0, ptc_rank_rows_decode("[]", &rows, NULL));
	assert_int_equal(0, rows.n);
	ptc_rank_rows_done(&rows);
}

static void what_has_another_type_is_refused(void **state)
{
	static const char *const bad[][2] = {
		{ "[{\"rank\": 0}, {\"rank\": \"1\"}]", "ranks: \"rank\" must be a whole number" },
		{ "[{\"reports\": {\"loss\": 1, \"lr\": \"2\"}}]", "\"lr\" must be a number" },
		{ "[{\"log\": \"l\", \"step_seconds\": \"\"}]", "\"step_seconds\" must be a number" },
		{ "[{\"device_memory\": {\"why\": \"w\", \"copy\": 1}}]", "\"copy\" must be a text" },
		{ "[7]", "must be a map" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_rank_rows rows;

		assert_int_equal(PTC_EINVAL, ptc_rank_rows_decode(bad[i][0], &rows, &err));
		if (!strstr(err.text, bad[i][1]))
			fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i][1]);
	}
}

static void a_rank_is_found_in_its_incarnation(void **state)
{
	struct ptc_rank_rows rows;

	(void)state;
	assert_int_equal(0, ptc_rank_rows_decode("[{\"rank\": 2, \"generation\": 7, \"incarnation\": 8}, "
						 "{\"rank\": 2, \"generation\": 7, \"incarnation\": 9}]",
						 &rows, NULL));
	assert_ptr_equal(&rows.v[1], ptc_rank_rows_find(&rows, 2, 7, 9));
	assert_null(ptc_rank_rows_find(&rows, 1, 7, 9));
	assert_null(ptc_rank_rows_find(&rows, 2, 8, 9));
	assert_null(ptc_rank_rows_find(&rows, 2, 7, 7));
	ptc_rank_rows_done(&rows);
}

static void what_is_no_list_is_refused(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rank_rows rows;

	(void)state;
	assert_int_equal(PTC_EINVAL, ptc_rank_rows_decode("{\"rank\": 0}", &rows, &err));
	assert_non_null(strstr(err.text, "ranks: \"the document\" must be a list"));
	assert_int_equal(PTC_EINVAL, ptc_rank_rows_decode("[{", &rows, NULL));
	assert_int_equal(PTC_EINVAL, ptc_rank_rows_decode("", &rows, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_that_a_row_says),
		cmocka_unit_test(an_answer_is_read_as_it_was_written),
		cmocka_unit_test(older_versions_say_less),
		cmocka_unit_test(a_rank_is_found_in_its_incarnation),
		cmocka_unit_test(what_has_another_type_is_refused),
		cmocka_unit_test(what_is_no_list_is_refused),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
