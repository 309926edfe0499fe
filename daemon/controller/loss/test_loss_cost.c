/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of a loss, case by case: never less than it may cost. */
#include "daemon/controller/loss/loss_cost.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Two ranks train, and survive; a snapshot of step 40 is on each node. */
static const struct ptc_loss_facts whole = { .known = true, .has_run = true, .copies = 1, .snapshot_every = 50 };
static const struct ptc_loss_now trains = { .live = true,
					    .has_snapshot = true,
					    .step = 40,
					    .reached = 47,
					    .has_reached = true,
					    .ranks = 2,
					    .told = 2,
					    .survive = 2 };

static void assert_said(const char *costs, int64_t steps, const char *why, const char *otherwise,
			const struct ptc_loss_facts *f, const struct ptc_loss_now *now)
{
	json_t *j = ptc_loss_json(f, now), *other;
	const char *said;

	assert_non_null(j);
	other = json_object_get(j, "otherwise");
	said = json_string_value(json_object_get(j, "why"));
	assert_string_equal(costs, json_string_value(json_object_get(j, "costs")));
	assert_true(json_is_null(json_object_get(j, "steps")) == (steps < 0));
	if (steps >= 0)
		assert_int_equal(steps, json_integer_value(json_object_get(j, "steps")));
	if (!strstr(said, why))
		fail_msg("\"%s\" does not say \"%s\"", said, why);
	assert_int_equal(otherwise != NULL, other != NULL);
	if (otherwise)
		assert_string_equal(otherwise, json_string_value(json_object_get(other, "costs")));
	json_decref(j);
}

static void nothing_is_lost_if_the_others_have_it(void **state)
{
	struct ptc_loss_now first = trains;

	(void)state;
	assert_said("none", 0, "all ranks survive", "snapshot", &whole, &trains);
	first.has_snapshot = false;
	assert_said("none", 0, "all ranks survive", "all", &whole, &first);
}

static void steps_since_the_snapshot(void **state)
{
	struct ptc_loss_facts f = whole;
	struct ptc_loss_now now = trains;

	(void)state;
	now.survive = 1;
	now.rank = 1;
	strcpy(now.rank_why, "of the moon");
	assert_said("snapshot", 7,
		    "every 50 steps; no step would be lost if all ranks survived (ptc_survive): rank 1 does not, "
		    "because of the moon",
		    NULL, &f, &now);
	now.has_reached = false;
	assert_said("snapshot", -1, "of step 40", NULL, &f, &now);
	now = trains;
	now.told = now.survive = 1;
	assert_said("snapshot", 7, "not known yet: 1 of 2 ranks", NULL, &f, &now);
	now = trains;
	strcpy(f.ranks.node, "n1");
	strcpy(f.ranks.tensor, "w");
	assert_said("snapshot", 7, "only ranks of node n1 have a part of tensor \"w\"", NULL, &f, &now);
	f = whole;
	f.not_taken = "a rule";
	f.snapshot_every = 0;
	assert_said("snapshot", 7,
		    "only if a person asks for it (`snapshot_every: 0`); the memory of ranks that are left "
		    "cannot be used: a rule",
		    NULL, &f, &now);
	now.has_snapshot = false;
	assert_said("all", 47, "begin again at its first step", NULL, &f, &now);
}

static void one_node_alone(void **state)
{
	struct ptc_loss_facts f = whole;

	(void)state;
	strcpy(f.stored.node, "n1");
	strcpy(f.stored.tensor, "w");
	assert_said("waits", 7,
		    "only node n1 has a part of tensor \"w\" of the newest snapshot: the job would wait for the node; "
		    "`copies",
		    NULL, &f, &trains);
	f.copies = 2;
	assert_said("waits", 7, "its copies are not complete", NULL, &f, &trains);
	f.has_bridge = true;
	f.bridge_step = 30;
	assert_said("snapshot", 17, "the snapshot of step 30", NULL, &f, &trains);
	f.elastic.on_failure = PTC_JOB_WAIT; /* it goes back by itself only with shrink */
	assert_said("waits", 7, "`on_failure: wait`", NULL, &f, &trains);
	f = whole;
	strcpy(f.stuck, "n2");
	strcpy(f.stuck_why, "too few devices");
	assert_said("waits", 7, "without node n2 the job would wait for it, or for another node: too few devices", NULL,
		    &f, &trains);
	f.elastic.on_failure = PTC_JOB_STOP;
	assert_said("fails", 7, "`on_failure: stop`", NULL, &f, &trains);
}

static void no_ranks_run(void **state)
{
	const struct ptc_loss_now rests = { .has_snapshot = true, .step = 40 };
	struct ptc_loss_facts f = whole;

	(void)state;
	assert_said("none", 0, "every tensor is on other nodes", NULL, &f, &rests);
	strcpy(f.stored.node, "n1");
	strcpy(f.stored.tensor, "w");
	assert_said("waits", 0, "refused until the node is back; `copies: {count: 2}`", NULL, &f, &rests);
}

static void nobody_knows(void **state)
{
	const struct ptc_loss_facts none = { .why = "etcd is unreachable" };
	struct ptc_loss_now now = trains;

	(void)state;
	assert_said("unknown", -1, "not known yet: etcd is unreachable", NULL, &none, &now);
	now.switching = true;
	assert_said("unknown", -1, "a switch is under way", NULL, &whole, &now);
	now.recovering = true;
	assert_said("unknown", -1, "being started again", NULL, &whole, &now);
}

/* ---- of a description ---- */

static void assert_described(size_t lines, const char *first, const char *last, const struct ptc_job_desc *job)
{
	json_t *said = ptc_loss_described(job);

	assert_int_equal(lines, json_array_size(said));
	assert_non_null(strstr(json_string_value(json_array_get(said, 0)), first));
	assert_non_null(strstr(json_string_value(json_array_get(said, lines - 1)), last));
	json_decref(said);
}

static void a_description(void **state)
{
	struct ptc_job_gpus gpus[] = { { .n = 2 }, { .n = 4 } };
	struct ptc_job_desc job = { .copies = { .count = 1 } };

	(void)state;
	assert_described(1, "without `copies`", "`copies: {count: 2}` keeps it on two", &job);
	job.has_run = true;
	assert_described(2,
			 "on the devices that are left, and loses all steps since the last snapshot that a person made",
			 "gen.survive()", &job);
	job.snapshot_every = 7;
	job.gpus = gpus;
	job.ngpus = 2;
	job.copies = (struct ptc_job_copies){ 3, true };
	assert_described(2,
			 "on the devices that are left, and loses the steps since its newest snapshot, which is due "
			 "every 7 steps",
			 "every part of the state on 3 racks", &job);
	job.elastic.min_gpus = 4;
	assert_described(2, "it has no configuration for fewer devices", "gen.survive()", &job);
	job.elastic.on_failure = PTC_JOB_WAIT;
	assert_described(2, "`on_failure: wait`", "once they are made", &job);
	job.elastic.on_failure = PTC_JOB_STOP;
	assert_described(2, "`on_failure: stop`", "once they are made", &job);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_lost_if_the_others_have_it),
		cmocka_unit_test(steps_since_the_snapshot),
		cmocka_unit_test(one_node_alone),
		cmocka_unit_test(no_ranks_run),
		cmocka_unit_test(nobody_knows),
		cmocka_unit_test(a_description),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
