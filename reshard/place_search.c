/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks to nodes. The cost of a node is the bytes of the classes its blocks
 * need and it has not, each once, so costs do not add up over blocks: replicas
 * on one node share. Shared out (bytes / number of blocks of one node that can
 * need it) they do, and give a lower bound and, as an assignment problem, the
 * start. Then local improvement by moves and swaps; up to
 * PTC_PLACE_EXACT_BLOCKS blocks, branch and bound over (node cost, device
 * cost) from there. If the search or the improvement runs out of its budget of
 * steps, the gap against the bound says what may be left.
 * Failure mode: memory. */
#include "reshard/place.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define SEARCH_STEPS   4000000  /* tree nodes: about a second */
#define IMPROVE_STEPS  50000000 /* classes touched: well under a second */
#define ASSIGN_STEPS   (1ll << 28)
#define COUNTERS_MAX   (1ll << 27) /* node times class counters: half a GiB */
#define CANDIDATES_MAX (1u << 14)

/* How many blocks of each class are on each node. */
struct counters {
	struct ptc_placer *p;
	uint32_t *count; /* node * classes + class */
	uint32_t *load;  /* blocks on the node */
	int64_t steps;
};

static bool node_has(const struct ptc_placer *p, uint32_t n, uint32_t class)
{
	return ptc_place_has(p->node_has, p->words, n, class);
}

/* Bytes of block b that enter node n, those of classes that may be shared only in part; classes that a block below
 * `from_block` needs too are left out. */
static int64_t shared_cost(const struct ptc_placer *p, uint32_t b, uint32_t n, uint32_t from_block)
{
	int64_t sum = 0;

	for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++) {
		uint32_t c = p->blocks.list[i];
		uint32_t sharers = PTC_MIN(p->class_blocks[c], p->nodes[n].slots);

		if (p->class_min[c] >= from_block && !node_has(p, n, c))
			sum += p->cls.bytes[c] / (sharers ? sharers : 1);
	}
	return sum;
}

static int64_t cheapest_shared(const struct ptc_placer *p, uint32_t b, uint32_t from_block)
{
	int64_t best = INT64_MAX;

	for (uint32_t n = 0; n < p->nnodes && best; n++)
		if (p->nodes[n].slots)
			best = PTC_MIN(best, shared_cost(p, b, n, from_block));
	return best;
}

/* Adds (or takes away) block b; returns by how much the bytes entering the node change. */
static int64_t counters_add(struct counters *k, uint32_t n, uint32_t b)
{
	const struct ptc_placer *p = k->p;
	int64_t delta = 0;

	for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++) {
		uint32_t c = p->blocks.list[i];

		if (k->count[n * p->cls.n + c]++ == 0 && !node_has(p, n, c))
			delta += p->cls.bytes[c];
	}
	k->load[n]++;
	k->steps += (int64_t)(p->blocks.first[b + 1] - p->blocks.first[b]);
	return delta;
}

static int64_t counters_remove(struct counters *k, uint32_t n, uint32_t b)
{
	const struct ptc_placer *p = k->p;
	int64_t delta = 0;

	for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++) {
		uint32_t c = p->blocks.list[i];

		if (--k->count[n * p->cls.n + c] == 0 && !node_has(p, n, c))
			delta -= p->cls.bytes[c];
	}
	k->load[n]--;
	k->steps += (int64_t)(p->blocks.first[b + 1] - p->blocks.first[b]);
	return delta;
}

/* The start as an assignment of blocks to slots at shared costs; the optimum is a lower bound. */
static int start_assigned(struct ptc_placer *p, size_t nslots, int64_t *ret_bound)
{
	int64_t *cost = ptc_calloc(p->nblocks * nslots, sizeof *cost);
	uint32_t *node_of = ptc_calloc(nslots, sizeof *node_of);
	size_t s = 0;
	int rc = cost && node_of ? 0 : PTC_ENOMEM;

	for (uint32_t n = 0; n < p->nnodes && !rc; n++) {
		size_t take = PTC_MIN(p->nodes[n].slots, p->nblocks);

		for (uint32_t b = 0; b < p->nblocks && take; b++) {
			int64_t v = shared_cost(p, b, n, 0);

			for (size_t i = 0; i < take; i++)
				cost[b * nslots + s + i] = v;
		}
		for (size_t i = 0; i < take; i++)
			node_of[s++] = n;
	}
	if (!rc)
		rc = ptc_assign(p->nblocks, nslots, cost, p->where, ret_bound);
	for (uint32_t b = 0; b < p->nblocks && !rc; b++)
		p->where[b] = node_of[p->where[b]];
	ptc_free(cost);
	ptc_free(node_of);
	return rc;
}

