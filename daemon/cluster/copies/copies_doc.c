/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: copies_doc.h. The JSON has short rows, because a state of thousands of ranks has
 * thousands of parts. Sets of items are in hexadecimal. */
#include "daemon/cluster/copies/copies_doc.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/number/versions.h"
#include "formats/json.h"
#include "formats/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHAT "document of copies"

void ptc_copies_doc_done(struct ptc_copies_doc *d)
{
	for (size_t i = 0; i < d->nitems; i++)
		ptc_free(d->items[i]);
	ptc_free(d->items);
	ptc_free(d->keepers);
	ptc_free(d->parts);
	ptc_free(d->old);
	*d = (struct ptc_copies_doc){ 0 };
}

static void *copy_of(const void *v, size_t n, size_t size)
{
	void *c = ptc_calloc(n, size);

	if (c && n)
		memcpy(c, v, n * size);
	return c;
}

int ptc_copies_doc_copy(const struct ptc_copies_doc *d, struct ptc_copies_doc *ret)
{
	struct ptc_copies_doc c = *d;

	c.nitems = 0;
	c.keepers = copy_of(d->keepers, d->nkeepers, sizeof *c.keepers);
	c.parts = copy_of(d->parts, d->nparts, sizeof *c.parts);
	c.old = copy_of(d->old, d->nold, sizeof *c.old);
	c.items = ptc_calloc(d->nitems, sizeof *c.items);
	while (c.items && c.nitems < d->nitems) {
		c.items[c.nitems] = copy_of(d->items[c.nitems], d->items_bytes, 1);
		if (!c.items[c.nitems])
			break;
		c.nitems++;
	}
	if (!c.keepers || !c.parts || !c.old || !c.items || c.nitems < d->nitems) {
		ptc_copies_doc_done(&c);
		return PTC_ENOMEM;
	}
	*ret = c;
	return 0;
}

void ptc_copies_content(const uint64_t *digests, size_t n, char ret[PTC_COPIES_HASH])
{
	static const uint64_t none;

	ptc_content_hash(n ? digests : &none, n * sizeof *digests, ret);
}

const struct ptc_copies_keeper *ptc_copies_keeper(const struct ptc_copies_doc *d, const char *node)
{
	for (size_t i = 0; i < d->nkeepers; i++)
		if (strcmp(d->keepers[i].node, node) == 0)
			return &d->keepers[i];
	return NULL;
}

void ptc_copies_tables(const struct ptc_copies_doc *d, const char *node, ptc_copies_table_fn fn, void *arg)
{
	for (size_t i = 0; i < d->nkeepers; i++)
		if (strcmp(d->keepers[i].node, node) == 0)
			fn(arg, d->keepers[i].generation, d->keepers[i].table);
	for (size_t i = 0; i < d->nold; i++)
		if (strcmp(d->old[i].node, node) == 0)
			fn(arg, d->old[i].generation, d->old[i].table);
}

void ptc_copies_doc_drop(struct ptc_copies_doc *d, const char *node)
{
	const struct ptc_copies_keeper *h = ptc_copies_keeper(d, node);
	size_t at = h ? (size_t)(h - d->keepers) : 0, n = 0;

	if (!h)
		return;
	memmove(&d->keepers[at], &d->keepers[at + 1], (--d->nkeepers - at) * sizeof *d->keepers);
	for (size_t i = 0; i < d->nparts; i++) {
		struct ptc_copies_part p = d->parts[i];

		if (p.keeper == at)
			continue;
		p.keeper -= p.keeper > at;
		d->parts[n++] = p;
	}
	d->nparts = n;
}

int ptc_copies_doc_hold(struct ptc_copies_doc *d, const char *node, uint64_t table, uint32_t *ret_keeper)
{
	struct ptc_copies_keeper *v;
	size_t at = 0;

	while (at < d->nkeepers && strcmp(d->keepers[at].node, node) != 0)
		at++;
	if (at == d->nkeepers) {
		v = ptc_reallocarray(d->keepers, d->nkeepers + 1, sizeof *v);
		if (!v)
			return PTC_ENOMEM;
		d->keepers = v;
		d->nkeepers++;
		snprintf(v[at].node, sizeof v[at].node, "%s", node);
	}
	d->keepers[at].generation = d->generation;
	d->keepers[at].table = table;
	*ret_keeper = (uint32_t)at;
	return 0;
}

