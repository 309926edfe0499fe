/* SPDX-License-Identifier: Apache-2.0 */
/* A layout in compressed form. Items of one geometry are cut into the same pieces, and a set of ranks holds each piece
 * of an item. Much is alike in a model (layers, optimizer fields, replicas), so a side stays small for any number of
 * ranks. For reshard/layout, reshard/copies and reshard/plan only. Failure mode: PTC_ENOMEM. */
#pragma once

#include "reshard/box/pieces.h"
#include "reshard/layout/layout.h"

/* Which ranks hold a geometry's sets of parts, for items at one place of the model. */
struct ptc_spread {
	uint32_t geometry;
	bool alone;     /* only one item has this geometry and spread */
	uint32_t *sets; /* per set of parts: the set of ranks, an index into ptc_side.sets */
};
struct ptc_side {
	const struct ptc_layout *layout; /* NULL: nothing is held */
	const struct ptc_spec *spec;
	size_t nitems;
	uint32_t *item_spread;
	struct ptc_pieces *geometries;
	uint32_t ngeometries;
	struct ptc_spread *spreads;
	uint32_t nspreads;
	struct ptc_lists sets; /* sets of ranks, ascending */
	int64_t *held;         /* per set: bytes of all items that exactly these ranks hold */
	bool cut;              /* the pieces of some geometry are cut (ptc_pieces.cut) */
};
/* The side that the layout keeps, borrowed; NULL: it keeps none. */
const struct ptc_side *ptc_layout_side(const struct ptc_layout *l);
/* layout may be NULL. */
int ptc_side_init(struct ptc_side *s, const struct ptc_layout *layout, const struct ptc_spec *spec,
		  struct ptc_error *err);
void ptc_side_done(struct ptc_side *s); /* a zeroed or half-made side is fine */
