/* SPDX-License-Identifier: Apache-2.0 */
/* The job core: see job.h for the protocol and for what it asks of shell, nodes and etcd.
 *
 * Happy path: START, IDLE, SWITCH; CHECKING cleans the nodes that take part and asks for a dry run; INTENT makes the
 * switch durable; SEALING and COMMIT1 make the snapshot; PREPARING, FILLING, DIGESTING make the new tables; COMMIT2
 * makes the new generation; FINISHING drops what is no longer needed; DONE.
 *
 * Failure modes
 *   a node answers with a retriable status  again after 1, 2, 4 .. ticks, max_attempts times, then the switch aborts
 *   a node answers with anything else       the switch aborts
 *   a node is down                          waited for, node_wait_ms, then the switch aborts. FINISHING never waits
 *   a node says we are fenced               RELOAD
 *   a transaction conflicts or is unknown   RELOAD, max_attempts times in a row, then the switch aborts
 *   abort while a transaction is in flight  remembered until its outcome is known; a committed switch stays committed
 *   lock lost                               DONE (PTC_EFENCED) for the switch, STOPPED; nothing more from this job
 *
 * Why nothing old can hurt a new switch: table keys are used again after an abort, so a node that was away during the
 * abort could hold a sealed table of the failed attempt under the very key of the next. Hence `dirty`: an intent is
 * written only after every node in it has answered a FINISH. And a FINISH is sent only when no intent is in etcd: before
 * INTENT, after CLEAR or after COMMIT2, so that a controller that has lost its lock cannot drop what its successor
 * builds on. Requests are ordered by (fence, seq) at the node.
 *
 * Time is counted in ticks of one timer, armed only while something waits. */
#include "daemon/core/job.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TICK_MS       200 /* resolution of back-off and of node_wait_ms */
#define HOLD_MAX_LOG2 5   /* longest back-off: 32 ticks */
#define NO_OP         (-1)

struct node {
	uint64_t seq;        /* of the request not answered yet; 0: none */
	int op;              /* of that request */
	uint32_t attempts;   /* retriable failures in a row */
	uint32_t hold;       /* ticks until the next attempt */
	uint32_t down_ticks; /* waited for it this long */
	bool up;
	bool dirty; /* may hold tables other than the record's */
	bool in_record;
	bool from, to;
	bool need;     /* the phase ends only when it has answered */
	bool prepared; /* answered PREPARE, and has not restarted since */
};

struct reason {
	int status;
	uint32_t node;
	char text[PTC_JOB_TEXT_MAX];
};

struct ptc_job {
	uint32_t max_attempts, tick_ms, wait_ticks;
	enum ptc_job_phase phase;
	int64_t fence;
	uint64_t generation, snapshot; /* the record */
	bool members_known;            /* in_record of the nodes is meaningful */

	struct node *nodes;
	uint32_t nnodes;
	uint32_t pending; /* nodes with need */

	struct ptc_switch cur;
	bool has_switch;
	bool own;         /* asked for in this life */
	bool filled;      /* import: the client has sent everything */
	bool checked;     /* CHECKING is done: no node of it holds a table that is not the record's */
	bool intent_held; /* known to be, or to have been, in etcd */
	bool committed;   /* COMMIT2 is known to hold */
	uint32_t *from_buf, *to_buf;
	uint32_t from_cap, to_cap;
	struct reason why; /* status != 0: the switch is to be aborted */
	uint64_t told_id;  /* the last switch that got its DONE */

	uint32_t reloads;     /* since a transaction last succeeded */
	uint32_t reload_hold; /* ticks until RELOAD is emitted */
	uint64_t reload_seq;  /* of the RELOAD not answered yet */

	uint64_t seq, txn_seq, digests_seq, timer_seq;
	struct ptc_job_update *updates;
	size_t nupdates, updates_cap;
};

/* ---- the states -----------------------------------------------------------
 *
 *             START, no intent
 *   NEW ------------------------> IDLE <--------------------------------------------------+
 *    |                             | SWITCH                                               |
 *    |                             v            fails: nothing was written                |
 *    |                          CHECKING -------------------------------------------------+
 *    |                             |                                                      |
 *    |                             v                                                      |
 *    |                           INTENT -------------------+                              |
 *    |  snapshot not yet           | resize      import    |                              |
 *    +------------------------> SEALING ---+               |                              |
 *    |                             |       |               |                              |
 *    |                             v       |               |                              |
 *    |                          COMMIT1 ---+---------+     |                              |
 *    |  snapshot is there          |       |         |     |                              |
 *    +------------------------> PREPARING <|---------|-----+                              |
 *    |                             |       |  abort  |                                    |
 *    |                             v       |         v                                    |
 *    |                          FILLING ---+----> ABORTING: CLEAR, then FINISH -----------+
 *    |                             |       |         ^                                    |
 *    |                             v       |         |                                    |
 *    |                         DIGESTING --+         | import, or does not fit            |
 *    +-----------------------------|-----------------+                                    |
 *                                  v                                                      |
 *                               COMMIT2 -----> FINISHING ---------------------------------+
 *
 *   any but NEW and STOPPED: conflict, unknown outcome, fenced --> RELOADING -- START --> where the record and the
 *   intent say. any: LOCK_LOST --> STOPPED.
 */
