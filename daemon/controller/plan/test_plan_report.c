/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says, as JSON: each part of it, to the letter, and those that are left out. */
#include "base/alloc.h"
#include "daemon/controller/switch_plan.h"
#include "formats/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct ptc_generation_doc generation(const char *config, uint32_t world, const char *first, const char *second)
{
	char *nodes[] = { (char *)(uintptr_t)first, (char *)(uintptr_t)second };
	uint32_t rank_node[] = { 0, 1 }, rank_device[] = { 0, 3 };
	const struct ptc_generation_doc g = { .config = (char *)(uintptr_t)config,
					      .nodes = nodes,
					      .nnodes = world,
					      .world = world,
					      .rank_node = rank_node,
					      .rank_device = rank_device };
	struct ptc_generation_doc copy;

	assert_int_equal(0, ptc_generation_doc_copy(&g, &copy));
	return copy;
}

static struct ptc_plan_report *report(void)
{
	struct ptc_plan_report *r = ptc_calloc(1, sizeof *r);

	assert_non_null(r);
	strcpy(r->job, "gpt");
	r->to = generation("dp=2", 2, "n0", "n1");
	r->modes = ptc_calloc(2, sizeof *r->modes);
	r->nodes = ptc_calloc(2, sizeof *r->nodes);
	assert_true(r->modes && r->nodes);
	r->nnodes = 2;
	r->nodes[0] = (struct ptc_plan_node){ .name = "n0", .state = "up", .devices = 4 };
	r->nodes[1] = (struct ptc_plan_node){ .name = "n1", .state = "down", .devices = 2 };
	r->groups = (struct ptc_groups){ .n = 3, .split = 2, .across = 1 };
	return r;
}

/* What the report says under that key; NULL: all of it. */
static void check(const struct ptc_plan_report *r, const char *key, const char *want)
{
	json_t *root = ptc_plan_report_json(r);
	char *text = ptc_json_text(key ? json_object_get(root, key) : root);

	assert_string_equal(want, text);
	ptc_free(text);
	json_decref(root);
}

/* A first plan, of a job whose ranks declare what they hold later. */
static void test_unknown(void **state)
{
	struct ptc_plan_report *r = report();

	(void)state;
	check(r, NULL,
	      "{\"version\":1,\"job\":\"gpt\",\"from\":\"\",\"to\":\"dp=2\",\"from_ranks\":[],\"ranks\":[{\"rank\":0,"
	      "\"node\":\"n0\",\"device\":0},{\"rank\":1,\"node\":\"n1\",\"device\":3}],\"nodes\":[{\"node\":\"n0\","
	      "\"state\":\"up\",\"devices\":4},{\"node\":\"n1\",\"state\":\"down\",\"devices\":2}],\"groups\":{"
	      "\"count\":"
	      "3,\"split\":2,\"across_racks\":1},\"totals\":null}");
	r->chosen.choice.by = "table";
	check(r, "choice", "{\"by\":\"table\"}");
	ptc_plan_report_free(r);
}

