/* SPDX-License-Identifier: Apache-2.0 */
/* Digests kept from a Capture to the Pull of the same switch. Happy path: each part that is copied is cut by the
 * tensor's grid into cells, and the digest of each cell is kept. For a box of the new layout, the cells inside it are
 * taken as they are; the rest of the box is read. A cell counts only if the new table has it at the same places of the
 * same chunks as the captured table, to which there is a reference: so these chunks have not been given to anybody
 * else, and their bytes have not changed.
 *
 * What is not looked at: whether the memory of these chunks still has the bytes. Ranks and ptcd verify the checksums of
 * blocks when they restore; scrubber and Digest read all bytes.
 *
 * Failure modes: without memory, or with very many parts, nothing more is kept, and Pull reads the bytes. */
#include "daemon/agent/capture/captured_digests.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <pthread.h>
#include <string.h>

#define COLUMNS   8           /* at most: tensor parallelism cuts rows into so many parts, mostly */
#define CELLS_MAX 512         /* of a part: of one that has more, nothing is kept */
#define NEEDS_MAX 64          /* of an item: with more, nothing is kept of it */
#define KEPT_MAX  (16u << 20) /* bytes of a job, out of memory.work: digests of 60 GiB and more */

struct part {
	uint32_t item;
	struct ptc_box box;
	size_t first; /* of its cells, in digests */
};

struct ptc_captured {
	pthread_mutex_t lock; /* until it is sealed */
	int64_t band, run;
	struct part *parts; /* disjoint; sealed: by item, then place */
	size_t nparts, parts_cap;
	uint64_t *digests;
	size_t ndigests, digests_cap;
	bool full; /* no more is kept */
	struct ptc_table *table;
	struct ptc_table_key key;
};

/* ---- the grid ---- */

struct grid {
	uint32_t ndim;
	int64_t step[PTC_MAX_DIMS];
};

static int64_t power_of_two(int64_t most)
{
	int64_t p = 1;

	while (p * 2 <= most)
		p *= 2;
	return p;
}

static struct grid grid_of(const struct ptc_captured *c, uint32_t ndim, const int64_t *shape)
{
	struct grid g = { .ndim = ndim };
	const int64_t row = shape[ndim - 1];
	int64_t bytes = PTC_MAX(row, 1), columns = ndim > 1 ? COLUMNS : 1;
	bool banded = false;

	while (columns > 1 && (row % columns || row / columns < c->run))
		columns /= 2;
	g.step[ndim - 1] = ndim == 1 ? PTC_MIN(bytes, power_of_two(c->band)) : bytes / columns;
	for (uint32_t d = ndim - 1; d-- > 0;) {
		bool whole = !banded && bytes * shape[d] <= c->band;

		g.step[d] = whole ? PTC_MAX(shape[d], 1) : banded ? 1 : power_of_two(PTC_MAX(c->band / bytes, 1));
		banded |= !whole;
		bytes *= shape[d];
	}
	return g;
}

/* The cells of a part, in row-major order. */
struct cells {
	const struct grid *grid;
	const struct ptc_box *part;
	int64_t first[PTC_MAX_DIMS], n[PTC_MAX_DIMS]; /* of the grid's numbers */
	int64_t count;
};

static struct cells cells_of(const struct grid *grid, const struct ptc_box *part)
{
	struct cells c = { .grid = grid, .part = part, .count = 1 };

	for (uint32_t d = 0; d < grid->ndim; d++) {
		c.first[d] = part->off[d] / grid->step[d];
		c.n[d] = (part->off[d] + part->ext[d] - 1) / grid->step[d] + 1 - c.first[d];
		c.count = c.count > CELLS_MAX ? c.count : c.count * PTC_MIN(c.n[d], CELLS_MAX + 1);
	}
	return c;
}

static struct ptc_box cell_box(const struct cells *c, int64_t i)
{
	struct ptc_box box = *c->part;

	for (uint32_t d = c->grid->ndim; d-- > 0; i /= c->n[d]) {
		int64_t step = c->grid->step[d], from = (c->first[d] + i % c->n[d]) * step;
		int64_t begin = PTC_MAX(from, c->part->off[d]);

		box.off[d] = begin;
		box.ext[d] = PTC_MIN(from + step, c->part->off[d] + c->part->ext[d]) - begin;
	}
	return box;
}

