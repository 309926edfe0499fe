/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of a loss, case by case: never less than it may cost. And when it is found out anew. */
#include "daemon/controller/loss/loss_cost.h"

#include "daemon/controller/internal.h"
#include "daemon/controller/leaving/leaving.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
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

/* ---- when facts are found anew ---- */

/* What the job's nodes and devices are, as the mirror and the controller would say it. */
static struct {
	uint64_t node_changes, device_writes;
	const char *leaves;
	struct ptc_node nodes[3];
	struct ptc_job_view job, other;
	struct ptc_slow_device slow[2];
	struct ptc_device_given given[2];
	struct ptc_devices_doc devices;
} now;

uint64_t ptc_cluster_epoch(const struct ptc_cluster *c)
{
	return now.node_changes;
}

uint64_t ptc_cluster_device_writes(const struct ptc_cluster *c)
{
	return now.device_writes;
}

size_t ptc_cluster_nnodes(const struct ptc_cluster *c)
{
	return PTC_ARRAY_LEN(now.nodes);
}

struct ptc_node *ptc_cluster_node(struct ptc_cluster *c, uint32_t index)
{
	return &now.nodes[index];
}

const struct ptc_devices_doc *ptc_cluster_devices(const struct ptc_cluster *c)
{
	return &now.devices;
}

struct ptc_job_view *ptc_cluster_find_uuid(struct ptc_cluster *c, const char *uuid)
{
	return strcmp(uuid, "own") == 0 ? &now.job : strcmp(uuid, "other") == 0 ? &now.other : NULL;
}

bool ptc_leaving_has(const struct ptc_controller *ctl, const char *node)
{
	return now.leaves && strcmp(now.leaves, node) == 0;
}

static void begin_now(void)
{
	memset(&now, 0, sizeof now);
	strcpy(now.nodes[0].doc.name, "n0");
	strcpy(now.nodes[1].doc.name, "n1");
	strcpy(now.nodes[2].doc.name, "n2");
	now.other.has_meta = true;
	strcpy(now.given[0].node, "n0");
	strcpy(now.given[0].uuid, "own");
	strcpy(now.given[1].node, "n2");
	strcpy(now.given[1].uuid, "other");
	now.devices = (struct ptc_devices_doc){ now.given, 2 };
	now.slow[0] = (struct ptc_slow_device){ .node = "n1", .device = 1, .until_ms = INT64_MAX };
	now.slow[1] = (struct ptc_slow_device){ .node = "n1", .device = 2, .until_ms = 1 };
	now.job.slow.v = now.slow;
}

/* Each line is another state, and each is found anew: but for what would change nothing. */
static void found_anew(void **state)
{
	char n0[] = "n0", n1[] = "n1", n2[] = "n2", *names[] = { n0, n1 };
	bool has[] = { true, true };
	struct ptc_controllers all = { 0 };
	struct ptc_controller *ctl = calloc(1, sizeof *ctl);
	struct ptc_view *v = calloc(1, sizeof *v);
	uint64_t keys[12];
	size_t n = 0;

	begin_now();
	v->nnodes = 2;
	v->nodes = names;
	v->from_generation = 3;
	v->from_snapshot = 5;
	strcpy(v->meta.uuid, "own");
#define KEY() (keys[n++] = ptc_loss_key(&all, ctl, v, has))
	KEY();
	v->from_snapshot = 6; /* as good as the one before */
	now.job.slow.n = 0;
	assert_int_equal(ptc_loss_key(&all, ctl, v, has), keys[0]);
	now.leaves = "n1"; /* its ranks are to go from there */
	KEY();
	now.leaves = "n2"; /* that was spare */
	KEY();
	now.leaves = NULL;
	assert_int_equal(ptc_loss_key(&all, ctl, v, has), keys[0]);
	now.job.slow.n = 1; /* it has left a device */
	KEY();
	now.job.slow.n = 2; /* and another one, whose time is over */
	assert_int_equal(ptc_loss_key(&all, ctl, v, has), keys[3]);
	now.slow[0].until_ms = 1;
	assert_int_equal(ptc_loss_key(&all, ctl, v, has), keys[0]);
	now.other.has_meta = false; /* deleted: it has its devices no more */
	KEY();
	now.other.has_meta = true;
	now.device_writes++;
	KEY();
	now.node_changes++;
	KEY();
	has[1] = false;
	KEY();
	names[1] = n2;
	KEY();
	v->from_generation++;
	KEY();
	ctl->older.doc.bridge.snapshot = 4;
	KEY();
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			assert_int_not_equal(keys[i], keys[k]);
	free(ctl);
	free(v);
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
		cmocka_unit_test(found_anew),
		cmocka_unit_test(a_description),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
