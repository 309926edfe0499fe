/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: copies_doc.h. The JSON has short rows, because a state of thousands of ranks has
 * thousands of parts. Sets of items are in hexadecimal. */
#include "daemon/cluster/copies/copies_doc.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/number/versions.h"
#include "formats/members.h"

#include <stdio.h>
#include <string.h>

#define WHAT "document of copies"

static const struct ptc_member keeper_rows[] = {
	PTC_ROW(struct ptc_copies_keeper, NULL, node, TEXT, .min = 1),
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
static const struct ptc_member set_rows[] = {
	PTC_ROW(struct ptc_copies_set, NULL, v, BYTES, .min = 1, PTC_COUNT(struct ptc_copies_set, n)),
};
static const struct ptc_members set_members = PTC_MEMBERS(set_rows, struct ptc_copies_set);
#define LIST(key, member, count, max_, members)                                                                        \
	PTC_ROW(struct ptc_copies_doc, key, member, LIST, .max = max_, PTC_COUNT(struct ptc_copies_doc, count),        \
		.of = &(members))
static const struct ptc_member doc_rows[] = {
	PTC_ROW(struct ptc_copies_doc, "generation", generation, U64, .optional = true),
	PTC_ROW(struct ptc_copies_doc, "layout", generation_hash, TEXT),
	PTC_ROW(struct ptc_copies_doc, "content", content, TEXT),
	LIST("keepers", keepers, nkeepers, 2 * PTC_MAX_NODES, keeper_members),
	LIST("parts", parts, nparts, PTC_MAX_COPIES, part_members),
	LIST("items", items, nitems, PTC_MAX_COPIES, set_members),
	LIST("old", old, nold, 2 * PTC_MAX_NODES, keeper_members),
};
static const struct ptc_members doc_members = PTC_MEMBERS(doc_rows, struct ptc_copies_doc);

void ptc_copies_doc_done(struct ptc_copies_doc *d)
{
	ptc_members_done(&doc_members, d);
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
		const struct ptc_copies_set *set = &d->items[c.nitems];

		c.items[c.nitems] = (struct ptc_copies_set){ copy_of(set->v, set->n, 1), set->n };
		if (!c.items[c.nitems].v)
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
	struct ptc_copies_set *v;
	size_t at = 0;

	while (at < d->nitems && memcmp(d->items[at].v, items, bytes) != 0)
		at++;
	*ret = (uint32_t)at;
	if (at < d->nitems)
		return 0;
	v = ptc_reallocarray(d->items, d->nitems + 1, sizeof *v);
	if (!v)
		return PTC_ENOMEM;
	d->items = v;
	v[at] = (struct ptc_copies_set){ copy_of(items, bytes, 1), bytes };
	if (!v[at].v)
		return PTC_ENOMEM;
	d->nitems++;
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

/* Numbers of tables have no PTC_COPIES_TABLE in the JSON. */
static void mark_tables(struct ptc_copies_doc *d, uint64_t mark)
{
	for (size_t i = 0; i < d->nkeepers; i++)
		d->keepers[i].table = (d->keepers[i].table & ~PTC_COPIES_TABLE) | mark;
	for (size_t i = 0; i < d->nold; i++)
		d->old[i].table = (d->old[i].table & ~PTC_COPIES_TABLE) | mark;
}

char *ptc_copies_doc_encode(const struct ptc_copies_doc *d)
{
	struct ptc_copies_doc c;
	char *text;

	if (ptc_copies_doc_copy(d, &c) != 0)
		return NULL;
	mark_tables(&c, 0);
	text = ptc_members_to_text((int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), &doc_members, &c);
	ptc_copies_doc_done(&c);
	return text;
}

/* What a table cannot say: sets of items have one length, and parts name keepers and sets. */
static int check(const struct ptc_copies_doc *d, struct ptc_error *err)
{
	for (size_t i = 1; i < d->nitems; i++)
		if (d->items[i].n != d->items[0].n)
			return ptc_error_set(err, PTC_EINVAL, WHAT ": \"items\" has sets of several lengths");
	for (size_t i = 0; i < d->nparts; i++)
		if (d->parts[i].keeper >= d->nkeepers || d->parts[i].items >= d->nitems)
			return ptc_error_set(err, PTC_EINVAL,
					     WHAT ": \"parts\" names a keeper or set that is not there");
	return 0;
}

int ptc_copies_doc_decode(const char *json, size_t len, struct ptc_copies_doc *ret, struct ptc_error *err)
{
	struct ptc_copies_doc d = { 0 };
	int rc = ptc_members_from_text(WHAT, PTC_DOC_OLDEST, PTC_DOC_VERSION, &doc_members, json, len, &d, err);

	if (rc == 0)
		rc = check(&d, err);
	if (rc) {
		ptc_copies_doc_done(&d);
		return rc;
	}
	mark_tables(&d, PTC_COPIES_TABLE);
	*ret = d;
	return 0;
}
