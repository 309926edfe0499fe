/* SPDX-License-Identifier: Apache-2.0 */
/* How a job leaves slow devices, and gets them back. The cluster, etcd and planning are decided here; events, and what
 * is written into etcd, are looked at. */
#include "daemon/controller/internal.h"
#include "daemon/controller/recovery/straggler_drain.h"

#include "base/alloc.h"
#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RANKS  4
#define HOUR_S 3600

static struct {
	int etcd;                                       /* what a write comes to */
	unsigned plans;                                 /* that were asked for */
	unsigned events;                                /* that were told */
	char event[512];                                /* the last of them */
	char written[128];                              /* the last keys, behind the job's; "-": removed */
	void (*work)(void *arg, struct ptc_etcd *etcd); /* of a write that is tried again later */
	void (*done)(void *arg);
	void *arg;
	void (*planned)(struct ptc_controller *ctl, struct ptc_recovery_plan *p);
} t;

static struct ptc_controllers all;
static struct ptc_controller job;
static struct ptc_job_view view;
static struct ptc_straggler_drain drain;
static struct ptc_slow_rank ranks[RANKS];

/* ---- the rooms below ---- */

struct ptc_job_view *ptc_cluster_find_uuid(struct ptc_cluster *c, const char *uuid)
{
	(void)c, (void)uuid;
	return &view;
}

bool ptc_cluster_find_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	(void)c, (void)name;
	*ret_index = 0;
	return true;
}

struct ptc_node *ptc_cluster_node(struct ptc_cluster *c, uint32_t index)
{
	static struct ptc_node node = { .up = true, .doc.devices = RANKS };

	(void)c, (void)index;
	return &node;
}

bool ptc_node_device_well(const struct ptc_node *n, uint32_t device, char ret_health[PTC_HEALTH_BYTES])
{
	(void)n, (void)device, (void)ret_health;
	return true;
}

int ptc_cluster_run(struct ptc_cluster *c, const char *lane, void (*work)(void *arg, struct ptc_etcd *etcd),
		    void (*done)(void *arg), void *arg)
{
	(void)c, (void)lane;
	work(arg, NULL);
	done(arg);
	return 0;
}

int ptc_cluster_run_later(struct ptc_cluster *c, const char *lane, int64_t delay_ms,
			  void (*work)(void *arg, struct ptc_etcd *etcd), void (*done)(void *arg), void *arg)
{
	(void)c, (void)lane;
	assert_true(delay_ms > 0);
	assert_null(t.work);
	t.work = work;
	t.done = done;
	t.arg = arg;
	return 0;
}

int ptc_etcd_txn(struct ptc_etcd *e, const struct ptc_etcd_compare *cmp, size_t ncmp, const struct ptc_etcd_op *ops,
		 size_t nops, const char *point, bool *ret_ok, int64_t *ret_revision, struct ptc_error *err)
{
	(void)e, (void)cmp, (void)ncmp, (void)point, (void)ret_revision, (void)err;
	if (t.etcd)
		return t.etcd;
	*ret_ok = true;
	t.written[0] = '\0';
	for (size_t i = 0, len = 0; i < nops; i++)
		len += (size_t)snprintf(t.written + len, sizeof t.written - len, "%s%s", ops[i].value ? "" : "-",
					strstr(ops[i].key, PTC_SLOW_LEAF));
	return 0;
}

void ptc_event(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt, ...)
{
	va_list ap;

	(void)c, (void)uuid, (void)kind;
	va_start(ap, fmt);
	vsnprintf(t.event, sizeof t.event, fmt, ap);
	va_end(ap);
	t.events++;
}

const struct ptc_generation_doc *ptc_controller_current(const struct ptc_controller *ctl)
{
	return &ctl->view.from;
}

struct ptc_controller *ptc_controller_ref(struct ptc_controller *ctl)
{
	return ctl;
}

void ptc_controller_unref(struct ptc_controller *ctl)
{
	(void)ctl;
}

bool ptc_growth_rests(const struct ptc_controller *ctl)
{
	(void)ctl;
	return true;
}

bool ptc_growth_passes(int status)
{
	return status == PTC_ECOORD;
}

bool ptc_growth_submit(struct ptc_controller *ctl, struct ptc_recovery_plan *p, uint64_t *ret_id)
{
	(void)ctl, (void)p, (void)ret_id;
	fail_msg("no switch is possible here");
	return false;
}

void ptc_recovery_keep(struct ptc_controller *ctl, const struct ptc_recovery_plan *p)
{
	(void)ctl, (void)p;
}

void ptc_recovery_plan(struct ptc_controller *ctl, enum ptc_recovery_for what,
		       void (*planned)(struct ptc_controller *ctl, struct ptc_recovery_plan *p))
{
	assert_ptr_equal(ctl, &job);
	assert_int_equal(what, PTC_RECOVERY_LEAVE);
	t.plans++;
	t.planned = planned;
}

/* ---- the test ---- */

/* As etcd has it. The time of the device, from an hour before, is over that many seconds from now. */
static void has_left(uint32_t device, int64_t over_in_s)
{
	struct ptc_slow_device *s = &view.slow.v[view.slow.n++];

	*s = (struct ptc_slow_device){ .device = device,
				       .since_ms = ptc_sys_realtime_ms() - HOUR_S * 1000,
				       .until_ms = ptc_sys_realtime_ms() + over_in_s * 1000 };
	snprintf(s->node, sizeof s->node, "n0");
}

static void is_slow(uint32_t n)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		ranks[r].slow = r < n;
		ranks[r].word = r < n ? PTC_SLOW_OVER : PTC_SLOW_WITHIN;
	}
}

