/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl advise: which configuration for so many devices. Happy path: the job's file says what is trained and what the
 * program can take (`model:`, `space:`). The profile says which devices there are and which steps were measured. No
 * daemon is asked. Failure: CTL_USAGE for options, else the error of reading or searching, one line. */
#include "client/ctl/plans/advise/advise.h"
#include "client/ctl/plans/offline.h"
#include "client/ctl/plans/plans.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/sys/sys.h"
#include "planner/search/as_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX (16u << 20)
#define SHOWN    10

static const struct ctl_option options[] = {
	{ "file", "FILE", "the job's description, with model: and space: (docs/planner.md); no daemon is asked", 'f' },
	{ "gpus", "N|A-B", "number of devices, or each number in a range" },
	{ "profile", "FILE", "devices, links and measured steps (docs/planner.md)" },
	{ "devices", "FILE",
	  "devices by name, with peaks by data type, and prices (as deploy/devices.yaml); they replace built-in ones" },
	{ "galvatron", "FILE",
	  "add a file of Galvatron's hardware profile, measured on all devices (allreduce_bandwidth_*.json, "
	  "p2p_bandwidth_*.json, overlap_coefficient.json); repeat for each file" },
	{ "layout", "FILE",
	  "with -f: a live job's layout (from ptcctl probe -o); repeat for each configuration, also that of --now" },
	{ "now", "CONFIG",
	  "the present configuration, if the job may stay in it; it may have recompute=none|selective|full" },
	{ "pause", "DURATION",
	  "with --now: how long a switch stops the job, apart from moving its state (default 30s)" },
	{ "horizon", "DURATION",
	  "expected time until the number of devices changes again (default: the mean for JOB so far, else 10m)" },
	{ "objective", "throughput|money|state-bytes",
	  "throughput (default): most steps; money: least money per step; state-bytes: fewest bytes moved (with "
	  "-f: from the configuration of --now)" },
	{ "nodes", "A,B", "only these nodes; needs JOB" },
};

static int read_doc(const char *path, struct ptc_doc *ret, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL;
	size_t len = 0;
	int rc = ptc_sys_read_file(path, FILE_MAX, &text, &len, err);

	return rc ? rc : ptc_doc_from_yaml(path, text, len, ret, err);
}

/* `model: {config: FILE, seq: S}`: a config.json, beside the job's file if not absolute. */
static int read_hf(const char *file, const char *config, uint32_t seq, struct ptc_model *ret, struct ptc_error *err)
{
	const char *slash = strrchr(file, '/');
	ptc_auto_free char *path = config[0] == '/' || !slash
					   ? ptc_strdup(config)
					   : ptc_asprintf("%.*s/%s", (int)(slash - file), file, config);
	struct ptc_doc doc;
	int rc = path ? read_doc(path, &doc, err) : ptc_nomem(err);

	if (rc)
		return rc;
	rc = ptc_plan_hf_read(&doc, doc.root, seq, ret, err);
	ptc_doc_done(&doc);
	return rc;
}

static int read_model(const char *file, const struct ptc_doc *doc, struct ptc_model *ret, struct ptc_error *err)
{
	static const char *const keys[] = { "config", "seq" };
	const struct ptc_doc_node *node = ptc_doc_get(doc->root, "model"), *config, *seq;
	const char *text = NULL;
	int64_t n = 0;
	int rc;

	if (!node)
		return ptc_error_set(err, PTC_ENOTFOUND,
				     "%s has no model:; without it only measured configurations are known", file);
	config = ptc_doc_get(node, "config");
	if (!config || config->kind == PTC_DOC_MAP)
		return ptc_plan_model_read(doc, node, ret, err);
	rc = ptc_doc_check_map(doc, node, "model", keys, PTC_ARRAY_LEN(keys), err);
	if (!rc)
		rc = ptc_doc_text(doc, config, "config", &text, err);
	seq = ptc_doc_get(node, "seq");
	if (!rc && seq)
		rc = ptc_doc_int(doc, seq, "seq", 1, 1 << 24, &n, err);
	return rc ? rc : read_hf(file, text, (uint32_t)n, ret, err);
}

