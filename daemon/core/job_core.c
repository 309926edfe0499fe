/* SPDX-License-Identifier: Apache-2.0 */
/* The job core: see job_core.h for the protocol and for what it asks of shell, nodes and etcd. job_nodes.c has what nodes are
 * asked, job_start.c which phases a switch has and where one found written down goes on.
 *
 * Happy path: START, IDLE, SWITCH; CHECKING cleans the nodes that take part and asks for a dry run; INTENT makes the
 * switch durable; STARTING and ARMING get new ranks ready and stop the old; SEALING, AGREEING and COMMIT1 make the snapshot;
 * ENDING, BUILDING, LAYOUT put the new ranks in the place of the old; PREPARING, FILLING, DIGESTING make the new tables;
 * COMMIT2 makes the new generation; FINISHING drops what is no longer needed and lets ranks go; DONE.
 *
 * Failure modes
 *   a node answers with a retriable status  again after 1, 2, 4 .. ticks, max_attempts times, then the switch aborts
 *   a node answers with anything else       the switch aborts
 *   a node is down                          waited for, node_wait_ms, then the switch aborts. FINISHING never waits
 *   a node says we are fenced               RELOAD
 *   a transaction conflicts or is unknown   RELOAD, max_attempts times in a row, then the switch aborts
 *   abort while a transaction is in flight  remembered until its outcome is known; a committed switch stays committed
 *   abort before ENDING                     ranks go on from where they wait
 *   abort after it                          CLEAR raises the incarnation: the old generation starts again from the new snapshot
 *   lock lost                               DONE (PTC_EFENCED) for the switch, STOPPED; nothing more from this job
 *
 * Why nothing old can hurt a new switch: table keys are used again after an abort, so a node that was away during the
 * abort could hold a sealed table of the failed attempt under the very key of the next. Hence `stale`: an intent is
 * written only after every node in it has answered a FINISH. And a FINISH is sent only when no intent is in etcd: before
 * INTENT, after CLEAR or after COMMIT2, so that a controller that has lost its lock cannot drop what its successor
 * builds on. Requests are ordered by (fence, seq) at the node.
 *
 * Time is counted in ticks of one timer, armed only while something waits. */
#include "daemon/core/job_internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TICK_MS          200 /* resolution of back-off and of node_wait_ms */
#define BACKOFF_MAX_LOG2 5   /* longest wait before a RELOAD: 32 ticks */

/* ---- the states -----------------------------------------------------------
 *
 *             START, no intent
 *   NEW ------------------------> IDLE <----------------------------------------------------+
 *    |                             | SWITCH                      (HALT: straight to COMMIT2)|
 *    |                             v            fails: nothing was written                  |
 *    |                          CHECKING ---------------------------------------------------+
 *    |                             |                                                        |
 *    |                             v                                                        |
 *    |                           INTENT                                                     |
 *    |  snapshot not yet,          |                                                        |
 *    |  or from nothing            v                                                        |
 *    +----------------> [STARTING] [ARMING] SEALING [AGREEING] -+                           |
 *    |                             |                            |                           |
 *    |                             v                            |                           |
 *    |                          COMMIT1 -- SNAPSHOT --> FINISHING                           |
 *    |  snapshot is there          |                            |  abort                    |
 *    |                             v                            v                           |
 *    +----------------> [ENDING] [BUILDING] [LAYOUT] -----> ABORTING: CLEAR, then FINISH ---+
 *    |                             |                            ^                           |
 *    |                             v                            |                           |
 *    |                  PREPARING FILLING DIGESTING ------------+                           |
 *    |                             |                            | import, or does not fit   |
 *    +-----------------------------|----------------------------+                           |
 *                                  v                                                        |
 *                               COMMIT2 -----> FINISHING -----------------------------------+
 *
 *   A switch has only some of these phases (ptc_job_switch_has); each goes to the next that it has.
 *   any but NEW and STOPPED: conflict, unknown outcome, fenced --> RELOADING -- START --> where the record and the
 *   intent say. any: LOCK_LOST --> STOPPED.
 */
#define B(phase)  (1u << PTC_JOB_##phase)
#define ABORTABLE (B(ABORTING) | B(RELOADING) | B(STOPPED))
/* where a switch may go on when what is written down has been read */
#define RESUMED                                                                                                        \
	(B(STARTING) | B(ARMING) | B(SEALING) | B(ENDING) | B(BUILDING) | B(PREPARING) | B(ABORTING) | B(STOPPED))

