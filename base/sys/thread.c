/* SPDX-License-Identifier: Apache-2.0 */
/* See base/sys/thread.h. The starter names a thread that it will join. A counted thread may have ended before its
 * starter could name it, so it names itself. */
#include "base/sys/thread.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static int create(pthread_t *ret_thread, const pthread_attr_t *attr, const char *name, void *(*fn)(void *), void *arg,
		  struct ptc_error *err)
{
	sigset_t all, old;
	int e;

	ptc_require(strlen(name) <= PTC_THREAD_NAME_MAX);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	e = pthread_create(ret_thread, attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return e ? ptc_error_set(err, PTC_EIO, "cannot start thread %s: %s", name, strerror(e)) : 0;
}

unsigned ptc_thread_processors(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);

	return (unsigned)PTC_MAX(n, 1);
}

int ptc_thread_start(pthread_t *ret_thread, const char *name, void *(*fn)(void *), void *arg, struct ptc_error *err)
{
	int rc = create(ret_thread, NULL, name, fn, arg, err);

	if (rc == 0)
		pthread_setname_np(*ret_thread, name);
	return rc;
}

struct counted {
	struct ptc_thread_count *count;
	char name[PTC_THREAD_NAME_MAX + 1];
	void (*fn)(void *arg);
	void *arg;
};

/* The owner may be gone once the lock is released. */
static void leave(struct ptc_thread_count *c)
{
	pthread_mutex_lock(&c->lock);
	if (--c->running == 0)
		pthread_cond_broadcast(&c->none);
	pthread_mutex_unlock(&c->lock);
}

static void *counted_main(void *arg)
{
	struct counted t = *(struct counted *)arg;

	ptc_free(arg);
	prctl(PR_SET_NAME, t.name);
	t.fn(t.arg);
	leave(t.count);
	return NULL;
}

void ptc_thread_count_init(struct ptc_thread_count *c)
{
	*c = (struct ptc_thread_count){ .lock = PTHREAD_MUTEX_INITIALIZER, .none = PTHREAD_COND_INITIALIZER };
}

int ptc_thread_start_counted(struct ptc_thread_count *c, size_t max, const char *name, void (*fn)(void *), void *arg,
			     struct ptc_error *err)
{
	struct counted *t = ptc_malloc(sizeof *t);
	pthread_attr_t detached;
	pthread_t thread;
	bool room;
	int rc;

	if (!t)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory for thread %s", name);
	*t = (struct counted){ .count = c, .fn = fn, .arg = arg };
	snprintf(t->name, sizeof t->name, "%s", name);
	pthread_mutex_lock(&c->lock);
	room = c->running < max;
	c->running += room;
	pthread_mutex_unlock(&c->lock);
	if (!room) {
		ptc_free(t);
		return ptc_error_set(err, PTC_ELIMIT, "%zu threads %s run already, which is the most; try again later",
				     max, name);
	}
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	rc = create(&thread, &detached, name, counted_main, t, err);
	pthread_attr_destroy(&detached);
	if (rc) {
		ptc_free(t);
		leave(c);
	}
	return rc;
}

void ptc_thread_count_done(struct ptc_thread_count *c)
{
	pthread_mutex_lock(&c->lock);
	while (c->running)
		pthread_cond_wait(&c->none, &c->lock);
	pthread_mutex_unlock(&c->lock);
	pthread_cond_destroy(&c->none);
	pthread_mutex_destroy(&c->lock);
}

void ptc_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	ptc_require(!pthread_condattr_init(&attr));
	ptc_require(!pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
	ptc_require(!pthread_cond_init(cond, &attr));
	pthread_condattr_destroy(&attr);
}

bool ptc_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns)
{
	const struct timespec at = { .tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000 };

	return pthread_cond_timedwait(cond, lock, &at) == 0;
}

bool ptc_cond_wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ms)
{
	return ptc_cond_wait_until(cond, lock, ptc_sys_now_ns() + ms * 1000000);
}
