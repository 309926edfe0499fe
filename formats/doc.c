/* SPDX-License-Identifier: Apache-2.0 */
/* YAML and JSON as one bounded tree. Happy path: nodes and strings in arena
 * blocks, children linked in document order. Failure: PTC_EINVAL or
 * PTC_ELIMIT with file and line (jansson keeps no lines: those errors name
 * the value instead); nothing is left allocated. */
#include "formats/doc.h"

#include "base/alloc.h"
#include "base/check.h"
#include "formats/json.h"
#include "formats/names.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#define BLOCK_BYTES (64u << 10)

struct ptc_doc_block {
	struct ptc_doc_block *next;
	size_t used, size;
	_Alignas(16) char data[];
};

static void *take(struct ptc_doc *doc, size_t bytes)
{
	struct ptc_doc_block *b = doc->blocks;

	bytes = (bytes + 15) & ~(size_t)15;
	if (!b || b->size - b->used < bytes) {
		size_t size = PTC_MAX(bytes, BLOCK_BYTES);

		b = ptc_malloc(sizeof *b + size);
		if (!b)
			return NULL;
		*b = (struct ptc_doc_block){ .next = doc->blocks, .size = size };
		doc->blocks = b;
	}
	b->used += bytes;
	return b->data + b->used - bytes;
}

static const char *take_text(struct ptc_doc *doc, const char *text, size_t len)
{
	char *copy = take(doc, len + 1);

	if (copy) {
		memcpy(copy, text, len);
		copy[len] = '\0';
	}
	return copy;
}

void ptc_doc_done(struct ptc_doc *doc)
{
	while (doc->blocks) {
		struct ptc_doc_block *next = doc->blocks->next;

		ptc_free(doc->blocks);
		doc->blocks = next;
	}
	ptc_free(doc->what);
	memset(doc, 0, sizeof *doc);
}

