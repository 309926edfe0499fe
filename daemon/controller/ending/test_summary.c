/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller of a committed switch hears, and what its event says: of a resize whose ranks ran, with and without
 * their first step, and of a snapshot of a job at rest. The summary keeps the plan when the controller goes on. Ranks
 * that built ahead are the test's. */
#include "daemon/controller/internal.h"

#include "base/sys/sys.h"
#include "base/test_leaks.h"
#include "formats/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static double ahead_s, slowed_s; /* below 0: not known */

bool ptc_ahead_took(const struct ptc_controller *ctl, double *ret_seconds)
{
	*ret_seconds = ahead_s;
	return ahead_s >= 0;
}

bool ptc_ahead_slowed(const struct ptc_controller *ctl, int64_t until_ns, uint64_t step, double *ret_seconds)
{
	*ret_seconds = slowed_s;
	return slowed_s >= 0;
}

#define MS INT64_C(1000000)

static char *nodes[] = { (char *)(uintptr_t) "n0", (char *)(uintptr_t) "n1" };
static uint32_t on[] = { 0, 0, 1, 0 }, device[] = { 0, 1, 0, 2 };

/* A resize of ranks that stood still for 30 ms and some more. */
static struct ptc_controller *resize(struct ptc_controllers *all)
{
	struct ptc_controller *ctl = ptc_calloc(1, sizeof *ctl);
	const struct ptc_generation_doc to = { .config = (char *)(uintptr_t) "dp=4",
					       .nodes = nodes,
					       .nnodes = 2,
					       .world = 4,
					       .rank_node = on,
					       .rank_device = device };
	int64_t now = ptc_sys_now_ns();

	ctl->all = all;
	snprintf(ctl->meta.name, sizeof ctl->meta.name, "gpt");
	ctl->intent = (struct ptc_intent_doc){ .id = 3,
					       .kind = PTC_SWITCH_RESIZE,
					       .to_generation = 4,
					       .to_snapshot = 5,
					       .run_from = true,
					       .run_to = true };
	ctl->record.step = 6;
	ctl->from_config = (char *)(uintptr_t) "dp=1";
	ctl->captured_bytes = 10;
	ctl->ndigests = 9;
	ctl->view.to = to;
	ctl->view.from = to;
	ctl->view.from.world = 1;
	ctl->view.from.nnodes = 1;
	ctl->phases[0].phase = PTC_JOB_IDLE;
	ctl->phases[0].at_ns = now - 60 * MS;
	ctl->phases[1].phase = PTC_JOB_ARMING;
	ctl->phases[1].at_ns = now - 50 * MS;
	ctl->phases[2].phase = PTC_JOB_SEALING;
	ctl->phases[2].at_ns = now - 30 * MS;
	ctl->phases[3].phase = PTC_JOB_BUILDING;
	ctl->phases[3].at_ns = now - 20 * MS;
	ctl->nphases = 4;
	ctl->plan = ptc_calloc(1, sizeof *ctl->plan);
	snprintf(ctl->plan->job, sizeof ctl->plan->job, "gpt");
	assert_int_equal(0, ptc_generation_doc_copy(&to, &ctl->plan->to));
	ctl->plan->nodes = ptc_calloc(2, sizeof *ctl->plan->nodes);
	ctl->plan->nnodes = 2;
	ctl->plan->nodes[0] = (struct ptc_plan_node){ .name = "n0", .state = "up", .counted = true };
	ctl->plan->nodes[1] = (struct ptc_plan_node){ .name = "n1", .state = "up", .counted = true, .in_bytes = 7 };
	ctl->plan->counted = true;
	ctl->plan->totals.between_nodes = 7;
	ctl->plan->totals.gap = 7;
	return ctl;
}

static json_t *text_of(const struct ptc_switch_summary *s, double first_step_ms)
{
	char *text = ptc_switch_summary_text(s, first_step_ms);
	json_t *root = NULL;

	assert_int_equal(0, ptc_json_load("summary", text, strlen(text), &root, NULL));
	ptc_free(text);
	return root;
}

static void assert_keys(const json_t *map, const char *want)
{
	char keys[1024] = "";
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)(uintptr_t)map, key, value)
		snprintf(keys + strlen(keys), sizeof keys - strlen(keys), "%s%s", keys[0] ? " " : "", key);
	assert_string_equal(want, keys);
}

static double ms(const json_t *root, const char *key)
{
	return json_number_value(json_object_get(json_object_get(root, "pause"), key));
}

