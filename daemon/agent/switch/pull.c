/* SPDX-License-Identifier: Apache-2.0 */
/* Pull: this node fetches what its new layout lacks, seals its table and says its digests.
 *
 * Happy path: the table says which boxes are missing, so a repeated call goes on where the last one stopped. Each
 * missing box is asked of the plan's source. A transfer (transfer/transfer.h) brings the bytes straight into extents,
 * where they are digested as they come; an extent is marked filled when its last byte is there. Then the table is
 * sealed, boxes that did not come in this call are digested by reading, and the last message is sent. Items that rules
 * reset are not fetched: they become zeros. Items that rules derive are not fetched either: they are made once all
 * else is there. Bytes that an import has sent get their checksums and digests here.
 *
 * Failure modes: those of a transfer; after a source has failed, everything is digested by reading. PTC_EPEER: a
 * source has broken the protocol although nothing is missing, for example by sending more than it was asked for.
 * PTC_ECANCELED: the caller is gone, or a Finish or a newer controller comes; filled extents stay. */
#include "daemon/agent/switch/internal.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/calls/task_pool.h"
#include "daemon/agent/tables/node_digest.h"
#include "daemon/agent/capture/captured_digests.h"
#include "daemon/agent/transfer/transfer.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/search.h"
#include "base/sys/sys.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BACKGROUND_THREADS 2
#define LINK_BYTES         (INT64_C(16) << 20) /* less says more of the first packets than of the link */
#define LINK_NS            INT64_C(10000000)
#define WAIT_MAX_NS        INT64_C(999999999) /* well below PTC_AGENT_STALL_MS */

struct extent {
	const struct ptc_store_box *box; /* one of fill.missing */
	uint32_t id;
	_Atomic int64_t left; /* bytes not received yet */
};

/* The part that one request receives, digested slice by slice. */
struct receiving {
	struct ptc_boxes slices; /* in the order of the part's bytes */
	size_t digested;         /* slices done ... */
	int64_t digested_bytes;  /* ... and their bytes */
	int64_t ready_off;       /* where the part is in its extent; -1: not in one run */
};

struct pull {
	struct ptc_agent_op op;
	struct ptc_rpc_call *call;
	struct ptc_switch_view view;
	struct ptc_table *table;
	struct ptc_transfer transfer;
	struct ptc_kept_fill *kept; /* what Prepare has found missing */
	uint64_t switch_id;
	struct receiving receiving[PTC_AGENT_PULL_THREADS];
	struct ptc_fill fill;   /* what is missing, as it was planned last */
	struct extent *extents; /* of those boxes that nodes send */
	size_t nextents;
	uint64_t *digests; /* of each need; complete but for what came before this call, unless a source failed */
	size_t ndigested;  /* what they have already: so many boxes of fill.missing */
	struct ptc_transfer_alone *alone; /* one per node that the transfer may ask */
	size_t nalone;
	_Atomic int64_t done_bytes;
	int64_t total_bytes, copied_bytes;
	bool broken; /* progress could not be sent */
	/* of copies, which come at the node's own rate */
	bool background, urgent;
	int64_t started_ns;
	_Atomic int64_t taken_bytes;
};

/* The handler's thread only: asking a call whether it is cancelled may take events off its queue. */
static bool pull_stopped(void *arg)
{
	struct pull *p = arg;

	return p->broken || ptc_agent_op_stopped(&p->op);
}

static int pull_cancelled(struct pull *p, struct ptc_error *err)
{
	return pull_stopped(p) ? ptc_error_set(err, PTC_ECANCELED, "the pull was cancelled") : 0;
}

static Ptc__V1__PullReply pull_progress(struct pull *p)
{
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;

	reply.version = PTC_WIRE_VERSION;
	reply.bytes_done = (uint64_t)atomic_load(&p->done_bytes);
	reply.bytes_total = (uint64_t)p->total_bytes;
	reply.wire_bytes = (uint64_t)atomic_load(&p->transfer.wire_bytes);
	reply.near_bytes = (uint64_t)atomic_load(&p->transfer.near_bytes);
	reply.copied_bytes = (uint64_t)p->copied_bytes;
	return reply;
}

