/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes of tasks, and the threads that run them (ETCD_THREADS).
 *
 * Happy path: a task joins the end of its lane; the first of each lane is due. A due step that calls etcd goes to the
 * queue of ETCD_THREADS threads; a due step that computes goes to libuv's pool; when the last step is over, done is
 * posted and the lane's next task is due. A due step that is aside first takes one of ASIDE_MAX places of its kind, or
 * waits for one. A lane exists while it has tasks.
 *
 * Failure modes: the pool takes no work any more (the loop has stopped, or no memory): one of the ETCD_THREADS threads
 * computes instead. If the loop has stopped before a task's `done`, ptc_tasks_free() runs it. */
#include "daemon/cluster/tasks.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <stdio.h>
#include <string.h>

#define ETCD_THREADS 4 /* one large job's documents take one of them */
#define ASIDE_MAX    2 /* of these; and of the pool's threads, of which there are as many */

struct task {
	struct lane *lane;
	struct ptc_task_step steps[PTC_TASK_STEPS_MAX + 1];
	size_t at; /* the step that is due, or runs */
	void (*done)(void *arg);
	void *arg;
	int64_t not_before_ns; /* of a delayed one; it is in no lane yet */
	char lane_name[PTC_LANE_MAX];
	struct task *next;
};

struct lane {
	struct ptc_tasks *tasks;
	struct task *head, **tail;
	struct lane *next;       /* of all */
	struct lane *next_ready; /* of those that wait for a thread of etcd's, or for a place */
	char name[PTC_LANE_MAX];
};

struct queue {
	struct lane *head, **tail;
};

struct ptc_tasks {
	struct ptc_loop *loop;
	struct ptc_etcd *etcd;
	pthread_t threads[ETCD_THREADS];
	size_t nthreads;
	struct {
		pthread_mutex_t lock;
		pthread_cond_t wake;
		struct lane *lanes;
		struct queue ready; /* for a thread of etcd's */
		struct {
			unsigned running;
			struct queue waiting;
		} aside[PTC_TASK_COMPUTE + 1]; /* of each kind */
		struct task *delayed;
		struct task *orphans; /* done, but the loop had stopped */
		bool started, stop;
	} shared;
};

/* ---- lanes ------------------------------------------------------------------------- */

static struct lane *lane_find_locked(struct ptc_tasks *t, const char *name)
{
	struct lane *l = t->shared.lanes;

	while (l && strcmp(l->name, name) != 0)
		l = l->next;
	return l;
}

static struct lane *lane_get_locked(struct ptc_tasks *t, const char *name)
{
	struct lane *l = lane_find_locked(t, name);

	if (l)
		return l;
	l = ptc_calloc(1, sizeof *l);
	if (!l)
		return NULL;
	l->tasks = t;
	l->tail = &l->head;
	snprintf(l->name, sizeof l->name, "%s", name);
	l->next = t->shared.lanes;
	t->shared.lanes = l;
	return l;
}

static void lane_free_locked(struct lane *l)
{
	struct lane **at = &l->tasks->shared.lanes;

	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	if (!l->tasks->shared.lanes)
		pthread_cond_broadcast(&l->tasks->shared.wake); /* threads may end, if they are to */
	ptc_free(l);
}

static void queue_put(struct queue *q, struct lane *l)
{
	l->next_ready = NULL;
	*q->tail = l;
	q->tail = &l->next_ready;
}

/* NULL: it is empty. */
static struct lane *queue_take(struct queue *q)
{
	struct lane *l = q->head;

	q->head = l ? l->next_ready : NULL;
	if (!q->head)
		q->tail = &q->head;
	return l;
}

static void compute(void *arg);

static void begin_locked(struct lane *l)
{
	struct ptc_tasks *t = l->tasks;

	if (l->head->steps[l->head->at].kind == PTC_TASK_COMPUTE && ptc_loop_work(t->loop, compute, l) == 0)
		return;
	queue_put(&t->shared.ready, l);
	pthread_cond_signal(&t->shared.wake);
}

