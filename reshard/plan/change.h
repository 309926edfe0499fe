/* SPDX-License-Identifier: Apache-2.0 */
/* The change from one layout to another. Its atoms are boxes that every rank of both layouts has whole or not at all.
 * Its classes count bytes by the ranks that need them and the ranks that have them. Knows no node or device. For
 * reshard/ only. */
#pragma once

#include "reshard/layout/side.h"
#include "reshard/plan/plan.h"

#define PTC_NOBODY UINT32_MAX /* in place of a set: no rank has the bytes */

/* The atoms of a pair of geometries, one of each layout. */
struct ptc_atoms {
	size_t n, cap;
	struct ptc_box *box; /* byte boxes */
	uint32_t *pair;
	struct ptc_lists pairs; /* {set of parts in `to`, set of parts in `from` or PTC_NOBODY} */
	int64_t *pair_bytes;
};
/* Items that have the same atoms, held by the same ranks. */
struct ptc_group {
	uint32_t atoms;
	uint32_t *classes; /* per pair of `atoms` */
	size_t first, n;   /* the group's items: items[first ..] */
	bool derived;      /* parameters that are made from their masters where they are missing */
};
struct ptc_change {
	const struct ptc_spec *spec;
	struct ptc_side to, from;
	bool to_borrowed, from_borrowed; /* the sides belong to the layouts */
	struct ptc_atoms *atoms;
	uint32_t natoms;
	struct ptc_group *groups;
	uint32_t ngroups;
	uint32_t *items; /* by group, ascending within a group */
	/* PTC_NOBODY: the item is reset; it is in no group, and none of its bytes come from `from` */
	uint32_t *item_group;
	/* per set of `to`: bytes of reset items that exactly these ranks hold; NULL: no item is reset */
	int64_t *reset_bytes;
	struct ptc_lists classes; /* {set of `to`, set of `from` or PTC_NOBODY} */
	int64_t *bytes;           /* per class: bytes of all items but derived ones */
	int64_t *derived_bytes;   /* per class: bytes of derived items; NULL: there are none */
};
static inline uint32_t ptc_class_to(const struct ptc_change *c, uint32_t class)
{
	return c->classes.v[2 * (size_t) class];
}
static inline uint32_t ptc_class_from(const struct ptc_change *c, uint32_t class)
{
	return c->classes.v[2 * (size_t) class + 1];
}