/* Some time later, when the mirror shows what was written. */
static bool tick(void)
{
	drain.seen_ns = 0;
	return ptc_straggler_drain_tick(&job, &drain, ranks, RANKS);
}

/* A write that has failed is tried again. */
static void write_again(void)
{
	void (*work)(void *arg, struct ptc_etcd *etcd) = t.work;

	assert_non_null(work);
	t.work = NULL;
	work(t.arg, NULL);
	t.done(t.arg);
}

static int begin(void **state)
{
	static char n0[] = "n0";
	static char *nodes[] = { n0 };
	static uint32_t rank_node[RANKS], rank_device[RANKS] = { 0, 1, 2, 3 };
	static struct ptc_slow_device left[RANKS + 1];

	(void)state;
	memset(&t, 0, sizeof t);
	view = (struct ptc_job_view){ .slow.v = left };
	drain = (struct ptc_straggler_drain){ 0 };
	job = (struct ptc_controller){ .all = &all, .has_record = true, .record.run = PTC_RUN_LIVE };
	job.record.incarnation = 1;
	job.recovery.drain = &drain;
	job.view.from = (struct ptc_generation_doc){
		.nodes = nodes, .nnodes = 1, .world = RANKS, .rank_node = rank_node, .rank_device = rank_device
	};
	memset(ranks, 0, sizeof ranks);
	is_slow(0);
	return 0;
}

static void cannot_leave(void)
{
	struct ptc_recovery_plan p = { .status = PTC_ENODEVICES, .err = PTC_ERROR_INIT };

	t.planned(&job, &p);
}

/* The device is written down, then the job plans to leave it; if that is impossible, the device is the job's again. */
static void test_stays(void **state)
{
	(void)state;
	assert_false(tick());
	is_slow(1);
	assert_true(tick());
	assert_string_equal(t.written, "slow/n0/0");
	has_left(0, HOUR_S);
	assert_true(tick());
	assert_int_equal(t.plans, 1);
	cannot_leave();
	assert_string_equal(t.written, "-slow/n0/0");
	assert_non_null(strstr(t.event, "the job stays on n0:0"));
	view.slow.n = 0;
	assert_false(tick());
	assert_int_equal(t.plans, 1);
}

/* The event says that the job stays, so the device must not be left after all when etcd is there again. */
static void test_stays_while_etcd_is_unreachable(void **state)
{
	(void)state;
	has_left(0, HOUR_S);
	assert_true(tick());
	t.etcd = PTC_ECOORD;
	cannot_leave();
	for (int i = 0; i < 3; i++) {
		assert_true(tick()); /* nothing is begun meanwhile */
		write_again();
	}
	t.etcd = 0;
	write_again();
	assert_string_equal(t.written, "-slow/n0/0");
	assert_int_equal(t.events, 1);
	assert_null(t.work);
	view.slow.n = 0;
	assert_false(tick());
	assert_int_equal(t.plans, 1);
}

/* The time of a device is over: that is told once, though etcd is unreachable, and also while the job stays on another
 * one. */
static void test_time_is_over(void **state)
{
	(void)state;
	has_left(7, 0);
	drain.again_ns = INT64_MAX;
	t.etcd = PTC_ECOORD;
	assert_true(tick());
	assert_non_null(strstr(t.event, "the job may have n0:7 again"));
	assert_true(tick());
	assert_true(ptc_straggler_drain_yields(&job));
	t.etcd = 0;
	write_again();
	assert_string_equal(t.written, "-slow/n0/7");
	assert_int_equal(t.events, 1);
	view.slow.n = 0;
	assert_false(tick());
	assert_int_equal(t.events, 1);
}

/* The job waits to be started again, so nothing is known yet of how slow its ranks are. It asks again and again for the
 * device that it cannot go on without, while etcd is unreachable: that is told and written once. */
static void test_yields_before_it_runs(void **state)
{
	(void)state;
	job.recovery.drain = NULL;
	has_left(0, HOUR_S);
	t.etcd = PTC_ECOORD;
	for (int i = 0; i < 3; i++) {
		assert_true(ptc_straggler_drain_yields(&job));
		assert_non_null(strstr(t.event, "the job may have n0:0 again"));
		assert_int_equal(t.events, 1);
		write_again();
	}
	t.etcd = 0;
	write_again();
	assert_string_equal(t.written, "-slow/n0/0");
	view.slow.n = 0;
	assert_false(ptc_straggler_drain_yields(&job));
	assert_int_equal(t.events, 1);
}

/* Another controller has the job now, and decides by what is in etcd. */
static void test_gone(void **state)
{
	(void)state;
	has_left(7, 0);
	t.etcd = PTC_ECOORD;
	assert_true(tick());
	job.gone = true;
	write_again();
	assert_null(t.work);
}

/* Each reason is told once for the ranks of an incarnation. */
static void test_reasons(void **state)
{
	(void)state;
	has_left(6, HOUR_S);
	has_left(7, HOUR_S);
	view.slow.v[1].since_ms++;
	for (uint64_t incarnation = 1; incarnation <= 2; incarnation++) {
		job.record.incarnation = incarnation;
		t.events = 0;
		for (int i = 0; i < 3; i++) {
			is_slow(3);
			assert_false(tick());
			is_slow(1);
			assert_false(tick());
		}
		assert_int_equal(t.events, 2);
	}
	assert_int_equal(t.plans, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_stays, begin),
		cmocka_unit_test_setup(test_stays_while_etcd_is_unreachable, begin),
		cmocka_unit_test_setup(test_time_is_over, begin),
		cmocka_unit_test_setup(test_yields_before_it_runs, begin),
		cmocka_unit_test_setup(test_gone, begin),
		cmocka_unit_test_setup(test_reasons, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
