/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints of a dataset's source: finds out whether its files have changed since it was registered. Happy path: a
 * fingerprint has the sizes, the times of change and the ends of each file. With `whole` it also has a digest of
 * whatever says where samples lie: of the index or, if samples are files, of the files' names, sizes and times.
 * Failure modes: PTC_EIO where a file cannot be read; PTC_ECORRUPT with what differs. A fingerprint finds changes that
 * happen, not those that somebody hides. */
#include "dataset/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"

#include <inttypes.h>
#include <string.h>

#define END_BYTES  65536
#define READ_BYTES (1u << 20)

static int digest_range(const struct ptc_source_file *f, uint64_t from, uint64_t to, char *buf, uint64_t *digest,
			struct ptc_error *err)
{
	for (uint64_t at = from; at < to;) {
		size_t n = (size_t)PTC_MIN(to - at, READ_BYTES);
		int rc = ptc_source_file_read(f, at, buf, n, err);

		if (rc)
			return rc;
		*digest = ptc_digest_append(*digest, buf, n);
		at += n;
	}
	return 0;
}

static int print_file(const struct ptc_source_file *f, const char *suffix, char *buf, struct ptc_source_file_print *ret,
		      struct ptc_error *err)
{
	struct ptc_source_file_print p = { .bytes = f->bytes, .mtime_ns = f->mtime_ns };
	uint64_t head = PTC_MIN(f->bytes, END_BYTES), tail = PTC_MIN(f->bytes - head, END_BYTES);
	int rc = digest_range(f, 0, head, buf, &p.ends, err);

	memcpy(p.suffix, suffix, strlen(suffix) + 1);
	if (!rc)
		rc = digest_range(f, f->bytes - tail, f->bytes, buf, &p.ends, err);
	if (!rc)
		*ret = p;
	return rc;
}

int ptc_source_print(const struct ptc_source *s, bool whole, struct ptc_source_print *ret_print, struct ptc_error *err)
{
	ptc_auto_free char *buf = ptc_malloc(READ_BYTES);
	struct ptc_source_print p = { .nfiles = 1, .whole = whole };
	int rc = buf ? 0 : ptc_nomem(err);

	if (rc)
		return rc;
	switch (s->info.kind) {
	case PTC_SOURCE_FILES:
		p.files[0].ends = ptc_source_files_digest(s);
		rc = whole ? ptc_source_files_index(s, &p.index, &p.files[0].bytes, err) : 0;
		break;
	case PTC_SOURCE_INDEXED:
		p.nfiles = 2;
		rc = print_file(&s->index, ".idx", buf, &p.files[0], err);
		if (!rc)
			rc = print_file(&s->data, ".bin", buf, &p.files[1], err);
		if (!rc && whole)
			rc = digest_range(&s->index, 0, s->index.bytes, buf, &p.index, err);
		break;
	default:
		rc = print_file(&s->data, "", buf, &p.files[0], err);
	}
	if (!rc)
		*ret_print = p;
	return rc;
}

static int same_file(const char *path, const struct ptc_source_file_print *was, const struct ptc_source_file_print *now,
		     struct ptc_error *err)
{
	static const char *const advice = "samples may be others now: put it back, or add it under another name";

	if (was->bytes != now->bytes)
		return ptc_error_set(err, PTC_ECORRUPT,
				     "%s has changed since it was added: it had %" PRIu64 " bytes, it has %" PRIu64
				     "; %s",
				     path, was->bytes, now->bytes, advice);
	if (was->ends != now->ends)
		return ptc_error_set(err, PTC_ECORRUPT,
				     "%s has changed since it was added: other bytes at its ends; %s", path, advice);
	if (was->mtime_ns != now->mtime_ns)
		return ptc_error_set(err, PTC_ECORRUPT, "%s was written to since it was added; %s", path, advice);
	return 0;
}

int ptc_source_same(const struct ptc_source *s, const struct ptc_source_print *was, const struct ptc_source_print *now,
		    struct ptc_error *err)
{
	bool files = s->info.kind == PTC_SOURCE_FILES;

	if (was->nfiles != now->nfiles)
		return ptc_error_set(err, PTC_EINVAL, "%s: its fingerprint is of another kind of source", s->data.path);
	if (files && was->files[0].ends != now->files[0].ends)
		return ptc_error_set(
			err, PTC_ECORRUPT,
			"%s has other files than when it was added: put them back, or add it under another name",
			s->data.path);
	for (uint32_t i = 0; !files && i < now->nfiles; i++) {
		const struct ptc_source_file *f = i || now->nfiles == 1 ? &s->data : &s->index;
		int rc = same_file(f->path, &was->files[i], &now->files[i], err);

		if (rc)
			return rc;
	}
	if (!was->whole || !now->whole || was->index == now->index)
		return 0;
	if (files)
		return ptc_error_set(err, PTC_ECORRUPT, "%s: files in it were written to since it was added",
				     s->data.path);
	return ptc_error_set(err, PTC_ECORRUPT,
			     "%s has changed since it was added; its size and its time are as they were",
			     s->index.path);
}
