/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cluster/cluster.h"

#include "daemon/cluster/identity/identity.h"
#include "daemon/cluster/loss/node_loss.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/number/fence.h"
#include "base/number/versions.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "formats/json.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define NODES_PREFIX   "/ptc/nodes"
#define LOST_PREFIX    "/ptc/nodes-lost/"
#define BAD_PREFIX     "/ptc/nodes-bad/"
#define JOBS_PREFIX    "/ptc/jobs/"
#define WORKER_LEAF    "worker/"
#define OWN_LANE       "cluster"
#define LEASE_RETRY_MS 500
#define GONE_LOOK_MS   200 /* gRPC tells only the call's own thread that its caller is gone */
#define SHOWN_JOBS     3   /* in a message */

/* Somebody who waits, on his stack. */
struct wait {
	const struct ptc_cluster_wait *what;
	struct ptc_cluster *c;
	bool holds;
	struct wait *next;
};

struct ptc_cluster {
	struct ptc_cluster_opts opts;
	struct ptc_etcd *etcd;
	struct ptc_etcd_watch *watch_nodes, *watch_jobs;
	char *state_dir;
	char *id;                   /* the value of /ptc/cluster that our state belongs to; from start on */
	int64_t coordination_epoch; /* which it names; likewise */
	/* loop */
	struct ptc_node **nodes;
	size_t nnodes;
	struct ptc_job_view **jobs;
	size_t njobs;
	bool nodes_synced, jobs_synced;
	bool listed; /* both have been */
	uint64_t epoch;
	struct ptc_loss loss;
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
	struct {
		atomic_uint_fast64_t bytes, used;
		atomic_bool full;
	} database;
};

/* ---- lease keeper --------------------------------------------------------- */

static int node_key(const struct ptc_cluster *c, char *key, size_t size)
{
	return snprintf(key, size, NODES_PREFIX "/%s", c->opts.node.name);
}

/* Any thread: asks the keeper for another one. */
static void lease_gone(void *arg)
{
	struct ptc_cluster *c = arg;

	atomic_store(&c->lease_id, 0);
	pthread_mutex_lock(&c->shared.lock);
	c->shared.lease_wanted = true;
	pthread_cond_signal(&c->shared.wake);
	pthread_mutex_unlock(&c->shared.lock);
}

static void tell_lease_lost(void *arg)
{
	struct ptc_cluster *c = arg;

	c->opts.on_lease(c->opts.arg, false);
}

static void tell_lease_have(void *arg)
{
	struct ptc_cluster *c = arg;

	c->opts.on_lease(c->opts.arg, true);
}

