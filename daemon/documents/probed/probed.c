/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: probed.h. A layout is written in two steps, its blob and then its name, and a blob
 * without a name may be removed in between. So the transaction that names it compares every part of it, and is tried
 * again. */
#include "daemon/documents/probed/probed.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/cluster/quota.h"
#include "formats/members.h"

#include <stdio.h>
#include <string.h>

#define VERSION 1
#define TRIES   5

void ptc_probed_key(const char *uuid, char ret_key[PTC_PROBED_KEY])
{
	snprintf(ret_key, PTC_PROBED_KEY, "/ptc/jobs/%s/probed", uuid);
}

/* {"version":1,"layouts":[["tp=2","HASH"],...]} */
static const struct ptc_member layout_rows[] = {
	PTC_ROW(struct ptc_known_layout, NULL, config, STRING),
	PTC_ROW(struct ptc_known_layout, NULL, layout_hash, TEXT, .min = PTC_HASH_HEX - 1),
};
static const struct ptc_members layout_members = PTC_TUPLE(layout_rows, struct ptc_known_layout);
static const struct ptc_member rows[] = {
	PTC_ROW(struct ptc_probed, "layouts", v, LIST, .optional = true, PTC_COUNT(struct ptc_probed, n),
		.of = &layout_members),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct ptc_probed);

void ptc_probed_done(struct ptc_probed *p)
{
	ptc_members_done(&members, p);
	memset(p, 0, sizeof *p);
}

char *ptc_probed_encode(const struct ptc_probed *p)
{
	return ptc_members_to_text(VERSION, &members, p);
}

int ptc_probed_decode(const char *json, size_t len, struct ptc_probed *ret, struct ptc_error *err)
{
	struct ptc_probed p = { 0 };
	int rc = ptc_members_from_text("probed", VERSION, VERSION, &members, json, len, &p, err);

	if (rc == 0)
		*ret = p;
	return rc;
}

static void drop(struct ptc_probed *p, size_t at)
{
	ptc_free(p->v[at].config);
	memmove(&p->v[at], &p->v[at + 1], (--p->n - at) * sizeof *p->v);
}

int ptc_probed_add(struct ptc_probed *p, const char *config, const char *hash)
{
	struct ptc_known_layout *v = ptc_reallocarray(p->v, p->n + 1, sizeof *v), known = { 0 };

	if (!v)
		return PTC_ENOMEM;
	p->v = v;
	known.config = ptc_strdup(config);
	if (!known.config)
		return PTC_ENOMEM;
	snprintf(known.layout_hash, sizeof known.layout_hash, "%s", hash);
	for (size_t i = p->n; i-- > 0;)
		if (strcmp(v[i].config, config) == 0)
			drop(p, i);
	while (p->n >= PTC_PROBED_MAX)
		drop(p, 0);
	v[p->n++] = known;
	return 0;
}

int ptc_probed_read(struct ptc_etcd *e, const char *uuid, struct ptc_probed *ret, struct ptc_error *err)
{
	struct ptc_probed p = { 0 };
	struct ptc_etcd_kvs kvs = { 0 };
	char key[PTC_PROBED_KEY];
	int rc;

	ptc_probed_key(uuid, key);
	rc = ptc_etcd_get(e, key, false, 1, &kvs, err);
	if (rc == 0 && kvs.n)
		rc = ptc_probed_decode(kvs.kv[0].value, kvs.kv[0].len, &p, err);
	if (rc == 0 && kvs.n)
		p.revision = kvs.kv[0].mod_revision;
	ptc_etcd_kvs_done(&kvs);
	if (rc == 0)
		*ret = p;
	return rc;
}

