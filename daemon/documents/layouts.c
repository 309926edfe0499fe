/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that ranks have declared, by the content hash of their document,
 * shared by every reader and freed with the last one, but for what was used
 * last. Happy path: found, or fetched from the coordinator, decoded, checked.
 * Failure modes: the blob is not there or does not decode (its code, naming
 * the hash), memory. */
#include "daemon/documents/documents.h"

#include "base/alloc.h"
#include "base/check.h"
#include "formats/state/layout_doc.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define KEEP_UNUSED 2 /* the two sides of a switch */

struct entry {
	struct ptc_layouts *owner;
	char key[PTC_UUID_TEXT + PTC_HASH_HEX];
	struct ptc_declared declared;
	struct ptc_layout *layout;
	unsigned refs;
	struct entry *next; /* last used first */
};

struct ptc_layouts {
	struct ptc_kept *kept;
	pthread_mutex_t lock;
	struct entry *head;
};

int ptc_layouts_new(struct ptc_kept *k, struct ptc_layouts **ret_layouts, struct ptc_error *err)
{
	struct ptc_layouts *l = ptc_calloc(1, sizeof *l);

	if (!l)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	l->kept = k;
	pthread_mutex_init(&l->lock, NULL);
	*ret_layouts = l;
	return 0;
}

static void entry_free(struct entry *e)
{
	ptc_layout_free(e->layout);
	ptc_declared_done(&e->declared);
	ptc_free(e);
}

struct ptc_layouts *ptc_layouts_free(struct ptc_layouts *l)
{
	while (l && l->head) {
		struct entry *e = l->head;

		l->head = e->next;
		entry_free(e);
	}
	if (l)
		pthread_mutex_destroy(&l->lock);
	ptc_free(l);
	return NULL;
}

/* Takes a reference, and moves it to the front. */
static struct entry *find_locked(struct ptc_layouts *l, const char *key)
{
	for (struct entry **p = &l->head; *p; p = &(*p)->next) {
		struct entry *e = *p;

		if (strcmp(e->key, key) != 0)
			continue;
		*p = e->next;
		e->next = l->head;
		l->head = e;
		e->refs++;
		return e;
	}
	return NULL;
}

static void drop_unused_locked(struct ptc_layouts *l)
{
	struct entry **p = &l->head;
	unsigned unused = 0;

	while (*p) {
		struct entry *e = *p;

		if (e->refs || unused++ < KEEP_UNUSED) {
			p = &e->next;
			continue;
		}
		*p = e->next;
		entry_free(e);
	}
}

static int fetch(struct ptc_layouts *l, const char *uuid, const char *hash, const char *key, struct entry **ret_entry,
		 struct ptc_error *err)
{
	struct entry *e;
	char *json;
	size_t len;
	int rc = ptc_document_get(l->kept, uuid, hash, PTC_LAYOUT_DOC_MAX_BYTES, &json, &len, err);

	if (rc)
		return rc;
	e = ptc_calloc(1, sizeof *e);
	rc = e ? ptc_layout_doc_decode(json, len, &e->declared, err) : ptc_error_set(err, PTC_ENOMEM, "out of memory");
	ptc_free(json);
	if (rc == 0)
		rc = ptc_layout_declared_new(&e->declared, &e->layout, err);
	if (rc) {
		if (e)
			entry_free(e);
		if (rc != PTC_ENOMEM)
			ptc_error_wrap(err, "layout document %s of job %s", hash, uuid);
		return rc;
	}
	e->owner = l;
	e->refs = 1;
	snprintf(e->key, sizeof e->key, "%s", key);
	*ret_entry = e;
	return 0;
}

int ptc_layouts_get(struct ptc_layouts *l, const char *uuid, const char *hash, const struct ptc_declared **ret_declared,
		    const struct ptc_layout **ret_layout, void **ret_ref, struct ptc_error *err)
{
	char key[PTC_UUID_TEXT + PTC_HASH_HEX];
	struct entry *e, *other;
	int rc;

	snprintf(key, sizeof key, "%s/%s", uuid, hash);
	pthread_mutex_lock(&l->lock);
	e = find_locked(l, key);
	pthread_mutex_unlock(&l->lock);
	if (!e) {
		rc = fetch(l, uuid, hash, key, &e, err);
		if (rc)
			return rc;
		pthread_mutex_lock(&l->lock);
		other = find_locked(l, key);
		if (!other) {
			drop_unused_locked(l);
			e->next = l->head;
			l->head = e;
		}
		pthread_mutex_unlock(&l->lock);
		if (other) {
			entry_free(e);
			e = other;
		}
	}
	if (ret_declared)
		*ret_declared = &e->declared;
	*ret_layout = e->layout;
	*ret_ref = e;
	return 0;
}

void ptc_layouts_release(void *ref)
{
	struct entry *e = ref;
	struct ptc_layouts *l = e ? e->owner : NULL;

	if (!e)
		return;
	pthread_mutex_lock(&l->lock);
	e->refs--;
	drop_unused_locked(l);
	pthread_mutex_unlock(&l->lock);
}
