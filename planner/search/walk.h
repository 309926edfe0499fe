/* SPDX-License-Identifier: Apache-2.0 */
/* Of planner/search's own: every candidate of a space, in a fixed order. */
#pragma once

#include "planner/cost/stages.h"
#include "planner/search/fastest.h"

struct ptc_walk {
	const struct ptc_work *work;
	const struct ptc_space *space;
	uint32_t devices;
	/* Steps slower than this need not be visited; the visitor may lower it. */
	double slowest_s;
	/* The work is only a bound of what is searched, whose cut may be another: with several stages on a device the
	 * busiest of one says nothing of the other's, only their mean does. */
	bool bound;
	/* One candidate that ptc_cand_check accepts; est has all but memory, which ptc_cost_memory(w, c, p, est) adds.
	 */
	int (*visit)(struct ptc_walk *walk, const struct ptc_cand *c, const struct ptc_pipe *p,
		     struct ptc_estimate *est);
	void *arg;
};
/* Stops at, and returns, what is not 0 from visit. */
int ptc_walk_all(struct ptc_walk *walk);
/* Would the walk visit it? Of a candidate that ptc_cand_check accepts. */
bool ptc_space_has(const struct ptc_work *w, const struct ptc_space *s, uint32_t devices, const struct ptc_cand *c);
int ptc_space_check(const struct ptc_work *w, const struct ptc_space *s, struct ptc_error *err);
double ptc_least_memory(const struct ptc_work *w); /* of a device's kinds */
