/* SPDX-License-Identifier: Apache-2.0 */
/* What sets of ranks need and nodes lack, in bytes. Failure mode: memory. */
#include "reshard/place/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <string.h>

/* Whether a node has a class, by node and class. */
static void mark(const struct ptc_class_lists *had, const struct ptc_allocation *a, const struct ptc_place_opts *o,
		 size_t nclasses, bool *has)
{
	for (uint32_t r = 0; r < a->world; r++) {
		uint32_t n = a->ranks[r].node;

		if (n >= o->nnodes || (o->usable && !o->usable[n]))
			continue;
		for (size_t i = had->first[r]; i < had->first[r + 1]; i++)
			has[n * nclasses + had->list[i]] = true;
	}
}

static void sum(const struct ptc_change *c, const struct ptc_class_lists *needs, const bool *has, uint32_t nnodes,
		const uint32_t *set_of, uint32_t set, bool *seen, int64_t *ret)
{
	size_t nclasses = c->classes.n;

	memset(seen, 0, nclasses);
	for (uint32_t r = 0; r < ptc_layout_world(c->to.layout); r++) {
		if (set_of[r] != set)
			continue;
		for (size_t i = needs->first[r]; i < needs->first[r + 1]; i++) {
			uint32_t class = needs->list[i];

			if (seen[class])
				continue;
			seen[class] = true;
			for (uint32_t n = 0; n < nnodes; n++)
				ret[n] += has[n * nclasses + class] ? 0 : c->bytes[class];
		}
	}
}

int ptc_change_set_bytes(const struct ptc_change *c, const struct ptc_allocation *from_alloc,
			 const struct ptc_place_opts *o, const uint32_t *set_of, uint32_t nsets, int64_t *ret,
			 struct ptc_error *err)
{
	struct ptc_class_lists needs = { 0 }, had = { 0 };
	uint32_t from = c->from.layout ? from_alloc->world : 0;
	ptc_auto_free bool *has = ptc_calloc((size_t)o->nnodes * c->classes.n + 1, sizeof *has);
	ptc_auto_free bool *seen = ptc_calloc((size_t)c->classes.n + 1, sizeof *seen);
	int rc = has && seen && !ptc_class_lists_init(&needs, c, false, ptc_layout_world(c->to.layout)) &&
				 !ptc_class_lists_init(&had, c, true, from)
			 ? 0
			 : ptc_nomem(err);

	if (rc == 0) {
		memset(ret, 0, (size_t)nsets * o->nnodes * sizeof *ret);
		if (from)
			mark(&had, from_alloc, o, c->classes.n, has);
		for (uint32_t s = 0; s < nsets; s++)
			sum(c, &needs, has, o->nnodes, set_of, s, seen, ret + (size_t)s * o->nnodes);
	}
	ptc_class_lists_done(&needs);
	ptc_class_lists_done(&had);
	return rc;
}
