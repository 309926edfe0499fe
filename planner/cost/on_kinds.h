/* SPDX-License-Identifier: Apache-2.0 */
/* Of the search: a candidate on a cluster with several kinds of devices. Each placement that there is on one or
 * two kinds is costed; the fastest that fits is taken. A placer keeps what a walk asks for again; plain data of
 * the caller (300 KB), one thread. Cannot fail. */
#pragma once

#include "planner/cost/stages.h"

struct ptc_placer {
	struct ptc_work work; /* the caller's; alone[k].cluster has kind k only */
	struct ptc_work alone[PTC_DEVICE_MAX_KINDS];
	struct ptc_cluster_profile one[PTC_DEVICE_MAX_KINDS];
	double memory[PTC_DEVICE_MAX_KINDS]; /* of a device */
	uint32_t room[PTC_DEVICE_MAX_KINDS]; /* devices there are */
	bool cheapest;    /* the placement of the least money is wanted, not the fastest; false at first */
	double slowest_s; /* a placement that must be slower may be left out; INFINITY at first */
	/* Of the last candidate; tp 0: none yet. */
	struct ptc_cand of;
	struct ptc_layers layers[PTC_DEVICE_MAX_KINDS];
	struct ptc_pipe pipe[PTC_DEVICE_MAX_KINDS]; /* where all of it is of one kind */
	double work_s[PTC_DEVICE_MAX_KINDS];        /* of a micro-batch on one device */
	double mixed_s[2][PTC_MODEL_MAX_LAYERS];    /* of two kinds: of so many stages on the one, then on the other,
							 the busiest; 0: not known yet */
};
/* memory_bytes 0: each kind's own, else of every device. The work's model is borrowed. */
void ptc_placer_init(struct ptc_placer *p, const struct ptc_work *w, double memory_bytes);
/* Of a candidate that ptc_cand_check accepts. Returns how full the fullest device is, as a share of its memory
 * (above 1: no placement fits, and ret is the least full), INFINITY: no two kinds have so many devices, or all are
 * too slow. */
double ptc_placer_best(struct ptc_placer *p, const struct ptc_cand *c, struct ptc_estimate *ret);
/* Price of an hour of the devices that a candidate takes; 0: one of their kinds has none. */
double ptc_placed_price(const struct ptc_cluster_profile *cluster, const struct ptc_cand *c,
			const struct ptc_on_kinds *on);
/* "stages 1-3 on H100-80GB, 4-6 on A100-80GB", "replicas 1-2 on H100-80GB with 12 micro-batches each, ...", or one
 * name. */
#define PTC_PLACED_TEXT_MAX 192
void ptc_placed_format(const struct ptc_cluster_profile *cluster, const struct ptc_cand *c,
		       const struct ptc_on_kinds *on, char buf[PTC_PLACED_TEXT_MAX]);
/* One candidate. PTC_ENODEVICES: no two kinds have so many devices. */
int ptc_placer_estimate(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_estimate *ret,
			struct ptc_error *err);
