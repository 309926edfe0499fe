/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks hold together: byte boxes, merged. The caller owns what is
 * returned (ptc_holdings_done). Pure; fails for memory only. For reshard/layout;
 * nobody else includes it. */
#pragma once

#include "reshard/layout/layout.h"

/* A byte box of an item and the lowest rank it comes from. */
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
/* Makes the boxes of one item, h->v[mark..], sorted, distinct and disjoint, with the same union: overlaps that are not
 * equal are cut. */
int ptc_holdings_finalize(struct ptc_holdings *h, size_t mark);
/* What the given ranks hold together: by item, then first byte; disjoint within an item. */
int ptc_layout_holdings(const struct ptc_layout *l, const uint32_t *ranks, size_t nranks, struct ptc_holdings *ret,
			struct ptc_error *err);
/* [*ret_lo, *ret_hi) of one item. */
void ptc_holdings_item(const struct ptc_holdings *h, uint32_t item, size_t *ret_lo, size_t *ret_hi);
