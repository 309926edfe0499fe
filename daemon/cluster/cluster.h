/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster as this daemon sees it. The mirror is a copy of /ptc/nodes and /ptc/jobs; watches keep it and the loop
 * owns it. One thread keeps this node's lease; another replaces a lost one. Tasks use etcd or compute, off the loop.
 *
 * Happy path: new connects, and compares /ptc/cluster with the state directory. start takes the lease, writes the node
 * key and begins the watches. Then the mirror is synced, and every change calls on_change on the loop.
 *
 * Failure modes:
 * - etcd is unreachable: operations fail with PTC_ECOORD; the mirror keeps its last view.
 * - The lease is lost: on_lease(false); the thread takes a new one as soon as etcd answers.
 * - Somebody deletes the node key: it is written again.
 * - etcd has lost its data: the daemon takes no lease, and removes nothing from this node.
 * - A node key of an earlier run of this daemon exists: its lease is revoked first.
 * - Another machine uses the node's name: PTC_EEXIST at start. */
#pragma once

#include "daemon/coord/etcd.h"
#include "daemon/cluster/copies/copies_doc.h"
#include "daemon/cluster/older/older_doc.h"
#include "daemon/cluster/devices/given_devices.h"
#include "daemon/cluster/devices/slow_devices.h"
#include "daemon/cluster/loss/lease_end.h"
#include "daemon/cluster/loss/node_loss.h"
#include "daemon/cluster/loss/quarantine.h"
#include "daemon/cluster/records.h"
#include "daemon/cluster/tasks.h"
#include "rpc/client/client.h"

#define PTC_BLOB_KEY 160 /* bytes of a key of a part of a blob */
struct ptc_cluster;

struct ptc_node {
	struct ptc_node_doc doc;
	bool up, drained;               /* up: its key exists */
	bool known, forgotten, naming;  /* in the register; taken out of it while it was down; being put into it */
	bool declared;                  /* an operator declared it lost; counts while it is down */
	bool lost, unreachable, closed; /* down, and: switches go on without it (loss/); nobody is there; it refuses */
	struct ptc_refusals refusals;
	int64_t down_ns; /* since when this daemon has seen it down; 0: it is up */
	struct ptc_quarantine quarantine;
	uint64_t marked, seen_marked;                       /* its devices that an operator calls bad, as bits */
	bool seen, seen_drained, seen_declared, seen_known; /* in the listing under way */
	int64_t create_revision, lease;                     /* of the key, while up */
	struct ptc_lease_end *end; /* while up: whether its lease is about to end; NULL: no controller asks */
};

/* Whether switches of a job go on without the node. A node without a lease does not end its ranks by itself, so they
 * may still write to their user's files. Therefore a job that has had ranks goes on only if an operator declared the
 * node lost, or if the controller has seen that no step ends any more (daemon/controller/recovery). */
static inline bool ptc_node_lost_for(const struct ptc_node *n, const struct ptc_record_doc *r)
{
	return n->lost && r->run != PTC_RUN_LIVE && (n->declared || r->run == PTC_RUN_NONE || r->recovery);
}

struct ptc_worker_view { /* a node's last report about a job's ranks */
	char node[PTC_NAME_MAX + 1];
	struct ptc_worker_doc doc;
	bool seen;
};

struct ptc_job_view {
	char uuid[PTC_UUID_TEXT];
	uint64_t changes, documents; /* how often its keys have changed; documents: without lock and workers */
	bool has_meta, has_record, has_intent, has_lock;
	bool bad_record; /* there is a record that this version cannot read */
	struct ptc_meta_doc meta;
	struct ptc_record_doc record;
	int64_t record_revision, copies_revision, older_revision; /* mod_revisions; 0: there is none */
	struct ptc_intent_doc intent;
	struct ptc_copies_doc copies; /* of zeros where there is none, or none that this version can read */
	struct ptc_older_doc older;   /* snapshots beside the committed one; likewise */
	struct ptc_slow_devices slow; /* devices that it has left, some of whose time may be over */
	char lock_node[PTC_NAME_MAX + 1];
	int64_t lock_fence;              /* base/number/fence.h */
	struct ptc_lock_wait *lock_wait; /* of daemon/controller/taking, freed with the view; NULL: none */
	struct ptc_worker_view *workers;
	size_t nworkers; /* at most PTC_MAX_NODES */
	struct {
		bool meta, record, intent, lock, copies, older;
	} seen; /* in the listing under way */
};

