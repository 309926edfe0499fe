/* SPDX-License-Identifier: Apache-2.0 */
/* From a number of devices to a configuration. Happy path: the best few by step time, all within 10 % of the best, are
 * priced exactly, and the one that makes the most of the horizon wins; staying is one of them where that is possible.
 * Failure: what making a work or searching says; a candidate that cannot be reached is left out. */
#include "daemon/planning/remembered.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAMED      3 /* nodes in the sentence that says why */
#define PRICED_MAX 8 /* laying out a large model takes tens of milliseconds */

/* What pricing leaves beside what planner/ takes of it. */
struct priced {
	struct ptc_cand cand;
	struct ptc_planning_moves moves;
};
struct pricer {
	const struct ptc_planning_ask *ask;
	struct ptc_job_work *work;
	struct ptc_config manner;
	struct ptc_config config;          /* of the candidate at hand */
	const struct ptc_job_found *found; /* what is ranked, for its sets */
	size_t nfound;
	struct priced v[PRICED_MAX + 1];
	size_t n;
};

/* A candidate's nodes; what is not one of those found may be anywhere. */
static unsigned set_of(const struct pricer *p, const struct ptc_cand *c)
{
	for (size_t i = 0; i < p->nfound; i++)
		if (!ptc_cand_compare(&p->found[i].choice.cand, c))
			return p->found[i].set;
	return 0;
}

static struct ptc_planning_links links_of(const struct ptc_job_set *s)
{
	const struct ptc_cluster_profile *c = &s->cluster;

	return (struct ptc_planning_links){ c->node_bytes_s, c->intra_bytes_s * c->per_node };
}

static int price(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret)
{
	struct pricer *p = arg;
	const struct ptc_job_set *set = &p->work->sets[set_of(p, to)];
	struct ptc_planning_links links = links_of(set);
	struct ptc_planning_moves moves = { .exact = true };
	int rc = ptc_job_work_config(p->work, &p->manner, to, &p->config, NULL);

	if (rc == 0 && p->ask->price)
		rc = p->ask->price(p->ask->arg, &p->config, set->leave, &links, &moves);
	if (rc)
		return rc;
	if (p->n < PTC_ARRAY_LEN(p->v))
		p->v[p->n++] = (struct priced){ *to, moves };
	*ret = (struct ptc_switch_price){ .down_s = (p->ask->live ? p->work->pause_s : 0) + moves.seconds,
					  .bytes = moves.bytes };
	return 0;
}

static const struct ptc_planning_moves *moves_of(const struct pricer *p, const struct ptc_cand *c)
{
	for (size_t i = 0; i < p->n; i++)
		if (!ptc_cand_compare(&p->v[i].cand, c))
			return &p->v[i].moves;
	return NULL;
}

/* ---- as JSON ---- */

static json_t *parts(const struct ptc_estimate *e)
{
	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "compute", e->compute_s, "tp", e->tp_s, "cp",
			 e->cp_s, "ep", e->ep_s, "pp", e->pp_s, "bubble", e->bubble_s, "dp", e->dp_s, "optimizer",
			 e->optimizer_s, "fixed", e->fixed_s);
}

static json_t *row(struct pricer *p, const struct ptc_ranked *r)
{
	const struct ptc_estimate *e = &r->choice.est;
	const struct ptc_planning_moves *m = moves_of(p, &r->choice.cand);
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	json_t *o;

	if (!text || ptc_job_work_config(p->work, &p->manner, &r->choice.cand, &p->config, NULL) != 0 ||
	    ptc_config_format(&p->config, text, PTC_CONFIG_TEXT_MAX) != 0)
		return NULL;
	o = json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:o, s:f, s:b}", "config", text, "devices",
		      (json_int_t)ptc_cand_devices(&r->choice.cand), "step_s", e->step_s, "error", r->choice.sd,
		      "samples_s", p->work->work.global_batch / e->step_s, "memory_bytes", e->memory_bytes,
		      "state_bytes", e->state_bytes, "activation_bytes", e->activation_bytes, "micro_batches",
		      (json_int_t)e->micro_batches, "parts_s", parts(e), "pause_s", r->price.down_s, "runs_now",
		      (int)r->stays);
	if (o && m && p->ask->price) {
		json_object_set_new(o, "moved_bytes", json_real(m->bytes));
		json_object_set_new(o, "moved_bytes_least", json_real(m->bytes_least));
		json_object_set_new(o, "moved_exact", json_boolean(m->exact));
	}
	if (o && isfinite(r->break_even_s))
		json_object_set_new(o, "break_even_s", json_real(r->break_even_s));
	return o;
}

