/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks to nodes. The cost of a node is the bytes of the classes that its blocks need and the node lacks, each counted
 * once. The costs of single blocks do not add up to that, because blocks of one node share the bytes of a class. To get
 * costs that do add up, the cost of a class is divided among all blocks of one node that can need the class. These
 * shared costs give a lower bound and, as an assignment problem, the start. If the start costs more than the bound,
 * moves and swaps improve it; the gap to the bound says how much better a placement could be. Up to
 * PTC_PLACE_EXACT_BLOCKS blocks, every assignment is tried instead (place_exact.c).
 *
 * Failure mode: memory. */
#include "reshard/place/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define IMPROVE_STEPS 20000000   /* classes touched: well under a second */
#define ASSIGN_STEPS  200000000  /* entries of the matrix touched: a part of a second */
#define MATRIX_MAX    (1u << 24) /* entries: 128 MiB */

/* Nodes with room, and who has what of them. */
struct columns {
	uint32_t *node, *room; /* per column */
	size_t n;
	size_t *first; /* per class: the columns that have it */
	uint32_t *list;
	/* Costs are bytes times scale, plus up to `levels` for bytes that devices lack: too little, for all blocks
	 * together, to make up for a byte that enters a node. */
	int64_t scale, levels, most;       /* most: bytes of the ranks of a block */
	size_t *device_first;              /* per class: the devices that have it */
	uint32_t *device_list, *column_of; /* device -> column; UINT32_MAX: none */
	int64_t *gain, *gain_of;           /* per device; per column */
	uint32_t *touched;
};

/* ---- the start ---- */

static void columns_done(struct columns *c)
{
	ptc_free(c->node);
	ptc_free(c->room);
	ptc_free(c->first);
	ptc_free(c->list);
	ptc_free(c->device_first);
	ptc_free(c->device_list);
	ptc_free(c->column_of);
	ptc_free(c->gain);
	ptc_free(c->gain_of);
	ptc_free(c->touched);
}

static int64_t block_bytes(const struct ptc_placer *p, uint32_t b)
{
	int64_t sum = 0;

	for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++)
		sum += p->bytes[p->blocks.list[i]];
	return sum;
}

/* Bytes of block b's ranks, each rank's for itself. */
static int64_t ranks_bytes(const struct ptc_placer *p, uint32_t b)
{
	int64_t sum = 0;

	for (uint32_t k = 0; k < p->block_size; k++) {
		uint32_t rank = p->ranks[b * p->block_size + k];

		for (size_t i = p->needs.first[rank]; i < p->needs.first[rank + 1]; i++)
			sum += p->bytes[p->needs.list[i]];
	}
	return sum;
}

/* As large as sums of costs allow; 1 where that leaves no level per block. */
static void choose_scale(const struct ptc_placer *p, struct columns *c)
{
	int64_t most = 1, all = 1;

	for (uint32_t b = 0; b < p->nblocks; b++) {
		int64_t bytes = block_bytes(p, b);

		most = PTC_MAX(most, bytes);
		all += bytes;
		c->most = PTC_MAX(c->most, ranks_bytes(p, b));
	}
	for (c->scale = 1;
	     c->scale < 1 << 30 && c->scale <= (INT64_C(1) << 57) / most && c->scale <= (INT64_C(1) << 61) / all;)
		c->scale *= 2;
	c->levels = (c->scale - 1) / (int64_t)p->nblocks;
	if (!c->levels)
		c->scale = 1;
}