/* Before we write anything: a cluster whose members are too far from us is left alone. */
static int check_members(struct ptc_cluster *c, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_node_doc doc;
	int rc = ptc_etcd_get(c->etcd, NODES_PREFIX "/", true, PTC_MAX_NODES, &kvs, err);

	for (size_t i = 0; i < kvs.n && !rc; i++)
		if (ptc_node_doc_decode(kvs.kv[i].value, kvs.kv[i].len, &doc, NULL) == 0 &&
		    strcmp(doc.name, c->opts.node.name) != 0)
			rc = ptc_node_doc_near(&doc, err);
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* Removes what an earlier life of this node left; refuses somebody else's. */
static int clear_old_key(struct ptc_cluster *c, const char *key, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_node_doc old;
	int rc = ptc_etcd_get(c->etcd, key, false, 1, &kvs, err);

	if (rc || kvs.n == 0)
		goto out;
	if (ptc_node_doc_decode(kvs.kv[0].value, kvs.kv[0].len, &old, NULL) == 0 &&
	    strcmp(old.store_id, c->opts.node.store_id) != 0) {
		rc = ptc_error_set(err, PTC_EEXIST,
				   "node name \"%s\" is in use by the daemon at %s; give this one another name",
				   c->opts.node.name, old.address);
		goto out;
	}
	rc = kvs.kv[0].lease ? ptc_etcd_revoke(c->etcd, kvs.kv[0].lease, err)
			     : ptc_etcd_delete(c->etcd, key, false, "etcd.node", err);
	if (rc == PTC_ENOTFOUND)
		rc = 0;
out:
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* *ret_text: the value of /ptc/cluster; ptc_free it; NULL: there is none. */
static int read_identity(struct ptc_cluster *c, char **ret_text, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	int rc = ptc_etcd_get(c->etcd, PTC_CLUSTER_KEY, false, 1, &kvs, err);

	*ret_text = NULL;
	if (rc == 0 && kvs.n) {
		*ret_text = ptc_strdup(kvs.kv[0].value);
		rc = *ret_text ? 0 : ptc_nomem(err);
	}
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

int ptc_cluster_check(struct ptc_cluster *c, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL;
	int rc = read_identity(c, &text, err);
	enum ptc_identity_fit fit = rc ? PTC_IDENTITY_SAME : ptc_identity_fit(c->id, text);

	if (rc == 0 && !text) /* while we run: it has lost its data */
		fit = PTC_IDENTITY_OTHER;
	return rc || fit == PTC_IDENTITY_SAME ? rc : ptc_identity_explain(fit, c->state_dir, c->id, text, err);
}

int ptc_cluster_waits(struct ptc_cluster *c, bool *ret_waits, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/cluster", c->state_dir), *own = NULL, *text = NULL;
	enum ptc_identity_fit fit;
	int rc = path ? ptc_sys_read_file(path, PTC_CLUSTER_MAX_BYTES, &own, NULL, err) : ptc_nomem(err);

	*ret_waits = false;
	if (rc == 0)
		rc = read_identity(c, &text, err);
	if (rc)
		return rc == PTC_ENOTFOUND ? 0 : rc; /* a new node */
	fit = ptc_identity_fit(own, text);
	*ret_waits = fit == PTC_IDENTITY_EMPTY || fit == PTC_IDENTITY_BEHIND;
	if (fit == PTC_IDENTITY_SAME)
		return ptc_identity_check_told(c->state_dir, text, err);
	rc = ptc_identity_explain(fit, c->state_dir, own, text, err);
	return *ret_waits ? 0 : rc;
}

/* What this node's document says now. NULL: out of memory. */
static char *own_doc(struct ptc_cluster *c)
{
	struct ptc_node_doc *doc = ptc_malloc(sizeof *doc);
	char *json;

	if (!doc)
		return NULL;
	*doc = c->opts.node;
	pthread_mutex_lock(&c->shared.lock);
	memcpy(doc->unhealthy, c->shared.unhealthy, sizeof doc->unhealthy);
	pthread_mutex_unlock(&c->shared.lock);
	json = ptc_node_doc_encode(doc);
	ptc_free(doc);
	return json;
}

static int take_lease(struct ptc_cluster *c, struct ptc_error *err)
{
	char key[128], lost[128], *json;
	struct ptc_etcd_op ops[2] = { { .key = key }, { .key = lost } }; /* we are back */
	bool ok = false;
	int rc;

	node_key(c, key, sizeof key);
	snprintf(lost, sizeof lost, LOST_PREFIX "%s", c->opts.node.name);
	c->lease = ptc_etcd_lease_free(c->lease, false);
	rc = ptc_cluster_check(c, err); /* etcd may have lost its data while we ran */
	if (rc == 0)
		rc = clear_old_key(c, key, err);
	if (rc)
		return rc;
	rc = ptc_etcd_lease_new(c->etcd, c->opts.lease_ttl_s, lease_gone, c, &c->lease, err);
	if (rc)
		return rc;
	json = own_doc(c);
	if (!json)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory for the node document");
	ops[0].value = json;
	ops[0].len = strlen(json);
	ops[0].lease = ptc_etcd_lease_id(c->lease);
	rc = ptc_etcd_txn(c->etcd, &(struct ptc_etcd_compare){ key, PTC_ETCD_CREATE_REV, 0 }, 1, ops, 2, "etcd.node",
			  &ok, NULL, err);
	ptc_free(json);
	if (rc == 0 && !ok)
		rc = ptc_error_set(err, PTC_ECONFLICT, "node key %s appeared while we took it", key);
	if (rc == 0)
		atomic_store(&c->lease_id, ptc_etcd_lease_id(c->lease));
	return rc;
}

static bool retake_lease(struct ptc_cluster *c)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int rc;

	ptc_loop_post(c->opts.loop, tell_lease_lost, c);
	rc = take_lease(c, &err);
	if (rc) {
		ptc_warn("etcd", "no lease: %s", err.text);
		return false;
	}
	ptc_info("etcd", "lease taken again");
	ptc_loop_post(c->opts.loop, tell_lease_have, c);
	return true;
}

static void *keeper_main(void *arg)
{
	struct ptc_cluster *c = arg;
	bool have;

	pthread_mutex_lock(&c->shared.lock);
	while (!c->shared.stop) {
		if (!c->shared.lease_wanted) {
			pthread_cond_wait(&c->shared.wake, &c->shared.lock);
			continue;
		}
		c->shared.lease_wanted = false;
		pthread_mutex_unlock(&c->shared.lock);
		have = retake_lease(c);
		pthread_mutex_lock(&c->shared.lock);
		c->shared.lease_wanted |= !have;
		if (!have && !c->shared.stop)
			ptc_cond_wait_ms(&c->shared.wake, &c->shared.lock, LEASE_RETRY_MS);
	}
	pthread_mutex_unlock(&c->shared.lock);
	return NULL;
}

/* ---- tasks ------------------------------------------------------------------ */

int ptc_cluster_steps(struct ptc_cluster *c, const char *lane, const struct ptc_task_step *steps,
		      void (*done)(void *arg), void *arg)
{
	return ptc_tasks_run(c->tasks, lane, 0, steps, done, arg);
}

int ptc_cluster_run_later(struct ptc_cluster *c, const char *lane, int64_t delay_ms,
			  void (*work)(void *arg, struct ptc_etcd *etcd), void (*done)(void *arg), void *arg)
{
	const struct ptc_task_step steps[] = { { PTC_TASK_ETCD, work }, { 0 } };

	return ptc_tasks_run(c->tasks, lane, delay_ms, steps, done, arg);
}

int ptc_cluster_run(struct ptc_cluster *c, const char *lane, void (*work)(void *arg, struct ptc_etcd *etcd),
		    void (*done)(void *arg), void *arg)
{
	return ptc_cluster_run_later(c, lane, 0, work, done, arg);
}

/* ---- waits ------------------------------------------------------------------ */

void ptc_cluster_changed(struct ptc_cluster *c)
{
	bool any = false;

	pthread_mutex_lock(&c->waits.lock);
	for (struct wait *w = c->waits.head; w; w = w->next)
		any |= w->holds = w->holds || w->what->holds(w->what->arg);
	if (any)
		pthread_cond_broadcast(&c->waits.wake);
	pthread_mutex_unlock(&c->waits.lock);
}

static void wait_begins(void *arg)
{
	struct wait *w = arg;
	struct ptc_cluster *c = w->c;

	pthread_mutex_lock(&c->waits.lock);
	w->holds = w->what->holds(w->what->arg);
	w->next = c->waits.head;
	c->waits.head = w;
	pthread_mutex_unlock(&c->waits.lock);
}

static void wait_ends_locked(struct ptc_cluster *c, const struct wait *w)
{
	struct wait **at = &c->waits.head;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
}

/* Without the lock, for which the loop would wait. */
static bool is_gone(struct ptc_cluster *c, const struct ptc_cluster_wait *what)
{
	bool gone;

	pthread_mutex_unlock(&c->waits.lock);
	gone = what->gone(what->gone_arg);
	pthread_mutex_lock(&c->waits.lock);
	return gone;
}

int ptc_cluster_wait(struct ptc_cluster *c, const struct ptc_cluster_wait *what)
{
	int64_t end = ptc_sys_now_ns() + what->ms * 1000000;
	struct wait w = { .what = what, .c = c };
	int rc = ptc_loop_call(c->opts.loop, wait_begins, &w);

	if (rc)
		return PTC_ECANCELED;
	pthread_mutex_lock(&c->waits.lock);
	while (rc == 0 && !w.holds) {
		int64_t now = ptc_sys_now_ns(), look = now + GONE_LOOK_MS * INT64_C(1000000);

		if (now >= end)
			rc = PTC_ETIMEOUT;
		else if (what->gone && is_gone(c, what))
			rc = PTC_ECANCELED;
		else if (!w.holds)
			ptc_cond_wait_until(&c->waits.wake, &c->waits.lock, what->gone ? PTC_MIN(end, look) : end);
	}
	wait_ends_locked(c, &w);
	pthread_mutex_unlock(&c->waits.lock);
	return rc;
}

/* ---- mirror: nodes ---------------------------------------------------------- */

size_t ptc_cluster_nnodes(const struct ptc_cluster *c)
{
	return c->nnodes;
}

struct ptc_node *ptc_cluster_node(struct ptc_cluster *c, uint32_t index)
{
	return c->nodes[index];
}

bool ptc_cluster_find_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	for (size_t i = 0; i < c->nnodes; i++)
		if (strcmp(c->nodes[i]->doc.name, name) == 0) {
			*ret_index = (uint32_t)i;
			return true;
		}
	return false;
}

int ptc_cluster_intern_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	struct ptc_node *n;

	if (ptc_cluster_find_node(c, name, ret_index))
		return 0;
	if (c->nnodes == PTC_MAX_NODES)
		return PTC_ELIMIT;
	if (!PTC_MORE(c->nodes, c->nnodes))
		return PTC_ENOMEM;
	n = ptc_calloc(1, sizeof *n);
	if (!n)
		return PTC_ENOMEM;
	snprintf(n->doc.name, sizeof n->doc.name, "%s", name);
	n->down_ns = ptc_sys_now_ns();
	c->nodes[c->nnodes] = n;
	*ret_index = (uint32_t)c->nnodes++;
	return 0;
}

