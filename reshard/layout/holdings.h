/* SPDX-License-Identifier: Apache-2.0 */
/* The byte boxes that a set of ranks holds together, merged. For reshard/layout only. Pure. The caller frees the result
 * (ptc_holdings_done). Failure mode: PTC_ENOMEM. */
#pragma once

#include "reshard/layout/layout.h"

/* A byte box of an item, and the lowest rank that it comes from. */
struct ptc_holding {
	uint32_t item, rank;
	struct ptc_box box;
};
struct ptc_holdings {
	struct ptc_holding *v;
	size_t n, cap;
	int64_t bytes;
};
void ptc_holdings_done(struct ptc_holdings *h);
/* Sorts the boxes of one item, h->v[mark..], and makes them distinct and disjoint with the same union. Boxes that
 * overlap and are not equal are cut. */
int ptc_holdings_finalize(struct ptc_holdings *h, size_t mark);
