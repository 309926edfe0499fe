/* SPDX-License-Identifier: Apache-2.0 */
/* See task_pool.h. If no thread can be started, the caller runs the tasks itself. */
#include "daemon/agent/calls/task_pool.h"

#include "base/check.h"
#include "base/sys/thread.h"

#include <stdatomic.h>

#define TICK_MS 200

struct gang {
	const struct ptc_task_pool *task_pool;
	_Atomic size_t next;
	atomic_bool stop;
	struct {
		pthread_mutex_t lock;
		pthread_cond_t cond;
		unsigned running;
		int status;
		size_t failed; /* the task it is of */
		struct ptc_error err;
	} shared;
};

struct member {
	struct gang *gang;
	unsigned number;
	pthread_t thread;
};

unsigned ptc_task_pool_size(void)
{
	return PTC_MIN(ptc_thread_processors(), (unsigned)PTC_TASK_POOL_MAX);
}

static void *member_main(void *arg)
{
	const struct member *m = arg;
	struct gang *g = m->gang;
	struct ptc_error err = PTC_ERROR_INIT;
	size_t i = 0;
	int rc = 0;

	while (!rc && !atomic_load(&g->stop) && (i = atomic_fetch_add(&g->next, 1)) < g->task_pool->ntasks)
		rc = g->task_pool->run(g->task_pool->arg, m->number, i, &err);
	pthread_mutex_lock(&g->shared.lock);
	if (rc && (!g->shared.status || i < g->shared.failed)) {
		g->shared.status = rc;
		g->shared.failed = i;
		g->shared.err = err;
		atomic_store(&g->stop, true);
	}
	g->shared.running--;
	pthread_cond_signal(&g->shared.cond);
	pthread_mutex_unlock(&g->shared.lock);
	return NULL;
}

static void gang_wait(struct gang *g)
{
	const struct ptc_task_pool *c = g->task_pool;

	pthread_mutex_lock(&g->shared.lock);
	while (g->shared.running) {
		ptc_cond_wait_ms(&g->shared.cond, &g->shared.lock, TICK_MS);
		if (!g->shared.running)
			break;
		pthread_mutex_unlock(&g->shared.lock);
		if (c->stop && c->stop(c->arg))
			atomic_store(&g->stop, true);
		else if (c->tick)
			c->tick(c->arg);
		pthread_mutex_lock(&g->shared.lock);
	}
	pthread_mutex_unlock(&g->shared.lock);
}

static void gang_run(struct gang *g)
{
	struct member members[PTC_TASK_POOL_MAX];
	size_t want = PTC_MIN(PTC_MIN(g->task_pool->threads, (unsigned)PTC_TASK_POOL_MAX), g->task_pool->ntasks);
	unsigned n = 0;

	g->shared.running = (unsigned)want;
	for (; n < want; n++) {
		members[n] = (struct member){ .gang = g, .number = n };
		if (ptc_thread_start(&members[n].thread, "ptc-task", member_main, &members[n], NULL))
			break;
	}
	pthread_mutex_lock(&g->shared.lock);
	g->shared.running -= (unsigned)want - n;
	pthread_mutex_unlock(&g->shared.lock);
	if (!n && want) {
		g->shared.running = 1;
		member_main(&(struct member){ .gang = g });
	}
	gang_wait(g);
	for (unsigned i = 0; i < n; i++)
		pthread_join(members[i].thread, NULL);
}

int ptc_task_pool_run(const struct ptc_task_pool *task_pool, struct ptc_error *err)
{
	struct gang g = { .task_pool = task_pool };
	int rc;

	ptc_require(!pthread_mutex_init(&g.shared.lock, NULL));
	ptc_cond_init(&g.shared.cond);
	gang_run(&g);
	pthread_cond_destroy(&g.shared.cond);
	pthread_mutex_destroy(&g.shared.lock);
	rc = g.shared.status;
	if (rc)
		return ptc_error_set(err, rc, "%s", g.shared.err.text);
	if (atomic_load(&g.stop))
		return ptc_error_set(err, PTC_ECANCELED, "cancelled while %s", task_pool->what);
	return 0;
}
