/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers of the C core's objects, shared by the rooms of rpc/ only. */
#pragma once

#include "base/limits.h"
#include "base/check.h"
#include "base/status.h"
#include "rpc/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#define PTC_RPC_META_MAX         16          /* extra request metadata entries per call */
#define PTC_RPC_METADATA_BYTES   (16 * 1024) /* all metadata of one message; an error text of 1 KiB is 3 KiB encoded */
#define PTC_RPC_PARTS_MAX        1024        /* parts of one message */
#define PTC_RPC_METHODS_MAX      128         /* methods of one server */
#define PTC_RPC_METHOD_NAME_MAX  128         /* "/package.Service/Method" */
#define PTC_RPC_ADDRESS_MAX      256         /* host name (253) and port */
#define PTC_RPC_PEM_MAX          (1u << 20)  /* bytes of a PEM file; CA bundles of some hundred KiB exist */
#define PTC_RPC_CRL_MAX          (16u << 20) /* bytes of a list of revoked certificates: about 40 each */
#define PTC_RPC_KEEPALIVE_MS     10000       /* default of keepalive_ms */
#define PTC_RPC_KEEPALIVE_MIN_MS 500         /* see tick_main() */
#define PTC_RPC_BULK_FRAME       (4 << 20)   /* HTTP/2 frame limit we advertise: fewer headers per byte */
#define PTC_RPC_BULK_WINDOW      (4 << 20)   /* flow-control window of a stream on bulk connections */
/* window of a stream that a server receives; such bytes have no memory ticket */
#define PTC_RPC_SERVER_WINDOW    (1 << 20)
#define PTC_RPC_STATUS_KEY       "ptc-status"  /* trailing metadata: our code, decimal */
#define PTC_RPC_UNHEARD_KEY      "ptc-unheard" /* trailing metadata: the request did not come, no handler began */
#define PTC_RPC_NOT_TAKEN        "the caller has not taken what was sent to it" /* the text of a call that was cut off */
#define PTC_RPC_MAX_ARGS         32
#define PTC_RPC_FRONTS_MAX       4           /* TCP listeners of one server */
#define PTC_RPC_CONNECTION_BYTES (32 * 1024) /* the core's memory for an idle connection; 28 KiB were measured */

/* ---- completion queues -------------------------------------------------- */

/* The tag of one batch in flight. It lives in the object that owns the queue. Queues are drained before their owner is
 * freed, so the slot outlives the batch. */
struct ptc_rpc_slot {
	bool pending;
	bool ok;
};

grpc_call_error ptc_rpc_slot_start(struct ptc_rpc_slot *slot, grpc_call *call, const grpc_op *ops, size_t nops);
/* Runs the queue until the slot's batch has completed; returns its `ok`. If none is pending, it returns at once. */
bool ptc_rpc_slot_wait(grpc_completion_queue *cq, struct ptc_rpc_slot *slot);
/* Takes completions for at most wait_ms milliseconds; true if one came. */
bool ptc_rpc_cq_poll(grpc_completion_queue *cq, int wait_ms);
/* Shuts the queue down, drains it and destroys it. Every slot must still exist. NULL ok. */
void ptc_rpc_cq_free(grpc_completion_queue *cq);

/* ---- threads, log ------------------------------------------------------- */

/* The last complaint that the core logged on this thread since _clear; "" if there is none. */
void ptc_rpc_core_log_clear(void);
const char *ptc_rpc_core_log(void);

/* ---- loop --------------------------------------------------------------- */

struct ptc_loop_node {
	struct ptc_loop_node *next;
	void (*fn)(void *arg);
	void *arg;
};
/* ptc_loop_post with a node that the caller gives, so it cannot run out of memory. The node may be reused once fn runs.
 */
int ptc_loop_post_node(struct ptc_loop *loop, struct ptc_loop_node *node);

/* ---- status: the one place that knows both code spaces ------------------- */

grpc_status_code ptc_rpc_status_to_core(int code, enum ptc_role role);
/* Whether the call failed because its connection was closed before anything was sent; then it may be made again. */
bool ptc_rpc_status_closed_early(grpc_status_code code, grpc_slice details, const char *target);
/* Turns a status of the core into ours; 0 for OK. `details` is the peer's text or the core's. `target` names the peer
 * in messages that the core made. */
int ptc_rpc_status_from_core(grpc_status_code code, const grpc_metadata_array *trailing, grpc_slice details,
			     const char *target, struct ptc_error *err);
int ptc_rpc_status_from_call_error(grpc_call_error e, const char *what, struct ptc_error *err);

/* ---- args.c: channel arguments --------------------------------------------------- */

struct ptc_rpc_args {
	grpc_arg list[PTC_RPC_MAX_ARGS];
	size_t count;
};
void ptc_rpc_args_int(struct ptc_rpc_args *a, const char *key, int value);
void ptc_rpc_args_str(struct ptc_rpc_args *a, const char *key, char *value);
/* Adds limits and keepalive, and turns off compression, channelz and proxies. */
void ptc_rpc_args_common(struct ptc_rpc_args *a, uint32_t max_message_bytes, int keepalive_ms, bool permit_idle);
int ptc_rpc_keepalive(
	int keepalive_ms); /* the interval for an option keepalive_ms: its default and its minimum are applied */
void ptc_rpc_args_bulk(struct ptc_rpc_args *a, int window);
void ptc_rpc_args_memory(struct ptc_rpc_args *a); /* counts memory against the process's quota, if it has one */
grpc_channel_args ptc_rpc_args_core(struct ptc_rpc_args *a);

/* ---- messages ------------------------------------------------------------ */

struct ptc_rpc_message {
	grpc_byte_buffer *buf; /* NULL: there is no message */
	grpc_byte_buffer_reader reader;
	const uint8_t *at; /* the rest of the current slice, `left` bytes */
	size_t left;
	size_t len;
};
/* Takes `buf` over. PTC_EPEER: the message is compressed, though we never announce compression. */
int ptc_rpc_message_init(struct ptc_rpc_message *m, grpc_byte_buffer *buf, struct ptc_error *err);
/* Makes one buffer of the parts. Each part is released on failure, or when the core has done with the buffer. */
int ptc_rpc_parts_pack(const struct ptc_rpc_part *parts, size_t nparts, grpc_byte_buffer **ret_buf,
		       struct ptc_error *err);
