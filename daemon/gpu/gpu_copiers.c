/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that copy for a device. Happy path: the device's thread hands over a copy that it has checked; a thread
 * makes it, while others make those before and after it, and answers. So the link works while processors move bytes
 * between slots of the ring and host memory, and while an answer is on its way. Copies of the other direction, and
 * everything else, wait until all copies have ended.
 *
 * Failure modes: a thread that cannot enter the device's context fails its copy, and tries again with the next. Where
 * not all threads can be started, fewer do the work; without any, copies are refused. */
#include "base/check.h"
#include "base/sys/thread.h"
#include "daemon/gpu/gpu_server.h"

#include <stdio.h>

static struct ptc_gpu_job *take(struct ptc_gpu_copiers *c)
{
	struct ptc_gpu_job *j;

	pthread_mutex_lock(&c->lock);
	while (!c->next && !c->stop)
		pthread_cond_wait(&c->changed, &c->lock);
	j = c->next;
	c->next = NULL;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	return j;
}

static void *loop(void *arg)
{
	struct ptc_gpu_copier_thread *t = arg;
	struct ptc_gpu_worker *w = t->worker;
	struct ptc_gpu_job *j;
	bool entered = false;

	while ((j = take(&w->copiers))) {
		struct ptc_gpu_failure f = { .err = PTC_ERROR_INIT };

		entered = entered || w->server->ops->enter(w->gpu, &f) == 0;
		w->copiers.copy(w, t->number, j, &f);
		pthread_mutex_lock(&w->copiers.lock);
		w->copiers.running--;
		pthread_cond_broadcast(&w->copiers.changed);
		pthread_mutex_unlock(&w->copiers.lock);
	}
	return NULL;
}

int ptc_gpu_copiers_start(struct ptc_gpu_worker *w, ptc_gpu_copy_fn *copy, struct ptc_error *err)
{
	struct ptc_gpu_copiers *c = &w->copiers;
	char name[PTC_THREAD_NAME_MAX + 1];
	int rc = 0;

	c->copy = copy;
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
	while (c->next || c->running == c->n)
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
