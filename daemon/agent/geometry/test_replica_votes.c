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

/* ---- ranks of nodes ---- */

#define TENSORS 100 /* of one byte each; each is box of the same number of its node */

static struct {
	struct ptc_tensor tensors[TENSORS];
	char tensor_names[TENSORS][16];
	struct ptc_device ranks[RANKS];
	struct ptc_spec spec;
	struct ptc_geometry g;
	struct ptc_digests *d;
	char names[2][3], *nodes[2];
} w;

/* Ranks 0 to n0 - 1 are on node n0, and so many more on n1; each has all tensors. */
static void world(uint32_t ntensors, uint32_t n0, uint32_t n1)
{
	Ptc__V1__Generation which;
	struct ptc_config config;
	char text[16];

	memset(&w, 0, sizeof w);
	ptc__v1__generation__init(&which);
	for (uint32_t i = 0; i < ntensors; i++) {
		snprintf(w.tensor_names[i], sizeof w.tensor_names[i], "t%03u", i);
		w.tensors[i] =
			(struct ptc_tensor){ .name = w.tensor_names[i], .dtype = PTC_U8, .ndim = 1, .shape = { 8 } };
	}
	for (uint32_t r = 0; r < n0 + n1; r++)
		w.ranks[r] = (struct ptc_device){ .node = r >= n0, .index = r < n0 ? r : r - n0 };
	for (size_t i = 0; i < 2; i++) {
		snprintf(w.names[i], sizeof w.names[i], "n%zu", i);
		w.nodes[i] = w.names[i];
	}
	w.spec = (struct ptc_spec){ .name = "job", .tensors = w.tensors, .ntensors = ntensors };
	w.g = (struct ptc_geometry){
		.spec = &w.spec, .allocation = { w.ranks, n0 + n1 }, .nodes = w.nodes, .nnodes = n1 ? 2 : 1
	};
	snprintf(text, sizeof text, "dp=%u", n0 + n1);
	assert_int_equal(ptc_config_parse(text, &config, NULL), 0);
	assert_int_equal(ptc_layout_new(&w.spec, &config, (struct ptc_layout **)(void *)&w.g.layout, NULL), 0);
	assert_int_equal(ptc_geometry_copies(&w.g, &which, NULL), 0);
	assert_int_equal(ptc_digests_new(&w.g, &w.d, NULL), 0);
}

static void world_end(void)
{
	ptc_digests_free(w.d);
	ptc_geometry_copies_done(&w.g);
	ptc_layout_free((struct ptc_layout *)(uintptr_t)w.g.layout);
}

/* The digests of the node's lowest rank. */
static void said(uint32_t node, const uint64_t *digests)
{
	uint32_t needs[TENSORS];

	for (uint32_t i = 0; i < w.spec.ntensors; i++)
		needs[i] = i;
	assert_int_equal(ptc_digests_add(w.d, node, needs, digests, w.spec.ntensors, NULL), 0);
}

/* Rank 0 is odd in two tensors, and its node's list of the other rank there ends after the first one: the first one
 * tells, and of the second nothing is known. */
static void test_list_ends(void **arg)
{
	struct ptc_differing one = { .rank = 1, .difference = 5 ^ 1, .more = true };
	const struct ptc_differing_list listed = { &one, 1, 1 };
	struct ptc_odd_rank *odd;
	size_t n;

	(void)arg;
	world(2, 2, 2);
	said(0, (uint64_t[]){ 5, 6 });
	said(1, (uint64_t[]){ 1, 2 });
	assert_int_equal(ptc_odd_ranks(w.d, &w.g, &listed, false, &odd, &n, NULL), 0);
	assert_int_equal(n, 1);
	assert_int_equal(odd[0].rank, 0);
	ptc_free(odd);
	world_end();
}

/* Some ranks of one node are odd in some or in all tensors, and parts of boxes are noted in any order. The list is
 * bounded, and what it has is right. */
