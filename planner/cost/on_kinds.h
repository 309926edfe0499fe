/* SPDX-License-Identifier: Apache-2.0 */
/* Costs a candidate on a cluster with several kinds of devices, for the search. It costs each possible placement on one
 * or two kinds, and takes the fastest that fits. A placer caches what a walk asks for again. Plain data of the caller
 * (300 KB); one thread. There are no failure modes. */
#pragma once

#include "planner/cost/stages.h"

struct ptc_placer {
	struct ptc_work work; /* the caller's; alone[k].cluster has only kind k */
	struct ptc_work alone[PTC_DEVICE_MAX_KINDS];
	struct ptc_cluster_profile one[PTC_DEVICE_MAX_KINDS];
	double memory[PTC_DEVICE_MAX_KINDS]; /* memory of a device */
	uint32_t room[PTC_DEVICE_MAX_KINDS]; /* number of devices */
	bool cheapest;                       /* find the cheapest placement, not the fastest; false at first */
	double slowest_s;                    /* a placement that must be slower may be skipped; INFINITY at first */
	/* The cache for the last candidate; tp 0: none yet. */
	struct ptc_cand of;
	struct ptc_layers layers[PTC_DEVICE_MAX_KINDS];
	struct ptc_pipe pipe[PTC_DEVICE_MAX_KINDS]; /* with all devices of one kind */
	double work_s[PTC_DEVICE_MAX_KINDS];        /* of a micro-batch on one device */
	/* for two kinds: the busiest device's time with so many stages on the one, then on the other; 0: not known
	 * yet */
	double mixed_s[2][PTC_MODEL_MAX_LAYERS];
};
/* memory_bytes 0: each kind has its own memory; else every device has this. The work's model is borrowed. */
void ptc_placer_init(struct ptc_placer *p, const struct ptc_work *w, double memory_bytes);
/* Finds the best placement of a candidate that ptc_cand_check accepts. Returns how full the fullest device is, as a
 * share of its memory. Above 1: no placement fits, and ret is the least full one. INFINITY: no two kinds have so many
 * devices, or all placements are too slow. */
double ptc_placer_best(struct ptc_placer *p, const struct ptc_cand *c, struct ptc_estimate *ret);
/* The price of an hour of a candidate's devices; 0: one of their kinds has no price. */
double ptc_placed_price(const struct ptc_cluster_profile *cluster, const struct ptc_cand *c,
			const struct ptc_on_kinds *on);
/* Describes a placement: "stages 1-3 on H100-80GB, 4-6 on A100-80GB", "replicas 1-2 on H100-80GB with 12 micro-batches
 * each, ...", or one name. */
#define PTC_PLACED_TEXT_MAX 192
void ptc_placed_format(const struct ptc_cluster_profile *cluster, const struct ptc_cand *c,
		       const struct ptc_on_kinds *on, char buf[PTC_PLACED_TEXT_MAX]);
/* Estimates one candidate. PTC_ENODEVICES: no two kinds have so many devices. */
int ptc_placer_estimate(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_estimate *ret,
			struct ptc_error *err);
/* Writes the number of layers of each of pp * vpp stages of a placement into ret, as its estimate cuts them. The
 * candidate is one that ptc_cand_check accepts. */
void ptc_placed_layers(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_on_kinds *on,
		       uint32_t *ret);