/* The start when there are too many blocks for that: each block in turn to the cheapest node. */
static void start_greedy(struct counters *k, int64_t *ret_bound)
{
	struct ptc_placer *p = k->p;
	int64_t bound = 0;

	for (uint32_t b = 0; b < p->nblocks; b++) {
		int64_t best = INT64_MAX;

		for (uint32_t n = 0; n < p->nnodes; n++) {
			int64_t v;

			if (k->load[n] == p->nodes[n].slots)
				continue;
			v = shared_cost(p, b, n, 0);
			if (v < best) {
				best = v;
				p->where[b] = n;
			}
		}
		k->load[p->where[b]]++;
		bound += cheapest_shared(p, b, 0);
	}
	memset(k->load, 0, p->nnodes * sizeof *k->load);
	*ret_bound = bound;
}

static int64_t try_move(struct counters *k, uint32_t b, uint32_t n)
{
	uint32_t old = k->p->where[b];
	int64_t delta = counters_remove(k, old, b) + counters_add(k, n, b);

	if (delta < 0) {
		k->p->where[b] = n;
		return delta;
	}
	counters_remove(k, n, b);
	counters_add(k, old, b);
	return 0;
}

static int64_t try_swap(struct counters *k, uint32_t a, uint32_t b)
{
	uint32_t na = k->p->where[a], nb = k->p->where[b];
	int64_t delta = counters_remove(k, na, a) + counters_remove(k, nb, b);

	delta += counters_add(k, nb, a) + counters_add(k, na, b);
	if (delta < 0) {
		k->p->where[a] = nb;
		k->p->where[b] = na;
		return delta;
	}
	counters_remove(k, nb, a);
	counters_remove(k, na, b);
	counters_add(k, na, a);
	counters_add(k, nb, b);
	return 0;
}

/* Moves and swaps until none helps or the steps are used up; returns the cost. */
static int64_t improve(struct counters *k)
{
	struct ptc_placer *p = k->p;
	int64_t cost = 0, before;

	for (uint32_t b = 0; b < p->nblocks; b++)
		cost += counters_add(k, p->where[b], b);
	do {
		before = cost;
		for (uint32_t b = 0; b < p->nblocks && k->steps < IMPROVE_STEPS; b++) {
			for (uint32_t n = 0; n < p->nnodes && k->steps < IMPROVE_STEPS; n++)
				if (n != p->where[b] && k->load[n] < p->nodes[n].slots)
					cost += try_move(k, b, n);
			for (uint32_t a = 0; a < b && k->steps < IMPROVE_STEPS; a++)
				if (p->where[a] != p->where[b])
					cost += try_swap(k, a, b);
		}
	} while (cost < before && k->steps < IMPROVE_STEPS);
	return cost;
}

struct search {
	struct ptc_placer *p;
	uint32_t *nodes; /* worth looking at */
	uint32_t nnodes;
	uint32_t *mask;                                /* per node of nodes: blocks on it */
	int64_t *node_cost, *device_cost;              /* per (node, mask); -1: not known */
	int64_t rest_node[PTC_PLACE_EXACT_BLOCKS + 1]; /* lower bounds for blocks k.. */
	int64_t rest_device[PTC_PLACE_EXACT_BLOCKS + 1];
	uint32_t at[PTC_PLACE_EXACT_BLOCKS], best_at[PTC_PLACE_EXACT_BLOCKS];
	int64_t best_node, best_device;
	int64_t steps;
	bool nomem;
};