/* Everything that a plan can say of what moves. */
static void test_counted(void **state)
{
	struct ptc_plan_report *r = report();

	(void)state;
	r->has_from = true;
	r->from = generation("tp=1", 1, "n0", NULL);
	r->modes[0] = PTC_PLAN_REBUILD;
	r->modes[1] = PTC_PLAN_START;
	r->nodes[1] = (struct ptc_plan_node){ .name = "n1",
					      .state = "up",
					      .devices = 2,
					      .counted = true,
					      .in_bytes = 5,
					      .held_bytes = 7,
					      .ceiling_bytes = 9 };
	r->counted = true;
	r->totals = (struct ptc_plan_totals){ 1, 2, 30, 4, 5, 30, 20, false, 10 };
	strcpy(r->blobs.text, "one is gone");
	r->blobs.gone = 1;
	r->leaves = (struct ptc_planning_leaves){ .warning_s = 120, .node = "n0", .bytes = 10 };
	check(r, "from_ranks", "[{\"rank\":0,\"node\":\"n0\",\"device\":0}]");
	check(r, "ranks",
	      "[{\"rank\":0,\"node\":\"n0\",\"device\":0,\"mode\":\"rebuild\"},{\"rank\":1,\"node\":\"n1\",\"device\":"
	      "3,"
	      "\"mode\":\"start\"}]");
	check(r, "nodes",
	      "[{\"node\":\"n0\",\"state\":\"up\",\"devices\":4},{\"node\":\"n1\",\"state\":\"up\",\"devices\":2,\"in_"
	      "bytes\":5,\"out_bytes\":0,\"held_bytes\":7,"
	      "\"ceiling_bytes\":9}]");
	check(r, "totals",
	      "{\"in_place\":1,\"within_node\":2,\"between_nodes\":30,\"bound_this_mapping\":30,\"bound_any_mapping\":"
	      "20,"
	      "\"bound_exact\":false,\"gap\":10,\"reset\":4,\"derived\":5}");
	check(r, "blobs",
	      "{\"gone\":1,\"without\":0,\"group\":0,\"replicated\":0,"
	      "\"reset\":0,\"text\":\"one is gone\"}");
	check(r, "leaves",
	      "{\"warning_s\":120.0,\"node\":\"n0\",\"bytes\":10,\"bytes_s\":null,\"seconds\":null,\"fits\":null,"
	      "\"text\":"
	      "null}");
	strcpy(r->window, "n1");
	check(r, "window", "\"n1\"");
	r->leaves = (struct ptc_planning_leaves){ 120, "n0", 10, 2.0, 5.0, true };
	check(r, "leaves",
	      "{\"warning_s\":120.0,\"node\":\"n0\",\"bytes\":10,\"bytes_s\":2.0,\"seconds\":5.0,\"fits\":true,"
	      "\"text\":"
	      "\"10B are on n0 alone and take 5.0 s to copy, of the 120.0 s between a warning and its end\"}");
	ptc_plan_report_free(r);
}

/* The planner's choice goes on to the plan of the layout that ranks have declared. */
static void test_chosen(void **state)
{
	static const char want[] =
		"{\"config\":\"dp=2\",\"devices\":2,\"step_s\":0.5,\"error\":0.25,\"samples_s\":64.0,\"memory_bytes\":"
		"1.0,"
		"\"state_bytes\":2.0,\"activation_bytes\":3.0,\"micro_batches\":4,\"parts_s\":{\"compute\":0.125,"
		"\"tp\":0.0,"
		"\"cp\":0.0,\"ep\":0.0,\"pp\":0.0,\"bubble\":0.0,\"dp\":0.5,\"optimizer\":0.0,\"fixed\":0.0},\"pause_"
		"s\":6.0,"
		"\"runs_now\":false,\"moved_bytes\":8.0,\"moved_bytes_least\":7.0,\"moved_exact\":true,\"placed\":{"
		"\"by\":"
		"\"links\",\"links_bytes_s\":{\"tp\":4.0,\"pp\":2.0},\"gap\":0.0},\"break_even_s\":9.0,\"by\":"
		"\"planner\","
		"\"why\":\"it is faster\",\"calibrated\":true,\"profiled\":false,\"horizon_s\":600.0}";
	struct ptc_plan_report *first = report(), *then = report();

	(void)state;
	first->chosen = (struct ptc_plan_chosen){ .choice = { .by = PTC_CHOICE_BY_PLANNER, .horizon_s = 600 },
						  .why = "it is faster",
						  .calibrated = true,
						  .row = { .config = ptc_strdup("dp=2"),
							   .devices = 2,
							   .micro_batches = 4,
							   .step_s = 0.5,
							   .error = 0.25,
							   .samples_s = 64,
							   .memory_bytes = 1,
							   .state_bytes = 2,
							   .activation_bytes = 3,
							   .parts = { .compute_s = 0.125, .dp_s = 0.5 },
							   .pause_s = 6,
							   .priced = true,
							   .moved_bytes = 8,
							   .moved_bytes_least = 7,
							   .moved_exact = true,
							   .is_placed = true,
							   .placed = { .by = PTC_PLACED_BY_LINKS,
								       .bytes_s = { 4, 0, 0, 0, 2 } },
							   .pays = true,
							   .break_even_s = 9 } };
	ptc_plan_report_inherit(then, first);
	ptc_plan_report_inherit(then, NULL);
	assert_null(first->chosen.choice.by);
	ptc_plan_report_free(first);
	check(then, "choice", want);
	ptc_plan_report_free(then);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unknown),
		cmocka_unit_test(test_counted),
		cmocka_unit_test(test_chosen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