static int infer_model(const struct ctl *c, struct ctl_advice *a, const struct ptc_doc *doc, struct ptc_error *err)
{
	struct ptc_infer_given given;
	struct ctl_offline o = { 0 };
	int rc = ptc_plan_given_read(doc, ptc_doc_get(doc->root, "model"), &given, err);

	if (!rc)
		rc = ctl_offline_open(c, &o, err);
	if (!rc)
		rc = ptc_model_infer(o.job.spec.tensors, o.job.spec.ntensors, &given, &a->model, a->inferred, err);
	ctl_offline_done(&o);
	return rc;
}

static int read_job(const struct ctl *c, struct ctl_advice *a, struct ptc_error *err)
{
	const char *file = ctl_option(c, "file");
	const struct ptc_doc_node *space;
	struct ptc_doc doc;
	int rc = read_doc(file, &doc, err);

	if (rc)
		return rc;
	space = ptc_doc_get(doc.root, "space");
	a->has_state = ctl_option(c, "layout") || ptc_doc_get(doc.root, "tensors");
	if (a->has_state && ptc_plan_model_infers(ptc_doc_get(doc.root, "model")))
		rc = infer_model(c, a, &doc, err);
	else
		rc = read_model(file, &doc, &a->model, &a->no_model);
	if (rc && rc != PTC_ENOTFOUND && a->no_model.code)
		rc = ptc_error_set(err, rc, "%s", a->no_model.text);
	else if (rc == PTC_ENOTFOUND)
		rc = 0; /* what was measured remains */
	if (!rc)
		rc = space ? ptc_plan_space_read(&doc, space, &a->space, &a->work, err)
			   : ptc_error_set(err, PTC_EINVAL, "%s has no space:; it says at least the global_batch",
					   file);
	ptc_doc_done(&doc);
	return rc;
}

static int read_devices(const struct ctl *c, struct ptc_plan_devices *ret, struct ptc_error *err)
{
	struct ptc_doc doc;
	int rc;

	if (!ctl_option(c, "devices"))
		return 0;
	rc = read_doc(ctl_option(c, "devices"), &doc, err);
	if (rc)
		return rc;
	rc = ptc_plan_devices_read(&doc, ret, err);
	ptc_doc_done(&doc);
	return rc;
}

static int read_profile(const struct ctl *c, struct ctl_advice *a, struct ptc_error *err)
{
	static struct ptc_plan_devices known; /* one thread; too large for a stack */
	const char *file;
	struct ptc_doc doc;
	size_t at = 0;
	int rc = read_devices(c, &known, err);

	if (!rc)
		rc = read_doc(ctl_option(c, "profile"), &doc, err);
	if (rc)
		return rc;
	rc = ptc_plan_profile_read_with(&doc, &known, a->work.dtype, &a->profile, err);
	ptc_doc_done(&doc);
	while (!rc && (file = ctl_option_next(c, "galvatron", &at))) {
		rc = read_doc(file, &doc, err);
		if (rc)
			return rc;
		rc = ptc_plan_galvatron_read(&doc, &a->profile.cluster, err);
		ptc_doc_done(&doc);
	}
	return rc;
}

