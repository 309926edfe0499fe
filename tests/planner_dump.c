/* SPDX-License-Identifier: Apache-2.0 */
/* What planner/ says of published cases, for tests/planner_replay.py: one JSON request a line on
 * standard input, one answer a line on standard output. A request is
 *   {"cases": [case, ...], "train": [index, ...], "peaks": [index, ...], "prior": [11 numbers], "settings": [reach,
 * size, noise, prior]} and a case {"model": {...}, "cluster": {...}, "config": {...}, "rules": {...}, "batch": G,
 * "step": seconds, "noise": relative, "peak": bytes}. With "train" the coefficients are fitted to these cases' steps
 * first, with "peaks" the memory rules to these cases' peaks. A case that cannot be is answered
 * {"error": text}; a wrong request ends the program. */
#include "base/alloc.h"
#include "formats/json.h"
#include "planner/fit/fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct one {
	struct ptc_model model;
	struct ptc_cluster_profile cluster;
	struct ptc_work work;
	struct ptc_cand cand;
	uint32_t stages[PTC_MODEL_MAX_LAYERS];
	double step, peak, noise;
	struct ptc_error bad; /* the case cannot be */
};

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "planner-dump: %s\n", what);
	exit(1);
}

static double number(const json_t *o, const char *key, double other)
{
	const json_t *v = json_object_get(o, key);

	return json_is_number(v) ? json_number_value(v) : other;
}

static uint32_t count(const json_t *o, const char *key, uint32_t other)
{
	return (uint32_t)number(o, key, other);
}

static bool flag(const json_t *o, const char *key)
{
	return json_is_true(json_object_get(o, key));
}

static void read_model(const json_t *o, struct ptc_model *m)
{
	struct ptc_layer_kind *k = &m->kinds[0];

	ptc_model_gpt(m, count(o, "layers", 0), count(o, "hidden", 0), count(o, "heads", 0), count(o, "ffn", 0),
		      count(o, "vocab", 0), count(o, "seq", 0));
	m->tied = !flag(o, "untied");
	m->positions = !flag(o, "rope");
	m->bias = !flag(o, "no_bias");
	m->dropout = !flag(o, "no_dropout");
	m->flash = flag(o, "flash");
	m->eager_glu = flag(o, "eager_glu");
	k->kv_heads = count(o, "kv_heads", k->heads);
	k->head_dim = count(o, "head_dim", k->head_dim);
	k->glu = flag(o, "glu");
	k->experts = count(o, "experts", 0);
	k->topk = count(o, "topk", 0);
	k->expert_ffn = count(o, "expert_ffn", 0);
}

static void read_cluster(const json_t *o, struct ptc_cluster_profile *c)
{
	memset(c, 0, sizeof *c);
	c->per_node = count(o, "per_node", 0);
	c->nkinds = 1;
	if (!ptc_device_kind_known(json_string_value(json_object_get(o, "device")), &c->kinds[0]))
		die("unknown device");
	c->kinds[0].nodes = count(o, "nodes", 1);
	c->kinds[0].flops = number(o, "flops", c->kinds[0].flops);
	c->kinds[0].hbm_bytes_s = number(o, "hbm", c->kinds[0].hbm_bytes_s);
	c->intra_bytes_s = number(o, "intra", 0);
	c->intra_latency_s = number(o, "intra_latency", 2e-5);
	c->node_bytes_s = number(o, "node", 0);
	c->node_latency_s = number(o, "node_latency", 5e-5);
}

static void read_config(const json_t *o, struct one *c)
{
	const json_t *stages = json_object_get(o, "stages");

	c->cand = (struct ptc_cand){ count(o, "tp", 1),
				     count(o, "cp", 1),
				     count(o, "dp", 1),
				     count(o, "pp", 1),
				     count(o, "ep", 1),
				     count(o, "etp", 1),
				     count(o, "vpp", 1),
				     count(o, "mbs", 1),
				     (uint8_t)count(o, "zero", 0),
				     (uint8_t)count(o, "recompute", 0) };
	if (!json_is_array(stages))
		return;
	for (size_t i = 0; i < json_array_size(stages) && i < PTC_MODEL_MAX_LAYERS; i++)
		c->stages[i] = (uint32_t)json_integer_value(json_array_get(stages, i));
	c->work.stages = c->stages;
	c->work.nstages = (uint32_t)json_array_size(stages);
}

static void read_case(const json_t *o, struct one *c)
{
	const json_t *rules = json_object_get(o, "rules");

	read_model(json_object_get(o, "model"), &c->model);
	read_cluster(json_object_get(o, "cluster"), &c->cluster);
	c->work.model = &c->model;
	c->work.cluster = &c->cluster;
	ptc_coefs_default(&c->work.coefs);
	ptc_memory_rules_default(&c->work.memory);
	c->work.memory.weight_bytes = number(rules, "weight", c->work.memory.weight_bytes);
	c->work.memory.grad_bytes = number(rules, "grad", c->work.memory.grad_bytes);
	c->work.memory.optim_bytes = number(rules, "optim", c->work.memory.optim_bytes);
	c->work.memory.logit_bytes = number(rules, "logit", c->work.memory.logit_bytes);
	c->work.memory.waste = number(rules, "waste", c->work.memory.waste);
	c->work.memory.reserve_bytes = number(rules, "reserve", c->work.memory.reserve_bytes);
	c->work.reduce_bytes = number(rules, "reduce", 2);
	c->work.sequence_parallel = flag(rules, "sequence_parallel");
	c->work.uneven = flag(rules, "uneven");
	c->work.schedule = flag(rules, "gpipe") ? PTC_SCHEDULE_GPIPE : PTC_SCHEDULE_1F1B;
	c->work.global_batch = count(o, "batch", 0);
	c->step = number(o, "step", 0);
	c->peak = number(o, "peak", 0);
	c->noise = number(o, "noise", 0);
	read_config(json_object_get(o, "config"), c);
	if (!ptc_model_check(&c->model, &c->bad))
		ptc_cluster_profile_check(&c->cluster, &c->bad);
}

