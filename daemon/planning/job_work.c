/* SPDX-License-Identifier: Apache-2.0 */
/* A job as planner/ sees it. Happy path: model and space are read, the profile is fitted to the nodes that are there,
 * what was measured calibrates the model. A measured configuration that is impossible for the model is left out. For a
 * cluster without a profile, devices and links are assumed, and no candidate is left out for want of memory. */
#include "daemon/planning/job_work.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "planner/search/as_config.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#define REMEMBERED   64  /* numbers of devices */
#define PAUSE_LIVE_S 10  /* starting ranks and meeting, where no switch was measured */
#define LINKED_NODES 512 /* more are one set: a matrix of them takes too long to look through */
#define FASTER       1.2 /* times as fast: worth leaving a node */

struct found {
	uint32_t devices; /* 0: free */
	size_t n;
	struct ptc_job_found v[PTC_WORK_KEEP];
};
struct ptc_job_work_memory {
	pthread_mutex_t lock;
	struct found found[REMEMBERED];
	size_t next;
	uint64_t searches;
};

/* ---- the cluster ---- */

static void assume_links(struct ptc_cluster_profile *c)
{
	*c = (struct ptc_cluster_profile){
		.intra_bytes_s = 2e11, .intra_latency_s = 2e-5, .node_bytes_s = 2.5e10, .node_latency_s = 5e-5
	};
}

/* The devices of nodes that are not left (NULL: none is), by kind. */
static void on_devices(const struct ptc_job_work_opts *o, const struct ptc_job_work *w, const bool *leave,
		       struct ptc_cluster_profile *c)
{
	uint32_t devices[PTC_DEVICE_MAX_KINDS] = { 0 }, at = 0;

	for (size_t i = 0; i < o->shape->nnodes; i++)
		if (w->kind_of[i] != PTC_KIND_NONE && (!leave || !leave[i]))
			devices[w->kind_of[i]] += o->shape->nodes[i].devices;
	for (uint32_t k = 0; k < w->kinds.n; k++) {
		c->kinds[at] = w->kinds.v[k];
		/* devices that would not be there are none for a placement; of one kind the search bounds them */
		c->kinds[at].nodes = w->kinds.n > 1 ? devices[k] / c->per_node
						    : PTC_MAX(1u, (devices[k] + c->per_node - 1) / c->per_node);
		at += c->kinds[at].nodes > 0;
	}
	c->nkinds = at;
}

static int read_kinds(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	struct ptc_cluster_profile *c = &w->profile.cluster;
	struct ptc_kinds_ask ask = { .nodes = o->shape->nodes,
				     .nnodes = o->shape->nnodes,
				     .per_node = PTC_MAX(1u, o->shape->per_node),
				     .known = o->known,
				     .own = o->profile ? c : NULL,
				     .dtype = w->work.dtype };
	int rc;

	w->kind_of = ptc_calloc(o->shape->nnodes + 1, sizeof *w->kind_of);
	rc = w->kind_of ? ptc_kinds_find(&ask, &w->kinds, w->kind_of, err) : ptc_nomem(err);
	if (rc)
		return rc;
	w->assumed = w->kinds.assumed;
	c->per_node = ask.per_node;
	if (!w->kinds.n)
		return ptc_error_set(err, PTC_ENODEVICES, "no device may be used");
	on_devices(o, w, NULL, c);
	if (!c->nkinds) { /* less than a whole node of each kind: one of them, then */
		w->kinds.n = 1;
		for (size_t i = 0; i < o->shape->nnodes; i++)
			if (w->kind_of[i] != 0)
				w->kind_of[i] = PTC_KIND_NONE;
		on_devices(o, w, NULL, c);
	}
	return ptc_cluster_profile_check(c, err);
}

static int read_profile(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	struct ptc_doc doc;
	int rc = 0;

	if (!o->profile) {
		assume_links(&w->profile.cluster);
	} else {
		rc = ptc_doc_from_yaml("the cluster's profile", o->profile, strlen(o->profile), &doc, err);
		if (rc)
			return rc;
		rc = ptc_plan_profile_read_with(&doc, o->known, w->work.dtype, &w->profile, err);
		ptc_doc_done(&doc);
	}
	return rc ? rc : read_kinds(o, w, err);
}

