/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: the shards of each rank, made from a spec and a configuration. Pure. Failure modes are stated with each
 * function; every function may return PTC_ENOMEM.
 *
 * The local tensor of an item on a rank is the part that the splits of the item's rule leave (reshard/spec/rule.h).
 * Along a split dim, it has the rank's part of each block in block order, then padding. The other dims are whole.
 *
 * zero=N of the configuration also cuts items over data-parallel ranks: zero=1 and zero=2 cut fields; zero=3 also cuts
 * parameters. With replicas=R, each of the R groups is cut by itself. The rank then keeps a part of the local tensor:
 * - flat: the local tensor, padding included, is flattened row-major and cut into n ranges of ceil(elements / n). The
 *   last ranges are shorter or empty. The k-th rank of the group, in rank order, holds range k as a 1-d tensor.
 * - dim0: ceil chunks of dim 0, or of the dim that a rule states, as FSDP2 does. A scalar is whole on every rank.
 * The data-parallel group is dp*cp. For expert tensors it is the ranks that hold the same experts. An item that is not
 * cut has replicas on all ranks of dp, cp and edp.
 *
 * Pipeline: the number of layers is 1 + the greatest layer index of any tensor that a rule places by layer. Layers are
 * dealt to pp*vpp stages; stage s is on rank s % pp. FIRST is pipeline rank 0, LAST is rank pp - 1, ENDS is both (tied
 * tensors). Experts that are tensors of their own: their number is 1 + the greatest index under one rule. They are
 * dealt evenly to the ep axis. */
#pragma once

#include "reshard/regions/region.h"
#include "reshard/spec/config.h"

struct ptc_layout; /* immutable; borrows spec, which must outlive it */
/* PTC_ELAYOUT: a rule does not fit the configuration, a cut of a sub-byte dtype does not fall on a byte, or a rule's
 * state is refuse. The message names tensor, dim, size and degree. */
int ptc_layout_new(const struct ptc_spec *spec, const struct ptc_config *config, struct ptc_layout **ret_layout,
		   struct ptc_error *err);
struct ptc_layout *ptc_layout_free(struct ptc_layout *l);
const struct ptc_spec *ptc_layout_spec(const struct ptc_layout *l); /* borrowed */
uint32_t ptc_layout_world(const struct ptc_layout *l);
const struct ptc_config *ptc_layout_config(const struct ptc_layout *l); /* borrowed */
/* Makes the regions of a rank: of all items, or of one. Free them with ptc_rank_layout_done. Fails only for memory. */
int ptc_layout_rank(const struct ptc_layout *l, uint32_t rank, struct ptc_rank_layout *ret, struct ptc_error *err);
int ptc_layout_rank_item(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_rank_layout *ret,
			 struct ptc_error *err);
void ptc_rank_layout_done(struct ptc_rank_layout *r);
/* The bytes of the rank that holds most, without padding. */
int ptc_layout_rank_bytes(const struct ptc_layout *l, int64_t *ret_most, struct ptc_error *err);
/* Whether the rule's state is reset: each generation of this layout begins with zeros of the item. */
bool ptc_layout_resets(const struct ptc_layout *l, uint32_t item);
/* Whether the rule's state is derive, whatever the configuration. *ret_master is the item from which this item is made.
 */
bool ptc_layout_master(const struct ptc_layout *l, uint32_t item, uint32_t *ret_master);
/* Whether, in addition, every rank holds the same part of the master as of the item. Then a device makes the missing
 * part of the item there. It is not so where zero cuts fields and not parameters. */
bool ptc_layout_derives(const struct ptc_layout *l, uint32_t item);
/* The bytes of the master from which these bytes of the item are made. */
int ptc_layout_master_box(const struct ptc_layout *l, uint32_t item, const struct ptc_box *bytes,
			  struct ptc_box *ret_master, struct ptc_error *err);
/* false: the item is not on the rank's pipeline stage. */
bool ptc_layout_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret);

/* Turns a byte box of an item into elements. Where a row of a 4- or 6-bit dtype is not whole bytes, the trailing dims
 * are merged as in ptc_item_byte_shape; they stay merged in the result. */
void ptc_item_elements(const struct ptc_spec *s, uint32_t item, const struct ptc_box *bytes, struct ptc_box *ret);

struct ptc_device {
	uint32_t node;
	uint32_t index;
}; /* node: index into a list that the caller keeps */
struct ptc_allocation {
	struct ptc_device *ranks;
	uint32_t world;
}; /* rank -> device */
void ptc_allocation_done(struct ptc_allocation *a);
/* Puts ranks on devices in order: `nodes` nodes of per_node devices each. PTC_ENODEVICES: there are too few. */
int ptc_allocation_in_order(uint32_t world, uint32_t nodes, uint32_t per_node, struct ptc_allocation *ret,
			    struct ptc_error *err);

/* The byte boxes that one node must hold: those of its ranks, by item, then first element. Boxes of one item are
 * pairwise disjoint: a box of several ranks is listed once, and boxes that overlap are cut. Boxes of two nodes are
 * equal or disjoint, too. */
struct ptc_need {
	uint32_t item;
	struct ptc_box box;
};
struct ptc_needs {
	struct ptc_need *v;
	size_t n, cap;
	int64_t bytes;
};
int ptc_layout_node_needs(const struct ptc_layout *l, const struct ptc_allocation *a, uint32_t node,
			  struct ptc_needs *ret_needs, struct ptc_error *err);
/* Appends the boxes that these ranks hold together, of the items from `first` to end - 1, in the same order.
 * PTC_ELIMIT, without a line in err: *needs would then have more than `most` boxes. After a failure it has those that
 * it had. */
int ptc_layout_ranks_needs(const struct ptc_layout *l, const uint32_t *ranks, size_t nranks, uint32_t first,
			   uint32_t end, size_t most, struct ptc_needs *needs, struct ptc_error *err);
void ptc_needs_done(struct ptc_needs *n);

/* Bytes of an item that no usable node has any more, and the nodes that had them (at most the first PTC_LOST_NODES). */
#define PTC_LOST_NODES 8
struct ptc_lost {
	uint32_t item;
	int64_t bytes; /* replicas counted once */
	uint32_t nnodes, nodes[PTC_LOST_NODES];
};
/* Lists lost bytes by item; ptc_free(*ret_lost). It is NULL if nothing is lost. */
int ptc_layout_lost(const struct ptc_layout *l, const struct ptc_allocation *a, uint32_t nnodes, const bool *usable,
		    struct ptc_lost **ret_lost, size_t *ret_n, struct ptc_error *err);

/* A copy beside a layout: a rank's part of some items, held on another device. */
struct ptc_copy {
	uint32_t rank; /* the rank of the layout whose part it is */
	/* a bit for each item: the copy has all that the rank holds of these. Copies may share the array */
	const uint8_t *items;
};
/* Makes a layout with one more rank for each copy: copy i is rank world + i. The result knows who holds which bytes,
 * for needs, lost bytes, changes and plans. It knows no rules: it resets and derives nothing, and gives no regions of a
 * rank. Borrows base's spec, nothing else. */
int ptc_layout_with_copies(const struct ptc_layout *base, const struct ptc_copy *copies, uint32_t ncopies,
			   struct ptc_layout **ret_layout, struct ptc_error *err);