static int index_devices(const struct ptc_placer *p, struct columns *c)
{
	size_t n = p->holds.first[p->ndevices], *next;

	c->device_first = ptc_calloc((size_t)p->nclasses + 2, sizeof *c->device_first);
	c->device_list = ptc_calloc(n, sizeof *c->device_list);
	c->column_of = ptc_calloc(p->ndevices, sizeof *c->column_of);
	c->gain = ptc_calloc(p->ndevices, sizeof *c->gain);
	c->gain_of = ptc_calloc(c->n, sizeof *c->gain_of);
	c->touched = ptc_calloc(p->ndevices, sizeof *c->touched);
	if (!c->device_first || !c->device_list || !c->column_of || !c->gain || !c->gain_of || !c->touched)
		return PTC_ENOMEM;
	memset(c->column_of, 0xff, p->ndevices * sizeof *c->column_of);
	for (uint32_t k = 0; k < c->n; k++)
		for (uint32_t d = 0; d < p->nodes[c->node[k]].ndevices; d++)
			c->column_of[p->nodes[c->node[k]].first + d] = k;
	next = c->device_first + 1;
	for (size_t i = 0; i < n; i++)
		next[p->holds.list[i] + 1]++;
	for (uint32_t i = 0; i < p->nclasses; i++)
		next[i + 1] += next[i];
	for (uint32_t d = 0; d < p->ndevices; d++)
		for (size_t i = p->holds.first[d]; i < p->holds.first[d + 1]; i++)
			c->device_list[next[p->holds.list[i]]++] = d;
	return 0;
}

/* c->gain_of: what a rank finds on the best device of each column, added. */
static void add_gains(const struct ptc_placer *p, const struct columns *c, uint32_t rank)
{
	uint32_t n = 0;

	for (size_t i = p->needs.first[rank]; i < p->needs.first[rank + 1]; i++) {
		uint32_t class = p->needs.list[i];

		for (size_t k = c->device_first[class]; k < c->device_first[class + 1]; k++) {
			uint32_t d = c->device_list[k];

			if (c->column_of[d] == UINT32_MAX) /* of a node too small for a block */
				continue;
			if (!c->gain[d])
				c->touched[n++] = d;
			c->gain[d] += p->bytes[class];
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t d = c->touched[i], first = p->nodes[c->node[c->column_of[d]]].first;
		int64_t best = 0;

		for (uint32_t k = 0; k < p->nodes[c->node[c->column_of[d]]].ndevices; k++) {
			best = PTC_MAX(best, c->gain[first + k]);
			c->gain[first + k] = 0;
		}
		c->gain_of[c->column_of[d]] += best;
	}
}

/* Turns bytes into costs. */
static void scale_row(const struct ptc_placer *p, const struct columns *c, uint32_t b, int64_t *row)
{
	int64_t bytes = ranks_bytes(p, b);

	memset(c->gain_of, 0, c->n * sizeof *c->gain_of);
	for (uint32_t k = 0; k < p->block_size; k++)
		add_gains(p, c, p->ranks[b * p->block_size + k]);
	for (size_t k = 0; k < c->n; k++)
		row[k] = row[k] * c->scale +
			 (int64_t)((double)(bytes - c->gain_of[k]) / (double)PTC_MAX(c->most, 1) * (double)c->levels);
}

/* Counts (list NULL) or lists the columns of each class. */
static void walk_bits(const struct ptc_placer *p, const struct columns *c, size_t *next, uint32_t *list)
{
	for (uint32_t k = 0; k < c->n; k++) {
		const uint64_t *set = p->node_has + c->node[k] * p->words;

		for (size_t w = 0; w < p->words; w++)
			for (uint64_t bits = set[w]; bits; bits &= bits - 1) {
				size_t class = w * 64 + (size_t)__builtin_ctzll(bits);

				if (list)
					list[next[class]++] = k;
				else
					next[class]++;
			}
	}
}

static int columns_init(const struct ptc_placer *p, struct columns *c)
{
	c->node = ptc_calloc(p->nnodes, sizeof *c->node);
	c->room = ptc_calloc(p->nnodes, sizeof *c->room);
	c->first = ptc_calloc((size_t)p->nclasses + 2, sizeof *c->first);
	if (!c->node || !c->room || !c->first)
		return PTC_ENOMEM;
	for (uint32_t n = 0; n < p->nnodes; n++)
		if (p->nodes[n].slots) {
			c->node[c->n] = n;
			c->room[c->n++] = PTC_MIN(p->nodes[n].slots, p->nblocks);
		}
	walk_bits(p, c, c->first + 2, NULL);
	for (uint32_t i = 0; i < p->nclasses; i++)
		c->first[i + 2] += c->first[i + 1];
	c->list = ptc_calloc(c->first[p->nclasses + 1], sizeof *c->list);
	if (!c->list)
		return PTC_ENOMEM;
	walk_bits(p, c, c->first + 1, c->list);
	choose_scale(p, c);
	return c->scale > 1 ? index_devices(p, c) : 0;
}

static int64_t share(const struct ptc_placer *p, uint32_t class, uint32_t slots)
{
	return p->bytes[class] / PTC_MAX(PTC_MIN(p->class_blocks[class], slots), 1u);
}

/* What block b costs on each column. */
static void cost_row(const struct ptc_placer *p, const struct columns *c, uint32_t b, int64_t *row)
{
	int64_t empty[PTC_MAX_DEVICES_PER_NODE + 1];
	bool known[PTC_MAX_DEVICES_PER_NODE + 1] = { false };

	for (size_t k = 0; k < c->n; k++) {
		uint32_t slots = p->nodes[c->node[k]].slots;

		if (!known[slots]) {
			known[slots] = true;
			empty[slots] = 0;
			for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++)
				empty[slots] += share(p, p->blocks.list[i], slots);
		}
		row[k] = empty[slots];
	}
	for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++) {
		uint32_t class = p->blocks.list[i];

		for (size_t k = c->first[class]; k < c->first[class + 1]; k++)
			row[c->list[k]] -= share(p, class, p->nodes[c->node[c->list[k]]].slots);
	}
	if (c->scale > 1)
		scale_row(p, c, b, row);
}

