/* SPDX-License-Identifier: Apache-2.0 */
/* Capture: a snapshot from ranks that wait at a boundary. Happy path: memory
 * is reserved for what this node holds under the generation; a few threads
 * fill an extent each, slice by slice: straight from the memory of the lowest
 * rank that has it, compared with what other ranks here hold of the same bytes
 * (but for replicas that do not count by a rule, where one that does is here),
 * digested (after the ranks may go on, where they wait only for the copy);
 * where by a rule the greatest counts it is taken of all of them, here and then
 * of what other nodes hold (reduce.c);
 * what by a rule only other nodes have as it counts is fetched from
 * there (away.c); checksums, seal. One copy of each byte is made. Ranks that
 * have copied their memory themselves (copy: fast) may go on before all that.
 * Failure modes: ranks that do not wait at that step, or have declared other
 * than the layout (PTC_ESTATE, PTC_ELAYOUT) or what has no greatest, memory (PTC_ENOSPC before
 * anything is copied), replicas that differ (PTC_EDIGEST naming tensor and
 * ranks), a rank that dies meanwhile (whatever its memory says). What was
 * begun is dropped then.
 *
 * A table of that name may be left from an attempt at another step: it is only
 * believed when a note in the store says that it was made for this very request;
 * else it is made anew. */
#include "daemon/agent/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/search.h"
#include "reshard/max.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPARE_BYTES (256u << 10)
#define COMPARE_PARTS 1024

struct differ {
	size_t off, len;
	uint8_t *ours;
};

/* Of one thread. */
struct hand {
	struct ptc_mover mover;
	uint8_t *buffer; /* what a replica holds ... */
	size_t used;
	struct differ parts[COMPARE_PARTS]; /* ... and what it must be equal to, or what becomes the greater of both */
	size_t nparts;
};

struct capture {
	struct ptc_agent *agent;
	struct ptc_agent_op op;
	struct ptc_rpc_call *call;
	const Ptc__V1__CaptureRequest *req;
	struct ptc_geometry_ref *ref;
	const struct ptc_geometry *g;
	uint32_t self;
	struct ptc_needs needs;
	struct ptc_table_key key;
	struct ptc_table *table;
	struct ptc_group group;
	struct ptc_seat_sources sources;
	struct ptc_away away;
	struct ptc_reduce reduce;
	struct ptc_store_boxes missing; /* the last are what is merged here, and then what is away */
	uint32_t *extents;
	struct ptc_table *parts; /* NULL: nothing is lent */
	struct ptc_store_boxes lent;
	uint32_t *lent_extents;
	size_t mark_from; /* of tasks, see task_of */
	uint64_t fetched;
	struct hand *hands;
	unsigned nhands;
	uint64_t ticket;
	bool broken; /* progress could not be sent */
	_Atomic int64_t copied, compared;
	uint64_t *digests; /* of each need; complete when all extents have been through */
	void *ranks;       /* encoded */
	size_t ranks_len;
};

/* ---- answers given before ----
 *
 * A note in the store, so that they can be given again after the ranks went on, and by a daemon that was started anew: for
 * which request the table was made, and what the ranks carried. Written before the seal, so that a sealed table always has
 * its own. */

#define NOTE      "capture"
#define NOTE_HEAD (4 * sizeof(uint64_t))

static void note_head(const struct capture *c, uint64_t head[4])
{
	head[0] = c->req->info->id;
	head[1] = c->req->step;
	head[2] = c->key.generation;
	head[3] = c->key.snapshot;
}

static int captured_write(const struct capture *c, struct ptc_error *err)
{
	uint8_t *note = ptc_malloc(NOTE_HEAD + c->ranks_len);
	uint64_t head[4];
	int r;

	if (!note)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for the state of ranks");
	note_head(c, head);
	memcpy(note, head, NOTE_HEAD);
	memcpy(note + NOTE_HEAD, c->ranks, c->ranks_len);
	r = ptc_store_note_put(c->agent->env.store, c->key.uuid, NOTE, note, NOTE_HEAD + c->ranks_len, err);
	ptc_free(note);
	return r;
}

/* What the ranks carried when this very request was answered. PTC_ENOTFOUND: it was not. */
static int captured_read(struct capture *c, struct ptc_error *err)
{
	uint64_t head[4];
	uint8_t *note;
	size_t len;
	int r = ptc_store_note_get(c->agent->env.store, c->key.uuid, NOTE, (void **)&note, &len, err);

	if (r)
		return r;
	note_head(c, head);
	if (len < NOTE_HEAD || memcmp(note, head, NOTE_HEAD) != 0) {
		ptc_free(note);
		return ptc_error_set(err, PTC_ENOTFOUND, "the last capture was another one");
	}
	memmove(note, note + NOTE_HEAD, len - NOTE_HEAD);
	c->ranks = note;
	c->ranks_len = len - NOTE_HEAD;
	return 0;
}

