/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: devices are grouped by node, ranks into blocks, and bytes into classes. A TP group is cut into blocks of
 * equal size: the largest size at which all blocks fit whole on nodes. The search gives each block a node, and an
 * assignment problem for each node gives each rank a device. Failure modes: fewer devices than ranks
 * (PTC_ENODEVICES), contradictory input, memory. */
#include "reshard/place/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

PTC_BY2(by_device, struct ptc_device, node, index)

static int group_devices(struct ptc_placer *p, const struct ptc_place_opts *o, struct ptc_error *err)
{
	uint32_t nnodes = o->nnodes;

	p->nodes = ptc_calloc(p->ndevices, sizeof *p->nodes);
	if (!p->nodes)
		return ptc_nomem(err);
	qsort(p->devices, p->ndevices, sizeof *p->devices, by_device);
	for (size_t i = 0; i < p->ndevices; i++) {
		const struct ptc_device *d = &p->devices[i];

		if (d->node >= nnodes)
			return ptc_error_set(err, PTC_EINVAL, "place: a device is on node %u, but there are %u nodes",
					     d->node, nnodes);
		if (i && !by_device(d, d - 1))
			return ptc_error_set(err, PTC_EINVAL, "place: device %u of node %u is listed twice", d->index,
					     d->node);
		if (!i || d->node != d[-1].node)
			p->nodes[p->nnodes++] = (struct ptc_place_node){
				.node = d->node,
				.first = (uint32_t)i,
				.rack = o->racks ? o->racks[d->node] : 0,
				.pinned = o->pinned && o->pinned[d->node],
			};
		if (++p->nodes[p->nnodes - 1].ndevices > PTC_MAX_DEVICES_PER_NODE)
			return ptc_error_set(err, PTC_ELIMIT, "place: more than %d devices on node %u",
					     PTC_MAX_DEVICES_PER_NODE, d->node);
	}
	return 0;
}

/* The largest divisor of tp in which all ranks fit; 1 always does. */
static void choose_block_size(struct ptc_placer *p, uint32_t tp, uint32_t world)
{
	p->block_size = 1;
	for (uint32_t d = tp; d > 1; d--) {
		uint64_t room = 0;

		if (tp % d)
			continue;
		for (uint32_t n = 0; n < p->nnodes; n++)
			room += p->nodes[n].ndevices / d * d;
		if (room < world)
			continue;
		p->block_size = d;
		break;
	}
	p->nblocks = world / p->block_size;
	p->group_blocks = tp / p->block_size;
	for (uint32_t n = 0; n < p->nnodes; n++)
		p->nodes[n].slots = p->nodes[n].ndevices / p->block_size;
}

/* TP groups by their first rank, the blocks of one after the other. */
static int make_blocks(struct ptc_placer *p)
{
	const struct ptc_config *c = ptc_layout_config(p->to);
	uint32_t world = ptc_layout_world(p->to), n = 0;

	p->ranks = ptc_calloc(world, sizeof *p->ranks);
	p->where = ptc_calloc(p->nblocks, sizeof *p->where);
	if (!p->ranks || !p->where)
		return PTC_ENOMEM;
	for (uint32_t r = 0; r < world; r++) {
		struct ptc_coords k = ptc_config_coords(c, r);

		if (k.tp)
			continue;
		for (; k.tp < c->tp; k.tp++)
			p->ranks[n++] = ptc_config_rank(c, &k);
	}
	return 0;
}

/* The node's place in p->nodes; nnodes: it offers none. */
static uint32_t find_node(const struct ptc_placer *p, uint32_t node)
{
	uint32_t lo = (uint32_t)PTC_SEARCH(struct ptc_place_node, node, p->nodes, p->nnodes, node);

	return lo < p->nnodes && p->nodes[lo].node == node ? lo : p->nnodes;
}

static void mark_node(struct ptc_placer *p, uint32_t n, const struct ptc_class_lists *had, uint32_t rank)
{
	uint64_t *set = p->node_has + n * p->words;

	p->nodes[n].warm = true;
	for (size_t i = had->first[rank]; i < had->first[rank + 1]; i++)
		set[had->list[i] / 64] |= UINT64_C(1) << (had->list[i] % 64);
}

