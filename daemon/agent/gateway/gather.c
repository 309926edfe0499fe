/* SPDX-License-Identifier: Apache-2.0 */
/* Gather: bytes of items in order, wherever they are. Happy path: the range
 * is cut into windows; each window's boxes are covered by the nodes that hold
 * them, one Fetch per node and window, this node's own part read directly.
 * The next window's fetches are opened before the current one is handed to
 * the sink, so that senders read and pack while the sink writes; what they send
 * waits in the transport, and is taken once the sink is done. Many small ranges are one window: a node is asked once for
 * all that it has of them. Ranges that fall into more pieces than are ticketed for are read in several windows, and
 * delivered together. Memory: one window and one scratch buffer, ticketed.
 * Failure modes: a node that fails is left out and the window done again with
 * other replicas; when none is left, PTC_EPEER naming it and why, or PTC_ECORRUPT where its bytes are damaged; a range
 * outside the item (PTC_EINVAL); the sink's own code. */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/gateway/gateway.h"
#include "daemon/agent/tables/rank_tensor.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/agent/transfer/fetch.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"

#include <stdlib.h>
#include <string.h>

#define GATHER_WINDOW_MAX (8u << 20)
#define GATHER_SCRATCH    (1u << 20)

/* A part of a window: which of its boxes, which cut of it, from whom. */
struct part {
	uint32_t node;
	size_t box;
	struct ptc_box cut;
};

struct fetching {
	uint32_t node;
	size_t first; /* of parts */
	struct ptc_store_box *boxes;
	struct ptc_fetch fetch;
	struct window *window;
};

struct window {
	struct gather *gather;
	uint64_t off, len;
	struct ptc_boxes boxes;
	int64_t *at;     /* where each box begins in the gather's data */
	uint32_t *items; /* of each box, of many ranges; NULL: the gather's */
	struct part *parts;
	size_t nparts, parts_cap;
	struct fetching *fetches;
	size_t nfetches;
};

struct gather {
	struct ptc_agent *agent;
	const struct ptc_geometry *g;
	uint32_t item, ndim, self;
	int64_t shape[PTC_MAX_DIMS];
	const struct ptc_item_range *many; /* instead of one item: those of the window */
	size_t nmany, most_pieces;
	bool *usable;
	struct ptc_table *table; /* NULL: nothing of it here */
	struct ptc_error why;    /* of the last node left out */
	struct ptc_staging *memory;
	uint8_t *data; /* of the window that is completed, until it is delivered */
	uint8_t *scratch;
	struct window windows[2];
};

static void window_reset(struct window *w)
{
	for (size_t i = 0; i < w->nfetches; i++) {
		ptc_fetch_done(&w->fetches[i].fetch);
		ptc_free(w->fetches[i].boxes);
	}
	ptc_free(w->fetches);
	ptc_free(w->parts);
	ptc_free(w->at);
	ptc_free(w->items);
	ptc_boxes_done(&w->boxes);
	w->fetches = NULL;
	w->parts = NULL;
	w->at = NULL;
	w->items = NULL;
	w->nfetches = w->nparts = w->parts_cap = 0;
}

/* ---- planning a window ---- */

static int part_compare(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	if (x->box != y->box)
		return x->box < y->box ? -1 : 1;
	for (uint32_t d = 0; d < x->cut.ndim; d++)
		if (x->cut.off[d] != y->cut.off[d])
			return x->cut.off[d] < y->cut.off[d] ? -1 : 1;
	return 0;
}

static uint32_t item_of(const struct window *w, size_t box)
{
	return w->items ? w->items[box] : w->gather->item;
}

