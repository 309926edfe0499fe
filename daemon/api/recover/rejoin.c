/* SPDX-License-Identifier: Apache-2.0 */
/* Takes back a node that was not there when the cluster was recovered (`ptcctl cluster rejoin`).
 *
 * Happy path: the node waits, because its epoch is lower than etcd's. A manifest names the digest of every tensor. So
 * the tables of a job are those that the cluster has committed exactly if the node keeps the same manifest. Such tables
 * stay. All others are dropped, since snapshots have got new numbers. Then the node takes the epoch over, and begins.
 *
 * Failure modes: jobs that etcd does not know are refused by name, unless they are to be dropped (PTC_ESTATE). If the
 * node is killed, it waits again when it starts; what it has dropped by then would only be dropped again. */
#include "daemon/api/recover/recover_work.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/store/store.h"

#include <string.h>

/* The record that etcd has. PTC_ENOTFOUND: it does not know the job. */
static int committed(struct ptc_etcd *e, const char *uuid, struct ptc_record_doc *ret, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char key[96];
	int rc;

	snprintf(key, sizeof key, "/ptc/jobs/%s/record", uuid);
	rc = ptc_etcd_get(e, key, false, 1, &kvs, err);
	if (rc == 0 && !kvs.n)
		rc = PTC_ENOTFOUND;
	if (rc == 0)
		rc = ptc_record_doc_decode(kvs.kv[0].value, kvs.kv[0].len, ret, err);
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* Whether the tables here are of what etcd has committed. */
static bool same(struct ptc_daemon *d, const char *uuid, const struct ptc_record_doc *now)
{
	struct ptc_durable kept = { 0 };
	struct ptc_record_doc own;
	bool yes = ptc_recover_own(d, uuid, &kept, NULL) == 0 &&
		   ptc_record_doc_decode(kept.key[PTC_DURABLE_RECORD], strlen(kept.key[PTC_DURABLE_RECORD]), &own,
					 NULL) == 0 &&
		   strcmp(own.manifest_hash, now->manifest_hash) == 0;

	ptc_durable_done(&kept);
	return yes;
}

static int rejoin_job(struct ptc_daemon *d, const struct ptc_inventory_job *j, bool drop, struct ptc_buf *text,
		      struct ptc_error *err)
{
	const char *uuid = j->uuid, *name = j->name[0] ? j->name : "without a name";
	struct ptc_record_doc now;
	int rc = committed(ptc_cluster_etcd(d->cluster), uuid, &now, err);

	if (rc == PTC_ENOTFOUND && !j->ntables)
		return 0;
	if (rc == PTC_ENOTFOUND && !drop)
		return ptc_error_set(err, PTC_ESTATE,
				     "job %s (%s) has bytes on this node, and the cluster does not know it; "
				     "`ptcctl cluster rejoin --drop` drops them",
				     name, uuid);
	if (rc && rc != PTC_ENOTFOUND)
		return rc;
	if (rc == 0 && same(d, uuid, &now)) {
		ptc_buf_printf(text,
			       "%sjob %s (%s): its tables on this node are of committed snapshots: they count again",
			       text->len ? "\n" : "", name, uuid);
		return 0;
	}
	ptc_buf_printf(text,
		       "%sjob %s (%s): its %zu tables on this node are not of committed snapshots: they were dropped",
		       text->len ? "\n" : "", name, uuid, j->ntables);
	rc = ptc_store_keep(d->store, uuid, NULL, 0, NULL);
	return rc == PTC_ELOST || rc == PTC_ECORRUPT || rc == PTC_ENOTFOUND ? 0 : rc;
}

/* Etcd's identity, if this node may take it over. */
static int later_identity(struct ptc_daemon *d, const char *own, char **ret_text, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	int rc = ptc_etcd_get(ptc_cluster_etcd(d->cluster), PTC_CLUSTER_KEY, false, 1, &kvs, err);
	const char *text = rc == 0 && kvs.n ? kvs.kv[0].value : NULL;
	enum ptc_identity_fit fit = ptc_identity_fit(own, text);

	if (rc == 0 && fit != PTC_IDENTITY_BEHIND)
		rc = ptc_identity_explain(fit, d->config.state_dir, own, text, err);
	if (rc == 0) {
		*ret_text = ptc_strdup(text);
		rc = *ret_text ? 0 : ptc_nomem(err);
	}
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

static int rejoin_jobs(struct ptc_daemon *d, bool drop, struct ptc_buf *text, struct ptc_error *err)
{
	struct ptc_inventory v;
	int rc = ptc_recover_inventory(d, &v, err);

	if (rc)
		return rc;
	for (size_t i = 0; rc == 0 && i < v.njobs; i++)
		rc = rejoin_job(d, &v.jobs[i], drop, text, err);
	ptc_inventory_done(&v);
	return rc;
}

int ptc_recover_rejoin(struct ptc_daemon *d, bool drop, char **ret_text, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/cluster", d->config.state_dir), *own = NULL, *now = NULL;
	struct ptc_buf text = PTC_BUF_INIT;
	int rc = 0;

	if (!d->waits[0])
		return ptc_error_set(err, PTC_ESTATE, "node %s runs with its etcd: it need not rejoin", d->config.node);
	rc = path ? ptc_sys_read_file(path, PTC_CLUSTER_MAX_BYTES, &own, NULL, err) : ptc_nomem(err);
	if (rc == 0)
		rc = later_identity(d, own, &now, err);
	if (rc == 0)
		rc = rejoin_jobs(d, drop, &text, err);
	if (rc == 0)
		rc = ptc_sys_write_file(path, now, strlen(now), 0600, "recover.rejoin", err);
	if (rc == 0) {
		ptc_buf_printf(&text, "%snode %s is back", text.len ? "\n" : "", d->config.node);
		*ret_text = ptc_buf_steal(&text, NULL);
		rc = *ret_text ? 0 : ptc_nomem(err);
	}
	ptc_buf_done(&text);
	return rc;
}