/* What nodes and devices have: classes of the ranks that were there. */
static int mark_holders(struct ptc_placer *p, const struct ptc_allocation *a, const bool *usable,
			const struct ptc_class_lists *had)
{
	size_t n = 0, *next;

	p->words = ((size_t)p->nclasses + 63) / 64;
	p->node_has = ptc_calloc(p->nnodes * p->words, sizeof *p->node_has);
	p->device_has = ptc_calloc(p->nclasses, sizeof *p->device_has);
	p->holds.first = next = ptc_calloc(p->ndevices + 2, sizeof *next);
	if (!p->node_has || !p->device_has || !next)
		return PTC_ENOMEM;
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t r = 0; r < a->world; r++) {
			const struct ptc_device *d =
				bsearch(&a->ranks[r], p->devices, p->ndevices, sizeof *d, by_device);
			uint32_t node = find_node(p, a->ranks[r].node);
			size_t count = had->first[r + 1] - had->first[r], at = d ? (size_t)(d - p->devices) : 0;

			if (node == p->nnodes || (usable && !usable[a->ranks[r].node]))
				continue;
			if (!pass) {
				mark_node(p, node, had, r);
				next[at + 2] += d ? count : 0;
			} else if (d && count) {
				memcpy(p->holds.list + next[at + 1], had->list + had->first[r],
				       count * sizeof *had->list);
				next[at + 1] += count;
			}
		}
		for (size_t i = 0; i < p->ndevices && !pass; i++)
			n = next[i + 2] += next[i + 1];
		if (!pass && !(p->holds.list = ptc_calloc(n, sizeof *p->holds.list)))
			return PTC_ENOMEM;
	}
	return 0;
}

/* Appends the distinct classes of block b at list (or only counts them). */
static size_t block_classes(struct ptc_placer *p, uint32_t b, uint32_t *list)
{
	size_t n = 0;

	p->stamp_now++;
	for (uint32_t k = 0; k < p->block_size; k++) {
		uint32_t rank = p->ranks[b * p->block_size + k];

		for (size_t i = p->needs.first[rank]; i < p->needs.first[rank + 1]; i++) {
			uint32_t c = p->needs.list[i];

			if (p->stamp[c] == p->stamp_now)
				continue;
			p->stamp[c] = p->stamp_now;
			if (list)
				list[n] = c;
			n++;
		}
	}
	return n;
}

static int list_block_classes(struct ptc_placer *p)
{
	size_t n = 0;

	p->stamp = ptc_calloc(p->nclasses, sizeof *p->stamp);
	p->class_blocks = ptc_calloc(p->nclasses, sizeof *p->class_blocks);
	p->blocks.first = ptc_calloc((size_t)p->nblocks + 1, sizeof *p->blocks.first);
	if (!p->stamp || !p->class_blocks || !p->blocks.first)
		return PTC_ENOMEM;
	for (uint32_t b = 0; b < p->nblocks; b++)
		p->blocks.first[b + 1] = n += block_classes(p, b, NULL);
	p->blocks.list = ptc_calloc(n, sizeof *p->blocks.list);
	if (!p->blocks.list)
		return PTC_ENOMEM;
	for (uint32_t b = 0; b < p->nblocks; b++) {
		block_classes(p, b, p->blocks.list + p->blocks.first[b]);
		for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++)
			p->class_blocks[p->blocks.list[i]]++;
	}
	return 0;
}

static void fill_in_order(struct ptc_placer *p)
{
	uint32_t n = 0, used = 0;

	for (uint32_t b = 0; b < p->nblocks; b++, used++) {
		for (; used == p->nodes[n].slots; n++)
			used = 0;
		p->where[b] = n;
	}
}