static int box_cover(struct window *w, size_t box, struct ptc_error *err)
{
	struct gather *ga = w->gather;
	struct ptc_parts parts = { 0 };
	struct ptc_boxes uncovered = { 0 };
	struct part *v;
	const struct ptc_replica *replicas;
	size_t nreplicas;
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	int r = ptc_geometry_replicas(ga->g, item_of(w, box), &replicas, &nreplicas, err);

	if (!r) {
		uint32_t turn = (uint32_t)(w->off / GATHER_WINDOW_MAX % (nreplicas ? nreplicas : 1));

		r = ptc_parts_cover(&w->boxes.v[box], replicas, nreplicas, ga->usable, ga->self, turn, &parts,
				    &uncovered, err);
	}
	if (!r && uncovered.n)
		r = ptc_error_set(err, ga->why.code == PTC_ECORRUPT ? PTC_ECORRUPT : PTC_EPEER,
				  "no node left that has all of \"%.400s\"%s%.400s",
				  ptc_geometry_item_name(ga->g, item_of(w, box), name, sizeof(name)),
				  ga->why.code ? ": " : "", ga->why.text);
	if (!r && w->nparts + parts.n > w->parts_cap) {
		size_t cap = PTC_MAX(w->parts_cap * 2, w->nparts + parts.n);

		v = ptc_reallocarray(w->parts, cap, sizeof(*v));
		if (v) {
			w->parts = v;
			w->parts_cap = cap;
		} else {
			r = ptc_error_set(err, PTC_ENOMEM, "no memory for %zu parts", cap);
		}
	}
	for (size_t i = 0; !r && i < parts.n; i++)
		w->parts[w->nparts++] = (struct part){ parts.v[i].node, box, parts.v[i].box };
	ptc_parts_done(&parts);
	ptc_boxes_done(&uncovered);
	return r;
}

/* Boxes, and parts, that are ticketed for many ranges: most are whole items, of one box on one node. */
static size_t most_pieces(size_t ranges)
{
	return PTC_MIN(2 * ranges + 1024, (size_t)PTC_READ_MANY_RANGES);
}

/* PTC_ELIMIT: several ranges, which are then read in several windows. One alone has no more pieces than any read of its item. */
static int check_pieces(const struct window *w, struct ptc_error *err)
{
	const struct gather *ga = w->gather;

	if (!ga->many || ga->nmany == 1 || PTC_MAX(w->boxes.n, w->nparts) <= ga->most_pieces)
		return 0;
	return ptc_error_set(err, PTC_ELIMIT, "%zu ranges fall into more than %zu pieces", ga->nmany, ga->most_pieces);
}

/* The boxes of all ranges, and whose they are. */
static int boxes_of_many(struct window *w, struct ptc_error *err)
{
	const struct gather *ga = w->gather;
	size_t cap = 0;

	for (size_t i = 0; i < ga->nmany; i++) {
		const struct ptc_item_range *range = &ga->many[i];
		size_t first = w->boxes.n;
		int64_t shape[PTC_MAX_DIMS];
		uint32_t ndim;
		int r = ptc_geometry_shape(ga->g, range->item, &ndim, shape, err);

		if (r)
			return r;
		if (ptc_box_from_range(ndim, shape, (int64_t)range->offset, (int64_t)range->length, &w->boxes))
			return ptc_error_set(err, PTC_ENOMEM, "no memory to cut a range");
		r = check_pieces(w, err);
		if (r)
			return r;
		if (w->boxes.n > cap) {
			uint32_t *bigger = ptc_reallocarray(w->items, PTC_MAX(cap * 2, w->boxes.n), sizeof(*bigger));

			if (!bigger)
				return ptc_error_set(err, PTC_ENOMEM, "no memory to cut a range");
			cap = PTC_MAX(cap * 2, w->boxes.n);
			w->items = bigger;
		}
		while (first < w->boxes.n)
			w->items[first++] = range->item;
	}
	return 0;
}

static int window_boxes(struct window *w, struct ptc_error *err)
{
	const struct gather *ga = w->gather;

	if (ga->many)
		return boxes_of_many(w, err);
	if (ptc_box_from_range(ga->ndim, ga->shape, (int64_t)w->off, (int64_t)w->len, &w->boxes))
		return ptc_error_set(err, PTC_ENOMEM, "no memory to cut a range");
	return 0;
}

