/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the headers of a state's safetensors files, and names tensors in them. Happy path: if the imported header
 * still describes the tensors, it is used verbatim, so the file has the same hash. Otherwise the header is canonical.
 * Failure modes: memory; a name or shape that the format cannot express. */
#include "formats/state/state_files.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/search.h"
#include "formats/state/layout_doc.h"
#include "formats/tensors/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NPY_ALIGN 64

void ptc_state_file_done(struct ptc_state_file *f)
{
	ptc_free(f->head);
	ptc_free(f->items);
	ptc_free(f->bytes);
	*f = (struct ptc_state_file){ 0 };
}

const char *ptc_state_field_name(const struct ptc_spec *spec, size_t field)
{
	return field ? spec->fields[field - 1].name : "param";
}

static int file_room(struct ptc_state_file *f, size_t n, struct ptc_error *err)
{
	*f = (struct ptc_state_file){ 0 };
	f->items = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof *f->items);
	f->bytes = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof *f->bytes);
	if (f->items && f->bytes)
		return 0;
	ptc_state_file_done(f);
	return ptc_nomem(err);
}

/* ---- files that were imported ---- */

/* The header parses, and its tensors in data order are what the job says of items. */
static bool still_fits(const struct ptc_spec *spec, const struct ptc_state_kept *f, size_t field)
{
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

size_t ptc_state_kept_count(const struct ptc_state_set *s, size_t field)
{
	const struct ptc_spec *spec = s->spec;
	size_t n = 0, tensors = 0;
	ptc_auto_free bool *seen = ptc_calloc(PTC_MAX(spec->ntensors, (size_t)1), sizeof *seen);

	for (size_t i = 0; i < s->nkept && seen; i++) {
		const struct ptc_state_kept *f = &s->kept[i];

		if (strcmp(f->field, ptc_state_field_name(spec, field)))
			continue;
		if (!safe_name(f->name) || !still_fits(spec, f, field))
			return 0;
		for (size_t k = 0; k < f->nitems; k++) {
			size_t t = f->items[k] / (1 + spec->nfields);

			tensors += !seen[t];
			seen[t] = true;
		}
		n++;
	}
	return tensors == spec->ntensors ? n : 0;
}

const struct ptc_state_kept *ptc_state_kept_nth(const struct ptc_state_set *s, size_t field, size_t n)
{
	for (size_t i = 0; i < s->nkept; i++)
		if (!strcmp(s->kept[i].field, ptc_state_field_name(s->spec, field)) && !n--)
			return &s->kept[i];
	return NULL;
}

int ptc_state_file_kept(const struct ptc_state_set *s, const struct ptc_state_kept *k, struct ptc_state_file *ret,
			struct ptc_error *err)
{
	struct ptc_state_file f;
	int rc = file_room(&f, k->nitems, err);

	if (rc)
		return rc;
	f.head = ptc_malloc(PTC_MAX(k->header_len, (size_t)1));
	if (!f.head) {
		ptc_state_file_done(&f);
		return ptc_nomem(err);
	}
	memcpy(f.head, k->header, k->header_len);
	f.head_len = k->header_len;
	for (f.n = 0; f.n < k->nitems; f.n++) {
		f.items[f.n] = k->items[f.n];
		f.bytes[f.n] = (uint64_t)ptc_item_bytes(s->spec, k->items[f.n]);
	}
	*ret = f;
	return 0;
}

/* ---- canonical files ---- */

struct entry {
	struct ptc_tensor t; /* as the file has it */
	uint32_t item;
	char *own; /* backs t.name, or NULL */
};
struct entries {
	struct entry *v;
	size_t n;
};

static void entries_done(struct entries *e)
{
	for (size_t i = 0; i < e->n; i++)
		ptc_free(e->v[i].own);
	ptc_free(e->v);
}

PTC_BY_NAME(compare_entry, struct entry, t.name)

/* The tensors of a file, laid out in name order. */
static int file_of(struct entries *e, struct ptc_state_file *ret, struct ptc_error *err)
{
	ptc_auto_free struct ptc_tensor *tensors = ptc_calloc(PTC_MAX(e->n, (size_t)1), sizeof *tensors);
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_state_file f;
	int rc = tensors ? file_room(&f, e->n, err) : ptc_nomem(err);

	if (rc)
		return rc;
	qsort(e->v, e->n, sizeof *e->v, compare_entry);
	for (f.n = 0; f.n < e->n; f.n++) {
		struct ptc_box whole = ptc_box_whole(e->v[f.n].t.ndim, e->v[f.n].t.shape);

		tensors[f.n] = e->v[f.n].t;
		f.items[f.n] = e->v[f.n].item;
		f.bytes[f.n] = (uint64_t)ptc_box_volume(&whole) * ptc_dtype_bits(tensors[f.n].dtype) / 8;
	}
	rc = ptc_st_write(&b, tensors, f.n, NULL, 0, err);
	if (!rc)
		f.head = ptc_buf_steal(&b, &f.head_len);
	ptc_buf_done(&b);
	if (!rc && !f.head)
		rc = ptc_nomem(err);
	if (rc)
		ptc_state_file_done(&f);
	else
		*ret = f;
	return rc;
}

/* named: under its item name, else under its parameter's. */
static int entry_add(struct entries *e, const struct ptc_spec *spec, uint32_t item, bool named, struct ptc_error *err)
{
	struct entry *v = &e->v[e->n];
	const struct ptc_tensor *param = &spec->tensors[item / (1 + spec->nfields)];
	char text[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

	*v = (struct entry){ .t = *param, .item = item };
	v->t.dtype = ptc_item_dtype(spec, item);
	if (named && item % (1 + spec->nfields)) {
		v->own = ptc_strdup(ptc_item_name(spec, item, text, sizeof(text)));
		v->t.name = v->own;
		if (!v->own)
			return ptc_nomem(err);
	}
	e->n++;
	return 0;
}

static int entries_room(struct entries *e, size_t n, struct ptc_error *err)
{
	e->v = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof *e->v);
	return e->v ? 0 : ptc_nomem(err);
}

int ptc_state_file_items(const struct ptc_spec *spec, const uint32_t *items, size_t n, struct ptc_state_file *ret,
			 struct ptc_error *err)
{
	struct entries e = { 0 };
	int rc = entries_room(&e, n, err);

	for (size_t i = 0; !rc && i < n; i++)
		rc = entry_add(&e, spec, items[i], true, err);
	if (rc == 0)
		rc = file_of(&e, ret, err);
	entries_done(&e);
	return rc;
}

int ptc_state_file_field(const struct ptc_state_set *s, size_t field, struct ptc_state_file *ret, struct ptc_error *err)
{
	struct entries e = { 0 };
	int rc;

	if (ptc_state_kept_count(s, field) == 1)
		return ptc_state_file_kept(s, ptc_state_kept_nth(s, field, 0), ret, err);
	rc = entries_room(&e, s->spec->ntensors, err);
	for (size_t t = 0; !rc && t < s->spec->ntensors; t++)
		rc = entry_add(&e, s->spec, (uint32_t)(t * (1 + s->spec->nfields) + field), false, err);
	if (rc == 0)
		rc = file_of(&e, ret, err);
	entries_done(&e);
	return rc;
}

/* ---- ranks ---- */

static int declared_layout(const struct ptc_spec *spec, const void *doc, size_t len, struct ptc_declared *ret_declared,
			   struct ptc_layout **ret_layout, struct ptc_error *err)
{
	struct ptc_declared d;
	int rc = ptc_layout_doc_decode(doc, len, &d, err);

	if (rc)
		return rc;
	if (spec->nfields)
		rc = ptc_error_set(err, PTC_ELAYOUT, "ranks declared their tensors, so the job must not have fields");
	if (rc == 0)
		rc = ptc_declared_same(spec, &d.spec, "the ranks", err);
	*ret_declared = d;
	if (rc == 0)
		rc = ptc_layout_declared_new(ret_declared, ret_layout, err);
	if (rc)
		ptc_declared_done(ret_declared);
	return rc;
}

int ptc_state_layout(const struct ptc_spec *spec, const char *config, const void *doc, size_t len,
		     struct ptc_declared *ret_declared, struct ptc_layout **ret_layout, struct ptc_error *err)
{
	struct ptc_config c;
	int rc;

	memset(ret_declared, 0, sizeof *ret_declared);
	if (len)
		return declared_layout(spec, doc, len, ret_declared, ret_layout, err);
	rc = ptc_config_parse(config, &c, err);
	return rc ? rc : ptc_layout_new(spec, &c, ret_layout, err);
}

static int rank_add(struct entries *e, const struct ptc_layout *layout, const struct ptc_spec *spec, uint32_t rank,
		    uint32_t item, bool named, struct ptc_error *err)
{
	struct ptc_local_shape local;
	struct ptc_tensor *t;
	int rc;

	if (!ptc_layout_local_shape(layout, rank, item, &local))
		return 0;
	rc = entry_add(e, spec, item, named, err);
	if (rc)
		return rc;
	t = &e->v[e->n - 1].t;
	t->ndim = local.ndim;
	memset(t->shape, 0, sizeof(t->shape));
	memcpy(t->shape, local.shape, local.ndim * sizeof(local.shape[0]));
	return 0;
}

static int rank_file(const struct ptc_layout *layout, const struct ptc_spec *spec, uint32_t rank, size_t first,
		     size_t step, bool named, struct ptc_state_file *ret, struct ptc_error *err)
{
	size_t n = ptc_spec_items(spec);
	struct entries e = { 0 };
	int rc = entries_room(&e, n / step + 1, err);

	for (size_t i = first; !rc && i < n; i += step)
		rc = rank_add(&e, layout, spec, rank, (uint32_t)i, named, err);
	if (rc == 0)
		rc = file_of(&e, ret, err);
	entries_done(&e);
	if (!rc) {
		ret->ranked = true;
		ret->rank = rank;
	}
	return rc;
}

int ptc_state_file_rank(const struct ptc_layout *layout, const struct ptc_spec *spec, uint32_t rank, size_t field,
			struct ptc_state_file *ret, struct ptc_error *err)
{
	return rank_file(layout, spec, rank, field, 1 + spec->nfields, false, ret, err);
}

int ptc_state_file_rank_all(const struct ptc_layout *layout, const struct ptc_spec *spec, uint32_t rank,
			    struct ptc_state_file *ret, struct ptc_error *err)
{
	return rank_file(layout, spec, rank, 0, 1, true, ret, err);
}

/* ---- NumPy ---- */

/* NumPy's name of the type; NULL: it has none. */
static const char *npy_type(enum ptc_dtype t)
{
	switch (t) {
	case PTC_BOOL:
		return "|b1";
	case PTC_U8:
		return "|u1";
	case PTC_I8:
		return "|i1";
	case PTC_I16:
		return "<i2";
	case PTC_U16:
		return "<u2";
	case PTC_F16:
		return "<f2";
	case PTC_I32:
		return "<i4";
	case PTC_U32:
		return "<u4";
	case PTC_F32:
		return "<f4";
	case PTC_C64:
		return "<c8";
	case PTC_F64:
		return "<f8";
	case PTC_I64:
		return "<i8";
	case PTC_U64:
		return "<u8";
	default:
		return NULL;
	}
}

static void npy_describe(struct ptc_buf *b, const struct ptc_tensor *t, enum ptc_dtype dtype)
{
	const char *type = npy_type(dtype);

	if (type)
		ptc_buf_printf(b, "{'descr': '%s', 'fortran_order': False, 'shape': (", type);
	else
		ptc_buf_printf(b, "{'descr': '|V%" PRIu32 "', 'fortran_order': False, 'shape': (",
			       ptc_dtype_bits(dtype) / 8);
	for (uint32_t d = 0; d < t->ndim; d++)
		ptc_buf_printf(b, t->ndim == 1 ? "%" PRId64 "," : d ? ", %" PRId64 : "%" PRId64, t->shape[d]);
	ptc_buf_puts(b, "), }");
}

int ptc_state_file_npy(const struct ptc_spec *spec, uint32_t item, struct ptc_state_file *ret, struct ptc_error *err)
{
	static const char magic[] = "\x93NUMPY\x01\x00\x00\x00"; /* and the length of what follows */
	const struct ptc_tensor *t = &spec->tensors[item / (1 + spec->nfields)];
	enum ptc_dtype dtype = ptc_item_dtype(spec, item);
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_state_file f;
	int rc;

	if (ptc_dtype_bits(dtype) % 8)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": NumPy has no elements of %" PRIu32 " bits",
				     t->name, ptc_dtype_bits(dtype));
	rc = file_room(&f, 1, err);
	if (rc)
		return rc;
	ptc_buf_append(&b, magic, 10);
	npy_describe(&b, t, dtype);
	while (!ptc_buf_failed(&b) && (b.len + 1) % NPY_ALIGN)
		ptc_buf_puts(&b, " ");
	ptc_buf_puts(&b, "\n");
	f.head = ptc_buf_steal(&b, &f.head_len);
	ptc_buf_done(&b);
	if (!f.head) {
		ptc_state_file_done(&f);
		return ptc_nomem(err);
	}
	((uint8_t *)f.head)[8] = (uint8_t)(f.head_len - 10);
	((uint8_t *)f.head)[9] = (uint8_t)((f.head_len - 10) >> 8);
	f.items[0] = item;
	f.bytes[0] = (uint64_t)ptc_item_bytes(spec, item);
	f.n = 1;
	*ret = f;
	return 0;
}

static bool is_small(const struct ptc_spec *spec, uint32_t item, uint64_t most)
{
	uint64_t bytes = (uint64_t)ptc_item_bytes(spec, item);

	return bytes && bytes <= most && ptc_dtype_bits(ptc_item_dtype(spec, item)) % 8 == 0;
}

int ptc_state_file_small(const struct ptc_spec *spec, uint64_t most, struct ptc_state_file *ret, struct ptc_error *err)
{
	size_t items = ptc_spec_items(spec), n = 0;
	struct ptc_state_file f;
	int rc;

	for (uint32_t i = 0; i < items; i++)
		n += is_small(spec, i, most);
	rc = file_room(&f, PTC_MAX(n, (size_t)1), err);
	if (rc)
		return rc;
	f.n = 0;
	for (uint32_t i = 0; i < items; i++)
		if (is_small(spec, i, most)) {
			f.items[f.n] = i;
			f.bytes[f.n++] = (uint64_t)ptc_item_bytes(spec, i);
		}
	*ret = f;
	return 0;
}