/* Blocks on nodes to ranks on devices. Without an old layout the devices are taken in order. */
static int give_devices(const struct ptc_placer *p, bool in_order, struct ptc_device *ranks)
{
	uint32_t blocks[PTC_MAX_DEVICES_PER_NODE], cols[PTC_MAX_DEVICES_PER_NODE];
	uint32_t *next = ptc_calloc((size_t)p->nnodes + 2, sizeof *next);
	uint32_t *sorted = ptc_calloc(p->nblocks, sizeof *sorted);
	int rc = next && sorted ? 0 : PTC_ENOMEM;
	int64_t cost;

	for (uint32_t b = 0; b < p->nblocks && !rc; b++)
		next[p->where[b] + 2]++;
	for (uint32_t n = 0; n < p->nnodes && !rc; n++)
		next[n + 2] += next[n + 1];
	for (uint32_t b = 0; b < p->nblocks && !rc; b++)
		sorted[next[p->where[b] + 1]++] = b;
	for (uint32_t n = 0; n < p->nnodes && !rc; n++) {
		uint32_t count = next[n + 1] - next[n];

		memcpy(blocks, sorted + next[n], count * sizeof *blocks);
		for (uint32_t i = 0; i < count * p->block_size; i++)
			cols[i] = i;
		if (count && !in_order)
			rc = ptc_place_devices(p, n, blocks, count, cols, &cost);
		for (uint32_t i = 0; i < count * p->block_size && !rc; i++)
			ranks[p->ranks[blocks[i / p->block_size] * p->block_size + i % p->block_size]] =
				p->devices[p->nodes[n].first + cols[i]];
	}
	ptc_free(next);
	ptc_free(sorted);
	return rc;
}

/* What is needed and had, in classes. */
static int place_classes(struct ptc_placer *p, const struct ptc_allocation *from_alloc, const bool *usable)
{
	struct ptc_class_lists had = { 0 };
	int rc = PTC_ENOMEM;

	p->nclasses = p->change->classes.n;
	p->bytes = p->change->bytes;
	if (!ptc_class_lists_init(&p->needs, p->change, false, ptc_layout_world(p->to)) &&
	    !ptc_class_lists_init(&had, p->change, true, from_alloc->world))
		rc = mark_holders(p, from_alloc, usable, &had);
	ptc_class_lists_done(&had);
	return rc ? rc : list_block_classes(p);
}

static int check_pins(struct ptc_placer *p, const struct ptc_place_opts *o, struct ptc_error *err)
{
	for (uint32_t n = 0; n < p->nnodes; n++) {
		p->npinned += p->nodes[n].pinned;
		if (p->nodes[n].pinned && !p->nodes[n].slots)
			return ptc_error_set(
				err, PTC_ENODEVICES,
				"node %u is pinned, but a block needs more than its %u devices: it has %u ranks",
				p->nodes[n].node, p->nodes[n].ndevices, p->block_size);
	}
	for (uint32_t n = 0; o->pinned && n < o->nnodes; n++)
		if (o->pinned[n] && find_node(p, n) == p->nnodes)
			return ptc_error_set(err, PTC_ENODEVICES,
					     "node %u is pinned, but none of its devices may be used", n);
	if (p->npinned > p->nblocks)
		return ptc_error_set(err, PTC_ENODEVICES, "%u nodes are pinned, but %u ranks need at most %u nodes",
				     p->npinned, ptc_layout_world(p->to), p->nblocks);
	return 0;
}

/* Each rank is a block of its own on the node that it is to have. */
static int take_nodes(struct ptc_placer *p, const struct ptc_place_opts *o, struct ptc_error *err)
{
	ptc_auto_free uint32_t *ranks = ptc_calloc((size_t)p->nnodes + 1, sizeof *ranks);

	if (!ranks)
		return ptc_nomem(err);
	for (uint32_t b = 0; b < p->nblocks; b++) {
		uint32_t n = find_node(p, o->node_of_rank[p->ranks[b]]);

		if (n == p->nnodes || ++ranks[n] > p->nodes[n].ndevices)
			return ptc_error_set(err, PTC_ENODEVICES,
					     "rank %u is to be on node %u, which has no device for it", p->ranks[b],
					     o->node_of_rank[p->ranks[b]]);
		p->where[b] = n;
	}
	return 0;
}

static int place_decided(struct ptc_placer *p, const struct ptc_allocation *from_alloc, const struct ptc_place_opts *o,
			 struct ptc_device *ranks, struct ptc_error *err)
{
	int rc;

	choose_block_size(p, 1, ptc_layout_world(p->to));
	rc = make_blocks(p) ? ptc_nomem(err) : take_nodes(p, o, err);
	if (rc)
		return rc;
	if (p->change->from.layout && place_classes(p, from_alloc, o->usable))
		return ptc_nomem(err);
	return give_devices(p, !p->change->from.layout, ranks) ? ptc_nomem(err) : 0;
}