/* An assignment of some blocks to some columns; pinned columns get a first place that is cheaper by more than any
 * block can cost, so that it is never left empty. */
struct problem {
	const uint32_t *blocks; /* NULL: all */
	size_t nblocks;
	const uint32_t *cols;
	size_t ncols;
};

static int solve(struct ptc_placer *p, const struct columns *c, const int64_t *cost, const struct problem *q,
		 int64_t *ret_bound)
{
	size_t wide = q->ncols + p->npinned, n = 0;
	int64_t *m = ptc_calloc(q->nblocks * wide, sizeof *m), most = 0, bonus;
	uint32_t *room = ptc_calloc(wide, sizeof *room), *of = ptc_calloc(wide, sizeof *of);
	uint32_t *got = ptc_calloc(q->nblocks, sizeof *got), pins = 0;
	int rc = m && room && of && got ? 0 : PTC_ENOMEM;

	for (size_t i = 0; i < q->ncols && !rc; i++) {
		uint32_t col = q->cols ? q->cols[i] : (uint32_t)i, left = c->room[col];

		if (p->nodes[c->node[col]].pinned) {
			room[n] = 1;
			of[n++] = col | 1u << 31;
			left--;
			pins++;
		}
		room[n] = left;
		of[n] = col;
		n += left > 0;
	}
	for (size_t b = 0; b < q->nblocks && !rc; b++)
		for (size_t i = 0; i < n; i++) {
			m[b * n + i] = cost[(q->blocks ? q->blocks[b] : b) * c->n + (of[i] & INT32_MAX)];
			most = PTC_MAX(most, m[b * n + i]);
		}
	bonus = most + 1;
	for (size_t i = 0; i < q->nblocks * n && !rc; i++)
		m[i] += of[i % n] >> 31 ? 0 : bonus;
	if (!rc)
		rc = ptc_assign(q->nblocks, n, room, m, ASSIGN_STEPS, got, ret_bound);
	for (size_t b = 0; b < q->nblocks && !rc; b++)
		p->where[q->blocks ? q->blocks[b] : b] = c->node[of[got[b]] & INT32_MAX];
	if (!rc)
		*ret_bound -= bonus * (int64_t)(q->nblocks - PTC_MIN(pins, q->nblocks));
	ptc_free(m);
	ptc_free(room);
	ptc_free(of);
	ptc_free(got);
	return rc;
}

