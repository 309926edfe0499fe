/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: probed.h. A layout is written in two steps, its blob and then its name, and a blob
 * without a name may be removed in between. So the transaction that names it compares every part of it, and is tried
 * again. */
#include "daemon/documents/probed/probed.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/cluster/quota.h"

#include <stdio.h>
#include <string.h>

#define VERSION 1
#define TRIES   5

void ptc_probed_key(const char *uuid, char ret_key[PTC_PROBED_KEY])
{
	snprintf(ret_key, PTC_PROBED_KEY, "/ptc/jobs/%s/probed", uuid);
}

void ptc_probed_done(struct ptc_probed *p)
{
	for (size_t i = 0; i < p->n; i++)
		ptc_free(p->v[i].config);
	ptc_free(p->v);
	memset(p, 0, sizeof *p);
}

static int add(struct ptc_probed *p, const char *config, const char *hash)
{
	struct ptc_known_layout *k = &p->v[p->n];

	k->config = ptc_strdup(config);
	if (!k->config)
		return PTC_ENOMEM;
	snprintf(k->layout_hash, sizeof k->layout_hash, "%s", hash);
	p->n++;
	return 0;
}

/* {"version":1,"layouts":[["tp=2","HASH"],...]} */
static int decode(const char *json, size_t len, struct ptc_probed *ret, struct ptc_error *err)
{
	json_t *root = NULL, *row;
	const json_t *rows;
	int version = 0, rc = ptc_json_load("probed", json, len, &root, err);
	size_t i;

	if (rc)
		return rc;
	rows = json_object_get(root, "layouts");
	ret->v = ptc_calloc(PTC_PROBED_MAX, sizeof *ret->v);
	if (!ret->v)
		rc = ptc_nomem(err);
	else if (json_unpack(root, "{s:i}", "version", &version) != 0 || version != VERSION)
		rc = ptc_error_set(err, PTC_EVERSION, "probed: version %d; this is version %d", version, VERSION);
	json_array_foreach(rows, i, row) {
		const char *config = json_string_value(json_array_get(row, 0)),
			   *hash = json_string_value(json_array_get(row, 1));

		if (rc || ret->n == PTC_PROBED_MAX)
			break;
		if (!config || !hash || strlen(hash) != PTC_HASH_HEX - 1)
			rc = ptc_error_set(err, PTC_EINVAL, "probed: layout %zu has no configuration or no hash", i);
		else if (add(ret, config, hash) != 0)
			rc = ptc_nomem(err);
	}
	json_decref(root);
	return rc;
}

int ptc_probed_read(struct ptc_etcd *e, const char *uuid, struct ptc_probed *ret, struct ptc_error *err)
{
	struct ptc_probed p = { 0 };
	struct ptc_etcd_kvs kvs = { 0 };
	char key[PTC_PROBED_KEY];
	int rc;

	ptc_probed_key(uuid, key);
	rc = ptc_etcd_get(e, key, false, 1, &kvs, err);
	if (rc == 0 && kvs.n) {
		p.revision = kvs.kv[0].mod_revision;
		rc = decode(kvs.kv[0].value, kvs.kv[0].len, &p, err);
	}
	ptc_etcd_kvs_done(&kvs);
	if (rc)
		ptc_probed_done(&p);
	else
		*ret = p;
	return rc;
}

/* The list with one more, as the newest. NULL: out of memory. */
static char *encode(const struct ptc_probed *p, const char *config, const char *hash)
{
	json_t *rows = json_array(), *root;
	size_t others = 0, skip;
	char *text;

	for (size_t i = 0; i < p->n; i++)
		others += strcmp(p->v[i].config, config) != 0;
	skip = others >= PTC_PROBED_MAX ? others - PTC_PROBED_MAX + 1 : 0;
	for (size_t i = 0; i < p->n; i++)
		if (strcmp(p->v[i].config, config) != 0 && !(skip && skip--))
			json_array_append_new(rows, json_pack("[s,s]", p->v[i].config, p->v[i].layout_hash));
	json_array_append_new(rows, json_pack("[s,s]", config, hash));
	root = json_pack("{s:i, s:o}", "version", VERSION, "layouts", rows);
	text = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	return text;
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
	if (rc == 0 && !(text = encode(&p, config, hash)))
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
