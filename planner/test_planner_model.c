/* SPDX-License-Identifier: Apache-2.0 */
/* Formulas against numbers that their papers print, and inputs that cannot be. */
#include "planner/cost/step.h"
#include "planner/fit/fit.h"
#include "planner/infer.h"
#include "planner/search/as_config.h"
#include "planner/search/fastest.h"

#include "base/alloc.h"
#include "base/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct ptc_model model;
static struct ptc_cluster_profile cluster;

static struct ptc_work work_of(uint32_t batch)
{
	struct ptc_work w = { .model = &model, .cluster = &cluster, .global_batch = batch, .reduce_bytes = 2 };

	ptc_coefs_default(&w.coefs);
	ptc_memory_rules_default(&w.memory);
	memset(&cluster, 0, sizeof cluster);
	cluster.per_node = 8;
	cluster.nkinds = 1;
	ptc_device_kind_known("A100-80GB", &cluster.kinds[0]);
	cluster.kinds[0].nodes = 128;
	cluster.intra_bytes_s = 200e9;
	cluster.node_bytes_s = 80e9;
	cluster.intra_latency_s = 2e-5;
	cluster.node_latency_s = 5e-5;
	return w;
}

/* SC'21, Table 1: printed in billions. */
static void test_sc21_sizes(void **state)
{
	static const struct {
		uint32_t layers, hidden, heads;
		double printed, digit;
	} rows[] = { { 24, 2304, 24, 1.7, 0.1 },      { 30, 3072, 32, 3.6, 0.1 },     { 36, 4096, 32, 7.5, 0.1 },
		     { 40, 6144, 48, 18.4, 0.1 },     { 48, 8192, 64, 39.1, 0.1 },    { 60, 10240, 80, 76.1, 0.1 },
		     { 80, 12288, 96, 145.6, 0.1 },   { 96, 16384, 128, 310.1, 0.1 }, { 105, 20480, 128, 529.6, 0.1 },
		     { 128, 25600, 160, 1008.0, 0.1 } };

	for (size_t i = 0; i < PTC_ARRAY_LEN(rows); i++) {
		double p, counted;

		ptc_model_gpt(&model, rows[i].layers, rows[i].hidden, rows[i].heads, 4 * rows[i].hidden, 51200, 2048);
		assert_int_equal(ptc_model_check(&model, NULL), 0);
		p = ptc_model_params_sc21(&model) / 1e9;
		counted = ptc_model_params(&model) / 1e9;
		assert_true(round(p / rows[i].digit) == round(rows[i].printed / rows[i].digit));
		/* Counted from matrices: the formula leaves out the last norm, 2h. */
		assert_true(fabs(counted - p - 2e-9 * rows[i].hidden) < 1e-9);
	}
}

static void test_llama_flops(void **state)
{
	ptc_model_gpt(&model, 80, 8192, 64, 28672, 128256, 8192);
	model.kinds[0].kv_heads = 8;
	model.kinds[0].glu = true;
	model.tied = model.positions = model.bias = model.dropout = false;
	assert_true(fabs(ptc_model_flops_token(&model) / 1e9 - 449.2) < 0.05);
}

/* Korthikanti et al., Figure 1: GiB of activations on the first stage, 22B and 1T. */
static void test_korthikanti(void **state)
{
	static const struct {
		uint32_t layers, hidden, heads, tp, held, batch; /* held: layers' worth on the first stage */
		double none, selective;                          /* the latter with sequence parallelism */
	} rows[] = { { 48, 6144, 64, 8, 48, 4, 59.25, 9.5625 }, { 128, 25600, 160, 8, 128, 1, 131.25, 26.5625 } };

	for (size_t i = 0; i < PTC_ARRAY_LEN(rows); i++) {
		const struct ptc_layer_kind *k = &model.kinds[0];
		double sbh, full, none, selective;

		ptc_model_gpt(&model, rows[i].layers, rows[i].hidden, rows[i].heads, 4 * rows[i].hidden, 51200, 2048);
		sbh = 2048.0 * rows[i].batch * rows[i].hidden;
		none = ptc_layer_activations(&model, k, 8, 1, rows[i].batch, false, PTC_RECOMPUTE_NONE);
		selective = ptc_layer_activations(&model, k, 8, 1, rows[i].batch, true, PTC_RECOMPUTE_SELECTIVE);
		full = ptc_layer_activations(&model, k, 8, 1, rows[i].batch, false, PTC_RECOMPUTE_FULL);
		assert_true(fabs(none * rows[i].held / 0x1p30 - rows[i].none) < 1e-6);
		assert_true(fabs(selective * rows[i].held / 0x1p30 - rows[i].selective) < 1e-6);
		assert_true(full == 2 * sbh);
	}
}

