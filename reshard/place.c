/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: devices are grouped by node, ranks into blocks (as large a part
 * of a TP group as still lets all blocks fit whole on nodes), bytes into
 * classes; the search gives each block a node, and an assignment problem per
 * node gives each rank a device. Failure modes: fewer devices than ranks
 * (PTC_ENODEVICES), contradictory input, memory. */
#include "reshard/place.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static int by_device(const void *pa, const void *pb)
{
	const struct ptc_device *a = pa, *b = pb;

	if (a->node != b->node)
		return a->node < b->node ? -1 : 1;
	return a->index < b->index ? -1 : a->index > b->index;
}

static int nomem(struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENOMEM, "place: out of memory");
}

static int group_devices(struct ptc_placer *p, uint32_t nnodes, struct ptc_error *err)
{
	p->nodes = ptc_calloc(p->ndevices, sizeof *p->nodes);
	if (!p->nodes)
		return nomem(err);
	qsort(p->devices, p->ndevices, sizeof *p->devices, by_device);
	for (size_t i = 0; i < p->ndevices; i++) {
		const struct ptc_device *d = &p->devices[i];

		if (d->node >= nnodes)
			return ptc_error_set(err, PTC_EINVAL, "place: device on node %u of %u", d->node, nnodes);
		if (i && !by_device(d, d - 1))
			return ptc_error_set(err, PTC_EINVAL, "place: device %u of node %u is there twice", d->index,
					     d->node);
		if (!i || d->node != d[-1].node)
			p->nodes[p->nnodes++] = (struct ptc_place_node){ .node = d->node, .first = (uint32_t)i };
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
	for (uint32_t n = 0; n < p->nnodes; n++)
		p->nodes[n].slots = p->nodes[n].ndevices / p->block_size;
}

/* Blocks are numbered by their first rank. */
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

		if (k.tp % p->block_size)
			continue;
		for (uint32_t i = 0; i < p->block_size; i++, k.tp++)
			p->ranks[n++] = ptc_config_rank(c, &k);
	}
	return 0;
}

static void set_bits(uint64_t *set, const struct ptc_class_lists *l, uint32_t cell)
{
	for (size_t i = l->first[cell]; i < l->first[cell + 1]; i++)
		set[l->list[i] / 64] |= UINT64_C(1) << (l->list[i] % 64);
}

static int mark_holders(struct ptc_placer *p, const struct ptc_layout *from, const struct ptc_allocation *a)
{
	p->words = (p->cls.n + 63) / 64;
	p->node_has = ptc_calloc(p->nnodes * p->words, sizeof *p->node_has);
	p->device_has = ptc_calloc(p->ndevices * p->words, sizeof *p->device_has);
	if (!p->node_has || !p->device_has)
		return PTC_ENOMEM;
	for (uint32_t r = 0; r < a->world; r++) {
		const struct ptc_device *d = bsearch(&a->ranks[r], p->devices, p->ndevices, sizeof *d, by_device);
		uint32_t cell = ptc_layout_cell(from, r), lo = 0, hi = p->nnodes;

		while (lo < hi) {
			uint32_t mid = lo + (hi - lo) / 2;

			if (p->nodes[mid].node < a->ranks[r].node)
				lo = mid + 1;
			else
				hi = mid;
		}
		if (lo < p->nnodes && p->nodes[lo].node == a->ranks[r].node) {
			set_bits(p->node_has + lo * p->words, &p->cls.from, cell);
			p->nodes[lo].warm = true;
		}
		if (d)
			set_bits(p->device_has + (size_t)(d - p->devices) * p->words, &p->cls.from, cell);
	}
	return 0;
}

