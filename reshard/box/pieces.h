/* SPDX-License-Identifier: Apache-2.0 */
/* What a geometry is cut into: from the byte boxes of its parts, which may
 * meet, to disjoint pieces, each with the set of parts that have it. For the
 * rooms of reshard/; nobody else includes it. Fails for memory only. */
#pragma once

#include "reshard/box/box.h"
#include "reshard/box/lists.h"

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
struct ptc_part_box {
	struct ptc_box box;
	uint32_t part;
};
/* Uses v, n boxes of parts in any order, up (it is sorted). */
int ptc_pieces_make(struct ptc_pieces *p, struct ptc_part_box *v, size_t n);
void ptc_pieces_done(struct ptc_pieces *p);
/* First piece that may meet [lo, ..) along dim; look on while box[i].off[dim] is below the other end. */
size_t ptc_pieces_first(const struct ptc_pieces *p, int64_t lo);
