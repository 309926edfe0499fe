/* SPDX-License-Identifier: Apache-2.0 */
/* Merges every node's digests into one per item, and says where replicas differ. Happy path: each node's digests come
 * by position among its boxes. A window of items after the other, the boxes of all nodes follow from the geometry.
 * Equal boxes of several nodes must agree; of each item, boxes that are pairwise disjoint and add up to the whole are
 * XORed. The next window has as many items as fit by what this one had for each; one that turns out to have more boxes
 * than the bound is halved. So the memory does not grow with the number of items, but for 16 bytes for each digest.
 *
 * Failure modes: replicas that differ or an item that is not what was expected (PTC_EDIGEST naming tensor and nodes), a
 * node or box that did not report (PTC_ESTATE), positions out of range or given twice (PTC_EPEER), memory. */
#include "daemon/agent/calls/agent_limits.h"
#include "daemon/agent/geometry/digest_merge.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_FIRST 256 /* items of the first window, from which the others' size follows */

struct said {
	uint64_t digest;
	uint32_t box;
};

struct node_digests {
	struct said *v; /* ascending by box, each once */
	size_t n;
	bool left_out;
	/* while windows are gone through */
	size_t at;     /* the first of v that no window had */
	uint32_t seen; /* boxes that windows had */
};

struct ptc_digests {
	const struct ptc_geometry *g;
	struct node_digests *nodes;
	size_t most_boxes;
	uint32_t most_items;
};

struct entry {
	uint32_t item, node, number; /* number: of the box, among the node's */
	const struct ptc_box *box;
	uint64_t digest;
};

/* The boxes of a window of items, and what nodes said of them. */
struct window {
	uint32_t first, end;    /* items */
	struct ptc_needs boxes; /* one node after the other; reserved for most_boxes */
	size_t *ends;           /* by node: where its boxes end */
	size_t *at;             /* by item of the window, and one: where its entries begin in v */
	struct entry *v;
	bool *chosen;
	size_t entries_cap, chosen_cap, at_cap;
};

/* Called for each item with what nodes said of it, sorted by entry_compare. */
typedef int (*item_fn)(void *arg, uint32_t item, struct entry *v, size_t n, bool *chosen, struct ptc_error *err);

int ptc_digests_new(const struct ptc_geometry *g, struct ptc_digests **ret_digests, struct ptc_error *err)
{
	struct ptc_digests *d = ptc_calloc(1, sizeof *d);

	if (!d)
		return ptc_nomem(err);
	d->g = g;
	d->nodes = ptc_calloc(g->nnodes, sizeof *d->nodes);
	if (!d->nodes) {
		ptc_digests_free(d);
		return ptc_nomem(err);
	}
	ptc_digests_bound(d, PTC_AGENT_MERGE_BOXES, PTC_AGENT_MERGE_BOXES);
	*ret_digests = d;
	return 0;
}

void ptc_digests_bound(struct ptc_digests *d, size_t boxes, uint32_t items)
{
	d->most_boxes = boxes;
	d->most_items = items;
}

struct ptc_digests *ptc_digests_free(struct ptc_digests *d)
{
	if (!d)
		return NULL;
	for (size_t i = 0; d->nodes && i < d->g->nnodes; i++)
		ptc_free(d->nodes[i].v);
	ptc_free(d->nodes);
	ptc_free(d);
	return NULL;
}

PTC_BY(said_compare, struct said, box)

int ptc_digests_add(struct ptc_digests *d, uint32_t node, const uint32_t *need_index, const uint64_t *digests, size_t n,
		    struct ptc_error *err)
{
	struct node_digests *nd;
	struct said *v;
	size_t kept = 0;

	if (node >= d->g->nnodes)
		return ptc_error_set(err, PTC_EINVAL, "digests came from node number %u, but there are %zu nodes", node,
				     d->g->nnodes);
	nd = &d->nodes[node];
	v = ptc_reallocarray(nd->v, PTC_MAX(nd->n + n, (size_t)1), sizeof *v);
	if (!v)
		return ptc_nomem(err);
	nd->v = v;
	for (size_t i = 0; i < n; i++)
		v[nd->n + i] = (struct said){ digests[i], need_index[i] };
	ptc_sort(v, nd->n + n, sizeof *v, said_compare);
	for (size_t i = 0; i < nd->n + n; i++) {
		if (!kept || v[kept - 1].box != v[i].box)
			v[kept++] = v[i];
		else if (v[kept - 1].digest != v[i].digest)
			return ptc_error_set(err, PTC_EPEER, "node %s sent two digests of box %u", d->g->nodes[node],
					     v[i].box);
	}
	nd->n = kept;
	return 0;
}

