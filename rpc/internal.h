/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of rpc/ only: what wraps the C core's objects. */
#pragma once

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
#include <pthread.h>
#include <stdatomic.h>

#define PTC_RPC_META_MAX         16           /* extra request metadata entries per call */
#define PTC_RPC_METADATA_BYTES   (16 * 1024)  /* all metadata of one message; an error text of 1 KiB is 3 KiB encoded */
#define PTC_RPC_PARTS_MAX        1024         /* parts of one message */
#define PTC_RPC_METHODS_MAX      128          /* methods of one server */
#define PTC_RPC_METHOD_NAME_MAX  128          /* "/package.Service/Method" */
#define PTC_RPC_ADDRESS_MAX      256          /* host name (253) and port */
#define PTC_RPC_PEM_MAX          (1u << 20)   /* a PEM file; CA bundles of some hundred KiB exist */
#define PTC_RPC_KEEPALIVE_MS     10000        /* default of keepalive_ms */
#define PTC_RPC_KEEPALIVE_MIN_MS 500          /* see tick_main() */
#define PTC_RPC_BULK_FRAME       (4 << 20)    /* HTTP/2 frame limit we advertise: fewer headers per byte */
#define PTC_RPC_BULK_WINDOW      (4 << 20)    /* flow-control window per stream on bulk connections */
#define PTC_RPC_SERVER_WINDOW    (1 << 20)    /* per stream a server receives: nobody takes a ticket for these */
#define PTC_RPC_STATUS_KEY       "ptc-status" /* trailing metadata: our code, decimal */
#define PTC_RPC_MAX_ARGS         32

/* ---- completion queues -------------------------------------------------- */

/* One batch in flight: its tag. Lives in the object that owns the queue, so
 * it outlives the batch (queues are drained before their owner is freed). */
struct ptc_rpc_slot {
	bool pending;
	bool ok;
};

grpc_call_error ptc_rpc_slot_start(struct ptc_rpc_slot *slot, grpc_call *call, const grpc_op *ops, size_t nops);
/* Runs the queue until the slot has completed; returns its ok. Not pending: returns at once. */
bool ptc_rpc_slot_wait(grpc_completion_queue *cq, struct ptc_rpc_slot *slot);
/* Takes completions for at most wait_ms; true if one came. */
bool ptc_rpc_cq_poll(grpc_completion_queue *cq, int wait_ms);
/* Shuts down, drains (every slot must still exist) and destroys. NULL ok. */
void ptc_rpc_cq_free(grpc_completion_queue *cq);

/* ---- threads, log ------------------------------------------------------- */

/* Starts a thread with every signal blocked. */
int ptc_rpc_thread_start(pthread_t *ret_thread, const char *name, void *(*fn)(void *), void *arg,
			 struct ptc_error *err);
/* What the core last complained about on this thread since _clear; "" if nothing. */
void ptc_rpc_core_log_clear(void);
const char *ptc_rpc_core_log(void);

/* ---- loop --------------------------------------------------------------- */

struct ptc_loop_node {
	struct ptc_loop_node *next;
	void (*fn)(void *arg);
	void *arg;
};
/* ptc_loop_post with the caller's node: cannot run out of memory. The node may be reused once fn runs. */
int ptc_loop_post_node(struct ptc_loop *loop, struct ptc_loop_node *node);

/* ---- status: the one place that knows both code spaces ------------------- */

grpc_status_code ptc_rpc_status_to_core(int code, enum ptc_role role);
/* details: the peer's text or the core's; target names the peer where the
 * core speaks. Returns 0 for OK. */
int ptc_rpc_status_from_core(grpc_status_code code, const grpc_metadata_array *trailing, grpc_slice details,
			     const char *target, struct ptc_error *err);
int ptc_rpc_status_from_call_error(grpc_call_error e, const char *what, struct ptc_error *err);

/* ---- channel arguments --------------------------------------------------- */

