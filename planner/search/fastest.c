/* SPDX-License-Identifier: Apache-2.0 */
/* The best few of a space. They are kept sorted, and the walk skips candidates that are slower than the last of them.
 * If devices are of several kinds, the walk takes all of them to be as fast as the fastest; no placement can be faster
 * than that. */
#include "planner/cost/on_kinds.h"
#include "planner/search/walk.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

struct keeper {
	struct ptc_choice best[PTC_SEARCH_KEEP];
	size_t n, keep;
	bool cheapest;
	double memory;   /* at most, where all devices are of one kind */
	double smallest; /* memory of any candidate, that did not fit either */
	double fullest;  /* and as a share of a device's */
	struct ptc_cand smallest_cand;
	struct ptc_placer *placer;                 /* NULL: one kind */
	const struct ptc_cluster_profile *cluster; /* whose prices count */
	uint64_t timed;
	double enough; /* seconds, for the cheapest money: as many layouts as are kept do as well on one kind alone */
};

#define COMPARE(a, b)                                                                                                  \
	do {                                                                                                           \
		if ((a) != (b))                                                                                        \
			return (a) < (b) ? -1 : 1;                                                                     \
	} while (0)

int ptc_cand_compare(const struct ptc_cand *a, const struct ptc_cand *b)
{
	COMPARE(a->pp, b->pp);
	COMPARE(a->tp, b->tp);
	COMPARE(a->cp, b->cp);
	COMPARE(a->ep, b->ep);
	COMPARE(a->etp, b->etp);
	COMPARE(a->vpp, b->vpp);
	COMPARE(a->dp, b->dp);
	COMPARE(a->zero, b->zero);
	COMPARE(a->recompute, b->recompute);
	COMPARE(a->recompute_others, b->recompute_others);
	COMPARE(a->micro_batch, b->micro_batch);
	return 0;
}

int ptc_choice_compare(const struct ptc_choice *a, const struct ptc_choice *b)
{
	COMPARE(a->est.step_s, b->est.step_s);
	COMPARE(ptc_cand_devices(&a->cand), ptc_cand_devices(&b->cand));
	COMPARE(a->est.memory_bytes, b->est.memory_bytes);
	return ptc_cand_compare(&a->cand, &b->cand);
}

/* By what is kept for: money per step first where that is asked; without prices every device costs the same. */
static int compare(const struct keeper *k, const struct ptc_choice *a, const struct ptc_choice *b)
{
	if (k->cheapest) {
		double x = a->price_hour > 0 ? a->price_hour : ptc_cand_devices(&a->cand);
		double y = b->price_hour > 0 ? b->price_hour : ptc_cand_devices(&b->cand);

		COMPARE(x * a->est.step_s, y * b->est.step_s);
	}
	return ptc_choice_compare(a, b);
}

static bool lie_the_same(const struct ptc_cand *a, const struct ptc_cand *b)
{
	struct ptc_cand x = *a;

	x.micro_batch = b->micro_batch;
	x.recompute = b->recompute;
	x.recompute_others = b->recompute_others;
	return !ptc_cand_compare(&x, b);
}

static void insert(struct keeper *k, const struct ptc_choice *new)
{
	size_t at, end = k->n;

	for (size_t i = 0; i < k->n; i++)
		if (lie_the_same(&k->best[i].cand, &new->cand)) {
			if (compare(k, &k->best[i], new) <= 0)
				return;
			end = i; /* its place is taken */
		}
	if (end == k->n && k->n == k->keep && compare(k, &k->best[k->n - 1], new) <= 0)
		return;
	if (end == k->n && k->n < k->keep)
		k->n++;
	else if (end == k->n)
		end--;
	for (at = end; at > 0 && compare(k, new, &k->best[at - 1]) < 0; at--)
		k->best[at] = k->best[at - 1];
	k->best[at] = *new;
}

/* What the last of those kept comes to: seconds, or money. */
static double worst_kept(const struct keeper *k)
{
	const struct ptc_choice *last;

	if (!k->n || k->n < k->keep)
		return INFINITY;
	last = &k->best[k->n - 1];
	return k->cheapest ? last->price_hour * last->est.step_s : last->est.step_s;
}