#define B(phase) (1u << PTC_JOB_##phase)

static const struct state {
	const char *name;
	uint32_t next;   /* allowed moves */
	bool has_switch; /* invariant */
	bool txn;        /* a transaction is in flight (ABORTING: in its first half) */
} states[PTC_JOB_PHASE_COUNT] = {
	[PTC_JOB_NEW] = { "new", B(IDLE) | B(SEALING) | B(PREPARING) | B(ABORTING) | B(STOPPED), false, false },
	[PTC_JOB_IDLE] = { "idle", B(CHECKING) | B(RELOADING) | B(STOPPED), false, false },
	[PTC_JOB_CHECKING] = { "checking", B(INTENT) | B(IDLE) | B(RELOADING) | B(STOPPED), true, false },
	[PTC_JOB_INTENT] = { "intent", B(SEALING) | B(PREPARING) | B(ABORTING) | B(RELOADING) | B(STOPPED), true,
			     true },
	[PTC_JOB_SEALING] = { "sealing", B(COMMIT1) | B(ABORTING) | B(RELOADING) | B(STOPPED), true, false },
	[PTC_JOB_COMMIT1] = { "commit1", B(PREPARING) | B(ABORTING) | B(RELOADING) | B(STOPPED), true, true },
	[PTC_JOB_PREPARING] = { "preparing", B(FILLING) | B(ABORTING) | B(RELOADING) | B(STOPPED), true, false },
	[PTC_JOB_FILLING] = { "filling", B(DIGESTING) | B(ABORTING) | B(RELOADING) | B(STOPPED), true, false },
	[PTC_JOB_DIGESTING] = { "digesting", B(COMMIT2) | B(ABORTING) | B(RELOADING) | B(STOPPED), true, false },
	[PTC_JOB_COMMIT2] = { "commit2", B(FINISHING) | B(RELOADING) | B(STOPPED), true, true },
	[PTC_JOB_FINISHING] = { "finishing", B(IDLE) | B(RELOADING) | B(STOPPED), true, false },
	[PTC_JOB_ABORTING] = { "aborting", B(IDLE) | B(RELOADING) | B(STOPPED), true, false },
	[PTC_JOB_RELOADING] = { "reloading",
				B(IDLE) | B(CHECKING) | B(INTENT) | B(SEALING) | B(PREPARING) | B(FINISHING) |
					B(ABORTING) | B(STOPPED),
				false, false },
	[PTC_JOB_STOPPED] = { "stopped", 0, false, false },
};

const char *ptc_job_phase_name(enum ptc_job_phase phase)
{
	return (unsigned)phase < PTC_JOB_PHASE_COUNT ? states[phase].name : "unknown";
}

static const char *op_name(int op)
{
	static const char *const names[] = { "check", "seal", "prepare", "pull", "finish" };
	return (unsigned)op < PTC_ARRAY_LEN(names) ? names[op] : "?";
}

/* The O(1) part holds in every build, the counts in debug builds. */
static void job_check(const struct ptc_job *job)
{
	const struct state *s = &states[job->phase];
	if (job->phase != PTC_JOB_RELOADING)
		ptc_require(s->has_switch == job->has_switch);
	if (job->phase != PTC_JOB_ABORTING)
		ptc_require(s->txn == (job->txn_seq != 0));
	ptc_require(job->has_switch || job->why.status == 0);
	ptc_require(job->phase != PTC_JOB_FINISHING || job->generation == job->cur.to_generation);
	ptc_require((job->phase == PTC_JOB_DIGESTING) == (job->digests_seq != 0));
#ifdef PTC_DEBUG
	uint32_t need = 0;
	for (uint32_t i = 0; i < job->nnodes; i++) {
		const struct node *n = &job->nodes[i];
		need += n->need;
		ptc_assert(n->up || n->seq == 0);
		ptc_assert(!n->seq || n->op == PTC_OP_FINISH || job->has_switch);
	}
	ptc_assert(need == job->pending);
#endif
}

/* ---- updates ----------------------------------------------------------------- */

static struct ptc_job_update *update_push(struct ptc_job *job, enum ptc_job_update_kind kind)
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

