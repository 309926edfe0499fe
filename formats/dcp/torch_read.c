/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what torch.save wrote of one tensor: the ZIP's directory, which is at its end, then the pickle. Nothing is
 * believed that the file's length does not allow. Failure modes: torch_file.h. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/status.h"
#include "formats/dcp/torch_file.h"
#include "formats/dcp/torch_parts.h"

#include <inttypes.h>
#include <string.h>

#define END_BYTES     22u
#define LOCATOR_BYTES 20u
#define END64_BYTES   56u
#define CENTRAL_BYTES 46u
#define LOCAL_BYTES   30u
#define DIRECTORY_MAX (1u << 20) /* torch.save of a tensor writes seven members */
#define TENSOR_PICKLE (64u << 10)

const char *const ptc_torch_names[] = {
	"torch._utils _rebuild_tensor_v2",
	"torch._utils _rebuild_tensor_v3",
	"torch._utils _rebuild_parameter",
	"torch.storage UntypedStorage",
	"torch.storage TypedStorage",
	"collections OrderedDict",
	"torch Size",
	"torch BoolStorage",
	"torch ByteStorage",
	"torch CharStorage",
	"torch ShortStorage",
	"torch HalfStorage",
	"torch BFloat16Storage",
	"torch IntStorage",
	"torch FloatStorage",
	"torch ComplexFloatStorage",
	"torch DoubleStorage",
	"torch LongStorage",
	"torch bool",
	"torch uint8",
	"torch int8",
	"torch float8_e5m2",
	"torch float8_e4m3fn",
	"torch float8_e5m2fnuz",
	"torch float8_e4m3fnuz",
	"torch float8_e8m0fnu",
	"torch int16",
	"torch uint16",
	"torch float16",
	"torch bfloat16",
	"torch int32",
	"torch uint32",
	"torch float32",
	"torch complex64",
	"torch float64",
	"torch int64",
	"torch uint64",
	NULL,
};

struct member {
	uint64_t at, len; /* of its local header; of its bytes */
	uint32_t crc;
	bool found;
};
struct archive {
	ptc_torch_read_fn fn;
	void *arg;
	uint64_t bytes;
	struct ptc_buf directory;
	uint64_t nmembers;
	struct ptc_error *err;
};

static uint64_t get(const void *data, unsigned bytes)
{
	const uint8_t *p = data;
	uint64_t n = 0;

	for (unsigned i = bytes; i--;)
		n = n << 8 | p[i];
	return n;
}

static int bad(struct ptc_error *err, const char *what)
{
	return ptc_error_set(err, PTC_EINVAL, "a part that is not as torch.save writes a tensor: %s", what);
}

static int read_at(const struct archive *a, uint64_t at, void *data, size_t len)
{
	if (at > a->bytes || len > a->bytes - at)
		return bad(a->err, "its directory points outside of it");
	return a->fn(a->arg, at, data, len, a->err);
}

/* Numbers that do not fit 32 bits are in the record before. */
static int read_end64(struct archive *a, uint64_t *ret_at, uint64_t *ret_len)
{
	uint8_t locator[LOCATOR_BYTES], end[END64_BYTES];
	int rc = a->bytes < END_BYTES + LOCATOR_BYTES
			 ? bad(a->err, "it is too short")
			 : read_at(a, a->bytes - END_BYTES - LOCATOR_BYTES, locator, sizeof locator);

	if (!rc && get(locator, 4) != 0x07064b50)
		rc = bad(a->err, "its directory is not there");
	if (!rc)
		rc = read_at(a, get(locator + 8, 8), end, sizeof end);
	if (!rc && get(end, 4) != 0x06064b50)
		rc = bad(a->err, "its directory is not there");
	if (rc)
		return rc;
	a->nmembers = get(end + 32, 8);
	*ret_len = get(end + 40, 8);
	*ret_at = get(end + 48, 8);
	return 0;
}

