/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes a candidate's ranks get: what a step takes with ranks on given nodes, and the nodes that make the most of
 * the horizon (planner/mapping/slots.h). Ranks are counted with tp fastest here, then cp, dp, pp, whatever order the
 * job's configurations have. Plain data of the caller. Pure; any thread. */
#pragma once

#include "planner/fit/fit.h"
#include "planner/mapping/slots.h"

struct ptc_places_ask {
	const struct ptc_work *work;       /* its cluster has the kinds that `kind` counts */
	const struct ptc_calibration *cal; /* NULL: none */
	const struct ptc_cand *cand;
	struct ptc_on_kinds on; /* of the candidate's estimate */
	uint32_t nnodes;
	const uint32_t *devices; /* of each node that may be used; 0: it may not be */
	const uint8_t *kind;     /* of each node, its place in the cluster's kinds */
	const double *bytes_s;   /* nnodes * nnodes: measured links, or what is taken for them */
	/* Bytes that enter each node for each set of ranks: ret[set * nnodes + node]. NULL, or a failure: nothing is
	 * known, and bytes do not count. */
	int (*lacks)(void *arg, const uint32_t *set_of, uint32_t nsets, double *ret);
	void *arg;
	double lacks_bytes_s, horizon_s, pause_s;
};
struct ptc_places {
	uint32_t *node; /* of each rank; ptc_free it */
	struct ptc_estimate est;
	double sd;
	double bytes_s[PTC_LINK_CLASSES]; /* of the slowest link that a class of traffic crosses; 0: none */
	double gap;                       /* no placement makes more than (1 + gap) times as many steps; 0: exact */
};
/* PTC_ENODEVICES: the ranks do not fit whole on these nodes. */
int ptc_places_find(const struct ptc_places_ask *ask, struct ptc_places *ret, struct ptc_error *err);
/* The same for ranks on given nodes. */
int ptc_places_estimate(const struct ptc_places_ask *ask, const uint32_t *node, struct ptc_places *ret,
			struct ptc_error *err);
