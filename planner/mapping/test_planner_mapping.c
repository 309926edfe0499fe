/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings against every permutation of up to 8 devices, whose cost this file computes by itself from
 * coordinates; slow links; blocks; the bound. PTC_TEST_SEED=n repeats. */
#include "planner/mapping/mapping.h"

#include "base/alloc.h"
#include "base/check.h"
#include "planner/test_planner_rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CASES 200
#define MAX   512

static double links[MAX * MAX];

static double both_ways(uint32_t n, uint32_t a, uint32_t b)
{
	return fmin(links[a * n + b], links[b * n + a]);
}

/* Rank of coordinates, tp fastest, then cp, dp, pp. */
static uint32_t rank_of(const struct ptc_cand *c, uint32_t tp, uint32_t cp, uint32_t dp, uint32_t pp)
{
	return tp + c->tp * (cp + c->cp * (dp + c->dp * pp));
}

struct used {
	double tp, cp, dp, pp; /* slowest link of each class */
};

static struct used slowest(uint32_t n, const struct ptc_cand *c, const uint32_t *device)
{
	struct used u = { INFINITY, INFINITY, INFINITY, INFINITY };

#define LINK(a, b) both_ways(n, device[a], device[b])
	for (uint32_t p = 0; p < c->pp; p++)
		for (uint32_t d = 0; d < c->dp; d++)
			for (uint32_t k = 0; k < c->cp; k++)
				for (uint32_t t = 0; t < c->tp; t++) {
					uint32_t r = rank_of(c, t, k, d, p);

					if (c->tp > 1)
						u.tp = fmin(u.tp, LINK(r, rank_of(c, (t + 1) % c->tp, k, d, p)));
					if (c->cp > 1)
						u.cp = fmin(u.cp, LINK(r, rank_of(c, t, (k + 1) % c->cp, d, p)));
					if (c->dp > 1)
						u.dp = fmin(u.dp, LINK(r, rank_of(c, t, k, (d + 1) % c->dp, p)));
					if (p + 1 < c->pp)
						u.pp = fmin(u.pp, LINK(r, rank_of(c, t, k, d, p + 1)));
				}
#undef LINK
	return u;
}

static double oracle_cost(uint32_t n, const struct ptc_cand *c, const struct ptc_mapping_traffic *t,
			  const uint32_t *device)
{
	struct used u = slowest(n, c, device);

	return t->tp / u.tp + t->cp / u.cp + t->dp / u.dp + t->pp / u.pp; /* over infinity is 0 */
}

static bool next_permutation(uint32_t *v, uint32_t n)
{
	uint32_t i = n - 1, j = n - 1;

	while (i > 0 && v[i - 1] >= v[i])
		i--;
	if (!i)
		return false;
	while (v[j] <= v[i - 1])
		j--;
	for (uint32_t x = v[j], a = i - 1; j != a; j = a) {
		v[j] = v[a];
		v[a] = x;
	}
	for (uint32_t b = n - 1; i < b; i++, b--) {
		uint32_t x = v[i];

		v[i] = v[b];
		v[b] = x;
	}
	return true;
}

static struct ptc_cand random_cand(uint32_t n)
{
	for (;;) {
		struct ptc_cand c = { 1 + rnd(4), 1 + rnd(2), 1 + rnd(4), 1 + rnd(4), 1, 1, 1, 1, 0, 0 };

		if (ptc_cand_devices(&c) <= n)
			return c;
	}
}

static void random_links(uint32_t n)
{
	for (uint32_t a = 0; a < n; a++)
		for (uint32_t b = 0; b < n; b++)
			links[a * n + b] = a == b ? 0 : 1 + rnd(40) * 10;
}

