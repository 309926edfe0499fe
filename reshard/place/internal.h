/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of reshard/place only. place.c prepares the problem, place_search.c finds nodes for blocks, and
 * place_exact.c tries every assignment of few blocks to nodes. */
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
	uint32_t slots;                 /* how many blocks fit on the node */
	uint32_t rack;
	bool warm;   /* the node has bytes of the old layout */
	bool pinned; /* the node must get a block */
};

struct ptc_placer {
	const struct ptc_change *change;
	const struct ptc_layout *to;
	struct ptc_device *devices; /* sorted */
	size_t ndevices;
	struct ptc_place_node *nodes; /* the nodes that offer devices, ascending */
	uint32_t nnodes, npinned;
	uint32_t block_size, nblocks;
	uint32_t *ranks;       /* the ranks of block b: ranks[b * block_size ..] */
	uint32_t group_blocks; /* number of blocks of one TP group; they follow each other */
	bool racks;            /* a TP group's blocks stay in one rack */

	uint32_t nclasses;
	const int64_t *bytes;          /* per class */
	struct ptc_class_lists needs;  /* per rank of to */
	struct ptc_class_lists blocks; /* per block */
	struct ptc_class_lists holds;  /* per device */
	size_t words;                  /* length of a bit set of classes */
	uint64_t *node_has;            /* a bit set of classes per node */
	uint64_t *device_has;          /* per class: the devices of one node that have it */
	uint32_t *class_blocks;        /* per class: how many blocks need it */
	uint32_t *stamp, stamp_now;    /* per class */

	uint32_t *where; /* per block: index into nodes */
	int64_t gap;
};

static inline bool ptc_place_node_has(const struct ptc_placer *p, size_t n, uint32_t class)
{
	return p->node_has[n * p->words + class / 64] >> (class % 64) & 1;
}
/* Finds the cheapest devices of a node for the ranks of n blocks. ret_cols[block index * block_size + k] is the
 * device's index in the node. ret_cols may be NULL. */
int ptc_place_devices(const struct ptc_placer *p, uint32_t node, const uint32_t *blocks, uint32_t n, uint32_t *ret_cols,
		      int64_t *ret_cost);
/* Fills p->where and p->gap. PTC_ENODEVICES: TP groups do not fit into racks. */
int ptc_place_search(struct ptc_placer *p);
/* Improves p->where, whose cost is *cost, where it can; never below `bound`. */
int ptc_place_compact(struct ptc_placer *p, int64_t bound, int64_t *cost);
/* Fills p->where by trying every assignment; for few blocks only. PTC_ENODEVICES: no assignment meets the constraints.
 */
int ptc_place_exact(struct ptc_placer *p);

/* ---- assign.c ---- */
/* Assigns each row to a column as cheaply as it can. Column c takes at most room[c] rows (NULL: 1 each); there is room
 * for all rows. `cost` has rows * cols entries. *ret_bound: no assignment is cheaper. The bound equals this
 * assignment's cost unless max_steps (each looks at one entry of `cost`) were used up. Then each row left goes to its
 * cheapest column with room. */
int ptc_assign(size_t rows, size_t cols, const uint32_t *room, const int64_t *cost, int64_t max_steps,
	       uint32_t *ret_col, int64_t *ret_bound);