/* What was measured between the nodes; the middle one of all links is what steps were measured by. */
static int read_links(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	ptc_auto_free const char **names = ptc_calloc(o->shape->nnodes + 1, sizeof *names);
	double middle;

	if (!names)
		return ptc_nomem(err);
	w->linked = o->profile != NULL;
	for (size_t i = 0; i < o->shape->nnodes; i++)
		names[i] = o->shape->nodes[i].name;
	if (!o->pairs || o->shape->nnodes > LINKED_NODES)
		return 0;
	w->links = ptc_link_sets_new(o->pairs, names, o->shape->nnodes);
	if (!w->links)
		return ptc_nomem(err);
	middle = ptc_link_sets_median(w->links);
	if (middle > 0)
		w->profile.cluster.node_bytes_s = middle;
	w->linked |= middle > 0;
	return 0;
}

/* Links that were not measured are the profile's, or what is assumed. */
static int make_matrix(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	size_t n = o->shape->nnodes;

	w->nnodes = n;
	w->devices = ptc_calloc(n + 1, sizeof *w->devices);
	if (!w->devices)
		return ptc_nomem(err);
	for (size_t i = 0; i < n; i++)
		w->devices[i] = o->shape->nodes[i].devices;
	if (n > LINKED_NODES)
		return 0;
	w->bytes_s = ptc_calloc(n * n + 1, sizeof *w->bytes_s);
	if (!w->bytes_s)
		return ptc_nomem(err);
	if (w->links)
		ptc_link_sets_matrix(w->links, w->profile.cluster.node_bytes_s, w->bytes_s);
	for (size_t i = 0; !w->links && i < n * n; i++)
		w->bytes_s[i] = w->profile.cluster.node_bytes_s;
	return 0;
}

/* The work of a set, after calibration. False: it has no devices, or is hardly faster than the one before. */
static bool add_set(const struct ptc_job_work_opts *o, struct ptc_job_work *w, const bool *leave, bool first)
{
	struct ptc_job_set *s = &w->sets[w->nsets];
	double slowest = w->links ? ptc_link_sets_slowest(w->links, leave) : 0;
	size_t n = o->shape->nnodes;

	*s = (struct ptc_job_set){ .cluster = w->profile.cluster, .work = w->work };
	for (size_t i = 0; i < n; i++)
		s->devices += leave[i] ? 0 : o->shape->nodes[i].devices;
	if (slowest > 0)
		s->cluster.node_bytes_s = slowest;
	if (!s->devices || (!first && slowest > 0 && slowest < FASTER * s[-1].cluster.node_bytes_s))
		return false;
	on_devices(o, w, leave, &s->cluster);
	if (!s->cluster.nkinds)
		return false;
	s->leave = ptc_calloc(n + 1, sizeof *s->leave);
	if (!s->leave)
		return false;
	memcpy(s->leave, leave, n * sizeof *leave);
	s->work.cluster = &s->cluster;
	w->nsets++;
	return true;
}

/* The nodes of one kind; then without those whose links are the slowest, as long as that makes links faster. */
static bool make_sets_of(const struct ptc_job_work_opts *o, struct ptc_job_work *w, uint32_t kind, bool *leave)
{
	if (w->nsets + 1 >= PTC_WORK_SETS) /* the last is for placed ranks */
		return true;
	for (size_t i = 0; i < o->shape->nnodes; i++)
		leave[i] = o->shape->nodes[i].devices && w->kind_of[i] != kind;
	if (!add_set(o, w, leave, true))
		return false;
	for (size_t i = 1; w->links && i < o->shape->nnodes && w->nsets + 1 < PTC_WORK_SETS; i++)
		if (!ptc_link_sets_leave(w->links, leave))
			break;
		else
			add_set(o, w, leave, false);
	return true;
}