/* What has been measured of the job. */
static json_t *measured(struct ptc_planning *p, const char *uuid)
{
	struct ptc_measured_doc *d = ptc_calloc(1, sizeof *d);
	json_t *rows = json_array();

	if (d)
		ptc_free(ptc_planning_measured(p, uuid, d));
	for (size_t i = 0; d && i < d->nrows; i++)
		json_array_append_new(rows, json_pack("{s:s, s:f, s:I, s:I}", "config", d->rows[i].config, "step_s",
						      d->rows[i].step_s, "steps", (json_int_t)d->rows[i].steps,
						      "time_ms", (json_int_t)d->rows[i].time_ms));
	ptc_free(d);
	return rows;
}

/* Kinds of devices; memory is null where nothing is known of it. */
static json_t *kinds(const struct ptc_job_work *w, const struct ptc_planning_ask *ask)
{
	json_t *rows = json_array();

	for (uint32_t k = 0; k < w->kinds.n; k++) {
		uint32_t devices = 0;

		for (size_t i = 0; i < ask->shape.nnodes; i++)
			devices += w->kind_of[i] == k ? ask->shape.nodes[i].devices : 0;
		json_array_append_new(rows, json_pack("{s:s, s:I, s:o, s:o}", "name", w->kinds.v[k].name, "devices",
						      (json_int_t)devices, "memory_bytes",
						      w->kinds.memory_known ? json_real(w->kinds.v[k].memory_bytes)
									    : json_null(),
						      "price_hour",
						      w->kinds.v[k].price_hour > 0 ? json_real(w->kinds.v[k].price_hour)
										   : json_null()));
	}
	return rows;
}

static json_t *head(const struct ptc_job_work *w, const struct ptc_planning_ask *ask)
{
	const char *model = w->no_model.code ? "none" : w->inferred[0] ? "inferred" : "described";

	return json_pack("{s:i, s:I, s:b, s:I, s:b, s:b, s:f, s:s, s:o}", "version", 1, "gpus", (json_int_t)ask->gpus,
			 "calibrated", (int)(w->cal != NULL), "measured_steps", (json_int_t)w->nsteps, "profiled",
			 (int)!w->assumed, "links_known", (int)w->linked, "horizon_s",
			 ask->horizon_s > 0 ? ask->horizon_s : w->horizon_s, "model", model, "kinds", kinds(w, ask));
}

/* ---- choosing ---- */

static struct ptc_choose_rules rules_of(const struct ptc_planning_ask *ask, const struct ptc_job_work *w,
					struct pricer *p)
{
	return (struct ptc_choose_rules){ .objective = ask->objective,
					  .horizon_s = ask->horizon_s > 0 ? ask->horizon_s : w->horizon_s,
					  .price_hour = w->profile.cluster.kinds[0].price_hour,
					  .price = ask->price || ask->live ? price : NULL,
					  .arg = p,
					  .available = ask->gpus };
}

/* What runs now as a candidate; false: it has to leave, or the model does not know it. */
static bool can_stay(const struct ptc_planning_ask *ask, struct pricer *p, struct ptc_choice *ret)
{
	return ask->may_stay && ask->now && ptc_config_parse(ask->now, &p->config, NULL) == 0 &&
	       ptc_job_work_predict(p->work, &p->config, ask->now_leaves, ret, NULL) == 0 &&
	       ptc_cand_devices(&ret->cand) <= ask->gpus;
}

