/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of which a snapshot has the greatest of what ranks hold (state: max).
 * Happy path: a node first makes the greatest of its own ranks. Of what several
 * nodes hold, the one of the lowest rank that does merges: it asks each other
 * for its part, a piece at a time, and takes the greater, element by element;
 * when it has been through, the others fetch what it made as they fetch any
 * replica that counts (remote_primary.c). So a part crosses the network twice, and n
 * nodes make 2n requests. As no order and no repetition changes a bit
 * (reshard/values/max.h), whoever is asked again gives the same.
 * The merging node fills extents of the snapshot, which others do not see before they are
 * marked filled. What the others expose lies in a table of its own, for the same
 * place of the snapshot is where they put what was merged; it is sealed, so
 * that a merging node whose daemon was killed finds it again.
 * Failure modes: those of fetching (remote_fetch.c), memory. */
#include "daemon/agent/transfer/max_reduce.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/tables/tables.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "reshard/values/max.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOBODY UINT32_MAX

/* ---- who merges what ---- */

/* The needs of one item, while ranks are gone through in order. */
struct sharing {
	struct ptc_reduce *reduce;
	const struct ptc_geometry *g;
	const struct ptc_need *needs;
	size_t n, open; /* open: those of which more must be known */
	uint32_t self;
	struct sharer {
		uint32_t merges; /* the node of the lowest rank that holds it */
		uint32_t own;    /* where it is in reduce->own; NOBODY: no other node holds it, so far */
	} * v;
	struct ptc_error *err;
};

static int ask(struct sharing *s, size_t i, uint32_t node)
{
	const struct ptc_need *need = &s->needs[i];
	struct ptc_reduce *r = s->reduce;
	int rc = 0;

	if (s->v[i].own == NOBODY) {
		s->v[i].own = (uint32_t)r->own.n;
		rc = ptc_remote_add(&r->own, need->item, s->self, &need->box, s->err);
	}
	if (!rc && r->nasks == r->asks_cap) {
		size_t cap = r->asks_cap ? 2 * r->asks_cap : 16;
		struct ptc_reduce_ask *v = ptc_reallocarray(r->asks, cap, sizeof(*v));

		if (!v)
			return ptc_error_set(s->err, PTC_ENOMEM, "no memory to ask for %zu parts of replicas", cap);
		r->asks = v;
		r->asks_cap = cap;
	}
	if (!rc)
		r->asks[r->nasks++] = (struct ptc_reduce_ask){ node, s->v[i].own };
	return rc;
}

/* A rank of this node holds box. What two nodes hold is equal or disjoint, so box has all of a need or nothing. */
static int region(struct sharing *s, uint32_t node, const struct ptc_box *box)
{
	struct ptc_box common;
	int r = 0;

	for (size_t i = 0; !r && i < s->n; i++) {
		struct sharer *is = &s->v[i];

		if (!ptc_box_intersect(box, &s->needs[i].box, &common))
			continue;
		if (ptc_fails(ptc_box_equal(&common, &s->needs[i].box)))
			return ptc_error_set(s->err, PTC_EINTERNAL, "a part of item %u that is not cut",
					     s->needs[i].item);
		if (is->merges == NOBODY) {
			is->merges = node;
			s->open -= node != s->self;
		} else if (is->merges == s->self && node != s->self) {
			r = ask(s, i, node);
		}
	}
	return r;
}

static int rank_regions(struct sharing *s, uint32_t rank)
{
	uint32_t item = s->needs->item, node = s->g->allocation.ranks[rank].node;
	struct ptc_rank_layout l;
	struct ptc_box box;
	int r = ptc_layout_rank_item(s->g->layout, rank, item, &l, s->err);

	if (r)
		return r;
	for (size_t i = 0; !r && i < l.nregions; i++) {
		if (l.regions[i].padding)
			continue;
		r = ptc_item_byte_box(s->g->spec, item, &l.regions[i].box, &box, s->err);
		r = r ? r : region(s, node, &box);
	}
	ptc_rank_layout_done(&l);
	return r;
}

/* What others merge is exposed to them, and fetched when they have. */
static int expose(struct sharing *s, struct ptc_remote *remote)
{
	int r = 0;

	for (size_t i = 0; !r && i < s->n; i++) {
		const struct ptc_need *need = &s->needs[i];

		if (s->v[i].merges == NOBODY || s->v[i].merges == s->self)
			continue;
		r = ptc_remote_add(&s->reduce->parts, need->item, s->self, &need->box, s->err);
		r = r ? r : ptc_remote_add(remote, need->item, s->v[i].merges, &need->box, s->err);
	}
	return r;
}

int ptc_reduce_item(struct ptc_reduce *reduce, const struct ptc_geometry *g, uint32_t self,
		    const struct ptc_needs *needs, size_t from, size_t to, struct ptc_remote *remote,
		    struct ptc_error *err)
{
	struct sharing s = { .reduce = reduce,
			     .g = g,
			     .needs = needs->v + from,
			     .n = to - from,
			     .open = to - from,
			     .self = self,
			     .err = err };
	int r = 0;

	s.v = ptc_reallocarray(NULL, s.n, sizeof(*s.v));
	if (!s.v)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu parts of replicas", s.n);
	for (size_t i = 0; i < s.n; i++) {
		s.v[i] = (struct sharer){ NOBODY, NOBODY };
		s.open -= ptc_box_empty(&s.needs[i].box);
	}
	for (uint32_t rank = 0; !r && s.open && rank < g->allocation.world; rank++)
		r = rank_regions(&s, rank);
	r = r ? r : expose(&s, remote);
	ptc_free(s.v);
	return r;
}