static void job_move(struct ptc_job *job, enum ptc_job_phase next)
{
	ptc_require(states[job->phase].next & (1u << next));
	job->phase = next;
	update_push(job, PTC_UP_PHASE);
}

static void tick_want(struct ptc_job *job)
{
	if (job->timer_seq)
		return;
	struct ptc_job_update *u = update_push(job, PTC_UP_SET_TIMER);
	u->seq = job->timer_seq = ++job->seq;
	u->timer_ms = job->tick_ms;
}

static void txn_send(struct ptc_job *job, enum ptc_job_txn txn)
{
	struct ptc_job_update *u = update_push(job, PTC_UP_TXN);
	u->txn = txn;
	u->seq = job->txn_seq = ++job->seq;
}

static void done_push(struct ptc_job *job, uint64_t id, const struct reason *r)
{
	struct ptc_job_update *u = update_push(job, PTC_UP_DONE);
	u->switch_id = id;
	u->status = r->status;
	u->node = r->node;
	snprintf(u->text, sizeof(u->text), "%s", r->text);
}

__attribute__((format(printf, 4, 5))) static void reason_set(struct reason *r, int status, uint32_t node,
							     const char *fmt, ...)
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

/* ---- nodes ---------------------------------------------------------------------- */

static bool may_finish(const struct ptc_job *job)
{
	return job->phase == PTC_JOB_IDLE || job->phase == PTC_JOB_FINISHING ||
	       (job->phase == PTC_JOB_ABORTING && !job->txn_seq);
}

/* What the node is to do next in this phase, or NO_OP. */
static int node_next_op(const struct ptc_job *job, const struct node *n)
{
	if (may_finish(job))
		return n->dirty ? PTC_OP_FINISH : NO_OP;
	if (!n->need)
		return NO_OP;
	switch (job->phase) {
	case PTC_JOB_CHECKING:
		return n->dirty ? PTC_OP_FINISH : n->to ? PTC_OP_CHECK : NO_OP;
	case PTC_JOB_SEALING:
		return PTC_OP_SEAL;
	case PTC_JOB_PREPARING:
		return PTC_OP_PREPARE;
	case PTC_JOB_FILLING:
		if (job->cur.kind == PTC_SWITCH_IMPORT)
			return job->filled ? PTC_OP_PULL : NO_OP;
		return n->prepared ? PTC_OP_PULL : PTC_OP_PREPARE;
	default:
		return NO_OP;
	}
}

static void node_try(struct ptc_job *job, uint32_t i)
{
	struct node *n = &job->nodes[i];
	if (!n->up || n->seq || n->hold)
		return;
	int op = node_next_op(job, n);
	if (op == NO_OP)
		return;
	struct ptc_job_update *u = update_push(job, PTC_UP_SEND);
	u->node = i;
	u->op = (enum ptc_job_op)op;
	u->seq = n->seq = ++job->seq;
	n->op = op;
	if (op == PTC_OP_FINISH && job->generation > 0 && (n->in_record || !job->members_known)) {
		u->has_keep = true;
		u->keep_generation = job->generation;
		u->keep_snapshot = job->snapshot;
	}
	if (op == PTC_OP_SEAL || op == PTC_OP_PREPARE || op == PTC_OP_PULL)
		n->dirty = true;
}

static void nodes_try(struct ptc_job *job)
{
	for (uint32_t i = 0; i < job->nnodes; i++)
		node_try(job, i);
}

static void node_cancel(struct ptc_job *job, uint32_t i)
{
	struct node *n = &job->nodes[i];
	if (!n->seq)
		return;
	struct ptc_job_update *u = update_push(job, PTC_UP_CANCEL);
	u->node = i;
	u->op = (enum ptc_job_op)n->op;
	u->seq = n->seq;
	n->seq = 0;
}

/* What it is to keep has changed: the answer to a FINISH under way would say nothing. */
static void node_soil(struct ptc_job *job, uint32_t i)
{
	node_cancel(job, i);
	job->nodes[i].dirty = true;
}

/* Nobody is needed any more. A FINISH may go on: it is right until the record changes (node_soil). */
static void nodes_release(struct ptc_job *job, bool cancel_finish)
{
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct node *n = &job->nodes[i];
		n->need = false;
		if (n->op != PTC_OP_FINISH || cancel_finish)
			node_cancel(job, i);
	}
	job->pending = 0;
}

static void node_answered(struct ptc_job *job, struct node *n)
{
	if (n->need) {
		n->need = false;
		job->pending--;
	}
}

/* The phase cannot end without it, or goes badly without it. */
static bool node_awaited(const struct ptc_job *job, const struct node *n)
{
	return n->need ||
	       (job->phase == PTC_JOB_FILLING && n->from && job->cur.kind == PTC_SWITCH_RESIZE && job->pending > 0);
}