void ptc_digests_leave_out(struct ptc_digests *d, uint32_t node)
{
	d->nodes[node].left_out = true;
}

/* ---- a window ---- */

/* By where the box begins in dim 0, then the rest of it, then node. */
static int entry_compare(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	for (uint32_t d = 0; d < x->box->ndim && d < y->box->ndim; d++)
		if (x->box->off[d] != y->box->off[d])
			return x->box->off[d] < y->box->off[d] ? -1 : 1;
	for (uint32_t d = 0; d < x->box->ndim && d < y->box->ndim; d++)
		if (x->box->ext[d] != y->box->ext[d])
			return x->box->ext[d] < y->box->ext[d] ? -1 : 1;
	return x->node < y->node ? -1 : x->node > y->node;
}

static int window_init(struct window *w, const struct ptc_digests *d, struct ptc_error *err)
{
	*w = (struct window){ .at_cap = d->most_items + 2, .entries_cap = d->most_boxes, .chosen_cap = d->most_boxes };
	w->boxes.cap = d->most_boxes;
	w->boxes.v = ptc_reallocarray(NULL, w->boxes.cap, sizeof *w->boxes.v);
	w->ends = ptc_calloc(d->g->nnodes, sizeof *w->ends);
	w->at = ptc_reallocarray(NULL, w->at_cap, sizeof *w->at);
	w->v = ptc_reallocarray(NULL, w->entries_cap, sizeof *w->v);
	w->chosen = ptc_reallocarray(NULL, w->chosen_cap, sizeof *w->chosen);
	return w->boxes.v && w->ends && w->at && w->v && w->chosen ? 0 : ptc_nomem(err);
}

static void window_done(struct window *w)
{
	ptc_needs_done(&w->boxes);
	ptc_free(w->ends);
	ptc_free(w->at);
	ptc_free(w->v);
	ptc_free(w->chosen);
}

/* Lists the boxes of the window's items. PTC_ELIMIT: there are too many. An item alone may have any number. */
static int window_list(struct window *w, const struct ptc_digests *d, struct ptc_error *err)
{
	const size_t most = w->end - w->first > 1 ? d->most_boxes : SIZE_MAX;
	int rc = 0;

	w->boxes.n = 0;
	for (uint32_t n = 0; n < d->g->nnodes && !rc; n++) {
		rc = ptc_geometry_boxes(d->g, n, w->first, w->end, most, &w->boxes, err);
		w->ends[n] = w->boxes.n;
	}
	return rc;
}

/* Goes on to the next window: as many items as have most_boxes by the last one's boxes, less a quarter. */
static int window_next(struct window *w, const struct ptc_digests *d, uint32_t nitems, struct ptc_error *err)
{
	const size_t had = w->end - w->first, room = d->most_boxes - d->most_boxes / 4;
	size_t n = had ? PTC_MAX(had * room / PTC_MAX(w->boxes.n, (size_t)1), (size_t)1) : WINDOW_FIRST;
	int rc;

	w->first = w->end;
	n = PTC_MIN(PTC_MIN(n, (size_t)d->most_items), (size_t)(nitems - w->first));
	for (;; n = n / 2) {
		w->end = w->first + (uint32_t)n;
		rc = window_list(w, d, err);
		if (rc != PTC_ELIMIT || n == 1)
			break;
	}
	if (!rc && (!PTC_ROOM(w->v, w->boxes.n, w->entries_cap) || !PTC_ROOM(w->chosen, w->boxes.n, w->chosen_cap)))
		rc = ptc_nomem(err);
	return rc;
}

/* What a node said of its next box; of an empty one it need not say anything. */
static int said_of(const struct ptc_digests *d, uint32_t node, const struct ptc_need *need, uint64_t *ret,
		   struct ptc_error *err)
{
	struct node_digests *nd = &d->nodes[node];
	const bool said = nd->at < nd->n && nd->v[nd->at].box == nd->seen;
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

	if (!said && !ptc_box_empty(&need->box))
		return ptc_error_set(err, PTC_ESTATE, "node %s sent no digest of its part of \"%.600s\"",
				     d->g->nodes[node], ptc_geometry_item_name(d->g, need->item, name, sizeof(name)));
	*ret = said ? nd->v[nd->at++].digest : 0;
	nd->seen++;
	return 0;
}

