/* SPDX-License-Identifier: Apache-2.0 */
/* Pull: this node fetches what it lacks, seals its table and says its
 * digests. Happy path: what is missing is asked of the table (so a repeated
 * call goes on where the last one stopped), each missing box is assigned to
 * the plan's source, a few threads fetch batches of boxes straight into their
 * extents, where they are digested as they come, each extent is marked filled when its last byte is there; then
 * seal, then digests of what did not come now, then the last message. What rules reset is asked of
 * nobody: it becomes zeros here. Nor is what they derive: it is made once all else is there.
 * Failure modes: a source that fails or lies is left out and the rest planned
 * again over the others that hold the bytes, and all is digested by reading; when none is left, PTC_EPEER
 * naming the node and why. No byte for PTC_AGENT_STALL_MS counts as failing.
 * The caller gone, a Finish, a newer controller: PTC_ECANCELED; what is
 * filled stays. Our own store or memory failing ends the call with its code. */
#include "daemon/agent/switch/internal.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/tables/node_digest.h"
#include "daemon/agent/transfer/fetch.h"
#include "daemon/agent/calls/wire.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <stdlib.h>
#include <string.h>

struct extent {
	struct ptc_store_box box;
	uint32_t id;
	_Atomic int64_t left; /* bytes not received yet */
};

/* A part of an extent and who sends it. */
struct unit {
	uint32_t src;
	size_t extent;
	struct ptc_box box;
};

struct pull;
struct worker {
	struct pull *pull;
	pthread_t thread;
	struct ptc_rpc_stream *stream; /* under the lock; set while it may be cancelled */
	_Atomic int64_t last_ns;       /* when bytes came last */
	bool stalled;                  /* under the lock */
	bool lied;                     /* of the batch: the source broke the protocol */
	struct ptc_boxes slices;       /* of the unit that comes, in the order of its bytes ... */
	size_t digested;               /* ... those done ... */
	int64_t digested_bytes;        /* ... and their bytes */
	int64_t ready_off;             /* where the unit is in its extent; -1: not in one run */
	uint32_t src;
	/* of the batch */
	const struct unit *units;
	size_t n;
};

struct pull {
	struct ptc_agent *agent;
	struct ptc_agent_op op;
	struct ptc_rpc_call *call;
	struct ptc_switch_view view;
	struct ptc_table *table;
	/* of one round */
	struct extent *extents;
	size_t nextents;
	struct unit *units;
	size_t nunits, cap;
	struct ptc_pull_source *sources; /* per node; of units, sorted by source */
	/* of each need; what came is in them at once. A round in which a source failed spoils them: all is read again then. */
	uint64_t *digests;
	struct ptc_store_box *digested;
	size_t ndigested;
	/* progress */
	_Atomic int64_t done_bytes, wire_bytes;
	int64_t total_bytes, copied_bytes;
	atomic_bool stopped; /* the caller is gone */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t cond;
		struct worker workers[PTC_AGENT_PULL_THREADS];
		unsigned running;
		int status; /* fatal */
		struct ptc_error err;
		struct ptc_error why; /* of the last source that failed */
		unsigned failures;
		bool lied; /* a source broke the protocol */
	} shared;
};

/* Any thread. */
static bool pull_stopped(void *arg)
{
	struct pull *p = arg;

	return atomic_load(&p->stopped) || atomic_load(&p->op.job->cancel);
}

/* The handler's thread only: asking a call whether it is cancelled may take events off its queue. */
static bool pull_poll(void *arg)
{
	struct pull *p = arg;

	if (ptc_agent_op_stopped(&p->op))
		atomic_store(&p->stopped, true);
	return pull_stopped(p);
}

/* ---- who sends what ---- */

