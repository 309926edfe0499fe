/* SPDX-License-Identifier: Apache-2.0 */
/* A shape: the common part of geometries that differ only in the numbers of generation and snapshot. It has the spec,
 * the layout and the allocation. At first use it computes from them the boxes of this node, the boxes of each item on
 * each node, and the plan that leads to it: its hash, and its moves into this node. So the calls of one switch (Check,
 * Prepare, Pull) compute these once; a switch back to the generation before finds them, too.
 *
 * The agent keeps the PTC_AGENT_GEOMETRIES shapes that were used last. Their memory comes from memory.work, as all of
 * the heap does: 140 bytes for each box of this node, and 150 for each box of all nodes where somebody asked for
 * replicas and there are at most PTC_AGENT_REPLICAS_KEPT. Any thread. Failure modes: those of geometry.c for a new
 * shape, and memory. */
#pragma once

#include "daemon/agent/geometry/geometry.h"

#include <pthread.h>

/* The boxes of all nodes. Those of an item are v[first[item]] to v[first[item + 1] - 1], by node. */
struct ptc_replicas {
	struct ptc_replica *v;
	size_t *first; /* items + 1 */
};

struct ptc_geometry_shape {
	struct ptc_cached cached;
	struct ptc_geometry g; /* owns what geometries of this shape borrow; its numbers are those of the first one */
	pthread_mutex_t lock;  /* of all below */
	struct ptc_replicas *replicas; /* NULL until built */
	bool too_many;                 /* more of them than are kept */
	struct needs_here {
		bool made;
		struct ptc_needs needs;
	} needs[2];                      /* [0]: of the layout; [1]: with copies, if there are any */
	char plan_of[33], plan_hash[33]; /* name and hash of the plan that leads to this shape; "": not known */
	char into_of[33];                /* name of the plan `into` */
	struct ptc_plan *into;           /* with its moves into this node; NULL: none is kept, or a call has it */
};

/* ---- geometry.c ---- */
/* Makes a geometry without a shape. info and which have been checked. */
int ptc_geometry_build(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		       const struct Ptc__V1__Generation *which, struct ptc_geometry *ret, struct ptc_error *err);
/* Frees what a geometry without a shape owns. */
void ptc_geometry_own_done(struct ptc_geometry *g);
