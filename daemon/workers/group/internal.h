/* SPDX-License-Identifier: Apache-2.0 */
/* What the group room's files share. */
#pragma once

#include "daemon/workers/group/rank_groups.h"
#include "daemon/workers/group/worker_jobs.h"
#include "daemon/workers/session/session.h"
#include "daemon/workers/state/group_find.h"
#include "daemon/workers/state/rank_declarations.h"
#include "daemon/workers/state/rank_events.h"
#include "daemon/workers/state/workers_sync.h"

/* group_start.c */
int ptc_group_spawn_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err);
/* Live workers are connected, or the time is over. */
int ptc_group_wait_connected_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err);
/* Fills err when one of its processes has ended. */
int ptc_group_dead_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err);

/* group_file.c */
int ptc_group_new(const struct ptc_group_desc *desc, struct group **ret, struct ptc_error *err);
int ptc_group_save(const struct group *g, struct ptc_error *err);
void ptc_group_unsave(const struct group *g);
/* Out of its job; freed with its last reference. Its file goes too. */
void ptc_group_remove_locked(struct ptc_workers *w, struct group *g);
struct ptc_process_label ptc_group_label(const struct group *g, size_t slot); /* of a process that begins with it */
int ptc_group_load(const void *data, size_t len, struct group **ret, struct ptc_error *err);

/* group_stop.c */
/* Sets one rank's stop. Returns whether it is at or past `stop`, other than held there; then it is held at its next boundary at
 * the latest. *ret_step: what it has published, if it has. */
bool ptc_worker_arm(struct worker *k, uint64_t stop, bool *ret_published, uint64_t *ret_step);
void ptc_group_prearm_locked(struct group *g);
uint64_t ptc_group_first_stop(const struct group *g); /* of a rank that begins */

/* group_end.c */
void ptc_group_end_locked(struct ptc_workers *w, struct group *g, bool dropping);
