/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks are slow, against an oracle that counts in whole numbers and looks at all windows since the beginning;
 * and the cases that a person would ask about. PTC_TEST_SEED=n repeats a case. */
#include "daemon/core/slow/slow.h"

#include "base/check.h"
#include "base/test_seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define RANKS   24
#define WINDOWS 40
#define CASES   400

static uint64_t rng;

static uint32_t rnd(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 11) % n);
}

/* ---- the oracle: a rank's work is a whole number; -1: it is not known --------------------- */

/* The k-th smallest of n numbers, by counting. */
static int kth(const int *v, int n, int k)
{
	for (int i = 0; i < n; i++) {
		int less = 0, same = 0;

		for (int j = 0; j < n; j++) {
			less += v[j] < v[i];
			same += v[j] == v[i];
		}
		if (less <= k && k < less + same)
			return v[i];
	}
	return -1;
}

/* Twice the median. */
static int median2(const int *v, int n)
{
	return kth(v, n, (n - 1) / 2) + kth(v, n, n / 2);
}

static enum ptc_slow_word oracle(const int *work, const uint32_t *role, int n, int of, int percent)
{
	int same[RANKS], far[RANKS], m = 0, mid2, more2, mad4;

	for (int i = 0; i < n; i++)
		if (role[i] == role[of] && work[i] > 0)
			same[m++] = work[i];
	if (work[of] <= 0 || m < 3)
		return PTC_SLOW_UNKNOWN;
	mid2 = median2(same, m);
	for (int i = 0; i < m; i++)
		far[i] = 2 * same[i] > mid2 ? 2 * same[i] - mid2 : mid2 - 2 * same[i];
	mad4 = median2(far, m);
	more2 = 2 * work[of] - mid2;
	if (100 * more2 > percent * mid2 && 2000 * more2 > 7413 * mad4)
		return PTC_SLOW_OVER;
	return 200 * more2 <= percent * mid2 ? PTC_SLOW_WITHIN : PTC_SLOW_BETWEEN;
}

static bool slow_by_history(const enum ptc_slow_word *words, int n)
{
	for (int t = n - 1; t >= 2; t--) {
		if (words[t] != words[t - 1] || words[t] != words[t - 2])
			continue;
		if (words[t] == PTC_SLOW_OVER || words[t] == PTC_SLOW_WITHIN)
			return words[t] == PTC_SLOW_OVER;
	}
	return false;
}

/* ---- random cases ------------------------------------------------------------------------------ */

static int draw_work(int base, bool late)
{
	if (rnd(40) == 0)
		return -1;
	return base + (int)rnd(1 + (uint32_t)base / 8) + (late ? (int)rnd((uint32_t)base) : 0) + (rnd(30) ? 0 : base);
}

/* What the rank says after `steps` steps more, each with that much work. */
static void say(struct ptc_slow_rank *r, uint64_t *step, double *sum, uint64_t steps, int work)
{
	*step += steps;
	if (work > 0)
		*sum += (double)work * (double)steps;
	ptc_slow_see(r, *step, work > 0 ? sum : NULL);
	if (work <= 0) { /* it is unknown in this window, and in none that follows for that reason */
		ptc_slow_see(r, *step, sum);
		r->began.tells = false;
	}
}

static void random_case(uint64_t seed)
{
	struct ptc_slow_rank ranks[RANKS] = { 0 };
	struct ptc_slow_scratch scratch[RANKS];
	static enum ptc_slow_word words[RANKS][WINDOWS];
	int n, base[RANKS], percent, work[RANKS];
	uint32_t role[RANKS];
	uint64_t step[RANKS] = { 0 }, steps;
	double sum[RANKS] = { 0 };
	bool late[RANKS] = { 0 };

	rng = seed * 0x9E3779B97F4A7C15u + 1;
	n = 1 + (int)rnd(RANKS);
	percent = 5 + (int)rnd(60);
	steps = 1 + rnd(20);
	for (int i = 0; i < n; i++) {
		ranks[i].role = role[i] = rnd(3);
		base[i] = 20 + 20 * (int)role[i];
		ptc_slow_see(&ranks[i], 0, &sum[i]);
	}
	for (int t = 0; t < WINDOWS; t++) {
		for (int i = 0; i < n; i++) {
			late[i] = rnd(12) ? late[i] : !late[i] && rnd(3) == 0;
			work[i] = draw_work(base[i], late[i]);
			say(&ranks[i], &step[i], &sum[i], steps, work[i]);
		}
		assert_true(ptc_slow_judge(ranks, (size_t)n, steps, (uint32_t)percent, scratch));
		for (int i = 0; i < n; i++) {
			words[i][t] = oracle(work, role, n, i, percent);
			if (ranks[i].word != words[i][t] || ranks[i].slow != slow_by_history(words[i], t + 1))
				fail_msg("PTC_TEST_SEED=%llu: rank %d of %d, window %d: word %d slow %d, not %d %d",
					 (unsigned long long)seed, i, n, t, ranks[i].word, ranks[i].slow, words[i][t],
					 slow_by_history(words[i], t + 1));
		}
	}
}

static void test_random(void **state)
{
	uint64_t from = ptc_test_seed();

	for (uint64_t i = 0; i < CASES; i++)
		random_case(from + i);
}

/* ---- cases by hand ------------------------------------------------------------------------------ */

