/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC over the C core, behind one module. Nothing outside rpc/ includes
 * <grpc/...>. Messages are byte strings here; protobuf-c is the caller's.
 *
 * Model. Control calls start asynchronously and complete on the libuv loop.
 * Bulk and other long calls are blocking and belong to the one thread that
 * uses them; each such call polls its own completion queue, so bytes go from
 * the socket to the caller's memory on one thread.
 * Server side: a bounded set of threads (max_calls, started on demand), each with its own
 * completion queue, takes one call at a time and runs the method's handler,
 * which reads, writes and blocks freely, and hands over to the loop with
 * ptc_loop_call() where control state is concerned. Calls beyond max_calls
 * wait in the transport.
 *
 * Happy path: server_new, add_method..., listen..., start; channel_new, unary or stream.
 * Failure modes: peer gone (PTC_EPEER), deadline (PTC_ETIMEOUT), cancelled
 * (PTC_ECANCELED), message over the limit (PTC_ELIMIT); a status sent by a
 * ptc peer arrives with the peer's own PTC_ code and text (trailing metadata
 * "ptc-status" carries the code as decimal text). */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct uv_loop_s;

/* ---- the loop bridge ------------------------------------------------ */

/* Wraps a uv loop with a thread-safe hand-over queue (MPSC + uv_async). */
struct ptc_loop;
int ptc_loop_new(struct uv_loop_s *uv, struct ptc_loop **ret_loop, struct ptc_error *err);
/* Loop thread, after the last post; closes the async handle (run the loop once more). Accepts NULL, returns NULL. */
struct ptc_loop *ptc_loop_free(struct ptc_loop *loop);
/* Any thread. fn runs once on the loop thread, in post order. Never blocks.
 * After ptc_loop_stop() it returns PTC_ECANCELED and fn is not run. */
int ptc_loop_post(struct ptc_loop *loop, void (*fn)(void *arg), void *arg);
/* Any thread but the loop's: posts and waits until fn has returned. PTC_ECANCELED after ptc_loop_stop. */
int ptc_loop_call(struct ptc_loop *loop, void (*fn)(void *arg), void *arg);
/* Loop thread: drains what was posted, refuses the rest. */
void ptc_loop_stop(struct ptc_loop *loop);

/* ---- library life ---------------------------------------------------- */
void ptc_rpc_init(void); /* before any thread; do not fork afterwards; counted */
/* After init, before servers and channels: all of them together buffer about this much at most. Near it the windows of
 * streams shrink; over it the core ends streams (PTC_ELIMIT) instead of growing. Channels with quiet_idle do not count:
 * the lease is kept whatever bulk streams do. */
void ptc_rpc_memory_limit_set(uint64_t bytes);
void ptc_rpc_shutdown(void); /* after every channel and server is freed */

/* ---- credentials ----------------------------------------------------- */

/* PEM files; every TCP listener and every TCP channel uses them (mutual TLS). */
struct ptc_rpc_tls {
	const char *ca_path;
	const char *cert_path;
	const char *key_path;
};

enum ptc_role {
	PTC_ROLE_NONE,
	PTC_ROLE_USER, /* a local uid, from SO_PEERCRED */
	PTC_ROLE_NODE, /* certificate SAN URI "ptc://node/NAME", or the daemon's own uid on a peer socket, or --insecure-loopback */
	PTC_ROLE_ADMIN, /* certificate SAN URI "ptc://admin/NAME"; acts as uid 0 on control calls */
};

/* Would these files do, now and here: can they be read, is the key the certificate's; and, with a node, has this authority signed
 * it, does it allow both ends of a connection, does it carry that node's name? Any thread; reads files. On failure *which is the one to mend: "ca", "cert" or "key". */
int ptc_rpc_tls_check(const struct ptc_rpc_tls *tls, const char *node_or_null, const char **which,
		      struct ptc_error *err);

struct ptc_rpc_identity {
	enum ptc_role role;
	uid_t uid; /* USER: the peer's; NODE/ADMIN: 0 */
	gid_t gid;
	char name[64]; /* NODE/ADMIN over TLS: NAME; else "" */
};

/* ---- client ------------------------------------------------------------ */

struct ptc_rpc_channel; /* thread-safe, reference counted by calls in flight */

