/* SPDX-License-Identifier: Apache-2.0 */
/* Stages of models whose layers differ: the cut against an oracle that tries every cut, and takes those that are
 * allowed. PTC_TEST_SEED=n PTC_CASES=1 repeats the case that a failure prints. */
#include "planner/cost/stages.h"

#include "base/check.h"
#include "planner/test_planner_rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define CASES      600
#define LAYERS_MAX 10

static struct ptc_model model;
static struct ptc_cluster_profile cluster;

struct instance {
	struct ptc_work work;
	struct ptc_cand cand;
	struct ptc_layers layers;
	uint32_t stages, end; /* end: the encoder's layers */
};

/* An encoder and a decoder, or dense layers and layers with experts; samples of different lengths. */
static void random_instance(struct instance *x, uint64_t seed)
{
	bool encoder;

	rng_begin(seed);
	memset(x, 0, sizeof *x);
	memset(&cluster, 0, sizeof cluster);
	ptc_model_gpt(&model, 2 + rnd(LAYERS_MAX - 1), 512, 8, 2048, rnd(3) ? 1000 + rnd(50000) : 0, 128u << rnd(4));
	model.nkinds = 2;
	model.kinds[1] = model.kinds[0];
	encoder = rnd(3) != 0;
	x->end = encoder ? 1 + rnd(model.layers - 1) : 0;
	model.kinds[0].seq = 128u << rnd(4);
	model.kinds[1].cross = encoder;
	model.kinds[1].experts = encoder ? 0 : 4;
	model.kinds[1].topk = model.kinds[1].expert_ffn = encoder ? 0 : 2;
	for (uint32_t i = 0; i < model.layers; i++)
		model.kind[i] = encoder ? i >= x->end : (uint8_t)rnd(2);
	ptc_device_kind_known("A100-80GB", &cluster.kinds[0]);
	cluster.kinds[0].nodes = 16;
	cluster.nkinds = 1;
	cluster.per_node = 8;
	cluster.intra_bytes_s = cluster.node_bytes_s = 1e10;
	x->work = (struct ptc_work){ .model = &model,
				     .cluster = &cluster,
				     .global_batch = 32,
				     .reduce_bytes = 2,
				     .uneven = rnd(2),
				     .encoder_apart = rnd(4) != 0 };
	ptc_coefs_default(&x->work.coefs);
	ptc_memory_rules_default(&x->work.memory);
	x->cand = (struct ptc_cand){ 1, 1, 1, 1 + rnd(model.layers), 1, 1, 1, 1, 0, 0, 0 };
	if (x->cand.pp > 1 && x->cand.pp * 2 <= model.layers && 32 % x->cand.pp == 0)
		x->cand.vpp = 1 + rnd(2);
	x->stages = x->cand.pp * x->cand.vpp;
	assert_int_equal(0, ptc_cand_check(&x->work, &x->cand, NULL));
	assert_int_equal(x->end, ptc_model_encoder(&model));
	ptc_cost_layers(&x->work, &x->cand, &x->layers);
}

static double slowest(const struct instance *x, const uint32_t *cut)
{
	double most = 0;

	for (uint32_t s = 0, at = 0; s < x->stages; s++) {
		double sum = s + 1 < x->stages ? 0 : x->layers.head_s;

		for (uint32_t i = 0; i < cut[s]; i++, at++) {
			const struct ptc_layer_cost *l = &x->layers.kind[model.kind[at]];

			sum += l->compute + l->tp + l->cp + l->ep;
		}
		most = fmax(most, sum);
	}
	return most;
}

/* No stage has layers of both sides. */
static bool apart(const struct instance *x, const uint32_t *cut)
{
	uint32_t at = 0;

	for (uint32_t s = 0; s < x->stages; s++) {
		if (at < x->end && at + cut[s] > x->end)
			return false;
		at += cut[s];
	}
	return true;
}

/* As even as whole layers are, the first ones with one more: all of them, or each side by itself. */
static bool even(const uint32_t *cut, uint32_t n)
{
	for (uint32_t s = 1; s < n; s++)
		if (cut[s] > cut[s - 1] || cut[0] - cut[s] > 1)
			return false;
	return true;
}

static bool even_sides(const struct instance *x, const uint32_t *cut)
{
	uint32_t n = 0, at = 0;

	while (at < x->end)
		at += cut[n++];
	return even(cut, n) && even(cut + n, x->stages - n);
}

