/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the etcd client; nobody else includes it. */
#pragma once

#include "daemon/coord/etcd.h"
#include "proto/etcd.pb-c.h"
#include "proto/pb.h"

#include <pthread.h>
#include <stdatomic.h>

#define PTC_ETCD_MESSAGE_MAX (1400u << 10) /* etcd refuses requests over 1.5 MiB; the rest is framing */
#define PTC_ETCD_KEYS_MAX    1000000u      /* what one listing may hold unless the caller says less */
#define PTC_ETCD_MAX_MEMBERS 64            /* endpoints; clusters have 3 to 7 */

struct ptc_etcd_endpoint {
	char *target;
	struct ptc_rpc_channel *channel;
};

/* A thread that belongs to a client: a lease's keep-alive or a watch. */
struct ptc_etcd_task {
	struct ptc_etcd *e;
	struct ptc_etcd_task *next; /* in e->tasks, under e->lock */
	void (*run)(struct ptc_etcd_task *t);
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;           /* CLOCK_MONOTONIC */
	bool running;                  /* the thread is to be joined; owner only */
	bool stop;                     /* under lock */
	struct ptc_rpc_stream *stream; /* under lock; cancelled by _stop */
};

struct ptc_etcd {
	struct ptc_etcd_endpoint *ep;
	size_t nep;
	int timeout_ms;
	atomic_size_t preferred;     /* the endpoint that answered last */
	atomic_bool healthy;         /* and nothing failed there since */
	_Atomic int64_t answered_ms; /* the last time, by the realtime clock */
	pthread_mutex_t lock;
	struct ptc_etcd_task *tasks;
};

enum ptc_etcd_effect {
	PTC_ETCD_REPEATABLE, /* reads, and writes that may happen twice: tried again until the deadline */
	PTC_ETCD_ONCE,       /* sent once at most; a lost answer is reported, never retried */
};

/* One unary call. *ret_reply: ptc_pb_free it. timeout_ms 0: the client's. */
int ptc_etcd_call(struct ptc_etcd *e, enum ptc_etcd_effect effect, const char *method, const ProtobufCMessage *request,
		  const ProtobufCMessageDescriptor *reply_type, int timeout_ms, ProtobufCMessage **ret_reply,
		  struct ptc_error *err);

/* A linearizable read that costs nothing: finds an endpoint that answers. deadline_ms: on ptc_sys_now_ns()'s clock. */
int ptc_etcd_probe(struct ptc_etcd *e, int64_t deadline_ms, struct ptc_error *err);

/* One key at a time, all at one revision. restart: the revision was compacted
 * away in the middle; forget what came so far. Not 0 ends the listing with that code. */
struct ptc_etcd_lister {
	int (*key)(void *arg, const Ptc__Etcd__KeyValue *kv, struct ptc_error *err);
	void (*restart)(void *arg);
	void *arg;
	bool keys_only; /* values are empty */
};
int ptc_etcd_list(struct ptc_etcd *e, const char *key, bool prefix, const struct ptc_etcd_lister *to,
		  int64_t *ret_revision, struct ptc_error *err);
/* A copy with NUL-terminated key and value. */
int ptc_etcd_kv_copy(const Ptc__Etcd__KeyValue *from, struct ptc_etcd_kv *ret_kv, struct ptc_error *err);
void ptc_etcd_kv_done(struct ptc_etcd_kv *kv);
/* Is this one of ours? Keys with a NUL inside are not, and would alias others as C strings. */
bool ptc_etcd_key_ok(const Ptc__Etcd__KeyValue *kv);
/* etcd's range for a prefix: [prefix, *ret_end). ptc_free(ret_end->data). */
int ptc_etcd_prefix_end(const char *prefix, ProtobufCBinaryData *ret_end, struct ptc_error *err);
static inline ProtobufCBinaryData ptc_etcd_bytes(const void *data, size_t len)
{
	union { /* protobuf-c packs from non-const pointers and never writes through them */
		const void *in;
		uint8_t *out;
	} p = { .in = data };

	return (ProtobufCBinaryData){ len, p.out };
}

/* What the looks at a local etcd's database remember; zero at first. */
struct ptc_etcd_upkeep {
	int64_t seen;       /* the revision at the last look */
	int64_t forgotten;  /* compacted up to here */
	uint64_t used_then; /* bytes in use after that */
	int nudges;         /* writes still to be made */
	int64_t rewritten;  /* what was forgotten when the file was last written anew */
	char said[PTC_ERROR_MAX];
};
/* One look, and what follows from it; blocks as long as etcd takes. quota: its --quota-backend-bytes. True: look again
 * soon. */
bool ptc_etcd_upkeep(struct ptc_etcd *e, struct ptc_etcd_upkeep *u, uint64_t quota);

int ptc_etcd_task_start(struct ptc_etcd_task *t, struct ptc_etcd *e, const char *name,
			void (*run)(struct ptc_etcd_task *t), struct ptc_error *err);
void ptc_etcd_task_stop(struct ptc_etcd_task *t); /* joins; also leaves e's list; twice is fine */
void ptc_etcd_task_done(struct ptc_etcd_task *t); /* after _stop: the lock and the condition */
/* On the task's thread. Sleeps; true: stop. */
bool ptc_etcd_task_wait(struct ptc_etcd_task *t, int64_t ms);
/* Makes s the stream that _stop cancels (NULL: none). false: stop was asked for already. */
bool ptc_etcd_task_stream(struct ptc_etcd_task *t, struct ptc_rpc_stream *s);
