/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot being taken from ranks that wait at a boundary, between the files that do it: capture.c (the whole),
 * capture_fill.c (an extent, from the memory of ranks) and capture_note.c (what can be answered again). */
#pragma once

#include "daemon/agent/calls/operation.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/memory/copying.h"
#include "daemon/agent/memory/strided.h"
#include "daemon/agent/memory/rank_group.h"
#include "daemon/agent/transfer/max_reduce.h"

#define PTC_CAPTURE_MAX_BYTES (256u << 10) /* of a replica, read beside what there is */
#define PTC_CAPTURE_MAX_PARTS 1024
/* Filled at once, and digested from the processor's cache then. Each costs a message to the process that copies and its answer. */
#define PTC_CAPTURE_SLICE     (4 << 20)

struct ptc_capture_part {
	size_t off, len;
	uint8_t *ours;
};

/* Of one thread: what is read of a replica, and the parts that become the greater of both. */
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
	struct ptc_needs needs;
	struct ptc_table_key key;
	struct ptc_table *table;
	struct ptc_group group;
	struct ptc_slot_sources sources;
	struct ptc_remote remote;
	struct ptc_reduce reduce;
	struct ptc_store_boxes missing; /* the last are what is merged here, and then what is remote */
	uint32_t *extents;
	struct ptc_table *parts; /* NULL: nothing is exposed */
	struct ptc_store_boxes exposed;
	uint32_t *exposed_extents;
	size_t mark_from; /* of tasks */
	uint64_t fetched;
	struct ptc_copying copying;
	struct ptc_wait wait; /* of copying */
	atomic_bool stopped;  /* for the threads: the call's own thread has asked */
	bool staged;          /* all that is to be read has been copied to memory of ours by the ranks themselves */
	struct ptc_capture_scratch *scratch;
	unsigned nscratch;
	uint64_t ticket;
	bool broken; /* progress could not be sent */
	_Atomic int64_t copied;
	uint64_t *digests; /* of each need; complete when all extents have been through */
	void *ranks;       /* encoded */
	size_t ranks_len;
};

/* ---- capture_fill.c: tasks of a task pool, whose arg is the capture. In order: what is all here, what is exposed, what is merged here,
 * what is remote. ---- */

/* Copies what ranks here have of task i's extent, and compares what several have. It is filled then, and digested unless it is exposed;
 * neither where ranks go on first (req->release) or other nodes' parts are missing. */
int ptc_capture_fill(void *arg, unsigned thread, size_t i, struct ptc_error *err);
/* Task mark_from + i, whose bytes are all there: digested, filled. */
int ptc_capture_mark(void *arg, unsigned thread, size_t i, struct ptc_error *err);

/* ---- capture_note.c ---- */

/* Rank state, as it is answered, to c->ranks. */
int ptc_captured_encode(struct ptc_capture *c, struct ptc_error *err);
/* The note by which this request can be answered again. Before the seal. */
int ptc_captured_write(const struct ptc_capture *c, struct ptc_error *err);
/* What the ranks carried when this very request was answered, to c->ranks. PTC_ENOTFOUND: it was not. */
int ptc_captured_read(struct ptc_capture *c, struct ptc_error *err);
