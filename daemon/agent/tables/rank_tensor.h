/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a rank's local tensor together from the table of its node, and serves the call FetchRank. Failure modes:
 * rank_tensor.c. */
#pragma once

#include "daemon/agent/geometry/geometry.h"
#include "rpc/server/server.h"

/* Bytes of a rank's local tensor of an item. length 0: to the end. */
struct ptc_rank_range {
	uint32_t rank, item;
	uint64_t offset, length;
};
/* A rank's local tensor of an item. bytes: of the whole local tensor. */
struct ptc_rank_tensor {
	const struct ptc_geometry *g;
	struct ptc_table *table;
	uint32_t rank, item;
	uint64_t bytes;
	/* Instead of table: reads a box, in bytes, to compact memory at dst. May be NULL. */
	int (*read)(void *read_arg, uint32_t item, const struct ptc_box *box, void *dst, struct ptc_error *err);
	void *read_arg;
};
/* PTC_ENOTFOUND: the rank has no part of the item. */
int ptc_rank_tensor_init(struct ptc_rank_tensor *t, const struct ptc_geometry *g, struct ptc_table *table,
			 uint32_t rank, uint32_t item, struct ptc_error *err);
/* Gives the end of a range. PTC_EINVAL: the range exceeds the local tensor. */
int ptc_rank_range_end(const struct ptc_rank_tensor *t, const struct ptc_rank_range *range, uint64_t *ret_end,
		       struct ptc_error *err);
/* Opens this node's table for a range of the tensor, and calls the two functions above. Afterwards call
 * ptc_table_unref(ret->table). */
int ptc_rank_tensor_open(struct ptc_agent *agent, const struct ptc_geometry *g, const struct ptc_rank_range *range,
			 struct ptc_rank_tensor *ret, uint64_t *ret_end, struct ptc_error *err);
/* Reads bytes [off, off+len) into dst; padding reads as zeros. scratch has PTC_RANK_SCRATCH bytes, or
 * len if that is less. */
#define PTC_RANK_SCRATCH (1u << 20)
int ptc_rank_tensor_read(const struct ptc_rank_tensor *t, uint64_t off, size_t len, void *dst, void *scratch,
			 struct ptc_error *err);
int ptc_agent_on_fetch_rank(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
