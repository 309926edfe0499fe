/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for changes, waking the loop, and tasks on threads of their own. A wait fails if its caller is cancelled or
 * its time is over. A task fails if there are too many, or if no thread can start. */
#pragma once

#include "daemon/workers/state/worker_state.h"

void ptc_workers_wake(struct ptc_workers *w);
void ptc_workers_changed_locked(struct ptc_workers *w); /* signals callers and the loop */
/* Waits for a change, at most 100 ms, then asks `wait`. deadline_ns: the end of the wait; 0: none. */
int ptc_workers_pause_locked(struct ptc_workers *w, const struct ptc_wait *wait, int64_t deadline_ns,
			     struct ptc_error *err);
int64_t ptc_workers_deadline(const struct ptc_wait *wait);
/* Runs fn(w, arg) on a thread of its own; w stays until fn has returned. False: there are too many tasks, or no
 * thread. */
bool ptc_workers_task_locked(struct ptc_workers *w, void (*fn)(struct ptc_workers *w, void *arg), void *arg);
