/* SPDX-License-Identifier: Apache-2.0 */
/* Queues worker events for the controller (types/worker_event.h) as soon as their conditions hold, each event once. */
#pragma once

#include "daemon/workers/state/worker_state.h"

void ptc_group_event_locked(struct ptc_workers *w, struct group *g);
void ptc_group_stalled_locked(struct ptc_workers *w, struct group *g, int64_t now_ns);
void ptc_group_hangs_locked(struct ptc_workers *w, struct group *g);
/* k: the slot's worker; NULL: it has none any more. what: the failure; NULL: the process has exited. */
void ptc_group_failed_locked(struct ptc_workers *w, struct group *g, const struct worker *k, size_t slot,
			     const char *what);
/* Does the same for a rank whose device has failed: no program is to blame. */
void ptc_group_device_failed_locked(struct ptc_workers *w, struct group *g, const struct worker *k, size_t slot,
				    const char *what);
/* Returns PTC_ESTATE with one line that says how the process ended. If start or build waits for that process, queues
 * the event NOT_STARTED once, with the end of the log. */
int ptc_group_not_started_locked(struct ptc_workers *w, struct group *g, const struct worker *k, uint32_t rank,
				 struct ptc_error *err);
/* Queues the event STANDBY. like: as what the process was started. k: the process; NULL: it could not be started. what:
 * the failure; NULL: the process has ended. */
void ptc_group_standby_failed_locked(struct ptc_workers *w, const struct group *like, const struct worker *k,
				     const char *what);
void *ptc_workers_reporter(void *workers);
/* How long the worker's step has not moved, if that is too long; otherwise 0. */
int64_t ptc_worker_stalled_ns(const struct ptc_workers *w, const struct worker *k, int64_t now_ns);
