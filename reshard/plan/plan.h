/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: the moves that turn one layout and allocation into another. Moves are per node, because the store is per node:
 * bytes enter a node once. Deterministic: every daemon computes the same plan from the same inputs, and ptc_plan_hash
 * lets daemons check that. Pure. */
#pragma once

#include "reshard/layout/layout.h"

/* The change between two layouts, whatever their devices. Make it once, for placing and planning. */
struct ptc_change; /* immutable; borrows both layouts, which must outlive it */
/* from NULL: nothing is held. PTC_ELAYOUT: the layouts have different specs; the message names the first tensor that is
 * missing, new, or of another dtype or shape. */
int ptc_change_new(const struct ptc_layout *from, const struct ptc_layout *to, struct ptc_change **ret_change,
		   struct ptc_error *err);
struct ptc_change *ptc_change_free(struct ptc_change *c);

enum ptc_move_kind {
	PTC_MOVE_BETWEEN, /* from another node; the bytes enter a node once */
	PTC_MOVE_WITHIN,  /* from another device of the same node, which held the bytes */
	/* from another device of the same node, to which a BETWEEN move brought the bytes; src_rank is of the new
	 * layout */
	PTC_MOVE_FORWARD,
	PTC_MOVE_KEEP, /* the device has the bytes already */
};
struct ptc_move {
	uint32_t item;
	uint32_t src_node, dst_node;
	uint32_t src_rank, dst_rank; /* between nodes: the lowest rank on that node that has, or needs, the box */
	enum ptc_move_kind kind;
	struct ptc_box box; /* a byte box */
};
struct ptc_plan {
	struct ptc_move *moves;
	size_t nmoves; /* moves between nodes; by dst_node, item, box */
	uint32_t nnodes;
	int64_t *in_bytes, *out_bytes; /* per node: its share of between_nodes */
	int64_t *within_bytes;         /* per node: its share of within_node */
	/* per node: its bytes of the old layout if usable, and the bytes that enter, are reset and are derived */
	int64_t *peak_bytes;
	int64_t reset;         /* bytes of reset items, which begin as zeros; each node counted once */
	int64_t derived;       /* bytes of parameters that nodes lack and make from masters; each node counted once */
	int64_t in_place;      /* bytes of the new layout that their node already has; each node counted once */
	int64_t kept;          /* bytes of new shards that stay on their device */
	int64_t within_node;   /* bytes of new shards that come from another device of their node, forwards included */
	int64_t between_nodes; /* bytes that enter nodes, once for each node */
	/* lower bound of between_nodes for this allocation; equal to it, as each missing byte enters once */
	int64_t bound_mapping;
	/* Lower bound over every admissible allocation. ptc_plan_new knows one allocation only and sets -1. A caller
	 * that placed with ptc_place sets it to between_nodes - gap; it is exact if the gap is 0. */
	int64_t bound_any;
	bool bound_any_exact;
	uint64_t nbetween, nwithin; /* moves between nodes; moves within nodes, forwards included */
};
/* Called for each move. A value other than 0 ends the planning and is returned. */
typedef int (*ptc_move_fn)(void *arg, const struct ptc_move *move);
struct ptc_plan_opts {
	ptc_move_fn fn; /* NULL: moves are counted only */
	void *arg;
	bool keep; /* call fn for kept boxes, too */
};
/* Computes every move without making a list. For each rank of the new layout, the boxes that are kept, come from within
 * the node and come from other nodes are together exactly the boxes that it needs, each once. Reset and derived items
 * are left out. Where two ranks share a device, one gets a box and the other keeps it.
 *
 * Among replicas, sources are chosen so that the busiest sender's load is small. A box of more than 32 MiB with several
 * sources is shared between them. usable[node] false: the node's bytes are gone, as a source and for itself. usable
 * NULL: all nodes are usable. PTC_ELOST: no source is left; the message names the tensor, the bytes and the nodes that
 * had them. ret_plan->moves stays NULL. If nothing was held before (from NULL), there are no moves, and in_bytes is all
 * that each node needs. */
int ptc_plan_stream(const struct ptc_change *c, const struct ptc_allocation *from_alloc,
		    const struct ptc_allocation *to_alloc, uint32_t nnodes, const bool *usable,
		    const struct ptc_plan_opts *opts, struct ptc_plan **ret_plan, struct ptc_error *err);
/* The turn in which the destination should pull. Turns count from 0, and in one turn no node sends to two. */
static inline uint32_t ptc_move_turn(const struct ptc_move *m, uint32_t nnodes)
{
	return (m->src_node + nnodes - m->dst_node) % nnodes;
}
/* The least time that the plan takes at these rates, in nanoseconds: the time of the busiest node for bytes in, out, or
 * between its devices. Rates are bytes per second; 0: no limit. */
struct ptc_rates {
	int64_t node_in, node_out, within;
};
int64_t ptc_plan_time_ns(const struct ptc_plan *p, const struct ptc_rates *rates);

/* ptc_plan_stream with a list of the moves between nodes. `spec` is that of both layouts. */
int ptc_plan_new(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		 const struct ptc_layout *to, const struct ptc_allocation *to_alloc, uint32_t nnodes,
		 const bool *usable, struct ptc_plan **ret_plan, struct ptc_error *err);
/* The same plan, with a list of only the moves into one node. A move takes 170 bytes, so in a large job a node asks for
 * its own moves alone. UINT32_MAX: into all nodes. */
int ptc_plan_into(const struct ptc_layout *from, const struct ptc_allocation *from_alloc, const struct ptc_layout *to,
		  const struct ptc_allocation *to_alloc, uint32_t nnodes, const bool *usable, uint32_t node,
		  struct ptc_plan **ret_plan, struct ptc_error *err);
struct ptc_plan *ptc_plan_free(struct ptc_plan *p);
void ptc_plan_hash(const struct ptc_plan *p, char ret_hex[33]);
/* The hash of the plan that ptc_plan_new makes, without a list of its moves: 24 bytes for each move, and again as many
 * while they are sorted. */
int ptc_plan_hash_of(const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		     const struct ptc_layout *to, const struct ptc_allocation *to_alloc, uint32_t nnodes,
		     const bool *usable, char ret_hex[33], struct ptc_error *err);
