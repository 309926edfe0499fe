/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of daemon/agent/ranks: restoring ranks, and reading their state. */
#pragma once

#include "daemon/agent/calls/operation.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/memory/prefetch.h"
#include "daemon/agent/memory/rank_group.h"
#include "daemon/agent/memory/resident.h"
#include "daemon/agent/ranks/ranks.h"
#include "formats/state/state_doc.h"

/* ---- restore.c: a snapshot's bytes into the ranks that have declared ---- */
struct ptc_restore {
	struct ptc_table *table; /* sealed */
	const struct ptc_geometry *g;
	const struct ptc_group *group;   /* restores its slots in phase DECLARED */
	struct ptc_residents *residents; /* boxes on the ranks' devices; NULL: none */
	struct ptc_prefetch *prefetched; /* bytes in page-locked memory; NULL: none */
	ptc_stop_fn stop;
	void *arg;
};
int ptc_restore_slots(const struct ptc_restore *job, struct ptc_device_bytes *ret_bytes, struct ptc_error *err);

/* ---- device_room.c ---- */
/* next: those that were built ahead, whose memory is there already; zeros: none. */
struct ptc_rank_groups {
	struct ptc_group now, next;
};
/* Whether the devices of node `self` have room for what the next generation's ranks declare there, once the ranks of
 * `now` have freed theirs. Only what certainly does not fit is refused: PTC_ENOSPC, naming device and bytes. */
int ptc_device_room(struct ptc_agent *agent, const struct ptc_geometry *next, uint32_t self,
		    const struct ptc_rank_groups *groups, struct ptc_error *err);

/* ---- warm.c ---- */
/* Makes so many bytes of free chunks ready, in a few seconds at most. */
void ptc_warm(struct ptc_agent *agent, const char *uuid, int64_t bytes, ptc_stop_fn stop, void *arg);

/* ---- notes in the store about ranks (rank_notes.c): for each kind, the last incarnation ---- */
enum ptc_rank_note { PTC_RANKS_BEGUN, PTC_RANKS_BUILT, PTC_RANKS_GONE_ON };
int ptc_rank_note_write(struct ptc_agent *agent, enum ptc_rank_note what, const struct ptc_group_key *key,
			struct ptc_error *err);
int ptc_rank_note_is(struct ptc_agent *agent, enum ptc_rank_note what, const struct ptc_group_key *key, bool *ret_is,
		     struct ptc_error *err);

/* The first writes the note PTC_RANKS_BUILT, before these ranks are told their generation. The second gives PTC_ELOST
 * if these ranks were built here (the note or `built` says so) and none of them is here any more. Ranks of other nodes
 * are connected to these ranks, and would not connect to new ones. */
int ptc_rank_built_note(struct ptc_agent *agent, const struct ptc_group_key *key, struct ptc_error *err);
int ptc_rank_built_check(struct ptc_agent *agent, const struct ptc_group_key *key, bool built, struct ptc_error *err);

/* ---- rank state (rank_state.c) ---- */

struct ptc_rank_states {
	struct ptc_state state;
	struct ptc_rank_state *of; /* of each rank of the group here; NULL: there is no rank state */
	struct ptc_slot_blob *blobs;
	struct ptc_slot_cursor *cursors;
	size_t nblobs;
};
/* hash: of the blob; "": there is none. *ret is always set. */
int ptc_rank_states_read(struct ptc_agent *agent, const char *uuid, const char *hash, const struct ptc_group_desc *desc,
			 struct ptc_rank_states *ret, struct ptc_error *err);
void ptc_rank_states_done(struct ptc_rank_states *c);
