/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: the moves that turn one layout and allocation into another, per
 * node (a store is per node, so bytes enter a node once). Deterministic: every daemon computes the same plan from the
 * same inputs, and ptc_plan_hash lets them check that. Pure. */
#pragma once

#include "reshard/layout/layout.h"

/* What lies between two layouts, whatever devices they are on: made once, for placing and planning. */
struct ptc_change; /* immutable; borrows both layouts */
/* from may be NULL: nothing is held. PTC_ELAYOUT naming the first tensor that is missing, new, or of another dtype or
 * shape where the layouts are of different specs. */
int ptc_change_new(const struct ptc_layout *from, const struct ptc_layout *to, struct ptc_change **ret_change,
		   struct ptc_error *err);
struct ptc_change *ptc_change_free(struct ptc_change *c);

enum ptc_move_kind {
	PTC_MOVE_BETWEEN, /* from another node; enters a node once */
	PTC_MOVE_WITHIN,  /* from another device of the node, which held it */
	PTC_MOVE_FORWARD, /* from another device of the node, which a BETWEEN brought it to: src_rank is one of the new
			     layout */
	PTC_MOVE_KEEP,    /* the device has it */
};
struct ptc_move {
	uint32_t item;
	uint32_t src_node, dst_node;
	uint32_t src_rank, dst_rank; /* between nodes: lowest rank on that node that has, or needs, the box */
	enum ptc_move_kind kind;
	struct ptc_box box; /* bytes */
};
struct ptc_plan {
	struct ptc_move *moves;
	size_t nmoves; /* between nodes; by dst_node, item, box */
	uint32_t nnodes;
	int64_t *in_bytes, *out_bytes; /* per node, of between_nodes */
	int64_t *within_bytes;         /* per node, of within_node */
	int64_t *peak_bytes;   /* per node: what usable ones hold of the old layout, what enters, `reset`, `derived` */
	int64_t reset;         /* bytes that begin as zeros: of items that are reset, each node counted once */
	int64_t derived;       /* bytes of parameters that nodes lack and make from masters, each counted once */
	int64_t in_place;      /* bytes of the new layout that their node already has, each node counted once */
	int64_t kept;          /* bytes of new shards that stay on their device */
	int64_t within_node;   /* bytes of new shards that come from another device of their node */
	int64_t between_nodes; /* bytes entering a node, each once */
	int64_t bound_mapping; /* lower bound of between_nodes for this allocation (= between_nodes: each missing byte
				  enters once) */
	/* Lower bound over every admissible allocation. ptc_plan_new knows only one and leaves -1; whoever placed with
	 * ptc_place sets it to between_nodes - gap, exact if the gap is 0. */
	int64_t bound_any;
	bool bound_any_exact;
	uint64_t nbetween, nwithin; /* moves between nodes; moves within nodes, forwards included */
};
/* Called for each move; anything but 0 ends the planning and is returned. */
typedef int (*ptc_move_fn)(void *arg, const struct ptc_move *move);
struct ptc_plan_opts {
	ptc_move_fn fn; /* NULL: moves are counted only */
	void *arg;
	bool keep; /* call fn for what stays, too */
};
/* Every move, without a list of them: for each rank of the new layout (but for what is reset or derived) the boxes that
 * are kept, brought from within the node and brought from other nodes are exactly what it needs, once (where two ranks
 * share a device, one has it and the other keeps it). Source choice among replicas makes the busiest sender's load
 * small; a box of more than 32 MiB with several sources is shared between them. usable[node] false: what the node had
 * is gone, as a source and for itself. usable NULL: all. PTC_ELOST naming tensor, bytes and the nodes that had them
 * when no source is left. ret_plan->moves stays NULL. With nothing held before (from NULL): no moves, in_bytes is all
 * that each node needs. */
int ptc_plan_stream(const struct ptc_change *c, const struct ptc_allocation *from_alloc,
		    const struct ptc_allocation *to_alloc, uint32_t nnodes, const bool *usable,
		    const struct ptc_plan_opts *opts, struct ptc_plan **ret_plan, struct ptc_error *err);
/* When a destination should pull: in turns from 0, in each of which no node sends to two. */
static inline uint32_t ptc_move_turn(const struct ptc_move *m, uint32_t nnodes)
{
	return (m->src_node + nnodes - m->dst_node) % nnodes;
}
/* How long it takes at least: the busiest node's bytes in or out, or between its devices, at these rates (bytes per
 * second; 0: not a limit). Nanoseconds. */
struct ptc_rates {
	int64_t node_in, node_out, within;
};
int64_t ptc_plan_time_ns(const struct ptc_plan *p, const struct ptc_rates *rates);

/* The same with a list of the moves between nodes. spec: that of both layouts. */
int ptc_plan_new(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		 const struct ptc_layout *to, const struct ptc_allocation *to_alloc, uint32_t nnodes,
		 const bool *usable, struct ptc_plan **ret_plan, struct ptc_error *err);
struct ptc_plan *ptc_plan_free(struct ptc_plan *p);
void ptc_plan_hash(const struct ptc_plan *p, char ret_hex[33]);
