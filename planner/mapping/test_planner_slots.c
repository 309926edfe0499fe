/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes for the ranks of a job against every assignment of them, whose links this file finds by itself from
 * coordinates; kinds of devices; many nodes against the bound. PTC_TEST_SEED=n repeats. */
#include "planner/mapping/slots.h"

#include "base/alloc.h"
#include "base/check.h"
#include "planner/test_planner_rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define CASES 150
#define MAX   64

static double links[MAX * MAX], lacks[MAX * MAX];
static uint32_t devices[MAX];
static uint8_t kind[MAX];

/* Each class has its own traffic; what a link carries takes bytes / rate. */
static const double traffic[PTC_LINK_CLASSES] = { 9, 4, 3, 2, 1 };

static double step_s(void *arg, const double bytes_s[PTC_LINK_CLASSES])
{
	double s = 1;

	(*(uint64_t *)arg)++;
	for (int k = 0; k < PTC_LINK_CLASSES; k++)
		s += bytes_s[k] > 0 ? traffic[k] / bytes_s[k] : 0;
	return s;
}

static struct ptc_cand random_cand(void)
{
	struct ptc_cand c = { 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0 };

	c.tp = 1 + rnd(2);
	c.cp = 1 + rnd(2);
	c.dp = 1 + rnd(3);
	c.pp = 1 + rnd(3);
	if (c.cp * c.dp > 1 && rnd(2))
		c.ep = c.cp * c.dp;
	return c;
}

/* The slowest link of each class, from coordinates. node_of: of ranks, tp fastest. */
static void rates(const struct ptc_cand *c, const uint32_t *node_of, uint32_t nnodes, double ret[PTC_LINK_CLASSES])
{
	uint32_t stage = c->tp * c->cp * c->dp;

	memset(ret, 0, PTC_LINK_CLASSES * sizeof *ret);
	for (uint32_t a = 0; a < stage * c->pp; a++)
		for (uint32_t b = 0; b < stage * c->pp; b++) {
			uint32_t ta = a % c->tp, tb = b % c->tp, ca = a / c->tp % c->cp, cb = b / c->tp % c->cp;
			uint32_t za = a / c->tp % (c->cp * c->dp), zb = b / c->tp % (c->cp * c->dp);
			uint32_t pa = a / stage, pb = b / stage, n = c->cp * c->dp;
			bool same = node_of[a] == node_of[b];
			const bool is[PTC_LINK_CLASSES] = {
				[PTC_LINK_TP] = pa == pb && za == zb && (ta + 1) % c->tp == tb,
				[PTC_LINK_CP] =
					pa == pb && ta == tb && za / c->cp == zb / c->cp && (ca + 1) % c->cp == cb,
				[PTC_LINK_EP] = c->ep > 1 && pa == pb && a % stage / c->ep == b % stage / c->ep,
				[PTC_LINK_DP] =
					pa == pb && ((ta == tb && (za + 1) % n == zb) ||
						     (c->ep > 1 && a % c->ep == b % c->ep &&
						      (a % stage / c->ep + 1) % (stage / c->ep) == b % stage / c->ep)),
				[PTC_LINK_PP] = a % stage == b % stage && pa + 1 == pb,
			};

			for (int k = 0; k < PTC_LINK_CLASSES; k++)
				if (is[k] && !same && (ret[k] <= 0 || links[node_of[a] * nnodes + node_of[b]] < ret[k]))
					ret[k] = links[node_of[a] * nnodes + node_of[b]];
		}
}

struct brute {
	const struct ptc_nodes_ask *a;
	const struct ptc_cand *c;
	uint32_t node[MAX], of_rank[MAX];
	bool taken[MAX];
	double best;
};

static void every(struct brute *b, uint32_t slot)
{
	const struct ptc_nodes_ask *a = b->a;
	double r[PTC_LINK_CLASSES], most = 0, worth;
	uint64_t calls = 0;

	if (slot == a->slots->n) {
		for (uint32_t i = 0; i < a->slots->world; i++)
			b->of_rank[i] = b->node[a->slots->slot[i]];
		for (uint32_t s = 0; s < a->slots->n; s++)
			most = fmax(most, a->lacks ? lacks[s * a->nnodes + b->node[s]] : 0);
		rates(b->c, b->of_rank, a->nnodes, r);
		worth = fmax(0, a->horizon_s - a->pause_s - most / a->lacks_bytes_s) / step_s(&calls, r);
		b->best = fmax(b->best, worth);
		return;
	}
	for (uint32_t n = 0; n < a->nnodes; n++) {
		if (b->taken[n] || devices[n] < a->slots->size[slot] || (a->kind && kind[n] != a->slots->kind[slot]))
			continue;
		b->taken[n] = true;
		b->node[slot] = n;
		every(b, slot + 1);
		b->taken[n] = false;
	}
}

