/* SPDX-License-Identifier: Apache-2.0 */
/* A small tree that YAML and JSON both become, so that one decoder, and one
 * strictness, serves job.yaml and the canonical JSON. Depth, nodes and keys
 * are bounded; YAML anchors, aliases, tags and several documents are refused;
 * so are duplicate keys. Not thread-safe while built; immutable afterwards. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_DOC_MAX_DEPTH 16          /* a job needs 6 */
#define PTC_DOC_MAX_NODES (24u << 20) /* PTC_MAX_TENSORS with name, dtype and a shape of 8 dims, and some */
#define PTC_DOC_MAX_KEYS  4096        /* keys of one map */

enum ptc_doc_kind { PTC_DOC_TEXT, PTC_DOC_LIST, PTC_DOC_MAP };
struct ptc_doc_node {
	uint8_t kind; /* enum ptc_doc_kind */
	bool plain;   /* TEXT: may be a number (unquoted YAML, JSON number) */
	bool string;  /* TEXT: may be a string (any YAML scalar, JSON string) */
	uint16_t column, key_column;
	uint32_t line, key_line; /* 0: not known */
	const char *key;         /* set for a map's values */
	const char *text;        /* TEXT */
	struct ptc_doc_node *first, *next;
	size_t n; /* children */
	/* private */
	struct ptc_doc_node *last;
};
struct ptc_doc {
	char *what; /* file name, for errors */
	struct ptc_doc_node *root;
	/* private */
	struct ptc_doc_block *blocks;
	size_t nodes;
};

int ptc_doc_from_yaml(const char *what, const void *data, size_t len, struct ptc_doc *ret_doc, struct ptc_error *err);
int ptc_doc_from_json(const char *what, const void *data, size_t len, struct ptc_doc *ret_doc, struct ptc_error *err);
void ptc_doc_done(struct ptc_doc *doc);

/* "what:line: text". */
int ptc_doc_error(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_error *err, int code,
		  const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* NULL when the map has no such key. */
const struct ptc_doc_node *ptc_doc_get(const struct ptc_doc_node *map, const char *key);
/* node must be a map with known keys only; object names it in errors ("a rule"). */
int ptc_doc_check_map(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *object,
		      const char *const *known, size_t nknown, struct ptc_error *err);
/* label names the value in errors. The string is borrowed from the doc. */
int ptc_doc_text(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *label, const char **ret_text,
		 struct ptc_error *err);
/* A decimal integer without sign or leading zeros in min..max. */
int ptc_doc_int(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *label, int64_t min, int64_t max,
		int64_t *ret_value, struct ptc_error *err);
/* Index of the word in known. */
int ptc_doc_word(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *label,
		 const char *const *known, size_t nknown, size_t *ret_index, struct ptc_error *err);