static void progress_send(void *arg)
{
	struct pull *p = arg;
	Ptc__V1__PullReply reply = pull_progress(p);

	if (ptc_agent_reply(p->call, &reply.base, NULL))
		p->broken = true;
}

/* ---- the destination: extents of the new table ---- */

/* Zeros for items that a rule resets, because the recycled chunks of an extent hold old bytes. */
static int extent_zero(struct pull *p, uint32_t id, const struct ptc_store_box *box, struct ptc_error *err)
{
	struct iovec spans[PTC_EXTENT_SPANS];
	int n = 0, r = pull_cancelled(p, err);

	if (r == 0)
		r = ptc_extent_spans(p->table, id, box->item, &box->box, spans, PTC_ARRAY_LEN(spans), &n, err);
	if (r)
		return r;
	ptc_table_extent_map(p->table, id);
	for (int i = 0; i < n; i++)
		memset(spans[i].iov_base, 0, spans[i].iov_len);
	return ptc_table_filled(p->table, id, err);
}

/* Adds boxes to the extents of the transfer. Items that are reset are filled at once, and items that are derived are
 * left out. */
static int extents_take(struct pull *p, struct ptc_error *err)
{
	struct ptc_fill *fill = &p->fill;
	int rc;

	p->nextents = 0;
	ptc_fill_done(fill);
	rc = ptc_kept_fill_use(p->kept, p->switch_id, &p->view, p->table, fill)
		     ? 0
		     : ptc_fill_reserve(fill, p->op.agent, &p->view, p->table, err);
	if (rc)
		return rc;
	p->copied_bytes += fill->copied_bytes;
	p->total_bytes = atomic_load(&p->done_bytes) + fill->missing.bytes;
	ptc_free(p->extents);
	p->extents = ptc_calloc(fill->missing.n ? fill->missing.n : 1, sizeof *p->extents);
	if (!p->extents)
		rc = ptc_error_set(err, PTC_ENOMEM, "no memory for %zu extents", fill->missing.n);
	for (size_t i = 0; !rc && i < fill->missing.n; i++) {
		const struct ptc_store_box *box = &fill->missing.v[i];

		if (p->view.fresh && p->view.fresh[box->item]) {
			rc = extent_zero(p, fill->extents[i], box, err);
		} else if (!p->view.derived || !p->view.derived[box->item]) {
			struct extent *e = &p->extents[p->nextents++];

			e->box = box;
			e->id = fill->extents[i];
			atomic_init(&e->left, ptc_box_volume(&box->box));
		}
	}
	return rc;
}

/* Boxes of one extent: those that moves bring, and the rest. Kept from extent to extent for their memory. */
struct asking {
	struct ptc_boxes cuts, rest;
};

/* The plan's moves bring an extent here; what they do not (our own store lost it) comes from any node that has it.
 * moves: ours, by item. */
static int extent_ask(struct pull *p, struct ptc_transfer *t, size_t extent, const struct ptc_plan *plan,
		      struct asking *a, struct ptc_error *err)
{
	const struct ptc_store_box *box = p->extents[extent].box;
	const struct ptc_move *moves = plan ? plan->moves : NULL;
	const size_t nmoves = plan ? plan->nmoves : 0;
	int64_t left = ptc_box_volume(&box->box);
	struct ptc_box cut;
	int rc = 0;