static void node_ended(struct ptc_cluster *c, struct ptc_node *n)
{
	uint32_t up = 0;

	if (!n->up)
		return;
	n->up = false;
	n->down_ns = ptc_sys_now_ns();
	for (size_t i = 0; i < c->nnodes; i++)
		up += c->nodes[i]->up;
	ptc_loss_node_ended(&c->loss, up, n->down_ns);
}

bool ptc_cluster_any_lost(const struct ptc_cluster *c)
{
	for (size_t i = 0; i < c->nnodes; i++)
		if (c->nodes[i]->lost)
			return true;
	return false;
}

int64_t ptc_cluster_lost_after_ns(const struct ptc_cluster *c)
{
	return c->loss.after_ns;
}

void ptc_cluster_tick(struct ptc_cluster *c)
{
	int64_t now = ptc_sys_now_ns();
	bool changed = false;

	ptc_loss_tick(&c->loss, ptc_cluster_synced(c) && ptc_cluster_lease(c), now);
	for (size_t i = 0; i < c->nnodes; i++) {
		struct ptc_node *n = c->nodes[i];
		bool lost = !n->up && ptc_loss_is(&c->loss, n->down_ns, n->declared, now);

		if (lost != n->lost)
			ptc_info("node", "node=%s %s", n->doc.name,
				 !lost         ? "counts as lost no longer"
				 : n->declared ? "is lost: an operator says so"
					       : "is lost: it has had no lease for too long");
		changed = changed || lost != n->lost;
		n->lost = lost;
	}
	if (changed && ptc_cluster_synced(c)) {
		c->epoch++;
		c->opts.on_change(c->opts.arg, NULL);
	}
}

int ptc_cluster_declare_lost(struct ptc_cluster *c, const char *node, bool lost, struct ptc_error *err)
{
	static const char value[] = "{\"version\":1}";
	char key[128], alive[128];
	struct ptc_etcd_op op = { .key = key };
	bool ok = false;
	int rc;

	snprintf(key, sizeof key, LOST_PREFIX "%s", node);
	snprintf(alive, sizeof alive, NODES_PREFIX "/%s", node);
	if (lost) {
		op.value = value;
		op.len = strlen(value);
	}
	rc = ptc_etcd_txn(c->etcd, &(struct ptc_etcd_compare){ alive, PTC_ETCD_CREATE_REV, 0 }, lost ? 1 : 0, &op, 1,
			  "etcd.lost", &ok, NULL, err);
	if (rc == 0 && !ok)
		rc = ptc_error_set(err, PTC_ESTATE,
				   "node %s is up, so it is not lost: `ptcctl drain %s` moves jobs off it; or stop its "
				   "ptcd first",
				   node, node);
	return rc;
}

int ptc_cluster_mark_device(struct ptc_cluster *c, const char *node, uint32_t device, bool bad, struct ptc_error *err)
{
	static const char value[] = "{\"version\":1}";
	char key[128];

	snprintf(key, sizeof key, BAD_PREFIX "%s/%u", node, (unsigned)device);
	return bad ? ptc_etcd_put(c->etcd, key, value, strlen(value), 0, "etcd.lost", err)
		   : ptc_etcd_delete(c->etcd, key, false, "etcd.lost", err);
}

/* Our own lane: with a key that is not there, or not with our lease, nobody would ever see us again. */
static void look_for_own_key(void *arg, struct ptc_etcd *e)
{
	struct ptc_cluster *c = arg;
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_node_doc doc;
	int64_t lease = atomic_load(&c->lease_id);
	char key[128];

	node_key(c, key, sizeof key);
	if (lease && ptc_etcd_get(e, key, false, 1, &kvs, NULL) == 0 &&
	    (kvs.n == 0 || kvs.kv[0].lease != lease ||
	     ptc_node_doc_decode(kvs.kv[0].value, kvs.kv[0].len, &doc, NULL) != 0)) {
		ptc_warn("etcd", "%s is gone or not what this daemon wrote; it is written again", key);
		lease_gone(c);
	}
	ptc_etcd_kvs_done(&kvs);
}

/* Our own lane: who takes another lease meanwhile writes the document anew by himself. */
static void write_unhealthy(void *arg, struct ptc_etcd *e)
{
	struct ptc_cluster *c = arg;
	struct ptc_error err = PTC_ERROR_INIT;
	int64_t lease = atomic_load(&c->lease_id);
	struct ptc_etcd_kvs kvs = { 0 };
	char key[128], *json = own_doc(c);
	bool ok;

	node_key(c, key, sizeof key);
	if (json && lease && ptc_etcd_get(e, key, false, 1, &kvs, &err) == 0 && kvs.n && kvs.kv[0].lease == lease)
		(void)ptc_etcd_txn(e, &(struct ptc_etcd_compare){ key, PTC_ETCD_MOD_REV, kvs.kv[0].mod_revision }, 1,
				   &(struct ptc_etcd_op){
					   .key = key, .value = json, .len = strlen(json), .lease = lease },
				   1, "etcd.node", &ok, NULL, &err);
	if (err.code)
		ptc_warn("etcd", "which devices are not well is not written yet: %s", err.text);
	ptc_etcd_kvs_done(&kvs);
	ptc_free(json);
}

static void unhealthy_written(void *arg)
{
	((struct ptc_cluster *)arg)->telling = false;
}

