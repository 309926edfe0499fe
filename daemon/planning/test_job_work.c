/* SPDX-License-Identifier: Apache-2.0 */
/* A job as planner/ sees it: what its description, a profile, measured steps and links make of it, against planner/
 * asked directly. */
#include "daemon/planning/job_work.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define HEAD  "version: 1\nname: gpt\nrun: {argv: [a], cwd: /}\n"
#define MODEL "model: {layers: 8, hidden: 1024, heads: 16, vocab: 32000, seq: 1024}\n"
#define SPACE "space: {global_batch: 64, micro_batch: [1, 2]}\n"
#define PROFILE                                                                                                        \
	"devices: [{name: A100-80GB, nodes: 9}]\ndevices_per_node: 3\nlinks: {intra_bytes_s: 2e11, node_bytes_s: "     \
	"1e10}\n"

static struct ptc_planning_node nodes[4] = { { "n0", 4 }, { "n1", 4 }, { "n2", 4 }, { "n3", 4 } };
static struct ptc_measured_doc measured;

static struct ptc_job_work *make(const char *yaml, struct ptc_job_desc *desc, struct ptc_job_work_opts *opts)
{
	static struct ptc_planning_shape shape;
	struct ptc_job_work *w = NULL;
	struct ptc_error err = PTC_ERROR_INIT;

	shape = (struct ptc_planning_shape){ .nodes = nodes, .nnodes = 4 };
	ptc_planning_shape_sum(&shape);
	if (ptc_job_from_yaml("job.yaml", yaml, strlen(yaml), NULL, NULL, desc, &err) != 0)
		fail_msg("%s", err.text);
	opts->desc = desc;
	opts->shape = &shape;
	if (ptc_job_work_new(opts, &w, &err) != 0)
		fail_msg("%s", err.text);
	return w;
}

static void done(struct ptc_job_work *w, struct ptc_job_desc *desc)
{
	ptc_job_work_free(w);
	ptc_job_desc_done(desc);
}

/* The same cluster, space and batch, put together by hand. */
static void the_search_is_the_planners(void **state)
{
	static struct ptc_choice direct[PTC_WORK_KEEP];
	static struct ptc_job_found found[PTC_WORK_KEEP], again[PTC_WORK_KEEP];
	static struct ptc_model model;
	struct ptc_cluster_profile cluster = { .per_node = 4,
					       .nkinds = 1,
					       .intra_bytes_s = 2e11,
					       .intra_latency_s = 2e-5,
					       .node_bytes_s = 1e10,
					       .node_latency_s = 5e-5 };
	struct ptc_space space = { .micro_batch = { 2, { 1, 2 } }, .zero = 1, .recompute = 1 };
	struct ptc_work work = { .model = &model, .cluster = &cluster, .global_batch = 64, .reduce_bytes = 2 };
	struct ptc_job_work_opts opts = { .profile = PROFILE };
	struct ptc_job_work_memo memo;
	struct ptc_job_desc desc;
	struct ptc_job_work *w = make(HEAD MODEL SPACE, &desc, &opts);

	memo = ptc_job_work_memo(w);
	assert_true(!memo.frontier && !memo.devices && !memo.searches);
	ptc_model_gpt(&model, 8, 1024, 16, 4096, 32000, 1024);
	model.tied = model.positions = model.bias = model.dropout = false;
	model.flash = true;
	assert_true(ptc_device_kind_known("A100-80GB", &cluster.kinds[0]));
	cluster.kinds[0].nodes = 4;
	ptc_coefs_default(&work.coefs);
	ptc_memory_rules_default(&work.memory);
	for (uint32_t n = 1; n <= 16; n++) {
		struct ptc_search_limits limits = { .devices = n, .keep = PTC_WORK_KEEP };
		struct ptc_frontier_point best;
		size_t ndirect = 0, nfound = 0, nagain = 0;

		assert_int_equal(0, ptc_search(&work, &space, &limits, NULL, direct, &ndirect, NULL));
		assert_int_equal(0, ptc_job_work_search(w, n, found, &nfound, NULL));
		assert_int_equal(ndirect, nfound);
		for (size_t i = 0; i < nfound; i++) {
			assert_int_equal(0, ptc_cand_compare(&direct[i].cand, &found[i].choice.cand));
			assert_true(direct[i].est.step_s == found[i].choice.est.step_s);
		}
		assert_int_equal(0, ptc_job_work_search(w, n, again, &nagain, NULL)); /* remembered */
		assert_int_equal(nfound, nagain);
		assert_memory_equal(found, again, nfound * sizeof *found);
		assert_true(ptc_job_work_best(w, n, &best, NULL));
		assert_true(best.step_s == direct[0].est.step_s);
	}
	memo = ptc_job_work_memo(w);
	assert_true(memo.frontier);
	assert_int_equal(16, memo.devices);
	assert_int_equal(17, memo.searches); /* and the frontier, once */
	for (uint32_t n = 1; n <= 16; n++) {
		struct ptc_frontier_point best;
		size_t nfound = 0;

		assert_int_equal(0, ptc_job_work_search(w, n, found, &nfound, NULL));
		assert_true(ptc_job_work_best(w, n, &best, NULL));
	}
	memo = ptc_job_work_memo(w);
	assert_int_equal(17, memo.searches); /* a look-up searches nothing */
	done(w, &desc);
}

