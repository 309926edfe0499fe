/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes: what keeps its order, what runs beside what, and what becomes of tasks when the daemon stops. No etcd: steps
 * are handed whatever the tasks were made with. */
#include "daemon/cluster/tasks.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "base/test_leaks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include <cmocka.h>

#define NO_ETCD ((struct ptc_etcd *)(uintptr_t)64) /* never looked at */

struct env {
	uv_loop_t uv;
	struct ptc_loop *loop;
	struct ptc_tasks *tasks;
	pthread_t loop_thread;
};

static int setup(void **state)
{
	struct env *e = ptc_calloc(1, sizeof *e);

	assert_int_equal(uv_loop_init(&e->uv), 0);
	assert_int_equal(ptc_loop_new(&e->uv, &e->loop, NULL), 0);
	assert_int_equal(ptc_tasks_new(e->loop, NO_ETCD, &e->tasks, NULL), 0);
	e->loop_thread = pthread_self();
	*state = e;
	return 0;
}

static int teardown(void **state)
{
	struct env *e = *state;

	ptc_loop_stop(e->loop);
	ptc_tasks_free(e->tasks);
	ptc_loop_free(e->loop);
	uv_run(&e->uv, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&e->uv), 0);
	ptc_free(e);
	return 0;
}

/* A door that steps wait at. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	bool open;
	size_t at; /* who has come to it */
};

static void gate_init(struct gate *g)
{
	*g = (struct gate){ .lock = PTHREAD_MUTEX_INITIALIZER };
	ptc_cond_init(&g->moved);
}

static void gate_done(struct gate *g)
{
	pthread_cond_destroy(&g->moved);
	pthread_mutex_destroy(&g->lock);
}

static void gate_pass(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	g->at++;
	pthread_cond_broadcast(&g->moved);
	while (!g->open)
		pthread_cond_wait(&g->moved, &g->lock);
	pthread_mutex_unlock(&g->lock);
}

static void gate_open(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	g->open = true;
	pthread_cond_broadcast(&g->moved);
	pthread_mutex_unlock(&g->lock);
}

static size_t gate_at(struct gate *g)
{
	size_t at;

	pthread_mutex_lock(&g->lock);
	at = g->at;
	pthread_mutex_unlock(&g->lock);
	return at;
}

struct job {
	struct env *env;
	struct gate *gate; /* NULL: none */
	atomic_uint *running, *log;
	unsigned number, steps, wrong;
	bool is_done;
};

static void step(void *arg, struct ptc_etcd *etcd)
{
	struct job *j = arg;

	j->wrong += etcd != NO_ETCD || pthread_equal(pthread_self(), j->env->loop_thread);
	if (j->running)
		j->wrong += atomic_fetch_add(j->running, 1) != 0; /* of one lane, one at a time */
	if (j->gate)
		gate_pass(j->gate);
	if (j->running)
		atomic_fetch_sub(j->running, 1);
	j->steps++;
}

static void done(void *arg)
{
	struct job *j = arg;

	assert_true(pthread_equal(pthread_self(), j->env->loop_thread));
	if (j->log)
		j->wrong += atomic_fetch_add(j->log, 1) != j->number; /* in the order in which they were given */
	j->is_done = true;
}

static const struct ptc_task_step etcd_only[] = { { PTC_TASK_ETCD, step }, { 0 } };
static const struct ptc_task_step compute_only[] = { { PTC_TASK_COMPUTE, step }, { 0 } };
static const struct ptc_task_step etcd_aside[] = { { PTC_TASK_ETCD, step, true }, { 0 } };
static const struct ptc_task_step compute_aside[] = { { PTC_TASK_COMPUTE, step, true }, { 0 } };
static const struct ptc_task_step both[] = {
	{ PTC_TASK_COMPUTE, step }, { PTC_TASK_ETCD, step }, { PTC_TASK_COMPUTE, step }, { 0 }
};

static void run_until(struct env *e, const bool *is_done)
{
	while (!*is_done)
		uv_run(&e->uv, UV_RUN_ONCE);
}