static int unit_push(struct pull *p, uint32_t src, size_t extent, const struct ptc_box *box, struct ptc_error *err)
{
	if (p->nunits == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 256;
		struct unit *v = ptc_reallocarray(p->units, cap, sizeof(*v));

		if (!v)
			return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu parts", cap);
		p->units = v;
		p->cap = cap;
	}
	p->units[p->nunits++] = (struct unit){ src, extent, *box };
	return 0;
}

/* Our moves of item: moves are sorted by destination, then item. */
static const struct ptc_move *moves_of(const struct ptc_plan *plan, uint32_t self, uint32_t item, size_t *ret_n)
{
	size_t lo = 0, hi = plan->nmoves, end;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct ptc_move *m = &plan->moves[mid];

		if (m->dst_node < self || (m->dst_node == self && m->item < item))
			lo = mid + 1;
		else
			hi = mid;
	}
	for (end = lo; end < plan->nmoves && plan->moves[end].dst_node == self && plan->moves[end].item == item;)
		end++;
	*ret_n = end - lo;
	return plan->moves + lo;
}

/* What the plan does not bring (our own store lost it) comes from anybody who has it. */
static int assign_rest(struct pull *p, size_t extent, const struct ptc_box *rest, struct ptc_error *err)
{
	const struct ptc_geometry *from = &p->view.from->g;
	const struct ptc_replica *replicas;
	struct ptc_parts parts = { 0 };
	struct ptc_boxes uncovered = { 0 };
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	uint32_t item = p->extents[extent].box.item;
	size_t n;
	int r = ptc_geometry_replicas(from, item, &replicas, &n, err);

	r = r ? r
	      : ptc_parts_cover(rest, replicas, n, p->view.usable, UINT32_MAX, p->view.self, &parts, &uncovered, err);
	for (size_t i = 0; !r && i < parts.n; i++)
		r = unit_push(p, parts.v[i].node, extent, &parts.v[i].box, err);
	if (!r && uncovered.n)
		r = ptc_error_set(err, PTC_EPEER, "no node left that has all of \"%.400s\"%s%.400s",
				  ptc_geometry_item_name(from, item, name, sizeof(name)),
				  p->shared.failures ? ": " : "", p->shared.failures ? p->shared.why.text : "");
	ptc_parts_done(&parts);
	ptc_boxes_done(&uncovered);
	return r;
}

static int unit_compare(const void *a, const void *b)
{
	const struct unit *x = a, *y = b;

	if (x->src != y->src)
		return x->src < y->src ? -1 : 1;
	return x->extent < y->extent ? -1 : x->extent > y->extent;
}

/* What one source sends of an extent, though to several ranks here: in fewer parts, and often in one run. */
static int units_join(struct pull *p, size_t first, struct ptc_error *err)
{
	size_t n = p->nunits - first, out = first;
	ptc_auto_free struct ptc_box *boxes = n > 1 ? ptc_reallocarray(NULL, n, sizeof(*boxes)) : NULL;

	if (n <= 1)
		return 0;
	if (!boxes)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu parts", n);
	qsort(p->units + first, n, sizeof(*p->units), unit_compare);
	for (size_t i = first, k; i < p->nunits;) {
		struct unit unit = p->units[i];

		for (k = 0; i < p->nunits && p->units[i].src == unit.src; i++)
			boxes[k++] = p->units[i].box;
		ptc_boxes_join(boxes, &k);
		for (size_t j = 0; j < k; j++, out++) {
			unit.box = boxes[j];
			p->units[out] = unit;
		}
	}
	p->nunits = out;
	return 0;
}

