/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: written in one pass, read in one pass into the arrays of a
 * ptc_declared, which is then checked as one that was just merged. Failure
 * modes: see layout_doc.h; nothing is left allocated. */
#include "formats/state/layout_doc.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "formats/json.h"
#include "formats/names.h"
#include "formats/scan.h"

#include <inttypes.h>
#include <string.h>

/* ---- writing ---- */

static void put_tensors(struct ptc_buf *b, const struct ptc_spec *spec)
{
	ptc_buf_puts(b, ",\"tensors\":[");
	for (size_t i = 0; i < spec->ntensors; i++) {
		const struct ptc_tensor *t = &spec->tensors[i];

		ptc_buf_puts(b, i ? ",[" : "[");
		ptc_json_put_string(b, t->name);
		ptc_buf_printf(b, ",\"%s\",[", ptc_dtype_name(t->dtype));
		for (uint32_t d = 0; d < t->ndim; d++)
			ptc_buf_printf(b, "%s%" PRId64, d ? "," : "", t->shape[d]);
		ptc_buf_puts(b, "]]");
	}
	ptc_buf_puts(b, "]");
}

/* v: offsets, extents. */
static bool is_whole_box(const struct ptc_tensor *t, const int64_t *v)
{
	for (uint32_t i = 0; i < t->ndim; i++)
		if (v[i] || v[t->ndim + i] != t->shape[i])
			return false;
	return true;
}

static void put_class(struct ptc_buf *b, const struct ptc_declared *d, const struct ptc_declared_class *c)
{
	ptc_buf_puts(b, "[");
	for (size_t i = 0; i < c->nparts; i++) {
		const struct ptc_declared_part *p = &c->parts[i];
		size_t n = 2 * (size_t)d->spec.tensors[p->tensor].ndim * p->nboxes;

		if (i)
			ptc_buf_puts(b, ",");
		if (p->nboxes == 1 && is_whole_box(&d->spec.tensors[p->tensor], c->v + p->first)) {
			ptc_buf_printf(b, "%" PRIu32, p->tensor);
			continue;
		}
		ptc_buf_printf(b, "[%" PRIu32, p->tensor);
		for (size_t k = 0; k < n; k++)
			ptc_buf_printf(b, ",%" PRId64, c->v[p->first + k]);
		ptc_buf_puts(b, "]");
	}
	ptc_buf_puts(b, "]");
}

static void put_ranks(struct ptc_buf *b, const struct ptc_declared *d)
{
	uint32_t run;

	ptc_buf_puts(b, "],\"ranks\":[");
	for (uint32_t r = 0; r < d->world; r += run) {
		for (run = 1; r + run < d->world && d->ranks[r + run] == d->ranks[r]; run++)
			;
		if (r)
			ptc_buf_puts(b, ",");
		if (run > 1)
			ptc_buf_printf(b, "[%" PRIu32 ",%" PRIu32 "]", run, d->ranks[r]);
		else
			ptc_buf_printf(b, "%" PRIu32, d->ranks[r]);
	}
	ptc_buf_puts(b, "]");
	if (ptc_version_adds())
		ptc_buf_printf(b, ",\"added\":%" PRIu64, PTC_VERSION_ADDED);
	ptc_buf_puts(b, "}");
}

static int check_names(const struct ptc_spec *spec, struct ptc_error *err)
{
	for (size_t i = 0; i < spec->ntensors; i++) {
		int rc = ptc_name_check_tensor(spec->tensors[i].name, err);

		if (rc)
			return rc;
	}
	return 0;
}

