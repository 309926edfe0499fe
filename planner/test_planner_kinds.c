/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters of several kinds of devices: placements against an oracle that computes each one's step time from single
 * layers and from estimates of single kinds, and tries every share of the batch; the search against trying every
 * candidate. PTC_TEST_SEED=n PTC_CASES=1 repeats the case that a failure prints. */
#include "planner/search/as_config.h"
#include "planner/cost/on_kinds.h"
#include "planner/search/fastest.h"

#include "base/check.h"
#include "planner/test_planner_rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct ptc_model model;
static struct ptc_cluster_profile cluster;

/* Dense and expert layers of different lengths of samples, two or three kinds of devices. */
static struct ptc_work random_work(uint64_t seed)
{
	static const char *const names[] = { "A100-80GB", "V100-16GB", "H100-80GB", "T4" };
	struct ptc_work w = { .model = &model, .cluster = &cluster, .reduce_bytes = 2 };
	uint32_t heads;

	rng_begin(seed);
	heads = 2u << rnd(4);
	ptc_model_gpt(&model, 2 + rnd(9), heads * 64, heads, heads * 256, rnd(3) ? 1000 + rnd(50000) : 0,
		      128u << rnd(4));
	if (rnd(2)) {
		model.nkinds = 2;
		model.kinds[1] = model.kinds[0];
		model.kinds[1].ffn = 0;
		model.kinds[1].experts = 4;
		model.kinds[1].topk = 1 + rnd(2);
		model.kinds[1].expert_ffn = heads * 128;
		for (uint32_t i = 0; i < model.layers; i++)
			model.kind[i] = (uint8_t)rnd(2);
	}
	memset(&cluster, 0, sizeof cluster);
	cluster.per_node = 1u << rnd(3);
	cluster.nkinds = 2 + rnd(2);
	for (uint32_t k = 0, at = rnd(4); k < cluster.nkinds; k++) {
		ptc_device_kind_known(names[(at + k) % 4], &cluster.kinds[k]);
		cluster.kinds[k].nodes = 1 + rnd(4);
		cluster.kinds[k].price_hour = 1 + rnd(5);
	}
	cluster.intra_bytes_s = 1e9 * (1 + rnd(300));
	cluster.node_bytes_s = 1e9 * (1 + rnd(100));
	w.global_batch = 1 + rnd(64);
	w.uneven = rnd(2);
	w.uneven_batch = rnd(2);
	ptc_coefs_default(&w.coefs);
	ptc_memory_rules_default(&w.memory);
	w.memory.reserve_bytes = 1e8 * rnd(10);
	return w;
}

/* ---- the oracle ---- */

static struct ptc_cluster_profile alone_cluster[PTC_DEVICE_MAX_KINDS];

static struct ptc_work alone(const struct ptc_work *w, uint32_t kind)
{
	struct ptc_work one = *w;

	alone_cluster[kind] = cluster;
	alone_cluster[kind].nkinds = 1;
	alone_cluster[kind].kinds[0] = cluster.kinds[kind];
	one.cluster = &alone_cluster[kind];
	return one;
}

/* Step time with the first stages on x: what a single kind's estimate says of traffic, with computing, waiting and the
 * optimizer (the most dense and the most expert parameters of a device) summed here, layer by layer. The work's stages
 * are given. */