enum { NONE, TXN, LOCAL }; /* what the phase waits for beside nodes */

static const struct state {
	const char *name;
	uint32_t next;   /* allowed moves */
	bool has_switch; /* invariant */
	int waits;       /* ABORTING: for a transaction in its first half */
	bool from, to;   /* asks these nodes */
	int update;      /* LOCAL: that asks the shell */
} states[PTC_JOB_PHASE_COUNT] = {
	[PTC_JOB_NEW] = { "new", B(IDLE) | RESUMED, false },
	[PTC_JOB_IDLE] = { "idle", B(CHECKING) | B(COMMIT2) | B(RELOADING) | B(STOPPED), false },
	[PTC_JOB_CHECKING] = { "checking", B(INTENT) | B(IDLE) | B(RELOADING) | B(STOPPED), true, NONE, true, true },
	[PTC_JOB_INTENT] = { "intent", B(STARTING) | B(ARMING) | B(SEALING) | B(PREPARING) | ABORTABLE, true, TXN },
	[PTC_JOB_STARTING] = { "starting", B(ARMING) | B(SEALING) | B(BUILDING) | ABORTABLE, true, NONE, false, true },
	[PTC_JOB_ARMING] = { "arming", B(SEALING) | ABORTABLE, true, NONE, true, false },
	[PTC_JOB_SEALING] = { "sealing", B(AGREEING) | B(COMMIT1) | ABORTABLE, true, NONE, true, false },
	[PTC_JOB_AGREEING] = { "agreeing", B(COMMIT1) | ABORTABLE, true, LOCAL, false, false, PTC_UP_AGREE },
	[PTC_JOB_COMMIT1] = { "commit1", B(ENDING) | B(BUILDING) | B(PREPARING) | B(FINISHING) | ABORTABLE, true, TXN },
	[PTC_JOB_ENDING] = { "ending", B(BUILDING) | B(PREPARING) | ABORTABLE, true, NONE, true, false },
	[PTC_JOB_BUILDING] = { "building", B(LAYOUT) | ABORTABLE, true, NONE, false, true },
	[PTC_JOB_LAYOUT] = { "layout", B(PREPARING) | B(COMMIT2) | ABORTABLE, true, LOCAL, false, false,
			     PTC_UP_LAYOUT },
	[PTC_JOB_PREPARING] = { "preparing", B(FILLING) | ABORTABLE, true, NONE, false, true },
	[PTC_JOB_FILLING] = { "filling", B(DIGESTING) | ABORTABLE, true, NONE, false, true },
	[PTC_JOB_DIGESTING] = { "digesting", B(COMMIT2) | ABORTABLE, true, LOCAL, false, false, PTC_UP_CHECK_DIGESTS },
	[PTC_JOB_COMMIT2] = { "commit2", B(FINISHING) | B(RELOADING) | B(STOPPED), true, TXN },
	[PTC_JOB_FINISHING] = { "finishing", B(IDLE) | B(RELOADING) | B(STOPPED), true },
	[PTC_JOB_ABORTING] = { "aborting", B(IDLE) | B(RELOADING) | B(STOPPED), true },
	[PTC_JOB_RELOADING] = { "reloading", B(IDLE) | B(CHECKING) | B(INTENT) | B(COMMIT2) | B(FINISHING) | RESUMED,
				false },
	[PTC_JOB_STOPPED] = { "stopped", 0, false },
};

const char *ptc_job_phase_name(enum ptc_job_phase phase)
{
	return (unsigned)phase < PTC_JOB_PHASE_COUNT ? states[phase].name : "unknown";
}

/* The O(1) part holds in every build, the counts in debug builds. */
static void job_check(const struct ptc_job *job)
{
	const struct state *s = &states[job->phase];
	if (job->phase != PTC_JOB_RELOADING)
		ptc_require(s->has_switch == job->has_switch);
	if (job->phase != PTC_JOB_ABORTING)
		ptc_require((s->waits == TXN) == (job->txn_seq != 0));
	ptc_require((s->waits == LOCAL) == (job->local_seq != 0));
	ptc_require(job->has_switch || job->why.status == 0);
	ptc_require(job->phase != PTC_JOB_FINISHING || job->generation == job->cur.to_generation);
#ifdef PTC_DEBUG
	uint32_t need = 0, unarmed = 0;
	for (uint32_t i = 0; i < job->nnodes; i++) {
		const struct ptc_job_node *n = &job->nodes[i];
		need += n->need;
		unarmed += n->from && !n->armed;
		ptc_assert(n->up || n->seq == 0);
		ptc_assert(!n->seq || n->op == PTC_OP_FINISH || job->has_switch);
	}
	ptc_assert(need == job->pending);
	ptc_assert(job->phase != PTC_JOB_ARMING || unarmed == job->arming.unarmed);
#endif
}