static int assign_extent(struct pull *p, const struct ptc_plan *plan, size_t extent, struct ptc_error *err)
{
	const struct ptc_store_box *box = &p->extents[extent].box;
	struct ptc_boxes rest = { 0 };
	struct ptc_box cut, *cuts;
	size_t nmoves, ncuts = 0, first = p->nunits;
	const struct ptc_move *moves = plan ? moves_of(plan, p->view.self, box->item, &nmoves) : NULL;
	int r = 0;

	nmoves = plan ? nmoves : 0;
	cuts = ptc_reallocarray(NULL, nmoves ? nmoves : 1, sizeof(*cuts));
	if (!cuts)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu moves", nmoves);
	for (size_t i = 0; !r && i < nmoves; i++)
		if (p->view.usable[moves[i].src_node] && ptc_box_intersect(&box->box, &moves[i].box, &cut)) {
			cuts[ncuts++] = cut;
			r = unit_push(p, moves[i].src_node, extent, &cut, err);
		}
	if (!r && ptc_boxes_missing(&box->box, cuts, ncuts, &rest))
		r = ptc_error_set(err, PTC_ENOMEM, "no memory to assign a box");
	for (size_t i = 0; !r && i < rest.n; i++)
		r = assign_rest(p, extent, &rest.v[i], err);
	ptc_boxes_done(&rest);
	ptc_free(cuts);
	return r ? r : units_join(p, first, err);
}

static void sources_index(struct pull *p)
{
	qsort(p->units, p->nunits, sizeof(*p->units), unit_compare);
	for (size_t i = 0; i < p->nunits;) {
		struct ptc_pull_source *s = &p->sources[p->units[i].src];

		s->next = i;
		while (i < p->nunits && &p->sources[p->units[i].src] == s)
			i++;
		s->end = i;
	}
}

static void round_done(struct pull *p)
{
	ptc_free(p->extents);
	ptc_free(p->units);
	ptc_free(p->sources);
	p->extents = NULL;
	p->units = NULL;
	p->sources = NULL;
	p->nextents = p->nunits = p->cap = 0;
}

/* The recycled chunks of an extent hold what was in them before. */
static int extent_zero(struct pull *p, uint32_t id, const struct ptc_store_box *box, struct ptc_error *err)
{
	struct iovec spans[PTC_EXTENT_SPANS];
	int n = ptc_table_extent_iov(p->table, id, 0, ptc_box_volume(&box->box), spans, (int)PTC_ARRAY_LEN(spans));

	if (pull_poll(p))
		return ptc_error_set(err, PTC_ECANCELED, "the pull was cancelled");
	if (n <= 0)
		return ptc_error_set(err, PTC_ESTATE, "an extent of item %u cannot be filled any more", box->item);
	ptc_table_extent_map(p->table, id);
	for (int i = 0; i < n; i++)
		memset(spans[i].iov_base, 0, spans[i].iov_len);
	return ptc_table_filled(p->table, id, err);
}

/* Into extents of the round, but for what is fresh, which is filled at once, and what is derived. */
static int extents_sort(struct pull *p, const struct ptc_fill *fill, struct ptc_error *err)
{
	int r = 0;

	for (size_t i = 0; !r && i < fill->missing.n; i++) {
		const struct ptc_store_box *box = &fill->missing.v[i];
		struct extent *e = &p->extents[p->nextents];

		if (p->view.fresh && p->view.fresh[box->item]) {
			r = extent_zero(p, fill->extents[i], box, err);
			continue;
		}
		if (p->view.derived && p->view.derived[box->item])
			continue;
		e->box = *box;
		e->id = fill->extents[i];
		atomic_init(&e->left, ptc_box_volume(&box->box));
		p->nextents++;
	}
	return r;
}

static int extents_take(struct pull *p, struct ptc_error *err)
{
	struct ptc_fill fill;
	int r = ptc_fill_reserve(&fill, p->agent, &p->view, p->table, err);

	if (r)
		return r;
	p->copied_bytes += fill.copied_bytes;
	p->extents = ptc_calloc(fill.missing.n ? fill.missing.n : 1, sizeof(*p->extents));
	p->sources = ptc_calloc(p->view.to->g.nnodes, sizeof(*p->sources));
	if (!p->extents || !p->sources)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for %zu extents", fill.missing.n);
	r = r ? r : extents_sort(p, &fill, err);
	p->total_bytes = atomic_load(&p->done_bytes) + fill.missing.bytes;
	ptc_fill_done(&fill);
	return r;
}

