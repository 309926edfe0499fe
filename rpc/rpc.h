/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC over its C core. Nothing outside rpc/ includes <grpc/...>. A message is a byte string here; rpc/pb/pbcall.h adds
 * protobuf. This header has the parts that clients and servers share.
 *
 * Happy path of a server (rpc/server/server.h): server_new, method..., listen..., start. Of a client
 * (rpc/client/client.h): channel_new, then unary calls or streams. Certificates: rpc/trust/tls.h.
 *
 * Threads of a client. A control call, unary or answered by a stream, starts asynchronously and completes on the libuv
 * loop. A bulk call, or another long call, blocks and belongs to one thread. It polls a completion queue of its own, so
 * bytes go from the socket to the caller's memory on one thread.
 *
 * Threads of a server. A bounded set of threads (max_calls, started on demand) runs the methods' handlers. A handler
 * that needs control state asks the loop with ptc_loop_call(). Each call has a completion queue of its own. A bulk
 * handler reads, writes and blocks freely on its thread. A handler that is marked brief has no thread while its
 * call waits for the request, the caller or its next step. Users share the threads; some are reserved
 * for root.
 *
 * Failure modes: the peer is gone (PTC_EPEER); the deadline passed (PTC_ETIMEOUT); the call was cancelled
 * (PTC_ECANCELED); a message is over the limit (PTC_ELIMIT). A status that a ptc peer sent arrives with the peer's own
 * PTC_ code and text. The trailing metadata "ptc-status" carries that code as decimal text. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct uv_loop_s;

/* ---- the loop bridge ------------------------------------------------ */

/* A uv loop with a queue to which any thread posts functions (MPSC + uv_async). */
struct ptc_loop;
int ptc_loop_new(struct uv_loop_s *uv, struct ptc_loop **ret_loop, struct ptc_error *err);
/* Loop thread, after the last post. Closes the async handle, so run the loop once more. NULL ok; returns NULL. */
struct ptc_loop *ptc_loop_free(struct ptc_loop *loop);
/* Posts fn, which runs once on the loop thread, in the order of posts. Never blocks. After ptc_loop_stop() it returns
 * PTC_ECANCELED, and fn does not run. Any thread. */
int ptc_loop_post(struct ptc_loop *loop, void (*fn)(void *arg), void *arg);
/* Posts fn and waits until it has returned. PTC_ECANCELED after ptc_loop_stop. Any thread but the loop's. */
int ptc_loop_call(struct ptc_loop *loop, void (*fn)(void *arg), void *arg);
/* Runs fn on libuv's pool; fn must not wait for the caller. PTC_ECANCELED after ptc_loop_stop. An fn that was accepted
 * before runs to its end, also when the loop stops meanwhile. Any thread. */
int ptc_loop_work(struct ptc_loop *loop, void (*fn)(void *arg), void *arg);
/* Runs all posted functions, and refuses later posts. Loop thread. */
void ptc_loop_stop(struct ptc_loop *loop);

/* ---- library life ---------------------------------------------------- */
/* Each call needs its ptc_rpc_shutdown. Call it before any thread starts. Do not fork afterwards. */
void ptc_rpc_init(void);
/* Bounds the memory that all servers and channels together buffer, approximately. Near the bound, the windows of
 * streams shrink; over it, the core ends streams (PTC_ELIMIT). Channels with quiet_idle do not count, so bulk streams
 * cannot cost a node its lease. Call it after init, before servers and channels. */
void ptc_rpc_memory_limit_set(uint64_t bytes);
void ptc_rpc_shutdown(void); /* call it after every channel and server is freed */

/* ---- who the other side is ------------------------------------------- */

enum ptc_role {
	PTC_ROLE_NONE,
	PTC_ROLE_USER,  /* a local uid, from SO_PEERCRED */
	PTC_ROLE_NODE,  /* certificate SAN URI "ptc://node/NAME" and the members' DNS name; or the daemon's own uid on a
			   peer socket; or --insecure-loopback */
	PTC_ROLE_ADMIN, /* certificate SAN URI "ptc://admin/NAME"; acts as uid 0 on control calls */
};

struct ptc_rpc_identity {
	enum ptc_role role;
	uid_t uid; /* USER: the peer's; NODE/ADMIN: 0 */
	gid_t gid;
	char name[64]; /* NODE/ADMIN over TLS: NAME; else "" */
};

/* ---- messages and metadata ------------------------------------------- */

/* Extra request metadata, for example the uid for which a node forwards a call. */
struct ptc_rpc_meta {
	const char *key, *value;
};
/* A part of a message to send. release NULL: the part is copied before the call returns. Otherwise its memory must stay
 * unchanged until release(arg) is called: on any thread, exactly once, also on failure. */
struct ptc_rpc_part {
	const void *data;
	size_t len;
	void (*release)(void *arg);
	void *arg;
};

/* A received message, in scattered slices. Borrowed until _done or the next recv. */
struct ptc_rpc_message;
size_t ptc_rpc_message_len(const struct ptc_rpc_message *m);
/* Copies the next len bytes to dst, or fewer at the end; returns the number. One copy, from the socket's slice to dst.
 */
size_t ptc_rpc_message_read(struct ptc_rpc_message *m, void *dst, size_t len);
/* Gives the next contiguous span without copying it; returns its length, 0 at the end. */
size_t ptc_rpc_message_next(struct ptc_rpc_message *m, const void **ret_data);
struct ptc_rpc_message *ptc_rpc_message_done(struct ptc_rpc_message *m); /* frees; NULL ok */
