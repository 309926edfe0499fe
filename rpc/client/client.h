/* SPDX-License-Identifier: Apache-2.0 */
/* Client side: channels; asynchronous calls, unary or answered by a stream, that complete on the loop; blocking unary
 * calls; blocking streams. For failure modes and the thread model see rpc/rpc.h.
 *
 * A listener that has too many connections closes some before anything was sent. Then no handler has heard of the call,
 * and the call is made again after a short random pause, for at most 5 s and within its deadline. If a server says that
 * a call came without its request, no handler has heard of that call either; it is made again once, over a new
 * connection. This holds for unary and asynchronous calls. It holds for a stream if the first thing that its owner does
 * is to send a message. Nothing else is retried.
 *
 * A connection may live and yet pass no more bytes: without TLS, a bit that changed on the way can take its flow
 * control. So a call that stands is taken for a sign of that, and the channel's next call makes a new connection. A
 * call stands if its patience (ptc_rpc_stream_patience) or a deadline of at least 5 s ends, if its owner says so
 * (ptc_rpc_stream_stood), or if the server says so, of the request or of its answer. Calls under way keep their
 * connection. Channels with quiet_idle do none of this.
 */
#pragma once

#include "rpc/rpc.h"
#include "rpc/trust/tls.h"

struct ptc_rpc_call; /* of rpc/server/server.h */

struct ptc_rpc_channel; /* thread-safe; calls in flight hold references to it */

struct ptc_rpc_channel_opts {
	const char *target;            /* "host:port" or "unix:/path" */
	const struct ptc_rpc_tls *tls; /* NULL only for unix targets or insecure */
	bool insecure;                 /* plain TCP; refused unless the host is loopback */
	/* TLS: the peer's certificate must carry ptc://node/NAME and tls->member. NULL: a certificate of any member
	 * will do. So will a certificate without a ptc name whose host name is the target's (etcd's); only there host
	 * names are compared. */
	const char *expect_node;
	/* TLS: the first call after ptc_rpc_tls_renew() makes a new connection, by the files' new content. */
	bool renews;
	bool bulk;                  /* a TCP connection of its own (local subchannel pool), large windows and limits */
	uint32_t max_message_bytes; /* 0: PTC_CONTROL_MESSAGE_MAX */
	int keepalive_ms; /* milliseconds; 0: 10 s; at least 500. A silent peer is dropped after twice this time */
	bool quiet_idle; /* no keepalive while no call is open, because foreign servers (etcd) end connections that ping
			    then */
};

/* Copies what it needs of opts. */
int ptc_rpc_channel_new(const struct ptc_rpc_channel_opts *opts, struct ptc_rpc_channel **ret_channel,
			struct ptc_error *err);
struct ptc_rpc_channel *ptc_rpc_channel_free(struct ptc_rpc_channel *channel); /* NULL ok */
void ptc_rpc_channel_retry(struct ptc_rpc_channel *channel); /* ends the wait between two attempts to connect */

/* A blocking unary call. timeout_ms > 0. ptc_free *ret_reply. `method` is as in "/ptc.v1.Peer/Seal". */
int ptc_rpc_unary(struct ptc_rpc_channel *channel, const char *method, const void *request, size_t request_len,
		  int timeout_ms, const struct ptc_rpc_meta *meta, size_t nmeta, void **ret_reply, size_t *ret_len,
		  struct ptc_error *err);

/* An asynchronous unary call. cb runs exactly once, on the loop thread, also on failure. After shutdown has begun, its
 * status is PTC_ECANCELED. `reply` is borrowed during the callback; `request` is copied. Any thread. */
typedef void (*ptc_rpc_done_fn)(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len);
struct ptc_rpc_client; /* has one completion-queue thread for asynchronous calls */
int ptc_rpc_client_new(struct ptc_loop *loop, struct ptc_rpc_client **ret_client, struct ptc_error *err);
/* Cancels calls in flight and waits for the thread. Callbacks that have not run get PTC_ECANCELED. Loop thread. */
struct ptc_rpc_client *ptc_rpc_client_free(struct ptc_rpc_client *client);
void ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
			 const void *request, size_t request_len, int timeout_ms, ptc_rpc_done_fn cb, void *arg);

/* An asynchronous call: one request, answered by a stream of messages. on_message runs for each message, in order, on
 * the client's thread. It must be brief, because other answers wait for it. `m` is borrowed. A value other than 0 ends
 * the call with that status. Then cb runs as above, without a reply. There is no deadline. `request` is copied. Loop
 * thread. */
typedef int (*ptc_rpc_message_fn)(void *arg, struct ptc_rpc_message *m, struct ptc_error *err);
struct ptc_rpc_async;
struct ptc_rpc_async *ptc_rpc_stream_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel,
					   const char *method, const void *request, size_t request_len,
					   ptc_rpc_message_fn on_message, ptc_rpc_done_fn cb, void *arg);
/* Cancels the call. Loop thread, before cb has begun. */
void ptc_rpc_async_cancel(struct ptc_rpc_async *call);

/* A blocking call of any of the three stream kinds. One thread owns it; other threads may only call
 * ptc_rpc_stream_cancel. */
struct ptc_rpc_stream;
int ptc_rpc_stream_open(struct ptc_rpc_channel *channel, const char *method, int timeout_ms /* 0: none */,
			const struct ptc_rpc_meta *meta, size_t nmeta, struct ptc_rpc_stream **ret_stream,
			struct ptc_error *err);
/* Sends one message, gathered from parts. A part is copied unless it has `release` (see ptc_rpc_part). Waits for flow
 * control. */
int ptc_rpc_stream_send(struct ptc_rpc_stream *s, const struct ptc_rpc_part *parts, size_t nparts,
			struct ptc_error *err);
int ptc_rpc_stream_half_close(struct ptc_rpc_stream *s, struct ptc_error *err);

/* Receives the next message. 0 with *ret_msg NULL: the stream has ended; then call finish for the status. A stream that
 * failed or was cut off is an error here already. */
int ptc_rpc_stream_recv(struct ptc_rpc_stream *s, struct ptc_rpc_message **ret_msg, struct ptc_error *err);
/* Whether a message or the end is there, so that recv does not wait. Does not wait itself. */
bool ptc_rpc_stream_ready(struct ptc_rpc_stream *s);
/* Makes recv give up (PTC_ECANCELED) soon after `call` is cancelled. On the thread of `call`. */
void ptc_rpc_stream_follow(struct ptc_rpc_stream *s, const struct ptc_rpc_call *call);
/* Makes recv give up (PTC_ETIMEOUT) when no message has come for so long. Also where the connection lives, a peer's
 * message may never come: without TLS a bit that changed on the way can make it one of another stream. */
void ptc_rpc_stream_patience(struct ptc_rpc_stream *s, int ms);
/* Waits for the peer's status. Messages that were not received yet are dropped. If the stream has no end, cancel it
 * first. */
int ptc_rpc_stream_finish(struct ptc_rpc_stream *s, struct ptc_error *err);
void ptc_rpc_stream_cancel(struct ptc_rpc_stream *s); /* any thread */
void ptc_rpc_stream_stood(struct ptc_rpc_stream *s);  /* cancels it because the peer lets it stand; any thread */
struct ptc_rpc_stream *ptc_rpc_stream_free(struct ptc_rpc_stream *s); /* cancels if unfinished; NULL ok */
