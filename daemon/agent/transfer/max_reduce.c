/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for which a snapshot takes the greatest value over all ranks (state: max).
 *
 * Happy path: each node first takes the greatest over its own ranks. If several nodes hold a part, the node of the
 * lowest rank that has the part merges it. That node asks each other node for its part, a piece at a time, and takes
 * the greater value of each element. Afterwards the other nodes fetch the merged part, as they fetch any primary on
 * another node (remote_primary.c). So a part crosses the network twice, and n nodes make 2n requests. Neither order nor
 * repetition changes a bit (reshard/values/max.h), so a request that is repeated gets the same bytes.
 *
 * The merging node fills extents of the snapshot; other nodes do not see them before they are marked filled. Each of
 * the other nodes exposes its parts in a temporary table, because in the snapshot the merged part takes the place of
 * the node's own part. The temporary table is sealed, so that a merging node whose daemon was killed finds it again.
 *
 * Failure modes: those of fetching (remote_primary.c), memory. */
#include "daemon/agent/transfer/max_reduce.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/tables/tables.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/number/search.h"
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

/* A rank of this node holds box. What two nodes hold is equal or disjoint, so box has all of a need or nothing. */
static int region(struct sharing *s, uint32_t node, const struct ptc_box *box)
{
	struct ptc_box common;
	int rc = 0;

	for (size_t i = 0; !rc && i < s->n; i++) {
		const struct ptc_need *need = &s->needs[i];
		struct sharer *is = &s->v[i];

		if (!ptc_box_intersect(box, &need->box, &common))
			continue;
		if (ptc_fails(ptc_box_equal(&common, &need->box)))
			return ptc_error_set(s->err, PTC_EINTERNAL,
					     "internal error: a part of item %u goes beyond what this node needs",
					     need->item);
		if (is->merges == NOBODY) {
			is->merges = node;
			s->open -= node != s->self;
		} else if (is->merges == s->self && node != s->self) {
			if (is->own == NOBODY) {
				is->own = (uint32_t)s->reduce->own.n;
				rc = ptc_parts_push(&s->reduce->own, s->self, need->item, 0, &need->box, s->err);
			}
			if (rc == 0)
				rc = ptc_parts_push(&s->reduce->asks, node, need->item, is->own, &need->box, s->err);
		}
	}
	return rc;
}

static int rank_regions(struct sharing *s, uint32_t rank)
{
	uint32_t item = s->needs->item, node = s->g->allocation.ranks[rank].node;
	struct ptc_rank_layout l;
	struct ptc_box box;
	int rc = ptc_layout_rank_item(s->g->layout, rank, item, &l, s->err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < l.nregions; i++) {
		if (l.regions[i].padding)
			continue;
		rc = ptc_item_byte_box(s->g->spec, item, &l.regions[i].box, &box, s->err);
		if (rc == 0)
			rc = region(s, node, &box);
	}
	ptc_rank_layout_done(&l);
	return rc;
}

int ptc_reduce_item(struct ptc_reduce *reduce, const struct ptc_geometry *g, uint32_t self,
		    const struct ptc_needs *needs, size_t from, size_t to, struct ptc_parts *remote,
		    struct ptc_error *err)
{
	struct sharing s = { .reduce = reduce,
			     .g = g,
			     .needs = needs->v + from,
			     .n = to - from,
			     .open = to - from,
			     .self = self,
			     .err = err };
	int rc = 0;

	s.v = ptc_reallocarray(NULL, s.n, sizeof *s.v);
	if (!s.v)
		return ptc_nomem(err);
	for (size_t i = 0; i < s.n; i++) {
		s.v[i] = (struct sharer){ NOBODY, NOBODY };
		s.open -= ptc_box_empty(&s.needs[i].box);
	}
	for (uint32_t rank = 0; !rc && s.open && rank < g->allocation.world; rank++)
		rc = rank_regions(&s, rank);
	for (size_t i = 0; !rc && i < s.n; i++) { /* what others merge is exposed to them, and fetched when they have */
		const struct ptc_need *need = &s.needs[i];
		uint32_t merges = s.v[i].merges;

		if (merges == NOBODY || merges == self)
			continue;
		rc = ptc_parts_push(&reduce->parts, self, need->item, 0, &need->box, err);
		if (rc == 0)
			rc = ptc_parts_push(remote, merges, need->item, 0, &need->box, err);
	}
	ptc_free(s.v);
	return rc;
}

PTC_BY2(by_node, struct ptc_part, node, to)

/* A node of several ranks that hold the same is asked once. */
void ptc_reduce_sort(struct ptc_reduce *r)
{
	struct ptc_parts *asks = &r->asks;
	size_t n = 0;

	if (asks->n > 1)
		qsort(asks->v, asks->n, sizeof *asks->v, by_node);
	for (size_t i = 0; i < asks->n; i++)
		if (!n || by_node(&asks->v[n - 1], &asks->v[i]))
			asks->v[n++] = asks->v[i];
	asks->n = n;
}

void ptc_reduce_done(struct ptc_reduce *r)
{
	ptc_parts_done(&r->own);
	ptc_parts_done(&r->parts);
	ptc_parts_done(&r->asks);
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

static int take(void *arg, const struct ptc_part *part, const void *data, struct ptc_error *err)
{
	const struct ptc_remote_fetch *f = arg;
	enum ptc_dtype dtype = ptc_item_dtype(f->g->spec, part->item);
	size_t size = ptc_dtype_bits(dtype) / 8;
	struct iovec spans[PTC_EXTENT_SPANS];
	const uint8_t *from = data;
	int n, r = ptc_extent_spans(f->table, f->extents[part->to], part->item, &part->box, spans, PTC_ARRAY_LEN(spans),
				    &n, err);

	for (int k = 0; !r && k < n; k++) { /* chunks are whole elements */
		if (ptc_fails(spans[k].iov_len % size == 0))
			return ptc_error_set(err, PTC_EINTERNAL,
					     "internal error: an element of item %u lies in two chunks", part->item);
		ptc_max_take(dtype, from, spans[k].iov_len / size, spans[k].iov_base);
		from += spans[k].iov_len;
	}
	return r;
}

/* One node after the other, so that only what is asked of one is listed. */
int ptc_reduce_merge(const struct ptc_reduce *r, const struct ptc_remote_fetch *fetch, uint64_t *ret_bytes,
		     struct ptc_error *err)
{
	struct ptc_remote_fetch f = *fetch;
	struct ptc_parts parts = { 0 };
	int rc = 0;

	f.take = take;
	f.take_arg = &f;
	for (size_t i = 0; !rc && i < r->asks.n; i++) {
		const struct ptc_part *ask = &r->asks.v[i];
		bool last = i + 1 == r->asks.n || ask[1].node != ask->node;

		*ret_bytes += (uint64_t)ptc_box_volume(&ask->box);
		rc = ptc_remote_ask(&f, &r->own, ask->to, ask->node, &parts, err);
		rc = rc || !last ? rc : ptc_remote_fetch(&f, &parts, err);
	}
	ptc_parts_done(&parts);
	return rc;
}
