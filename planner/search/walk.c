/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the space of configurations as nested loops: layers are costed once per (tp, cp, ep, etp, micro-batch,
 * recompute), a pipeline once per (pp, vpp), and what is left, dp and zero, is a few multiplications. Fails only as
 * the visitor does. */
#include "planner/search/walk.h"

#include "base/check.h"
#include "base/limits.h"

#include <math.h>
#include <string.h>

/* The values that a degree may take: the n values of v, or, where v is NULL, 1 to n. */
struct axis {
	const uint32_t *v;
	uint32_t n;
};

static uint32_t value(const struct axis *a, uint32_t i)
{
	return a->v ? a->v[i] : i + 1;
}

static struct axis given(const struct ptc_degrees *d, uint32_t n)
{
	return d->n ? (struct axis){ d->v, d->n } : (struct axis){ NULL, n };
}

struct walker {
	struct ptc_walk *walk;
	const struct ptc_work *w;
	const struct ptc_space *s;
	uint8_t zero;
	struct ptc_layers layers;
	struct ptc_pipe pipe;
};

/* The least a step takes with this pipeline and so many micro-batches; a hair less, for rounding. */
static double least_step(const struct walker *k, const struct ptc_cand *c)
{
	double busiest = k->walk->bound && c->vpp > 1 ? k->pipe.all_s / c->pp : k->pipe.busiest_s;
	double s = ptc_cost_micro_batches(k->w, c) * busiest + k->w->coefs.v[PTC_COEF_FIXED];

	return s * (1 - 1e-12);
}

static bool useful(const struct walker *k, const struct ptc_cand *c)
{
	uint64_t once = (uint64_t)c->micro_batch * c->dp;
	uint32_t m;

	if (once >= (uint64_t)k->w->global_batch + c->micro_batch) /* a rank without samples */
		return false;
	if (k->s->exact_batch && k->w->global_batch % once)
		return false;
	m = ptc_cost_micro_batches(k->w, c);
	return (c->vpp == 1 || m % c->pp == 0) && c->tp * c->cp * c->dp % (c->ep * c->etp) == 0;
}

static int walk_zero(struct walker *k, struct ptc_cand *c)
{
	bool alone = c->dp * c->cp == 1 && c->tp == c->ep * c->etp; /* nothing is shared: ZeRO does nothing */
	int rc = 0;

	for (c->zero = 0; c->zero < 4 && !rc; c->zero++) {
		struct ptc_estimate est = { 0 };

		if (!(k->zero & 1 << c->zero) || (alone && k->zero & ((1 << c->zero) - 1)))
			continue;
		k->walk->timed++;
		ptc_cost_time(k->w, c, &k->pipe, &est);
		if (est.step_s <= k->walk->slowest_s || (k->walk->bound && c->vpp > 1))
			rc = k->walk->visit(k->walk, c, &k->pipe, &est);
	}
	return rc;
}

static int walk_dp(struct walker *k, struct ptc_cand *c)
{
	uint32_t most = k->walk->devices / (c->tp * c->cp * c->pp);
	struct axis dp = given(&k->s->dp, most);
	int rc = 0;

	c->dp = most; /* no dp has fewer micro-batches */
	if (!most || least_step(k, c) > k->walk->slowest_s)
		return 0;
	for (uint32_t i = dp.n; i-- > 0 && !rc;) {
		c->dp = value(&dp, i);
		if (c->dp > most || !useful(k, c))
			continue;
		if (least_step(k, c) <= k->walk->slowest_s)
			rc = walk_zero(k, c);
	}
	return rc;
}

/* Another cut may leave the device that has the most parameters fewer of them, but not fewer than the mean. */
static void bound_parameters(struct ptc_pipe *p, uint32_t pp)
{
	double dense = 0, expert = 0;

	for (uint32_t i = 0; i < pp; i++) {
		dense += p->dense[i] / pp;
		expert += p->expert[i] / pp;
	}
	if (p->dense_max > 0)
		p->dense_hbm *= dense / p->dense_max;
	if (p->expert_max > 0)
		p->expert_hbm *= expert / p->expert_max;
	p->dense_max = dense;
	p->expert_max = expert;
}