static int place(struct ptc_placer *p, const struct ptc_allocation *from_alloc, const struct ptc_place_opts *o,
		 struct ptc_device *ranks, struct ptc_error *err)
{
	int rc = group_devices(p, o, err);

	if (rc)
		return rc;
	if (o->node_of_rank)
		return place_decided(p, from_alloc, o, ranks, err);
	choose_block_size(p, ptc_layout_config(p->to)->tp, ptc_layout_world(p->to));
	rc = check_pins(p, o, err);
	if (rc)
		return rc;
	p->racks = o->racks && p->group_blocks > 1;
	if (make_blocks(p))
		return ptc_nomem(err);
	if (!p->change->from.layout && !p->npinned && !p->racks) {
		fill_in_order(p);
		return give_devices(p, true, ranks) ? ptc_nomem(err) : 0;
	}
	if (place_classes(p, from_alloc, o->usable))
		return ptc_nomem(err);
	rc = ptc_place_search(p);
	if (rc == PTC_ENODEVICES)
		return ptc_error_set(err, rc,
				     "TP groups of %u nodes each do not fit whole into racks%s, %u ranks in all",
				     p->group_blocks, p->npinned ? " with a block on each pinned node" : "",
				     ptc_layout_world(p->to));
	if (rc == PTC_ELIMIT)
		return ptc_error_set(err, rc, "racks: %u blocks on %u nodes are too many to search", p->nblocks,
				     p->nnodes);
	return rc || give_devices(p, false, ranks) ? ptc_nomem(err) : 0;
}

static void placer_done(struct ptc_placer *p)
{
	ptc_class_lists_done(&p->needs);
	ptc_class_lists_done(&p->blocks);
	ptc_class_lists_done(&p->holds);
	ptc_free(p->devices);
	ptc_free(p->nodes);
	ptc_free(p->ranks);
	ptc_free(p->node_has);
	ptc_free(p->device_has);
	ptc_free(p->class_blocks);
	ptc_free(p->stamp);
	ptc_free(p->where);
}

int ptc_change_place(const struct ptc_change *c, const struct ptc_allocation *from_alloc,
		     const struct ptc_place_opts *o, struct ptc_allocation *ret_alloc, int64_t *ret_gap_bytes,
		     struct ptc_error *err)
{
	struct ptc_placer p = { .change = c, .to = c->to.layout, .ndevices = o->ndevices };
	static const struct ptc_allocation nothing;
	uint32_t world = ptc_layout_world(p.to);
	struct ptc_device *ranks;
	int rc;

	if (o->ndevices < world)
		return ptc_error_set(err, PTC_ENODEVICES, "%u ranks need %u devices, but there are %zu", world, world,
				     o->ndevices);
	if (c->from.layout && from_alloc->world != ptc_layout_world(c->from.layout))
		return ptc_error_set(err, PTC_EINVAL, "the allocation has %u ranks, but the layout has %u",
				     from_alloc->world, ptc_layout_world(c->from.layout));
	ranks = ptc_calloc(world, sizeof *ranks);
	p.devices = ptc_calloc(o->ndevices, sizeof *p.devices);
	if (ranks && p.devices) {
		memcpy(p.devices, o->devices, o->ndevices * sizeof *o->devices);
		rc = place(&p, c->from.layout ? from_alloc : &nothing, o, ranks, err);
	} else {
		rc = ptc_nomem(err);
	}
	if (rc) {
		ptc_free(ranks);
	} else {
		*ret_alloc = (struct ptc_allocation){ ranks, world };
		*ret_gap_bytes = p.gap;
	}
	placer_done(&p);
	return rc;
}

int ptc_place(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
	      const struct ptc_layout *to, const struct ptc_device *devices, size_t ndevices, uint32_t nnodes,
	      struct ptc_allocation *ret_alloc, int64_t *ret_gap_bytes, struct ptc_error *err)
{
	struct ptc_place_opts o = { .devices = devices, .ndevices = ndevices, .nnodes = nnodes };
	struct ptc_change *c;
	int rc = ptc_change_new(from, to, &c, err);

	if (rc)
		return rc;
	rc = ptc_change_place(c, from_alloc, &o, ret_alloc, ret_gap_bytes, err);
	ptc_change_free(c);
	return rc;
}
