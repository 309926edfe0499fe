/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: copies.h. Work grows with distinct sets of ranks times nodes, not with tensors times
 * ranks. */
#include "reshard/copies/copies.h"

#include "reshard/layout/side.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

#define ITEMS_MAX_BYTES (16u << 20) /* of all sets of items */

struct finder {
	const struct ptc_copies_ask *a;
	struct ptc_copies_found *f;
	const struct ptc_side *s;
	uint32_t *seen, stamp; /* per domain: the set in which it was counted last */
	int64_t *load;         /* per node: bytes that it holds or is to hold */
	uint32_t *need;        /* per set: copies that lack and have a source */
	uint8_t **bits;        /* per set that needs copies: the items */
	size_t nbytes;         /* of each */
	struct ptc_error *err;
};

static bool mark(struct finder *f, uint32_t node)
{
	uint32_t domain = f->a->domain[node];

	if (f->seen[domain] == f->stamp)
		return false;
	f->seen[domain] = f->stamp;
	return true;
}

/* Domains that hold the set; marks them. *ret_source: somebody holds it, who may be leaving. */
static uint32_t count_domains(struct finder *f, uint32_t set, bool *ret_source)
{
	size_t n;
	const uint32_t *ranks = ptc_lists_at(&f->s->sets, set, &n);
	uint32_t count = 0;

	f->stamp++;
	*ret_source = false;
	for (size_t i = 0; i < n; i++) {
		uint32_t node = f->a->at->ranks[ranks[i]].node;

		if (!f->a->usable[node])
			continue;
		*ret_source = true;
		if (!f->a->leaving || !f->a->leaving[node])
			count += mark(f, node);
	}
	return count;
}

static void count_all(struct finder *f)
{
	f->f->fewest = UINT32_MAX;
	for (uint32_t set = 0; set < f->s->sets.n; set++) {
		uint32_t have;
		bool source;

		if (!f->s->held[set])
			continue;
		have = count_domains(f, set, &source);
		f->f->fewest = PTC_MIN(f->f->fewest, have);
		if (!source)
			f->f->nobody += f->s->held[set];
		if (source && have < f->a->count) {
			f->need[set] = f->a->count - have;
			f->f->bytes += f->s->held[set] * (int64_t)f->need[set];
		}
	}
	if (f->f->fewest == UINT32_MAX) /* it has no bytes: they are everywhere */
		f->f->fewest = f->a->count;
}

/* Of the old layout alone a node's bytes are those of its ranks' sets; a set counts once for each of them. */
static void load_nodes(struct finder *f)
{
	for (uint32_t set = 0; set < f->s->sets.n; set++) {
		size_t n;
		const uint32_t *ranks = ptc_lists_at(&f->s->sets, set, &n);

		for (size_t i = 0; i < n; i++)
			f->load[f->a->at->ranks[ranks[i]].node] += f->s->held[set];
	}
}

/* ---- which items a set that lacks copies is of ---- */

static int list_items(struct finder *f)
{
	size_t total = 0;

	for (uint32_t item = 0; item < f->s->nitems; item++) {
		const struct ptc_spread *spread = &f->s->spreads[f->s->item_spread[item]];
		const struct ptc_pieces *p = &f->s->geometries[spread->geometry];

		for (uint32_t i = 0; i < p->sets.n; i++) {
			uint32_t set = spread->sets[i];

			if (!f->need[set] || !p->set_bytes[i])
				continue;
			if (!f->bits[set]) {
				total += f->nbytes;
				if (total > ITEMS_MAX_BYTES)
					return ptc_error_set(f->err, PTC_ELIMIT,
							     "the missing copies are of more kinds of parts than one "
							     "answer can list");
				f->bits[set] = ptc_calloc(1, f->nbytes);
				if (!f->bits[set])
					return ptc_nomem(f->err);
			}
			f->bits[set][item / 8] |= (uint8_t)(1u << item % 8);
		}
	}
	return 0;
}

/* The number of the set's items; takes them over where they are new. */
static int items_of(struct finder *f, uint32_t set, uint32_t *ret)
{
	struct ptc_copies_found *r = f->f;

	for (size_t i = 0; i < r->nitems; i++)
		if (r->items[i] == f->bits[set] || !memcmp(r->items[i], f->bits[set], f->nbytes)) {
			*ret = (uint32_t)i;
			return 0;
		}
	if (!PTC_ROOM(r->items, r->nitems + 1, r->itemscap))
		return ptc_nomem(f->err);
	*ret = (uint32_t)r->nitems;
	r->items[r->nitems] = ptc_malloc(f->nbytes);
	if (!r->items[r->nitems])
		return ptc_nomem(f->err);
	memcpy(r->items[r->nitems++], f->bits[set], f->nbytes);
	return 0;
}

/* ---- where ---- */

/* Of the nodes whose domain is not marked, the one with least; of equals the next after `after`. */
static bool choose(const struct finder *f, uint32_t after, uint32_t *ret)
{
	const struct ptc_copies_ask *a = f->a;
	bool found = false;

	for (uint32_t i = 1; a->target && i <= a->nnodes; i++) {
		uint32_t node = (after + i) % a->nnodes;

		if (!a->target[node] || f->seen[a->domain[node]] == f->stamp)
			continue;
		if (!found || f->load[node] < f->load[*ret])
			*ret = node;
		found = true;
	}
	return found;
}

