/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the ranks room share. */
#pragma once

#include "daemon/agent/calls/operation.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/memory/rank_group.h"
#include "daemon/agent/ranks/ranks.h"
#include "formats/state/state_doc.h"

/* ---- a snapshot's bytes into the ranks that have declared (restore.c) ---- */
struct ptc_restore {
	struct ptc_table *table; /* sealed */
	const struct ptc_geometry *g;
	const struct ptc_group *group; /* its DECLARED slots are written */
	ptc_stop_fn stop;
	void *arg;
};
int ptc_restore_slots(const struct ptc_restore *job, struct ptc_error *err);

/* ---- rank state (rank_state.c) ---- */

struct ptc_rank_states {
	struct ptc_state state;
	struct ptc_rank_state *of; /* of each rank of the group here; NULL: nothing is carried */
	struct ptc_slot_blob *blobs;
	struct ptc_slot_cursor *cursors;
	size_t nblobs;
};
/* hash: of the blob; "": nothing. *ret is always set. */
int ptc_rank_states_read(struct ptc_agent *agent, const char *uuid, const char *hash, const struct ptc_group_desc *desc,
			 struct ptc_rank_states *ret, struct ptc_error *err);
void ptc_rank_states_done(struct ptc_rank_states *c);