/* ---- Capture ---- */

struct ptc_captured *ptc_captured_new(int64_t band, int64_t run)
{
	struct ptc_captured *c = ptc_calloc(1, sizeof *c);

	if (!c)
		return NULL;
	pthread_mutex_init(&c->lock, NULL);
	c->band = band;
	c->run = run;
	return c;
}

struct ptc_captured *ptc_captured_free(struct ptc_captured *c)
{
	if (!c)
		return NULL;
	ptc_table_unref(c->table);
	pthread_mutex_destroy(&c->lock);
	ptc_free(c->parts);
	ptc_free(c->digests);
	ptc_free(c);
	return NULL;
}

static void keep(struct ptc_captured *c, uint32_t item, const struct ptc_box *box, const uint64_t *digests, size_t n)
{
	pthread_mutex_lock(&c->lock);
	c->full |= c->nparts == PTC_AGENT_FILL_BOXES ||
		   (c->nparts + 1) * sizeof *c->parts + (c->ndigests + n) * sizeof *digests > KEPT_MAX ||
		   !PTC_ROOM(c->parts, c->nparts + 1, c->parts_cap) ||
		   !PTC_ROOM(c->digests, c->ndigests + n, c->digests_cap);
	if (!c->full) {
		c->parts[c->nparts++] = (struct part){ item, *box, c->ndigests };
		memcpy(c->digests + c->ndigests, digests, n * sizeof *digests);
		c->ndigests += n;
	}
	pthread_mutex_unlock(&c->lock);
}

/* box: the part of a need that is there. */
static int digest_cells(struct ptc_captured *c, const struct ptc_digest_fill *f, uint32_t extent, uint32_t item,
			const struct ptc_box *box, uint64_t *ret, struct ptc_error *err)
{
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
	uint64_t digests[CELLS_MAX];
	struct grid grid;
	struct cells cells;
	int rc = ptc_geometry_shape(f->g, item, &ndim, shape, err);

	*ret = 0;
	if (rc)
		return rc;
	if (!c)
		return ptc_table_digest_extent(f->table, extent, box, ndim, shape, ret, err);
	grid = grid_of(c, ndim, shape);
	cells = cells_of(&grid, box);
	if (cells.count > CELLS_MAX)
		return ptc_table_digest_extent(f->table, extent, box, ndim, shape, ret, err);
	for (int64_t i = 0; !rc && i < cells.count; i++) {
		const struct ptc_box cell = cell_box(&cells, i);

		rc = ptc_table_digest_extent(f->table, extent, &cell, ndim, shape, &digests[i], err);
		*ret ^= rc ? 0 : digests[i];
	}
	if (!rc)
		keep(c, item, box, digests, (size_t)cells.count);
	return rc;
}

/* Parts are kept once. So where needs overlap, which they seldom do, nothing is kept of the later one. */
static bool overlaps(const struct ptc_needs *needs, size_t first, size_t i, const struct ptc_box *box)
{
	struct ptc_box common;

	for (size_t k = first; k < i; k++)
		if (ptc_box_intersect(&needs->v[k].box, box, &common))
			return true;
	return false;
}

int ptc_captured_digest(struct ptc_captured *c, const struct ptc_digest_fill *f, uint32_t extent, uint32_t item,
			const struct ptc_box *part, struct ptc_error *err)
{
	const struct ptc_needs *needs = f->needs;
	const size_t first = PTC_SEARCH(struct ptc_need, item, needs->v, needs->n, item);
	struct ptc_box cut;
	uint64_t digest;
	int rc = 0;

	for (size_t i = first; !rc && i < needs->n && needs->v[i].item == item; i++) {
		bool kept = c && i - first < NEEDS_MAX;

		if (!ptc_box_intersect(&needs->v[i].box, part, &cut))
			continue;
		kept = kept && !overlaps(needs, first, i, &cut);
		rc = digest_cells(kept ? c : NULL, f, extent, item, &cut, &digest, err);
		if (!rc)
			__atomic_xor_fetch(&f->digests[i], digest, __ATOMIC_RELAXED);
	}
	return rc;
}