int ptc_layout_doc_encode(const struct ptc_declared *d, char **ret_json, size_t *ret_len, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	char *config = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	int rc = config ? check_names(&d->spec, err) : ptc_nomem(err);

	if (!rc && ptc_config_format(&d->config, config, PTC_CONFIG_TEXT_MAX) < 0)
		rc = ptc_error_set(err, PTC_ELIMIT, "layout: the configuration is too long");
	if (!rc) {
		ptc_buf_printf(&b, "{\"version\":%" PRIu32 ",\"config\":",
			       ptc_version_write(PTC_LAYOUT_DOC_VERSION, PTC_LAYOUT_DOC_SINCE));
		ptc_json_put_string(&b, config);
		put_tensors(&b, &d->spec);
		ptc_buf_puts(&b, ",\"classes\":[");
		for (size_t c = 0; c < d->nclasses && b.len <= PTC_LAYOUT_DOC_MAX_BYTES; c++) {
			if (c)
				ptc_buf_puts(&b, ",");
			put_class(&b, d, &d->classes[c]);
		}
		put_ranks(&b, d);
		if (ptc_buf_failed(&b))
			rc = ptc_nomem(err);
		else if (b.len > PTC_LAYOUT_DOC_MAX_BYTES)
			rc = ptc_error_set(err, PTC_ELIMIT, "layout: its document has more than %u bytes",
					   PTC_LAYOUT_DOC_MAX_BYTES);
	}
	if (!rc)
		*ret_json = ptc_buf_steal(&b, ret_len);
	ptc_free(config);
	ptc_buf_done(&b);
	return rc;
}

/* ---- reading ---- */

struct reader {
	struct ptc_scan s;
	struct ptc_declared *d;
	uint64_t version;
	size_t tensors_cap, classes_cap, regions;
	struct ptc_declared_part *parts; /* of the class being read */
	size_t nparts, parts_cap;
	int64_t *v;
	size_t nv, v_cap;
};

/* Whether another member follows; the list's "[" was taken. *first is true at the first call. */
static bool more(struct reader *r, bool *first)
{
	bool again = *first ? r->s.at < r->s.end && *r->s.at != ']' : ptc_scan_is(&r->s, ",");

	*first = false;
	return again;
}

static int read_config(struct reader *r)
{
	char *text = NULL, *again = NULL;
	int rc = ptc_scan_text(&r->s, ",\"config\":");

	if (rc == 0)
		rc = ptc_scan_string(&r->s, PTC_CONFIG_TEXT_MAX, &text);
	if (rc == 0)
		rc = ptc_config_parse(text, &r->d->config, r->s.err);
	if (rc == 0)
		rc = ptc_config_world(&r->d->config, &r->d->world, r->s.err);
	if (!rc && !(again = ptc_malloc(PTC_CONFIG_TEXT_MAX)))
		rc = ptc_nomem(r->s.err);
	if (!rc && (ptc_config_format(&r->d->config, again, PTC_CONFIG_TEXT_MAX) < 0 || strcmp(text, again)))
		rc = ptc_scan_fail(&r->s, PTC_EINVAL, "the configuration is not in canonical form");
	ptc_free(text);
	ptc_free(again);
	return rc;
}

static int read_dtype(struct reader *r, enum ptc_dtype *ret)
{
	char *text = NULL;
	int rc = ptc_scan_string(&r->s, 32, &text);

	if (!rc && !ptc_dtype_parse(text, ret))
		rc = ptc_scan_fail(&r->s, PTC_EINVAL, "unknown dtype; safetensors' names are known, such as \"F32\"");
	ptc_free(text);
	return rc;
}

static int read_tensor(struct reader *r)
{
	struct ptc_spec *spec = &r->d->spec;
	struct ptc_tensor t = { 0 };
	bool first = true;
	char *name = NULL;
	uint64_t n;
	int rc;

	if (spec->ntensors >= PTC_MAX_TENSORS)
		return ptc_scan_fail(&r->s, PTC_ELIMIT, "more than %u tensors", PTC_MAX_TENSORS);
	rc = PTC_ROOM(spec->tensors, spec->ntensors + 1, r->tensors_cap) ? 0 : ptc_nomem(r->s.err);
	if (rc == 0)
		rc = ptc_scan_text(&r->s, "[");
	if (rc == 0)
		rc = ptc_scan_string(&r->s, PTC_TENSOR_NAME_MAX, &name);
	if (rc)
		return rc;
	t.name = name;
	spec->tensors[spec->ntensors++] = t;
	rc = ptc_scan_text(&r->s, ",");
	if (rc == 0)
		rc = read_dtype(r, &t.dtype);
	if (rc == 0)
		rc = ptc_scan_text(&r->s, ",[");
	while (!rc && more(r, &first)) {
		if (t.ndim == PTC_MAX_DIMS)
			return ptc_scan_fail(&r->s, PTC_ELIMIT, "more than %d dims", PTC_MAX_DIMS);
		rc = ptc_scan_number(&r->s, INT64_MAX, &n);
		t.shape[t.ndim++] = rc ? 0 : (int64_t)n;
	}
	spec->tensors[spec->ntensors - 1] = t;
	return rc ? rc : ptc_scan_text(&r->s, "]]");
}