/* "; on devices of kind H100-80GB alone; without n3, whose links are slow" */
static void name_left(const struct ptc_planning_ask *ask, const struct ptc_job_work *w, const bool *leave,
		      struct ptc_buf *b)
{
	uint8_t kind = PTC_KIND_NONE;
	size_t left = 0;

	for (size_t i = 0; leave && i < ask->shape.nnodes; i++)
		if (!leave[i] && ask->shape.nodes[i].devices)
			kind = w->kind_of[i];
	if (w->kinds.n > 1 && kind != PTC_KIND_NONE)
		ptc_buf_printf(b, "; on devices of kind %s alone", w->kinds.v[kind].name);
	for (size_t i = 0; leave && i < ask->shape.nnodes; i++)
		if (leave[i] && ask->shape.nodes[i].devices && w->kind_of[i] == kind && left++ < NAMED)
			ptc_buf_printf(b, "%s%s", left > 1 ? ", " : "; without ", ask->shape.nodes[i].name);
	if (left > NAMED)
		ptc_buf_printf(b, " and %zu more", left - NAMED);
	if (left)
		ptc_buf_puts(b, ", whose links are slow");
}

static void explain(const struct ptc_planning_ask *ask, const struct pricer *p, const struct ptc_ranked *first,
		    const char *why, struct ptc_planning_answer *ret)
{
	const struct ptc_job_work *w = p->work;
	const struct ptc_planning_moves *m = moves_of(p, &first->choice.cand);
	struct ptc_buf b = PTC_BUF_INIT;

	ptc_buf_puts(&b, why);
	name_left(ask, w, ret->leave, &b);
	if (m && !m->exact)
		ptc_buf_puts(&b, "; bytes are estimated");
	if (w->no_model.code)
		ptc_buf_printf(&b, "; %.300s: steps are as measured or scaled by dp, memory is not known",
			       w->no_model.text);
	else if (!w->cal)
		ptc_buf_puts(&b, "; step times are uncalibrated");
	if (w->inferred[0])
		ptc_buf_printf(&b, "; the model is inferred from its tensors: %s", w->inferred);
	if (w->kinds.said[0])
		ptc_buf_printf(&b, "; %s", w->kinds.said);
	if (!w->kinds.memory_known && !w->no_model.code)
		ptc_buf_puts(&b, "; without a profile of the devices their memory is not compared");
	snprintf(ret->why, sizeof ret->why, "%s", ptc_buf_failed(&b) ? why : b.data);
	ptc_buf_done(&b);
}

/* Of the chosen candidate's set. */
static int keep_leave(const struct ptc_planning_ask *ask, const struct pricer *p, const struct ptc_ranked *first,
		      bool **ret, struct ptc_error *err)
{
	const struct ptc_job_set *s = &p->work->sets[set_of(p, &first->choice.cand)];

	bool any = false;

	for (size_t i = 0; i < ask->shape.nnodes; i++)
		any |= s->leave[i];
	*ret = NULL;
	if (first->stays || !any)
		return 0;
	*ret = ptc_calloc(ask->shape.nnodes + 1, sizeof **ret);
	if (!*ret)
		return ptc_nomem(err);
	memcpy(*ret, s->leave, ask->shape.nnodes * sizeof **ret);
	return 0;
}

static int answer(const struct ptc_planning_ask *ask, struct pricer *p, const struct ptc_ranked *v, size_t n,
		  const char *why, struct ptc_planning_answer *ret, struct ptc_error *err)
{
	json_t *rows = json_array();
	int rc = v[0].stays ? ptc_config_parse(ask->now, &ret->config, err)
			    : ptc_job_work_config(p->work, &p->manner, &v[0].choice.cand, &ret->config, err);

	if (rc == 0)
		rc = keep_leave(ask, p, &v[0], &ret->leave, err);
	if (rc) {
		json_decref(rows);
		return rc;
	}
	ret->stays = v[0].stays;
	explain(ask, p, &v[0], why, ret);
	for (size_t i = 0; i < n; i++)
		json_array_append_new(rows, row(p, &v[i]));
	ret->json = head(p->work, ask);
	if (!ret->json) {
		json_decref(rows);
		ptc_free(ret->leave);
		return ptc_nomem(err);
	}
	json_object_set_new(ret->json, "why", json_string(ret->why));
	json_object_set_new(ret->json, "candidates", rows);
	return 0;
}

