/* SPDX-License-Identifier: Apache-2.0 */
/* Healing makes damaged blocks of this node's store right with bytes of other nodes.
 *
 * Happy path: a reader finds a damaged block and asks for healing (ptc_agent_heals in calls/agent_state.h), or ptcd
 * does for a block that the scrubber found. The job's committed state says which nodes have the same boxes. Healing
 * fetches their bytes into a copy of the block. If the copy matches the block's checksum, healing writes it. If no
 * node's bytes give a match, the damage may also be in bytes that no table lists. Healing then digests the tensors that
 * have bytes in the block, with the fetched bytes in place. If the digests are the manifest's, it writes the block and
 * makes a new checksum.
 *
 * Failure modes: no other node has a part of the block; no node that has it answers; their bytes do not match. The
 * block then stays damaged, and env.healed learns why. Readers try again after ten times as long as that try took.
 *
 * Threads: any; one thread heals at a time, and others wait for it. A thread with a memory ticket must not heal,
 * because healing may wait for another node's ticket. */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/store/scrub/store_heal.h"

struct ptc_heal_counts {
	unsigned healed, left;
};
/* Tries to heal all known damaged blocks of the job. A block that stays damaged is no error. PTC_ESTATE: another thread
 * has been healing for long. */
int ptc_agent_heal(struct ptc_agent *agent, const char *uuid, struct ptc_heal_counts *ret, struct ptc_error *err);
/* Whether a switch, an import or a capture is under way here. Any thread; does not block. */
bool ptc_agent_busy(struct ptc_agent *agent);
void ptc_agent_healing_init(struct ptc_agent *agent); /* lets readers heal; call it before any RPC */
/* Healing asks no node from now on, so it ends within one request's limit (10 s). Any thread. NULL ok. */
void ptc_agent_healing_stop(struct ptc_agent *agent);

/* ---- block_sources.c: the bytes that nodes have of a block ---- */
struct ptc_block_source {
	struct ptc_agent *agent;
	const struct ptc_geometry *g; /* of the tables to read */
	struct ptc_block *block;
	const struct ptc_store_box *parts; /* boxes in the block */
	size_t nparts;
	uint8_t **bytes; /* of each part */
	bool *whole;     /* of each part: all of its bytes are there */
	bool *usable;    /* of each node of g; false: this node, and nodes that failed */
	bool *damaged;   /* of each part and node: that node's bytes are damaged, too */
	/* times that a source refused a request for several parts, but none of these parts alone */
	unsigned unmarked;
	struct ptc_error why; /* the last failure; code 0: none */
};
int ptc_block_source_init(struct ptc_block_source *s,
			  struct ptc_error *err); /* set agent, g and block first, the rest zero */
void ptc_block_source_done(struct ptc_block_source *s);
/* Puts the bytes of node `first` into the block, and other nodes' bytes where `first` has none. False: `first` has no
 * part of the block, or failed. */
bool ptc_block_source_put(struct ptc_block_source *s, uint32_t first);
/* Does the same with a sealed table of this node that is not damaged there. */
bool ptc_block_source_local(struct ptc_block_source *s);
/* Puts the block's live bytes as the store has them. They are right if only bytes outside of tables are damaged. */
void ptc_block_source_found(struct ptc_block_source *s);
/* Gives the XOR of the digests of boxes of an item, from this node's table or another node's. */
int ptc_block_source_digest(struct ptc_block_source *s, uint32_t item, const struct ptc_boxes *boxes,
			    uint64_t *ret_digest, struct ptc_error *err);
