/* SPDX-License-Identifier: Apache-2.0 */
/* Who gives which part of a box, against brute force over every byte: the first replica in order that has the byte, and
 * is usable, gives it. Replicas are random boxes, grids, and ranges of the flat bytes, as layouts make them. The work
 * grows with the number of pieces and little more: measured as CPU time for each piece of many against that of few.
 * Seed: PTC_TEST_SEED. */
#include "daemon/agent/transfer/transfer.h"

#include "base/alloc.h"
#include "base/test_seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MOST  4096
#define NODES 5
#define TRIES 5

static uint64_t rng;

static int64_t rnd(int64_t n) /* 0..n-1 */
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (int64_t)((rng >> 11) % (uint64_t)n);
}

struct world {
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS], bytes;
	struct ptc_replica *v;
	size_t n, cap;
};

static void add(struct world *w, uint32_t node, const struct ptc_box *box)
{
	if (w->n == w->cap) {
		w->cap = w->cap ? 2 * w->cap : 64;
		w->v = ptc_reallocarray(w->v, w->cap, sizeof *w->v);
		assert_non_null(w->v);
	}
	w->v[w->n++] = (struct ptc_replica){ .node = node, .box = *box };
}

static struct ptc_box random_box(const struct world *w)
{
	struct ptc_box b = { .ndim = w->ndim };

	for (uint32_t d = 0; d < w->ndim; d++) {
		b.off[d] = rnd(w->shape[d]);
		b.ext[d] = 1 + rnd(w->shape[d] - b.off[d]);
	}
	return b;
}

/* Each dim in equal pieces (the last may be short), pieces dealt out. */
static void add_grid(struct world *w, const int64_t *piece, bool random)
{
	struct ptc_box b = { .ndim = w->ndim };
	bool more = true;

	for (uint32_t turn = 0; more; turn++) {
		for (uint32_t d = 0; d < w->ndim; d++)
			b.ext[d] = piece[d] < w->shape[d] - b.off[d] ? piece[d] : w->shape[d] - b.off[d];
		add(w, random ? (uint32_t)rnd(NODES) : turn % 2, &b);
		more = false;
		for (uint32_t d = w->ndim; d-- > 0 && !more;) {
			b.off[d] += b.ext[d];
			more = b.off[d] < w->shape[d];
			if (!more)
				b.off[d] = 0;
			b.ext[d] = piece[d] < w->shape[d] - b.off[d] ? piece[d] : w->shape[d] - b.off[d];
		}
	}
}

static void add_ranges(struct world *w)
{
	for (int64_t at = 0, len; at < w->bytes; at += len) {
		struct ptc_boxes boxes = { 0 };
		uint32_t node = (uint32_t)rnd(NODES);

		len = 1 + rnd(w->bytes / 2 + 1);
		len = len < w->bytes - at ? len : w->bytes - at;
		assert_int_equal(ptc_box_from_range(w->ndim, w->shape, at, len, &boxes), 0);
		for (size_t i = 0; i < boxes.n; i++)
			add(w, node, &boxes.v[i]);
		ptc_boxes_done(&boxes);
	}
}

static void random_world(struct world *w)
{
	int64_t piece[PTC_MAX_DIMS];

	*w = (struct world){ .ndim = 1 + (uint32_t)rnd(4), .bytes = 1 };
	for (uint32_t d = 0; d < w->ndim; d++) {
		w->shape[d] = 1 + rnd(w->ndim == 1 ? 200 : 7);
		w->bytes *= w->shape[d];
		piece[d] = 1 + rnd(w->shape[d]);
	}
	for (int64_t i = rnd(4) == 0 ? rnd(60) : rnd(4); i > 0; i--) {
		const struct ptc_box b = random_box(w);

		add(w, (uint32_t)rnd(NODES), &b);
	}
	if (rnd(3))
		add_grid(w, piece, true);
	if (rnd(3) == 0)
		add_ranges(w);
	for (size_t i = w->n; i > 1; i--) { /* in any order */
		const size_t k = (size_t)rnd((int64_t)i);
		const struct ptc_replica swap = w->v[k];

		w->v[k] = w->v[i - 1];
		w->v[i - 1] = swap;
	}
}

static bool inside(const struct world *w, int64_t e, const struct ptc_box *b)
{
	for (uint32_t d = w->ndim; d-- > 0; e /= w->shape[d])
		if (e % w->shape[d] < b->off[d] || e % w->shape[d] >= b->off[d] + b->ext[d])
			return false;
	return true;
}

/* Who has to give byte e; -1: nobody has it. */
static int64_t giver(const struct world *w, int64_t e, const bool *usable, uint32_t prefer, uint32_t first)
{
	for (size_t i = 0; i < w->n; i++)
		if (w->v[i].node == prefer && usable[prefer] && inside(w, e, &w->v[i].box))
			return prefer;
	for (size_t i = 0; i < w->n; i++) {
		const struct ptc_replica *h = &w->v[(i + first) % w->n];

		if (usable[h->node] && inside(w, e, &h->box))
			return h->node;
	}
	return -1;
}