static void test_every_permutation(void **state)
{
	for (uint64_t i = 0; i < CASES; i++) {
		uint32_t n, all[8], device[8];
		struct ptc_cand c;
		struct ptc_mapping_traffic t;
		struct ptc_mapping got;
		struct ptc_error err = PTC_ERROR_INIT;
		double best = INFINITY;
		struct ptc_link_matrix m = { .bytes_s = links };

		rng_begin(seed_of(i));
		m.n = n = i % 20 ? 2 + rnd(6) : 8;
		c = random_cand(n);
		random_links(n);
		t = (struct ptc_mapping_traffic){ rnd(1000), rnd(1000), rnd(1000), rnd(1000) };
		for (uint32_t k = 0; k < n; k++)
			all[k] = k;
		do
			best = fmin(best, oracle_cost(n, &c, &t, all));
		while (next_permutation(all, n));
		assert_int_equal(ptc_mapping_find(&m, &c, &t, device, &got, &err), 0);
		if (fabs(got.seconds - best) > 1e-9 * best || fabs(oracle_cost(n, &c, &t, device) - best) > 1e-9 * best)
			fail_msg("case %u: %g found, %g (of its devices %g) is best", (unsigned)i, got.seconds, best,
				 oracle_cost(n, &c, &t, device));
		assert_true(got.exact);
		assert_true(got.bound <= best * (1 + 1e-9));
	}
}

/* One slow pair: pipelines may cross it, tp and dp do not, wherever the pair is. */
static void test_slow_link(void **state)
{
	struct ptc_cand c = { 2, 1, 2, 2, 1, 1, 1, 1, 0, 0 };
	struct ptc_mapping_traffic t = { 100, 0, 10, 1 };

	for (uint32_t a = 0; a < 8; a++)
		for (uint32_t b = a + 1; b < 8; b++) {
			struct ptc_link_matrix m = { 8, links, NULL };
			struct ptc_mapping got;
			struct used u;
			uint32_t device[8];

			for (uint32_t i = 0; i < 64; i++)
				links[i] = 100;
			links[a * 8 + b] = 1;
			assert_int_equal(ptc_mapping_find(&m, &c, &t, device, &got, NULL), 0);
			u = slowest(8, &c, device);
			assert_true(u.tp == 100 && u.dp == 100);
		}
}

/* A slow node: 4 nodes of 4, one of which is connected slowly to all others; tp stays within nodes, and the ring of dp
 * does not cross to it either. */
static void test_slow_node(void **state)
{
	uint32_t block[16], device[16];
	struct ptc_link_matrix m = { 16, links, block };
	struct ptc_cand c = { 4, 1, 2, 2, 1, 1, 1, 1, 0, 0 };
	struct ptc_mapping_traffic t = { 1000, 0, 100, 1 };
	struct ptc_mapping got;

	for (uint32_t slow = 0; slow < 3; slow++) { /* two nodes: one pair of dp */
		struct used u;

		for (uint32_t i = 0; i < 16; i++)
			block[i] = i / 4;
		for (uint32_t a = 0; a < 16; a++)
			for (uint32_t b = 0; b < 16; b++) {
				bool crosses = a / 4 != b / 4;
				uint32_t low = (a < b ? a : b) / 4, high = (a < b ? b : a) / 4;

				links[a * 16 + b] = !crosses ? 1000 : low == slow && high == slow + 1 ? 1 : 50;
			}
		assert_int_equal(ptc_mapping_find(&m, &c, &t, device, &got, NULL), 0);
		u = slowest(16, &c, device);
		assert_true(u.tp == 1000 && u.dp == 50);
	}
}