/* ---- updates ----------------------------------------------------------------- */

struct ptc_job_update *ptc_job_push(struct ptc_job *job, enum ptc_job_update_kind kind)
{
	ptc_require(job->nupdates < job->updates_cap);
	struct ptc_job_update *u = &job->updates[job->nupdates++];
	memset(u, 0, offsetof(struct ptc_job_update, text) + 1);
	u->kind = kind;
	u->node = PTC_JOB_NO_NODE;
	u->phase = job->phase;
	u->switch_id = job->has_switch ? job->cur.id : 0;
	return u;
}

void ptc_job_move(struct ptc_job *job, enum ptc_job_phase next)
{
	ptc_require(states[job->phase].next & (1u << next));
	job->phase = next;
	ptc_job_push(job, PTC_UP_PHASE);
}

void ptc_job_want_tick(struct ptc_job *job)
{
	if (job->timer_seq)
		return;
	struct ptc_job_update *u = ptc_job_push(job, PTC_UP_SET_TIMER);
	u->seq = job->timer_seq = ++job->seq;
	u->timer_ms = job->tick_ms;
}

static void txn_send(struct ptc_job *job, enum ptc_job_txn txn)
{
	struct ptc_job_update *u = ptc_job_push(job, PTC_UP_TXN);
	u->txn = txn;
	u->step = txn == PTC_TXN_COMMIT1 && job->cur.run_from ? job->arming.stop : 0;
	u->new_incarnation = txn == PTC_TXN_CLEAR && ptc_job_needs_incarnation(job);
	u->seq = job->txn_seq = ++job->seq;
}

void ptc_job_push_done(struct ptc_job *job, uint64_t id, const struct ptc_job_reason *r)
{
	struct ptc_job_update *u = ptc_job_push(job, PTC_UP_DONE);
	u->switch_id = id;
	u->status = r->status;
	u->node = r->node;
	u->waited_ms = r->waited_ms;
	snprintf(u->text, sizeof(u->text), "%s", r->text);
}

void ptc_job_reason_set(struct ptc_job_reason *r, int status, uint32_t node, const char *fmt, ...)
{
	if (r->status) /* the first reason is the one to report */
		return;
	va_list ap;
	va_start(ap, fmt);
	r->status = status;
	r->node = node;
	vsnprintf(r->text, sizeof(r->text), fmt, ap);
	va_end(ap);
}

/* ---- moves ------------------------------------------------------------------------ */

void ptc_job_switch_forget(struct ptc_job *job)
{
	job->has_switch = false;
	job->own = job->filled = job->checked = job->intent_held = job->committed = false;
	memset(&job->arming, 0, sizeof(job->arming));
	memset(&job->cur, 0, sizeof(job->cur));
	memset(&job->why, 0, offsetof(struct ptc_job_reason, text) + 1);
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct ptc_job_node *n = &job->nodes[i];
		n->from = n->to = n->prepared = n->armed = false;
	}
}

void ptc_job_switch_report(struct ptc_job *job)
{
	struct ptc_job_reason r = { .status = 0, .node = PTC_JOB_NO_NODE };
	uint64_t id = job->cur.id;
	if (!job->committed)
		r = job->why;
	ptc_job_switch_forget(job);
	if (id == job->reported_id)
		return;
	job->reported_id = id;
	ptc_job_push_done(job, id, &r);
}

static void switch_ends(struct ptc_job *job)
{
	ptc_job_move(job, PTC_JOB_IDLE);
	ptc_job_switch_report(job);
	ptc_job_nodes_try(job);
}

/* The last transaction holds: the record is what the switch wanted. */
static void begin_finishing(struct ptc_job *job)
{
	bool same = job->cur.to_generation == job->cur.from_generation;
	job->committed = true;
	job->generation = job->cur.to_generation;
	job->snapshot = job->cur.to_snapshot;
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct ptc_job_node *n = &job->nodes[i];
		if (n->in_record || !job->members_known)
			ptc_job_node_mark_stale(job, i);
		n->in_record = same ? n->from : n->to;
	}
	job->members_known = true;
	ptc_job_nodes_finish(job);
}

