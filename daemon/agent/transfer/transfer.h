/* SPDX-License-Identifier: Apache-2.0 */
/* One engine fetches boxes from other nodes. Pull, gather, remote primaries and max-reduce are transfers that differ in
 * their destination (struct ptc_transfer_to) and in a few numbers. The engine chooses sources, asks them (Fetch),
 * checks their bytes, takes tickets, leaves out a source that fails, and stops when its caller has to stop.
 *
 * Ownership: the caller keeps the transfer, everything that it points to, and the destination's memory until
 * ptc_transfer_done. Threads: one thread owns a transfer. ptc_transfer_run starts threads for requests; struct
 * ptc_transfer_to says which functions they call. Failure modes: transfer.c, fetch_server.c. */
#pragma once

#include "daemon/agent/calls/agent_limits.h"
#include "daemon/agent/calls/ticket.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/store/store_key.h"
#include "proto/pb.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <stdatomic.h>
#include <sys/uio.h>

/* A box of an item that one node sends. It is a part of the destination's box number `to`. */
struct ptc_part {
	uint32_t node, item;
	size_t to;
	struct ptc_box box;
};
struct ptc_parts {
	struct ptc_part *v;
	size_t n, cap;
};
int ptc_parts_push(struct ptc_parts *p, uint32_t node, uint32_t item, size_t to, const struct ptc_box *box,
		   struct ptc_error *err);
void ptc_parts_done(struct ptc_parts *p); /* accepts one of zeros */
/* Appends disjoint parts, in no order, that cover as much of `want` as usable nodes' replicas do. want->node does not
 * count. *ret_all: the parts cover all of it. Each byte comes from the first replica that has it: first the replicas of
 * node `prefer`, then the others in turn, from number `first` on and around. usable NULL: every node is usable. Takes
 * about n log n for n replicas that cut the box as layouts do (a grid, or ranges). Pure, any thread. */
int ptc_parts_cover(const struct ptc_part *want, const struct ptc_replica *replicas, size_t nreplicas,
		    const bool *usable, uint32_t prefer, uint32_t first, struct ptc_parts *out, bool *ret_all,
		    struct ptc_error *err);

/* The memory for a part: a few spans that hold `outer`, row-major and compact. */
struct ptc_transfer_dst {
	struct ptc_box outer;
	struct iovec iov[16];
	int niov;
	void *scratch; /* scratch_bytes of the request, for a destination without memory of its own */
};

/* A destination. An error of any function ends the transfer. `thread` numbers the requests under way, from 0. */
struct ptc_transfer;
struct ptc_transfer_to {
	/* Adds the missing parts to t->parts (ptc_transfer_cover), at first and again after a source failed. If it adds
	 * nothing, the transfer is done. Called on the owner's thread. NULL: the caller has filled t->parts. */
	int (*plan)(void *arg, struct ptc_transfer *t, struct ptc_error *err);
	/* Called before the part's first byte. This and the next two functions are called on any thread. */
	int (*begin)(void *arg, unsigned thread, const struct ptc_part *part, struct ptc_transfer_dst *ret,
		     struct ptc_error *err);
	/* Called now and then: the part's first `bytes` bytes, in row-major order, are in place. May be NULL. */
	int (*arrived)(void *arg, unsigned thread, const struct ptc_part *part, int64_t bytes, struct ptc_error *err);
	/* Called after the part's last byte. May be NULL. */
	int (*end)(void *arg, const struct ptc_part *part, const struct ptc_transfer_dst *dst, struct ptc_error *err);
	/* Reads a part from this node itself; a failure counts as a source's. NULL: this node is asked as any other. */
	int (*local)(void *arg, const struct ptc_part *part, struct ptc_error *err);
};

/* One per node. */
struct ptc_transfer_source {
	size_t next, end; /* parts to ask the source for */
	unsigned lanes;   /* bits of lanes in use */
	bool failed;
};

/* The bytes that came from a node while no other node sent: a measure of the link between the two. */
struct ptc_transfer_alone {
	_Atomic int64_t all_bytes; /* at any time */
	int64_t bytes, ns;
};

