/* SPDX-License-Identifier: Apache-2.0 */
/* Holding a group's ranks, with their memory, while it is worked out what becomes of it: another node has gone, or a
 * rank gives up (ptc_leave).
 *
 * Each rank is frozen (process/freeze.h) as soon as its state is whole. One in the middle of an update goes on to its
 * next boundary, WORKERS_SETTLE_MS at most, and can begin no other: ptc_update_begin waits (proto/local_page.h). What a
 * frozen rank has published is read, so that its state can be taken without the rank: see `held` of struct
 * ptc_slot_view.
 *
 * A hold ends by ptc_workers_let_go, with the end of the group, when its time is over and nobody has a view of it, with
 * ptcd, or as a new ptcd begins. Ranks then go on where they were.
 *
 * Failure modes: PTC_ENOTFOUND; ranks that cannot be frozen, or are not whole in time: they are not `held`, and why is
 * said in the view. Threads: any. */
#pragma once

#include "daemon/workers/types/group_desc.h"
#include "base/status.h"

struct ptc_workers;

/* Holds the group for ms from now on, and waits until each rank is frozen, or cannot be. */
int ptc_workers_hold(struct ptc_workers *w, const struct ptc_group_key *key, int64_t ms, const struct ptc_wait *wait,
		     struct ptc_error *err);
/* Nobody wants what its ranks have: they go on, and who leaves, leaves. */
int ptc_workers_let_go(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_error *err);