static void random_nodes(uint32_t n, uint32_t per_node, bool kinds)
{
	for (uint32_t a = 0; a < n; a++) {
		devices[a] = rnd(5) ? per_node : per_node + rnd(3);
		kind[a] = kinds && rnd(2);
		for (uint32_t b = 0; b <= a; b++)
			links[a * n + b] = links[b * n + a] = (1 + rnd(8)) * (rnd(4) ? 1 : 0.1);
	}
}

static void as_good_as_any(void **state)
{
	for (uint64_t i = 0; i < cases(CASES); i++) {
		struct ptc_cand c;
		struct ptc_on_kinds place = { .kind = { 0, 0 } };
		struct ptc_slots s;
		struct ptc_nodes got;
		uint32_t per_node, n, node[MAX], of_rank[MAX];
		uint64_t calls = 0;
		double r[PTC_LINK_CLASSES];
		bool kinds;
		int rc;

		rng_begin(seed_of(i));
		do
			c = random_cand();
		while (ptc_cand_devices(&c) > 12);
		per_node = 1 + rnd(4);
		kinds = c.pp > 1 && rnd(2);
		if (kinds)
			place = (struct ptc_on_kinds){ { 0, 1 }, false, 1 + rnd(c.pp - 1), { 0 } };
		assert_int_equal(0, ptc_slots_new(&c, &place, per_node, &s, NULL));
		if (s.n > 5) {
			ptc_slots_done(&s);
			continue;
		}
		n = s.n + rnd(3);
		random_nodes(n, per_node, kinds);
		for (uint32_t k = 0; k < s.n * n; k++)
			lacks[k] = rnd(6);
		{
			struct ptc_nodes_ask ask = { .slots = &s,
						     .nnodes = n,
						     .devices = devices,
						     .kind = kinds ? kind : NULL,
						     .bytes_s = links,
						     .lacks = rnd(3) ? lacks : NULL,
						     .lacks_bytes_s = 0.5 + rnd(3),
						     .horizon_s = 20 + rnd(100),
						     .pause_s = rnd(4),
						     .step_s = step_s,
						     .arg = &calls };
			struct brute b = { .a = &ask, .c = &c, .best = -1 };

			every(&b, 0);
			rc = ptc_nodes_find(&ask, node, &got, NULL);
			if (b.best < 0) {
				assert_int_equal(PTC_ENODEVICES, rc);
				ptc_slots_done(&s);
				continue;
			}
			assert_int_equal(0, rc);
			for (uint32_t k = 0; k < s.world; k++)
				of_rank[k] = node[s.slot[k]];
			rates(&c, of_rank, n, r);
			if (memcmp(r, got.bytes_s, sizeof r) != 0 ||
			    fabs(fmax(0, ask.horizon_s - ask.pause_s - got.moving_s) / got.step_s - b.best) >
				    1e-6 * b.best)
				fail_msg("case %llu: PTC_TEST_SEED=%llu PTC_CASES=1", (unsigned long long)i,
					 (unsigned long long)seed_of(i));
			ptc_nodes_rates(&c, of_rank, n, links, r);
			assert_memory_equal(r, got.bytes_s, sizeof r);
			assert_true(got.gap == 0);
		}
		ptc_slots_done(&s);
	}
}

/* Two pipelines' worth of stages on nodes of which one pair is slow: the pipeline crosses it, gradients do not. */
static void the_cheapest_traffic_takes_the_slow_link(void **state)
{
	struct ptc_cand c = { 1, 1, 2, 2, 1, 1, 1, 1, 0, 0, 0 };
	struct ptc_on_kinds place = { .kind = { 0, 0 } };
	struct ptc_slots s;
	struct ptc_nodes got;
	uint32_t node[4];
	uint64_t calls = 0;
	struct ptc_nodes_ask ask = { .slots = &s,
				     .nnodes = 4,
				     .devices = devices,
				     .bytes_s = links,
				     .lacks_bytes_s = 1,
				     .horizon_s = 100,
				     .step_s = step_s,
				     .arg = &calls };

	for (uint32_t i = 0; i < 16; i++)
		links[i] = 10;
	for (uint32_t i = 0; i < 4; i++)
		devices[i] = 1;
	links[0 * 4 + 1] = links[1 * 4 + 0] = 0.1; /* the first two are the replicas of the first stage */
	assert_int_equal(0, ptc_slots_new(&c, &place, 1, &s, NULL));
	assert_int_equal(0, ptc_nodes_find(&ask, node, &got, NULL));
	assert_true(got.bytes_s[PTC_LINK_DP] == 10 && got.bytes_s[PTC_LINK_PP] == 10 && got.bytes_s[PTC_LINK_TP] == 0);
	links[0 * 4 + 2] = links[2 * 4 + 0] = links[0 * 4 + 3] = links[3 * 4 + 0] = 0.2; /* n0's links are all slow */
	assert_int_equal(0, ptc_nodes_find(&ask, node, &got, NULL));
	assert_true(got.bytes_s[PTC_LINK_DP] == 0.2 && got.bytes_s[PTC_LINK_PP] == 0.2);
	ptc_slots_done(&s);
}

