/* SPDX-License-Identifier: Apache-2.0 */
/* The life of this daemon's view of the cluster: it puts the files of this room together, in the order of their starts.
 *
 * Happy path: new connects. start looks at the nodes that are there, and refuses a cluster whose versions are too far
 * from ours. Then it learns which cluster this is (cluster_joining.c), takes the lease (own_node.c), and begins the
 * watches (mirror_watch.c) and the thread that replaces a lost lease. free ends them in reverse order, and revokes the
 * lease.
 *
 * Failure modes: a step of start fails; the others do not begin, and free works on everything that was made. */
#include "daemon/cluster/mirror/internal.h"

#include "base/alloc.h"
#include "base/number/versions.h"
#include "base/sys/thread.h"
#include "daemon/cluster/loss/addresses.h"

#include <string.h>

int ptc_cluster_new(const struct ptc_cluster_opts *opts, struct ptc_cluster **ret_cluster, struct ptc_error *err)
{
	struct ptc_cluster *c = ptc_calloc(1, sizeof *c);
	int rc;

	if (!c)
		return ptc_nomem(err);
	c->opts = *opts;
	c->loss.after_ns = opts->node_lost_after_ns;
	c->state_dir = ptc_strdup(opts->state_dir);
	pthread_mutex_init(&c->shared.lock, NULL);
	memcpy(c->shared.unhealthy, opts->node.unhealthy, sizeof c->shared.unhealthy);
	ptc_cond_init(&c->shared.wake);
	pthread_mutex_init(&c->waits.lock, NULL);
	ptc_cond_init(&c->waits.wake);
	c->addresses = ptc_addresses_new();
	rc = c->state_dir && c->addresses ? ptc_etcd_new(&opts->etcd, &c->etcd, err) : PTC_ENOMEM;
	if (rc == 0)
		rc = ptc_tasks_new(opts->loop, c->etcd, &c->tasks, err);
	if (rc) {
		ptc_cluster_free(c);
		return rc;
	}
	*ret_cluster = c;
	return 0;
}

int ptc_cluster_start(struct ptc_cluster *c, struct ptc_error *err)
{
	int rc = ptc_cluster_check_members(c, err);

	ptc_version_members_set(PTC_DOC_VERSION - PTC_VERSION_RAISED); /* until the members are known */
	if (rc == 0)
		rc = ptc_cluster_learn_id(c, err);
	if (rc == 0)
		rc = ptc_cluster_learn_epoch(c, err);
	if (rc == 0)
		rc = ptc_cluster_take_lease(c, err);
	if (rc == 0)
		rc = ptc_etcd_watch_new(c->etcd, NODES_PREFIX, ptc_cluster_watched_nodes, c, &c->watch_nodes, err);
	if (rc == 0)
		rc = ptc_etcd_watch_new(c->etcd, JOBS_PREFIX, ptc_cluster_watched_jobs, c, &c->watch_jobs, err);
	if (rc == 0)
		rc = ptc_thread_start(&c->keeper, "ptc-lease", ptc_cluster_keeper_main, c, err);
	c->keeps = rc == 0;
	return rc ? rc : ptc_tasks_start(c->tasks, err);
}

struct ptc_cluster *ptc_cluster_free(struct ptc_cluster *c)
{
	if (!c)
		return NULL;
	c->watch_nodes = ptc_etcd_watch_free(c->watch_nodes);
	c->watch_jobs = ptc_etcd_watch_free(c->watch_jobs);
	if (c->keeps) {
		pthread_mutex_lock(&c->shared.lock);
		c->shared.stop = true;
		pthread_cond_signal(&c->shared.wake);
		pthread_mutex_unlock(&c->shared.lock);
		pthread_join(c->keeper, NULL);
	}
	c->tasks = ptc_tasks_free(c->tasks);
	c->lease = ptc_etcd_lease_free(c->lease, true);
	c->etcd = ptc_etcd_free(c->etcd);
	for (size_t i = 0; i < c->nnodes; i++) {
		ptc_lease_end_reset(c->nodes[i]->end);
		ptc_free(c->nodes[i]->end);
		ptc_free(c->nodes[i]);
	}
	for (size_t i = 0; i < c->njobs; i++) {
		ptc_free(c->jobs[i]->workers);
		ptc_free(c->jobs[i]->lock_wait);
		ptc_copies_doc_done(&c->jobs[i]->copies);
		ptc_slow_devices_done(&c->jobs[i]->slow);
		ptc_free(c->jobs[i]);
	}
	ptc_addresses_free(c->addresses);
	ptc_devices_doc_done(&c->devices);
	ptc_free(c->nodes);
	ptc_free(c->jobs);
	ptc_free(c->state_dir);
	ptc_free(c->id);
	pthread_cond_destroy(&c->waits.wake);
	pthread_mutex_destroy(&c->waits.lock);
	pthread_cond_destroy(&c->shared.wake);
	pthread_mutex_destroy(&c->shared.lock);
	ptc_free(c);
	return NULL;
}