static void memory_is_compared_by_a_profile(void **state)
{
	static struct ptc_job_found found[PTC_WORK_KEEP];
	const char *large = HEAD "model: {layers: 96, hidden: 12288, heads: 96, vocab: 51200, seq: 2048}\n" SPACE;
	struct ptc_job_work_opts opts = { .profile = PROFILE }, none = { .profile = NULL };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc desc;
	struct ptc_job_work *w = make(large, &desc, &opts);
	size_t n = 0;

	assert_false(w->assumed);
	assert_int_equal(PTC_ENODEVICES, ptc_job_work_search(w, 16, found, &n, &err));
	assert_non_null(strstr(err.text, "nothing fits on 16 devices of 80.0 GB"));
	done(w, &desc);
	w = make(large, &desc, &none);
	assert_true(w->assumed && !w->linked);
	assert_int_equal(0, ptc_job_work_search(w, 16, found, &n, &err));
	done(w, &desc);
}

static void without_a_space_degrees_that_are_known(void **state)
{
	static struct ptc_job_found found[PTC_WORK_KEEP];
	struct ptc_measured_row row = { .config = "tp=8,micro_batch=4,global_batch=64", .step_s = 0.5 };
	struct ptc_job_work_opts opts = { .now = "tp=2,dp=2,micro_batch=2,global_batch=64", .measured = &measured };
	struct ptc_job_desc desc;
	struct ptc_job_work *w;
	size_t n = 0;

	memset(&measured, 0, sizeof measured);
	ptc_measured_add(&measured, &row);
	w = make(HEAD MODEL "gpus: {4: \"tp=1,pp=4,micro_batch=1,global_batch=64\"}\n", &desc, &opts);
	assert_int_equal(3, w->space.tp.n);
	assert_int_equal(8, w->space.tp.v[2]);
	assert_int_equal(2, w->space.pp.n);
	assert_int_equal(3, w->space.micro_batch.n);
	assert_int_equal(0, w->space.dp.n);
	assert_int_equal(64, w->work.global_batch);
	assert_int_equal(0, ptc_job_work_search(w, 16, found, &n, NULL));
	done(w, &desc);
}

static void refused(const char *yaml, const char *now, const char *says)
{
	struct ptc_planning_shape shape = { .nodes = nodes, .nnodes = 4 };
	struct ptc_job_work_opts opts = { .now = now, .shape = &shape };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_work *w = NULL;
	struct ptc_job_desc desc;

	ptc_planning_shape_sum(&shape);
	assert_int_equal(0, ptc_job_from_yaml("job.yaml", yaml, strlen(yaml), NULL, NULL, &desc, NULL));
	opts.desc = &desc;
	assert_int_equal(PTC_ENOTFOUND, ptc_job_work_new(&opts, &w, &err));
	if (!strstr(err.text, says))
		fail_msg("\"%s\" does not say \"%s\"", err.text, says);
	ptc_job_desc_done(&desc);
}