static int read_directory(struct archive *a)
{
	uint8_t end[END_BYTES];
	uint64_t at, len;
	void *room;
	int rc = a->bytes < END_BYTES ? bad(a->err, "it is too short")
				      : read_at(a, a->bytes - END_BYTES, end, sizeof end);

	if (!rc && (get(end, 4) != 0x06054b50 || get(end + 20, 2)))
		rc = bad(a->err, "it does not end as a ZIP file");
	if (rc)
		return rc;
	a->nmembers = get(end + 10, 2);
	len = get(end + 12, 4);
	at = get(end + 16, 4);
	if (at == UINT32_MAX || len == UINT32_MAX || a->nmembers == UINT16_MAX)
		rc = read_end64(a, &at, &len);
	if (!rc && len > DIRECTORY_MAX)
		rc = ptc_error_set(a->err, PTC_ELIMIT, "a part whose directory has more than %u bytes", DIRECTORY_MAX);
	if (rc)
		return rc;
	room = ptc_buf_extend(&a->directory, (size_t)len);
	return room || !len ? read_at(a, at, room, (size_t)len) : ptc_nomem(a->err);
}

/* Values of the central header that are in its extra field instead, in this order. */
static void widen(const uint8_t *extra, size_t len, uint64_t *size, uint64_t *packed, uint64_t *at)
{
	for (size_t i = 0; i + 4 <= len;) {
		size_t n = (size_t)get(extra + i + 2, 2), k = i + 4, end = k + n;

		if (end > len)
			return;
		if (get(extra + i, 2) == 1) {
			uint64_t *wide[] = { size, packed, at };

			for (size_t w = 0; w < PTC_ARRAY_LEN(wide); w++)
				if (*wide[w] == UINT32_MAX && k + 8 <= end) {
					*wide[w] = get(extra + k, 8);
					k += 8;
				}
			return;
		}
		i = end;
	}
}

/* name: what follows the archive's own directory, such as "data/0". */
static bool is_member(const uint8_t *name, size_t len, const char *want, size_t nwant)
{
	const uint8_t *slash = memchr(name, '/', len);
	size_t rest = slash ? len - (size_t)(slash + 1 - name) : 0;

	return slash && rest == nwant && !memcmp(slash + 1, want, nwant);
}

static int find(struct archive *a, const char *name, size_t nname, struct member *ret)
{
	const uint8_t *p = (const uint8_t *)a->directory.data;
	size_t left = a->directory.len;

	for (uint64_t i = 0; i < a->nmembers; i++) {
		size_t n, extra, comment;
		uint64_t size, packed, at;

		if (left < CENTRAL_BYTES || get(p, 4) != 0x02014b50)
			return bad(a->err, "its directory is cut off");
		n = (size_t)get(p + 28, 2);
		extra = (size_t)get(p + 30, 2);
		comment = (size_t)get(p + 32, 2);
		if (left - CENTRAL_BYTES < n + extra + comment)
			return bad(a->err, "its directory is cut off");
		packed = get(p + 20, 4);
		size = get(p + 24, 4);
		at = get(p + 42, 4);
		widen(p + CENTRAL_BYTES + n, extra, &size, &packed, &at);
		if (is_member(p + CENTRAL_BYTES, n, name, nname)) {
			if (get(p + 10, 2) || (get(p + 8, 2) & 1) || packed != size)
				return bad(a->err, "it is compressed or encrypted");
			*ret = (struct member){ at, size, (uint32_t)get(p + 16, 4), true };
			return 0;
		}
		p += CENTRAL_BYTES + n + extra + comment;
		left -= CENTRAL_BYTES + n + extra + comment;
	}
	return ptc_error_set(a->err, PTC_EINVAL, "a part that is not as torch.save writes a tensor: it has no %.*s",
			     (int)PTC_MIN(nname, (size_t)64), name);
}

/* From its local header to its bytes. */
static int locate(struct archive *a, struct member *m)
{
	uint8_t local[LOCAL_BYTES];
	int rc = read_at(a, m->at, local, sizeof local);

	if (!rc && get(local, 4) != 0x04034b50)
		rc = bad(a->err, "a member is not where its directory says");
	if (rc)
		return rc;
	m->at += LOCAL_BYTES + get(local + 26, 2) + get(local + 28, 2);
	if (m->at > a->bytes || m->len > a->bytes - m->at)
		return bad(a->err, "its directory points outside of it");
	return 0;
}

