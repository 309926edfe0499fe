/* SPDX-License-Identifier: Apache-2.0 */
/* A client of etcd's v3 gRPC API: KV, Lease and Watch; and a local etcd as a child process. All calls block. Any thread
 * but the loop: the daemon calls it from tasks (daemon/cluster/tasks.h) and from threads of calls.
 *
 * Failure modes:
 * - An endpoint is unreachable: the next one is tried until the deadline, then PTC_ECOORD.
 * - A compare failed: PTC_OK, and *ret_succeeded is false.
 * - The outcome of a Put or Txn is unknown, because the connection broke after sending: PTC_ETIMEOUT or PTC_ECOORD. The
 *   caller reads again.
 * - Compaction cancelled a watch: the watch lists the keys again. Its callback gets PTC_WATCH_RESET, then the keys. */
#pragma once

#include "base/status.h"
#include "rpc/client/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_etcd;

struct ptc_etcd_opts {
	const char *const *endpoints; /* "host:port" or "unix:/path" */
	size_t nendpoints;
	/* NULL for unix endpoints or insecure loopback. Must outlive the client; its files are read again after
	 * ptc_rpc_tls_renew */
	const struct ptc_rpc_tls *tls;
	bool insecure;
	int timeout_ms; /* milliseconds per operation; 0: 5000 */
};

int ptc_etcd_new(const struct ptc_etcd_opts *opts, struct ptc_etcd **ret_etcd, struct ptc_error *err);
struct ptc_etcd *ptc_etcd_free(struct ptc_etcd *e); /* stops watches and keep-alives; NULL ok */

struct ptc_etcd_kv {
	char *key;   /* NUL-terminated */
	char *value; /* len bytes and a NUL */
	size_t len;
	int64_t create_revision, mod_revision, version, lease;
};
struct ptc_etcd_kvs {
	struct ptc_etcd_kv *kv;
	size_t n;
	int64_t revision; /* of the reply's header */
};
void ptc_etcd_kvs_done(struct ptc_etcd_kvs *kvs);

/* Reads one key, or all keys with a prefix. A listing is read in pages, so that no reply exceeds the message limit.
 * PTC_ELIMIT: there are more than max_keys (0: 1e6). */
int ptc_etcd_get(struct ptc_etcd *e, const char *key, bool prefix, size_t max_keys, struct ptc_etcd_kvs *ret_kvs,
		 struct ptc_error *err);

/* Reads the keys with a prefix that were written after a revision; 0: all. The next read goes on from
 * ret_kvs->revision. */
int ptc_etcd_get_since(struct ptc_etcd *e, const char *prefix, int64_t since, struct ptc_etcd_kvs *ret_kvs,
		       struct ptc_error *err);

/* Lists the keys with a prefix, with empty values. For values that are long and not needed. */
int ptc_etcd_get_keys(struct ptc_etcd *e, const char *prefix, struct ptc_etcd_kvs *ret_kvs, struct ptc_error *err);

enum ptc_etcd_target {
	PTC_ETCD_CREATE_REV,
	PTC_ETCD_MOD_REV,
	PTC_ETCD_VERSION,
	PTC_ETCD_NONE_AFTER, /* no key with the prefix `key` was created after revision `equal` */
};
struct ptc_etcd_compare {
	const char *key;
	enum ptc_etcd_target target;
	int64_t equal;
}; /* revision 0: the key does not exist */
struct ptc_etcd_op {
	const char *key;
	const char *value; /* NULL: delete */
	size_t len;
	int64_t lease;     /* 0: none */
	bool prefix;       /* delete: every key with this prefix */
	const char *until; /* delete: every key from `key` up to, but without, this one; NULL: one key, or the prefix */
};
/* One transaction. If all compares hold, all ops happen and *ret_succeeded is true. Otherwise nothing happens and it is
 * false. *ret_revision is the header's revision. Passes the fault points "<point>.before" and "<point>.after"; `point`
 * may be NULL: "etcd.txn". */
int ptc_etcd_txn(struct ptc_etcd *e, const struct ptc_etcd_compare *cmp, size_t ncmp, const struct ptc_etcd_op *ops,
		 size_t nops, const char *point, bool *ret_succeeded, int64_t *ret_revision, struct ptc_error *err);
int ptc_etcd_count(struct ptc_etcd *e, const char *prefix, size_t *ret_n, struct ptc_error *err);
/* One Put without a compare, and one DeleteRange. They pass the same fault points. */
int ptc_etcd_put(struct ptc_etcd *e, const char *key, const void *value, size_t len, int64_t lease, const char *point,
		 struct ptc_error *err);
int ptc_etcd_delete(struct ptc_etcd *e, const char *key, bool prefix, const char *point, struct ptc_error *err);

