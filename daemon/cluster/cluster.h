/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster as this daemon sees it: a mirror of /ptc/nodes and /ptc/jobs,
 * kept by watches and owned by the loop; our own node's lease; and the one
 * coordination thread on which every blocking etcd operation runs, in order.
 *
 * Happy path: new (connects, checks /ptc/cluster against our state
 * directory), start (lease, node key, watches), then the mirror is synced and
 * every change calls on_change on the loop.
 * Failure modes: etcd unreachable (operations fail with PTC_ECOORD; the mirror
 * keeps its last view and `coordinator_ok` is false), lease lost (on_lease(false);
 * a new one is taken as soon as etcd answers), a node key that somebody deletes
 * (it is written again), an etcd that lost its data while we run (no lease, and
 * nothing of ours is removed), a node key of an earlier life
 * of ours (its lease is revoked first), the same node name in use by another
 * machine (PTC_EEXIST at start). */
#pragma once

#include "daemon/coord/etcd.h"
#include "daemon/cluster/records.h"
#include "rpc/client/client.h"

#define PTC_BLOB_KEY 160 /* bytes of a key of a part of a blob */

struct ptc_cluster;

struct ptc_node {
	struct ptc_node_doc doc;
	bool up; /* its key exists */
	bool drained;
	bool seen, seen_drained; /* in the listing under way */
	int64_t create_revision; /* of the key, while up */
	int64_t lease;
};

/* What one node last told of a job's ranks. */
struct ptc_worker_view {
	char node[PTC_NAME_MAX + 1];
	struct ptc_worker_doc doc;
	bool seen;
};

struct ptc_job_view {
	char uuid[PTC_UUID_TEXT];
	bool has_meta, has_record, has_intent, has_lock;
	bool bad_record; /* there is one, which this version cannot read */
	struct ptc_meta_doc meta;
	struct ptc_record_doc record;
	int64_t record_revision; /* mod_revision of the record */
	struct ptc_intent_doc intent;
	char lock_node[PTC_NAME_MAX + 1];
	int64_t lock_revision;   /* create_revision: the fencing token */
	unsigned ticks_unlocked; /* see controller election */
	struct ptc_worker_view *workers;
	size_t nworkers; /* at most PTC_MAX_NODES */
	struct {
		bool meta, record, intent, lock;
	} seen; /* in the listing under way */
};

struct ptc_cluster_opts {
	struct ptc_loop *loop;
	struct ptc_etcd_opts etcd;
	struct ptc_node_doc node;
	const char *state_dir; /* holds the file `cluster` */
	int lease_ttl_s;
	struct ptc_cluster_quota {
		uint64_t jobs, documents, etcd; /* cluster/quota.h */
	} quota;
	/* Loop thread. job NULL: nodes changed. */
	void (*on_change)(void *arg, struct ptc_job_view *job);
	void (*on_synced)(void *arg); /* both mirrors complete, at start and after each re-listing */
	void (*on_lease)(void *arg, bool have);
	void (*on_node_up)(void *arg, const char *node); /* before on_change: a node has a key it did not have */
	void *arg;
};

int ptc_cluster_new(const struct ptc_cluster_opts *opts, struct ptc_cluster **ret_cluster, struct ptc_error *err);
int ptc_cluster_start(struct ptc_cluster *c, struct ptc_error *err);
/* Loop thread. Revokes our lease, stops threads. NULL ok. */
struct ptc_cluster *ptc_cluster_free(struct ptc_cluster *c);

/* Any thread: the etcd client, for reads that may block. */
struct ptc_etcd *ptc_cluster_etcd(struct ptc_cluster *c);
struct ptc_loop *ptc_cluster_loop(const struct ptc_cluster *c);
const struct ptc_cluster_quota *ptc_cluster_quota(const struct ptc_cluster *c);
int64_t ptc_cluster_lease(struct ptc_cluster *c);             /* 0: none now; any thread */
const char *ptc_cluster_self(const struct ptc_cluster *c);    /* our node's name; any thread */
const char *ptc_cluster_boot_id(const struct ptc_cluster *c); /* of our run; any thread */
/* Any thread, blocking: whether etcd still is the one our state belongs to (PTC_ESTATE). What it does not know may be removed
 * from this node only then. */
int ptc_cluster_check(struct ptc_cluster *c, struct ptc_error *err);
/* Any thread: work runs on the coordination thread, then done on the loop (also after shutdown began, so that arg can be freed). */
int ptc_cluster_run(struct ptc_cluster *c, void (*work)(void *arg, struct ptc_etcd *etcd), void (*done)(void *arg),
		    void *arg);

/* Loop thread only. Node numbers never change while we run; nodes are only added. */
size_t ptc_cluster_nnodes(const struct ptc_cluster *c);
struct ptc_node *ptc_cluster_node(struct ptc_cluster *c, uint32_t index);
bool ptc_cluster_find_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index);
/* As find, but adds an unknown (down) node: a record may name one that is away. PTC_ENOMEM or 0. */
int ptc_cluster_intern_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index);
size_t ptc_cluster_njobs(const struct ptc_cluster *c);
struct ptc_job_view *ptc_cluster_job(struct ptc_cluster *c, size_t index);
/* The job that uid means by `ref`: its uuid, UID:NAME, or the name of one of his own; for root also of the only one of that
 * name. PTC_ENOTFOUND also where it is somebody else's; PTC_EINVAL: several users have one, err names them. */
int ptc_cluster_find_job(struct ptc_cluster *c, const char *ref, uid_t uid, struct ptc_job_view **ret_job,
			 struct ptc_error *err);
struct ptc_job_view *ptc_cluster_find_uuid(struct ptc_cluster *c, const char *uuid);
/* Grows with every change of a node. */
uint64_t ptc_cluster_epoch(const struct ptc_cluster *c);
bool ptc_cluster_synced(const struct ptc_cluster *c);

/* How large etcd's database was when it was looked at last; zeros before. ptc_cluster_look asks for another look, and returns at once. */
struct ptc_cluster_database {
	uint64_t bytes, used;
	bool full; /* it takes no writes */
};
struct ptc_cluster_database ptc_cluster_database(struct ptc_cluster *c);
void ptc_cluster_look(struct ptc_cluster *c);

/* Blobs: content-addressed, any thread, blocking. Written only while `guard` holds (PTC_EFENCED else): a blob of a job
 * that is gone, or of a controller that is none any more, would never be collected. */
int ptc_blob_put(struct ptc_etcd *e, const char *uuid, const struct ptc_etcd_compare *guard, const void *data,
		 size_t len, char ret_hash[PTC_HASH_HEX], struct ptc_error *err);
/* One of a single part, as an operation of the caller's own transaction: then it is there when that has happened, and only then.
 * The operation borrows data and ret_key. False: it has more parts; ptc_blob_put it before. */
bool ptc_blob_op(const char *uuid, const void *data, size_t len, char ret_hash[PTC_HASH_HEX],
		 char ret_key[PTC_BLOB_KEY], struct ptc_etcd_op *ret_op);
int ptc_blob_get(struct ptc_etcd *e, const char *uuid, const char *hash, size_t max, char **ret_data, size_t *ret_len,
		 struct ptc_error *err);
