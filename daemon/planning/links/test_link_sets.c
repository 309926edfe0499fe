/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds against their definition; sets of nodes against trying every set. */
#include "daemon/planning/links/links.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NODES 7

static void every_pair_has_its_round(void **state)
{
	for (size_t n = 2; n <= 34; n += 2) {
		static size_t seen[34][34];

		memset(seen, 0, sizeof seen);
		for (size_t r = 0; r + 1 < n; r++)
			for (size_t i = 0; i < n; i++) {
				size_t k = ptc_link_opponent(n, r, i);

				assert_true(k < n && k != i);
				assert_int_equal(i, ptc_link_opponent(n, r, k)); /* pairs are disjoint */
				seen[i][k]++;
			}
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; k < n; k++)
				assert_int_equal(i != k, seen[i][k]);
	}
}

static const char *const names[NODES] = { "a", "b", "c", "d", "e", "f", "g" };

/* Room for all that a case adds. */
struct pairs {
	struct ptc_link v[64];
	struct ptc_links all;
};

static void add(struct pairs *pairs, const char *from, const char *to, double v)
{
	struct ptc_link *l = &pairs->v[pairs->all.n++];

	assert_true(pairs->all.n <= PTC_ARRAY_LEN(pairs->v));
	pairs->all.v = pairs->v;
	*l = (struct ptc_link){ .bytes_s = v };
	strcpy(l->from, from);
	strcpy(l->to, to);
}

static void pair(struct pairs *pairs, size_t a, size_t b, double v)
{
	add(pairs, names[a], names[b], v);
}

/* Of random matrices with one slow node: it is the one that is left, and what remains is as fast as the best set of
 * that size. */
static void a_slow_node_is_left(void **state)
{
	unsigned seed = 0;

	ptc_require(ptc_sys_random(&seed, sizeof seed, NULL) == 0);
	if (getenv("PTC_TEST_SEED"))
		seed = (unsigned)strtoul(getenv("PTC_TEST_SEED"), NULL, 10);
	printf("seed %u (repeat with PTC_TEST_SEED=%u)\n", seed, seed);
	srand(seed);
	for (int round = 0; round < 500; round++) {
		struct pairs pairs = { 0 };
		double m[NODES][NODES], least = 1e30, best = 0;
		size_t slow = (size_t)rand() % NODES;
		bool leave[NODES] = { false };
		struct ptc_link_sets *s;

		for (size_t a = 0; a < NODES; a++)
			for (size_t b = 0; b < a; b++) {
				double v = 1e9 + rand() % 1000000000;
				double back = v * (1 + rand() % 3);

				if (a == slow || b == slow)
					v /= 100;
				m[a][b] = m[b][a] = v; /* the slower way */
				pair(&pairs, a, b, round % 2 ? v : back);
				pair(&pairs, b, a, round % 2 ? back : v);
				least = PTC_MIN(least, v);
			}
		s = ptc_link_sets_new(&pairs.all, names, NODES);
		assert_non_null(s);
		assert_true(ptc_link_sets_slowest(s, leave) == least);
		for (size_t out = 0; out < NODES; out++) {
			double slowest = 1e30;

			for (size_t a = 0; a < NODES; a++)
				for (size_t b = 0; b < a; b++)
					if (a != out && b != out)
						slowest = PTC_MIN(slowest, m[a][b]);
			best = PTC_MAX(best, slowest);
		}
		assert_true(ptc_link_sets_leave(s, leave));
		for (size_t a = 0; a < NODES; a++)
			assert_int_equal(a == slow, leave[a]);
		assert_true(ptc_link_sets_slowest(s, leave) == best);
		ptc_link_sets_free(s);
	}
}

