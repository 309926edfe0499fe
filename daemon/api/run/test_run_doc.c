/* SPDX-License-Identifier: Apache-2.0 */
/* What status says of ranks, to the letter: of nodes that answer, that do not, and that know nothing of a rank. */
#include "daemon/api/run/run.h"

#include "base/test_leaks.h"
#include "formats/test_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* As daemon/workers/group/rank_status.c writes them. */
#define TRAINS                                                                                                         \
	"{\"rank\": 0, \"generation\": 7, \"incarnation\": 9, \"state\": \"running\", \"pid\": 12, \"step\": 41, "     \
	"\"whole\": true, \"step_seconds\": 0.5, \"start_step\": 30, \"median_step_seconds\": 0.25, \"hangs_s\": 0, "  \
	"\"on_device\": 2, \"device_memory\": {\"copied_by\": \"rank\", \"marks\": \"proven\", \"device_step\": 41, "  \
	"\"device_whole\": false, \"why\": \"no \\\"ptc-gpu\\\"\", \"copy\": \"lean\", \"copy_why\": \"w\"}, "         \
	"\"survives\": false, \"survives_not\": \"no\", \"survives_sampled\": 40, \"reports\": {\"loss\": 2, \"lr\": " \
	"0.10000000000000001, "                                                                                        \
	"\"big\": 1e+17, \"m\\u00f6b\": null}, "                                                                       \
	"\"cgroup\": \"/c\", \"log\": \"/l\", \"world\": 4, \"since_ms\": 1234}"
/* Of a version that said nothing of marks. */
#define BEGINS                                                                                                         \
	"{\"rank\": 1, \"generation\": 7, \"incarnation\": 9, \"state\": \"building\", \"pid\": 0, \"step\": null, "   \
	"\"step_seconds\": null, \"start_step\": 30, \"stalled_s\": 7, \"on_device\": null, "                          \
	"\"device_memory\": {\"copied_by\": \"rank\", \"why\": \"w\"}, \"reports\": {\"loss\": 3, \"own\": 1.5}, "     \
	"\"cgroup\": \"\", \"log\": null}"
#define BEFORE                                                                                                         \
	"{\"rank\": 2, \"generation\": 6, \"incarnation\": 8, \"state\": \"exited\", \"on_device\": null, "            \
	"\"world\": 4, \"since_ms\": 1}"
#define HAS_ENDED                                                                                                      \
	"{\"rank\": 3, \"generation\": 7, \"incarnation\": 9, \"state\": \"exited\", \"on_device\": null, "            \
	"\"world\": 5, \"since_ms\": 1}"

#define SAID_TRAINS                                                                                                    \
	"{\"rank\":0,\"generation\":7,\"incarnation\":9,\"state\":\"running\",\"pid\":12,\"step\":41,\"whole\":true,"  \
	"\"hangs_s\":0,\"on_device\":2,\"device_memory\":{\"copied_by\":\"rank\",\"marks\":\"proven\","                \
	"\"device_step\":41,\"device_whole\":false,\"why\":\"no \\\"ptc-gpu\\\"\",\"copy\":\"lean\",\"copy_why\":"     \
	"\"w\"},\"survives\":false,\"survives_not\":\"no\",\"survives_sampled\":40,\"reports\":{\"loss\":2,\"lr\":0."  \
	"10000000000000001,"                                                                                           \
	"\"big\":1e17,\"m\xc3\xb6"                                                                                     \
	"b\":null},\"cgroup\":\"/c\",\"log\":\"/l\",\"node\":\"a\",\"device\":2,\"steps_per_s\":2.0,"                  \
	"\"device_health\":\"ecc\"}"
#define SAID_BEGINS                                                                                                    \
	"{\"rank\":1,\"generation\":7,\"incarnation\":9,\"state\":\"building\",\"pid\":0,\"step\":null,"               \
	"\"stalled_s\":7,\"on_device\":null,\"device_memory\":{\"copied_by\":\"rank\",\"why\":\"w\"},\"reports\":{"    \
	"\"loss\":3,\"own\":1.5},\"cgroup\":\"\",\"log\":null,"                                                        \
	"\"node\":\"a\",\"device\":0}"
#define SAID_BEFORE "{\"state\":\"exited\",\"rank\":2,\"node\":\"a\",\"device\":1}"
#define SAID_HAS_ENDED                                                                                                 \
	"{\"rank\":3,\"generation\":7,\"incarnation\":9,\"state\":\"exited\",\"on_device\":null,\"node\":\"a\","       \
	"\"device\":3}"
#define SAID_UNKNOWN "{\"state\":\"unknown\",\"rank\":4,\"node\":\"b\",\"device\":0}"

#define SAID                                                                                                           \
	"{\"state\":\"live\",\"incarnation\":9,\"step\":41,\"steps_per_s\":2.0,\"stalled_s\":7,\"hangs_s\":0,"         \
	"\"reports\":{\"loss\":2,\"lr\":0.10000000000000001,\"big\":1e17,\"m\xc3\xb6"                                  \
	"b\":null,\"own\":1.5},\"ranks\":[" SAID_TRAINS "," SAID_BEGINS "," SAID_BEFORE "," SAID_HAS_ENDED             \
	"," SAID_UNKNOWN "]}"

static void assert_text(const char *want, const struct ptc_run_state *run)
{
	test_json_is(want, ptc_run_state_json(run));
}

