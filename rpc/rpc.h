/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC over the C core, behind one module. Nothing outside rpc/ includes
 * <grpc/...>. Messages are byte strings here; protobuf-c is the caller's.
 *
 * Model. Control calls start asynchronously and complete on the libuv loop.
 * Bulk and other long calls are blocking and belong to the one thread that
 * uses them; each such call polls its own completion queue, so bytes go from
 * the socket to the caller's memory on one thread.
 * Server side: a bounded set of threads (max_calls, started on demand) runs the
 * methods' handlers, which hand over to the loop with ptc_loop_call() where
 * control state is concerned. A call has a completion queue of its own. Bulk
 * handlers read, write and block freely, on one thread. Brief ones don't wait
 * for their caller: a call that waits, for its request, its caller or its next
 * step, has no thread. Users share the threads; some are left to root.
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
	const char *member;   /* DNS name that certificates of this cluster's nodes carry; NULL: PTC_RPC_MEMBER */
	const char *crl_path; /* certificates that the authority has revoked; read again when it changes; NULL: none */
};
#define PTC_RPC_MEMBER "ptc-node"

/* The files of certificates have been replaced: listeners read them at their next connection, channels that renew at their next
 * call, for which they make a connection; calls under way go on where they are. What cannot be used is logged, and the old stays.
 * Any thread. */
void ptc_rpc_tls_renew(void);

enum ptc_role {
	PTC_ROLE_NONE,
	PTC_ROLE_USER, /* a local uid, from SO_PEERCRED */
	PTC_ROLE_NODE, /* certificate SAN URI "ptc://node/NAME" and the DNS name of members, or the daemon's own uid on a peer socket, or --insecure-loopback */
	PTC_ROLE_ADMIN, /* certificate SAN URI "ptc://admin/NAME"; acts as uid 0 on control calls */
};

/* Would these files do, now and here: can they be read, is the key the certificate's; and, with a node, has this authority signed
 * it, does it allow both ends of a connection, does it carry that node's name and the members', is it not revoked? Any thread; reads files. On failure *which is the one to mend: "ca", "cert", "key" or "crl". */
int ptc_rpc_tls_check(const struct ptc_rpc_tls *tls, const char *node_or_null, const char **which,
		      struct ptc_error *err);

/* One connection to HOST:PORT that says it wants HTTP/2 and shows this certificate (cert_path NULL: none). Blocking; the
 * process ignores SIGPIPE. */
enum ptc_rpc_probe {
	PTC_RPC_PROBE_SILENT,  /* nobody there, or no answer in time */
	PTC_RPC_PROBE_REFUSED, /* the handshake failed, or the connection ended after it */
	PTC_RPC_PROBE_LET_IN,  /* the server went on to HTTP/2 */
};
int ptc_rpc_tls_probe(const char *address, const struct ptc_rpc_tls *tls, int timeout_ms,
		      enum ptc_rpc_probe *ret_answer, struct ptc_error *err);
/* Would a server that lets in `stranger` let in more than members? It is one who has all that `own`, shown to that server by
 * us, has, but for the members' name: the authority, a key, time and uses that fit. */
int ptc_rpc_tls_check_stranger(const struct ptc_rpc_tls *stranger, const struct ptc_rpc_tls *own,
			       struct ptc_error *err);
/* Were these two certificates issued in one name (by one authority, as far as that can be told)? */
int ptc_rpc_tls_same_issuer(const char *cert_path, const char *other_path, bool *ret_same, struct ptc_error *err);

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
	/* TLS: the peer's certificate must carry ptc://node/NAME and tls->member. NULL: any member's, or one without any
	 * ptc name that fits the target's host (etcd). Host names are not looked at otherwise. */
	const char *expect_node;
	/* TLS: *tls outlives the channel; connections made after ptc_rpc_tls_renew() show what its files hold by then. */
	bool renews;
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
/* From then on, a message or the end is there: recv does not wait. Does not wait itself. */
bool ptc_rpc_stream_ready(struct ptc_rpc_stream *s);
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
	int max_calls;              /* handlers that run at once, each on a thread; 0: PTC_MAX_SERVER_CALLS */
	uint32_t max_message_bytes; /* 0: PTC_CONTROL_MESSAGE_MAX */
	int keepalive_ms;           /* 0: 10 s; at least 500 */
	/* For servers that strangers may call: */
	/* Of one uid at once, those that wait included; users leave an eighth of all to root. 0: no bound. */
	int max_calls_per_user;
	int stall_ms; /* a caller that takes nothing of what it asked for this long is cut off; 0: never */
};

