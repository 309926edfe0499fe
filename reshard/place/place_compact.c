/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks to nodes, if both are few enough for a word of bits each, but too many to try every assignment. The search is
 * threshold accepting over moves and swaps, from the given placement on. Classes that the same blocks need and the same
 * nodes have are merged, so a few word operations weigh a change. Numbers come from a fixed sequence and all arithmetic
 * is on integers: every node finds the same. Failure mode: memory. */
#include "reshard/place/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS    8                  /* each from the best that is known */
#define SWEEPS    64                 /* of a round: so often is each move and swap tried, on an average */
#define MAX_STEPS (INT64_C(1) << 22) /* of a round, in kinds weighed: some tens of milliseconds */
#define FROM      UINT64_C(0x9E3779B97F4A7C15)

/* Bytes of the classes with one set of blocks and one set of nodes. */
struct kind {
	uint64_t blocks, nodes;
	int64_t bytes;
};

struct compact {
	struct ptc_placer *p;
	struct kind *kinds;
	size_t nkinds, *first; /* per block: its kinds, in list */
	uint32_t *list;
	uint64_t *on;    /* per node: the blocks that are there */
	uint32_t *where; /* per block */
	uint64_t state;
	int64_t steps;
};

static uint32_t below(struct compact *c, uint32_t n)
{
	c->state ^= c->state << 13;
	c->state ^= c->state >> 7;
	c->state ^= c->state << 17;
	return (uint32_t)((c->state >> 32) * n >> 32);
}

PTC_BY2(by_sets, struct kind, blocks, nodes)

static int find_kinds(struct compact *c)
{
	const struct ptc_placer *p = c->p;
	size_t n = 0;

	c->kinds = ptc_calloc(p->nclasses, sizeof *c->kinds);
	if (!c->kinds)
		return PTC_ENOMEM;
	for (uint32_t b = 0; b < p->nblocks; b++)
		for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++)
			c->kinds[p->blocks.list[i]].blocks |= UINT64_C(1) << b;
	for (uint32_t k = 0; k < p->nclasses; k++) {
		c->kinds[k].bytes = p->bytes[k];
		for (uint32_t node = 0; node < p->nnodes; node++)
			c->kinds[k].nodes |= (uint64_t)ptc_place_node_has(p, node, k) << node;
	}
	qsort(c->kinds, p->nclasses, sizeof *c->kinds, by_sets);
	for (uint32_t k = 0; k < p->nclasses; k++) {
		if (n && !by_sets(&c->kinds[n - 1], &c->kinds[k]))
			c->kinds[n - 1].bytes += c->kinds[k].bytes;
		else if (c->kinds[k].blocks && c->kinds[k].bytes)
			c->kinds[n++] = c->kinds[k];
	}
	c->nkinds = n;
	return 0;
}

static int list_kinds(struct compact *c)
{
	size_t n = 0;

	c->first = ptc_calloc((size_t)c->p->nblocks + 1, sizeof *c->first);
	for (size_t k = 0; k < c->nkinds; k++)
		n += (size_t)__builtin_popcountll(c->kinds[k].blocks);
	c->list = ptc_calloc(n, sizeof *c->list);
	c->on = ptc_calloc(c->p->nnodes, sizeof *c->on);
	c->where = ptc_calloc(c->p->nblocks, sizeof *c->where);
	if (!c->first || !c->list || !c->on || !c->where)
		return PTC_ENOMEM;
	n = 0;
	for (uint32_t b = 0; b < c->p->nblocks; b++) {
		for (uint32_t k = 0; k < c->nkinds; k++)
			if (c->kinds[k].blocks >> b & 1)
				c->list[n++] = k;
		c->first[b + 1] = n;
	}
	return 0;
}

static void restart(struct compact *c)
{
	memcpy(c->where, c->p->where, c->p->nblocks * sizeof *c->where);
	memset(c->on, 0, c->p->nnodes * sizeof *c->on);
	for (uint32_t b = 0; b < c->p->nblocks; b++)
		c->on[c->where[b]] |= UINT64_C(1) << b;
}

