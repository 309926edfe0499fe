/* SPDX-License-Identifier: Apache-2.0 */
/* Remote primaries: finds the primary replicas that are on other nodes, and fetches them. Failure modes:
 * remote_primary.c, remote_fetch.c. */
#pragma once

#include "daemon/agent/transfer/transfer.h"

struct ptc_reduce;
/* Finds among the needs the regions whose primary is on another node (ret), and the regions that are merged from
 * several nodes' parts (ret_reduce). The regions are disjoint. Release both. */
int ptc_remote_find(const struct ptc_geometry *g, const struct ptc_spec *rules, uint32_t self,
		    const struct ptc_needs *needs, struct ptc_parts *ret, struct ptc_reduce *ret_reduce,
		    struct ptc_error *err);
/* Cuts the boxes of `missing` along the regions. First come boxes without a part of any region, then *ret_n boxes: the
 * regions in order, cut into boxes of at most max_bytes. A region's `to` becomes the number of its first box, counted
 * from 0 among these *ret_n boxes. */
int ptc_remote_split(struct ptc_parts *regions, int64_t max_bytes, struct ptc_store_boxes *missing, size_t *ret_n,
		     struct ptc_error *err);

struct ptc_remote_fetch {
	struct ptc_agent *agent;
	const struct ptc_geometry *g;
	uint64_t snapshot; /* of the tables to read, which need not be sealed */
	uint32_t self;
	struct ptc_table *table; /* the destination */
	const struct ptc_store_box *boxes;
	const uint32_t *extents; /* unfilled extents of these boxes in the table */
	size_t n;
	/* Gets the bytes of a box, at most PTC_REMOTE_TAKE_BYTES. It may be called again with the same box. NULL: bytes
	 * go to the table.
	 */
	int (*take)(void *arg, const struct ptc_part *part, const void *data, struct ptc_error *err);
	void *take_arg;
	ptc_stop_fn stop; /* as in struct ptc_transfer */
	void (*tick)(void *owner);
	void *owner;
};
#define PTC_REMOTE_TAKE_BYTES (256 << 10)
/* Adds the boxes of region i as parts to ask `node` for. */
int ptc_remote_ask(const struct ptc_remote_fetch *f, const struct ptc_parts *regions, size_t i, uint32_t node,
		   struct ptc_parts *parts, struct ptc_error *err);
/* Fetches the parts and consumes them. A source that has not captured its part yet is asked again, for 10 minutes. */
int ptc_remote_fetch(const struct ptc_remote_fetch *f, struct ptc_parts *parts, struct ptc_error *err);