static void reload_send(struct ptc_job *job)
{
	ptc_job_push(job, PTC_UP_RELOAD)->seq = job->reload_seq = ++job->seq;
}

void ptc_job_reload(struct ptc_job *job)
{
	ptc_job_nodes_release(job, true);
	job->txn_seq = job->local_seq = 0;
	ptc_job_move(job, PTC_JOB_RELOADING);
	job->reloads++;
	job->reload_backoff = job->reloads < 2 ? 0 : 1u << PTC_MIN(job->reloads - 2, BACKOFF_MAX_LOG2);
	if (job->reload_backoff)
		ptc_job_want_tick(job);
	else
		reload_send(job);
}

static enum ptc_job_txn phase_txn(const struct ptc_job *job)
{
	switch (job->phase) {
	case PTC_JOB_INTENT:
		return PTC_TXN_INTENT;
	case PTC_JOB_COMMIT1:
		return PTC_TXN_COMMIT1;
	case PTC_JOB_COMMIT2:
		return job->cur.kind == PTC_SWITCH_HALT ? PTC_TXN_HALT : PTC_TXN_COMMIT2;
	default: /* the intent may be in etcd, or on its way there: CLEAR makes sure it is not, before anything is dropped */
		return PTC_TXN_CLEAR;
	}
}

void ptc_job_enter(struct ptc_job *job, enum ptc_job_phase phase)
{
	const struct state *s = &states[phase];
	if (phase == PTC_JOB_ABORTING) {
		ptc_job_nodes_release(job, false);
		job->local_seq = 0;
	}
	ptc_job_move(job, phase);
	if (phase == PTC_JOB_IDLE)
		ptc_job_nodes_try(job);
	else if (phase == PTC_JOB_FINISHING)
		begin_finishing(job);
	else if (phase == PTC_JOB_ARMING)
		ptc_job_arm(job);
	else if (s->waits == TXN || phase == PTC_JOB_ABORTING)
		txn_send(job, phase_txn(job));
	else if (s->waits == LOCAL)
		ptc_job_push(job, (enum ptc_job_update_kind)s->update)->seq = job->local_seq = ++job->seq;
	else
		ptc_job_nodes_ask(job, s->from, s->to);
	ptc_job_advance(job);
}

void ptc_job_enter_after(struct ptc_job *job, enum ptc_job_phase phase)
{
	do
		phase++;
	while (!ptc_job_switch_has(&job->cur, phase));
	ptc_job_enter(job, phase);
}

void ptc_job_switch_fail(struct ptc_job *job)
{
	if (job->phase == PTC_JOB_CHECKING) {
		ptc_job_nodes_release(job, false);
		switch_ends(job);
	} else if (states[job->phase].next & B(ABORTING) && states[job->phase].waits != TXN &&
		   job->phase != PTC_JOB_RELOADING) {
		ptc_job_enter(job, PTC_JOB_ABORTING);
	}
}

/* Everybody that the phase needs has answered. */
static void phase_complete(struct ptc_job *job)
{
	switch (job->phase) {
	case PTC_JOB_NEW:
	case PTC_JOB_IDLE:
	case PTC_JOB_RELOADING:
	case PTC_JOB_STOPPED:
		return;
	case PTC_JOB_FINISHING:
	case PTC_JOB_ABORTING:
		switch_ends(job);
		return;
	case PTC_JOB_CHECKING:
		job->checked = true;
		break;
	case PTC_JOB_ARMING:
		job->arming.done = true;
		break;
	default:
		break;
	}
	ptc_job_enter_after(job, job->phase);
}

void ptc_job_advance(struct ptc_job *job)
{
	if (job->pending == 0 && !job->txn_seq && !job->local_seq)
		phase_complete(job);
}

/* ---- events --------------------------------------------------------------------------- */

static void txn_good(struct ptc_job *job)
{
	job->reloads = 0;
	switch (job->phase) {
	case PTC_JOB_INTENT:
		job->intent_held = job->intent_there = true;
		break;
	case PTC_JOB_COMMIT1:
		job->snapshot = job->cur.to_snapshot;
		if (job->cur.kind == PTC_SWITCH_SNAPSHOT) { /* it is the last transaction, so the switch holds */
			ptc_job_enter(job, PTC_JOB_FINISHING);
			return;
		}
		break;
	case PTC_JOB_COMMIT2:
		ptc_job_enter(job, PTC_JOB_FINISHING);
		return;
	default: /* ABORTING */
		job->intent_there = false;
		ptc_job_nodes_finish(job);
		ptc_job_advance(job);
		return;
	}
	if (job->why.status)
		ptc_job_enter(job, PTC_JOB_ABORTING);
	else
		ptc_job_enter_after(job, job->phase);
}

