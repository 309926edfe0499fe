/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices a job grows to. The cluster, etcd and the planner are decided here; what growth asks to be planned, and
 * what it keeps in etcd, is looked at. */
#include "daemon/controller/internal.h"
#include "daemon/controller/recovery/straggler_drain.h"
#include "daemon/controller/test_nodes.h"

#include "base/alloc.h"
#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SWITCH   77
#define SECOND   INT64_C(1000000000)
#define ASKED_24 6 /* times within 24 s, if that fails: after 0, 1, 3, 7, 15, 23 s */

static struct {
	bool busy;         /* a switch is under way */
	const char *slow;  /* a node whose device the job has left; NULL: none */
	int etcd;          /* what a read or a write comes to */
	unsigned asked;    /* how often etcd was */
	unsigned plans;    /* that were asked for */
	unsigned switches; /* that were submitted */
	char kept[512];    /* in etcd; read: it is read from there */
	bool read;
	uint64_t epoch;        /* of the cluster */
	char event[512];       /* the last one */
	uint32_t ranks[NODES]; /* the number of the node of each rank */
	void (*planned)(struct ptc_controller *ctl, struct ptc_recovery_plan *p);
} t;

static struct ptc_controllers all;
static struct ptc_controller job;

/* ---- the rooms below ---- */

bool ptc_plan_builds_ahead(const struct ptc_plan_report *r)
{
	(void)r;
	return false;
}

bool ptc_cluster_find_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	(void)c;
	*ret_index = (uint32_t)(name[1] - '0');
	return *ret_index < NODES;
}

struct ptc_job_view *ptc_cluster_find_uuid(struct ptc_cluster *c, const char *uuid)
{
	static struct ptc_job_view view;

	(void)c, (void)uuid;
	return &view;
}

const struct ptc_slow_device *ptc_slow_device_find(const struct ptc_slow_devices *d, const char *node, uint32_t device,
						   int64_t now_ms)
{
	static const struct ptc_slow_device found;

	(void)d, (void)device, (void)now_ms;
	return t.slow && strcmp(node, t.slow) == 0 ? &found : NULL;
}

bool ptc_cluster_device_free(struct ptc_cluster *c, const char *node, uint32_t device, const char *uuid, bool shares,
			     const struct ptc_job_view **ret_by)
{
	(void)c, (void)node, (void)device, (void)uuid, (void)shares, (void)ret_by;
	return true;
}

bool ptc_node_device_well(const struct ptc_node *n, uint32_t device, char ret_health[PTC_HEALTH_BYTES])
{
	(void)n, (void)device, (void)ret_health;
	return true;
}

uint64_t ptc_cluster_epoch(const struct ptc_cluster *c)
{
	(void)c;
	return t.epoch;
}

uint64_t ptc_cluster_device_writes(const struct ptc_cluster *c)
{
	(void)c;
	return 0;
}

int64_t ptc_quarantine_left(const struct ptc_quarantine *q, int64_t now_ns)
{
	(void)q, (void)now_ns;
	return 0;
}

int ptc_cluster_run(struct ptc_cluster *c, const char *lane, void (*work)(void *arg, struct ptc_etcd *etcd),
		    void (*done)(void *arg), void *arg)
{
	(void)c, (void)lane;
	work(arg, NULL);
	done(arg);
	return 0;
}

int ptc_etcd_txn(struct ptc_etcd *e, const struct ptc_etcd_compare *cmp, size_t ncmp, const struct ptc_etcd_op *ops,
		 size_t nops, const char *point, bool *ret_ok, int64_t *ret_revision, struct ptc_error *err)
{
	(void)e, (void)cmp, (void)ncmp, (void)nops, (void)point, (void)ret_revision, (void)err;
	t.asked++;
	*ret_ok = !t.etcd;
	if (!t.etcd)
		snprintf(t.kept, sizeof t.kept, "%.*s", (int)ops->len, (const char *)ops->value);
	return t.etcd;
}

