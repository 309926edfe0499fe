/* SPDX-License-Identifier: Apache-2.0 */
/* One layout, by what its ranks share: items of one geometry are cut into the
 * same pieces, and a piece of an item is held by a set of ranks. So much is
 * alike in a model (layers, optimizer fields, replicas) that this stays small
 * for any number of ranks. For the files of reshard/; nobody else includes it. */
#pragma once

#include "reshard/internal.h"
#include "reshard/lists.h"

/* What a geometry is cut into: byte boxes that each part has whole or not at all. */
struct ptc_pieces {
	uint32_t ndim, dim; /* dim: the one that tells pieces apart best */
	size_t n, cap;
	struct ptc_box *box; /* disjoint, ascending by offset along dim */
	uint32_t *set;       /* per piece: number of its set of parts */
	int64_t *reach;      /* greatest end along dim of pieces 0 .. i */
	struct ptc_lists sets;
	int64_t *set_bytes; /* per set */
	bool cut;           /* parts had boxes that met and were not equal */
};
/* The ranks that hold the sets of a geometry, in one place of the model. */
struct ptc_spread {
	uint32_t geometry;
	uint32_t *sets; /* set of parts -> set of ranks, an index into ptc_side.sets */
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
	struct ptc_lists sets; /* of ranks, ascending */
	int64_t *held;         /* per set: bytes of all items that just these ranks hold */
	bool cut;              /* some geometry's pieces are */
};
/* layout may be NULL. */
int ptc_side_init(struct ptc_side *s, const struct ptc_layout *layout, const struct ptc_spec *spec,
		  struct ptc_error *err);
void ptc_side_done(struct ptc_side *s); /* a zeroed or half-made one is fine */
static inline const struct ptc_pieces *ptc_side_pieces(const struct ptc_side *s, uint32_t item)
{
	return &s->geometries[s->spreads[s->item_spread[item]].geometry];
}

/* pieces.c */
struct ptc_part_box {
	struct ptc_box box;
	uint32_t part;
};
/* Uses v, n boxes of parts in any order, up (it is sorted). */
int ptc_pieces_make(struct ptc_pieces *p, struct ptc_part_box *v, size_t n);
void ptc_pieces_done(struct ptc_pieces *p);
/* First piece that may meet [lo, ..) along dim; look on while box[i].off[dim] is below the other end. */
size_t ptc_pieces_first(const struct ptc_pieces *p, int64_t lo);