static void what_is_not_known_decides_nothing(void **state)
{
	struct pairs pairs = { 0 };
	bool leave[NODES] = { false };
	struct ptc_link_sets *s = ptc_link_sets_new(&pairs.all, names, NODES);

	assert_true(ptc_link_sets_median(s) == 0);
	assert_true(ptc_link_sets_slowest(s, leave) == 0);
	assert_false(ptc_link_sets_leave(s, leave));
	ptc_link_sets_free(s);
	pair(&pairs, 0, 1, 5e9);
	add(&pairs, "a", "gone", 1.0);
	add(&pairs, "b", "c", -1.0);
	s = ptc_link_sets_new(&pairs.all, names, NODES);
	assert_true(ptc_link_sets_median(s) == 5e9);
	assert_true(ptc_link_sets_slowest(s, leave) == 5e9);
	ptc_link_sets_free(s);
}

static void changes_beyond_a_quarter(void **state)
{
	struct pairs was = { 0 }, is = { 0 };
	struct ptc_link_changes changed;

	pair(&was, 0, 1, 4e9);
	pair(&was, 1, 0, 4e9);
	pair(&was, 0, 2, 4e9);
	pair(&is, 0, 1, 3.3e9); /* a fifth less */
	pair(&is, 1, 0, 3e9);
	pair(&is, 0, 2, 6e9);
	pair(&is, 2, 0, 1e9); /* was not known */
	assert_int_equal(0, ptc_links_changed(&was.all, &is.all, &changed));
	assert_int_equal(2, changed.n);
	assert_string_equal("b", changed.v[0].from);
	assert_string_equal("a", changed.v[0].to);
	assert_string_equal("c", changed.v[1].to);
	assert_true(changed.v[1].was == 4e9 && changed.v[1].is == 6e9);
	ptc_free(changed.v);
}

/* A link by what switches bring over it, in turn; measured at 100. */
static void what_switches_show(void **state)
{
	static const struct {
		double bytes, counts;
		bool changed;
	} turns[] = {
		{ 40, 100, false },                                      /* the first one says what a switch brings */
		{ 25, 100, false },                                      /* busy nodes */
		{ 15, 15, true },                                        /* less than half of 40 */
		{ 12, 12, false },  { 5, 5, true },   { 30, 100, true }, /* as before */
		{ 90, 100, false }, { 44, 44, true }, { 91, 100, true },
	};
	struct pairs pairs = { 0 };
	struct ptc_link_changes changed = { 0 };
	bool any;

	pair(&pairs, 0, 1, 100);
	pair(&pairs, 1, 0, 70);
	for (size_t i = 0; i < PTC_ARRAY_LEN(turns); i++) {
		const struct ptc_link_use uses[] = {
			{ "a", "b", (uint64_t)turns[i].bytes * 3, 3.0 },
			{ "a", "c", 5, 1.0 },
		};
		double was = pairs.v[0].bytes_s;

		assert_int_equal(0, ptc_links_saw(&pairs.all, uses, 2, &changed, &any));
		assert_true(any);
		assert_true(pairs.v[0].bytes_s == turns[i].counts);
		assert_true(pairs.v[0].measured_bytes_s == 100);
		assert_int_equal(turns[i].changed, changed.n);
		if (turns[i].changed) {
			assert_string_equal("a", changed.v[0].from);
			assert_string_equal("b", changed.v[0].to);
			assert_true(changed.v[0].was == was);
			assert_true(changed.v[0].is == turns[i].counts);
		}
		ptc_free(changed.v);
		changed = (struct ptc_link_changes){ 0 };
	}
	assert_int_equal(2, pairs.all.n); /* a to c was never measured */
	assert_true(pairs.v[1].bytes_s == 70 && pairs.v[1].measured_bytes_s == 0);
	assert_int_equal(0, ptc_links_saw(&pairs.all, NULL, 0, &changed, &any));
	assert_false(any);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_pair_has_its_round),
		cmocka_unit_test(a_slow_node_is_left),
		cmocka_unit_test(what_is_not_known_decides_nothing),
		cmocka_unit_test(changes_beyond_a_quarter),
		cmocka_unit_test(what_switches_show),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