static void all_links(uint32_t n, double bytes_s)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < n; k++)
			links[i * n + k] = bytes_s;
}

static struct ptc_nodes_ask plain_ask(const struct ptc_slots *s, uint32_t nnodes, uint32_t per_node, uint64_t *calls)
{
	for (uint32_t i = 0; i < nnodes; i++)
		devices[i] = per_node;
	return (struct ptc_nodes_ask){ .slots = s,
				       .nnodes = nnodes,
				       .devices = devices,
				       .bytes_s = links,
				       .lacks_bytes_s = 1,
				       .horizon_s = 100,
				       .step_s = step_s,
				       .arg = calls };
}

/* Ranks on eight nodes of one device, against all 40,320 orders. */
static void eight_on_eight(void **state)
{
	for (uint64_t i = 0; i < cases(12); i++) {
		struct ptc_on_kinds place = { .kind = { 0, 0 } };
		struct ptc_cand c;
		struct ptc_slots s;
		struct ptc_nodes got;
		uint32_t node[8];
		uint64_t calls = 0;
		struct brute b = { .c = &c, .best = -1 };
		struct ptc_nodes_ask ask;

		rng_begin(seed_of(i));
		do
			c = random_cand();
		while (ptc_cand_devices(&c) != 8);
		assert_int_equal(0, ptc_slots_new(&c, &place, 1, &s, NULL));
		random_nodes(8, 1, false);
		ask = plain_ask(&s, 8, 1, &calls);
		b.a = &ask;
		every(&b, 0);
		assert_int_equal(0, ptc_nodes_find(&ask, node, &got, NULL));
		assert_true(got.gap == 0);
		if (fabs(100 / got.step_s - b.best) > 1e-9 * b.best)
			fail_msg("case %llu: PTC_TEST_SEED=%llu PTC_CASES=1", (unsigned long long)i,
				 (unsigned long long)seed_of(i));
		ptc_slots_done(&s);
	}
}

/* One slow pair of eight: pipelines may cross it, tp and dp do not, wherever the pair is. */
static void a_slow_link_anywhere(void **state)
{
	struct ptc_cand c = { 2, 1, 2, 2, 1, 1, 1, 1, 0, 0, 0 };
	struct ptc_on_kinds place = { .kind = { 0, 0 } };
	struct ptc_slots s;

	assert_int_equal(0, ptc_slots_new(&c, &place, 1, &s, NULL));
	for (uint32_t a = 0; a < 8; a++)
		for (uint32_t b = a + 1; b < 8; b++) {
			uint64_t calls = 0;
			struct ptc_nodes_ask ask = plain_ask(&s, 8, 1, &calls);
			struct ptc_nodes got;
			uint32_t node[8];

			all_links(8, 100);
			links[a * 8 + b] = links[b * 8 + a] = 1;
			assert_int_equal(0, ptc_nodes_find(&ask, node, &got, NULL));
			assert_true(got.bytes_s[PTC_LINK_TP] == 100 && got.bytes_s[PTC_LINK_DP] == 100);
		}
	ptc_slots_done(&s);
}

/* 12 nodes of 4 in two halves, the even and the odd nodes, with thin links between: each half gets a stage. */
static void two_halves(void **state)
{
	struct ptc_cand c = { 4, 1, 6, 2, 1, 1, 1, 1, 0, 0, 0 };
	struct ptc_on_kinds place = { .kind = { 0, 0 } };
	struct ptc_slots s;
	struct ptc_nodes got;
	uint32_t node[12];
	uint64_t calls = 0;
	struct ptc_nodes_ask ask;

	assert_int_equal(0, ptc_slots_new(&c, &place, 4, &s, NULL));
	ask = plain_ask(&s, 12, 4, &calls);
	for (uint32_t a = 0; a < 12; a++)
		for (uint32_t b = 0; b < 12; b++)
			links[a * 12 + b] = a % 2 == b % 2 ? 50 : 2;
	assert_int_equal(0, ptc_nodes_find(&ask, node, &got, NULL));
	assert_true(got.bytes_s[PTC_LINK_TP] == 0); /* within nodes */
	assert_true(got.bytes_s[PTC_LINK_DP] == 50 && got.bytes_s[PTC_LINK_PP] == 2);
	ptc_slots_done(&s);
}

