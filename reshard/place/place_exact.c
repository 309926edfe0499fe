/* SPDX-License-Identifier: Apache-2.0 */
/* A few blocks to nodes, exactly: nodes in turn, each taking a set of blocks. The first pass goes from the last node to
 * the first. For each set of blocks that earlier nodes have, it finds the least bytes that can enter the remaining
 * nodes (2^blocks entries a node, 3^blocks sums). The second pass goes from the first node to the last, along sets that
 * keep this least number. Of these it takes the assignment with the fewest bytes that devices lack. Time grows with the
 * number of nodes, whatever the layouts. Failure modes: no way to meet the constraints (PTC_ENODEVICES), memory. */
#include "reshard/place/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

#define SETS         (1u << PTC_PLACE_EXACT_BLOCKS)
#define NEVER        INT64_MAX
#define DEVICE_STEPS 400000000 /* of assignments within nodes: a part of a second */

struct candidate {
	uint32_t rack, node;
};

struct exact {
	struct ptc_placer *p;
	struct candidate *nodes;                 /* worth looking at; by rack */
	uint32_t nnodes, all;                    /* all: the set of all blocks */
	uint8_t *needed_by;                      /* per class: the set of blocks that need it */
	int64_t wanted[SETS];                    /* bytes of the classes that just this set of blocks needs */
	int64_t ranks[PTC_PLACE_EXACT_BLOCKS];   /* per block: bytes of its ranks, each rank's for itself */
	int64_t entries[PTC_PLACE_EXACT_BLOCKS]; /* and how many classes these have */
	int64_t *enter; /* per node and set: bytes that enter it; NEVER: it may not have this */
	int64_t *rest;  /* per node and one more, and set that nodes before it have: the least that enters the others */
	uint8_t *took;  /* per node and set that nodes to it have: what it has of them */
	int64_t device_steps;
};

/* Lower blocks are higher bits: of equal ways that with them on earlier nodes is found first. */
static uint32_t bit(const struct ptc_placer *p, uint32_t b)
{
	return 1u << (p->nblocks - 1 - b);
}

/* A cold node is left out when nblocks others of its rack are as roomy: more are never needed. */
static bool needed(const struct ptc_placer *p, uint32_t n)
{
	const struct ptc_place_node *a = &p->nodes[n];
	uint32_t better = 0;

	if (a->warm || a->pinned || !a->slots)
		return a->slots > 0;
	for (uint32_t k = 0; k < p->nnodes && better < p->nblocks; k++) {
		const struct ptc_place_node *b = &p->nodes[k];

		better += !b->warm && (!p->racks || b->rack == a->rack) &&
			  (b->ndevices > a->ndevices || (b->ndevices == a->ndevices && k < n));
	}
	return better < p->nblocks;
}

PTC_BY2(by_rack, struct candidate, rack, node)

static void pick_nodes(struct exact *e)
{
	const struct ptc_placer *p = e->p;

	for (uint32_t n = 0; n < p->nnodes; n++)
		if (needed(p, n))
			e->nodes[e->nnodes++] = (struct candidate){ p->racks ? p->nodes[n].rack : 0, n };
	if (e->nnodes > 1)
		qsort(e->nodes, e->nnodes, sizeof *e->nodes, by_rack);
}

static void sum_blocks(struct exact *e)
{
	const struct ptc_placer *p = e->p;

	for (uint32_t b = 0; b < p->nblocks; b++) {
		for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++)
			e->needed_by[p->blocks.list[i]] |= (uint8_t)bit(p, b);
		for (uint32_t k = b * p->block_size; k < (b + 1) * p->block_size; k++)
			for (size_t i = p->needs.first[p->ranks[k]]; i < p->needs.first[p->ranks[k] + 1]; i++) {
				e->ranks[b] += p->bytes[p->needs.list[i]];
				e->entries[b]++;
			}
	}
	for (uint32_t c = 0; c < p->nclasses; c++)
		e->wanted[e->needed_by[c]] += p->bytes[c];
}

/* What enters a node for each set: all that it lacks but for what only others need. */
static void price_node(struct exact *e, uint32_t i)
{
	const struct ptc_placer *p = e->p;
	const struct ptc_place_node *node = &p->nodes[e->nodes[i].node];
	const uint64_t *has = p->node_has + e->nodes[i].node * p->words;
	int64_t lacks[SETS], *enter = e->enter + (size_t)i * (e->all + 1);

	memcpy(lacks, e->wanted, sizeof lacks);
	for (size_t w = 0; w < p->words && node->warm; w++)
		for (uint64_t bits = has[w]; bits; bits &= bits - 1) {
			size_t c = w * 64 + (size_t)__builtin_ctzll(bits);

			lacks[e->needed_by[c]] -= p->bytes[c];
		}
	for (uint32_t b = 0; b < p->nblocks; b++) /* from here on: of each set's subsets, too */
		for (uint32_t set = 0; set <= e->all; set++)
			if (set & bit(p, b))
				lacks[set] += lacks[set ^ bit(p, b)];
	for (uint32_t set = 0; set <= e->all; set++)
		enter[set] = (uint32_t)__builtin_popcount(set) > node->slots || (node->pinned && !set)
				     ? NEVER
				     : lacks[e->all] - lacks[e->all & ~set];
}

/* The racks before node i have whole TP groups. */
static bool admissible(const struct exact *e, uint32_t i, uint32_t set)
{
	uint32_t width = e->p->group_blocks, group = (1u << width) - 1;

	if (!e->p->racks || i == 0 || e->nodes[i].rack == e->nodes[i - 1].rack)
		return true;
	for (uint32_t b = 0; b < e->p->nblocks; b += width)
		if ((set >> b & group) != 0 && (set >> b & group) != group)
			return false;
	return true;
}

