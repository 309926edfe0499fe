/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns sources for a change on given devices: which rank gets each class from which rank, and which of several
 * sources sends. Shared by plan.c and deliver.c only. */
#pragma once

#include "reshard/plan/change.h"

/* How one rank gets a class. `src` is a rank; between nodes it is chosen for each move. */
struct ptc_delivery {
	enum ptc_move_kind kind;
	uint32_t dst, src;
};
/* A node that has a set of ranks' bytes, and its lowest rank that has them. */
struct ptc_sender {
	int64_t left; /* bytes left of the node's share */
	uint32_t node, rank;
};
/* The ranks of each set, in the order of their devices. */
struct ptc_slots {
	size_t *first; /* per set */
	uint32_t *ranks;
};
struct ptc_deliver {
	/* given */
	const struct ptc_change *c;
	const struct ptc_allocation *from, *to; /* from NULL: nothing is held */
	uint32_t nnodes;
	const bool *usable;
	/* made */
	struct ptc_slots have, need; /* per set; `have` has ranks on usable nodes only */
	size_t *first;               /* per class: its first entry in v */
	struct ptc_delivery *v;
	size_t n, cap;
	int64_t *asked;       /* per set of `from`: bytes that it sends */
	int64_t *over;        /* per node: bytes for which it was chosen beyond its shares */
	size_t *sender_first; /* per set of `from`: its first entry in `senders` */
	struct ptc_sender *senders;
};
/* Fills d, and all of `plan` but out_bytes and the numbers of moves. keep: list kept bytes, too. */
int ptc_deliver_init(struct ptc_deliver *d, struct ptc_plan *plan, bool keep, struct ptc_error *err);
void ptc_deliver_done(struct ptc_deliver *d);
/* Whether several nodes can send the set. */
static inline bool ptc_deliver_choice(const struct ptc_deliver *d, uint32_t set)
{
	return d->sender_first[set + 1] - d->sender_first[set] > 1;
}
/* Chooses a sender with much of its share left, and takes `bytes` off that share. */
void ptc_deliver_choose(struct ptc_deliver *d, uint32_t set, int64_t bytes, struct ptc_sender *ret);
