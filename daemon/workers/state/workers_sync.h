/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for changes, waking the loop, and tasks on threads of their own. A wait fails when its
 * caller is cancelled or its time is over; a task when there are too many, or no thread. */
#pragma once

#include "daemon/workers/state/worker_state.h"

void ptc_workers_wake(struct ptc_workers *w);
void ptc_workers_changed_locked(struct ptc_workers *w); /* signals callers and the loop */
/* Waits for a change, at most 100 ms, then asks `wait`. deadline_ns: 0 or when it ends. */
int ptc_workers_pause_locked(struct ptc_workers *w, const struct ptc_wait *wait, int64_t deadline_ns,
			     struct ptc_error *err);
int64_t ptc_workers_deadline(const struct ptc_wait *wait);
/* Runs fn(w, arg) on a thread of its own; w stays until it has returned. false: too many, or no thread. */
bool ptc_workers_task_locked(struct ptc_workers *w, void (*fn)(struct ptc_workers *w, void *arg), void *arg);

static inline int ptc_grow_failed(struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENOMEM, "out of memory");
}
