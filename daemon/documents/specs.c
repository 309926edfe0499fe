/* SPDX-License-Identifier: Apache-2.0 */
/* Caches parsed job descriptions by content hash, shared by every reader and freed with the last one. A spec of a
 * large model takes seconds to fetch and parse, so one copy is also kept after its last release until another job's
 * replaces it. */
#include "daemon/documents/documents.h"

#include "base/alloc.h"
#include "base/cache/counted_cache.h"
#include "base/check.h"
#include "base/sys/fault.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct entry {
	struct ptc_cached cached;
	struct ptc_job_desc desc;
	pthread_mutex_t lock;          /* of plain_hash */
	char plain_hash[PTC_HASH_HEX]; /* "": nobody has asked for it */
};

struct ptc_specs {
	struct ptc_kept *kept;
	struct ptc_vault *vault;
	struct ptc_cache cache;
};

static void drop(struct ptc_cached *cached)
{
	struct entry *e = (struct entry *)cached;

	ptc_job_desc_done(&e->desc);
	pthread_mutex_destroy(&e->lock);
	ptc_free(e);
}

int ptc_specs_new(struct ptc_kept *k, struct ptc_vault *v, struct ptc_specs **ret_specs, struct ptc_error *err)
{
	struct ptc_specs *s = ptc_calloc(1, sizeof *s);

	if (!s)
		return ptc_nomem(err);
	s->kept = k;
	s->vault = v;
	ptc_cache_init(&s->cache, 1, drop);
	*ret_specs = s;
	return 0;
}

struct ptc_specs *ptc_specs_free(struct ptc_specs *s)
{
	if (s)
		ptc_cache_done(&s->cache);
	ptc_free(s);
	return NULL;
}

static int read_json(struct ptc_kept *k, struct ptc_vault *v, const char *uuid, const char *hash, char **ret_json,
		     size_t *ret_len, struct ptc_error *err)
{
	size_t len;
	char *data;
	int rc = ptc_document_get(k, uuid, hash, PTC_SEALED_SPEC_MAX_BYTES, &data, &len, err);

	return rc ? rc : ptc_vault_open(v, uuid, data, len, ret_json, ret_len, err);
}

int ptc_specs_read(const struct ptc_documents *docs, const char *uuid, const char *hash, char **ret_json,
		   size_t *ret_len, struct ptc_error *err)
{
	return read_json(docs->kept, docs->vault, uuid, hash, ret_json, ret_len, err);
}

static int fetch(struct ptc_specs *s, const char *uuid, const char *hash, struct entry **ret_entry,
		 struct ptc_error *err)
{
	struct entry *e;
	char *json;
	size_t len;
	int rc = ptc_fault("job.description")
			 ? ptc_error_set(err, PTC_EVERSION, "a test wants a description that this node cannot read")
			 : read_json(s->kept, s->vault, uuid, hash, &json, &len, err);

	if (rc)
		return rc;
	e = ptc_calloc(1, sizeof *e);
	if (e)
		ptc_require(!pthread_mutex_init(&e->lock, NULL));
	rc = e ? ptc_job_from_json(json, len, &e->desc, err) : ptc_nomem(err);
	ptc_free(json);
	if (rc) {
		if (e)
			drop(&e->cached);
		return rc;
	}
	*ret_entry = e;
	return 0;
}

int ptc_specs_get(struct ptc_specs *s, const char *uuid, const char *hash, const struct ptc_job_desc **ret_desc,
		  void **ret_ref, struct ptc_error *err)
{
	char key[PTC_UUID_TEXT + PTC_HASH_HEX];
	struct entry *e;
	int rc;

	snprintf(key, sizeof key, "%s/%s", uuid, hash);
	e = (struct entry *)ptc_cache_find(&s->cache, key);
	if (!e) {
		rc = fetch(s, uuid, hash, &e, err);
		if (rc)
			return rc;
		e = (struct entry *)ptc_cache_add(&s->cache, key, &e->cached);
	}
	*ret_desc = &e->desc;
	*ret_ref = e;
	return 0;
}

void ptc_specs_release(void *ref)
{
	ptc_cached_unref(ref);
}

int ptc_specs_plain_hash(void *ref, char ret_hash[PTC_HASH_HEX], struct ptc_error *err)
{
	struct entry *e = ref;
	int rc = 0;

	pthread_mutex_lock(&e->lock);
	if (!e->plain_hash[0]) /* it writes all of the JSON again, and few nodes are asked */
		rc = ptc_job_hash(&e->desc, e->plain_hash, err);
	if (rc == 0)
		memcpy(ret_hash, e->plain_hash, PTC_HASH_HEX);
	pthread_mutex_unlock(&e->lock);
	return rc;
}