/* The first task's step is due. */
static void due_locked(struct lane *l)
{
	struct ptc_tasks *t = l->tasks;
	const struct ptc_task_step *step;

	ptc_require(l->head);
	step = &l->head->steps[l->head->at];
	if (step->aside && t->shared.aside[step->kind].running == ASIDE_MAX) {
		queue_put(&t->shared.aside[step->kind].waiting, l);
		return;
	}
	t->shared.aside[step->kind].running += step->aside;
	begin_locked(l);
}

/* A step is over: its place goes to the lane that has waited longest. */
static void give_place_locked(struct ptc_tasks *t, const struct ptc_task_step *step)
{
	struct lane *next = step->aside ? queue_take(&t->shared.aside[step->kind].waiting) : NULL;

	if (next)
		begin_locked(next);
	else
		t->shared.aside[step->kind].running -= step->aside;
}

static void join_locked(struct lane *l, struct task *task)
{
	bool first = !l->head;

	task->lane = l;
	task->next = NULL;
	*l->tail = task;
	l->tail = &task->next;
	if (first && l->tasks->shared.started)
		due_locked(l);
}

/* ---- steps -------------------------------------------------------------------------- */

static void orphan_locked(struct ptc_tasks *t, struct task *task)
{
	task->next = t->shared.orphans;
	t->shared.orphans = task;
}

/* In the order of the lane, for its next task is not due before. */
static void tell_locked(struct ptc_tasks *t, struct task *task)
{
	if (task->done && ptc_loop_post(t->loop, task->done, task->arg) != 0)
		orphan_locked(t, task);
	else
		ptc_free(task);
}

static void step_run(struct lane *l)
{
	struct ptc_tasks *t = l->tasks;
	struct task *task = l->head; /* ours: nobody else touches the first one */

	task->steps[task->at].run(task->arg, t->etcd);
	pthread_mutex_lock(&t->shared.lock);
	give_place_locked(t, &task->steps[task->at]);
	if (task->steps[++task->at].run) {
		due_locked(l);
	} else {
		l->head = task->next;
		if (!l->head)
			l->tail = &l->head;
		tell_locked(t, task);
		if (l->head)
			due_locked(l);
		else
			lane_free_locked(l);
	}
	pthread_mutex_unlock(&t->shared.lock);
}

static void compute(void *arg)
{
	step_run(arg);
}

/* ---- threads of etcd's ---------------------------------------------------------------- */

/* Those whose time has come join their lanes. When the next one's comes; 0: none is left. */
static int64_t delayed_locked(struct ptc_tasks *t)
{
	int64_t now = ptc_sys_now_ns(), next = 0;
	struct task **at = &t->shared.delayed;

	while (*at) {
		struct task *task = *at;
		struct lane *l = task->not_before_ns <= now ? lane_get_locked(t, task->lane_name) : NULL;

		if (l) {
			*at = task->next;
			join_locked(l, task);
			continue;
		}
		if (!next || task->not_before_ns < next)
			next = PTC_MAX(task->not_before_ns, now + 1000000); /* no memory for a lane: soon again */
		at = &task->next;
	}
	return next;
}

static void rest_locked(struct ptc_tasks *t)
{
	int64_t next = delayed_locked(t);

	if (t->shared.ready.head)
		return;
	if (next)
		ptc_cond_wait_until(&t->shared.wake, &t->shared.lock, next);
	else
		pthread_cond_wait(&t->shared.wake, &t->shared.lock);
}

static void *etcd_main(void *arg)
{
	struct ptc_tasks *t = arg;

	pthread_mutex_lock(&t->shared.lock);
	while (!t->shared.stop || t->shared.lanes) {
		struct lane *l = queue_take(&t->shared.ready);

		if (!l) {
			rest_locked(t);
			continue;
		}
		pthread_mutex_unlock(&t->shared.lock);
		step_run(l);
		pthread_mutex_lock(&t->shared.lock);
	}
	pthread_mutex_unlock(&t->shared.lock);
	return NULL;
}

/* ---- life ------------------------------------------------------------------------------ */

