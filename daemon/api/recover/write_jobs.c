/* SPDX-License-Identifier: Apache-2.0 */
/* Fills an empty etcd with committed jobs.
 *
 * Happy path: a marker is written first, and every write compares its revision, so of two recoveries only the later one
 * goes on. The last transaction writes /ptc/cluster in place of the marker. No daemon starts before that, so keys
 * beside a marker belong to a recovery that was cut off, and are removed.
 *
 * Failure modes: etcd has jobs, or a cluster (PTC_ESTATE); another recovery has begun (PTC_EFENCED); etcd's own. */
#include "daemon/api/recover/recover_work.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/cluster/quota.h"

#include <string.h>

#define KEY_BYTES 160

int ptc_recover_etcd_check(struct ptc_etcd *e, struct ptc_error *err)
{
	struct ptc_etcd_kvs cluster = { 0 }, marker = { 0 };
	size_t jobs = 0;
	int rc = ptc_etcd_get(e, PTC_CLUSTER_KEY, false, 1, &cluster, err);

	if (rc == 0)
		rc = ptc_etcd_get(e, PTC_RECOVER_MARKER, false, 1, &marker, err);
	if (rc == 0)
		rc = ptc_etcd_count(e, "/ptc/jobs/", &jobs, err);
	if (rc == 0 && cluster.n)
		rc = ptc_error_set(err, PTC_ESTATE,
				   "this etcd belongs to a cluster already (" PTC_CLUSTER_KEY
				   " is %.100s): recover needs an empty one",
				   cluster.kv[0].value);
	else if (rc == 0 && jobs && !marker.n)
		rc = ptc_error_set(err, PTC_ESTATE,
				   "this etcd is not empty: it has keys of jobs; recover needs an empty one");
	ptc_etcd_kvs_done(&cluster);
	ptc_etcd_kvs_done(&marker);
	return rc;
}

int ptc_recover_etcd_begin(struct ptc_etcd *e, int64_t *ret_revision, struct ptc_error *err)
{
	static const char value[] = "{\"version\":1}";
	const struct ptc_etcd_compare none = { PTC_CLUSTER_KEY, PTC_ETCD_CREATE_REV, 0 };
	const struct ptc_etcd_op ops[] = {
		{ .key = PTC_RECOVER_MARKER, .value = value, .len = sizeof value - 1 },
		{ .key = "/ptc/jobs/", .prefix = true },
		{ .key = "/ptc/blobs/", .prefix = true },
		{ .key = "/ptc/names/", .prefix = true },
		{ .key = "/ptc/users/", .prefix = true },
	};
	bool ok = false;
	int rc = ptc_etcd_txn(e, &none, 1, ops, PTC_ARRAY_LEN(ops), "recover.begin", &ok, ret_revision, err);

	if (rc == 0 && !ok)
		rc = ptc_error_set(err, PTC_ESTATE, "a cluster has begun on this etcd meanwhile; nothing was written");
	return rc;
}

static int fenced(struct ptc_error *err)
{
	return ptc_error_set(err, PTC_EFENCED, "another `cluster recover` has begun on this etcd; this one ends");
}

static int write_blobs(struct ptc_etcd *e, const struct ptc_etcd_compare *guard, const char *uuid,
		       const struct ptc_kept_job *blobs, struct ptc_error *err)
{
	char hash[PTC_HASH_HEX];
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < blobs->n; i++)
		rc = ptc_blob_put(e, uuid, guard, blobs->v[i].data, blobs->v[i].len, hash, err);
	return rc == PTC_EFENCED ? fenced(err) : rc;
}

/* The keys of a job, in one transaction. */
struct job_keys {
	char key[PTC_DURABLE_KEYS][KEY_BYTES], name[KEY_BYTES], user[PTC_USER_KEY];
	char *bytes;
	struct ptc_etcd_op ops[PTC_DURABLE_KEYS + 2];
	size_t n;
};