struct ptc_rpc_channel_opts {
	const char *target;            /* "host:port" or "unix:/path" */
	const struct ptc_rpc_tls *tls; /* NULL only for unix targets or insecure */
	bool insecure;                 /* plain TCP; refused unless host is loopback */
	/* TLS: the peer's certificate must carry ptc://node/NAME. NULL: any node's, or one without any ptc name that
	 * fits the target's host (etcd). Host names are not looked at otherwise. */
	const char *expect_node;
	bool bulk;                  /* own TCP connection (local subchannel pool), large windows and limits */
	uint32_t max_message_bytes; /* 0: PTC_CONTROL_MESSAGE_MAX */
	int keepalive_ms;           /* 0: 10 s; at least 500; a silent peer is dropped after twice that */
	bool quiet_idle; /* no keepalive while no call is open: foreign servers (etcd) end connections that ping then */
};

int ptc_rpc_channel_new(const struct ptc_rpc_channel_opts *opts, struct ptc_rpc_channel **ret_channel,
			struct ptc_error *err);
struct ptc_rpc_channel *ptc_rpc_channel_free(struct ptc_rpc_channel *channel); /* NULL ok */
void ptc_rpc_channel_retry(struct ptc_rpc_channel *channel); /* ends a wait between two attempts to connect */

/* Extra request metadata, e.g. the uid a node forwards a call for. */
struct ptc_rpc_meta {
	const char *key, *value;
};

/* Blocking unary call. timeout_ms > 0. *ret_reply: ptc_free it. */
int ptc_rpc_unary(struct ptc_rpc_channel *channel, const char *method /* "/ptc.v1.Peer/Seal" */, const void *request,
		  size_t request_len, int timeout_ms, const struct ptc_rpc_meta *meta, size_t nmeta, void **ret_reply,
		  size_t *ret_len, struct ptc_error *err);

/* Asynchronous unary call; cb runs on the loop thread exactly once, also on
 * failure or after shutdown was begun (status then PTC_ECANCELED). reply is borrowed
 * for the time of the callback. request is copied. Any thread. */
typedef void (*ptc_rpc_done_fn)(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len);
struct ptc_rpc_client; /* one completion-queue thread for asynchronous calls */
int ptc_rpc_client_new(struct ptc_loop *loop, struct ptc_rpc_client **ret_client, struct ptc_error *err);
/* Cancels what is in flight, waits for the thread. Loop thread; callbacks not yet run are run with PTC_ECANCELED. */
struct ptc_rpc_client *ptc_rpc_client_free(struct ptc_rpc_client *client);
void ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
			 const void *request, size_t request_len, int timeout_ms, ptc_rpc_done_fn cb, void *arg);

/* Blocking streaming call (any of the three stream kinds), owned by one
 * thread; only ptc_rpc_stream_cancel may be called from another. */
struct ptc_rpc_stream;
int ptc_rpc_stream_open(struct ptc_rpc_channel *channel, const char *method, int timeout_ms /* 0: none */,
			const struct ptc_rpc_meta *meta, size_t nmeta, struct ptc_rpc_stream **ret_stream,
			struct ptc_error *err);
/* One message gathered from parts; copied unless release is given (see ptc_rpc_part). Blocks for flow control. */
struct ptc_rpc_part {
	const void *data;
	size_t len;
	void (*release)(
		void *arg); /* NULL: copied before return. Else: memory stays unchanged until release(arg) is called, on any thread, exactly once, also on failure */
	void *arg;
};
int ptc_rpc_stream_send(struct ptc_rpc_stream *s, const struct ptc_rpc_part *parts, size_t nparts,
			struct ptc_error *err);
int ptc_rpc_stream_half_close(struct ptc_rpc_stream *s, struct ptc_error *err);

/* A received message: scattered slices, borrowed until _done or the next recv. */
struct ptc_rpc_message;
/* 0 with *ret_msg == NULL: end of stream (then call finish for the status). */
/* A stream that failed or was cut off is an error here already. */
int ptc_rpc_stream_recv(struct ptc_rpc_stream *s, struct ptc_rpc_message **ret_msg, struct ptc_error *err);
struct ptc_rpc_call;
/* From now on recv gives up (PTC_ECANCELED) soon after that call is cancelled; on that call's thread. */
void ptc_rpc_stream_follow(struct ptc_rpc_stream *s, const struct ptc_rpc_call *call);
/* Waits for the peer's status; messages not yet read are read and dropped (cancel first if there is no end). */
int ptc_rpc_stream_finish(struct ptc_rpc_stream *s, struct ptc_error *err);
void ptc_rpc_stream_cancel(struct ptc_rpc_stream *s);                 /* any thread */
struct ptc_rpc_stream *ptc_rpc_stream_free(struct ptc_rpc_stream *s); /* cancels if unfinished; NULL ok */