/* Interleaving holds 1 + (p - 1)/(p v) times the layers of the first device, whatever the schedule's length. */
static void test_interleaved_activations(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand c = { 1, 1, 1, 4, 1, 1, 1, 1, 0, PTC_RECOMPUTE_FULL };
	struct ptc_estimate plain, twice;

	ptc_model_gpt(&model, 32, 1024, 16, 4096, 1, 1024);
	w.memory.logit_bytes = 0;
	w.memory.weight_bytes = w.memory.grad_bytes = w.memory.optim_bytes = 0;
	w.memory.reserve_bytes = 0;
	assert_int_equal(ptc_estimate(&w, &c, &plain, NULL), 0);
	c.vpp = 2;
	assert_int_equal(ptc_estimate(&w, &c, &twice, NULL), 0);
	{
		double layer = 2.0 * 1024 * 1024;
		double work = ptc_layer_activations(&model, &model.kinds[0], 1, 1, 1, false, PTC_RECOMPUTE_NONE);

		assert_true(fabs(plain.activation_bytes - (32 * layer + work)) < 1);
		assert_true(fabs(twice.activation_bytes - (32 * layer * (1 + 3.0 / 8) + work)) < 1);
	}
	assert_true(twice.bubble_s == plain.bubble_s / 2);
}

/* The peak is what is needed and the allocator's share of activations; of a pipeline's devices the largest. A measured
 * peak has that share in it. */
static void test_peak_and_need(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand c = { 2, 1, 2, 4, 1, 1, 1, 2, 1, PTC_RECOMPUTE_NONE };
	struct ptc_estimate e, lean;
	struct ptc_peak_row row = { &w, c, 30e9 };
	double device[4], most = 0;

	ptc_model_gpt(&model, 32, 2048, 16, 8192, 50257, 1024);
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	assert_true(fabs(e.memory_bytes - e.state_bytes - e.activation_bytes - PTC_MEMORY_RESERVE) < 1);
	assert_true(fabs(e.peak_bytes - e.memory_bytes - 0.15 * e.activation_bytes) < 1);
	assert_int_equal(ptc_pipe_memory(&w, &c, device, NULL), 0);
	for (int i = 0; i < 4; i++)
		most = PTC_MAX(most, device[i]);
	assert_true(most == e.peak_bytes && device[3] < device[0]);
	model.kinds[0].glu = true;
	assert_int_equal(ptc_estimate(&w, &c, &lean, NULL), 0);
	model.eager_glu = true; /* one 2-byte tensor more of each layer's ffn */
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	assert_true(fabs(e.activation_bytes - lean.activation_bytes - 4 * 8 * 2.0 * 2 * 1024 * 8192 / 2) < 1);
	assert_int_equal(ptc_fit_peaks(&row, 1, &w.memory, NULL), 0);
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	assert_true(w.memory.waste == 0 && e.peak_bytes == e.memory_bytes);
}

/* The bubble is (p - 1)/m of the busiest device's work where stages are equal. */
static void test_bubble(void **state)
{
	struct ptc_work w = work_of(16);
	struct ptc_cand c = { 1, 1, 1, 4, 1, 1, 1, 1, 0, 0 };
	struct ptc_estimate e;

	ptc_model_gpt(&model, 32, 1024, 16, 4096, 0, 1024);
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	assert_true(fabs(e.bubble_s / (e.compute_s + e.tp_s) - 3.0 / 16) < 1e-9);
	w.schedule = PTC_SCHEDULE_ZB1P;
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	assert_true(fabs(e.bubble_s / (e.compute_s + e.tp_s) - 1.0 / 16) < 1e-9);
}

static void test_zero_cuts_states(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand c = { 1, 1, 8, 1, 1, 1, 1, 1, 0, PTC_RECOMPUTE_FULL };
	struct ptc_estimate e;
	double p;

	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	p = ptc_model_params(&model) - 2 * 2048; /* the last norm is not counted on a device */
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	assert_true(fabs(e.state_bytes / (18 * p) - 1) < 1e-9);
	c.zero = 1; /* Megatron's 6 + 12/dp */
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	assert_true(fabs(e.state_bytes / ((6 + 12.0 / 8) * p) - 1) < 1e-9);
	c.zero = 3;
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	assert_true(e.state_bytes > 18 * p / 8 && e.state_bytes < 18 * p / 8 * 1.2);
}