static int window_plan(struct window *w, struct ptc_error *err)
{
	int64_t at = w->gather->many ? (int64_t)w->off : 0;
	const uint64_t end = (uint64_t)at + w->len;
	int r = window_boxes(w, err);

	if (r)
		return r;
	w->at = ptc_reallocarray(NULL, PTC_MAX(w->boxes.n, (size_t)1), sizeof(*w->at));
	if (!w->at)
		return ptc_error_set(err, PTC_ENOMEM, "no memory to cut a range");
	for (size_t i = 0; !r && i < w->boxes.n; i++) {
		w->at[i] = at;
		at += ptc_box_volume(&w->boxes.v[i]);
		r = box_cover(w, i, err);
		r = r ? r : check_pieces(w, err);
	}
	if (!r && ptc_fails((uint64_t)at == end))
		r = ptc_error_set(err, PTC_EINTERNAL, "a range of %llu bytes was cut into %lld",
				  (unsigned long long)w->len, (long long)at - (long long)(end - w->len));
	if (!r)
		qsort(w->parts, w->nparts, sizeof(*w->parts), part_compare);
	return r;
}

/* ---- fetching ---- */

static int part_begin(void *arg, size_t i, struct ptc_fetch_dst *ret, struct ptc_error *err)
{
	struct fetching *f = arg;
	struct window *w = f->window;
	const struct part *p = &w->parts[f->first + i];

	ret->outer = w->boxes.v[p->box];
	ret->iov[0].iov_base = w->gather->data + w->at[p->box];
	ret->iov[0].iov_len = (size_t)ptc_box_volume(&ret->outer);
	ret->niov = 1;
	return 0;
}

static int part_end(void *arg, size_t i, struct ptc_error *err)
{
	return 0;
}

static int fetch_begin(struct window *w, size_t first, size_t n, struct ptc_error *err)
{
	struct gather *ga = w->gather;
	struct fetching *f = &w->fetches[w->nfetches];
	const struct ptc_fetch_ops ops = { .begin = part_begin, .end = part_end, .arg = f };

	*f = (struct fetching){ .node = w->parts[first].node, .first = first, .window = w };
	f->boxes = ptc_reallocarray(NULL, n, sizeof(*f->boxes));
	if (!f->boxes)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", n);
	w->nfetches++;
	for (size_t i = 0; i < n; i++)
		f->boxes[i] = (struct ptc_store_box){ item_of(w, w->parts[first + i].box), w->parts[first + i].cut };
	return ptc_fetch_open(ga->agent, ga->g, f->node, 0, f->boxes, n, &ops, &f->fetch, err);
}

static int node_failed(struct gather *ga, uint32_t node, int r, struct ptc_error *why, struct ptc_error *err)
{
	if (r == PTC_ENOMEM || r == PTC_EINTERNAL)
		return ptc_error_set(err, r, "%s", why->text);
	ga->usable[node] = false;
	ptc_geometry_name_error(ga->g, why);
	ptc_error_set(&ga->why, r == PTC_ECORRUPT ? r : PTC_EPEER, "node %s: %.800s", ga->g->nodes[node], why->text);
	return 0;
}

/* Opens the window's fetches. A node that cannot be reached is left out, *ret_again set. */
static int window_open(struct window *w, bool *ret_again, struct ptc_error *err)
{
	size_t n;

	w->fetches = ptc_calloc(w->nparts, sizeof(*w->fetches)); /* their addresses are callback arguments */
	if (!w->fetches)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu parts", w->nparts);
	for (size_t i = 0; i < w->nparts; i += n) {
		struct ptc_error why = PTC_ERROR_INIT;
		int r = 0;

		for (n = 1; i + n < w->nparts && w->parts[i + n].node == w->parts[i].node;)
			n++;
		if (w->parts[i].node != w->gather->self)
			r = fetch_begin(w, i, n, &why);
		if (!r)
			continue;
		*ret_again = true;
		r = node_failed(w->gather, w->parts[i].node, r, &why, err);
		if (r)
			return r;
	}
	return 0;
}

