/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a job's states and permitted moves, and helpers that note what a switch has decided: updates for the
 * shell, reasons, the end. Lowest of the core's files: it calls none of the others. Nothing here fails; a move that is
 * not allowed aborts the process. */
#include "daemon/core/job_internal.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
 *    +------> [STARTING] [WARMING] [ARMING] SEALING AGREEING ---+                           |
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
 *   LAYOUT, DIGESTING: a node of to_nodes has restarted meanwhile --> BUILDING, or PREPARING where no ranks shall run.
 *   DIGESTING waits for the shell and for STAND of the to nodes.
 *   any but NEW and STOPPED: conflict, unknown outcome, fenced --> RELOADING -- START --> where the record and the
 *   intent say. any: LOCK_LOST --> STOPPED.
 */
#define B(phase)  (1u << PTC_JOB_##phase)
#define ABORTABLE (B(ABORTING) | B(RELOADING) | B(STOPPED))
/* where a switch may go on when what is written down has been read */
#define RESUMED                                                                                                        \
	(B(STARTING) | B(WARMING) | B(SEALING) | B(ENDING) | B(BUILDING) | B(PREPARING) | B(ABORTING) | B(STOPPED))

static const struct ptc_job_state states[PTC_JOB_PHASE_COUNT] = {
	[PTC_JOB_NEW] = { "new", B(IDLE) | RESUMED, false },
	[PTC_JOB_IDLE] = { "idle", B(CHECKING) | B(COMMIT2) | B(RELOADING) | B(STOPPED), false },
	[PTC_JOB_CHECKING] = { "checking", B(INTENT) | B(IDLE) | B(RELOADING) | B(STOPPED), true, PTC_JOB_WAITS_NODES,
			       true, true },
	[PTC_JOB_INTENT] = { "intent", B(STARTING) | B(WARMING) | B(SEALING) | B(PREPARING) | ABORTABLE, true,
			     PTC_JOB_WAITS_TXN },
	[PTC_JOB_STARTING] = { "starting", B(WARMING) | B(SEALING) | B(BUILDING) | ABORTABLE, true, PTC_JOB_WAITS_NODES,
			       false, true },
	[PTC_JOB_WARMING] = { "warming", B(ARMING) | ABORTABLE, true, PTC_JOB_WAITS_NODES, true, false },
	[PTC_JOB_ARMING] = { "arming", B(SEALING) | ABORTABLE, true, PTC_JOB_WAITS_NODES, true, false },
	[PTC_JOB_SEALING] = { "sealing", B(AGREEING) | ABORTABLE, true, PTC_JOB_WAITS_NODES, true, false },
	[PTC_JOB_AGREEING] = { "agreeing", B(COMMIT1) | ABORTABLE, true, PTC_JOB_WAITS_LOCAL, false, false,
			       PTC_UP_AGREE },
	[PTC_JOB_COMMIT1] = { "commit1", B(ENDING) | B(BUILDING) | B(PREPARING) | B(FINISHING) | ABORTABLE, true,
			      PTC_JOB_WAITS_TXN },
	[PTC_JOB_ENDING] = { "ending", B(BUILDING) | B(PREPARING) | ABORTABLE, true, PTC_JOB_WAITS_NODES, true, false },
	[PTC_JOB_BUILDING] = { "building", B(LAYOUT) | ABORTABLE, true, PTC_JOB_WAITS_NODES, false, true },
	[PTC_JOB_LAYOUT] = { "layout", B(BUILDING) | B(PREPARING) | B(COMMIT2) | ABORTABLE, true, PTC_JOB_WAITS_LOCAL,
			     false, false, PTC_UP_LAYOUT },
	[PTC_JOB_PREPARING] = { "preparing", B(FILLING) | ABORTABLE, true, PTC_JOB_WAITS_NODES, false, true },
	[PTC_JOB_FILLING] = { "filling", B(DIGESTING) | ABORTABLE, true, PTC_JOB_WAITS_NODES, false, true },
	[PTC_JOB_DIGESTING] = { "digesting", B(BUILDING) | B(PREPARING) | B(COMMIT2) | ABORTABLE, true,
				PTC_JOB_WAITS_LOCAL, false, true, PTC_UP_CHECK_DIGESTS },
	[PTC_JOB_COMMIT2] = { "commit2", B(FINISHING) | B(RELOADING) | B(STOPPED), true, PTC_JOB_WAITS_TXN },
	[PTC_JOB_FINISHING] = { "finishing", B(IDLE) | B(RELOADING) | B(STOPPED), true },
	[PTC_JOB_ABORTING] = { "aborting", B(IDLE) | B(RELOADING) | B(STOPPED), true },
	[PTC_JOB_RELOADING] = { "reloading", B(IDLE) | B(CHECKING) | B(INTENT) | B(COMMIT2) | B(FINISHING) | RESUMED,
				false },
	[PTC_JOB_STOPPED] = { "stopped", 0, false },
};