/* Beyond 8 blocks: never worse than ranks in order, never better than the bound, each device at most once. */
static void test_many_blocks(void **state)
{
	int64_t live = ptc_alloc_live();

	for (uint64_t i = 0; i < 20; i++) {
		uint32_t n, device[MAX], order[MAX];
		bool seen[MAX] = { false };
		struct ptc_link_matrix m = { .bytes_s = links };
		struct ptc_cand c = { 2, 1, 2, 2, 1, 1, 1, 1, 0, 0 };
		struct ptc_mapping_traffic t = { 1000, 0, 100, 1 };
		struct ptc_mapping got;

		rng_begin(seed_of(1000 + i));
		m.n = n = 16 + rnd(100);
		c.dp = n / 4;
		random_links(n);
		for (uint32_t k = 0; k < n; k++)
			order[k] = k;
		assert_int_equal(ptc_mapping_find(&m, &c, &t, device, &got, NULL), 0);
		for (uint32_t r = 0; r < ptc_cand_devices(&c); r++) {
			assert_true(device[r] < n && !seen[device[r]]);
			seen[device[r]] = true;
		}
		assert_true(got.seconds <= oracle_cost(n, &c, &t, order) * (1 + 1e-9));
		assert_true(fabs(got.seconds - oracle_cost(n, &c, &t, device)) <= 1e-9 * got.seconds);
		assert_true(got.bound <= got.seconds && !got.exact);
	}
	assert_int_equal(ptc_alloc_live(), live);
}

/* 12 nodes of 4 in two halves with a thin link between: the stages go to one half each. */
static void test_two_halves(void **state)
{
	uint32_t block[48], device[48];
	struct ptc_link_matrix m = { 48, links, block };
	struct ptc_cand c = { 4, 1, 6, 2, 1, 1, 1, 1, 0, 0 };
	struct ptc_mapping_traffic t = { 1000, 0, 100, 1 };
	struct ptc_mapping got;
	struct used u;

	for (uint32_t i = 0; i < 48; i++)
		block[i] = i / 4;
	for (uint32_t a = 0; a < 48; a++)
		for (uint32_t b = 0; b < 48; b++) /* halves are the even and the odd nodes */
			links[a * 48 + b] = a / 4 == b / 4 ? 1000 : a / 4 % 2 == b / 4 % 2 ? 50 : 2;
	assert_int_equal(ptc_mapping_find(&m, &c, &t, device, &got, NULL), 0);
	u = slowest(48, &c, device);
	assert_true(u.tp == 1000 && u.dp == 50 && u.pp == 2);
}

static void test_bad_matrix(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	uint32_t device[4];
	struct ptc_link_matrix m = { 4, links, NULL };
	struct ptc_cand c = { 2, 1, 1, 2, 1, 1, 1, 1, 0, 0 };
	struct ptc_mapping_traffic t = { 1, 0, 0, 1 };
	struct ptc_mapping got;

	random_links(4);
	links[1 * 4 + 2] = -5;
	assert_int_equal(ptc_mapping_find(&m, &c, &t, device, &got, &err), PTC_EINVAL);
	assert_string_equal(err.text, "the rate from device 1 to 2 is missing or not positive");
	random_links(4);
	c.dp = 2;
	assert_int_equal(ptc_mapping_find(&m, &c, &t, device, &got, &err), PTC_ENODEVICES);
	assert_string_equal(err.text, "8 ranks need more than 4 devices");
}

/* Each allocation fails in turn: one error, nothing leaks. */
static void test_no_memory(void **state)
{
	int64_t live = ptc_alloc_live();
	int rc = PTC_ENOMEM;

	random_links(8);
	for (uint64_t at = 1; rc; at++) {
		struct ptc_link_matrix m = { 8, links, NULL };
		struct ptc_cand c = { 2, 1, 2, 2, 1, 1, 1, 1, 0, 0 };
		struct ptc_mapping_traffic t = { 100, 0, 10, 1 };
		struct ptc_mapping got;
		struct ptc_error err = PTC_ERROR_INIT;
		uint32_t device[8];

		ptc_alloc_fail_at(at);
		rc = ptc_mapping_find(&m, &c, &t, device, &got, &err);
		ptc_alloc_fail_at(0);
		assert_true(!rc || err.code == PTC_ENOMEM);
		assert_int_equal(ptc_alloc_live(), live);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_permutation), cmocka_unit_test(test_slow_link),
		cmocka_unit_test(test_slow_node),         cmocka_unit_test(test_many_blocks),
		cmocka_unit_test(test_two_halves),        cmocka_unit_test(test_bad_matrix),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
