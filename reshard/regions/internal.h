/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by ways.c, cut.c, items.c, buffers.c and regions.c, which make regions from rules. An `at` array has an index
 * per way; that of PTC_BY_PLACE is the pipeline rank. */
#pragma once

#include "reshard/regions/regions.h"

static inline const struct ptc_tensor *ptc_layout_tensor(const struct ptc_layout *l, uint32_t item)
{
	return &l->spec->tensors[item / (1 + l->spec->nfields)];
}

/* ---- ways.c ---- */
/* ptc_ways_ranks fills the ranks' indices, and fails for memory only. ptc_ways_finalize fills the members that are
 * derived from an item's rule. Call both before the functions below. */
int ptc_ways_ranks(struct ptc_layout *l);
void ptc_ways_finalize(struct ptc_layout *l, uint32_t item);
/* Whether the item is on ranks of this pipeline rank and place on the ep axis. */
bool ptc_regions_is_at(const struct ptc_layout *l, uint32_t item, uint32_t pp, uint32_t ep);
int64_t ptc_regions_zero_degree(const struct ptc_layout *l, bool expert);

/* ---- cut.c ---- */
/* Fills b->dims for the ranks at these indices. *ret_local is the local tensor before a flat range is cut. */
int ptc_cut_dims(struct ptc_cutter *b, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *ret_local);
/* Computes only the extents of ret_local. On entry, `local` is the whole tensor. An extent is 0 where a size does not
 * divide. */
void ptc_cut_lengths(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *local);
/* Whether the elements and strides of b fit 64 bits, whatever the dtype. */
bool ptc_cut_fits(const struct ptc_box *b);
/* Number of elements of the local tensor before zero cuts it. */
int64_t ptc_regions_elements(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS]);

/* ---- items.c ---- */
int ptc_items_place(struct ptc_layout *l, struct ptc_error *err);
int ptc_items_cells(struct ptc_layout *l, struct ptc_error *err);

/* ---- buffers.c ---- */
/* Fills l->flats where the configuration shards buffers. The items must be placed before. */
int ptc_buffers_prepare(struct ptc_layout *l, struct ptc_error *err);
