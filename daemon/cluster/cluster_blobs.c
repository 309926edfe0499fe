/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads blobs in etcd: documents by the hash of their content, in parts of at most PTC_ETCD_VALUE_MAX
 * bytes.
 *
 * Happy path: put writes the parts one after another, each while the guard holds. get reads all parts and compares the
 * whole with its hash. A blob of one part may go into the caller's own transaction (ptc_blob_op).
 *
 * Failure modes: the guard does not hold any more (PTC_EFENCED; parts that are written stay until they are tidied up
 * with the job); a part is missing or damaged (PTC_ENOTFOUND; the line says what to do); etcd does not answer. */
#include "daemon/cluster/cluster.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <stdio.h>
#include <string.h>

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