/* Beyond eight nodes, random links: as fast as ranks in order at least, and no faster than the bound. */
static void between_order_and_bound(void **state)
{
	for (uint64_t i = 0; i < cases(20); i++) {
		struct ptc_cand c = { 2, 1, 2, 2, 1, 1, 1, 1, 0, 0, 0 };
		struct ptc_on_kinds place = { .kind = { 0, 0 } };
		struct ptc_slots s;
		struct ptc_nodes got;
		uint32_t n, node[MAX], in_order[MAX];
		uint64_t calls = 0;
		double r[PTC_LINK_CLASSES];
		struct ptc_nodes_ask ask;

		rng_begin(seed_of(i));
		n = 12 + rnd(40);
		c.dp = n / 4;
		assert_int_equal(0, ptc_slots_new(&c, &place, 1, &s, NULL));
		random_nodes(n, 1, false);
		ask = plain_ask(&s, n, 1, &calls);
		assert_int_equal(0, ptc_nodes_find(&ask, node, &got, NULL));
		for (uint32_t k = 0; k < n; k++)
			in_order[k] = k;
		rates(&c, in_order, n, r);
		assert_true(got.step_s <= step_s(&calls, r) * (1 + 1e-9));
		assert_true(isfinite(got.gap) && got.gap >= 0);
		rates(&c, node, n, r); /* one rank a slot */
		assert_memory_equal(r, got.bytes_s, sizeof r);
		ptc_slots_done(&s);
	}
}

/* Each allocation fails in turn: one error, nothing leaks. */
static void out_of_memory(void **state)
{
	struct ptc_cand c = { 2, 1, 2, 2, 1, 1, 1, 1, 0, 0, 0 };
	struct ptc_on_kinds place = { .kind = { 0, 0 } };
	int64_t live = ptc_alloc_live();
	int rc = PTC_ENOMEM;

	all_links(8, 100);
	for (uint64_t at = 1; rc; at++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_slots s = { 0 };
		struct ptc_nodes got;
		uint32_t node[8];
		uint64_t calls = 0;

		ptc_alloc_fail_at(at);
		rc = ptc_slots_new(&c, &place, 1, &s, &err);
		if (!rc) {
			struct ptc_nodes_ask ask = plain_ask(&s, 8, 1, &calls);

			rc = ptc_nodes_find(&ask, node, &got, &err);
			ptc_slots_done(&s);
		}
		ptc_alloc_fail_at(0);
		assert_true(!rc || err.code == PTC_ENOMEM);
		assert_int_equal(ptc_alloc_live(), live);
	}
}

static void many_nodes_near_the_bound(void **state)
{
	for (uint64_t i = 0; i < cases(8); i++) {
		struct ptc_cand c = { 4, 1, 6, 4, 1, 1, 1, 1, 0, 0, 0 };
		struct ptc_on_kinds place = { .kind = { 0, 0 } };
		struct ptc_slots s;
		struct ptc_nodes got;
		uint32_t node[MAX];
		uint64_t calls = 0;
		bool seen[MAX] = { false };
		struct ptc_nodes_ask ask = { .slots = &s,
					     .nnodes = 30,
					     .devices = devices,
					     .bytes_s = links,
					     .lacks = lacks,
					     .lacks_bytes_s = 1,
					     .horizon_s = 100,
					     .step_s = step_s,
					     .arg = &calls };

		rng_begin(seed_of(i));
		assert_int_equal(0, ptc_slots_new(&c, &place, 4, &s, NULL));
		assert_int_equal(24, s.n);
		for (uint32_t k = 0; k < 30 * 30; k++) {
			links[k] = 10;
			lacks[k] = 3;
		}
		for (uint32_t k = 0; k < 30; k++)
			devices[k] = 4;
		for (uint32_t k = 0; k < 5; k++) { /* five slow pairs: enough nodes to go without each */
			uint32_t a = rnd(30), b = (a + 1 + rnd(29)) % 30;

			links[a * 30 + b] = links[b * 30 + a] = 0.01;
		}
		assert_int_equal(0, ptc_nodes_find(&ask, node, &got, NULL));
		for (uint32_t k = 0; k < s.n; k++) {
			assert_false(seen[node[k]]);
			seen[node[k]] = true;
		}
		assert_true(got.gap >= 0 && got.gap < 1e-6);
		ptc_slots_done(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_good_as_any),
		cmocka_unit_test(eight_on_eight),
		cmocka_unit_test(the_cheapest_traffic_takes_the_slow_link),
		cmocka_unit_test(a_slow_link_anywhere),
		cmocka_unit_test(two_halves),
		cmocka_unit_test(between_order_and_bound),
		cmocka_unit_test(out_of_memory),
		cmocka_unit_test(many_nodes_near_the_bound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
