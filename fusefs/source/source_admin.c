/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a source: jobs from Status, a committed state from ExportInfo,
 * bytes from Read and ReadRank, leases by Pin; all of libptcadmin. Happy path:
 * as its functions. Failure modes: theirs, unchanged; a reply that is not what
 * docs/control.md says is PTC_EPEER. */
#include "fusefs/source/source_admin.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "client/admin/admin_locate.h"
#include "formats/job/job.h"
#include "formats/json.h"

#include <ptc/admin_older.h>
#include <stdio.h>
#include <string.h>

/* A user may have PTC_MAX_USER_CALLS calls open at a daemon; eight threads read, and leases and names must get through.
 */
#define AHEAD    2
#define NAMES_MS 3000 /* for the list of jobs, which the daemon has in memory */

struct ptc_fs_admin {
	struct ptc_admin *admin, *names; /* names: for what must not keep a reader of directories waiting */
	char reader[37];
};

_Static_assert(sizeof(struct ptc_fs_span) == sizeof(struct ptc_admin_span), "spans are handed on as they come");
_Static_assert(FS_FILL_BYTES == PTC_ADMIN_FILL_BYTES, "so much in one call");
_Static_assert(sizeof(struct ptc_chunk_sums) == sizeof(struct ptc_admin_chunk), "and so are chunks");

struct state {
	struct ptc_fs_state s; /* first: what callers see */
	struct ptc_admin_export *info;
	struct ptc_job_desc desc;
	struct ptc_declared declared; /* behind the layout, where it is */
	struct ptc_state_kept *kept;
};