void ptc_cluster_tell_unhealthy(struct ptc_cluster *c, const char *text)
{
	uint32_t i;

	pthread_mutex_lock(&c->shared.lock);
	snprintf(c->shared.unhealthy, sizeof c->shared.unhealthy, "%s", text);
	pthread_mutex_unlock(&c->shared.lock);
	if (c->telling || !c->nodes_synced || !ptc_cluster_find_node(c, c->opts.node.name, &i) || !c->nodes[i]->up ||
	    strcmp(c->nodes[i]->doc.unhealthy, text) == 0)
		return;
	c->telling = ptc_cluster_run(c, OWN_LANE, write_unhealthy, unhealthy_written, c) == 0;
}

/* A change of our own key may be of our making: what holds now is looked up. */
static void own_key_changed(struct ptc_cluster *c, const char *name)
{
	if (strcmp(name, c->opts.node.name) == 0)
		ptc_cluster_run(c, OWN_LANE, look_for_own_key, NULL, c); /* no memory: at the next change */
}

/* Every member that is up reads documents written from now on without skipping a part. A member that is down, and comes
 * back, reads them as documents of the next version. */
static void learn_versions(struct ptc_cluster *c)
{
	uint32_t lowest = c->opts.node.documents;

	for (size_t i = 0; i < c->nnodes; i++)
		if (c->nodes[i]->up)
			lowest = PTC_MIN(lowest, c->nodes[i]->doc.documents);
	if (lowest != ptc_version_members())
		ptc_info("cluster", "documents are written in version %u from now on", lowest);
	ptc_version_members_set(lowest);
}

static void node_put(struct ptc_cluster *c, const struct ptc_etcd_kv *kv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_node_doc doc;
	uint32_t i;

	if (ptc_node_doc_decode(kv->value, kv->len, &doc, &err) != 0 || ptc_cluster_intern_node(c, doc.name, &i) != 0) {
		ptc_warn("etcd", "%s ignored: %s", kv->key, err.text);
		own_key_changed(c, kv->key + strlen(NODES_PREFIX "/"));
		return;
	}
	if (ptc_node_doc_near(&doc, &err) != 0)
		ptc_warn("etcd", "%s", err.text);
	if (c->nodes[i]->create_revision != kv->create_revision)
		c->opts.on_node_up(c->opts.arg, doc.name);
	c->nodes[i]->doc = doc;
	c->nodes[i]->up = c->nodes[i]->seen = true;
	c->nodes[i]->lost = false;
	c->nodes[i]->down_ns = 0;
	c->nodes[i]->create_revision = kv->create_revision;
	c->nodes[i]->lease = kv->lease;
}

/* A document that cannot be read is of a later version, or damaged: the last readable one stays in use. */
static void devices_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_devices_doc d = { 0 };

	c->seen_devices = kind == PTC_WATCH_PUT;
	if (kind == PTC_WATCH_PUT && ptc_devices_doc_decode(kv->value, kv->len, &d, &err) != 0) {
		ptc_warn("etcd", "%s ignored: %s", kv->key, err.text);
		return;
	}
	ptc_devices_doc_done(&c->devices);
	c->devices = d;
	c->device_writes++;
}

uint64_t ptc_cluster_device_writes(const struct ptc_cluster *c)
{
	return c->device_writes;
}

const struct ptc_devices_doc *ptc_cluster_devices(const struct ptc_cluster *c)
{
	return &c->devices;
}

bool ptc_cluster_device_free(struct ptc_cluster *c, const char *node, uint32_t device, const char *uuid, bool shares,
			     const struct ptc_job_view **ret_by)
{
	size_t n;
	const struct ptc_device_given *g = ptc_devices_of_node(&c->devices, node, &n);
	const struct ptc_job_view *own = c->any_slow ? ptc_cluster_find_uuid(c, uuid) : NULL;

	if (ret_by)
		*ret_by = NULL;
	if (own && ptc_slow_device_find(&own->slow, node, device, ptc_sys_realtime_ms()))
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct ptc_job_view *j;

		if (g[i].device != device || strcmp(g[i].uuid, uuid) == 0 || (g[i].shares && shares))
			continue;
		j = ptc_cluster_find_uuid(c, g[i].uuid);
		if (!j || !j->has_meta)
			continue;
		if (ret_by)
			*ret_by = j;
		return false;
	}
	return true;
}

_Static_assert(PTC_MAX_DEVICES_PER_NODE <= 64, "a bit for each");

/* name: NODE/INDEX. */
static void mark_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const char *name)
{
	const char *slash = strrchr(name, '/');
	unsigned long device = slash ? strtoul(slash + 1, NULL, 10) : 64;
	char node[PTC_NAME_MAX + 1];
	uint64_t bit;
	uint32_t i;

	if (device >= 64 || (size_t)(slash - name) >= sizeof node)
		return;
	snprintf(node, sizeof node, "%.*s", (int)(slash - name), name);
	bit = UINT64_C(1) << device;
	if (ptc_cluster_intern_node(c, node, &i) != 0)
		return;
	c->nodes[i]->marked = kind == PTC_WATCH_PUT ? c->nodes[i]->marked | bit : c->nodes[i]->marked & ~bit;
	c->nodes[i]->seen_marked =
		kind == PTC_WATCH_PUT ? c->nodes[i]->seen_marked | bit : c->nodes[i]->seen_marked & ~bit;
}

bool ptc_node_device_well(const struct ptc_node *n, uint32_t device, char ret_health[PTC_HEALTH_BYTES])
{
	if (device >= 64 || !(n->marked >> device & 1))
		return ptc_device_well(n->doc.unhealthy, device, ret_health);
	if (ret_health)
		snprintf(ret_health, PTC_HEALTH_BYTES, "marked bad");
	return false;
}

