/* SPDX-License-Identifier: Apache-2.0 */
/* A job as planner/ sees it. Happy path: model and space are read, the profile is fitted to the nodes that are there, what
 * was measured calibrates the model. A measured configuration that the model cannot have is left out; a cluster without a
 * profile gets assumed devices and links, and no memory is compared. */
#include "daemon/planning/job_work.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "planner/search/as_config.h"

#include <pthread.h>
#include <string.h>

#define REMEMBERED   64 /* numbers of devices */
#define PAUSE_LIVE_S 10 /* starting ranks and meeting, where no switch was measured */
#define MEMORY_NONE  1e15

struct found {
	uint32_t devices; /* 0: free */
	size_t n;
	struct ptc_choice v[PTC_WORK_KEEP];
};
struct ptc_job_work_memory {
	pthread_mutex_t lock;
	struct found found[REMEMBERED];
	size_t next;
	struct ptc_frontier *frontier; /* of frontier_devices */
	uint32_t frontier_devices;
};

/* ---- the cluster ---- */

static void assume(struct ptc_cluster_profile *c)
{
	*c = (struct ptc_cluster_profile){ .nkinds = 1,
					   .intra_bytes_s = 2e11,
					   .intra_latency_s = 2e-5,
					   .node_bytes_s = 2.5e10,
					   .node_latency_s = 5e-5 };
	ptc_require(ptc_device_kind_known("A100-80GB", &c->kinds[0]));
	c->kinds[0].memory_bytes = MEMORY_NONE;
}

static int read_profile(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	struct ptc_cluster_profile *c = &w->profile.cluster;
	struct ptc_doc doc;
	int rc = 0;

	w->assumed = !o->profile;
	if (w->assumed) {
		assume(c);
	} else {
		rc = ptc_doc_from_yaml("the cluster's profile", o->profile, strlen(o->profile), &doc, err);
		if (rc)
			return rc;
		rc = ptc_plan_profile_read(&doc, &w->profile, err);
		ptc_doc_done(&doc);
	}
	if (rc)
		return rc;
	c->per_node = PTC_MAX(1u, o->shape.per_node);
	if (c->nkinds == 1)
		c->kinds[0].nodes = PTC_MAX(1u, (o->shape.devices + c->per_node - 1) / c->per_node);
	return ptc_cluster_profile_check(c, err);
}

/* ---- what was measured ---- */

static uint8_t only_mode(const struct ptc_job_work *w)
{
	return (uint8_t)__builtin_ctz(w->space.recompute ? w->space.recompute : 1u);
}

struct rows {
	struct ptc_fit_row *steps;
	struct ptc_peak_row *peaks;
};

static void take_row(struct ptc_job_work *w, const struct rows *r, const struct ptc_cand *c, double step_s,
		     double peak_bytes)
{
	struct ptc_estimate e;

	if (ptc_estimate(&w->work, c, &e, NULL) != 0)
		return;
	if (step_s > 0)
		r->steps[w->nsteps++] = (struct ptc_fit_row){ &w->work, *c, step_s };
	if (peak_bytes > 0)
		r->peaks[w->npeaks++] = (struct ptc_peak_row){ &w->work, *c, peak_bytes };
}

static int take_measured(const struct ptc_job_work_opts *o, struct ptc_job_work *w, const struct rows *r,
			 struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *config = ptc_calloc(1, sizeof *config);

	if (!config)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	for (size_t i = 0; i < w->profile.nmeasured; i++) {
		const struct ptc_plan_measured *m = &w->profile.measured[i];

		if (m->global_batch == w->work.global_batch)
			take_row(w, r, &m->cand, m->step_s, m->peak_bytes);
	}
	for (size_t i = 0; o->measured && i < o->measured->nrows; i++) {
		const struct ptc_measured_row *m = &o->measured->rows[i];
		struct ptc_cand c;

		if (ptc_config_parse(m->config, config, NULL) != 0 ||
		    (config->global_batch && config->global_batch != w->work.global_batch))
			continue;
		ptc_cand_from_config(config, &c);
		c.recompute = only_mode(w);
		take_row(w, r, &c, m->step_s, m->peak_bytes);
	}
	return 0;
}

static int calibrate(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	size_t most = w->profile.nmeasured + (o->measured ? o->measured->nrows : 0) + 1;
	ptc_auto_free struct ptc_fit_row *steps = ptc_calloc(most, sizeof *steps);
	ptc_auto_free struct ptc_peak_row *peaks = ptc_calloc(most, sizeof *peaks);
	struct rows r = { steps, peaks };
	int rc = steps && peaks ? take_measured(o, w, &r, err) : ptc_error_set(err, PTC_ENOMEM, "out of memory");

	if (rc == 0 && w->npeaks) {
		struct ptc_memory_rules rules = w->work.memory;

		rc = ptc_fit_peaks(peaks, w->npeaks, &rules, err);
		w->work.memory = rules;
	}
	if (rc == 0 && w->nsteps)
		rc = ptc_calibration_new(steps, w->nsteps, NULL, &w->cal, err);
	if (w->cal)
		w->work.coefs = *ptc_calibration_coefs(w->cal);
	return rc;
}

/* ---- life ---- */

static int read_model(const struct ptc_job_desc *desc, struct ptc_model *ret, struct ptc_error *err)
{
	struct ptc_doc doc;
	int rc = ptc_doc_from_yaml("model", desc->model, strlen(desc->model), &doc, err);

	if (rc)
		return rc;
	rc = ptc_plan_model_read(&doc, doc.root, ret, err);
	ptc_doc_done(&doc);
	return rc;
}