/* A step must be as fast to be kept; for the cheapest, at the price of the cheapest devices. */
static double slowest_kept(const struct keeper *k, const struct ptc_cand *c)
{
	double most = PTC_MIN(k->enough, worst_kept(k)), least = INFINITY;

	if (!k->cheapest)
		return most;
	for (uint32_t i = 0; i < k->cluster->nkinds; i++)
		least = PTC_MIN(least, k->cluster->kinds[i].price_hour);
	return least > 0 ? most / (ptc_cand_devices(c) * least) * (1 + 1e-9) : INFINITY;
}

/* How full the fullest device is, as a share; est gets its memory. */
static double fill_memory(struct keeper *k, const struct ptc_work *w, const struct ptc_cand *c,
			  const struct ptc_pipe *p, struct ptc_estimate *est)
{
	if (k->placer) {
		k->placer->slowest_s = slowest_kept(k, c);
		return c->vpp == 1 && est->step_s > k->placer->slowest_s ? INFINITY
									 : ptc_placer_best(k->placer, c, est);
	}
	ptc_cost_memory(w, c, p, est);
	return est->memory_bytes <= k->memory ? 1 : PTC_MAX(1 + 1e-9, est->memory_bytes / k->memory);
}

static int visit(struct ptc_walk *walk, const struct ptc_cand *c, const struct ptc_pipe *p, struct ptc_estimate *est)
{
	struct keeper *k = walk->arg;
	struct ptc_choice new = { .cand = *c };
	double full = fill_memory(k, walk->work, c, p, est);

	if (full > 1) {
		if (full < k->fullest) {
			k->fullest = full;
			k->smallest = est->memory_bytes;
			k->smallest_cand = *c;
		}
		return 0;
	}
	new.est = *est;
	new.price_hour = ptc_placed_price(k->cluster, c, &est->place);
	if (k->n == k->keep && compare(k, &new, &k->best[k->n - 1]) >= 0)
		return 0;
	insert(k, &new);
	if (k->n == k->keep && !k->cheapest)
		walk->slowest_s = k->best[k->n - 1].est.step_s;
	return 0;
}

static int none(const struct keeper *k, uint32_t devices, struct ptc_error *err)
{
	char text[PTC_CAND_TEXT_MAX];

	if (isinf(k->fullest))
		return ptc_error_set(err, PTC_ENODEVICES, "no configuration of the space takes at most %u devices",
				     devices);
	ptc_cand_format(&k->smallest_cand, text);
	return ptc_error_set(err, PTC_ENODEVICES,
			     "nothing fits on %u devices of %.1f GB: the smallest, %s, takes %.1f GB on each", devices,
			     k->smallest / k->fullest / 1e9, text, k->smallest / 1e9);
}

/* Corrected by its neighbours, each keeps its own error; sorted again. */
static void correct(const struct ptc_work *w, const struct ptc_calibration *cal, struct keeper *k)
{
	for (size_t i = 0; i < k->n; i++) {
		struct ptc_choice c = k->best[i];
		size_t at = i;

		c.sd = PTC_UNCALIBRATED_SD;
		if (cal)
			c.est.step_s *= ptc_calibration_factor(cal, w, &c.cand, &c.sd);
		for (; at > 0 && compare(k, &c, &k->best[at - 1]) < 0; at--)
			k->best[at] = k->best[at - 1];
		k->best[at] = c;
	}
}

/* What was measured takes part as it was measured, also where another micro-batch of the same layout looked better
 * before. */
static void add_measured(const struct ptc_work *w, const struct ptc_space *space, uint32_t devices,
			 const struct ptc_calibration *cal, struct keeper *k)
{
	struct ptc_cand measured[PTC_SEARCH_KEEP];
	size_t n = ptc_calibration_measured(cal, w, measured, PTC_SEARCH_KEEP);

	for (size_t i = 0; i < n; i++) {
		struct ptc_choice c = { .cand = measured[i] };

		if (ptc_estimate(w, &c.cand, &c.est, NULL) || !ptc_space_has(w, space, devices, &c.cand) ||
		    (k->placer ? ptc_placer_best(k->placer, &c.cand, &c.est) > 1 : c.est.memory_bytes > k->memory))
			continue;
		c.price_hour = ptc_placed_price(k->cluster, &c.cand, &c.est.place);
		c.est.step_s *= ptc_calibration_factor(cal, w, &c.cand, &c.sd);
		insert(k, &c);
	}
}

/* As fast as the fastest of its kinds in everything: no placement does better. */
static struct ptc_cluster_profile at_best(const struct ptc_cluster_profile *c)
{
	struct ptc_cluster_profile best = *c;

