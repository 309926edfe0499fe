/* SPDX-License-Identifier: Apache-2.0 */
/* A few threads that take numbered tasks in turn, while the caller waits,
 * tells somebody now and then, and asks whether to stop. The first failure
 * stops all. Happy path: 0 when every task was run. Failure modes: a task's
 * own error, of several the lowest task's, so that it is always the same; PTC_ECANCELED when stop said so. */
#pragma once

#include "base/status.h"
#include "daemon/agent/calls/ticket.h"

#include <stddef.h>

#define PTC_TASK_POOL_MAX 16

struct ptc_task_pool {
	size_t ntasks;
	unsigned threads; /* at most; no more than PTC_TASK_POOL_MAX */
	int (*run)(void *arg, unsigned thread, size_t task, struct ptc_error *err);
	/* Both on the calling thread only, a few times a second. May be NULL. */
	ptc_stop_fn stop;
	void (*tick)(void *arg);
	void *arg;
	const char *what; /* for "cancelled while ..." */
};
int ptc_task_pool_run(const struct ptc_task_pool *task_pool, struct ptc_error *err);
/* One thread per processor we may use, at most PTC_TASK_POOL_MAX. */
unsigned ptc_task_pool_size(void);
