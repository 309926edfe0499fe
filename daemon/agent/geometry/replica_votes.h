/* SPDX-License-Identifier: Apache-2.0 */
/* Which replica of some bytes is right, if the ranks that hold them do not all have the same: `on_difference` of a job
 * (docs/job.md). At the controller. Failure modes are stated with each function. No threads.
 *
 * A group is the ranks that hold one box of an item. A rank's vote is the digest of its bytes. The digest of some ranks
 * may not be known, if too much of what they have differs to be listed. Lists have what comes first, by the number of
 * the box. So of the first boxes in which any replicas differ, all votes are known, and a rank is named there also if
 * all of its memory is wrong. */
#pragma once

#include "daemon/agent/geometry/digest_merge.h"

struct Ptc__V1__PullReply;

struct ptc_replica_vote {
	uint32_t rank;
	bool unknown; /* it has no vote */
	uint64_t digest;
	bool odd; /* set by ptc_replica_votes: the rank's bytes are not the right ones */
};

/* Finds the right digest of a group of n > 0 ranks, and marks the ranks that are odd. The right digest is the one that
 * more than half of the ranks have. With `primary` it is that of the group's lowest rank, however many have it. True:
 * there is one, and *ret_nodd ranks are odd. False: no rank is marked. Nor is one whose digest is not known. */
bool ptc_replica_votes(struct ptc_replica_vote *v, size_t n, bool primary, size_t *ret_nodd);

/* A rank whose bytes of one of its node's boxes (`need`, by number) are not those of the lowest rank there that holds
 * them, as its node has said: its digest is that one XOR `difference`. more: other boxes of the rank may differ, too,
 * of those from number `before` on. */
struct ptc_differing {
	uint32_t rank, item, need;
	uint64_t difference;
	bool more;
	uint32_t before;
};
#define PTC_DIFFERING_MAX 32 /* of a rank */
/* All zeros: nothing is listed. ptc_free(v). */
struct ptc_differing_list {
	struct ptc_differing *v;
	size_t n, cap;
};
/* Notes that a part of the box differs. Of a rank that differs in too many, those with the lowest numbers are kept. 0
 * or PTC_ENOMEM. */
int ptc_differing_note(struct ptc_differing_list *l, uint32_t rank, uint32_t item, uint32_t need, uint64_t difference,
		       struct ptc_error *err);
/* False: the list is full of boxes with lower numbers. It then says so, and a note of this box would change nothing. */
bool ptc_differing_wants(struct ptc_differing_list *l, uint32_t rank, uint32_t need);
/* Adds what that node has said of its own ranks. A list of other ranks, or of an item that there is not, is no list. 0
 * or PTC_ENOMEM. */
int ptc_differing_add(struct ptc_differing_list *l, const struct ptc_geometry *g, uint32_t node,
		      const struct Ptc__V1__PullReply *said, struct ptc_error *err);

struct ptc_odd_rank {
	uint32_t rank;
	uint32_t item;        /* one in which it is odd */
	uint32_t against, of; /* so many of these ranks have the right bytes of it; `of` counts the odd ones, too */
};
/* Finds the odd ranks, ascending, from what nodes have said: d, and the ranks that they list. ptc_free(*ret).
 * PTC_EDIGEST, with the tensor: for some bytes no replica is right. PTC_ELIMIT: by a majority for each part, half of
 * all ranks or more are odd. */
int ptc_odd_ranks(struct ptc_digests *d, const struct ptc_geometry *g, const struct ptc_differing_list *listed,
		  bool primary, struct ptc_odd_rank **ret, size_t *ret_n, struct ptc_error *err);
