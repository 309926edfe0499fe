/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the keys are checked, then each row is looked up and read by its kind. The first wrong value ends it. */
#include "formats/doc_rows.h"

#include "base/number/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 32 /* of one table */

static int read_real(const struct ptc_doc *doc, const struct ptc_doc_node *node, const struct ptc_doc_row *row,
		     double *to, struct ptc_error *err)
{
	const char *text = node->kind == PTC_DOC_TEXT ? node->text : "";
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end || strspn(text, "0123456789+-.eE") != strlen(text) || !isfinite(v))
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be a number", row->key);
	if (v < row->min || v > row->max)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be in %g..%g, not %s", row->key, row->min,
				     row->max, text);
	*to = v;
	return 0;
}

static int64_t whole(double limit)
{
	return limit < 0x1p63 ? (int64_t)limit : INT64_MAX;
}

static void store(const struct ptc_doc_row *row, void *to, uint64_t value)
{
	if (row->to || row->size == sizeof(uint32_t))
		*(uint32_t *)to = (uint32_t)value;
	else if (row->size == sizeof(bool))
		*(bool *)to = value;
	else
		*(uint64_t *)to = value;
}

static uint64_t load(const struct ptc_doc_row *row, const void *from)
{
	if (row->size == sizeof(uint32_t))
		return *(const uint32_t *)from;
	return row->size == sizeof(bool) ? *(const bool *)from : *(const uint64_t *)from;
}

/* A duration or a size. */
static int read_quantity(const struct ptc_doc *doc, const struct ptc_doc_node *node, const struct ptc_doc_row *row,
			 uint64_t *ret_value, struct ptc_error *err)
{
	const bool bytes = row->kind == PTC_DOC_BYTES;
	const uint64_t min = (uint64_t)whole(row->min), max = (uint64_t)whole(row->max);
	char low[PTC_UNITS_MAX], high[PTC_UNITS_MAX];
	struct ptc_error why = PTC_ERROR_INIT;
	const char *text = NULL;
	int rc = ptc_doc_text(doc, node, row->key, &text, err);

	if (rc)
		return rc;
	rc = bytes ? ptc_units_parse_bytes(text, ret_value, &why) : ptc_units_parse_ms(text, ret_value, &why);
	if (rc)
		return ptc_doc_error(doc, node, err, rc, "%s: %s", row->key, why.text);
	if (*ret_value >= min && *ret_value <= max)
		return 0;
	return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be in %s..%s, not %.40s", row->key,
			     bytes ? ptc_units_print_bytes(min, low) : ptc_units_print_ms(min, low),
			     bytes ? ptc_units_print_bytes(max, high) : ptc_units_print_ms(max, high), text);
}

static int read_row(const struct ptc_doc *doc, const struct ptc_doc_node *node, const struct ptc_doc_row *row, void *to,
		    struct ptc_error *err)
{
	const char *text = node->kind == PTC_DOC_TEXT ? node->text : "";
	uint64_t value = 0;
	int64_t count = 0;
	size_t word = 0;
	int rc;

	switch (row->kind) {
	case PTC_DOC_COUNT:
		rc = ptc_doc_int(doc, node, row->key, whole(row->min), whole(row->max), &count, err);
		value = (uint64_t)count;
		break;
	case PTC_DOC_REAL:
		return read_real(doc, node, row, to, err);
	case PTC_DOC_FLAG:
		if (strcmp(text, "true") && strcmp(text, "false"))
			return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be true or false", row->key);
		*(bool *)to = text[0] == 't';
		return 0;
	case PTC_DOC_WORD:
		rc = ptc_doc_word(doc, node, row->key, row->words, (size_t)row->max + 1, &word, err);
		value = word;
		break;
	case PTC_DOC_SUBMAP:
		return ptc_doc_read_to(doc, node, row->key, row->of, to, err);
	case PTC_DOC_OTHER:
		return 0;
	default:
		rc = read_quantity(doc, node, row, &value, err);
	}
	if (!rc)
		store(row, to, value);
	return rc;
}

