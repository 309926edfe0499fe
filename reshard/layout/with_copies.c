/* SPDX-License-Identifier: Apache-2.0 */
/* A layout with copies beside it. Happy path: the layout's sets of ranks are made again, each with the copies of its
 * ranks in it. Items that other copies hold get a spread of their own. Failure modes: those of a side; memory; a copy
 * of a rank that does not exist (PTC_EINVAL). */
#include "reshard/layout/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

struct held {
	struct ptc_side *s;
	uint32_t world; /* of the base */
	const struct ptc_copy *copies;
	uint32_t ncopies;
	uint32_t *first, *of; /* copies by rank: of[first[r] .. first[r + 1]) */
	const uint8_t **filters;
	uint32_t nfilters, *filter; /* distinct items of copies; by copy, which */
	struct ptc_numbers spreads; /* {old spread, filters that have the item} */
	struct ptc_spread *v;
	uint32_t n, cap;
	struct ptc_lists sets;
	uint32_t *scratch;
};

static bool has(const uint8_t *items, uint32_t item)
{
	return items[item / 8] >> item % 8 & 1;
}

static int index_copies(struct held *h, struct ptc_error *err)
{
	uint32_t *next;

	h->first = ptc_calloc((size_t)h->world + 2, sizeof *h->first);
	h->of = ptc_calloc(h->ncopies, sizeof *h->of);
	h->filter = ptc_calloc(h->ncopies, sizeof *h->filter);
	h->filters = ptc_calloc(h->ncopies, sizeof *h->filters);
	if (!h->first || !h->of || !h->filter || !h->filters)
		return ptc_nomem(err);
	next = h->first + 1;
	for (uint32_t i = 0; i < h->ncopies; i++) {
		uint32_t f = 0;

		if (h->copies[i].rank >= h->world)
			return ptc_error_set(err, PTC_EINVAL, "a copy is of rank %u, but the layout has %u ranks",
					     h->copies[i].rank, h->world);
		next[h->copies[i].rank + 1]++;
		while (f < h->nfilters && h->filters[f] != h->copies[i].items)
			f++;
		if (f == h->nfilters)
			h->filters[h->nfilters++] = h->copies[i].items;
		h->filter[i] = f;
	}
	for (uint32_t r = 0; r < h->world; r++)
		next[r + 1] += next[r];
	for (uint32_t i = 0; i < h->ncopies; i++)
		h->of[next[h->copies[i].rank]++] = i;
	return 0;
}

PTC_BY_VALUE(by_number, uint32_t)

/* The ranks of an old set, and the copies of them that have the item. */
static int more_ranks(struct held *h, uint32_t set, uint32_t item, uint32_t *ret)
{
	size_t n, at;
	const uint32_t *ranks = ptc_lists_at(&h->s->sets, set, &n);

	at = n;
	if (n)
		memcpy(h->scratch, ranks, n * sizeof *ranks);
	for (size_t i = 0; i < n; i++)
		for (uint32_t k = h->first[ranks[i]]; k < h->first[ranks[i] + 1]; k++)
			if (has(h->filters[h->filter[h->of[k]]], item))
				h->scratch[at++] = h->world + h->of[k];
	if (at - n > 1)
		qsort(h->scratch + n, at - n, sizeof *h->scratch, by_number);
	return ptc_lists_intern(&h->sets, h->scratch, at, ret);
}

static int new_spread(struct held *h, uint32_t old, uint32_t item)
{
	const struct ptc_spread *from = &h->s->spreads[old];
	const struct ptc_pieces *p = &h->s->geometries[from->geometry];
	struct ptc_spread *to;

	if (!PTC_ROOM(h->v, h->n + 1, h->cap))
		return PTC_ENOMEM;
	to = &h->v[h->n];
	*to = *from;
	to->sets = ptc_calloc(p->sets.n, sizeof *to->sets);
	if (!to->sets)
		return PTC_ENOMEM;
	h->n++;
	for (uint32_t i = 0; i < p->sets.n; i++)
		if (more_ranks(h, from->sets[i], item, &to->sets[i]))
			return PTC_ENOMEM;
	return 0;
}

