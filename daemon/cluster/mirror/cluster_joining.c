/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this node belongs to the cluster that etcd holds.
 *
 * Happy path: a new node writes /ptc/cluster if there is none, and keeps its value in the state directory. Later starts
 * compare the two, and learn the coordination epoch from it.
 *
 * Failure modes: etcd belongs to another cluster, or has lost its data (PTC_ESTATE): the node does not start, or waits
 * until somebody brings the two together; a member's documents are of a version too far from ours (PTC_EVERSION). */
#include "daemon/cluster/mirror/internal.h"

#include "daemon/cluster/identity/identity.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <string.h>

/* Before we write anything: a cluster whose members are too far from us is left alone. */
int ptc_cluster_check_members(struct ptc_cluster *c, struct ptc_error *err)
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

/* Our state directory belongs to one cluster; etcd with another (or a wiped one) must not make us delete state. */
int ptc_cluster_learn_id(struct ptc_cluster *c, struct ptc_error *err)
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

int ptc_cluster_learn_epoch(struct ptc_cluster *c, struct ptc_error *err)
{
	struct ptc_identity i;
	int rc = ptc_identity_decode(PTC_CLUSTER_KEY, c->id, &i, err);

	if (rc)
		return rc;
	c->coordination_epoch = i.epoch;
	return ptc_identity_remember(c->state_dir, &c->opts.etcd, err);
}

int ptc_cluster_old_answers(struct ptc_cluster *c, char **ret_endpoint, struct ptc_error *err)
{
	return ptc_identity_old_answers(c->state_dir, &c->opts.etcd, ret_endpoint, err);
}