static int walk_pipes(struct walker *k, struct ptc_cand *c)
{
	uint32_t most = PTC_MIN(k->w->model->layers, k->walk->devices / (c->tp * c->cp));
	struct axis pp = given(&k->s->pp, most), vpp = given(&k->s->vpp, 1);
	int rc = 0;

	for (uint32_t i = 0; i < pp.n && !rc; i++) {
		c->pp = value(&pp, i);
		for (uint32_t j = 0; j < vpp.n && c->pp <= most && !rc; j++) {
			c->vpp = value(&vpp, j);
			if ((uint64_t)c->pp * c->vpp > k->w->model->layers || (c->vpp > 1 && c->pp == 1))
				continue;
			ptc_cost_pipe(k->w, c, &k->layers, &k->pipe);
			if (k->walk->bound)
				bound_parameters(&k->pipe, c->pp);
			rc = walk_dp(k, c);
		}
	}
	return rc;
}

static bool divides_layers(const struct ptc_work *w, const struct ptc_cand *c)
{
	struct ptc_cand one = *c;

	one.pp = one.vpp = 1;
	one.zero = one.recompute = 0;
	one.recompute_others = 0;
	one.dp = c->ep * c->etp; /* so that experts' degrees divide a stage's ranks */
	return !ptc_cand_check(w, &one, NULL);
}

static uint8_t recomputes_of(const struct ptc_space *s)
{
	return s->recompute ? s->recompute : 1;
}

/* Every choice of the kinds of layers from `kind` on; those before it are decided. */
static int walk_kinds(struct walker *k, struct ptc_cand *c, uint32_t kind)
{
	uint16_t others = c->recompute_others;
	int rc = 0;

	if (kind >= k->w->model->nkinds || !k->s->recompute_by_kind) {
		ptc_cost_layers(k->w, c, &k->layers);
		return walk_pipes(k, c);
	}
	for (uint16_t r = 0; r <= PTC_RECOMPUTE_FULL && !rc; r++) {
		if (!(recomputes_of(k->s) & 1 << r))
			continue;
		c->recompute_others = (uint16_t)(others | (r == c->recompute ? 0 : (r + 1) << (2 * (kind - 1))));
		rc = walk_kinds(k, c, kind + 1);
	}
	c->recompute_others = others;
	return rc;
}

static int walk_recompute(struct walker *k, struct ptc_cand *c)
{
	int rc = 0;

	c->recompute_others = 0;
	for (c->recompute = 0; c->recompute <= PTC_RECOMPUTE_FULL && !rc; c->recompute++)
		if (recomputes_of(k->s) & 1 << c->recompute)
			rc = walk_kinds(k, c, 1);
	return rc;
}

static int walk_micro_batch(struct walker *k, struct ptc_cand *c)
{
	static const uint32_t powers[] = { 1, 2, 4, 8, 16, 32, 64, 128, 256 };
	const struct ptc_degrees *d = &k->s->micro_batch;
	struct axis mbs = d->n ? given(d, 0) : (struct axis){ powers, PTC_ARRAY_LEN(powers) };
	int rc = 0;

	for (uint32_t i = 0; i < mbs.n && !rc; i++) {
		c->micro_batch = value(&mbs, i);
		if (c->micro_batch <= k->w->global_batch)
			rc = walk_recompute(k, c);
	}
	return rc;
}

static int walk_experts(struct walker *k, struct ptc_cand *c)
{
	struct axis ep = given(&k->s->ep, 1), etp = given(&k->s->etp, 1);
	int rc = 0;

	for (uint32_t i = 0; i < ep.n && !rc; i++)
		for (uint32_t j = 0; j < etp.n && !rc; j++) {
			c->ep = value(&ep, i);
			c->etp = value(&etp, j);
			c->micro_batch = 1;
			if (divides_layers(k->w, c))
				rc = walk_micro_batch(k, c);
		}
	return rc;
}

int ptc_walk_all(struct ptc_walk *walk)
{
	const struct ptc_space *s = walk->space;
	struct walker k = { .walk = walk, .w = walk->work, .s = s, .zero = s->zero ? s->zero : 1 };
	uint32_t node = k.w->cluster->per_node,
		 most = s->tp_across_nodes ? walk->devices : PTC_MIN(node, walk->devices);
	struct axis tp = given(&s->tp, most), cp = given(&s->cp, 1);
	int rc = 0;

	for (uint32_t i = 0; i < tp.n && !rc; i++)
		for (uint32_t j = 0; j < cp.n && !rc; j++) {
			struct ptc_cand c = { .tp = value(&tp, i), .cp = value(&cp, j) };

			if (c.tp <= most && (uint64_t)c.tp * c.cp <= walk->devices)
				rc = walk_experts(&k, &c);
		}
	return rc;
}

