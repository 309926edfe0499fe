/* SPDX-License-Identifier: Apache-2.0 */
/* Two layouts beside each other: boxes that every rank of both has whole or
 * not at all (atoms), and their bytes by who needs and who has them (classes).
 * Knows no node or device. For the files of reshard/; nobody else includes it. */
#pragma once

#include "reshard/layout/side.h"
#include "reshard/plan/plan.h"

#define PTC_NOBODY UINT32_MAX /* as a set: no rank has it */

/* Atoms of a geometry of each side. */
struct ptc_atoms {
	size_t n, cap;
	struct ptc_box *box; /* bytes */
	uint32_t *pair;
	struct ptc_lists pairs; /* {set of parts of to, set of parts of from or PTC_NOBODY} */
	int64_t *pair_bytes;
};
/* Items with the same atoms, held by the same ranks. */
struct ptc_group {
	uint32_t atoms;
	uint32_t *classes; /* per pair of the atoms */
	size_t first, n;   /* items[first ..] */
	bool derived;      /* parameters that are made from their masters where they are missing */
};
struct ptc_change {
	const struct ptc_spec *spec;
	struct ptc_side to, from;
	bool to_borrowed, from_borrowed; /* they are those of the layouts */
	struct ptc_atoms *atoms;
	uint32_t natoms;
	struct ptc_group *groups;
	uint32_t ngroups;
	uint32_t *items;          /* by group, ascending within one */
	uint32_t *item_group;     /* PTC_NOBODY: reset, in no group; nothing of it comes from `from` */
	int64_t *reset_bytes;     /* per set of to: bytes of reset items that just these ranks hold; NULL: no item is */
	struct ptc_lists classes; /* {set of to, set of from or PTC_NOBODY} */
	int64_t *bytes;           /* per class, all items but derived ones */
	int64_t *derived_bytes;   /* per class, of those; NULL: none is */
};
static inline uint32_t ptc_class_to(const struct ptc_change *c, uint32_t class)
{
	return c->classes.v[2 * (size_t) class];
}
static inline uint32_t ptc_class_from(const struct ptc_change *c, uint32_t class)
{
	return c->classes.v[2 * (size_t) class + 1];
}