static void test_lists_in_any_order(void **arg)
{
	(void)arg;
	state = ptc_test_seed() | 1;
	for (int run = 0; run < 300; run++) {
		struct ptc_differing_list l = { 0 };
		uint64_t is[RANKS][TENSORS], left[RANKS][TENSORS];
		size_t todo = 0, listed[RANKS] = { 0 };

		for (size_t r = 0; r < RANKS; r++)
			for (size_t t = 0, odd = rnd(3); t < TENSORS; t++) {
				is[r][t] = odd == 2 || (odd && rnd(3) == 0) ? 1 + rnd(1000) : 0;
				todo += is[r][t] != 0;
			}
		memcpy(left, is, sizeof is);
		while (todo) { /* one bit after the other */
			uint32_t r = rnd(RANKS), t = rnd(TENSORS);
			uint64_t bit = left[r][t] & -left[r][t];

			if (!bit)
				continue;
			assert_int_equal(ptc_differing_note(&l, r, t, t, bit, NULL), 0);
			left[r][t] ^= bit;
			todo -= !left[r][t];
		}
		for (size_t i = 0; i < l.n; i++) {
			assert_int_equal(l.v[i].difference, is[l.v[i].rank][l.v[i].need]);
			listed[l.v[i].rank]++;
		}
		for (uint32_t r = 0; r < RANKS; r++) {
			size_t differ = 0;

			for (uint32_t t = 0; t < TENSORS; t++) {
				bool has = false;

				for (size_t i = 0; i < l.n; i++) {
					has |= l.v[i].rank == r && l.v[i].need == t;
					if (l.v[i].rank == r && l.v[i].more && is[r][t])
						assert_true((t >= l.v[i].before) == (differ >= PTC_DIFFERING_MAX));
				}
				differ += is[r][t] != 0;
				assert_int_equal(has, is[r][t] && differ <= PTC_DIFFERING_MAX);
			}
			assert_int_equal(listed[r], PTC_MIN(differ, (size_t)PTC_DIFFERING_MAX));
		}
		ptc_free(l.v);
	}
}

/* All of rank 0's memory is wrong. The ranks beside it differ from it in each tensor, and note so in orders of their
 * own: the lists have the same tensors all the same, and rank 0 is named. */
static void test_all_is_wrong(void **arg)
{
	static const uint64_t wrong[TENSORS] = { 0 };
	struct ptc_differing_list l = { 0 };
	struct ptc_odd_rank *odd;
	size_t n;

	(void)arg;
	world(TENSORS, 3, 0);
	said(0, wrong);
	for (uint32_t i = 0; i < TENSORS; i++) {
		assert_int_equal(ptc_differing_note(&l, 1, i, i, 7 + i, NULL), 0);
		assert_int_equal(ptc_differing_note(&l, 2, TENSORS - 1 - i, TENSORS - 1 - i, 6 + TENSORS - i, NULL), 0);
	}
	assert_int_equal(l.n, 2 * PTC_DIFFERING_MAX);
	assert_int_equal(ptc_odd_ranks(w.d, &w.g, &l, false, &odd, &n, NULL), 0);
	assert_int_equal(n, 1);
	assert_int_equal(odd[0].rank, 0);
	assert_int_equal(odd[0].against, 2);
	ptc_free(odd);
	ptc_free(l.v);
	world_end();
}

/* A node that lists ranks of another node, or too many boxes, is not believed. */
static void test_of_others(void **arg)
{
	Ptc__V1__Differing d[2 * PTC_DIFFERING_MAX], *list[PTC_ARRAY_LEN(d)];
	Ptc__V1__PullReply said = PTC__V1__PULL_REPLY__INIT;
	struct ptc_differing_list l = { 0 };

	(void)arg;
	world(2, 2, 1);
	for (uint32_t i = 0; i < PTC_ARRAY_LEN(d); i++) {
		ptc__v1__differing__init(&d[i]);
		list[i] = &d[i];
	}
	said.differing = list;
	d[1].rank = 2;
	d[2].rank = 3;
	d[3].rank = UINT32_MAX;
	d[4].item = 2;
	said.n_differing = 5;
	assert_int_equal(ptc_differing_add(&l, &w.g, 0, &said, NULL), 0);
	assert_int_equal(l.n, 1);
	assert_int_equal(l.v[0].rank, 0);
	assert_int_equal(ptc_differing_add(&l, &w.g, 1, &said, NULL), 0);
	assert_int_equal(l.n, 2);
	assert_int_equal(l.v[1].rank, 2);
	for (uint32_t i = 0; i < PTC_ARRAY_LEN(d); i++)
		d[i].rank = 2;
	said.n_differing = PTC_ARRAY_LEN(d);
	l.n = 0;
	assert_int_equal(ptc_differing_add(&l, &w.g, 1, &said, NULL), 0);
	assert_int_equal(l.n, PTC_DIFFERING_MAX);
	ptc_free(l.v);
	world_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),       cmocka_unit_test(test_rows),
		cmocka_unit_test(test_list_ends),    cmocka_unit_test(test_lists_in_any_order),
		cmocka_unit_test(test_all_is_wrong), cmocka_unit_test(test_of_others)
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