size_t ptc_rpc_message_len(const struct ptc_rpc_message *m);
/* Sequential read: copies len bytes (or fewer at the end), returns the count. One copy, socket slice to dst. */
size_t ptc_rpc_message_read(struct ptc_rpc_message *m, void *dst, size_t len);
/* Next contiguous span without copying; 0 at the end. */
size_t ptc_rpc_message_next(struct ptc_rpc_message *m, const void **ret_data);
struct ptc_rpc_message *ptc_rpc_message_done(struct ptc_rpc_message *m); /* frees; NULL ok */

/* ---- server ------------------------------------------------------------ */

struct ptc_rpc_server;
struct ptc_rpc_call; /* server side of one call; belongs to its handler's thread */

/* Returns 0 or a status that goes to the caller with err's text. */
typedef int (*ptc_rpc_handler_fn)(void *arg, struct ptc_rpc_call *call, struct ptc_error *err);

struct ptc_rpc_server_opts {
	int max_calls;              /* threads; 0: PTC_MAX_SERVER_CALLS */
	uint32_t max_message_bytes; /* 0: PTC_CONTROL_MESSAGE_MAX */
	int keepalive_ms;           /* 0: 10 s; at least 500 */
	/* For servers that strangers may call: */
	int max_calls_per_user; /* of one uid at once; root may have all but a few. 0: no bound */
	int stall_ms;           /* a caller that takes nothing of what it asked for this long is cut off; 0: never */
};

int ptc_rpc_server_new(const struct ptc_rpc_server_opts *opts, struct ptc_rpc_server **ret_server,
		       struct ptc_error *err);
/* Before start. roles: bit mask 1u << enum ptc_role of who may call; others get PTC_EPERM before the handler runs. */
int ptc_rpc_server_method(struct ptc_rpc_server *srv, const char *method, unsigned roles, ptc_rpc_handler_fn fn,
			  void *arg, struct ptc_error *err);
/* TCP with mutual TLS. address "host:port", port 0 picks one; *ret_port is the bound port. */
int ptc_rpc_server_listen_tls(struct ptc_rpc_server *srv, const char *address, const struct ptc_rpc_tls *tls,
			      int *ret_port, struct ptc_error *err);
/* Plain TCP, --insecure-loopback only; refuses a non-loopback address. Callers get PTC_ROLE_NODE. */
int ptc_rpc_server_listen_insecure(struct ptc_rpc_server *srv, const char *address, int *ret_port,
				   struct ptc_error *err);
/* A unix socket we accept ourselves: SO_PEERCRED gives the identity. mode is
 * the socket file's. as_node: own uid and root get PTC_ROLE_NODE and all others
 * are closed at accept (the directory must then be 0700 and ours); else
 * PTC_ROLE_USER with the peer's uid. A stale socket file is replaced, a live one is an error. */
int ptc_rpc_server_listen_unix(struct ptc_rpc_server *srv, const char *path, mode_t mode, bool as_node,
			       struct ptc_error *err);
int ptc_rpc_server_start(struct ptc_rpc_server *srv, struct ptc_error *err);
/* After start, any thread: each method, how many calls of it have been served, and how many of these failed. */
typedef void (*ptc_rpc_method_fn)(void *arg, const char *method, uint64_t calls, uint64_t errors);
void ptc_rpc_server_methods(const struct ptc_rpc_server *srv, ptc_rpc_method_fn fn, void *arg);
/* grpc.health.v1.Health/Check and Watch are built in; service "" and each listed one follow this. */
void ptc_rpc_server_serving(struct ptc_rpc_server *srv, bool serving);
/* Stops accepting, gives calls grace_ms, cancels the rest, joins threads, removes socket files. Not on the loop thread
 * while handlers may be waiting for the loop (post ptc_loop_stop first). NULL ok. */
struct ptc_rpc_server *ptc_rpc_server_free(struct ptc_rpc_server *srv, int grace_ms);

const struct ptc_rpc_identity *ptc_rpc_call_identity(const struct ptc_rpc_call *call);
/* Request metadata value or NULL; borrowed for the call. */
const char *ptc_rpc_call_meta(const struct ptc_rpc_call *call, const char *key);
int ptc_rpc_call_recv(struct ptc_rpc_call *call, struct ptc_rpc_message **ret_msg,
		      struct ptc_error *err); /* NULL message: client half-closed; PTC_ECANCELED if it was cut off */
int ptc_rpc_call_send(struct ptc_rpc_call *call, const struct ptc_rpc_part *parts, size_t nparts,
		      struct ptc_error *err);
bool ptc_rpc_call_cancelled(
	const struct ptc_rpc_call *call); /* peer gone, deadline passed or server stopping; cheap, pollable */