static void what_is_missing_is_said(void **state)
{
	refused(HEAD SPACE, NULL, "has no model:");
	refused(HEAD MODEL, "tp=2,dp=2", "nothing says its global batch");
}

/* A configuration as this job writes them. */
static void in_the_jobs_manner(void **state)
{
	static const struct {
		const char *now, *want;
	} cases[] = { { NULL, "tp=2,dp=4,micro_batch=2,global_batch=64" },
		      { "dp=1,micro_batch=1,global_batch=64", "tp=2,dp=4,micro_batch=2,global_batch=64" },
		      { "dp=1", "tp=2,dp=4,micro_batch=2" },
		      { "dp=1,order=dp-tp-cp-ep-pp,global_batch=64",
			"tp=2,dp=4,order=dp-tp-cp-ep-pp,micro_batch=2,global_batch=64" } };
	static char text[PTC_CONFIG_TEXT_MAX], want[PTC_CONFIG_TEXT_MAX];
	static struct ptc_config manner, config;
	struct ptc_job_found f = {
		.choice.cand = { .tp = 2, .cp = 1, .dp = 4, .pp = 1, .ep = 1, .etp = 1, .vpp = 1, .micro_batch = 2 }
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		struct ptc_job_work_opts opts = { .now = cases[i].now };
		struct ptc_job_desc desc;
		struct ptc_job_work *w = make(HEAD MODEL SPACE, &desc, &opts);

		assert_int_equal(0, ptc_job_manner(&opts, &manner, NULL));
		assert_int_equal(0, ptc_job_work_config(w, &manner, &f, &config, NULL));
		assert_int_equal(0, ptc_config_format(&config, text, sizeof text));
		assert_int_equal(0, ptc_config_parse(cases[i].want, &config, NULL));
		assert_int_equal(0, ptc_config_format(&config, want, sizeof want));
		assert_string_equal(want, text);
		done(w, &desc);
	}
}

/* What is said of recomputation: nothing where the program has one way, by itself; else which. */
static void recomputation(void **state)
{
	static const struct {
		const char *rest, *now;
		uint8_t ways;
		bool told, by_kind;
	} cases[] = { { SPACE, NULL, 1, false, false },
		      { "space: {global_batch: 64, recompute: [full]}\n", NULL, 4, false, false },
		      { "space: {global_batch: 64, recompute: [none, full]}\n", NULL, 5, true, false },
		      { "space: {global_batch: 64, recompute: [full]}\n", "dp=2,recompute=full", 4, true, false },
		      { "gpus: {2: \"dp=2,global_batch=64,recompute=none/full\"}\n", NULL, 5, true, true },
		      { "gpus: {2: \"dp=2,global_batch=64\"}\n", NULL, 1, false, false } };
	static char text[PTC_CONFIG_TEXT_MAX];
	static struct ptc_config manner, config;
	struct ptc_job_found f = { .choice.cand = { .tp = 2,
						    .cp = 1,
						    .dp = 4,
						    .pp = 1,
						    .ep = 1,
						    .etp = 1,
						    .vpp = 1,
						    .micro_batch = 2,
						    .recompute = PTC_RECOMPUTE_FULL } };

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		ptc_auto_free char *yaml = ptc_asprintf(HEAD MODEL "%s", cases[i].rest);
		struct ptc_job_work_opts opts = { .now = cases[i].now };
		struct ptc_choice plain, full;
		struct ptc_job_desc desc;
		struct ptc_job_work *w = make(yaml, &desc, &opts);

		assert_int_equal(cases[i].ways, w->space.recompute);
		assert_int_equal(cases[i].told, w->told_recompute);
		assert_int_equal(cases[i].by_kind, w->space.recompute_by_kind);
		assert_int_equal(0, ptc_job_manner(&opts, &manner, NULL));
		assert_int_equal(0, ptc_job_work_config(w, &manner, &f, &config, NULL));
		assert_int_equal(0, ptc_config_format(&config, text, sizeof text));
		assert_int_equal(cases[i].told, strstr(text, "recompute=full") != NULL);
		assert_int_equal(0, ptc_config_parse("dp=4,micro_batch=2", &config, NULL));
		assert_int_equal(0, ptc_job_work_predict(w, &config, NULL, NULL, &plain, NULL));
		assert_int_equal(0, ptc_config_parse("dp=4,micro_batch=2,recompute=full", &config, NULL));
		assert_int_equal(0, ptc_job_work_predict(w, &config, NULL, NULL, &full, NULL));
		assert_int_equal(cases[i].told, full.est.step_s > plain.est.step_s);
		done(w, &desc);
	}
}