const struct ptc_job_state *ptc_job_state(enum ptc_job_phase phase)
{
	return &states[phase];
}

const char *ptc_job_phase_name(enum ptc_job_phase phase)
{
	return (unsigned)phase < PTC_JOB_PHASE_COUNT ? states[phase].name : "unknown";
}

void ptc_job_check(const struct ptc_job *job)
{
	const struct ptc_job_state *s = &states[job->phase];
	if (job->phase != PTC_JOB_RELOADING)
		ptc_require(s->has_switch == job->has_switch);
	if (job->phase != PTC_JOB_ABORTING)
		ptc_require((s->waits == PTC_JOB_WAITS_TXN) == (job->txn_seq != 0));
	if (s->waits == PTC_JOB_WAITS_LOCAL) /* for the shell; DIGESTING may also wait for nodes alone */
		ptc_require(job->local_seq || (s->to && job->pending));
	else
		ptc_require(!job->local_seq);
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

void ptc_job_push_done(struct ptc_job *job, uint64_t id, const struct ptc_job_reason *r)
{
	struct ptc_job_update *u = ptc_job_push(job, PTC_UP_DONE);
	u->switch_id = id;
	u->status = r->status;
	u->node = r->node;
	u->waited_ms = r->waited_ms;
	u->lost = r->lost;
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

void ptc_job_reason_lost(struct ptc_job_reason *r, uint32_t node)
{
	r->lost |= !r->status;
	ptc_job_reason_set(r, PTC_EPEER, node, "lost, and the switch was to put state there");
}

void ptc_job_switch_forget(struct ptc_job *job)
{
	job->has_switch = false;
	job->own = job->filled = job->checked = job->intent_held = job->committed = false;
	memset(&job->arming, 0, sizeof(job->arming));
	memset(&job->cur, 0, sizeof(job->cur));
	memset(&job->why, 0, offsetof(struct ptc_job_reason, text) + 1);
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct ptc_job_node *n = &job->nodes[i];
		n->from = n->to = n->left_out = n->prepared = n->armed = n->built = n->again = false;
		n->refills = 0;
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

/* ---- what a switch is --------------------------------------------------------------- */

bool ptc_job_list_valid(const uint32_t *v, uint32_t n)
{
	if (n > PTC_MAX_NODES || (n && !v))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		if (v[i] >= PTC_MAX_NODES)
			return false;
	}
	return true;
}

bool ptc_job_switch_has(const struct ptc_switch *s, enum ptc_job_phase phase)
{
	bool moves = s->kind == PTC_SWITCH_IMPORT || (s->kind == PTC_SWITCH_RESIZE && s->to_snapshot > 0);
	bool seals = s->kind == PTC_SWITCH_SNAPSHOT || (s->kind == PTC_SWITCH_RESIZE && s->to_snapshot > 0);
	bool from = s->run_from && seals, to = s->run_to && s->kind == PTC_SWITCH_RESIZE;
	switch (phase) {
	case PTC_JOB_STARTING:
	case PTC_JOB_BUILDING:
	case PTC_JOB_LAYOUT:
		return to;
	case PTC_JOB_WARMING:
	case PTC_JOB_ARMING:
		return from && !s->held;
	case PTC_JOB_SEALING:
	case PTC_JOB_AGREEING:
	case PTC_JOB_COMMIT1:
		return seals;
	case PTC_JOB_ENDING:
		return from && s->kind == PTC_SWITCH_RESIZE;
	case PTC_JOB_PREPARING:
	case PTC_JOB_FILLING:
	case PTC_JOB_DIGESTING:
		return moves;
	case PTC_JOB_CHECKING:
	case PTC_JOB_INTENT:
		return s->kind != PTC_SWITCH_HALT;
	case PTC_JOB_COMMIT2:
		return s->kind != PTC_SWITCH_SNAPSHOT;
	default:
		return phase == PTC_JOB_FINISHING;
	}
}

bool ptc_job_record_is(const struct ptc_job *job, uint64_t generation, uint64_t snapshot)
{
	return job->generation == generation && job->snapshot == snapshot;
}

bool ptc_job_asks_again(const struct ptc_job *job)
{
	for (uint32_t k = 0; k < job->cur.nto; k++) {
		if (job->nodes[job->cur.to_nodes[k]].again)
			return true;
	}
	return false;
}

bool ptc_job_sent(const struct ptc_job *job)
{
	return job->cur.kind == PTC_SWITCH_IMPORT && !job->cur.stored;
}

bool ptc_job_half_way(const struct ptc_job *job)
{
	const struct ptc_switch *s = &job->cur;
	return s->kind == PTC_SWITCH_RESIZE && s->to_snapshot != s->from_snapshot &&
	       ptc_job_record_is(job, s->from_generation, s->to_snapshot);
}

bool ptc_job_needs_incarnation(const struct ptc_job *job)
{
	return job->intent_there && job->cur.run_from && ptc_job_half_way(job);
}