static int round_make(struct pull *p, struct ptc_error *err)
{
	struct ptc_plan *plan = NULL;
	int r = extents_take(p, err);

	if (r || !p->nextents)
		return r;
	if (!p->view.from)
		return ptc_error_set(err, PTC_ESTATE, "nothing to pull from: generation %llu is the first",
				     (unsigned long long)p->view.to->g.generation);
	/* A source that failed may leave bytes the plan has no sender for: then any replica is asked, or none is left. */
	if (ptc_switch_plan(&p->view, &plan, NULL) == PTC_ENOMEM)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for a plan");
	for (size_t i = 0; !r && i < p->nextents; i++)
		r = assign_extent(p, plan, i, err);
	ptc_plan_free(plan);
	if (!r)
		sources_index(p);
	return r;
}

/* ---- a batch ---- */

static int slices_begin(struct worker *w, const struct ptc_box *extent, const struct ptc_box *unit,
			struct ptc_error *err)
{
	struct ptc_runs runs;

	ptc_runs_init(&runs, extent, unit, unit);
	w->ready_off = runs.count == 1 ? runs.a_off : -1;
	w->slices.n = w->digested = 0;
	w->digested_bytes = 0;
	if (ptc_box_chop(unit, PTC_DIGEST_SLICE, &w->slices))
		return ptc_error_set(err, PTC_ENOMEM, "no memory to receive a box");
	return 0;
}

static int unit_begin(void *arg, size_t i, struct ptc_fetch_dst *ret, struct ptc_error *err)
{
	struct worker *w = arg;
	struct extent *e = &w->pull->extents[w->units[i].extent];

	ret->outer = e->box.box;
	ret->niov = ptc_table_extent_iov(w->pull->table, e->id, 0, ptc_box_volume(&e->box.box), ret->iov,
					 (int)PTC_ARRAY_LEN(ret->iov));
	if (ret->niov <= 0)
		return ptc_error_set(err, PTC_ESTATE, "an extent of item %u cannot be filled any more", e->box.item);
	return slices_begin(w, &e->box.box, &w->units[i].box, err);
}

/* Digests and sums what is whole of it. */
static int unit_arrived(void *arg, size_t i, int64_t bytes, struct ptc_error *err)
{
	struct worker *w = arg;
	struct pull *p = w->pull;
	const struct extent *e = &p->extents[w->units[i].extent];
	const struct ptc_digest_fill d = { p->table, &p->view.to->g, &p->view.needs, p->digests };
	size_t before = w->digested;
	int r = 0;

	while (!r && w->digested < w->slices.n) {
		const struct ptc_box *slice = &w->slices.v[w->digested];
		int64_t volume = ptc_box_volume(slice);

		if (w->digested_bytes + volume > bytes)
			break;
		r = ptc_digest_part(&d, e->id, e->box.item, slice, err);
		w->digested++;
		w->digested_bytes += volume;
	}
	if (w->digested > before && w->ready_off >= 0)
		ptc_table_extent_ready(p->table, e->id, w->ready_off, w->digested_bytes);
	return r;
}

static int unit_end(void *arg, size_t i, struct ptc_error *err)
{
	struct worker *w = arg;
	struct extent *e = &w->pull->extents[w->units[i].extent];
	int64_t volume = ptc_box_volume(&w->units[i].box);

	atomic_fetch_add(&w->pull->done_bytes, volume);
	if (atomic_fetch_sub(&e->left, volume) != volume)
		return 0;
	return ptc_table_filled(w->pull->table, e->id, err);
}

static void batch_progress(void *arg, size_t bytes)
{
	struct worker *w = arg;

	atomic_store(&w->last_ns, ptc_sys_now_ns());
	atomic_fetch_add(&w->pull->wire_bytes, (int64_t)bytes);
}