int ptc_rpc_server_new(const struct ptc_rpc_server_opts *opts, struct ptc_rpc_server **ret_server,
		       struct ptc_error *err);
/* Before start. roles: bit mask 1u << enum ptc_role of who may call; others get PTC_EPERM before the handler runs. */
int ptc_rpc_server_method(struct ptc_rpc_server *srv, const char *method, unsigned roles, ptc_rpc_handler_fn fn,
			  void *arg, struct ptc_error *err);
enum ptc_rpc_kind {
	PTC_RPC_THREAD, /* has a thread as long as it lasts; its sends wait for the caller */
	PTC_RPC_BULK,   /* the same, but such calls leave threads to others, and users share what there is */
	PTC_RPC_BRIEF,  /* its handler returns soon: its sends do not wait, and it may go on in steps */
};
/* Before start, after the method: what its calls are; PTC_RPC_THREAD otherwise. */
void ptc_rpc_server_method_kind(struct ptc_rpc_server *srv, const char *method, enum ptc_rpc_kind kind);
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
/* Any thread: how many calls have a thread now, and how many wait without one. */
void ptc_rpc_server_load(const struct ptc_rpc_server *srv, int *ret_running, int *ret_waiting);
/* grpc.health.v1.Health/Check and Watch are built in; service "" and each listed one follow this. */
void ptc_rpc_server_serving(struct ptc_rpc_server *srv, bool serving);
/* Stops accepting, gives calls grace_ms, cancels the rest, joins threads, removes socket files. Not on the loop thread
 * while handlers may be waiting for the loop (post ptc_loop_stop first). NULL ok. */
struct ptc_rpc_server *ptc_rpc_server_free(struct ptc_rpc_server *srv, int grace_ms);

/* Connections to the servers of this process. At these bounds new ones are refused, or the oldest of whoever has the most
 * goes; a TCP connection is a stranger's until a call with a member's certificate came over it, and has 15 s for that. */
struct ptc_rpc_connections {
	uint32_t users, members, strangers, max_users, max_members, max_strangers;
	uint64_t refused, shed,
		expired; /* since the start: not let in; ended for others' sake; strangers out of time */
	uint64_t bytes;  /* of memory that the connections take, about */
};
void ptc_rpc_connections(struct ptc_rpc_connections *ret); /* any thread */

const struct ptc_rpc_identity *ptc_rpc_call_identity(const struct ptc_rpc_call *call);
/* Request metadata value or NULL; borrowed for the call. */
const char *ptc_rpc_call_meta(const struct ptc_rpc_call *call, const char *key);
int ptc_rpc_call_recv(struct ptc_rpc_call *call, struct ptc_rpc_message **ret_msg,
		      struct ptc_error *err); /* NULL message: client half-closed; PTC_ECANCELED if it was cut off */
int ptc_rpc_call_send(struct ptc_rpc_call *call, const struct ptc_rpc_part *parts, size_t nparts,
		      struct ptc_error *err);
/* Of a brief method only. From its handler: when that has returned 0, step runs after `ms`; until then the call has no
 * thread. release(arg) runs once, when the call is over, because its caller has gone or a step failed or asked for no
 * other one. */
typedef int (*ptc_rpc_step_fn)(void *arg, struct ptc_rpc_call *call, struct ptc_error *err);
void ptc_rpc_call_follow(struct ptc_rpc_call *call, int ms, ptc_rpc_step_fn step, void *arg,
			 void (*release)(void *arg));
void ptc_rpc_call_again(struct ptc_rpc_call *call, int ms); /* from a step: another one, when what was sent has gone */
/* Brief: the caller has yet to take what was sent; a step that has more to send comes again. */
bool ptc_rpc_call_full(const struct ptc_rpc_call *call);
bool ptc_rpc_call_cancelled(
	const struct ptc_rpc_call *call); /* peer gone, deadline passed or server stopping; cheap, pollable */
