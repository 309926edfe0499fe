/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the etcd client only: endpoints, calls, listings, upkeep of a local etcd, and the threads of
 * leases and watches. */
#pragma once

#include "daemon/coord/etcd.h"
#include "proto/etcd.pb-c.h"
#include "proto/pb.h"

#include <pthread.h>
#include <stdatomic.h>

#define PTC_ETCD_MESSAGE_MAX (1400u << 10) /* etcd refuses requests over 1.5 MiB; the rest is framing */
#define PTC_ETCD_KEYS_MAX    1000000u      /* keys of one listing, unless the caller sets a lower limit */
#define PTC_ETCD_MAX_MEMBERS 64            /* endpoints; clusters have 3 to 7 */

struct ptc_etcd_endpoint {
	char *target;
	struct ptc_rpc_channel *channel;
};

/* A thread of a client: a lease's keep-alive or a watch. */
struct ptc_etcd_task {
	struct ptc_etcd *e;
	struct ptc_etcd_task *next; /* in e->tasks, guarded by e->lock */
	void (*run)(struct ptc_etcd_task *t);
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;           /* CLOCK_MONOTONIC */
	bool running;                  /* the thread must be joined; used by the owner only */
	bool stop;                     /* guarded by lock */
	struct ptc_rpc_stream *stream; /* guarded by lock; cancelled by _stop */
};

struct ptc_etcd {
	struct ptc_etcd_endpoint *ep;
	size_t nep;
	int timeout_ms;
	atomic_size_t preferred;     /* the endpoint that answered last */
	atomic_bool healthy;         /* that endpoint has not failed since */
	_Atomic int64_t answered_ms; /* when etcd last answered, by the realtime clock */
	pthread_mutex_t lock;
	struct ptc_etcd_task *tasks;
};

enum ptc_etcd_effect {
	PTC_ETCD_REPEATABLE, /* reads, and writes that may happen twice; tried again until the deadline */
	PTC_ETCD_ONCE,       /* sent once at most; a lost answer is reported and not retried */
};

/* One unary call. ptc_pb_free *ret_reply. timeout_ms 0: the client's timeout. */
int ptc_etcd_call(struct ptc_etcd *e, enum ptc_etcd_effect effect, const char *method, const ProtobufCMessage *request,
		  const ProtobufCMessageDescriptor *reply_type, int timeout_ms, ProtobufCMessage **ret_reply,
		  struct ptc_error *err);

/* A cheap linearizable read, which finds an endpoint that answers. deadline_ms is on the clock of ptc_sys_now_ns(). */
int ptc_etcd_probe(struct ptc_etcd *e, int64_t deadline_ms, struct ptc_error *err);

/* Receives a listing: one key at a time, all at one revision. restart: the revision was compacted meanwhile, so forget
 * the keys received so far. A `key` that returns other than 0 ends the listing with that code. */
struct ptc_etcd_lister {
	int (*key)(void *arg, const Ptc__Etcd__KeyValue *kv, struct ptc_error *err);
	void (*restart)(void *arg);
	void *arg;
	bool keys_only; /* the values are empty */
	int64_t since;  /* only keys that have changed after this revision; 0: all */
};
int ptc_etcd_list(struct ptc_etcd *e, const char *key, bool prefix, const struct ptc_etcd_lister *to,
		  int64_t *ret_revision, struct ptc_error *err);
/* Makes a copy with NUL-terminated key and value. */
int ptc_etcd_kv_copy(const Ptc__Etcd__KeyValue *from, struct ptc_etcd_kv *ret_kv, struct ptc_error *err);
void ptc_etcd_kv_done(struct ptc_etcd_kv *kv);
/* Whether the key can be one of ours. A key with a NUL inside is not: as a C string it would equal another key. */
bool ptc_etcd_key_ok(const Ptc__Etcd__KeyValue *kv);
/* The end of etcd's range for a prefix: [prefix, *ret_end). ptc_free(ret_end->data). */
int ptc_etcd_prefix_end(const char *prefix, ProtobufCBinaryData *ret_end, struct ptc_error *err);
static inline ProtobufCBinaryData ptc_etcd_bytes(const void *data, size_t len)
{
	union { /* protobuf-c packs from non-const pointers and never writes through them */
		const void *in;
		uint8_t *out;
	} p = { .in = data };

	return (ProtobufCBinaryData){ len, p.out };
}

/* State of the upkeep of a local etcd's database, kept from one look to the next. Zero at first. */
struct ptc_etcd_upkeep {
	int64_t seen;       /* the revision at the last look */
	int64_t forgotten;  /* the revision up to which the database is compacted */
	uint64_t used_then; /* bytes in use after that compaction */
	int nudges;         /* number of small writes still to make, so that freed pages count as free */
	int64_t rewritten;  /* the value of forgotten when the file was last rewritten (defragmented) */
	char said[PTC_ERROR_MAX];
};
/* Takes one look at the database, and compacts or rewrites it if needed. Blocks as long as etcd takes. `quota` is
 * etcd's --quota-backend-bytes. true: look again soon. */
bool ptc_etcd_upkeep(struct ptc_etcd *e, struct ptc_etcd_upkeep *u, uint64_t quota);

int ptc_etcd_task_start(struct ptc_etcd_task *t, struct ptc_etcd *e, const char *name,
			void (*run)(struct ptc_etcd_task *t), struct ptc_error *err);
void ptc_etcd_task_stop(struct ptc_etcd_task *t); /* joins the thread and leaves e's list; may be called twice */
void ptc_etcd_task_done(struct ptc_etcd_task *t); /* after _stop: destroys the lock and the condition */
/* Sleeps for ms milliseconds; true: the task must stop. On the task's thread. */
bool ptc_etcd_task_wait(struct ptc_etcd_task *t, int64_t ms);
/* Makes s the stream that _stop cancels (NULL: none). false: the task must stop already. */
bool ptc_etcd_task_stream(struct ptc_etcd_task *t, struct ptc_rpc_stream *s);
