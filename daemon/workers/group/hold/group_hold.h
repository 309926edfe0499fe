/* SPDX-License-Identifier: Apache-2.0 */
/* Holds a group's ranks, with their memory, until the controller has decided what becomes of them: another node has
 * gone, or a rank gives up (ptc_leave). Only ranks that survive (ptc_survive in ptc.h) are held; the others run on.
 *
 * A rank is frozen (process/freeze.h) as soon as its state is whole. A rank in the middle of an update goes on to its
 * next boundary, within WORKERS_UPDATE_MS and the time of two steps. It can begin no other update: ptc_update_begin
 * waits (proto/local_page.h). If the kernel needs longer than WORKERS_FREEZE_MS to freeze a rank, the rank counts as
 * not held, so that the node's other ranks need not wait for a thread that hangs in the kernel. Blobs and cursors of a
 * frozen rank are read from its memory. `not_held` of struct ptc_slot_view says whether the rank's state can be taken.
 *
 * Ranks may be held at two steps, one apart, when the loss of a node has kept some of them from the gradients that the
 * others have. With `to`, ranks at the step before are thawed, and may begin the update that follows. They are frozen
 * again at `to`, or where they are when that time is over, or when they give up. A rank that gives up can end an update
 * only if it says so (ptc_update_alone): `stays` of struct ptc_slot_view.
 *
 * A rank that was killed cannot be frozen. But if ptcd has descriptors of its device memory, the devices keep this
 * memory, and `not_held` says whether the state can be taken. What any killed rank had published for its step is read
 * if it lies in memory that ptcd has too (PTC_LOCAL_KEEPS).
 *
 * A hold ends with ptc_workers_let_go, with the end of the group, with ptcd, or when a new ptcd begins. It also ends
 * when its time is over, unless somebody has a view of it, or etcd is unreachable (ptc_workers_undecided). Ranks then
 * go on where they were. Ranks that are given up do not: they are thawed, get SIGTERM, and begin no other update. If
 * there is no ptcd any more, ptc-exec ends the hold.
 *
 * Failure modes: PTC_ENOTFOUND, PTC_ECANCELED. Of a rank that cannot be frozen, or is not whole in time, the view says
 * why. Threads: any. */
#pragma once

#include "daemon/workers/types/group_desc.h"
#include "base/status.h"

struct ptc_workers;

/* Holds the group for ms from now on, and waits until each rank is frozen, or cannot be. to: see above; 0: each stays
 * at its step. */
int ptc_workers_hold(struct ptc_workers *w, const struct ptc_group_key *key, int64_t ms, uint64_t to,
		     const struct ptc_wait *wait, struct ptc_error *err);
/* Whether etcd is unreachable, so that no controller can decide about any ranks. While it is, ranks that are held stay
 * held, and those that give up are held as ever. Their time begins anew when etcd answers again. */
void ptc_workers_undecided(struct ptc_workers *w, bool undecided);
/* The ranks' memory is not needed: they go on, and a rank that was giving up leaves. */
int ptc_workers_let_go(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_error *err);
