/* SPDX-License-Identifier: Apache-2.0 */
/* Of a change on devices: who gets each class from whom, and which of several
 * sources sends. Between plan.c and deliver.c; nobody else includes it. */
#pragma once

#include "reshard/plan/change.h"

/* One rank's way to a class. src: a rank; between nodes it is chosen for each move. */
struct ptc_delivery {
	enum ptc_move_kind kind;
	uint32_t dst, src;
};
/* A node that has a set, and its lowest rank that does. */
struct ptc_sender {
	int64_t left; /* of its share */
	uint32_t node, rank;
};
/* Sets as ranks in the order of their devices. */
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
	struct ptc_slots have, need; /* per set; have: on usable nodes only */
	size_t *first;               /* per class, of v */
	struct ptc_delivery *v;
	size_t n, cap;
	int64_t *asked;       /* per set of from: bytes that it sends */
	int64_t *over;        /* per node: bytes that it was chosen for beyond its shares */
	size_t *sender_first; /* per set of from, of senders */
	struct ptc_sender *senders;
};
/* Fills d and all of plan but out_bytes and the numbers of moves. keep: list what is kept, too. */
int ptc_deliver_init(struct ptc_deliver *d, struct ptc_plan *plan, bool keep, struct ptc_error *err);
void ptc_deliver_done(struct ptc_deliver *d);
/* Several nodes could send the set. */
static inline bool ptc_deliver_choice(const struct ptc_deliver *d, uint32_t set)
{
	return d->sender_first[set + 1] - d->sender_first[set] > 1;
}
/* A sender with much left of its share, which becomes less by bytes. */
void ptc_deliver_choose(struct ptc_deliver *d, uint32_t set, int64_t bytes, struct ptc_sender *ret);
