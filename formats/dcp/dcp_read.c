/* SPDX-License-Identifier: Apache-2.0 */
/* ".metadata" as any version of torch.distributed.checkpoint wrote it. Two passes over its tree: what each key is, then
 * where each part is. Parts are sorted by their offsets, and the files' list finds its names by a hash, so that no list
 * in the file makes this quadratic. Failure modes: dcp.h. */
#include "formats/dcp/dcp.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/number/search.h"
#include "base/status.h"
#include "formats/pickle/pickle.h"
#include "formats/dcp/torch_file.h"
#include "formats/dcp/torch_parts.h"
#include "formats/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MODULE    "torch.distributed.checkpoint.metadata "
#define PATH_MAX_ 4095
#define NO_FILE   UINT32_MAX

/* Beside ptc_torch_names, for tensors of a metadata are described, not stored. */
static const char *const names[] = {
	MODULE "Metadata",
	MODULE "TensorStorageMetadata",
	MODULE "TensorProperties",
	MODULE "_MEM_FORMAT_ENCODING",
	MODULE "ChunkStorageMetadata",
	MODULE "BytesStorageMetadata",
	MODULE "MetadataIndex",
	MODULE "StorageMeta",
	"torch.distributed.checkpoint.filesystem _StorageInfo",
	"torch.distributed.checkpoint.filesystem _StoragePrefix",
	"torch.serialization _get_layout",
	"pathlib PosixPath",
	"pathlib._local PosixPath",
	"pathlib PurePosixPath",
	"collections OrderedDict",
	NULL,
};

struct reader {
	struct ptc_pickle p;
	struct ptc_dcp d;
	uint32_t *buckets; /* of files, by a hash; NO_FILE: empty */
	size_t nbuckets;
	uint64_t nparts; /* of all entries */
	struct ptc_error *err;
};

static int bad(const struct reader *r, const char *key, const char *what)
{
	return ptc_error_set(r->err, PTC_EINVAL, PTC_DCP_METADATA ": \"%.200s\": %s", key, what);
}

/* ---- texts and sizes ---- */

/* Messages and paths have them, so they are printable. */
static bool is_clean(const char *text)
{
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return false;
	return ptc_name_is_utf8(text);
}

static int text_of(struct reader *r, const struct ptc_pickle_value *v, size_t max, char **ret)
{
	const char *text = v->kind == PTC_PICKLE_TEXT ? ptc_pickle_str(&r->p, v) : NULL;
	char *copy;

	if (!text || !v->text.len || v->text.len > max || memchr(text, '\0', v->text.len))
		return ptc_error_set(r->err, PTC_EINVAL,
				     PTC_DCP_METADATA ": a key or path that is no text, or has more than %zu bytes",
				     max);
	copy = ptc_strndup(text, v->text.len);
	if (!copy)
		return ptc_nomem(r->err);
	if (!is_clean(copy)) {
		ptc_free(copy);
		return ptc_error_set(r->err, PTC_EINVAL,
				     PTC_DCP_METADATA ": a key or path with control characters, or not in UTF-8");
	}
	*ret = copy;
	return 0;
}

static int size_of(struct reader *r, const char *key, const struct ptc_pickle_value *v, uint32_t *ret_ndim,
		   int64_t *ret)
{
	if (v && v->kind == PTC_PICKLE_CALL && ptc_pickle_made_by(&r->p, v, "torch Size")) {
		v = ptc_pickle_at(&r->p, v->made.args);
		v = v->nitems ? ptc_pickle_item(&r->p, v, 0) : v;
	}
	if (!v || v->kind != PTC_PICKLE_SEQ)
		return bad(r, key, "a size or offset that is none");
	if (v->nitems > PTC_MAX_DIMS)
		return ptc_error_set(r->err, PTC_ELIMIT,
				     PTC_DCP_METADATA ": \"%.200s\" has %u dims; at most %d are possible", key,
				     v->nitems, PTC_MAX_DIMS);
	for (uint32_t i = 0; i < v->nitems; i++) {
		const struct ptc_pickle_value *n = ptc_pickle_item(&r->p, v, i);

		if (n->kind != PTC_PICKLE_INT || n->n < 0)
			return bad(r, key, "a size or offset that is none");
		ret[i] = n->n;
	}
	*ret_ndim = v->nitems;
	return 0;
}