/* All blocks at once. */
static int start_assigned(struct ptc_placer *p, const struct columns *c, int64_t *cost, int64_t *ret_bound)
{
	struct problem all = { .nblocks = p->nblocks, .ncols = c->n };
	int rc;

	for (uint32_t b = 0; b < p->nblocks; b++)
		cost_row(p, c, b, cost + (size_t)b * c->n);
	if (p->npinned)
		return solve(p, c, cost, &all, ret_bound);
	rc = ptc_assign(p->nblocks, c->n, c->room, cost, ASSIGN_STEPS, p->where, ret_bound);
	for (uint32_t b = 0; b < p->nblocks && !rc; b++)
		p->where[b] = c->node[p->where[b]];
	return rc;
}

/* ---- racks ---- */

struct racks {
	uint32_t n;
	uint32_t *of, *cols; /* per column: its rack's number; columns by rack */
	uint32_t *first;     /* per rack, of cols */
	uint32_t *room;      /* TP groups that fit */
	uint32_t *must;      /* TP groups it takes to have a block on each pinned node */
};

static void racks_done(struct racks *r)
{
	ptc_free(r->of);
	ptc_free(r->cols);
	ptc_free(r->first);
	ptc_free(r->room);
	ptc_free(r->must);
}

static int racks_init(const struct ptc_placer *p, const struct columns *c, struct racks *r)
{
	r->of = ptc_calloc(c->n, sizeof *r->of);
	r->cols = ptc_calloc(c->n, sizeof *r->cols);
	r->first = ptc_calloc(c->n + 2, sizeof *r->first);
	r->room = ptc_calloc(c->n, sizeof *r->room);
	r->must = ptc_calloc(c->n, sizeof *r->must);
	if (!r->of || !r->cols || !r->first || !r->room || !r->must)
		return PTC_ENOMEM;
	for (uint32_t i = 0; i < c->n; i++) {
		const struct ptc_place_node *node = &p->nodes[c->node[i]];
		uint32_t k = 0;

		while (k < i && p->nodes[c->node[k]].rack != node->rack)
			k++;
		r->of[i] = k < i ? r->of[k] : r->n++;
		r->first[r->of[i] + 2]++;
		r->room[r->of[i]] += node->slots;
		r->must[r->of[i]] += node->pinned;
	}
	for (uint32_t k = 0; k < r->n; k++) {
		r->first[k + 2] += r->first[k + 1];
		r->room[k] /= p->group_blocks;
		r->must[k] = PTC_MIN((r->must[k] + p->group_blocks - 1) / p->group_blocks, r->room[k]);
	}
	for (uint32_t i = 0; i < c->n; i++)
		r->cols[r->first[r->of[i] + 1]++] = i;
	return 0;
}

/* What a TP group costs in a rack at least. */
static int64_t group_cost(const struct ptc_placer *p, const struct columns *c, const struct racks *r,
			  const int64_t *cost, uint32_t group, uint32_t rack)
{
	int64_t sum = 0;

	for (uint32_t b = group * p->group_blocks; b < (group + 1) * p->group_blocks; b++) {
		int64_t best = INT64_MAX;

		for (uint32_t i = r->first[rack]; i < r->first[rack + 1]; i++)
			best = PTC_MIN(best, cost[(size_t)b * c->n + r->cols[i]]);
		sum += best;
	}
	return sum;
}

/* TP groups to racks: ret[group]. Each rack is there twice: what it must get, and what it may. */
static int groups_to_racks(const struct ptc_placer *p, const struct columns *c, const struct racks *r,
			   const int64_t *cost, uint32_t *ret)
{
	uint32_t groups = p->nblocks / p->group_blocks, *room = ptc_calloc(2 * (size_t)r->n, sizeof *room);
	int64_t *m = ptc_calloc((size_t)groups * 2 * r->n, sizeof *m), most = 0, bound;
	uint64_t all = 0;
	int rc = room && m ? 0 : PTC_ENOMEM;

	for (uint32_t k = 0; k < r->n && !rc; k++) {
		room[k] = r->must[k];
		room[r->n + k] = r->room[k] - r->must[k];
		all += r->room[k];
	}
	for (size_t g = 0; g < groups && !rc; g++)
		for (uint32_t k = 0; k < r->n; k++) {
			m[g * 2 * r->n + k] = group_cost(p, c, r, cost, (uint32_t)g, k);
			most = PTC_MAX(most, m[g * 2 * r->n + k]);
		}
	for (size_t g = 0; g < groups && !rc; g++)
		for (uint32_t k = 0; k < r->n; k++)
			m[(g * 2 + 1) * r->n + k] = m[g * 2 * r->n + k] + most + 1;
	if (!rc && all < groups)
		rc = PTC_ENODEVICES;
	if (!rc)
		rc = ptc_assign(groups, 2 * (size_t)r->n, room, m, ASSIGN_STEPS, ret, &bound);
	for (uint32_t g = 0; g < groups && !rc; g++)
		ret[g] %= r->n;
	ptc_free(room);
	ptc_free(m);
	return rc;
}