/* Uneven stages: the last, which has the head, gets fewer layers, and no other cut has a faster slowest stage. */
static void test_uneven_stages(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand c = { 1, 1, 1, 3, 1, 1, 1, 2, 0, 0 };
	struct ptc_estimate cut, other;
	uint32_t layers[3];

	ptc_model_gpt(&model, 13, 2048, 16, 8192, 200000, 1024);
	w.uneven = true;
	assert_int_equal(ptc_stage_layers(&w, &c, layers, NULL), 0);
	assert_int_equal(layers[0] + layers[1] + layers[2], 13);
	assert_true(layers[2] < layers[1]);
	assert_int_equal(ptc_estimate(&w, &c, &cut, NULL), 0);
	for (uint32_t a = 1; a <= 11; a++)
		for (uint32_t b = 1; a + b <= 12; b++) {
			uint32_t given[3] = { a, b, 13 - a - b };

			w.stages = given;
			w.nstages = 3;
			assert_int_equal(ptc_estimate(&w, &c, &other, NULL), 0);
			assert_true(cut.compute_s <= other.compute_s * (1 + 1e-9));
		}
}

/* Galvatron's file for two nodes of eight: groups of neighbours against strided ones. */
static void test_measured_groups(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand near = { 1, 1, 8, 2, 1, 1, 1, 1, 0, 0 };

	cluster.kinds[0].nodes = 2;
	cluster.groups[0] = (struct ptc_measured_group){ 8, 1, 155.658e9 };
	cluster.groups[1] = (struct ptc_measured_group){ 8, 2, 20.7724e9 };
	cluster.ngroups = 2;
	assert_int_equal(ptc_cluster_profile_check(&cluster, NULL), 0);
	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	w.coefs.v[PTC_COEF_NODE] = w.coefs.v[PTC_COEF_INTRA] = 1;
	{
		struct ptc_cand far = { 2, 1, 8, 1, 1, 1, 1, 1, 0, 0 };
		struct ptc_estimate a, b;
		double params[2];

		assert_int_equal(ptc_estimate(&w, &near, &a, NULL), 0);
		assert_int_equal(ptc_estimate(&w, &far, &b, NULL), 0);
		/* Per parameter that is reduced, the strided group takes 7.49 times as long. */
		params[0] = (a.state_bytes) / 18;
		params[1] = (b.state_bytes) / 18;
		assert_true(fabs(b.dp_s / params[1] / (a.dp_s / params[0]) - 155.658 / 20.7724) < 1e-6);
	}
}

/* Galvatron's file of pipelines on two nodes of eight: a hop takes as long as its pair was measured to, each way. */
static void test_measured_hops(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand across = { 2, 1, 1, 8, 1, 1, 1, 1, 0, 0 }, within = { 1, 1, 1, 8, 1, 1, 1, 1, 0, 0 };
	struct ptc_estimate before, after;
	double bytes = 2.0 * 1024 * 2048, m = 64;

	cluster.kinds[0].nodes = 2;
	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	w.coefs.v[PTC_COEF_NODE] = 0.5;
	w.coefs.v[PTC_COEF_INTRA] = 0.8;
	assert_int_equal(ptc_estimate(&w, &within, &before, NULL), 0);
	cluster.hops[cluster.nhops++] = (struct ptc_measured_group){ 8, 2, 8.76278e9 };
	assert_int_equal(ptc_cluster_profile_check(&cluster, NULL), 0);
	assert_int_equal(ptc_estimate(&w, &across, &after, NULL), 0);
	assert_true(fabs(after.pp_s / ((m - 1 + 7) * 2 * bytes / 2 / (8.76278e9 * 0.5)) - 1) < 1e-9);
	assert_int_equal(ptc_estimate(&w, &within, &after, NULL), 0); /* its stages lie otherwise */
	assert_true(after.step_s == before.step_s);
	cluster.hops[cluster.nhops++] = (struct ptc_measured_group){ 8, 1, 109.45e9 };
	assert_int_equal(ptc_estimate(&w, &within, &after, NULL), 0);
	assert_true(fabs(after.pp_s / ((m - 1 + 7) * 2 * bytes / (109.45e9 * 0.8)) - 1) < 1e-9);
}

/* The overlap says how much slower the device computes while it gathers the weights of ZeRO 3. */
static void test_overlap(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand c = { 1, 1, 8, 1, 1, 1, 1, 8, 3, 0 };
	struct ptc_estimate usual, same, none, twice;

	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	w.coefs.v[PTC_COEF_DP] = 1;
	assert_int_equal(ptc_estimate(&w, &c, &usual, NULL), 0);
	cluster.overlap = PTC_OVERLAP_DEFAULT;
	assert_int_equal(ptc_estimate(&w, &c, &same, NULL), 0);
	assert_true(same.step_s == usual.step_s && usual.dp_s > 0);
	cluster.overlap = 1;
	assert_int_equal(ptc_estimate(&w, &c, &none, NULL), 0);
	cluster.overlap = 2;
	assert_int_equal(ptc_estimate(&w, &c, &twice, NULL), 0);
	assert_true(none.dp_s == 0); /* all is hidden here */
	assert_true(fabs(usual.dp_s / twice.dp_s - 0.1256) < 1e-9);
}