/* Measured steps of this job's batch, and peaks, correct the model. */
static int calibrate(struct ctl_advice *a, struct ptc_error *err)
{
	size_t n = a->profile.nmeasured;
	ptc_auto_free struct ptc_fit_row *steps = ptc_calloc(n + 1, sizeof *steps);
	ptc_auto_free struct ptc_peak_row *peaks = ptc_calloc(n + 1, sizeof *peaks);
	int rc = 0;

	if (!steps || !peaks)
		return ptc_nomem(err);
	for (size_t i = 0; i < n; i++) {
		const struct ptc_plan_measured *m = &a->profile.measured[i];

		if (m->global_batch != a->work.global_batch)
			continue;
		if (m->step_s > 0)
			steps[a->nsteps++] = (struct ptc_fit_row){ &a->work, m->cand, m->step_s, m->noise };
		if (m->peak_bytes > 0)
			peaks[a->npeaks++] = (struct ptc_peak_row){ &a->work, m->cand, m->peak_bytes };
	}
	if (a->npeaks) {
		struct ptc_memory_rules rules = a->work.memory;

		rc = ptc_fit_peaks(peaks, a->npeaks, &rules, err);
		a->work.memory = rules;
	}
	if (!rc && a->nsteps)
		rc = ptc_calibration_new(steps, a->nsteps, NULL, &a->cal, err);
	if (a->cal)
		a->work.coefs = *ptc_calibration_coefs(a->cal);
	return rc;
}

static int take_range(const struct ctl *c, struct ctl_advice *a, struct ptc_error *err)
{
	const char *text = ctl_option(c, "gpus"), *dash = text && *text ? strchr(text + 1, '-') : NULL;
	ptc_auto_free char *first = text ? ptc_strndup(text, dash ? (size_t)(dash - text) : strlen(text)) : NULL;
	uint32_t have = ptc_cluster_profile_devices(&a->profile.cluster);
	uint64_t from = 0, to;
	int rc = first ? ctl_number("--gpus", first, 1, PTC_MAX_RANKS, &from, err) : ptc_nomem(err);

	to = from;
	if (!rc && dash)
		rc = ctl_number("--gpus", dash + 1, 1, PTC_MAX_RANKS, &to, err);
	if (rc)
		return rc;
	if (to < from)
		return ctl_usage(err, "--gpus %s: the range is empty", text);
	if (to > have)
		return ptc_error_set(err, PTC_ENODEVICES, "--gpus %s: the profile has %u devices", text, have);
	a->first = (uint32_t)from;
	a->last = (uint32_t)to;
	return 0;
}

struct pause {
	double seconds;
};

static int price(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret)
{
	*ret = (struct ptc_switch_price){ .down_s = ((const struct pause *)arg)->seconds };
	return 0;
}

static int seconds_of(const struct ctl *c, const char *name, double absent, double *ret, struct ptc_error *err)
{
	const char *text = ctl_option(c, name);
	int ms = 0, rc = text ? ctl_duration(name, text, &ms, err) : 0;

	*ret = text ? ms / 1000.0 : absent;
	return rc;
}

/* --now as a choice, with what it takes. A switch keeps the job's global batch, so --now cannot have another one. */
static int read_now(const struct ctl *c, const struct ctl_advice *a, struct ptc_choice *ret, struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *config = ptc_calloc(1, sizeof *config);
	int rc = config ? ptc_cand_parse(ctl_option(c, "now"), &ret->cand, config, err) : ptc_nomem(err);

	if (!rc && config->global_batch && config->global_batch != a->work.global_batch)
		rc = ptc_error_set(err, PTC_EINVAL, "--now has global_batch=%u, the job's is %u; leave it out of --now",
				   config->global_batch, a->work.global_batch);
	if (rc)
		return rc;
	rc = ptc_estimate(&a->work, &ret->cand, &ret->est, err);
	ret->sd = PTC_UNCALIBRATED_SD;
	if (!rc && a->cal)
		ret->est.step_s *= ptc_calibration_factor(a->cal, &a->work, &ret->cand, &ret->sd);
	return rc;
}

static int take_rules(const struct ctl *c, const struct ctl_advice *a, struct ptc_choice *now, struct pause *pause,
		      struct ptc_choose_rules *rules, struct ptc_error *err)
{
	static const char *const words[] = { "throughput", "money", "state-bytes" }; /* enum ptc_objective */
	const char *objective = ctl_option(c, "objective");
	int rc = seconds_of(c, "pause", 30, &pause->seconds, err);

