/* SPDX-License-Identifier: Apache-2.0 */
/* The assignment problem, columns taking several rows each, by shortest
 * augmenting paths (the Hungarian method with potentials). Rows first take
 * their cheapest column where it has room, so only those that collide need a
 * path. O(rows * columns * rows) at worst. Fails only for want of memory. */
#include "reshard/place/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#define NOBODY UINT32_MAX

struct hungarian {
	size_t rows, cols;
	const int64_t *cost;
	const uint32_t *room;         /* NULL: 1 each */
	int64_t *u, *v;               /* potentials: u[row] + v[col] <= cost, v <= 0 */
	uint32_t *where;              /* row -> column */
	uint32_t *head, *next, *load; /* rows of each column, in a list */
	int64_t *dist;                /* of a path to each column */
	uint32_t *via;                /* the last row of it */
	bool *seen;
	int64_t steps;
};

static uint32_t room(const struct hungarian *h, size_t col)
{
	return h->room ? h->room[col] : 1;
}

static void take(struct hungarian *h, uint32_t row, uint32_t col)
{
	h->next[row] = h->head[col];
	h->head[col] = row;
	h->load[col]++;
	h->where[row] = col;
}

static void leave(struct hungarian *h, uint32_t row)
{
	uint32_t col = h->where[row], *at = &h->head[col];

	while (*at != row)
		at = &h->next[*at];
	*at = h->next[row];
	h->load[col]--;
}

/* Each row to its cheapest column with room, if that is as cheap as its cheapest. */
static void start(struct hungarian *h)
{
	for (uint32_t r = 0; r < h->rows; r++) {
		const int64_t *cost = h->cost + r * h->cols;
		uint32_t best = NOBODY;

		h->u[r] = cost[0];
		for (size_t c = 1; c < h->cols; c++)
			h->u[r] = PTC_MIN(h->u[r], cost[c]);
		for (uint32_t c = 0; c < h->cols && best == NOBODY; c++)
			if (cost[c] == h->u[r] && h->load[c] < room(h, c))
				best = c;
		h->where[r] = NOBODY;
		if (best != NOBODY)
			take(h, r, best);
	}
}

/* Paths through row, which is at distance `base`, to the columns not seen yet. */
static void relax(struct hungarian *h, uint32_t row, int64_t base)
{
	const int64_t *cost = h->cost + row * h->cols;

	base -= h->u[row];
	for (size_t c = 0; c < h->cols; c++) {
		int64_t d = base + cost[c] - h->v[c];

		if (d < h->dist[c] && !h->seen[c]) {
			h->dist[c] = d;
			h->via[c] = row;
		}
	}
	h->steps += (int64_t)h->cols;
}

/* The nearest column not seen; of equals one with room. */
static uint32_t nearest(const struct hungarian *h)
{
	uint32_t best = NOBODY;
	bool free = false;

	for (uint32_t c = 0; c < h->cols; c++) {
		bool has_room;

		if (h->seen[c] || (best != NOBODY && h->dist[c] > h->dist[best]))
			continue;
		has_room = h->load[c] < room(h, c);
		if (best == NOBODY || h->dist[c] < h->dist[best] || (has_room && !free)) {
			best = c;
			free = has_room;
		}
	}
	return best;
}

/* Gives row a column, moving others along the cheapest path. */
static void augment(struct hungarian *h, uint32_t row)
{
	uint32_t col, r;
	int64_t d;

	for (size_t c = 0; c < h->cols; c++) {
		h->dist[c] = INT64_MAX;
		h->seen[c] = false;
	}
	relax(h, row, 0);
	for (col = nearest(h); h->load[col] >= room(h, col); col = nearest(h)) {
		h->seen[col] = true;
		for (r = h->head[col]; r != NOBODY; r = h->next[r])
			relax(h, r, h->dist[col]);
	}
	d = h->dist[col];
	h->u[row] += d;
	for (size_t c = 0; c < h->cols; c++) {
		if (!h->seen[c])
			continue;
		h->v[c] += h->dist[c] - d;
		for (r = h->head[c]; r != NOBODY; r = h->next[r])
			h->u[r] += d - h->dist[c];
	}
	do {
		uint32_t old;

		r = h->via[col];
		old = h->where[r];
		if (r != row)
			leave(h, r);
		take(h, r, col);
		col = old;
	} while (r != row);
}

/* Out of steps: rows without a column take the cheapest with room. */
static void finish(struct hungarian *h)
{
	for (uint32_t r = 0; r < h->rows; r++) {
		const int64_t *cost = h->cost + r * h->cols;
		uint32_t best = NOBODY;

		if (h->where[r] != NOBODY)
			continue;
		h->u[r] = INT64_MAX;
		for (uint32_t c = 0; c < h->cols; c++) {
			h->u[r] = PTC_MIN(h->u[r], cost[c] - h->v[c]);
			if (h->load[c] < room(h, c) && (best == NOBODY || cost[c] < cost[best]))
				best = c;
		}
		take(h, r, best);
	}
}

static int hungarian_init(struct hungarian *h)
{
	h->u = ptc_calloc(h->rows, sizeof *h->u);
	h->v = ptc_calloc(h->cols, sizeof *h->v);
	h->head = ptc_calloc(h->cols, sizeof *h->head);
	h->next = ptc_calloc(h->rows, sizeof *h->next);
	h->load = ptc_calloc(h->cols, sizeof *h->load);
	h->dist = ptc_calloc(h->cols, sizeof *h->dist);
	h->via = ptc_calloc(h->cols, sizeof *h->via);
	h->seen = ptc_calloc(h->cols, sizeof *h->seen);
	if (!h->u || !h->v || !h->head || !h->next || !h->load || !h->dist || !h->via || !h->seen)
		return PTC_ENOMEM;
	for (size_t c = 0; c < h->cols; c++)
		h->head[c] = NOBODY;
	return 0;
}

static void hungarian_done(struct hungarian *h)
{
	ptc_free(h->u);
	ptc_free(h->v);
	ptc_free(h->head);
	ptc_free(h->next);
	ptc_free(h->load);
	ptc_free(h->dist);
	ptc_free(h->via);
	ptc_free(h->seen);
}

int ptc_assign(size_t rows, size_t cols, const uint32_t *space, const int64_t *cost, int64_t max_steps,
	       uint32_t *ret_col, int64_t *ret_bound)
{
	struct hungarian h = { .rows = rows, .cols = cols, .cost = cost, .room = space, .where = ret_col };
	uint64_t bound = 0;
	int rc = hungarian_init(&h);

	if (!rc && rows) {
		start(&h);
		for (uint32_t r = 0; r < rows && h.steps < max_steps; r++)
			if (h.where[r] == NOBODY)
				augment(&h, r);
		finish(&h);
	}
	for (size_t r = 0; r < rows && !rc; r++) /* parts of the sum may overflow, the sum does not */
		bound += (uint64_t)h.u[r];
	for (size_t c = 0; c < cols && !rc; c++)
		bound += (uint64_t)room(&h, c) * (uint64_t)h.v[c];
	*ret_bound = (int64_t)bound;
	hungarian_done(&h);
	return rc;
}
