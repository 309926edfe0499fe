/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a map of a document by a table of rows, and writes it as canonical JSON by the same table. A row has a key, the
 * kind of its value, where the value goes, and its limits. The table is also the list of permitted keys.
 *
 * A row either points to a variable of the caller, who then fills the rows anew for each map; such rows are only read.
 * Or it names a member of a struct (PTC_DOC_FIELD); such tables are constant. Pure. Failure modes: PTC_EINVAL with file
 * and line. */
#pragma once

#include "base/buf.h"
#include "base/check.h"
#include "formats/doc.h"

enum ptc_doc_row_kind {
	PTC_DOC_COUNT,   /* uint32_t; a member may also be a uint64_t */
	PTC_DOC_REAL,    /* double: a point and an exponent are permitted, quotes too */
	PTC_DOC_FLAG,    /* bool: true or false */
	PTC_DOC_WORD,    /* an enum, or a bool: `words` has max + 1 entries */
	PTC_DOC_OTHER,   /* the caller reads the value itself; `put` writes it */
	PTC_DOC_MS,      /* uint64_t, written as the shortest duration, such as "10s" */
	PTC_DOC_ONLY_MS, /* the same, but written in milliseconds, such as "10000ms" */
	PTC_DOC_BYTES,   /* uint64_t, a size such as "8GiB" */
	PTC_DOC_SUBMAP,  /* a struct with a table of its own, `of` */
};
#define PTC_DOC_NO_MAX 0x1p63 /* `max` of a row: INT64_MAX, which no double equals */
struct ptc_doc_table {
	const struct ptc_doc_row *v;
	size_t n;
};
struct ptc_doc_row {
	const char *key;
	enum ptc_doc_row_kind kind;
	void *to; /* where the value goes; unchanged if the key is absent. NULL: to the member */
	double min, max;
	const char *const *words;
	/* of rows for members */
	uint32_t offset, size;
	uint32_t given; /* place of a bool: the key is given. The value is then written whatever it is. 0: there is none
			 */
	bool always;    /* the value is written even if it equals the fallback */
	uint64_t fallback; /* the value of an absent key */
	const struct ptc_doc_table *of;
	/* Writes key and value, or nothing; `from` is the struct of the table. */
	void (*put)(struct ptc_buf *b, const void *from);
};
/* ...: initializers of the row's other members, such as .max = 3. */
#define PTC_DOC_FIELD(type, key_, member, kind_, ...)                                                                  \
	{                                                                                                              \
		.key = key_, .kind = PTC_DOC_##kind_, .offset = offsetof(type, member),                                \
		.size = sizeof(((type *)0)->member), __VA_ARGS__                                                       \
	}
#define PTC_DOC_TABLE(rows)                                                                                            \
	{                                                                                                              \
		rows, PTC_ARRAY_LEN(rows)                                                                              \
	}

/* `object` names the map in errors. NULL: other keys are permitted, too. */
int ptc_doc_read(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *object,
		 const struct ptc_doc_row *rows, size_t n, struct ptc_error *err);
/* Reads into the members of a struct, where absent keys leave what is there. */
int ptc_doc_read_to(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *object,
		    const struct ptc_doc_table *table, void *to, struct ptc_error *err);
/* Sets each member to the fallback of its row. */
void ptc_doc_fallbacks(const struct ptc_doc_table *table, void *to);
/* Whether a member is given, or does not equal its fallback. A 0 where the least value is 1 counts as the fallback. */
bool ptc_doc_differs(const struct ptc_doc_table *table, const void *from);
/* Writes the members as KEY:VALUE with commas, in the order of the table; the caller writes the braces. Members that
 * equal their fallbacks are left out, and so are maps of nothing else. */
void ptc_doc_write(struct ptc_buf *b, const struct ptc_doc_table *table, const void *from);
/* Writes the key of the next value in a map, after a comma if it is not the first one. The key needs no escapes. */
void ptc_doc_write_key(struct ptc_buf *b, const char *key);