struct ptc_rpc_args {
	grpc_arg list[PTC_RPC_MAX_ARGS];
	size_t count;
};
void ptc_rpc_args_int(struct ptc_rpc_args *a, const char *key, int value);
void ptc_rpc_args_str(struct ptc_rpc_args *a, const char *key, char *value);
/* Limits, keepalive and what is off everywhere (compression, channelz, proxies). */
void ptc_rpc_args_common(struct ptc_rpc_args *a, uint32_t max_message_bytes, int keepalive_ms, bool permit_idle);
void ptc_rpc_args_bulk(struct ptc_rpc_args *a, int window);
void ptc_rpc_args_memory(struct ptc_rpc_args *a); /* under the process's quota, if it has one */
grpc_channel_args ptc_rpc_args_core(struct ptc_rpc_args *a);

/* ---- credentials and addresses ------------------------------------------- */

/* "host:port" with a numeric port and no scheme. *ret_loopback: the host is this machine's loopback. */
int ptc_rpc_address_check(const char *address, bool *ret_loopback, struct ptc_error *err);
int ptc_rpc_creds_client(const struct ptc_rpc_tls *tls, const char *expect_node, grpc_channel_credentials **ret_creds,
			 struct ptc_error *err);
int ptc_rpc_creds_server(const struct ptc_rpc_tls *tls, grpc_server_credentials **ret_creds, struct ptc_error *err);
/* Identity of a certificate's URI names: exactly one of ours, or PTC_ROLE_NONE. */
void ptc_rpc_identity_from_uris(const char *const *uris, size_t nuris, struct ptc_rpc_identity *ret_id);
/* From a TLS call's auth context; *ret_tls tells whether the call came over TLS at all. */
void ptc_rpc_identity_from_call(grpc_call *call, bool *ret_tls, struct ptc_rpc_identity *ret_id);

/* ---- messages ------------------------------------------------------------ */

struct ptc_rpc_message {
	grpc_byte_buffer *buf; /* NULL: none */
	grpc_byte_buffer_reader reader;
	const uint8_t *at; /* rest of the current slice */
	size_t left;
	size_t len;
};
/* Takes buf over. PTC_EPEER: compressed, which we never announce. */
int ptc_rpc_message_init(struct ptc_rpc_message *m, grpc_byte_buffer *buf, struct ptc_error *err);
/* Releases every part on failure, and when the core has done with the buffer. */
int ptc_rpc_parts_pack(const struct ptc_rpc_part *parts, size_t nparts, grpc_byte_buffer **ret_buf,
		       struct ptc_error *err);

/* ---- client calls -------------------------------------------------------- */

struct ptc_rpc_channel {
	grpc_channel *core;
	atomic_int refs;
	char target[PTC_RPC_ADDRESS_MAX];
};
struct ptc_rpc_channel *ptc_rpc_channel_ref(struct ptc_rpc_channel *ch);
int ptc_rpc_channel_call(struct ptc_rpc_channel *ch, const char *method, grpc_completion_queue *cq, int timeout_ms,
			 grpc_call **ret_call, struct ptc_error *err);

struct ptc_rpc_meta_list {
	grpc_metadata list[PTC_RPC_META_MAX];
	size_t count;
};
int ptc_rpc_meta_pack(struct ptc_rpc_meta_list *l, const struct ptc_rpc_meta *meta, size_t nmeta,
		      struct ptc_error *err);
void ptc_rpc_meta_done(struct ptc_rpc_meta_list *l);

/* What a client call receives: outputs of batches, with the lifetime of the call object that holds it. */
struct ptc_rpc_outcome {
	grpc_metadata_array initial, trailing;
	grpc_status_code code;
	grpc_slice details;
};
void ptc_rpc_outcome_init(struct ptc_rpc_outcome *o);
void ptc_rpc_outcome_done(struct ptc_rpc_outcome *o);
grpc_op ptc_rpc_outcome_status_op(struct ptc_rpc_outcome *o);
grpc_op ptc_rpc_outcome_initial_op(struct ptc_rpc_outcome *o);