int ptc_copies_doc_add(struct ptc_copies_doc *d, uint32_t keeper, uint32_t rank, uint32_t items)
{
	struct ptc_copies_part *v;

	v = ptc_reallocarray(d->parts, d->nparts + 1, sizeof *v);
	if (!v)
		return PTC_ENOMEM;
	d->parts = v;
	v[d->nparts++] = (struct ptc_copies_part){ keeper, rank, items };
	return 0;
}

int ptc_copies_doc_items(struct ptc_copies_doc *d, const uint8_t *items, size_t bytes, uint32_t *ret)
{
	uint8_t **v;
	size_t at = 0;

	while (at < d->nitems && memcmp(d->items[at], items, bytes) != 0)
		at++;
	*ret = (uint32_t)at;
	if (at < d->nitems)
		return 0;
	v = ptc_reallocarray(d->items, d->nitems + 1, sizeof *v);
	if (!v)
		return PTC_ENOMEM;
	d->items = v;
	v[at] = copy_of(items, bytes, 1);
	if (!v[at])
		return PTC_ENOMEM;
	d->nitems++;
	d->items_bytes = bytes;
	return 0;
}

int ptc_copies_doc_restore(struct ptc_copies_doc *d, const struct ptc_copies_doc *from, const char *node)
{
	const struct ptc_copies_keeper *h = ptc_copies_keeper(from, node);
	uint32_t keeper;
	int rc = h ? ptc_copies_doc_hold(d, node, h->table, &keeper) : 0;

	for (size_t i = 0; h && !rc && i < from->nparts; i++)
		if (&from->keepers[from->parts[i].keeper] == h)
			rc = ptc_copies_doc_add(d, keeper, from->parts[i].rank, from->parts[i].items);
	return rc;
}

/* ---- JSON ---- */

static const struct ptc_member keeper_rows[] = {
	PTC_ROW(struct ptc_copies_keeper, NULL, node, TEXT),
	PTC_ROW(struct ptc_copies_keeper, NULL, generation, U64, .min = 1),
	PTC_ROW(struct ptc_copies_keeper, NULL, table, U64, .max = PTC_COPIES_TABLE - 1),
};
static const struct ptc_members keeper_members = PTC_TUPLE(keeper_rows, struct ptc_copies_keeper);
static const struct ptc_member part_rows[] = {
	PTC_ROW(struct ptc_copies_part, NULL, keeper, U32),
	PTC_ROW(struct ptc_copies_part, NULL, rank, U32, .max = PTC_MAX_RANKS - 1),
	PTC_ROW(struct ptc_copies_part, NULL, items, U32),
};
static const struct ptc_members part_members = PTC_TUPLE(part_rows, struct ptc_copies_part);
#define DOC(key, member, ...) PTC_ROW(struct ptc_copies_doc, key, member, __VA_ARGS__)
#define KEEPERS(key, member, count)                                                                                    \
	DOC(key, member, LIST, .max = 2 * PTC_MAX_NODES, PTC_COUNT(struct ptc_copies_doc, count), .of = &keeper_members)
static const struct ptc_member doc_rows[] = {
	DOC("generation", generation, U64, .optional = true),
	DOC("layout", generation_hash, TEXT),
	DOC("content", content, TEXT),
	KEEPERS("keepers", keepers, nkeepers),
	DOC("parts", parts, LIST, .max = PTC_MAX_COPIES, PTC_COUNT(struct ptc_copies_doc, nparts), .of = &part_members),
};
static const struct ptc_members doc_members = PTC_MEMBERS(doc_rows, struct ptc_copies_doc);
static const struct ptc_member old_rows[] = { KEEPERS("old", old, nold) }; /* behind "items" */
static const struct ptc_members old_members = PTC_MEMBERS(old_rows, struct ptc_copies_doc);

/* Numbers of tables have no PTC_COPIES_TABLE in the JSON. */
static void mark_tables(struct ptc_copies_doc *d, uint64_t mark)
{
	for (size_t i = 0; i < d->nkeepers; i++)
		d->keepers[i].table = (d->keepers[i].table & ~PTC_COPIES_TABLE) | mark;
	for (size_t i = 0; i < d->nold; i++)
		d->old[i].table = (d->old[i].table & ~PTC_COPIES_TABLE) | mark;
}

