/* SPDX-License-Identifier: Apache-2.0 */
/* A client of etcd's v3 gRPC API: KV, Lease, Watch. Blocking and thread-safe;
 * the daemon calls it from tasks (daemon/cluster/tasks.h) and from threads of calls, never from the loop.
 *
 * Failure modes: unreachable endpoint (next one is tried until the deadline,
 * then PTC_ECOORD), compare failed (PTC_OK with succeeded=false), a Put/Txn whose outcome is
 * unknown because the connection broke after sending (PTC_ETIMEOUT or PTC_ECOORD; the caller
 * re-reads), a watch cancelled by compaction (re-listed inside; the callback sees a
 * PTC_WATCH_RESET followed by the current keys). */
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
	const struct ptc_rpc_tls *tls; /* NULL for unix endpoints or insecure loopback; outlives the client, its files
					  are read again after ptc_rpc_tls_renew */
	bool insecure;
	int timeout_ms; /* per operation; 0: 5000 */
};

int ptc_etcd_new(const struct ptc_etcd_opts *opts, struct ptc_etcd **ret_etcd, struct ptc_error *err);
struct ptc_etcd *ptc_etcd_free(struct ptc_etcd *e); /* stops watches and keep-alives; NULL ok */

struct ptc_etcd_kv {
	char *key;   /* NUL-terminated */
	char *value; /* NUL-terminated after len bytes */
	size_t len;
	int64_t create_revision, mod_revision, version, lease;
};
struct ptc_etcd_kvs {
	struct ptc_etcd_kv *kv;
	size_t n;
	int64_t revision; /* of the header */
};
void ptc_etcd_kvs_done(struct ptc_etcd_kvs *kvs);

/* key, or all keys with that prefix, paged inside so that no reply exceeds the message limit. At most max_keys (0: 1e6)
 * else PTC_ELIMIT. */
int ptc_etcd_get(struct ptc_etcd *e, const char *key, bool prefix, size_t max_keys, struct ptc_etcd_kvs *ret_kvs,
		 struct ptc_error *err);

/* As ptc_etcd_get for a prefix, with empty values: where those are long and not wanted. */
int ptc_etcd_get_keys(struct ptc_etcd *e, const char *prefix, struct ptc_etcd_kvs *ret_kvs, struct ptc_error *err);

enum ptc_etcd_target { PTC_ETCD_CREATE_REV, PTC_ETCD_MOD_REV, PTC_ETCD_VERSION };
struct ptc_etcd_compare {
	const char *key;
	enum ptc_etcd_target target;
	int64_t equal;
}; /* revision 0: key does not exist */
struct ptc_etcd_op {
	const char *key;
	const char *value; /* NULL: delete */
	size_t len;
	int64_t lease; /* 0: none */
	bool prefix;   /* delete: everything with this prefix */
	const char
		*until; /* delete: every key from `key` on that comes before this one; NULL: one key, or the prefix */
};
/* All compares hold: all ops happen, *ret_succeeded true; else nothing, false. *ret_revision: header revision.
 * Fault points "<point>.before" and "<point>.after" around it (point may be NULL: "etcd.txn"). */
int ptc_etcd_txn(struct ptc_etcd *e, const struct ptc_etcd_compare *cmp, size_t ncmp, const struct ptc_etcd_op *ops,
		 size_t nops, const char *point, bool *ret_succeeded, int64_t *ret_revision, struct ptc_error *err);
int ptc_etcd_count(struct ptc_etcd *e, const char *prefix, size_t *ret_n, struct ptc_error *err);
/* One Put without a compare, and one DeleteRange; through the same fault points. */
int ptc_etcd_put(struct ptc_etcd *e, const char *key, const void *value, size_t len, int64_t lease, const char *point,
		 struct ptc_error *err);
int ptc_etcd_delete(struct ptc_etcd *e, const char *key, bool prefix, const char *point, struct ptc_error *err);

/* The database's file at the endpoint that answers, what of it is in use (history included), and whether it takes no
 * writes any more because it has come to its quota. */
struct ptc_etcd_size {
	uint64_t bytes, used;
	int64_t revision;
	bool full;
};
int ptc_etcd_size(struct ptc_etcd *e, struct ptc_etcd_size *ret_size, struct ptc_error *err);
/* Any thread, at once: whether it did not answer when it was asked last (leases ask every third of their TTL), and when
 * it did (realtime clock). */
bool ptc_etcd_unreachable(const struct ptc_etcd *e, int64_t *ret_answered_ms);

/* A lease and its keep-alive thread. on_lost runs once, on that thread, when etcd says
 * the lease is gone or no keep-alive succeeded for a whole TTL. */
struct ptc_etcd_lease;
int ptc_etcd_lease_new(struct ptc_etcd *e, int ttl_s, void (*on_lost)(void *arg), void *arg,
		       struct ptc_etcd_lease **ret_lease, struct ptc_error *err);
int64_t ptc_etcd_lease_id(const struct ptc_etcd_lease *l);
struct ptc_etcd_lease *ptc_etcd_lease_free(struct ptc_etcd_lease *l, bool revoke); /* NULL ok */
int ptc_etcd_revoke(struct ptc_etcd *e, int64_t lease, struct ptc_error *err); /* any lease, e.g. a node found dead */

enum ptc_watch_kind { PTC_WATCH_PUT, PTC_WATCH_DELETE, PTC_WATCH_RESET, PTC_WATCH_SYNCED };
/* RESET: forget all; PUTs of every current key follow, then SYNCED. The first listing is delivered the same way. Runs
 * on the watch thread. */
typedef void (*ptc_watch_fn)(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv);
struct ptc_etcd_watch;
int ptc_etcd_watch_new(struct ptc_etcd *e, const char *prefix, ptc_watch_fn fn, void *arg,
		       struct ptc_etcd_watch **ret_watch, struct ptc_error *err);
struct ptc_etcd_watch *ptc_etcd_watch_free(struct ptc_etcd_watch *w); /* NULL ok */

/* ---- the local coordinator: Debian's etcd as a supervised child --------- */

struct ptc_etcd_child;
struct ptc_etcd_child_opts {
	const char *data_dir;   /* 0700; holds etcd's data, its pid file and, in unix mode, its sockets */
	const char *client_url; /* "https://127.0.0.1:2379" with tls, "unix" (a socket in data_dir), or
				   "http://127.0.0.1:PORT" with insecure */
	const struct ptc_rpc_tls *tls;
	bool insecure;
	const char *binary;    /* NULL: "etcd" beside our helpers (base/sys/helper.h), else in PATH */
	uint64_t quota_bytes;  /* of its database: writes are refused beyond it; 0: PTC_ETCD_QUOTA */
	int look_ms;           /* between looks at database and log; 0: 5000 */
	uint64_t memory_bytes; /* its share: its garbage collector keeps to three quarters of it; 0: as it likes */
};
/* Starts it (or adopts / ends one left by a dead daemon on the same data_dir, known by pid file + start time)
 * and waits until it answers. It is restarted when it exits (1 s apart). It dies with us only through _free.
 * Also callable without a loop. *ret_endpoint is what ptc_etcd_opts.endpoints takes; ptc_free it. */
int ptc_etcd_child_new(const struct ptc_etcd_child_opts *opts, struct ptc_etcd_child **ret_child, char **ret_endpoint,
		       struct ptc_error *err);
int ptc_etcd_child_rss_bytes(const struct ptc_etcd_child *c, uint64_t *ret_bytes);
struct ptc_etcd_child *ptc_etcd_child_free(struct ptc_etcd_child *c); /* SIGTERM, then SIGKILL after 5 s; NULL ok */