/* Starts a phase that the from or the to nodes have to answer. */
static void nodes_ask(struct ptc_job *job, bool from, bool to)
{
	ptc_require(job->pending == 0);
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct node *n = &job->nodes[i];
		n->need = (from && n->from) || (to && n->to);
		if (job->phase == PTC_JOB_CHECKING && !n->to && !n->dirty)
			n->need = false; /* a clean node that only gives needs no dry run */
		job->pending += n->need;
		n->attempts = n->hold = n->down_ticks = 0;
	}
	for (uint32_t i = 0; i < job->nnodes; i++) {
		if (!job->nodes[i].up && node_awaited(job, &job->nodes[i]))
			tick_want(job);
		node_try(job, i);
	}
}

/* ---- moves ------------------------------------------------------------------------ */

static void phase_complete(struct ptc_job *job);

static void enter_idle(struct ptc_job *job)
{
	job_move(job, PTC_JOB_IDLE);
	nodes_try(job);
}

static void switch_forget(struct ptc_job *job)
{
	job->has_switch = false;
	job->own = job->filled = job->checked = job->intent_held = job->committed = false;
	memset(&job->cur, 0, sizeof(job->cur));
	memset(&job->why, 0, offsetof(struct reason, text) + 1);
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct node *n = &job->nodes[i];
		n->from = n->to = n->prepared = false;
	}
}

/* Tells the end of the current switch, once, and forgets it. */
static void switch_tell(struct ptc_job *job)
{
	struct reason r = { .status = 0, .node = PTC_JOB_NO_NODE };
	uint64_t id = job->cur.id;
	if (!job->committed)
		r = job->why;
	switch_forget(job);
	if (id == job->told_id)
		return;
	job->told_id = id;
	done_push(job, id, &r);
}

/* FINISHING and the second half of ABORTING: whoever is up is cleaned; nobody else is waited for. */
static void nodes_finish(struct ptc_job *job)
{
	ptc_require(job->pending == 0);
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct node *n = &job->nodes[i];
		if (!n->from && !n->to)
			continue;
		node_soil(job, i);
		n->attempts = n->hold = 0;
		n->need = n->up;
		job->pending += n->need;
	}
	nodes_try(job);
	if (job->pending == 0)
		phase_complete(job);
}

static void enter_finishing(struct ptc_job *job)
{
	job_move(job, PTC_JOB_FINISHING);
	job->committed = true;
	job->generation = job->cur.to_generation;
	job->snapshot = job->cur.to_snapshot;
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct node *n = &job->nodes[i];
		if (n->in_record || !job->members_known)
			node_soil(job, i);
		n->in_record = n->to;
	}
	job->members_known = true;
	nodes_finish(job);
}

/* The intent may be in etcd, or on its way there: CLEAR makes sure it is not, before anything is dropped. */
static void enter_aborting(struct ptc_job *job)
{
	nodes_release(job, false);
	job->digests_seq = 0;
	job_move(job, PTC_JOB_ABORTING);
	txn_send(job, PTC_TXN_CLEAR);
}

static void reload_send(struct ptc_job *job)
{
	update_push(job, PTC_UP_RELOAD)->seq = job->reload_seq = ++job->seq;
}

static void enter_reloading(struct ptc_job *job)
{
	nodes_release(job, true);
	job->txn_seq = job->digests_seq = 0;
	job_move(job, PTC_JOB_RELOADING);
	job->reloads++;
	job->reload_hold = job->reloads < 2 ? 0 : 1u << PTC_MIN(job->reloads - 2, HOLD_MAX_LOG2);
	if (job->reload_hold)
		tick_want(job);
	else
		reload_send(job);
}

static void enter_checking(struct ptc_job *job)
{
	job_move(job, PTC_JOB_CHECKING);
	nodes_ask(job, true, true);
}

static void enter_intent(struct ptc_job *job)
{
	job_move(job, PTC_JOB_INTENT);
	txn_send(job, PTC_TXN_INTENT);
}

static void enter_sealing(struct ptc_job *job)
{
	job_move(job, PTC_JOB_SEALING);
	nodes_ask(job, true, false);
}

static void enter_preparing(struct ptc_job *job)
{
	job_move(job, PTC_JOB_PREPARING);
	nodes_ask(job, false, true);
}

static void enter_commit(struct ptc_job *job, enum ptc_job_phase phase, enum ptc_job_txn txn)
{
	job_move(job, phase);
	txn_send(job, txn);
}

static void enter_digesting(struct ptc_job *job)
{
	job_move(job, PTC_JOB_DIGESTING);
	update_push(job, PTC_UP_CHECK_DIGESTS)->seq = job->digests_seq = ++job->seq;
}

