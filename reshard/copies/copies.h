/* SPDX-License-Identifier: Apache-2.0 */
/* Counts in how many failure domains each region of a layout lies, and chooses nodes for copies of the regions that lie
 * in too few.
 *
 * Happy path: regions that the same ranks hold are counted together. For a region in too few domains, nodes in other
 * domains are chosen, the node with the fewest bytes first. The result depends on the arguments only. Pure.
 *
 * Failure modes: memory; PTC_ELIMIT: there are more kinds of copies than the result can express. */
#pragma once

#include "reshard/layout/layout.h"

struct ptc_copies_ask {
	const struct ptc_layout *held;   /* the layout, with its copies if there are any (ptc_layout_with_copies) */
	uint32_t world;                  /* number of ranks of the layout without copies */
	const struct ptc_allocation *at; /* the allocation of `held` */
	uint32_t nnodes;
	const uint32_t *domain; /* per node, a number below nnodes; nodes of one domain fail together */
	const bool *usable;     /* per node: its bytes count */
	const bool *target;     /* per node: it may get copies. NULL: none may */
	const bool *leaving;    /* per node: its bytes are a source, and no copy, for it will be gone. NULL: none is */
	uint32_t count;         /* number of domains in which each region should lie */
};
/* An advised copy: the node should hold the rank's part of a set of items. */
struct ptc_copies_add {
	uint32_t rank, node, items; /* items: index into ptc_copies_found.items */
};
struct ptc_copies_found {
	/* the smallest number of domains that hold a region; 0: only leaving nodes, or none, hold some region */
	uint32_t fewest;
	int64_t bytes;   /* bytes of missing copies; a region counts once for each missing one */
	int64_t nowhere; /* of these, the bytes for which no node in another domain is left */
	int64_t nobody;  /* further bytes, of regions that no usable node holds, so they cannot be copied */
	struct ptc_copies_add *add;
	size_t nadd, addcap;
	uint8_t **items; /* sets of items, with a bit for each item */
	size_t nitems, itemscap;
};
int ptc_copies_find(const struct ptc_copies_ask *ask, struct ptc_copies_found *ret, struct ptc_error *err);
/* For each of the nodes, the bytes of the layout that no other node has. They have to be copied before the node is
 * taken away. */
int ptc_copies_alone(const struct ptc_layout *layout, const struct ptc_allocation *at, uint32_t nnodes,
		     int64_t *ret_bytes, struct ptc_error *err);
/* For each of the nodes, the bytes that its ranks below `world` hold, each byte once. The others of the layout are
 * nodes with copies. */
int ptc_copies_held(const struct ptc_layout *layout, uint32_t world, const struct ptc_allocation *at, uint32_t nnodes,
		    int64_t *ret_bytes, struct ptc_error *err);
void ptc_copies_found_done(struct ptc_copies_found *f); /* a zeroed one is fine */