#define TASKS 60

static void a_lane_keeps_its_order(void **state)
{
	static const struct ptc_task_step *const kinds[] = { etcd_only, compute_only, both };
	struct env *e = *state;
	struct job jobs[TASKS];
	atomic_uint running = 0, log = 0;

	for (unsigned i = 0; i < TASKS; i++) {
		jobs[i] = (struct job){ .env = e, .running = &running, .log = &log, .number = i };
		assert_int_equal(ptc_tasks_run(e->tasks, "one", 0, kinds[i % 3], done, &jobs[i]), 0);
		if (i == TASKS / 2)
			assert_int_equal(ptc_tasks_start(e->tasks, NULL), 0); /* what came before waits for it */
	}
	run_until(e, &jobs[TASKS - 1].is_done);
	for (unsigned i = 0; i < TASKS; i++) {
		assert_true(jobs[i].is_done);
		assert_int_equal(jobs[i].steps, i % 3 == 2 ? 3 : 1);
		assert_int_equal(jobs[i].wrong, 0);
	}
}

/* Whatever step one job stands still at, the others' tasks begin and end; its own next task does not begin. */
static void a_held_lane_delays_no_other(void **state)
{
	static const struct ptc_task_step *const kinds[] = { etcd_only, compute_only };
	struct env *e = *state;

	assert_int_equal(ptc_tasks_start(e->tasks, NULL), 0);
	for (size_t k = 0; k < PTC_ARRAY_LEN(kinds); k++) {
		struct gate gate;
		struct job held = { .env = e, .gate = &gate }, next = { .env = e }, others[TASKS];

		gate_init(&gate);
		assert_int_equal(ptc_tasks_run(e->tasks, "large", 0, kinds[k], done, &held), 0);
		assert_int_equal(ptc_tasks_run(e->tasks, "large", 0, etcd_only, done, &next), 0);
		for (unsigned i = 0; i < TASKS; i++) {
			others[i] = (struct job){ .env = e };
			assert_int_equal(ptc_tasks_run(e->tasks, i % 2 ? "small" : "smaller", 0, both, done,
						       &others[i]),
					 0);
		}
		while (gate_at(&gate) == 0)
			uv_run(&e->uv, UV_RUN_ONCE);
		for (unsigned i = 0; i < TASKS; i++)
			run_until(e, &others[i].is_done);
		assert_false(held.is_done);
		assert_int_equal(next.steps, 0);
		gate_open(&gate);
		run_until(e, &next.is_done);
		assert_true(held.is_done);
		gate_done(&gate);
	}
}

/* In however many lanes a job works aside: half of the threads are left for the others, and all of it is done. */
static void lanes_aside_leave_threads(void **state)
{
	static const struct ptc_task_step *const kinds[] = { etcd_aside, compute_aside };
	struct env *e = *state;

	assert_int_equal(ptc_tasks_start(e->tasks, NULL), 0);
	for (size_t k = 0; k < PTC_ARRAY_LEN(kinds); k++) {
		struct gate gate;
		struct job aside[6], held = { .env = e, .gate = &gate }, others[TASKS];
		char lane[] = "a/large";

		gate_init(&gate);
		for (size_t i = 0; i < PTC_ARRAY_LEN(aside); i++, lane[0]++) {
			aside[i] = (struct job){ .env = e, .gate = &gate };
			assert_int_equal(ptc_tasks_run(e->tasks, lane, 0, kinds[k], done, &aside[i]), 0);
		}
		assert_int_equal(ptc_tasks_run(e->tasks, "large", 0, k ? compute_only : etcd_only, done, &held), 0);
		while (gate_at(&gate) < 3)
			uv_run(&e->uv, UV_RUN_NOWAIT);
		for (unsigned i = 0; i < TASKS; i++) {
			others[i] = (struct job){ .env = e };
			assert_int_equal(ptc_tasks_run(e->tasks, i % 2 ? "small" : "smaller", 0, both, done,
						       &others[i]),
					 0);
		}
		for (unsigned i = 0; i < TASKS; i++)
			run_until(e, &others[i].is_done);
		assert_int_equal(gate_at(&gate), 3); /* two aside, and the job's own lane */
		gate_open(&gate);
		for (size_t i = 0; i < PTC_ARRAY_LEN(aside); i++)
			run_until(e, &aside[i].is_done);
		run_until(e, &held.is_done);
		gate_done(&gate);
	}
}