/* The switch goes wrong for job->why. With a transaction in flight its outcome comes first. */
static void switch_fail(struct ptc_job *job)
{
	switch (job->phase) {
	case PTC_JOB_CHECKING:
		nodes_release(job, false);
		job_move(job, PTC_JOB_IDLE);
		switch_tell(job);
		nodes_try(job);
		return;
	case PTC_JOB_SEALING:
	case PTC_JOB_PREPARING:
	case PTC_JOB_FILLING:
	case PTC_JOB_DIGESTING:
		enter_aborting(job);
		return;
	default:
		return;
	}
}

static void phase_complete(struct ptc_job *job)
{
	switch (job->phase) {
	case PTC_JOB_CHECKING:
		job->checked = true;
		enter_intent(job);
		return;
	case PTC_JOB_SEALING:
		enter_commit(job, PTC_JOB_COMMIT1, PTC_TXN_COMMIT1);
		return;
	case PTC_JOB_PREPARING:
		job_move(job, PTC_JOB_FILLING);
		nodes_ask(job, false, true);
		return;
	case PTC_JOB_FILLING:
		enter_digesting(job);
		return;
	case PTC_JOB_FINISHING:
	case PTC_JOB_ABORTING:
		job_move(job, PTC_JOB_IDLE);
		switch_tell(job);
		nodes_try(job);
		return;
	default:
		return;
	}
}

static void phase_advance(struct ptc_job *job)
{
	if (job->pending == 0)
		phase_complete(job);
}

/* ---- START: what is written down ------------------------------------------------------ */

static bool list_valid(const uint32_t *v, uint32_t n)
{
	if (n > PTC_MAX_NODES || (n && !v))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		if (v[i] >= PTC_MAX_NODES)
			return false;
	}
	return true;
}

/* NULL, or what is wrong with it. The lists' distinctness is checked on adoption. */
static const char *switch_wrong(const struct ptc_switch *s)
{
	if (s->id == 0)
		return "a switch needs an id";
	if (s->kind != PTC_SWITCH_RESIZE && s->kind != PTC_SWITCH_IMPORT)
		return "unknown kind of switch";
	if (!list_valid(s->from_nodes, s->nfrom) || !list_valid(s->to_nodes, s->nto))
		return "bad list of nodes";
	if (s->nto == 0)
		return "no node to switch to";
	if (s->kind == PTC_SWITCH_RESIZE && (s->nfrom == 0 || s->from_generation == 0))
		return "no state to resize";
	if (s->to_generation != s->from_generation + 1 || s->to_snapshot != s->from_snapshot + 1)
		return "generation and snapshot must each grow by one";
	return NULL;
}

static bool record_is(const struct ptc_job *job, uint64_t generation, uint64_t snapshot)
{
	return job->generation == generation && job->snapshot == snapshot;
}

static bool intent_fits(const struct ptc_job *job)
{
	const struct ptc_switch *s = &job->cur;
	if (switch_wrong(s))
		return false;
	return record_is(job, s->from_generation, s->from_snapshot) ||
	       (s->kind == PTC_SWITCH_RESIZE && record_is(job, s->from_generation, s->to_snapshot));
}

/* Makes s the current switch (room was reserved). false: a node is listed twice or a list cannot be read. */
static bool switch_adopt(struct ptc_job *job, const struct ptc_switch *s)
{
	bool ok = list_valid(s->from_nodes, s->nfrom) && list_valid(s->to_nodes, s->nto);
	job->cur = *s;
	job->has_switch = true;
	if (!ok)
		job->cur.nfrom = job->cur.nto = 0;
	job->cur.from_nodes = job->from_buf;
	job->cur.to_nodes = job->to_buf;
	for (uint32_t i = 0; i < job->cur.nfrom; i++) {
		struct node *n = &job->nodes[job->from_buf[i] = s->from_nodes[i]];
		ok = ok && !n->from;
		n->from = true;
	}
	for (uint32_t i = 0; i < job->cur.nto; i++) {
		struct node *n = &job->nodes[job->to_buf[i] = s->to_nodes[i]];
		ok = ok && !n->to;
		n->to = true;
	}
	return ok;
}

static void start_record(struct ptc_job *job, const struct ptc_job_event *ev)
{
	bool members = ev->nrecord_nodes > 0 && list_valid(ev->record_nodes, ev->nrecord_nodes);
	bool other_life = job->fence != ev->fence; /* somebody else may have held the lock */
	bool changed = job->generation != ev->generation || job->snapshot != ev->snapshot;
	job->fence = ev->fence;
	job->generation = ev->generation;
	job->snapshot = ev->snapshot;
	job->checked = job->checked && !other_life;
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct node *n = &job->nodes[i];
		n->dirty |= other_life || (changed && (n->in_record || !job->members_known));
		n->in_record = false;
	}
	job->members_known = members;
	for (uint32_t i = 0; members && i < ev->nrecord_nodes; i++)
		job->nodes[ev->record_nodes[i]].in_record = true;
}

