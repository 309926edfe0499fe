/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: the choice of the allocation, which device each rank of a layout
 * gets. Deterministic: every daemon chooses the same from the same inputs. Pure. */
#pragma once

#include "reshard/plan/plan.h"

struct ptc_place_opts {
	const struct ptc_device *devices; /* to choose from: without those that failed, or are on nodes to be left */
	size_t ndevices;
	uint32_t nnodes;
	const bool *usable; /* per node; false: what it had is gone. NULL: nothing is */
	const bool *pinned; /* per node; true: it gets a block at least, and is so never released. NULL: none */
	const uint32_t
		*racks; /* per node: its rack; a TP group that needs several nodes stays in one. NULL: no matter */
};
/* Chooses rank -> device for layout `to` on the given devices (node, index) so that bytes entering nodes, each node
 * counted once, are fewest, and of those choices bytes a device must be given that it did not hold. Devices that are
 * not needed are left out; choosing which is part of it. A block (d consecutive tp ranks of one TP group, d the largest
 * divisor of tp for which all blocks fit whole on nodes) is kept on one node. Exact by search up to 8 blocks, else
 * assignment plus local improvement (devices within a node are always exact). from NULL: fill nodes in order.
 * *ret_gap_bytes: upper bound of the distance of the bytes entering nodes to the optimum; 0 when exact. */
int ptc_change_place(const struct ptc_change *c, const struct ptc_allocation *from_alloc,
		     const struct ptc_place_opts *o, struct ptc_allocation *ret_alloc, int64_t *ret_gap_bytes,
		     struct ptc_error *err);
/* The same, with nothing lost, pinned or in racks. */
int ptc_place(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
	      const struct ptc_layout *to, const struct ptc_device *devices, size_t ndevices, uint32_t nnodes,
	      struct ptc_allocation *ret_alloc, int64_t *ret_gap_bytes, struct ptc_error *err);

/* How an allocation keeps TP groups together. */
struct ptc_groups {
	uint32_t n;
	uint32_t
		split; /* on more nodes than a group needs: the fewest of those offered whose devices are tp together */
	uint32_t across; /* in more than one of o->racks */
};
int ptc_place_groups(const struct ptc_config *c, const struct ptc_allocation *a, const struct ptc_place_opts *o,
		     struct ptc_groups *ret_groups, struct ptc_error *err);