static int by_node(const void *a, const void *b)
{
	const struct ptc_reduce_ask *x = a, *y = b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	return x->own < y->own ? -1 : x->own > y->own;
}

/* A node of several ranks that hold the same is asked once. */
void ptc_reduce_sort(struct ptc_reduce *r)
{
	size_t n = 0;

	if (r->nasks > 1)
		qsort(r->asks, r->nasks, sizeof(*r->asks), by_node);
	for (size_t i = 0; i < r->nasks; i++)
		if (!n || by_node(&r->asks[n - 1], &r->asks[i]))
			r->asks[n++] = r->asks[i];
	r->nasks = n;
}

void ptc_reduce_done(struct ptc_reduce *r)
{
	ptc_remote_done(&r->own);
	ptc_remote_done(&r->parts);
	ptc_free(r->asks);
	*r = (struct ptc_reduce){ 0 };
}

struct ptc_table_key ptc_reduce_key(const struct ptc_table_key *table, uint64_t switch_id, uint64_t incarnation,
				    uint64_t step)
{
	struct ptc_table_key key = *table;
	char text[128], hash[33];
	int len = snprintf(text, sizeof(text), "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, table->snapshot,
			   switch_id, incarnation, step);

	ptc_content_hash(text, (size_t)len, hash);
	hash[16] = '\0';
	key.snapshot = strtoull(hash, NULL, 16) | PTC_PARTS_SNAPSHOT;
	return key;
}

/* ---- merging ---- */

struct merging {
	const struct ptc_reduce *reduce;
	struct ptc_remote_fetch fetch;
	const struct ptc_store_box *boxes; /* of own, as they were chopped */
	const uint32_t *extents;
	size_t *first; /* of boxes, for each of own; one more */
	/* of the node that is asked */
	uint32_t *nodes, *which; /* which: of boxes */
	struct ptc_store_box *asked;
	uint64_t bytes;
};

static int take(void *arg, size_t i, const void *data, struct ptc_error *err)
{
	const struct merging *m = arg;
	const struct ptc_store_box *box = &m->boxes[m->which[i]];
	enum ptc_dtype dtype = ptc_item_dtype(m->fetch.g->spec, box->item);
	size_t size = ptc_dtype_bits(dtype) / 8;
	struct iovec spans[PTC_EXTENT_SPANS];
	const uint8_t *from = data;
	int n = ptc_table_extent_iov(m->fetch.table, m->extents[m->which[i]], 0, ptc_box_volume(&box->box), spans,
				     PTC_ARRAY_LEN(spans));

	if (n <= 0)
		return ptc_error_set(err, PTC_ESTATE, "an extent of item %u cannot be filled any more", box->item);
	for (int k = 0; k < n; k++) { /* chunks are whole elements */
		if (ptc_fails(spans[k].iov_len % size == 0))
			return ptc_error_set(err, PTC_EINTERNAL, "an element of item %u in two chunks", box->item);
		ptc_max_take(dtype, from, spans[k].iov_len / size, spans[k].iov_base);
		from += spans[k].iov_len;
	}
	return 0;
}

/* asks from..to are of one node. */
static int merge_node(struct merging *m, size_t from, size_t to, struct ptc_error *err)
{
	struct ptc_remote_fetch fetch = m->fetch;

	fetch.n = 0;
	for (size_t i = from; i < to; i++)
		for (size_t k = m->first[m->reduce->asks[i].own]; k < m->first[m->reduce->asks[i].own + 1]; k++) {
			m->nodes[fetch.n] = m->reduce->asks[i].node;
			m->which[fetch.n] = (uint32_t)k;
			m->asked[fetch.n++] = m->boxes[k];
			m->bytes += (uint64_t)ptc_box_volume(&m->boxes[k].box);
		}
	fetch.nodes = m->nodes;
	fetch.boxes = m->asked;
	fetch.take = take;
	fetch.take_arg = m;
	return ptc_remote_fetch(&fetch, err);
}

static void find_first(struct merging *m)
{
	const struct ptc_remote *own = &m->reduce->own;
	size_t at = 0;

	for (size_t i = 0; i < own->n; i++) {
		m->first[i] = at;
		while (at < own->nboxes && m->boxes[at].item == own->v[i].item &&
		       ptc_box_contains(&own->v[i].box, &m->boxes[at].box))
			at++;
	}
	m->first[own->n] = at;
}

int ptc_reduce_merge(const struct ptc_reduce *r, const struct ptc_remote_fetch *fetch,
		     const struct ptc_store_box *boxes, uint64_t *ret_bytes, struct ptc_error *err)
{
	struct merging m = { .reduce = r, .fetch = *fetch, .boxes = boxes, .extents = fetch->extents };
	size_t n = r->own.nboxes ? r->own.nboxes : 1;
	int rc = 0;

	m.first = ptc_reallocarray(NULL, r->own.n + 1, sizeof(*m.first));
	m.nodes = ptc_reallocarray(NULL, n, sizeof(*m.nodes));
	m.which = ptc_reallocarray(NULL, n, sizeof(*m.which));
	m.asked = ptc_reallocarray(NULL, n, sizeof(*m.asked));
	if (!m.first || !m.nodes || !m.which || !m.asked)
		rc = ptc_error_set(err, PTC_ENOMEM, "no memory to merge %zu parts of replicas", n);
	else
		find_first(&m);
	for (size_t i = 0, end; !rc && i < r->nasks; i = end) {
		for (end = i; end < r->nasks && r->asks[end].node == r->asks[i].node;)
			end++;
		rc = merge_node(&m, i, end, err);
	}
	ptc_free(m.first);
	ptc_free(m.nodes);
	ptc_free(m.which);
	ptc_free(m.asked);
	if (!rc)
		*ret_bytes = m.bytes;
	return rc;
}