static int check_order(struct archive *a)
{
	struct ptc_error ignored = PTC_ERROR_INIT, *err = a->err;
	struct member m = { 0 };
	char text[8];
	int rc;

	a->err = &ignored;
	rc = find(a, "byteorder", 9, &m);
	a->err = err;
	if (rc) /* older files have none, and are little-endian */
		return 0;
	rc = locate(a, &m);
	if (rc)
		return rc;
	if (m.len != 6)
		return bad(err, "its byte order is unknown");
	rc = read_at(a, m.at, text, 6);
	return !rc && memcmp(text, "little", 6) != 0 ? bad(err, "it was written by a big-endian machine") : rc;
}

/* ---- the pickle ---- */

static bool int_of(const struct ptc_pickle_value *v, int64_t *ret)
{
	*ret = v->n;
	return v->kind == PTC_PICKLE_INT && v->n >= 0;
}

static int numbers(const struct ptc_pickle *p, const struct ptc_pickle_value *v, uint32_t *ret_n, int64_t *ret,
		   struct ptc_error *err)
{
	if (v->kind == PTC_PICKLE_CALL) /* torch.Size((..)) */
		v = ptc_pickle_at(p, v->made.args);
	if (v->kind == PTC_PICKLE_SEQ && v->nitems == 1 && ptc_pickle_item(p, v, 0)->kind == PTC_PICKLE_SEQ)
		v = ptc_pickle_item(p, v, 0);
	if (v->kind != PTC_PICKLE_SEQ || v->nitems > PTC_MAX_DIMS)
		return bad(err, "its shape is none, or has too many dims");
	for (uint32_t i = 0; i < v->nitems; i++)
		if (!int_of(ptc_pickle_item(p, v, i), &ret[i]))
			return bad(err, "its shape is no list of numbers");
	*ret_n = v->nitems;
	return 0;
}

static int read_storage(const struct ptc_pickle *p, const struct ptc_pickle_value *args, struct ptc_torch_tensor *t,
			const struct ptc_pickle_value **ret_key, struct ptc_error *err)
{
	const struct ptc_pickle_value *id = ptc_pickle_item(p, args, 0), *s, *class, *dtype;

	s = id->kind == PTC_PICKLE_ID ? ptc_pickle_at(p, id->made.args) : NULL;
	if (!s || s->kind != PTC_PICKLE_SEQ || s->nitems != 5 || !ptc_pickle_is(p, ptc_pickle_item(p, s, 0), "storage"))
		return bad(err, "its storage is not described");
	class = ptc_pickle_item(p, s, 1);
	*ret_key = ptc_pickle_item(p, s, 2);
	if (class->kind != PTC_PICKLE_NAME || (*ret_key)->kind != PTC_PICKLE_TEXT)
		return bad(err, "its storage is not described");
	dtype = args->nitems > 6 ? ptc_pickle_item(p, args, 6) : class;
	if (dtype->kind != PTC_PICKLE_NAME ||
	    !(dtype == class ? ptc_torch_class_dtype : ptc_torch_dtype_parse)(ptc_pickle_str(p, dtype), dtype->text.len,
									      &t->dtype))
		return bad(err, "its dtype is unknown here");
	return 0;
}

/* Every element is inside the storage; and is it as a row-major tensor is? */
static int check_strides(struct ptc_torch_tensor *t, int64_t first, struct ptc_error *err)
{
	uint64_t item = ptc_dtype_bits(t->dtype) / 8, last = (uint64_t)first, n = 1;
	bool overflow = false, empty = false;

	t->row_major = first == 0;
	for (uint32_t d = t->ndim; d--;) {
		uint64_t span;

		empty |= !t->shape[d];
		overflow |= ptc_ckd_mul(&span, (uint64_t)PTC_MAX(t->shape[d] - 1, 0), (uint64_t)t->stride[d]);
		overflow |= ptc_ckd_add(&last, last, span);
		t->row_major &= t->shape[d] <= 1 || (uint64_t)t->stride[d] == n;
		overflow |= ptc_ckd_mul(&n, n, (uint64_t)t->shape[d]);
	}
	overflow |= ptc_ckd_mul(&n, n, item);
	if (empty) {
		t->row_major = true;
		t->first = 0;
		return 0;
	}
	if (overflow || last >= t->bytes / item)
		return bad(err, "it has elements outside of its storage");
	t->first = (uint64_t)first * item;
	t->row_major &= n == t->bytes;
	return 0;
}