/* ---- what ranks carry beside tensors ---- */

struct carried {
	Ptc__V1__PullReply reply;
	Ptc__V1__RankState *ranks, **rank_list;
	Ptc__V1__Blob *blobs, **blob_list;
	Ptc__V1__Cursor *cursors, **cursor_list;
};

static void carried_done(struct carried *s)
{
	ptc_free(s->ranks);
	ptc_free(s->rank_list);
	ptc_free(s->blobs);
	ptc_free(s->blob_list);
	ptc_free(s->cursors);
	ptc_free(s->cursor_list);
}

static int carried_alloc(struct carried *s, const struct ptc_group *g, struct ptc_error *err)
{
	size_t blobs = 1, cursors = 1, n = g->n ? g->n : 1;

	for (size_t i = 0; i < g->n; i++) {
		blobs += g->v[i].nblobs;
		cursors += g->v[i].ncursors;
	}
	s->ranks = ptc_calloc(n, sizeof(*s->ranks));
	s->rank_list = ptc_calloc(n, sizeof(*s->rank_list));
	s->blobs = ptc_calloc(blobs, sizeof(*s->blobs));
	s->blob_list = ptc_calloc(blobs, sizeof(*s->blob_list));
	s->cursors = ptc_calloc(cursors, sizeof(*s->cursors));
	s->cursor_list = ptc_calloc(cursors, sizeof(*s->cursor_list));
	if (!s->ranks || !s->rank_list || !s->blobs || !s->blob_list || !s->cursors || !s->cursor_list)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for the state of %zu ranks", g->n);
	return 0;
}

static void carried_fill(struct carried *s, const struct ptc_group *g)
{
	size_t nb = 0, nc = 0;

	ptc__v1__pull_reply__init(&s->reply);
	s->reply.ranks = s->rank_list;
	s->reply.n_ranks = g->n;
	for (size_t i = 0; i < g->n; i++) {
		const struct ptc_seat_view *seat = &g->v[i];
		Ptc__V1__RankState *to = s->rank_list[i] = &s->ranks[i];

		ptc__v1__rank_state__init(to);
		to->rank = seat->rank.rank;
		to->blobs = s->blob_list + nb;
		to->n_blobs = seat->nblobs;
		to->cursors = s->cursor_list + nc;
		to->n_cursors = seat->ncursors;
		for (size_t k = 0; k < seat->nblobs; k++, nb++) {
			ptc__v1__blob__init(s->blob_list[nb] = &s->blobs[nb]);
			s->blobs[nb].name = seat->blobs[k].name;
			s->blobs[nb].scope = (uint32_t)seat->blobs[k].scope;
			s->blobs[nb].data = (ProtobufCBinaryData){ seat->blobs[k].len, seat->blobs[k].data };
		}
		for (size_t k = 0; k < seat->ncursors; k++, nc++) {
			ptc__v1__cursor__init(s->cursor_list[nc] = &s->cursors[nc]);
			s->cursors[nc].name = seat->cursors[k].name;
			s->cursors[nc].position = seat->cursors[k].position;
			s->cursors[nc].tag = seat->cursors[k].tag;
		}
	}
}

static int carried_encode(struct capture *c, struct ptc_error *err)
{
	struct carried s = { 0 };
	int r = carried_alloc(&s, &c->group, err);

	if (!r) {
		carried_fill(&s, &c->group);
		r = ptc_pb_encode(&s.reply.base, &c->ranks, &c->ranks_len, err);
	}
	carried_done(&s);
	return r;
}

/* ---- filling one extent ---- */

struct fill {
	struct capture *c;
	struct hand *hand;
	struct ptc_table *table;
	const struct ptc_store_box *box; /* the extent's */
	uint32_t extent;
	bool own;                    /* there is more to come, from other nodes */
	const struct ptc_box *slice; /* of box, that is being filled */
	struct iovec spans[PTC_EXTENT_SPANS];
	int nspans;
	const struct ptc_seat_source *source;
	struct ptc_boxes
		primary; /* parts of the slice that sources have given which count; complete when secondary ones come */
};

static const char *item_name(const struct fill *f, char name[PTC_TENSOR_NAME_MAX + 1])
{
	return ptc_geometry_item_name(f->c->g, f->box->item, name, PTC_TENSOR_NAME_MAX + 1);
}

static uint32_t rank_of(const struct fill *f, const struct ptc_seat_source *s)
{
	return f->c->group.v[s->seat].rank.rank;
}

static int copy_run(void *arg, uint64_t address, int64_t off, int64_t len, struct ptc_error *err)
{
	struct fill *f = arg;

	return ptc_mover_add(&f->hand->mover, address, f->spans, f->nspans, off, len, err);
}