/* All nodes, on which ranks are placed by what is measured. */
static void add_placed(const struct ptc_job_work_opts *o, struct ptc_job_work *w, bool *leave)
{
	double slowest;

	for (size_t i = 0; i < o->shape->nnodes; i++)
		leave[i] = o->shape->nodes[i].devices && w->kind_of[i] == PTC_KIND_NONE;
	slowest = w->links ? ptc_link_sets_slowest(w->links, leave) : 0;
	if (w->no_model.code || !w->bytes_s || w->nsets == PTC_WORK_SETS ||
	    (w->kinds.n == 1 && !(slowest > 0 && slowest * FASTER <= w->profile.cluster.node_bytes_s)) ||
	    !add_set(o, w, leave, true))
		return;
	w->sets[w->nsets - 1].placed = true;
	w->sets[w->nsets - 1].cluster.node_bytes_s = w->profile.cluster.node_bytes_s;
}

static int make_sets(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	ptc_auto_free bool *leave = ptc_calloc(o->shape->nnodes + 1, sizeof *leave);
	bool any = false;

	for (uint32_t k = 0; leave && k < w->kinds.n; k++)
		any |= make_sets_of(o, w, k, leave);
	if (any)
		add_placed(o, w, leave);
	return any ? 0
		   : ptc_error_set(err, leave && !o->shape->devices ? PTC_ENODEVICES : PTC_ENOMEM,
				   "no device may be used, or memory is short");
}

/* ---- what was measured ---- */

/* What the configuration does not say, the program does by itself. */
static struct ptc_cand own_cand(const struct ptc_job_work *w, const struct ptc_config *config)
{
	struct ptc_cand c;

	ptc_cand_from_config(config, &c);
	if (!w->told_recompute) {
		c.recompute = (uint8_t)__builtin_ctz(w->space.recompute ? w->space.recompute : 1u);
		c.recompute_others = 0;
	}
	return c;
}

/* Whether the job can have it, where no model says what the other ways take. */
static bool can_recompute(const struct ptc_job_work *w, const struct ptc_cand *c)
{
	for (uint32_t k = 0; k < PTC_RECOMPUTE_KINDS; k++)
		if (!(w->space.recompute >> ptc_cand_recompute(c, k) & 1))
			return false;
	return true;
}

struct rows {
	struct ptc_fit_row *steps;
	struct ptc_peak_row *peaks;
};

struct seen {
	double step_s, noise, peak_bytes;
	const char *config; /* NULL: none that ranks have had */
};

static void take_row(struct ptc_job_work *w, const struct rows *r, const struct ptc_cand *c, const struct seen *s)
{
	struct ptc_estimate e;

	if (w->no_model.code) {
		if (!(s->step_s > 0) || !can_recompute(w, c))
			return;
		w->row_configs[w->nsteps] = s->config ? ptc_strdup(s->config) : NULL;
		w->rows[w->nsteps++] = (struct ptc_scaled_row){ *c, s->step_s };
		return;
	}
	if (ptc_estimate(&w->work, c, &e, NULL) != 0)
		return;
	if (s->step_s > 0)
		r->steps[w->nsteps++] = (struct ptc_fit_row){ &w->work, *c, s->step_s, s->noise };
	if (s->peak_bytes > 0)
		r->peaks[w->npeaks++] = (struct ptc_peak_row){ &w->work, *c, s->peak_bytes };
}

static int take_measured(const struct ptc_job_work_opts *o, struct ptc_job_work *w, const struct rows *r,
			 struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *config = ptc_calloc(1, sizeof *config);

	if (!config)
		return ptc_nomem(err);
	for (size_t i = 0; i < w->profile.nmeasured; i++) {
		const struct ptc_plan_measured *m = &w->profile.measured[i];

		if (m->global_batch == w->work.global_batch)
			take_row(w, r, &m->cand, &(struct seen){ m->step_s, m->noise, m->peak_bytes, NULL });
	}
	for (size_t i = 0; o->measured && i < o->measured->nrows; i++) {
		const struct ptc_measured_row *m = &o->measured->rows[i];
		struct ptc_cand c;

		if (ptc_config_parse(m->config, config, NULL) != 0 ||
		    (config->global_batch && config->global_batch != w->work.global_batch) ||
		    (config->schedule && config->schedule != (uint32_t)w->work.schedule + 1))
			continue;
		c = own_cand(w, config);
		take_row(w, r, &c, &(struct seen){ m->step_s, m->noise, m->peak_bytes, m->config });
	}
	return 0;
}