static void start_with_intent(struct ptc_job *job, bool readable)
{
	struct reason *why = &job->why;
	job->intent_held = true;
	if (!readable || !intent_fits(job))
		reason_set(why, PTC_ECORRUPT, PTC_JOB_NO_NODE, "the intent found does not fit the record %llu.%llu",
			   (unsigned long long)job->generation, (unsigned long long)job->snapshot);
	if (job->cur.id == job->told_id)
		reason_set(why, PTC_ECANCELED, PTC_JOB_NO_NODE, "this switch had ended already");
	if (job->cur.kind == PTC_SWITCH_IMPORT && !job->own)
		reason_set(why, PTC_ECANCELED, PTC_JOB_NO_NODE, "import ended with the controller that ran it");
	if (job->reloads >= job->max_attempts)
		reason_set(why, PTC_ECONFLICT, PTC_JOB_NO_NODE, "no transaction succeeded in %u attempts",
			   job->reloads);
	if (why->status)
		enter_aborting(job);
	else if (job->cur.kind == PTC_SWITCH_RESIZE && job->snapshot == job->cur.from_snapshot)
		enter_sealing(job);
	else
		enter_preparing(job);
}

/* Our switch is under way and no intent is there: committed, never written, or gone. */
static void start_without_intent(struct ptc_job *job)
{
	const struct ptc_switch *s = &job->cur;
	if (job->intent_held && record_is(job, s->to_generation, s->to_snapshot)) {
		enter_finishing(job);
		return;
	}
	if (job->committed) { /* and others have gone on from there */
		job_move(job, PTC_JOB_IDLE);
		switch_tell(job);
		nodes_try(job);
		return;
	}
	if (job->intent_held || !record_is(job, s->from_generation, s->from_snapshot))
		reason_set(&job->why, PTC_ECONFLICT, PTC_JOB_NO_NODE, "the intent is gone, the record is %llu.%llu",
			   (unsigned long long)job->generation, (unsigned long long)job->snapshot);
	if (job->reloads >= job->max_attempts)
		reason_set(&job->why, PTC_ECOORD, PTC_JOB_NO_NODE, "the intent could not be written in %u attempts",
			   job->reloads);
	if (job->why.status)
		enter_aborting(job);
	else if (job->checked)
		enter_intent(job);
	else
		enter_checking(job);
}

static void on_start(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (job->phase != PTC_JOB_NEW && job->phase != PTC_JOB_RELOADING)
		return;
	if (ev->seq && ev->seq != job->reload_seq)
		return; /* read for an earlier RELOAD: may be older than what has been written since */
	bool readable = true;
	job->reload_hold = 0;
	job->reload_seq = 0;
	start_record(job, ev);
	if (job->has_switch && ev->intent && ev->intent->id != job->cur.id) {
		reason_set(&job->why, PTC_ECONFLICT, PTC_JOB_NO_NODE, "another switch was found under way");
		switch_tell(job);
	}
	if (ev->intent && !job->has_switch)
		readable = switch_adopt(job, ev->intent);
	if (ev->intent)
		start_with_intent(job, readable);
	else if (job->has_switch)
		start_without_intent(job);
	else
		enter_idle(job);
}

/* ---- events --------------------------------------------------------------------------- */

static void refuse(struct ptc_job *job, uint64_t id, int status, const char *text)
{
	struct reason r = { .status = 0 };
	reason_set(&r, status, PTC_JOB_NO_NODE, "%s", text);
	done_push(job, id, &r);
}

static void on_switch(struct ptc_job *job, const struct ptc_switch *s)
{
	const char *wrong = switch_wrong(s);
	if (!wrong && s->id == job->told_id)
		wrong = "the id was used before";
	if (job->phase != PTC_JOB_IDLE) {
		refuse(job, s->id, PTC_ESTATE,
		       job->has_switch                 ? "a switch is running"
		       : job->phase == PTC_JOB_STOPPED ? "this is no longer the controller"
						       : "the controller is still reading the record");
		return;
	}
	if (wrong || !record_is(job, s->from_generation, s->from_snapshot)) {
		refuse(job, s->id, wrong ? PTC_EINVAL : PTC_ESTATE, wrong ? wrong : "the record has changed");
		return;
	}
	if (!switch_adopt(job, s)) {
		switch_forget(job);
		refuse(job, s->id, PTC_EINVAL, "a node is listed twice");
		return;
	}
	job->own = true;
	job->reloads = 0;
	enter_checking(job);
}