static void on_txn(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (!ev->seq || ev->seq != job->txn_seq)
		return;
	job->txn_seq = 0;
	if (ev->outcome == PTC_TXN_OK)
		txn_good(job);
	else
		ptc_job_reload(job);
}

/* The shell has compared (AGREE, LAYOUT, CHECK_DIGESTS). */
static void on_local(struct ptc_job *job, const struct ptc_job_event *ev, const char *what)
{
	if (!ev->seq || ev->seq != job->local_seq)
		return;
	job->local_seq = 0;
	if (ev->status == 0) {
		ptc_job_enter_after(job, job->phase);
		return;
	}
	ptc_job_reason_set(&job->why, ev->status, PTC_JOB_NO_NODE, "%s: %s", what,
			   ev->text && ev->text[0] ? ev->text : ptc_status_name(ev->status));
	ptc_job_switch_fail(job);
}

static void on_filled(struct ptc_job *job)
{
	if (job->phase != PTC_JOB_FILLING || job->cur.kind != PTC_SWITCH_IMPORT || job->filled)
		return;
	job->filled = true;
	ptc_job_nodes_try(job);
}

static void on_abort(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (!job->has_switch || job->phase == PTC_JOB_FINISHING || job->phase == PTC_JOB_ABORTING)
		return;
	int status = ev->status ? ev->status : PTC_ECANCELED;
	ptc_job_reason_set(&job->why, status, PTC_JOB_NO_NODE, "%s", ev->text && ev->text[0] ? ev->text : "aborted");
	ptc_job_switch_fail(job);
}

static void on_timer(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (!ev->seq || ev->seq != job->timer_seq)
		return;
	job->timer_seq = 0;
	if (job->phase == PTC_JOB_RELOADING && job->reload_backoff) {
		if (--job->reload_backoff)
			ptc_job_want_tick(job);
		else
			reload_send(job);
	}
	for (uint32_t i = 0; i < job->nnodes; i++)
		ptc_job_node_tick(job, i);
}

static void on_lock_lost(struct ptc_job *job)
{
	if (job->phase == PTC_JOB_STOPPED)
		return;
	ptc_job_nodes_release(job, true);
	job->txn_seq = job->local_seq = job->timer_seq = 0;
	ptc_job_move(job, PTC_JOB_STOPPED);
	if (job->has_switch) {
		job->why.status = 0;
		job->why.waited_ms = 0;
		ptc_job_reason_set(&job->why, PTC_EFENCED, PTC_JOB_NO_NODE, "this node is no longer the controller; %s",
				   job->intent_held ? "the next one goes on with the switch"
						    : "ask again there if the record does not say so already");
		ptc_job_switch_report(job);
	}
	ptc_job_push(job, PTC_UP_STOPPED);
}

/* ---- memory: everything a step may need, before it changes anything ------------------------ */

static void max_node(const uint32_t *v, uint32_t n, uint32_t *count)
{
	if (!ptc_job_list_valid(v, n))
		return;
	for (uint32_t i = 0; i < n; i++)
		*count = PTC_MAX(*count, v[i] + 1);
}

static int reserve_nodes(struct ptc_job *job, uint32_t count)
{
	if (count > job->nnodes) {
		struct ptc_job_node *v = ptc_reallocarray(job->nodes, count, sizeof(*v));
		if (!v)
			return PTC_ENOMEM;
		memset(v + job->nnodes, 0, (count - job->nnodes) * sizeof(*v));
		for (uint32_t i = job->nnodes; i < count; i++)
			v[i].stale = true;
		job->nodes = v;
		job->nnodes = count;
	}
	size_t cap = 4 * (size_t)job->nnodes + 16; /* at most SEND, CANCEL, SEND to each, and the rest */
	if (cap > job->updates_cap) {
		struct ptc_job_update *u = ptc_reallocarray(job->updates, cap, sizeof(*u));
		if (!u)
			return PTC_ENOMEM;
		job->updates = u;
		job->updates_cap = cap;
	}
	return 0;
}

