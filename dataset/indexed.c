/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron's indexed dataset: tokens in PATH.bin, where they are in PATH.idx. All numbers are little-endian.
 *
 *   bytes 0..8    "MMIDIDX" and two zero bytes      9..16  version, 1        17  code of the dtype
 *   18..25        n, number of sequences            26..33 m, number of document marks
 *   34            n int32: elements of each         then n int64: byte in PATH.bin where each begins
 *   then          m int64: sequences where documents begin, 0 first, n last; then nothing, or n bytes of modes
 *
 * Happy path: open looks at the header, the file's length, the last sequence and both end marks; a sample is two reads.
 *
 * Failure modes: PTC_EINVAL with the file and the sequence; a sample that does not lie in PATH.bin is refused when it
 * is asked for, whatever open has seen. */
#include "dataset/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <inttypes.h>
#include <string.h>

#define HEADER_BYTES 34
#define WINDOW       65536 /* sequences a check holds at once */

static uint64_t get64(const unsigned char *p)
{
	uint64_t v = 0;

	for (int i = 7; i >= 0; i--)
		v = v << 8 | p[i];
	return v;
}

static int32_t get32(const unsigned char *p)
{
	return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

static uint64_t size_at(uint64_t i)
{
	return HEADER_BYTES + 4 * i;
}

static uint64_t pointer_at(const struct ptc_source *s, uint64_t i)
{
	return HEADER_BYTES + 4 * s->info.samples + 8 * i;
}

static uint64_t document_at(const struct ptc_source *s, uint64_t i)
{
	return HEADER_BYTES + 12 * s->info.samples + 8 * i;
}

/* Where sequence i lies, if it lies in the data file; else the text of what is wrong. */
static bool place(const struct ptc_source *s, uint64_t i, int32_t size, uint64_t pointer, struct ptc_source_sample *ret,
		  char *text, size_t text_size)
{
	uint64_t length;

	if (size < 0) {
		snprintf(text, text_size, "%s: sequence %" PRIu64 " has %" PRId32 " elements", s->index.path, i, size);
		return false;
	}
	length = (uint64_t)size * ptc_source_dtype_bytes(s->info.dtype);
	if (pointer > s->data.bytes || length > s->data.bytes - pointer) {
		snprintf(text, text_size,
			 "%s: sequence %" PRIu64 " has %" PRIu64 " bytes from byte %" PRIu64 " on; %s has %" PRIu64
			 " bytes",
			 s->index.path, i, length, pointer, s->data.path, s->data.bytes);
		return false;
	}
	*ret = (struct ptc_source_sample){ s->data.path, pointer, length };
	return true;
}

static int sample(const struct ptc_source *s, uint64_t i, struct ptc_source_sample *ret, struct ptc_error *err)
{
	char text[PTC_ERROR_MAX];
	unsigned char size[4], pointer[8];
	int rc = ptc_source_file_read(&s->index, size_at(i), size, sizeof size, err);

	if (!rc)
		rc = ptc_source_file_read(&s->index, pointer_at(s, i), pointer, sizeof pointer, err);
	if (!rc && !place(s, i, get32(size), get64(pointer), ret, text, sizeof text))
		rc = ptc_error_set(err, PTC_EINVAL, "%s", text);
	return rc;
}

/* The index must be as long as its counts say; products of the counts can't wrap once they are below its length. */
static int check_length(const struct ptc_source *s, uint64_t n, uint64_t m, struct ptc_error *err)
{
	uint64_t bytes = s->index.bytes, want;

	if (n > bytes / 12 || m > bytes / 8)
		return ptc_error_set(err, PTC_EINVAL,
				     "%s: its header counts %" PRIu64 " sequences and %" PRIu64
				     " document marks, which do not fit its %" PRIu64 " bytes",
				     s->index.path, n, m, bytes);
	want = HEADER_BYTES + 12 * n + 8 * m;
	if (bytes != want && bytes != want + n)
		return ptc_error_set(err, PTC_EINVAL,
				     "%s: %" PRIu64 " sequences and %" PRIu64 " document marks take %" PRIu64
				     " bytes; it has %" PRIu64,
				     s->index.path, n, m, want, bytes);
	return 0;
}

static int check_header(struct ptc_source *s, const struct ptc_source_spec *spec, struct ptc_error *err)
{
	unsigned char h[HEADER_BYTES];
	int rc;

	if (s->index.bytes < HEADER_BYTES)
		return ptc_error_set(err, PTC_EINVAL, "%s: %" PRIu64 " bytes, an index has at least %d", s->index.path,
				     s->index.bytes, HEADER_BYTES);
	rc = ptc_source_file_read(&s->index, 0, h, sizeof h, err);
	if (rc)
		return rc;
	if (memcmp(h, "MMIDIDX\0\0", 9))
		return ptc_error_set(err, PTC_EINVAL, "%s: it does not begin with MMIDIDX, so it is not an index",
				     s->index.path);
	if (get64(h + 9) != 1)
		return ptc_error_set(err, PTC_EINVAL, "%s: version %" PRIu64 " is not supported, 1 is", s->index.path,
				     get64(h + 9));
	if (h[17] < 1 || h[17] > PTC_SOURCE_INDEX_DTYPES)
		return ptc_error_set(err, PTC_EINVAL, "%s: dtype code %d at byte 17 is none of 1 to %d", s->index.path,
				     h[17], PTC_SOURCE_INDEX_DTYPES);
	s->info.dtype = (enum ptc_source_dtype)h[17];
	if (spec->dtype && spec->dtype != s->info.dtype)
		return ptc_error_set(err, PTC_EINVAL, "%s: its dtype is %s, not %s", s->index.path,
				     ptc_source_dtype_name(s->info.dtype), ptc_source_dtype_name(spec->dtype));
	if (!get64(h + 18))
		return ptc_error_set(err, PTC_EINVAL, "%s: it has no sequences", s->index.path);
	rc = check_length(s, get64(h + 18), get64(h + 26), err);
	s->info.samples = get64(h + 18);
	s->info.documents = get64(h + 26);
	return rc;
}

/* The marks say where documents begin, and after the last one where it ends. */
static int check_marks(struct ptc_source *s, struct ptc_error *err)
{
	uint64_t m = s->info.documents, n = s->info.samples;
	unsigned char first[8], last[8];
	int rc;

	if (m < 2)
		return ptc_error_set(err, PTC_EINVAL, "%s: %" PRIu64 " document marks, at least 2 are needed",
				     s->index.path, m);
	rc = ptc_source_file_read(&s->index, document_at(s, 0), first, sizeof first, err);
	if (!rc)
		rc = ptc_source_file_read(&s->index, document_at(s, m - 1), last, sizeof last, err);
	if (rc)
		return rc;
	if (get64(first) != 0 || get64(last) != n)
		return ptc_error_set(err, PTC_EINVAL,
				     "%s: document marks go from %" PRIu64 " to %" PRIu64 ", not from 0 to %" PRIu64,
				     s->index.path, get64(first), get64(last), n);
	s->info.documents = m - 1;
	return 0;
}

static int open_both(struct ptc_source *s, const char *path, struct ptc_error *err)
{
	size_t n = strlen(path);
	ptc_auto_free char *bin = NULL, *idx = NULL;
	int rc;

	if (n > 4 && (!strcmp(path + n - 4, ".bin") || !strcmp(path + n - 4, ".idx")))
		n -= 4;
	bin = ptc_asprintf("%.*s.bin", (int)n, path);
	idx = ptc_asprintf("%.*s.idx", (int)n, path);
	if (!bin || !idx)
		return ptc_nomem(err);
	rc = ptc_source_file_open(idx, &s->index, err);
	return rc ? rc : ptc_source_file_open(bin, &s->data, err);
}

static int indexed_open(struct ptc_source *s, const struct ptc_source_spec *spec, struct ptc_error *err)
{
	struct ptc_source_sample last;
	int rc;

	if (spec->record)
		return ptc_error_set(err, PTC_EINVAL,
				     "an indexed dataset has sequences of its own; it takes no record length");
	rc = open_both(s, spec->path, err);
	if (!rc)
		rc = check_header(s, spec, err);
	if (!rc)
		rc = check_marks(s, err);
	if (!rc)
		rc = sample(s, s->info.samples - 1, &last, err);
	s->info.bytes = s->data.bytes;
	return rc;
}

struct window {
	unsigned char sizes[4 * WINDOW], pointers[8 * WINDOW];
};

static int check_sequences(const struct ptc_source *s, struct ptc_source_report *r, struct window *w,
			   struct ptc_error *err)
{
	struct ptc_source_sample at;
	char text[PTC_ERROR_MAX];
	uint64_t end = 0, n = s->info.samples;
	int rc = 0;

	for (uint64_t i = 0; i < n && !r->enough; i++) {
		uint64_t k = i % WINDOW, count = PTC_MIN(n - i, WINDOW);

		if (!k) {
			rc = ptc_source_file_read(&s->index, size_at(i), w->sizes, 4 * count, err);
			if (!rc)
				rc = ptc_source_file_read(&s->index, pointer_at(s, i), w->pointers, 8 * count, err);
			if (rc)
				return rc;
		}
		if (!place(s, i, get32(w->sizes + 4 * k), get64(w->pointers + 8 * k), &at, text, sizeof text)) {
			ptc_source_problem(r, "%s", text);
			continue;
		}
		if (at.offset < end)
			ptc_source_problem(r,
					   "%s: sequence %" PRIu64 " begins at byte %" PRIu64
					   " of %s, before byte %" PRIu64 ", where those before it end",
					   s->index.path, i, at.offset, s->data.path, end);
		else
			r->checked.unused += at.offset - end;
		end = PTC_MAX(end, at.offset + at.length);
		r->checked.bytes += at.length;
		r->checked.longest = PTC_MAX(r->checked.longest, at.length);
	}
	r->checked.unused += s->data.bytes - end;
	return 0;
}

static int check_documents(const struct ptc_source *s, struct ptc_source_report *r, struct window *w,
			   struct ptc_error *err)
{
	uint64_t before = 0, marks = s->info.documents + 1;

	for (uint64_t i = 0; i < marks && !r->enough; i++) {
		uint64_t k = i % WINDOW, mark;

		if (!k) {
			int rc = ptc_source_file_read(&s->index, document_at(s, i), w->pointers,
						      8 * PTC_MIN(marks - i, WINDOW), err);

			if (rc)
				return rc;
		}
		mark = get64(w->pointers + 8 * k);
		if (mark < before || mark > s->info.samples)
			ptc_source_problem(r,
					   "%s: document mark %" PRIu64 " is %" PRIu64 ", not within %" PRIu64
					   " to %" PRIu64,
					   s->index.path, i, mark, before, s->info.samples);
		else
			before = mark;
	}
	return 0;
}

static int check(const struct ptc_source *s, struct ptc_source_report *r, struct ptc_error *err)
{
	ptc_auto_free struct window *w = ptc_malloc(sizeof *w);
	int rc;

	if (!w)
		return ptc_nomem(err);
	rc = check_sequences(s, r, w, err);
	return rc ? rc : check_documents(s, r, w, err);
}

const struct ptc_source_ops ptc_source_indexed = { indexed_open, sample, check };
