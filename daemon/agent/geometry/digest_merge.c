/* SPDX-License-Identifier: Apache-2.0 */
/* Merging every node's digests into one per item. Happy path: each node's
 * needs are known from the geometry, its digests come by position; equal
 * boxes of several nodes must agree; of each item, boxes that are pairwise
 * disjoint and add up to the whole are XORed. Failure modes: replicas that
 * differ or an item that is not what was expected (PTC_EDIGEST naming tensor
 * and nodes), a node or box that did not report (PTC_ESTATE), positions out
 * of range or given twice (PTC_EPEER). */
#include "daemon/agent/geometry/digest_merge.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

struct node_digests {
	size_t n;    /* of boxes; 0: left out */
	size_t seen; /* while the boxes of all nodes are gone through: how many of this node's came */
	uint64_t *digest;
	bool *have;
};

struct ptc_digests {
	const struct ptc_geometry *g;
	const struct ptc_replicas *all; /* boxes of all nodes */
	struct ptc_replicas *own;       /* `all`, if the geometry does not keep it */
	struct node_digests *nodes;
};

struct entry {
	uint32_t item, node;
	const struct ptc_box *box;
	uint64_t digest;
};

static int node_init(struct node_digests *n, size_t boxes, struct ptc_error *err)
{
	n->n = boxes;
	n->digest = ptc_calloc(boxes ? boxes : 1, sizeof *n->digest);
	n->have = ptc_calloc(boxes ? boxes : 1, sizeof *n->have);
	return n->digest && n->have ? 0 : ptc_nomem(err);
}

int ptc_digests_new(const struct ptc_geometry *g, struct ptc_digests **ret_digests, struct ptc_error *err)
{
	struct ptc_digests *d = ptc_calloc(1, sizeof *d);
	int rc;

	if (!d)
		return ptc_nomem(err);
	d->g = g;
	d->nodes = ptc_calloc(g->nnodes, sizeof *d->nodes);
	rc = d->nodes ? ptc_geometry_replicas_all(g, &d->all, &d->own, err) : ptc_nomem(err);
	for (uint32_t i = 0; !rc && i < g->nnodes; i++)
		rc = node_init(&d->nodes[i], d->all->counts[i], err);
	if (rc) {
		ptc_digests_free(d);
		return rc;
	}
	*ret_digests = d;
	return 0;
}

struct ptc_digests *ptc_digests_free(struct ptc_digests *d)
{
	if (!d)
		return NULL;
	for (size_t i = 0; d->nodes && i < d->g->nnodes; i++) {
		ptc_free(d->nodes[i].digest);
		ptc_free(d->nodes[i].have);
	}
	ptc_free(d->nodes);
	ptc_replicas_free(d->own);
	ptc_free(d);
	return NULL;
}

int ptc_digests_add(struct ptc_digests *d, uint32_t node, const uint32_t *need_index, const uint64_t *digests, size_t n,
		    struct ptc_error *err)
{
	struct node_digests *nd;

	if (node >= d->g->nnodes)
		return ptc_error_set(err, PTC_EINVAL, "digests came from node number %u, but there are %zu nodes", node,
				     d->g->nnodes);
	nd = &d->nodes[node];
	for (size_t i = 0; i < n; i++)
		if (need_index[i] >= nd->n)
			return ptc_error_set(err, PTC_EPEER, "node %s sent a digest of box %u, but it has %zu boxes",
					     d->g->nodes[node], need_index[i], nd->n);
	for (size_t i = 0; i < n; i++) {
		uint32_t at = need_index[i];

		if (nd->have[at] && nd->digest[at] != digests[i])
			return ptc_error_set(err, PTC_EPEER, "node %s sent two digests of box %u", d->g->nodes[node],
					     at);
		nd->have[at] = true;
		nd->digest[at] = digests[i];
	}
	return 0;
}

void ptc_digests_leave_out(struct ptc_digests *d, uint32_t node)
{
	d->nodes[node].n = 0;
}

/* ---- merging ---- */

/* By item, then where the box begins in dim 0, then the rest of it, then node. */
static int entry_compare(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->item != y->item)
		return x->item < y->item ? -1 : 1;
	for (uint32_t d = 0; d < x->box->ndim && d < y->box->ndim; d++)
		if (x->box->off[d] != y->box->off[d])
			return x->box->off[d] < y->box->off[d] ? -1 : 1;
	for (uint32_t d = 0; d < x->box->ndim && d < y->box->ndim; d++)
		if (x->box->ext[d] != y->box->ext[d])
			return x->box->ext[d] < y->box->ext[d] ? -1 : 1;
	return x->node < y->node ? -1 : x->node > y->node;
}

/* The item's entries, in the order of nodes, behind the others. */
static int item_entries(const struct ptc_digests *d, uint32_t item, struct entry *v, size_t *n, struct ptc_error *err)
{
	for (size_t i = d->all->first[item]; i < d->all->first[item + 1]; i++) {
		const struct ptc_replica *r = &d->all->v[i];
		struct node_digests *nd = &d->nodes[r->node];
		const size_t at = nd->seen++;

		if (!nd->n || ptc_box_empty(&r->box))
			continue;
		if (!nd->have[at]) {
			char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

			ptc_geometry_item_name(d->g, item, name, sizeof(name));
			return ptc_error_set(err, PTC_ESTATE, "node %s sent no digest of its part of \"%.600s\"",
					     d->g->nodes[r->node], name);
		}
		v[(*n)++] = (struct entry){ item, r->node, &r->box, nd->digest[at] };
	}
	return 0;
}

