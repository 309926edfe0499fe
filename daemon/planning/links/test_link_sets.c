/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds against their definition; sets of nodes against trying every set. */
#include "daemon/planning/links/links.h"

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

static void pair(json_t *pairs, size_t a, size_t b, double v)
{
	json_array_append_new(pairs, json_pack("{s:s, s:s, s:f}", "from", names[a], "to", names[b], "bytes_s", v));
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
		json_t *pairs = json_array();
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
				pair(pairs, a, b, round % 2 ? v : back);
				pair(pairs, b, a, round % 2 ? back : v);
				least = PTC_MIN(least, v);
			}
		s = ptc_link_sets_new(pairs, names, NODES);
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
		json_decref(pairs);
	}
}

static void what_is_not_known_decides_nothing(void **state)
{
	json_t *pairs = json_array();
	bool leave[NODES] = { false };
	struct ptc_link_sets *s = ptc_link_sets_new(pairs, names, NODES);

	assert_true(ptc_link_sets_median(s) == 0);
	assert_true(ptc_link_sets_slowest(s, leave) == 0);
	assert_false(ptc_link_sets_leave(s, leave));
	ptc_link_sets_free(s);
	pair(pairs, 0, 1, 5e9);
	json_array_append_new(pairs, json_pack("{s:s, s:s, s:f}", "from", "a", "to", "gone", "bytes_s", 1.0));
	json_array_append_new(pairs, json_pack("{s:s, s:s, s:f}", "from", "b", "to", "c", "bytes_s", -1.0));
	s = ptc_link_sets_new(pairs, names, NODES);
	assert_true(ptc_link_sets_median(s) == 5e9);
	assert_true(ptc_link_sets_slowest(s, leave) == 5e9);
	ptc_link_sets_free(s);
	json_decref(pairs);
}

static void changes_beyond_a_quarter(void **state)
{
	json_t *was = json_array(), *is = json_array(), *changed;

	pair(was, 0, 1, 4e9);
	pair(was, 1, 0, 4e9);
	pair(was, 0, 2, 4e9);
	pair(is, 0, 1, 3.3e9); /* a fifth less */
	pair(is, 1, 0, 3e9);
	pair(is, 0, 2, 6e9);
	pair(is, 2, 0, 1e9); /* was not known */
	changed = ptc_links_changed(was, is);
	assert_int_equal(2, json_array_size(changed));
	assert_string_equal("b", json_string_value(json_object_get(json_array_get(changed, 0), "from")));
	assert_string_equal("c", json_string_value(json_object_get(json_array_get(changed, 1), "to")));
	assert_true(json_number_value(json_object_get(json_array_get(changed, 1), "was")) == 4e9);
	json_decref(changed);
	json_decref(was);
	json_decref(is);
}

/* What could not be measured this time stays, unless the cluster has forgotten a node. */
static void what_was_known_stays(void **state)
{
	json_t *was = json_array(), *is = json_array(), *nodes = json_pack("[s, s, s]", "a", "b", "c");

	(void)state;
	pair(was, 0, 1, 4e9);
	pair(was, 1, 0, 4e9);
	pair(was, 0, 2, 5e9);
	pair(was, 2, 3, 6e9);                                        /* d is gone */
	json_array_append_new(was, json_pack("{s:s}", "from", "a")); /* no pair */
	pair(is, 0, 1, 1e9);
	ptc_links_keep(is, was, nodes);
	assert_int_equal(3, json_array_size(is));
	assert_true(json_number_value(json_object_get(json_array_get(is, 0), "bytes_s")) == 1e9);
	assert_true(json_equal(json_array_get(is, 1), json_array_get(was, 1)));
	assert_true(json_equal(json_array_get(is, 2), json_array_get(was, 2)));
	ptc_links_keep(is, NULL, nodes);
	assert_int_equal(3, json_array_size(is));
	json_decref(nodes);
	json_decref(was);
	json_decref(is);
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
	json_t *pairs = json_pack("[{s:s, s:s, s:f}, {s:s, s:s, s:f}]", "from", "a", "to", "b", "bytes_s", 100.0,
				  "from", "b", "to", "a", "bytes_s", 70.0);

	for (size_t i = 0; i < PTC_ARRAY_LEN(turns); i++) {
		json_t *links = json_pack("[{s:s, s:s, s:f, s:f}, {s:s, s:s, s:f, s:f}]", "from", "a", "to", "b",
					  "bytes", turns[i].bytes * 3, "seconds", 3.0, "from", "a", "to", "c", "bytes",
					  5.0, "seconds", 1.0);
		json_t *changed = json_array();
		double was = json_number_value(json_object_get(json_array_get(pairs, 0), "bytes_s"));

		assert_true(ptc_links_saw(pairs, links, changed));
		assert_true(json_number_value(json_object_get(json_array_get(pairs, 0), "bytes_s")) == turns[i].counts);
		assert_int_equal(turns[i].changed, json_array_size(changed));
		if (turns[i].changed) {
			const json_t *c = json_array_get(changed, 0);

			assert_string_equal("a", json_string_value(json_object_get(c, "from")));
			assert_true(json_number_value(json_object_get(c, "was")) == was);
			assert_true(json_number_value(json_object_get(c, "is")) == turns[i].counts);
		}
		json_decref(changed);
		json_decref(links);
	}
	assert_int_equal(2, json_array_size(pairs)); /* a to c was never measured */
	assert_true(json_number_value(json_object_get(json_array_get(pairs, 1), "bytes_s")) == 70);
	assert_false(ptc_links_saw(pairs, NULL, NULL));
	json_decref(pairs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_pair_has_its_round),
		cmocka_unit_test(a_slow_node_is_left),
		cmocka_unit_test(what_is_not_known_decides_nothing),
		cmocka_unit_test(changes_beyond_a_quarter),
		cmocka_unit_test(what_was_known_stays),
		cmocka_unit_test(what_switches_show),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