static void node_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	const char *drained = NODES_PREFIX "-drained/", *plain = NODES_PREFIX "/", *lost = LOST_PREFIX,
		   *bad = BAD_PREFIX;
	uint32_t i;

	if (strcmp(kv->key, PTC_DEVICES_KEY) == 0) {
		devices_event(c, kind, kv);
	} else if (strncmp(kv->key, drained, strlen(drained)) == 0) {
		if (ptc_cluster_intern_node(c, kv->key + strlen(drained), &i) == 0)
			c->nodes[i]->drained = c->nodes[i]->seen_drained = kind == PTC_WATCH_PUT;
	} else if (strncmp(kv->key, lost, strlen(lost)) == 0) {
		if (ptc_cluster_intern_node(c, kv->key + strlen(lost), &i) == 0)
			c->nodes[i]->declared = c->nodes[i]->seen_declared = kind == PTC_WATCH_PUT;
	} else if (strncmp(kv->key, bad, strlen(bad)) == 0) {
		mark_event(c, kind, kv->key + strlen(bad));
	} else if (strncmp(kv->key, plain, strlen(plain)) == 0) {
		if (kind == PTC_WATCH_PUT)
			node_put(c, kv);
		else if (ptc_cluster_find_node(c, kv->key + strlen(plain), &i))
			node_ended(c, c->nodes[i]);
		if (kind == PTC_WATCH_DELETE)
			own_key_changed(c, kv->key + strlen(plain));
	}
}

/* ---- mirror: jobs ------------------------------------------------------------ */

size_t ptc_cluster_njobs(const struct ptc_cluster *c)
{
	return c->njobs;
}

struct ptc_job_view *ptc_cluster_job(struct ptc_cluster *c, size_t index)
{
	return c->jobs[index];
}

/* "1000:train"; names have no colon. */
static bool is_qualified(const struct ptc_job_view *j, const char *ref)
{
	char full[PTC_NAME_MAX + 16];

	snprintf(full, sizeof full, "%u:%s", (unsigned)j->meta.uid, j->meta.name);
	return strcmp(full, ref) == 0;
}

static int several(const struct ptc_cluster *c, const char *name, struct ptc_error *err)
{
	char list[256] = "";
	size_t n = 0, len = 0;

	for (size_t i = 0; i < c->njobs; i++)
		if (c->jobs[i]->has_meta && strcmp(c->jobs[i]->meta.name, name) == 0 && n++ < SHOWN_JOBS)
			len += (size_t)snprintf(list + len, sizeof list - len, "%s%u:%s", n > 1 ? ", " : "",
						(unsigned)c->jobs[i]->meta.uid, name);
	return ptc_error_set(err, PTC_EINVAL, "%zu users have a job \"%s\"; write UID:NAME: %s%s", n, name, list,
			     n > SHOWN_JOBS ? ", ..." : "");
}

int ptc_cluster_find_job(struct ptc_cluster *c, const char *ref, uid_t uid, struct ptc_job_view **ret_job,
			 struct ptc_error *err)
{
	struct ptc_job_view *own = NULL, *other = NULL;
	size_t others = 0;

	for (size_t i = 0; i < c->njobs; i++) {
		struct ptc_job_view *j = c->jobs[i];

		if (!j->has_meta || (uid != 0 && j->meta.uid != uid))
			continue;
		if (strcmp(j->uuid, ref) == 0 || is_qualified(j, ref)) {
			*ret_job = j;
			return 0;
		}
		if (strcmp(j->meta.name, ref) != 0)
			continue;
		if (j->meta.uid == uid) {
			own = j;
		} else {
			other = j;
			others++;
		}
	}
	if (!own && others > 1)
		return several(c, ref, err);
	if (!own && !other)
		return PTC_ENOTFOUND;
	*ret_job = own ? own : other;
	return 0;
}

struct ptc_job_view *ptc_cluster_find_uuid(struct ptc_cluster *c, const char *uuid)
{
	for (size_t i = 0; i < c->njobs; i++)
		if (strcmp(c->jobs[i]->uuid, uuid) == 0)
			return c->jobs[i];
	return NULL;
}

int64_t ptc_cluster_least_fence(struct ptc_cluster *c, const char *uuid)
{
	const struct ptc_job_view *job = ptc_cluster_find_uuid(c, uuid);
	uint32_t self;

	if (job && job->has_lock)
		return job->lock_fence;
	if (!ptc_cluster_find_node(c, ptc_cluster_self(c), &self) || !c->nodes[self]->up)
		return ptc_fence(c->coordination_epoch, 0);
	return ptc_fence(c->coordination_epoch, c->nodes[self]->create_revision);
}

static struct ptc_job_view *intern_job(struct ptc_cluster *c, const char *uuid)
{
	struct ptc_job_view *j = ptc_cluster_find_uuid(c, uuid);

	if (j)
		return j;
	j = PTC_MORE(c->jobs, c->njobs) ? ptc_calloc(1, sizeof *j) : NULL;
	if (!j)
		return NULL;
	snprintf(j->uuid, sizeof j->uuid, "%s", uuid);
	c->jobs[c->njobs++] = j;
	return j;
}

static void lock_put(const struct ptc_cluster *c, struct ptc_job_view *j, const struct ptc_etcd_kv *kv)
{
	const char *node = NULL;
	json_t *root;

	if (ptc_json_load("lock", kv->value, kv->len, &root, NULL) != 0)
		return;
	if (json_unpack(root, "{s:s}", "node", &node) == 0) {
		snprintf(j->lock_node, sizeof j->lock_node, "%s", node);
		j->lock_fence = ptc_fence(c->coordination_epoch, kv->create_revision);
		j->has_lock = j->seen.lock = true;
	}
	json_decref(root);
}

static struct ptc_worker_view *find_worker(struct ptc_job_view *j, const char *node)
{
	for (size_t i = 0; i < j->nworkers; i++)
		if (strcmp(j->workers[i].node, node) == 0)
			return &j->workers[i];
	return NULL;
}

static int worker_put(struct ptc_job_view *j, const char *node, const struct ptc_etcd_kv *kv, struct ptc_error *err)
{
	struct ptc_worker_view *w = find_worker(j, node);
	struct ptc_worker_doc doc;
	int rc = ptc_worker_doc_decode(kv->value, kv->len, &doc, err);

	if (rc)
		return rc;
	if (!w) {
		if (j->nworkers == PTC_MAX_NODES || strlen(node) > PTC_NAME_MAX)
			return ptc_error_set(err, PTC_ELIMIT,
					     "the cluster has too many nodes, or a node's name is too long");
		if (!PTC_MORE(j->workers, j->nworkers))
			return ptc_nomem(err);
		w = &j->workers[j->nworkers++];
		snprintf(w->node, sizeof w->node, "%s", node);
	}
	w->doc = doc;
	w->seen = true;
	return 0;
}

static void worker_delete(struct ptc_job_view *j, struct ptc_worker_view *w)
{
	if (w)
		*w = j->workers[--j->nworkers];
}