int ptc_fs_admin_new(const struct ptc_admin_opts *opts, struct ptc_fs_admin **ret_admin, struct ptc_error *err)
{
	struct ptc_fs_admin *a = ptc_calloc(1, sizeof *a);
	int rc = a ? ptc_sys_uuid(a->reader, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_admin_open(opts, &a->admin, err);
	if (!rc) {
		struct ptc_admin_opts quick = *opts;

		if (quick.timeout_ms <= 0 || quick.timeout_ms > NAMES_MS)
			quick.timeout_ms = NAMES_MS;
		rc = ptc_admin_open(&quick, &a->names, err);
	}
	if (rc) {
		ptc_fs_admin_free(a);
		return rc;
	}
	*ret_admin = a;
	return 0;
}

struct ptc_fs_admin *ptc_fs_admin_free(struct ptc_fs_admin *a)
{
	if (a) {
		ptc_admin_close(a->admin);
		ptc_admin_close(a->names);
	}
	ptc_free(a);
	return NULL;
}

/* ---- jobs ---- */

static void kept_by(const json_t *list, struct ptc_fs_job *ret)
{
	for (size_t i = 0; i < json_array_size(list) && ret->nkept < PTC_ARRAY_LEN(ret->kept); i++) {
		json_int_t snapshot = 0, step = 0;

		if (json_unpack(json_array_get(list, i), "[I, I]", &snapshot, &step) != 0 || snapshot <= 0 || step < 0)
			continue;
		ret->kept[ret->nkept].snapshot = (uint64_t)snapshot;
		ret->kept[ret->nkept++].step = (uint64_t)step;
	}
}

static bool job_of(const json_t *row, struct ptc_fs_job *ret)
{
	const char *name = json_string_value(json_object_get(row, "job"));
	const char *uuid = json_string_value(json_object_get(row, "uuid"));

	/* names become paths: a daemon's word is not enough */
	if (!name || !uuid || !name[0] || strlen(name) > PTC_NAME_MAX || strchr(name, '/') || name[0] == '.' ||
	    strlen(uuid) != sizeof(ret->uuid) - 1)
		return false;
	*ret = (struct ptc_fs_job){ .uid = (uid_t)ptc_json_count(row, "uid") };
	snprintf(ret->name, sizeof(ret->name), "%s", name);
	snprintf(ret->uuid, sizeof(ret->uuid), "%s", uuid);
	kept_by(json_object_get(row, "kept"), ret);
	ret->shared = json_is_integer(json_object_get(row, "files_group"));
	ret->gid = (gid_t)ptc_json_count(row, "files_group");
	if (json_is_true(json_object_get(row, "has_state"))) {
		ret->generation = ptc_json_count(row, "generation");
		ret->snapshot = ptc_json_count(row, "snapshot");
		ret->step = ptc_json_count(row, "step");
	}
	return true;
}

static int jobs(void *arg, struct ptc_fs_job **ret, size_t *ret_n, struct ptc_error *err)
{
	struct ptc_fs_admin *a = arg;
	ptc_auto_free char *text = NULL;
	struct ptc_fs_job *v;
	json_t *root, *rows;
	size_t n = 0;
	int rc = ptc_admin_status(a->names, NULL, &text, err);

	if (rc)
		return rc;
	root = json_loads(text, 0, NULL);
	rows = json_object_get(root, "jobs");
	v = ptc_calloc(PTC_MAX(json_array_size(rows), (size_t)1), sizeof *v);
	for (size_t i = 0; v && i < json_array_size(rows); i++)
		n += job_of(json_array_get(rows, i), &v[n]);
	rc = !v                    ? ptc_nomem(err)
	     : json_is_array(rows) ? 0
				   : ptc_error_set(err, PTC_EPEER, "the daemon's list of jobs is not valid JSON");
	json_decref(root);
	if (rc) {
		ptc_free(v);
		return rc;
	}
	*ret = v;
	*ret_n = n;
	return 0;
}

/* ---- a committed state ---- */

static void state_close(void *arg, struct ptc_fs_state *s)
{
	struct state *st = (struct state *)s;

	(void)arg;
	if (!st)
		return;
	ptc_layout_free(st->s.layout);
	ptc_declared_done(&st->declared);
	ptc_free(st->kept);
	ptc_job_desc_done(&st->desc);
	ptc_admin_export_done(st->info);
	ptc_free(st);
}

static int kept_of(struct state *st, struct ptc_error *err)
{
	st->kept = ptc_calloc(PTC_MAX(st->info->nfiles, (size_t)1), sizeof *st->kept);
	if (!st->kept)
		return ptc_nomem(err);
	for (size_t i = 0; i < st->info->nfiles; i++) {
		const struct ptc_admin_file *f = &st->info->files[i];

		st->kept[i] =
			(struct ptc_state_kept){ f->field, f->name, f->header, f->header_len, f->items, f->nitems };
	}
	return 0;
}

static int layout_of(struct state *st, struct ptc_error *err)
{
	if (st->info->declared && !st->info->layout_len)
		return 0; /* a daemon that does not say: no files of ranks */
	return ptc_state_layout(&st->desc.spec, st->info->config, st->info->layout_json, st->info->layout_len,
				&st->declared, &st->s.layout, err);
}

static int describe(struct state *st, const char *job, struct ptc_error *err)
{
	struct ptc_fs_state *s = &st->s;
	int rc = ptc_job_from_json(st->info->spec, st->info->spec_len, &st->desc, err);

	if (rc == 0)
		rc = kept_of(st, err);
	if (rc == 0)
		rc = layout_of(st, err);
	if (!rc && strlen(st->info->uuid) != sizeof(s->uuid) - 1)
		rc = ptc_error_set(err, PTC_EVERSION, "the daemon is too old to serve files");
	if (rc)
		return rc;
	snprintf(s->job, sizeof(s->job), "%s", job);
	memcpy(s->uuid, st->info->uuid, sizeof(s->uuid));
	s->generation = st->info->generation;
	s->snapshot = st->info->snapshot;
	s->step = st->info->step;
	s->created_ms = st->info->created_ms;
	s->config = st->info->config;
	s->ranks_json = st->info->ranks_json;
	s->carried = st->desc.files.carried;
	s->ncarried = st->desc.files.ncarried;
	if (st->info->ndigests == ptc_spec_items(&st->desc.spec))
		s->digests = st->info->digests;
	s->set = (struct ptc_state_set){ &st->desc.spec, st->kept, st->info->nfiles };
	return 0;
}

static int state_open(void *arg, const char *job, uint64_t snapshot, struct ptc_fs_state **ret, struct ptc_error *err)
{
	struct ptc_fs_admin *a = arg;
	struct state *st = ptc_calloc(1, sizeof *st);
	int rc = st ? ptc_admin_export_snapshot(a->admin, job, snapshot, &st->info, err) : ptc_nomem(err);

	if (rc == 0)
		rc = describe(st, job, err);
	if (rc) {
		state_close(NULL, st ? &st->s : NULL);
		return rc;
	}
	*ret = &st->s;
	return 0;
}

static int pin_state(void *arg, const struct ptc_fs_state *s, uint32_t ttl_ms, struct ptc_error *err)
{
	struct ptc_fs_admin *a = arg;

	return ptc_admin_pin(a->admin, s->job, ((const struct state *)s)->info, a->reader, ttl_ms, err);
}

/* ---- bytes ---- */

struct reader {
	ptc_fs_data_fn fn;
	void *arg;
};

static int on_data(void *arg, size_t range, const void *data, size_t len, struct ptc_error *err)
{
	const struct reader *r = arg;

	return r->fn(r->arg, data, len, err);
}

static struct ptc_admin_range *admin_ranges(const struct ptc_fs_range *ranges, size_t n)
{
	struct ptc_admin_range *v = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof *v);

	for (size_t i = 0; v && i < n; i++)
		v[i] = (struct ptc_admin_range){ ranges[i].ranked, ranges[i].rank, ranges[i].item, ranges[i].offset,
						 ranges[i].length };
	return v;
}

