/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a geometry into disjoint pieces. The input is the byte boxes of parts, which may overlap. Each piece lies wholly
 * in or wholly outside each part, and knows the set of parts that have it. For reshard/ only. Failure mode: PTC_ENOMEM.
 */
#pragma once

#include "reshard/box/box.h"
#include "reshard/box/lists.h"

/* The pieces of a geometry: byte boxes that each part has whole or not at all. */
struct ptc_pieces {
	uint32_t ndim, dim; /* dim: the dimension that tells pieces apart best */
	size_t n, cap;
	struct ptc_box *box; /* disjoint, ascending by offset along `dim` */
	uint32_t *set;       /* per piece: the number of its set of parts */
	int64_t *reach;      /* per piece i: the greatest end along `dim` of pieces 0 .. i */
	struct ptc_lists sets;
	int64_t *set_bytes; /* per set: bytes of its pieces */
	bool cut;           /* some boxes of parts overlapped and were not equal */
};
struct ptc_part_box {
	struct ptc_box box;
	uint32_t part;
};
/* Makes the pieces of n boxes of parts, in any order. Sorts v. */
int ptc_pieces_make(struct ptc_pieces *p, struct ptc_part_box *v, size_t n);
void ptc_pieces_done(struct ptc_pieces *p);
/* The first piece that may overlap [lo, ..) along `dim`. Continue with the next pieces i while box[i].off[dim] is below
 * the end of the range. */
size_t ptc_pieces_first(const struct ptc_pieces *p, int64_t lo);