static double step_by_stages(const struct ptc_work *w, const struct ptc_cand *c, uint32_t x, uint32_t y, uint32_t first)
{
	struct ptc_work one[2] = { alone(w, x), alone(w, y) };
	struct ptc_layers l[2];
	struct ptc_estimate e;
	double busiest = 0, all = 0, most_dense = 0, most_expert = 0, bytes, m;
	uint32_t at = 0;

	for (int i = 0; i < 2; i++)
		ptc_cost_layers(&one[i], c, &l[i]);
	assert_int_equal(ptc_estimate(&one[0], c, &e, NULL), 0);
	m = e.micro_batches;
	for (uint32_t s = 0; s < c->pp; s++) {
		const struct ptc_layers *on = &l[s >= first];
		double sum = s + 1 == c->pp ? on->head_s : 0, dense = s ? 0 : on->embedding, expert = 0;

		if (s + 1 == c->pp && (!model.tied || c->pp > 1))
			dense += on->head;
		for (uint32_t i = 0; i < w->stages[s]; i++, at++) {
			const struct ptc_layer_cost *k = &on->kind[model.kind[at]];

			sum += k->compute + k->tp + k->cp + k->ep;
			dense += k->dense;
			expert += k->expert;
		}
		busiest = fmax(busiest, sum);
		all += sum;
		most_dense = fmax(most_dense, dense / cluster.kinds[s >= first ? y : x].hbm_bytes_s);
		most_expert = fmax(most_expert, expert / cluster.kinds[s >= first ? y : x].hbm_bytes_s);
	}
	if (c->zero) {
		most_dense /= c->dp * c->cp;
		most_expert *= (double)(c->ep * c->etp) / (c->tp * c->cp * c->dp);
	}
	bytes = w->memory.weight_bytes + w->memory.grad_bytes + w->memory.optim_bytes;
	return m * busiest + (all - busiest) + (most_dense + most_expert) * bytes * w->coefs.v[PTC_COEF_OPTIMIZER] +
	       e.pp_s + e.dp_s + e.fixed_s;
}

/* Every share of the batch between replicas on x and on y. */
static double step_by_data(const struct ptc_work *w, const struct ptc_cand *c, uint32_t x, uint32_t y, uint32_t first)
{
	struct ptc_work one[2] = { alone(w, x), alone(w, y) };
	uint32_t all = (w->global_batch + c->micro_batch - 1) / c->micro_batch, even = (all + c->dp - 1) / c->dp;
	/* where ranks of all replicas exchange something in each micro-batch, they have as many */
	bool uneven = w->uneven_batch && c->zero < 3 && c->ep * c->etp <= c->tp * c->cp;
	double best = INFINITY;

	for (uint32_t m = 1; m <= all; m++)
		for (uint32_t n = 1; n <= all; n++) {
			struct ptc_estimate a, b;

			if (m * first + n * (c->dp - first) < all || (!uneven && (m != even || n != even)))
				continue;
			one[0].global_batch = m * c->micro_batch * c->dp;
			one[1].global_batch = n * c->micro_batch * c->dp;
			assert_int_equal(ptc_estimate(&one[0], c, &a, NULL), 0);
			assert_int_equal(ptc_estimate(&one[1], c, &b, NULL), 0);
			best = fmin(best, fmax(a.step_s, b.step_s));
			if (uneven)
				break; /* more for the second side is slower */
		}
	return best;
}

/* Of n stages or replicas of all, the first on x. */
static double price_of(const struct ptc_cand *c, uint32_t x, uint32_t y, uint32_t n, uint32_t all)
{
	return ptc_cand_devices(c) / all * (n * cluster.kinds[x].price_hour + (all - n) * cluster.kinds[y].price_hour);
}

/* Seconds, or money where that is wanted. */
static double oracle(const struct ptc_work *w, const struct ptc_cand *c, bool money)
{
	double best = INFINITY;
	uint32_t stage = c->tp * c->cp * c->dp, replica = c->tp * c->cp * c->pp, room[PTC_DEVICE_MAX_KINDS];

	for (uint32_t k = 0; k < cluster.nkinds; k++)
		room[k] = cluster.kinds[k].nodes * cluster.per_node;
	for (uint32_t x = 0; x < cluster.nkinds; x++)
		for (uint32_t y = 0; y < cluster.nkinds; y++) {
			if (x == y && ptc_cand_devices(c) <= room[x])
				best = fmin(best,
					    step_by_stages(w, c, x, x, c->pp) * (money ? price_of(c, x, x, 1, 1) : 1));
			for (uint32_t n = 1; x != y && n < c->pp; n++)
				if (n * stage <= room[x] && (c->pp - n) * stage <= room[y])
					best = fmin(best, step_by_stages(w, c, x, y, n) *
								  (money ? price_of(c, x, y, n, c->pp) : 1));
			for (uint32_t n = 1; x != y && n < c->dp; n++)
				if (n * replica <= room[x] && (c->dp - n) * replica <= room[y])
					best = fmin(best, step_by_data(w, c, x, y, n) *
								  (money ? price_of(c, x, y, n, c->dp) : 1));
		}
	return best;
}

