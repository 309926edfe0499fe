/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: the shards of each rank, from spec and configuration. Pure.
 *
 * TP-local tensor: along the split dim, the rank's part of each block in block order, then padding; the other dims
 * whole. A rank's local tensor is the TP-local tensor, except with zero=1 for fields (item's field > 0): the TP-local
 * tensor, padding included, is flattened row-major and cut into dp*cp ranges of ceil(elements / (dp*cp)), the last ones
 * shorter or empty; the k-th rank of the dp*cp group in rank order holds range k as a 1-d tensor.
 * Pipeline: the number of layers is 1 + the greatest layer index of any tensor placed by layer. ENDS is on the first
 * and the last stage (tied tensors). cp and dp replicate. ep or etp above 1 is refused. */
#pragma once

#include "reshard/config.h"
#include "reshard/spec.h"

/* A box of an item on a rank and where it lies in the rank's own dense buffer for that item. */
struct ptc_region {
	uint32_t item;
	bool padding;                     /* zeros, outside the logical shape; never stored or moved */
	struct ptc_box box;               /* elements, global index space */
	int64_t buf_off;                  /* elements, into the rank's local tensor of local_shape */
	int64_t buf_stride[PTC_MAX_DIMS]; /* elements */
};
struct ptc_rank_layout {
	struct ptc_region *regions;
	size_t nregions;
}; /* by item, then row-major */
/* Local tensor of an item on a rank, with a 0 in its shape where the rank's part is empty; a scalar has ndim 0. */
struct ptc_local_shape {
	uint32_t item;
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
};

struct ptc_layout; /* immutable once made; borrows spec, which must outlive it */
/* PTC_ELAYOUT naming tensor, dim, size and degree where a rule does not fit the configuration, where a cut of a
 * sub-byte dtype is not on a byte, or where a rule's state is refuse. */
int ptc_layout_new(const struct ptc_spec *spec, const struct ptc_config *config, struct ptc_layout **ret_layout,
		   struct ptc_error *err);
struct ptc_layout *ptc_layout_free(struct ptc_layout *l);
uint32_t ptc_layout_world(const struct ptc_layout *l);
const struct ptc_config *ptc_layout_config(const struct ptc_layout *l); /* borrowed */
/* Regions are made when they are asked for; ptc_rank_layout_done. Fails only for memory. */
int ptc_layout_rank(const struct ptc_layout *l, uint32_t rank, struct ptc_rank_layout *ret, struct ptc_error *err);
int ptc_layout_rank_item(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_rank_layout *ret,
			 struct ptc_error *err); /* of one item only */
void ptc_rank_layout_done(struct ptc_rank_layout *r);
/* The most that one rank holds, without padding. */
int ptc_layout_rank_bytes(const struct ptc_layout *l, int64_t *ret_most, struct ptc_error *err);
/* false: the item is not on the rank's pipeline stage. */
bool ptc_layout_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret);

struct ptc_device {
	uint32_t node;
	uint32_t index;
}; /* node: index into a list the caller keeps */
struct ptc_allocation {
	struct ptc_device *ranks;
	uint32_t world;
}; /* rank -> device */
void ptc_allocation_done(struct ptc_allocation *a);

/* What one node must hold: the distinct byte boxes of its ranks, per item, ascending item, then first element.
 * Boxes of one item are pairwise disjoint: equal ones of several ranks are listed once, overlapping ones are cut. */
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
