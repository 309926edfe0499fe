/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of other systems' own tests that rules do not express or that are
 * about boxes: shards of stated sizes, which ranks declare, and slices. Where
 * each comes from stands with it; nothing but the numbers is theirs. */
#include "reshard/declared.h"
#include "reshard/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS 8
#define SIZE  64 /* most elements of a case */

static void declare(const int64_t *sizes, struct ptc_declared *ret, struct ptc_layout **ret_layout)
{
	struct ptc_declared_merge *m;
	struct ptc_config c;
	int64_t total = 0, at = 0;
	char text[16];

	for (int r = 0; r < RANKS; r++)
		total += sizes[r];
	snprintf(text, sizeof text, "dp=%d", RANKS);
	assert_int_equal(ptc_config_parse(text, &c, NULL), 0);
	assert_int_equal(ptc_declared_merge_new(&c, &m, NULL), 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		struct ptc_declared_tensor t = { "keyA", PTC_BF16, 1, &total, false, sizes[r] > 0, &at, &sizes[r] };

		assert_int_equal(ptc_declared_merge_add(m, r, &t, 1, NULL), 0);
		at += sizes[r];
	}
	assert_int_equal(ptc_declared_merge_finish(m, ret, NULL), 0);
	ptc_declared_merge_free(m);
	assert_int_equal(ptc_layout_declared_new(ret, ret_layout, NULL), 0);
}

/* The owner of each element when sizes are dealt out one after the other. */
static int deal(const int64_t *sizes, int *owner)
{
	int n = 0;

	for (int r = 0; r < RANKS; r++)
		for (int64_t i = 0; i < sizes[r]; i++)
			owner[n++] = r;
	return n;
}

static void check_switch(const int64_t *a, const int64_t *b)
{
	struct ptc_device devices[RANKS];
	struct ptc_allocation alloc = { devices, RANKS };
	struct ptc_declared before = { 0 }, after = { 0 };
	struct ptc_layout *from = NULL, *to = NULL;
	struct ptc_plan *plan = NULL;
	int was[SIZE], now[SIZE], got[SIZE] = { 0 }, n = deal(a, was), moved = 0;

	assert_int_equal(deal(b, now), n);
	for (uint32_t r = 0; r < RANKS; r++)
		devices[r] = (struct ptc_device){ .node = r };
	declare(a, &before, &from);
	declare(b, &after, &to);
	assert_int_equal(ptc_plan_new(&before.spec, from, &alloc, to, &alloc, RANKS, NULL, &plan, NULL), 0);
	for (size_t i = 0; i < plan->nmoves; i++) {
		const struct ptc_move *m = &plan->moves[i];

		for (int64_t e = m->box.off[0] / 2; e < (m->box.off[0] + m->box.ext[0]) / 2; e++) {
			assert_int_equal(was[e], m->src_node);
			assert_int_equal(now[e], m->dst_node);
			got[e]++;
		}
	}
	for (int e = 0; e < n; e++) {
		assert_int_equal(got[e], was[e] != now[e]);
		moved += was[e] != now[e];
	}
	assert_int_equal(plan->between_nodes, 2 * moved);
	ptc_plan_free(plan);
	ptc_layout_free(from);
	ptc_layout_free(to);
	ptc_declared_done(&before);
	ptc_declared_done(&after);
}

/* Megatron-core tests/unit_tests/dist_checkpointing/test_serialization.py, test_uneven_1d_sharding: sizes by rank of 8,
 * from one row to the same, and to another. */
static void megatron_uneven_1d(void **state)
{
	static const int64_t same[][RANKS] = {
		{ 3, 3, 3, 3, 3, 3, 3, 3 }, { 1, 2, 3, 4, 5, 6, 7, 8 },  { 1, 5, 7, 3, 6, 2, 5, 4 },
		{ 2, 2, 2, 2, 2, 2, 2, 1 }, { 2, 2, 2, 2, 2, 2, 2, 10 },
	};
	static const int64_t other[][2][RANKS] = {
		{ { 3, 3, 3, 3, 3, 3, 3, 3 }, { 1, 1, 1, 1, 1, 1, 2, 16 } },
		{ { 1, 5, 7, 3, 6, 2, 5, 4 }, { 14, 3, 6, 3, 1, 1, 2, 3 } },
		{ { 5, 5, 5, 5, 5, 5, 0, 0 }, { 5, 0, 5, 0, 5, 5, 3, 7 } },
		{ { 15, 0, 0, 0, 0, 0, 0, 0 }, { 0, 0, 0, 3, 3, 3, 3, 3 } },
	};

	for (size_t i = 0; i < sizeof same / sizeof *same; i++)
		check_switch(same[i], same[i]);
	for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
		check_switch(other[i][0], other[i][1]);
		check_switch(other[i][1], other[i][0]);
	}
}