static struct ptc_cand random_cand(const struct ptc_work *w)
{
	struct ptc_cand c = { 1u << rnd(2),   1, 1 + rnd(4), 1 + rnd(4), 1, 1, 1, 1u << rnd(2), (uint8_t)rnd(2),
			      (uint8_t)rnd(3) };

	c.pp = PTC_MIN(c.pp, w->model->layers);
	return c;
}

static void test_placements(void **state)
{
	uint32_t by_data = 0, by_stage = 0, none = 0;

	for (uint64_t n = 0; n < cases(600); n++) {
		struct ptc_work w = random_work(seed_of(n));
		struct ptc_cand c = random_cand(&w);
		uint32_t stages[8];
		struct ptc_estimate e;
		struct ptc_placer p;
		double want, full;

		for (uint32_t i = 0, left = model.layers; i < c.pp; i++) /* any cut; its choice is tested below */
			left -= stages[i] = i + 1 == c.pp ? left : 1 + rnd(left - (c.pp - i) + 1);
		w.stages = stages;
		w.nstages = c.pp;
		assert_int_equal(ptc_cand_check(&w, &c, NULL), 0);
		ptc_placer_init(&p, &w, 1e30);
		p.cheapest = rnd(3) == 0;
		full = ptc_placer_best(&p, &c, &e);
		want = oracle(&w, &c, p.cheapest);
		if (p.cheapest && !isinf(full))
			e.step_s *= ptc_placed_price(&cluster, &c, &e.place);
		none += isinf(want);
		if (isinf(want) != isinf(full) || (!isinf(want) && fabs(e.step_s / want - 1) > 1e-9))
			fail_msg("PTC_TEST_SEED=%llu PTC_CASES=1: a step of %.9g s (or money), the oracle says %.9g",
				 (unsigned long long)seed_of(n), isinf(full) ? INFINITY : e.step_s, want);
		by_data += !isinf(full) && e.place.by_data;
		by_stage += !isinf(full) && e.place.first && !e.place.by_data;
	}
	if (cases(600) == 600)
		assert_true(by_data > 20 && by_stage > 20 && none > 5);
}

/* No cut of the layers has a faster slowest device. */
static void test_cut_by_speed(void **state)
{
	for (uint64_t n = 0; n < cases(200); n++) {
		struct ptc_work w = random_work(seed_of(n) + 1000000);
		struct ptc_cand c = { 1, 1, 1, 3, 1, 1, 1, 1, 0, 0 };
		struct ptc_work one[2] = { alone(&w, 0), alone(&w, 1) };
		struct ptc_layers l[2];
		const struct ptc_layers *const on[2] = { &l[0], &l[1] };
		const uint8_t which[3] = { 0, (uint8_t)rnd(2), 1 };
		struct ptc_pipe cut, given;

		if (model.layers < 3)
			continue;
		w.uneven = true;
		for (int i = 0; i < 2; i++)
			ptc_cost_layers(&one[i], &c, &l[i]);
		ptc_cost_pipe_mixed(&w, &c, on, which, &cut);
		for (uint32_t a = 1; a < model.layers - 1; a++)
			for (uint32_t b = 1; a + b < model.layers; b++) {
				uint32_t stages[3] = { a, b, model.layers - a - b };

				w.stages = stages;
				w.nstages = 3;
				ptc_cost_pipe_mixed(&w, &c, on, which, &given);
				if (cut.busiest_s > given.busiest_s * (1 + 1e-9))
					fail_msg("PTC_TEST_SEED=%llu PTC_CASES=1: %u,%u layers are better",
						 (unsigned long long)seed_of(n), a, b);
			}
	}
}

