/* SPDX-License-Identifier: Apache-2.0 */
/* A view of one rank: what stands behind ptc_slot_view.opaque. Shared by the files of this room. A view is made and
 * freed under the lock of ptc_workers; what it refers to stays meanwhile, but the process may die. */
#pragma once

#include "daemon/workers/copier/copier.h"
#include "daemon/workers/group/internal.h"
#include "daemon/workers/group/rank_slots.h"

struct view {
	struct ptc_workers *w;
	struct group *group;
	struct declared *declared;
	struct declared *layout; /* of a rank that builds: what it has declared without memory */
	struct rank_state *rank_state;
	struct staging *staging; /* what was staged when the view was made; NULL: nothing */
	size_t slot;
	unsigned number; /* of the worker */
	pid_t pid;
	int pidfd;
	struct ptc_device_guard guard; /* of its device memory at the stop; page_fd is ours */
	bool outlived;                 /* the process has ended, and its devices keep its memory */
	bool unguarded;                /* a held rank needs a guard, and no descriptor was left for its page */
};

/* slot_copy.c. Callers do not hold the lock. */
/* Whether its process has ended, and its devices do not keep its memory. */
bool ptc_slot_dead(const struct view *v);
/* PTC_ESTATE: the line names rank and process, and why it ended, where that is known. */
int ptc_slot_died(const struct view *v, struct ptc_error *err);
/* The rank does not run: what is read is of one step. PTC_ESTATE: it may run. */
int ptc_slot_check_held(const struct view *v, struct ptc_error *err);
/* ptc-gpu can copy the rank's device memory. */
int ptc_slot_check_mapped(const struct view *v, struct ptc_error *err);
/* The pid as ptc_device_copy takes it: negative if the process has ended. */
pid_t ptc_slot_owner(const struct view *v);