static void expect_line(int rc, const struct ptc_error *err, const char *has)
{
	assert_int_not_equal(rc, 0);
	assert_non_null(strstr(err->text, has));
	assert_null(strchr(err->text, '\n'));
}

static void test_bad_models(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;

	ptc_model_gpt(&model, 0, 64, 4, 256, 100, 128);
	expect_line(ptc_model_check(&model, &err), &err, "layers is 0");
	ptc_model_gpt(&model, 4, 0, 4, 256, 100, 128);
	expect_line(ptc_model_check(&model, &err), &err, "hidden is 0");
	ptc_model_gpt(&model, 4, 64, 4, 256, 100, 0);
	expect_line(ptc_model_check(&model, &err), &err, "seq is 0");
	ptc_model_gpt(&model, 4, 64, 4, 256, 100, 128);
	model.kinds[0].kv_heads = 3;
	expect_line(ptc_model_check(&model, &err), &err, "kv_heads is 3");
	ptc_model_gpt(&model, 4, 64, 4, 256, 100, 128);
	model.kinds[0].experts = 4;
	expect_line(ptc_model_check(&model, &err), &err, "topk is 0");
	model.kinds[0].topk = 5;
	expect_line(ptc_model_check(&model, &err), &err, "topk is 5");
	model.kind[2] = 1;
	expect_line(ptc_model_check(&model, &err), &err, "kind is 1");
}

static void test_bad_profiles(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_work w = work_of(8);

	(void)w;
	cluster.node_bytes_s = -1;
	expect_line(ptc_cluster_profile_check(&cluster, &err), &err, "between nodes");
	work_of(8);
	cluster.intra_bytes_s = NAN;
	expect_line(ptc_cluster_profile_check(&cluster, &err), &err, "within a node");
	work_of(8);
	cluster.kinds[0].memory_bytes = 0;
	expect_line(ptc_cluster_profile_check(&cluster, &err), &err, "memory of device A100-80GB");
	work_of(8);
	cluster.groups[cluster.ngroups++] = (struct ptc_measured_group){ 8, 1, -3 };
	expect_line(ptc_cluster_profile_check(&cluster, &err), &err, "link of 8 devices, 1 apart");
	work_of(8);
	cluster.hops[cluster.nhops++] = (struct ptc_measured_group){ 2, 0, 1e9 };
	expect_line(ptc_cluster_profile_check(&cluster, &err), &err, "hop of 2 devices, 0 apart");
	work_of(8);
	cluster.overlap = 0.5;
	expect_line(ptc_cluster_profile_check(&cluster, &err), &err, "the overlap is 0.5; it must be in 1..100");
	work_of(8);
	cluster.per_node = 0;
	expect_line(ptc_cluster_profile_check(&cluster, &err), &err, "0 devices per node");
}

static void test_bad_requests(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_work w = work_of(64);
	struct ptc_space space = { .zero = 1 };
	struct ptc_search_limits limits = { .devices = 0, .keep = 4 };
	struct ptc_choice v[4];
	struct ptc_estimate e;
	struct ptc_calibration *cal;
	size_t n;

	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	expect_line(ptc_search(&w, &space, &limits, NULL, v, &n, &err), &err, "0 devices");
	limits.devices = 1025;
	expect_line(ptc_search(&w, &space, &limits, NULL, v, &n, &err), &err,
		    "1025 devices are asked for; the profile has 1024");
	limits.devices = 8;
	limits.memory_bytes = 1e9;
	expect_line(ptc_search(&w, &space, &limits, NULL, v, &n, &err), &err, "nothing fits on 8 devices of 1.0 GB");
	expect_line(ptc_estimate(&w, &(struct ptc_cand){ 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 }, &e, &err), &err, "tp=3");
	expect_line(ptc_estimate(&w, &(struct ptc_cand){ 1, 1, 1, 25, 1, 1, 1, 1, 0, 0 }, &e, &err), &err,
		    "more stages");
	expect_line(ptc_estimate(&w, &(struct ptc_cand){ 1, 1, 0, 1, 1, 1, 1, 1, 0, 0 }, &e, &err), &err, "degree");
	expect_line(ptc_calibration_new(NULL, 0, NULL, &cal, &err), &err, "no measured step");
	{
		struct ptc_fit_row row = { &w, { 1, 1, 8, 1, 1, 1, 1, 1, 0, 0 }, -1 };

		expect_line(ptc_calibration_new(&row, 1, NULL, &cal, &err), &err,
			    "micro_batch=1 is not a positive time");
		row.step_s = 1;
		row.noise = -0.1;
		expect_line(ptc_calibration_new(&row, 1, NULL, &cal, &err), &err, "the noise of the measured step of");
		row.noise = NAN;
		expect_line(ptc_calibration_new(&row, 1, NULL, &cal, &err), &err, "the noise of the measured step of");
	}
	w.global_batch = 0;
	limits.memory_bytes = 0;
	expect_line(ptc_search(&w, &space, &limits, NULL, v, &n, &err), &err, "global batch is 0");
}