	for (uint32_t i = 1; i < c->nkinds; i++) {
		best.kinds[0].flops = PTC_MAX(best.kinds[0].flops, c->kinds[i].flops);
		best.kinds[0].hbm_bytes_s = PTC_MAX(best.kinds[0].hbm_bytes_s, c->kinds[i].hbm_bytes_s);
		best.kinds[0].nodes += c->kinds[i].nodes;
	}
	best.nkinds = 1;
	return best;
}

/* Each kind alone, which is quick: what is no better needs no look at placements. */
static void seed(const struct ptc_work *w, const struct ptc_space *space, uint32_t devices, struct keeper *k)
{
	for (uint32_t i = 0; i < w->cluster->nkinds; i++) {
		const struct ptc_work *one = &k->placer->alone[i];
		struct keeper alone = { .keep = k->keep,
					.cheapest = k->cheapest,
					.memory = k->placer->memory[i],
					.fullest = INFINITY,
					.enough = INFINITY,
					.cluster = one->cluster };
		struct ptc_walk walk = { one,    space, PTC_MIN(devices, k->placer->room[i]), INFINITY, false, visit,
					 &alone, 0 };

		ptc_walk_all(&walk);
		k->timed += walk.timed;
		if (!k->cheapest || one->cluster->kinds[0].price_hour > 0)
			k->enough = PTC_MIN(k->enough, worst_kept(&alone));
	}
}

static void walk_all(const struct ptc_work *w, const struct ptc_space *space, uint32_t devices, struct keeper *k)
{
	struct ptc_cluster_profile best = at_best(w->cluster);
	struct ptc_work bound = *w;
	struct ptc_walk walk = { &bound, space, devices, INFINITY, k->placer != NULL, visit, k, 0 };

	bound.cluster = &best;
	if (k->placer)
		seed(w, space, devices, k);
	if (!k->cheapest)
		walk.slowest_s = k->enough;
	ptc_walk_all(&walk);
	k->timed += walk.timed;
}

static int check_limits(const struct ptc_work *w, const struct ptc_search_limits *limits, struct ptc_error *err)
{
	if (!limits->devices)
		return ptc_error_set(err, PTC_EINVAL, "a job on 0 devices cannot run; ask for at least 1");
	if (limits->devices > ptc_cluster_profile_devices(w->cluster))
		return ptc_error_set(err, PTC_ENODEVICES, "%u devices are asked for; the profile has %u",
				     limits->devices, ptc_cluster_profile_devices(w->cluster));
	if (!limits->keep || limits->keep > PTC_SEARCH_KEEP)
		return ptc_error_set(err, PTC_EINVAL, "the search keeps 1..%d layouts, not %u", PTC_SEARCH_KEEP,
				     limits->keep);
	return 0;
}

int ptc_search(const struct ptc_work *w, const struct ptc_space *space, const struct ptc_search_limits *limits,
	       const struct ptc_calibration *cal, struct ptc_choice *ret, size_t *ret_n, struct ptc_error *err)
{
	struct ptc_work work = *w;
	struct ptc_placer placer;
	struct keeper k = { .keep = cal ? PTC_SEARCH_KEEP : limits->keep,
			    .cheapest = limits->cheapest,
			    .memory = limits->memory_bytes,
			    .fullest = INFINITY,
			    .enough = INFINITY,
			    .cluster = w->cluster };
	int rc = ptc_space_check(w, space, err);

	if (!rc)
		rc = check_limits(w, limits, err);
	if (rc)
		return rc;
	if (cal)
		work.coefs = *ptc_calibration_coefs(cal);
	if (!(k.memory > 0))
		k.memory = ptc_least_memory(w);
	if (w->cluster->nkinds > 1) {
		ptc_placer_init(&placer, &work, limits->memory_bytes);
		placer.cheapest = limits->cheapest;
		k.placer = &placer;
	}
	walk_all(&work, space, limits->devices, &k);
	if (limits->timed)
		*limits->timed = k.timed;
	if (!k.n)
		return none(&k, limits->devices, err);
	correct(&work, cal, &k);
	if (k.placer)
		k.placer->slowest_s = INFINITY;
	if (cal)
		add_measured(&work, space, limits->devices, cal, &k);
	*ret_n = PTC_MIN(k.n, (size_t)limits->keep);
	memcpy(ret, k.best, *ret_n * sizeof *ret);
	return 0;
}