/* One unary call, blocking or asynchronous. */
struct ptc_rpc_unary_call {
	struct ptc_rpc_channel *ch;
	grpc_call *core;
	grpc_byte_buffer *request, *reply;
	struct ptc_rpc_meta_list meta;
	struct ptc_rpc_outcome out;
};
struct ptc_rpc_unary_args {
	const char *method;
	const void *request;
	size_t len;
	int timeout_ms;
	const struct ptc_rpc_meta *meta;
	size_t nmeta;
};
int ptc_rpc_unary_start(struct ptc_rpc_unary_call *u, struct ptc_rpc_channel *ch, const struct ptc_rpc_unary_args *args,
			grpc_completion_queue *cq, void *tag, struct ptc_error *err);
/* After the tag came back: the reply, flat; ptc_free it. */
int ptc_rpc_unary_result(struct ptc_rpc_unary_call *u, void **ret_reply, size_t *ret_len, struct ptc_error *err);
void ptc_rpc_unary_done(struct ptc_rpc_unary_call *u);

/* ---- server --------------------------------------------------------------- */

struct ptc_rpc_method {
	char name[PTC_RPC_METHOD_NAME_MAX];
	unsigned roles;
	ptc_rpc_handler_fn fn;
	void *arg;
	atomic_uint_least64_t calls, errors; /* for ptc_rpc_server_methods */
};

/* One call on the server; storage belongs to its thread and is reused. */
struct ptc_rpc_call {
	struct ptc_rpc_server *srv;
	grpc_completion_queue *cq;
	grpc_call *core;
	grpc_call_details details;
	grpc_metadata_array metadata;
	char **meta_text; /* NUL-terminated copies handed out by ptc_rpc_call_meta */
	size_t nmeta_text;
	struct ptc_rpc_slot accept, recv, send, close;
	int cancelled; /* output of the close batch */
	bool initial_sent;
	bool counted; /* guarded by the server's lock */
	int64_t polled_ns;
	struct ptc_rpc_message msg;
	struct ptc_rpc_identity identity;
	char peer[PTC_RPC_ADDRESS_MAX];
};

struct ptc_rpc_worker {
	struct ptc_rpc_server *srv;
	pthread_t thread;
	bool started;
	struct ptc_rpc_call call;
};

struct ptc_rpc_unix; /* a unix listener, rpc/unix.c */

struct ptc_rpc_server {
	grpc_server *core;
	grpc_completion_queue *main_cq; /* for the shutdown's tag */
	bool started;
	struct ptc_rpc_method methods[PTC_RPC_METHODS_MAX];
	size_t nmethods;
	struct ptc_rpc_unix *unix_listeners;
	bool insecure;
	atomic_bool serving;
	atomic_bool cancelling; /* the grace time is over */
	atomic_int watchers;    /* threads held by health Watch calls */
	struct ptc_rpc_worker *workers;
	int nworkers;
	int max_calls_per_user, stall_ms;

	pthread_mutex_t lock; /* below */
	pthread_cond_t wake;
	int idle, parked, running;
	bool stopping;
};

/* rpc/call.c */
bool ptc_rpc_call_accept(struct ptc_rpc_call *call); /* blocks; false: the server stops */
void ptc_rpc_call_serve(struct ptc_rpc_call *call);

/* rpc/server.c: false: this user has as many calls as one may have. */
bool ptc_rpc_server_admit(struct ptc_rpc_server *srv, struct ptc_rpc_call *call);
void ptc_rpc_server_leave(struct ptc_rpc_server *srv, struct ptc_rpc_call *call);

/* rpc/unix.c */
int ptc_rpc_unix_start(struct ptc_rpc_unix *list, struct ptc_error *err);
struct ptc_rpc_unix *ptc_rpc_unix_free(struct ptc_rpc_unix *list); /* stops accepting, removes the files */
/* peer "fd:N" as the core gives it; false: not one of ours. */
bool ptc_rpc_unix_identity(const char *peer, struct ptc_rpc_identity *ret_id);

/* rpc/health.c */
int ptc_rpc_health_register(struct ptc_rpc_server *srv, struct ptc_error *err);