/* A planned pipeline with virtual stages that only `space:` permits says its schedule, so that ranks have to promise
 * them. One without them says it only if some configuration of the job names a schedule. */
static void schedules(void **state)
{
	static const struct {
		const char *rest, *now, *want; /* want: the end of the configuration of pp=2 */
		uint32_t vpp;
	} cases[] = { { "space: {global_batch: 64}\n", NULL, "global_batch=64", 1 },
		      { "space: {global_batch: 64, vpp: [1, 2]}\n", NULL, "global_batch=64,vpp=2,schedule=1f1b", 2 },
		      { "space: {global_batch: 64, vpp: [1, 2]}\n", NULL, "global_batch=64", 1 },
		      { "space: {global_batch: 64, vpp: [1, 2], schedule: zb1p}\n", NULL, "global_batch=64", 1 },
		      { "space: {global_batch: 64, vpp: [1, 2], schedule: zb1p}\n", NULL, ",vpp=2,schedule=zb1p", 2 },
		      { "space: {global_batch: 64, vpp: [2]}\n", NULL, ",vpp=2,schedule=1f1b", 2 },
		      { "space: {global_batch: 64, schedule: gpipe}\n", NULL, "global_batch=64", 1 },
		      { "space: {global_batch: 64}\n", "pp=2,micro_batch=2,global_batch=64,schedule=1f1b", "=1f1b", 1 },
		      { "gpus: {2: \"pp=2,vpp=2,global_batch=64\"}\n", NULL, "global_batch=64,vpp=2", 2 } };
	static char text[PTC_CONFIG_TEXT_MAX];
	static struct ptc_config manner, config;

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		ptc_auto_free char *yaml = ptc_asprintf(HEAD MODEL "%s", cases[i].rest);
		struct ptc_job_work_opts opts = { .now = cases[i].now };
		struct ptc_job_found f = { .choice.cand = { .tp = 2,
							    .cp = 1,
							    .dp = 2,
							    .pp = 2,
							    .ep = 1,
							    .etp = 1,
							    .vpp = cases[i].vpp,
							    .micro_batch = 2 } };
		struct ptc_choice one, gpipe;
		struct ptc_job_desc desc;
		struct ptc_job_work *w = make(yaml, &desc, &opts);
		size_t tail = strlen(cases[i].want);

		assert_int_equal(0, ptc_job_manner(&opts, &manner, NULL));
		assert_int_equal(0, ptc_job_work_config(w, &manner, &f, &config, NULL));
		assert_int_equal(0, ptc_config_format(&config, text, sizeof text));
		if (strlen(text) < tail || strcmp(text + strlen(text) - tail, cases[i].want) != 0)
			fail_msg("%s does not end with %s", text, cases[i].want);
		f.choice.cand.pp = f.choice.cand.vpp = 1;
		assert_int_equal(0, ptc_job_work_config(w, &manner, &f, &config, NULL));
		assert_int_equal(0, config.schedule); /* there is nothing to schedule */
		assert_int_equal(0, ptc_config_parse("pp=4,micro_batch=1,schedule=1f1b", &config, NULL));
		assert_int_equal(0, ptc_job_work_predict(w, &config, NULL, NULL, &one, NULL));
		assert_int_equal(0, ptc_config_parse("pp=4,micro_batch=1,schedule=gpipe", &config, NULL));
		assert_int_equal(0, ptc_job_work_predict(w, &config, NULL, NULL, &gpipe, NULL));
		assert_true(gpipe.est.memory_bytes > one.est.memory_bytes);
		done(w, &desc);
	}
}

