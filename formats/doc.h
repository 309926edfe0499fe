/* SPDX-License-Identifier: Apache-2.0 */
/* A tree that both YAML and JSON are parsed into. So one decoder, with one set of rules, reads job.yaml and the
 * canonical JSON. Depth, nodes and keys are bounded. The parser refuses duplicate keys, and YAML's anchors, aliases,
 * tags and several documents in one text.
 *
 * Threads: one while a tree is made; a finished tree is immutable. Failure modes: PTC_EINVAL with "what:line: text",
 * PTC_ELIMIT, PTC_ENOMEM. Strings and nodes belong to the ptc_doc. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_DOC_MAX_DEPTH 16 /* a job needs 6 */
/* for PTC_MAX_TENSORS tensors with name, dtype and a shape of 8 dims, and some more */
#define PTC_DOC_MAX_NODES (24u << 20)
#define PTC_DOC_MAX_KEYS  4096 /* keys of one map */

enum ptc_doc_kind { PTC_DOC_TEXT, PTC_DOC_LIST, PTC_DOC_MAP };
struct ptc_doc_node {
	uint8_t kind; /* enum ptc_doc_kind */
	bool plain;   /* TEXT: may be a number (unquoted YAML, JSON number) */
	bool string;  /* TEXT: may be a string (any YAML scalar, JSON string) */
	uint16_t column, key_column;
	uint32_t line, key_line; /* line 0: not known */
	const char *key;         /* set for values of a map; otherwise NULL */
	const char *text;        /* TEXT */
	struct ptc_doc_node *first, *next;
	size_t n; /* number of children */
	/* private */
	struct ptc_doc_node *last;
};
struct ptc_doc {
	char *what; /* the document's name in errors, such as a file name */
	struct ptc_doc_node *root;
	/* private */
	struct ptc_doc_block *blocks;
	size_t nodes;
};

int ptc_doc_from_yaml(const char *what, const void *data, size_t len, struct ptc_doc *ret_doc, struct ptc_error *err);
int ptc_doc_from_json(const char *what, const void *data, size_t len, struct ptc_doc *ret_doc, struct ptc_error *err);
void ptc_doc_done(struct ptc_doc *doc);

/* Fills err with "what:line: text", where the line is the node's. Returns code. */
int ptc_doc_error(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_error *err, int code,
		  const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#ifdef __clang_analyzer__
#define ptc_doc_error(...) PTC_NEVER_0(ptc_doc_error(__VA_ARGS__))
#endif
/* The value of a key; NULL: the map has no such key. */
const struct ptc_doc_node *ptc_doc_get(const struct ptc_doc_node *map, const char *key);
/* Checks that the node is a map with known keys only. `object` names the map in errors, such as "a rule". */
int ptc_doc_check_map(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *object,
		      const char *const *known, size_t nknown, struct ptc_error *err);
/* Reads a string, which is borrowed from the doc. `label` names the value in errors. */
int ptc_doc_text(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *label, const char **ret_text,
		 struct ptc_error *err);
/* Reads a decimal integer from min to max, without sign or leading zeros. */
int ptc_doc_int(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *label, int64_t min, int64_t max,
		int64_t *ret_value, struct ptc_error *err);
/* Reads one of the known words; *ret_index is its index. */
int ptc_doc_word(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *label,
		 const char *const *known, size_t nknown, size_t *ret_index, struct ptc_error *err);