/* The least for the blocks that are not in set, on node i and those after it. */
static int64_t least_rest(const struct exact *e, uint32_t i, uint32_t set)
{
	const int64_t *enter = e->enter + (size_t)i * (e->all + 1), *after = e->rest + (size_t)(i + 1) * (e->all + 1);
	uint32_t left = e->all & ~set;
	int64_t best = NEVER;

	if (!admissible(e, i, set))
		return NEVER;
	for (uint32_t take = left;; take = (take - 1) & left) {
		if (enter[take] != NEVER && after[set | take] != NEVER)
			best = PTC_MIN(best, enter[take] + after[set | take]);
		if (!take)
			return best;
	}
}

static void count_back(struct exact *e)
{
	int64_t *last = e->rest + (size_t)e->nnodes * (e->all + 1);

	for (uint32_t set = 0; set < e->all; set++)
		last[set] = NEVER;
	last[e->all] = 0;
	for (uint32_t i = e->nnodes; i-- > 0;)
		for (uint32_t set = 0; set <= e->all; set++)
			e->rest[(size_t)i * (e->all + 1) + set] = least_rest(e, i, set);
}

/* Bytes that devices of node i lack for a set of blocks. Past the budget all of them: the way is as good for nodes. */
static int device_cost(struct exact *e, uint32_t i, uint32_t set, int64_t *ret)
{
	const struct ptc_place_node *node = &e->p->nodes[e->nodes[i].node];
	uint32_t blocks[PTC_PLACE_EXACT_BLOCKS], n = 0;
	int64_t sum = 0, entries = 0, rows;

	for (uint32_t b = 0; b < e->p->nblocks; b++)
		if (set & bit(e->p, b)) {
			blocks[n++] = b;
			sum += e->ranks[b];
			entries += e->entries[b];
		}
	*ret = sum;
	rows = (int64_t)n * e->p->block_size;
	if (!n || !node->warm || e->device_steps > DEVICE_STEPS)
		return 0;
	e->device_steps += (rows * rows + entries) * node->ndevices;
	return ptc_place_devices(e->p, e->nodes[i].node, blocks, n, NULL, ret);
}

/* all: e->all. least: of the sets that nodes before i have, bytes that devices lack; ret: the same after i. */
static int step(struct exact *e, uint32_t i, uint32_t all, const int64_t *least, int64_t *ret)
{
	size_t row = all + 1;
	const int64_t *enter = e->enter + i * row, *rest = e->rest + i * row, *after = rest + row;
	int64_t devices[SETS], cost;

	memset(devices, 0xff, sizeof devices);
	for (uint32_t set = 0; set <= all; set++)
		ret[set] = NEVER;
	for (uint32_t set = all + 1; set-- > 0;)
		for (uint32_t left = all & ~set, take = left; least[set] != NEVER; take = (take - 1) & left) {
			bool loses = enter[take] == NEVER || after[set | take] == NEVER ||
				     enter[take] + after[set | take] != rest[set];

			if (!loses && devices[take] < 0 && device_cost(e, i, take, &devices[take]))
				return PTC_ENOMEM;
			cost = loses ? NEVER : least[set] + devices[take];
			if (cost < ret[set | take]) {
				ret[set | take] = cost;
				e->took[i * row + (set | take)] = (uint8_t)take;
			}
			if (!take)
				break;
		}
	return 0;
}

static int walk(struct exact *e)
{
	int64_t least[2][SETS];
	const uint32_t all = e->all;
	uint32_t left = all;

	ptc_require(all < SETS);
	if (e->rest[0] == NEVER)
		return PTC_ENODEVICES;
	for (uint32_t set = 0; set <= all; set++)
		least[0][set] = set ? NEVER : 0;
	for (uint32_t i = 0; i < e->nnodes; i++)
		if (step(e, i, all, least[i % 2], least[(i + 1) % 2]))
			return PTC_ENOMEM;
	for (uint32_t i = e->nnodes; i-- > 0;) {
		uint32_t take = e->took[(size_t)i * (e->all + 1) + left];

		for (uint32_t b = 0; b < e->p->nblocks; b++)
			if (take & bit(e->p, b))
				e->p->where[b] = e->nodes[i].node;
		left &= ~take;
	}
	return 0;
}

int ptc_place_exact(struct ptc_placer *p)
{
	struct exact e = { .p = p, .all = (1u << p->nblocks) - 1 };
	size_t cells;
	int rc = PTC_ENOMEM;

	e.nodes = ptc_calloc(p->nnodes, sizeof *e.nodes);
	if (e.nodes)
		pick_nodes(&e);
	cells = (size_t)e.nnodes << p->nblocks;
	e.needed_by = ptc_calloc(p->nclasses, sizeof *e.needed_by);
	e.enter = ptc_calloc(cells, sizeof *e.enter);
	e.rest = ptc_calloc(cells + e.all + 1, sizeof *e.rest);
	e.took = ptc_calloc(cells, sizeof *e.took);
	if (e.nodes && e.needed_by && e.enter && e.rest && e.took) {
		sum_blocks(&e);
		for (uint32_t i = 0; i < e.nnodes; i++)
			price_node(&e, i);
		count_back(&e);
		rc = walk(&e);
	}
	ptc_free(e.nodes);
	ptc_free(e.needed_by);
	ptc_free(e.enter);
	ptc_free(e.rest);
	ptc_free(e.took);
	return rc;
}
