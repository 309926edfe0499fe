/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the keys are checked, then each row is looked up and read by its kind. The first wrong value ends it. */
#include "formats/doc_rows.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 32 /* of one table */

static int read_real(const struct ptc_doc *doc, const struct ptc_doc_node *node, const struct ptc_doc_row *row,
		     struct ptc_error *err)
{
	const char *text = node->kind == PTC_DOC_TEXT ? node->text : "";
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end || strspn(text, "0123456789+-.eE") != strlen(text) || !isfinite(v))
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be a number", row->key);
	if (v < row->min || v > row->max)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be in %g..%g, not %s", row->key, row->min,
				     row->max, text);
	*(double *)row->to = v;
	return 0;
}

static int read_row(const struct ptc_doc *doc, const struct ptc_doc_node *node, const struct ptc_doc_row *row,
		    struct ptc_error *err)
{
	const char *text = node->kind == PTC_DOC_TEXT ? node->text : "";
	int64_t count = 0;
	size_t word = 0;
	int rc = 0;

	switch (row->kind) {
	case PTC_DOC_COUNT:
		rc = ptc_doc_int(doc, node, row->key, (int64_t)row->min, (int64_t)row->max, &count, err);
		if (!rc)
			*(uint32_t *)row->to = (uint32_t)count;
		return rc;
	case PTC_DOC_REAL:
		return read_real(doc, node, row, err);
	case PTC_DOC_FLAG:
		if (strcmp(text, "true") && strcmp(text, "false"))
			return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be true or false", row->key);
		*(bool *)row->to = text[0] == 't';
		return 0;
	case PTC_DOC_WORD:
		rc = ptc_doc_word(doc, node, row->key, row->words, (size_t)row->max + 1, &word, err);
		if (!rc)
			*(unsigned *)row->to = (unsigned)word;
		return rc;
	default:
		return 0;
	}
}

int ptc_doc_read(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *object,
		 const struct ptc_doc_row *rows, size_t n, struct ptc_error *err)
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

		rc = node ? read_row(doc, node, &rows[i], err) : 0;
	}
	return rc;
}
