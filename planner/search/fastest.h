/* SPDX-License-Identifier: Apache-2.0 */
/* The fastest configurations that fit, for at most so many devices. The search is exhaustive over
 * its space: it leaves out only what a bound shows to be slower than what it keeps. Deterministic;
 * pure, any thread. */
#pragma once

#include "planner/cost/step.h"
#include "planner/fit/fit.h"

#define PTC_DEGREES_MAX 64
#define PTC_SEARCH_KEEP 64

/* Values an axis may take; n 0: the default, stated beside each axis. */
struct ptc_degrees {
	uint32_t n, v[PTC_DEGREES_MAX];
};
struct ptc_space {
	struct ptc_degrees tp;          /* all that divide heads, at most a node's devices */
	struct ptc_degrees cp, ep, etp; /* 1 */
	struct ptc_degrees dp, pp;      /* all */
	struct ptc_degrees vpp;         /* 1 */
	struct ptc_degrees micro_batch; /* powers of two */
	uint8_t zero, recompute;        /* bit z: zero=z may be; bit r: enum ptc_recompute. 0: what bit 0 says */
	bool recompute_by_kind;         /* kinds of layers may differ in what they recompute */
	bool tp_across_nodes;           /* tp may be larger than a node */
	bool exact_batch;               /* only where dp times micro-batch divides the global batch */
};
struct ptc_search_limits {
	uint32_t devices;    /* at most */
	double memory_bytes; /* of a device; 0: the smallest kind's */
	uint32_t keep;       /* layouts to return, 1..PTC_SEARCH_KEEP */
	bool cheapest;       /* the least money per step first, then the fastest */
};
struct ptc_choice {
	struct ptc_cand cand;
	struct ptc_estimate est; /* est.step_s: corrected where there is a calibration */
	double sd;               /* of step_s, relative */
	double price_hour;       /* of all its devices; 0: the profile does not say */
};

/* On a cluster with several kinds of devices a candidate takes one kind or two (est.place). Best first: step time, then
 * fewer devices, less memory, smaller degrees. Of candidates that lie the same (differ in micro-batch and recomputation
 * alone) only the best is returned. With `cal`, its coefficients are used instead of the work's, and its correction
 * decides among the kept. PTC_ENODEVICES: nothing fits; the error says how much memory the smallest would take. */
int ptc_search(const struct ptc_work *w, const struct ptc_space *space, const struct ptc_search_limits *limits,
	       const struct ptc_calibration *cal, struct ptc_choice *ret, size_t *ret_n, struct ptc_error *err);
int ptc_cand_compare(const struct ptc_cand *a, const struct ptc_cand *b); /* by degrees; 0: equal */
/* < 0: a is better, for throughput. */
int ptc_choice_compare(const struct ptc_choice *a, const struct ptc_choice *b);

/* The Pareto sets (memory, step time) for every number of devices up to a maximum, made once. */
struct ptc_frontier;
struct ptc_frontier_point {
	struct ptc_cand cand;
	double step_s, memory_bytes;
};
int ptc_frontier_new(const struct ptc_work *w, const struct ptc_space *space, uint32_t devices,
		     struct ptc_frontier **ret, struct ptc_error *err);
struct ptc_frontier *ptc_frontier_free(struct ptc_frontier *f);
/* Points for at most n devices, fastest first, memory falling; NULL, 0: nothing fits. Borrowed. */
const struct ptc_frontier_point *ptc_frontier_get(const struct ptc_frontier *f, uint32_t n, size_t *ret_n);
/* The fastest that fits in memory_bytes; NULL: none. */
const struct ptc_frontier_point *ptc_frontier_best(const struct ptc_frontier *f, uint32_t n, double memory_bytes);