/* ---- entries ---- */

static int dtype_of(struct reader *r, const struct ptc_pickle_value *v, struct ptc_dcp_entry *e)
{
	const struct ptc_pickle_value *p = ptc_pickle_member(&r->p, v, "properties"), *state, *name;

	if (!p || !ptc_pickle_made_by(&r->p, p, MODULE "TensorProperties"))
		return bad(r, e->key, "a tensor without properties");
	state = ptc_pickle_at(&r->p, p->made.state);
	name = state->kind == PTC_PICKLE_SEQ && state->nitems ? ptc_pickle_item(&r->p, state, 0) : NULL;
	if (!name || name->kind != PTC_PICKLE_NAME ||
	    !ptc_torch_dtype_parse(ptc_pickle_str(&r->p, name), name->text.len, &e->dtype))
		return bad(r, e->key, "a dtype that is unknown here");
	return 0;
}

static bool inside(const struct ptc_dcp_entry *e, const int64_t *box)
{
	for (uint32_t d = 0; d < e->ndim; d++)
		if (box[d] > e->shape[d] || box[e->ndim + d] > e->shape[d] - box[d])
			return false;
	return true;
}

static uint64_t volume(uint32_t ndim, const int64_t *shape, bool *overflow)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < ndim; d++)
		if (!shape[d])
			return 0;
	for (uint32_t d = 0; d < ndim; d++)
		*overflow |= ptc_ckd_mul(&n, n, (uint64_t)shape[d]);
	return n;
}

static int add_chunk(struct reader *r, const struct ptc_pickle_value *v, struct ptc_dcp_entry *e, uint64_t *sum)
{
	int64_t *box = e->boxes + (size_t)e->nparts * 2 * e->ndim, at[PTC_MAX_DIMS], of[PTC_MAX_DIMS];
	uint32_t noff, next;
	bool overflow = false;
	uint64_t n;
	int rc;

	if (!ptc_pickle_made_by(&r->p, v, MODULE "ChunkStorageMetadata"))
		return bad(r, e->key, "a part that is none");
	rc = size_of(r, e->key, ptc_pickle_member(&r->p, v, "offsets"), &noff, at);
	if (!rc)
		rc = size_of(r, e->key, ptc_pickle_member(&r->p, v, "sizes"), &next, of);
	if (rc)
		return rc;
	if (noff != e->ndim || next != e->ndim)
		return bad(r, e->key, "a part with another number of dims");
	n = volume(e->ndim, of, &overflow);
	if (!n && !overflow)
		return 0; /* of a rank that has nothing */
	if (e->ndim) {
		memcpy(box, at, e->ndim * sizeof *at);
		memcpy(box + e->ndim, of, e->ndim * sizeof *of);
	}
	if (overflow || !inside(e, box))
		return bad(r, e->key, "a part that is not inside of the tensor");
	*sum += n;
	e->parts[e->nparts++].file = NO_FILE;
	return 0;
}

/* qsort has no argument, so boxes are sorted with their number of dims before them. */
struct sorted {
	uint32_t ndim;
	int64_t box[2 * PTC_MAX_DIMS];
};

static int compare_offsets(uint32_t ndim, const int64_t *a, const int64_t *b)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (a[d] != b[d])
			return a[d] < b[d] ? -1 : 1;
	return 0;
}

PTC_COMPARE(compare_sorted, struct sorted, compare_offsets(a->ndim, a->box, b->box))

static int sort_parts(struct reader *r, struct ptc_dcp_entry *e)
{
	size_t n = 2 * (size_t)e->ndim;
	struct sorted *v;

	if (e->nparts < 2)
		return 0;
	v = ptc_calloc(e->nparts, sizeof *v);
	if (!v)
		return ptc_nomem(r->err);
	for (uint32_t i = 0; i < e->nparts; i++) {
		v[i].ndim = e->ndim;
		memcpy(v[i].box, e->boxes + i * n, n * sizeof v[i].box[0]);
	}
	qsort(v, e->nparts, sizeof *v, compare_sorted);
	for (uint32_t i = 0; i < e->nparts; i++)
		memcpy(e->boxes + i * n, v[i].box, n * sizeof v[i].box[0]);
	ptc_free(v);
	for (uint32_t i = 1; i < e->nparts; i++)
		if (!compare_offsets(e->ndim, ptc_dcp_offset(e, i - 1), ptc_dcp_offset(e, i)))
			return bad(r, e->key, "two parts at the same offset");
	return 0;
}