int ptc_etcd_get(struct ptc_etcd *e, const char *key, bool prefix, size_t max_keys, struct ptc_etcd_kvs *ret_kvs,
		 struct ptc_error *err)
{
	static struct ptc_etcd_kv kv;

	(void)e, (void)key, (void)prefix, (void)max_keys, (void)err;
	t.asked++;
	kv = (struct ptc_etcd_kv){ .value = t.kept, .len = strlen(t.kept) };
	if (t.read)
		*ret_kvs = (struct ptc_etcd_kvs){ .kv = &kv, .n = 1 };
	return t.etcd;
}

void ptc_etcd_kvs_done(struct ptc_etcd_kvs *kvs)
{
	(void)kvs;
}

void ptc_event(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt, ...)
{
	va_list ap;

	(void)c, (void)uuid, (void)kind;
	va_start(ap, fmt);
	vsnprintf(t.event, sizeof t.event, fmt, ap);
	va_end(ap);
}

const struct ptc_generation_doc *ptc_controller_current(const struct ptc_controller *ctl)
{
	return &ctl->view.from;
}

bool ptc_controller_idle(const struct ptc_controller *ctl)
{
	(void)ctl;
	return !t.busy;
}

bool ptc_controller_ranks_on(const struct ptc_controller *ctl, const char *node)
{
	(void)ctl, (void)node;
	return true;
}

struct ptc_controller *ptc_controller_ref(struct ptc_controller *ctl)
{
	return ctl;
}

void ptc_controller_unref(struct ptc_controller *ctl)
{
	(void)ctl;
}

void ptc_controller_request(const struct ptc_controller *ctl, enum ptc_switch_kind kind, struct ptc_switch_request *ret)
{
	(void)ctl;
	*ret = (struct ptc_switch_request){ .kind = kind, .id = SWITCH };
}

void ptc_switch_request_plan(struct ptc_switch_request *r, struct ptc_planned *planned)
{
	(void)r, (void)planned;
}

void ptc_switch_request_done(struct ptc_switch_request *r)
{
	(void)r;
}

void ptc_recovery_keep(struct ptc_controller *ctl, const struct ptc_recovery_plan *p)
{
	(void)ctl, (void)p;
}

void ptc_recovery_plan(struct ptc_controller *ctl, enum ptc_recovery_for what,
		       void (*planned)(struct ptc_controller *ctl, struct ptc_recovery_plan *p))
{
	assert_ptr_equal(ctl, &job);
	assert_true(what == PTC_RECOVERY_GROW || what == PTC_RECOVERY_AGAIN);
	t.plans++;
	t.planned = planned;
}

static int submit(struct ptc_controller *ctl, struct ptc_switch_request *r, struct ptc_error *err)
{
	(void)err;
	t.switches++;
	t.busy = true;
	ctl->intent = (struct ptc_intent_doc){ .id = r->id, .kind = r->kind };
	return 0;
}

/* ---- the test ---- */

/* The job's ranks are on these nodes, one on each. */
static void runs_on(const char *numbers, uint64_t incarnation)
{
	static char names[NODES][3] = { "n0", "n1", "n2", "n3" };
	static char *nodes[NODES] = { names[0], names[1], names[2], names[3] };

	job.view.from = (struct ptc_generation_doc){ .nodes = nodes, .nnodes = NODES, .rank_node = t.ranks };
	for (; numbers[job.view.from.world]; job.view.from.world++)
		t.ranks[job.view.from.world] = (uint32_t)(numbers[job.view.from.world] - '0');
	job.record.incarnation = incarnation;
	t.busy = false;
}

/* A second later. */
static void tick(void)
{
	if (job.recovery.growth.counted_ns)
		job.recovery.growth.counted_ns = 1;
	if (job.recovery.growth.since_ns)
		job.recovery.growth.since_ns = 1;
	job.recovery.growth.etcd_ns -= SECOND;
	ptc_growth_tick(&job);
}

