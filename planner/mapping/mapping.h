/* SPDX-License-Identifier: Apache-2.0 */
/* Which device takes which rank, by a matrix of measured links: the traffic that costs most gets the
 * fastest links, and what crosses the slowest costs least. Exact for at most 8 blocks, local search
 * beyond, with the gap to a bound. Deterministic; pure, any thread. */
#pragma once

#include "planner/cost/step.h"

#define PTC_MAPPING_MAX_DEVICES 4096
#define PTC_MAPPING_EXACT       8

/* bytes_s[i * n + j] from device i to j; the slower direction counts. Of pairs with i == j nothing is
 * read. block[i]: the node of device i, ascending from 0; NULL: every device is a block. */
struct ptc_link_matrix {
	uint32_t n;
	const double *bytes_s;
	const uint32_t *block;
};
/* Bytes that one rank sends in a step, by class, to the next of its ring or to the next stage. */
struct ptc_mapping_traffic {
	double tp, cp, dp, pp;
};
struct ptc_mapping {
	double seconds; /* sum over classes of bytes over the slowest link that the class uses */
	double bound;   /* no mapping is faster */
	bool exact;     /* every order of blocks was tried */
};

/* Traffic of a candidate, for ptc_mapping_find. */
int ptc_mapping_traffic_of(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_mapping_traffic *ret,
			   struct ptc_error *err);
/* Devices of ranks 0..world-1 into device; world is at most m->n, the rest stay idle. Rank order
 * tp-cp-dp-pp, first fastest; rings go by rank. With blocks, ranks stay together as they are: whole
 * blocks are ordered first, then single devices where that helps. */
int ptc_mapping_find(const struct ptc_link_matrix *m, const struct ptc_cand *c, const struct ptc_mapping_traffic *t,
		     uint32_t *device, struct ptc_mapping *ret, struct ptc_error *err);
/* What a given assignment costs. */
double ptc_mapping_seconds(const struct ptc_link_matrix *m, const struct ptc_cand *c,
			   const struct ptc_mapping_traffic *t, const uint32_t *device);