/* Steps made by a model with other coefficients: calibration finds the times again, and nothing leaks. */
static void test_calibration_recovers(void **state)
{
	int64_t live = ptc_alloc_live();
	struct ptc_work w = work_of(64), truth = w;
	struct ptc_fit_row rows[24];
	struct ptc_calibration *cal;
	struct ptc_error err = PTC_ERROR_INIT;
	size_t n = 0;

	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	truth.coefs.v[PTC_COEF_GEMM] = 0.4;
	truth.coefs.v[PTC_COEF_LAUNCH] = 2e-3;
	truth.coefs.v[PTC_COEF_INTRA] = 0.5;
	for (uint32_t tp = 1; tp <= 4; tp *= 2)
		for (uint32_t pp = 1; pp <= 4; pp *= 2)
			for (uint32_t mb = 1; mb <= 2; mb *= 2) {
				struct ptc_cand c = { tp, 1, 16 / tp / pp, pp, 1, 1, 1, mb, 0, 0 };
				struct ptc_estimate e;

				assert_int_equal(ptc_estimate(&truth, &c, &e, &err), 0);
				rows[n++] = (struct ptc_fit_row){ &w, c, e.step_s };
			}
	assert_int_equal(ptc_calibration_new(rows, n, NULL, &cal, &err), 0);
	for (int rc = PTC_ENOMEM, at = 1; rc; at++) { /* each allocation fails in turn */
		struct ptc_calibration *again;
		int64_t before = ptc_alloc_live();

		ptc_alloc_fail_at((uint64_t)at);
		rc = ptc_calibration_new(rows, n, NULL, &again, &err);
		ptc_alloc_fail_at(0);
		if (!rc)
			ptc_calibration_free(again);
		assert_true(!rc || rc == PTC_ENOMEM);
		assert_int_equal(ptc_alloc_live(), before);
	}
	w.coefs = *ptc_calibration_coefs(cal);
	for (size_t i = 0; i < n; i++) {
		struct ptc_estimate e;
		double sd, factor = ptc_calibration_factor(cal, &w, &rows[i].cand, &sd);

		assert_int_equal(ptc_estimate(&w, &rows[i].cand, &e, &err), 0);
		assert_true(fabs(e.step_s * factor / rows[i].step_s - 1) < 0.03);
		assert_true(sd < 0.15);
	}
	ptc_calibration_free(cal);
	assert_int_equal(ptc_alloc_live(), live);
}

/* Kinds of layers recompute for themselves: computing and activations lie between those of all and of none, and the
 * text is read back. */
static void test_recompute_by_kind(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand c = { 1, 1, 8, 1, 1, 1, 1, 1, 0, PTC_RECOMPUTE_NONE }, back;
	struct ptc_estimate none, half, all;
	struct ptc_error err = PTC_ERROR_INIT;
	char text[PTC_CAND_TEXT_MAX];

	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	model.nkinds = 2;
	model.kinds[1] = model.kinds[0];
	model.kinds[1].ffn *= 4;
	for (uint32_t i = 0; i < 24; i += 2)
		model.kind[i] = 1;
	assert_int_equal(ptc_estimate(&w, &c, &none, NULL), 0);
	c.recompute_others = PTC_RECOMPUTE_FULL + 1;
	assert_int_equal(ptc_estimate(&w, &c, &half, NULL), 0);
	ptc_cand_format(&c, text);
	assert_string_equal(text, "tp=1,pp=1,dp=8,micro_batch=1,recompute=none/full");
	assert_int_equal(ptc_cand_parse(text, &back, NULL, &err), 0);
	assert_int_equal(ptc_cand_compare(&c, &back), 0);
	c.recompute = PTC_RECOMPUTE_FULL;
	expect_line(ptc_estimate(&w, &c, &all, &err), &err, "recompute repeats the first kind's value for kind 2");
	c.recompute_others = 0;
	assert_int_equal(ptc_estimate(&w, &c, &all, NULL), 0);
	assert_true(none.activation_bytes > half.activation_bytes && half.activation_bytes > all.activation_bytes);
	assert_true(none.compute_s < half.compute_s && half.compute_s < all.compute_s);
	expect_line(ptc_cand_parse("tp=1,recompute=none/some", &back, NULL, &err), &err,
		    "bad value in \"recompute=none/some\" (none, selective or full;");
}

