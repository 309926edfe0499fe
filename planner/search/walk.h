/* SPDX-License-Identifier: Apache-2.0 */
/* For planner/search only: visits every candidate of a space, in a fixed order. */
#pragma once

#include "planner/cost/stages.h"
#include "planner/search/fastest.h"

struct ptc_walk {
	const struct ptc_work *work;
	const struct ptc_space *space;
	uint32_t devices;
	/* Candidates with slower steps need not be visited; the visitor may lower this. */
	double slowest_s;
	/* true: step times under `work` are only lower bounds for the works that are searched, because their layers may
	 * be cut into stages differently. So the bound uses the mean of all devices' parameters, not those of the
	 * device that has the most in this cut. If a device has several stages, the bound also uses the mean time of
	 * all devices, because the busiest device of one cut is no bound for other cuts. */
	bool bound;
	/* Gets one candidate that ptc_cand_check accepts. est has all but memory, which ptc_cost_memory(w, c, p, est)
	 * adds. */
	int (*visit)(struct ptc_walk *walk, const struct ptc_cand *c, const struct ptc_pipe *p,
		     struct ptc_estimate *est);
	void *arg;
	uint64_t timed; /* number of candidates whose step time was computed */
};
/* Stops when `visit` returns other than 0, and returns that value. */
int ptc_walk_all(struct ptc_walk *walk);
/* Whether the walk would visit a candidate that ptc_cand_check accepts. */
bool ptc_space_has(const struct ptc_work *w, const struct ptc_space *s, uint32_t devices, const struct ptc_cand *c);
int ptc_space_check(const struct ptc_work *w, const struct ptc_space *s, struct ptc_error *err);
double ptc_least_memory(const struct ptc_work *w); /* the least memory of a device over all kinds */