static size_t first_source(const struct ptc_seat_sources *s, uint32_t item)
{
	return PTC_SEARCH(struct ptc_seat_source, item, s->v, s->n, item);
}

/* The source of the bytes of part: the first that has any of it. */
static int differ(const struct fill *f, const struct ptc_box *part, struct ptc_error *err)
{
	const struct ptc_seat_source *first = &f->c->sources.v[first_source(&f->c->sources, f->box->item)];
	char name[PTC_TENSOR_NAME_MAX + 1];
	struct ptc_box common;

	while (first < f->source && !ptc_box_intersect(&first->at.box, part, &common))
		first++;
	return ptc_error_set(
		err, PTC_EDIGEST,
		"tensor \"%.600s\": ranks %u and %u hold the same part of it with different bytes; replicas "
		"must be equal",
		item_name(f, name), rank_of(f, first), rank_of(f, f->source));
}

struct comparison {
	struct fill *f;
	const struct ptc_box *part;
};

/* Runs, and spans of extents, are of whole elements. */
static int take_max(const struct comparison *x, const struct differ *part, struct ptc_error *err)
{
	enum ptc_dtype dtype = ptc_item_dtype(x->f->c->g->spec, x->f->box->item);
	size_t size = ptc_dtype_bits(dtype) / 8;

	if (ptc_fails(part->len % size == 0))
		return ptc_error_set(err, PTC_EINTERNAL, "a run inside an element");
	ptc_max_take(dtype, x->f->hand->buffer + part->off, part->len / size, part->ours);
	return 0;
}

/* What was read of a replica against what was copied, or into it. */
static int compare_flush(const struct comparison *x, struct ptc_error *err)
{
	struct hand *h = x->f->hand;
	int r = ptc_mover_flush(&h->mover, err);

	for (size_t i = 0; !r && i < h->nparts; i++)
		if (x->f->source->max)
			r = take_max(x, &h->parts[i], err);
		else if (memcmp(h->buffer + h->parts[i].off, h->parts[i].ours, h->parts[i].len))
			r = differ(x->f, x->part, err);
	h->nparts = h->used = 0;
	return r;
}

static int compare_run(void *arg, uint64_t address, int64_t off, int64_t len, struct ptc_error *err)
{
	const struct comparison *x = arg;
	const struct fill *f = x->f;
	struct hand *h = f->hand;

	for (int i = 0; i < f->nspans && len > 0; off -= (int64_t)f->spans[i++].iov_len) {
		int64_t has = (int64_t)f->spans[i].iov_len;

		while (off < has && len > 0) {
			size_t now = (size_t)PTC_MIN(PTC_MIN(has - off, len), (int64_t)(COMPARE_BYTES - h->used));
			struct iovec to = { h->buffer + h->used, now };
			int r = ptc_mover_add(&h->mover, address, &to, 1, 0, (int64_t)now, err);

			h->parts[h->nparts++] = (struct differ){ h->used, now, (uint8_t *)f->spans[i].iov_base + off };
			h->used += now;
			address += now;
			off += (int64_t)now;
			len -= (int64_t)now;
			if (!r && (h->nparts == COMPARE_PARTS || h->used == COMPARE_BYTES))
				r = compare_flush(x, err);
			if (r)
				return r;
		}
	}
	return 0;
}

/* Copies the parts of left that the source has, and takes them away from left. */
static int copy_parts(struct fill *f, struct ptc_boxes *left, struct ptc_error *err)
{
	const struct ptc_placed *at = &f->source->at;
	struct ptc_boxes rest = { 0 };
	struct ptc_box cut;
	int r = 0;

	f->hand->mover.seat = &f->c->group.v[f->source->seat];
	for (size_t i = 0; !r && i < left->n; i++) {
		if (ptc_box_intersect(&left->v[i], &at->box, &cut)) {
			r = ptc_placed_runs(at, &f->box->box, &cut, copy_run, f, err);
			atomic_fetch_add(&f->c->copied, ptc_box_volume(&cut));
		}
		if (!r && ptc_box_subtract(&left->v[i], &at->box, &rest))
			r = ptc_error_set(err, PTC_ENOMEM, "no memory to take a snapshot");
	}
	r = r ? r : ptc_mover_flush(&f->hand->mover, err);
	ptc_boxes_done(left);
	*left = rest;
	return r;
}

/* What of cut was copied before and must be what the source has: of a secondary one only what no primary has given. */
static int to_compare(const struct fill *f, const struct ptc_box *cut, const struct ptc_boxes *left,
		      struct ptc_boxes *out)
{
	struct ptc_boxes some = { 0 };
	int r = ptc_boxes_missing(cut, left->v, left->n, f->source->secondary ? &some : out);

