/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the mirror. The files above use those below:
 *
 *   cluster.c            new, start, free
 *   mirror_watch.c       the watches' events, on the loop
 *   mirror_devices.c     which job has which device
 *   mirror_jobs.c        jobs
 *   own_node.c           this node's key and lease
 *   mirror_losses.c      how often nodes were lost   mirror_leases.c  whether leases are about to end
 *   mirror_nodes.c       nodes   cluster_joining.c  which cluster this is
 *   cluster_access.c     accessors, tasks, waits
 *
 * Functions run on the loop unless their comment says otherwise. */
#pragma once

#include "daemon/cluster/cluster.h"

#include "daemon/cluster/loss/node_loss.h"

#include <pthread.h>
#include <stdatomic.h>

#define NODES_PREFIX  "/ptc/nodes"
#define LOST_PREFIX   "/ptc/nodes-lost/"
#define BAD_PREFIX    "/ptc/nodes-bad/"
#define LOSSES_PREFIX "/ptc/nodes-losses/"
#define KNOWN_PREFIX  "/ptc/nodes-known/"
#define JOBS_PREFIX   "/ptc/jobs/"
#define WORKER_LEAF   "worker/"
#define OWN_LANE      "cluster"

struct ptc_cluster {
	struct ptc_cluster_opts opts;
	struct ptc_etcd *etcd;
	struct ptc_etcd_watch *watch_nodes, *watch_jobs;
	char *state_dir;
	char *id;                   /* the value of /ptc/cluster that our state belongs to; from start on */
	int64_t coordination_epoch; /* the epoch in `id` */
	/* loop */
	struct ptc_node **nodes;
	size_t nnodes;
	struct ptc_job_view **jobs;
	size_t njobs;
	bool nodes_synced, jobs_synced;
	bool listed; /* both have been */
	uint64_t epoch;
	struct ptc_loss loss;
	struct ptc_addresses *addresses;
	struct ptc_devices_doc devices;
	bool any_slow; /* some job has left devices, or had */
	uint64_t device_writes;
	bool seen_devices; /* in the listing under way */
	struct ptc_tasks *tasks;
	/* lease keeper */
	pthread_t keeper;
	bool keeps;
	struct ptc_etcd_lease *lease;
	struct {
		pthread_mutex_t lock;
		pthread_cond_t wake;
		bool stop;
		bool lease_wanted;
		char unhealthy[PTC_UNHEALTHY_BYTES]; /* what the node's document is to say */
	} shared;
	bool telling; /* loop: a task writes that */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t wake;
		struct wait *head;
	} waits;
	atomic_int_least64_t lease_id;
	atomic_int_least64_t store_since; /* mod_revision of our entry in the register, which names the store */
	struct {
		atomic_uint_fast64_t bytes, used;
		atomic_bool full;
	} database;
};

/* cluster_joining.c; these block. */
/* Before anything is written: refuses a cluster with members whose version is too far from ours. */
int ptc_cluster_check_members(struct ptc_cluster *c, struct ptc_error *err);
/* Sets c->id, which is written if there is none; then c->coordination_epoch from it. */
int ptc_cluster_learn_id(struct ptc_cluster *c, struct ptc_error *err);
int ptc_cluster_learn_epoch(struct ptc_cluster *c, struct ptc_error *err);

/* own_node.c */
int ptc_cluster_take_lease(struct ptc_cluster *c, struct ptc_error *err);  /* blocks: at start, then the keeper's */
void *ptc_cluster_keeper_main(void *arg);                                  /* a thread: replaces a lost lease; arg: c */
void ptc_cluster_own_key_changed(struct ptc_cluster *c, const char *name); /* name: of any node whose key changed */

/* mirror_nodes.c */
/* Finds a node, or adds an unknown one as down. 0, PTC_ELIMIT or PTC_ENOMEM. */
int ptc_cluster_intern_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index);
void ptc_cluster_node_ended(struct ptc_cluster *c, struct ptc_node *n);

/* mirror_leases.c */
uint32_t ptc_cluster_doubtful(const struct ptc_cluster *c); /* nodes that are up, and may be gone (lease_end.h) */
void ptc_cluster_leases_tick(struct ptc_cluster *c, int64_t now_ns);
void ptc_cluster_lease_ended(struct ptc_node *n); /* it is down now: whether it is unreachable is known at once */

/* mirror_losses.c */
void ptc_cluster_losses_event(struct ptc_node *n, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv);
void ptc_cluster_losses_synced(struct ptc_node *n); /* at the end of a listing: it may have had none of that node */
void ptc_cluster_keep_losses(struct ptc_cluster *c, int64_t now_ns); /* once a tick: writes what etcd does not have */

/* mirror_devices.c */
void ptc_cluster_devices_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv);
void ptc_cluster_mark_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const char *name); /* NODE/INDEX */

/* mirror_jobs.c */
/* Returns the job's view; NULL: the key is no job's, or there is no memory. */
struct ptc_job_view *ptc_cluster_job_event(struct ptc_cluster *c, enum ptc_watch_kind kind,
					   const struct ptc_etcd_kv *kv);
void ptc_job_view_worker_delete(struct ptc_job_view *j, struct ptc_worker_view *w); /* NULL ok */
void ptc_job_view_copies_delete(struct ptc_job_view *j);
void ptc_job_view_older_delete(struct ptc_job_view *j);

/* mirror_watch.c: for ptc_etcd_watch_new; the watches' threads. */
void ptc_cluster_watched_nodes(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv);
void ptc_cluster_watched_jobs(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv);