static int state_read(void *arg, const struct ptc_fs_state *s, const struct ptc_fs_range *ranges, size_t n,
		      ptc_fs_data_fn fn, void *fn_arg, struct ptc_error *err)
{
	struct ptc_fs_admin *a = arg;
	ptc_auto_free struct ptc_admin_range *v = admin_ranges(ranges, n);
	struct reader r = { fn, fn_arg };
	const struct ptc_admin_ranges_fn fns = { .size = sizeof fns, .data = on_data, .arg = &r, .ahead = AHEAD };

	if (!v)
		return ptc_nomem(err);
	return ptc_admin_read_ranges(a->admin, s->job, ((const struct state *)s)->info, v, n, &fns, err);
}

/* ---- where they lie ---- */

static int pieces_of(const struct ptc_fs_state *s, const struct ptc_fs_range *ranges, size_t n,
		     struct ptc_admin_piece *ret, struct ptc_error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		ret[i] = (struct ptc_admin_piece){ .item = ranges[i].item,
						   .offset = ranges[i].offset,
						   .length = ranges[i].length };
		rc = ptc_item_byte_shape(s->set.spec, ranges[i].item, &ret[i].ndim, ret[i].shape, err);
	}
	return rc;
}

int ptc_fs_admin_spans(struct ptc_admin *admin, const struct ptc_admin_export *e, const struct ptc_admin_piece *pieces,
		       size_t n, struct ptc_fs_spans **ret, struct ptc_error *err)
{
	struct ptc_fs_chunk_file *file = ptc_fs_chunk_file_get(e->uuid);
	struct ptc_admin_spans spans = { .dev = file ? file->dev : 0, .ino = file ? file->ino : 0 };
	int rc = ptc_admin_locate(admin, e, pieces, n, &spans, err);

	if (rc) {
		ptc_fs_chunk_file_unref(file);
		return rc;
	}
	if (spans.fd >= 0) {
		ptc_fs_chunk_file_unref(file);
		file = ptc_fs_chunk_file_new(e->uuid, spans.fd, spans.dev, spans.ino);
	}
	if (!file) {
		ptc_free(spans.v);
		ptc_free(spans.chunks);
		return ptc_nomem(err);
	}
	*ret = ptc_fs_spans_new(file, (struct ptc_fs_span *)spans.v, spans.n, (struct ptc_chunk_sums *)spans.chunks,
				spans.nchunks);
	return *ret ? 0 : ptc_nomem(err);
}

static int locate(void *arg, const struct ptc_fs_state *s, const struct ptc_fs_range *ranges, size_t n,
		  struct ptc_fs_spans **ret, struct ptc_error *err)
{
	struct ptc_fs_admin *a = arg;
	ptc_auto_free struct ptc_admin_piece *pieces = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof *pieces);
	int rc = pieces ? pieces_of(s, ranges, n, pieces, err) : ptc_nomem(err);

	return rc ? rc : ptc_fs_admin_spans(a->admin, ((const struct state *)s)->info, pieces, n, ret, err);
}

/* ---- into a file of ours ---- */

static int fill_begin(void *arg, int fd, struct ptc_admin_fill **ret_fill, struct ptc_error *err)
{
	struct ptc_fs_admin *a = arg;

	return ptc_admin_fill_open(a->admin, fd, ret_fill, err);
}

static int fill(void *arg, const struct ptc_fs_state *s, struct ptc_admin_fill *f, uint64_t at,
		const struct ptc_fs_range *ranges, size_t n, uint64_t *ret_digests, struct ptc_error *err)
{
	ptc_auto_free struct ptc_admin_range *v = admin_ranges(ranges, n);

	(void)arg;
	return v ? ptc_admin_fill(f, s->job, ((const struct state *)s)->info, at, v, n, ret_digests, err)
		 : ptc_nomem(err);
}

static int fill_end(void *arg, struct ptc_admin_fill *f, struct ptc_error *err)
{
	(void)arg;
	return ptc_admin_fill_close(f, err);
}

static int job_data(void *arg, const char *job, char **ret_json, struct ptc_error *err)
{
	struct ptc_fs_admin *a = arg;

	return ptc_admin_data(a->names, job, ret_json, err);
}

static int samples(void *arg, const struct ptc_admin_samples *what, ptc_admin_sample_fn fn, void *fn_arg,
		   struct ptc_error *err)
{
	struct ptc_fs_admin *a = arg;

	return ptc_admin_dataset_read(a->admin, what, fn, fn_arg, err);
}

struct ptc_fs_source ptc_fs_admin_source(struct ptc_fs_admin *a)
{
	return (struct ptc_fs_source){ .jobs = jobs,
				       .open = state_open,
				       .close = state_close,
				       .pin = pin_state,
				       .read = state_read,
				       .arg = a,
				       .data = job_data,
				       .locate = locate,
				       .fill_begin = fill_begin,
				       .fill = fill,
				       .fill_end = fill_end,
				       .samples = samples };
}