	for (size_t i = 0; !r && i < some.n; i++)
		r = ptc_boxes_missing(&some.v[i], f->primary.v, f->primary.n, out);
	ptc_boxes_done(&some);
	return r;
}

/* Compares what the source has of the extent and what was copied before, which is all but left. */
static int compare_parts(struct fill *f, const struct ptc_boxes *left, struct ptc_error *err)
{
	struct ptc_boxes parts = { 0 };
	struct ptc_box cut;
	int r = 0;

	if (!ptc_box_intersect(f->slice, &f->source->at.box, &cut))
		return 0;
	if (to_compare(f, &cut, left, &parts))
		r = ptc_error_set(err, PTC_ENOMEM, "no memory to compare replicas");
	f->hand->mover.seat = &f->c->group.v[f->source->seat];
	for (size_t i = 0; !r && i < parts.n; i++) {
		struct comparison x = { f, &parts.v[i] };

		r = ptc_placed_runs(&f->source->at, &f->box->box, &parts.v[i], compare_run, &x, err);
		r = r ? r : compare_flush(&x, err);
		atomic_fetch_add(&f->c->compared, ptc_box_volume(&parts.v[i]));
	}
	ptc_boxes_done(&parts);
	return r;
}

static int fill_sources(struct fill *f, struct ptc_error *err)
{
	const struct ptc_seat_sources *s = &f->c->sources;
	struct ptc_boxes left = { 0 };
	char name[PTC_TENSOR_NAME_MAX + 1];
	int r = ptc_boxes_push(&left, f->slice);

	f->source = NULL;

	if (r)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory to take a snapshot");
	for (size_t i = first_source(s, f->box->item); !r && i < s->n && s->v[i].item == f->box->item; i++) {
		if (s->v[i].secondary && !(f->source && f->source->secondary) &&
		    ptc_boxes_missing(f->slice, left.v, left.n, &f->primary)) {
			r = ptc_error_set(err, PTC_ENOMEM, "no memory to compare replicas");
			break;
		}
		f->source = &s->v[i];
		r = compare_parts(f, &left, err);
		r = r || !left.n ? r : copy_parts(f, &left, err);
	}
	if (!r && left.n)
		r = ptc_error_set(err, PTC_EINTERNAL,
				  "tensor \"%.600s\": no rank here holds a part that this node needs",
				  item_name(f, name));
	ptc_boxes_done(&left);
	ptc_boxes_done(&f->primary);
	return r;
}

/* bytes: of the extent, up to the end of the slice. */
static int digest_slice(const struct fill *f, int64_t bytes, struct ptc_error *err)
{
	const struct ptc_digest_fill d = { f->c->table, f->c->g, &f->c->needs, f->c->digests }; /* nothing of parts */

	ptc_table_extent_ready(f->c->table, f->extent, 0, bytes);
	return ptc_digest_part(&d, f->extent, f->box->item, f->slice, err);
}

static int each_slice(struct fill *f, bool copy, bool digest, struct ptc_error *err)
{
	struct ptc_boxes slices = { 0 };
	int64_t bytes = 0;
	int r = 0;

	if (ptc_box_chop(&f->box->box, PTC_DIGEST_SLICE, &slices))
		r = ptc_error_set(err, PTC_ENOMEM, "no memory to take a snapshot");
	for (size_t i = 0; !r && i < slices.n; i++) {
		f->slice = &slices.v[i];
		bytes += ptc_box_volume(f->slice);
		r = copy ? fill_sources(f, err) : 0;
		r = r || !digest ? r : digest_slice(f, bytes, err);
	}
	ptc_boxes_done(&slices);
	return r;
}

/* Tasks are what is all here, what is lent, what is merged here, what is away. */
static struct fill task_of(struct capture *c, size_t i)
{
	size_t whole = c->missing.n - c->reduce.own.nboxes - c->away.nboxes, k = i - PTC_MIN(i, whole);

	if (i >= whole && k < c->lent.n)
		return (struct fill){ .c = c, .table = c->parts, .box = &c->lent.v[k], .extent = c->lent_extents[k] };
	k = i < whole ? i : i - c->lent.n;
	return (struct fill){ .c = c,
			      .table = c->table,
			      .box = &c->missing.v[k],
			      .extent = c->extents[k],
			      .own = k >= whole && k < whole + c->reduce.own.nboxes };
}

static int fill_extent(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct capture *c = arg;
	struct fill f = task_of(c, i);
	int r;

	f.hand = &c->hands[thread];
	f.nspans = ptc_table_extent_iov(f.table, f.extent, 0, ptc_box_volume(&f.box->box), f.spans,
					PTC_ARRAY_LEN(f.spans));
	if (f.nspans < 0)
		return ptc_error_set(err, f.nspans, "an extent that cannot be filled");
	ptc_table_extent_map(f.table, f.extent);
	f.hand->mover.nremote = f.hand->mover.nlocal = f.hand->mover.bytes = 0;
	f.hand->nparts = f.hand->used = 0;
	r = each_slice(&f, true, !c->req->release && !f.own && f.table == c->table, err);
	if (!r && ptc_fault("agent.capture.middle"))
		r = ptc_error_set(err, PTC_EIO, "injected failure in the middle of a snapshot");
	/* Ranks that wait for the end of the copy are not kept waiting for digests and checksums. */
	return r || c->req->release || f.own ? r : ptc_table_filled(f.table, f.extent, err);
}