struct group {
	struct ptc_slow_rank ranks[8];
	struct ptc_slow_scratch scratch[8];
	uint64_t step[8];
	double sum[8];
	size_t n;
};

/* One window of 10 steps. */
static bool window(struct group *g, const int *work)
{
	for (size_t i = 0; i < g->n; i++) {
		if (!g->ranks[i].began.known)
			ptc_slow_see(&g->ranks[i], 0, &g->sum[i]);
		say(&g->ranks[i], &g->step[i], &g->sum[i], 10, work[i]);
	}
	return ptc_slow_judge(g->ranks, g->n, 10, 30, g->scratch);
}

/* Three windows make it slow, three others make it fast again, and what lies between changes neither. */
static void test_rows_of_windows(void **state)
{
	static const int fine[] = { 100, 101, 99, 102 }, bad[] = { 100, 101, 99, 150 }, half[] = { 100, 101, 99, 120 };
	static const struct {
		const int *work;
		bool slow;
	} rows[] = { { bad, false }, { bad, false }, { fine, false }, { bad, false }, { bad, false },
		     { bad, true },  { half, true }, { fine, true },  { fine, true }, { half, true },
		     { fine, true }, { fine, true }, { fine, false } };
	struct group g = { .n = 4 };

	for (size_t i = 0; i < PTC_ARRAY_LEN(rows); i++) {
		assert_true(window(&g, rows[i].work));
		assert_int_equal(g.ranks[3].slow, rows[i].slow);
		for (size_t k = 0; k < 3; k++)
			assert_false(g.ranks[k].slow);
	}
}

/* Two ranks of a role cannot say which of them is slow; nor can three of which one does not tell. */
static void test_too_few(void **state)
{
	struct group two = { .n = 2 }, three = { .n = 3 };

	for (int t = 0; t < 5; t++) {
		assert_true(window(&two, (const int[]){ 100, 500 }));
		assert_true(window(&three, (const int[]){ 100, 500, -1 }));
	}
	assert_int_equal(two.ranks[1].word, PTC_SLOW_UNKNOWN);
	assert_int_equal(three.ranks[1].word, PTC_SLOW_UNKNOWN);
	assert_false(two.ranks[1].slow || three.ranks[1].slow);
}

/* Work differs by nature between stages, and widely within a stage whose ranks all differ. */
static void test_roles_and_spread(void **state)
{
	struct group g = { .n = 6 }, wide = { .n = 5 };

	for (size_t i = 3; i < 6; i++)
		g.ranks[i].role = 1;
	for (int t = 0; t < 4; t++) {
		assert_true(window(&g, (const int[]){ 10, 10, 10, 90, 90, 90 }));
		assert_true(window(&wide, (const int[]){ 60, 80, 100, 120, 140 }));
	}
	for (size_t i = 0; i < 6; i++)
		assert_int_equal(g.ranks[i].word, PTC_SLOW_WITHIN);
	assert_int_equal(wide.ranks[4].word, PTC_SLOW_BETWEEN);
}

/* No window ends before the last rank has made its steps, or is seen at all. */
static void test_not_yet(void **state)
{
	struct group g = { .n = 3 };
	double sum = 0;

	for (size_t i = 0; i < 2; i++)
		ptc_slow_see(&g.ranks[i], 0, &sum);
	for (size_t i = 0; i < 2; i++)
		ptc_slow_see(&g.ranks[i], 1000, &sum);
	assert_false(ptc_slow_judge(g.ranks, 3, 10, 30, g.scratch));
	ptc_slow_see(&g.ranks[2], 5, &sum);
	ptc_slow_see(&g.ranks[2], 14, &sum);
	assert_false(ptc_slow_judge(g.ranks, 3, 10, 30, g.scratch));
	ptc_slow_see(&g.ranks[2], 15, &sum);
	assert_true(ptc_slow_judge(g.ranks, 3, 10, 30, g.scratch));
	assert_false(ptc_slow_judge(g.ranks, 3, 10, 30, g.scratch));
	assert_false(ptc_slow_judge(g.ranks, 0, 10, 30, g.scratch));
}

/* What a program may say by mistake: no number, less than before, nothing. */
static void test_nonsense(void **state)
{
	static const double said[] = { NAN, INFINITY, -INFINITY, -1, 3, 0 };

	for (size_t k = 0; k < PTC_ARRAY_LEN(said); k++) {
		struct group g = { .n = 4 };
		double began = 5, fine = 105;

		for (size_t i = 0; i < g.n; i++)
			ptc_slow_see(&g.ranks[i], 0, &began);
		for (size_t i = 0; i < g.n; i++)
			ptc_slow_see(&g.ranks[i], 10, i ? &fine : &said[k]);
		assert_true(ptc_slow_judge(g.ranks, g.n, 10, 30, g.scratch));
		assert_int_equal(g.ranks[0].word, PTC_SLOW_UNKNOWN);
		for (size_t i = 1; i < g.n; i++)
			assert_int_equal(g.ranks[i].word, PTC_SLOW_WITHIN);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),  cmocka_unit_test(test_rows_of_windows),
		cmocka_unit_test(test_too_few), cmocka_unit_test(test_roles_and_spread),
		cmocka_unit_test(test_not_yet), cmocka_unit_test(test_nonsense),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