int ptc_tasks_new(struct ptc_loop *loop, struct ptc_etcd *etcd, struct ptc_tasks **ret_tasks, struct ptc_error *err)
{
	struct ptc_tasks *t = ptc_calloc(1, sizeof *t);

	if (!t)
		return ptc_nomem(err);
	t->loop = loop;
	t->etcd = etcd;
	pthread_mutex_init(&t->shared.lock, NULL);
	ptc_cond_init(&t->shared.wake);
	t->shared.ready.tail = &t->shared.ready.head;
	for (size_t i = 0; i < PTC_ARRAY_LEN(t->shared.aside); i++)
		t->shared.aside[i].waiting.tail = &t->shared.aside[i].waiting.head;
	*ret_tasks = t;
	return 0;
}

int ptc_tasks_start(struct ptc_tasks *t, struct ptc_error *err)
{
	int rc = 0;

	for (; rc == 0 && t->nthreads < ETCD_THREADS; t->nthreads += rc == 0)
		rc = ptc_thread_start(&t->threads[t->nthreads], "ptc-etcd", etcd_main, t, err);
	pthread_mutex_lock(&t->shared.lock);
	t->shared.started = t->nthreads > 0;
	for (struct lane *l = t->shared.lanes; l && t->shared.started; l = l->next)
		due_locked(l);
	pthread_mutex_unlock(&t->shared.lock);
	return rc;
}

int ptc_tasks_run(struct ptc_tasks *t, const char *lane, int64_t delay_ms, const struct ptc_task_step *steps,
		  void (*done)(void *arg), void *arg)
{
	struct task *task = ptc_calloc(1, sizeof *task);
	struct lane *l;
	int rc = 0;

	if (!task)
		return PTC_ENOMEM;
	*task = (struct task){ .done = done, .arg = arg };
	for (size_t i = 0; steps[i].run; i++) {
		ptc_require(i < PTC_TASK_STEPS_MAX);
		task->steps[i] = steps[i];
	}
	snprintf(task->lane_name, sizeof task->lane_name, "%s", lane);
	pthread_mutex_lock(&t->shared.lock);
	if (t->shared.stop && (delay_ms > 0 || !t->shared.lanes)) {
		rc = PTC_ECANCELED;
	} else if (delay_ms > 0) {
		task->not_before_ns = ptc_sys_now_ns() + delay_ms * 1000000;
		task->next = t->shared.delayed;
		t->shared.delayed = task;
		pthread_cond_signal(&t->shared.wake); /* somebody has to know when its time comes */
	} else if ((l = lane_get_locked(t, lane))) {
		join_locked(l, task);
	} else {
		rc = PTC_ENOMEM;
	}
	pthread_mutex_unlock(&t->shared.lock);
	if (rc)
		ptc_free(task);
	return rc;
}

/* Nothing will run them any more: what was delayed, and, of threads that never started, what waits. */
static void abandon_locked(struct ptc_tasks *t)
{
	struct task *task;

	while ((task = t->shared.delayed)) {
		t->shared.delayed = task->next;
		orphan_locked(t, task);
	}
	for (struct lane *l = t->nthreads ? NULL : t->shared.lanes, *next; l; l = next) {
		next = l->next;
		while ((task = l->head)) {
			l->head = task->next;
			orphan_locked(t, task);
		}
		lane_free_locked(l);
	}
}

struct ptc_tasks *ptc_tasks_free(struct ptc_tasks *t)
{
	struct task *task;

	if (!t)
		return NULL;
	pthread_mutex_lock(&t->shared.lock);
	t->shared.stop = true;
	abandon_locked(t);
	pthread_cond_broadcast(&t->shared.wake);
	pthread_mutex_unlock(&t->shared.lock);
	for (size_t i = 0; i < t->nthreads; i++)
		pthread_join(t->threads[i], NULL);
	while ((task = t->shared.orphans)) {
		t->shared.orphans = task->next;
		if (task->done)
			task->done(task->arg);
		ptc_free(task);
	}
	pthread_cond_destroy(&t->shared.wake);
	pthread_mutex_destroy(&t->shared.lock);
	ptc_free(t);
	return NULL;
}