int(ptc_doc_error)(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_error *err, int code,
		   const char *fmt, ...)
{
	char text[PTC_ERROR_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (node && node->line)
		return ptc_error_set(err, code, "%s:%" PRIu32 ": %s", doc->what, node->line, text);
	return ptc_error_set(err, code, "%s: %s", doc->what, text);
}

/* A new node under parent (NULL: the root), with a key if parent is a map. */
static int add_node(struct ptc_doc *doc, struct ptc_doc_node *parent, const char *key, enum ptc_doc_kind kind,
		    uint32_t line, struct ptc_doc_node **ret_node, struct ptc_error *err)
{
	struct ptc_doc_node where = { .line = line }, *node;

	if (doc->nodes >= PTC_DOC_MAX_NODES)
		return ptc_doc_error(doc, &where, err, PTC_ELIMIT, "more than %u values", PTC_DOC_MAX_NODES);
	if (parent && parent->kind == PTC_DOC_MAP && parent->n >= PTC_DOC_MAX_KEYS)
		return ptc_doc_error(doc, &where, err, PTC_ELIMIT, "more than %u keys in one map", PTC_DOC_MAX_KEYS);
	if (key && ptc_doc_get(parent, key))
		return ptc_doc_error(doc, &where, err, PTC_EINVAL, "key \"%.80s\" appears twice; remove one", key);
	node = take(doc, sizeof *node);
	if (!node)
		return ptc_nomem(err);
	*node = (struct ptc_doc_node){ .kind = kind, .line = line, .key = key };
	doc->nodes++;
	if (!parent)
		doc->root = node;
	else if (parent->last)
		parent->last->next = node;
	else
		parent->first = node;
	if (parent) {
		parent->last = node;
		parent->n++;
	}
	*ret_node = node;
	return 0;
}

/* YAML */

struct yaml_walk {
	struct ptc_doc *doc;
	struct ptc_doc_node *open[PTC_DOC_MAX_DEPTH];
	size_t depth;
	const char *key; /* of the value that comes next */
	yaml_mark_t key_mark;
	bool documents; /* one was seen */
	struct ptc_error *err;
};

static int walk_refuse(struct yaml_walk *w, const yaml_event_t *e, int code, const char *text)
{
	struct ptc_doc_node where = { .line = (uint32_t)e->start_mark.line + 1 };

	return ptc_doc_error(w->doc, &where, w->err, code, "%s", text);
}

static struct ptc_doc_node *walk_parent(struct yaml_walk *w)
{
	return w->depth ? w->open[w->depth - 1] : NULL;
}

static uint16_t column(const yaml_mark_t *mark)
{
	return (uint16_t)PTC_MIN(mark->column + 1, UINT16_MAX);
}

/* The value that e begins. */
static int walk_add(struct yaml_walk *w, const yaml_event_t *e, enum ptc_doc_kind kind, struct ptc_doc_node **ret_node)
{
	int rc = add_node(w->doc, walk_parent(w), w->key, kind, (uint32_t)e->start_mark.line + 1, ret_node, w->err);

	if (rc)
		return rc;
	(*ret_node)->column = column(&e->start_mark);
	if (w->key) {
		(*ret_node)->key_line = (uint32_t)w->key_mark.line + 1;
		(*ret_node)->key_column = column(&w->key_mark);
	}
	w->key = NULL;
	return 0;
}

/* True where the next scalar is a map's key. */
static bool wants_key(struct yaml_walk *w)
{
	struct ptc_doc_node *parent = walk_parent(w);

	return parent && parent->kind == PTC_DOC_MAP && !w->key;
}

static int walk_scalar(struct yaml_walk *w, const yaml_event_t *e)
{
	const char *text = (const char *)e->data.scalar.value;
	size_t len = e->data.scalar.length;
	struct ptc_doc_node *node = NULL;
	int rc;

	if (e->data.scalar.anchor || e->data.scalar.tag)
		return walk_refuse(w, e, PTC_EINVAL, "anchors and tags are not allowed");
	if (memchr(text, '\0', len))
		return walk_refuse(w, e, PTC_EINVAL, "a NUL character is not allowed");
	text = take_text(w->doc, text, len);
	if (!text)
		return ptc_nomem(w->err);
	if (wants_key(w)) {
		w->key = text;
		w->key_mark = e->start_mark;
		return 0;
	}
	rc = walk_add(w, e, PTC_DOC_TEXT, &node);
	if (rc)
		return rc;
	node->text = text;
	node->string = true;
	node->plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
	return 0;
}

static int walk_open(struct yaml_walk *w, const yaml_event_t *e, enum ptc_doc_kind kind, bool marked)
{
	struct ptc_doc_node *node = NULL;
	int rc;

	if (marked)
		return walk_refuse(w, e, PTC_EINVAL, "anchors and tags are not allowed");
	if (wants_key(w))
		return walk_refuse(w, e, PTC_EINVAL, "a key must be a plain word");
	if (w->depth == PTC_DOC_MAX_DEPTH)
		return walk_refuse(w, e, PTC_ELIMIT, "nested too deeply");
	rc = walk_add(w, e, kind, &node);
	if (!rc)
		w->open[w->depth++] = node;
	return rc;
}

static int walk_event(struct yaml_walk *w, const yaml_event_t *e)
{
	switch (e->type) {
	case YAML_SCALAR_EVENT:
		return walk_scalar(w, e);
	case YAML_MAPPING_START_EVENT:
		return walk_open(w, e, PTC_DOC_MAP, e->data.mapping_start.anchor || e->data.mapping_start.tag);
	case YAML_SEQUENCE_START_EVENT:
		return walk_open(w, e, PTC_DOC_LIST, e->data.sequence_start.anchor || e->data.sequence_start.tag);
	case YAML_MAPPING_END_EVENT:
	case YAML_SEQUENCE_END_EVENT:
		w->depth--;
		return 0;
	case YAML_ALIAS_EVENT:
		return walk_refuse(w, e, PTC_EINVAL, "aliases are not allowed (quote a pattern that begins with *)");
	case YAML_DOCUMENT_START_EVENT:
		if (w->documents)
			return walk_refuse(w, e, PTC_EINVAL, "more than one document");
		w->documents = true;
		return 0;
	default:
		return 0;
	}
}

static int walk(yaml_parser_t *parser, struct yaml_walk *w)
{
	yaml_event_t event;
	bool end = false;
	int rc = 0;

	while (!rc && !end) {
		if (!yaml_parser_parse(parser, &event)) {
			struct ptc_doc_node where = { .line = (uint32_t)parser->problem_mark.line + 1 };

			if (parser->error == YAML_MEMORY_ERROR)
				return ptc_nomem(w->err);
			return ptc_doc_error(w->doc, &where, w->err, PTC_EINVAL, "not YAML: column %zu: %s",
					     parser->problem_mark.column + 1,
					     parser->problem ? parser->problem : "syntax error");
		}
		rc = walk_event(w, &event);
		end = event.type == YAML_STREAM_END_EVENT;
		yaml_event_delete(&event);
	}
	if (!rc && !w->doc->root)
		rc = ptc_doc_error(w->doc, NULL, w->err, PTC_EINVAL, "empty document");
	return rc;
}

int ptc_doc_from_yaml(const char *what, const void *data, size_t len, struct ptc_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_doc doc = { .what = ptc_strdup(what) };
	struct yaml_walk w = { .doc = &doc, .err = err };
	yaml_parser_t parser;
	int rc;

	if (!doc.what || !yaml_parser_initialize(&parser)) {
		ptc_doc_done(&doc);
		return ptc_nomem(err);
	}
	yaml_parser_set_input_string(&parser, data, len);
	rc = walk(&parser, &w);
	yaml_parser_delete(&parser);
	if (rc) {
		ptc_doc_done(&doc);
		return rc;
	}
	*ret_doc = doc;
	return 0;
}

/* JSON */

static int add_json_text(struct ptc_doc *doc, struct ptc_doc_node *parent, const char *key, const json_t *json,
			 struct ptc_error *err)
{
	struct ptc_doc_node *node = NULL;
	char number[32];
	int rc;

	if (!json_is_string(json) && !json_is_integer(json))
		return ptc_doc_error(doc, NULL, err, PTC_EINVAL,
				     "%s%s%s: only strings, integers, lists and objects are allowed",
				     key ? "\"" : "a value", key ? key : "", key ? "\"" : "");
	rc = add_node(doc, parent, key, PTC_DOC_TEXT, 0, &node, err);
	if (rc)
		return rc;
	node->string = json_is_string(json);
	node->plain = !node->string;
	snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(json));
	node->text = node->string ? take_text(doc, json_string_value(json), json_string_length(json))
				  : take_text(doc, number, strlen(number));
	return node->text ? 0 : ptc_nomem(err);
}

