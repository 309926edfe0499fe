/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes against brute force over every element of small random spaces. The
 * oracle marks elements one by one and shares no code with box.c. Seed:
 * PTC_TEST_SEED, printed; cases shrink only by being small. */
#include "base/alloc.h"
#include "base/number/digest.h"
#include "base/test_seed.h"
#include "reshard/box/box.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_ELEMENTS 4096

static uint64_t rng;
static int64_t rnd(int64_t n) /* 0..n-1 */
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (int64_t)((rng >> 11) % (uint64_t)n);
}

static void seed_begin(uint64_t n)
{
	rng = ptc_test_seed() * 0x9E3779B97F4A7C15u + n * 7919 + 1;
}

struct space {
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
	int64_t n;
};

static struct space random_space(void)
{
	struct space s = { .ndim = 1 + (uint32_t)rnd(4), .n = 1 };

	if (rnd(20) == 0)
		s.ndim = PTC_MAX_DIMS;
	for (uint32_t d = 0; d < s.ndim; d++) {
		s.shape[d] = 1 + rnd(s.ndim == PTC_MAX_DIMS ? 2 : 7);
		s.n *= s.shape[d];
	}
	return s;
}

static struct ptc_box random_box(const struct space *s)
{
	struct ptc_box b = { .ndim = s->ndim };

	for (uint32_t d = 0; d < s->ndim; d++) {
		b.off[d] = rnd(s->shape[d]);
		b.ext[d] = 1 + rnd(s->shape[d] - b.off[d]);
		if (rnd(3) == 0) {
			b.off[d] = 0;
			b.ext[d] = s->shape[d];
		}
	}
	return b;
}

static bool inside(const struct space *s, int64_t e, const struct ptc_box *b)
{
	for (int d = (int)s->ndim - 1; d >= 0; d--) {
		int64_t i = e % s->shape[d];

		if (i < b->off[d] || i >= b->off[d] + b->ext[d])
			return false;
		e /= s->shape[d];
	}
	return true;
}

/* A box may be cut where it lies, and dims that are not used are 0, because boxes are compared as memory. */
static void intersects_in_place(const struct ptc_box *a, const struct ptc_box *b)
{
	struct ptc_box common, one = *a, other = *b;

	memset(&common, 0x5a, sizeof common);
	if (!ptc_box_intersect(a, b, &common)) {
		assert_int_equal(common.ndim, 0x5a5a5a5a);
		assert_false(ptc_box_intersect(&one, b, &one));
		assert_true(ptc_box_equal(&one, a));
		return;
	}
	for (uint32_t d = common.ndim; d < PTC_MAX_DIMS; d++)
		assert_true(!common.off[d] && !common.ext[d]);
	assert_true(ptc_box_intersect(&one, b, &one) && ptc_box_equal(&one, &common));
	assert_true(ptc_box_intersect(a, &other, &other) && ptc_box_equal(&other, &common));
}

static void arithmetic(void)
{
	struct space s = random_space();
	struct ptc_box have[5], a = random_box(&s), common;
	size_t nhave = 1 + (size_t)rnd(5);
	struct ptc_boxes diff = { 0 }, missing = { 0 };
	bool meet = false;

	for (size_t h = 0; h < nhave; h++)
		have[h] = random_box(&s);
	assert_int_equal(ptc_box_subtract(&a, &have[0], &diff), 0);
	assert_int_equal(ptc_boxes_missing(&a, have, nhave, &missing), 0);
	assert_true(diff.n <= 2 * s.ndim);
	for (int64_t e = 0; e < s.n; e++) {
		bool in_any = false;
		int in_diff = 0, in_missing = 0;

		for (size_t h = 0; h < nhave; h++)
			in_any |= inside(&s, e, &have[h]);
		for (size_t i = 0; i < diff.n; i++)
			in_diff += inside(&s, e, &diff.v[i]);
		for (size_t i = 0; i < missing.n; i++)
			in_missing += inside(&s, e, &missing.v[i]);
		assert_int_equal(in_diff, inside(&s, e, &a) && !inside(&s, e, &have[0]));
		assert_int_equal(in_missing, inside(&s, e, &a) && !in_any);
		meet |= inside(&s, e, &a) && inside(&s, e, &have[0]);
	}
	assert_int_equal(ptc_box_intersect(&a, &have[0], &common), meet);
	for (int64_t e = 0; e < s.n && meet; e++)
		assert_int_equal(inside(&s, e, &common), inside(&s, e, &a) && inside(&s, e, &have[0]));
	intersects_in_place(&a, &have[0]);
	assert_int_equal(ptc_box_contains(&have[0], &a), meet && ptc_box_equal(&a, &common));
	ptc_boxes_done(&diff);
	ptc_boxes_done(&missing);
}