struct best {
	struct ptc_choice c;
	bool some;
};

static void keep(struct best *b, const struct ptc_choice *c, bool cheapest)
{
	double was = b->c.price_hour * b->c.est.step_s, is = c->price_hour * c->est.step_s;

	if (!b->some || (cheapest && is != was ? is < was : ptc_choice_compare(c, &b->c) < 0))
		b->c = *c;
	b->some = true;
}

static double price(const struct ptc_choice *c)
{
	const struct ptc_on_kinds *on = &c->est.place;
	double sum = 0;

	for (uint32_t i = 0; i < (on->by_data ? c->cand.dp : c->cand.pp); i++)
		sum += cluster.kinds[on->kind[on->first && i >= on->first]].price_hour;
	return sum * ptc_cand_devices(&c->cand) / (on->by_data ? c->cand.dp : c->cand.pp);
}

/* All candidates of the space that test_search_of_kinds searches. */
static struct best try_all(const struct ptc_work *w, uint32_t devices, bool cheapest)
{
	static struct ptc_placer p;
	struct best b = { .some = false };
	struct ptc_choice x = { .cand = { .cp = 1, .ep = 1, .etp = 1 } };
	struct ptc_cand *c = &x.cand;

	ptc_placer_init(&p, w, 0);
	p.cheapest = cheapest;
	for (c->tp = 1; c->tp <= PTC_MIN(devices, cluster.per_node); c->tp++)
		for (c->pp = 1; c->pp * c->tp <= devices; c->pp++)
			for (c->vpp = 1; c->vpp <= 2; c->vpp++)
				for (c->dp = 1; c->dp * c->pp * c->tp <= devices; c->dp++)
					for (c->micro_batch = 1; c->micro_batch <= 2; c->micro_batch++)
						for (c->recompute = 0; c->recompute < 3; c->recompute += 2)
							for (c->zero = 0; c->zero < 4; c->zero += c->zero ? 2 : 1) {
								if (c->micro_batch * c->dp >=
									    w->global_batch + c->micro_batch ||
								    c->micro_batch > w->global_batch ||
								    ptc_cand_check(w, c, NULL) ||
								    !(ptc_placer_best(&p, c, &x.est) <= 1))
									continue;
								x.price_hour = price(&x);
								keep(&b, &x, cheapest);
							}
	return b;
}

/* Whether there is a configuration that fits; *ret_mixed: the best is on two kinds. */
static bool search_as_all_tried(uint64_t seed, bool *ret_mixed)
{
	struct ptc_work w = random_work(seed + 2000000);
	struct ptc_space space = { .zero = 11, .recompute = 5, .vpp = { 2, { 1, 2 } }, .micro_batch = { 2, { 1, 2 } } };
	struct ptc_search_limits limits = { .keep = 4, .cheapest = rnd(3) == 0 };
	struct ptc_choice got[4];
	struct ptc_error err = PTC_ERROR_INIT;
	char is[PTC_CAND_TEXT_MAX] = "nothing", best[PTC_CAND_TEXT_MAX] = "nothing";
	struct best want;
	size_t ngot = 0;
	int rc;

	limits.devices = PTC_MIN(12, ptc_cluster_profile_devices(&cluster));
	want = try_all(&w, limits.devices, limits.cheapest);
	rc = ptc_search(&w, &space, &limits, NULL, got, &ngot, &err);
	*ret_mixed = !rc && got[0].est.place.first;
	if ((rc == 0) == want.some &&
	    (rc || (!ptc_cand_compare(&got[0].cand, &want.c.cand) && got[0].est.step_s == want.c.est.step_s &&
		    fabs(got[0].price_hour / want.c.price_hour - 1) <= 1e-12)))
		return !rc;
	if (!rc)
		ptc_cand_format(&got[0].cand, is);
	if (want.some)
		ptc_cand_format(&want.c.cand, best);
	fail_msg("PTC_TEST_SEED=%llu PTC_CASES=1: found %s, the best is %s; %s", (unsigned long long)seed, is, best,
		 err.text);
	return false;
}

