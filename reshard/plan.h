/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: the moves that turn one layout and allocation into another, per
 * node (a store is per node, so bytes enter a node once), and the choice of
 * the allocation. Deterministic: every daemon computes the same plan from the
 * same inputs, and ptc_plan_hash lets them check that. Pure. */
#pragma once

#include "reshard/layout.h"

struct ptc_move {
	uint32_t item;
	uint32_t src_node, dst_node;
	uint32_t src_rank, dst_rank; /* lowest rank on that node that has, or needs, the box */
	struct ptc_box box;          /* bytes */
};
struct ptc_plan {
	struct ptc_move *moves;
	size_t nmoves; /* between nodes; by dst_node, item, box */
	uint32_t nnodes;
	int64_t *in_bytes, *out_bytes; /* per node */
	int64_t in_place;              /* bytes of the new layout that their node already has */
	int64_t within_node; /* bytes of new shards whose node had them but whose device had not, summed over devices */
	int64_t between_nodes; /* bytes entering a node, each once */
	int64_t bound_mapping; /* lower bound of between_nodes for this allocation (= between_nodes: each missing byte enters once) */
	/* Lower bound over every admissible allocation. ptc_plan_new knows only one and leaves -1; whoever placed with
	 * ptc_place sets it to between_nodes - gap, exact if the gap is 0. */
	int64_t bound_any;
	bool bound_any_exact;
};
/* from may be NULL (first import): then there are no moves, and in_bytes is all that each node needs.
 * Source choice among replicas balances the busiest sender; usable[node] false: what the node had is gone, as a source
 * and for itself. usable NULL: all. PTC_ELOST naming tensor, bytes and the nodes that had them when no source is left. */
int ptc_plan_new(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		 const struct ptc_layout *to, const struct ptc_allocation *to_alloc, uint32_t nnodes,
		 const bool *usable, struct ptc_plan **ret_plan, struct ptc_error *err);
struct ptc_plan *ptc_plan_free(struct ptc_plan *p);
void ptc_plan_hash(const struct ptc_plan *p, char ret_hex[33]);

/* Bytes of an item that no usable node has any more, and where they were: at most the first PTC_LOST_NODES nodes. */
#define PTC_LOST_NODES 8
struct ptc_lost {
	uint32_t item;
	int64_t bytes; /* replicas counted once */
	uint32_t nnodes, nodes[PTC_LOST_NODES];
};
/* By item; ptc_free(*ret_lost), which is NULL when nothing is lost. */
int ptc_layout_lost(const struct ptc_layout *l, const struct ptc_allocation *a, uint32_t nnodes, const bool *usable,
		    struct ptc_lost **ret_lost, size_t *ret_n, struct ptc_error *err);

/* Chooses rank -> device for layout `to` on the given devices (node, index) so that bytes entering nodes, each node
 * counted once, are fewest, and of those choices bytes a device must be given that it did not hold. Devices that are not
 * needed are left out; choosing which is part of it. A block (d consecutive tp ranks of one TP group, d the largest
 * divisor of tp for which all blocks fit whole on nodes) is kept on one node. Exact by search up to 8 blocks, else
 * assignment plus local improvement (devices within a node are always exact). from NULL: fill nodes in order.
 * *ret_gap_bytes: upper bound of the distance of the bytes entering nodes to the optimum; 0 when exact. */
int ptc_place(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
	      const struct ptc_layout *to, const struct ptc_device *devices, size_t ndevices, uint32_t nnodes,
	      struct ptc_allocation *ret_alloc, int64_t *ret_gap_bytes, struct ptc_error *err);
