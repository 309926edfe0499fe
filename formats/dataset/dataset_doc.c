/* SPDX-License-Identifier: Apache-2.0 */
/* The document of a dataset. Happy path: members in a fixed order, digests as 16 hex digits. Failure modes: see the
 * header; a document is refused whole. */
#include "formats/dataset/dataset_doc.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "formats/json.h"
#include "formats/members.h"
#include "formats/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define AS(key, doc, member, ...) PTC_ROW(struct ptc_##doc, key, member, __VA_ARGS__)
#define IS(doc, member, ...)      AS(#member, doc, member, __VA_ARGS__)

static const struct ptc_member file_rows[] = {
	IS(source_file_print, suffix, TEXT),
	IS(source_file_print, bytes, U64),
	IS(source_file_print, mtime_ns, I64),
	IS(source_file_print, ends, HEX),
};
static const struct ptc_members file_members = PTC_MEMBERS(file_rows, struct ptc_source_file_print);
static const struct ptc_member print_rows[] = {
	IS(source_print, files, ARRAY, .min = 1, PTC_COUNT(struct ptc_source_print, nfiles), .of = &file_members),
	IS(source_print, index, HEX, PTC_IF(struct ptc_source_print, whole)),
};
static const struct ptc_members print_members = PTC_MEMBERS(print_rows, struct ptc_source_print);
static const struct ptc_member doc_rows[] = {
	IS(dataset_doc, name, TEXT),
	IS(dataset_doc, uid, U32),
	AS("kind", dataset_doc, info.kind, WORD, .words = ptc_source_kinds, .max = PTC_SOURCE_KINDS - 1),
	IS(dataset_doc, path, TEXT),
	AS("dtype", dataset_doc, info.dtype, WORD, .words = ptc_source_dtypes, .max = PTC_SOURCE_DTYPES - 1),
	AS("record", dataset_doc, info.record, U64),
	AS("samples", dataset_doc, info.samples, U64),
	AS("documents", dataset_doc, info.documents, U64),
	AS("bytes", dataset_doc, info.bytes, U64),
	IS(dataset_doc, longest_bytes, U64),
	IS(dataset_doc, created_ms, I64),
	AS("fingerprint", dataset_doc, print, MAP, .of = &print_members),
	IS(dataset_doc, node, TEXT, PTC_IF_TEXT(struct ptc_dataset_doc, node)),
};
static const struct ptc_members doc_members = PTC_MEMBERS(doc_rows, struct ptc_dataset_doc);

json_t *ptc_dataset_doc_to_json(const struct ptc_dataset_doc *d)
{
	json_t *root = ptc_members_to_doc((int)ptc_version_write(PTC_DATASET_DOC_VERSION, PTC_DATASET_DOC_SINCE),
					  &doc_members, d);

	if (root && ptc_version_adds())
		json_object_set_new(root, "added", json_integer((json_int_t)PTC_VERSION_ADDED));
	return root;
}

char *ptc_dataset_doc_encode(const struct ptc_dataset_doc *d)
{
	json_t *root = ptc_dataset_doc_to_json(d);
	char *text = root ? ptc_json_text(root) : NULL;

	json_decref(root);
	return text;
}

/* What opening the source would have refused. */
static bool sound(const struct ptc_dataset_doc *d)
{
	const struct ptc_source_info *i = &d->info;
	bool typed = i->kind != PTC_SOURCE_FILES, cut = i->kind == PTC_SOURCE_FLAT || i->kind == PTC_SOURCE_NPY;

	return d->path[0] == '/' && i->samples && (i->dtype != PTC_SOURCE_NO_DTYPE) == typed &&
	       (i->record != 0) == cut && i->record < PTC_SOURCE_RECORD_MAX &&
	       d->print.nfiles == (i->kind == PTC_SOURCE_INDEXED ? 2 : 1);
}

