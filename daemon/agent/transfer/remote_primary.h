/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas that count and are on other nodes: which, and fetching them (remote_fetch.c).
 * Failure modes: remote_primary.c, remote_fetch.c. */
#pragma once

#include "daemon/agent/calls/ticket.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/geometry/geometry.h"

struct ptc_remote {
	struct ptc_replica *v; /* disjoint; node: who has it */
	size_t n, cap;
	uint32_t *nodes; /* of each of the boxes that ptc_remote_split has put last */
	size_t nboxes;
};
struct ptc_reduce;
/* Of needs, what by rules only other nodes have as it counts, by node; and what has to be made of several nodes' parts. Both are to be
 * given back. */
int ptc_remote_find(const struct ptc_geometry *g, const struct ptc_spec *rules, uint32_t self,
		    const struct ptc_needs *needs, struct ptc_remote *ret, struct ptc_reduce *ret_reduce,
		    struct ptc_error *err);
/* remote_fetch.c, as are ptc_remote_done and ptc_remote_fetch. */
int ptc_remote_add(struct ptc_remote *a, uint32_t item, uint32_t node, const struct ptc_box *box,
		   struct ptc_error *err);
void ptc_remote_done(struct ptc_remote *a); /* one of zeros is fine */
/* Cuts missing so that the last a->nboxes of its boxes are what is remote, in its order and each at most max_bytes, and the others
 * nothing of it. */
int ptc_remote_split(struct ptc_remote *a, int64_t max_bytes, struct ptc_store_boxes *missing, struct ptc_error *err);
struct ptc_remote_fetch {
	struct ptc_agent *agent;
	const struct ptc_geometry *g; /* generation and snapshot: those of the tables to read */
	const uint32_t *nodes;        /* whom each box is asked of; those of one node together */
	const struct ptc_store_box *boxes;
	size_t n;
	struct ptc_table *table; /* where they go, ... */
	const uint32_t *extents; /* ... unfilled ones of these very boxes */
	/* Or NULL: the bytes of a box, at most PTC_REMOTE_TAKE_BYTES, are handed over; perhaps more than once. */
	int (*take)(void *arg, size_t i, const void *data, struct ptc_error *err);
	void *take_arg;
	ptc_stop_fn stop;
	void (*tick)(void *arg);
	void *arg; /* of both */
};
#define PTC_REMOTE_TAKE_BYTES (256 << 10)
int ptc_remote_fetch(const struct ptc_remote_fetch *job, struct ptc_error *err);
