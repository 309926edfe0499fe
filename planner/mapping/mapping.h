/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns ranks to devices by a matrix of measured links. The most expensive traffic gets the fastest links, and the
 * cheapest traffic crosses the slowest ones. Exact for at most 8 blocks; otherwise a local search, with the gap to a
 * bound. Deterministic. Pure; any thread. */
#pragma once

#include "planner/cost/step.h"

#define PTC_MAPPING_MAX_DEVICES 4096
#define PTC_MAPPING_EXACT       8

/* bytes_s[i * n + j] is the rate from device i to j; the slower direction counts. Pairs with i == j are not read.
 * block[i] is the node of device i, ascending from 0. NULL: every device is a block. */
struct ptc_link_matrix {
	uint32_t n;
	const double *bytes_s;
	const uint32_t *block;
};
/* Bytes that one rank sends in a step, by class, to the next rank of its ring or to the next stage. */
struct ptc_mapping_traffic {
	double tp, cp, dp, pp;
};
struct ptc_mapping {
	double seconds; /* sum over classes: bytes divided by the rate of the slowest link that the class uses */
	double bound;   /* no mapping takes less */
	bool exact;     /* every order of blocks was tried */
};

/* Writes the devices of ranks 0..world-1 into `device`. world is at most m->n; the other devices stay idle. The rank
 * order is tp-cp-dp-pp, fastest first; rings follow ranks. With blocks, the ranks of a block stay together: whole
 * blocks are ordered first, then single devices where that helps. */
int ptc_mapping_find(const struct ptc_link_matrix *m, const struct ptc_cand *c, const struct ptc_mapping_traffic *t,
		     uint32_t *device, struct ptc_mapping *ret, struct ptc_error *err);