static int read_chunks(struct reader *r, const struct ptc_pickle_value *v, struct ptc_dcp_entry *e)
{
	const struct ptc_pickle_value *chunks = ptc_pickle_member(&r->p, v, "chunks");
	bool overflow = false;
	uint64_t want = volume(e->ndim, e->shape, &overflow), sum = 0, bytes;
	int rc = 0;

	if (!chunks || chunks->kind != PTC_PICKLE_SEQ)
		return bad(r, e->key, "a tensor without parts");
	if (overflow || ptc_ckd_mul(&bytes, want, ptc_dtype_bits(e->dtype) / 8) || bytes > INT64_MAX)
		return ptc_error_set(r->err, PTC_ELIMIT, PTC_DCP_METADATA ": \"%.200s\" is too large", e->key);
	r->nparts += chunks->nitems;
	if (r->nparts > r->p.nvalues) /* one list in the place of many */
		return bad(r, e->key, "the same parts again");
	e->parts = ptc_calloc(PTC_MAX(chunks->nitems, 1u), sizeof *e->parts);
	e->boxes = ptc_calloc((size_t)PTC_MAX(chunks->nitems, 1u) * 2 * PTC_MAX(e->ndim, 1u), sizeof *e->boxes);
	if (!e->parts || !e->boxes)
		return ptc_nomem(r->err);
	for (uint32_t i = 0; i < chunks->nitems && !rc; i++)
		rc = add_chunk(r, ptc_pickle_item(&r->p, chunks, i), e, &sum);
	if (!rc && sum != want)
		return ptc_error_set(r->err, PTC_EINVAL,
				     PTC_DCP_METADATA ": \"%.200s\" has %" PRIu64 " elements, its parts have %" PRIu64,
				     e->key, want, sum);
	return rc ? rc : sort_parts(r, e);
}

static int read_entry(struct reader *r, const struct ptc_pickle_value *key, const struct ptc_pickle_value *v,
		      struct ptc_dcp_entry *e)
{
	int rc = text_of(r, key, PATH_MAX_, &e->key);

	if (rc)
		return rc;
	if (ptc_pickle_made_by(&r->p, v, MODULE "BytesStorageMetadata")) {
		e->is_value = true;
		e->parts = ptc_calloc(1, sizeof *e->parts);
		if (!e->parts)
			return ptc_nomem(r->err);
		e->parts[0].file = NO_FILE;
		e->nparts = 1;
		return 0;
	}
	if (!ptc_pickle_made_by(&r->p, v, MODULE "TensorStorageMetadata"))
		return bad(r, e->key, "it is neither a tensor nor a value");
	rc = dtype_of(r, v, e);
	if (!rc)
		rc = size_of(r, e->key, ptc_pickle_member(&r->p, v, "size"), &e->ndim, e->shape);
	return rc ? rc : read_chunks(r, v, e);
}

PTC_BY_NAME(compare_key, struct ptc_dcp_entry, key)

static int read_entries(struct reader *r, const struct ptc_pickle_value *root)
{
	const struct ptc_pickle_value *dict = ptc_pickle_member(&r->p, root, "state_dict_metadata");
	int rc = 0;

	if (!dict || dict->kind != PTC_PICKLE_DICT)
		return ptc_error_set(r->err, PTC_EINVAL, PTC_DCP_METADATA ": it is no metadata of a checkpoint");
	if (dict->nitems / 2 > PTC_DCP_MAX_ENTRIES)
		return ptc_error_set(r->err, PTC_ELIMIT, PTC_DCP_METADATA ": more than %u keys", PTC_DCP_MAX_ENTRIES);
	r->d.entries = ptc_calloc(PTC_MAX(dict->nitems / 2, 1u), sizeof *r->d.entries);
	if (!r->d.entries)
		return ptc_nomem(r->err);
	for (uint32_t i = 0; i + 1 < dict->nitems && !rc; i += 2)
		rc = read_entry(r, ptc_pickle_item(&r->p, dict, i), ptc_pickle_item(&r->p, dict, i + 1),
				&r->d.entries[r->d.nentries++]);
	if (rc)
		return rc;
	qsort(r->d.entries, r->d.nentries, sizeof *r->d.entries, compare_key);
	for (size_t i = 1; i < r->d.nentries; i++)
		if (!strcmp(r->d.entries[i - 1].key, r->d.entries[i].key))
			return bad(r, r->d.entries[i].key, "the key is there twice");
	return 0;
}

