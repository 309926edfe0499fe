/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions of dataset/, the choice of a source's kind, and the names of kinds and dtypes. Happy path: most
 * functions call the kind's own. Failure modes: source.h. */
#include "dataset/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const ptc_source_kinds[PTC_SOURCE_KINDS] = { "indexed", "flat", "npy", "files" };
const char *const ptc_source_dtypes[PTC_SOURCE_DTYPES] = {
	"", "uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16", "uint32", "uint64", "float16"
};
static const uint32_t dtype_bytes[PTC_SOURCE_DTYPES] = { 0, 1, 1, 2, 4, 8, 8, 4, 2, 4, 8, 2 };
static const struct ptc_source_ops *const ops[PTC_SOURCE_KINDS] = { &ptc_source_indexed, &ptc_source_flat,
								    &ptc_source_npy, &ptc_source_files };
const char *ptc_source_kind_name(enum ptc_source_kind kind)
{
	return ptc_source_kinds[kind];
}

bool ptc_source_kind_parse(const char *name, enum ptc_source_kind *ret_kind)
{
	for (int i = 0; i < PTC_SOURCE_KINDS; i++)
		if (!strcmp(name, ptc_source_kinds[i])) {
			*ret_kind = (enum ptc_source_kind)i;
			return true;
		}
	return false;
}

const char *ptc_source_dtype_name(enum ptc_source_dtype dtype)
{
	return ptc_source_dtypes[dtype];
}

bool ptc_source_dtype_parse(const char *name, enum ptc_source_dtype *ret_dtype)
{
	for (int i = 1; i < PTC_SOURCE_DTYPES; i++)
		if (!strcmp(name, ptc_source_dtypes[i])) {
			*ret_dtype = (enum ptc_source_dtype)i;
			return true;
		}
	return false;
}

uint32_t ptc_source_dtype_bytes(enum ptc_source_dtype dtype)
{
	return dtype_bytes[dtype];
}

struct ptc_source *ptc_source_close(struct ptc_source *s)
{
	if (!s)
		return NULL;
	ptc_source_file_done(&s->data);
	ptc_source_file_done(&s->index);
	ptc_free(s->names);
	ptc_free(s->name_at);
	ptc_free(s);
	return NULL;
}

int ptc_source_open(const struct ptc_source_spec *spec, struct ptc_source **ret_source, struct ptc_error *err)
{
	struct ptc_source *s;
	int rc;

	if (!spec->path || !spec->path[0])
		return ptc_error_set(err, PTC_EINVAL, "a source needs a path");
	if (strlen(spec->path) > PTC_SOURCE_PATH_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "the path of a source has %zu bytes, at most %d are supported",
				     strlen(spec->path), PTC_SOURCE_PATH_MAX);
	s = ptc_calloc(1, sizeof *s);
	if (!s)
		return ptc_nomem(err);
	s->ops = ops[spec->kind];
	s->info = (struct ptc_source_info){ .kind = spec->kind, .memory_bytes = sizeof *s };
	rc = s->ops->open(s, spec, err);
	if (rc) {
		ptc_source_close(s);
		return rc;
	}
	*ret_source = s;
	return 0;
}

const struct ptc_source_info *ptc_source_info(const struct ptc_source *s)
{
	return &s->info;
}

int ptc_source_sample(const struct ptc_source *s, uint64_t i, struct ptc_source_sample *ret_sample,
		      struct ptc_error *err)
{
	if (i >= s->info.samples)
		return ptc_error_set(err, PTC_EINVAL, "%s has samples 0 to %" PRIu64 ", no %" PRIu64, s->data.path,
				     s->info.samples - 1, i);
	return s->ops->sample(s, i, ret_sample, err);
}

static size_t bytes_there(uint64_t length, uint64_t offset, size_t len)
{
	return offset < length ? (size_t)PTC_MIN(length - offset, (uint64_t)len) : 0;
}

/* A file of a directory: opened, looked at and read. */
static int read_of_file(const struct ptc_source *s, uint64_t i, uint64_t offset, void *buf, size_t len, size_t *ret_len,
			uint64_t *ret_length, struct ptc_error *err)
{
	const char *name = ptc_source_file(s, i);
	struct ptc_source_file f = { .path = (char *)(uintptr_t)name };
	struct stat st;
	int rc = 0;

	f.fd = openat(s->data.fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (f.fd < 0)
		return ptc_error_errno(err, errno, "cannot open %s/%s", s->data.path, name);
	if (fstat(f.fd, &st) < 0)
		rc = ptc_error_errno(err, errno, "cannot look at %s/%s", s->data.path, name);
	else if (!S_ISREG(st.st_mode))
		rc = ptc_error_set(err, PTC_EINVAL, "%s/%s is not a file any more", s->data.path, name);
	if (!rc) {
		f.bytes = (uint64_t)st.st_size;
		len = bytes_there(f.bytes, offset, len);
		rc = ptc_source_file_read(&f, offset, buf, len, err);
	}
	close(f.fd);
	if (rc)
		return rc;
	*ret_len = len;
	*ret_length = f.bytes;
	return 0;
}

int ptc_source_read_up_to(const struct ptc_source *s, uint64_t i, uint64_t offset, void *buf, size_t len,
			  size_t *ret_len, uint64_t *ret_length, struct ptc_error *err)
{
	struct ptc_source_sample sample;
	int rc;

	if (s->info.kind == PTC_SOURCE_FILES && i < s->info.samples)
		return read_of_file(s, i, offset, buf, len, ret_len, ret_length, err);
	rc = ptc_source_sample(s, i, &sample, err);
	if (rc)
		return rc;
	len = bytes_there(sample.length, offset, len);
	rc = ptc_source_file_read(&s->data, sample.offset + offset, buf, len, err);
	if (rc)
		return rc;
	*ret_len = len;
	*ret_length = sample.length;
	return 0;
}

int ptc_source_read(const struct ptc_source *s, uint64_t i, uint64_t offset, void *buf, size_t len,
		    struct ptc_error *err)
{
	uint64_t length;
	size_t n;
	int rc = ptc_source_read_up_to(s, i, offset, buf, len, &n, &length, err);

	if (rc)
		return rc;
	if (n < len || offset > length)
		return ptc_error_set(err, PTC_EINVAL, "sample %" PRIu64 " of %s has %" PRIu64 " bytes", i, s->data.path,
				     length);
	return 0;
}

static int file_unchanged(const struct ptc_source_file *f, struct ptc_error *err)
{
	struct stat st;

	if (fstat(f->fd, &st) < 0)
		return ptc_error_errno(err, errno, "cannot look at %s", f->path);
	if ((uint64_t)st.st_size == f->bytes && ptc_source_mtime_ns(&st) == f->mtime_ns)
		return 0;
	return ptc_error_set(err, PTC_ECORRUPT, "%s was written to while it was read; its samples may have changed",
			     f->path);
}

int ptc_source_unchanged(const struct ptc_source *s, struct ptc_error *err)
{
	int rc = s->info.kind == PTC_SOURCE_FILES ? 0 : file_unchanged(&s->data, err);

	return rc || s->info.kind != PTC_SOURCE_INDEXED ? rc : file_unchanged(&s->index, err);
}

int ptc_source_check(const struct ptc_source *s, ptc_source_problem_fn fn, void *arg,
		     struct ptc_source_checked *ret_checked, struct ptc_error *err)
{
	struct ptc_source_report r = { .fn = fn, .arg = arg };
	int rc = s->ops->check(s, &r, err);

	if (rc)
		return rc;
	*ret_checked = r.checked;
	return 0;
}