	a->cuts.n = a->rest.n = 0;
	for (size_t i = PTC_SEARCH(struct ptc_move, item, moves, nmoves, box->item);
	     !rc && i < nmoves && moves[i].item == box->item; i++)
		if (t->usable[moves[i].src_node] && ptc_box_intersect(&box->box, &moves[i].box, &cut)) {
			rc = ptc_parts_push(&t->parts, moves[i].src_node, box->item, extent, &cut, err);
			left -= ptc_box_volume(&cut);
			if (!rc && left) /* not the last */
				rc = ptc_boxes_push(&a->cuts, &cut);
		}
	if (!rc && left) /* moves into one node do not overlap */
		rc = ptc_boxes_missing(&box->box, a->cuts.v, a->cuts.n, &a->rest);
	if (rc)
		ptc_error_set(err, rc, "no memory to assign a box");
	for (size_t i = 0; !rc && i < a->rest.n; i++)
		rc = ptc_transfer_cover(t, box->item, extent, &a->rest.v[i], UINT32_MAX, p->view.self, err);
	return rc;
}

static int extents_plan(void *arg, struct ptc_transfer *t, struct ptc_error *err)
{
	struct pull *p = arg;
	struct ptc_plan *plan = NULL;
	struct asking asking = { 0 };
	int rc = extents_take(p, err);

	if (!rc && !p->nextents && t->lied) /* it sent all we asked for and went on: none of it is to be trusted */
		rc = ptc_error_set(err, PTC_EPEER, "%s", t->why.text);
	if (rc || !p->nextents)
		return rc;
	if (!p->view.from)
		return ptc_error_set(err, PTC_ESTATE, "nothing to pull from: generation %llu is the first",
				     (unsigned long long)p->view.to->g.generation);
	/* A source that failed may leave bytes the plan has no sender for: then any replica is asked, or none is left.
	 */
	plan = ptc_geometry_plan_take(&p->view.from->g, &p->view.to->g, p->view.usable);
	if (!plan && ptc_switch_plan(&p->view, p->view.self, &plan, NULL) == PTC_ENOMEM)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for a plan");
	if (!PTC_ROOM(t->parts.v, t->parts.n + p->nextents, t->parts.cap)) /* one of each at least */
		rc = ptc_error_set(err, PTC_ENOMEM, "no memory to assign %zu boxes", p->nextents);
	for (size_t i = 0; !rc && i < p->nextents; i++)
		rc = extent_ask(p, t, i, plan, &asking, err);
	ptc_boxes_done(&asking.cuts);
	ptc_boxes_done(&asking.rest);
	ptc_geometry_plan_keep(&p->view.from->g, &p->view.to->g, p->view.usable, plan);
	if (!rc)
		progress_send(p);
	return rc;
}

static int part_begin(void *arg, unsigned thread, const struct ptc_part *part, struct ptc_transfer_dst *ret,
		      struct ptc_error *err)
{
	struct pull *p = arg;
	struct receiving *now = &p->receiving[thread];
	const struct extent *e = &p->extents[part->to];
	struct ptc_runs runs;

	ret->outer = e->box->box;
	ptc_runs_init(&runs, &ret->outer, &part->box, &part->box);
	now->ready_off = runs.count == 1 ? runs.a_off : -1;
	now->slices.n = now->digested = 0;
	now->digested_bytes = 0;
	if (ptc_box_chop(&part->box, PTC_DIGEST_SLICE, &now->slices))
		return ptc_error_set(err, PTC_ENOMEM, "no memory to receive a box");
	return ptc_extent_spans(p->table, e->id, part->item, &ret->outer, ret->iov, PTC_ARRAY_LEN(ret->iov), &ret->niov,
				err);
}

/* Copies come no faster than the node's rate: whoever receives waits, a slice at a time. */
static void keep_rate(struct pull *p, int64_t bytes)
{
	const uint64_t rate = p->op.agent->env.copies_rate;
	int64_t taken = atomic_fetch_add(&p->taken_bytes, bytes) + bytes, early_ns;

	if (!p->background || p->urgent || !rate)
		return;
	early_ns = p->started_ns + (int64_t)((double)taken / (double)rate * 1e9) - ptc_sys_now_ns();
	if (early_ns > 0)
		nanosleep(&(struct timespec){ .tv_nsec = (long)PTC_MIN(early_ns, WAIT_MAX_NS) }, NULL);
}

