/* SPDX-License-Identifier: Apache-2.0 */
/* Between place.c (what is to be placed) and place_search.c (where it goes).
 * Nobody else includes it. */
#pragma once

#include "reshard/internal.h"

#define PTC_PLACE_EXACT_BLOCKS 8

struct ptc_place_node {
	uint32_t node, first, ndevices; /* devices[first ..] */
	uint32_t slots;                 /* blocks that fit */
	bool warm;                      /* has bytes of the old layout */
};

struct ptc_placer {
	const struct ptc_layout *to;
	struct ptc_device *devices; /* sorted */
	size_t ndevices;
	struct ptc_place_node *nodes; /* that offer devices, ascending */
	uint32_t nnodes;
	uint32_t block_size, nblocks;
	uint32_t *ranks; /* block b: ranks[b * block_size ..] */

	struct ptc_classes cls;
	size_t words;                       /* of a bit set of classes */
	uint64_t *node_has, *device_has;    /* bit sets */
	struct ptc_class_lists blocks;      /* classes of each block */
	uint32_t *class_blocks, *class_min; /* per class: how many blocks need it, and the lowest */
	uint32_t *stamp, stamp_now;         /* per class */

	uint32_t *where; /* block -> index into nodes */
	int64_t gap;
};

static inline bool ptc_place_has(const uint64_t *sets, size_t words, size_t i, uint32_t class)
{
	return sets[i * words + class / 64] >> (class % 64) & 1;
}
/* Cheapest devices for the ranks of these blocks on a node: ret_cols[block index * block_size + k] is the device's index
 * in the node. ret_cols may be NULL. */
int ptc_place_devices(const struct ptc_placer *p, uint32_t node, const uint32_t *blocks, uint32_t n, uint32_t *ret_cols,
		      int64_t *ret_cost);
/* Fill p->where and p->gap. */
int ptc_place_search(struct ptc_placer *p);