/* A machine that is twenty times slower than any that the model knows: two measured steps say so of all configurations.
 */
static void test_calibration_of_another_machine(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_fit_row rows[2] = { { &w, { 1, 1, 8, 1, 1, 1, 1, 1, 0, 0 }, 0 },
				       { &w, { 2, 1, 2, 2, 1, 1, 1, 2, 0, 0 }, 0 } };
	struct ptc_cand far = { 4, 1, 1, 8, 1, 1, 1, 4, 0, 0 };
	struct ptc_calibration *cal;
	struct ptc_estimate e;
	double truth, sd;

	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	assert_int_equal(ptc_estimate(&w, &far, &e, NULL), 0);
	truth = 20 * e.step_s;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(ptc_estimate(&w, &rows[i].cand, &e, NULL), 0);
		rows[i].step_s = 20 * e.step_s;
	}
	assert_int_equal(ptc_calibration_new(rows, 2, NULL, &cal, NULL), 0);
	w.coefs = *ptc_calibration_coefs(cal);
	assert_int_equal(ptc_estimate(&w, &far, &e, NULL), 0);
	assert_true(fabs(e.step_s * ptc_calibration_factor(cal, &w, &far, &sd) / truth - 1) < 0.01);
	ptc_calibration_free(cal);
}

/* Two configurations that differ in pp alone, one of them off from the other: the one that is known well is predicted
 * as it was measured, whatever the other says. */
static void test_noise_of_a_row(void **state)
{
	struct ptc_work w = work_of(64);
	double off[2];

	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	for (int known = 0; known < 2; known++) {
		struct ptc_fit_row rows[2] = { { &w, { 2, 1, 2, 1, 1, 1, 1, 1, 0, 0 }, 0, known ? 0.03 : 0 },
					       { &w, { 2, 1, 2, 2, 1, 1, 1, 1, 0, 0 }, 0, 0 } };
		struct ptc_calibration *cal;
		struct ptc_work fitted = w;
		struct ptc_estimate e;
		double sd;

		for (int i = 0; i < 2; i++) {
			assert_int_equal(ptc_estimate(&w, &rows[i].cand, &e, NULL), 0);
			rows[i].step_s = e.step_s * (i ? 0.75 : 1.25);
		}
		assert_int_equal(ptc_calibration_new(rows, 2, NULL, &cal, NULL), 0);
		fitted.coefs = *ptc_calibration_coefs(cal);
		assert_int_equal(ptc_estimate(&fitted, &rows[0].cand, &e, NULL), 0);
		off[known] =
			fabs(e.step_s * ptc_calibration_factor(cal, &fitted, &rows[0].cand, &sd) / rows[0].step_s - 1);
		assert_true(fabs(sd - (known ? 0.03 : 0.12)) < 1e-9);
		ptc_calibration_free(cal);
	}
	assert_true(off[1] < 0.03 && off[1] < off[0] / 2);
}

/* Hops run beside computing with GPipe, and 1F1B waits for them; an all-reduce of gradients waits for 2 log2(d)
 * latencies. */
static void test_latency(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand c = { 1, 1, 4, 2, 1, 1, 1, 1, 0, 0 };
	struct ptc_estimate e, later;
	double hop;

	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	hop = e.pp_s / e.micro_batches; /* there and back, once for each, the last one included */
	w.schedule = PTC_SCHEDULE_GPIPE;
	assert_int_equal(ptc_estimate(&w, &c, &later, NULL), 0);
	assert_true(fabs(later.pp_s / hop - 1) < 1e-9);
	cluster.intra_latency_s = 1; /* a hop of more than a micro-batch's computing is hidden as far as that goes */
	assert_int_equal(ptc_estimate(&w, &c, &later, NULL), 0);
	assert_true(later.pp_s > 2 * 15 && later.pp_s < 2 * 17);
	cluster.intra_latency_s = 0;
	assert_int_equal(ptc_estimate(&w, &c, &e, NULL), 0);
	cluster.intra_latency_s = 0.5;
	assert_int_equal(ptc_estimate(&w, &c, &later, NULL), 0);
	assert_true(fabs(later.dp_s - e.dp_s - w.coefs.v[PTC_COEF_DP] * 2 * 2 * 0.5) < 1e-9);
}