static int new_pricer(const struct ptc_planning_ask *ask, struct ptc_job_work *w, struct pricer **ret,
		      struct ptc_error *err)
{
	struct ptc_job_work_opts opts = { .desc = ask->desc, .now = ask->now };
	struct pricer *p = ptc_calloc(1, sizeof *p);
	int rc = p ? ptc_job_manner(&opts, &p->manner, err) : ptc_nomem(err);

	if (rc) {
		ptc_free(p);
		return rc;
	}
	p->ask = ask;
	p->work = w;
	*ret = p;
	return 0;
}

/* The configuration that runs is among those found, on other nodes than now: to leave a slow link it need not be
 * another. */
static bool runs_elsewhere(const struct pricer *p, const struct ptc_choice *now)
{
	const struct ptc_planning_ask *ask = p->ask;
	const struct ptc_job_set *s = &p->work->sets[set_of(p, &now->cand)];

	for (size_t i = 0; ask->now_leaves && i < ask->shape.nnodes; i++)
		if (s->leave[i] && !ask->now_leaves[i])
			return true;
	return false;
}

static int rank(struct pricer *p, const struct ptc_choice *v, size_t n, struct ptc_ranked *ranked, size_t *ret_n,
		char why[PTC_WHY_MAX], struct ptc_error *err)
{
	struct ptc_choose_rules rules = rules_of(p->ask, p->work, p);
	struct ptc_choice now;
	bool stays = can_stay(p->ask, p, &now);
	int rc;

	if (stays && !runs_elsewhere(p, &now))
		rules.now = &now;
	rc = ptc_choose(v, n, &rules, ranked, ret_n, why, err);
	if (!stays || rules.now || (rc == 0 && ranked[0].steps > rules.horizon_s / now.est.step_s))
		return rc;
	rules.now = &now; /* moving does not pay */
	p->n = 0;
	return ptc_choose(v, n, &rules, ranked, ret_n, why, err);
}

