/* SPDX-License-Identifier: Apache-2.0 */
/* Where an older snapshot's state goes: what is on usable nodes stays, what is on others goes to a copy or is spread,
 * and no two parts have one number on a node. Random losses, checked one by one. PTC_TEST_SEED replays. */
#include "daemon/controller/controller.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/test_seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NODES 5
#define WORLD 8

static struct ptc_view view(uint32_t world)
{
	struct ptc_view v = { .from.world = world, .from.nodes = ptc_calloc(NODES, sizeof *v.from.nodes) };

	v.from_snapshot = 7;
	v.from.config = ptc_strdup("tp=8");
	v.from.rank_node = ptc_calloc(world, sizeof *v.from.rank_node);
	v.from.rank_device = ptc_calloc(world, sizeof *v.from.rank_device);
	for (v.from.nnodes = 0; v.from.nnodes < NODES; v.from.nnodes++)
		v.from.nodes[v.from.nnodes] = ptc_asprintf("n%zu", v.from.nnodes);
	for (uint32_t r = 0; r < world; r++) {
		v.from.rank_node[r] = r % (NODES - 1); /* the last one has copies alone */
		v.from.rank_device[r] = r / (NODES - 1);
	}
	assert_int_equal(ptc_view_nodes(&v), 0);
	return v;
}

static void copy(struct ptc_view *v, const char *node, uint32_t rank)
{
	static uint8_t all[] = { 0xff };
	uint32_t keeper, items;

	assert_int_equal(ptc_copies_doc_items(&v->copies, all, sizeof all, &items), 0);
	assert_int_equal(ptc_copies_doc_hold(&v->copies, node, PTC_COPIES_TABLE | 1, &keeper), 0);
	assert_int_equal(ptc_copies_doc_add(&v->copies, keeper, rank, items), 0);
}

static const char *node_of(const struct ptc_generation_doc *g, uint32_t rank)
{
	return g->nodes[g->rank_node[rank]];
}

static void check(const struct ptc_view *v, const bool *usable, const struct ptc_generation_doc *to)
{
	assert_int_equal(to->world, v->from.world);
	assert_string_equal(to->config, "tp=8");
	for (uint32_t r = 0; r < to->world; r++) {
		uint32_t home = ptc_view_number(v, node_of(&v->from, r));

		assert_true(usable[ptc_view_number(v, node_of(to, r))]);
		if (usable[home]) {
			assert_string_equal(node_of(to, r), node_of(&v->from, r));
			assert_int_equal(to->rank_device[r], v->from.rank_device[r]);
		}
		for (uint32_t o = 0; o < r; o++)
			assert_false(to->rank_node[o] == to->rank_node[r] && to->rank_device[o] == to->rank_device[r]);
	}
}

static void test_random(void **state)
{
	(void)state;
	srand((unsigned)ptc_test_seed());
	for (int round = 0; round < 500; round++) {
		struct ptc_view v = view(1 + (uint32_t)rand() % WORLD);
		struct ptc_generation_doc to;
		bool usable[NODES], any = false;

		for (int i = 0; i < NODES; i++)
			any |= usable[i] = rand() % 2;
		if (any) {
			assert_int_equal(ptc_older_target(&v, usable, &to, NULL), 0);
			check(&v, usable, &to);
			ptc_generation_doc_done(&to);
		} else {
			assert_int_equal(ptc_older_target(&v, usable, &to, NULL), PTC_ENODEVICES);
		}
		ptc_view_done(&v);
	}
}

/* A part goes where its copy is, as long as that node is there; else to the node with the fewest. */
static void test_copy(void **state)
{
	struct ptc_view v = view(4);
	bool usable[NODES] = { false, true, true, true, true };
	struct ptc_generation_doc to;

	(void)state;
	copy(&v, "n3", 1);
	copy(&v, "n4", 0);
	assert_int_equal(ptc_view_nodes(&v), 0);
	assert_int_equal(ptc_older_target(&v, usable, &to, NULL), 0);
	check(&v, usable, &to);
	assert_string_equal(node_of(&to, 0), "n4");
	assert_int_equal(to.nnodes, 4);
	ptc_generation_doc_done(&to);
	usable[4] = usable[1] = false;
	assert_int_equal(ptc_older_target(&v, usable, &to, NULL), 0);
	check(&v, usable, &to);
	assert_string_equal(node_of(&to, 0), "n2");
	assert_string_equal(node_of(&to, 1), "n3");
	assert_int_equal(to.nnodes, 2);
	ptc_generation_doc_done(&to);
	ptc_view_done(&v);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_random), cmocka_unit_test(test_copy) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
