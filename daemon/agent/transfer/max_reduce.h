/* SPDX-License-Identifier: Apache-2.0 */
/* Max-reduce: replicas on several nodes become the greatest value of each element. Failure modes: max_reduce.c. */
#pragma once

#include "daemon/agent/transfer/remote_primary.h"

struct ptc_reduce {
	struct ptc_parts own;   /* regions that this node merges */
	struct ptc_parts asks;  /* parts of these regions on other nodes, by node; to: the region's index in own */
	struct ptc_parts parts; /* parts that this node has of regions that another node merges */
};
/* needs from..to: all needs of one item whose greatest value counts. Adds to `remote` the regions that this node
 * fetches after another node has merged them. */
int ptc_reduce_item(struct ptc_reduce *r, const struct ptc_geometry *g, uint32_t self, const struct ptc_needs *needs,
		    size_t from, size_t to, struct ptc_parts *remote, struct ptc_error *err);
void ptc_reduce_sort(struct ptc_reduce *r); /* call it once all items are added */
void ptc_reduce_done(struct ptc_reduce *r); /* accepts one of zeros */
/* Merges the asked nodes' parts into the extents of own, which have this node's values already. The caller sets all
 * members of fetch but take: boxes and extents are those of r->own, and snapshot is that of the exposed tables. */
int ptc_reduce_merge(const struct ptc_reduce *r, const struct ptc_remote_fetch *fetch, uint64_t *ret_bytes,
		     struct ptc_error *err);
/* The key of the table that a node exposes to the nodes that merge. It belongs to one request, so nobody takes a table
 * of an earlier attempt for it. */
struct ptc_table_key ptc_reduce_key(const struct ptc_table_key *table, uint64_t switch_id, uint64_t incarnation,
				    uint64_t step);
