/* SPDX-License-Identifier: Apache-2.0 */
/* What a job trains, and which configurations its program can take. Happy path: `space:` says both. Without it, the
 * degrees are those of every configuration that the job's table lists or that has run, with any dp. Failure:
 * PTC_ENOTFOUND if nothing says the global batch, because no step time can be computed without it. */
#include "daemon/planning/job_work.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <string.h>

static void degree_add(struct ptc_degrees *d, uint32_t v)
{
	uint32_t at = 0;

	while (at < d->n && d->v[at] < v)
		at++;
	if ((at < d->n && d->v[at] == v) || d->n == PTC_DEGREES_MAX)
		return;
	memmove(&d->v[at + 1], &d->v[at], (d->n - at) * sizeof *d->v);
	d->v[at] = v;
	d->n++;
}

static void seen_config(struct ptc_space *s, const struct ptc_config *c)
{
	degree_add(&s->tp, c->tp);
	degree_add(&s->pp, c->pp);
	degree_add(&s->cp, c->cp);
	degree_add(&s->ep, c->ep);
	degree_add(&s->etp, c->etp);
	degree_add(&s->vpp, PTC_MAX(1u, c->vpp));
	degree_add(&s->micro_batch, PTC_MAX(1u, c->micro_batch));
	s->zero |= (uint8_t)(1u << PTC_MIN(3u, c->zero));
	if (!c->nrecompute)
		s->recompute |= (uint8_t)(1u << PTC_RECOMPUTE_NONE);
	for (uint32_t k = 0; k < c->nrecompute; k++)
		s->recompute |= (uint8_t)(1u << c->recompute[k]);
	s->recompute_by_kind |= c->nrecompute > 1;
}

/* Every configuration that the job is known by, the newest first. */
static int each_config(const struct ptc_job_work_opts *o, void (*fn)(void *arg, const struct ptc_config *c), void *arg,
		       struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *c = ptc_calloc(1, sizeof *c);

	if (!c)
		return ptc_nomem(err);
	if (o->now && ptc_config_parse(o->now, c, NULL) == 0)
		fn(arg, c);
	for (size_t i = o->measured ? o->measured->nrows : 0; i-- > 0;)
		if (ptc_config_parse(o->measured->rows[i].config, c, NULL) == 0)
			fn(arg, c);
	for (size_t i = 0; i < o->desc->ngpus; i++)
		fn(arg, &o->desc->gpus[i].config);
	return 0;
}

static void add_degrees(void *arg, const struct ptc_config *c)
{
	seen_config(arg, c);
}

struct first {
	struct ptc_config *manner;
	bool found, recompute, schedule; /* the last two: some configuration names it */
	uint32_t batch;
};

static void keep_first(void *arg, const struct ptc_config *c)
{
	struct first *f = arg;

	if (!f->found)
		*f->manner = *c;
	f->found = true;
	f->recompute |= c->nrecompute > 0;
	f->schedule |= c->schedule > 0;
	f->batch = f->batch ? f->batch : c->global_batch;
}

static uint32_t data_batch(const struct ptc_job_desc *desc)
{
	for (size_t i = 0; i < desc->ndata; i++)
		if (desc->data[i].global_batch)
			return desc->data[i].global_batch;
	return 0;
}

static int read_space(const char *text, struct ptc_job_work *w, struct ptc_error *err)
{
	struct ptc_doc doc;
	int rc = ptc_doc_from_yaml("space", text, strlen(text), &doc, err);

	if (rc)
		return rc;
	rc = ptc_plan_space_read(&doc, doc.root, &w->space, &w->work, err);
	ptc_doc_done(&doc);
	return rc;
}

/* Whether ranks have run under a configuration with `schedule`: so they have promised it, and virtual stages. */
static int has_promised(const struct ptc_job_work_opts *o, bool *ret, struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *c = ptc_calloc(1, sizeof *c);

	if (!c)
		return ptc_nomem(err);
	*ret = o->now && ptc_config_parse(o->now, c, NULL) == 0 && c->schedule;
	for (size_t i = 0; o->measured && i < o->measured->nrows && !*ret; i++)
		*ret = ptc_config_parse(o->measured->rows[i].config, c, NULL) == 0 && c->schedule;
	return 0;
}

/* One way to recompute is how the program does it by itself; of several, the configuration says which. Virtual stages
 * that `space:` permits are planned where the program promises them; those of a configuration that the job has had or
 * lists, its program has without being asked. A pipeline without virtual stages needs no promise. */