/* Where nobody reads what a program refuses, virtual stages are searched only if ranks have promised them. */
static void unattended(void **state)
{
	static const struct {
		const char *vpp, *now, *measured;
		uint32_t most; /* the greatest vpp that is searched */
		bool attended;
	} cases[] = { { "[1, 2]", NULL, NULL, 1, false },
		      { "[1, 2]", NULL, NULL, 2, true },
		      { "[1, 2]", "pp=2,vpp=2,global_batch=64", "pp=2,vpp=2,global_batch=64", 1, false },
		      { "[1, 2]", "pp=2,global_batch=64,schedule=1f1b", NULL, 2, false },
		      { "[1, 2]", NULL, "pp=2,vpp=2,global_batch=64,schedule=1f1b", 2, false },
		      { "[2]", NULL, NULL, 2, false } }; /* it has no others */

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		ptc_auto_free char *yaml =
			ptc_asprintf(HEAD MODEL "space: {global_batch: 64, vpp: %s}\n", cases[i].vpp);
		struct ptc_job_work_opts opts = { .now = cases[i].now,
						  .measured = &measured,
						  .unattended = !cases[i].attended };
		struct ptc_job_desc desc;
		struct ptc_job_work *w;

		measured = (struct ptc_measured_doc){ .nrows = cases[i].measured ? 1 : 0 };
		measured.rows[0].step_s = 1;
		if (cases[i].measured)
			strcpy(measured.rows[0].config, cases[i].measured);
		w = make(yaml, &desc, &opts);
		assert_int_equal(cases[i].most, w->space.vpp.v[w->space.vpp.n - 1]);
		assert_int_equal(cases[i].most == 1, w->plain);
		done(w, &desc);
	}
}

/* Changes that follow each other quickly do not make the horizon shorter than the default, and losses are kept. */
static void what_has_changed(void **state)
{
	struct ptc_job_work_opts opts = { .measured = &measured };

	for (int slow = 0; slow < 2; slow++) {
		struct ptc_job_desc desc;
		struct ptc_job_work *w;

		memset(&measured, 0, sizeof measured);
		for (int i = 0; i < 4; i++)
			ptc_measured_change_add(&measured,
						&(struct ptc_measured_change){ (slow ? 3600000 : 60000) * i, 5, 1 });
		ptc_measured_devices(&measured, 8, 1000);
		ptc_measured_devices(&measured, 6, 2000);
		w = make(HEAD MODEL SPACE, &desc, &opts);
		assert_true(w->horizon_s == (slow ? 3600 : PTC_CHOOSE_HORIZON_S));
		assert_true(w->pause_s == 4);
		assert_int_equal(1, w->nlosses);
		assert_int_equal(2, w->losses[0].devices);
		done(w, &desc);
	}
}

static void pair(struct ptc_links *pairs, const char *a, const char *b, double v)
{
	struct ptc_link *l = &pairs->v[pairs->n++];

	l->bytes_s = v;
	strcpy(l->from, a);
	strcpy(l->to, b);
}

