/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC over the C core, behind one module. Nothing outside rpc/ includes
 * <grpc/...>. Messages are byte strings here; protobuf-c is the caller's.
 *
 * Model. Control calls, unary or answered by a stream, start asynchronously and complete on the libuv loop.
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
 * Happy path: server_new, add_method..., listen..., start (rpc/server/server.h);
 * channel_new, unary or stream (rpc/client/client.h); certificates: rpc/trust/tls.h;
 * protobuf messages: rpc/pb/pbcall.h. Here is what all of them share.
 *
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
/* Any thread: fn computes on libuv's pool, where it may not wait for its caller. PTC_ECANCELED after ptc_loop_stop;
 * whatever was accepted before runs to its end, also when the loop stops meanwhile. */
int ptc_loop_work(struct ptc_loop *loop, void (*fn)(void *arg), void *arg);
/* Loop thread: drains what was posted, refuses the rest. */
void ptc_loop_stop(struct ptc_loop *loop);

/* ---- library life ---------------------------------------------------- */
void ptc_rpc_init(void); /* before any thread; do not fork afterwards; counted */
/* After init, before servers and channels: all of them together buffer about this much at most. Near it the windows of
 * streams shrink; over it the core ends streams (PTC_ELIMIT) instead of growing. Channels with quiet_idle do not count:
 * the lease is kept whatever bulk streams do. */
void ptc_rpc_memory_limit_set(uint64_t bytes);
void ptc_rpc_shutdown(void); /* after every channel and server is freed */

/* ---- who the other side is ------------------------------------------- */

enum ptc_role {
	PTC_ROLE_NONE,
	PTC_ROLE_USER,  /* a local uid, from SO_PEERCRED */
	PTC_ROLE_NODE,  /* certificate SAN URI "ptc://node/NAME" and the DNS name of members, or the daemon's own uid on
			   a peer socket, or --insecure-loopback */
	PTC_ROLE_ADMIN, /* certificate SAN URI "ptc://admin/NAME"; acts as uid 0 on control calls */
};

struct ptc_rpc_identity {
	enum ptc_role role;
	uid_t uid; /* USER: the peer's; NODE/ADMIN: 0 */
	gid_t gid;
	char name[64]; /* NODE/ADMIN over TLS: NAME; else "" */
};

/* ---- messages and metadata ------------------------------------------- */

/* Extra request metadata, e.g. the uid a node forwards a call for. */
struct ptc_rpc_meta {
	const char *key, *value;
};
/* A part of a message that is sent, gathered from parts; copied unless release is given. */
struct ptc_rpc_part {
	const void *data;
	size_t len;
	void (*release)(void *arg); /* NULL: copied before return. Else: memory stays unchanged until release(arg) is
				       called, on any thread, exactly once, also on failure */
	void *arg;
};

/* A received message: scattered slices, borrowed until _done or the next recv. */
struct ptc_rpc_message;
size_t ptc_rpc_message_len(const struct ptc_rpc_message *m);
/* Sequential read: copies len bytes (or fewer at the end), returns the count. One copy, socket slice to dst. */
size_t ptc_rpc_message_read(struct ptc_rpc_message *m, void *dst, size_t len);
/* Next contiguous span without copying; 0 at the end. */
size_t ptc_rpc_message_next(struct ptc_rpc_message *m, const void **ret_data);
struct ptc_rpc_message *ptc_rpc_message_done(struct ptc_rpc_message *m); /* frees; NULL ok */