/* The elements of b in row-major order, as positions in the whole space. */
static int64_t list_elements(const struct space *s, const struct ptc_box *b, int64_t *out)
{
	int64_t n = 0;

	for (int64_t e = 0; e < s->n; e++)
		if (inside(s, e, b))
			out[n++] = e;
	return n;
}

static void ranges_and_chops(void)
{
	struct space s = random_space();
	struct ptc_box b = random_box(&s);
	struct ptc_boxes out = { 0 };
	int64_t want[MAX_ELEMENTS], got[MAX_ELEMENTS], n, at = 0;
	int64_t first = rnd(s.n + 1), count = rnd(s.n - first + 1), max = 1 + rnd(20);

	assert_int_equal(ptc_box_from_range(s.ndim, s.shape, first, count, &out), 0);
	assert_true(out.n <= 2 * s.ndim - 1);
	for (size_t i = 0; i < out.n; i++) {
		n = list_elements(&s, &out.v[i], got);
		assert_int_equal(n, ptc_box_volume(&out.v[i]));
		for (int64_t k = 0; k < n; k++)
			assert_int_equal(got[k], first + at++);
	}
	assert_int_equal(at, count);
	out.n = 0;
	assert_int_equal(ptc_box_chop(&b, max, &out), 0);
	n = list_elements(&s, &b, want);
	at = 0;
	for (size_t i = 0; i < out.n; i++) {
		int64_t m = list_elements(&s, &out.v[i], got);

		assert_true(m > 0 && m <= max && at + m <= n);
		assert_memory_equal(got, want + at, (size_t)m * sizeof *got);
		at += m;
	}
	assert_int_equal(at, n);
	ptc_boxes_done(&out);
}

static void joins(void)
{
	struct space s = random_space();
	struct ptc_box a = random_box(&s), b = random_box(&s);
	struct ptc_boxes cells = { 0 }, rest = { 0 };
	size_t n, m;

	/* The cells of a box, in any order, are that box; with cells left out, what is left. */
	assert_int_equal(ptc_box_chop(&a, 1, &cells), 0);
	assert_int_equal(ptc_boxes_missing(&a, &b, 1, &rest), 0);
	for (size_t i = cells.n; i > 1; i--) {
		size_t k = (size_t)rnd((int64_t)i);
		struct ptc_box swap = cells.v[k];

		cells.v[k] = cells.v[i - 1];
		cells.v[i - 1] = swap;
	}
	n = cells.n;
	ptc_boxes_join(cells.v, &n);
	assert_int_equal(n, 1);
	assert_true(ptc_box_equal(&cells.v[0], &a));
	m = rest.n;
	ptc_boxes_join(rest.v, &m);
	assert_true(m <= rest.n);
	for (int64_t e = 0; e < s.n; e++) {
		int found = 0;

		for (size_t i = 0; i < m; i++)
			found += inside(&s, e, &rest.v[i]);
		assert_int_equal(found, inside(&s, e, &a) && !inside(&s, e, &b));
	}
	ptc_boxes_done(&cells);
	ptc_boxes_done(&rest);
}