static int read_tensors(struct reader *r)
{
	bool first = true;
	int rc = ptc_scan_text(&r->s, ",\"tensors\":[");

	while (!rc && more(r, &first))
		rc = read_tensor(r);
	return rc ? rc : ptc_scan_text(&r->s, "]");
}

static int put_number(struct reader *r, int64_t n)
{
	int rc = PTC_ROOM(r->v, r->nv + 1, r->v_cap) ? 0 : ptc_nomem(r->s.err);

	if (!rc)
		r->v[r->nv++] = n;
	return rc;
}

static int put_whole(struct reader *r, const struct ptc_tensor *t, struct ptc_declared_part *p)
{
	struct ptc_box whole = ptc_box_whole(t->ndim, t->shape);
	int rc = 0;

	if (ptc_box_empty(&whole))
		return ptc_scan_fail(&r->s, PTC_EINVAL, "a tensor without elements is listed as held whole");
	for (uint32_t i = 0; i < t->ndim && !rc; i++)
		rc = put_number(r, 0);
	for (uint32_t i = 0; i < t->ndim && !rc; i++)
		rc = put_number(r, t->shape[i]);
	p->nboxes = 1;
	return rc;
}

/* After "[tensor". */
static int read_boxes(struct reader *r, const struct ptc_tensor *t, struct ptc_declared_part *p)
{
	size_t n = 0;
	uint64_t value;
	int rc = 0;

	while (!rc && ptc_scan_is(&r->s, ",")) {
		if (n >= 2 * (size_t)t->ndim * PTC_MAX_DECLARED_BOXES)
			return ptc_scan_fail(&r->s, PTC_ELIMIT, "more than %d boxes", PTC_MAX_DECLARED_BOXES);
		rc = ptc_scan_number(&r->s, INT64_MAX, &value);
		if (rc == 0)
			rc = put_number(r, (int64_t)value);
		n++;
	}
	if (!rc && t->ndim && n % (2 * t->ndim))
		rc = ptc_scan_fail(&r->s, PTC_EINVAL, "%zu numbers do not make boxes of %u dims", n, t->ndim);
	if (!rc)
		p->nboxes = t->ndim ? (uint32_t)(n / (2 * t->ndim)) : 0;
	if (!rc && p->nboxes == 1 && is_whole_box(t, r->v + p->first))
		rc = ptc_scan_fail(&r->s, PTC_EINVAL, "a tensor held whole is not written as its number");
	return rc ? rc : ptc_scan_text(&r->s, "]");
}

static int read_part(struct reader *r)
{
	struct ptc_declared_part p = { .first = r->nv };
	bool listed = ptc_scan_is(&r->s, "[");
	const struct ptc_tensor *t;
	uint64_t number;
	int rc = PTC_ROOM(r->parts, r->nparts + 1, r->parts_cap) ? 0 : ptc_nomem(r->s.err);

	if (rc == 0)
		rc = ptc_scan_number(&r->s, UINT32_MAX, &number);
	if (rc)
		return rc;
	if (number >= r->d->spec.ntensors)
		return ptc_scan_fail(&r->s, PTC_EINVAL, "there is no tensor %llu, only %zu tensors",
				     (unsigned long long)number, r->d->spec.ntensors);
	p.tensor = (uint32_t)number;
	t = &r->d->spec.tensors[p.tensor];
	rc = listed ? read_boxes(r, t, &p) : put_whole(r, t, &p);
	r->regions += PTC_MAX(p.nboxes, 1u);
	if (!rc && r->regions > PTC_MAX_REGIONS)
		rc = ptc_scan_fail(&r->s, PTC_ELIMIT, "more than %u regions", PTC_MAX_REGIONS);
	if (!rc)
		r->parts[r->nparts++] = p;
	return rc;
}

