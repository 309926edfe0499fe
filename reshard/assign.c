/* SPDX-License-Identifier: Apache-2.0 */
/* The assignment problem by shortest augmenting paths (the Hungarian method
 * with potentials), O(rows^2 * cols). Fails only for want of memory. */
#include "reshard/internal.h"

#include "base/alloc.h"

struct hungarian {
	size_t cols;
	const int64_t *cost;
	int64_t *u, *v, *slack; /* potentials of rows and columns; both 1-based, 0 is the virtual column */
	size_t *row_of, *prev;
	bool *seen;
};

/* Gives row (1-based) a column, moving earlier rows along the cheapest path. */
static void augment(struct hungarian *h, size_t row)
{
	size_t col = 0;

	for (size_t c = 0; c <= h->cols; c++) {
		h->slack[c] = INT64_MAX;
		h->seen[c] = false;
	}
	h->row_of[0] = row;
	do {
		size_t r = h->row_of[col], next = 0;
		int64_t delta = INT64_MAX;

		h->seen[col] = true;
		for (size_t c = 1; c <= h->cols; c++) {
			int64_t d;

			if (h->seen[c])
				continue;
			d = h->cost[(r - 1) * h->cols + c - 1] - h->u[r] - h->v[c];
			if (d < h->slack[c]) {
				h->slack[c] = d;
				h->prev[c] = col;
			}
			if (h->slack[c] < delta) {
				delta = h->slack[c];
				next = c;
			}
		}
		for (size_t c = 0; c <= h->cols; c++) {
			if (h->seen[c]) {
				h->u[h->row_of[c]] += delta;
				h->v[c] -= delta;
			} else if (h->slack[c] != INT64_MAX) {
				h->slack[c] -= delta;
			}
		}
		col = next;
	} while (h->row_of[col]);
	for (; col; col = h->prev[col])
		h->row_of[col] = h->row_of[h->prev[col]];
}

int ptc_assign(size_t rows, size_t cols, const int64_t *cost, uint32_t *ret_col, int64_t *ret_cost)
{
	struct hungarian h = { .cols = cols, .cost = cost };
	int64_t sum = 0;
	int rc = PTC_ENOMEM;

	h.u = ptc_calloc(rows + 1, sizeof *h.u);
	h.v = ptc_calloc(cols + 1, sizeof *h.v);
	h.slack = ptc_calloc(cols + 1, sizeof *h.slack);
	h.row_of = ptc_calloc(cols + 1, sizeof *h.row_of);
	h.prev = ptc_calloc(cols + 1, sizeof *h.prev);
	h.seen = ptc_calloc(cols + 1, sizeof *h.seen);
	if (h.u && h.v && h.slack && h.row_of && h.prev && h.seen) {
		for (size_t r = 1; r <= rows; r++)
			augment(&h, r);
		for (size_t c = 1; c <= cols; c++) {
			if (!h.row_of[c])
				continue;
			ret_col[h.row_of[c] - 1] = (uint32_t)(c - 1);
			sum += cost[(h.row_of[c] - 1) * cols + c - 1];
		}
		*ret_cost = sum;
		rc = 0;
	}
	ptc_free(h.u);
	ptc_free(h.v);
	ptc_free(h.slack);
	ptc_free(h.row_of);
	ptc_free(h.prev);
	ptc_free(h.seen);
	return rc;
}