/* Sums and digests its complete parts: in that order, so that no byte changes unseen between the two. */
static int part_arrived(void *arg, unsigned thread, const struct ptc_part *part, int64_t bytes, struct ptc_error *err)
{
	struct pull *p = arg;
	struct receiving *now = &p->receiving[thread];
	const struct ptc_digest_fill d = { p->table, &p->view.to->g, p->view.needs, p->digests };
	uint32_t id = p->extents[part->to].id;
	int rc = 0;

	while (!rc && now->digested < now->slices.n) {
		const struct ptc_box *slice = &now->slices.v[now->digested];
		int64_t volume = ptc_box_volume(slice);

		if (now->digested_bytes + volume > bytes)
			break;
		if (now->ready_off >= 0)
			ptc_table_extent_ready(p->table, id, now->ready_off, now->digested_bytes,
					       now->digested_bytes + volume);
		rc = ptc_digest_part(&d, id, part->item, slice, err);
		now->digested++;
		now->digested_bytes += volume;
		keep_rate(p, volume);
	}
	return rc;
}

static int part_end(void *arg, const struct ptc_part *part, const struct ptc_transfer_dst *dst, struct ptc_error *err)
{
	struct pull *p = arg;
	struct extent *e = &p->extents[part->to];
	int64_t volume = ptc_box_volume(&part->box);

	atomic_fetch_add(&p->done_bytes, volume);
	return atomic_fetch_sub(&e->left, volume) == volume ? ptc_table_filled(p->table, e->id, err) : 0;
}

PTC_BY(box_by_item, struct ptc_store_box, item)

/* Boxes that have come without a failure need not be digested again. No extent is looked at any more. */
static void digested_note(struct pull *p)
{
	struct ptc_store_box *v = p->fill.missing.v;

	for (p->ndigested = 0; p->ndigested < p->nextents; p->ndigested++)
		if (&v[p->ndigested] != p->extents[p->ndigested].box) /* extents are in the order of their boxes */
			v[p->ndigested] = *p->extents[p->ndigested].box;
	p->nextents = 0;
	ptc_sort(v, p->ndigested, sizeof *v, box_by_item);
}

static int pull_missing(struct pull *p, struct ptc_error *err)
{
	static const struct ptc_transfer_to extents = {
		.plan = extents_plan, .begin = part_begin, .arrived = part_arrived, .end = part_end
	};
	struct ptc_transfer *t = &p->transfer;
	int rc;

	t->agent = p->op.agent;
	t->g = p->view.from ? &p->view.from->g : &p->view.to->g;
	t->snapshot = t->g->snapshot;
	t->self = p->view.self;
	t->usable = p->view.usable;
	t->threads = p->background && !p->urgent ? BACKGROUND_THREADS : PTC_AGENT_PULL_THREADS;
	t->what = "the pull";
	t->to = &extents;
	t->stop = pull_stopped;
	t->tick = progress_send;
	t->arg = t->owner = p;
	p->nalone = p->background ? 0 : t->g->nnodes; /* copies come at a rate of their own */
	p->alone = p->nalone ? ptc_calloc(p->nalone, sizeof *p->alone) : NULL;
	t->alone = p->alone; /* without memory nothing is said of links */
	rc = ptc_transfer_run(t, err);
	for (unsigned i = 0; i < PTC_AGENT_PULL_THREADS; i++)
		ptc_boxes_done(&p->receiving[i].slices);
	if (!rc && !t->failures)
		digested_note(p);
	return rc;
}

/* ---- what an import has sent ---- */

