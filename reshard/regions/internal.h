/* SPDX-License-Identifier: Apache-2.0 */
/* Between ways.c, cut.c, items.c, buffers.c and regions.c, which make regions
 * of rules. An `at` is an index per way, of PTC_BY_PLACE the pipeline rank. */
#pragma once

#include "reshard/regions/regions.h"

static inline const struct ptc_tensor *ptc_layout_tensor(const struct ptc_layout *l, uint32_t item)
{
	return &l->spec->tensors[item / (1 + l->spec->nfields)];
}

/* ---- ways.c ---- */
/* Fills what is kept of an item whose rule is known; before all that follows. */
int ptc_ways_ranks(struct ptc_layout *l); /* and of the ranks; fails for memory only */
void ptc_ways_finalize(struct ptc_layout *l, uint32_t item);
bool ptc_regions_is_expert(const struct ptc_layout *l, uint32_t item);
/* Is the item on ranks of this pipeline rank and place on the ep axis? */
bool ptc_regions_is_at(const struct ptc_layout *l, uint32_t item, uint32_t pp, uint32_t ep);
int64_t ptc_regions_zero_degree(const struct ptc_layout *l, bool expert);

/* ---- cut.c ---- */
/* Fills b->dims for the ranks at these indices; *ret_local: the local tensor before a flat range. */
int ptc_cut_dims(struct ptc_cutter *b, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *ret_local);
/* The extents of ret_local alone; local comes in as the whole tensor. 0 where a size does not come out. */
void ptc_cut_lengths(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *local);
/* Its elements and strides fit 64 bits, whatever the dtype. */
bool ptc_cut_fits(const struct ptc_box *b);
/* Elements of the local tensor before zero cuts it. */
int64_t ptc_regions_elements(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS]);

/* ---- items.c ---- */
int ptc_items_place(struct ptc_layout *l, struct ptc_error *err);
int ptc_items_cells(struct ptc_layout *l, struct ptc_error *err);

/* ---- buffers.c ---- */
/* Fills l->flats where the configuration shards buffers. Items must be placed. */
int ptc_buffers_prepare(struct ptc_layout *l, struct ptc_error *err);
