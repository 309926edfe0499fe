/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of what a node holds, of whole tables or of extents while they are filled; the Digest
 * call. Failure modes: node_digest.c. */
#pragma once

#include "daemon/agent/calls/ticket.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/geometry/geometry.h"
#include "rpc/server/server.h"

struct ptc_digest_job {
	struct ptc_table *table;
	const struct ptc_geometry *g;
	const struct ptc_needs *needs;
	ptc_stop_fn stop;
	void (*tick)(void *arg);          /* a few times a second, calling thread */
	void *arg;                        /* of both */
	uint64_t *digests;                /* one per need, filled */
	const struct ptc_store_box *done; /* sorted by item, disjoint: what digests have already; the rest is added */
	size_t ndone;                     /* 0: digests are set */
};
int ptc_digest_needs(const struct ptc_digest_job *job, struct ptc_error *err);
/* Of an extent that is being filled, in slices as it comes: while its bytes are in the processor's cache, digests and checksums cost a
 * fraction of what reading them again does. */
#define PTC_DIGEST_SLICE (512 << 10)
struct ptc_digest_fill {
	struct ptc_table *table;
	const struct ptc_geometry *g;
	const struct ptc_needs *needs;
	uint64_t *digests; /* per need; added to */
};
/* part: a box inside the extent's box of item. Any thread. */
int ptc_digest_part(const struct ptc_digest_fill *f, uint32_t extent, uint32_t item, const struct ptc_box *part,
		    struct ptc_error *err);
int ptc_agent_on_digest(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