static void test_search_of_kinds(void **state)
{
	uint32_t found = 0, mixed = 0;
	bool on_two;

	for (uint64_t n = 0; n < cases(300); n++) {
		found += search_as_all_tried(seed_of(n), &on_two);
		mixed += on_two;
	}
	if (cases(300) == 300)
		assert_true(found > 250 && mixed > 20);
	/* The best cuts layers otherwise than a cluster of the fastest devices would, and reduces fewer gradients. */
	assert_true(search_as_all_tried(1384711070, &on_two) && on_two);
}

/* One fast and one slow node: with layers by speed both together beat either alone, and beat equal halves. */
static void test_layers_by_speed(void **state)
{
	struct ptc_work w = random_work(1);
	struct ptc_cand c = { 1, 1, 1, 2, 1, 1, 1, 1, 0, 0 };
	struct ptc_estimate even, by_speed;
	static struct ptc_config config;

	ptc_model_gpt(&model, 12, 1024, 16, 4096, 0, 1024);
	cluster =
		(struct ptc_cluster_profile){ .per_node = 1, .nkinds = 2, .intra_bytes_s = 1e11, .node_bytes_s = 1e11 };
	ptc_device_kind_known("A100-80GB", &cluster.kinds[0]);
	cluster.kinds[1] = cluster.kinds[0];
	cluster.kinds[1].flops /= 3;
	cluster.kinds[1].hbm_bytes_s /= 3;
	cluster.kinds[0].nodes = cluster.kinds[1].nodes = 1;
	w.coefs.v[PTC_COEF_LAUNCH] = w.coefs.v[PTC_COEF_SMALL] = 1e-9; /* as fast as the peaks are */
	w.global_batch = 64;
	w.uneven = w.uneven_batch = false;
	assert_int_equal(ptc_estimate(&w, &c, &even, NULL), 0);
	w.uneven = true;
	assert_int_equal(ptc_estimate(&w, &c, &by_speed, NULL), 0);
	assert_true(fabs(even.compute_s / by_speed.compute_s - 2) < 0.01); /* 6 slow layers against 3 */
	c = (struct ptc_cand){ 1, 1, 2, 1, 1, 1, 1, 1, 0, 0 };
	w.uneven_batch = true;
	assert_int_equal(ptc_estimate(&w, &c, &by_speed, NULL), 0);
	assert_true(by_speed.place.by_data);
	assert_int_equal(by_speed.place.micro_batches[0] + by_speed.place.micro_batches[1], 64);
	assert_in_range(by_speed.place.micro_batches[0], 47, 49); /* three times as many on the faster */
	assert_int_equal(ptc_cand_config_on(&w, &c, &by_speed.place, &config, NULL), 0);
	assert_int_equal(config.micro_steps.n, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(config.micro_steps.v[i].ranks, 1);
		assert_int_equal(config.micro_steps.v[i].steps, by_speed.place.micro_batches[i]);
	}
	c.zero = 3; /* whose ranks gather weights in each micro-batch */
	assert_int_equal(ptc_estimate(&w, &c, &by_speed, NULL), 0);
	assert_true(by_speed.place.by_data);
	assert_true(by_speed.place.micro_batches[0] == 32 && by_speed.place.micro_batches[1] == 32);
	assert_int_equal(ptc_cand_config_on(&w, &c, &by_speed.place, &config, NULL), 0);
	assert_int_equal(config.micro_steps.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_placements),
		cmocka_unit_test(test_cut_by_speed),
		cmocka_unit_test(test_search_of_kinds),
		cmocka_unit_test(test_layers_by_speed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
