/* SPDX-License-Identifier: Apache-2.0 */
/* Fills an extent of a snapshot from the memory of ranks that wait, and compares replicas on one node. Happy path: the
 * extent is filled slice by slice, straight from the memory of the lowest rank that has the slice. Each slice is
 * compared with the other ranks here that hold it, and digested while it is in the caches. If a rule says which
 * replicas count, and one of these is here, others are not compared. If a rule says that the greatest value counts,
 * the greatest value of all ranks here is taken.
 *
 * Failure modes: replicas differ (PTC_EDIGEST naming tensor and ranks, unless they are to be listed); a rank dies
 * meanwhile (the error of reading its memory); memory. */
#include "daemon/agent/capture/internal.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/tables/node_digest.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/sys/fault.h"
#include "base/number/search.h"
#include "reshard/values/max.h"

#include <string.h>

struct fill {
	struct ptc_capture *c;
	struct ptc_capture_scratch *scratch;
	struct ptc_table *table;
	const struct ptc_store_box *box; /* the extent's */
	uint32_t extent;
	bool own;                    /* there is more to come, from other nodes */
	enum ptc_copy_pages pages;   /* of its memory, in the process that copies */
	const struct ptc_box *slice; /* of box, that is being filled */
	struct iovec spans[PTC_EXTENT_SPANS];
	int nspans;
	const struct ptc_slot_source *source;
	struct ptc_boxes
		primary; /* parts of the slice that sources have given which count; complete when secondary ones come */
};

static const char *item_name(const struct fill *f, char name[PTC_TENSOR_NAME_MAX + 1])
{
	return ptc_geometry_item_name(f->c->g, f->box->item, name, PTC_TENSOR_NAME_MAX + 1);
}

static uint32_t rank_of(const struct fill *f, const struct ptc_slot_source *s)
{
	return f->c->group.v[s->slot].rank.rank;
}

static int copy_run(void *arg, uint64_t address, int64_t off, int64_t len, struct ptc_error *err)
{
	struct fill *f = arg;

	return ptc_iov_batch_add(&f->scratch->iov_batch, address, f->spans, f->nspans, off, len, err);
}

static size_t first_source(const struct ptc_slot_sources *s, uint32_t item)
{
	return PTC_SEARCH(struct ptc_slot_source, item, s->v, s->n, item);
}

/* ---- bytes of a replica, of which more is wanted than whether they are ours ---- */

/* Scratch memory is filled with them; then, and at the end, each part goes to `take`. */
struct reading {
	const struct fill *f;
	int (*take)(struct reading *r, const struct ptc_capture_part *part, struct ptc_error *err);
	int64_t total; /* bytes of the tensor, for a digest, */
	uint64_t sum;  /* which is that of the parts so far */
};

static int read_flush(struct reading *r, struct ptc_error *err)
{
	struct ptc_capture_scratch *h = r->f->scratch;
	int rc = ptc_iov_batch_flush(&h->iov_batch, err);

	for (size_t i = 0; !rc && i < h->nparts; i++)
		rc = r->take(r, &h->parts[i], err);
	h->nparts = h->used = 0;
	return rc;
}

static int read_run(void *arg, uint64_t address, int64_t off, int64_t len, struct ptc_error *err)
{
	struct reading *r = arg;
	struct ptc_capture_scratch *h = r->f->scratch;
	int rc = 0;

	while (!rc && len > 0) {
		size_t now = (size_t)PTC_MIN(len, (int64_t)(PTC_CAPTURE_MAX_BYTES - h->used));
		struct iovec to = { h->buffer + h->used, now };

		rc = ptc_iov_batch_add(&h->iov_batch, address, &to, 1, 0, (int64_t)now, err);
		h->parts[h->nparts++] = (struct ptc_capture_part){ h->used, now, off };
		h->used += now;
		address += now;
		off += (int64_t)now;
		len -= (int64_t)now;
		if (!rc && (h->nparts == PTC_CAPTURE_MAX_PARTS || h->used == PTC_CAPTURE_MAX_BYTES))
			rc = read_flush(r, err);
	}
	return rc;
}

/* The source's bytes of part; places are those in box. */
static int read_part(struct reading *r, const struct ptc_box *box, const struct ptc_box *part, struct ptc_error *err)
{
	int rc;

	r->f->scratch->iov_batch.way = PTC_COPY_READ;
	rc = ptc_strided_runs(&r->f->source->at, box, part, read_run, r, err);
	return rc ? rc : read_flush(r, err);
}