static int reserve_list(uint32_t **list, uint32_t *cap, uint32_t n)
{
	if (n <= *cap || n > PTC_MAX_NODES)
		return 0;
	uint32_t *v = ptc_reallocarray(*list, n, sizeof(*v));
	if (!v)
		return PTC_ENOMEM;
	*list = v;
	*cap = n;
	return 0;
}

static int job_reserve(struct ptc_job *job, const struct ptc_job_event *ev)
{
	const struct ptc_switch *s = NULL;
	uint32_t count = 0;
	if (ev->kind == PTC_EV_SWITCH)
		s = ev->request;
	if (ev->kind == PTC_EV_START) {
		s = ev->intent;
		max_node(ev->record_nodes, ev->nrecord_nodes, &count);
	}
	if ((ev->kind == PTC_EV_NODE_UP || ev->kind == PTC_EV_NODE_DOWN) && ev->node < PTC_MAX_NODES)
		count = ev->node + 1;
	if (s) {
		max_node(s->from_nodes, s->nfrom, &count);
		max_node(s->to_nodes, s->nto, &count);
		if (reserve_list(&job->from_buf, &job->from_cap, s->nfrom) ||
		    reserve_list(&job->to_buf, &job->to_cap, s->nto))
			return PTC_ENOMEM;
	}
	int rc = reserve_nodes(job, count);
	/* the lists may have moved */
	job->cur.from_nodes = job->from_buf;
	job->cur.to_nodes = job->to_buf;
	return rc;
}

static void dispatch(struct ptc_job *job, const struct ptc_job_event *ev)
{
	switch (ev->kind) {
	case PTC_EV_START:
		ptc_job_on_start(job, ev);
		break;
	case PTC_EV_SWITCH:
		ptc_job_on_switch(job, ev->request);
		break;
	case PTC_EV_FILLED:
		on_filled(job);
		break;
	case PTC_EV_REPLY:
		ptc_job_on_reply(job, ev);
		break;
	case PTC_EV_TXN:
		on_txn(job, ev);
		break;
	case PTC_EV_DIGESTS:
		on_local(job, ev, "digests");
		break;
	case PTC_EV_AGREED:
		on_local(job, ev, "replicas");
		break;
	case PTC_EV_LAYOUT:
		on_local(job, ev, "layout");
		break;
	case PTC_EV_NODE_UP:
		if (!ptc_fails(ev->node < job->nnodes))
			ptc_job_on_node_up(job, ev->node);
		break;
	case PTC_EV_NODE_DOWN:
		if (!ptc_fails(ev->node < job->nnodes))
			ptc_job_on_node_down(job, ev->node);
		break;
	case PTC_EV_ABORT:
		on_abort(job, ev);
		break;
	case PTC_EV_TIMER:
		on_timer(job, ev);
		break;
	case PTC_EV_LOCK_LOST:
		on_lock_lost(job);
		break;
	}
}

int ptc_job_step(struct ptc_job *job, const struct ptc_job_event *event, struct ptc_job_updates *ret_updates)
{
	int rc = job_reserve(job, event);
	if (rc)
		return rc;
	job->nupdates = 0;
	if (job->phase != PTC_JOB_STOPPED || event->kind == PTC_EV_SWITCH)
		dispatch(job, event);
	job_check(job);
	ret_updates->v = job->updates;
	ret_updates->n = job->nupdates;
	return 0;
}

int ptc_job_new(const struct ptc_job_opts *opts, struct ptc_job **ret_job, struct ptc_error *err)
{
	uint32_t wait_ms = opts && opts->node_wait_ms ? opts->node_wait_ms : 30000;
	struct ptc_job *job = ptc_calloc(1, sizeof(*job));
	if (!job)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	job->max_attempts = opts && opts->max_attempts ? opts->max_attempts : 6;
	job->tick_ms = PTC_MIN(wait_ms, TICK_MS);
	job->wait_ticks = wait_ms / job->tick_ms + (wait_ms % job->tick_ms != 0);
	job->phase = PTC_JOB_NEW;
	*ret_job = job;
	return 0;
}

struct ptc_job *ptc_job_free(struct ptc_job *job)
{
	if (job) {
		ptc_free(job->nodes);
		ptc_free(job->updates);
		ptc_free(job->from_buf);
		ptc_free(job->to_buf);
		ptc_free(job);
	}
	return NULL;
}

enum ptc_job_phase ptc_job_phase(const struct ptc_job *job)
{
	return job->phase;
}

const struct ptc_switch *ptc_job_switch(const struct ptc_job *job)
{
	return job->has_switch ? &job->cur : NULL;
}