/* The database of the endpoint that answers: the size of its file, the bytes in use (history included), and whether it
 * refuses writes because its quota is reached. */
struct ptc_etcd_size {
	uint64_t bytes, used;
	int64_t revision;
	bool full;
};
int ptc_etcd_size(struct ptc_etcd *e, struct ptc_etcd_size *ret_size, struct ptc_error *err);
/* Whether etcd did not answer the last request, and when it last answered (realtime clock). Keep-alives ask every third
 * of a lease's TTL. Does not block; any thread. */
bool ptc_etcd_unreachable(const struct ptc_etcd *e, int64_t *ret_answered_ms);

/* A lease and its keep-alive thread. on_lost runs once, on that thread, when etcd says that the lease is gone, or when
 * no keep-alive succeeded for a whole TTL. */
struct ptc_etcd_lease;
int ptc_etcd_lease_new(struct ptc_etcd *e, int ttl_s, void (*on_lost)(void *arg), void *arg,
		       struct ptc_etcd_lease **ret_lease, struct ptc_error *err);
int64_t ptc_etcd_lease_id(const struct ptc_etcd_lease *l);
struct ptc_etcd_lease *ptc_etcd_lease_free(struct ptc_etcd_lease *l, bool revoke); /* NULL ok */
/* How long a lease lives that nobody renews from now on, and its TTL. etcd leaves the fraction of a second out: 0 is
 * said of a lease that has less than 1 s left, and of one that has ended and is about to be revoked. Negative: there is
 * no such lease. timeout_ms 0: that of the client. */
struct ptc_etcd_left {
	int64_t left_s, ttl_s;
};
int ptc_etcd_lease_left(struct ptc_etcd *e, int64_t lease, int timeout_ms, struct ptc_etcd_left *ret_left,
			struct ptc_error *err);
/* revokes any lease, e.g. of a node that is known to be dead */
int ptc_etcd_revoke(struct ptc_etcd *e, int64_t lease, struct ptc_error *err);

enum ptc_watch_kind { PTC_WATCH_PUT, PTC_WATCH_DELETE, PTC_WATCH_RESET, PTC_WATCH_SYNCED };
/* The callback of a watch; runs on the watch's thread. RESET: forget all keys. PUTs of every current key follow, then
 * SYNCED. The first listing comes in the same way. */
typedef void (*ptc_watch_fn)(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv);
struct ptc_etcd_watch;
int ptc_etcd_watch_new(struct ptc_etcd *e, const char *prefix, ptc_watch_fn fn, void *arg,
		       struct ptc_etcd_watch **ret_watch, struct ptc_error *err);
/* The same without a listing: RESET and SYNCED, and no key between them. A reader that reads after each SYNCED, and
 * after each change, misses nothing. For prefixes with many keys, of which few matter. */
int ptc_etcd_watch_changes(struct ptc_etcd *e, const char *prefix, ptc_watch_fn fn, void *arg,
			   struct ptc_etcd_watch **ret_watch, struct ptc_error *err);
struct ptc_etcd_watch *ptc_etcd_watch_free(struct ptc_etcd_watch *w); /* NULL ok */

/* ---- the local coordinator: Debian's etcd as a supervised child --------- */

struct ptc_etcd_child;
struct ptc_etcd_child_opts {
	const char *data_dir; /* mode 0700; holds etcd's data, its pid file and, in unix mode, its sockets */
	/* "https://127.0.0.1:2379" with tls, "unix" (a socket in data_dir), or "http://127.0.0.1:PORT" with insecure */
	const char *client_url;
	const struct ptc_rpc_tls *tls;
	bool insecure;
	const char *binary;   /* NULL: "etcd" beside our helpers (base/sys/helper.h), else in PATH */
	uint64_t quota_bytes; /* of its database; etcd refuses writes beyond it; 0: PTC_ETCD_QUOTA */
	int look_ms;          /* milliseconds between looks at database and log; 0: 5000 */
	/* its share of memory: its garbage collector keeps to three quarters of it; 0: no limit */
	uint64_t memory_bytes;
};
/* Starts etcd and waits until it answers. If a dead daemon left an etcd in data_dir, that one is adopted or ended; it
 * is known by pid file and start time. etcd is restarted 1 s after it exits. It ends with ptc_etcd_child_free only.
 * Needs no loop. *ret_endpoint is for ptc_etcd_opts.endpoints; ptc_free it. */
int ptc_etcd_child_new(const struct ptc_etcd_child_opts *opts, struct ptc_etcd_child **ret_child, char **ret_endpoint,
		       struct ptc_error *err);
struct ptc_etcd_child *ptc_etcd_child_free(struct ptc_etcd_child *c); /* SIGTERM, then SIGKILL after 5 s; NULL ok */
