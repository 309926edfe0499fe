/* SPDX-License-Identifier: Apache-2.0 */
/* Votes of replicas, against an oracle that tries each digest that there is and counts whom it leaves. */
#include "daemon/agent/geometry/replica_votes.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/test_seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptc.pb-c.h"

#include <cmocka.h>

#define RANKS   7
#define DIGESTS 3

static uint64_t state;

static uint32_t rnd(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 11) % below);
}

/* The digest that counts, 1 to DIGESTS; 0: none does. */
static uint64_t oracle(const struct ptc_replica_vote *v, size_t n, bool primary)
{
	for (uint32_t rank = 0; primary && rank < 2 * RANKS; rank++)
		for (size_t i = 0; i < n; i++)
			if (v[i].rank == rank)
				return v[i].digest;
	for (uint64_t d = 1; d <= DIGESTS; d++) {
		size_t with = 0, without = 0;

		for (size_t i = 0; i < n; i++) {
			if (v[i].digest == d && !v[i].unknown)
				with++;
			else
				without++;
		}
		if (with > without)
			return d;
	}
	return 0;
}

static void test_random(void **arg)
{
	(void)arg;
	state = ptc_test_seed() | 1;
	for (int run = 0; run < 20000; run++) {
		struct ptc_replica_vote v[RANKS];
		size_t n = 1 + rnd(RANKS), nodd = 99, odd = 0;
		bool primary = rnd(2), found;
		uint32_t rank = rnd(3);
		uint64_t right;

		for (size_t i = 0; i < n; i++, rank += 1 + rnd(2))
			v[i] = (struct ptc_replica_vote){ rank, i > 0 && rnd(4) == 0, 1 + rnd(DIGESTS), rnd(2) };
		for (size_t i = n; i > 1; i--) { /* in any order */
			size_t k = rnd((uint32_t)i);
			struct ptc_replica_vote t = v[k];

			v[k] = v[i - 1];
			v[i - 1] = t;
		}
		right = oracle(v, n, primary);
		found = ptc_replica_votes(v, n, primary, &nodd);
		assert_int_equal(found, right != 0);
		for (size_t i = 0; i < n; i++) {
			assert_int_equal(v[i].odd, found && !v[i].unknown && v[i].digest != right);
			odd += v[i].odd;
		}
		assert_int_equal(nodd, odd);
	}
}

/* Two replicas have no majority; of three, one is odd; half is no majority. */
static void test_rows(void **arg)
{
	static const struct {
		const char *digests; /* by rank; in upper case: not known */
		bool primary, found;
		const char *odd;
	} k[] = {
		{ "aa", false, true, ".." },      { "ab", false, false, ".." },     { "ab", true, true, ".x" },
		{ "aab", false, true, "..x" },    { "baa", false, true, "x.." },    { "baa", true, true, ".xx" },
		{ "aabb", false, false, "...." }, { "aA", false, false, ".." },     { "aA", true, true, ".." },
		{ "aaA", false, true, "..." },    { "aaAb", false, false, "...." }, { "bAaaa", false, true, "x...." },
	};

	(void)arg;
	for (size_t i = 0; i < PTC_ARRAY_LEN(k); i++) {
		struct ptc_replica_vote v[RANKS];
		size_t n = strlen(k[i].digests), nodd;

		for (size_t r = 0; r < n; r++)
			v[r] = (struct ptc_replica_vote){ (uint32_t)r, k[i].digests[r] < 'a',
							  (uint64_t)k[i].digests[r] | 32, false };
		assert_int_equal(ptc_replica_votes(v, n, k[i].primary, &nodd), k[i].found);
		for (size_t r = 0; r < n; r++)
			assert_int_equal(v[r].odd, k[i].odd[r] == 'x');
	}
}

/* Rank 0 is odd in two tensors, and its node's list of the other rank there ends after the first one: the first one
 * tells, and of the second nothing is known. */
static void test_list_ends(void **arg)
{
	struct ptc_tensor tensors[2] = { { .name = "a", .dtype = PTC_U8, .ndim = 1, .shape = { 8 } },
					 { .name = "b", .dtype = PTC_U8, .ndim = 1, .shape = { 8 } } };
	struct ptc_spec spec = { .name = "job", .tensors = tensors, .ntensors = 2 };
	struct ptc_device ranks[4] = {
		{ .node = 0 }, { .node = 0, .index = 1 }, { .node = 1 }, { .node = 1, .index = 1 }
	};
	char names[2][3] = { "n0", "n1" }, *nodes[2] = { names[0], names[1] };
	const struct ptc_differing listed = { .rank = 1, .difference = 5 ^ 1, .more = true };
	struct ptc_geometry g = { .spec = &spec, .allocation = { ranks, 4 }, .nodes = nodes, .nnodes = 2 };
	struct ptc_digests *d;
	Ptc__V1__Generation which = PTC__V1__GENERATION__INIT;
	struct ptc_odd_rank *odd;
	struct ptc_config config;
	size_t n;

	(void)arg;
	assert_int_equal(ptc_config_parse("dp=4", &config, NULL), 0);
	assert_int_equal(ptc_layout_new(&spec, &config, (struct ptc_layout **)(void *)&g.layout, NULL), 0);
	assert_int_equal(ptc_geometry_copies(&g, &which, NULL), 0);
	assert_int_equal(ptc_digests_new(&g, &d, NULL), 0);
	for (uint32_t node = 0; node < 2; node++)
		assert_int_equal(ptc_digests_add(d, node, (uint32_t[]){ 0, 1 },
						 node ? (uint64_t[]){ 1, 2 } : (uint64_t[]){ 5, 6 }, 2, NULL),
				 0);
	assert_int_equal(ptc_odd_ranks(d, &g, &listed, 1, false, &odd, &n, NULL), 0);
	assert_int_equal(n, 1);
	assert_int_equal(odd[0].rank, 0);
	ptc_free(odd);
	ptc_digests_free(d);
	ptc_geometry_copies_done(&g);
	ptc_layout_free((struct ptc_layout *)(uintptr_t)g.layout);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_random), cmocka_unit_test(test_rows),
					    cmocka_unit_test(test_list_ends) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