/* Merges them into the copied bytes. Runs, and spans of extents, are of whole elements. */
static int take_max(struct reading *r, const struct ptc_capture_part *part, struct ptc_error *err)
{
	const struct fill *f = r->f;
	const uint8_t *theirs = f->scratch->buffer + part->off, *end = theirs + part->len;
	enum ptc_dtype dtype = ptc_item_dtype(f->c->g->spec, f->box->item);
	size_t size = ptc_dtype_bits(dtype) / 8, at = (size_t)part->at;

	for (int i = 0; i < f->nspans && theirs < end; i++) {
		const struct iovec *span = &f->spans[i];
		size_t now = at < span->iov_len ? PTC_MIN(span->iov_len - at, (size_t)(end - theirs)) : 0;

		if (ptc_fails(now % size == 0))
			return ptc_error_set(err, PTC_EINTERNAL, "internal error: a copy would cut an element in two");
		if (now)
			ptc_max_take(dtype, theirs, now / size, (uint8_t *)span->iov_base + at);
		theirs += now;
		at = now ? 0 : at - span->iov_len;
	}
	return 0;
}

/* ---- replicas that differ, for a request that lists them ---- */

static int take_digest(struct reading *r, const struct ptc_capture_part *part, struct ptc_error *err)
{
	(void)err;
	r->sum ^= ptc_digest_shift(ptc_digest_run(r->f->scratch->buffer + part->off, part->len),
				   (uint64_t)(r->total - part->at - (int64_t)part->len));
	return 0;
}

/* By what the digests of the rank's bytes and of ours differ. A digest of a box is the XOR of those of its parts. */
static int difference(const struct fill *f, const struct ptc_box *part, uint64_t *ret, struct ptc_error *err)
{
	struct reading r = { .f = f, .take = take_digest };
	struct ptc_box whole = { 0 };
	int64_t shape[PTC_MAX_DIMS];
	uint64_t ours = 0;
	uint32_t ndim;
	int rc = ptc_geometry_shape(f->c->g, f->box->item, &ndim, shape, err);

	whole.ndim = rc ? 0 : ndim;
	for (uint32_t k = 0; k < whole.ndim; k++)
		whole.ext[k] = shape[k];
	r.total = rc ? 0 : ptc_box_volume(&whole);
	if (!rc)
		rc = read_part(&r, &whole, part, err);
	if (!rc)
		rc = ptc_table_digest_extent(f->table, f->extent, part, ndim, shape, &ours, err);
	*ret = ours ^ r.sum;
	return rc;
}

/* Whether it is to be listed that the rank of the source differs in that box. */
static bool wants(const struct fill *f, uint32_t need)
{
	bool wanted;

	pthread_mutex_lock(&f->c->differing.lock);
	wanted = ptc_differing_wants(&f->c->differing.list, rank_of(f, f->source), need);
	pthread_mutex_unlock(&f->c->differing.lock);
	return wanted;
}

static int note_difference(const struct fill *f, uint32_t need, uint64_t by, struct ptc_error *err)
{
	int rc;

	pthread_mutex_lock(&f->c->differing.lock);
	rc = ptc_differing_note(&f->c->differing.list, rank_of(f, f->source), f->box->item, need, by, err);
	pthread_mutex_unlock(&f->c->differing.lock);
	return rc;
}

/* The part of the source that is not as ours. */
static int list_differing(const struct fill *f, const struct ptc_box *part, struct ptc_error *err)
{
	const struct ptc_needs *needs = f->c->needs;
	struct ptc_box cut;
	uint64_t by;
	int rc = 0;

	if (f->table != f->c->table) /* parts that other nodes merge have no replicas */
		return 0;
	for (uint32_t i = 0; !rc && i < needs->n; i++) {
		if (needs->v[i].item != f->box->item || !ptc_box_intersect(&needs->v[i].box, part, &cut) ||
		    !wants(f, i))
			continue;
		rc = difference(f, &cut, &by, err);
		if (!rc)
			rc = note_difference(f, i, by, err);
	}
	return rc;
}

/* The source of the bytes of part: the first that has any of it. */
static int differ(const struct fill *f, const struct ptc_box *part, struct ptc_error *err)
{
	const struct ptc_slot_source *first = &f->c->sources.v[first_source(&f->c->sources, f->box->item)];
	char name[PTC_TENSOR_NAME_MAX + 1];
	struct ptc_box common;

	if (f->c->req->list_differing)
		return list_differing(f, part, err);
	while (first < f->source && !ptc_box_intersect(&first->at.box, part, &common))
		first++;
	return ptc_error_set(
		err, PTC_EDIGEST,
		"tensor \"%.600s\": ranks %u and %u hold the same part of it with different bytes; replicas "
		"must be equal",
		item_name(f, name), rank_of(f, first), rank_of(f, f->source));
}

