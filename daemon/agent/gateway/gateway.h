/* SPDX-License-Identifier: Apache-2.0 */
/* The node that a client calls: it gathers exports from other nodes and scatters imports to them. Put receives an
 * import's bytes on those nodes. Failure modes: gather.c, gather_rank.c, scatter.c, put.c. */
#pragma once

#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/tables/rank_tensor.h"
#include "rpc/server/server.h"

struct Ptc__V1__SwitchInfo;

/* ---- gather (export) ---- */

/* Gives sink the bytes [offset, offset+length) of the item, row-major over its logical shape, in order, in spans of at
 * most PTC_BULK_MESSAGE_BYTES. It reads local pieces from the store. It fetches remote pieces from any node of the
 * geometry that has them, and tries another replica if a node is unreachable. Memory is bounded. sink returns nonzero
 * to stop. */
typedef int (*ptc_sink_fn)(void *arg, const void *data, size_t len, struct ptc_error *err);
/* Gets the next bytes, as they lie in the store, in parts[1] to parts[n - 1]. parts[0] is for a head that the callee
 * makes. The callee releases the parts, also on failure, as ptc_rpc_call_send does. */
typedef int (*ptc_parts_fn)(void *arg, struct ptc_rpc_part *parts, size_t n, struct ptc_error *err);
/* A ptc_stop_fn: whether the call, a struct ptc_rpc_call (NULL: none), was cancelled. On the call's thread. */
bool ptc_caller_gone(void *caller);
/* take: gets a range that lies as a whole on this node in one run, without a copy. NULL: the sink gets everything.
 * caller, here and below: the call for which the bytes are. When it is cancelled, no other node is waited for any more
 * (PTC_ECANCELED). NULL: nobody cancels. */
int ptc_agent_gather(struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid, uint32_t item,
		     uint64_t offset, uint64_t length, ptc_sink_fn sink, ptc_parts_fn take, void *arg,
		     struct ptc_rpc_call *caller, struct ptc_error *err);
struct ptc_item_range {
	uint32_t item;
	uint64_t offset, length;
};
/* PTC_EINVAL: there is no such item, or the range exceeds it. */
int ptc_item_range_check(const struct ptc_geometry *g, const struct ptc_item_range *range, struct ptc_error *err);
/* Gives sink the bytes of many ranges, one after the other, and asks each node once. If one range cannot be read, the
 * whole call fails. PTC_ELIMIT: the ranges exceed `most` bytes or the free memory. */
int ptc_agent_gather_many(struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid,
			  const struct ptc_item_range *ranges, size_t n, uint64_t most, ptc_sink_fn sink, void *arg,
			  struct ptc_rpc_call *caller, struct ptc_error *err);
/* Gives sink bytes of a rank's local tensor, from that rank's node, or from others if that has gone or lacks its table;
 * padding reads as zeros. */
int ptc_agent_gather_rank(struct ptc_agent *agent, const struct ptc_geometry *g, const struct Ptc__V1__SwitchInfo *info,
			  const struct ptc_rank_range *range, ptc_sink_fn sink, void *arg, struct ptc_rpc_call *caller,
			  struct ptc_error *err);

/* ---- scatter (import) ---- */

struct ptc_scatter; /* one per ImportData stream; one thread at a time, that of `caller` */
int ptc_scatter_new(struct ptc_agent *agent, const struct ptc_geometry *to, const char *uuid, uint64_t import_id,
		    struct ptc_rpc_call *caller, struct ptc_scatter **ret_scatter, struct ptc_error *err);
/* data is a contiguous row-major range of the item. The call sends it as boxes (Put) to every node that needs a part,
 * and writes local parts to the store. PTC_ETIMEOUT: a node has taken nothing for env.stall_ms. */
int ptc_scatter_write(struct ptc_scatter *s, uint32_t item, uint64_t offset, const void *data, size_t len,
		      struct ptc_error *err);
int ptc_scatter_finish(struct ptc_scatter *s, struct ptc_error *err); /* waits until every node has acknowledged */
struct ptc_scatter *ptc_scatter_free(struct ptc_scatter *s);          /* NULL ok */
int ptc_agent_on_put(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