/* n3 is slow, and then n2 a little: sets that gain a fifth compete, others do not. */
static void sets_of_nodes(void **state)
{
	static struct ptc_job_found found[PTC_WORK_KEEP];
	struct ptc_link links[6] = { 0 };
	struct ptc_links pairs = { links, 0 };
	struct ptc_job_work_opts opts = { .profile = PROFILE, .pairs = &pairs };
	struct ptc_job_desc desc;
	struct ptc_job_work *w;
	size_t n = 0;

	for (size_t a = 0; a < 4; a++)
		for (size_t b = 0; b < a; b++)
			pair(&pairs, nodes[a].name, nodes[b].name, a == 3 ? 1e6 : a == 2 ? 9e9 : 1e10);
	w = make(HEAD MODEL SPACE, &desc, &opts);
	assert_true(w->linked);
	assert_int_equal(4, w->nsets); /* all; without n3; one node alone, which needs no link; all, placed */
	assert_true(w->sets[3].placed && w->sets[3].devices == 16 && w->sets[3].cluster.node_bytes_s == 9e9);
	assert_int_equal(16, w->sets[0].devices);
	assert_true(w->sets[0].cluster.node_bytes_s == 1e6);
	assert_int_equal(12, w->sets[1].devices);
	assert_true(w->sets[1].leave[3] && !w->sets[1].leave[2]);
	assert_true(w->sets[1].cluster.node_bytes_s == 9e9);
	assert_int_equal(4, w->sets[2].devices);
	assert_int_equal(0, ptc_job_work_search(w, 16, found, &n, NULL));
	assert_int_equal(1, found[0].set);
	for (size_t i = 1; i < n; i++)
		assert_true(found[i - 1].choice.est.step_s <= found[i].choice.est.step_s);
	done(w, &desc);
}

/* Nodes of two kinds: each kind competes by itself, and is compared with its own memory. */
static int plain_nodes(void **state)
{
	for (int i = 0; i < 4; i++) {
		nodes[i] = (struct ptc_planning_node){ "", 4, "", 0 };
		snprintf(nodes[i].name, sizeof nodes->name, "n%d", i);
	}
	return 0;
}

static void kinds_of_devices(void **state)
{
	static struct ptc_job_found found[PTC_WORK_KEEP];
	struct ptc_job_work_opts opts = { 0 };
	struct ptc_job_desc desc;
	struct ptc_job_work *w;
	size_t n = 0;

	for (size_t i = 0; i < 4; i++)
		snprintf(nodes[i].device_name, sizeof nodes->device_name, "%s", i < 3 ? "Tesla T4" : "H100-80GB");
	nodes[0].device_bytes = UINT64_C(12000000000); /* less than its data sheet says */
	w = make(HEAD MODEL SPACE, &desc, &opts);
	assert_false(w->assumed);
	assert_int_equal(3, w->nsets); /* of each kind, and of both */
	assert_true(w->sets[0].devices == 12 && w->sets[1].devices == 4);
	assert_true(!w->sets[0].leave[2] && w->sets[0].leave[3] && w->sets[1].leave[0] && !w->sets[1].leave[3]);
	assert_int_equal(1, w->sets[0].cluster.nkinds);
	assert_true(w->sets[0].cluster.kinds[0].memory_bytes == 12e9 &&
		    w->sets[1].cluster.kinds[0].memory_bytes == 80e9);
	assert_true(w->sets[2].placed && w->sets[2].devices == 16 && w->sets[2].cluster.nkinds == 2);
	assert_int_equal(0, ptc_job_work_search(w, 16, found, &n, NULL));
	assert_int_not_equal(0, found[0].set); /* four H100 are faster than twelve T4 */
	done(w, &desc);
}

#define TENSORS                                                                                                        \
	"tensors: [{name: wte, dtype: F32, shape: [32000, 1024]}, {name: h.0.attn.qkv, dtype: F32, shape: [3072, "     \
	"1024]}, {name: h.0.attn.proj, dtype: F32, shape: [1024, 1024]}, {name: h.0.mlp.up, dtype: F32, shape: "       \
	"[4096, 1024]}, {name: h.0.mlp.down, dtype: F32, shape: [1024, 4096]}, {name: h.1.attn.qkv, dtype: F32, "      \
	"shape: [3072, 1024]}, {name: h.1.attn.proj, dtype: F32, shape: [1024, 1024]}, {name: h.1.mlp.up, dtype: "     \
	"F32, shape: [4096, 1024]}, {name: h.1.mlp.down, dtype: F32, shape: [1024, 4096]}]\nrules: [{match: "          \
	"'*'}]\n"

