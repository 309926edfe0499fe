/* SPDX-License-Identifier: Apache-2.0 */
/* Parsed specs by content hash, shared by every reader and freed with the
 * last one. A spec of a large model takes seconds to fetch and parse, so one
 * copy is also kept after its last release until another job's replaces it. */
#include "daemon/documents/documents.h"

#include "base/alloc.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct entry {
	struct ptc_specs *owner;
	char key[PTC_UUID_TEXT + PTC_HASH_HEX];
	char plain_hash[PTC_HASH_HEX];
	struct ptc_job_desc desc;
	unsigned refs;
	struct entry *next;
};

struct ptc_specs {
	struct ptc_kept *kept;
	struct ptc_vault *vault;
	pthread_mutex_t lock;
	struct entry *head;
};

int ptc_specs_new(struct ptc_kept *k, struct ptc_vault *v, struct ptc_specs **ret_specs, struct ptc_error *err)
{
	struct ptc_specs *s = ptc_calloc(1, sizeof *s);

	if (!s)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	s->kept = k;
	s->vault = v;
	pthread_mutex_init(&s->lock, NULL);
	*ret_specs = s;
	return 0;
}

static void entry_free(struct entry *e)
{
	ptc_job_desc_done(&e->desc);
	ptc_free(e);
}

struct ptc_specs *ptc_specs_free(struct ptc_specs *s)
{
	while (s && s->head) {
		struct entry *e = s->head;

		s->head = e->next;
		entry_free(e);
	}
	if (s)
		pthread_mutex_destroy(&s->lock);
	ptc_free(s);
	return NULL;
}

static struct entry *find_locked(struct ptc_specs *s, const char *key)
{
	for (struct entry *e = s->head; e; e = e->next)
		if (strcmp(e->key, key) == 0) {
			e->refs++;
			return e;
		}
	return NULL;
}

/* Entries nobody uses make room for the new one. */
static void drop_unused_locked(struct ptc_specs *s)
{
	struct entry **p = &s->head;

	while (*p) {
		struct entry *e = *p;

		if (e->refs) {
			p = &e->next;
			continue;
		}
		*p = e->next;
		entry_free(e);
	}
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

static int fetch(struct ptc_specs *s, const char *uuid, const char *hash, const char *key, struct entry **ret_entry,
		 struct ptc_error *err)
{
	struct entry *e;
	char *json;
	size_t len;
	int rc = read_json(s->kept, s->vault, uuid, hash, &json, &len, err);

	if (rc)
		return rc;
	e = ptc_calloc(1, sizeof *e);
	rc = e ? ptc_job_from_json(json, len, &e->desc, err) : ptc_error_set(err, PTC_ENOMEM, "out of memory");
	rc = rc ? rc : ptc_job_hash(&e->desc, e->plain_hash, err);
	ptc_free(json);
	if (rc) {
		if (e)
			ptc_job_desc_done(&e->desc);
		ptc_free(e);
		return rc;
	}
	e->owner = s;
	e->refs = 1;
	snprintf(e->key, sizeof e->key, "%s", key);
	*ret_entry = e;
	return 0;
}

int ptc_specs_get(struct ptc_specs *s, const char *uuid, const char *hash, const struct ptc_job_desc **ret_desc,
		  void **ret_ref, struct ptc_error *err)
{
	char key[PTC_UUID_TEXT + PTC_HASH_HEX];
	struct entry *e, *other;
	int rc;

	snprintf(key, sizeof key, "%s/%s", uuid, hash);
	pthread_mutex_lock(&s->lock);
	e = find_locked(s, key);
	pthread_mutex_unlock(&s->lock);
	if (!e) {
		rc = fetch(s, uuid, hash, key, &e, err);
		if (rc)
			return rc;
		pthread_mutex_lock(&s->lock);
		other = find_locked(s, key);
		if (!other) {
			drop_unused_locked(s);
			e->next = s->head;
			s->head = e;
		}
		pthread_mutex_unlock(&s->lock);
		if (other) {
			entry_free(e);
			e = other;
		}
	}
	*ret_desc = &e->desc;
	*ret_ref = e;
	return 0;
}

void ptc_specs_release(void *ref)
{
	struct entry *e = ref;

	if (!e)
		return;
	pthread_mutex_lock(&e->owner->lock);
	e->refs--;
	pthread_mutex_unlock(&e->owner->lock);
}

const char *ptc_specs_plain_hash(const void *ref)
{
	return ((const struct entry *)ref)->plain_hash;
}
