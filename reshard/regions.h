/* SPDX-License-Identifier: Apache-2.0 */
/* Between ways.c, cut.c, items.c and regions.c, which make regions of rules;
 * nobody else includes it. An `at` is an index per way, of PTC_BY_PLACE the
 * pipeline rank. */
#pragma once

#include "reshard/internal.h"

static inline const struct ptc_tensor *ptc_layout_tensor(const struct ptc_layout *l, uint32_t item)
{
	return &l->spec->tensors[item / (1 + l->spec->nfields)];
}

/* ---- ways.c ---- */
/* Fills what is kept of an item whose rule is known; before all that follows. */
int ptc_ways_ranks(struct ptc_layout *l); /* and of the ranks; fails for memory only */
void ptc_ways_settle(struct ptc_layout *l, uint32_t item);
/* How zero cuts an item; CONFIG where the configuration's buffers do. */
enum ptc_shard ptc_regions_shard(const struct ptc_layout *l, uint32_t item, uint32_t *ret_dim);
/* A range of the flattened local tensor is kept. */
bool ptc_regions_is_flat(const struct ptc_layout *l, uint32_t item);
uint32_t ptc_regions_degree(const struct ptc_layout *l, const struct ptc_rule *r, uint32_t way);
/* A rank's index in each way, for tensors that are experts' or not. */
void ptc_regions_indices(const struct ptc_layout *l, uint32_t rank, bool expert, uint32_t at[PTC_WAYS]);
/* Does what a rank has of the item depend on its index in this way? In buffers also on the axes that may cut others. */
bool ptc_regions_cuts(const struct ptc_layout *l, uint32_t item, uint32_t way);
/* Of how many stages the item has a buffer, and which of them pipeline rank pp has. */
uint32_t ptc_regions_places(const struct ptc_layout *l, uint32_t item);
uint32_t ptc_regions_place_index(const struct ptc_layout *l, uint32_t item, uint32_t pp);

/* ---- cut.c ---- */
/* A part of a dim: [goff, goff + ext) globally lies at loff locally. */
struct ptc_dim_part {
	int64_t goff, ext, loff;
	bool padding;
};
struct ptc_dim_parts {
	struct ptc_dim_part *v;
	size_t n, cap;
	int64_t len; /* local length of the dim */
};
struct ptc_cutter {
	const struct ptc_layout *l;
	struct ptc_error *err;
	uint32_t item;
	struct ptc_dim_parts dims[PTC_MAX_DIMS], spare;
	struct ptc_region *regions; /* the caller's, as are n and cap */
	size_t n, cap;
};
/* Frees the parts, not the regions. */
void ptc_cutter_done(struct ptc_cutter *b);
/* Fills b->dims for the ranks at these indices; *ret_local: the local tensor before a flat range. */
int ptc_cut_dims(struct ptc_cutter *b, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *ret_local);
/* The extents of ret_local alone; local comes in as the whole tensor. 0 where a size does not come out. */
void ptc_cut_lengths(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *local);
/* Its elements and strides fit 64 bits, whatever the dtype. */
bool ptc_cut_fits(const struct ptc_box *b);

/* ---- items.c ---- */
int ptc_items_place(struct ptc_layout *l, struct ptc_error *err);
int ptc_items_cells(struct ptc_layout *l, struct ptc_error *err);
