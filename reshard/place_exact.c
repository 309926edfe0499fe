/* SPDX-License-Identifier: Apache-2.0 */
/* A few blocks to nodes, exactly: branch and bound over (node cost, device
 * cost), from a start that is good already. Costs of a set of blocks on a node
 * are remembered. Stopped after a budget of steps. Failure mode: memory. */
#include "reshard/place.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

#define SEARCH_STEPS 4000000 /* tree nodes: about a second */

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

			if (p->stamp[c] == p->stamp_now || ptc_place_node_has(p, s->nodes[i], c))
				continue;
			p->stamp[c] = p->stamp_now;
			sum += p->bytes[c];
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

	if (a->warm || a->pinned || s->mask[i])
		return false;
	for (uint32_t k = 0; k < i; k++) {
		const struct ptc_place_node *b = &nodes[s->nodes[k]];

		if (!b->warm && !b->pinned && !s->mask[k] && b->slots == a->slots && b->ndevices == a->ndevices &&
		    b->rack == a->rack)
			return true;
	}
	return false;
}

static bool worse(const struct search *s, uint32_t block, int64_t node, int64_t device)
{
	node += s->rest_node[block];
	device += s->rest_device[block];
	return node > s->best_node || (node == s->best_node && device >= s->best_device);
}

/* Blocks still to come suffice for the pinned nodes without one, and a TP group's are in one rack. */
static bool admissible(const struct search *s, uint32_t block, uint32_t i)
{
	const struct ptc_placer *p = s->p;
	uint32_t first = block - block % p->group_blocks, empty = 0;

	if (p->racks && block > first && p->nodes[s->nodes[s->at[first]]].rack != p->nodes[s->nodes[i]].rack)
		return false;
	if (!p->npinned)
		return true;
	for (uint32_t k = 0; k < s->nnodes; k++)
		empty += p->nodes[s->nodes[k]].pinned && !s->mask[k] && k != i;
	return empty <= p->nblocks - block - 1;
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

		if ((uint32_t)__builtin_popcount(old) >= s->p->nodes[s->nodes[i]].slots || is_twin(s, i) ||
		    !admissible(s, block, i))
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

/* Warm ones first, then the roomiest. */
static void pick_nodes(struct search *s)
{
	struct ptc_placer *p = s->p;

	for (uint32_t n = 0; n < p->nnodes; n++)
		if (p->nodes[n].warm && needed(p, n))
			s->nodes[s->nnodes++] = n;
	for (uint32_t room = PTC_MAX_DEVICES_PER_NODE; room > 0; room--)
		for (uint32_t n = 0; n < p->nnodes; n++)
			if (!p->nodes[n].warm && p->nodes[n].ndevices == room && needed(p, n))
				s->nodes[s->nnodes++] = n;
}

/* Bounds on what blocks k.. add: nodes by shared cost, devices by each block's cheapest set of devices. */
static void bound_rest(struct search *s)
{
	struct ptc_placer *p = s->p;

	for (uint32_t k = p->nblocks; k-- > 0;) {
		int64_t device = INT64_MAX;

		s->rest_node[k] = 0;
		for (uint32_t b = k; b < p->nblocks; b++)
			s->rest_node[k] += ptc_place_cheapest(p, b, k);
		for (uint32_t i = 0; i < s->nnodes && device; i++)
			device = PTC_MIN(device, mask_device_cost(s, i, 1u << k));
		s->rest_device[k] = s->rest_device[k + 1] + device;
	}
}

int ptc_place_exact(struct ptc_placer *p, int64_t cost, int64_t *ret_cost, bool *ret_complete)
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
