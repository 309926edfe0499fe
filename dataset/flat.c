/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of elements cut into records of one length: a bare file, or one with NumPy's header. Elements at the end that
 * do not fill a record belong to no sample. Happy path: arithmetic. Failure modes: PTC_EINVAL where the sizes
 * contradict each other; PTC_EIO where the file cannot be read to its end. */
#include "dataset/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <inttypes.h>

#define READ_BYTES (1u << 20)

static int cut(struct ptc_source *s, uint64_t elements, struct ptc_error *err)
{
	s->info.samples = elements / s->info.record;
	s->info.left_out = elements % s->info.record;
	s->info.bytes = s->data.bytes;
	if (!s->info.samples)
		return ptc_error_set(err, PTC_EINVAL, "%s: %" PRIu64 " elements, less than one record of %" PRIu64,
				     s->data.path, elements, s->info.record);
	return 0;
}

static int check_record(uint64_t record, struct ptc_error *err)
{
	if (record > 0 && record < PTC_SOURCE_RECORD_MAX)
		return 0;
	return ptc_error_set(err, PTC_EINVAL, "a record has 1 to %" PRIu64 " elements, not %" PRIu64,
			     PTC_SOURCE_RECORD_MAX - 1, record);
}

static int flat_open(struct ptc_source *s, const struct ptc_source_spec *spec, struct ptc_error *err)
{
	uint32_t bytes = ptc_source_dtype_bytes(spec->dtype);
	int rc;

	if (!bytes)
		return ptc_error_set(err, PTC_EINVAL, "a flat file needs a dtype");
	rc = check_record(spec->record, err);
	if (!rc)
		rc = ptc_source_file_open(spec->path, &s->data, err);
	if (rc)
		return rc;
	if (s->data.bytes % bytes)
		return ptc_error_set(err, PTC_EINVAL, "%s: %" PRIu64 " bytes are no whole number of %s of %u bytes",
				     s->data.path, s->data.bytes, ptc_source_dtype_name(spec->dtype), bytes);
	s->info.dtype = spec->dtype;
	s->info.record = spec->record;
	return cut(s, s->data.bytes / bytes, err);
}

/* Rows are records, unless a length is given, which an array of one dimension needs. */
static int npy_record(struct ptc_source *s, const struct ptc_source_spec *spec, const struct ptc_npy *npy,
		      struct ptc_error *err)
{
	if (npy->flat && !spec->record)
		return ptc_error_set(err, PTC_EINVAL, "%s: an array of one dimension needs a record length",
				     s->data.path);
	if (!npy->flat && spec->record && spec->record != npy->row)
		return ptc_error_set(err, PTC_EINVAL, "%s: its rows have %" PRIu64 " elements, not %" PRIu64,
				     s->data.path, npy->row, spec->record);
	s->info.record = npy->flat ? spec->record : npy->row;
	return check_record(s->info.record, err);
}

static int npy_check(struct ptc_source *s, const struct ptc_source_spec *spec, const struct ptc_npy *npy,
		     struct ptc_error *err)
{
	uint64_t elements, bytes;

	if (spec->dtype && spec->dtype != npy->dtype)
		return ptc_error_set(err, PTC_EINVAL, "%s: its dtype is %s, not %s", s->data.path,
				     ptc_source_dtype_name(npy->dtype), ptc_source_dtype_name(spec->dtype));
	if (ptc_ckd_mul(&elements, npy->rows, npy->row) ||
	    ptc_ckd_mul(&bytes, elements, (uint64_t)ptc_source_dtype_bytes(npy->dtype)) ||
	    ptc_ckd_add(&bytes, bytes, npy->header_bytes))
		return ptc_error_set(err, PTC_EINVAL, "%s: its shape overflows", s->data.path);
	if (bytes != s->data.bytes)
		return ptc_error_set(err, PTC_EINVAL,
				     "%s: its shape takes %" PRIu64 " bytes with the header; it has %" PRIu64,
				     s->data.path, bytes, s->data.bytes);
	s->info.dtype = npy->dtype;
	s->first = npy->header_bytes;
	return cut(s, elements, err);
}

static int npy_open(struct ptc_source *s, const struct ptc_source_spec *spec, struct ptc_error *err)
{
	ptc_auto_free char *head = ptc_malloc(PTC_NPY_HEADER_MAX);
	struct ptc_npy npy;
	size_t len;
	int rc;

	if (!head)
		return ptc_nomem(err);
	rc = ptc_source_file_open(spec->path, &s->data, err);
	if (rc)
		return rc;
	len = (size_t)PTC_MIN(s->data.bytes, PTC_NPY_HEADER_MAX);
	rc = ptc_source_file_read(&s->data, 0, head, len, err);
	if (!rc)
		rc = ptc_npy_parse(s->data.path, head, len, &npy, err);
	if (!rc)
		rc = npy_record(s, spec, &npy, err);
	return rc ? rc : npy_check(s, spec, &npy, err);
}

static int sample(const struct ptc_source *s, uint64_t i, struct ptc_source_sample *ret, struct ptc_error *err)
{
	uint64_t length = s->info.record * ptc_source_dtype_bytes(s->info.dtype);

	(void)err;
	*ret = (struct ptc_source_sample){ s->data.path, s->first + i * length, length };
	return 0;
}

/* Nothing in an array contradicts anything; that it can be read is what is left to see. */
static int check(const struct ptc_source *s, struct ptc_source_report *r, struct ptc_error *err)
{
	ptc_auto_free char *buf = ptc_malloc(READ_BYTES);
	uint64_t length = s->info.record * ptc_source_dtype_bytes(s->info.dtype);
	struct ptc_error bad = PTC_ERROR_INIT;

	if (!buf)
		return ptc_nomem(err);
	for (uint64_t at = s->first; at < s->data.bytes && !r->enough; at += READ_BYTES)
		if (ptc_source_file_read(&s->data, at, buf, PTC_MIN(s->data.bytes - at, READ_BYTES), &bad))
			ptc_source_problem(r, "%s", bad.text);
	r->checked.bytes = length * s->info.samples;
	r->checked.unused = s->data.bytes - s->first - r->checked.bytes;
	r->checked.longest = length;
	return 0;
}

const struct ptc_source_ops ptc_source_flat = { flat_open, sample, check };
const struct ptc_source_ops ptc_source_npy = { npy_open, sample, check };