static int mark_extent(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct capture *c = arg;
	struct fill f = task_of(c, c->mark_from + i);
	int r = f.table == c->table ? each_slice(&f, false, true, err) : 0;

	return r ? r : ptc_table_filled(f.table, f.extent, err);
}

/* ---- which replicas count ---- */

static int by_item(const void *a, const void *b)
{
	const struct ptc_seat_source *x = a, *y = b;

	if (x->item != y->item)
		return x->item < y->item ? -1 : 1;
	if (x->secondary != y->secondary)
		return x->secondary ? 1 : -1;
	return x->seat < y->seat ? -1 : x->seat > y->seat;
}

/* Says which sources are secondary, which come after the others then, and of which the greatest counts. */
static int rank_sources(struct capture *c, const struct ptc_spec *rules, struct ptc_error *err)
{
	const struct ptc_config *config = ptc_layout_config(c->g->layout);
	const struct ptc_rule *rule = NULL;
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

	for (size_t i = 0; i < c->sources.n; i++) {
		struct ptc_seat_source *s = &c->sources.v[i];

		if (!i || s->item != s[-1].item) {
			int r;

			rule = ptc_spec_rule_named(rules, ptc_geometry_item_name(c->g, s->item, name, sizeof(name)));
			r = ptc_rule_check_max(rule, name, ptc_item_dtype(c->g->spec, s->item), err);
			if (r)
				return r;
		}
		s->secondary = !ptc_rule_is_primary(rule, config, c->group.v[s->seat].rank.rank);
		s->max = ptc_rule_takes_max(rule);
	}
	if (c->sources.n > 1)
		qsort(c->sources.v, c->sources.n, sizeof(*c->sources.v), by_item);
	return 0;
}

static int sources_make(struct capture *c, struct ptc_error *err)
{
	const struct ptc_agent_env *env = &c->agent->env;
	const struct ptc_job_desc *job;
	void *ref;
	int r = ptc_seat_sources_make(c->g, &c->group, &c->sources, err);

	if (r || !env->job_get)
		return r;
	r = env->job_get(env->arg, c->req->info->uuid, c->req->info->spec_hash, &job, &ref, err);
	if (r)
		return r;
	if (job->spec.nrules) {
		r = rank_sources(c, &job->spec, err);
		r = r ? r : ptc_away_find(c->g, &job->spec, c->self, &c->needs, &c->away, &c->reduce, err);
	}
	env->job_release(env->arg, ref);
	return r;
}

/* ---- the whole ---- */

static bool capture_stop(void *arg)
{
	struct capture *c = arg;

	return c->broken || ptc_agent_op_stopped(&c->op);
}

static void capture_tick(void *arg)
{
	struct capture *c = arg;
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;

	reply.version = PTC_WIRE_VERSION;
	reply.bytes_done = (uint64_t)PTC_MIN(atomic_load(&c->copied), c->needs.bytes);
	reply.bytes_total = (uint64_t)c->needs.bytes;
	reply.copied_bytes = (uint64_t)atomic_load(&c->copied);
	c->broken = ptc_agent_reply(c->call, &reply.base, NULL) != 0;
}

static int crew_run(struct capture *c, int (*run)(void *, unsigned, size_t, struct ptc_error *), size_t ntasks,
		    struct ptc_error *err)
{
	struct ptc_crew crew = { .ntasks = ntasks,
				 .threads = c->nhands,
				 .run = run,
				 .stop = capture_stop,
				 .tick = capture_tick,
				 .arg = c,
				 .what = "copying ranks" };

	return ptc_crew_run(&crew, err);
}

static int seats_check(const struct capture *c, struct ptc_error *err)
{
	for (size_t i = 0; i < c->group.n; i++) {
		const struct ptc_seat_view *s = &c->group.v[i];

		if (s->state != PTC_SEAT_STOPPED || s->step != c->req->step)
			return ptc_error_set(err, PTC_ESTATE,
					     "rank %u does not wait at step %llu (it is in state %d at step %llu)",
					     s->rank.rank, (unsigned long long)c->req->step, (int)s->state,
					     (unsigned long long)s->step);
	}
	return 0;
}