/* Whether a plan is asked for by the devices that are there now. */
static bool asks(void)
{
	const unsigned before = t.plans;

	tick();
	tick();
	return t.plans > before;
}

static void answer(void)
{
	static struct ptc_plan_report report;
	static char config[] = "dp=3";
	struct ptc_recovery_plan p = { .planned.plan = &report, .planned.to.config = config };

	t.planned(&job, &p);
}

static int begin(void **state)
{
	(void)state;
	memset(&t, 0, sizeof t);
	job = (struct ptc_controller){ .all = &all, .submit = submit, .has_record = true, .record.run = PTC_RUN_LIVE };
	job.recovery.has_elastic = job.recovery.elastic.grow = true;
	job.recovery.elastic.join_after_ms = 1;
	for (int i = 0; i < NODES; i++) {
		test_nodes[i] = (struct ptc_node){ .up = true, .doc.devices = 1 };
		snprintf(test_nodes[i].doc.name, sizeof test_nodes[i].doc.name, "n%d", i);
	}
	return 0;
}

static int end(void **state)
{
	(void)state;
	ptc_free(job.recovery.growth.seen);
	ptc_free(job.recovery.growth.planned);
	ptc_free(job.recovery.growth.offers);
	ptc_free(job.recovery.growth.quarantined);
	return 0;
}