static int place_set(struct finder *f, uint32_t set)
{
	struct ptc_copies_found *r = f->f;
	size_t n;
	bool source;
	uint32_t rank = ptc_lists_at(&f->s->sets, set, &n)[0], items = 0, node = 0, after = f->a->at->ranks[rank].node;
	int rc = items_of(f, set, &items);

	if (rc || ptc_fails(rank < f->a->world))
		return rc ? rc : ptc_error_set(f->err, PTC_EINTERNAL, "a missing copy is of a part that no rank holds");
	count_domains(f, set, &source);
	for (uint32_t i = 0; i < f->need[set]; i++) {
		if (!choose(f, after, &node)) {
			r->nowhere += f->s->held[set];
			continue;
		}
		if (!PTC_ROOM(r->add, r->nadd + 1, r->addcap))
			return ptc_nomem(f->err);
		r->add[r->nadd++] = (struct ptc_copies_add){ rank, node, items };
		mark(f, node);
		f->load[node] += f->s->held[set];
		after = node;
	}
	return 0;
}

static int find(struct finder *f)
{
	int rc;

	count_all(f);
	load_nodes(f);
	rc = list_items(f);
	for (uint32_t set = 0; set < f->s->sets.n && !rc; set++)
		if (f->need[set] && f->bits[set])
			rc = place_set(f, set);
	return rc;
}

void ptc_copies_found_done(struct ptc_copies_found *f)
{
	for (size_t i = 0; i < f->nitems; i++)
		ptc_free(f->items[i]);
	ptc_free(f->items);
	ptc_free(f->add);
	*f = (struct ptc_copies_found){ 0 };
}

int ptc_copies_find(const struct ptc_copies_ask *ask, struct ptc_copies_found *ret, struct ptc_error *err)
{
	struct ptc_copies_found found = { 0 };
	const struct ptc_side *kept = ptc_layout_side(ask->held);
	struct finder f = { .a = ask, .f = &found, .s = kept, .err = err };
	struct ptc_side own = { 0 };
	int rc = kept ? 0 : ptc_side_init(&own, ask->held, ptc_layout_spec(ask->held), err);

	if (rc)
		return rc;
	f.s = kept ? kept : &own;
	f.nbytes = f.s->nitems / 8 + 1;
	f.seen = ptc_calloc(ask->nnodes, sizeof *f.seen);
	f.load = ptc_calloc(ask->nnodes, sizeof *f.load);
	f.need = ptc_calloc(f.s->sets.n, sizeof *f.need);
	f.bits = ptc_calloc(f.s->sets.n, sizeof *f.bits);
	rc = f.seen && f.load && f.need && f.bits ? find(&f) : ptc_nomem(err);
	for (uint32_t set = 0; f.bits && set < f.s->sets.n; set++)
		ptc_free(f.bits[set]);
	ptc_free(f.bits);
	ptc_free(f.need);
	ptc_free(f.load);
	ptc_free(f.seen);
	if (!kept)
		ptc_side_done(&own);
	if (rc)
		ptc_copies_found_done(&found);
	else
		*ret = found;
	return rc;
}

/* Calls fn for each set of ranks that exactly these hold something, with its bytes. */
static int each_set(const struct ptc_layout *layout,
		    void (*fn)(void *arg, const uint32_t *ranks, size_t n, int64_t bytes), void *arg,
		    struct ptc_error *err)
{
	const struct ptc_side *kept = ptc_layout_side(layout), *s;
	struct ptc_side own = { 0 };
	int rc = kept ? 0 : ptc_side_init(&own, layout, ptc_layout_spec(layout), err);

	if (rc)
		return rc;
	s = kept ? kept : &own;
	for (uint32_t set = 0; set < s->sets.n; set++) {
		size_t n;
		const uint32_t *ranks = ptc_lists_at(&s->sets, set, &n);

		fn(arg, ranks, n, s->held[set]);
	}
	if (!kept)
		ptc_side_done(&own);
	return 0;
}

struct sums {
	const struct ptc_allocation *at;
	uint32_t world;
	int64_t *bytes; /* of each node */
};

static void add_alone(void *arg, const uint32_t *ranks, size_t n, int64_t bytes)
{
	struct sums *s = arg;
	uint32_t node = n ? s->at->ranks[ranks[0]].node : 0;
	size_t same = 0;

	while (same < n && s->at->ranks[ranks[same]].node == node)
		same++;
	if (n && same == n)
		s->bytes[node] += bytes;
}

int ptc_copies_alone(const struct ptc_layout *layout, const struct ptc_allocation *at, uint32_t nnodes,
		     int64_t *ret_bytes, struct ptc_error *err)
{
	struct sums s = { .at = at, .bytes = ret_bytes };

	memset(ret_bytes, 0, nnodes * sizeof *ret_bytes);
	return each_set(layout, add_alone, &s, err);
}

static void add_held(void *arg, const uint32_t *ranks, size_t n, int64_t bytes)
{
	struct sums *s = arg;

	for (size_t i = 0; i < n; i++) {
		uint32_t node = s->at->ranks[ranks[i]].node;
		bool first = ranks[i] < s->world;

		for (size_t k = 0; first && k < i; k++)
			first = s->at->ranks[ranks[k]].node != node;
		if (first)
			s->bytes[node] += bytes;
	}
}

int ptc_copies_held(const struct ptc_layout *layout, uint32_t world, const struct ptc_allocation *at, uint32_t nnodes,
		    int64_t *ret_bytes, struct ptc_error *err)
{
	struct sums s = { .at = at, .world = world, .bytes = ret_bytes };

	memset(ret_bytes, 0, nnodes * sizeof *ret_bytes);
	return each_set(layout, add_held, &s, err);
}