/* ---- where parts are ---- */

/* Below the directory, and no way out of it. */
static bool is_path(const char *path)
{
	if (path[0] == '/')
		return false;
	for (const char *p = path; *p; p++)
		if ((p == path || p[-1] == '/') && p[0] == '.' && p[1] == '.' && (!p[2] || p[2] == '/'))
			return false;
	return true;
}

static size_t bucket_of(const struct reader *r, const char *path)
{
	size_t b = (size_t)ptc_checksum(path, strlen(path)) & (r->nbuckets - 1);

	while (r->buckets[b] != NO_FILE && strcmp(r->d.files[r->buckets[b]], path) != 0)
		b = (b + 1) & (r->nbuckets - 1);
	return b;
}

static int more_buckets(struct reader *r)
{
	size_t n = PTC_MAX(2 * r->nbuckets, (size_t)64);
	uint32_t *v = ptc_reallocarray(NULL, n, sizeof *v);

	if (!v)
		return ptc_nomem(r->err);
	memset(v, 0xff, n * sizeof *v);
	ptc_free(r->buckets);
	r->buckets = v;
	r->nbuckets = n;
	for (size_t i = 0; i < r->d.nfiles; i++)
		v[bucket_of(r, r->d.files[i])] = (uint32_t)i;
	return 0;
}

static int file_of(struct reader *r, const struct ptc_pickle_value *v, uint32_t *ret)
{
	char *path = NULL;
	size_t b;
	int rc = text_of(r, v, PATH_MAX_, &path);

	if (!rc && !is_path(path))
		rc = ptc_error_set(r->err, PTC_EINVAL,
				   PTC_DCP_METADATA ": the path \"%.200s\" leads out of the directory", path);
	if (!rc && r->d.nfiles == PTC_DCP_MAX_FILES)
		rc = ptc_error_set(r->err, PTC_ELIMIT, PTC_DCP_METADATA ": more than %u files", PTC_DCP_MAX_FILES);
	if (!rc && 2 * (r->d.nfiles + 1) > r->nbuckets)
		rc = more_buckets(r);
	if (rc) {
		ptc_free(path);
		return rc;
	}
	b = bucket_of(r, path);
	if (r->buckets[b] == NO_FILE) {
		if (!PTC_MORE(r->d.files, r->d.nfiles)) {
			ptc_free(path);
			return ptc_nomem(r->err);
		}
		r->buckets[b] = (uint32_t)r->d.nfiles;
		r->d.files[r->d.nfiles++] = path;
	} else {
		ptc_free(path);
	}
	*ret = r->buckets[b];
	return 0;
}

static struct ptc_dcp_entry *entry_of(struct reader *r, const struct ptc_pickle_value *v)
{
	size_t lo = 0, hi = r->d.nentries;
	const char *text;

	if (!v || v->kind != PTC_PICKLE_TEXT)
		return NULL;
	text = ptc_pickle_str(&r->p, v);
	if (memchr(text, '\0', v->text.len))
		return NULL;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const char *key = r->d.entries[mid].key;
		int order = strncmp(key, text, v->text.len);

