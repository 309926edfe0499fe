/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl export: whole tensors into safetensors files, as formats/state/state_files.h makes them. Each item's digest
 * is compared with the committed one before the file gets its name. Failure: PTC_EDIGEST naming the item, or what
 * reading or writing said; no partial file is left. */
#include "client/ctl/files/export.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "base/number/search.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"
#include "formats/tensors/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int ctl_export_write(struct ctl_export *ex, const char *path, const struct ptc_state_file *file, struct ptc_error *err)
{
	struct ctl_out out = { .fd = -1 };
	int rc;

	if (ex->nth++ < ex->finished)
		return 0;
	snprintf(ex->file, sizeof(ex->file), "%s", path);
	ex->file_bytes = ex->done_bytes;
	rc = ctl_out_open(&out, ex, path, err);
	if (!rc)
		rc = ctl_out_write(&out, file->head, file->head_len, err);
	if (!rc)
		rc = ctl_read_items(&out, file, err);
	if (!rc)
		rc = ctl_out_publish(&out, err);
	ctl_out_done(&out);
	if (!rc)
		ex->finished++;
	if (!rc && json_array_append_new(ex->written,
					 json_pack("{s:s, s:I}", "file", path, "bytes",
						   (json_int_t)(file->head_len + ex->done_bytes - ex->file_bytes))))
		rc = ptc_error_set(err, PTC_ENOMEM, "out of memory, after %s was written", path);
	return rc;
}

/* ---- which files ---- */

int ctl_export_kept(struct ctl_export *ex, struct ptc_error *err)
{
	ptc_free(ex->kept);
	ex->kept = ptc_calloc(PTC_MAX(ex->info->nfiles, 1), sizeof *ex->kept);
	if (!ex->kept)
		return ptc_nomem(err);
	for (size_t i = 0; i < ex->info->nfiles; i++) {
		const struct ptc_admin_file *f = &ex->info->files[i];

		ex->kept[i] =
			(struct ptc_state_kept){ f->field, f->name, f->header, f->header_len, f->items, f->nitems };
	}
	return 0;
}

static struct ptc_state_set state_of(const struct ctl_export *ex)
{
	return (struct ptc_state_set){ &ex->desc.spec, ex->kept, ex->info->nfiles };
}

int ctl_export_file(struct ctl_export *ex, size_t field, const char *path, struct ptc_error *err)
{
	struct ptc_state_set set = state_of(ex);
	struct ptc_state_file file;
	int rc = ptc_state_file_field(&set, field, &file, err);

	if (rc)
		return rc;
	rc = ctl_export_write(ex, path, &file, err);
	ptc_state_file_done(&file);
	return rc;
}

static int write_kept(struct ctl_export *ex, const struct ptc_state_kept *kept, const char *path, struct ptc_error *err)
{
	struct ptc_state_set set = state_of(ex);
	struct ptc_state_file file;
	int rc = ptc_state_file_kept(&set, kept, &file, err);

	if (rc)
		return rc;
	rc = ctl_export_write(ex, path, &file, err);
	ptc_state_file_done(&file);
	return rc;
}

struct entry {
	const char *tensor, *file;
};

PTC_BY_NAME(compare_entry, struct entry, tensor)