static int extents_reserve(struct capture *c, struct ptc_table *table, const struct ptc_store_boxes *boxes,
			   int64_t new_bytes, uint32_t **ret, struct ptc_error *err)
{
	int r = ptc_agent_memory_check(c->agent, new_bytes, err);

	if (r)
		return r;
	*ret = ptc_reallocarray(NULL, boxes->n ? boxes->n : 1, sizeof(**ret));
	if (!*ret)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu extents", boxes->n);
	return boxes->n ? ptc_table_reserve(table, boxes->v, boxes->n, *ret, err) : 0;
}

/* For what others merge. */
static int reserve_parts(struct capture *c, struct ptc_error *err)
{
	const struct ptc_away *parts = &c->reduce.parts;
	struct ptc_table_key key = ptc_reduce_key(&c->key, c->req->info->id, c->req->info->from->launch, c->req->step);
	struct ptc_store_box *boxes;
	int64_t new_bytes = 0;
	int r;

	if (!parts->n)
		return 0;
	boxes = ptc_reallocarray(NULL, parts->n, sizeof(*boxes));
	if (!boxes)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", parts->n);
	for (size_t i = 0; i < parts->n; i++)
		boxes[i] = (struct ptc_store_box){ parts->v[i].item, parts->v[i].box };
	r = ptc_table_begin(c->agent->env.store, &key, &c->parts, err);
	r = r ? r : ptc_table_derive(c->parts, NULL, NULL, boxes, parts->n, false, &c->lent, &new_bytes, err);
	ptc_free(boxes);
	return r ? r : extents_reserve(c, c->parts, &c->lent, new_bytes, &c->lent_extents, err);
}

static int drop(struct capture *c, struct ptc_error *err)
{
	int r = ptc_agent_table_drop(c->agent, &c->key, err);

	return r ? r : ptc_agent_parts_drop(c->agent, c->key.uuid, err);
}

/* Nothing is believed that may be there; all is reserved before anything is copied. */
static int reserve(struct capture *c, struct ptc_error *err)
{
	struct ptc_store_box *boxes = ptc_reallocarray(NULL, c->needs.n ? c->needs.n : 1, sizeof(*boxes));
	int64_t new_bytes = 0;
	size_t n = 0;
	int r = boxes ? drop(c, err) : ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", c->needs.n);

	for (size_t i = 0; !r && i < c->needs.n; i++)
		if (!ptc_box_empty(&c->needs.v[i].box))
			boxes[n++] = (struct ptc_store_box){ c->needs.v[i].item, c->needs.v[i].box };
	r = r ? r : ptc_table_begin(c->agent->env.store, &c->key, &c->table, err);
	r = r ? r : ptc_table_derive(c->table, NULL, NULL, boxes, n, false, &c->missing, &new_bytes, err);
	ptc_free(boxes);
	r = r ? r : ptc_away_split(&c->reduce.own, PTC_AWAY_TAKE_BYTES, &c->missing, err);
	r = r ? r : ptc_away_split(&c->away, PTC_EXTENT_MAX_BYTES, &c->missing, err);
	r = r ? r : extents_reserve(c, c->table, &c->missing, new_bytes, &c->extents, err);
	return r ? r : reserve_parts(c, err);
}

static int hands_make(struct capture *c, struct ptc_error *err)
{
	unsigned n = ptc_crew_size();
	int r;

	c->nhands = (unsigned)PTC_MAX(PTC_MIN((size_t)n, c->missing.n), 1u);
	r = ptc_pool_take(&c->agent->recv, (uint64_t)c->nhands * COMPARE_BYTES, ptc_agent_op_stopped, &c->op,
			  &c->ticket, err);
	if (r)
		return r;
	c->nhands = (unsigned)PTC_MAX(PTC_MIN(c->nhands, c->ticket / COMPARE_BYTES), 1u);
	c->hands = ptc_calloc(c->nhands, sizeof(*c->hands));
	for (unsigned i = 0; c->hands && i < c->nhands; i++)
		if (!(c->hands[i].buffer = ptc_malloc(COMPARE_BYTES)))
			return ptc_error_set(err, PTC_ENOMEM, "no memory to compare replicas");
	return c->hands ? 0 : ptc_error_set(err, PTC_ENOMEM, "no memory to take a snapshot");
}

static void hands_done(struct capture *c)
{
	for (unsigned i = 0; c->hands && i < c->nhands; i++)
		ptc_free(c->hands[i].buffer);
	ptc_free(c->hands);
	c->hands = NULL;
	if (c->ticket)
		ptc_pool_give(&c->agent->recv, c->ticket);
	c->ticket = 0;
}

/* All that is to be read is in staging memory: ranks are not kept waiting for anything. */
static bool all_staged(const struct capture *c)
{
	for (size_t i = 0; i < c->group.n; i++)
		if (!c->group.v[i].staged && c->group.v[i].ntensors)
			return false;
	return true;
}

