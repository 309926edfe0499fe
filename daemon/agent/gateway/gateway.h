/* SPDX-License-Identifier: Apache-2.0 */
/* The node a client talks to: gather (export) and scatter (import), and Put, by which the bytes of
 * an import arrive. Failure modes: gather.c, scatter.c, put.c. */
#pragma once

#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/tables/rank_tensor.h"
#include "rpc/server/server.h"

struct Ptc__V1__SwitchInfo;

/* ---- gather (export) ---- */

/* Writes bytes [offset, offset+length) of the item, row-major over its logical shape, to sink in order, in spans of at most
 * PTC_BULK_MESSAGE_BYTES; reads local pieces from the store, remote ones by Fetch from any node of the geometry that has them
 * (another replica is tried when one is unreachable). Bounded memory. sink returns nonzero to stop. */
typedef int (*ptc_sink_fn)(void *arg, const void *data, size_t len, struct ptc_error *err);
int ptc_agent_gather(struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid, uint32_t item,
		     uint64_t offset, uint64_t length, ptc_sink_fn sink, void *arg, struct ptc_error *err);
/* The bytes of many ranges, one after the other, as many as PTC_READ_MANY_BYTES: each node is asked once. More, or more than there is
 * room for: PTC_ELIMIT. One that cannot be read fails all. */
struct ptc_item_range {
	uint32_t item;
	uint64_t offset, length;
};
int ptc_agent_gather_many(struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid,
			  const struct ptc_item_range *ranges, size_t n, ptc_sink_fn sink, void *arg,
			  struct ptc_error *err);
/* Bytes of a rank's local tensor, from that rank's node, padding as zeros. */
int ptc_agent_gather_rank(struct ptc_agent *agent, const struct ptc_geometry *g, const struct Ptc__V1__SwitchInfo *info,
			  const struct ptc_rank_range *range, ptc_sink_fn sink, void *arg, struct ptc_error *err);

/* ---- scatter (import) ---- */

struct ptc_scatter; /* one per ImportData stream; one thread */
int ptc_scatter_new(struct ptc_agent *agent, const struct ptc_geometry *to, const char *uuid, uint64_t import_id,
		    struct ptc_scatter **ret_scatter, struct ptc_error *err);
/* Sends data (a contiguous row-major range of the item) to every node that needs part of it, as boxes (Put); local parts go to the store directly. */
int ptc_scatter_write(struct ptc_scatter *s, uint32_t item, uint64_t offset, const void *data, size_t len,
		      struct ptc_error *err);
int ptc_scatter_finish(struct ptc_scatter *s, struct ptc_error *err); /* every node has acknowledged */
struct ptc_scatter *ptc_scatter_free(struct ptc_scatter *s);          /* NULL ok */
int ptc_agent_on_put(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
