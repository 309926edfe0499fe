/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the fastest configurations that fit on a number of devices. The search covers its whole space: it skips only
 * candidates that a bound shows to be slower than those it keeps. Deterministic. Pure; any thread. */
#pragma once

#include "planner/cost/step.h"
#include "planner/fit/fit.h"

#define PTC_DEGREES_MAX 64
#define PTC_SEARCH_KEEP 64

/* The values of an axis; n 0: the default, which is stated beside each axis. */
struct ptc_degrees {
	uint32_t n, v[PTC_DEGREES_MAX];
};
struct ptc_space {
	struct ptc_degrees tp;          /* all that divide heads, up to a node's devices */
	struct ptc_degrees cp, ep, etp; /* 1 */
	struct ptc_degrees dp, pp;      /* all */
	struct ptc_degrees vpp;         /* 1 */
	struct ptc_degrees micro_batch; /* powers of two */
	/* bit z: zero=z is permitted; bit r: enum ptc_recompute r is. 0: only bit 0 */
	uint8_t zero, recompute;
	bool recompute_by_kind; /* kinds of layers may differ in recomputation */
	bool tp_across_nodes;   /* tp may be larger than a node */
	bool exact_batch;       /* only candidates whose dp times micro-batch divides the global batch */
};
struct ptc_search_limits {
	uint32_t devices;    /* greatest number of devices */
	double memory_bytes; /* of a device; 0: the smallest kind's */
	uint32_t keep;       /* number of layouts to return, 1..PTC_SEARCH_KEEP */
	bool cheapest;       /* order by money per step first, then by speed */
	uint64_t *timed;     /* gets the number of candidates whose step time was computed; NULL: not asked */
};
struct ptc_choice {
	struct ptc_cand cand;
	struct ptc_estimate est; /* est.step_s is corrected if there is a calibration */
	double sd;               /* standard deviation of step_s, relative */
	double price_hour;       /* of all its devices; 0: the profile has no price */
};

/* Searches. On a cluster with several kinds of devices, a candidate takes one kind or two (est.place). The order is:
 * step time, then fewer devices, less memory, smaller degrees. Of candidates that differ only in micro-batch and
 * recomputation, the best is returned. With `cal`, its coefficients replace the work's, and its correction orders the
 * results. PTC_ENODEVICES: nothing fits; the message says how much memory the smallest candidate would take. */
int ptc_search(const struct ptc_work *w, const struct ptc_space *space, const struct ptc_search_limits *limits,
	       const struct ptc_calibration *cal, struct ptc_choice *ret, size_t *ret_n, struct ptc_error *err);
int ptc_cand_compare(const struct ptc_cand *a, const struct ptc_cand *b); /* by degrees; 0: equal */
/* < 0: a is better for throughput. */
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
/* The number of candidates whose step time was computed to make it. */
uint64_t ptc_frontier_timed(const struct ptc_frontier *f);
/* The points for at most n devices, fastest first, with falling memory. NULL, 0: nothing fits. Borrowed. */
const struct ptc_frontier_point *ptc_frontier_get(const struct ptc_frontier *f, uint32_t n, size_t *ret_n);
/* The fastest point that fits in memory_bytes; NULL: none. */
const struct ptc_frontier_point *ptc_frontier_best(const struct ptc_frontier *f, uint32_t n, double memory_bytes);