		if (!order && key[v->text.len])
			order = 1;
		if (!order)
			return &r->d.entries[mid];
		if (order < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

/* NULL: the part is empty, or of nobody. */
static struct ptc_dcp_part *part_at(struct ptc_dcp_entry *e, const int64_t *off)
{
	uint32_t lo = 0, hi = e->nparts;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		int order = compare_offsets(e->ndim, ptc_dcp_offset(e, mid), off);

		if (!order)
			return &e->parts[mid];
		if (order < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

static int read_place(struct reader *r, const struct ptc_pickle_value *index, const struct ptc_pickle_value *info)
{
	struct ptc_dcp_entry *e = entry_of(r, ptc_pickle_member(&r->p, index, "fqn"));
	const struct ptc_pickle_value *at, *len, *path, *how;
	int64_t off[PTC_MAX_DIMS];
	struct ptc_dcp_part *p;
	uint32_t ndim;
	int rc = 0;

	if (!e)
		return ptc_error_set(r->err, PTC_EINVAL, PTC_DCP_METADATA ": a part of a key that is not there");
	if (!e->is_value)
		rc = size_of(r, e->key, ptc_pickle_member(&r->p, index, "offset"), &ndim, off);
	if (!rc && !e->is_value && ndim != e->ndim)
		return bad(r, e->key, "a part with another number of dims");
	if (rc)
		return rc;
	p = e->is_value ? e->parts : part_at(e, off);
	if (!p)
		return 0;
	at = ptc_pickle_member(&r->p, info, "offset");
	len = ptc_pickle_member(&r->p, info, "length");
	path = ptc_pickle_member(&r->p, info, "relative_path");
	how = ptc_pickle_member(&r->p, info, "transform_descriptors");
	if (how && how->kind != PTC_PICKLE_NONE && how->nitems)
		return bad(r, e->key, "it is compressed (transform_descriptors), which is not read here");
	if (!at || !len || !path || at->kind != PTC_PICKLE_INT || len->kind != PTC_PICKLE_INT || at->n < 0 ||
	    len->n < 0 || at->n > INT64_MAX - len->n)
		return bad(r, e->key, "the place of a part is none");
	p->at = (uint64_t)at->n;
	p->bytes = (uint64_t)len->n;
	return file_of(r, path, &p->file);
}

static int read_places(struct reader *r, const struct ptc_pickle_value *root)
{
	const struct ptc_pickle_value *dict = ptc_pickle_member(&r->p, root, "storage_data");
	int rc = 0;

	if (!dict || dict->kind != PTC_PICKLE_DICT)
		return ptc_error_set(r->err, PTC_EINVAL, PTC_DCP_METADATA ": it does not say where parts are");
	for (uint32_t i = 0; i + 1 < dict->nitems && !rc; i += 2)
		rc = read_place(r, ptc_pickle_item(&r->p, dict, i), ptc_pickle_item(&r->p, dict, i + 1));
	for (size_t i = 0; i < r->d.nentries && !rc; i++)
		for (uint32_t k = 0; k < r->d.entries[i].nparts && !rc; k++)
			if (r->d.entries[i].parts[k].file == NO_FILE)
				rc = bad(r, r->d.entries[i].key, "it does not say where a part is");
	return rc;
}

static int all_names(const char ***ret, struct ptc_error *err)
{
	size_t n = 0, k = 0;
	const char **v;

	while (names[n])
		n++;
	while (ptc_torch_names[k])
		k++;
	v = ptc_calloc(n + k + 1, sizeof *v);
	if (!v)
		return ptc_nomem(err);
	memcpy(v, names, n * sizeof *v);
	memcpy(v + n, ptc_torch_names, k * sizeof *v);
	*ret = v;
	return 0;
}

int ptc_dcp_read(const void *metadata, size_t len, struct ptc_dcp *ret, struct ptc_error *err)
{
	struct reader r = { .err = err };
	const struct ptc_pickle_value *root;
	const char **known = NULL;
	int rc = all_names(&known, err);

	if (!rc)
		rc = ptc_pickle_read(metadata, len, known, &r.p, err);
	ptc_free(known);
	if (rc)
		return rc;
	root = ptc_pickle_at(&r.p, r.p.root);
	if (!ptc_pickle_made_by(&r.p, root, MODULE "Metadata"))
		rc = ptc_error_set(err, PTC_EINVAL, PTC_DCP_METADATA ": it is no metadata of a checkpoint");
	if (!rc)
		rc = read_entries(&r, root);
	if (!rc)
		rc = read_places(&r, root);
	ptc_pickle_done(&r.p);
	ptc_free(r.buckets);
	if (rc)
		ptc_dcp_done(&r.d);
	else
		*ret = r.d;
	return rc;
}

const struct ptc_dcp_entry *ptc_dcp_find(const struct ptc_dcp *d, const char *key)
{
	struct ptc_dcp_entry want = { .key = (char *)(uintptr_t)key };

	return d->nentries ? bsearch(&want, d->entries, d->nentries, sizeof want, compare_key) : NULL;
}