static int64_t mask_node_cost(struct search *s, uint32_t i, uint32_t mask)
{
	struct ptc_placer *p = s->p;
	int64_t *memo = &s->node_cost[((size_t)i << p->nblocks) + mask], sum = 0;

	if (*memo >= 0)
		return *memo;
	p->stamp_now++;
	for (uint32_t b = 0; b < p->nblocks; b++) {
		if (!(mask >> b & 1))
			continue;
		for (size_t k = p->blocks.first[b]; k < p->blocks.first[b + 1]; k++) {
			uint32_t c = p->blocks.list[k];

			if (p->stamp[c] == p->stamp_now || node_has(p, s->nodes[i], c))
				continue;
			p->stamp[c] = p->stamp_now;
			sum += p->cls.bytes[c];
		}
	}
	return *memo = sum;
}

static int64_t mask_device_cost(struct search *s, uint32_t i, uint32_t mask)
{
	struct ptc_placer *p = s->p;
	int64_t *memo = &s->device_cost[((size_t)i << p->nblocks) + mask], cost = 0;
	uint32_t blocks[PTC_PLACE_EXACT_BLOCKS], n = 0;

	if (*memo >= 0)
		return *memo;
	for (uint32_t b = 0; b < p->nblocks; b++)
		if (mask >> b & 1)
			blocks[n++] = b;
	if (n && ptc_place_devices(p, s->nodes[i], blocks, n, NULL, &cost))
		s->nomem = true;
	return *memo = cost;
}

/* An empty cold node is as good as the empty cold one of the same size before it. */
static bool is_twin(const struct search *s, uint32_t i)
{
	const struct ptc_place_node *nodes = s->p->nodes, *a = &nodes[s->nodes[i]];

	if (a->warm || s->mask[i])
		return false;
	for (uint32_t k = 0; k < i; k++)
		if (!nodes[s->nodes[k]].warm && !s->mask[k] && nodes[s->nodes[k]].slots == a->slots &&
		    nodes[s->nodes[k]].ndevices == a->ndevices)
			return true;
	return false;
}

static bool worse(const struct search *s, uint32_t block, int64_t node, int64_t device)
{
	node += s->rest_node[block];
	device += s->rest_device[block];
	return node > s->best_node || (node == s->best_node && device >= s->best_device);
}

/* Depth first: block `block` to each node in turn. */
static void descend(struct search *s, uint32_t block, int64_t node, int64_t device)
{
	if (block == s->p->nblocks) {
		s->best_node = node;
		s->best_device = device;
		memcpy(s->best_at, s->at, sizeof s->at);
		return;
	}
	for (uint32_t i = 0; i < s->nnodes && s->steps < SEARCH_STEPS && !s->nomem; i++) {
		uint32_t old = s->mask[i], new = old | 1u << block;
		int64_t n, d;

		if ((uint32_t)__builtin_popcount(old) >= s->p->nodes[s->nodes[i]].slots || is_twin(s, i))
			continue;
		s->steps++;
		n = node + mask_node_cost(s, i, new) - mask_node_cost(s, i, old);
		if (n + s->rest_node[block + 1] > s->best_node)
			continue;
		d = device + mask_device_cost(s, i, new) - mask_device_cost(s, i, old);
		if (worse(s, block + 1, n, d))
			continue;
		s->mask[i] = new;
		s->at[block] = i;
		descend(s, block + 1, n, d);
		s->mask[i] = old;
	}
}

/* Warm nodes, and of the cold ones the nblocks roomiest: more are never needed. */
static void pick_nodes(struct search *s)
{
	struct ptc_placer *p = s->p;
	uint32_t cold = 0;

	for (uint32_t n = 0; n < p->nnodes; n++)
		if (p->nodes[n].warm && p->nodes[n].slots)
			s->nodes[s->nnodes++] = n;
	for (uint32_t room = PTC_MAX_DEVICES_PER_NODE; room > 0 && cold < p->nblocks; room--)
		for (uint32_t n = 0; n < p->nnodes && cold < p->nblocks; n++)
			if (!p->nodes[n].warm && p->nodes[n].slots && p->nodes[n].ndevices == room) {
				s->nodes[s->nnodes++] = n;
				cold++;
			}
}