	if (!rc)
		rc = seconds_of(c, "horizon", PTC_CHOOSE_HORIZON_S, &rules->horizon_s, err);
	while (!rc && objective && strcmp(objective, words[rules->objective]))
		if (++rules->objective > PTC_FOR_STATE_BYTES)
			return ctl_usage(err, "--objective is throughput, money or state-bytes, not \"%.40s\"",
					 objective);
	for (uint32_t k = 0; !rc && rules->objective == PTC_FOR_MONEY && k < a->profile.cluster.nkinds; k++)
		if (!(a->profile.cluster.kinds[k].price_hour > 0))
			rc = ptc_error_set(err, PTC_EINVAL, "--objective money: device %s has no price_hour",
					   a->profile.cluster.kinds[k].name);
	if (!rc && rules->objective == PTC_FOR_STATE_BYTES && !(ctl_option(c, "now") && a->has_state))
		rc = ptc_error_set(err, PTC_EINVAL,
				   "--objective state-bytes: bytes are known where the file describes "
				   "tensors and --now says where they lie");
	if (rc || !ctl_option(c, "now"))
		return rc;
	rules->price = price;
	rules->arg = pause;
	rules->now = now;
	return read_now(c, a, now, err);
}

/* What a switch from --now moves, where that is known. */
static int open_pricer(const struct ctl *c, struct ctl_advice *a, const struct ptc_choice *now, double pause_s,
		       struct ptc_error *err)
{
	return ctl_option(c, "now") && a->has_state ? ctl_pricer_new(c, a, &now->cand, pause_s, &a->pricer, err) : 0;
}

static int for_one(const struct ctl *c, struct ctl_advice *a, struct ptc_error *err)
{
	struct ptc_search_limits limits = { .devices = a->last, .keep = PTC_SEARCH_KEEP };
	ptc_auto_free struct ptc_choice *v = ptc_calloc(PTC_SEARCH_KEEP, sizeof *v);
	ptc_auto_free struct ptc_ranked *ranked = ptc_calloc(PTC_SEARCH_KEEP + 1, sizeof *ranked);
	struct ptc_choose_rules rules = { 0 };
	struct ptc_choice now = { 0 };
	struct pause pause = { 0 };
	char why[PTC_WHY_MAX];
	size_t n = 0;
	int rc;

	if (!v || !ranked)
		return ptc_nomem(err);
	rc = take_rules(c, a, &now, &pause, &rules, err);
	limits.cheapest = rules.objective == PTC_FOR_MONEY;
	if (!rc)
		rc = ptc_search(&a->work, &a->space, &limits, a->cal, v, &n, err);
	if (!rc)
		rc = open_pricer(c, a, &now, pause.seconds, err);
	if (a->pricer) {
		rules.price = ctl_price;
		rules.arg = a->pricer;
	}
	if (!rc && rules.now && ptc_cand_devices(&now.cand) > a->last)
		rules.now = NULL; /* it must leave */
	if (!rc)
		rc = ptc_choose(v, n, &rules, ranked, &n, why, err);
	if (!rc)
		ctl_advice_candidates(a, ranked, PTC_MIN(n, (size_t)SHOWN), why);
	return rc;
}

/* Where devices differ, each number is searched for; what fits on n fits on n + 1. */
static int for_range_of_kinds(const struct ctl_advice *a, struct ptc_error *err)
{
	struct ptc_choice best;
	size_t found;

	ctl_advice_counts_begin(a);
	for (uint32_t n = a->first; n <= a->last; n++) {
		struct ptc_search_limits limits = { .devices = n, .keep = 1 };
		struct ptc_error why = PTC_ERROR_INIT;
		struct ptc_frontier_point p;
		int rc = ptc_search(&a->work, &a->space, &limits, NULL, &best, &found, &why);

		if (rc && rc != PTC_ENODEVICES)
			return ptc_error_set(err, rc, "%s", why.text);
		p = (struct ptc_frontier_point){ best.cand, best.est.step_s, best.est.memory_bytes };
		ctl_advice_count(a, n, rc ? NULL : &p);
	}
	ctl_advice_counts_end(a);
	return 0;
}