/* Sums and digests an extent, a slice at a time, so that its bytes are read from memory once. */
static int pushed_extent(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct pull *p = arg;
	const struct extent *e = &p->extents[i];
	const struct ptc_digest_fill d = { p->table, &p->view.to->g, p->view.needs, p->digests };
	struct ptc_boxes slices = { 0 };
	int64_t done = 0;
	int rc = ptc_box_chop(&e->box->box, PTC_DIGEST_SLICE, &slices) ? ptc_nomem(err) : 0;

	(void)thread;
	for (size_t k = 0; !rc && k < slices.n; k++) {
		const int64_t before = done;

		done += ptc_box_volume(&slices.v[k]);
		ptc_table_extent_ready(p->table, e->id, 0, before, done);
		rc = ptc_digest_part(&d, e->id, e->box->item, &slices.v[k], err);
	}
	ptc_boxes_done(&slices);
	return rc ? rc : ptc_table_filled(p->table, e->id, err);
}

/* Nobody writes any more: writers do not run beside an operation. */
static int pull_pushed(struct pull *p, struct ptc_error *err)
{
	struct ptc_task_pool pool = { .threads = PTC_AGENT_DIGEST_THREADS,
				      .run = pushed_extent,
				      .stop = pull_stopped,
				      .tick = progress_send,
				      .arg = p,
				      .what = "digesting an import" };
	int rc = extents_take(p, err);

	p->total_bytes = p->copied_bytes = 0; /* none of it comes from a node */
	pool.ntasks = p->nextents;
	if (rc == 0)
		rc = ptc_task_pool_run(&pool, err);
	if (rc == 0)
		digested_note(p);
	return rc;
}

/* ---- the call ---- */

/* The rates of links over which enough bytes came to measure them. v and ptrs have room for p->nalone. */
static size_t link_figures(const struct pull *p, Ptc__V1__LinkFigure *v, Ptc__V1__LinkFigure **ptrs)
{
	size_t n = 0;

	for (size_t i = 0; p->alone && i < p->nalone; i++) {
		const struct ptc_transfer_alone *a = &p->alone[i];

		if (i == p->view.self || a->bytes < LINK_BYTES || a->ns < LINK_NS)
			continue;
		ptc__v1__link_figure__init(&v[n]);
		v[n].from = p->transfer.g->nodes[i];
		v[n].bytes = (uint64_t)a->bytes;
		v[n].ns = (uint64_t)a->ns;
		ptrs[n] = &v[n];
		n++;
	}
	return n;
}

static int pull_reply(struct pull *p, struct ptc_error *err)
{
	Ptc__V1__PullReply reply = pull_progress(p);
	size_t n = p->view.needs->n;
	uint32_t *index = ptc_reallocarray(NULL, n ? n : 1, sizeof *index);
	ptc_auto_free Ptc__V1__LinkFigure *links = ptc_calloc(p->nalone + 1, sizeof *links);
	ptc_auto_free Ptc__V1__LinkFigure **link_ptrs = ptc_calloc(p->nalone + 1, sizeof *link_ptrs);
	int rc;

	if (!index)
		return ptc_nomem(err);
	reply.n_links = links && link_ptrs ? link_figures(p, links, link_ptrs) : 0;
	reply.links = link_ptrs;
	for (size_t i = 0; i < n; i++)
		index[i] = (uint32_t)i;
	reply.finished = true;
	reply.bytes_total = reply.bytes_done;
	reply.copied_bytes += (uint64_t)p->op.job->copied_bytes;
	reply.verified_bytes = (uint64_t)p->view.needs->bytes;
	reply.n_need_index = reply.n_digests = n;
	reply.need_index = index;
	reply.digests = p->digests;
	rc = ptc_agent_reply(p->call, &reply.base, err);
	ptc_free(index);
	return rc;
}

/* Makes items that rules derive, once all others are there. Their masters may have to be healed first. */
static int pull_derived(struct pull *p, struct ptc_error *err)
{
	struct ptc_heal_tries tries = { .now = true };
	struct ptc_fill fill;
	int rc;

	if (!p->view.derived)
		return 0;
	do {
		rc = ptc_fill_reserve(&fill, p->op.agent, &p->view, p->table, err);
		if (rc)
			return rc;
		rc = ptc_derived_make(p->table, &p->view.to->g, &fill, pull_stopped, p, err);
		ptc_fill_done(&fill);
	} while (ptc_agent_heals(p->op.agent, p->view.to->g.uuid, rc, &tries));
	return rc;
}

