/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks' devices are left: each condition by itself, at its edge. Half of the ranks are slow only where the words
 * are given here: ptc_slow_judge never finds so many at one time, which is tried, too. */
#include "daemon/core/slow/slow_leave.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define RANKS 8

static bool leaves[RANKS];

/* One letter a rank: o slow and over the limit; b slow, between the limits; w slow, within; u slow, unknown; O over the
 * limit, not slow yet; . within the limit; ? unknown. */
static enum ptc_slow_verdict verdict(const char *words, const int64_t *left_ms, size_t nleft, uint32_t most)
{
	static const char letters[] = "obwuO.?";
	static const struct ptc_slow_rank of[] = {
		{ .slow = true, .word = PTC_SLOW_OVER },    { .slow = true, .word = PTC_SLOW_BETWEEN },
		{ .slow = true, .word = PTC_SLOW_WITHIN },  { .slow = true, .word = PTC_SLOW_UNKNOWN },
		{ .slow = false, .word = PTC_SLOW_OVER },   { .slow = false, .word = PTC_SLOW_WITHIN },
		{ .slow = false, .word = PTC_SLOW_UNKNOWN }
	};
	struct ptc_slow_rank ranks[RANKS];
	size_t n = strlen(words);

	assert_in_range(n, 0, RANKS);
	memset(leaves, true, sizeof leaves);
	for (size_t i = 0; i < n; i++)
		ranks[i] = of[strchr(letters, words[i]) - letters];
	return ptc_slow_leave(ranks, n, left_ms, nleft, most, leaves);
}

static void check_leaves(const char *want)
{
	for (size_t i = 0; want[i]; i++)
		assert_int_equal(leaves[i], want[i] == 'x');
}

static void test_who(void **state)
{
	(void)state;
	assert_int_equal(verdict("", NULL, 0, 2), PTC_SLOW_STAY);
	assert_int_equal(verdict("....", NULL, 0, 2), PTC_SLOW_STAY);
	assert_int_equal(verdict("????", NULL, 0, 2), PTC_SLOW_STAY);
	assert_int_equal(verdict("..O.", NULL, 0, 2), PTC_SLOW_STAY); /* one window is none */
	assert_int_equal(verdict("..b.", NULL, 0, 2), PTC_SLOW_STAY);
	assert_int_equal(verdict("..w.", NULL, 0, 2), PTC_SLOW_STAY);
	assert_int_equal(verdict("..u.", NULL, 0, 2), PTC_SLOW_STAY);
	assert_int_equal(verdict("..o.", NULL, 0, 2), PTC_SLOW_LEAVE);
	check_leaves("..x.");
	assert_int_equal(verdict("o.b.Oo..", NULL, 0, 2), PTC_SLOW_LEAVE);
	check_leaves("x....x..");
}

/* Those that cannot be compared do not make the others a minority. */
static void test_many(void **state)
{
	(void)state;
	assert_int_equal(verdict("o.", NULL, 0, 2), PTC_SLOW_STAY_MANY);
	assert_int_equal(verdict("oo..", NULL, 0, 2), PTC_SLOW_STAY_MANY);
	assert_int_equal(verdict("oo...", NULL, 0, 2), PTC_SLOW_LEAVE);
	assert_int_equal(verdict("o.????", NULL, 0, 2), PTC_SLOW_STAY_MANY);
	assert_int_equal(verdict("o..????", NULL, 0, 2), PTC_SLOW_LEAVE);
	assert_int_equal(verdict("oooooooo", NULL, 0, 2), PTC_SLOW_STAY_MANY);
	assert_int_equal(verdict("bbbbbbbb", NULL, 0, 2), PTC_SLOW_STAY);
}

/* Devices that were left together are one time. */
static void test_often(void **state)
{
	static const int64_t left[] = { 100, 200, 100, 200, 100 };

	(void)state;
	assert_int_equal(verdict("..o.", left, 1, 1), PTC_SLOW_STAY_OFTEN);
	assert_int_equal(verdict("..o.", left, 1, 2), PTC_SLOW_LEAVE);
	assert_int_equal(verdict("..o.", left, 2, 2), PTC_SLOW_STAY_OFTEN);
	assert_int_equal(verdict("..o.", left, 5, 2), PTC_SLOW_STAY_OFTEN);
	assert_int_equal(verdict("..o.", left, 5, 3), PTC_SLOW_LEAVE);
	assert_int_equal(verdict("....", left, 5, 2), PTC_SLOW_STAY);
	assert_int_equal(verdict("oo..", left, 5, 2), PTC_SLOW_STAY_MANY); /* what is true of the ranks is said first */
}

/* All ranks become slower, by the same factor or each by its own: nobody is to leave. One that is slower still is. */
static void test_whole_cluster(void **state)
{
	static const double factors[][5] = { { 4, 4, 4, 4, 4 }, { 3, 3.5, 4, 4.5, 5 }, { 4, 4, 40, 4, 4 } };

	(void)state;
	for (size_t f = 0; f < PTC_ARRAY_LEN(factors); f++) {
		struct ptc_slow_rank ranks[5] = { 0 };
		struct ptc_slow_scratch scratch[5];
		double own[5] = { 0 };
		bool some = false;

		for (uint64_t step = 0; step <= 100; step++) {
			for (size_t r = 0; r < 5; r++) {
				own[r] += 0.01 * (step > 50 ? factors[f][r] : 1);
				ptc_slow_see(&ranks[r], step, &own[r]);
			}
			if (ptc_slow_judge(ranks, 5, 10, 30, scratch))
				some |= ptc_slow_leave(ranks, 5, NULL, 0, 2, leaves) != PTC_SLOW_STAY;
		}
		assert_int_equal(some, f == 2);
	}
	check_leaves("..x..");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_who),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_often),
		cmocka_unit_test(test_whole_cluster),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