static int choose(const struct ptc_planning_ask *ask, struct ptc_job_work *w, struct ptc_planning_answer *ret,
		  struct ptc_error *err)
{
	ptc_auto_free struct ptc_job_found *found = ptc_calloc(PTC_WORK_KEEP, sizeof *found);
	ptc_auto_free struct ptc_ranked *ranked = ptc_calloc(PRICED_MAX + 1, sizeof *ranked);
	ptc_auto_free struct pricer *p = NULL;
	struct ptc_choice v[PRICED_MAX];
	char why[PTC_WHY_MAX];
	size_t n = 0;
	int rc = found && ranked ? new_pricer(ask, w, &p, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_job_work_search(w, ask->gpus, found, &n, err);
	if (rc)
		return rc;
	n = PTC_MIN(n, (size_t)PRICED_MAX);
	for (size_t i = 0; i < n; i++)
		v[i] = found[i].choice;
	p->found = found;
	p->nfound = n;
	rc = rank(p, v, n, ranked, &n, why, err);
	return rc ? rc : answer(ask, p, ranked, n, why, ret, err);
}

static int check_ask(const struct ptc_planning_ask *ask, struct ptc_error *err)
{
	if (!ask->gpus)
		return ptc_error_set(err, PTC_EINVAL, "write a number of devices of at least 1");
	if (ask->gpus > ask->shape.devices)
		return ptc_error_set(
			err, PTC_ENODEVICES,
			"%u devices are asked for, %u are known, up and not drained; add nodes first (`ptcctl nodes`)",
			ask->gpus, ask->shape.devices);
	return 0;
}

int ptc_planning_choose(struct ptc_planning *p, const struct ptc_planning_ask *ask, struct ptc_planning_answer *ret,
			struct ptc_error *err)
{
	struct ptc_job_work *w = NULL;
	struct ptc_planning_answer *a = ptc_calloc(1, sizeof *a);
	int rc = a ? check_ask(ask, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_planning_work(p, ask, &w, err);
	if (rc == 0)
		rc = choose(ask, w, a, err);
	if (rc == 0)
		json_object_set_new(a->json, "measured", measured(p, ask->uuid));
	ptc_planning_work_release(w);
	if (rc == 0)
		*ret = *a;
	ptc_free(a);
	return rc;
}

/* ---- ranges ---- */

static json_t *count_row(struct pricer *p, uint32_t n)
{
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	json_t *o = json_pack("{s:I}", "gpus", (json_int_t)n);
	struct ptc_job_found found = { 0 };
	struct ptc_frontier_point at;
	const struct ptc_planning_moves *m;
	struct ptc_switch_price sp;
	struct ptc_choice c;

	if (!o || !text || !ptc_job_work_best(p->work, n, &at, &found.set) ||
	    ptc_job_work_config(p->work, &p->manner, &at.cand, &p->config, NULL) != 0 ||
	    ptc_config_format(&p->config, text, PTC_CONFIG_TEXT_MAX) != 0 ||
	    ptc_job_work_predict(p->work, &p->config, NULL, &c, NULL) != 0)
		return o;
	json_object_set_new(o, "config", json_string(text));
	json_object_set_new(o, "devices", json_integer((json_int_t)ptc_cand_devices(&at.cand)));
	json_object_set_new(o, "step_s", json_real(at.step_s));
	json_object_set_new(o, "error", json_real(c.sd));
	json_object_set_new(o, "samples_s", json_real(p->work->work.global_batch / at.step_s));
	json_object_set_new(o, "memory_bytes", json_real(at.memory_bytes));
	found.choice.cand = at.cand;
	p->found = &found;
	p->nfound = 1;
	p->n = 0;
	if (!p->ask->price || price(p, &at.cand, &sp) != 0 || !(m = moves_of(p, &at.cand)))
		return o;
	json_object_set_new(o, "pause_s", json_real(sp.down_s));
	json_object_set_new(o, "moved_bytes", json_real(m->bytes));
	json_object_set_new(o, "moved_exact", json_boolean(m->exact));
	return o;
}

static int range(const struct ptc_planning_ask *ask, struct ptc_job_work *w, uint32_t first, json_t **ret_json,
		 struct ptc_error *err)
{
	ptc_auto_free struct pricer *p = NULL;
	json_t *rows, *root;
	int rc = new_pricer(ask, w, &p, err);

	if (rc)
		return rc;
	rows = json_array();
	for (uint32_t n = first; n <= ask->gpus && rc == 0; n++) {
		json_array_append_new(rows, count_row(p, n));
		if (ask->gone && ask->gone(ask->gone_arg))
			rc = ptc_error_set(err, PTC_ECANCELED, "nobody waits for the advice any more");
	}
	if (rc) {
		json_decref(rows);
		return rc;
	}
	root = head(w, ask);
	if (!root) {
		json_decref(rows);
		return ptc_nomem(err);
	}
	json_object_set_new(root, "counts", rows);
	*ret_json = root;
	return 0;
}

int ptc_planning_range(struct ptc_planning *p, const struct ptc_planning_ask *ask, uint32_t first, json_t **ret_json,
		       struct ptc_error *err)
{
	struct ptc_job_work *w = NULL;
	int rc = check_ask(ask, err);

	if (rc == 0 && (!first || first > ask->gpus))
		rc = ptc_error_set(err, PTC_EINVAL, "gpus %u-%u: the range is empty", first, ask->gpus);
	if (rc == 0)
		rc = ptc_planning_work(p, ask, &w, err);
	if (rc == 0)
		rc = range(ask, w, first, ret_json, err);
	ptc_planning_work_release(w);
	return rc;
}