static int release(struct capture *c, struct ptc_error *err)
{
	return ptc_workers_release(c->agent->env.workers, &c->group.key, err);
}

/* What others have gets to extents of missing, from the first on. g: names and addresses, and what is set here; it outlives the job. */
static void fetch_init(struct capture *c, struct ptc_geometry *g, uint64_t snapshot, size_t first,
		       struct ptc_away_fetch *ret)
{
	*g = *c->g; /* another snapshot of it */
	g->snapshot = snapshot;
	*ret = (struct ptc_away_fetch){ .agent = c->agent,
					.g = g,
					.table = c->table,
					.extents = c->extents + first,
					.stop = capture_stop,
					.tick = capture_tick,
					.arg = c };
}

/* Of what is merged here, what is here has been copied. */
static int merge_own(struct capture *c, size_t first, struct ptc_error *err)
{
	struct ptc_table_key key = ptc_reduce_key(&c->key, c->req->info->id, c->req->info->from->launch, c->req->step);
	struct ptc_away_fetch job;
	struct ptc_geometry g;
	uint64_t bytes = 0;
	int r;

	if (!c->reduce.own.nboxes)
		return 0;
	fetch_init(c, &g, key.snapshot, first, &job);
	r = ptc_reduce_merge(&c->reduce, &job, c->missing.v + first, &bytes, err);
	if (!r && ptc_fault("agent.capture.merged"))
		r = ptc_error_set(err, PTC_EIO, "injected failure when parts of replicas were merged");
	c->fetched += bytes;
	c->mark_from = first + c->lent.n;
	return r ? r : crew_run(c, mark_extent, c->reduce.own.nboxes, err);
}

/* All else is there for others to fetch. */
static int fetch_away(struct capture *c, size_t first, struct ptc_error *err)
{
	struct ptc_away_fetch job;
	struct ptc_geometry g;
	int r;

	if (!c->away.nboxes)
		return 0;
	fetch_init(c, &g, c->key.snapshot, first, &job);
	job.nodes = c->away.nodes;
	job.boxes = c->missing.v + first;
	job.n = c->away.nboxes;
	r = ptc_away_fetch(&job, err);
	for (size_t i = 0; !r && i < c->away.nboxes; i++)
		c->fetched += (uint64_t)ptc_box_volume(&job.boxes[i].box);
	c->mark_from = first + c->lent.n;
	return r ? r : crew_run(c, mark_extent, c->away.nboxes, err);
}

/* Out of the ranks' memory; they may go on then. */
static int copy(struct capture *c, bool released, struct ptc_error *err)
{
	size_t here = c->missing.n - c->away.nboxes + c->lent.n;
	int r = hands_make(c, err);

	r = r ? r : crew_run(c, fill_extent, here, err);
	if (!r && c->req->release && !released)
		r = release(c, err);
	if (!r && c->req->release)
		r = crew_run(c, mark_extent, here - c->reduce.own.nboxes, err);
	hands_done(c);
	return r;
}

/* From the ranks' memory to a sealed table. What is begun and fails is dropped. */
static int take(struct capture *c, struct ptc_error *err)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	bool early = c->req->release && all_staged(c);
	size_t away;
	int r = seats_check(c, err);

	r = r ? r : sources_make(c, err);
	r = r ? r : carried_encode(c, err);
	if (!r && early)
		r = release(c, err);
	if (r)
		return r;
	r = reserve(c, err);
	away = c->missing.n - c->away.nboxes;
	r = r ? r : copy(c, early, err);
	r = r ? r : merge_own(c, away - c->reduce.own.nboxes, err);
	r = r ? r : fetch_away(c, away, err);
	if (!r && c->parts) /* before the snapshot's: where that is sealed, parts are not made again */
		r = ptc_table_seal(c->parts, err);
	r = r ? r : captured_write(c, err);
	r = r ? r : ptc_table_seal(c->table, err);
	if (r) {
		c->table = ptc_table_unref(c->table);
		c->parts = ptc_table_unref(c->parts);
		(void)drop(c, &ignored);
	}
	return r;
}

/* Of a table made for this request before: as it was made, each part was digested on the way. */
static int digest_again(struct capture *c, struct ptc_error *err)
{
	struct ptc_digest_job job = { .table = c->table,
				      .g = c->g,
				      .needs = &c->needs,
				      .digests = c->digests,
				      .stop = capture_stop,
				      .tick = capture_tick,
				      .arg = c };

	return ptc_digest_needs(&job, err);
}

