/* SPDX-License-Identifier: Apache-2.0 */
/* Caches layouts: those that ranks have declared, by the content hash of their document, and those that a job's rules
 * make, by description and configuration. They are shared by every reader and freed with the last one; the layouts
 * that were used last stay. Happy path: found, or made: fetched from the coordinator, decoded, checked; or computed by
 * the rules.
 *
 * Failure modes: the blob is not there or does not decode (its code, naming the hash), a configuration that the rules
 * do not allow (PTC_ELAYOUT), memory. */
#include "daemon/documents/documents.h"

#include "base/alloc.h"
#include "base/cache/counted_cache.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "formats/state/layout_doc.h"

#include <stdio.h>
#include <string.h>

#define KEEP_UNUSED 2 /* the two sides of a switch */

struct entry {
	struct ptc_cached cached;
	struct ptc_declared declared; /* zeros of one by rules */
	void *spec_ref;               /* of one by rules, which borrows the description's spec */
	const struct ptc_spec *spec;
	struct ptc_layout *layout;
};

struct ptc_layouts {
	struct ptc_kept *kept;
	struct ptc_cache cache;
};

static void drop(struct ptc_cached *cached)
{
	struct entry *e = (struct entry *)cached;

	ptc_layout_free(e->layout);
	ptc_declared_done(&e->declared);
	if (e->spec_ref)
		ptc_specs_release(e->spec_ref);
	ptc_free(e);
}

int ptc_layouts_new(struct ptc_kept *k, struct ptc_layouts **ret_layouts, struct ptc_error *err)
{
	struct ptc_layouts *l = ptc_calloc(1, sizeof *l);

	if (!l)
		return ptc_nomem(err);
	l->kept = k;
	ptc_cache_init(&l->cache, KEEP_UNUSED, drop);
	*ret_layouts = l;
	return 0;
}

struct ptc_layouts *ptc_layouts_free(struct ptc_layouts *l)
{
	if (l)
		ptc_cache_done(&l->cache);
	ptc_free(l);
	return NULL;
}

static int fetch(struct ptc_layouts *l, const char *uuid, const char *hash, struct entry **ret_entry,
		 struct ptc_error *err)
{
	struct entry *e;
	char *json;
	size_t len;
	int rc = ptc_document_get(l->kept, uuid, hash, PTC_LAYOUT_DOC_MAX_BYTES, &json, &len, err);

	if (rc)
		return rc;
	e = ptc_calloc(1, sizeof *e);
	rc = e ? ptc_layout_doc_decode(json, len, &e->declared, err) : ptc_nomem(err);
	ptc_free(json);
	if (rc == 0)
		rc = ptc_layout_declared_new(&e->declared, &e->layout, err);
	if (rc) {
		if (e)
			drop(&e->cached);
		if (rc != PTC_ENOMEM)
			ptc_error_wrap(err, "layout document %s of job %s", hash, uuid);
		return rc;
	}
	*ret_entry = e;
	return 0;
}

int ptc_layouts_get(struct ptc_layouts *l, const char *uuid, const char *hash, const struct ptc_declared **ret_declared,
		    const struct ptc_layout **ret_layout, void **ret_ref, struct ptc_error *err)
{
	char key[PTC_UUID_TEXT + PTC_HASH_HEX];
	struct entry *e;
	int rc;

	snprintf(key, sizeof key, "%s/%s", uuid, hash);
	e = (struct entry *)ptc_cache_find(&l->cache, key);
	if (!e) {
		rc = fetch(l, uuid, hash, &e, err);
		if (rc)
			return rc;
		e = (struct entry *)ptc_cache_add(&l->cache, key, &e->cached);
	}
	if (ret_declared)
		*ret_declared = &e->declared;
	*ret_layout = e->layout;
	*ret_ref = e;
	return 0;
}

static int make_by_rules(const struct ptc_documents *docs, const char *uuid, const char *spec_hash, const char *config,
			 struct entry **ret_entry, struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *c = ptc_calloc(1, sizeof *c);
	struct entry *e = ptc_calloc(1, sizeof *e);
	const struct ptc_job_desc *desc;
	int rc = c && e ? ptc_config_parse(config, c, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_specs_get(docs->specs, uuid, spec_hash, &desc, &e->spec_ref, err);
	if (rc == 0)
		rc = ptc_layout_new(&desc->spec, c, &e->layout, err);
	if (rc) {
		if (e)
			drop(&e->cached);
		return rc;
	}
	e->spec = &desc->spec;
	*ret_entry = e;
	return 0;
}

int ptc_layouts_of_rules(const struct ptc_documents *docs, const char *uuid, const char *spec_hash, const char *config,
			 const struct ptc_spec **ret_spec, const struct ptc_layout **ret_layout, void **ret_ref,
			 struct ptc_error *err)
{
	char key[PTC_UUID_TEXT + 2 * PTC_HASH_HEX], config_hash[PTC_HASH_HEX];
	struct entry *e;
	int rc;

	_Static_assert(sizeof key <= PTC_CACHE_KEY, "keys are cut off");
	ptc_content_hash(config, strlen(config), config_hash);
	snprintf(key, sizeof key, "%s/%s/%s", uuid, spec_hash, config_hash);
	e = (struct entry *)ptc_cache_find(&docs->layouts->cache, key);
	if (!e) {
		rc = make_by_rules(docs, uuid, spec_hash, config, &e, err);
		if (rc)
			return rc;
		e = (struct entry *)ptc_cache_add(&docs->layouts->cache, key, &e->cached);
	}
	*ret_spec = e->spec;
	*ret_layout = e->layout;
	*ret_ref = e;
	return 0;
}

void ptc_layouts_release(void *ref)
{
	ptc_cached_unref(ref);
}
