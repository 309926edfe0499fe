/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of daemon/workers/group. */
#pragma once

#include "daemon/workers/group/rank_groups.h"
#include "daemon/workers/group/worker_jobs.h"
#include "daemon/workers/session/session.h"
#include "daemon/workers/state/group_find.h"
#include "daemon/workers/state/rank_declarations.h"
#include "daemon/workers/state/rank_events.h"
#include "daemon/workers/state/workers_sync.h"

/* group_start.c */
/* If the worker was started with a low priority, raises it again. */
void ptc_worker_raise_locked(struct ptc_workers *w, struct worker *k);
/* Makes a worker for a process that is to be started. */
int ptc_worker_make_locked(struct ptc_workers *w, struct job *job, struct worker **ret, struct ptc_error *err);
/* Starts its process, as g describes it. slot: the rank that it will be; NULL: it is told later. Lets go of the lock
 * meanwhile. */
int ptc_worker_spawn_locked(struct ptc_workers *w, const struct group *g, const struct slot *slot, struct worker *k,
			    struct ptc_error *err);
/* Waits until all live workers are connected, at most WORKERS_CONNECTED_MS. */
int ptc_group_wait_connected_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err);
/* PTC_ESTATE: one of the group's processes has ended. */
int ptc_group_dead_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err);

/* group_file.c */
int ptc_group_new(const struct ptc_group_desc *desc, struct group **ret, struct ptc_error *err);
int ptc_group_save(const struct group *g, struct ptc_error *err);
/* Takes a group out of its job and removes its file. The last reference frees the group. */
void ptc_group_remove_locked(struct ptc_workers *w, struct group *g);
struct ptc_process_label ptc_group_label(const struct group *g,
					 size_t slot); /* the label of a process that begins in this slot */
int ptc_group_load(const void *data, size_t len, struct group **ret, struct ptc_error *err);

/* group_stop.c */
/* Sets one rank's stop. True: the rank is at or past `stop` and does not wait there; it then waits at its next boundary
 * at the latest. *ret_step: the step that the rank has published, if *ret_published. */
bool ptc_worker_arm(struct worker *k, uint64_t stop, bool *ret_published, uint64_t *ret_step);
uint64_t ptc_group_first_stop(const struct group *g); /* the first stop of a rank that begins its generation */

/* group_hold.c */
void ptc_group_let_go_locked(struct ptc_workers *w, struct group *g);
/* Thaws held ranks. Call it right after they were told to exit: they begin no update any more, and get SIGTERM at once.
 */
void ptc_group_end_held_locked(struct ptc_workers *w, struct group *g);
/* Says why the state of k, a worker of a held group, cannot be taken; NULL: it can. k NULL: the slot has no process. */
const char *ptc_worker_not_held(const struct group *g, const struct worker *k);
const char *ptc_worker_never_held(const struct worker *k); /* the same, of what holding it would not change */
bool ptc_worker_stays(const struct worker *k);             /* group_hold.c: it gives up, and can end no further step */

/* group_end.c */
/* Ends the job's processes that wait without a rank, and starts no others. */
void ptc_standby_end_locked(struct ptc_workers *w, struct job *job);
/* If the job has no other group that stays: waits until the job's processes that were told to exit have exited, for
 * they have memory and devices that g's ranks need. PTC_ESTATE names a process that was killed and does not end;
 * PTC_ETIMEOUT one that has its grace time still. */
int ptc_group_wait_others_locked(struct ptc_workers *w, const struct group *g, const struct ptc_wait *wait,
				 int64_t deadline_ns, struct ptc_error *err);