static json_t *put_items(const struct ptc_copies_doc *d)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < d->nitems; i++) {
		struct ptc_buf hex = PTC_BUF_INIT;

		for (size_t k = 0; k < d->items_bytes; k++)
			ptc_buf_printf(&hex, "%02x", d->items[i][k]);
		json_array_append_new(rows, json_string(hex.data ? hex.data : ""));
		ptc_buf_done(&hex);
	}
	return rows;
}

char *ptc_copies_doc_encode(const struct ptc_copies_doc *d)
{
	struct ptc_copies_doc c = { 0 };
	json_t *root = NULL;
	char *text = NULL;

	if (ptc_copies_doc_copy(d, &c) == 0) {
		mark_tables(&c, 0);
		root = ptc_members_to_doc((int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), &doc_members, &c);
		if (root && json_object_set_new(root, "items", put_items(&c)) == 0 &&
		    ptc_members_put(root, &old_members, &c) == 0)
			text = ptc_json_text(root);
	}
	ptc_copies_doc_done(&c);
	json_decref(root);
	return text;
}

static int malformed(const char *key, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_EINVAL, WHAT ": malformed \"%s\"", key);
}

static int get_set(const char *hex, struct ptc_copies_doc *d, struct ptc_error *err)
{
	size_t len = hex ? strlen(hex) : 0;
	uint8_t *v;

	if (!len || len % 2 || strspn(hex, "0123456789abcdef") != len || (d->nitems && len / 2 != d->items_bytes))
		return malformed("items", err);
	v = ptc_malloc(len / 2);
	if (!v)
		return ptc_nomem(err);
	d->items_bytes = len / 2;
	d->items[d->nitems++] = v;
	for (size_t i = 0; i < len / 2; i++)
		v[i] = (uint8_t)strtoul((char[]){ hex[2 * i], hex[2 * i + 1], 0 }, NULL, 16);
	return 0;
}

static int get_items(const json_t *root, struct ptc_copies_doc *d, struct ptc_error *err)
{
	const json_t *rows = json_object_get(root, "items");
	json_t *row;
	size_t i;
	int rc = 0;

	if (!json_is_array(rows) || json_array_size(rows) > PTC_MAX_COPIES)
		return malformed("items", err);
	d->items = ptc_calloc(json_array_size(rows), sizeof *d->items);
	if (!d->items)
		return ptc_nomem(err);
	json_array_foreach(rows, i, row) {
		rc = get_set(json_string_value(row), d, err);
		if (rc)
			break;
	}
	return rc;
}

/* What a table cannot say: a keeper has a name, and parts name keepers and sets of items. */
static int check(const struct ptc_copies_doc *d, struct ptc_error *err)
{
	for (size_t i = 0; i < d->nkeepers + d->nold; i++)
		if (!(i < d->nkeepers ? d->keepers[i] : d->old[i - d->nkeepers]).node[0])
			return malformed(i < d->nkeepers ? "keepers" : "old", err);
	for (size_t i = 0; i < d->nparts; i++)
		if (d->parts[i].keeper >= d->nkeepers || d->parts[i].items >= d->nitems)
			return malformed("parts", err);
	return 0;
}

int ptc_copies_doc_decode(const char *json, size_t len, struct ptc_copies_doc *ret, struct ptc_error *err)
{
	struct ptc_copies_doc d = { 0 };
	json_t *root = NULL;
	int rc = ptc_json_load(WHAT, json, len, &root, err);

	if (rc == 0)
		rc = ptc_json_version(WHAT, root, PTC_DOC_OLDEST, PTC_DOC_VERSION, err);
	if (rc == 0)
		rc = ptc_members_from_json(WHAT, &doc_members, root, &d, err);
	if (rc == 0)
		rc = ptc_members_from_json(WHAT, &old_members, root, &d, err);
	if (rc == 0)
		rc = get_items(root, &d, err);
	if (rc == 0)
		rc = check(&d, err);
	json_decref(root);
	if (rc) {
		ptc_copies_doc_done(&d);
		return rc;
	}
	mark_tables(&d, PTC_COPIES_TABLE);
	*ret = d;
	return 0;
}
