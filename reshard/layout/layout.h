/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: the shards of each rank, from spec and configuration. Pure.
 *
 * Local tensor: what the splits of the item's rule leave (reshard/spec/rule.h): along a split dim, the rank's part of
 * each block in block order, then padding; the other dims whole. Of it, what zero=N of the configuration says is cut
 * over data-parallel ranks (1, 2: fields; 3: parameters too; of replicas=R groups each by itself) is kept in part: flat
 * the local tensor, padding included, is flattened row-major and cut into n ranges of ceil(elements / n), the last ones
 * shorter or empty; the k-th rank of the group in rank order holds range k as a 1-d tensor; dim0  ceil chunks of dim 0
 * (or the dim a rule states), as FSDP2; a scalar is whole on every rank. The group is dp*cp; for expert tensors the
 * ranks that hold the same experts. dp, cp and edp replicate what is not cut. Pipeline: the number of layers is 1 + the
 * greatest layer index of any tensor placed by layer. They are dealt to pp*vpp stages; stage s is on rank s % pp. FIRST
 * is pipeline rank 0, LAST rank pp - 1, ENDS both (tied tensors). Experts with a tensor each: those of one rule, 1 +
 * the greatest index, are dealt evenly to the ep axis. */
#pragma once

#include "reshard/regions/region.h"
#include "reshard/spec/config.h"

struct ptc_layout; /* immutable once made; borrows spec, which must outlive it */
/* PTC_ELAYOUT naming tensor, dim, size and degree where a rule does not fit the configuration, where a cut of a
 * sub-byte dtype is not on a byte, or where a rule's state is refuse. */
int ptc_layout_new(const struct ptc_spec *spec, const struct ptc_config *config, struct ptc_layout **ret_layout,
		   struct ptc_error *err);
struct ptc_layout *ptc_layout_free(struct ptc_layout *l);
const struct ptc_spec *ptc_layout_spec(const struct ptc_layout *l); /* borrowed */
uint32_t ptc_layout_world(const struct ptc_layout *l);
const struct ptc_config *ptc_layout_config(const struct ptc_layout *l); /* borrowed */
/* Regions are made when they are asked for; ptc_rank_layout_done. Fails only for memory. */
int ptc_layout_rank(const struct ptc_layout *l, uint32_t rank, struct ptc_rank_layout *ret, struct ptc_error *err);
int ptc_layout_rank_item(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_rank_layout *ret,
			 struct ptc_error *err); /* of one item only */
void ptc_rank_layout_done(struct ptc_rank_layout *r);
/* The most that one rank holds, without padding. */
int ptc_layout_rank_bytes(const struct ptc_layout *l, int64_t *ret_most, struct ptc_error *err);
/* Its rule's state is reset: whatever a generation of this layout comes from, it begins with zeros of the item. */
bool ptc_layout_resets(const struct ptc_layout *l, uint32_t item);
/* Its rule's state is derive: *ret_master is the item that it is made from, whatever the configuration. */
bool ptc_layout_master(const struct ptc_layout *l, uint32_t item, uint32_t *ret_master);
/* And every rank has of the master what it has of the item, so that what a device lacks of it is made there. Not so
 * where zero cuts fields and not parameters. */
bool ptc_layout_derives(const struct ptc_layout *l, uint32_t item);
/* The bytes of the master that bytes of an item are made of. */
int ptc_layout_master_box(const struct ptc_layout *l, uint32_t item, const struct ptc_box *bytes,
			  struct ptc_box *ret_master, struct ptc_error *err);
/* false: the item is not on the rank's pipeline stage. */
bool ptc_layout_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret);

/* A byte box of an item in elements. Where rows of a 4- or 6-bit dtype are no whole bytes, its trailing dims are merged
 * as ptc_item_byte_shape does, and so they stay. */
void ptc_item_elements(const struct ptc_spec *s, uint32_t item, const struct ptc_box *bytes, struct ptc_box *ret);

struct ptc_device {
	uint32_t node;
	uint32_t index;
}; /* node: index into a list the caller keeps */
struct ptc_allocation {
	struct ptc_device *ranks;
	uint32_t world;
}; /* rank -> device */
void ptc_allocation_done(struct ptc_allocation *a);
/* Ranks on the devices of `nodes` nodes in order, each of per_node devices. PTC_ENODEVICES: these are too few. */
int ptc_allocation_in_order(uint32_t world, uint32_t nodes, uint32_t per_node, struct ptc_allocation *ret,
			    struct ptc_error *err);

/* What one node must hold: the distinct byte boxes of its ranks, per item, ascending item, then first element.
 * Boxes of one item are pairwise disjoint: equal ones of several ranks are listed once, overlapping ones are cut. Boxes
 * of two nodes are equal or disjoint, too. */
struct ptc_need {
	uint32_t item;
	struct ptc_box box;
};
struct ptc_needs {
	struct ptc_need *v;
	size_t n;
	int64_t bytes;
};
int ptc_layout_node_needs(const struct ptc_layout *l, const struct ptc_allocation *a, uint32_t node,
			  struct ptc_needs *ret_needs, struct ptc_error *err);
void ptc_needs_done(struct ptc_needs *n);

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

/* Copies beside a layout: what more is where. */
struct ptc_copy {
	uint32_t rank;        /* of the layout: whose part it is */
	const uint8_t *items; /* a bit for each item: of these all that the rank holds; copies may share it */
};
/* The layout with a rank more for each copy, which holds what the copy is; its number is world + the copy's. It knows
 * who holds what (needs, what is lost, changes and plans) and no rules: it resets and derives nothing, and has no
 * regions of a rank. Borrows base's spec, nothing else. */
int ptc_layout_with_copies(const struct ptc_layout *base, const struct ptc_copy *copies, uint32_t ncopies,
			   struct ptc_layout **ret_layout, struct ptc_error *err);
