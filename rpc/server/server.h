/* SPDX-License-Identifier: Apache-2.0 */
/* Server side: methods, listeners, and the calls that their handlers answer.
 *
 * Failure modes and the thread model: rpc/rpc.h. */
#pragma once

#include "rpc/rpc.h"
#include "rpc/trust/tls.h"

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

/* Connections to the servers of this process. At these bounds new ones are refused, or the oldest of whoever has the
 * most goes; a TCP connection is a stranger's until a call with a member's certificate came over it, and has 15 s for
 * that. */
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