#define PHASES "total_ms stop_ms copy_ms commit_ms end_ms build_ms move_ms restore_ms"
#define MEMBERS                                                                                                        \
	"id kind generation snapshot step from to received_bytes copied_bytes digests_verified preserved seconds"

static void of_a_resize(void **state)
{
	struct ptc_controllers all = { 0 };
	struct ptc_controller *ctl = resize(&all);
	const struct ptc_switch_end *end;
	struct ptc_switch_summary *s;
	json_t *root, *then;
	uint64_t step;

	(void)state;
	ahead_s = slowed_s = -1;
	s = ptc_switch_summary_new(ctl, &end);
	assert_non_null(s);
	assert_null(ctl->plan);
	ptc_free(ctl); /* the summary has its own copy of everything */
	assert_true(ptc_switch_summary_waits(s, &step) && step == 6);

	assert_string_equal("0-1,3", end->after[0].ranks);
	assert_string_equal("n1", end->after[1].node);
	assert_true(end->nafter == 2 && end->nbefore == 1 && end->nnodes == 1 && end->nodes[0].in_bytes == 7);
	assert_string_equal("native", end->preserved);

	root = text_of(ptc_switch_summary_ref(s), -1);
	ptc_switch_summary_unref(s);
	assert_keys(root, "version job phases verified_bytes plan " MEMBERS " captured_bytes pause");
	assert_keys(json_object_get(root, "pause"), PHASES " lost_ms");
	assert_int_equal(3, json_array_size(json_object_get(root, "phases")));
	assert_int_equal(7, json_integer_value(
				    json_object_get(json_object_get(json_object_get(root, "plan"), "totals"), "gap")));
	assert_true(ms(root, "stop_ms") == 20 && ms(root, "copy_ms") == 10 && ms(root, "build_ms") >= 20);
	then = text_of(s, 2.5);
	assert_keys(json_object_get(then, "pause"), PHASES " lost_ms first_step_ms");
	assert_true(ms(then, "first_step_ms") == 2.5 && ms(then, "total_ms") == ms(root, "total_ms") + 2.5 &&
		    ms(then, "lost_ms") == ms(root, "lost_ms") + 2.5);
	json_decref(root);
	json_decref(then);
	ptc_switch_summary_unref(s);
}

static void of_ranks_that_built_ahead(void **state)
{
	struct ptc_controllers all = { 0 };

	(void)state;
	for (int known = 0; known < 2; known++) {
		struct ptc_controller *ctl = resize(&all);
		const struct ptc_switch_end *end;
		struct ptc_switch_summary *s;
		json_t *root;

		ahead_s = 2;
		slowed_s = known ? 0.025 : -1;
		s = ptc_switch_summary_new(ctl, &end);
		ptc_free(ctl);
		root = text_of(s, -1);
		assert_keys(root,
			    "version job phases verified_bytes plan " MEMBERS " captured_bytes pause built_ahead_ms");
		assert_keys(json_object_get(root, "pause"), known ? PHASES " slowed_ms lost_ms" : PHASES);
		if (known) /* of 25 ms, ranks stood still for 20 */
			assert_true(ms(root, "slowed_ms") == 5 && ms(root, "lost_ms") == ms(root, "total_ms") + 5);
		json_decref(root);
		ptc_switch_summary_unref(s);
	}
}

static void of_a_job_at_rest(void **state)
{
	struct ptc_controllers all = { 0 };
	struct ptc_controller *ctl = resize(&all);
	const struct ptc_switch_end *end;
	struct ptc_switch_summary *s;
	json_t *root;
	uint64_t step;

	(void)state;
	ahead_s = -1;
	ptc_plan_report_free(ctl->plan);
	ctl->plan = NULL;
	ctl->intent.kind = PTC_SWITCH_IMPORT;
	ctl->intent.run_from = ctl->intent.run_to = false;
	ctl->device.kept_bytes = 1;
	s = ptc_switch_summary_new(ctl, &end);
	ptc_free(ctl);
	assert_false(ptc_switch_summary_waits(s, &step));
	assert_true(!end->counted && !end->nodes);
	root = text_of(s, -1);
	assert_keys(root, "version job phases verified_bytes plan " MEMBERS
			  " device_kept_bytes device_peer_bytes device_host_bytes");
	assert_true(json_is_null(json_object_get(root, "plan")));
	assert_string_equal("import", json_string_value(json_object_get(root, "kind")));
	assert_string_equal("bytes", json_string_value(json_object_get(root, "preserved")));
	json_decref(root);
	ptc_switch_summary_unref(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_a_resize),
		cmocka_unit_test(of_ranks_that_built_ahead),
		cmocka_unit_test(of_a_job_at_rest),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