/* `model: {seq}`: the tensors of the description say the rest, or those that ranks have declared. */
static void a_model_by_its_tensors(void **state)
{
	struct ptc_job_work_opts opts = { 0 };
	struct ptc_job_desc desc, other;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_work *w;
	const char *yaml = "version: 1\nname: gpt\nmodel: {seq: 512}\n" SPACE TENSORS;

	w = make(yaml, &desc, &opts);
	assert_int_equal(0, w->no_model.code);
	assert_non_null(strstr(w->inferred, "2 layers of 1 kind, hidden 1024"));
	assert_true(w->model.seq == 512 && w->model.vocab == 32000);
	assert_int_equal(0, ptc_planning_check(&desc, &err));
	ptc_job_work_free(w);
	refused(HEAD "model: {seq: 512}\n" SPACE, NULL, "not known yet");
	opts.held = &desc.spec;
	w = make(HEAD "model: {seq: 512}\n" SPACE, &other, &opts);
	assert_true(w->model.layers == 2);
	done(w, &other);
	ptc_job_desc_done(&desc);
}

/* A family that nobody knows: what has been measured, and the same with other dp. */
static void a_model_that_is_not_known(void **state)
{
	static struct ptc_job_found found[PTC_WORK_KEEP];
	static struct ptc_config manner, config;
	static char text[PTC_CONFIG_TEXT_MAX];
	const char *yaml = HEAD "model: {config: {model_type: alphafold}, seq: 512}\n" SPACE;
	struct ptc_measured_row row = { .config = "tp=2,pp=2,dp=2,stages=3:5,micro_batch=4,global_batch=64",
					.step_s = 0.8 };
	struct ptc_job_work_opts opts = { .measured = &measured, .now = row.config };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc desc;
	struct ptc_choice c;
	struct ptc_job_work *w;
	size_t n = 0;

	refused(yaml, NULL, "no step of its batch has been measured");
	memset(&measured, 0, sizeof measured);
	ptc_measured_add(&measured, &row);
	w = make(yaml, &desc, &opts);
	assert_int_equal(0, ptc_planning_check(&desc, &err));
	assert_non_null(strstr(w->no_model.text, "alphafold"));
	assert_int_equal(0, ptc_job_work_search(w, 16, found, &n, NULL));
	assert_int_equal(4, n); /* dp of 1 to 4 */
	assert_int_equal(4, found[0].choice.cand.dp);
	assert_true(found[0].choice.est.step_s == 0.4 && found[0].choice.sd > 0.2);
	assert_int_equal(0, ptc_job_manner(&opts, &manner, NULL));
	assert_int_equal(0, ptc_job_work_config(w, &manner, &found[0], &config, NULL));
	assert_int_equal(0, ptc_config_format(&config, text, sizeof text));
	assert_string_equal("tp=2,pp=2,dp=4,micro_batch=4,global_batch=64,stages=3:5", text);
	assert_int_equal(0, ptc_config_parse(row.config, &config, NULL));
	assert_int_equal(0, ptc_job_work_predict(w, &config, NULL, NULL, &c, NULL));
	assert_true(c.est.step_s == 0.8 && c.sd < 0.1);
	assert_int_equal(PTC_ENODEVICES, ptc_job_work_search(w, 3, found, &n, &err));
	assert_non_null(strstr(err.text, "no measured step scales to 3 devices"));
	done(w, &desc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_search_is_the_planners),
		cmocka_unit_test(memory_is_compared_by_a_profile),
		cmocka_unit_test(without_a_space_degrees_that_are_known),
		cmocka_unit_test(what_is_missing_is_said),
		cmocka_unit_test(in_the_jobs_manner),
		cmocka_unit_test(recomputation),
		cmocka_unit_test(schedules),
		cmocka_unit_test(unattended),
		cmocka_unit_test(what_has_changed),
		cmocka_unit_test(sets_of_nodes),
		cmocka_unit_test_teardown(kinds_of_devices, plain_nodes),
		cmocka_unit_test(a_model_by_its_tensors),
		cmocka_unit_test(a_model_that_is_not_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