struct ptc_cluster_opts {
	struct ptc_loop *loop;
	struct ptc_etcd_opts etcd;
	struct ptc_node_doc node;
	const char *state_dir; /* holds the file `cluster` */
	int lease_ttl_s;
	int64_t node_lost_after_ns, node_quarantine_ns; /* quarantine: after the second loss; 0: never */
	struct ptc_cluster_quota {
		uint64_t jobs, datasets, documents, etcd; /* cluster/quota.h */
	} quota;
	void (*on_change)(void *arg, struct ptc_job_view *job); /* all on the loop thread; job NULL: nodes changed */
	void (*on_synced)(void *arg); /* both mirrors are complete, at start and after each new listing */
	void (*on_lease)(void *arg, bool have);
	void (*on_node_up)(void *arg, const char *node); /* before on_change: a node has got a key */
	void *arg;
};

int ptc_cluster_new(const struct ptc_cluster_opts *opts, struct ptc_cluster **ret_cluster, struct ptc_error *err);
/* Before start: whether this node must not begin with this etcd yet; err says why (identity/identity.h). Blocking. */
int ptc_cluster_waits(struct ptc_cluster *c, bool *ret_waits, struct ptc_error *err);
int ptc_cluster_old_answers(struct ptc_cluster *c, char **ret_endpoint, struct ptc_error *err); /* identity.h */
int ptc_cluster_start(struct ptc_cluster *c, struct ptc_error *err);
struct ptc_cluster *ptc_cluster_free(struct ptc_cluster *c); /* revokes the lease, ends threads; loop; NULL ok */

struct ptc_etcd *ptc_cluster_etcd(struct ptc_cluster *c); /* for reads that may block; any thread */
struct ptc_loop *ptc_cluster_loop(const struct ptc_cluster *c);
const struct ptc_cluster_quota *ptc_cluster_quota(const struct ptc_cluster *c);
int64_t ptc_cluster_lease(struct ptc_cluster *c);             /* 0: there is none now; any thread */
int64_t ptc_cluster_store_since(const struct ptc_cluster *c); /* revision at which our store came; any thread */
const char *ptc_cluster_self(const struct ptc_cluster *c);    /* this node's name; any thread */
const char *ptc_cluster_boot_id(const struct ptc_cluster *c); /* of this run of the daemon; any thread */
/* PTC_ESTATE: etcd is not that of this node's state directory, so what it does not know must stay here. Any thread. */
int ptc_cluster_check(struct ptc_cluster *c, struct ptc_error *err);
/* Runs work on a thread that may wait for etcd, then done (NULL ok) on the loop, also after shutdown has begun, so that
 * done can free arg. Tasks of one lane run in turn; a job's lane is its uuid (tasks.h). Any thread. */
int ptc_cluster_run(struct ptc_cluster *c, const char *lane, void (*work)(void *arg, struct ptc_etcd *etcd),
		    void (*done)(void *arg), void *arg);
int ptc_cluster_steps(struct ptc_cluster *c, const char *lane, const struct ptc_task_step *steps,
		      void (*done)(void *arg), void *arg);
int ptc_cluster_run_later(struct ptc_cluster *c, const char *lane, int64_t delay_ms,
			  void (*work)(void *arg, struct ptc_etcd *etcd), void (*done)(void *arg), void *arg);

/* Waits until holds(arg) is true, on any thread that may block. The loop calls holds now, after each change of the
 * mirror, and after each ptc_cluster_changed. The caller's thread calls gone (NULL ok). PTC_ETIMEOUT: ms have passed.
 * PTC_ECANCELED: the daemon stops, or gone(gone_arg) is true. */
struct ptc_cluster_wait {
	bool (*holds)(void *arg);
	void *arg;
	int64_t ms;
	bool (*gone)(void *arg);
	void *gone_arg;
};
int ptc_cluster_wait(struct ptc_cluster *c, const struct ptc_cluster_wait *w);
void ptc_cluster_changed(struct ptc_cluster *c); /* after another change that somebody may wait for; loop thread */

/* The next functions are for the loop thread only. Nodes are only added, so node numbers never change in a run. */
size_t ptc_cluster_nnodes(const struct ptc_cluster *c);
struct ptc_node *ptc_cluster_node(struct ptc_cluster *c, uint32_t index);
bool ptc_cluster_find_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index);
/* Finds a node that a job's generation names. It is listed, and in the register, from then on. 0 or an error code. */
int ptc_cluster_name_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index);
size_t ptc_cluster_njobs(const struct ptc_cluster *c);
struct ptc_job_view *ptc_cluster_job(struct ptc_cluster *c, size_t index);
/* Finds the job that user uid means by `ref`: a uuid, UID:NAME, or the name of a job of their own. For root also the
 * name of any job, if only one has it. PTC_ENOTFOUND: there is none, or it is somebody else's. PTC_EINVAL: jobs of
 * several users have the name; the line names the users. */
