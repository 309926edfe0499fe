/* SPDX-License-Identifier: Apache-2.0 */
/* Between place.c (what is to be placed), place_search.c (which nodes it goes
 * to) and place_exact.c (the same, by looking at every way). Nobody else
 * includes it. */
#pragma once

#include "reshard/place/place.h"
#include "reshard/plan/change.h"

#ifndef PTC_PLACE_EXACT_BLOCKS /* a test builds this without the exact search */
#define PTC_PLACE_EXACT_BLOCKS 8
#endif

/* The classes of each rank: list[first[r] .. first[r + 1]). */
struct ptc_class_lists {
	size_t *first;
	uint32_t *list;
};
int ptc_class_lists_init(struct ptc_class_lists *l, const struct ptc_change *c, bool from, uint32_t world);
void ptc_class_lists_done(struct ptc_class_lists *l);

struct ptc_place_node {
	uint32_t node, first, ndevices; /* devices[first ..] */
	uint32_t slots;                 /* blocks that fit */
	uint32_t rack;
	bool warm;   /* has bytes of the old layout */
	bool pinned; /* must get a block */
};

struct ptc_placer {
	const struct ptc_change *change;
	const struct ptc_layout *to;
	struct ptc_device *devices; /* sorted */
	size_t ndevices;
	struct ptc_place_node *nodes; /* that offer devices, ascending */
	uint32_t nnodes, npinned;
	uint32_t block_size, nblocks;
	uint32_t *ranks;       /* block b: ranks[b * block_size ..] */
	uint32_t group_blocks; /* blocks of one TP group; they follow each other */
	bool racks;            /* a TP group's blocks stay in one rack */

	uint32_t nclasses;
	const int64_t *bytes;          /* per class */
	struct ptc_class_lists needs;  /* per rank of to */
	struct ptc_class_lists blocks; /* per block */
	struct ptc_class_lists holds;  /* per device */
	size_t words;                  /* of a bit set of classes */
	uint64_t *node_has;            /* bit sets */
	uint64_t *device_has;          /* per class: the devices of one node that have it */
	uint32_t *class_blocks;        /* per class: how many blocks need it */
	uint32_t *stamp, stamp_now;    /* per class */

	uint32_t *where; /* block -> index into nodes */
	int64_t gap;
};

static inline bool ptc_place_node_has(const struct ptc_placer *p, size_t n, uint32_t class)
{
	return p->node_has[n * p->words + class / 64] >> (class % 64) & 1;
}
/* Cheapest devices for the ranks of these blocks on a node: ret_cols[block index * block_size + k] is the device's
 * index in the node. ret_cols may be NULL. */
int ptc_place_devices(const struct ptc_placer *p, uint32_t node, const uint32_t *blocks, uint32_t n, uint32_t *ret_cols,
		      int64_t *ret_cost);
/* Fill p->where and p->gap. PTC_ENODEVICES: TP groups do not fit into racks. */
int ptc_place_search(struct ptc_placer *p);
/* Makes p->where, which costs *cost, cheaper where it can; never below bound. */
int ptc_place_compact(struct ptc_placer *p, int64_t bound, int64_t *cost);
/* Fill p->where by looking at every way: few blocks only. PTC_ENODEVICES: none meets the constraints. */
int ptc_place_exact(struct ptc_placer *p);

/* ---- assign.c ---- */
/* Assigns each row to a column, of which column c takes room[c] (NULL: 1 each), as cheaply as it can; there is room for
 * all. cost is rows * cols. *ret_bound: no assignment is cheaper; equal to the cost of this one unless it ran out of
 * max_steps (an entry of cost looked at each), when the rest goes to the cheapest column with room. */
int ptc_assign(size_t rows, size_t cols, const uint32_t *room, const int64_t *cost, int64_t max_steps,
	       uint32_t *ret_col, int64_t *ret_bound);