/* As the usual tools write it: indented by two, keys sorted. */
static int write_index(struct ctl_export *ex, size_t field, size_t nfiles, const char *dir, struct ptc_error *err)
{
	const struct ptc_spec *spec = &ex->desc.spec;
	ptc_auto_free char *path = ptc_asprintf("%s/" PTC_ST_INDEX_NAME, dir);
	ptc_auto_free struct entry *entries = ptc_calloc(PTC_MAX(spec->ntensors, 1), sizeof *entries);
	struct ptc_state_set set = state_of(ex);
	struct ptc_buf b = PTC_BUF_INIT;
	int64_t bytes = 0;
	size_t n = 0;
	int rc;

	if (!path || !entries)
		return ptc_nomem(err);
	for (size_t i = 0; i < nfiles; i++) {
		const struct ptc_state_kept *f = ptc_state_kept_nth(&set, field, i);

		for (size_t k = 0; k < f->nitems && n < spec->ntensors; k++) {
			bytes += ptc_item_bytes(spec, f->items[k]);
			entries[n++] = (struct entry){ spec->tensors[f->items[k] / (1 + spec->nfields)].name, f->name };
		}
	}
	qsort(entries, n, sizeof *entries, compare_entry);
	ptc_buf_printf(&b, "{\n  \"metadata\": {\n    \"total_size\": %" PRId64 "\n  },\n  \"weight_map\": {", bytes);
	for (size_t i = 0; i < n; i++) {
		ptc_buf_puts(&b, i ? ",\n    " : "\n    ");
		ptc_json_put_string(&b, entries[i].tensor);
		ptc_buf_puts(&b, ": ");
		ptc_json_put_string(&b, entries[i].file);
	}
	ptc_buf_puts(&b, "\n  }\n}\n");
	rc = ptc_buf_failed(&b) ? ptc_nomem(err) : ptc_sys_write_file(path, b.data, b.len, 0644, "export.index", err);
	ptc_buf_done(&b);
	return rc;
}

/* Several files of one field, with an index. */
static int write_several(struct ctl_export *ex, size_t field, size_t nfiles, const char *dir, struct ptc_error *err)
{
	struct ptc_state_set set = state_of(ex);
	int rc = 0;

	for (size_t i = 0; i < nfiles && !rc; i++) {
		const struct ptc_state_kept *f = ptc_state_kept_nth(&set, field, i);
		ptc_auto_free char *path = ptc_asprintf("%s/%s", dir, f->name);

		rc = path ? write_kept(ex, f, path, err) : ptc_nomem(err);
	}
	return rc ? rc : write_index(ex, field, nfiles, dir, err);
}

/* Of several files of the parameters none may have the place of the index or of a field. */
static int check_names(struct ctl_export *ex, size_t n, struct ptc_error *err)
{
	const struct ptc_spec *spec = &ex->desc.spec;
	struct ptc_state_set set = state_of(ex);

	for (size_t i = 0; i < n; i++) {
		const char *name = ptc_state_kept_nth(&set, 0, i)->name;
		bool taken = !strcmp(name, PTC_ST_INDEX_NAME);

		for (size_t f = 0; f < spec->nfields && !taken; f++) {
			const char *field = spec->fields[f].name;
			size_t len = strlen(field);

			taken = !strncmp(name, field, len) && (!name[len] || !strcmp(name + len, ".safetensors"));
		}
		if (taken)
			return ptc_error_set(
				err, PTC_EEXIST,
				"the imported file \"%s\" of the parameters has the name of another file to write "
				"here; import the state again from files of other names",
				name);
	}
	return 0;
}

int ctl_export_directory(struct ctl_export *ex, size_t field, const char *dir, struct ptc_error *err)
{
	const char *name = ptc_state_field_name(&ex->desc.spec, field);
	struct ptc_state_set set = state_of(ex);
	size_t n = ptc_state_kept_count(&set, field);
	ptc_auto_free char *path = NULL;
	int rc = 0;

	if (n > 1) {
		rc = field ? 0 : check_names(ex, n, err);
		if (rc)
			return rc;
		path = field ? ptc_asprintf("%s/%s", dir, name) : ptc_strdup(dir);
		if (path && field)
			rc = ptc_sys_mkdirs(path, 0, err);
		if (!path)
			rc = ptc_nomem(err);
		return rc ? rc : write_several(ex, field, n, path, err);
	}
	path = field ? ptc_asprintf("%s/%s.safetensors", dir, name) : ptc_asprintf("%s/" PTC_ST_MODEL_NAME, dir);
	return path ? ctl_export_file(ex, field, path, err) : ptc_nomem(err);
}