static void copies_and_digests(void)
{
	struct space s = random_space();
	struct ptc_box a = random_box(&s), b = random_box(&s), cut;
	int64_t ea[MAX_ELEMENTS], eb[MAX_ELEMENTS], na, nb;
	uint8_t whole[MAX_ELEMENTS], src[MAX_ELEMENTS], dst[MAX_ELEMENTS];
	uint64_t slow = 0;

	for (int64_t e = 0; e < s.n; e++)
		whole[e] = (uint8_t)rnd(256);
	na = list_elements(&s, &a, ea);
	nb = list_elements(&s, &b, eb);
	for (int64_t i = 0; i < nb; i++)
		src[i] = whole[eb[i]];
	memset(dst, 0xee, sizeof dst);
	if (ptc_box_intersect(&a, &b, &cut)) {
		if (rnd(2) && cut.ext[0] > 1)
			cut.ext[0]--;
		ptc_box_copy(dst, &a, src, &b, &cut);
		for (int64_t i = 0; i < na; i++)
			assert_int_equal(dst[i], inside(&s, ea[i], &cut) ? whole[ea[i]] : 0xee);
	}
	for (int64_t i = 0; i < nb; i++)
		slow ^= ptc_digest_shift(ptc_digest_run(&src[i], 1), (uint64_t)(s.n - 1 - eb[i]));
	assert_true(ptc_box_digest(src, &b, s.ndim, s.shape) == slow);
}

static void random_cases(void **state)
{
	for (uint64_t i = 0; i < 6000; i++) {
		seed_begin(i);
		arithmetic();
		ranges_and_chops();
		joins();
		copies_and_digests();
	}
	assert_int_equal(ptc_alloc_live(), 0);
}

static void runs_are_the_longest(void **state)
{
	int64_t shape[3] = { 4, 6, 8 };
	struct ptc_box whole = ptc_box_whole(3, shape), cut = whole;
	struct ptc_runs r;

	ptc_runs_init(&r, &whole, &whole, &whole);
	assert_int_equal(r.run_bytes, 192);
	assert_int_equal(r.count, 1);
	cut.off[1] = 2;
	cut.ext[1] = 3;
	ptc_runs_init(&r, &cut, &whole, &cut);
	assert_int_equal(r.run_bytes, 24);
	assert_int_equal(r.count, 4);
	assert_int_equal(r.b_off, 16);
	ptc_runs_next(&r);
	assert_int_equal(r.a_off, 24);
	assert_int_equal(r.b_off, 64);
}

static void scalars_and_empty(void **state)
{
	int64_t shape[2] = { 3, 0 };
	struct ptc_box scalar = ptc_box_whole(0, shape), empty = ptc_box_whole(2, shape), out;
	struct ptc_boxes list = { 0 };

	assert_int_equal(ptc_box_volume(&scalar), 1);
	assert_false(ptc_box_empty(&scalar));
	assert_true(ptc_box_intersect(&scalar, &scalar, &out));
	assert_int_equal(ptc_box_from_range(0, shape, 0, 1, &list), 0);
	assert_int_equal(list.n, 1);
	assert_int_equal(ptc_box_subtract(&scalar, &scalar, &list), 0);
	assert_int_equal(list.n, 1);
	assert_true(ptc_box_empty(&empty));
	assert_int_equal(ptc_box_from_range(2, shape, 0, 0, &list), 0);
	assert_int_equal(ptc_box_chop(&empty, 10, &list), 0);
	assert_int_equal(ptc_boxes_missing(&empty, NULL, 0, &list), 0);
	assert_int_equal(list.n, 1);
	assert_true(ptc_box_digest("", &empty, 2, shape) == 0);
	assert_int_equal(ptc_box_chop(&scalar, 0, &list), PTC_EINVAL);
	ptc_boxes_done(&list);
}

static void failed_allocation_leaves_the_list(void **state)
{
	int64_t shape[2] = { 9, 9 };
	struct ptc_box whole = ptc_box_whole(2, shape), hole = { 2, { 3, 3 }, { 2, 2 } };

	for (uint64_t nth = 1; nth <= 2; nth++) {
		struct ptc_boxes list = { 0 };

		ptc_alloc_fail_at(nth);
		if (ptc_box_chop(&whole, 1, &list))
			assert_int_equal(list.n, 0);
		ptc_alloc_fail_at(nth);
		list.n = 0;
		if (ptc_boxes_missing(&whole, &hole, 1, &list))
			assert_int_equal(list.n, 0);
		ptc_alloc_fail_at(0);
		ptc_boxes_done(&list);
	}
	assert_int_equal(ptc_alloc_live(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_cases),
		cmocka_unit_test(runs_are_the_longest),
		cmocka_unit_test(scalars_and_empty),
		cmocka_unit_test(failed_allocation_leaves_the_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
