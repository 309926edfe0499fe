/* SPDX-License-Identifier: Apache-2.0 */
/* Which replica of some bytes is right, if the ranks that hold them do not all have the same: `on_difference` of a job
 * (docs/job.md). Pure.
 *
 * A group is the ranks that hold one box of an item. A rank's vote is the digest of its bytes. The digest of some ranks
 * is not known: their node has said only that their bytes differ from those of the lowest rank there. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_replica_vote {
	uint32_t rank;
	bool unknown; /* the rank's bytes are not those of `digest` */
	uint64_t digest;
	bool odd; /* set by ptc_replica_votes: the rank's bytes are not the right ones */
};

/* Finds the right digest of a group of n > 0 ranks, and marks the ranks that are odd. The right digest is the one that
 * more than half of the ranks have. With `primary` it is that of the group's lowest rank, however many have it. True:
 * there is one, and *ret_nodd ranks are odd. False: no rank is marked. A rank whose own digest is not known is odd if
 * its node's digest is the right one. Otherwise nobody can say, and it is not marked. */
bool ptc_replica_votes(struct ptc_replica_vote *v, size_t n, bool primary, size_t *ret_nodd);