int ptc_dataset_doc_from_json(const json_t *root, struct ptc_dataset_doc *ret_doc, struct ptc_error *err)
{
	static const char what[] = "dataset document";
	struct ptc_dataset_doc d = { 0 };
	const json_t *node = json_object_get(root, "node");
	int rc = ptc_json_version(what, root, PTC_DATASET_DOC_OLDEST, PTC_DATASET_DOC_VERSION, err);

	if (rc == 0)
		rc = ptc_members_from_json(what, &doc_members, root, &d, err);
	if (rc)
		return rc;
	d.print.whole = json_object_get(json_object_get(root, "fingerprint"), "index");
	d.spec = (struct ptc_source_spec){ .kind = d.info.kind, .dtype = d.info.dtype };
	if (d.info.kind != PTC_SOURCE_INDEXED)
		d.spec.record = d.info.record;
	if (!sound(&d) || (node && !d.node[0]))
		return ptc_error_set(err, PTC_EINVAL, "%s: its members contradict each other", what);
	rc = ptc_name_check_job(d.name, err);
	if (!rc)
		*ret_doc = d;
	return rc;
}

int ptc_dataset_doc_decode(const char *json, size_t len, struct ptc_dataset_doc *ret_doc, struct ptc_error *err)
{
	json_t *root;
	int rc;

	if (len > PTC_DATASET_DOC_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "dataset document: %zu bytes, at most %d are read", len,
				     PTC_DATASET_DOC_MAX);
	rc = ptc_json_load("dataset document", json, len, &root, err);
	if (rc)
		return rc;
	rc = ptc_dataset_doc_from_json(root, ret_doc, err);
	json_decref(root);
	return rc;
}

static int hash_bare(const struct ptc_dataset_doc *d, bool reader, char ret_hex[33])
{
	ptc_auto_free struct ptc_dataset_doc *bare = ptc_malloc(sizeof *bare);
	ptc_auto_free char *json = NULL;
	json_t *root;

	if (!bare)
		return PTC_ENOMEM;
	*bare = *d;
	memcpy(bare->name, "x", 2);
	if (!reader) {
		bare->uid = 0;
		bare->node[0] = '\0';
	}
	bare->created_ms = 0;
	root = ptc_members_to_doc(1, &doc_members, bare); /* nodes of any version compare these */
	json = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	if (!json)
		return PTC_ENOMEM;
	ptc_content_hash(json, strlen(json), ret_hex);
	return 0;
}

int ptc_dataset_doc_source(const struct ptc_dataset_doc *d, char ret_hex[33])
{
	return hash_bare(d, false, ret_hex);
}

int ptc_dataset_doc_reader(const struct ptc_dataset_doc *d, char ret_hex[33])
{
	return hash_bare(d, true, ret_hex);
}

struct ptc_source_spec ptc_dataset_doc_spec(const struct ptc_dataset_doc *d)
{
	struct ptc_source_spec spec = d->spec;

	spec.path = d->path;
	return spec;
}

int ptc_dataset_doc_open(const struct ptc_dataset_doc *d, struct ptc_source **ret_source, struct ptc_error *err)
{
	struct ptc_source_spec spec = ptc_dataset_doc_spec(d);
	struct ptc_source *s = NULL;
	struct ptc_source_print now;
	int rc = ptc_source_open(&spec, &s, err);

	if (!rc)
		rc = ptc_source_print(s, false, &now, err);
	if (!rc)
		rc = ptc_source_same(s, &d->print, &now, err);
	if (!rc && ptc_source_info(s)->samples != d->info.samples)
		rc = ptc_error_set(err, PTC_ECORRUPT,
				   "%s has %" PRIu64 " samples; it had %" PRIu64 " when it was added", d->path,
				   ptc_source_info(s)->samples, d->info.samples);
	if (rc) {
		ptc_source_close(s);
		return ptc_error_wrap(err, "dataset %s", d->name), rc;
	}
	*ret_source = s;
	return 0;
}