/* Counts the entries of each item of the window: at[i + 1] is then where those of its item i begin. */
static void window_count(struct window *w, const struct ptc_digests *d)
{
	const uint32_t items = w->end - w->first;
	size_t k = 0;

	memset(w->at, 0, (items + 2) * sizeof *w->at);
	for (uint32_t n = 0; n < d->g->nnodes; k = w->ends[n++])
		for (size_t i = k; i < w->ends[n] && !d->nodes[n].left_out; i++)
			if (!ptc_box_empty(&w->boxes.v[i].box))
				w->at[w->boxes.v[i].item - w->first + 2]++;
	for (uint32_t i = 2; i < items + 2; i++)
		w->at[i] += w->at[i - 1];
}

/* Makes the window's entries: by item, then by entry_compare. */
static int window_fill(struct window *w, const struct ptc_digests *d, struct ptc_error *err)
{
	size_t k = 0;
	int rc = 0;

	window_count(w, d);
	for (uint32_t n = 0; n < d->g->nnodes; k = w->ends[n++])
		for (size_t i = k; i < w->ends[n] && !d->nodes[n].left_out; i++) {
			const struct ptc_need *need = &w->boxes.v[i];
			struct entry e = { need->item, n, d->nodes[n].seen, &need->box, 0 };

			rc = said_of(d, n, need, &e.digest, err);
			if (rc)
				return rc;
			if (!ptc_box_empty(&need->box)) /* at the end at[i + 1] is where item i + 1 begins */
				w->v[w->at[need->item - w->first + 1]++] = e;
		}
	for (uint32_t i = 0; i < w->end - w->first; i++)
		ptc_sort(w->v + w->at[i], w->at[i + 1] - w->at[i], sizeof *w->v, entry_compare);
	return 0;
}

/* ---- an item ---- */

/* v: of one item. Leaves one of each set of equal boxes; all of a set must agree. */
static int replicas_agree(const struct ptc_digests *d, struct entry *v, size_t *n, struct ptc_error *err)
{
	size_t kept = 0;

	for (size_t i = 0; i < *n; i++) {
		const struct entry *e = &v[i], *o = kept ? &v[kept - 1] : NULL;

		if (o && ptc_box_equal(o->box, e->box)) {
			char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

			if (o->digest == e->digest)
				continue;
			ptc_geometry_item_name(d->g, e->item, name, sizeof(name));
			return ptc_error_set(err, PTC_EDIGEST,
					     "replicas of \"%.600s\" differ: %016llx on node %s, "
					     "%016llx on node %s",
					     name, (unsigned long long)o->digest, d->g->nodes[o->node],
					     (unsigned long long)e->digest, d->g->nodes[e->node]);
		}
		v[kept++] = *e;
	}
	*n = kept;
	return 0;
}

/* v is sorted by the begin of dim 0, so only those beginning before the end of one can meet it. A box that meets one
 * chosen before is left out (another cut of the same bytes); then the rest must still be everything. */
static int item_merge(const struct ptc_digests *d, uint32_t item, const struct entry *v, size_t n, bool *chosen,
		      uint64_t *ret, struct ptc_error *err)
{
	int64_t bytes = 0, whole = ptc_item_bytes(d->g->spec, item);
	uint64_t digest = 0;
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	struct ptc_box cut;

	memset(chosen, true, n);
	for (size_t i = 0; i < n; i++) {
		if (!chosen[i])
			continue;
		digest ^= v[i].digest;
		bytes += ptc_box_volume(v[i].box);
		for (size_t k = i + 1; k < n && v[k].box->off[0] < v[i].box->off[0] + v[i].box->ext[0]; k++)
			if (chosen[k] && ptc_box_intersect(v[i].box, v[k].box, &cut))
				chosen[k] = false;
	}
	if (bytes != whole)
		return ptc_error_set(err, PTC_ESTATE, "the digests of \"%.600s\" cover %lld of its %lld bytes",
				     ptc_geometry_item_name(d->g, item, name, sizeof(name)), (long long)bytes,
				     (long long)whole);
	*ret = digest;
	return 0;
}

static int item_expected(const struct ptc_digests *d, uint32_t item, uint64_t digest, uint64_t expected,
			 struct ptc_error *err)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

	if (digest == expected)
		return 0;
	return ptc_error_set(err, PTC_EDIGEST, "\"%.600s\" has digest %016llx instead of %016llx",
			     ptc_geometry_item_name(d->g, item, name, sizeof(name)), (unsigned long long)digest,
			     (unsigned long long)expected);
}

/* ---- all items ---- */

static int window_items(struct window *w, item_fn fn, void *arg, struct ptc_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && i < w->end - w->first; i++) {
		size_t n = w->at[i + 1] - w->at[i];

		rc = fn(arg, w->first + i, w->v + w->at[i], n, w->chosen, err);
	}
	return rc;
}