/* Recursion is bounded by PTC_DOC_MAX_DEPTH. */
static int add_json(struct ptc_doc *doc, struct ptc_doc_node *parent, const char *key, json_t *json, int depth,
		    struct ptc_error *err)
{
	enum ptc_doc_kind kind = json_is_object(json) ? PTC_DOC_MAP : PTC_DOC_LIST;
	struct ptc_doc_node *node = NULL;
	const char *name;
	json_t *value;
	size_t i;
	int rc;

	if (!json_is_object(json) && !json_is_array(json))
		return add_json_text(doc, parent, key, json, err);
	if (depth == PTC_DOC_MAX_DEPTH)
		return ptc_doc_error(doc, NULL, err, PTC_ELIMIT, "nested too deeply");
	rc = add_node(doc, parent, key, kind, 0, &node, err);
	if (rc)
		return rc;
	json_array_foreach(json, i, value) {
		rc = add_json(doc, node, NULL, value, depth + 1, err);
		if (rc)
			return rc;
	}
	json_object_foreach(json, name, value) {
		const char *copy = take_text(doc, name, strlen(name));

		rc = copy ? add_json(doc, node, copy, value, depth + 1, err) : ptc_nomem(err);
		if (rc)
			return rc;
	}
	return 0;
}

int ptc_doc_from_json(const char *what, const void *data, size_t len, struct ptc_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_doc doc = { .what = ptc_strdup(what) };
	json_t *json = NULL;
	int rc;

	if (!doc.what)
		return ptc_nomem(err);
	rc = ptc_json_load(what, data, len, &json, err);
	if (!rc)
		rc = add_json(&doc, NULL, NULL, json, 0, err);
	json_decref(json);
	if (rc) {
		ptc_doc_done(&doc);
		return rc;
	}
	*ret_doc = doc;
	return 0;
}

/* Reading */

const struct ptc_doc_node *ptc_doc_get(const struct ptc_doc_node *map, const char *key)
{
	if (!map || map->kind != PTC_DOC_MAP)
		return NULL;
	for (const struct ptc_doc_node *n = map->first; n; n = n->next)
		if (!strcmp(n->key, key))
			return n;
	return NULL;
}

int ptc_doc_check_map(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *object,
		      const char *const *known, size_t nknown, struct ptc_error *err)
{
	if (node->kind != PTC_DOC_MAP)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s is not a map", object);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		const char *near;
		size_t i;

		for (i = 0; i < nknown && strcmp(n->key, known[i]); i++)
			;
		if (i < nknown)
			continue;
		near = ptc_name_nearest(n->key, known, nknown);
		if (near)
			return ptc_doc_error(doc, n, err, PTC_EINVAL,
					     "unknown key \"%.80s\" in %s; did you mean \"%s\"?", n->key, object, near);
		return ptc_doc_error(doc, n, err, PTC_EINVAL, "unknown key \"%.80s\" in %s", n->key, object);
	}
	return 0;
}

int ptc_doc_text(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *label, const char **ret_text,
		 struct ptc_error *err)
{
	if (node->kind != PTC_DOC_TEXT || !node->string || !node->text[0])
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be a word", label);
	*ret_text = node->text;
	return 0;
}

int ptc_doc_int(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *label, int64_t min, int64_t max,
		int64_t *ret_value, struct ptc_error *err)
{
	const char *p = node->kind == PTC_DOC_TEXT && node->plain ? node->text : "";
	int64_t value = 0;

	if (!*p || (p[0] == '0' && p[1]))
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be a whole number", label);
	for (; *p; p++) {
		if (*p < '0' || *p > '9')
			return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be a whole number, not \"%.40s\"",
					     label, node->text);
		if (ptc_ckd_mul(&value, value, 10) || ptc_ckd_add(&value, value, *p - '0'))
			return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s: %.40s is too large", label, node->text);
	}
	if (value < min || value > max)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be in %" PRId64 "..%" PRId64 ", not %" PRId64,
				     label, min, max, value);
	*ret_value = value;
	return 0;
}

int ptc_doc_word(const struct ptc_doc *doc, const struct ptc_doc_node *node, const char *label,
		 const char *const *known, size_t nknown, size_t *ret_index, struct ptc_error *err)
{
	const char *text = NULL, *near;
	int rc = ptc_doc_text(doc, node, label, &text, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < nknown; i++)
		if (!strcmp(text, known[i])) {
			*ret_index = i;
			return 0;
		}
	near = ptc_name_nearest(text, known, nknown);
	return ptc_doc_error(doc, node, err, PTC_EINVAL, "unknown %s \"%.40s\"%s%s%s", label, text,
			     near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}
