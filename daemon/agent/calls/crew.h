/* SPDX-License-Identifier: Apache-2.0 */
/* A few threads that take numbered tasks in turn, while the caller waits,
 * tells somebody now and then, and asks whether to stop. The first failure
 * stops all. Happy path: 0 when every task was run. Failure modes: a task's
 * own error, of several the lowest task's, so that it is always the same; PTC_ECANCELED when stop said so. */
#pragma once

#include "base/status.h"
#include "daemon/agent/calls/ticket.h"

#include <stddef.h>

#define PTC_CREW_MAX 16

struct ptc_crew {
	size_t ntasks;
	unsigned threads; /* at most; no more than PTC_CREW_MAX */
	int (*run)(void *arg, unsigned thread, size_t task, struct ptc_error *err);
	/* Both on the calling thread only, a few times a second. May be NULL. */
	ptc_stop_fn stop;
	void (*tick)(void *arg);
	void *arg;
	const char *what; /* for "cancelled while ..." */
};
int ptc_crew_run(const struct ptc_crew *crew, struct ptc_error *err);
/* One thread per processor we may use, at most PTC_CREW_MAX. */
unsigned ptc_crew_size(void);