/* Copies the parts of left that the source has, and takes them away from left. */
static int copy_parts(struct fill *f, struct ptc_boxes *left, struct ptc_error *err)
{
	const struct ptc_strided *at = &f->source->at;
	struct ptc_boxes rest = { 0 };
	struct ptc_box cut;
	int rc = 0;

	f->scratch->iov_batch.slot = &f->c->group.v[f->source->slot];
	f->scratch->iov_batch.pages = f->pages;
	for (size_t i = 0; !rc && i < left->n; i++) {
		if (ptc_box_intersect(&left->v[i], &at->box, &cut)) {
			rc = ptc_strided_runs(at, &f->box->box, &cut, copy_run, f, err);
			atomic_fetch_add(&f->c->copied, ptc_box_volume(&cut));
		}
		if (!rc && ptc_box_subtract(&left->v[i], &at->box, &rest))
			rc = ptc_nomem(err);
	}
	if (rc == 0)
		rc = ptc_iov_batch_flush(&f->scratch->iov_batch, err);
	ptc_boxes_done(left);
	*left = rest;
	return rc;
}

/* The part of cut that was copied before and that must equal the source's. For a secondary source, that is only bytes
 * that no primary has given. */
static int to_compare(const struct fill *f, const struct ptc_box *cut, const struct ptc_boxes *left,
		      struct ptc_boxes *out)
{
	struct ptc_boxes some = { 0 };
	int rc = ptc_boxes_missing(cut, left->v, left->n, f->source->secondary ? &some : out);

	for (size_t i = 0; !rc && i < some.n; i++)
		rc = ptc_boxes_missing(&some.v[i], f->primary.v, f->primary.n, out);
	ptc_boxes_done(&some);
	return rc;
}

static int compare_part(struct fill *f, const struct ptc_box *part, struct ptc_error *err)
{
	const struct ptc_strided *at = &f->source->at;
	struct ptc_iov_batch *m = &f->scratch->iov_batch;
	int rc;

	if (f->source->max)
		return read_part(&(struct reading){ .f = f, .take = take_max }, &f->box->box, part, err);
	m->way = PTC_COPY_COMPARE;
	rc = ptc_strided_runs(at, &f->box->box, part, copy_run, f, err);
	if (rc == 0)
		rc = ptc_iov_batch_flush(m, err);
	m->way = PTC_COPY_READ;
	return rc == PTC_EDIGEST ? differ(f, part, err) : rc;
}

/* Compares the source's bytes of the extent with those that were copied before, which are all but `left`. */
static int compare_parts(struct fill *f, const struct ptc_boxes *left, struct ptc_error *err)
{
	struct ptc_boxes parts = { 0 };
	struct ptc_box cut;
	int rc = 0;

	if (!ptc_box_intersect(f->slice, &f->source->at.box, &cut))
		return 0;
	if (to_compare(f, &cut, left, &parts))
		rc = ptc_nomem(err);
	f->scratch->iov_batch.slot = &f->c->group.v[f->source->slot];
	f->scratch->iov_batch.pages = PTC_PAGES_MAPPED;
	for (size_t i = 0; !rc && i < parts.n; i++)
		rc = compare_part(f, &parts.v[i], err);
	ptc_boxes_done(&parts);
	return rc;
}

static int fill_sources(struct fill *f, struct ptc_error *err)
{
	const struct ptc_slot_sources *s = &f->c->sources;
	struct ptc_boxes left = { 0 };
	char name[PTC_TENSOR_NAME_MAX + 1];
	int rc = ptc_boxes_push(&left, f->slice);

	f->source = NULL;

	if (rc)
		rc = ptc_nomem(err);
	for (size_t i = first_source(s, f->box->item); !rc && i < s->n && s->v[i].item == f->box->item; i++) {
		if (s->v[i].secondary && !(f->source && f->source->secondary) &&
		    ptc_boxes_missing(f->slice, left.v, left.n, &f->primary)) {
			rc = ptc_nomem(err);
			break;
		}
		f->source = &s->v[i];
		rc = compare_parts(f, &left, err);
		rc = rc || !left.n ? rc : copy_parts(f, &left, err);
	}
	if (!rc && left.n)
		rc = ptc_error_set(err, PTC_EINTERNAL,
				   "tensor \"%.600s\": no rank here holds a part that this node needs",
				   item_name(f, name));
	ptc_boxes_done(&left);
	ptc_boxes_done(&f->primary);
	return rc;
}

