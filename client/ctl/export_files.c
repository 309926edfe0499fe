// SPDX-License-Identifier: Apache-2.0
/* Whole tensors into safetensors files. Happy path: where the header that was
 * imported still describes the tensors it is written back verbatim, so the
 * file has the same hash; else a canonical one. Each item's digest is compared
 * with the committed one before the file gets its name. Failure: PTC_EDIGEST
 * naming the item, or what reading or writing said; no partial file is left. */
#include "client/ctl/export.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/sys.h"
#include "formats/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one file ---- */

int ctl_out_open(struct ctl_out *out, struct ctl_export *ex, const char *path, struct ptc_error *err)
{
	*out = (struct ctl_out){ .ex = ex, .fd = -1, .path = ptc_strdup(path) };
	if (!out->path)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	return ptc_sys_create_beside(path, 0644, &out->fd, &out->tmp, err);
}

int ctl_out_write(struct ctl_out *out, const void *data, size_t len, struct ptc_error *err)
{
	const char *p = data;

	while (len) {
		ssize_t n = write(out->fd, p, len);

		if (n < 0 && errno == EINTR && !ctl_interrupted())
			continue;
		if (n < 0)
			return ptc_error_errno(err, errno, "cannot write %s", out->path);
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int ctl_out_receive(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct ctl_out *out = arg;
	struct ctl_export *ex = out->ex;

	if (ctl_interrupted())
		return ptc_error_set(err, PTC_ECANCELED, "interrupted");
	out->digest = ptc_digest_append(out->digest, data, len);
	out->bytes += len;
	ex->done_bytes += len;
	ctl_progress_show(&ex->progress, "exporting", ex->done_bytes, ex->total_bytes, NULL);
	return ctl_out_write(out, data, len, err);
}

int ctl_out_publish(struct ctl_out *out, struct ptc_error *err)
{
	int rc = ptc_sys_publish(out->fd, out->tmp, out->path, "export.rename", err);

	if (!rc) {
		ptc_free(out->tmp);
		out->tmp = NULL;
	}
	return rc;
}

void ctl_out_done(struct ctl_out *out)
{
	if (out->fd >= 0)
		close(out->fd);
	if (out->tmp)
		ptc_sys_unlink(out->tmp, "export.discard", NULL);
	ptc_free(out->tmp);
	ptc_free(out->path);
	*out = (struct ctl_out){ .fd = -1 };
}

const char *ctl_export_field_name(const struct ctl_export *ex, size_t field)
{
	return field ? ex->desc.spec.fields[field - 1].name : "param";
}

int ctl_export_write(struct ctl_export *ex, const char *path, const void *header, size_t header_len,
		     const struct ctl_source *src, struct ptc_error *err)
{
	struct ctl_out out = { .fd = -1 };
	int rc;

	if (ex->nth++ < ex->finished)
		return 0;
	snprintf(ex->file, sizeof(ex->file), "%s", path);
	ex->file_bytes = ex->done_bytes;
	rc = ctl_out_open(&out, ex, path, err);
	if (!rc)
		rc = ctl_out_write(&out, header, header_len, err);
	if (!rc)
		rc = ctl_read_items(&out, src, err);
	if (!rc)
		rc = ctl_out_publish(&out, err);
	ctl_out_done(&out);
	if (!rc)
		ex->finished++;
	return rc;
}

static int write_file(struct ctl_export *ex, const char *path, const void *header, size_t header_len,
		      const uint32_t *items, size_t nitems, struct ptc_error *err)
{
	ptc_auto_free uint64_t *bytes = ptc_calloc(PTC_MAX(nitems, 1), sizeof(*bytes));

	if (!bytes)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	for (size_t i = 0; i < nitems; i++)
		bytes[i] = (uint64_t)ptc_item_bytes(&ex->desc.spec, items[i]);
	return ctl_export_write(ex, path, header, header_len,
				&(struct ctl_source){ .items = items, .bytes = bytes, .n = nitems }, err);
}

/* ---- which files ---- */

/* The header parses, and its tensors in data order are what the job says of items. */
static bool still_fits(const struct ctl_export *ex, const struct ptc_admin_file *f, size_t field)
{
	const struct ptc_spec *spec = &ex->desc.spec;
	int64_t bytes = (int64_t)f->header_len;
	struct ptc_st st = { 0 };
	bool fits;

	for (size_t i = 0; i < f->nitems; i++)
		if (f->items[i] >= ptc_spec_items(spec) || f->items[i] % (1 + spec->nfields) != field ||
		    ptc_ckd_add(&bytes, bytes, ptc_item_bytes(spec, f->items[i])))
			return false;
	if (ptc_st_parse(f->header, f->header_len, bytes, &st, NULL))
		return false;
	fits = st.ntensors == f->nitems && st.raw_len == f->header_len;
	for (size_t i = 0; i < f->nitems && fits; i++) {
		const struct ptc_tensor *have = &st.tensors[st.by_offset[i]].t;
		const struct ptc_tensor *want = &spec->tensors[f->items[i] / (1 + spec->nfields)];

		fits = !strcmp(have->name, want->name) && have->dtype == ptc_item_dtype(spec, f->items[i]) &&
		       have->ndim == want->ndim &&
		       !memcmp(have->shape, want->shape, have->ndim * sizeof(have->shape[0]));
	}
	ptc_st_done(&st);
	return fits;
}

/* A daemon's word is not enough for a path. */
static bool safe_name(const char *name)
{
	return name[0] && name[0] != '.' && !strchr(name, '/') && strlen(name) < 256;
}

/* How many kept files the field has, if together they hold each of its tensors once; else 0. */
static size_t kept_files(const struct ctl_export *ex, size_t field)
{
	size_t n = 0, tensors = 0;
	ptc_auto_free bool *seen = ptc_calloc(PTC_MAX(ex->desc.spec.ntensors, 1), sizeof(*seen));

	for (size_t i = 0; i < ex->info.nfiles && seen; i++) {
		const struct ptc_admin_file *f = &ex->info.files[i];

		if (strcmp(f->field, ctl_export_field_name(ex, field)))
			continue;
		if (!safe_name(f->name) || !still_fits(ex, f, field))
			return 0;
		for (size_t k = 0; k < f->nitems; k++) {
			size_t t = f->items[k] / (1 + ex->desc.spec.nfields);

			tensors += !seen[t];
			seen[t] = true;
		}
		n++;
	}
	return tensors == ex->desc.spec.ntensors ? n : 0;
}

static const struct ptc_admin_file *kept_file(const struct ctl_export *ex, size_t field, size_t number)
{
	for (size_t i = 0; i < ex->info.nfiles; i++)
		if (!strcmp(ex->info.files[i].field, ctl_export_field_name(ex, field)) && !number--)
			return &ex->info.files[i];
	return NULL;
}

static int write_canonical(struct ctl_export *ex, size_t field, const char *path, struct ptc_error *err)
{
	const struct ptc_spec *spec = &ex->desc.spec;
	ptc_auto_free struct ptc_tensor *tensors = ptc_calloc(PTC_MAX(spec->ntensors, 1), sizeof(*tensors));
	ptc_auto_free uint32_t *items = ptc_calloc(PTC_MAX(spec->ntensors, 1), sizeof(*items));
	struct ptc_buf b = PTC_BUF_INIT;
	int rc;

	if (!tensors || !items)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	for (size_t i = 0; i < spec->ntensors; i++) {
		items[i] = (uint32_t)(i * (1 + spec->nfields) + field);
		tensors[i] = spec->tensors[i];
		tensors[i].dtype = ptc_item_dtype(spec, items[i]);
	}
	rc = ptc_st_write(&b, tensors, spec->ntensors, NULL, 0, err);
	if (!rc)
		rc = write_file(ex, path, b.data, b.len, items, spec->ntensors, err);
	ptc_buf_done(&b);
	return rc;
}

int ctl_export_file(struct ctl_export *ex, size_t field, const char *path, struct ptc_error *err)
{
	const struct ptc_admin_file *f = kept_files(ex, field) == 1 ? kept_file(ex, field, 0) : NULL;

	if (!f)
		return write_canonical(ex, field, path, err);
	return write_file(ex, path, f->header, f->header_len, f->items, f->nitems, err);
}

struct entry {
	const char *tensor, *file;
};

static int compare_entry(const void *pa, const void *pb)
{
	const struct entry *a = pa, *b = pb;

	return strcmp(a->tensor, b->tensor);
}

/* As the usual tools write it: indented by two, keys sorted. */
static int write_index(struct ctl_export *ex, size_t field, size_t nfiles, const char *dir, struct ptc_error *err)
{
	const struct ptc_spec *spec = &ex->desc.spec;
	ptc_auto_free char *path = ptc_asprintf("%s/" PTC_ST_INDEX_NAME, dir);
	ptc_auto_free struct entry *entries = ptc_calloc(PTC_MAX(spec->ntensors, 1), sizeof(*entries));
	struct ptc_buf b = PTC_BUF_INIT;
	int64_t bytes = 0;
	size_t n = 0;
	int rc;

	if (!path || !entries)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	for (size_t i = 0; i < nfiles; i++) {
		const struct ptc_admin_file *f = kept_file(ex, field, i);

		for (size_t k = 0; k < f->nitems && n < spec->ntensors; k++) {
			bytes += ptc_item_bytes(spec, f->items[k]);
			entries[n++] = (struct entry){ spec->tensors[f->items[k] / (1 + spec->nfields)].name, f->name };
		}
	}
	qsort(entries, n, sizeof(*entries), compare_entry);
	ptc_buf_printf(&b, "{\n  \"metadata\": {\n    \"total_size\": %" PRId64 "\n  },\n  \"weight_map\": {", bytes);
	for (size_t i = 0; i < n; i++) {
		ptc_buf_puts(&b, i ? ",\n    " : "\n    ");
		ptc_json_put_string(&b, entries[i].tensor);
		ptc_buf_puts(&b, ": ");
		ptc_json_put_string(&b, entries[i].file);
	}
	ptc_buf_puts(&b, "\n  }\n}\n");
	rc = ptc_buf_failed(&b) ? ptc_error_set(err, PTC_ENOMEM, "out of memory")
				: ptc_sys_write_file(path, b.data, b.len, 0644, "export.index", err);
	ptc_buf_done(&b);
	return rc;
}

/* Several files of one field, with an index. */
static int write_several(struct ctl_export *ex, size_t field, size_t nfiles, const char *dir, struct ptc_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < nfiles && !rc; i++) {
		const struct ptc_admin_file *f = kept_file(ex, field, i);
		ptc_auto_free char *path = ptc_asprintf("%s/%s", dir, f->name);

		rc = path ? write_file(ex, path, f->header, f->header_len, f->items, f->nitems, err)
			  : ptc_error_set(err, PTC_ENOMEM, "out of memory");
	}
	return rc ? rc : write_index(ex, field, nfiles, dir, err);
}

int ctl_export_directory(struct ctl_export *ex, size_t field, const char *dir, struct ptc_error *err)
{
	const char *name = ctl_export_field_name(ex, field);
	size_t n = kept_files(ex, field);
	ptc_auto_free char *path = NULL;
	int rc = 0;

	if (n > 1) {
		path = field ? ptc_asprintf("%s/%s", dir, name) : ptc_strdup(dir);
		if (path && field)
			rc = ptc_sys_mkdirs(path, 0, err);
		if (!path)
			rc = ptc_error_set(err, PTC_ENOMEM, "out of memory");
		return rc ? rc : write_several(ex, field, n, path, err);
	}
	path = field ? ptc_asprintf("%s/%s.safetensors", dir, name) : ptc_asprintf("%s/" PTC_ST_MODEL_NAME, dir);
	return path ? ctl_export_file(ex, field, path, err) : ptc_error_set(err, PTC_ENOMEM, "out of memory");
}