static bool pins_met(const struct ptc_placer *p)
{
	uint32_t met = 0;

	for (uint32_t n = 0; n < p->nnodes; n++)
		for (uint32_t b = 0; p->nodes[n].pinned && b < p->nblocks; b++)
			if (p->where[b] == n) {
				met++;
				break;
			}
	return met == p->npinned;
}

/* A start in which each TP group is in one rack. */
static int start_in_racks(struct ptc_placer *p, const struct columns *c, const int64_t *cost)
{
	uint32_t groups = p->nblocks / p->group_blocks;
	uint32_t *rack = ptc_calloc(groups, sizeof *rack), *blocks = ptc_calloc(p->nblocks, sizeof *blocks);
	struct racks r = { 0 };
	int64_t bound;
	int rc = rack && blocks ? racks_init(p, c, &r) : PTC_ENOMEM;

	if (!rc)
		rc = groups_to_racks(p, c, &r, cost, rack);
	for (uint32_t k = 0; k < r.n && !rc; k++) {
		struct problem q = { .blocks = blocks,
				     .cols = r.cols + r.first[k],
				     .ncols = r.first[k + 1] - r.first[k] };

		for (uint32_t b = 0; b < p->nblocks; b++)
			if (rack[b / p->group_blocks] == k)
				blocks[q.nblocks++] = b;
		if (q.nblocks)
			rc = solve(p, c, cost, &q, &bound);
	}
	racks_done(&r);
	ptc_free(rack);
	ptc_free(blocks);
	return rc ? rc : pins_met(p) ? 0 : PTC_ENODEVICES;
}

/* The start when there are too many blocks for that: each block in turn to the cheapest node, pinned ones first. */
static int start_greedy(struct ptc_placer *p, const struct columns *c, int64_t *ret_bound)
{
	int64_t *row = ptc_calloc(c->n, sizeof *row), bound = 0;
	uint32_t *left = ptc_calloc(c->n, sizeof *left), pins = p->npinned;

	if (!row || !left) {
		ptc_free(row);
		ptc_free(left);
		return PTC_ENOMEM;
	}
	memcpy(left, c->room, c->n * sizeof *left);
	for (uint32_t b = 0; b < p->nblocks; b++) {
		bool must = pins && p->nblocks - b <= pins;
		int64_t least = INT64_MAX;
		size_t best = c->n;

		cost_row(p, c, b, row);
		for (size_t k = 0; k < c->n; k++) {
			bool empty_pin = p->nodes[c->node[k]].pinned && left[k] == c->room[k];

			least = PTC_MIN(least, row[k]);
			if (left[k] && (!must || empty_pin) && (best == c->n || row[k] < row[best]))
				best = k;
		}
		bound += least;
		pins -= p->nodes[c->node[best]].pinned && left[best] == c->room[best];
		left[best]--;
		p->where[b] = c->node[best];
	}
	*ret_bound = bound;
	ptc_free(row);
	ptc_free(left);
	return 0;
}

/* ---- the cost of a placement, and making it less ---- */

/* How many blocks of a class are on a node, for those where any has been. */
struct counters {
	struct ptc_placer *p;
	uint64_t *key; /* node * classes + class + 1; 0: free */
	uint32_t *count;
	size_t size, used;
	uint32_t *load; /* blocks on the node */
	int64_t steps;
};