static int window_start(struct window *w, uint64_t off, uint64_t len, struct ptc_error *err)
{
	bool again = true;
	int r = 0;

	w->off = off;
	w->len = len;
	while (!r && again) {
		again = false;
		window_reset(w);
		r = window_plan(w, err);
		r = r ? r : window_open(w, &again, err);
	}
	return r;
}

static int local_part(struct window *w, const struct part *p, struct ptc_error *err)
{
	struct gather *ga = w->gather;
	uint8_t *base = w->gather->data + w->at[p->box];
	const struct ptc_box *outer = &w->boxes.v[p->box];
	uint32_t item = item_of(w, p->box);
	struct ptc_boxes pieces = { 0 };
	struct ptc_runs runs;
	int r = 0;

	ptc_runs_init(&runs, outer, &p->cut, &p->cut);
	if (runs.count == 1)
		return ptc_table_read(ga->table, item, &p->cut, base + runs.a_off, err);
	if (ptc_box_chop(&p->cut, GATHER_SCRATCH, &pieces))
		r = ptc_error_set(err, PTC_ENOMEM, "no memory to cut a box");
	for (size_t i = 0; !r && i < pieces.n; i++) {
		r = ptc_table_read(ga->table, item, &pieces.v[i], ga->scratch, err);
		if (!r)
			ptc_box_copy(base, outer, ga->scratch, &pieces.v[i], &pieces.v[i]);
	}
	ptc_boxes_done(&pieces);
	return r;
}

/* Our own part of the window. Not here or damaged: another replica may do. */
static int window_local(struct window *w, bool *ret_again, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	int r = 0;

	for (size_t i = 0; !r && i < w->nparts; i++)
		if (w->parts[i].node == w->gather->self)
			r = local_part(w, &w->parts[i], &why);
	if (!r)
		return 0;
	*ret_again = true;
	return node_failed(w->gather, w->gather->self, r, &why, err);
}

static int window_try(struct window *w, bool *ret_again, struct ptc_error *err)
{
	int r = window_local(w, ret_again, err);

	for (size_t i = 0; !r && !*ret_again && i < w->nfetches; i++) {
		struct ptc_error why = PTC_ERROR_INIT;

		r = ptc_fetch_drain(&w->fetches[i].fetch, &why);
		if (!r)
			continue;
		*ret_again = true;
		r = node_failed(w->gather, w->fetches[i].node, r, &why, err);
	}
	return r;
}

static int window_complete(struct window *w, struct ptc_error *err)
{
	bool again = false;
	int r = window_try(w, &again, err);

	while (!r && again) {
		again = false;
		r = window_start(w, w->off, w->len, err);
		r = r ? r : window_try(w, &again, err);
	}
	return r;
}

static int deliver(const struct gather *ga, uint64_t len, ptc_sink_fn sink, void *arg, struct ptc_error *err)
{
	int r = 0;

	for (uint64_t at = 0; !r && at < len; at += PTC_BULK_MESSAGE_BYTES)
		r = sink(arg, ga->data + at, (size_t)PTC_MIN(len - at, (uint64_t)PTC_BULK_MESSAGE_BYTES), err);
	return r;
}

/* ---- the whole ---- */

static void gather_done(struct gather *ga)
{
	window_reset(&ga->windows[0]);
	window_reset(&ga->windows[1]);
	ptc_table_unref(ga->table);
	ptc_free(ga->usable);
	ptc_staging_release(ga->memory);
}