static int calibrate(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	size_t most = w->profile.nmeasured + (o->measured ? o->measured->nrows : 0) + 1;
	ptc_auto_free struct ptc_fit_row *steps = ptc_calloc(most, sizeof *steps);
	ptc_auto_free struct ptc_peak_row *peaks = ptc_calloc(most, sizeof *peaks);
	struct rows r = { steps, peaks };
	int rc;

	w->rows = ptc_calloc(most, sizeof *w->rows);
	w->row_configs = ptc_calloc(most, sizeof *w->row_configs);
	rc = steps && peaks && w->rows && w->row_configs ? take_measured(o, w, &r, err) : ptc_nomem(err);
	if (rc == 0 && w->no_model.code)
		return w->nsteps ? 0
				 : ptc_error_set(err, PTC_ENOTFOUND,
						 "%.300s; and no step of its batch has been measured (docs/planner.md)",
						 w->no_model.text);
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

/* Without one there remain measured steps. */
static int read_model(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	const struct ptc_job_desc *desc = o->desc;
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_doc doc;
	int rc = PTC_ENOTFOUND;

	if (desc->model) {
		rc = ptc_doc_from_yaml("model", desc->model, strlen(desc->model), &doc, err);
		if (rc)
			return rc;
		rc = ptc_job_model_read(&doc, desc->spec.ntensors ? &desc->spec : o->held, w, &why);
		ptc_doc_done(&doc);
	}
	if (rc == PTC_ENOTFOUND && desc->model)
		ptc_error_set(&w->no_model, rc, "the model of job %s is not known (%.160s)", desc->spec.name, why.text);
	else if (rc == PTC_ENOTFOUND)
		ptc_error_set(&w->no_model, rc, "job %s has no model: in its description", desc->spec.name);
	else if (rc)
		ptc_error_set(err, rc, "%s", why.text);
	return rc == PTC_ENOTFOUND ? 0 : rc;
}

static int fill(const struct ptc_job_work_opts *o, struct ptc_job_work *w, struct ptc_error *err)
{
	double between = o->measured ? ptc_measured_between_s(o->measured) : 0;
	int rc = read_model(o, w, err);

	w->work.model = &w->model;
	w->work.cluster = &w->profile.cluster;
	ptc_coefs_default(&w->work.coefs);
	if (rc == 0)
		rc = ptc_job_space(o, w, err);
	if (rc == 0)
		rc = read_profile(o, w, err);
	if (rc == 0)
		rc = read_links(o, w, err);
	if (rc == 0)
		rc = calibrate(o, w, err);
	if (rc == 0)
		rc = make_matrix(o, w, err);
	if (rc == 0)
		rc = make_sets(o, w, err);
	/* too short a horizon is worse than none: it keeps what should be left */
	w->horizon_s = PTC_MAX(between, (double)PTC_CHOOSE_HORIZON_S);
	w->nlosses = o->measured ? o->measured->nlosses : 0;
	if (w->nlosses)
		memcpy(w->losses, o->measured->losses, w->nlosses * sizeof *w->losses);
	w->pause_s = o->measured ? ptc_measured_pause_s(o->measured, PAUSE_LIVE_S) : PAUSE_LIVE_S;
	return rc;
}

int ptc_job_work_new(const struct ptc_job_work_opts *opts, struct ptc_job_work **ret, struct ptc_error *err)
{
	struct ptc_job_work *w;
	int rc;

	w = ptc_calloc(1, sizeof *w);
	if (!w || !(w->memory = ptc_calloc(1, sizeof *w->memory))) {
		ptc_free(w);
		return ptc_nomem(err);
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
	for (unsigned i = 0; i < w->nsets; i++) {
		ptc_frontier_free(w->sets[i].frontier);
		ptc_free(w->sets[i].leave);
	}
	for (size_t i = 0; w->row_configs && i < w->nsteps; i++)
		ptc_free(w->row_configs[i]);
	ptc_free(w->row_configs);
	ptc_free(w->rows);
	ptc_free(w->kind_of);
	ptc_free(w->bytes_s);
	ptc_free(w->devices);
	ptc_link_sets_free(w->links);
	ptc_calibration_free(w->cal);
	ptc_plan_profile_done(&w->profile);
	pthread_mutex_destroy(&w->memory->lock);
	ptc_free(w->memory);
	ptc_free(w);
	return NULL;
}

/* ---- questions ---- */

static bool remembered(struct ptc_job_work_memory *m, uint32_t n, struct ptc_job_found *ret, size_t *ret_n)
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

static void remember(struct ptc_job_work_memory *m, uint32_t n, const struct ptc_job_found *v, size_t count)
{
	struct found *f;

	pthread_mutex_lock(&m->lock);
	m->searches++;
	f = &m->found[m->next++ % REMEMBERED];
	f->devices = n;
	f->n = count;
	memcpy(f->v, v, count * sizeof *v);
	pthread_mutex_unlock(&m->lock);
}

/* Sorted into what is there; of a candidate that is there already the faster one stays. */
static void insert(struct ptc_job_found *v, size_t *n, const struct ptc_choice *c, unsigned set)
{
	size_t at = *n;

	for (size_t i = 0; i < *n; i++)
		if (!ptc_cand_compare(&v[i].choice.cand, &c->cand)) {
			if (v[i].choice.est.step_s <= c->est.step_s)
				return;
			memmove(&v[i], &v[i + 1], (*n - i - 1) * sizeof *v);
			at = --*n;
			break;
		}
	while (at > 0 && ptc_choice_compare(c, &v[at - 1].choice) < 0)
		at--;
	if (at == PTC_WORK_KEEP)
		return;
	*n = PTC_MIN(*n + 1, (size_t)PTC_WORK_KEEP);
	memmove(&v[at + 1], &v[at], (*n - at - 1) * sizeof *v);
	v[at] = (struct ptc_job_found){ *c, set };
}

bool ptc_job_work_places(const struct ptc_job_work *w, const struct ptc_job_found *f, uint8_t *kind, uint32_t *devices,
			 struct ptc_places_ask *ret)
{
	const struct ptc_job_set *s = &w->sets[f->set];

	if (!w->bytes_s || w->no_model.code)
		return false;
	for (size_t i = 0; i < w->nnodes; i++) {
		kind[i] = PTC_KIND_NONE;
		for (uint32_t k = 0; k < s->cluster.nkinds && w->kind_of[i] != PTC_KIND_NONE; k++)
			if (!strcmp(s->cluster.kinds[k].name, w->kinds.v[w->kind_of[i]].name))
				kind[i] = (uint8_t)k;
		devices[i] = s->leave[i] || kind[i] == PTC_KIND_NONE ? 0 : w->devices[i];
	}
	*ret = (struct ptc_places_ask){ .work = &s->work,
					.cal = w->cal,
					.cand = &f->choice.cand,
					.on = f->choice.est.place,
					.nnodes = (uint32_t)w->nnodes,
					.devices = devices,
					.kind = kind,
					.bytes_s = w->bytes_s,
					.horizon_s = 1,
					.lacks_bytes_s = 1 };
	return true;
}

/* The step on the best nodes there are, whatever a switch there moves. False: the ranks do not fit. */
static bool place_best(const struct ptc_job_work *w, unsigned set, struct ptc_choice *c)
{
	ptc_auto_free uint8_t *kind = ptc_calloc(w->nnodes + 1, sizeof *kind);
	ptc_auto_free uint32_t *devices = ptc_calloc(w->nnodes + 1, sizeof *devices);
	struct ptc_job_found f = { *c, set };
	struct ptc_places_ask ask;
	struct ptc_places places;

	if (!kind || !devices || !ptc_job_work_places(w, &f, kind, devices, &ask) ||
	    ptc_places_find(&ask, &places, NULL) != 0)
		return false;
	c->est = places.est;
	c->sd = places.sd;
	ptc_free(places.node);
	return true;
}

static uint32_t fastest_first(const struct ptc_config *c, uint32_t rank)
{
	struct ptc_coords k = ptc_config_coords(c, rank);

	return k.tp + c->tp * (k.cp + c->cp * (k.dp + c->dp * k.pp));
}

void ptc_job_ranks_to(const struct ptc_config *c, uint32_t world, const uint32_t *nodes, uint32_t *ret)
{
	for (uint32_t r = 0; r < world; r++)
		ret[fastest_first(c, r)] = nodes[r];
}

void ptc_job_ranks_from(const struct ptc_config *c, uint32_t world, const uint32_t *nodes, uint32_t *ret)
{
	for (uint32_t r = 0; r < world; r++)
		ret[r] = nodes[fastest_first(c, r)];
}

/* Without a model; the first set has all nodes. */
static size_t scaled(const struct ptc_job_work *w, uint32_t n, struct ptc_choice *v, struct ptc_job_found *ret)
{
	size_t found = ptc_scaled_search(w->rows, w->nsteps, w->work.global_batch, &w->space.dp,
					 PTC_MIN(n, w->sets[0].devices), v, PTC_WORK_KEEP);

	for (size_t i = 0; i < found; i++)
		ret[i] = (struct ptc_job_found){ v[i], 0 };
	return found;
}

int ptc_job_work_search(struct ptc_job_work *w, uint32_t n, struct ptc_job_found *ret, size_t *ret_n,
			struct ptc_error *err)
{
	ptc_auto_free struct ptc_choice *v = ptc_calloc(PTC_WORK_KEEP, sizeof *v);
	size_t all = 0;
	int rc = v ? 0 : ptc_nomem(err);

	if (rc == 0 && remembered(w->memory, n, ret, ret_n))
		return 0;
	if (rc == 0 && w->no_model.code)
		all = scaled(w, n, v, ret);
	for (unsigned i = 0; rc == 0 && !w->no_model.code && i < w->nsets; i++) {
		const struct ptc_job_set *s = &w->sets[i];
		struct ptc_search_limits limits = { .devices = PTC_MIN(n, s->devices), .keep = PTC_WORK_KEEP };
		size_t found = 0;

		rc = ptc_search(&s->work, &w->space, &limits, w->cal, v, &found, all ? NULL : err);
		if (rc == PTC_ENODEVICES && (all || i + 1 < w->nsets))
			rc = 0; /* another set may be large enough, or was */
		for (size_t k = 0; rc == 0 && k < found; k++)
			if (!s->placed || place_best(w, i, &v[k]))
				insert(ret, &all, &v[k], i);
	}
	if (rc == 0 && !all && w->no_model.code)
		rc = ptc_error_set(err, PTC_ENODEVICES, "%s; and no measured step scales to %u devices",
				   w->no_model.text, n);
	else if (rc == 0 && !all)
		rc = PTC_ENODEVICES; /* the search has said why */
	if (rc)
		return rc;
	*ret_n = all;
	remember(w->memory, n, ret, all);
	return 0;
}

static struct ptc_frontier *frontier_of(struct ptc_job_work *w, struct ptc_job_set *s)
{
	uint32_t devices = PTC_MIN(s->devices, (uint32_t)PTC_WORK_FRONTIER);

	pthread_mutex_lock(&w->memory->lock);
	if (!s->frontier && ptc_frontier_new(&s->work, &w->space, devices, &s->frontier, NULL) == 0)
		w->memory->searches++;
	pthread_mutex_unlock(&w->memory->lock);
	return s->frontier;
}

struct ptc_job_work_memo ptc_job_work_memo(const struct ptc_job_work *w)
{
	struct ptc_job_work_memory *m = w->memory;
	struct ptc_job_work_memo ret = { .frontier = !w->no_model.code };

	pthread_mutex_lock(&m->lock);
	ret.searches = m->searches;
	for (size_t i = 0; i < REMEMBERED; i++) {
		bool again = !m->found[i].devices;

		for (size_t k = 0; k < i && !again; k++) /* two threads have searched for one number */
			again = m->found[k].devices == m->found[i].devices;
		ret.devices += !again;
	}
	for (unsigned i = 0; i < w->nsets; i++)
		ret.frontier &= w->sets[i].placed || w->sets[i].frontier;
	pthread_mutex_unlock(&m->lock);
	return ret;
}

static bool best_by_search(struct ptc_job_work *w, uint32_t n, struct ptc_frontier_point *ret, unsigned *ret_set)
{
	ptc_auto_free struct ptc_job_found *v = ptc_calloc(PTC_WORK_KEEP, sizeof *v);
	size_t found = 0;

	if (!v || ptc_job_work_search(w, n, v, &found, NULL) != 0)
		return false;
	*ret = (struct ptc_frontier_point){ v[0].choice.cand, v[0].choice.est.step_s, v[0].choice.est.memory_bytes };
	if (ret_set)
		*ret_set = v[0].set;
	return true;
}

bool ptc_job_work_best(struct ptc_job_work *w, uint32_t n, struct ptc_frontier_point *ret, unsigned *ret_set)
{
	const struct ptc_frontier_point *best = NULL;

	if (n > PTC_WORK_FRONTIER || w->no_model.code)
		return best_by_search(w, n, ret, ret_set);
	for (unsigned i = 0; i < w->nsets; i++) {
		const struct ptc_frontier *f = w->sets[i].placed ? NULL : frontier_of(w, &w->sets[i]);
		const struct ptc_frontier_point *p =
			f ? ptc_frontier_best(f, PTC_MIN(n, w->sets[i].devices), INFINITY) : NULL;

		if (!p || (best && best->step_s <= p->step_s))
			continue;
		best = p;
		if (ret_set)
			*ret_set = i;
	}
	if (best)
		*ret = *best;
	return best != NULL;
}

/* The measured row that differs in dp alone, with this dp. */
static int scaled_config(const struct ptc_job_work *w, const struct ptc_cand *c, struct ptc_config *ret,
			 struct ptc_error *err)
{
	char text[PTC_CAND_TEXT_MAX];
	struct ptc_cand same = *c, plain = *c;

	for (size_t i = 0; i < w->nsteps; i++) {
		same.dp = w->rows[i].cand.dp;
		if (!w->row_configs[i] || ptc_cand_compare(&same, &w->rows[i].cand) != 0 ||
		    ptc_config_parse(w->row_configs[i], ret, NULL) != 0)
			continue;
		ret->dp = c->dp;
		return 0;
	}
	if (!w->told_recompute)
		plain.recompute = plain.recompute_others = 0;
	ptc_cand_format(&plain, text);
	if (ptc_config_parse(text, ret, err) != 0)
		return PTC_EINVAL;
	ret->global_batch = w->work.global_batch;
	return 0;
}

int ptc_job_work_config(const struct ptc_job_work *w, const struct ptc_config *manner, const struct ptc_job_found *f,
			struct ptc_config *ret, struct ptc_error *err)
{
	const struct ptc_cand *c = &f->choice.cand;
	uint32_t world;
	int rc = w->no_model.code ? scaled_config(w, c, ret, err)
				  : ptc_cand_config_on(&w->sets[f->set].work, c, &f->choice.est.place, ret, err);

	if (rc)
		return rc;
	memcpy(ret->order, manner->order, sizeof ret->order);
	ret->shard = manner->shard;
	if (!manner->global_batch && !ret->micro_steps.n)
		ret->global_batch = 0; /* the program has its own */
	if (!manner->micro_batch && w->space.micro_batch.n == 1 && !ret->micro_steps.n)
		ret->micro_batch = 0;
	if (!w->told_recompute) {
		memset(ret->recompute, 0, sizeof ret->recompute);
		ret->nrecompute = 0;
	}
	ret->schedule = ret->pp > 1 && (w->told_schedule || (w->told_stages && ret->vpp > 1))
				? (uint32_t)w->work.schedule + 1
				: 0;
	return ptc_config_world(ret, &world, err);
}

/* With ranks where they are. */
static int predict_placed(const struct ptc_job_work *w, const struct ptc_work *work, const struct ptc_config *config,
			  const uint32_t *nodes, struct ptc_choice *ret, struct ptc_error *err)
{
	uint32_t world = ptc_cand_devices(&ret->cand);
	ptc_auto_free uint32_t *ranks = ptc_calloc((size_t)world + 1, sizeof *ranks);
	struct ptc_places_ask ask = { .work = work,
				      .cal = w->cal,
				      .cand = &ret->cand,
				      .on = ret->est.place,
				      .nnodes = (uint32_t)w->nnodes,
				      .bytes_s = w->bytes_s };
	struct ptc_places places;
	int rc;

	if (!ranks)
		return ptc_nomem(err);
	ptc_job_ranks_to(config, world, nodes, ranks);
	rc = ptc_places_estimate(&ask, ranks, &places, err);
	if (rc == 0) {
		ret->est = places.est;
		ret->sd = places.sd;
	}
	return rc;
}

/* The kinds of devices that ranks are on: those of a job that runs are not what is best. */
static void only_kinds(const struct ptc_job_work *w, const uint32_t *nodes, uint32_t world,
		       struct ptc_cluster_profile *c)
{
	bool used[PTC_DEVICE_MAX_KINDS] = { false };
	uint32_t n = 0;

	for (uint32_t r = 0; r < world; r++)
		if (nodes[r] < w->nnodes && w->kind_of[nodes[r]] != PTC_KIND_NONE)
			used[w->kind_of[nodes[r]]] = true;
	for (uint32_t i = 0; i < c->nkinds; i++)
		for (uint32_t k = 0; k < w->kinds.n; k++)
			if (used[k] && !strcmp(c->kinds[i].name, w->kinds.v[k].name)) {
				c->kinds[n++] = c->kinds[i];
				break;
			}
	c->nkinds = n ? n : c->nkinds;
}

static struct ptc_cand cand_of(const struct ptc_job_work *w, const struct ptc_config *config)
{
	struct ptc_cand c = own_cand(w, config);

	if (!config->micro_batch && w->space.micro_batch.n == 1)
		c.micro_batch = w->space.micro_batch.v[0];
	return c;
}

struct ptc_length_cost ptc_job_work_length_cost(const struct ptc_job_work *w, const struct ptc_config *config)
{
	struct ptc_cand c = cand_of(w, config);
	struct ptc_estimate est;
	struct ptc_work work = w->work;

	c.micro_batch = PTC_MAX(c.micro_batch, 1u);
	if (config->nstages) {
		work.stages = config->stages;
		work.nstages = config->nstages;
	}
	if (w->no_model.code || ptc_estimate(&work, &c, &est, NULL) != 0)
		return (struct ptc_length_cost){ 0 };
	return ptc_length_cost(&work, &c);
}

int ptc_job_work_predict(const struct ptc_job_work *w, const struct ptc_config *config, const bool *leave,
			 const uint32_t *nodes, struct ptc_choice *ret, struct ptc_error *err)
{
	ptc_auto_free struct ptc_cluster_profile *cluster = ptc_malloc(sizeof *cluster);
	struct ptc_work work = w->work;
	double slowest = leave && w->links ? ptc_link_sets_slowest(w->links, leave) : 0;
	int rc;

	if (!cluster)
		return ptc_nomem(err);
	*cluster = w->profile.cluster;
	work.cluster = cluster;
	*ret = (struct ptc_choice){ .sd = PTC_UNCALIBRATED_SD };
	ret->cand = cand_of(w, config);
	if (w->no_model.code)
		return ptc_scaled_predict(w->rows, w->nsteps, w->work.global_batch, &ret->cand, ret)
			       ? 0
			       : ptc_error_set(err, PTC_EINVAL, "nothing measured is like this configuration");
	if (nodes && w->bytes_s)
		only_kinds(w, nodes, ptc_cand_devices(&ret->cand), cluster);
	else if (slowest > 0)
		cluster->node_bytes_s = slowest;
	if (config->schedule)
		work.schedule = (enum ptc_schedule)(config->schedule - 1);
	if (config->nstages) {
		work.stages = config->stages;
		work.nstages = config->nstages;
	}
	rc = ptc_estimate(&work, &ret->cand, &ret->est, err);
	if (rc == 0 && nodes && w->bytes_s)
		return predict_placed(w, &work, config, nodes, ret, err);
	if (rc == 0 && w->cal)
		ret->est.step_s *= ptc_calibration_factor(w->cal, &work, &ret->cand, &ret->sd);
	return rc;
}
