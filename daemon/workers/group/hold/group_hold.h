/* SPDX-License-Identifier: Apache-2.0 */
/* Holding a group's ranks, with their memory, while it is worked out what becomes of it: another node has gone, or a
 * rank gives up (ptc_leave). Only ranks that survive (ptc_survive in ptc.h) are held; the others run on.
 *
 * A rank is frozen (process/freeze.h) as soon as its state is whole. One in the middle of an update goes on to its next
 * boundary, within WORKERS_UPDATE_MS and what two steps take, and can begin no other update: ptc_update_begin waits
 * (proto/local_page.h). Blobs and cursors of a frozen rank are read from its memory. Whether its state can then be
 * taken says `not_held` of struct ptc_slot_view.
 *
 * A hold ends by ptc_workers_let_go, with the end of the group, when its time is over and nobody has a view of it, with
 * ptcd, or as a new ptcd begins. Ranks then go on where they were. If there is no ptcd any more, ptc-exec ends it.
 *
 * Failure modes: PTC_ENOTFOUND, PTC_ECANCELED; ranks that cannot be frozen, or are not whole in time: the view says
 * why. Threads: any. */
#pragma once

#include "daemon/workers/types/group_desc.h"
#include "base/status.h"

struct ptc_workers;

/* Holds the group for ms from now on, and waits until each rank is frozen, or cannot be. */
int ptc_workers_hold(struct ptc_workers *w, const struct ptc_group_key *key, int64_t ms, const struct ptc_wait *wait,
		     struct ptc_error *err);
/* Nobody wants what its ranks have: they go on, and who leaves, leaves. */
int ptc_workers_let_go(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_error *err);
