/* SPDX-License-Identifier: Apache-2.0 */
/* This node's own key: it lies under our lease, and says what the node is.
 *
 * Happy path: take_lease removes the key of an earlier run, and writes the key under a new lease. The thread
 * "ptc-lease" sleeps until the lease is gone, and then takes another one. When the node's devices change, a task writes
 * the document again.
 *
 * Failure modes: etcd does not answer (tried again each LEASE_RETRY_MS, a wait that does not grow); another machine has
 * the name (PTC_EEXIST); somebody removed or overwrote the key (it is written again). */
#include "daemon/cluster/mirror/internal.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/sys/thread.h"

#include <stdio.h>
#include <string.h>

#define LEASE_RETRY_MS 500

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

/* Our entry in the register names the store. It is written only if it says something else, so its mod_revision says
 * when this store came into the cluster. *ret_revision 0: it has to be written. */
static int look_for_entry(struct ptc_cluster *c, const char *key, const char *text, int64_t *ret_revision,
			  struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	int rc = ptc_etcd_get(c->etcd, key, false, 1, &kvs, err);

	*ret_revision = 0;
	if (rc == 0 && kvs.n && kvs.kv[0].len == strlen(text) && memcmp(kvs.kv[0].value, text, kvs.kv[0].len) == 0)
		*ret_revision = kvs.kv[0].mod_revision;
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* json: our document. */
static int put_keys(struct ptc_cluster *c, const char *key, const char *json, struct ptc_error *err)
{
	char lost[128], known[128], entry[96];
	struct ptc_etcd_compare cmp[2] = { { key, PTC_ETCD_CREATE_REV, 0 }, { .key = known } };
	struct ptc_etcd_op ops[3] = {
		{ .key = key, .value = json, .len = strlen(json), .lease = ptc_etcd_lease_id(c->lease) },
		{ .key = lost }, /* we are back */
		{ .key = known, .value = entry }
	};
	int64_t since, revision = 0;
	bool ok = false;
	int rc;

	snprintf(lost, sizeof lost, LOST_PREFIX "%s", c->opts.node.name);
	snprintf(known, sizeof known, KNOWN_PREFIX "%s", c->opts.node.name);
	snprintf(entry, sizeof entry, "{\"version\":1,\"store\":\"%s\"}", c->opts.node.store_id);
	ops[2].len = strlen(entry);
	rc = look_for_entry(c, known, entry, &since, err);
	if (rc)
		return rc;
	cmp[1].target = PTC_ETCD_MOD_REV;
	cmp[1].equal = since;
	rc = ptc_etcd_txn(c->etcd, cmp, since ? 2 : 1, ops, since ? 2 : 3, "etcd.node", &ok, &revision, err);
	if (rc == 0 && !ok)
		rc = ptc_error_set(err, PTC_ECONFLICT, "node key %s or %s changed while we took them", key, known);
	if (rc == 0)
		atomic_store(&c->store_since, since ? since : revision);
	return rc;
}

int ptc_cluster_take_lease(struct ptc_cluster *c, struct ptc_error *err)
{
	char key[128], *json;
	int rc;

	node_key(c, key, sizeof key);
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
	rc = put_keys(c, key, json, err);
	ptc_free(json);
	if (rc == 0)
		atomic_store(&c->lease_id, ptc_etcd_lease_id(c->lease));
	return rc;
}

static bool retake_lease(struct ptc_cluster *c)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int rc;

	ptc_loop_post(c->opts.loop, tell_lease_lost, c);
	rc = ptc_cluster_take_lease(c, &err);
	if (rc) {
		ptc_warn("etcd", "no lease: %s", err.text);
		return false;
	}
	ptc_info("etcd", "lease taken again");
	ptc_loop_post(c->opts.loop, tell_lease_have, c);
	return true;
}

void *ptc_cluster_keeper_main(void *arg)
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

/* A change of our own key may be of our making: what holds now is looked up. */
void ptc_cluster_own_key_changed(struct ptc_cluster *c, const char *name)
{
	if (strcmp(name, c->opts.node.name) == 0)
		ptc_cluster_run(c, OWN_LANE, look_for_own_key, NULL, c); /* no memory: at the next change */
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