static void ranks_as_their_nodes_say_them(void **state)
{
	struct ptc_rank_rows said = { 0 };
	struct ptc_run_rank ranks[] = { { .rank = 0, .device = 2, .node = "a", .heard = true, .health = "ecc" },
					{ .rank = 1, .device = 0, .node = "a", .heard = true },
					{ .rank = 2, .device = 1, .node = "a", .heard = true },
					{ .rank = 3, .device = 3, .node = "a", .heard = true },
					{ .rank = 4, .device = 0, .node = "b" } };
	const struct ptc_run_state run = {
		.state = "live", .incarnation = 9, .live = true, .ranks = ranks, .nranks = 5
	};

	(void)state;
	assert_int_equal(0, ptc_rank_rows_decode("[" BEFORE ", " TRAINS ", " BEGINS ", " HAS_ENDED "]", &said, NULL));
	for (size_t i = 0; i < 4; i++)
		ranks[i].row = ptc_rank_rows_find(&said, ranks[i].rank, 7, 9);
	assert_text(SAID, &run);
	ptc_rank_rows_done(&said);
}

static void processes_that_wait_without_a_rank(void **state)
{
	char a[] = "a", b[] = "b", *nodes[] = { a, b };
	struct ptc_rank_rows said[2] = { 0 };
	const struct ptc_run_state run = {
		.state = "live", .incarnation = 9, .live = true, .nnodes = 2, .nodes = nodes, .said = said
	};

	(void)state;
	assert_int_equal(
		0, ptc_rank_rows_decode("[{\"rank\": 4294967295, \"generation\": 0, \"incarnation\": 0, \"state\": "
					"\"standby\", \"pid\": 7, \"step\": null, \"on_device\": null}, " HAS_ENDED "]",
					&said[0], NULL));
	assert_int_equal(0, ptc_rank_rows_decode("[{\"rank\": 4294967295, \"state\": \"standby starts\", \"pid\": 8}]",
						 &said[1], NULL));
	assert_text("{\"state\":\"live\",\"incarnation\":9,\"ranks\":[],\"standby\":[{\"node\":\"a\",\"pid\":7,"
		    "\"state\":\"waiting\"},{\"node\":\"b\",\"pid\":8,\"state\":\"starting\"}]}",
		    &run);
	ptc_rank_rows_done(&said[0]);
	ptc_rank_rows_done(&said[1]);
}

static void jobs_whose_ranks_do_not_run(void **state)
{
	struct ptc_slow_device left = { .node = "a", .device = 3, .since_ms = 5, .until_ms = 6 };

	(void)state;
	assert_text("{\"state\":\"live\",\"incarnation\":2,\"stays\":\"it does not pay\"}",
		    &(struct ptc_run_state){ .state = "live", .incarnation = 2, .stays = "it does not pay" });
	assert_text("{\"state\":\"done\",\"incarnation\":2}",
		    &(struct ptc_run_state){ .state = "done", .incarnation = 2 });
	assert_text("{\"state\":\"failed\",\"incarnation\":2,\"left_devices\":[{\"node\":\"a\",\"device\":3,"
		    "\"since_ms\":5,\"until_ms\":6}],\"text\":\"node a: gone\"}",
		    &(struct ptc_run_state){
			    .state = "failed", .incarnation = 2, .left = { &left, 1 }, .failed = "node a: gone" });
	assert_text("{\"state\":\"recovering\",\"incarnation\":2,\"recovery\":{\"waits\":\"for b\",\"cause\":\"node\","
		    "\"reached\":40,\"restarts\":1}}",
		    &(struct ptc_run_state){ .state = "recovering",
					     .incarnation = 2,
					     .waits = "for b",
					     .cause = "node",
					     .reached = 40,
					     .restarts = 1 });
}

static void a_text_that_is_cut_in_a_character_is_left_out(void **state)
{
	(void)state;
	assert_text(
		"{\"state\":\"failed\",\"incarnation\":2,\"recovery\":{\"restarts\":1}}",
		&(struct ptc_run_state){
			.state = "failed", .incarnation = 2, .restarts = 1, .waits = "f\xc3", .failed = "node \xc3" });
}

static void ranks_that_are_slow(void **state)
{
	struct ptc_run_state run = { .state = "live",
				     .incarnation = 2,
				     .live = true,
				     .stragglers = {
					     .windows = 3,
					     .comparable = 4,
					     .slow = 9,
					     .n = 1,
					     .v = { { .rank = 1, .node = "a", .own_s = 2, .median_s = 1.5 } } } };

	(void)state;
	assert_text("{\"state\":\"live\",\"incarnation\":2,\"stragglers\":{\"windows\":3,\"comparable\":4,\"slow\":9,"
		    "\"list\":[{\"rank\":1,\"node\":\"a\",\"own_s\":2.0,\"median_s\":1.5}]},\"ranks\":[]}",
		    &run);
	memcpy(run.stragglers.text, "why", 4);
	run.stragglers.n = 0;
	assert_text("{\"state\":\"live\",\"incarnation\":2,\"stragglers\":{\"windows\":3,\"comparable\":4,\"slow\":9,"
		    "\"list\":[],\"text\":\"why\"},\"ranks\":[]}",
		    &run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_as_their_nodes_say_them),
		cmocka_unit_test(processes_that_wait_without_a_rank),
		cmocka_unit_test(jobs_whose_ranks_do_not_run),
		cmocka_unit_test(a_text_that_is_cut_in_a_character_is_left_out),
		cmocka_unit_test(ranks_that_are_slow),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
