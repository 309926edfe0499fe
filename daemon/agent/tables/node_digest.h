/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of the boxes that this node needs: of a whole table, or of an extent while it is filled. Also serves the call
 * Digest. Failure modes: node_digest.c. */
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
	void *arg;                        /* for stop and tick */
	uint64_t *digests;                /* one for each need; filled */
	const struct ptc_store_box *done; /* boxes that digests contain already, sorted by item and disjoint */
	/* 0: digests are computed anew; otherwise digests of the other boxes are added to them */
	size_t ndone;
	/* Adds to *digest what is known of a box of the item, and appends the rest of the box. Returns 0 or PTC_ENOMEM.
	 * NULL: nothing is known. */
	int (*known)(void *arg, uint32_t item, const struct ptc_box *box, uint64_t *digest, struct ptc_boxes *rest);
	void *known_arg;
};
int ptc_digest_needs(const struct ptc_digest_job *job, struct ptc_error *err);
/* Digests an extent in slices while it is filled. The bytes are then in the processor's cache, so digests and checksums
 * cost a fraction of a second read. */
#define PTC_DIGEST_SLICE (512 << 10)
struct ptc_digest_fill {
	struct ptc_table *table;
	const struct ptc_geometry *g;
	const struct ptc_needs *needs;
	uint64_t *digests; /* one for each need; the digests of parts are added */
};
/* Digests one part: a box inside the extent's box of item. Any thread. */
int ptc_digest_part(const struct ptc_digest_fill *f, uint32_t extent, uint32_t item, const struct ptc_box *part,
		    struct ptc_error *err);
int ptc_agent_on_digest(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
