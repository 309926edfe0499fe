/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by channel.c, stream.c and async.c: the state of channels and of client calls in the C core. */
#pragma once

#include "rpc/client/client.h"
#include "rpc/internal.h"

struct ptc_rpc_channel {
	pthread_mutex_t lock; /* guards core, old, old_ns, turn, stood, renewed, listed, tried */
	grpc_channel *core;
	unsigned turn;     /* of core: each is made with the next number */
	bool stood;        /* a call on core stood: the next call gets another core, with a connection of its own */
	grpc_channel *old; /* the core before this one; NULL: none */
	int64_t old_ns;    /* when it became the old one */
	unsigned renewed;
	struct ptc_rpc_trust *trust;      /* NULL: no list of revoked certificates */
	unsigned listed;                  /* trust's epoch when core was made */
	unsigned tried;                   /* the last epoch for which we tried to make a core */
	struct ptc_rpc_channel_opts opts; /* the strings and tls are ours */
	struct ptc_rpc_tls tls;           /* copies */
	atomic_int refs;
	char target[PTC_RPC_ADDRESS_MAX], expect_node[PTC_NAME_MAX + 1];
};
struct ptc_rpc_channel *ptc_rpc_channel_ref(struct ptc_rpc_channel *ch);
/* What a call knows of the core on which it was made. */
struct ptc_rpc_origin {
	unsigned listed; /* the epoch of the list of revoked certificates by which its connection was, or will be,
			    verified; later, the epoch of the last look (ptc_rpc_channel_disowns) */
	unsigned turn;   /* the core's */
	int64_t made_ns;
};
/* Makes a call; nothing is sent yet. */
int ptc_rpc_channel_call(struct ptc_rpc_channel *ch, const char *method, grpc_completion_queue *cq, int timeout_ms,
			 grpc_call **ret_call, struct ptc_rpc_origin *ret_from, struct ptc_error *err);
/* Says that a call on the core of this turn stood without progress until its limit: later calls use another
 * connection. Any thread. */
void ptc_rpc_channel_stood(struct ptc_rpc_channel *ch, unsigned turn);
/* Whether the peer of `call` is on the current list of revoked certificates, where the list has changed since *listed.
 * Sets *listed to the current epoch. The call's initial metadata must have been sent. One thread per call. */
bool ptc_rpc_channel_disowns(struct ptc_rpc_channel *ch, grpc_call *call, unsigned *listed);
int ptc_rpc_channel_disowned(const struct ptc_rpc_channel *ch,
			     struct ptc_error *err); /* fills err; returns PTC_EPEER */

struct ptc_rpc_meta_list {
	grpc_metadata list[PTC_RPC_META_MAX];
	size_t count;
};
int ptc_rpc_meta_pack(struct ptc_rpc_meta_list *l, const struct ptc_rpc_meta *meta, size_t nmeta,
		      struct ptc_error *err);
void ptc_rpc_meta_done(struct ptc_rpc_meta_list *l);

/* The outputs of a client call's batches. They live as long as the call object that holds them. */
struct ptc_rpc_outcome {
	grpc_metadata_array initial, trailing;
	grpc_status_code code;
	grpc_slice details;
};
void ptc_rpc_outcome_init(struct ptc_rpc_outcome *o);
void ptc_rpc_outcome_done(struct ptc_rpc_outcome *o);
grpc_op ptc_rpc_outcome_status_op(struct ptc_rpc_outcome *o);
grpc_op ptc_rpc_outcome_initial_op(struct ptc_rpc_outcome *o);

/* Looks at a call's outcome: whether the call stood (ptc_rpc_channel_stood). */
void ptc_rpc_channel_judge(struct ptc_rpc_channel *ch, const struct ptc_rpc_origin *from,
			   const struct ptc_rpc_outcome *o);
/* Judges the outcome of a call, which began at began_ns, and says whether the call is made again. It is if no handler
 * has heard of it, for one of two reasons. The listener, or the kernel for it, closed the connection before anything
 * was sent: listeners close many connections so when somebody connects in a loop. Or the server says that the request
 * did not come; then it is made again once. timeout_ms 0: the call has no deadline. Returns the pause before, in
 * milliseconds, which is random, so that callers do not keep step; 0: it is not made again. */
int ptc_rpc_again_ms(struct ptc_rpc_channel *ch, const struct ptc_rpc_origin *from, const struct ptc_rpc_outcome *o,
		     int64_t began_ns, int timeout_ms);
/* The rest of timeout_ms, at least 1. 0 stays 0. */
int ptc_rpc_left_ms(int64_t began_ns, int timeout_ms);

/* One unary call, blocking or asynchronous. */
struct ptc_rpc_unary_call {
	struct ptc_rpc_channel *ch;
	grpc_call *core;
	struct ptc_rpc_origin from;
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
	grpc_byte_buffer *packed; /* borrowed: the packed request, instead of `request`; NULL: use `request` */
};
/* Makes the call and sends nothing. timeout_ms 0: no deadline. */
int ptc_rpc_unary_open(struct ptc_rpc_unary_call *u, struct ptc_rpc_channel *ch, const struct ptc_rpc_unary_args *args,
		       grpc_completion_queue *cq, struct ptc_error *err);
int ptc_rpc_unary_start(struct ptc_rpc_unary_call *u, struct ptc_rpc_channel *ch, const struct ptc_rpc_unary_args *args,
			grpc_completion_queue *cq, void *tag, struct ptc_error *err);
/* Call it after the status came. Returns 0 or the call's error. */
int ptc_rpc_unary_status(struct ptc_rpc_unary_call *u, struct ptc_error *err);
/* Call it after the tag came back. Returns the reply as one buffer; ptc_free it. */
int ptc_rpc_unary_result(struct ptc_rpc_unary_call *u, void **ret_reply, size_t *ret_len, struct ptc_error *err);
void ptc_rpc_unary_done(struct ptc_rpc_unary_call *u);