static int fill(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	double between = o->measured ? ptc_measured_between_s(o->measured) : 0;
	int rc = read_model(o->desc, &w->model, err);

	w->work.model = &w->model;
	w->work.cluster = &w->profile.cluster;
	ptc_coefs_default(&w->work.coefs);
	if (rc == 0)
		rc = ptc_job_space(o, w, err);
	if (rc == 0)
		rc = read_profile(o, w, err);
	if (rc == 0)
		rc = calibrate(o, w, err);
	w->horizon_s = between > 0 ? between : PTC_CHOOSE_HORIZON_S;
	w->pause_s = o->measured ? ptc_measured_pause_s(o->measured, PAUSE_LIVE_S) : PAUSE_LIVE_S;
	return rc;
}

int ptc_job_work_new(const struct ptc_job_work_opts *opts, struct ptc_job_work **ret, struct ptc_error *err)
{
	struct ptc_job_work *w;
	int rc;

	if (!opts->desc->model)
		return ptc_error_set(err, PTC_ENOTFOUND,
				     "job %s has no model: in its description, which its step times are predicted by "
				     "(docs/planner.md)",
				     opts->desc->spec.name);
	w = ptc_calloc(1, sizeof *w);
	if (!w || !(w->memory = ptc_calloc(1, sizeof *w->memory))) {
		ptc_free(w);
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	}
	pthread_mutex_init(&w->memory->lock, NULL);
	rc = fill(opts, w, err);
	if (rc) {
		ptc_job_work_free(w);
		return rc;
	}
	*ret = w;
	return 0;
}

struct ptc_job_work *ptc_job_work_free(struct ptc_job_work *w)
{
	if (!w)
		return NULL;
	ptc_frontier_free(w->memory->frontier);
	ptc_calibration_free(w->cal);
	ptc_plan_profile_done(&w->profile);
	pthread_mutex_destroy(&w->memory->lock);
	ptc_free(w->memory);
	ptc_free(w);
	return NULL;
}

/* ---- questions ---- */

static bool remembered(struct ptc_job_work_memory *m, uint32_t n, struct ptc_choice *ret, size_t *ret_n)
{
	bool yes = false;

	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < REMEMBERED && !yes; i++)
		if (m->found[i].devices == n) {
			*ret_n = m->found[i].n;
			memcpy(ret, m->found[i].v, m->found[i].n * sizeof *ret);
			yes = true;
		}
	pthread_mutex_unlock(&m->lock);
	return yes;
}

static void remember(struct ptc_job_work_memory *m, uint32_t n, const struct ptc_choice *v, size_t count)
{
	struct found *f;

	pthread_mutex_lock(&m->lock);
	f = &m->found[m->next++ % REMEMBERED];
	f->devices = n;
	f->n = count;
	memcpy(f->v, v, count * sizeof *v);
	pthread_mutex_unlock(&m->lock);
}

int ptc_job_work_search(struct ptc_job_work *w, uint32_t n, struct ptc_choice *ret, size_t *ret_n,
			struct ptc_error *err)
{
	struct ptc_search_limits limits = { .devices = n, .keep = PTC_WORK_KEEP };
	int rc;

	if (remembered(w->memory, n, ret, ret_n))
		return 0;
	rc = ptc_search(&w->work, &w->space, &limits, w->cal, ret, ret_n, err);
	if (rc == 0)
		remember(w->memory, n, ret, *ret_n);
	return rc;
}

/* One is made per work: a work is of one number of devices that there are. */
int ptc_job_work_frontier(struct ptc_job_work *w, uint32_t devices, const struct ptc_frontier **ret,
			  struct ptc_error *err)
{
	struct ptc_job_work_memory *m = w->memory;
	int rc = 0;

	pthread_mutex_lock(&m->lock);
	if (!m->frontier) {
		m->frontier_devices = devices;
		rc = ptc_frontier_new(&w->work, &w->space, devices, &m->frontier, err);
	}
	if (rc == 0 && devices > m->frontier_devices)
		rc = ptc_error_set(err, PTC_ENODEVICES, "%u devices are asked for, %u are known", devices,
				   m->frontier_devices);
	if (rc == 0 && ret)
		*ret = m->frontier;
	pthread_mutex_unlock(&m->lock);
	return rc;
}

int ptc_job_work_config(const struct ptc_job_work *w, const struct ptc_config *manner, const struct ptc_cand *c,
			struct ptc_config *ret, struct ptc_error *err)
{
	uint32_t world;
	int rc = ptc_cand_config(&w->work, c, ret, err);

	if (rc)
		return rc;
	memcpy(ret->order, manner->order, sizeof ret->order);
	ret->shard = manner->shard;
	if (!manner->global_batch)
		ret->global_batch = 0; /* the program has its own */
	if (!manner->micro_batch && w->space.micro_batch.n == 1)
		ret->micro_batch = 0;
	return ptc_config_world(ret, &world, err);
}

int ptc_job_work_predict(const struct ptc_job_work *w, const struct ptc_config *config, struct ptc_choice *ret,
			 struct ptc_error *err)
{
	int rc;

	*ret = (struct ptc_choice){ .sd = PTC_UNCALIBRATED_SD };
	ptc_cand_from_config(config, &ret->cand);
	if (!config->micro_batch && w->space.micro_batch.n == 1)
		ret->cand.micro_batch = w->space.micro_batch.v[0];
	ret->cand.recompute = only_mode(w);
	rc = ptc_estimate(&w->work, &ret->cand, &ret->est, err);
	if (rc == 0 && w->cal)
		ret->est.step_s *= ptc_calibration_factor(w->cal, &w->work, &ret->cand, &ret->sd);
	return rc;
}