static void check(const struct world *w, const struct ptc_box *box, const bool *usable, uint32_t prefer, uint32_t first,
		  const struct ptc_parts *parts, bool all)
{
	bool missing = false;

	for (int64_t e = 0; e < w->bytes; e++) {
		int64_t node = -2, times = 0; /* not in the box */

		for (size_t i = 0; i < parts->n; i++)
			if (inside(w, e, &parts->v[i].box)) {
				assert_int_equal(parts->v[i].item, 3);
				assert_int_equal(parts->v[i].to, 7);
				node = parts->v[i].node;
				times++;
			}
		const int64_t gives = inside(w, e, box) ? giver(w, e, usable, prefer, first) : -1;

		missing = missing || (gives < 0 && inside(w, e, box));
		assert_int_equal(times, gives >= 0);
		if (times)
			assert_int_equal(node, gives);
	}
	assert_int_equal(all, !missing);
}

static void each_byte_comes_from_the_first_that_has_it(void **state)
{
	rng = ptc_test_seed() * 0x9E3779B97F4A7C15u + 1;
	for (int n = 0; n < 10000; n++) {
		struct ptc_parts parts = { 0 };
		struct ptc_part want = { .item = 3, .to = 7 };
		struct world w;
		bool usable[NODES], all, every;
		uint32_t prefer, first;

		random_world(&w);
		assert_in_range(w.bytes, 1, MOST);
		want.box = rnd(2) ? ptc_box_whole(w.ndim, w.shape) : random_box(&w);
		every = rnd(4) == 0;
		for (int i = 0; i < NODES; i++)
			usable[i] = every || rnd(6) != 0;
		prefer = rnd(4) ? (uint32_t)rnd(NODES) : UINT32_MAX;
		first = (uint32_t)rnd(100);
		assert_int_equal(ptc_parts_cover(&want, w.v, w.n, every ? NULL : usable, prefer, first, &parts, &all,
						 NULL),
				 0);
		check(&w, &want.box, usable, prefer, first, &parts, all);
		ptc_parts_done(&parts);
		ptc_free(w.v);
	}
	assert_int_equal(ptc_alloc_live(), 0);
}

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The least CPU time for each piece of a tensor that is cut into side^ndim of them, node about node, and read whole. */
static double seconds_a_piece(uint32_t ndim, int64_t side)
{
	struct world w = { .ndim = ndim };
	const int64_t piece[PTC_MAX_DIMS] = { 4, 4, 4 };
	const bool usable[2] = { true, true };
	double least = 1e9;

	for (uint32_t d = 0; d < ndim; d++)
		w.shape[d] = side * 4;
	add_grid(&w, piece, false);
	for (int i = 0; i < TRIES; i++) {
		const struct ptc_part want = { .box = ptc_box_whole(w.ndim, w.shape) };
		struct ptc_parts parts = { 0 };
		const double began = cpu_seconds();
		bool all;

		assert_int_equal(ptc_parts_cover(&want, w.v, w.n, usable, 1, 0, &parts, &all, NULL), 0);
		least = cpu_seconds() - began < least ? cpu_seconds() - began : least;
		assert_int_equal(parts.n, w.n); /* nothing that is whole is cut */
		assert_true(all);
		ptc_parts_done(&parts);
	}
	least /= (double)w.n;
	ptc_free(w.v);
	return least;
}

/* Sixteen times as many pieces: quadratic work would be sixteen times as much for each. */
static void many_pieces_cost_little_more_each(void **state)
{
	static const struct {
		uint32_t ndim;
		int64_t few, many;
	} cases[] = { { 1, 1024, 16384 }, { 2, 32, 128 } };

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const double few = seconds_a_piece(cases[i].ndim, cases[i].few);
		const double many = seconds_a_piece(cases[i].ndim, cases[i].many);

		printf("%u dims: %.2f us for each piece of few, %.2f of many\n", cases[i].ndim, few * 1e6, many * 1e6);
		assert_true(many < 5 * few);
	}
}

static void memory_that_runs_out(void **state)
{
	struct world w = { .ndim = 1, .shape = { 64 } };
	const int64_t piece[PTC_MAX_DIMS] = { 1 };
	const bool usable[2] = { true, true };
	const struct ptc_part want = { .box = ptc_box_whole(1, w.shape) };
	bool all;
	int rc = PTC_ENOMEM;

	add_grid(&w, piece, false);
	for (uint64_t nth = 1; rc; nth++) {
		struct ptc_parts parts = { 0 };

		ptc_alloc_fail_at(nth);
		rc = ptc_parts_cover(&want, w.v, w.n, usable, 0, 0, &parts, &all, NULL);
		ptc_alloc_fail_at(0);
		assert_true(rc == 0 || rc == PTC_ENOMEM);
		assert_in_range(nth, 1, 1000);
		ptc_parts_done(&parts);
	}
	ptc_free(w.v);
	assert_int_equal(ptc_alloc_live(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_byte_comes_from_the_first_that_has_it),
		cmocka_unit_test(many_pieces_cost_little_more_each),
		cmocka_unit_test(memory_that_runs_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
