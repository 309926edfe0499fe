// SPDX-License-Identifier: Apache-2.0
/* The document of a dataset. Happy path: members in a fixed order, digests as 16 hex digits. Failure modes: see the
 * header; a document is refused whole. */
#include "formats/dataset/dataset_doc.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "formats/json.h"
#include "formats/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static json_t *hex(uint64_t v)
{
	char text[17];

	snprintf(text, sizeof text, "%016" PRIx64, v);
	return json_string(text);
}

static json_t *print_to_json(const struct ptc_source_print *p)
{
	json_t *files = json_array(), *root;

	for (uint32_t i = 0; i < p->nfiles; i++) {
		const struct ptc_source_file_print *f = &p->files[i];

		json_array_append_new(files, json_pack("{s:s, s:I, s:I, s:o}", "suffix", f->suffix, "bytes",
						       (json_int_t)f->bytes, "mtime_ns", (json_int_t)f->mtime_ns,
						       "ends", hex(f->ends)));
	}
	root = json_pack("{s:o}", "files", files);
	if (p->whole)
		json_object_set_new(root, "index", hex(p->index));
	return root;
}

static json_t *to_json(const struct ptc_dataset_doc *d, uint32_t version)
{
	json_t *root = json_pack("{s:i, s:s, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "version",
				 (int)version, "name", d->name, "uid", (json_int_t)d->uid, "kind",
				 ptc_source_kind_name(d->info.kind), "path", d->path, "dtype",
				 ptc_source_dtype_name(d->info.dtype), "record", (json_int_t)d->info.record, "samples",
				 (json_int_t)d->info.samples, "documents", (json_int_t)d->info.documents, "bytes",
				 (json_int_t)d->info.bytes, "longest_bytes", (json_int_t)d->longest_bytes, "created_ms",
				 (json_int_t)d->created_ms, "fingerprint", print_to_json(&d->print));

	if (root && d->node[0])
		json_object_set_new(root, "node", json_string(d->node));
	return root;
}

json_t *ptc_dataset_doc_to_json(const struct ptc_dataset_doc *d)
{
	json_t *root = to_json(d, ptc_version_write(PTC_DATASET_DOC_VERSION, PTC_DATASET_DOC_SINCE));

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

static bool take_hex(const json_t *node, uint64_t *ret)
{
	const char *text = json_string_value(node);
	char *end;

	if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
		return false;
	*ret = strtoull(text, &end, 16);
	return true;
}

static bool take_print(json_t *node, struct ptc_source_print *p)
{
	json_t *files = json_object_get(node, "files"), *index = json_object_get(node, "index");

	if (!json_is_array(files) || json_array_size(files) < 1 || json_array_size(files) > 2)
		return false;
	p->nfiles = (uint32_t)json_array_size(files);
	for (uint32_t i = 0; i < p->nfiles; i++) {
		json_t *file = json_array_get(files, i), *ends = json_object_get(file, "ends");
		json_int_t bytes = -1, mtime = 0;
		const char *suffix = NULL;

		if (json_unpack(file, "{s:s, s:I, s:I}", "suffix", &suffix, "bytes", &bytes, "mtime_ns", &mtime) ||
		    strlen(suffix) >= sizeof p->files[i].suffix || bytes < 0 || !take_hex(ends, &p->files[i].ends))
			return false;
		memcpy(p->files[i].suffix, suffix, strlen(suffix) + 1);
		p->files[i].bytes = (uint64_t)bytes;
		p->files[i].mtime_ns = mtime;
	}
	p->whole = index != NULL;
	return !index || take_hex(index, &p->index);
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

static bool take_info(json_t *root, struct ptc_dataset_doc *d)
{
	const char *name = NULL, *kind = NULL, *path = NULL, *dtype = NULL, *node = NULL;
	json_int_t uid = -1, record = -1, samples = -1, documents = -1, bytes = -1, longest = -1, created = 0;

	if (json_unpack(root, "{s:s, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s?s}", "name", &name, "uid",
			&uid, "kind", &kind, "path", &path, "dtype", &dtype, "record", &record, "samples", &samples,
			"documents", &documents, "bytes", &bytes, "longest_bytes", &longest, "created_ms", &created,
			"node", &node) ||
	    longest < 0 || uid < 0 || uid > UINT32_MAX || record < 0 || samples < 0 || documents < 0 || bytes < 0 ||
	    strlen(path) > PTC_SOURCE_PATH_MAX || !ptc_source_kind_parse(kind, &d->info.kind) ||
	    (dtype[0] && !ptc_source_dtype_parse(dtype, &d->info.dtype)) || strlen(name) > PTC_NAME_MAX)
		return false;
	if (node && (strlen(node) > PTC_NAME_MAX || !node[0]))
		return false;
	memcpy(d->node, node ? node : "", node ? strlen(node) + 1 : 1);
	memcpy(d->name, name, strlen(name) + 1);
	memcpy(d->path, path, strlen(path) + 1);
	d->uid = (uid_t)uid;
	d->created_ms = created;
	d->info.record = (uint64_t)record;
	d->info.samples = (uint64_t)samples;
	d->info.documents = (uint64_t)documents;
	d->info.bytes = (uint64_t)bytes;
	d->longest_bytes = (uint64_t)longest;
	d->spec = (struct ptc_source_spec){ .kind = d->info.kind, .dtype = d->info.dtype };
	if (d->info.kind != PTC_SOURCE_INDEXED)
		d->spec.record = d->info.record;
	return true;
}

int ptc_dataset_doc_from_json(const json_t *root, struct ptc_dataset_doc *ret_doc, struct ptc_error *err)
{
	json_t *tree = (json_t *)(uintptr_t)root; /* json_unpack and json_object_get only read */
	struct ptc_dataset_doc d = { 0 };
	int rc = ptc_json_version("dataset document", root, PTC_DATASET_DOC_OLDEST, PTC_DATASET_DOC_VERSION, err);

	if (rc)
		return rc;
	if (!take_info(tree, &d) || !take_print(json_object_get(tree, "fingerprint"), &d.print) || !sound(&d))
		return ptc_error_set(err, PTC_EINVAL,
				     "dataset document: a member is missing, malformed or contradicts another");
	rc = ptc_name_check_job(d.name, err);
	if (rc)
		return rc;
	*ret_doc = d;
	return 0;
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
	root = to_json(bare, 1); /* nodes of any version compare these */
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