static int copies_put(struct ptc_job_view *j, const struct ptc_etcd_kv *kv, struct ptc_error *err)
{
	ptc_copies_doc_done(&j->copies);
	j->copies_revision = kv->mod_revision;
	j->seen.copies = true;
	return ptc_copies_doc_decode(kv->value, kv->len, &j->copies, err);
}

static void copies_delete(struct ptc_job_view *j)
{
	ptc_copies_doc_done(&j->copies);
	j->copies_revision = 0;
}

static int older_put(struct ptc_job_view *j, const struct ptc_etcd_kv *kv, struct ptc_error *err)
{
	j->older.n = 0;
	j->older_revision = kv->mod_revision;
	j->seen.older = true;
	return ptc_older_doc_decode(kv->value, kv->len, &j->older, err);
}

static void older_delete(struct ptc_job_view *j)
{
	j->older.n = 0;
	j->older_revision = 0;
}

static void job_put(struct ptc_cluster *c, struct ptc_job_view *j, const char *leaf, const struct ptc_etcd_kv *kv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = 0;

	if (strcmp(leaf, "meta") == 0) {
		rc = ptc_meta_doc_decode(kv->value, kv->len, &j->meta, &err);
		j->has_meta = j->seen.meta = rc == 0;
	} else if (strcmp(leaf, "record") == 0) {
		rc = ptc_record_doc_decode(kv->value, kv->len, &j->record, &err);
		j->has_record = rc == 0;
		j->bad_record = rc != 0;
		j->seen.record = true;
		j->record_revision = kv->mod_revision;
	} else if (strcmp(leaf, "intent") == 0) {
		rc = ptc_intent_doc_decode(kv->value, kv->len, &j->intent, &err);
		j->has_intent = j->seen.intent = rc == 0;
	} else if (strcmp(leaf, "lock") == 0) {
		lock_put(c, j, kv);
	} else if (strcmp(leaf, "copies") == 0) {
		rc = copies_put(j, kv, &err);
	} else if (strcmp(leaf, "older") == 0) {
		rc = older_put(j, kv, &err);
	} else if (strncmp(leaf, WORKER_LEAF, strlen(WORKER_LEAF)) == 0) {
		rc = worker_put(j, leaf + strlen(WORKER_LEAF), kv, &err);
	} else if (strncmp(leaf, PTC_SLOW_LEAF, strlen(PTC_SLOW_LEAF)) == 0) {
		c->any_slow = true;
		rc = ptc_slow_device_put(&j->slow, leaf, kv->value, kv->len, &err);
	}
	if (rc)
		ptc_warn("etcd", "%s ignored: %s", kv->key, err.text);
}

static void job_delete(struct ptc_job_view *j, const char *leaf)
{
	if (strcmp(leaf, "meta") == 0)
		j->has_meta = false;
	else if (strcmp(leaf, "record") == 0)
		j->has_record = j->bad_record = false;
	else if (strcmp(leaf, "intent") == 0)
		j->has_intent = false;
	else if (strcmp(leaf, "lock") == 0)
		j->has_lock = false;
	else if (strcmp(leaf, "copies") == 0)
		copies_delete(j);
	else if (strcmp(leaf, "older") == 0)
		older_delete(j);
	else if (strncmp(leaf, WORKER_LEAF, strlen(WORKER_LEAF)) == 0)
		worker_delete(j, find_worker(j, leaf + strlen(WORKER_LEAF)));
	else if (strncmp(leaf, PTC_SLOW_LEAF, strlen(PTC_SLOW_LEAF)) == 0)
		ptc_slow_device_delete(&j->slow, leaf);
}

static struct ptc_job_view *job_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	const char *rest = kv->key + strlen(JOBS_PREFIX);
	const char *slash = strchr(rest, '/');
	char uuid[PTC_UUID_TEXT];
	struct ptc_job_view *j;

	if (!slash || slash - rest != PTC_UUID_TEXT - 1)
		return NULL;
	memcpy(uuid, rest, PTC_UUID_TEXT - 1);
	uuid[PTC_UUID_TEXT - 1] = '\0';
	j = intern_job(c, uuid);
	if (!j)
		return NULL;
	j->changes++;
	j->documents += strcmp(slash + 1, "lock") != 0 && strncmp(slash + 1, WORKER_LEAF, strlen(WORKER_LEAF)) != 0;
	if (kind == PTC_WATCH_PUT)
		job_put(c, j, slash + 1, kv);
	else
		job_delete(j, slash + 1);
	return j;
}

/* ---- watches ------------------------------------------------------------------- */

struct change {
	struct ptc_cluster *c;
	enum ptc_watch_kind kind;
	bool jobs;
	struct ptc_etcd_kv kv;
};

/* A listing begins, and may take as long as etcd is unreachable: what we knew stays until it is complete. */
static void reset(struct ptc_cluster *c, bool jobs)
{
	for (size_t i = 0; jobs && i < c->njobs; i++) {
		memset(&c->jobs[i]->seen, 0, sizeof c->jobs[i]->seen);
		for (size_t k = 0; k < c->jobs[i]->nworkers; k++)
			c->jobs[i]->workers[k].seen = false;
		ptc_slow_devices_unseen(&c->jobs[i]->slow);
	}
	for (size_t i = 0; !jobs && i < c->nnodes; i++) {
		c->nodes[i]->seen = c->nodes[i]->seen_drained = c->nodes[i]->seen_declared = false;
		c->nodes[i]->seen_marked = 0;
	}
	c->seen_devices = c->seen_devices && jobs;
	if (jobs)
		c->jobs_synced = false;
	else
		c->nodes_synced = false;
}