static size_t counter_at(const struct counters *k, uint64_t key)
{
	size_t i = (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (k->size - 1);

	while (k->key[i] && k->key[i] != key)
		i = (i + 1) & (k->size - 1);
	return i;
}

static uint32_t counted(const struct counters *k, uint32_t n, uint32_t class)
{
	return k->count[counter_at(k, (uint64_t)n * k->p->nclasses + class + 1)];
}

static void counters_done(struct counters *k)
{
	ptc_free(k->key);
	ptc_free(k->count);
	ptc_free(k->load);
}

/* Makes the table for `entries` that are not 0, and moves those there are. */
static int counters_size(struct counters *k, size_t entries)
{
	struct counters old = *k;

	for (k->size = 1024; k->size < 4 * entries;)
		k->size *= 2;
	k->used = 0;
	k->key = ptc_calloc(k->size, sizeof *k->key);
	k->count = ptc_calloc(k->size, sizeof *k->count);
	if (k->key && k->count) {
		for (size_t i = 0; i < old.size; i++)
			if (old.key[i] && old.count[i]) {
				size_t at = counter_at(k, old.key[i]);

				k->key[at] = old.key[i];
				k->count[at] = old.count[i];
				k->used++;
			}
	}
	ptc_free(old.key);
	ptc_free(old.count);
	return k->key && k->count ? 0 : PTC_ENOMEM;
}

/* Puts block b on a node (add 1) or takes it away (-1). */
static int count_block(struct counters *k, uint32_t n, uint32_t b, int add)
{
	const struct ptc_placer *p = k->p;
	size_t count = p->blocks.first[b + 1] - p->blocks.first[b];

	if (2 * (k->used + count) > k->size && counters_size(k, k->used + count))
		return PTC_ENOMEM;
	for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++) {
		uint64_t key = (uint64_t)n * p->nclasses + p->blocks.list[i] + 1;
		size_t at = counter_at(k, key);

		k->used += k->key[at] == 0;
		k->key[at] = key;
		k->count[at] += (uint32_t)add;
	}
	k->load[n] += (uint32_t)add;
	return 0;
}

/* What the cost changes by when b leaves node `from` for node `to`, where `other` (UINT32_MAX: none) leaves at the same
 * time: classes that both need are counted as they are. */
static int64_t change_of(struct counters *k, uint32_t b, uint32_t from, uint32_t to, uint32_t other)
{
	struct ptc_placer *p = k->p;
	int64_t delta = 0;

	if (other != UINT32_MAX) {
		p->stamp_now++;
		for (size_t i = p->blocks.first[other]; i < p->blocks.first[other + 1]; i++)
			p->stamp[p->blocks.list[i]] = p->stamp_now;
		k->steps += (int64_t)(p->blocks.first[other + 1] - p->blocks.first[other]);
	}
	for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++) {
		uint32_t c = p->blocks.list[i];

		if (other != UINT32_MAX && p->stamp[c] == p->stamp_now)
			continue;
		if (!ptc_place_node_has(p, from, c) && counted(k, from, c) == 1)
			delta -= p->bytes[c];
		if (!ptc_place_node_has(p, to, c) && counted(k, to, c) == 0)
			delta += p->bytes[c];
	}
	k->steps += 2 * (int64_t)(p->blocks.first[b + 1] - p->blocks.first[b]);
	return delta;
}

static bool may_move(const struct counters *k, uint32_t b, uint32_t to)
{
	const struct ptc_place_node *a = &k->p->nodes[k->p->where[b]], *z = &k->p->nodes[to];

	return !k->p->racks || a->rack == z->rack;
}

static int try_move(struct counters *k, uint32_t b, uint32_t n, int64_t *cost)
{
	uint32_t old = k->p->where[b];
	int64_t delta;

	if (n == old || k->load[n] >= k->p->nodes[n].slots || !may_move(k, b, n) ||
	    (k->p->nodes[old].pinned && k->load[old] == 1))
		return 0;
	delta = change_of(k, b, old, n, UINT32_MAX);
	if (delta >= 0)
		return 0;
	*cost += delta;
	k->p->where[b] = n;
	return count_block(k, old, b, -1) || count_block(k, n, b, 1) ? PTC_ENOMEM : 0;
}