static bool allowed(const struct instance *x, const uint32_t *cut)
{
	bool divided = x->work.encoder_apart && x->end && x->stages > 1;

	if (divided && !apart(x, cut))
		return false;
	return x->work.uneven || (divided ? even_sides(x, cut) : even(cut, x->stages));
}

/* The fastest slowest stage of all allowed cuts of the layers from `at` on. */
static double best_cut(const struct instance *x, uint32_t *cut, uint32_t stage, uint32_t at)
{
	double best = INFINITY;

	if (stage + 1 == x->stages) {
		cut[stage] = model.layers - at;
		return allowed(x, cut) ? slowest(x, cut) : INFINITY;
	}
	for (uint32_t n = 1; at + n + (x->stages - stage - 1) <= model.layers; n++) {
		cut[stage] = n;
		best = fmin(best, best_cut(x, cut, stage + 1, at + n));
	}
	return best;
}

static void cuts_are_the_best_that_are_allowed(void **state)
{
	uint64_t divided = 0;

	(void)state;
	for (uint64_t n = 0; n < cases(CASES); n++) {
		uint32_t cut[LAYERS_MAX + 1], other[LAYERS_MAX + 1], sum = 0;
		struct instance x;
		double best, got;

		random_instance(&x, seed_of(n));
		ptc_cost_cut(&x.work, &x.cand, &x.layers, cut);
		for (uint32_t s = 0; s < x.stages; s++) {
			if (!cut[s])
				fail_msg("seed %llu: stage %u is empty", (unsigned long long)seed_of(n), s);
			sum += cut[s];
		}
		best = best_cut(&x, other, 0, 0);
		got = slowest(&x, cut);
		if (sum != model.layers || !allowed(&x, cut) || fabs(got / best - 1) > 1e-9)
			fail_msg("seed %llu: %u layers of %u, encoder %u, %u stages: %.9g s, the best is %.9g s",
				 (unsigned long long)seed_of(n), sum, model.layers, x.end, x.stages, got, best);
		divided += x.end && x.stages > 1 && x.work.encoder_apart;
	}
	assert_true(cases(CASES) < CASES || divided > CASES / 5);
}

/* An encoder of short samples beside a decoder: an even cut puts layers of both in a stage, and both parts of the cut
 * apart follow from what layers take. */
static void an_encoder_has_its_own_stages(void **state)
{
	struct ptc_work w = { .model = &model, .cluster = &cluster, .global_batch = 64, .reduce_bytes = 2 };
	struct ptc_cand c = { 1, 1, 1, 4, 1, 1, 1, 1, 0, 0, 0 };
	struct ptc_estimate mixed, divided;
	uint32_t cut[4];

	(void)state;
	ptc_coefs_default(&w.coefs);
	ptc_memory_rules_default(&w.memory);
	ptc_model_gpt(&model, 24, 1024, 16, 4096, 0, 4096);
	model.nkinds = 2;
	model.kinds[1] = model.kinds[0];
	model.kinds[0].seq = 512;
	model.kinds[1].cross = true;
	for (uint32_t i = 10; i < 24; i++)
		model.kind[i] = 1;
	assert_int_equal(10, ptc_model_encoder(&model));
	assert_int_equal(0, ptc_estimate(&w, &c, &mixed, NULL));
	assert_int_equal(0, ptc_stage_layers(&w, &c, cut, NULL));
	assert_int_equal(6, cut[1]); /* layers 6 to 11: of both */
	w.encoder_apart = true;
	assert_int_equal(0, ptc_estimate(&w, &c, &divided, NULL));
	assert_int_equal(0, ptc_stage_layers(&w, &c, cut, NULL));
	assert_int_equal(10, cut[0]); /* all of the encoder: its layers take less */
	assert_int_equal(5, cut[1]);
	assert_int_equal(5, cut[2]);
	assert_int_equal(4, cut[3]);
	assert_true(divided.step_s < mixed.step_s);
	c.pp = 1;
	assert_int_equal(0, ptc_stage_layers(&w, &c, cut, NULL));
	assert_int_equal(24, cut[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cuts_are_the_best_that_are_allowed),
		cmocka_unit_test(an_encoder_has_its_own_stages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