static int for_range(const struct ctl *c, struct ctl_advice *a, struct ptc_error *err)
{
	struct ptc_choose_rules rules = { 0 };
	struct ptc_frontier *f = NULL;
	struct ptc_choice now = { 0 };
	struct pause pause;
	int rc = take_rules(c, a, &now, &pause, &rules, err);

	if (!rc)
		rc = open_pricer(c, a, &now, pause.seconds, err);
	if (!rc && a->profile.cluster.nkinds > 1)
		return for_range_of_kinds(a, err);
	if (!rc)
		rc = ptc_frontier_new(&a->work, &a->space, a->last, &f, err);
	if (rc)
		return rc;
	ctl_advice_counts_begin(a);
	for (uint32_t n = a->first; n <= a->last; n++)
		ctl_advice_count(a, n, ptc_frontier_best(f, n, INFINITY));
	ctl_advice_counts_end(a);
	ptc_frontier_free(f);
	return 0;
}

/* What was written down, as it was asked for. */
static int put_out(const struct ctl *c, struct ptc_buf *out, struct ptc_error *err)
{
	if (ptc_buf_failed(out))
		return ptc_nomem(err);
	if (c->svg)
		return ctl_advice_svg(out->data, err);
	fputs(out->data, stdout);
	return 0;
}

static int run(struct ctl *c, struct ptc_error *err)
{
	static struct ctl_advice a; /* one thread; too large for a stack */
	struct ptc_buf out = PTC_BUF_INIT;
	int rc;

	if (!ctl_option(c, "file"))
		return ctl_advise_online(c, err);
	if (c->nargs)
		return ctl_usage(err, "JOB and -f exclude each other");
	if (!ctl_option(c, "profile") || !ctl_option(c, "gpus"))
		return ctl_usage(err, "-f FILE, --profile FILE and --gpus N are needed");
	a.work.model = &a.model;
	a.work.cluster = &a.profile.cluster;
	a.out = c->json || c->svg ? &out : NULL;
	ptc_coefs_default(&a.work.coefs);
	rc = read_job(c, &a, err);
	if (!rc)
		rc = read_profile(c, &a, err);
	if (!rc)
		rc = take_range(c, &a, err);
	if (!rc && a.no_model.code)
		rc = ctl_advise_measured(&a, a.no_model.text, err);
	else if (!rc)
		rc = calibrate(&a, err);
	if (!rc && !a.no_model.code)
		rc = a.first == a.last ? for_one(c, &a, err) : for_range(c, &a, err);
	if (!rc && a.out)
		rc = put_out(c, &out, err);
	ptc_buf_done(&out);
	ctl_pricer_free(a.pricer);
	ptc_calibration_free(a.cal);
	ptc_plan_profile_done(&a.profile);
	return rc;
}

const struct ctl_verb ctl_advise = {
	.name = "advise",
	.args = "[JOB] --gpus N|A-B | -f FILE --profile FILE --gpus N|A-B",
	.about = "Show the fastest configurations that fit on a number of devices",
	.help = "The planner predicts step times (docs/planner.md). Measured steps calibrate the predictions;\n"
		"without measured steps, expect an error of 50 % (a standard deviation). For a JOB the daemon\n"
		"answers. It knows the job's devices, their links, and the steps that were measured while the\n"
		"job ran. With -f no daemon is asked.\n"
		"The bytes that a switch moves are exact in three cases: rules give the ranks' layout, or\n"
		"ranks have had the configuration, or a probe has found its layout (ptcctl probe; with -f:\n"
		"--layout). Otherwise the bytes are estimated, with bounds. Devices may stay idle if the job\n"
		"is faster without them.\n",
	CTL_OPTIONS(options),
	.min_args = 0,
	.max_args = 1,
	.job_missing = ctl_job_missing_without_file,
	.svg = true,
	.run = run,
};