/* Whatever was not in the listing was deleted while we did not look. */
static void synced(struct ptc_cluster *c, bool jobs)
{
	for (size_t i = 0; !jobs && i < c->nnodes; i++) {
		struct ptc_node *n = c->nodes[i];

		if (!n->seen)
			node_ended(c, n);
		n->drained = n->drained && n->seen_drained;
		n->declared = n->declared && n->seen_declared;
		n->marked &= n->seen_marked;
		if (!n->up)
			own_key_changed(c, n->doc.name);
	}
	for (size_t i = 0; jobs && i < c->njobs; i++) {
		struct ptc_job_view *j = c->jobs[i];

		j->changes++;
		j->has_meta = j->has_meta && j->seen.meta;
		j->has_record = j->has_record && j->seen.record;
		j->bad_record = j->bad_record && j->seen.record;
		j->has_intent = j->has_intent && j->seen.intent;
		j->has_lock = j->has_lock && j->seen.lock;
		if (!j->seen.copies)
			copies_delete(j);
		if (!j->seen.older)
			older_delete(j);
		ptc_slow_devices_listed(&j->slow);
		for (size_t k = j->nworkers; k-- > 0;)
			if (!j->workers[k].seen)
				worker_delete(j, &j->workers[k]);
	}
	if (jobs)
		c->jobs_synced = true;
	else
		c->nodes_synced = true;
	if (!jobs)
		learn_versions(c);
	if (!jobs && !c->seen_devices) {
		ptc_devices_doc_done(&c->devices);
		c->device_writes++;
	}
	if (!c->jobs_synced || !c->nodes_synced)
		return;
	c->listed = true;
	c->opts.on_synced(c->opts.arg);
}

static void apply(void *arg)
{
	struct change *ch = arg;
	struct ptc_cluster *c = ch->c;

	c->epoch += !ch->jobs;
	if (ch->kind == PTC_WATCH_RESET) {
		reset(c, ch->jobs);
	} else if (ch->kind == PTC_WATCH_SYNCED) {
		synced(c, ch->jobs);
	} else if (ch->jobs) {
		struct ptc_job_view *j = job_event(c, ch->kind, &ch->kv);

		if (j && c->jobs_synced && c->nodes_synced)
			c->opts.on_change(c->opts.arg, j);
	} else {
		node_event(c, ch->kind, &ch->kv);
		if (c->nodes_synced)
			learn_versions(c);
		if (c->jobs_synced && c->nodes_synced)
			c->opts.on_change(c->opts.arg, NULL);
	}
	ptc_cluster_changed(c);
	ptc_free(ch->kv.key);
	ptc_free(ch->kv.value);
	ptc_free(ch);
}

static void watched(struct ptc_cluster *c, bool jobs, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	struct change *ch = ptc_calloc(1, sizeof *ch);

	ptc_require(ch); /* a mirror with a hole would be silently wrong */
	ch->c = c;
	ch->kind = kind;
	ch->jobs = jobs;
	if (kv && (kind == PTC_WATCH_PUT || kind == PTC_WATCH_DELETE)) {
		ch->kv = *kv;
		ch->kv.key = ptc_strdup(kv->key);
		ch->kv.value = ptc_strndup(kv->value ? kv->value : "", kv->len);
		ptc_require(ch->kv.key && ch->kv.value);
	}
	if (ptc_loop_post(c->opts.loop, apply, ch) != 0) {
		ptc_free(ch->kv.key);
		ptc_free(ch->kv.value);
		ptc_free(ch);
	}
}

static void watched_nodes(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	watched(arg, false, kind, kv);
}

static void watched_jobs(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	watched(arg, true, kind, kv);
}

/* ---- life ------------------------------------------------------------------------ */

/* Our state directory belongs to one cluster; etcd with another (or a wiped one) must not make us delete state. */
static int learn_cluster_id(struct ptc_cluster *c, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/cluster", c->state_dir), *json = NULL;
	char uuid[PTC_UUID_TEXT];
	struct ptc_etcd_kvs kvs = { 0 };
	bool ok;
	int rc = path ? ptc_sys_read_file(path, PTC_CLUSTER_MAX_BYTES, &c->id, NULL, err) : ptc_nomem(err);

	if (rc != PTC_ENOTFOUND) /* a file we cannot read may name another cluster */
		return rc ? rc : ptc_cluster_check(c, err);
	rc = ptc_sys_uuid(uuid, err);
	if (rc)
		return rc;
	json = ptc_asprintf("{\"version\":1,\"id\":\"%s\"}", uuid);
	if (!json)
		return ptc_nomem(err);
	rc = ptc_etcd_txn(c->etcd, &(struct ptc_etcd_compare){ PTC_CLUSTER_KEY, PTC_ETCD_CREATE_REV, 0 }, 1,
			  &(struct ptc_etcd_op){ .key = PTC_CLUSTER_KEY, .value = json, .len = strlen(json) }, 1,
			  "etcd.cluster", &ok, NULL, err);
	if (rc == 0)
		rc = ptc_etcd_get(c->etcd, PTC_CLUSTER_KEY, false, 1, &kvs, err);
	if (rc == 0 && kvs.n == 0)
		rc = ptc_error_set(err, PTC_ESTATE, "etcd has no " PTC_CLUSTER_KEY " though it was just written");
	if (rc == 0)
		rc = ptc_sys_write_file(path, kvs.kv[0].value, kvs.kv[0].len, 0600, "cluster.write", err);
	if (rc == 0) {
		c->id = ptc_strdup(kvs.kv[0].value);
		rc = c->id ? 0 : ptc_nomem(err);
	}
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

static int learn_epoch(struct ptc_cluster *c, struct ptc_error *err)
{
	struct ptc_identity i;
	int rc = ptc_identity_decode(PTC_CLUSTER_KEY, c->id, &i, err);

	if (rc)
		return rc;
	c->coordination_epoch = i.epoch;
	return ptc_identity_remember(c->state_dir, &c->opts.etcd, err);
}

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
	rc = c->state_dir ? ptc_etcd_new(&opts->etcd, &c->etcd, err) : PTC_ENOMEM;
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
	int rc = check_members(c, err);

	ptc_version_members_set(PTC_DOC_VERSION - PTC_VERSION_RAISED); /* until the members are known */
	if (rc == 0)
		rc = learn_cluster_id(c, err);
	if (rc == 0)
		rc = learn_epoch(c, err);
	if (rc == 0)
		rc = take_lease(c, err);
	if (rc == 0)
		rc = ptc_etcd_watch_new(c->etcd, NODES_PREFIX, watched_nodes, c, &c->watch_nodes, err);
	if (rc == 0)
		rc = ptc_etcd_watch_new(c->etcd, JOBS_PREFIX, watched_jobs, c, &c->watch_jobs, err);
	if (rc == 0)
		rc = ptc_thread_start(&c->keeper, "ptc-lease", keeper_main, c, err);
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
	for (size_t i = 0; i < c->nnodes; i++)
		ptc_free(c->nodes[i]);
	for (size_t i = 0; i < c->njobs; i++) {
		ptc_free(c->jobs[i]->workers);
		ptc_free(c->jobs[i]->lock_wait);
		ptc_copies_doc_done(&c->jobs[i]->copies);
		ptc_slow_devices_done(&c->jobs[i]->slow);
		ptc_free(c->jobs[i]);
	}
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

struct ptc_etcd *ptc_cluster_etcd(struct ptc_cluster *c)
{
	return c->etcd;
}

struct ptc_loop *ptc_cluster_loop(const struct ptc_cluster *c)
{
	return c->opts.loop;
}

const struct ptc_cluster_quota *ptc_cluster_quota(const struct ptc_cluster *c)
{
	return &c->opts.quota;
}

int64_t ptc_cluster_lease(struct ptc_cluster *c)
{
	return atomic_load(&c->lease_id);
}

int64_t ptc_cluster_coordination_epoch(const struct ptc_cluster *c)
{
	return c->coordination_epoch;
}

uint64_t ptc_cluster_epoch(const struct ptc_cluster *c)
{
	return c->epoch;
}

const char *ptc_cluster_self(const struct ptc_cluster *c)
{
	return c->opts.node.name;
}

const char *ptc_cluster_boot_id(const struct ptc_cluster *c)
{
	return c->opts.node.boot_id;
}

bool ptc_cluster_synced(const struct ptc_cluster *c)
{
	return c->nodes_synced && c->jobs_synced;
}

bool ptc_cluster_listed(const struct ptc_cluster *c)
{
	return c->listed;
}

int ptc_cluster_old_answers(struct ptc_cluster *c, char **ret_endpoint, struct ptc_error *err)
{
	return ptc_identity_old_answers(c->state_dir, &c->opts.etcd, ret_endpoint, err);
}

/* ---- the database ------------------------------------------------------------------ */

static void look_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_cluster *c = arg;
	struct ptc_etcd_size s;

	if (ptc_etcd_size(e, &s, NULL) != 0)
		return;
	atomic_store(&c->database.bytes, s.bytes);
	atomic_store(&c->database.used, s.used);
	if (atomic_exchange(&c->database.full, s.full) == s.full)
		return;
	if (s.full)
		ptc_error_log(
			"etcd",
			"its database has come to its quota: nothing can be committed until it is smaller and its "
			"alarm disarmed (\"etcd is full\" in docs/install.md)");
	else
		ptc_info("etcd", "its database takes writes again");
}