static int told(const struct ptc_job_work_opts *o, const struct first *named, struct ptc_job_work *w,
		struct ptc_error *err)
{
	uint8_t all = w->space.recompute ? w->space.recompute : 1;
	struct ptc_degrees *vpp = &w->space.vpp;
	bool promised = false;
	int rc = has_promised(o, &promised, err);

	w->space.recompute = all;
	w->told_recompute = named->recompute || (all & (all - 1)) != 0;
	w->told_schedule = named->schedule;
	w->told_stages = o->desc->space && vpp->n && vpp->v[vpp->n - 1] > 1;
	w->plain = w->told_stages && vpp->v[0] == 1 && o->unattended && !promised;
	if (w->plain)
		vpp->n = 1;
	return rc;
}

/* What is divided by length gives all replicas equally many micro-batches. */
static void even_lengths(const struct ptc_job_desc *desc, struct ptc_job_work *w)
{
	for (size_t i = 0; i < desc->ndata; i++)
		if (desc->data[i].by_length)
			w->work.uneven_batch = false;
}

static int derive(const struct ptc_job_work_opts *o, uint32_t batch, struct ptc_job_work *w, struct ptc_error *err)
{
	ptc_auto_free char *text = ptc_asprintf("{global_batch: %u}", batch);
	struct ptc_space s = { 0 };
	int rc = text ? read_space(text, w, err) : ptc_nomem(err);

	if (rc == 0)
		rc = each_config(o, add_degrees, &s, err);
	if (s.tp.n == 0) { /* nothing is known of the program but that it trains: dp alone */
		static const struct ptc_config one = { .tp = 1, .pp = 1, .cp = 1, .ep = 1, .etp = 1, .vpp = 1 };

		seen_config(&s, &one);
	}
	w->space = s;
	return rc;
}

/* ret->batch 0: no configuration says one. */
static int look(const struct ptc_job_work_opts *opts, struct ptc_config *manner, struct first *ret,
		struct ptc_error *err)
{
	struct first f = { .manner = manner };
	int rc = each_config(opts, keep_first, &f, err);

	if (rc == 0 && !f.found) { /* as a program that is told all */
		rc = ptc_config_parse("dp=1", manner, err);
		manner->global_batch = manner->micro_batch = 1;
	}
	*ret = f;
	return rc;
}

int ptc_job_manner(const struct ptc_job_work_opts *opts, struct ptc_config *ret, struct ptc_error *err)
{
	struct first f = { 0 };

	return look(opts, ret, &f, err);
}

int ptc_job_space(const struct ptc_job_work_opts *opts, struct ptc_job_work *w, struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *manner = ptc_calloc(1, sizeof *manner);
	struct first f = { 0 };
	uint32_t batch;
	int rc = manner ? look(opts, manner, &f, err) : ptc_nomem(err);

	if (rc)
		return rc;
	batch = f.batch ? f.batch : data_batch(opts->desc);
	if (opts->desc->space)
		rc = read_space(opts->desc->space, w, err);
	else if (batch)
		rc = derive(opts, batch, w, err);
	else
		rc = ptc_error_set(err, PTC_ENOTFOUND,
				   "job %s: nothing says its global batch; add `space: {global_batch: "
				   "N}`",
				   opts->desc->spec.name);
	if (rc == 0)
		rc = told(opts, &f, w, err);
	even_lengths(opts->desc, w);
	return rc;
}

/* ---- the model ---- */

static int infer(const struct ptc_doc *doc, const struct ptc_spec *tensors, struct ptc_job_work *w,
		 struct ptc_error *err)
{
	struct ptc_infer_given given;
	int rc = ptc_plan_given_read(doc, doc->root, &given, err);

	if (rc == 0 && !tensors)
		return ptc_error_set(err, PTC_ENOTFOUND,
				     "the model is to be inferred from its tensors, which are not known yet");
	if (rc == 0 && ptc_model_infer(tensors->tensors, tensors->ntensors, &given, &w->model, w->inferred, err) != 0) {
		w->inferred[0] = '\0';
		rc = PTC_ENOTFOUND;
	}
	return rc;
}

int ptc_job_model_read(const struct ptc_doc *doc, const struct ptc_spec *tensors, struct ptc_job_work *w,
		       struct ptc_error *err)
{
	return ptc_plan_model_infers(doc->root) ? infer(doc, tensors, w, err)
						: ptc_plan_model_read(doc, doc->root, &w->model, err);
}