/* bytes: of the extent, up to the end of the slice. */
static int digest_slice(const struct fill *f, int64_t bytes, struct ptc_error *err)
{
	const struct ptc_digest_fill d = { f->c->table, f->c->g, f->c->needs, f->c->digests }; /* nothing of parts */

	ptc_table_extent_ready(f->c->table, f->extent, 0, bytes - ptc_box_volume(f->slice), bytes);
	return ptc_captured_digest(f->c->captured, &d, f->extent, f->box->item, f->slice, err);
}

static int each_slice(struct fill *f, bool copy, bool digest, struct ptc_error *err)
{
	struct ptc_boxes slices = { 0 };
	int64_t bytes = 0;
	int rc = 0;

	if (ptc_box_chop(&f->box->box, PTC_CAPTURE_SLICE, &slices))
		rc = ptc_nomem(err);
	for (size_t i = 0; !rc && i < slices.n; i++) {
		f->slice = &slices.v[i];
		bytes += ptc_box_volume(f->slice);
		rc = copy ? fill_sources(f, err) : 0;
		rc = rc || !digest ? rc : digest_slice(f, bytes, err);
	}
	ptc_boxes_done(&slices);
	return rc;
}

static struct fill task_of(struct ptc_capture *c, size_t i)
{
	size_t whole = c->missing.n - c->nown - c->nremote, k = i - PTC_MIN(i, whole);

	if (i >= whole && k < c->exposed.n)
		return (struct fill){
			.c = c, .table = c->parts, .box = &c->exposed.v[k], .extent = c->exposed_extents[k]
		};
	k = i < whole ? i : i - c->exposed.n;
	return (struct fill){ .c = c,
			      .table = c->table,
			      .box = &c->missing.v[k],
			      .extent = c->extents[k],
			      .own = k >= whole && k < whole + c->nown };
}

static enum ptc_copy_pages pages_of(const struct fill *f)
{
	bool there;

	if (!ptc_table_extent_fresh(f->table, f->extent, atomic_load(&f->c->copying.slots.copier), &there))
		return PTC_PAGES_MAPPED;
	return there ? PTC_PAGES_THERE : PTC_PAGES_NEW;
}

bool ptc_capture_from_shadow(const struct ptc_capture *c, size_t i)
{
	const struct ptc_slot_sources *s = &c->sources;
	uint32_t item = task_of((struct ptc_capture *)(uintptr_t)c, i).box->item;

	for (size_t k = first_source(s, item); k < s->n && s->v[k].item == item; k++)
		if (!ptc_slot_has_shadow(&c->group.v[s->v[k].slot], s->v[k].at.address))
			return false;
	return true;
}

int ptc_capture_fill(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct ptc_capture *c = arg;
	struct fill f = task_of(c, c->order ? c->order[c->fill_from + i] : i);
	int rc;

	f.scratch = &c->scratch[thread];
	f.nspans = ptc_table_extent_iov(f.table, f.extent, 0, ptc_box_volume(&f.box->box), f.spans,
					PTC_ARRAY_LEN(f.spans));
	if (f.nspans < 0)
		return ptc_error_set(err, f.nspans,
				     "tensor bytes cannot be written to the store: their extent is not open");
	if (c->staged) /* then it is us who write it */
		ptc_table_extent_map(f.table, f.extent);
	else
		f.pages = pages_of(&f);
	f.scratch->iov_batch.nremote = f.scratch->iov_batch.nlocal = f.scratch->iov_batch.bytes = 0;
	f.scratch->iov_batch.way = PTC_COPY_READ;
	f.scratch->nparts = f.scratch->used = 0;
	rc = each_slice(&f, true, !c->req->release && !f.own && f.table == c->table, err);
	if (!rc && ptc_fault("agent.capture.middle"))
		rc = ptc_error_set(err, PTC_EIO, "injected failure in the middle of a snapshot");
	/* Ranks that wait for the end of the copy are not kept waiting for digests and checksums. */
	return rc || c->req->release || f.own ? rc : ptc_table_filled(f.table, f.extent, err);
}

int ptc_capture_mark(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct ptc_capture *c = arg;
	struct fill f = task_of(c, c->mark_from + i);
	int rc = f.table == c->table ? each_slice(&f, false, true, err) : 0;

	return rc ? rc : ptc_table_filled(f.table, f.extent, err);
}