/* 0 or PTC_ENOMEM. */
static int make_keys(struct job_keys *k, const struct ptc_durable *d, const struct ptc_meta_doc *m)
{
	const struct ptc_kept_doc *spec = ptc_kept_job_find(d->blobs, m->spec_hash);

	for (size_t i = 0; i < PTC_DURABLE_KEYS; i++) {
		snprintf(k->key[i], KEY_BYTES, "/ptc/jobs/%s/%s", m->uuid,
			 ptc_durable_key_name((enum ptc_durable_key)i));
		if (d->key[i])
			k->ops[k->n++] =
				(struct ptc_etcd_op){ .key = k->key[i], .value = d->key[i], .len = strlen(d->key[i]) };
	}
	snprintf(k->name, KEY_BYTES, "/ptc/names/%u/%s", (unsigned)m->uid, m->name);
	k->ops[k->n++] = (struct ptc_etcd_op){ .key = k->name, .value = m->uuid, .len = strlen(m->uuid) };
	ptc_quota_key(m->uid, m->uuid, k->user);
	k->bytes = ptc_announced_doc_encode(&(struct ptc_announced_doc){ spec ? spec->len : 0 });
	if (!k->bytes)
		return PTC_ENOMEM;
	k->ops[k->n++] = (struct ptc_etcd_op){ .key = k->user, .value = k->bytes, .len = strlen(k->bytes) };
	return 0;
}

int ptc_recover_etcd_job(struct ptc_etcd *e, int64_t revision, const struct ptc_durable *d, struct ptc_error *err)
{
	struct ptc_etcd_compare cmp[] = { { PTC_RECOVER_MARKER, PTC_ETCD_MOD_REV, revision },
					  { NULL, PTC_ETCD_CREATE_REV, 0 } };
	struct ptc_etcd_kvs name = { 0 };
	struct job_keys k = { .n = 0 };
	struct ptc_meta_doc m;
	bool ok = false;
	int rc = ptc_meta_doc_decode(d->key[PTC_DURABLE_META], strlen(d->key[PTC_DURABLE_META]), &m, err);

	if (rc)
		return rc;
	if (make_keys(&k, d, &m))
		return ptc_nomem(err);
	cmp[1].key = k.name;
	rc = ptc_etcd_get(e, k.name, false, 1, &name, err);
	if (rc == 0 && name.n)
		rc = ptc_error_set(err, PTC_EEXIST,
				   "job %s (%s): NOT TAKEN: its user has a later job of that name, so it was deleted",
				   m.name, m.uuid);
	ptc_etcd_kvs_done(&name);
	if (rc == 0)
		rc = write_blobs(e, cmp, m.uuid, d->blobs, err);
	if (rc == 0)
		rc = ptc_etcd_txn(e, cmp, 2, k.ops, k.n, "recover.job", &ok, NULL, err);
	ptc_free(k.bytes);
	return rc == 0 && !ok ? fenced(err) : rc;
}

int ptc_recover_etcd_end(struct ptc_etcd *e, int64_t revision, const struct ptc_identity *to, const char *key,
			 struct ptc_error *err)
{
	const struct ptc_etcd_compare cmp[] = { { PTC_RECOVER_MARKER, PTC_ETCD_MOD_REV, revision },
						{ PTC_CLUSTER_KEY, PTC_ETCD_CREATE_REV, 0 } };
	ptc_auto_free char *text = ptc_identity_encode(to);
	char seal[96];
	const struct ptc_etcd_op ops[] = {
		{ .key = PTC_CLUSTER_KEY, .value = text, .len = text ? strlen(text) : 0 },
		{ .key = PTC_RECOVER_MARKER },
		{ .key = "/ptc/key",
		  .value = seal,
		  .len = (size_t)snprintf(seal, sizeof seal, "{\"version\":1,\"id\":\"%s\"}", key ? key : "") },
	};
	bool ok = false;
	int rc = text ? ptc_etcd_txn(e, cmp, 2, ops, key ? 3 : 2, "recover.end", &ok, NULL, err) : ptc_nomem(err);

	return rc == 0 && !ok ? fenced(err) : rc;
}