/* NVIDIA ModelExpress, slice plans of a [4, 8] tensor: columns 0 to 4 out of the whole; the whole out of two halves;
 * nothing of a disjoint shard. Offsets in elements of 2 bytes. */
static void modelexpress_slices(void **state)
{
	const struct ptc_box whole = { 2, { 0, 0 }, { 4, 16 } }, left = { 2, { 0, 0 }, { 4, 8 } },
			     right = { 2, { 0, 8 }, { 4, 8 } };
	struct ptc_box cut;
	struct ptc_runs r;
	int64_t n = 0;

	assert_true(ptc_box_intersect(&whole, &left, &cut));
	for (ptc_runs_init(&r, &whole, &left, &cut); r.done < r.count; ptc_runs_next(&r), n++) {
		assert_int_equal(r.a_off / 2, 8 * n);
		assert_int_equal(r.b_off / 2, 4 * n);
		assert_int_equal(r.run_bytes / 2, 4);
	}
	assert_int_equal(n, 4);
	for (int half = 0; half < 2; half++) {
		const struct ptc_box *src = half ? &right : &left;

		assert_true(ptc_box_intersect(src, &whole, &cut));
		n = 0;
		for (ptc_runs_init(&r, src, &whole, &cut); r.done < r.count; ptc_runs_next(&r), n++)
			assert_int_equal(r.b_off / 2, 8 * n + 4 * half);
		assert_int_equal(n, 4);
	}
	assert_false(ptc_box_intersect(&left, &right, &cut));
}

/* Megatron-core's rank generators for dense and for expert tensors (parallel_state.py): 16 ranks as tp 2, dp 4, pp 2. */
static void megatron_expert_groups(void **state)
{
	struct ptc_config c;

	assert_int_equal(ptc_config_parse("tp=2,dp=4,pp=2,ep=4", &c, NULL), 0);
	for (uint32_t r = 0; r < 16; r++) {
		struct ptc_coords k = ptc_config_coords(&c, r);
		struct ptc_expert_coords e = ptc_config_expert_coords(&c, r);

		/* expert groups are [0 1 2 3] [4 5 6 7] ..., data-parallel ones of experts [0 4] [1 5] ... */
		assert_int_equal(k.tp, r % 2);
		assert_int_equal(k.pp, r / 8);
		assert_int_equal(e.etp, 0);
		assert_int_equal(e.ep, r % 4);
		assert_int_equal(e.edp, r % 8 / 4);
	}
	assert_int_equal(ptc_config_parse("tp=2,dp=4,pp=2,ep=2,etp=2", &c, NULL), 0);
	for (uint32_t r = 0; r < 16; r++) {
		struct ptc_expert_coords e = ptc_config_expert_coords(&c, r);

		assert_int_equal(e.etp, r % 2);
		assert_int_equal(e.ep, r / 2 % 2);
		assert_int_equal(e.edp, r % 8 / 4);
	}
	/* dp before ep: experts' ranks are apart, and pp in between takes nothing from the division of a stage */
	assert_int_equal(ptc_config_parse("tp=2,dp=4,pp=2,ep=2,etp=2,order=tp-pp-dp-ep-cp", &c, NULL), 0);
	for (uint32_t r = 0; r < 16; r++) {
		struct ptc_expert_coords e = ptc_config_expert_coords(&c, r);
		uint32_t in_stage = r / 4 * 2 + r % 2;

		assert_int_equal(ptc_config_coords(&c, r).pp, r / 2 % 2);
		assert_int_equal(e.etp, in_stage % 2);
		assert_int_equal(e.edp, in_stage / 2 % 2);
		assert_int_equal(e.ep, in_stage / 4);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(megatron_uneven_1d),
		cmocka_unit_test(modelexpress_slices),
		cmocka_unit_test(megatron_expert_groups),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