static struct ptc_calibration *train(const json_t *request, const struct one *cases, size_t n)
{
	const json_t *list = json_object_get(request, "train"), *prior = json_object_get(request, "prior");
	const json_t *settings = json_object_get(request, "settings");
	struct ptc_fit_settings set = PTC_FIT_SETTINGS;
	double *const to[] = { &set.reach, &set.size, &set.noise, &set.prior };
	struct ptc_fit_row *rows = ptc_calloc(json_array_size(list) + 1, sizeof *rows);
	struct ptc_calibration *cal = NULL;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_coefs start;

	ptc_coefs_default(&start);
	for (size_t i = 0; i < json_array_size(prior) && i < PTC_COEFS; i++)
		start.v[i] = json_number_value(json_array_get(prior, i));
	for (size_t i = 0; i < json_array_size(settings) && i < 4; i++)
		*to[i] = json_number_value(json_array_get(settings, i));
	for (size_t i = 0; i < json_array_size(list); i++) {
		size_t at = (size_t)json_integer_value(json_array_get(list, i));

		if (at >= n || cases[at].bad.code)
			die("no such case");
		rows[i] = (struct ptc_fit_row){ &cases[at].work, cases[at].cand, cases[at].step, cases[at].noise };
	}
	if (json_array_size(list) && ptc_calibration_new_set(rows, json_array_size(list), &start, &set, &cal, &err))
		die(err.text);
	ptc_free(rows);
	return cal;
}

static void fit_peaks(const json_t *request, struct one *cases, size_t n)
{
	const json_t *list = json_object_get(request, "peaks");
	struct ptc_peak_row *rows = ptc_calloc(json_array_size(list) + 1, sizeof *rows);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_memory_rules rules;

	for (size_t i = 0; i < json_array_size(list); i++) {
		size_t at = (size_t)json_integer_value(json_array_get(list, i));

		if (at >= n || cases[at].bad.code)
			die("no such case");
		rows[i] = (struct ptc_peak_row){ &cases[at].work, cases[at].cand, cases[at].peak };
	}
	if (json_array_size(list)) {
		rules = rows[0].work->memory;
		if (ptc_fit_peaks(rows, json_array_size(list), &rules, &err))
			die(err.text);
		for (size_t i = 0; i < n; i++)
			cases[i].work.memory = rules;
	}
	ptc_free(rows);
}

static json_t *answer_one(struct one *c, const struct ptc_calibration *cal)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_estimate e;
	double sd = PTC_UNCALIBRATED_SD, factor = 1, devices[PTC_MODEL_MAX_LAYERS];
	json_t *o;

	if (c->bad.code)
		return json_pack("{s:s}", "error", c->bad.text);
	if (cal)
		c->work.coefs = *ptc_calibration_coefs(cal);
	if (ptc_estimate(&c->work, &c->cand, &e, &err))
		return json_pack("{s:s}", "error", err.text);
	if (cal)
		factor = ptc_calibration_factor(cal, &c->work, &c->cand, &sd);
	o = json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "model_step", e.step_s, "step", e.step_s * factor, "sd",
		      sd, "memory", e.memory_bytes, "peak", e.peak_bytes, "states", e.state_bytes, "activations",
		      e.activation_bytes, "params", ptc_model_params(&c->model), "params_sc21",
		      ptc_model_params_sc21(&c->model));
	json_object_set_new(o, "layer_activations",
			    json_real(ptc_layer_activations(&c->model, &c->model.kinds[0], c->cand.tp, c->cand.cp,
							    c->cand.micro_batch, c->work.sequence_parallel,
							    c->cand.recompute)));
	if (!ptc_pipe_memory(&c->work, &c->cand, devices, NULL))
		json_object_set_new(o, "last_peak", json_real(devices[c->cand.pp - 1]));
	json_object_set_new(o, "flops_token", json_real(ptc_model_flops_token(&c->model)));
	return o;
}

static void answer(const json_t *request)
{
	const json_t *list = json_object_get(request, "cases");
	size_t n = json_array_size(list);
	struct one *cases = ptc_calloc(n + 1, sizeof *cases);
	struct ptc_calibration *cal;
	json_t *out = json_array(), *coefs = json_array();

	for (size_t i = 0; i < n; i++)
		read_case(json_array_get(list, i), &cases[i]);
	cal = train(request, cases, n);
	fit_peaks(request, cases, n);
	for (size_t i = 0; i < n; i++)
		json_array_append_new(out, answer_one(&cases[i], cal));
	for (int i = 0; cal && i < PTC_COEFS; i++)
		json_array_append_new(coefs, json_real(ptc_calibration_coefs(cal)->v[i]));
	out = json_pack("{s:o,s:o}", "cases", out, "coefs", coefs);
	json_dumpf(out, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
	json_decref(out);
	ptc_calibration_free(cal);
	ptc_free(cases);
}

int main(void)
{
	char *line = NULL;
	size_t size = 0;
	ssize_t n;

	ptc_json_init();
	while ((n = getline(&line, &size, stdin)) > 0) {
		struct ptc_error err = PTC_ERROR_INIT;
		json_t *request;

		if (ptc_json_load("request", line, (size_t)n, &request, &err))
			die(err.text);
		answer(request);
		json_decref(request);
	}
	free(line);
	return 0;
}