/* Appends the distinct classes of block b at list (or only counts them). */
static size_t block_classes(struct ptc_placer *p, uint32_t b, uint32_t *list)
{
	size_t n = 0;

	p->stamp_now++;
	for (uint32_t k = 0; k < p->block_size; k++) {
		uint32_t cell = ptc_layout_cell(p->to, p->ranks[b * p->block_size + k]);

		for (size_t i = p->cls.to.first[cell]; i < p->cls.to.first[cell + 1]; i++) {
			uint32_t c = p->cls.to.list[i];

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

	p->stamp = ptc_calloc(p->cls.n, sizeof *p->stamp);
	p->class_blocks = ptc_calloc(p->cls.n, sizeof *p->class_blocks);
	p->class_min = ptc_calloc(p->cls.n, sizeof *p->class_min);
	p->blocks.first = ptc_calloc((size_t)p->nblocks + 1, sizeof *p->blocks.first);
	if (!p->stamp || !p->class_blocks || !p->class_min || !p->blocks.first)
		return PTC_ENOMEM;
	for (uint32_t b = 0; b < p->nblocks; b++)
		p->blocks.first[b + 1] = n += block_classes(p, b, NULL);
	p->blocks.list = ptc_calloc(n, sizeof *p->blocks.list);
	if (!p->blocks.list)
		return PTC_ENOMEM;
	for (uint32_t b = p->nblocks; b-- > 0;) {
		block_classes(p, b, p->blocks.list + p->blocks.first[b]);
		for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++) {
			p->class_blocks[p->blocks.list[i]]++;
			p->class_min[p->blocks.list[i]] = b;
		}
	}
	return 0;
}

int ptc_place_devices(const struct ptc_placer *p, uint32_t node, const uint32_t *blocks, uint32_t n, uint32_t *ret_cols,
		      int64_t *ret_cost)
{
	const struct ptc_place_node *at = &p->nodes[node];
	size_t rows = (size_t)n * p->block_size, cols = at->ndevices;
	int64_t *cost = ptc_calloc(rows * cols, sizeof *cost);
	uint32_t *scratch = ret_cols ? NULL : ptc_calloc(rows, sizeof *scratch);
	int rc = PTC_ENOMEM;

	for (size_t r = 0; cost && r < rows; r++) {
		uint32_t rank = p->ranks[blocks[r / p->block_size] * p->block_size + r % p->block_size];
		uint32_t cell = ptc_layout_cell(p->to, rank);

		for (size_t i = p->cls.to.first[cell]; i < p->cls.to.first[cell + 1]; i++)
			for (size_t d = 0; d < cols; d++)
				if (!ptc_place_has(p->device_has, p->words, at->first + d, p->cls.to.list[i]))
					cost[r * cols + d] += p->cls.bytes[p->cls.to.list[i]];
	}
	if (cost && (ret_cols || scratch))
		rc = ptc_assign(rows, cols, cost, ret_cols ? ret_cols : scratch, ret_cost);
	ptc_free(cost);
	ptc_free(scratch);
	return rc;
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

static int place(struct ptc_placer *p, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		 uint32_t nnodes, struct ptc_device *ranks, struct ptc_error *err)
{
	int rc = group_devices(p, nnodes, err);

	if (rc)
		return rc;
	choose_block_size(p, ptc_layout_config(p->to)->tp, ptc_layout_world(p->to));
	if (make_blocks(p))
		return nomem(err);
	if (!from) {
		fill_in_order(p);
		return give_devices(p, true, ranks) ? nomem(err) : 0;
	}
	rc = ptc_classes_init(from, p->to, &p->cls, err);
	if (rc)
		return rc;
	if (mark_holders(p, from, from_alloc) || list_block_classes(p) || ptc_place_search(p) ||
	    give_devices(p, false, ranks))
		return nomem(err);
	return 0;
}

static void placer_done(struct ptc_placer *p)
{
	ptc_classes_done(&p->cls);
	ptc_free(p->devices);
	ptc_free(p->nodes);
	ptc_free(p->ranks);
	ptc_free(p->node_has);
	ptc_free(p->device_has);
	ptc_free(p->blocks.first);
	ptc_free(p->blocks.list);
	ptc_free(p->class_blocks);
	ptc_free(p->class_min);
	ptc_free(p->stamp);
	ptc_free(p->where);
}

int ptc_place(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
	      const struct ptc_layout *to, const struct ptc_device *devices, size_t ndevices, uint32_t nnodes,
	      struct ptc_allocation *ret_alloc, int64_t *ret_gap_bytes, struct ptc_error *err)
{
	struct ptc_placer p = { .to = to, .ndevices = ndevices };
	uint32_t world = ptc_layout_world(to);
	struct ptc_device *ranks;
	int rc;

	if (ndevices < world)
		return ptc_error_set(err, PTC_ENODEVICES, "%u ranks need %u devices, there are %zu", world, world,
				     ndevices);
	if (from && from_alloc->world != ptc_layout_world(from))
		return ptc_error_set(err, PTC_EINVAL, "allocation of %u ranks for a layout of %u", from_alloc->world,
				     ptc_layout_world(from));
	ranks = ptc_calloc(world, sizeof *ranks);
	p.devices = ptc_calloc(ndevices, sizeof *p.devices);
	if (ranks && p.devices) {
		memcpy(p.devices, devices, ndevices * sizeof *devices);
		rc = place(&p, from, from_alloc, nnodes, ranks, err);
	} else {
		rc = nomem(err);
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