/* Until nothing is missing. pushed: an import's boxes have all been sent here. */
static int pull_fill(struct pull *p, bool pushed, struct ptc_error *err)
{
	int rc;

	if (ptc_table_sealed(p->table))
		return 0;
	rc = pushed ? pull_pushed(p, err) : pull_missing(p, err);
	rc = rc || pushed ? rc : pull_derived(p, err);
	if (rc == 0)
		rc = pull_cancelled(p, err);
	return rc ? rc : ptc_table_seal(p->table, err);
}

static int pull(struct pull *p, const Ptc__V1__PullRequest *req, struct ptc_error *err)
{
	struct ptc_digest_job digest = { .stop = pull_stopped, .tick = progress_send, .arg = p };
	struct ptc_captured_known known;
	struct ptc_table_key key;
	int rc = ptc_switch_view_init(&p->view, p->op.agent, req->info, err);

	if (rc)
		return rc;
	key = ptc_geometry_key(&p->view.to->g);
	rc = ptc_switch_begin_anew(p->op.agent, &p->view, req->info->uuid, false, err);
	if (rc == 0)
		rc = ptc_table_begin(p->op.agent->env.store, &key, &p->table, err);
	if (rc)
		return rc;
	p->digests = ptc_calloc(p->view.needs->n ? p->view.needs->n : 1, sizeof *p->digests);
	if (!p->digests)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu digests", p->view.needs->n);
	rc = pull_fill(p, req->pushed, err);
	if (!rc && req->pushed)
		rc = ptc_derived_check(p->table, &p->view.to->g, p->view.needs, pull_stopped, p, err);
	digest.table = p->table;
	digest.g = &p->view.to->g;
	digest.needs = p->view.needs;
	digest.digests = p->digests;
	digest.done = p->fill.missing.v;
	digest.ndone = p->ndigested;
	if (!rc && p->view.from) {
		key = ptc_geometry_key(&p->view.from->g);
		known = (struct ptc_captured_known){ .captured = ptc_captured_of(p->op.job, &key),
						     .table = p->table,
						     .g = &p->view.to->g };
		digest.known = known.captured ? ptc_captured_known : NULL;
		digest.known_arg = &known;
	}
	if (rc == 0)
		rc = ptc_digest_needs(&digest, err);
	return rc ? rc : pull_reply(p, err);
}

int ptc_agent_on_pull(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	ProtobufCMessage *msg = NULL;
	struct pull *p = ptc_calloc(1, sizeof *p);
	int rc = p ? ptc_agent_request(call, &ptc__v1__pull_request__descriptor, &msg, err)
		   : ptc_error_set(err, PTC_ENOMEM, "no memory for a pull");
	const Ptc__V1__PullRequest *req = (const Ptc__V1__PullRequest *)msg;

	if (rc == 0)
		rc = ptc_switch_info_check(req->version, req->info, err);
	if (rc == 0)
		rc = ptc_store_job_create(agent->env.store, req->info->uuid, req->info->uid, err);
	if (rc)
		goto out;
	p->call = call;
	p->background = req->background;
	p->urgent = req->urgent;
	p->started_ns = ptc_sys_now_ns();
	rc = ptc_agent_enter(agent, call, req->info->uuid, req->info->fence, req->info->seq, PTC_TURN_IN_ORDER, &p->op,
			     err);
	if (rc == 0) {
		p->switch_id = req->info->id;
		p->kept = ptc_fill_take(p->op.job);
		rc = pull(p, req, err);
	}
	ptc_kept_fill_free(p->kept);
	ptc_table_unref(p->table);
	ptc_switch_view_done(&p->view, agent);
	ptc_agent_leave(&p->op);
	ptc_free(p->digests);
	ptc_free(p->alone);
	ptc_fill_done(&p->fill);
	ptc_free(p->extents);
out:
	ptc_free(p);
	ptc_pb_free(msg);
	return rc;
}
