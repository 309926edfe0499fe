/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what torch.save writes. Members of the archive: the pickle, "byteorder", "version", and last the tensor's
 * bytes. The checksum of these is known only after them, so it is in a data descriptor (bit 3 of the flags).
 * Failure modes: torch_file.h. */
#include "base/check.h"
#include "base/number/digest.h"
#include "base/status.h"
#include "formats/dcp/torch_file.h"
#include "formats/dcp/torch_parts.h"

#include <string.h>

#define AFTER_DATA 8u    /* the flag: checksum and sizes come after the data */
#define ZIP_DATE   0x21u /* 1980-01-01: the same bytes for the same tensor */

struct member {
	const char *name;
	uint32_t at, len, crc;
	bool after;
};
struct archive {
	struct member members[4];
	unsigned n;
};

static void put(struct ptc_buf *b, uint32_t n, unsigned bytes)
{
	uint8_t v[4];

	for (unsigned i = 0; i < bytes; i++)
		v[i] = (uint8_t)(n >> (8 * i));
	ptc_buf_append(b, v, bytes);
}

/* What local and central headers have in common. */
static void put_common(struct ptc_buf *b, const struct member *m, bool local)
{
	bool hide = local && m->after;

	put(b, 20, 2); /* version needed */
	put(b, m->after ? AFTER_DATA : 0, 2);
	put(b, 0, 2); /* stored */
	put(b, 0, 2);
	put(b, ZIP_DATE, 2);
	put(b, hide ? 0 : m->crc, 4);
	put(b, hide ? 0 : m->len, 4);
	put(b, hide ? 0 : m->len, 4);
	put(b, (uint32_t)strlen(m->name), 2);
	put(b, 0, 2);
}

static void put_local(struct ptc_buf *b, const struct member *m)
{
	put(b, 0x04034b50, 4);
	put_common(b, m, true);
	ptc_buf_puts(b, m->name);
}

static void put_central(struct ptc_buf *b, const struct member *m)
{
	put(b, 0x02014b50, 4);
	put(b, 20, 2);
	put_common(b, m, false);
	put(b, 0, 2); /* comment, disk, attributes */
	put(b, 0, 2);
	put(b, 0, 2);
	put(b, 0, 4);
	put(b, m->at, 4);
	ptc_buf_puts(b, m->name);
}

/* at: where the archive's first byte is in b. */
static void add(struct archive *a, struct ptc_buf *b, size_t at, const char *name, const void *data, size_t len)
{
	struct member *m = &a->members[a->n++];

	*m = (struct member){ name, (uint32_t)(b->len - at), (uint32_t)len, ptc_crc32(0, data, len), false };
	put_local(b, m);
	ptc_buf_append(b, data, len);
}

static void put_end(struct ptc_buf *b, const struct archive *a, uint32_t at)
{
	size_t before = b->len;

	for (unsigned i = 0; i < a->n; i++)
		put_central(b, &a->members[i]);
	before = b->len - before;
	put(b, 0x06054b50, 4);
	put(b, 0, 4); /* disks */
	put(b, a->n, 2);
	put(b, a->n, 2);
	put(b, (uint32_t)before, 4);
	put(b, at, 4);
	put(b, 0, 2);
}

/* ---- a tensor ---- */

static bool data_bytes(enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape, uint32_t *ret)
{
	uint64_t n = ptc_dtype_bits(dtype) / 8;

	for (uint32_t d = 0; d < ndim; d++)
		if (ptc_ckd_mul(&n, n, (uint64_t)shape[d]))
			return false;
	*ret = (uint32_t)n;
	return n < UINT32_MAX - (64u << 10); /* offsets behind it fit too */
}

static void put_tuple(struct ptc_pickle_out *o, uint32_t ndim, const int64_t *v)
{
	ptc_pickle_op(o, PTC_PICKLE_MARK);
	for (uint32_t d = 0; d < ndim; d++)
		ptc_pickle_int(o, v[d]);
	ptc_pickle_op(o, PTC_PICKLE_TUPLE);
}

/* ("storage", class, "0", "cpu", elements, or bytes where the class has no dtype). */
static void put_storage(struct ptc_pickle_out *o, enum ptc_dtype dtype, uint32_t bytes)
{
	const char *class = ptc_torch_class_global(dtype);

	ptc_pickle_op(o, PTC_PICKLE_MARK);
	ptc_pickle_text(o, "storage");
	ptc_pickle_global(o, class ? class : "torch.storage\nUntypedStorage");
	ptc_pickle_text(o, "0");
	ptc_pickle_text(o, "cpu");
	ptc_pickle_int(o, class ? bytes / (ptc_dtype_bits(dtype) / 8) : bytes);
	ptc_pickle_op(o, PTC_PICKLE_TUPLE);
	ptc_pickle_op(o, PTC_PICKLE_PERSID);
}

