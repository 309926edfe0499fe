/* SPDX-License-Identifier: Apache-2.0 */
/* A few threads take numbered tasks in turn. The caller waits meanwhile; a few times a second it calls `tick` and asks
 * `stop`. The first failure stops all threads.
 *
 * Happy path: 0 once every task has run. Failure modes: a task's own error (of several tasks, the lowest task's, so
 * that the result does not depend on timing); PTC_ECANCELED if `stop` returned true. */
#pragma once

#include "base/status.h"
#include "daemon/agent/calls/ticket.h"

#include <stddef.h>

#define PTC_TASK_POOL_MAX 16

struct ptc_task_pool {
	size_t ntasks;
	unsigned threads; /* most threads; at most PTC_TASK_POOL_MAX */
	int (*run)(void *arg, unsigned thread, size_t task, struct ptc_error *err);
	/* Called on the calling thread only, a few times a second. Both may be NULL. */
	ptc_stop_fn stop;
	void (*tick)(void *arg);
	void *arg;
	const char *what; /* for "cancelled while ..." */
};
int ptc_task_pool_run(const struct ptc_task_pool *task_pool, struct ptc_error *err);
/* One thread for each processor that this process may use, at most PTC_TASK_POOL_MAX. */
unsigned ptc_task_pool_size(void);
