/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: older_doc.h. */
#include "daemon/cluster/older/older_doc.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/versions.h"
#include "formats/members.h"

#include <stdio.h>
#include <string.h>

#define WHAT "document of older snapshots"

static const struct ptc_member older_rows[] = {
	PTC_ROW(struct ptc_older, "generation", generation, U64, .min = 1),
	PTC_ROW(struct ptc_older, "snapshot", snapshot, U64, .min = 1),
	PTC_ROW(struct ptc_older, "step", step, U64),
	PTC_ROW(struct ptc_older, "nodes", nodes, TEXT),
	PTC_ROW(struct ptc_older, "manifest", manifest_hash, TEXT),
	PTC_ROW(struct ptc_older, "of_generation", generation_hash, TEXT),
	PTC_ROW(struct ptc_older, "layout", layout_hash, TEXT, PTC_IF_TEXT(struct ptc_older, layout_hash)),
	PTC_ROW(struct ptc_older, "state", state_hash, TEXT, PTC_IF_TEXT(struct ptc_older, state_hash)),
	PTC_ROW(struct ptc_older, "copies", copies_hash, TEXT, PTC_IF_TEXT(struct ptc_older, copies_hash)),
	PTC_ROW(struct ptc_older, "left", left, BOOL, PTC_IF(struct ptc_older, left)),
};
static const struct ptc_members older_members = PTC_MEMBERS(older_rows, struct ptc_older);
static const struct ptc_member doc_rows[] = {
	PTC_ROW(struct ptc_older_doc, "snapshots", v, ARRAY, PTC_COUNT(struct ptc_older_doc, n), .of = &older_members),
	PTC_ROW(struct ptc_older_doc, "bridge", bridge, MAP, PTC_IF(struct ptc_older_doc, bridge.snapshot),
		.of = &older_members),
};
static const struct ptc_members doc_members = PTC_MEMBERS(doc_rows, struct ptc_older_doc);

char *ptc_older_doc_encode(const struct ptc_older_doc *d)
{
	return ptc_members_to_text((int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), &doc_members, d);
}

int ptc_older_doc_decode(const char *json, size_t len, struct ptc_older_doc *ret, struct ptc_error *err)
{
	struct ptc_older_doc d = { .n = 0 };
	int rc = ptc_members_from_text(WHAT, PTC_DOC_OLDEST, PTC_DOC_VERSION, &doc_members, json, len, &d, err);

	for (size_t i = 1; rc == 0 && i < d.n; i++)
		if (d.v[i].snapshot <= d.v[i - 1].snapshot)
			rc = ptc_error_set(err, PTC_EINVAL, WHAT ": its snapshots are not in order");
	if (rc == 0)
		*ret = d;
	return rc;
}

bool ptc_older_doc_empty(const struct ptc_older_doc *d)
{
	return !d->n && !d->bridge.snapshot;
}

const struct ptc_older *ptc_older_find(const struct ptc_older_doc *d, uint64_t snapshot)
{
	if (snapshot && d->bridge.snapshot == snapshot)
		return &d->bridge;
	for (size_t i = 0; i < d->n; i++)
		if (d->v[i].snapshot == snapshot)
			return &d->v[i];
	return NULL;
}

static bool is_table(const struct ptc_older *o, uint64_t generation, uint64_t snapshot)
{
	return o->generation == generation && o->snapshot == snapshot;
}

const struct ptc_older *ptc_older_table(const struct ptc_older_doc *d, uint64_t generation, uint64_t snapshot)
{
	for (size_t i = 0; i < d->n; i++)
		if (is_table(&d->v[i], generation, snapshot))
			return &d->v[i];
	return d->bridge.snapshot && is_table(&d->bridge, generation, snapshot) ? &d->bridge : NULL;
}

const struct ptc_older *ptc_older_before(const struct ptc_older_doc *d, uint64_t below)
{
	const struct ptc_older *o = d->bridge.snapshot && d->bridge.snapshot < below ? &d->bridge : NULL;

	for (size_t i = 0; i < d->n; i++)
		if (!d->v[i].left && d->v[i].snapshot < below && (!o || d->v[i].snapshot > o->snapshot))
			o = &d->v[i];
	return o;
}

void ptc_older_go_back(struct ptc_older_doc *d, uint64_t snapshot)
{
	for (size_t i = 0; i < d->n; i++) {
		if (d->v[i].snapshot > snapshot)
			d->v[i].left = true;
		else if (d->v[i].snapshot == snapshot)
			d->v[i].left = false;
	}
	if (d->bridge.snapshot > snapshot)
		d->bridge = (struct ptc_older){ 0 };
}

bool ptc_older_has(const struct ptc_older *o, const char *node)
{
	const size_t len = strlen(node);

	for (const char *at = o->nodes; *at; at += strspn(at, " ")) {
		size_t n = strcspn(at, " ");

		if (n == len && memcmp(at, node, n) == 0)
			return true;
		at += n;
	}
	return false;
}

int ptc_older_node_add(struct ptc_older *o, const char *node)
{
	const size_t len = strlen(o->nodes);

	if (len + strlen(node) + 2 > sizeof o->nodes)
		return PTC_ELIMIT;
	snprintf(o->nodes + len, sizeof o->nodes - len, "%s%s", len ? " " : "", node);
	return 0;
}

void ptc_older_drop(struct ptc_older_doc *d, size_t n)
{
	n = PTC_MIN(n, d->n);
	d->n -= n;
	memmove(d->v, d->v + n, d->n * sizeof *d->v);
}

void ptc_older_drop_one(struct ptc_older_doc *d, size_t at)
{
	ptc_require(at < d->n);
	d->n--;
	memmove(d->v + at, d->v + at + 1, (d->n - at) * sizeof *d->v);
}

size_t ptc_older_oldest_on(const struct ptc_older_doc *d, const char *node, uint64_t source)
{
	size_t i = 0;

	while (i < d->n && (d->v[i].snapshot == source || !ptc_older_has(&d->v[i], node)))
		i++;
	return i;
}

void ptc_older_add(struct ptc_older_doc *d, const struct ptc_older *o)
{
	ptc_require(!d->n || o->snapshot > d->v[d->n - 1].snapshot);
	if (d->n == PTC_OLDER_MAX)
		ptc_older_drop(d, 1);
	d->v[d->n++] = *o;
}

void ptc_older_prune(struct ptc_older_doc *d, uint32_t last, uint64_t every, size_t most)
{
	const size_t old = d->n - PTC_MIN(d->n, last ? (size_t)last - 1 : 0);
	size_t n = 0;

	for (size_t i = 0; i < d->n; i++)
		if (i >= old || (every && (!n || d->v[i].step / every != d->v[n - 1].step / every)))
			d->v[n++] = d->v[i];
	d->n = n;
	if (d->n > most)
		ptc_older_drop(d, d->n - most);
}
