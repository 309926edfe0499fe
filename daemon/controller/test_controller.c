/* SPDX-License-Identifier: Apache-2.0 */
/* What the controller makes of the core's updates, for recovery: when ranks that a switch has held were let go. The
 * core, the cluster and what is sent are decided here. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <uv.h>

#include <cmocka.h>

static struct ptc_job_update next[2]; /* what the core's next step comes to */
static size_t nnext;
static unsigned sent;
static atomic_bool stopping;

/* ---- instead of the rooms below (--wrap) ---- */

int __wrap_ptc_job_step(struct ptc_job *job, const struct ptc_job_event *event, struct ptc_job_updates *ret_updates);
int __wrap_ptc_job_step(struct ptc_job *job, const struct ptc_job_event *event, struct ptc_job_updates *ret_updates)
{
	(void)job, (void)event;
	*ret_updates = (struct ptc_job_updates){ next, nnext };
	return 0;
}

void __wrap_ptc_controller_send(struct ptc_controller *ctl, const struct ptc_job_update *up);
void __wrap_ptc_controller_send(struct ptc_controller *ctl, const struct ptc_job_update *up)
{
	(void)ctl, (void)up;
	sent++;
}

int64_t __wrap_ptc_cluster_lease(struct ptc_cluster *c);
int64_t __wrap_ptc_cluster_lease(struct ptc_cluster *c)
{
	(void)c;
	return 1;
}

size_t __wrap_ptc_cluster_nnodes(const struct ptc_cluster *c);
size_t __wrap_ptc_cluster_nnodes(const struct ptc_cluster *c)
{
	(void)c;
	return 0;
}

void __wrap_ptc_cluster_changed(struct ptc_cluster *c);
void __wrap_ptc_cluster_changed(struct ptc_cluster *c)
{
	(void)c;
}

void __wrap_ptc_controller_load(struct ptc_controller *ctl, uint64_t seq);
void __wrap_ptc_controller_load(struct ptc_controller *ctl, uint64_t seq)
{
	(void)ctl, (void)seq;
}

void __wrap_ptc_controller_tell_lost(struct ptc_controller *ctl);
void __wrap_ptc_controller_tell_lost(struct ptc_controller *ctl)
{
	(void)ctl;
}

void __wrap_ptc_controller_tidy(struct ptc_controller *ctl);
void __wrap_ptc_controller_tidy(struct ptc_controller *ctl)
{
	(void)ctl;
}

/* ---- the cases ---- */

static struct ptc_controllers all = { .node = "a", .stopping = &stopping };
static struct ptc_job_view job = {
	.uuid = "00000000-0000-0000-0000-000000000001", .has_meta = true, .has_lock = true, .lock_node = "a"
};

static void step(const struct ptc_job_update *v, size_t n)
{
	struct ptc_controller *ctl = all.list[0];

	for (size_t i = 0; i < n; i++)
		next[i] = v[i];
	nnext = n;
	ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_TIMER });
}

/* The switch ends in an abort of which another controller tells. */
static void end(void)
{
	step(&(struct ptc_job_update){ .kind = PTC_UP_DONE, .status = PTC_EFENCED, .node = PTC_JOB_NO_NODE }, 1);
}

static int take(void **state)
{
	(void)state;
	job.has_lock = true;
	sent = 0;
	ptc_controllers_changed(&all, &job);
	assert_int_equal(1, all.n);
	return 0;
}

static int lose(void **state)
{
	(void)state;
	next[0] = (struct ptc_job_update){ .kind = PTC_UP_STOPPED };
	nnext = 1;
	job.has_lock = false;
	ptc_controllers_changed(&all, &job);
	assert_int_equal(0, all.n);
	ptc_free(all.list);
	all.list = NULL;
	assert_int_equal(0, uv_run(uv_default_loop(), UV_RUN_DEFAULT)); /* closes timers */
	return 0;
}

/* A due snapshot may have stopped ranks that no switch has armed yet: a FINISH lets them go on. For some time after
 * that, ranks whose steps stand are not given up. */
static void a_finish_lets_ranks_go(void **state)
{
	const struct ptc_job_update finish = { .kind = PTC_UP_SEND, .op = PTC_OP_FINISH };
	const int64_t before = ptc_sys_now_ns();

	(void)state;
	step(&finish, 1);
	assert_int_equal(1, sent);
	assert_int_equal(0, all.list[0]->recovery.ended_ns); /* it runs */
	end();
	assert_true(all.list[0]->recovery.ended_ns >= before);
}

static void an_abort_lets_ranks_go(void **state)
{
	const struct ptc_job_update aborting = { .kind = PTC_UP_PHASE, .phase = PTC_JOB_ABORTING };
	const int64_t before = ptc_sys_now_ns();

	(void)state;
	step(&aborting, 1);
	end();
	assert_true(all.list[0]->recovery.ended_ns >= before);
}

static void a_switch_that_holds_none_lets_none_go(void **state)
{
	const struct ptc_job_update prepare[] = { { .kind = PTC_UP_PHASE, .phase = PTC_JOB_PREPARING },
						  { .kind = PTC_UP_SEND, .op = PTC_OP_PREPARE } };

	(void)state;
	step(prepare, PTC_ARRAY_LEN(prepare));
	end();
	assert_int_equal(1, sent);
	assert_int_equal(0, all.list[0]->recovery.ended_ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_finish_lets_ranks_go, take, lose),
		cmocka_unit_test_setup_teardown(an_abort_lets_ranks_go, take, lose),
		cmocka_unit_test_setup_teardown(a_switch_that_holds_none_lets_none_go, take, lose),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