static int gather_init(struct gather *ga, struct ptc_error *err)
{
	struct ptc_table_key key = ptc_geometry_key(ga->g);

	ga->usable = ptc_calloc(ga->g->nnodes, sizeof(*ga->usable));
	if (!ga->usable)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu nodes", ga->g->nnodes);
	memset(ga->usable, true, ga->g->nnodes);
	ga->windows[0].gather = ga->windows[1].gather = ga;
	if (ptc_geometry_node(ga->g, ga->agent->node, &ga->self, NULL))
		ga->self = UINT32_MAX;
	else if (ptc_agent_table_open(ga->agent, &key, &ga->table, &ga->why))
		ga->usable[ga->self] = false;
	return 0;
}

static int gather_memory(struct gather *ga, uint64_t length, uint64_t *ret_window, struct ptc_error *err)
{
	/* with the scratch half of all at most: one client that reads slowly does not keep all others waiting */
	uint64_t most = PTC_MIN(ga->agent->gate.limit / 2 - GATHER_SCRATCH, (uint64_t)GATHER_WINDOW_MAX);
	uint64_t window = PTC_MIN(most, length);
	const size_t piece = sizeof(struct ptc_box) + sizeof(struct part) + sizeof(struct ptc_store_box);
	int r = ptc_staging_new(&ga->agent->gate,
				(size_t)(window + PTC_MIN(length, (uint64_t)GATHER_SCRATCH)) + ga->most_pieces * piece,
				NULL, NULL, &ga->memory, err);

	if (r)
		return r;
	ga->data = ga->memory->data;
	ga->scratch = ga->data + window;
	*ret_window = window;
	return 0;
}

static int gather_run(struct gather *ga, uint64_t offset, uint64_t length, uint64_t size, ptc_sink_fn sink, void *arg,
		      struct ptc_error *err)
{
	struct window *now = &ga->windows[0], *next = &ga->windows[1], *swap;
	uint64_t end = offset + length, at = offset + PTC_MIN(size, length);
	int r = window_start(now, offset, at - offset, err);

	while (!r) {
		bool more = at < end;

		r = window_complete(now, err);
		if (!r && more) {
			r = window_start(next, at, PTC_MIN(size, end - at), err);
			at += next->len;
		}
		r = r ? r : deliver(now->gather, now->len, sink, arg, err);
		if (!more)
			break;
		swap = now;
		now = next;
		next = swap;
	}
	return r;
}

/* Ranges one after the other, as many at a time as have no more pieces than are ticketed for. */
static int gather_groups(struct gather *ga, struct ptc_error *err)
{
	const struct ptc_item_range *end = ga->many + ga->nmany;
	struct window *w = &ga->windows[0];
	uint64_t at = 0;
	int r = 0;

	while (!r && ga->many < end) {
		struct ptc_error why = PTC_ERROR_INIT;
		uint64_t len = 0;

		ga->nmany = PTC_MIN(ga->nmany, (size_t)(end - ga->many));
		for (size_t i = 0; i < ga->nmany; i++)
			len += ga->many[i].length;
		r = window_start(w, at, len, &why);
		r = r ? r : window_complete(w, &why);
		if (r == PTC_ELIMIT && ga->nmany > 1) {
			ga->nmany /= 2;
			r = 0;
		} else if (r) {
			ptc_error_set(err, r, "%s", why.text);
		} else {
			ga->many += ga->nmany;
			at += len;
		}
	}
	return r;
}

static int check_range(const struct ptc_geometry *g, const struct ptc_item_range *range, struct ptc_error *err)
{
	uint64_t bytes;

	if (range->item >= ptc_spec_items(g->spec))
		return ptc_error_set(err, PTC_EINVAL, "item %u of %zu", range->item, ptc_spec_items(g->spec));
	bytes = (uint64_t)ptc_item_bytes(g->spec, range->item);
	if (range->offset > bytes || range->length > bytes - range->offset)
		return ptc_error_set(err, PTC_EINVAL, "bytes %llu to %llu of item %u, which has %llu",
				     (unsigned long long)range->offset,
				     (unsigned long long)range->offset + range->length, range->item,
				     (unsigned long long)bytes);
	return 0;
}