struct ptc_pull_source *ptc_pull_choose(struct ptc_pull_source *sources, size_t n, uint32_t self)
{
	struct ptc_pull_source *best = NULL;

	for (size_t k = 0; k < n; k++) {
		struct ptc_pull_source *s = &sources[(k + self) % n];

		if (s->failed || s->next == s->end || s->lanes == (1u << PTC_AGENT_LANES) - 1)
			continue;
		if (!best || __builtin_popcount(s->lanes) < __builtin_popcount(best->lanes) ||
		    (__builtin_popcount(s->lanes) == __builtin_popcount(best->lanes) &&
		     s->end - s->next > best->end - best->next))
			best = s;
	}
	return best;
}

/* A batch of the source chosen, and a free lane of it. */
static bool batch_pick_locked(struct worker *w, unsigned *ret_lane)
{
	struct pull *p = w->pull;
	struct ptc_pull_source *best = ptc_pull_choose(p->sources, p->view.to->g.nnodes, p->view.self);
	int64_t bytes = 0;

	if (!best)
		return false;
	w->src = (uint32_t)(best - p->sources);
	w->units = p->units + best->next;
	for (w->n = 0; best->next < best->end && w->n < PTC_AGENT_REQUEST_BOXES; best->next++, w->n++) {
		bytes += ptc_box_volume(&w->units[w->n].box);
		if (w->n && bytes > PTC_AGENT_REQUEST_BYTES)
			break;
	}
	*ret_lane = (unsigned)__builtin_ctz(~best->lanes);
	best->lanes |= 1u << *ret_lane;
	return true;
}

static void worker_stream_set(struct worker *w, struct ptc_rpc_stream *stream)
{
	pthread_mutex_lock(&w->pull->shared.lock);
	w->stream = stream;
	pthread_mutex_unlock(&w->pull->shared.lock);
}

static int batch_boxes(const struct worker *w, struct ptc_store_box **ret, struct ptc_error *err)
{
	struct ptc_store_box *boxes = ptc_reallocarray(NULL, w->n, sizeof(*boxes));

	if (!boxes)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", w->n);
	for (size_t i = 0; i < w->n; i++)
		boxes[i] = (struct ptc_store_box){ w->pull->extents[w->units[i].extent].box.item, w->units[i].box };
	*ret = boxes;
	return 0;
}

/* *ret_local: the failure is ours, not the source's. */
static int batch_fetch(struct worker *w, unsigned lane, bool *ret_local, struct ptc_error *err)
{
	const struct ptc_fetch_ops ops = {
		.begin = unit_begin, .arrived = unit_arrived, .end = unit_end, .progress = batch_progress, .arg = w
	};
	struct ptc_store_box *boxes = NULL;
	struct ptc_fetch f = { 0 };
	uint64_t ticket;
	int r = ptc_pool_take(&w->pull->agent->recv, PTC_AGENT_RECV_TICKET, pull_stopped, w->pull, &ticket, err);

	*ret_local = true;
	if (r)
		return r;
	r = batch_boxes(w, &boxes, err);
	if (!r) {
		atomic_store(&w->last_ns, ptc_sys_now_ns());
		*ret_local = false;
		r = ptc_fetch_open(w->pull->agent, &w->pull->view.from->g, w->src, lane, boxes, w->n, &ops, &f, err);
	}
	if (!r) {
		worker_stream_set(w, f.stream);
		r = ptc_fetch_drain(&f, err);
		*ret_local = f.local_error;
		w->lied = f.lied;
		worker_stream_set(w, NULL);
	}
	ptc_fetch_done(&f);
	ptc_free(boxes);
	ptc_pool_give(&w->pull->agent->recv, ticket);
	return r;
}

