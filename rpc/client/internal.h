/* SPDX-License-Identifier: Apache-2.0 */
/* Between channel.c, stream.c and async.c: client calls as the C core has them. */
#pragma once

#include "rpc/client/client.h"
#include "rpc/internal.h"

struct ptc_rpc_channel {
	pthread_mutex_t lock; /* core, old, renewed, listed, tried */
	grpc_channel *core;
	grpc_channel *old; /* what core was before certificates were renewed; NULL: none */
	int64_t old_ns;    /* since when */
	unsigned renewed;
	struct ptc_rpc_trust *trust;      /* NULL: no list of revoked certificates */
	unsigned listed;                  /* its epoch when core was made */
	unsigned tried;                   /* the last epoch that a core was to be made for */
	struct ptc_rpc_channel_opts opts; /* its strings are ours, its tls the caller's */
	atomic_int refs;
	char target[PTC_RPC_ADDRESS_MAX], expect_node[PTC_NAME_MAX + 1];
};
struct ptc_rpc_channel *ptc_rpc_channel_ref(struct ptc_rpc_channel *ch);
/* *ret_listed: the list of revoked certificates that the call's connection was, or will be, verified by. */
int ptc_rpc_channel_call(struct ptc_rpc_channel *ch, const char *method, grpc_completion_queue *cq, int timeout_ms,
			 grpc_call **ret_call, unsigned *ret_listed, struct ptc_error *err);
/* A call whose initial metadata is sent: the list has changed since *listed, which moves on, and names the peer. One
 * thread per call. */
bool ptc_rpc_channel_disowns(struct ptc_rpc_channel *ch, grpc_call *call, unsigned *listed);
int ptc_rpc_channel_disowned(const struct ptc_rpc_channel *ch, struct ptc_error *err); /* PTC_EPEER, and why */

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
	unsigned listed; /* as in ptc_rpc_channel_call */
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
/* The call, with nothing sent; timeout_ms 0: none. */
int ptc_rpc_unary_open(struct ptc_rpc_unary_call *u, struct ptc_rpc_channel *ch, const struct ptc_rpc_unary_args *args,
		       grpc_completion_queue *cq, struct ptc_error *err);
int ptc_rpc_unary_start(struct ptc_rpc_unary_call *u, struct ptc_rpc_channel *ch, const struct ptc_rpc_unary_args *args,
			grpc_completion_queue *cq, void *tag, struct ptc_error *err);
/* After the status came: whether it is a success. */
int ptc_rpc_unary_status(struct ptc_rpc_unary_call *u, struct ptc_error *err);
/* After the tag came back: the reply, flat; ptc_free it. */
int ptc_rpc_unary_result(struct ptc_rpc_unary_call *u, void **ret_reply, size_t *ret_len, struct ptc_error *err);
void ptc_rpc_unary_done(struct ptc_rpc_unary_call *u);