struct tensors {
	struct ptc_tensor v[64];
	char names[64][64];
	size_t n;
};

static void tensor(struct tensors *t, int64_t a, int64_t b, int64_t c, const char *name)
{
	struct ptc_tensor *x = &t->v[t->n];

	snprintf(t->names[t->n], sizeof t->names[0], "%s", name);
	*x = (struct ptc_tensor){ .name = t->names[t->n++], .ndim = c ? 3 : b ? 2 : 1, .shape = { a, b, c } };
}

/* Llama's names with grouped keys, one layer of three with experts: as many parameters as the shapes have. */
static void test_inferred_from_tensors(void **state)
{
	static const char *const parts[] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
					     "self_attn.o_proj" };
	static struct tensors t;
	struct ptc_infer_given given = { .seq = 512 };
	struct ptc_error err = PTC_ERROR_INIT;
	char name[64], what[PTC_INFER_TEXT_MAX];
	double all = 0;

	for (int l = 0; l < 3; l++) {
		for (int p = 0; p < 4; p++) {
			snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, parts[p]);
			tensor(&t, p == 1 || p == 2 ? 512 : 2048, 2048, 0, name);
		}
		for (int p = 0; l < 2 && p < 3; p++) {
			snprintf(name, sizeof name, "model.layers.%d.mlp.%s_proj.weight", l,
				 p ? p == 1 ? "up" : "down" : "gate");
			tensor(&t, p == 2 ? 2048 : 5632, p == 2 ? 5632 : 2048, 0, name);
		}
		snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
		tensor(&t, 2048, 0, 0, name);
		snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
		tensor(&t, 2048, 0, 0, name);
	}
	for (int p = 0; p < 3; p++) {
		snprintf(name, sizeof name, "model.layers.2.mlp.experts.%s_proj", p ? p == 1 ? "up" : "down" : "gate");
		tensor(&t, 8, p == 2 ? 768 : 2048, p == 2 ? 2048 : 768, name);
	}
	tensor(&t, 8, 2048, 0, "model.layers.2.mlp.router.weight");
	tensor(&t, 32000, 2048, 0, "model.embed_tokens.weight");
	tensor(&t, 32000, 2048, 0, "lm_head.weight");
	tensor(&t, 2048, 0, 0, "model.norm.weight");
	for (size_t i = 0; i < t.n; i++)
		all += (double)t.v[i].shape[0] * (t.v[i].shape[1] ? (double)t.v[i].shape[1] : 1) *
		       (t.v[i].shape[2] ? (double)t.v[i].shape[2] : 1);
	if (ptc_model_infer(t.v, t.n, &given, &model, what, &err))
		fail_msg("%s", err.text);
	if (fabs(ptc_model_params(&model) / all - 1) > 1e-4)
		fail_msg("%s, not %.9g", what, all);
	assert_int_equal(model.nkinds, 2);
	assert_int_equal(model.kinds[0].heads, 16);
	assert_int_equal(model.kinds[0].kv_heads, 4);
	assert_true(model.kinds[0].glu && !model.tied && !model.bias && !model.positions);
	assert_int_equal(model.kinds[1].experts, 8);
	assert_non_null(strstr(what, "the width taken as usual"));
	given.heads = 32;
	assert_int_equal(ptc_model_infer(t.v, t.n, &given, &model, what, &err), 0);
	assert_int_equal(model.kinds[0].head_dim, 64);
	assert_null(strstr(what, "width taken"));
	t.v[0].name = "model.layers.7.self_attn.q_proj.weight";
	expect_line(ptc_model_infer(t.v, t.n, &given, &model, what, &err), &err, "no tensor belongs to layer 3 of 8");
	t.v[0].name = t.names[0];
	t.v[4].shape[0] = INT64_C(1) << 50; /* of the feed-forward part */
	expect_line(ptc_model_infer(t.v, t.n, &given, &model, what, &err), &err,
		    "do not look like a transformer (model: ffn is");
	expect_line(ptc_model_infer(t.v + t.n - 2, 1, &given, &model, what, &err), &err,
		    "do not look like a transformer");
}