static void batch_failed_locked(struct worker *w, int status, bool local, const struct ptc_error *err)
{
	struct pull *p = w->pull;
	struct ptc_error why = *err;
	const char *node = p->view.to->g.nodes[w->src];

	if (p->shared.status || pull_stopped(p))
		return;
	if (local || status == PTC_ENOMEM) {
		p->shared.status = status;
		p->shared.err = *err;
		return;
	}
	ptc_debug("agent", "pull from node %s failed: %s", node, err->text);
	p->sources[w->src].failed = true;
	ptc_geometry_name_error(&p->view.from->g, &why);
	p->shared.failures++;
	p->shared.lied = p->shared.lied || w->lied;
	ptc_error_set(&p->shared.why, PTC_EPEER, "node %s: %.800s", node,
		      w->stalled ? "no byte came for a minute" : why.text);
}

static void *pull_thread(void *arg)
{
	struct worker *w = arg;
	struct pull *p = w->pull;
	unsigned lane;

	pthread_mutex_lock(&p->shared.lock);
	while (!p->shared.status && !pull_stopped(p) && batch_pick_locked(w, &lane)) {
		struct ptc_error err = PTC_ERROR_INIT;
		bool local = false;
		int r;

		pthread_mutex_unlock(&p->shared.lock);
		r = batch_fetch(w, lane, &local, &err);
		pthread_mutex_lock(&p->shared.lock);
		p->sources[w->src].lanes &= ~(1u << lane);
		if (r)
			batch_failed_locked(w, r, local, &err);
		w->stalled = w->lied = false;
	}
	p->shared.running--;
	pthread_cond_signal(&p->shared.cond);
	pthread_mutex_unlock(&p->shared.lock);
	ptc_boxes_done(&w->slices);
	return NULL;
}

/* ---- a round ---- */

static void progress_send(void *arg)
{
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;
	struct pull *p = arg;

	reply.version = PTC_WIRE_VERSION;
	reply.bytes_done = (uint64_t)atomic_load(&p->done_bytes);
	reply.bytes_total = (uint64_t)p->total_bytes;
	reply.wire_bytes = (uint64_t)atomic_load(&p->wire_bytes);
	reply.copied_bytes = (uint64_t)p->copied_bytes;
	if (ptc_agent_reply(p->call, &reply.base, NULL))
		atomic_store(&p->stopped, true);
}

/* Cancels every stream when the operation is to stop, and those that stand still. */
static void streams_watch_locked(struct pull *p)
{
	bool stop = p->shared.status || pull_poll(p);
	int64_t now = ptc_sys_now_ns();

	for (size_t i = 0; i < PTC_ARRAY_LEN(p->shared.workers); i++) {
		struct worker *w = &p->shared.workers[i];
		bool stalled = now - atomic_load(&w->last_ns) > (int64_t)PTC_AGENT_STALL_MS * 1000000;

		if (!w->stream || (!stop && !stalled))
			continue;
		w->stalled = stalled && !stop;
		ptc_rpc_stream_cancel(w->stream);
	}
}

static void round_wait(struct pull *p)
{
	unsigned tick = 0;

	pthread_mutex_lock(&p->shared.lock);
	while (p->shared.running) {
		ptc_cond_wait_ms(&p->shared.cond, &p->shared.lock, PTC_AGENT_TICK_MS / 4);
		streams_watch_locked(p);
		if (!p->shared.running || pull_stopped(p) || tick++ % 4 != 3)
			continue;
		pthread_mutex_unlock(&p->shared.lock);
		progress_send(p);
		pthread_mutex_lock(&p->shared.lock);
	}
	pthread_mutex_unlock(&p->shared.lock);
}

static unsigned round_threads(const struct pull *p)
{
	unsigned n = 0;

	for (size_t i = 0; i < p->view.to->g.nnodes && n < PTC_AGENT_PULL_THREADS; i++)
		n += PTC_MIN(p->sources[i].end - p->sources[i].next, PTC_AGENT_LANES);
	return PTC_MIN(n, PTC_AGENT_PULL_THREADS);
}