int ptc_cluster_find_job(struct ptc_cluster *c, const char *ref, uid_t uid, struct ptc_job_view **ret_job,
			 struct ptc_error *err);
struct ptc_job_view *ptc_cluster_find_uuid(struct ptc_cluster *c, const char *uuid);
/* The least fence that a controller of the job can have, by what the mirror shows: that of the lock. If nobody holds
 * the lock: that of this node's key, since the next lock is younger. 0: the mirror shows neither yet. Loop thread. */
int64_t ptc_cluster_least_fence(struct ptc_cluster *c, const char *uuid);
/* Which job has which devices, as last seen. Borrowed until the loop goes on. Entries of jobs that are deleted stay
 * until somebody writes the document anew, so ask ptc_cluster_find_uuid. */
const struct ptc_devices_doc *ptc_cluster_devices(const struct ptc_cluster *c);
uint64_t ptc_cluster_device_writes(const struct ptc_cluster *c); /* how often that has changed */
/* Whether a rank of that job may have the device. If not, *ret_by (NULL ok): who has it; NULL: the job left it. */
bool ptc_cluster_device_free(struct ptc_cluster *c, const char *node, uint32_t device, const char *uuid, bool shares,
			     const struct ptc_job_view **ret_by);
/* Makes `text` what this node's document says of devices that are not well (struct ptc_node_doc). Call it again and
 * again: it writes only if the text differs, and a write that failed is made at a later call. */
void ptc_cluster_tell_unhealthy(struct ptc_cluster *c, const char *text);
/* Whether ranks may have the device, as its node and operators say. *ret_health (may be NULL): why not. */
bool ptc_node_device_well(const struct ptc_node *n, uint32_t device, char ret_health[PTC_HEALTH_BYTES]);
bool ptc_cluster_any_lost(const struct ptc_cluster *c); /* whether any node is lost, unreachable, or closed */
bool ptc_node_listed(const struct ptc_node *n);         /* whether people are told of it */
int64_t ptc_cluster_lost_after_ns(const struct ptc_cluster *c);
bool ptc_cluster_early(const struct ptc_cluster *c, const struct ptc_node *n); /* ptc_loss_early, for that node */
struct ptc_addresses *ptc_cluster_addresses(const struct ptc_cluster *c);      /* loss/addresses.h; any thread */
void ptc_cluster_watch_lease(struct ptc_cluster *c, uint32_t node); /* each tick: whether it ends in silence */
void ptc_cluster_tick(struct ptc_cluster *c); /* every 200 ms: decides which nodes count as lost (on_change) */
/* forget: the node is not listed until it is back; declare_lost: it is lost until then (false: no more). Block. */
int ptc_cluster_forget(struct ptc_cluster *c, const char *node, struct ptc_error *err);
int ptc_cluster_declare_lost(struct ptc_cluster *c, const char *node, bool lost, struct ptc_error *err);
int ptc_cluster_mark_device(struct ptc_cluster *c, const char *node, uint32_t device, bool bad, struct ptc_error *err);
uint64_t ptc_cluster_epoch(const struct ptc_cluster *c); /* grows with every change of a node */
bool ptc_cluster_synced(const struct ptc_cluster *c);
bool ptc_cluster_listed(const struct ptc_cluster *c); /* it was synced once; before, a key that it lacks may exist */
int64_t ptc_cluster_coordination_epoch(const struct ptc_cluster *c); /* base/number/fence.h; any thread */

/* etcd's database at the last look; zeros before. ptc_cluster_look asks for a new look, and returns at once. */
struct ptc_cluster_database {
	uint64_t bytes, used;
	bool full; /* etcd takes no writes */
};
struct ptc_cluster_database ptc_cluster_database(struct ptc_cluster *c);
void ptc_cluster_look(struct ptc_cluster *c);

/* Writes a blob, which is content-addressed. Blocking; any thread. PTC_EFENCED: `guard` does not hold any more. Without
 * the guard, nobody would collect the blob of a deleted job or of a former controller. */
int ptc_blob_put(struct ptc_etcd *e, const char *uuid, const struct ptc_etcd_compare *guard, const void *data,
		 size_t len, char ret_hash[PTC_HASH_HEX], struct ptc_error *err);
/* Makes an operation of a blob with a single part, for the caller's own transaction, which makes the blob. It borrows
 * data and ret_key. False: the blob has more parts; call ptc_blob_put before the transaction. */
bool ptc_blob_op(const char *uuid, const void *data, size_t len, char ret_hash[PTC_HASH_HEX],
		 char ret_key[PTC_BLOB_KEY], struct ptc_etcd_op *ret_op);
int ptc_blob_get(struct ptc_etcd *e, const char *uuid, const char *hash, size_t max, char **ret_data, size_t *ret_len,
		 struct ptc_error *err);
