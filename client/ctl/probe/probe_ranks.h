/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks of a configuration a probe builds. If the world is small, or the caller wants all ranks, it builds each.
 * If the world is large, it first builds the ranks with the first two and the last place along dp and along cp. If
 * these declare the same for every place along tp and pp, the other ranks count as their replicas; otherwise they are
 * built, too.
 *
 * Happy path: take ranks until there is none; when all of them are merged, ask for more. Failure mode: PTC_ENOMEM. One
 * thread. Pure. */
#pragma once

#include "reshard/layout/declared.h"

#define CTL_RANKS_SMALL 64 /* a world up to this size is built as a whole */

struct ctl_ranks {
	struct ptc_config config;
	uint32_t world;
	uint32_t *v; /* those to build, in order */
	size_t n, at;
	size_t built;  /* of all that were taken */
	bool compared; /* the first ones are not all: what they declare is still to be compared */
};
int ctl_ranks_init(struct ctl_ranks *r, const struct ptc_config *config, bool all, struct ptc_error *err);
void ctl_ranks_done(struct ctl_ranks *r);
bool ctl_ranks_take(struct ctl_ranks *r, uint32_t *ret_rank);
/* A rank that was taken is to be taken again. */
void ctl_ranks_give_back(struct ctl_ranks *r, uint32_t rank);
/* When all that were taken are merged: adds replicas to the merge, or the ranks that have to be built after all. */
int ctl_ranks_more(struct ctl_ranks *r, struct ptc_declared_merge *m, struct ptc_error *err);
