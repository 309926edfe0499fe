// SPDX-License-Identifier: Apache-2.0
/* The best few of a space. Keeps them sorted; what is slower than the last of them is not visited. */
#include "planner/search/walk.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

struct keeper {
	struct ptc_choice best[PTC_SEARCH_KEEP];
	size_t n, keep;
	double memory;   /* at most */
	double smallest; /* memory of any candidate, that did not fit either */
	struct ptc_cand smallest_cand;
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

static bool lie_the_same(const struct ptc_cand *a, const struct ptc_cand *b)
{
	struct ptc_cand x = *a;

	x.micro_batch = b->micro_batch;
	x.recompute = b->recompute;
	return !ptc_cand_compare(&x, b);
}

static void insert(struct keeper *k, const struct ptc_choice *new)
{
	size_t at, end = k->n;

	for (size_t i = 0; i < k->n; i++)
		if (lie_the_same(&k->best[i].cand, &new->cand)) {
			if (ptc_choice_compare(&k->best[i], new) <= 0)
				return;
			end = i; /* its place is taken */
		}
	if (end == k->n && k->n == k->keep && ptc_choice_compare(&k->best[k->n - 1], new) <= 0)
		return;
	if (end == k->n && k->n < k->keep)
		k->n++;
	else if (end == k->n)
		end--;
	for (at = end; at > 0 && ptc_choice_compare(new, &k->best[at - 1]) < 0; at--)
		k->best[at] = k->best[at - 1];
	k->best[at] = *new;
}

static int visit(struct ptc_walk *walk, const struct ptc_cand *c, const struct ptc_pipe *p, struct ptc_estimate *est)
{
	struct keeper *k = walk->arg;
	struct ptc_choice new = { .cand = *c };

	ptc_cost_memory(walk->work, c, p, est);
	if (est->memory_bytes > k->memory) {
		if (est->memory_bytes < k->smallest) {
			k->smallest = est->memory_bytes;
			k->smallest_cand = *c;
		}
		return 0;
	}
	new.est = *est;
	if (k->n == k->keep && ptc_choice_compare(&new, &k->best[k->n - 1]) >= 0)
		return 0;
	insert(k, &new);
	if (k->n == k->keep)
		walk->slowest_s = k->best[k->n - 1].est.step_s;
	return 0;
}

static int none(const struct keeper *k, uint32_t devices, struct ptc_error *err)
{
	char text[PTC_CAND_TEXT_MAX];

	if (isinf(k->smallest))
		return ptc_error_set(err, PTC_ENODEVICES, "no configuration of the space takes at most %u devices",
				     devices);
	ptc_cand_format(&k->smallest_cand, text);
	return ptc_error_set(err, PTC_ENODEVICES,
			     "nothing fits on %u devices of %.1f GB: the smallest, %s, takes %.1f GB on each", devices,
			     k->memory / 1e9, text, k->smallest / 1e9);
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
		for (; at > 0 && ptc_choice_compare(&c, &k->best[at - 1]) < 0; at--)
			k->best[at] = k->best[at - 1];
		k->best[at] = c;
	}
}

/* What was measured takes part as it was measured, also where another micro-batch of the same layout looked better before. */
static void add_measured(const struct ptc_work *w, const struct ptc_space *space, uint32_t devices,
			 const struct ptc_calibration *cal, struct keeper *k)
{
	struct ptc_cand measured[PTC_SEARCH_KEEP];
	size_t n = ptc_calibration_measured(cal, w, measured, PTC_SEARCH_KEEP);

	for (size_t i = 0; i < n; i++) {
		struct ptc_choice c = { .cand = measured[i] };

		if (ptc_estimate(w, &c.cand, &c.est, NULL) || !ptc_space_has(w, space, devices, &c.cand) ||
		    c.est.memory_bytes > k->memory)
			continue;
		c.est.step_s *= ptc_calibration_factor(cal, w, &c.cand, &c.sd);
		insert(k, &c);
	}
}

int ptc_search(const struct ptc_work *w, const struct ptc_space *space, const struct ptc_search_limits *limits,
	       const struct ptc_calibration *cal, struct ptc_choice *ret, size_t *ret_n, struct ptc_error *err)
{
	struct ptc_work work = *w;
	struct keeper k = { .keep = cal ? PTC_SEARCH_KEEP : limits->keep,
			    .memory = limits->memory_bytes > 0 ? limits->memory_bytes : 0,
			    .smallest = INFINITY };
	struct ptc_walk walk = { &work, space, limits->devices, INFINITY, visit, &k };
	int rc = ptc_space_check(w, space, err);

	if (rc)
		return rc;
	if (!limits->devices)
		return ptc_error_set(err, PTC_EINVAL, "a job on 0 devices cannot run; ask for at least 1");
	if (limits->devices > ptc_cluster_profile_devices(w->cluster))
		return ptc_error_set(err, PTC_ENODEVICES, "%u devices are asked for; the profile has %u",
				     limits->devices, ptc_cluster_profile_devices(w->cluster));
	if (!limits->keep || limits->keep > PTC_SEARCH_KEEP)
		return ptc_error_set(err, PTC_EINVAL, "the search keeps 1..%d layouts, not %u", PTC_SEARCH_KEEP,
				     limits->keep);
	if (cal)
		work.coefs = *ptc_calibration_coefs(cal);
	if (!(k.memory > 0))
		k.memory = ptc_least_memory(w);
	ptc_walk_all(&walk);
	if (!k.n)
		return none(&k, limits->devices, err);
	correct(&work, cal, &k);
	if (cal)
		add_measured(&work, space, limits->devices, cal, &k);
	*ret_n = PTC_MIN(k.n, (size_t)limits->keep);
	memcpy(ret, k.best, *ret_n * sizeof *ret);
	return 0;
}
