/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of ptc-gpu that copy for a device. Happy path: the device's thread hands over a copy that it has
 * checked. A thread begins this copy, and then ends and answers the copy that it began before. If there is no next
 * copy, the thread ends the copy that it has begun. So the link works while processors move bytes between slots of the
 * ring and host memory, and while a copy ends and is answered. Copies of the other direction, and everything else,
 * wait until all copies have ended.
 *
 * Failure modes: a thread that cannot enter the device's context fails its copy, and tries again with the next. Where
 * not all threads can be started, fewer do the work; without any, copies are refused. */
#include "base/check.h"
#include "base/sys/thread.h"
#include "daemon/gpu/gpu_server.h"

#include <stdio.h>

/* The next copy. wait: until there is one, and NULL at the end. Otherwise NULL if there is none, or if a thread that
 * has nothing to do will take it. */
static struct ptc_gpu_job *take(struct ptc_gpu_copiers *c, bool wait)
{
	struct ptc_gpu_job *j = NULL;

	pthread_mutex_lock(&c->lock);
	c->idle += wait;
	while (wait && !c->next && !c->stop)
		pthread_cond_wait(&c->changed, &c->lock);
	c->idle -= wait;
	if (wait || !c->idle) {
		j = c->next;
		c->next = NULL;
		pthread_cond_broadcast(&c->changed);
	}
	pthread_mutex_unlock(&c->lock);
	return j;
}

static void ended(struct ptc_gpu_copiers *c)
{
	pthread_mutex_lock(&c->lock);
	c->running--;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

static void *loop(void *arg)
{
	struct ptc_gpu_copier_thread *t = arg;
	struct ptc_gpu_worker *w = t->worker;
	struct ptc_gpu_copiers *c = &w->copiers;
	struct ptc_gpu_job *before = NULL, *j;
	bool entered = false;

	while ((j = take(c, !before)) || before) {
		struct ptc_gpu_failure f = { .err = PTC_ERROR_INIT };

		if (j) {
			entered = entered || w->server->ops->enter(w->gpu, &f) == 0;
			if (!c->copying->begin(w, t->number, j, &f)) {
				j = NULL;
				ended(c);
			}
		}
		if (before) {
			c->copying->end(w, t->number, before);
			ended(c);
		}
		before = j;
	}
	return NULL;
}

int ptc_gpu_copiers_start(struct ptc_gpu_worker *w, const struct ptc_gpu_copying *copying, struct ptc_error *err)
{
	struct ptc_gpu_copiers *c = &w->copiers;
	char name[PTC_THREAD_NAME_MAX + 1];
	int rc = 0;

	c->copying = copying;
	while (c->n < w->server->ncopiers && rc == 0) {
		struct ptc_gpu_copier_thread *t = &c->threads[c->n];

		*t = (struct ptc_gpu_copier_thread){ .worker = w, .number = c->n };
		snprintf(name, sizeof name, "ptc-copy-%u", w->index);
		rc = ptc_thread_start(&t->thread, name, loop, t, err);
		c->n += rc == 0;
	}
	return c->n ? 0 : rc;
}

void ptc_gpu_copiers_wait(struct ptc_gpu_copiers *c)
{
	pthread_mutex_lock(&c->lock);
	while (c->running)
		pthread_cond_wait(&c->changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

void ptc_gpu_copiers_give(struct ptc_gpu_copiers *c, struct ptc_gpu_job *j)
{
	pthread_mutex_lock(&c->lock);
	while (c->next || c->running == 2 * c->n)
		pthread_cond_wait(&c->changed, &c->lock);
	c->next = j;
	c->running++;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

void ptc_gpu_copiers_stop(struct ptc_gpu_copiers *c)
{
	ptc_gpu_copiers_wait(c);
	pthread_mutex_lock(&c->lock);
	c->stop = true;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	for (unsigned i = 0; i < c->n; i++)
		pthread_join(c->threads[i].thread, NULL);
	c->n = 0;
}