static void test_as_config(void **state)
{
	struct ptc_work w = work_of(64);
	struct ptc_cand c = { 2, 1, 3, 5, 1, 1, 1, 2, 1, 0 }, back;
	static struct ptc_config config;
	struct ptc_error err = PTC_ERROR_INIT;
	char text[PTC_CONFIG_TEXT_MAX];

	ptc_model_gpt(&model, 24, 2048, 16, 8192, 50257, 1024);
	assert_int_equal(ptc_cand_config(&w, &c, &config, &err), 0);
	assert_int_equal(ptc_config_format(&config, text, sizeof text), 0);
	assert_string_equal(text, "tp=2,pp=5,dp=3,zero=1,micro_batch=2,global_batch=64");
	w.uneven = true;
	model.vocab = 200000; /* the head weighs as much as some layers */
	assert_int_equal(ptc_cand_config(&w, &c, &config, &err), 0);
	assert_int_equal(config.nstages, 5);
	ptc_cand_from_config(&config, &back);
	assert_int_equal(ptc_cand_compare(&c, &back), 0);
	model.nkinds = 3; /* what ranks recompute is said by kind, and the last kind is as the first */
	model.kinds[1] = model.kinds[2] = model.kinds[0];
	c.recompute = PTC_RECOMPUTE_SELECTIVE;
	c.recompute_others = PTC_RECOMPUTE_FULL + 1;
	assert_int_equal(ptc_cand_config(&w, &c, &config, &err), 0);
	assert_int_equal(ptc_config_format(&config, text, sizeof text), 0);
	assert_non_null(strstr(text, ",recompute=selective/full"));
	ptc_cand_from_config(&config, &back);
	assert_int_equal(ptc_cand_compare(&c, &back), 0);
}

/* Where matrices and attention alone take time, the ratio is that of their operations: 24 h^2 and 2 h s forward for a
 * token of one layer, half of the latter with causal attention, and 2 h V in the head. */
static void test_length_cost(void **state)
{
	struct ptc_work w = work_of(64);
	const struct ptc_cand c = { 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0 };
	struct ptc_length_cost got;

	w.coefs.v[PTC_COEF_LAUNCH] = w.coefs.v[PTC_COEF_BYTES] = w.coefs.v[PTC_COEF_SMALL] = 0;
	for (uint32_t seq = 1024; seq <= 1 << 20; seq *= 8)
		for (uint32_t flash = 0; flash < 2; flash++) {
			double ratio;

			ptc_model_gpt(&model, 32, 4096, 32, 4 * 4096, 64000, seq);
			model.flash = flash;
			got = ptc_length_cost(&w, &c);
			ratio = (24.0 * 4096 * 4096 * 32 + 2.0 * 4096 * 64000) / (4.0 * 4096 * 32 / (flash ? 2 : 1));
			assert_true(got.square > 0);
			assert_true(fabs((double)got.linear / (double)got.square / ratio - 1) < 0.02);
			assert_true(fabs(log2((double)got.linear * seq + (double)got.square * seq * seq) -
					 (seq > 65536 ? 48 : 40)) < 0.1);
		}
	/* Passes over activations, too, and what a step was measured to take, move the ratio. */
	ptc_model_gpt(&model, 32, 4096, 32, 4 * 4096, 64000, 8192);
	model.flash = true;
	got = ptc_length_cost(&w, &c);
	w.coefs.v[PTC_COEF_BYTES] = 4;
	assert_true((double)ptc_length_cost(&w, &c).linear / (double)ptc_length_cost(&w, &c).square >
		    1.02 * (double)got.linear / (double)got.square);
	/* Without attention nothing is square; launching kernels alone is no reason for either. */
	w.coefs.v[PTC_COEF_BYTES] = 0;
	for (uint32_t i = 0; i < model.nkinds; i++)
		model.kinds[i].heads = model.kinds[i].kv_heads = model.kinds[i].head_dim = 0;
	assert_int_equal(ptc_length_cost(&w, &c).square, 0);
	assert_true(ptc_length_cost(&w, &c).linear > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sc21_sizes),
		cmocka_unit_test(test_llama_flops),
		cmocka_unit_test(test_korthikanti),
		cmocka_unit_test(test_interleaved_activations),
		cmocka_unit_test(test_bubble),
		cmocka_unit_test(test_zero_cuts_states),
		cmocka_unit_test(test_peak_and_need),
		cmocka_unit_test(test_recompute_by_kind),
		cmocka_unit_test(test_inferred_from_tensors),
		cmocka_unit_test(test_calibration_of_another_machine),
		cmocka_unit_test(test_noise_of_a_row),
		cmocka_unit_test(test_latency),
		cmocka_unit_test(test_uneven_stages),
		cmocka_unit_test(test_measured_groups),
		cmocka_unit_test(test_measured_hops),
		cmocka_unit_test(test_overlap),
		cmocka_unit_test(test_bad_models),
		cmocka_unit_test(test_bad_profiles),
		cmocka_unit_test(test_bad_requests),
		cmocka_unit_test(test_calibration_recovers),
		cmocka_unit_test(test_as_config),
		cmocka_unit_test(test_length_cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
