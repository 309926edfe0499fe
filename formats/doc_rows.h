/* SPDX-License-Identifier: Apache-2.0 */
/* A map of a document as a table of rows: each key, its kind, where its value goes and what it may be. The table is
 * also the list of keys that may stand there. Rows point to where the caller wants values, so they are made anew for
 * each map. Pure; failure modes: PTC_EINVAL with file and line. */
#pragma once

#include "formats/doc.h"

enum ptc_doc_row_kind {
	PTC_DOC_COUNT, /* uint32_t */
	PTC_DOC_REAL,  /* double: with a point or an exponent where wanted, quoted or not */
	PTC_DOC_FLAG,  /* bool: true or false */
	PTC_DOC_WORD,  /* an enum: max + 1 words */
	PTC_DOC_OTHER, /* the caller reads it */
};
struct ptc_doc_row {
	const char *key;
	enum ptc_doc_row_kind kind;
	void *to; /* stays as it is where the key is absent */
	double min, max;
	const char *const *words;
};
/* object names the map in errors; NULL: other keys may stand there, too. */
int ptc_doc_read(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *object,
		 const struct ptc_doc_row *rows, size_t n, struct ptc_error *err);