static void put_pickle(struct ptc_buf *b, enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape, uint32_t bytes)
{
	bool classed = ptc_torch_class_global(dtype) != NULL;
	int64_t stride[PTC_MAX_DIMS], n = 1;
	struct ptc_pickle_out o;

	for (uint32_t d = ndim; d--;) {
		stride[d] = n;
		n *= PTC_MAX(shape[d], 1);
	}
	ptc_pickle_begin(&o, b);
	ptc_pickle_global(&o, classed ? "torch._utils\n_rebuild_tensor_v2" : "torch._utils\n_rebuild_tensor_v3");
	ptc_pickle_op(&o, PTC_PICKLE_MARK);
	put_storage(&o, dtype, bytes);
	ptc_pickle_int(&o, 0);
	put_tuple(&o, ndim, shape);
	put_tuple(&o, ndim, stride);
	ptc_pickle_bool(&o, false);
	ptc_pickle_global(&o, "collections\nOrderedDict");
	ptc_pickle_op(&o, PTC_PICKLE_EMPTY_TUPLE);
	ptc_pickle_op(&o, PTC_PICKLE_REDUCE);
	if (!classed)
		ptc_pickle_global(&o, ptc_torch_dtype_global(dtype));
	ptc_pickle_op(&o, PTC_PICKLE_TUPLE);
	ptc_pickle_op(&o, PTC_PICKLE_REDUCE);
	ptc_pickle_end(&o);
}

static int head(struct archive *a, struct ptc_buf *b, enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape,
		struct ptc_error *err)
{
	struct member *data = &a->members[3];
	struct ptc_buf pickle = PTC_BUF_INIT;
	size_t at = b->len;
	uint32_t bytes;

	if (!ptc_torch_dtype_global(dtype))
		return ptc_error_set(err, PTC_ELAYOUT, "PyTorch has no dtype %s", ptc_dtype_name(dtype));
	if (!data_bytes(dtype, ndim, shape, &bytes))
		return ptc_error_set(err, PTC_ELIMIT, "a part of a tensor has 4 GiB or more");
	put_pickle(&pickle, dtype, ndim, shape, bytes);
	if (ptc_buf_failed(&pickle)) {
		ptc_buf_done(&pickle);
		return ptc_nomem(err);
	}
	add(a, b, at, "archive/data.pkl", pickle.data, pickle.len);
	ptc_buf_done(&pickle);
	add(a, b, at, "archive/byteorder", "little", 6);
	add(a, b, at, "archive/version", "3\n", 2);
	*data = (struct member){ "archive/data/0", (uint32_t)(b->len - at), bytes, 0, true };
	a->n++;
	put_local(b, data);
	return ptc_buf_failed(b) ? ptc_nomem(err) : 0;
}

int ptc_torch_head(struct ptc_buf *b, enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape, struct ptc_error *err)
{
	struct archive a = { 0 };

	return head(&a, b, dtype, ndim, shape, err);
}

int ptc_torch_tail(struct ptc_buf *b, enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape, uint32_t crc,
		   struct ptc_error *err)
{
	struct ptc_buf before = PTC_BUF_INIT;
	struct archive a = { 0 };
	int rc = head(&a, &before, dtype, ndim, shape, err);
	struct member *data = &a.members[3];

	if (!rc) {
		data->crc = crc;
		put(b, 0x08074b50, 4);
		put(b, crc, 4);
		put(b, data->len, 4);
		put(b, data->len, 4);
		put_end(b, &a, (uint32_t)before.len + data->len + 16);
		rc = ptc_buf_failed(b) ? ptc_nomem(err) : 0;
	}
	ptc_buf_done(&before);
	return rc;
}

uint64_t ptc_torch_bytes(enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape)
{
	struct ptc_buf b = PTC_BUF_INIT;
	uint64_t total = 0;
	uint32_t bytes;

	if (data_bytes(dtype, ndim, shape, &bytes) && !ptc_torch_head(&b, dtype, ndim, shape, NULL) &&
	    !ptc_torch_tail(&b, dtype, ndim, shape, 0, NULL))
		total = b.len + bytes;
	ptc_buf_done(&b);
	return total;
}

void ptc_torch_value(struct ptc_buf *b, const void *pickle, size_t len)
{
	struct archive a = { 0 };
	size_t at = b->len;

	add(&a, b, at, "archive/data.pkl", pickle, len);
	add(&a, b, at, "archive/byteorder", "little", 6);
	add(&a, b, at, "archive/version", "3\n", 2);
	put_end(b, &a, (uint32_t)(b->len - at));
}
