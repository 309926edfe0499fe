/* SPDX-License-Identifier: Apache-2.0 */
/* How many failure domains hold each region of a layout, and which nodes should get copies of what is on too few.
 *
 * Happy path: the regions that the same ranks hold are counted together; for what is in fewer domains than asked for,
 * nodes in other domains are chosen, the one with the fewest bytes first. Deterministic. Pure.
 *
 * Failure modes: memory; PTC_ELIMIT: more kinds of copies than can be written down. */
#pragma once

#include "reshard/layout/layout.h"

struct ptc_copies_ask {
	const struct ptc_layout *held;   /* with copies beside it, if there are any */
	uint32_t world;                  /* ranks of the layout alone */
	const struct ptc_allocation *at; /* of held */
	uint32_t nnodes;
	const uint32_t *domain; /* per node, below nnodes: nodes of one fail together */
	const bool *usable;     /* per node: what it has counts */
	const bool *target;     /* per node: it may get copies. NULL: none may */
	uint32_t count;         /* domains that each region is to be in */
};
/* A node is to hold what a rank does of some items. */
struct ptc_copies_add {
	uint32_t rank, node, items; /* items: index into the list of sets of items */
};
struct ptc_copies_found {
	uint32_t fewest; /* domains that hold some region; 0: nobody has it */
	int64_t bytes;   /* of copies that lack, each counted as often as it lacks */
	int64_t nowhere; /* of these, bytes for which there is no node in another domain */
	struct ptc_copies_add *add;
	size_t nadd, addcap;
	uint8_t **items; /* sets: a bit for each item */
	size_t nitems, itemscap;
};
int ptc_copies_find(const struct ptc_copies_ask *ask, struct ptc_copies_found *ret, struct ptc_error *err);
void ptc_copies_found_done(struct ptc_copies_found *f); /* one of zeros is fine */