/* Names a blob that has been written. *ret_ok false: the list, the job or the blob has changed meanwhile. */
static int name(struct ptc_etcd *e, const char *uuid, const struct ptc_etcd_compare *job, const char *config,
		const char *hash, bool *ret_ok, struct ptc_error *err)
{
	struct ptc_etcd_compare cmp[PTC_PROBED_MAX_BYTES / PTC_ETCD_VALUE_MAX + 8];
	char prefix[PTC_BLOB_KEY], key[PTC_PROBED_KEY];
	struct ptc_etcd_kvs parts = { 0 };
	struct ptc_probed p = { 0 };
	ptc_auto_free char *text = NULL;
	size_t n = 0;
	int rc = ptc_probed_read(e, uuid, &p, err);

	*ret_ok = false;
	ptc_probed_key(uuid, key);
	snprintf(prefix, sizeof prefix, "/ptc/blobs/%s/%s/", uuid, hash);
	if (rc == 0)
		rc = ptc_etcd_get_keys(e, prefix, &parts, err);
	if (rc == 0 && (ptc_probed_add(&p, config, hash) != 0 || !(text = ptc_probed_encode(&p))))
		rc = ptc_nomem(err);
	cmp[n++] = *job;
	cmp[n++] = (struct ptc_etcd_compare){ key, PTC_ETCD_MOD_REV, p.revision };
	for (size_t i = 0; i < parts.n && n < PTC_ARRAY_LEN(cmp); i++)
		cmp[n++] =
			(struct ptc_etcd_compare){ parts.kv[i].key, PTC_ETCD_CREATE_REV, parts.kv[i].create_revision };
	if (rc == 0 && parts.n)
		rc = ptc_etcd_txn(e, cmp, n, &(struct ptc_etcd_op){ .key = key, .value = text, .len = strlen(text) }, 1,
				  "etcd.probed", ret_ok, NULL, err);
	ptc_etcd_kvs_done(&parts);
	ptc_probed_done(&p);
	return rc;
}

int ptc_probed_put(const struct ptc_documents *docs, const struct ptc_meta_doc *meta, const char *config,
		   const char *json, size_t len, struct ptc_error *err)
{
	struct ptc_etcd *e = ptc_cluster_etcd(docs->cluster);
	struct ptc_etcd_kvs kvs = { 0 };
	char key[96], hash[PTC_HASH_HEX];
	struct ptc_etcd_compare job = { key, PTC_ETCD_CREATE_REV, 0 };
	bool ok = false;
	int rc = ptc_quota_document(docs->cluster, meta->uid, len, "the layout of a probe", err);

	snprintf(key, sizeof key, "/ptc/jobs/%s/meta", meta->uuid);
	if (rc == 0)
		rc = ptc_etcd_get(e, key, false, 1, &kvs, err);
	if (rc == 0 && !kvs.n)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "job \"%s\" was deleted meanwhile", meta->name);
	if (rc == 0)
		job.equal = kvs.kv[0].create_revision;
	ptc_etcd_kvs_done(&kvs);
	for (int i = 0; i < TRIES && rc == 0 && !ok; i++) {
		rc = ptc_blob_put(e, meta->uuid, &job, json, len, hash, err);
		if (rc == 0)
			rc = name(e, meta->uuid, &job, config, hash, &ok, err);
	}
	if (rc == 0 && !ok)
		rc = ptc_error_set(err, PTC_ECONFLICT, "job \"%s\" changes all the time; try again", meta->name);
	return rc;
}

static bool is_there(const struct ptc_etcd_kvs *blobs, const char *hash)
{
	for (size_t i = 0; i < blobs->n; i++)
		if (strstr(blobs->kv[i].key, hash))
			return true;
	return false;
}

void ptc_probed_join(const struct ptc_documents *docs, struct ptc_view *v)
{
	struct ptc_etcd *e = ptc_cluster_etcd(docs->cluster);
	struct ptc_etcd_kvs blobs = { 0 };
	struct ptc_probed p = { 0 };
	char prefix[96];
	int64_t answered;

	if (ptc_etcd_unreachable(e, &answered) || ptc_probed_read(e, v->meta.uuid, &p, NULL) != 0)
		return;
	snprintf(prefix, sizeof prefix, "/ptc/blobs/%s/", v->meta.uuid);
	if (p.n && ptc_etcd_get_keys(e, prefix, &blobs, NULL) == 0)
		for (size_t i = p.n; i-- > 0 && v->manifest.nlayouts < PTC_KNOWN_LAYOUTS_MAX;)
			if (!ptc_manifest_layout_find(&v->manifest, p.v[i].config) &&
			    is_there(&blobs, p.v[i].layout_hash))
				(void)ptc_manifest_layout_add(&v->manifest, p.v[i].config, p.v[i].layout_hash);
	ptc_etcd_kvs_done(&blobs);
	ptc_probed_done(&p);
}
