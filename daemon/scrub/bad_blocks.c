/* SPDX-License-Identifier: Apache-2.0 */
/* Which of this node's blocks are damaged and not healed, in etcd, so that any daemon's `status` says so. Happy path:
 * the list is compared with what was written last, and written where it differs; an empty one deletes the key. At the
 * first look at a job, the list that an earlier ptcd has written is read. Failure modes: etcd unreachable: the list is
 * written at the next look; a job that is being deleted takes no key (the job's meta must exist). */
#include "daemon/scrub/damage_doc.h"
#include "daemon/scrub/scrub.h"
#include "daemon/store/scrub/store_heal.h"

#include "base/alloc.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define KEY_BYTES (PTC_UUID_TEXT + 32 + PTC_NAME_MAX)

struct told {
	struct told *next;
	char uuid[PTC_UUID_TEXT];
	char *json; /* as written last; "": the key is not there; NULL: nobody knows */
	bool seen;
};

struct ptc_bad_blocks {
	struct ptc_cluster *cluster;
	struct ptc_store *store;
	const char *node;
	struct told *told;
};

struct ptc_bad_blocks *ptc_bad_blocks_new(struct ptc_cluster *cluster, struct ptc_store *store, const char *node)
{
	struct ptc_bad_blocks *b = ptc_calloc(1, sizeof *b);

	if (b)
		*b = (struct ptc_bad_blocks){ .cluster = cluster, .store = store, .node = node };
	return b;
}

struct ptc_bad_blocks *ptc_bad_blocks_free(struct ptc_bad_blocks *b)
{
	struct told *t;

	while (b && (t = b->told)) {
		b->told = t->next;
		ptc_free(t->json);
		ptc_free(t);
	}
	ptc_free(b);
	return NULL;
}

/* A job's blocks as JSON; ptc_free it. NULL: no memory. */
static char *encode(const struct ptc_store_damage *v, size_t n)
{
	struct ptc_damaged_block shown[PTC_BAD_BLOCKS_SHOWN];
	struct ptc_damage_doc doc = { .blocks = n, .list = shown };

	for (; doc.n < n && doc.n < PTC_BAD_BLOCKS_SHOWN; doc.n++)
		shown[doc.n] = (struct ptc_damaged_block){ v[doc.n].key.generation, v[doc.n].item, v[doc.n].text };
	return ptc_damage_doc_encode(&doc);
}

/* ---- writing it ---- */

static struct told *told_of(struct ptc_bad_blocks *b, const char *uuid)
{
	struct told *t = b->told;

	while (t && strcmp(t->uuid, uuid) != 0)
		t = t->next;
	if (t || !(t = ptc_calloc(1, sizeof *t)))
		return t;
	snprintf(t->uuid, sizeof t->uuid, "%s", uuid);
	t->next = b->told;
	b->told = t;
	return t;
}

static void key_of(const struct ptc_bad_blocks *b, const char *uuid, char *ret, size_t size)
{
	snprintf(ret, size, "/ptc/jobs/%s/damage/%s", uuid, b->node);
}

/* What an earlier life has written. */
static int read_key(const struct ptc_bad_blocks *b, struct told *t, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char key[KEY_BYTES];
	int rc;

	key_of(b, t->uuid, key, sizeof key);
	rc = ptc_etcd_get(ptc_cluster_etcd(b->cluster), key, false, 0, &kvs, err);
	if (rc)
		return rc;
	t->json = kvs.n ? ptc_strndup(kvs.kv[0].value, kvs.kv[0].len) : ptc_strdup("");
	ptc_etcd_kvs_done(&kvs);
	return t->json ? 0 : PTC_ENOMEM;
}

static int write_key(const struct ptc_bad_blocks *b, const char *uuid, const char *json, struct ptc_error *err)
{
	struct ptc_etcd *etcd = ptc_cluster_etcd(b->cluster);
	char key[KEY_BYTES], meta[KEY_BYTES];
	struct ptc_etcd_compare there = { meta, PTC_ETCD_VERSION, 1 };
	struct ptc_etcd_op op = { .key = key, .value = json, .len = strlen(json) };
	bool ok;

	key_of(b, uuid, key, sizeof key);
	snprintf(meta, sizeof meta, "/ptc/jobs/%s/meta", uuid);
	return json[0] ? ptc_etcd_txn(etcd, &there, 1, &op, 1, "etcd.damage", &ok, NULL, err)
		       : ptc_etcd_delete(etcd, key, false, "etcd.damage.gone", err);
}

/* json is taken over. */
static void tell(struct ptc_bad_blocks *b, struct told *t, char *json)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = json ? 0 : PTC_ENOMEM;

	if (!rc && !t->json)
		rc = read_key(b, t, &err);
	if (!rc && strcmp(t->json, json) != 0) {
		rc = write_key(b, t->uuid, json, &err);
		if (!rc) {
			ptc_free(t->json);
			t->json = json;
			json = NULL;
		}
	}
	if (rc)
		ptc_debug("scrub", "job=%s its damaged blocks cannot be written, trying again: %s", t->uuid, err.text);
	ptc_free(json);
}

static void note_job(void *arg, const char *uuid, uid_t uid, bool lost)
{
	struct ptc_bad_blocks *b = arg;
	struct told *t = told_of(b, uuid);

	(void)uid;
	(void)lost;
	if (t)
		t->seen = true;
}

/* Of jobs that are no longer here nothing is said any more. */
static void forget(struct ptc_bad_blocks *b)
{
	for (struct told **at = &b->told; *at;) {
		struct told *t = *at;

		if (t->seen || !t->json || t->json[0]) {
			t->seen = false;
			at = &t->next;
			continue;
		}
		*at = t->next;
		ptc_free(t->json);
		ptc_free(t);
	}
}

void ptc_bad_blocks_tell(struct ptc_bad_blocks *b, uint64_t *ret_n)
{
	struct ptc_store_damage *v = NULL;
	size_t n = 0;

	*ret_n = 0;
	if (ptc_store_jobs(b->store, note_job, b, NULL) != 0 || ptc_store_damaged(b->store, NULL, &v, &n, NULL) != 0)
		return;
	for (struct told *t = b->told; t; t = t->next) {
		size_t from = 0, to;

		while (from < n && strcmp(v[from].key.uuid, t->uuid) != 0)
			from++;
		for (to = from; to < n && strcmp(v[to].key.uuid, t->uuid) == 0;)
			to++;
		tell(b, t, to > from ? encode(v + from, to - from) : ptc_strdup(""));
	}
	forget(b);
	ptc_free(v);
	*ret_n = n;
}