/* The table that was made for this very request, or one made now. */
static int find_or_take(struct capture *c, struct ptc_error *err)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_group_key key;
	int r = captured_read(c, &ignored);

	if (!r && !ptc_table_open(c->agent->env.store, &c->key, &c->table, &ignored))
		return digest_again(c, err);
	if (r && r != PTC_ENOTFOUND)
		return ptc_error_set(err, r, "%s", ignored.text);
	ptc_free(c->ranks);
	c->ranks = NULL;
	c->ranks_len = 0;
	ptc_group_key_of(c->req->info, c->req->info->from, &key);
	r = ptc_group_open(c->agent, &c->g->allocation, c->self, &key, &c->group, err);
	return r ? r : take(c, err);
}

static int answer(struct capture *c, struct ptc_error *err)
{
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;
	struct ptc_rpc_part parts[2] = { { 0 } };
	size_t n = c->needs.n;
	uint32_t *index = ptc_reallocarray(NULL, n ? n : 1, sizeof(*index));
	void *data = NULL;
	int r = index ? 0 : ptc_error_set(err, PTC_ENOMEM, "no memory for %zu digests", n);

	for (size_t i = 0; !r && i < n; i++)
		index[i] = (uint32_t)i;
	reply.version = PTC_WIRE_VERSION;
	reply.finished = true;
	reply.bytes_done = reply.bytes_total = reply.verified_bytes = (uint64_t)c->needs.bytes;
	reply.copied_bytes = (uint64_t)atomic_load(&c->copied);
	reply.wire_bytes = c->fetched;
	reply.n_need_index = reply.n_digests = n;
	reply.need_index = index;
	reply.digests = c->digests;
	r = r ? r : ptc_pb_encode(&reply.base, &data, &parts[0].len, err);
	parts[0].data = data;
	/* Two encoded messages one after the other are one with the fields of both. */
	parts[1] = (struct ptc_rpc_part){ .data = c->ranks, .len = c->ranks_len };
	r = r ? r : ptc_rpc_call_send(c->call, parts, c->ranks_len ? 2 : 1, err);
	ptc_free(data);
	ptc_free(index);
	return r;
}

static int capture(struct capture *c, struct ptc_error *err)
{
	int r = ptc_geometry_get(c->agent, c->req->info, c->req->info->from, &c->ref, err);

	if (r)
		return r;
	c->g = &c->ref->g;
	c->key = (struct ptc_table_key){ .generation = c->req->to->generation, .snapshot = c->req->to->snapshot };
	memcpy(c->key.uuid, c->g->uuid, sizeof(c->key.uuid));
	r = ptc_geometry_node(c->g, c->agent->node, &c->self, err);
	r = r ? r : ptc_layout_node_needs(c->g->layout, &c->g->allocation, c->self, &c->needs, err);
	if (r)
		return r;
	c->digests = ptc_calloc(c->needs.n ? c->needs.n : 1, sizeof(*c->digests));
	r = c->digests ? find_or_take(c, err) : ptc_error_set(err, PTC_ENOMEM, "no memory for %zu digests", c->needs.n);
	return r ? r : answer(c, err);
}

static int request_check(const struct capture *c, struct ptc_error *err)
{
	int r = ptc_switch_info_check(c->req->version, c->req->info, err);

	if (!r && (!c->req->to || !c->req->to->snapshot || !c->req->info->from ||
		   c->req->to->generation != c->req->info->from->number))
		r = ptc_error_set(err, PTC_EINVAL, "a snapshot of a generation that is not named, or of another");
	if (!r && c->req->to->snapshot & PTC_PARTS_SNAPSHOT)
		r = ptc_error_set(err, PTC_EINVAL, "a snapshot's number of parts of one");
	return r ? r : ptc_group_workers(c->agent, err);
}

int ptc_agent_on_capture(void *agent, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct capture c = { .agent = agent, .call = call };
	ProtobufCMessage *msg = NULL;
	int r = ptc_agent_request(call, &ptc__v1__capture_request__descriptor, &msg, err);

	c.req = (const Ptc__V1__CaptureRequest *)msg;
	r = r ? r : request_check(&c, err);
	r = r ? r : ptc_store_job_create(c.agent->env.store, c.req->info->uuid, c.req->info->uid, err);
	r = r ? r
	      : ptc_agent_enter(agent, call, c.req->info->uuid, c.req->info->fence, c.req->info->seq, false, &c.op,
				err);
	r = r ? r : capture(&c, err);
	ptc_table_unref(c.table);
	ptc_table_unref(c.parts);
	ptc_seat_sources_done(&c.sources);
	ptc_group_close(&c.group);
	ptc_store_boxes_done(&c.missing);
	ptc_store_boxes_done(&c.lent);
	ptc_away_done(&c.away);
	ptc_reduce_done(&c.reduce);
	ptc_free(c.extents);
	ptc_free(c.lent_extents);
	ptc_free(c.digests);
	ptc_free(c.ranks);
	ptc_needs_done(&c.needs);
	ptc_geometry_put(agent, c.ref);
	ptc_agent_leave(&c.op);
	ptc_pb_free(msg);
	return r;
}