int ptc_agent_gather_many(struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid,
			  const struct ptc_item_range *ranges, size_t n, ptc_sink_fn sink, void *arg,
			  struct ptc_error *err)
{
	struct gather ga = { .agent = agent, .g = g, .many = ranges, .nmany = n, .most_pieces = most_pieces(n) };
	uint64_t bytes = 0, window;
	int r = strcmp(uuid, g->uuid)
			? ptc_error_set(err, PTC_EINVAL, "a geometry of job %s for job %.40s", g->uuid, uuid)
			: 0;

	for (size_t i = 0; !r && i < n; i++) {
		r = check_range(g, &ranges[i], err);
		if (!r && ranges[i].length > PTC_READ_MANY_BYTES - bytes)
			r = ptc_error_set(err, PTC_ELIMIT, "ranges of more than %u bytes in one call",
					  PTC_READ_MANY_BYTES);
		bytes += ranges[i].length;
	}
	r = r ? r : gather_init(&ga, err);
	if (!r && bytes) {
		r = gather_memory(&ga, bytes, &window, err);
		if (!r && window < bytes)
			r = ptc_error_set(err, PTC_ELIMIT, "no room here for %llu bytes at once",
					  (unsigned long long)bytes);
		r = r ? r : gather_groups(&ga, err);
		r = r ? r : deliver(&ga, bytes, sink, arg, err);
	}
	gather_done(&ga);
	return r;
}

int ptc_agent_gather(struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid, uint32_t item,
		     uint64_t offset, uint64_t length, ptc_sink_fn sink, void *arg, struct ptc_error *err)
{
	struct gather ga = { .agent = agent, .g = g, .item = item };
	uint64_t window;
	int r;

	if (strcmp(uuid, g->uuid))
		return ptc_error_set(err, PTC_EINVAL, "a geometry of job %s for job %.40s", g->uuid, uuid);
	r = check_range(g, &(struct ptc_item_range){ item, offset, length }, err);
	r = r ? r : ptc_geometry_shape(g, item, &ga.ndim, ga.shape, err);
	r = r ? r : gather_init(&ga, err);
	if (!r && length) {
		r = gather_memory(&ga, length, &window, err);
		r = r ? r : gather_run(&ga, offset, length, window, sink, arg, err);
	}
	gather_done(&ga);
	return r;
}

/* ---- a rank's tensor ---- */

static int rank_local(struct ptc_agent *agent, const struct ptc_geometry *g, const struct ptc_rank_range *range,
		      ptc_sink_fn sink, void *arg, struct ptc_error *err)
{
	uint64_t end;
	struct ptc_table_key key = ptc_geometry_key(g);
	struct ptc_staging *s = NULL;
	struct ptc_rank_tensor t;
	struct ptc_table *table;
	int r = ptc_agent_table_open(agent, &key, &table, err);

	if (r)
		return r;
	r = ptc_rank_tensor_init(&t, g, table, range->rank, range->item, err);
	r = r ? r : ptc_rank_range_end(&t, range, &end, err);
	r = r ? r : ptc_staging_new(&agent->gate, PTC_BULK_MESSAGE_BYTES + PTC_RANK_SCRATCH, NULL, NULL, &s, err);
	for (uint64_t off = range->offset, len; !r && off < end; off += len) {
		len = PTC_MIN(end - off, (uint64_t)PTC_BULK_MESSAGE_BYTES);
		r = ptc_rank_tensor_read(&t, off, (size_t)len, s->data, s->data + PTC_BULK_MESSAGE_BYTES, err);
		r = r ? r : sink(arg, s->data, (size_t)len, err);
	}
	ptc_staging_release(s);
	ptc_table_unref(table);
	return r;
}

