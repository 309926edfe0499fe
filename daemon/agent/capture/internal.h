/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot that is being taken from ranks at a boundary. Shared by capture.c (the whole), capture_fill.c (an extent,
 * from the memory of ranks) and capture_note.c (a note, so that the request can be answered again). */
#pragma once

#include "daemon/agent/calls/operation.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/geometry/replica_votes.h"
#include "daemon/agent/capture/captured_digests.h"
#include "daemon/agent/memory/copying.h"
#include "daemon/agent/memory/strided.h"
#include "daemon/agent/memory/rank_group.h"
#include "daemon/agent/transfer/max_reduce.h"

#include <pthread.h>

#define PTC_CAPTURE_MAX_BYTES (256u << 10) /* of a replica, read into scratch memory */
#define PTC_CAPTURE_MAX_PARTS 1024
/* Bytes that are filled at once, and then digested from the processor's cache. Each slice costs a message to the copier
 * and its answer. */
#define PTC_CAPTURE_SLICE     (4 << 20)

struct ptc_capture_part {
	size_t off, len; /* in the buffer */
	int64_t at;      /* place of its first byte in what is compared: the extent, or the tensor */
};

/* Scratch of one thread: bytes of a replica, and whose they are. */
struct ptc_capture_scratch {
	struct ptc_iov_batch iov_batch;
	uint8_t *buffer;
	size_t used;
	struct ptc_capture_part parts[PTC_CAPTURE_MAX_PARTS];
	size_t nparts;
};

struct ptc_capture {
	struct ptc_agent *agent;
	struct ptc_agent_op op;
	struct ptc_rpc_call *call;
	const Ptc__V1__CaptureRequest *req;
	struct ptc_geometry_ref *ref;
	const struct ptc_geometry *g;
	uint32_t self;
	const struct ptc_needs *needs;
	struct ptc_table_key key;
	struct ptc_table *table;
	struct ptc_group group;
	struct ptc_slot_sources sources;
	struct ptc_parts remote;
	struct ptc_reduce reduce;
	size_t nown, nremote;           /* numbers of boxes merged here, and of remote boxes */
	struct ptc_store_boxes missing; /* local boxes, then boxes merged here, then remote boxes */
	uint32_t *extents;
	struct ptc_table *parts; /* the exposed table; NULL: there is none */
	struct ptc_store_boxes exposed;
	uint32_t *exposed_extents;
	size_t mark_from; /* number of the first task of ptc_capture_mark */
	uint64_t fetched;
	struct ptc_copying copying;
	struct ptc_wait wait; /* of copying */
	atomic_bool stopped;  /* tells the threads that the call's own thread was asked to stop */
	bool staged;          /* the ranks have copied everything to staging memory themselves */
	bool async;           /* copy: async: ranks go on once their device memory is copied on the device */
	size_t *order;        /* the order in which tasks of ptc_capture_fill run; NULL: by number */
	size_t fill_from;     /* number in `order` of the first task */
	struct ptc_capture_scratch *scratch;
	unsigned nscratch;
	uint64_t ticket;
	bool broken; /* progress could not be sent */
	_Atomic int64_t copied;
	uint64_t *digests;             /* of each need; complete once all extents are digested */
	struct ptc_captured *captured; /* digests for the Pull of the switch; NULL: none are kept */
	void *ranks;                   /* rank states, encoded; then what differs */
	size_t ranks_len;
	struct {
		pthread_mutex_t lock;
		struct ptc_differing_list list;
	} differing; /* of a request that wants a list */
};

/* ---- capture_fill.c: tasks of a task pool, whose arg is the capture. Their order: extents whose bytes are all here,
 * exposed extents, extents merged here, remote extents. ---- */

/* Copies the bytes that ranks here have of the i-th task's extent, and compares those that several have. Then it marks
 * the extent filled, and digests it unless it is exposed. It does neither if ranks go on first (req->release) or if
 * other nodes' parts are missing. */
int ptc_capture_fill(void *arg, unsigned thread, size_t i, struct ptc_error *err);
/* Whether task i reads from a shadow only, so that ranks may go on before it. */
bool ptc_capture_from_shadow(const struct ptc_capture *c, size_t i);
/* Digests the extent of task mark_from + i, whose bytes are all there, and marks it filled. */
int ptc_capture_mark(void *arg, unsigned thread, size_t i, struct ptc_error *err);

/* ---- capture_note.c ---- */

/* Encodes the rank states of the answer to c->ranks. */
int ptc_captured_encode(struct ptc_capture *c, struct ptc_error *err);
/* Adds what differs to c->ranks. */
int ptc_captured_add_differing(struct ptc_capture *c, struct ptc_error *err);
/* Writes a note, so that this request can be answered again. Call it before the seal. */
int ptc_captured_write(const struct ptc_capture *c, struct ptc_error *err);
/* Reads the rank states of an earlier answer to this very request to c->ranks. PTC_ENOTFOUND: there was no answer. */
int ptc_captured_read(struct ptc_capture *c, struct ptc_error *err);