static bool status_retriable(int status)
{
	switch (status) {
	case PTC_EPEER:
	case PTC_ETIMEOUT:
	case PTC_ECANCELED:
	case PTC_EIO:
	case PTC_ECOORD:
	case PTC_ENOMEM:
		return true;
	default:
		return false;
	}
}

static void node_hold(struct ptc_job *job, struct node *n)
{
	n->hold = 1u << PTC_MIN(n->attempts, HOLD_MAX_LOG2);
	n->attempts += n->attempts < UINT32_MAX;
	tick_want(job);
}

static void reply_good(struct ptc_job *job, uint32_t i, int op)
{
	struct node *n = &job->nodes[i];
	if (op != PTC_OP_PREPARE) /* else a PULL that keeps asking for it would never run out of attempts */
		n->attempts = 0;
	if (op == PTC_OP_FINISH) {
		n->dirty = false;
		if (job->phase != PTC_JOB_CHECKING || !n->to)
			node_answered(job, n);
	} else if (op == PTC_OP_PREPARE) {
		n->prepared = true;
		if (job->phase == PTC_JOB_PREPARING)
			node_answered(job, n);
	} else {
		node_answered(job, n);
	}
	node_try(job, i);
}

/* A source that is down explains failures of PULL; they do not count while it is waited for. */
static bool source_down(const struct ptc_job *job)
{
	for (uint32_t i = 0; job->phase == PTC_JOB_FILLING && i < job->cur.nfrom; i++) {
		if (!job->nodes[job->cur.from_nodes[i]].up)
			return true;
	}
	return false;
}

static void reply_bad(struct ptc_job *job, uint32_t i, int op, const struct ptc_job_event *ev)
{
	struct node *n = &job->nodes[i];
	bool again = status_retriable(ev->status);
	if (op == PTC_OP_PULL && ev->status == PTC_ESTATE && job->cur.kind == PTC_SWITCH_RESIZE) {
		n->prepared = false; /* it has forgotten: restarted without our noticing */
		again = true;
	}
	node_hold(job, n);
	if (again && op == PTC_OP_PULL && source_down(job))
		n->attempts = 1;
	if (again && n->attempts < job->max_attempts)
		return;
	if (may_finish(job)) { /* stays dirty; tried again while idle */
		node_answered(job, n);
	} else if (n->need) {
		reason_set(&job->why, ev->status, i, "%s: %s", op_name(op),
			   ev->text && ev->text[0] ? ev->text : ptc_status_name(ev->status));
		switch_fail(job);
	}
}

static void on_reply(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (ev->node >= job->nnodes || !ev->seq || job->nodes[ev->node].seq != ev->seq)
		return;
	struct node *n = &job->nodes[ev->node];
	n->seq = 0;
	if (ev->status == PTC_EFENCED && job->reloads < job->max_attempts) {
		if (job->phase == PTC_JOB_FILLING && job->cur.kind == PTC_SWITCH_IMPORT)
			reason_set(&job->why, PTC_EFENCED, ev->node, "%s: a newer controller exists", op_name(n->op));
		if (!job->txn_seq) /* else its outcome tells */
			enter_reloading(job);
		return;
	}
	if (ev->status == 0)
		reply_good(job, ev->node, n->op);
	else
		reply_bad(job, ev->node, n->op, ev);
	if (job->phase != PTC_JOB_IDLE && !job->txn_seq && !job->digests_seq)
		phase_advance(job);
}

static void txn_good(struct ptc_job *job)
{
	job->reloads = 0;
	switch (job->phase) {
	case PTC_JOB_INTENT:
		job->intent_held = true;
		if (job->why.status)
			enter_aborting(job);
		else if (job->cur.kind == PTC_SWITCH_IMPORT)
			enter_preparing(job);
		else
			enter_sealing(job);
		return;
	case PTC_JOB_COMMIT1:
		job->snapshot = job->cur.to_snapshot;
		if (job->why.status)
			enter_aborting(job);
		else
			enter_preparing(job);
		return;
	case PTC_JOB_COMMIT2:
		enter_finishing(job);
		return;
	default: /* ABORTING */
		nodes_finish(job);
		return;
	}
}

static void on_txn(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (!ev->seq || ev->seq != job->txn_seq)
		return;
	job->txn_seq = 0;
	if (ev->outcome == PTC_TXN_OK)
		txn_good(job);
	else
		enter_reloading(job);
}

static void on_digests(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (!ev->seq || ev->seq != job->digests_seq)
		return;
	job->digests_seq = 0;
	if (ev->status == 0) {
		enter_commit(job, PTC_JOB_COMMIT2, PTC_TXN_COMMIT2);
		return;
	}
	reason_set(&job->why, ev->status, PTC_JOB_NO_NODE, "digests: %s",
		   ev->text && ev->text[0] ? ev->text : ptc_status_name(ev->status));
	switch_fail(job);
}