static int round_run(struct pull *p, struct ptc_error *err)
{
	unsigned want = round_threads(p), n = 0;

	p->shared.running = want;
	for (; n < want; n++) {
		struct worker *w = &p->shared.workers[n];

		*w = (struct worker){ .pull = p };
		if (pthread_create(&w->thread, NULL, pull_thread, w))
			break;
	}
	pthread_mutex_lock(&p->shared.lock);
	p->shared.running -= want - n;
	pthread_mutex_unlock(&p->shared.lock);
	if (!n)
		return ptc_error_set(err, PTC_ENOMEM, "no thread to pull with");
	round_wait(p);
	for (unsigned i = 0; i < n; i++)
		pthread_join(p->shared.workers[i].thread, NULL);
	if (pull_poll(p))
		return ptc_error_set(err, PTC_ECANCELED, "the pull was cancelled");
	if (p->shared.status)
		return ptc_error_set(err, p->shared.status, "%s", p->shared.err.text);
	for (size_t i = 0; i < p->view.to->g.nnodes; i++)
		p->view.usable[i] = p->view.usable[i] && !p->sources[i].failed;
	return 0;
}

static int box_by_item(const void *a, const void *b)
{
	const struct ptc_store_box *x = a, *y = b;

	return x->item < y->item ? -1 : x->item > y->item;
}

/* What a round has brought need not be digested again. */
static int digested_note(struct pull *p, struct ptc_error *err)
{
	p->digested = ptc_reallocarray(NULL, p->nextents, sizeof(*p->digested));
	if (!p->digested)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", p->nextents);
	for (size_t i = 0; i < p->nextents; i++)
		p->digested[i] = p->extents[i].box;
	p->ndigested = p->nextents;
	qsort(p->digested, p->ndigested, sizeof(*p->digested), box_by_item);
	return 0;
}

/* Until nothing is missing. Each round that does not end it takes a source away, so there are at most as many as
 * nodes. */
static int pull_missing(struct pull *p, struct ptc_error *err)
{
	for (size_t round = 0; round <= p->view.to->g.nnodes; round++) {
		unsigned failures = p->shared.failures;
		int r = round_make(p, err);

		if (!r && !p->nextents &&
		    p->shared.lied) /* it sent all we asked for and went on: none of it is to be trusted */
			r = ptc_error_set(err, PTC_EPEER, "%s", p->shared.why.text);
		if (r || !p->nextents) {
			round_done(p);
			return r;
		}
		progress_send(p);
		r = round_run(p, err);
		if (!r && round == 0 && p->shared.failures == failures)
			r = digested_note(p, err);
		round_done(p);
		if (r)
			return r;
		if (p->shared.failures == failures)
			return 0;
	}
	return ptc_error_set(err, PTC_EPEER, "%s", p->shared.why.text);
}

/* ---- the call ---- */

static int pull_reply(struct pull *p, struct ptc_error *err)
{
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;
	size_t n = p->view.needs.n;
	uint32_t *index = ptc_reallocarray(NULL, n ? n : 1, sizeof(*index));
	int r;

	if (!index)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu digests", n);
	for (size_t i = 0; i < n; i++)
		index[i] = (uint32_t)i;
	reply.version = PTC_WIRE_VERSION;
	reply.finished = true;
	reply.bytes_done = (uint64_t)atomic_load(&p->done_bytes);
	reply.bytes_total = reply.bytes_done;
	reply.wire_bytes = (uint64_t)atomic_load(&p->wire_bytes);
	reply.copied_bytes = (uint64_t)(p->copied_bytes + p->op.job->copied_bytes);
	reply.verified_bytes = (uint64_t)p->view.needs.bytes;
	reply.n_need_index = reply.n_digests = n;
	reply.need_index = index;
	reply.digests = p->digests;
	r = ptc_agent_reply(p->call, &reply.base, err);
	ptc_free(index);
	return r;
}