void ptc_cluster_look(struct ptc_cluster *c)
{
	ptc_cluster_run(c, OWN_LANE, look_work, NULL, c); /* no memory: the next time */
}

struct ptc_cluster_database ptc_cluster_database(struct ptc_cluster *c)
{
	return (struct ptc_cluster_database){ .bytes = atomic_load(&c->database.bytes),
					      .used = atomic_load(&c->database.used),
					      .full = atomic_load(&c->database.full) };
}

/* ---- blobs ------------------------------------------------------------------------- */

#define PART_DIGITS 6

/* The last member says how long the value is, so that a listing of keys alone tells what a job takes (quota.c). Earlier
 * daemons left that out: the same part may be there under both names. */
static void part_key(const char *uuid, const char *hash, size_t part, size_t len, char ret_key[PTC_BLOB_KEY])
{
	snprintf(ret_key, PTC_BLOB_KEY, "/ptc/blobs/%s/%s/%06zu-%zu", uuid, hash, part, len);
}

bool ptc_blob_op(const char *uuid, const void *data, size_t len, char ret_hash[PTC_HASH_HEX],
		 char ret_key[PTC_BLOB_KEY], struct ptc_etcd_op *ret_op)
{
	if (len > PTC_ETCD_VALUE_MAX)
		return false;
	ptc_content_hash(data, len, ret_hash);
	part_key(uuid, ret_hash, 0, len, ret_key);
	*ret_op = (struct ptc_etcd_op){ .key = ret_key, .value = data, .len = len };
	return true;
}

int ptc_blob_put(struct ptc_etcd *e, const char *uuid, const struct ptc_etcd_compare *guard, const void *data,
		 size_t len, char ret_hash[PTC_HASH_HEX], struct ptc_error *err)
{
	char hash[PTC_HASH_HEX], key[PTC_BLOB_KEY];
	const char *p = data;
	size_t part = 0;
	bool ok = false;

	ptc_content_hash(data, len, hash);
	do {
		size_t n = PTC_MIN(len - part * PTC_ETCD_VALUE_MAX, (size_t)PTC_ETCD_VALUE_MAX);
		int rc;

		part_key(uuid, hash, part, n, key);
		rc = ptc_etcd_txn(e, guard, 1,
				  &(struct ptc_etcd_op){ .key = key, .value = p + part * PTC_ETCD_VALUE_MAX, .len = n },
				  1, "etcd.blob", &ok, NULL, err);
		if (rc == 0 && !ok)
			rc = ptc_error_set(err, PTC_EFENCED, "%s changed meanwhile; nothing was written", guard->key);
		if (rc)
			return rc;
		part++;
	} while (part * PTC_ETCD_VALUE_MAX < len);
	memcpy(ret_hash, hash, sizeof hash);
	return 0;
}

int ptc_blob_get(struct ptc_etcd *e, const char *uuid, const char *hash, size_t max, char **ret_data, size_t *ret_len,
		 struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_buf buf = PTC_BUF_INIT;
	char key[160], found[PTC_HASH_HEX] = "";
	int rc;

	snprintf(key, sizeof key, "/ptc/blobs/%s/%s/", uuid, hash);
	rc = ptc_etcd_get(e, key, true, 2 * (max / PTC_ETCD_VALUE_MAX) + 2, &kvs, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < kvs.n; i++)
		if (i == 0 || strncmp(kvs.kv[i].key, kvs.kv[i - 1].key, strlen(key) + PART_DIGITS) != 0)
			ptc_buf_append(&buf, kvs.kv[i].value, kvs.kv[i].len);
	ptc_buf_append(&buf, "", 0);
	ptc_etcd_kvs_done(&kvs);
	if (!ptc_buf_failed(&buf))
		ptc_content_hash(buf.data, buf.len, found);
	if (strcmp(found, hash) != 0) {
		rc = ptc_error_set(err, ptc_buf_failed(&buf) ? PTC_ENOMEM : PTC_ENOTFOUND,
				   "blob %s of job %s is missing or damaged in etcd; restore etcd from its backup, or "
				   "delete the job",
				   hash, uuid);
		ptc_buf_done(&buf);
		return rc;
	}
	*ret_data = ptc_buf_steal(&buf, ret_len);
	return 0;
}
