/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of which the greatest counts: merging what several nodes have. Failure modes:
 * max_reduce.c. */
#pragma once

#include "daemon/agent/transfer/remote_primary.h"
#include "daemon/store/store_key.h"

struct ptc_reduce_ask {
	uint32_t node, own; /* own: index into own.v */
};
struct ptc_reduce {
	struct ptc_remote own;       /* is merged here, of what is here and ... */
	struct ptc_reduce_ask *asks; /* ... what these nodes have of it, by node */
	size_t nasks, asks_cap;
	struct ptc_remote parts; /* others ask for what is here of it; it is remote, too */
};
/* needs from..to: all of one item, of which the greatest counts. Adds what is to be fetched when it is merged. */
int ptc_reduce_item(struct ptc_reduce *r, const struct ptc_geometry *g, uint32_t self, const struct ptc_needs *needs,
		    size_t from, size_t to, struct ptc_remote *remote, struct ptc_error *err);
void ptc_reduce_sort(struct ptc_reduce *r); /* when all items are in */
void ptc_reduce_done(struct ptc_reduce *r); /* one of zeros is fine */
/* Merges what the asked nodes have into the extents of own, which have what is here. fetch: all but nodes, boxes, n and take; its
 * table is where own goes, its geometry's snapshot that of the parts, its extents own's. */
int ptc_reduce_merge(const struct ptc_reduce *r, const struct ptc_remote_fetch *fetch,
		     const struct ptc_store_box *boxes, uint64_t *ret_bytes, struct ptc_error *err);
/* The table of what a node exposes to whoever merges: of one request, so that what an earlier attempt
 * has left is never taken for it. */
struct ptc_table_key ptc_reduce_key(const struct ptc_table_key *table, uint64_t switch_id, uint64_t incarnation,
				    uint64_t step);