/* What the cost changes by when b joins the blocks `there` on a node, less what it does when b leaves `here`. */
static int64_t change_of(struct compact *c, uint32_t b, uint32_t from, uint64_t here, uint32_t to, uint64_t there)
{
	int64_t delta = 0;

	here &= ~(UINT64_C(1) << b);
	for (size_t i = c->first[b]; i < c->first[b + 1]; i++) {
		const struct kind *k = &c->kinds[c->list[i]];

		delta -= !(k->nodes >> from & 1) && !(k->blocks & here) ? k->bytes : 0;
		delta += !(k->nodes >> to & 1) && !(k->blocks & there) ? k->bytes : 0;
	}
	c->steps += (int64_t)(c->first[b + 1] - c->first[b]);
	return delta;
}

static bool may_go(const struct compact *c, uint32_t b, uint32_t to)
{
	return !c->p->racks || c->p->nodes[c->where[b]].rack == c->p->nodes[to].rack;
}

/* A block to a node with room, or two for each other; where that costs no more than `threshold`. */
static int64_t try_one(struct compact *c, int64_t threshold)
{
	uint32_t a = below(c, c->p->nblocks), from = c->where[a], other = below(c, c->p->nblocks + c->p->nnodes), to;
	bool swap = other < c->p->nblocks;
	uint64_t bit = UINT64_C(1) << a, bits = bit | (swap ? UINT64_C(1) << other : 0);
	int64_t delta;

	c->steps++;
	to = swap ? c->where[other] : other - c->p->nblocks;
	if (to == from || !may_go(c, a, to))
		return 0;
	if (!swap && ((uint32_t)__builtin_popcountll(c->on[to]) >= c->p->nodes[to].slots ||
		      (c->p->nodes[from].pinned && c->on[from] == bit)))
		return 0;
	delta = change_of(c, a, from, c->on[from] & ~bits, to, c->on[to] & ~bits);
	if (swap) /* each leaves what stays, and joins what stays: what both need stays as it was */
		delta += change_of(c, other, to, c->on[to] & ~bits, from, c->on[from] & ~bits);
	if (delta > threshold)
		return 0;
	c->where[a] = to;
	c->on[from] ^= bit;
	c->on[to] ^= bit;
	if (swap) {
		c->where[other] = from;
		c->on[from] ^= UINT64_C(1) << other;
		c->on[to] ^= UINT64_C(1) << other;
	}
	return delta;
}

/* The bytes of a middling block: what is lost at first for what may be won. */
static int64_t middling(const struct compact *c)
{
	int64_t sum = 0;

	for (size_t k = 0; k < c->nkinds; k++)
		sum += c->kinds[k].bytes / c->p->nblocks * __builtin_popcountll(c->kinds[k].blocks);
	return sum;
}

/* From the best placement known, with a threshold that falls to nothing. */
static void search(struct compact *c, int64_t top, int64_t bound, int64_t *cost)
{
	int64_t tries = (int64_t)SWEEPS * c->p->nblocks * (c->p->nblocks + c->p->nnodes);
	int64_t length = PTC_MIN(tries * (2 + 2 * (int64_t)(c->first[c->p->nblocks] / c->p->nblocks)), MAX_STEPS);
	int64_t now = *cost, end = c->steps + length;

	restart(c);
	while (c->steps<end && * cost> bound) {
		now += try_one(c, top / 1024 * ((end - c->steps) * 1024 / length));
		if (now >= *cost)
			continue;
		*cost = now;
		memcpy(c->p->where, c->where, c->p->nblocks * sizeof *c->where);
	}
}

int ptc_place_compact(struct ptc_placer *p, int64_t bound, int64_t *cost)
{
	struct compact c = { .p = p, .state = FROM };
	int rc = 0;

	if (p->nblocks > 64 || p->nnodes > 64 || *cost <= bound)
		return 0;
	rc = find_kinds(&c);
	if (!rc)
		rc = list_kinds(&c);
	for (int round = 0; round < ROUNDS && !rc; round++)
		search(&c, middling(&c) / 4 >> round / 2, bound, cost);
	ptc_free(c.kinds);
	ptc_free(c.first);
	ptc_free(c.list);
	ptc_free(c.on);
	ptc_free(c.where);
	return rc;
}
