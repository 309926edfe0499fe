/* SPDX-License-Identifier: Apache-2.0 */
/* Inside client/admin: the handle, and calls by method name. */
#pragma once

#include "base/status.h"
#include "client/admin/admin_locate.h"
#include "proto/pb.h"
#include "ptc.pb-c.h"
#include "rpc/client/client.h"

#include <pthread.h>

#define PTC_ADMIN_VERSION PTC_WIRE_VERSION

struct ptc_admin {
	struct ptc_rpc_channel *control, *bulk;
	int timeout_ms, measure_timeout_ms, stream_timeout_ms;
	struct {
		pthread_mutex_t lock;
		char *control;      /* path of the daemon's socket; NULL: the daemon is on another node */
		int fd;             /* -1: not connected */
		int64_t not_before; /* the next time to try a connection */
	} direct_read;              /* admin_direct_read.c */
};

/* A connection to the socket of direct reads of the daemon's own node. PTC_EPEER: there is none, or it's not the
 * daemon's; or one could not be made less than a second ago. The caller holds direct_read.lock. */
int ptc_admin_direct_connect_locked(struct ptc_admin *a, int *ret_fd);
/* One message, and the descriptor that comes with it (-1: none). */
ssize_t ptc_admin_direct_receive(int from, void *buf, size_t size, int *ret_fd);

/* The window of an ImportData stream (proto/direct_read.h); one thread. */
struct ptc_admin_window {
	int fd;       /* the connection; -1: there is none, so bytes go in messages */
	uint8_t *map; /* NULL: the same */
	uint8_t key[16];
	uint64_t sent, taken; /* parts; part n is in slot n modulo the number of slots */
	int64_t deadline_ns;
	struct ptc_rpc_stream *stream; /* borrowed */
};
/* Gets one for that stream, which lasts at most timeout_ms (0: for ever). False: there is none, *ret is empty. */
bool ptc_admin_window_open(struct ptc_admin *a, struct ptc_rpc_stream *stream, int timeout_ms,
			   struct ptc_admin_window *ret);
/* The slot for the next part, once the daemon has copied what was there. PTC_EPEER: the daemon has ended the window or
 * the stream; the stream says why. PTC_ETIMEOUT */
int ptc_admin_window_slot(struct ptc_admin_window *w, void **ret_slot, size_t *ret_len, struct ptc_error *err);
/* Hands over the first len bytes of that slot. */
int ptc_admin_window_send(struct ptc_admin_window *w, uint32_t item, uint64_t offset, size_t len,
			  struct ptc_error *err);
void ptc_admin_window_finish(struct ptc_admin_window *w); /* everything is handed over */
void ptc_admin_window_done(struct ptc_admin_window *w);

/* Copies a program's struct, which begins with `size`, into ret of this version's `size` bytes. Members that the
 * program does not know become zero. oldest: the struct's size in its first version. name: the struct's name, for the
 * message. PTC_EINVAL: the struct is smaller than that. PTC_EVERSION: the program sets a member that this version does
 * not know. */
int ptc_admin_take(const char *name, const void *given, size_t oldest, void *ret, size_t size, struct ptc_error *err);
#define PTC_ADMIN_TAKE(name, given, ret, err)                                                                          \
	ptc_admin_take("struct ptc_admin_" #name, given, PTC_ADMIN_OLDEST_##name, ret, sizeof *(ret), err)
/* Fills the program's struct, as far as the `size` that the program has set, and leaves `size` unchanged. */
int ptc_admin_give(const char *name, void *ret, size_t oldest, const void *mine, size_t size, struct ptc_error *err);
#define PTC_ADMIN_GIVE(name, ret, mine, err)                                                                           \
	ptc_admin_give("struct ptc_admin_" #name, ret, PTC_ADMIN_OLDEST_##name, mine, sizeof *(mine), err)
/* Sizes of the structs' first versions. If you add a member, do not change the struct's number here. */
#define PTC_ADMIN_OLDEST_opts      64
#define PTC_ADMIN_OLDEST_target    48
#define PTC_ADMIN_OLDEST_advice    24
#define PTC_ADMIN_OLDEST_logs      32
#define PTC_ADMIN_OLDEST_samples   64
#define PTC_ADMIN_OLDEST_ranges_fn 48
#define PTC_ADMIN_OLDEST_spec_opts 32
#define PTC_ADMIN_OLDEST_cluster   48
#define PTC_ADMIN_OLDEST_resume    48
#define PTC_ADMIN_OLDEST_item      112
#define PTC_ADMIN_OLDEST_move      184
#define PTC_ADMIN_OLDEST_totals    56
/* Gives a borrowed string for a message that only reads it; NULL becomes "". */
char *ptc_admin_borrow(const char *s);
/* Makes a unary call, within a->timeout_ms. Release *ret_reply with ptc_admin_reply_free. */
int ptc_admin_call(struct ptc_admin *a, const char *method, const ProtobufCMessage *request,
		   const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret_reply, struct ptc_error *err);
int ptc_admin_call_within(struct ptc_admin *a, int timeout_ms, const char *method, const ProtobufCMessage *request,
			  const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret_reply, struct ptc_error *err);
/* Makes a unary call that is answered by nothing but success. */
int ptc_admin_call_ack(struct ptc_admin *a, const char *method, const ProtobufCMessage *request, struct ptc_error *err);
/* Receives a reply. Returns 0 to go on; otherwise the call ends with that code. */
typedef int (*ptc_admin_reply_fn)(void *arg, const ProtobufCMessage *reply, struct ptc_error *err);
/* Sends one request and gives each reply of its stream to fn. */
int ptc_admin_call_stream(struct ptc_admin *a, const char *method, const ProtobufCMessage *request,
			  const ProtobufCMessageDescriptor *type, ptc_admin_reply_fn fn, void *arg,
			  struct ptc_error *err);
void ptc_admin_reply_free(ProtobufCMessage *reply);

/* Opens a stream and sends its one request. */
int ptc_admin_open_stream(struct ptc_admin *a, struct ptc_rpc_channel *channel, const char *method,
			  const ProtobufCMessage *request, struct ptc_rpc_stream **ret_stream, struct ptc_error *err);
int ptc_admin_unpack(const void *data, size_t len, const ProtobufCMessageDescriptor *type,
		     ProtobufCMessage **ret_message, struct ptc_error *err);
/* Copies a whole message into one buffer, which the caller frees with ptc_free. Consumes msg. */
int ptc_admin_gather(struct ptc_rpc_message *msg, void **ret_data, size_t *ret_len, struct ptc_error *err);
/* Calls fn for each message of a stream of Progress, and returns 0 after the message that says finished. */
int ptc_admin_follow(struct ptc_admin *a, const char *method, const ProtobufCMessage *request, ptc_admin_progress_fn fn,
		     void *arg, struct ptc_error *err);