static int try_swap(struct counters *k, uint32_t a, uint32_t b, int64_t *cost)
{
	uint32_t na = k->p->where[a], nb = k->p->where[b];
	int64_t delta;

	if (na == nb || !may_move(k, a, nb))
		return 0;
	delta = change_of(k, a, na, nb, b) + change_of(k, b, nb, na, a);
	if (delta >= 0)
		return 0;
	*cost += delta;
	k->p->where[a] = nb;
	k->p->where[b] = na;
	return count_block(k, na, a, -1) || count_block(k, nb, b, -1) || count_block(k, nb, a, 1) ||
			       count_block(k, na, b, 1)
		       ? PTC_ENOMEM
		       : 0;
}

/* Cost of p->where. */
static int count_all(struct counters *k, int64_t *ret_cost)
{
	struct ptc_placer *p = k->p;
	int64_t cost = 0;
	size_t entries = p->blocks.first[p->nblocks];

	k->load = ptc_calloc(p->nnodes, sizeof *k->load);
	if (!k->load || counters_size(k, entries))
		return PTC_ENOMEM;
	for (uint32_t b = 0; b < p->nblocks; b++) {
		for (size_t i = p->blocks.first[b]; i < p->blocks.first[b + 1]; i++) {
			uint32_t c = p->blocks.list[i];

			if (!ptc_place_node_has(p, p->where[b], c) && counted(k, p->where[b], c) == 0)
				cost += p->bytes[c];
		}
		if (count_block(k, p->where[b], b, 1))
			return PTC_ENOMEM;
	}
	*ret_cost = cost;
	return 0;
}

/* Moves and swaps until none helps, the bound is reached, or the steps are used up. */
static int improve(struct counters *k, int64_t bound, int64_t *cost)
{
	struct ptc_placer *p = k->p;
	int64_t before;
	int rc = 0;

	do {
		before = *cost;
		for (uint32_t b = 0; b < p->nblocks && k->steps<IMPROVE_STEPS && * cost> bound && !rc; b++) {
			for (uint32_t n = 0; n < p->nnodes && k->steps < IMPROVE_STEPS && !rc; n++)
				rc = try_move(k, b, n, cost);
			for (uint32_t a = 0; a < b && k->steps < IMPROVE_STEPS && !rc; a++)
				rc = try_swap(k, a, b, cost);
		}
	} while (*cost < before && k->steps<IMPROVE_STEPS && * cost> bound && !rc);
	return rc;
}

static int start(struct ptc_placer *p, int64_t *ret_bound)
{
	struct columns c = { 0 };
	int64_t *cost = NULL;
	int rc = columns_init(p, &c);

	if (!rc && c.n * p->nblocks > MATRIX_MAX) {
		rc = p->racks ? PTC_ELIMIT : start_greedy(p, &c, ret_bound);
	} else if (!rc) {
		cost = ptc_calloc(c.n * p->nblocks, sizeof *cost);
		rc = cost ? start_assigned(p, &c, cost, ret_bound) : PTC_ENOMEM;
		if (!rc && p->racks)
			rc = start_in_racks(p, &c, cost);
	}
	if (!rc)
		*ret_bound /= c.scale;
	ptc_free(cost);
	columns_done(&c);
	return rc;
}

int ptc_place_search(struct ptc_placer *p)
{
	struct counters k = { .p = p };
	int64_t bound = 0, cost = 0;
	int rc;

	if (p->nblocks <= PTC_PLACE_EXACT_BLOCKS)
		return ptc_place_exact(p);
	rc = start(p, &bound);
	if (!rc)
		rc = count_all(&k, &cost);
	if (!rc)
		rc = improve(&k, bound, &cost);
	if (!rc)
		rc = ptc_place_compact(p, bound, &cost);
	p->gap = PTC_MAX(cost - bound, 0);
	counters_done(&k);
	return rc;
}