/* Bounds on what blocks k.. add: nodes by shared cost, devices by each block's cheapest set of devices. */
static void bound_rest(struct search *s)
{
	struct ptc_placer *p = s->p;

	for (uint32_t k = p->nblocks; k-- > 0;) {
		int64_t device = INT64_MAX;

		s->rest_node[k] = 0;
		for (uint32_t b = k; b < p->nblocks; b++)
			s->rest_node[k] += cheapest_shared(p, b, k);
		for (uint32_t i = 0; i < s->nnodes && device; i++)
			device = PTC_MIN(device, mask_device_cost(s, i, 1u << k));
		s->rest_device[k] = s->rest_device[k + 1] + device;
	}
}

/* Branch and bound from p->where, whose node cost is known. */
static int search_exact(struct ptc_placer *p, int64_t cost, int64_t *ret_cost, bool *ret_complete)
{
	struct search s = { .p = p, .best_node = cost, .best_device = INT64_MAX };
	size_t cells;
	int rc = PTC_ENOMEM;

	s.nodes = ptc_calloc(p->nnodes, sizeof *s.nodes);
	if (s.nodes)
		pick_nodes(&s);
	cells = (size_t)s.nnodes << p->nblocks;
	s.mask = ptc_calloc(s.nnodes, sizeof *s.mask);
	s.node_cost = ptc_calloc(cells, sizeof *s.node_cost);
	s.device_cost = ptc_calloc(cells, sizeof *s.device_cost);
	if (s.nodes && s.mask && s.node_cost && s.device_cost) {
		memset(s.node_cost, 0xff, cells * sizeof *s.node_cost);
		memset(s.device_cost, 0xff, cells * sizeof *s.device_cost);
		bound_rest(&s);
		descend(&s, 0, 0, 0);
		for (uint32_t b = 0; b < p->nblocks && s.best_device < INT64_MAX; b++)
			p->where[b] = s.nodes[s.best_at[b]];
		*ret_cost = s.best_node;
		*ret_complete = s.steps < SEARCH_STEPS;
		rc = s.nomem ? PTC_ENOMEM : 0;
	}
	ptc_free(s.nodes);
	ptc_free(s.mask);
	ptc_free(s.node_cost);
	ptc_free(s.device_cost);
	return rc;
}

static int64_t all_bytes(const struct ptc_placer *p)
{
	int64_t sum = 0;

	for (size_t i = 0; i < p->blocks.first[p->nblocks]; i++)
		sum += p->cls.bytes[p->blocks.list[i]];
	return sum;
}

int ptc_place_search(struct ptc_placer *p)
{
	struct counters k = { .p = p };
	int64_t nslots = 0, bound = 0, cost;
	bool complete = false;
	int rc = 0;

	for (uint32_t n = 0; n < p->nnodes; n++)
		nslots += PTC_MIN(p->nodes[n].slots, p->nblocks);
	k.load = ptc_calloc(p->nnodes, sizeof *k.load);
	if (!k.load)
		return PTC_ENOMEM;
	if ((int64_t)p->nblocks * p->nblocks <= ASSIGN_STEPS / PTC_MAX(nslots, 1))
		rc = start_assigned(p, (size_t)nslots, &bound);
	else
		start_greedy(&k, &bound);
	cost = all_bytes(p);
	if (!rc && (int64_t)p->nnodes <= COUNTERS_MAX / (int64_t)PTC_MAX(p->cls.n, 1u)) {
		k.count = ptc_calloc(p->nnodes * p->cls.n, sizeof *k.count);
		rc = k.count ? 0 : PTC_ENOMEM;
		if (!rc)
			cost = improve(&k);
	}
	if (!rc && p->nblocks <= PTC_PLACE_EXACT_BLOCKS && p->nnodes <= CANDIDATES_MAX)
		rc = search_exact(p, cost, &cost, &complete);
	p->gap = complete ? 0 : PTC_MAX(cost - bound, 0);
	ptc_free(k.count);
	ptc_free(k.load);
	return rc;
}
