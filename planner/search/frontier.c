/* SPDX-License-Identifier: Apache-2.0 */
/* Pareto sets (memory, step time) per number of devices. Sets are kept per world size while walking,
 * then each takes in those of fewer devices, so that a look-up reads one array. */
#include "planner/search/walk.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"

#include <math.h>
#include <string.h>

#define SET_MAX 256 /* points of one set; published models come to fewer than 100 */

struct set {
	struct ptc_frontier_point *v; /* step_s rising, memory_bytes falling */
	uint32_t n, cap;
};
struct ptc_frontier {
	uint32_t devices;
	double memory;
	uint64_t timed;
	struct set sets[]; /* [n]: at most n devices; [0] is empty */
};

static int compare(const struct ptc_frontier_point *a, const struct ptc_frontier_point *b)
{
	struct ptc_choice x = { .cand = a->cand }, y = { .cand = b->cand };

	x.est.step_s = a->step_s;
	y.est.step_s = b->step_s;
	x.est.memory_bytes = a->memory_bytes;
	y.est.memory_bytes = b->memory_bytes;
	return ptc_choice_compare(&x, &y);
}

/* No slower and no larger, and if equal in both, first in order. */
static bool dominates(const struct ptc_frontier_point *a, const struct ptc_frontier_point *b)
{
	if (a->step_s > b->step_s || a->memory_bytes > b->memory_bytes)
		return false;
	return a->step_s < b->step_s || a->memory_bytes < b->memory_bytes || compare(a, b) <= 0;
}

static int add(struct set *s, const struct ptc_frontier_point *p)
{
	uint32_t n = 0, at;

	for (uint32_t i = 0; i < s->n; i++)
		if (dominates(&s->v[i], p))
			return 0;
	for (uint32_t i = 0; i < s->n; i++)
		if (!dominates(p, &s->v[i]))
			s->v[n++] = s->v[i];
	s->n = n;
	if (s->n == SET_MAX) /* the last but one: both ends stay */
		s->v[s->n - 2] = s->v[s->n - 1], s->n--;
	if (!PTC_ROOM(s->v, s->n + 1, s->cap))
		return PTC_ENOMEM;
	for (at = s->n++; at > 0 && p->step_s < s->v[at - 1].step_s; at--)
		s->v[at] = s->v[at - 1];
	s->v[at] = *p;
	return 0;
}

static int visit(struct ptc_walk *walk, const struct ptc_cand *c, const struct ptc_pipe *p, struct ptc_estimate *est)
{
	struct ptc_frontier *f = walk->arg;
	struct ptc_frontier_point point = { .cand = *c, .step_s = est->step_s };

	ptc_cost_memory(walk->work, c, p, est);
	point.memory_bytes = est->memory_bytes;
	return point.memory_bytes > f->memory ? 0 : add(&f->sets[ptc_cand_devices(c)], &point);
}

int ptc_frontier_new(const struct ptc_work *w, const struct ptc_space *space, uint32_t devices,
		     struct ptc_frontier **ret, struct ptc_error *err)
{
	struct ptc_walk walk = { w, space, devices, INFINITY, false, visit, NULL, 0 };
	struct ptc_frontier *f;
	int rc = ptc_space_check(w, space, err);

	if (rc)
		return rc;
	if (!devices || devices > PTC_MAX_RANKS)
		return ptc_error_set(err, PTC_EINVAL, "a frontier up to %u devices; it must be in 1..%u", devices,
				     PTC_MAX_RANKS);
	f = ptc_calloc(1, sizeof *f + (devices + (size_t)1) * sizeof f->sets[0]);
	if (!f)
		return ptc_nomem(err);
	f->devices = devices;
	f->memory = ptc_least_memory(w);
	walk.arg = f;
	rc = ptc_walk_all(&walk);
	f->timed = walk.timed;
	for (uint32_t n = 1; n <= devices && !rc; n++)
		for (uint32_t i = 0; i < f->sets[n - 1].n && !rc; i++)
			rc = add(&f->sets[n], &f->sets[n - 1].v[i]);
	if (rc) {
		ptc_frontier_free(f);
		return ptc_error_set(err, rc, "out of memory for the frontier of %u devices", devices);
	}
	*ret = f;
	return 0;
}

struct ptc_frontier *ptc_frontier_free(struct ptc_frontier *f)
{
	for (uint32_t n = 0; f && n <= f->devices; n++)
		ptc_free(f->sets[n].v);
	ptc_free(f);
	return NULL;
}

uint64_t ptc_frontier_timed(const struct ptc_frontier *f)
{
	return f->timed;
}

const struct ptc_frontier_point *ptc_frontier_get(const struct ptc_frontier *f, uint32_t n, size_t *ret_n)
{
	const struct set *s = &f->sets[PTC_MIN(n, f->devices)];

	*ret_n = s->n;
	return s->n ? s->v : NULL;
}

const struct ptc_frontier_point *ptc_frontier_best(const struct ptc_frontier *f, uint32_t n, double memory_bytes)
{
	size_t count;
	const struct ptc_frontier_point *v = ptc_frontier_get(f, n, &count);

	for (size_t i = 0; i < count; i++)
		if (v[i].memory_bytes <= memory_bytes)
			return &v[i];
	return NULL;
}
