/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a map of a document by a table of rows. A row has a key, the kind of its value, where the value goes, and its
 * limits. The table is also the list of permitted keys. Rows point to the caller's variables, so the caller fills them
 * anew for each map. Pure. Failure mode: PTC_EINVAL with file and line. */
#pragma once

#include "formats/doc.h"

enum ptc_doc_row_kind {
	PTC_DOC_COUNT, /* uint32_t */
	PTC_DOC_REAL,  /* double: a point and an exponent are permitted, quotes too */
	PTC_DOC_FLAG,  /* bool: true or false */
	PTC_DOC_WORD,  /* an enum: `words` has max + 1 entries */
	PTC_DOC_OTHER, /* the caller reads the value itself */
};
struct ptc_doc_row {
	const char *key;
	enum ptc_doc_row_kind kind;
	void *to; /* where the value goes; unchanged if the key is absent */
	double min, max;
	const char *const *words;
};
/* `object` names the map in errors. NULL: other keys are permitted, too. */
int ptc_doc_read(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *object,
		 const struct ptc_doc_row *rows, size_t n, struct ptc_error *err);