static bool has(const struct ptc_degrees *d, uint32_t v, bool absent)
{
	for (uint32_t i = 0; i < d->n; i++)
		if (d->v[i] == v)
			return true;
	return !d->n && absent;
}

static bool has_recomputes(const struct ptc_work *w, const struct ptc_space *s, const struct ptc_cand *c)
{
	if (c->recompute_others && !s->recompute_by_kind)
		return false;
	for (uint32_t k = 0; k < w->model->nkinds; k++)
		if (!(recomputes_of(s) >> ptc_cand_recompute(c, k) & 1))
			return false;
	return true;
}

bool ptc_space_has(const struct ptc_work *w, const struct ptc_space *s, uint32_t devices, const struct ptc_cand *c)
{
	uint64_t once = (uint64_t)c->micro_batch * c->dp;

	return ptc_cand_devices(c) <= devices && (s->tp_across_nodes || c->tp <= w->cluster->per_node) &&
	       has(&s->tp, c->tp, true) && has(&s->pp, c->pp, true) && has(&s->dp, c->dp, true) &&
	       has(&s->cp, c->cp, c->cp == 1) && has(&s->ep, c->ep, c->ep == 1) && has(&s->etp, c->etp, c->etp == 1) &&
	       has(&s->vpp, c->vpp, c->vpp == 1) && has(&s->micro_batch, c->micro_batch, true) &&
	       ((s->zero ? s->zero : 1) >> c->zero & 1) && has_recomputes(w, s, c) &&
	       once < (uint64_t)w->global_batch + c->micro_batch && !(s->exact_batch && w->global_batch % once);
}

static int check_axis(const char *name, const struct ptc_degrees *d, struct ptc_error *err)
{
	if (d->n > PTC_DEGREES_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "space: %s has more than %d values", name, PTC_DEGREES_MAX);
	for (uint32_t i = 0; i < d->n; i++) {
		if (!d->v[i] || d->v[i] > PTC_MAX_RANKS)
			return ptc_error_set(err, PTC_EINVAL, "space: %s must not be %u", name, d->v[i]);
		if (i && d->v[i] <= d->v[i - 1])
			return ptc_error_set(err, PTC_EINVAL, "space: values of %s must ascend", name);
	}
	return 0;
}

int ptc_space_check(const struct ptc_work *w, const struct ptc_space *s, struct ptc_error *err)
{
	const struct {
		const char *name;
		const struct ptc_degrees *d;
	} axes[] = { { "tp", &s->tp }, { "cp", &s->cp }, { "ep", &s->ep },   { "etp", &s->etp },
		     { "dp", &s->dp }, { "pp", &s->pp }, { "vpp", &s->vpp }, { "micro_batch", &s->micro_batch } };
	int rc = ptc_model_check(w->model, err);

	if (!rc)
		rc = ptc_cluster_profile_check(w->cluster, err);
	for (size_t i = 0; i < PTC_ARRAY_LEN(axes) && !rc; i++)
		rc = check_axis(axes[i].name, axes[i].d, err);
	if (!rc && s->recompute_by_kind && w->model->nkinds > 4)
		rc = ptc_error_set(err, PTC_ELIMIT,
				   "space: recompute_by_kind takes at most 4 kinds of layers; the model has %u",
				   w->model->nkinds);
	if (!rc && !w->global_batch)
		rc = ptc_error_set(err, PTC_EINVAL, "the global batch is 0");
	if (!rc && (s->zero > 15 || s->recompute > 7))
		rc = ptc_error_set(err, PTC_EINVAL, "space: zero or recompute has an unknown value");
	return rc;
}

double ptc_least_memory(const struct ptc_work *w)
{
	double least = INFINITY;

	for (uint32_t i = 0; i < w->cluster->nkinds; i++)
		least = PTC_MIN(least, w->cluster->kinds[i].memory_bytes);
	return least;
}