static int rank_request(struct ptc_rpc_stream *stream, const struct Ptc__V1__SwitchInfo *info,
			const struct ptc_rank_range *range, struct ptc_error *err)
{
	Ptc__V1__FetchRankRequest req = PTC__V1__FETCH_RANK_REQUEST__INIT;
	Ptc__V1__SwitchInfo plain = *info;
	struct ptc_rpc_part part = { 0 };
	void *data = NULL;
	int r;

	req.version = PTC_WIRE_VERSION;
	req.info = &plain;
	req.rank = range->rank;
	req.item = range->item;
	req.offset = range->offset;
	req.length = range->length;
	r = ptc_pb_encode(&req.base, &data, &part.len, err);
	part.data = data;
	r = r ? r : ptc_rpc_stream_send(stream, &part, 1, err);
	ptc_free(data);
	return r ? r : ptc_rpc_stream_half_close(stream, err);
}

static int rank_message(struct ptc_rpc_message *msg, uint64_t *left, ptc_sink_fn sink, void *arg, struct ptc_error *err)
{
	const void *span;
	uint64_t payload;
	size_t n;
	int r = ptc_wire_data_open(msg, &payload, err);

	if (!r && (payload > *left || payload > PTC_BULK_MESSAGE_MAX))
		r = ptc_error_set(err, PTC_EPEER, "sent more bytes than its rank has");
	if (r)
		return r;
	*left -= payload;
	while (!r && (n = ptc_rpc_message_next(msg, &span)))
		r = sink(arg, span, n, err);
	return r;
}

static int rank_remote(struct ptc_rpc_stream *stream, uint64_t left, ptc_sink_fn sink, void *arg, struct ptc_error *err)
{
	struct ptc_rpc_message *msg;
	int r;

	while (!(r = ptc_rpc_stream_recv(stream, &msg, err)) && msg) {
		r = rank_message(msg, &left, sink, arg, err);
		ptc_rpc_message_done(msg);
		if (r)
			return r;
	}
	r = r ? r : ptc_rpc_stream_finish(stream, err);
	if (!r && left)
		r = ptc_error_set(err, PTC_EPEER, "sent %llu bytes fewer than its rank has", (unsigned long long)left);
	return r;
}

static int rank_damaged(const struct ptc_geometry *g, uint32_t node, struct ptc_error *err)
{
	ptc_geometry_name_error(g, err);
	ptc_error_wrap(err, "node %s", g->nodes[node]);
	return PTC_ECORRUPT;
}

int ptc_agent_gather_rank(struct ptc_agent *agent, const struct ptc_geometry *g, const struct Ptc__V1__SwitchInfo *info,
			  const struct ptc_rank_range *range, ptc_sink_fn sink, void *arg, struct ptc_error *err)
{
	struct ptc_rpc_stream *stream = NULL;
	struct ptc_rpc_channel *channel;
	struct ptc_rank_tensor t;
	uint64_t end;
	uint32_t node;
	int r = ptc_rank_tensor_init(&t, g, NULL, range->rank, range->item, err);

	r = r ? r : ptc_rank_range_end(&t, range, &end, err);
	if (r)
		return r;
	node = g->allocation.ranks[range->rank].node;
	if (!strcmp(g->nodes[node], agent->node)) {
		r = rank_local(agent, g, range, sink, arg, err);
		return r == PTC_ECORRUPT ? rank_damaged(g, node, err) : r;
	}
	r = agent->env.channel(agent->env.arg, g->nodes[node], g->addresses[node], true, 0, &channel, err);
	r = r ? r : ptc_rpc_stream_open(channel, "/ptc.v1.Peer/FetchRank", 0, NULL, 0, &stream, err);
	r = r ? r : rank_request(stream, info, range, err);
	r = r ? r : rank_remote(stream, end - range->offset, sink, arg, err);
	ptc_rpc_stream_free(stream);
	if (r == PTC_ECORRUPT)
		return rank_damaged(g, node, err);
	if (r && r != PTC_ENOTFOUND)
		ptc_error_wrap(err, "node %s", g->nodes[node]);
	return r;
}
