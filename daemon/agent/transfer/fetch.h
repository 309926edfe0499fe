/* SPDX-License-Identifier: Apache-2.0 */
/* Fetch: boxes of a table of another node, straight into memory of ours; and which node gives which
 * box. A fetch is one thread's. Failure modes: fetch.c, fetch_server.c. */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/geometry/geometry.h"
#include "reshard/box/lists.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <sys/uio.h>

/* Where the i-th requested box goes: memory that holds `outer` row-major compact, over a few spans. */
struct ptc_fetch_dst {
	struct ptc_box outer;
	struct iovec iov[16];
	int niov;
};
struct ptc_fetch_ops {
	/* Before the box's first byte. */
	int (*begin)(void *arg, size_t i, struct ptc_fetch_dst *ret, struct ptc_error *err);
	/* Now and then, and before its end: so many of its bytes, in row-major order, are in place and just written. May be NULL. */
	int (*arrived)(void *arg, size_t i, int64_t bytes, struct ptc_error *err);
	/* After its last. */
	int (*end)(void *arg, size_t i, struct ptc_error *err);
	/* After each message: bytes of payload. May be NULL. */
	void (*progress)(void *arg, size_t bytes);
	void *arg;
	bool begun;     /* the table need not be sealed; what is not filled of it is refused */
	int timeout_ms; /* of the whole; 0: none */
};
struct ptc_fetch {
	struct ptc_rpc_stream *stream;
	const struct ptc_store_box *boxes; /* borrowed; none empty */
	size_t nboxes;
	struct ptc_fetch_ops ops;
	bool local_error; /* a callback or our own memory failed, not the peer */
	bool lied;        /* a message was malformed, or there was more than asked for */
	/* private */
	size_t at;
	bool open;
	struct ptc_fetch_dst dst;
	struct ptc_runs runs;
	int64_t in_run, in_box; /* bytes received */
};
/* Opens a bulk stream to g's node and asks for boxes of its table. */
int ptc_fetch_open(struct ptc_agent *agent, const struct ptc_geometry *g, uint32_t node, unsigned lane,
		   const struct ptc_store_box *boxes, size_t nboxes, const struct ptc_fetch_ops *ops,
		   struct ptc_fetch *ret_fetch, struct ptc_error *err);
/* Receives everything asked for, strictly, and the peer's status. */
int ptc_fetch_drain(struct ptc_fetch *f, struct ptc_error *err);
void ptc_fetch_done(struct ptc_fetch *f); /* cancels if unfinished; one of zeros is fine */

/* Which nodes give which part of box: appends disjoint parts that cover as much of it as the usable replicas can; the
 * rest to uncovered. prefer: this node first; others in turn from `first` on. */
struct ptc_part {
	uint32_t node;
	struct ptc_box box;
};
struct ptc_parts {
	struct ptc_part *v;
	size_t n, cap;
};
int ptc_parts_push(struct ptc_parts *p, uint32_t node, const struct ptc_box *box);
void ptc_parts_done(struct ptc_parts *p);
int ptc_parts_cover(const struct ptc_box *box, const struct ptc_replica *replicas, size_t nreplicas, const bool *usable,
		    uint32_t prefer, uint32_t first, struct ptc_parts *out, struct ptc_boxes *uncovered,
		    struct ptc_error *err);
int ptc_agent_on_fetch(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
