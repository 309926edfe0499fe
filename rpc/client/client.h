/* SPDX-License-Identifier: Apache-2.0 */
/* Client side: channels, calls that complete on the loop (unary, or answered by
 * a stream), blocking unary calls and streams. Failure modes and the thread model: rpc/rpc.h. */
#pragma once

#include "rpc/rpc.h"
#include "rpc/trust/tls.h"

struct ptc_rpc_call; /* server side (rpc/server/server.h) */

struct ptc_rpc_channel; /* thread-safe, reference counted by calls in flight */

struct ptc_rpc_channel_opts {
	const char *target;            /* "host:port" or "unix:/path" */
	const struct ptc_rpc_tls *tls; /* NULL only for unix targets or insecure */
	bool insecure;                 /* plain TCP; refused unless host is loopback */
	/* TLS: the peer's certificate must carry ptc://node/NAME and tls->member. NULL: any member's, or one without
	 * any ptc name that fits the target's host (etcd). Host names are not looked at otherwise. */
	const char *expect_node;
	/* TLS: *tls outlives the channel; connections made after ptc_rpc_tls_renew() show what its files hold by then.
	 */
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

/* One request, answered by a stream of messages, for which nobody waits: on_message runs for each of them, in order, on
 * the client's thread. It must be brief, as other asynchronous answers wait for it; m is borrowed; another value than 0
 * ends the call with that status. Then cb runs as above, without a reply. No deadline. Loop thread; request is copied.
 */
typedef int (*ptc_rpc_message_fn)(void *arg, struct ptc_rpc_message *m, struct ptc_error *err);
struct ptc_rpc_async;
struct ptc_rpc_async *ptc_rpc_stream_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel,
					   const char *method, const void *request, size_t request_len,
					   ptc_rpc_message_fn on_message, ptc_rpc_done_fn cb, void *arg);
/* Loop thread, before cb has begun. */
void ptc_rpc_async_cancel(struct ptc_rpc_async *call);

/* Blocking streaming call (any of the three stream kinds), owned by one
 * thread; only ptc_rpc_stream_cancel may be called from another. */
struct ptc_rpc_stream;
int ptc_rpc_stream_open(struct ptc_rpc_channel *channel, const char *method, int timeout_ms /* 0: none */,
			const struct ptc_rpc_meta *meta, size_t nmeta, struct ptc_rpc_stream **ret_stream,
			struct ptc_error *err);
/* One message gathered from parts; copied unless release is given (see ptc_rpc_part). Blocks for flow control. */
int ptc_rpc_stream_send(struct ptc_rpc_stream *s, const struct ptc_rpc_part *parts, size_t nparts,
			struct ptc_error *err);
int ptc_rpc_stream_half_close(struct ptc_rpc_stream *s, struct ptc_error *err);

/* 0 with *ret_msg == NULL: end of stream (then call finish for the status). */
/* A stream that failed or was cut off is an error here already. */
int ptc_rpc_stream_recv(struct ptc_rpc_stream *s, struct ptc_rpc_message **ret_msg, struct ptc_error *err);
/* From then on, a message or the end is there: recv does not wait. Does not wait itself. */
bool ptc_rpc_stream_ready(struct ptc_rpc_stream *s);
/* From now on recv gives up (PTC_ECANCELED) soon after that call is cancelled; on that call's thread. */
void ptc_rpc_stream_follow(struct ptc_rpc_stream *s, const struct ptc_rpc_call *call);
/* Waits for the peer's status; messages not yet read are read and dropped (cancel first if there is no end). */
int ptc_rpc_stream_finish(struct ptc_rpc_stream *s, struct ptc_error *err);
void ptc_rpc_stream_cancel(struct ptc_rpc_stream *s);                 /* any thread */
struct ptc_rpc_stream *ptc_rpc_stream_free(struct ptc_rpc_stream *s); /* cancels if unfinished; NULL ok */