/* All else is filled: what is still missing is derived. */
static int pull_derived(struct pull *p, struct ptc_error *err)
{
	struct ptc_fill fill;
	int r = p->view.derived ? ptc_fill_reserve(&fill, p->agent, &p->view, p->table, err) : 0;

	if (r || !p->view.derived)
		return r;
	r = ptc_derived_make(p->table, &p->view.to->g, &fill, pull_poll, p, err);
	ptc_fill_done(&fill);
	return r;
}

static int pull_fill(struct pull *p, bool pushed, struct ptc_error *err)
{
	int r;

	if (ptc_table_sealed(p->table))
		return 0;
	r = pushed ? ptc_table_filled_all(p->table, err) : pull_missing(p, err);
	r = r || pushed ? r : pull_derived(p, err);
	if (!r && pull_poll(p))
		r = ptc_error_set(err, PTC_ECANCELED, "the pull was cancelled");
	return r ? r : ptc_table_seal(p->table, err);
}

static int pull_digest(struct pull *p, struct ptc_error *err)
{
	const struct ptc_digest_job job = { .table = p->table,
					    .g = &p->view.to->g,
					    .needs = &p->view.needs,
					    .stop = pull_poll,
					    .tick = progress_send,
					    .arg = p,
					    .digests = p->digests,
					    .done = p->digested,
					    .ndone = p->ndigested };

	return ptc_digest_needs(&job, err);
}

static int pull_run(struct pull *p, const Ptc__V1__PullRequest *req, struct ptc_error *err)
{
	struct ptc_table_key key = ptc_geometry_key(&p->view.to->g);
	int r = ptc_table_begin(p->agent->env.store, &key, &p->table, err);

	if (r)
		return r;
	p->digests = ptc_calloc(p->view.needs.n ? p->view.needs.n : 1, sizeof(*p->digests));
	if (!p->digests)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for %zu digests", p->view.needs.n);
	r = r ? r : pull_fill(p, req->pushed, err);
	if (!r && req->pushed)
		r = ptc_derived_check(p->table, &p->view.to->g, &p->view.needs, pull_poll, p, err);
	r = r ? r : pull_digest(p, err);
	r = r ? r : pull_reply(p, err);
	ptc_free(p->digests);
	ptc_free(p->digested);
	p->table = ptc_table_unref(p->table);
	return r;
}

static int pull(struct ptc_agent_op *op, struct ptc_rpc_call *call, const Ptc__V1__PullRequest *req,
		struct ptc_error *err)
{
	struct pull *p = ptc_calloc(1, sizeof(*p));
	int r;

	if (!p)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for a pull");
	p->agent = op->agent;
	p->op = *op;
	p->call = call;
	ptc_require(!pthread_mutex_init(&p->shared.lock, NULL));
	ptc_cond_init(&p->shared.cond);
	r = ptc_switch_view_init(&p->view, op->agent, req->info, err);
	r = r ? r : pull_run(p, req, err);
	ptc_switch_view_done(&p->view, op->agent);
	pthread_cond_destroy(&p->shared.cond);
	pthread_mutex_destroy(&p->shared.lock);
	ptc_free(p);
	return r;
}

int ptc_agent_on_pull(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	struct ptc_agent_op op = { 0 };
	ProtobufCMessage *msg = NULL;
	int r = ptc_agent_request(call, &ptc__v1__pull_request__descriptor, &msg, err);
	const Ptc__V1__PullRequest *req = (const Ptc__V1__PullRequest *)msg;

	r = r ? r : ptc_switch_info_check(req->version, req->info, err);
	r = r ? r : ptc_store_job_create(agent->env.store, req->info->uuid, req->info->uid, err);
	r = r ? r : ptc_agent_enter(agent, call, req->info->uuid, req->info->fence, req->info->seq, false, &op, err);
	if (!r) {
		r = pull(&op, call, req, err);
		ptc_agent_leave(&op);
	}
	ptc_pb_free(msg);
	return r;
}