PTC_COMPARE(by_place, struct part, PTC_THEN(PTC_ORDER(a->item, b->item), ptc_box_order_off(&a->box, &b->box)))

void ptc_captured_seal(struct ptc_captured *c, struct ptc_table *table)
{
	c->table = ptc_table_ref(table);
	c->key = ptc_table_key_of(table);
	ptc_sort(c->parts, c->nparts, sizeof *c->parts, by_place);
}

/* ---- Pull ---- */

/* The largest part of `want`, a box in the part, that consists of whole cells. False: there is none, or what is left
 * would be strips of rows, and to read these is to verify the blocks of all. */
static bool snap(const struct grid *g, const struct ptc_box *part, const struct ptc_box *want, struct ptc_box *ret)
{
	bool outer = true; /* so far the part has one row */

	*ret = *want;
	for (uint32_t d = 0; d < g->ndim; d++) {
		const int64_t step = g->step[d];
		int64_t begin = want->off[d], end = begin + want->ext[d];

		if (begin != part->off[d])
			begin = (begin + step - 1) / step * step;
		if (end != part->off[d] + part->ext[d])
			end = end / step * step;
		if (end <= begin || (!outer && end - begin != want->ext[d]))
			return false;
		ret->off[d] = begin;
		ret->ext[d] = end - begin;
		outer &= part->ext[d] == 1;
	}
	return true;
}

/* The XOR of the digests of the cells in box, which has whole ones only. */
static uint64_t sum(const struct ptc_captured *c, const struct grid *g, const struct part *p, const struct ptc_box *box)
{
	const struct cells all = cells_of(g, &p->box), in = cells_of(g, box);
	uint64_t digest = 0;

	for (int64_t i = 0; i < in.count; i++) {
		int64_t left = i, number = 0, scale = 1;

		for (uint32_t d = g->ndim; d-- > 0; left /= in.n[d], scale *= all.n[d])
			number += (in.first[d] + left % in.n[d] - all.first[d]) * scale;
		digest ^= c->digests[p->first + (size_t)number];
	}
	return digest;
}

int ptc_captured_known(void *arg, uint32_t item, const struct ptc_box *box, uint64_t *digest, struct ptc_boxes *rest)
{
	struct ptc_captured_known *k = arg;
	const struct ptc_captured *c = k->captured;
	struct ptc_boxes have = { 0 };
	int64_t shape[PTC_MAX_DIMS];
	struct ptc_box want, inside;
	struct grid grid;
	uint32_t ndim;
	int rc = 0;

	if (ptc_geometry_shape(k->g, item, &ndim, shape, NULL))
		return ptc_boxes_push(rest, box);
	grid = grid_of(c, ndim, shape);
	for (size_t i = PTC_SEARCH(struct part, item, c->parts, c->nparts, item);
	     !rc && i < c->nparts && c->parts[i].item == item; i++) {
		const struct part *p = &c->parts[i];

		if (!ptc_box_intersect(&p->box, box, &want) || !snap(&grid, &p->box, &want, &inside) ||
		    !ptc_table_same_place(c->table, k->table, item, &inside))
			continue;
		rc = ptc_boxes_push(&have, &inside);
		*digest ^= sum(c, &grid, p, &inside);
		k->bytes += ptc_box_volume(&inside);
	}
	if (have.n > 1)
		ptc_boxes_join(have.v, &have.n);
	if (!rc)
		rc = ptc_boxes_missing(box, have.v, have.n, rest);
	ptc_boxes_done(&have);
	return rc;
}

/* ---- of a job ---- */

void ptc_captured_keep(struct ptc_agent_job *job, struct ptc_captured *c)
{
	ptc_captured_free(job->captured);
	job->captured = c;
}

const struct ptc_captured *ptc_captured_of(const struct ptc_agent_job *job, const struct ptc_table_key *key)
{
	return job->captured && ptc_table_key_same(&job->captured->key, key) ? job->captured : NULL;
}