/* By entry_compare: boxes come by item, so each item's few are all that is compared. */
static int entries_make(const struct ptc_digests *d, struct entry **ret, size_t *ret_n, struct ptc_error *err)
{
	const size_t nitems = ptc_spec_items(d->g->spec), most = d->all->first[nitems];
	struct entry *v = ptc_reallocarray(NULL, most ? most : 1, sizeof *v);
	size_t n = 0;
	int rc = v ? 0 : ptc_nomem(err);

	for (size_t i = 0; i < d->g->nnodes; i++)
		d->nodes[i].seen = 0;
	for (uint32_t item = 0; !rc && item < nitems; item++) {
		const size_t begin = n;

		rc = item_entries(d, item, v, &n, err);
		if (rc == 0)
			ptc_sort(v + begin, n - begin, sizeof *v, entry_compare);
	}
	if (rc) {
		ptc_free(v);
		return rc;
	}
	*ret = v;
	*ret_n = n;
	return 0;
}

/* Leaves one of each set of equal boxes; all of a set must agree. */
static int replicas_agree(const struct ptc_digests *d, struct entry *v, size_t *n, struct ptc_error *err)
{
	size_t kept = 0;

	for (size_t i = 0; i < *n; i++) {
		const struct entry *e = &v[i], *o = kept ? &v[kept - 1] : NULL;

		if (o && o->item == e->item && ptc_box_equal(o->box, e->box)) {
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

static int items_merge(const struct ptc_digests *d, const struct entry *v, size_t n, uint64_t *items,
		       struct ptc_error *err)
{
	size_t nitems = ptc_spec_items(d->g->spec), at = 0;
	bool *chosen = ptc_calloc(n ? n : 1, sizeof *chosen);
	int rc = chosen ? 0 : ptc_nomem(err);

	for (uint32_t item = 0; !rc && item < nitems; item++) {
		size_t end = at;

		while (end < n && v[end].item == item)
			end++;
		rc = item_merge(d, item, v + at, end - at, chosen, &items[item], err);
		at = end;
	}
	ptc_free(chosen);
	return rc;
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

static int items_expected(const struct ptc_digests *d, const uint64_t *items, const uint64_t *expected,
			  struct ptc_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && i < ptc_spec_items(d->g->spec); i++)
		rc = item_expected(d, i, items[i], expected[i], err);
	return rc;
}

int ptc_digests_merge(struct ptc_digests *d, const uint64_t *expected, uint64_t *ret_items, struct ptc_error *err)
{
	size_t nitems = ptc_spec_items(d->g->spec), n = 0;
	uint64_t *items = ptc_calloc(nitems ? nitems : 1, sizeof *items);
	struct entry *v = NULL;
	int rc = items ? 0 : ptc_nomem(err);

	if (rc == 0)
		rc = entries_make(d, &v, &n, err);
	if (rc == 0)
		rc = replicas_agree(d, v, &n, err);
	if (rc == 0)
		rc = items_merge(d, v, n, items, err);
	if (!rc && expected)
		rc = items_expected(d, items, expected, err);
	if (!rc)
		memcpy(ret_items, items, nitems * sizeof *items);
	ptc_free(items);
	ptc_free(v);
	return rc;
}

/* v: what has been reported of the item. */
static int item_compare(const struct ptc_digests *d, uint32_t item, const struct entry *v, size_t n, bool *chosen,
			const uint64_t *expected, bool *ret_missing, struct ptc_error *err)
{
	uint64_t digest;

	*ret_missing = item_merge(d, item, v, n, chosen, &digest, NULL) != 0;
	return *ret_missing ? 0 : item_expected(d, item, digest, expected[item], err);
}

int ptc_digests_compare(struct ptc_digests *d, const uint64_t *expected, const uint8_t *items, size_t *ret_missing,
			struct ptc_error *err)
{
	struct entry *v = NULL;
	size_t n = 0, at = 0;
	bool *chosen = NULL, missing;
	int rc = entries_make(d, &v, &n, err);

	*ret_missing = 0;
	if (rc == 0)
		rc = replicas_agree(d, v, &n, err);
	if (rc == 0) {
		chosen = ptc_calloc(n ? n : 1, sizeof *chosen);
		rc = chosen ? 0 : ptc_nomem(err);
	}
	for (uint32_t item = 0; !rc && item < ptc_spec_items(d->g->spec); item++) {
		size_t end = at;

		while (end < n && v[end].item == item)
			end++;
		rc = item_compare(d, item, v + at, end - at, chosen, expected, &missing, err);
		*ret_missing += missing && (items[item / 8] >> item % 8 & 1);
		at = end;
	}
	ptc_free(chosen);
	ptc_free(v);
	return rc;
}