static int read_rows(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *object,
		     const struct ptc_doc_row *rows, size_t n, char *base, struct ptc_error *err)
{
	const char *known[ROWS_MAX];
	int rc;

	if (ptc_fails(n <= ROWS_MAX))
		return PTC_EINTERNAL;
	for (size_t i = 0; i < n; i++)
		known[i] = rows[i].key;
	rc = object ? ptc_doc_check_map(doc, map, object, known, n, err) : 0;
	for (size_t i = 0; !rc && i < n; i++) {
		const struct ptc_doc_node *node = ptc_doc_get(map, rows[i].key);
		void *to = base ? base + rows[i].offset : rows[i].to;

		if (!node || !to)
			continue;
		rc = read_row(doc, node, &rows[i], to, err);
		if (base && rows[i].given)
			*(bool *)(base + rows[i].given) = true;
	}
	return rc;
}

int ptc_doc_read(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *object,
		 const struct ptc_doc_row *rows, size_t n, struct ptc_error *err)
{
	return read_rows(doc, map, object, rows, n, NULL, err);
}

int ptc_doc_read_to(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *object,
		    const struct ptc_doc_table *table, void *to, struct ptc_error *err)
{
	return read_rows(doc, map, object, table->v, table->n, to, err);
}

void ptc_doc_fallbacks(const struct ptc_doc_table *table, void *to)
{
	for (const struct ptc_doc_row *row = table->v; row < table->v + table->n; row++) {
		char *at = (char *)to + row->offset;

		if (row->kind == PTC_DOC_SUBMAP)
			ptc_doc_fallbacks(row->of, at);
		else if (row->kind != PTC_DOC_OTHER)
			store(row, at, row->fallback);
	}
}

/* ---- writing ---- */

void ptc_doc_write_key(struct ptc_buf *b, const char *key)
{
	ptc_buf_printf(b, "%s\"%s\":", b->len && b->data[b->len - 1] != '{' ? "," : "", key);
}

static bool differs(const struct ptc_doc_row *row, const char *from)
{
	uint64_t value;

	if (row->kind == PTC_DOC_OTHER)
		return false;
	if (row->kind == PTC_DOC_SUBMAP)
		return ptc_doc_differs(row->of, from + row->offset);
	value = load(row, from + row->offset);
	return (row->given && *(const bool *)(from + row->given)) ||
	       (value != row->fallback && (value || row->min <= 0)); /* 0 below the minimum: nobody has set it */
}

bool ptc_doc_differs(const struct ptc_doc_table *table, const void *from)
{
	for (const struct ptc_doc_row *row = table->v; row < table->v + table->n; row++)
		if (differs(row, from))
			return true;
	return false;
}

static void write_value(struct ptc_buf *b, const struct ptc_doc_row *row, const char *at)
{
	char text[PTC_UNITS_MAX];

	switch (row->kind) {
	case PTC_DOC_SUBMAP:
		ptc_buf_puts(b, "{");
		ptc_doc_write(b, row->of, at);
		ptc_buf_puts(b, "}");
		return;
	case PTC_DOC_WORD:
		ptc_buf_printf(b, "\"%s\"", row->words[load(row, at)]);
		return;
	case PTC_DOC_MS:
		ptc_buf_printf(b, "\"%s\"", ptc_units_print_ms(load(row, at), text));
		return;
	case PTC_DOC_ONLY_MS:
		ptc_buf_printf(b, "\"%" PRIu64 "ms\"", load(row, at));
		return;
	case PTC_DOC_BYTES:
		ptc_buf_printf(b, "\"%s\"", ptc_units_print_bytes(load(row, at), text));
		return;
	default:
		ptc_require(row->kind == PTC_DOC_COUNT);
		ptc_buf_printf(b, "%" PRIu64, load(row, at));
	}
}

void ptc_doc_write(struct ptc_buf *b, const struct ptc_doc_table *table, const void *from)
{
	for (const struct ptc_doc_row *row = table->v; row < table->v + table->n; row++) {
		if (row->put)
			row->put(b, from);
		if (!row->always && !differs(row, from))
			continue;
		ptc_doc_write_key(b, row->key);
		write_value(b, row, (const char *)from + row->offset);
	}
}