static int take_item(struct held *h, uint32_t item, uint32_t *key)
{
	uint32_t old = h->s->item_spread[item], spread;
	size_t n = 0;

	key[n++] = old;
	for (uint32_t f = 0; f < h->nfilters; f++)
		if (has(h->filters[f], item))
			key[n++] = f;
	if (ptc_numbers_of(&h->spreads, key, n, h->n, &spread))
		return PTC_ENOMEM;
	if (spread == h->n && new_spread(h, old, item))
		return PTC_ENOMEM;
	h->s->item_spread[item] = spread;
	return 0;
}

static void spreads_free(struct ptc_spread *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		ptc_free(v[i].sets);
	ptc_free(v);
}

/* Puts what was made into the side, in the place of what it was made of. */
static int replace(struct held *h)
{
	struct ptc_side *s = h->s;
	int64_t *held = ptc_calloc(h->sets.n, sizeof *held);

	if (!held)
		return PTC_ENOMEM;
	spreads_free(s->spreads, s->nspreads);
	ptc_lists_done(&s->sets);
	ptc_free(s->held);
	s->spreads = h->v;
	s->nspreads = h->n;
	s->sets = h->sets;
	s->held = held;
	h->v = NULL;
	h->n = 0;
	h->sets = (struct ptc_lists){ 0 };
	ptc_require(s->spreads || !s->nitems);
	for (size_t item = 0; item < s->nitems; item++) {
		const struct ptc_spread *spread = &s->spreads[s->item_spread[item]];
		const struct ptc_pieces *p = &s->geometries[spread->geometry];

		for (uint32_t i = 0; i < p->sets.n; i++)
			held[spread->sets[i]] += p->set_bytes[i];
	}
	return 0;
}

static int extend(struct held *h, struct ptc_error *err)
{
	uint32_t *key = NULL;
	int rc = index_copies(h, err);

	if (rc)
		return rc;
	key = ptc_calloc((size_t)h->nfilters + 1, sizeof *key);
	h->scratch = ptc_calloc((size_t)h->world + h->ncopies, sizeof *h->scratch);
	if (!key || !h->scratch)
		rc = PTC_ENOMEM;
	for (size_t item = 0; item < h->s->nitems && !rc; item++)
		rc = take_item(h, (uint32_t)item, key);
	/* until all items have theirs, item_spread numbers spreads of both kinds: nobody reads it on failure */
	if (!rc)
		rc = replace(h);
	ptc_free(key);
	return rc ? ptc_nomem(err) : 0;
}

int ptc_layout_with_copies(const struct ptc_layout *base, const struct ptc_copy *copies, uint32_t ncopies,
			   struct ptc_layout **ret_layout, struct ptc_error *err)
{
	struct held h = { .world = base->world, .copies = copies, .ncopies = ncopies };
	struct ptc_layout *l = ptc_calloc(1, sizeof *l);
	int rc;

	if (!l)
		return ptc_nomem(err);
	l->spec = base->spec;
	l->config = base->config;
	l->world = base->world + ncopies;
	l->nitems = base->nitems;
	l->side = h.s = ptc_calloc(1, sizeof *l->side);
	rc = l->side ? ptc_side_init(l->side, base, base->spec, err) : ptc_nomem(err);
	if (!rc)
		rc = extend(&h, err);
	if (!rc)
		l->side->layout = l;
	ptc_free(h.first);
	ptc_free(h.of);
	ptc_free(h.filter);
	ptc_free(h.filters);
	ptc_free(h.scratch);
	ptc_numbers_done(&h.spreads);
	spreads_free(h.v, h.n);
	ptc_lists_done(&h.sets);
	if (rc) {
		ptc_layout_free(l);
		return rc;
	}
	*ret_layout = l;
	return 0;
}