static void on_filled(struct ptc_job *job)
{
	if (job->phase != PTC_JOB_FILLING || job->cur.kind != PTC_SWITCH_IMPORT || job->filled)
		return;
	job->filled = true;
	nodes_try(job);
}

static void on_node_down(struct ptc_job *job, uint32_t i)
{
	struct node *n = &job->nodes[i];
	node_cancel(job, i);
	n->up = n->prepared = false;
	n->attempts = n->hold = n->down_ticks = 0;
	if (may_finish(job)) {
		node_answered(job, n);
		if (job->phase != PTC_JOB_IDLE)
			phase_advance(job);
	} else if (n->need && job->phase == PTC_JOB_FILLING && job->cur.kind == PTC_SWITCH_IMPORT) {
		reason_set(&job->why, PTC_EPEER, i, "went away during the import; what it was sent is lost");
		switch_fail(job);
	} else if (node_awaited(job, n)) {
		tick_want(job);
	}
}

static void on_node_up(struct ptc_job *job, uint32_t i)
{
	if (job->nodes[i].up) /* it has restarted */
		on_node_down(job, i);
	job->nodes[i].up = true;
	job->nodes[i].dirty = true;
	node_try(job, i);
}

static void on_abort(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (!job->has_switch || job->phase == PTC_JOB_FINISHING || job->phase == PTC_JOB_ABORTING)
		return;
	int status = ev->status ? ev->status : PTC_ECANCELED;
	reason_set(&job->why, status, PTC_JOB_NO_NODE, "%s", ev->text && ev->text[0] ? ev->text : "aborted");
	switch_fail(job);
}

static void tick_node(struct ptc_job *job, uint32_t i)
{
	struct node *n = &job->nodes[i];
	if (n->hold && --n->hold)
		tick_want(job);
	node_try(job, i);
	if (n->up || !node_awaited(job, n))
		return;
	tick_want(job);
	if (++n->down_ticks < job->wait_ticks)
		return;
	reason_set(&job->why, PTC_EPEER, i, "down for more than %u ms", (unsigned)(job->tick_ms * job->wait_ticks));
	switch_fail(job);
}

static void on_timer(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (!ev->seq || ev->seq != job->timer_seq)
		return;
	job->timer_seq = 0;
	if (job->phase == PTC_JOB_RELOADING && job->reload_hold) {
		if (--job->reload_hold)
			tick_want(job);
		else
			reload_send(job);
	}
	for (uint32_t i = 0; i < job->nnodes; i++)
		tick_node(job, i);
}

static void on_lock_lost(struct ptc_job *job)
{
	if (job->phase == PTC_JOB_STOPPED)
		return;
	nodes_release(job, true);
	job->txn_seq = job->digests_seq = job->timer_seq = 0;
	job_move(job, PTC_JOB_STOPPED);
	if (job->has_switch) {
		job->why.status = 0;
		reason_set(&job->why, PTC_EFENCED, PTC_JOB_NO_NODE,
			   "this node is no longer the controller; the next one goes on with the switch");
		switch_tell(job);
	}
	update_push(job, PTC_UP_STOPPED);
}

/* ---- memory: everything a step may need, before it changes anything ------------------------ */

static void max_node(const uint32_t *v, uint32_t n, uint32_t *count)
{
	if (!list_valid(v, n))
		return;
	for (uint32_t i = 0; i < n; i++)
		*count = PTC_MAX(*count, v[i] + 1);
}

static int reserve_nodes(struct ptc_job *job, uint32_t count)
{
	if (count > job->nnodes) {
		struct node *v = ptc_reallocarray(job->nodes, count, sizeof(*v));
		if (!v)
			return PTC_ENOMEM;
		memset(v + job->nnodes, 0, (count - job->nnodes) * sizeof(*v));
		for (uint32_t i = job->nnodes; i < count; i++)
			v[i].dirty = true;
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
		on_start(job, ev);
		break;
	case PTC_EV_SWITCH:
		on_switch(job, ev->request);
		break;
	case PTC_EV_FILLED:
		on_filled(job);
		break;
	case PTC_EV_REPLY:
		on_reply(job, ev);
		break;
	case PTC_EV_TXN:
		on_txn(job, ev);
		break;
	case PTC_EV_DIGESTS:
		on_digests(job, ev);
		break;
	case PTC_EV_NODE_UP:
		if (!ptc_fails(ev->node < job->nnodes))
			on_node_up(job, ev->node);
		break;
	case PTC_EV_NODE_DOWN:
		if (!ptc_fails(ev->node < job->nnodes))
			on_node_down(job, ev->node);
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