static int read_pickle(struct archive *a, const struct ptc_pickle *p, struct ptc_torch_tensor *t)
{
	const struct ptc_pickle_value *root = ptc_pickle_at(p, p->root), *args, *key = NULL;
	struct member m = { 0 };
	uint32_t nstride;
	int64_t first;
	int rc;

	if (ptc_pickle_made_by(p, root, "torch._utils _rebuild_parameter")) {
		args = ptc_pickle_at(p, root->made.args);
		root = args->nitems ? ptc_pickle_item(p, args, 0) : root;
	}
	if (!ptc_pickle_made_by(p, root, "torch._utils _rebuild_tensor_v2") &&
	    !ptc_pickle_made_by(p, root, "torch._utils _rebuild_tensor_v3"))
		return bad(a->err, "it is no plain tensor");
	args = ptc_pickle_at(p, root->made.args);
	if (args->nitems < 4 || !int_of(ptc_pickle_item(p, args, 1), &first))
		return bad(a->err, "it is no plain tensor");
	rc = read_storage(p, args, t, &key, a->err);
	if (!rc)
		rc = numbers(p, ptc_pickle_item(p, args, 2), &t->ndim, t->shape, a->err);
	if (!rc)
		rc = numbers(p, ptc_pickle_item(p, args, 3), &nstride, t->stride, a->err);
	if (!rc && nstride != t->ndim)
		rc = bad(a->err, "its strides do not fit its shape");
	if (!rc) {
		char name[32];
		int n = snprintf(name, sizeof name, "data/%.*s", (int)PTC_MIN(key->text.len, 20u),
				 ptc_pickle_str(p, key));

		rc = find(a, name, (size_t)n, &m);
	}
	if (!rc)
		rc = locate(a, &m);
	if (rc)
		return rc;
	t->at = m.at;
	t->bytes = m.len;
	t->crc = m.crc;
	return check_strides(t, first, a->err);
}

static int read_tensor(struct archive *a, struct ptc_torch_tensor *ret)
{
	struct ptc_torch_tensor t = { 0 };
	struct ptc_pickle p = { 0 };
	struct member m = { 0 };
	ptc_auto_free char *pickle = NULL;
	int rc = read_directory(a);

	if (!rc)
		rc = check_order(a);
	if (!rc)
		rc = find(a, "data.pkl", 8, &m);
	if (!rc)
		rc = locate(a, &m);
	if (!rc && m.len > TENSOR_PICKLE)
		rc = bad(a->err, "its pickle is too long for a tensor's");
	if (rc)
		return rc;
	pickle = ptc_malloc((size_t)m.len + 1);
	if (!pickle)
		return ptc_nomem(a->err);
	rc = read_at(a, m.at, pickle, (size_t)m.len);
	if (!rc && ptc_crc32(0, pickle, (size_t)m.len) != m.crc)
		rc = ptc_error_set(a->err, PTC_EDIGEST, "a part whose pickle does not have its checksum");
	if (!rc)
		rc = ptc_pickle_read(pickle, (size_t)m.len, ptc_torch_names, &p, a->err);
	if (!rc)
		rc = read_pickle(a, &p, &t);
	ptc_pickle_done(&p);
	if (!rc)
		*ret = t;
	return rc;
}

int ptc_torch_read(ptc_torch_read_fn fn, void *arg, uint64_t bytes, struct ptc_torch_tensor *ret, struct ptc_error *err)
{
	struct archive a = { fn, arg, bytes, PTC_BUF_INIT, 0, err };
	int rc = read_tensor(&a, ret);

	ptc_buf_done(&a.directory);
	return rc;
}
