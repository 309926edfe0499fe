/* SPDX-License-Identifier: Apache-2.0 */
/* Server side: methods, listeners, and the calls that handlers answer. For failure modes and the thread model see
 * rpc/rpc.h. */
#pragma once

#include "rpc/rpc.h"
#include "rpc/trust/tls.h"

struct ptc_rpc_server;
struct ptc_rpc_call; /* the server's side of one call; belongs to its handler's thread */

/* Returns 0, or a status that goes to the caller with err's text. */
typedef int (*ptc_rpc_handler_fn)(void *arg, struct ptc_rpc_call *call, struct ptc_error *err);

struct ptc_rpc_server_opts {
	int max_calls; /* handlers that run at once, each on a thread of its own; 0: PTC_MAX_SERVER_CALLS */
	uint32_t max_message_bytes; /* 0: PTC_CONTROL_MESSAGE_MAX */
	int keepalive_ms;           /* milliseconds; 0: 10 s; at least 500 */
	/* The next two are for servers that untrusted users may call. */
	/* Calls of one uid at once, waiting ones included. Then an eighth of the threads is also reserved for root. 0:
	 * no bound. */
	int max_calls_per_user;
	int stall_ms; /* a caller that takes nothing of its answer for this long is cut off; 0: never */
};

int ptc_rpc_server_new(const struct ptc_rpc_server_opts *opts, struct ptc_rpc_server **ret_server,
		       struct ptc_error *err);
/* Adds a method; before start. `roles` is a bit mask of 1u << enum ptc_role: others get PTC_EPERM before the handler
 * runs. */
int ptc_rpc_server_method(struct ptc_rpc_server *srv, const char *method, unsigned roles, ptc_rpc_handler_fn fn,
			  void *arg, struct ptc_error *err);
enum ptc_rpc_kind {
	PTC_RPC_THREAD, /* the call has a thread as long as it lasts; sends wait for the caller */
	PTC_RPC_BULK,   /* as PTC_RPC_THREAD, but only some get a thread (schedule.c); the call may go on in steps */
	PTC_RPC_BRIEF, /* the handler returns soon; sends do not wait for the caller, and the call may go on in steps */
};
/* Sets the kind of a method's calls; without it: PTC_RPC_THREAD. Before start, after the method was added. */
void ptc_rpc_server_method_kind(struct ptc_rpc_server *srv, const char *method, enum ptc_rpc_kind kind);
/* Listens on TCP with mutual TLS. `address` is "host:port"; port 0 picks a free one. *ret_port is the bound port. */
int ptc_rpc_server_listen_tls(struct ptc_rpc_server *srv, const char *address, const struct ptc_rpc_tls *tls,
			      int *ret_port, struct ptc_error *err);
/* Listens on plain TCP, for --insecure-loopback only. Refuses an address that is not loopback. Callers get
 * PTC_ROLE_NODE. */
int ptc_rpc_server_listen_insecure(struct ptc_rpc_server *srv, const char *address, int *ret_port,
				   struct ptc_error *err);
/* Listens on a unix socket; SO_PEERCRED gives the caller's identity. `mode` is the socket file's. as_node: our own uid
 * and root get PTC_ROLE_NODE, and all others are closed at accept; the directory must be ours with mode 0700. Otherwise
 * callers get PTC_ROLE_USER with their uid. A stale socket file is replaced; a live one is an error. */
int ptc_rpc_server_listen_unix(struct ptc_rpc_server *srv, const char *path, mode_t mode, bool as_node,
			       struct ptc_error *err);
int ptc_rpc_server_start(struct ptc_rpc_server *srv, struct ptc_error *err);
/* Calls fn for each method, with the number of calls served and of those that failed. After start, any thread. */
typedef void (*ptc_rpc_method_fn)(void *arg, const char *method, uint64_t calls, uint64_t errors);
void ptc_rpc_server_methods(const struct ptc_rpc_server *srv, ptc_rpc_method_fn fn, void *arg);
/* The number of calls that have a thread now, and of those that wait without one. Any thread. */
void ptc_rpc_server_load(const struct ptc_rpc_server *srv, int *ret_running, int *ret_waiting);
/* Sets the answer of the built-in grpc.health.v1.Health/Check and Watch, for service "" and every service that has a
 * method here. */
void ptc_rpc_server_serving(struct ptc_rpc_server *srv, bool serving);
/* Stops accepting, gives calls grace_ms, cancels the rest, joins threads, and removes socket files. Do not call it on
 * the loop thread while handlers may wait for the loop (post ptc_loop_stop first). NULL ok. */
struct ptc_rpc_server *ptc_rpc_server_free(struct ptc_rpc_server *srv, int grace_ms);

/* Connections to the servers of this process. At a bound, a new connection is refused, or the oldest connection of the
 * peer with the most is ended. A TCP connection counts as a stranger's until a call with a member's certificate came
 * over it. It has 15 s for that. */
struct ptc_rpc_connections {
	uint32_t users, members, strangers, max_users, max_members, max_strangers;
	uint64_t refused, shed, expired; /* since the start: connections refused; ended to make room for others;
					    strangers out of time */
	uint64_t bytes;                  /* memory that the connections take, approximately */
};
void ptc_rpc_connections(struct ptc_rpc_connections *ret); /* any thread */

const struct ptc_rpc_identity *ptc_rpc_call_identity(const struct ptc_rpc_call *call);
/* A value of the request's metadata, or NULL. Borrowed until the call ends. */
const char *ptc_rpc_call_meta(const struct ptc_rpc_call *call, const char *key);
int ptc_rpc_call_recv(
	struct ptc_rpc_call *call, struct ptc_rpc_message **ret_msg,
	struct ptc_error *err); /* NULL message: the client half-closed. PTC_ECANCELED: the client was cut off */
/* Waits at most ms. PTC_ETIMEOUT: nothing has come; the handler may ask again, or end the call. */
int ptc_rpc_call_recv_within(struct ptc_rpc_call *call, int ms, struct ptc_rpc_message **ret_msg,
			     struct ptc_error *err);
int ptc_rpc_call_send(struct ptc_rpc_call *call, const struct ptc_rpc_part *parts, size_t nparts,
		      struct ptc_error *err);
/* For brief and bulk methods; call it from the handler. When the handler has returned 0, `step` runs after `ms`. Until
 * then the call has no thread. release(arg) runs once, when the call is over: the caller has gone, a step failed, or a
 * step asked for no other one. */
typedef int (*ptc_rpc_step_fn)(void *arg, struct ptc_rpc_call *call, struct ptc_error *err);
void ptc_rpc_call_follow(struct ptc_rpc_call *call, int ms, ptc_rpc_step_fn step, void *arg,
			 void (*release)(void *arg));
/* From a step: runs another step after ms, once the sent messages have gone. PTC_RPC_WOKEN: once ptc_rpc_call_wake was
 * called, since this step began. */
#define PTC_RPC_WOKEN (-1)
void ptc_rpc_call_again(struct ptc_rpc_call *call, int ms);
/* Runs the call's next step as soon as it can run. Any thread, until `release` of the call has returned. */
void ptc_rpc_call_wake(struct ptc_rpc_call *call);
/* Of a brief call: the caller has not taken all that was sent, so a step that has more to send should come again. */
bool ptc_rpc_call_full(const struct ptc_rpc_call *call);
bool ptc_rpc_call_cancelled(
	const struct ptc_rpc_call *call); /* the peer is gone, the deadline passed or the server stops; cheap to poll */
