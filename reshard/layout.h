/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: the shards of each rank, from spec and configuration. Pure. */
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
/* Local tensor of an item on a rank; ndim 0/shape as declared; flat ranges are 1-d. */
struct ptc_local_shape {
	uint32_t item;
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
};

struct ptc_layout; /* immutable once made */
int ptc_layout_new(const struct ptc_spec *spec, const struct ptc_config *config, struct ptc_layout **ret_layout,
		   struct ptc_error *err);
struct ptc_layout *ptc_layout_free(struct ptc_layout *l);
uint32_t ptc_layout_world(const struct ptc_layout *l);
const struct ptc_rank_layout *ptc_layout_rank(const struct ptc_layout *l, uint32_t rank);
/* false: the rank has nothing of the item. */
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
 * Boxes of one item are pairwise disjoint (equal ones of several ranks listed once). */
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