static void a_delay_holds_up_nobody(void **state)
{
	struct env *e = *state;
	struct job late = { .env = e }, soon = { .env = e };
	int64_t began = ptc_sys_now_ns();

	assert_int_equal(ptc_tasks_start(e->tasks, NULL), 0);
	assert_int_equal(ptc_tasks_run(e->tasks, "one", 50, etcd_only, done, &late), 0);
	assert_int_equal(ptc_tasks_run(e->tasks, "one", 0, etcd_only, done, &soon), 0);
	run_until(e, &soon.is_done);
	run_until(e, &late.is_done);
	assert_true(ptc_sys_now_ns() - began >= 50 * 1000000);
}

/* Tasks that were given are carried out, those that wait for their time are not; `done` runs once for each. */
static void stopping_ends_what_was_begun(void **state)
{
	static const struct ptc_task_step aside[] = {
		{ PTC_TASK_COMPUTE, step, true }, { PTC_TASK_ETCD, step, true }, { PTC_TASK_COMPUTE, step, true }, { 0 }
	};
	struct env *e = *state;
	struct job late = { .env = e }, jobs[TASKS];
	char lane[PTC_LANE_MAX];

	assert_int_equal(ptc_tasks_start(e->tasks, NULL), 0);
	assert_int_equal(ptc_tasks_run(e->tasks, "one", 3600000, etcd_only, done, &late), 0);
	for (unsigned i = 0; i < TASKS; i++) {
		jobs[i] = (struct job){ .env = e };
		snprintf(lane, sizeof lane, "%u", i % 7);
		assert_int_equal(ptc_tasks_run(e->tasks, lane, 0, i % 2 ? both : aside, done, &jobs[i]), 0);
	}
	ptc_loop_stop(e->loop);
	e->tasks = ptc_tasks_free(e->tasks);
	assert_true(late.is_done);
	assert_int_equal(late.steps, 0);
	for (unsigned i = 0; i < TASKS; i++) {
		assert_true(jobs[i].is_done);
		assert_int_equal(jobs[i].steps, 3);
	}
}

static void tasks_that_never_started_are_told(void **state)
{
	struct env *e = *state;
	struct job j = { .env = e };

	assert_int_equal(ptc_tasks_run(e->tasks, "one", 0, both, done, &j), 0);
	ptc_loop_stop(e->loop);
	e->tasks = ptc_tasks_free(e->tasks);
	assert_true(j.is_done);
	assert_int_equal(j.steps, 0);
}

/* The task or its lane: nothing was begun. Later there is memory for the pool's part, and the step runs elsewhere. */
static void out_of_memory_is_said_at_once(void **state)
{
	struct env *e = *state;
	struct job j = { .env = e };
	int rc = PTC_ENOMEM;

	assert_int_equal(ptc_tasks_start(e->tasks, NULL), 0);
	for (unsigned at = 1; rc; at++) {
		ptc_alloc_fail_at(at);
		rc = ptc_tasks_run(e->tasks, "one", 0, compute_only, done, &j);
		ptc_alloc_fail_at(0);
		assert_true(rc == 0 || rc == PTC_ENOMEM);
		assert_true(at < 10);
	}
	run_until(e, &j.is_done);
	assert_int_equal(j.steps, 1);
}

int main(void)
{
#define WITH(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		WITH(a_lane_keeps_its_order),        WITH(a_held_lane_delays_no_other),
		WITH(lanes_aside_leave_threads),     WITH(a_delay_holds_up_nobody),
		WITH(stopping_ends_what_was_begun),  WITH(tasks_that_never_started_are_told),
		WITH(out_of_memory_is_said_at_once),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	return test_leaks(failed);
}