/* What is there at first has been weighed; what comes later joins, once. */
static void test_joins(void **state)
{
	(void)state;
	test_nodes[3].up = false;
	runs_on("01", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	test_nodes[3].up = true;
	assert_true(asks());
	answer();
	assert_int_equal(t.switches, 1);
	runs_on("013", SWITCH);
	assert_false(asks());
	assert_non_null(strstr(t.kept, "\"n3\""));
}

/* An operator gives back a device that was slow while the ranks still leave it: before devices were counted without it,
 * or after that. */
static void give_back(bool counted)
{
	struct ptc_recovery_plan p = { 0 };
	uint64_t id;

	runs_on("0123", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	t.slow = "n2";
	assert_true(ptc_growth_submit(&job, &p, &id));
	if (counted)
		tick();
	t.slow = NULL;
	assert_false(asks());
	runs_on("013", id);
	assert_true(asks());
	answer();
	assert_int_equal(t.switches, 2);
}

static void test_given_back_at_once(void **state)
{
	(void)state;
	give_back(false);
}

static void test_given_back_before_the_end(void **state)
{
	(void)state;
	give_back(true);
}

/* The switch that was to leave it has come to nothing: the device is the job's as before. */
static void test_given_back_and_kept(void **state)
{
	struct ptc_recovery_plan p = { 0 };
	uint64_t id;

	(void)state;
	runs_on("0123", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	t.slow = "n2";
	assert_true(ptc_growth_submit(&job, &p, &id));
	t.slow = NULL;
	assert_false(asks());
	t.busy = false;
	ptc_growth_tick(&job); /* at once, not only after a second */
	assert_int_equal(job.recovery.growth.first_ns, 0);
	assert_false(asks());
}

/* A snapshot moves no rank: what the job has has been weighed. */
static void test_snapshot(void **state)
{
	(void)state;
	test_nodes[3].up = false;
	runs_on("012", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	test_nodes[3].up = true;
	runs_on("0123", 2);
	t.busy = true;
	job.intent = (struct ptc_intent_doc){ .kind = PTC_SWITCH_SNAPSHOT, .run_to = true };
	tick();
	t.busy = false;
	ptc_growth_tick(&job);
	assert_int_equal(job.recovery.growth.first_ns, 0);
	assert_false(asks());
}

/* A device that the plan counted leaves, and is back before the switch has ended that does without it: it joins. */
static void test_back_in_the_switch(void **state)
{
	(void)state;
	test_nodes[2].up = test_nodes[3].up = false;
	runs_on("01", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	test_nodes[2].up = test_nodes[3].up = true;
	assert_true(asks());
	answer();
	assert_int_equal(t.switches, 1);
	test_nodes[3].up = false;
	tick();
	test_nodes[3].up = true;
	tick();
	runs_on("012", SWITCH);
	tick(); /* the switch has ended */
	assert_true(asks());
}

/* A device that the plan counted has left when the plan comes, which waited for a snapshot, or had left meanwhile. */
static void test_gone_as_it_is_planned(void **state)
{
	(void)state;
	test_nodes[3].up = false;
	runs_on("01", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	test_nodes[3].up = true;
	assert_true(asks());
	test_nodes[3].up = false;
	tick();
	test_nodes[3].up = true;
	tick();
	answer();
	assert_int_equal(t.switches, 0);
	assert_true(asks());
	answer();
	assert_int_equal(t.switches, 1);
}

/* A node is drained, or down, as the job is started again without it: it joins when it is back. */
static void test_absent(void **state)
{
	(void)state;
	runs_on("0123", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	test_nodes[2].drained = true;
	test_nodes[3].up = false;
	job.record.run = PTC_RUN_FAILED;
	job.record.recovery = PTC_RECOVERY_NODE;
	ptc_growth_forget_absent(&job);
	assert_null(strstr(t.kept, "\"n2\""));
	assert_null(strstr(t.kept, "\"n3\""));
	test_nodes[2].drained = false;
	job.record.run = PTC_RUN_LIVE;
	job.record.recovery = PTC_RECOVERY_NONE;
	runs_on("01", 2);
	assert_true(asks());
}

/* What was forgotten while etcd was unreachable is written later: another controller must not take it as weighed. */
static void test_written_later(void **state)
{
	(void)state;
	runs_on("01", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	assert_non_null(strstr(t.kept, "\"n3\""));
	test_nodes[3].up = false;
	t.etcd = PTC_ECOORD;
	tick();
	assert_non_null(strstr(t.kept, "\"n3\""));
	t.etcd = 0;
	tick();
	assert_null(strstr(t.kept, "\"n3\""));
}

/* Several ticks a second, while etcd cannot be read or takes no writes. */
static void fails_for_24_s(void)
{
	t.etcd = PTC_ENOSPC;
	t.asked = 0;
	for (int s = 0; s < 24; s++) {
		tick();
		ptc_growth_tick(&job);
		ptc_growth_forget_absent(&job);
	}
	assert_int_equal(t.asked, ASKED_24);
	t.etcd = 0;
}

static void test_reads_ever_later(void **state)
{
	(void)state;
	ptc_growth_note(&job);
	runs_on("01", 1);
	fails_for_24_s();
	for (int s = 0; s < 8; s++)
		tick();
	assert_int_equal(t.asked, ASKED_24 + 2); /* there was nothing to read, so it is written */
	assert_non_null(strstr(t.kept, "\"n3\""));
}

static void test_writes_ever_later(void **state)
{
	(void)state;
	runs_on("01", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	for (int i = 0; i < 2; i++) { /* after a success the waits are short again */
		test_nodes[3 - i].up = false;
		fails_for_24_s();
		for (int s = 0; s < 8; s++)
			tick();
		assert_int_equal(t.asked, ASKED_24 + 1);
		assert_null(strstr(t.kept, i ? "\"n2\"" : "\"n3\""));
	}
}

/* Links have changed, and another switch is under way when the plan for that comes: it is planned once more. */
static void test_replan(void **state)
{
	(void)state;
	runs_on("01", 1);
	ptc_growth_replan(&job);
	assert_int_equal(t.plans, 1);
	t.busy = true;
	answer();
	assert_true(job.recovery.replan);
	assert_int_equal(t.switches, 0);
	t.busy = job.recovery.replan = false;
	answer();
	assert_false(job.recovery.replan);
	assert_int_equal(t.switches, 1);
}

/* The job's switch to more devices comes to nothing, as often as it is tried. */
static void fails(unsigned times)
{
	const unsigned before = t.switches;

	for (unsigned i = 0; i < times; i++) {
		assert_true(asks());
		answer();
		t.busy = false;
		tick();
	}
	assert_int_equal(t.switches, before + times);
	assert_false(asks());
}

/* It fails too often: status says so, whoever controls the job, and it is tried once more when nodes have changed. */
static void test_failed_too_often(void **state)
{
	const char said[] =
		"more devices are free, of n3; the job stays as it is: the switch has failed too often; it is "
		"tried again when nodes have changed";

	(void)state;
	test_nodes[3].up = false;
	runs_on("012", 1);
	ptc_growth_note(&job);
	assert_false(asks());
	assert_string_equal(ptc_growth_stays(&job), "");
	test_nodes[3].up = true;
	fails(5);
	assert_string_equal(t.event, said);
	assert_string_equal(ptc_growth_stays(&job), said);
	assert_non_null(strstr(t.kept, "\"n3\""));
	job.recovery.growth.failed_ns = 1;
	assert_false(asks()); /* nothing has changed */
	job.recovery.growth.failed_ns = ptc_sys_now_ns();
	t.epoch++;
	assert_false(asks()); /* it is too soon */

	job.recovery.growth.state = PTC_GROWTH_UNREAD; /* another controller */
	job.recovery.growth.failed_ns = 0;
	job.recovery.growth.stays[0] = '\0';
	t.read = true;
	assert_false(asks());
	assert_string_equal(ptc_growth_stays(&job), said);

	t.epoch++;
	job.recovery.growth.failed_ns = 1;
	fails(1);
	assert_string_equal(ptc_growth_stays(&job), said);
	t.epoch++;
	job.recovery.growth.failed_ns = 1;
	assert_true(asks());
	answer();
	assert_string_equal(ptc_growth_stays(&job), "");
	runs_on("0123", SWITCH);
	assert_false(asks());
	assert_string_equal(ptc_growth_stays(&job), "");
	assert_null(strstr(t.kept, "stays"));
}

/* The devices that were weighed leave, or a person resizes the job to them: it does not stay because of them any more.
 */
static void test_stays_no_longer(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		test_nodes[3].up = false;
		runs_on("012", 1);
		ptc_growth_note(&job);
		assert_false(asks());
		test_nodes[3].up = true;
		fails(5);
		assert_true(*ptc_growth_stays(&job));
		if (i)
			test_nodes[3].up = false;
		else
			runs_on("0123", 2);
		tick();
		assert_string_equal(ptc_growth_stays(&job), "");
	}
	test_nodes[3].up = true; /* it joins as ever, with all tries */
	fails(5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_joins, begin, end),
		cmocka_unit_test_setup_teardown(test_given_back_at_once, begin, end),
		cmocka_unit_test_setup_teardown(test_given_back_before_the_end, begin, end),
		cmocka_unit_test_setup_teardown(test_given_back_and_kept, begin, end),
		cmocka_unit_test_setup_teardown(test_snapshot, begin, end),
		cmocka_unit_test_setup_teardown(test_back_in_the_switch, begin, end),
		cmocka_unit_test_setup_teardown(test_gone_as_it_is_planned, begin, end),
		cmocka_unit_test_setup_teardown(test_absent, begin, end),
		cmocka_unit_test_setup_teardown(test_written_later, begin, end),
		cmocka_unit_test_setup_teardown(test_reads_ever_later, begin, end),
		cmocka_unit_test_setup_teardown(test_writes_ever_later, begin, end),
		cmocka_unit_test_setup_teardown(test_replan, begin, end),
		cmocka_unit_test_setup_teardown(test_failed_too_often, begin, end),
		cmocka_unit_test_setup_teardown(test_stays_no_longer, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
