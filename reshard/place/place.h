/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: chooses the allocation, that is the device for each rank of a layout. Deterministic: every daemon chooses
 * the same from the same inputs. Pure. */
#pragma once

#include "reshard/plan/plan.h"

struct ptc_place_opts {
	/* the devices to choose from, without failed ones and those of nodes to be left */
	const struct ptc_device *devices;
	size_t ndevices;
	uint32_t nnodes;
	const bool *usable; /* per node; false: its bytes are gone. NULL: all nodes are usable */
	const bool *pinned; /* per node; true: the node gets at least one block, so it is not released. NULL: none */
	/* per rank: its node. NULL: not decided. If it is given, pinned and racks do not count, and the gap is 0 */
	const uint32_t *node_of_rank;
	const uint32_t *racks; /* per node: its rack. A TP group that needs several nodes stays in one rack. NULL: racks
				  do not matter */
};
/* Chooses a device for each rank of the new layout. It minimizes the bytes that enter nodes, counted once for each
 * node. Among equal choices it minimizes the bytes that devices get and did not hold. Devices that are not needed are
 * left out; the choice includes which ones.
 *
 * A block stays on one node. A block is d consecutive tp ranks of one TP group, with d the largest divisor of tp for
 * which all blocks fit whole on nodes. The search is exact for up to 8 blocks. For more, it assigns and then improves
 * locally; devices within a node are always exact. If nothing was held before, no node is
 * pinned and no TP group has to stay in a rack, nodes are filled in order.
 *
 * *ret_gap_bytes: an upper bound of the distance to the optimum, in bytes that enter nodes; 0 if exact. */
int ptc_change_place(const struct ptc_change *c, const struct ptc_allocation *from_alloc,
		     const struct ptc_place_opts *o, struct ptc_allocation *ret_alloc, int64_t *ret_gap_bytes,
		     struct ptc_error *err);
/* ptc_change_place without lost nodes, pinned nodes and racks. */
int ptc_place(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
	      const struct ptc_layout *to, const struct ptc_device *devices, size_t ndevices, uint32_t nnodes,
	      struct ptc_allocation *ret_alloc, int64_t *ret_gap_bytes, struct ptc_error *err);

/* How well an allocation keeps TP groups together. */
struct ptc_groups {
	uint32_t n;
	uint32_t split;  /* groups on more nodes than the fewest offered nodes that have tp devices together */
	uint32_t across; /* groups in more than one rack of o->racks */
};
int ptc_place_groups(const struct ptc_config *c, const struct ptc_allocation *a, const struct ptc_place_opts *o,
		     struct ptc_groups *ret_groups, struct ptc_error *err);

/* For sets of ranks of the new layout, bytes that enter each node if it gets just that set: ret[set * o->nnodes +
 * node]. set_of: of each rank, below nsets. Of o only nnodes and usable count. */
int ptc_change_set_bytes(const struct ptc_change *c, const struct ptc_allocation *from_alloc,
			 const struct ptc_place_opts *o, const uint32_t *set_of, uint32_t nsets, int64_t *ret,
			 struct ptc_error *err);