static int read_class(struct reader *r)
{
	struct ptc_declared *d = r->d;
	struct ptc_declared_class *c;
	bool first = true;
	int rc = d->nclasses < d->world ? 0 : ptc_scan_fail(&r->s, PTC_EINVAL, "more classes than ranks");

	r->nparts = r->nv = 0;
	if (rc == 0)
		rc = ptc_scan_text(&r->s, "[");
	while (!rc && more(r, &first))
		rc = read_part(r);
	if (rc == 0)
		rc = ptc_scan_text(&r->s, "]");
	if (rc == 0)
		rc = PTC_ROOM(d->classes, d->nclasses + 1, r->classes_cap) ? 0 : ptc_nomem(r->s.err);
	if (rc)
		return rc;
	c = &d->classes[d->nclasses++];
	*c = (struct ptc_declared_class){ .nparts = r->nparts, .nv = r->nv };
	c->parts = ptc_calloc(r->nparts ? r->nparts : 1, sizeof *c->parts);
	c->v = ptc_calloc(r->nv ? r->nv : 1, sizeof *c->v);
	if (!c->parts || !c->v)
		return ptc_nomem(r->s.err);
	if (r->nparts)
		memcpy(c->parts, r->parts, r->nparts * sizeof *c->parts);
	if (r->nv)
		memcpy(c->v, r->v, r->nv * sizeof *c->v);
	return 0;
}

static int read_classes(struct reader *r)
{
	bool first = true;
	int rc = ptc_scan_text(&r->s, ",\"classes\":[");

	while (!rc && more(r, &first))
		rc = read_class(r);
	return rc ? rc : ptc_scan_text(&r->s, "]");
}

static int read_ranks(struct reader *r)
{
	struct ptc_declared *d = r->d;
	uint64_t at = 0, n, class, last = UINT64_MAX;
	bool first = true;
	int rc = ptc_scan_text(&r->s, ",\"ranks\":[");

	d->ranks = ptc_calloc(d->world, sizeof *d->ranks);
	if (!rc && !d->ranks)
		rc = ptc_nomem(r->s.err);
	while (!rc && more(r, &first)) {
		bool run = ptc_scan_is(&r->s, "[");

		n = 1;
		class = 0;
		if (run)
			rc = ptc_scan_number(&r->s, d->world, &n);
		if (!rc && run)
			rc = ptc_scan_text(&r->s, ",");
		if (rc == 0)
			rc = ptc_scan_number(&r->s, UINT32_MAX, &class);
		if (!rc && run)
			rc = ptc_scan_text(&r->s, "]");
		if (!rc && (n < (run ? 2u : 1u) || n > d->world - at || class == last))
			rc = ptc_scan_fail(&r->s, PTC_EINVAL, "the runs of ranks are not in canonical form");
		for (; !rc && n > 0; n--)
			d->ranks[at++] = (uint32_t) class;
		last = class;
	}
	if (!rc && at != d->world)
		rc = ptc_scan_fail(&r->s, PTC_EINVAL, "there are %llu ranks, but the configuration has %u",
				   (unsigned long long)at, d->world);
	if (rc == 0)
		rc = ptc_scan_text(&r->s, "]");
	return rc ? rc : ptc_scan_close(&r->s, PTC_VERSION_LATER(r->version, PTC_LAYOUT_DOC_VERSION));
}

int ptc_layout_doc_decode(const void *data, size_t len, struct ptc_declared *ret_declared, struct ptc_error *err)
{
	struct ptc_declared d = { 0 };
	struct reader r = { .s = { "layout", data, data, (const char *)data + len, err }, .d = &d };
	int rc = 0;

	if (len > PTC_LAYOUT_DOC_MAX_BYTES)
		return ptc_error_set(err, PTC_ELIMIT, "layout: its document has %zu bytes, at most %u are read", len,
				     PTC_LAYOUT_DOC_MAX_BYTES);
	rc = ptc_scan_version(&r.s, PTC_LAYOUT_DOC_OLDEST, PTC_LAYOUT_DOC_VERSION, &r.version);
	if (rc == 0)
		rc = read_config(&r);
	if (rc == 0)
		rc = read_tensors(&r);
	if (rc == 0)
		rc = check_names(&d.spec, err);
	if (rc == 0)
		rc = read_classes(&r);
	if (rc == 0)
		rc = read_ranks(&r);
	if (rc == 0)
		rc = ptc_declared_check(&d, err);
	ptc_free(r.parts);
	ptc_free(r.v);
	if (rc) {
		ptc_declared_done(&d);
		return rc;
	}
	*ret_declared = d;
	return 0;
}
