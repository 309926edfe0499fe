/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that nodes lack for sets of ranks: all bytes that a set needs, less those that the node has. Failure mode:
 * memory. */
#include "reshard/place/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <string.h>

/* The nodes that have each class: list[first[class] .. first[class + 1]), each once. */
struct nodes_of {
	size_t *first;
	uint32_t *list;
	uint32_t *stamp; /* per node: one more than the class that it was last listed for */
};

static void nodes_done(struct nodes_of *h)
{
	ptc_free(h->first);
	ptc_free(h->list);
	ptc_free(h->stamp);
}

/* Counts (list NULL) or lists them. By class, so that a node is listed once for each. */
static void walk(const struct ptc_change *c, const struct ptc_allocation *a, const struct ptc_place_opts *o,
		 struct nodes_of *h, size_t *next)
{
	memset(h->stamp, 0, ((size_t)o->nnodes + 1) * sizeof *h->stamp);
	for (uint32_t class = 0; class < c->classes.n; class ++) {
		uint32_t set = ptc_class_from(c, class);
		size_t n = 0;
		const uint32_t *ranks = set == PTC_NOBODY ? NULL : ptc_lists_at(&c->from.sets, set, &n);

		for (size_t i = 0; ranks && i < n; i++) {
			uint32_t node = a->ranks[ranks[i]].node;

			if (node >= o->nnodes || (o->usable && !o->usable[node]) || h->stamp[node] == class + 1)
				continue;
			h->stamp[node] = class + 1;
			if (h->list)
				h->list[next[class]] = node;
			next[class]++;
		}
	}
}

static int nodes_init(const struct ptc_change *c, const struct ptc_allocation *a, const struct ptc_place_opts *o,
		      struct nodes_of *h)
{
	size_t n = c->classes.n;

	h->first = ptc_calloc(n + 2, sizeof *h->first);
	h->stamp = ptc_calloc((size_t)o->nnodes + 1, sizeof *h->stamp);
	if (!h->first || !h->stamp)
		return PTC_ENOMEM;
	if (c->from.layout)
		walk(c, a, o, h, h->first + 2);
	for (size_t i = 0; i < n; i++)
		h->first[i + 2] += h->first[i + 1];
	h->list = ptc_calloc(h->first[n + 1] + 1, sizeof *h->list);
	if (!h->list)
		return PTC_ENOMEM;
	if (c->from.layout)
		walk(c, a, o, h, h->first + 1);
	return 0;
}

static void sum(const struct ptc_change *c, const struct ptc_class_lists *needs, const struct nodes_of *h,
		uint32_t rank, uint32_t set, uint32_t *stamp, int64_t *all, int64_t *ret)
{
	for (size_t i = needs->first[rank]; i < needs->first[rank + 1]; i++) {
		uint32_t class = needs->list[i];

		if (stamp[class] == set + 1)
			continue;
		stamp[class] = set + 1;
		*all += c->bytes[class];
		for (size_t k = h->first[class]; k < h->first[class + 1]; k++)
			ret[h->list[k]] -= c->bytes[class];
	}
}

/* Ranks by their set. */
static uint32_t *by_set(const uint32_t *set_of, uint32_t world, uint32_t nsets, uint32_t *first)
{
	uint32_t *ranks = ptc_calloc((size_t)world + 1, sizeof *ranks);

	for (uint32_t r = 0; ranks && r < world; r++)
		first[set_of[r] + 2]++;
	for (uint32_t s = 0; ranks && s < nsets; s++)
		first[s + 2] += first[s + 1];
	for (uint32_t r = 0; ranks && r < world; r++)
		ranks[first[set_of[r] + 1]++] = r;
	return ranks;
}

int ptc_change_set_bytes(const struct ptc_change *c, const struct ptc_allocation *from_alloc,
			 const struct ptc_place_opts *o, const uint32_t *set_of, uint32_t nsets, int64_t *ret,
			 struct ptc_error *err)
{
	struct ptc_class_lists needs = { 0 };
	struct nodes_of h = { 0 };
	uint32_t world = ptc_layout_world(c->to.layout);
	ptc_auto_free uint32_t *first = ptc_calloc((size_t)nsets + 2, sizeof *first), *ranks = NULL;
	ptc_auto_free uint32_t *stamp = ptc_calloc((size_t)c->classes.n + 1, sizeof *stamp);
	int rc = PTC_ENOMEM;

	if (first && stamp && (ranks = by_set(set_of, world, nsets, first)) &&
	    !ptc_class_lists_init(&needs, c, false, world) && !nodes_init(c, from_alloc, o, &h))
		rc = 0;
	for (uint32_t s = 0; rc == 0 && s < nsets; s++) {
		int64_t all = 0, *row = ret + (size_t)s * o->nnodes;

		memset(row, 0, o->nnodes * sizeof *row);
		for (uint32_t i = first[s]; i < first[s + 1]; i++)
			sum(c, &needs, &h, ranks[i], s, stamp, &all, row);
		for (uint32_t n = 0; n < o->nnodes; n++)
			row[n] += all;
	}
	ptc_class_lists_done(&needs);
	nodes_done(&h);
	return rc ? ptc_nomem(err) : 0;
}