struct ptc_transfer {
	/* Set by the caller. */
	struct ptc_agent *agent;
	const struct ptc_geometry *g; /* of the tables to read */
	uint64_t snapshot;            /* of the tables to read */
	bool begun;                   /* the tables need not be sealed; sources refuse boxes that are not filled */
	bool healing;                 /* for healing: sources refuse damaged blocks and do not heal them first */
	uint32_t self;                /* this node in g; UINT32_MAX: none */
	bool *usable;                 /* of each node; a failure clears it. NULL: only the node of each part will do */
	unsigned threads;             /* most requests at a time, for ptc_transfer_run */
	size_t scratch_bytes;         /* see ptc_transfer_dst; 0: none */
	int wait_ms;                  /* how long a failed source is asked again; 0: it is left out at once */
	int timeout_ms;               /* of each whole request; 0: none */
	/* For ptc_transfer_drain: the call for whose caller the bytes are. When it is cancelled, the transfer ends with
	 * PTC_ECANCELED. NULL: nothing cancels it. */
	const struct ptc_rpc_call *caller;
	bool says_damaged; /* PTC_ECORRUPT, not PTC_EPEER, if the last source left out was damaged */
	const struct ptc_transfer_to *to;
	void *arg; /* of the functions of `to` */
	/* Called on the owner's thread, a few times a second during ptc_transfer_run. */
	ptc_stop_fn stop;
	void (*tick)(void *owner);
	void *owner;                      /* of stop and tick */
	const char *what;                 /* for "... was cancelled" */
	struct ptc_transfer_alone *alone; /* one per node, for the caller to read after ptc_transfer_run; NULL: none */
	/* For the caller to read. */
	unsigned failures;    /* sources left out so far, and near ones that are asked over the network since */
	bool lied;            /* one of these broke the protocol */
	struct ptc_error why; /* of the last of these; the caller may set it for a source that it left out itself */
	_Atomic int64_t wire_bytes; /* from other nodes ... */
	_Atomic int64_t near_bytes; /* ... of these, read in the memory of near ones */
	struct ptc_parts parts;     /* filled by `plan`, freed by ptc_transfer_done */
	/* Private. */
	struct ptc_transfer_source *sources;
	struct ptc_request *requests;
	bool *by_network; /* of each node: what was read in its memory was wrong; NULL: of none */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t cond;
		unsigned running;
		int status; /* not 0: the transfer ends with it */
		struct ptc_error err;
		atomic_bool stopped;
		uint32_t sender; /* of `alone`: the only node that sends since mark_ns; UINT32_MAX: none, or several */
		int64_t mark_ns, mark_bytes;
	} shared;
};
/* For `plan`: covers box by usable nodes' replicas (ptc_parts_cover). If they do not cover it, the error names the
 * tensor. */
int ptc_transfer_cover(struct ptc_transfer *t, uint32_t item, size_t to, const struct ptc_box *box, uint32_t prefer,
		       uint32_t first, struct ptc_error *err);
/* Runs the whole transfer on threads, several requests at a time. */
int ptc_transfer_run(struct ptc_transfer *t, struct ptc_error *err);
/* Run the transfer on the caller's thread alone, in two steps. Open sends all requests, so sources read while the
 * caller does something else. Drain receives everything. They call neither `stop` nor `tick`, and take no tickets. They
 * belong on the thread of `caller`. */
int ptc_transfer_open(struct ptc_transfer *t, struct ptc_error *err);
int ptc_transfer_drain(struct ptc_transfer *t, struct ptc_error *err);
void ptc_transfer_done(struct ptc_transfer *t); /* cancels requests under way; accepts one of zeros */

/* The source that node `self` asks next, of n sources, one for each node. It is the one with the fewest streams; of
 * several, the one with the most parts left; of these, the next after `self`, so that nodes that lack the same boxes
 * begin with different sources. NULL: no part is left, or no lane is free. */
struct ptc_transfer_source *ptc_transfer_choose(struct ptc_transfer_source *sources, size_t n, uint32_t self);
/* The memory of an unfilled extent, which holds the item's box. */
int ptc_extent_spans(struct ptc_table *table, uint32_t extent, uint32_t item, const struct ptc_box *box,
		     struct iovec *iov, int max, int *ret_n, struct ptc_error *err);
/* Open a bulk stream to a node of g, and send the stream's one request. A receive ends with PTC_ETIMEOUT if the node
 * says nothing for env.stall_ms, and with PTC_ECANCELED if `caller` (may be NULL) is cancelled. */
int ptc_peer_open(struct ptc_agent *agent, const struct ptc_geometry *g, uint32_t node, const char *method,
		  const struct ptc_rpc_call *caller, struct ptc_rpc_stream **ret_stream, struct ptc_error *err);
int ptc_peer_ask(struct ptc_rpc_stream *stream, const ProtobufCMessage *request, struct ptc_error *err);

int ptc_agent_on_fetch(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