/* Has a node said more than it can know? */
static int nothing_left(const struct ptc_digests *d, struct ptc_error *err)
{
	for (size_t n = 0; n < d->g->nnodes; n++) {
		const struct node_digests *nd = &d->nodes[n];

		if (!nd->left_out && nd->at < nd->n)
			return ptc_error_set(err, PTC_EPEER, "node %s sent a digest of box %u, but it has %u boxes",
					     d->g->nodes[n], nd->v[nd->at].box, nd->seen);
	}
	return 0;
}

static int each_item(struct ptc_digests *d, item_fn fn, void *arg, struct ptc_error *err)
{
	const uint32_t nitems = (uint32_t)ptc_spec_items(d->g->spec);
	struct window w;
	int rc = window_init(&w, d, err);

	for (size_t n = 0; n < d->g->nnodes; n++)
		d->nodes[n].at = d->nodes[n].seen = 0;
	while (!rc && w.end < nitems) {
		rc = window_next(&w, d, nitems, err);
		if (!rc)
			rc = window_fill(&w, d, err);
		if (!rc)
			rc = window_items(&w, fn, arg, err);
	}
	window_done(&w);
	return rc ? rc : nothing_left(d, err);
}

struct merging {
	const struct ptc_digests *d;
	const uint64_t *expected; /* NULL: nothing is expected */
	uint64_t *items;
	const uint8_t *asked; /* for ptc_digests_compare */
	size_t missing;
};

static int merge_item(void *arg, uint32_t item, struct entry *v, size_t n, bool *chosen, struct ptc_error *err)
{
	struct merging *m = arg;
	int rc = replicas_agree(m->d, v, &n, err);

	if (!rc)
		rc = item_merge(m->d, item, v, n, chosen, &m->items[item], err);
	return rc || !m->expected ? rc : item_expected(m->d, item, m->items[item], m->expected[item], err);
}

int ptc_digests_merge(struct ptc_digests *d, const uint64_t *expected, uint64_t *ret_items, struct ptc_error *err)
{
	size_t nitems = ptc_spec_items(d->g->spec);
	struct merging m = { .d = d, .expected = expected };
	int rc;

	m.items = ptc_calloc(nitems ? nitems : 1, sizeof *m.items);
	rc = m.items ? each_item(d, merge_item, &m, err) : ptc_nomem(err);
	if (!rc)
		memcpy(ret_items, m.items, nitems * sizeof *m.items);
	ptc_free(m.items);
	return rc;
}

static int compare_item(void *arg, uint32_t item, struct entry *v, size_t n, bool *chosen, struct ptc_error *err)
{
	struct merging *m = arg;
	uint64_t digest;
	int rc = replicas_agree(m->d, v, &n, err);

	if (rc)
		return rc;
	if (!item_merge(m->d, item, v, n, chosen, &digest, NULL))
		return item_expected(m->d, item, digest, m->expected[item], err);
	m->missing += m->asked[item / 8] >> item % 8 & 1;
	return 0;
}

int ptc_digests_compare(struct ptc_digests *d, const uint64_t *expected, const uint8_t *items, size_t *ret_missing,
			struct ptc_error *err)
{
	struct merging m = { .d = d, .expected = expected, .asked = items };
	int rc = each_item(d, compare_item, &m, err);

	*ret_missing = m.missing;
	return rc;
}

struct grouping {
	ptc_replicas_fn fn;
	void *arg;
	struct ptc_replica_said *v;
};

static int group_item(void *arg, uint32_t item, struct entry *v, size_t n, bool *chosen, struct ptc_error *err)
{
	struct grouping *g = arg;
	size_t k = 0;
	int rc = 0;

	(void)chosen;
	for (size_t i = 0; !rc && i < n; i++) {
		g->v[k++] = (struct ptc_replica_said){ v[i].node, v[i].number, v[i].digest };
		if (i + 1 < n && ptc_box_equal(v[i].box, v[i + 1].box))
			continue;
		rc = g->fn(g->arg, item, v[i].box, g->v, k, err);
		k = 0;
	}
	return rc;
}

int ptc_digests_replicas(struct ptc_digests *d, ptc_replicas_fn fn, void *arg, struct ptc_error *err)
{
	struct grouping g = { fn, arg, ptc_reallocarray(NULL, d->g->nnodes, sizeof *g.v) };
	int rc = g.v ? each_item(d, group_item, &g, err) : ptc_nomem(err);

	ptc_free(g.v);
	return rc;
}
