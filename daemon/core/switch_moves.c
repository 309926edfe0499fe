/* SPDX-License-Identifier: Apache-2.0 */
/* Moves a switch from phase to phase: how each begins and ends. Happy path: a phase is entered, and asks nodes
 * (switch_nodes.c), the shell or etcd. When all have answered, the next phase is entered. Failure modes: a switch that
 * goes wrong is aborted; record and intent are read again, after ever longer waits. */
#include "daemon/core/job_internal.h"

#include "base/check.h"

#define BACKOFF_MAX_LOG2 5 /* longest wait before a RELOAD: 32 ticks */

static void txn_send(struct ptc_job *job, enum ptc_job_txn txn)
{
	struct ptc_job_update *u = ptc_job_push(job, PTC_UP_TXN);
	u->txn = txn;
	u->step = txn == PTC_TXN_COMMIT1 && job->cur.run_from ? job->arming.stop : 0;
	u->new_incarnation = txn == PTC_TXN_CLEAR && ptc_job_needs_incarnation(job);
	u->seq = job->txn_seq = ++job->seq;
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
		n->in_record = same ? n->from && !n->left_out : n->to;
	}
	job->members_known = true;
	ptc_job_nodes_finish(job);
}

void ptc_job_reload_send(struct ptc_job *job)
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
		ptc_job_reload_send(job);
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
	default: /* the intent may be in etcd, or on its way there: CLEAR makes sure it is not, before anything is
		    dropped */
		return PTC_TXN_CLEAR;
	}
}

/* A node that the switch cannot end well without is lost already. */
static bool target_lost(struct ptc_job *job)
{
	for (uint32_t k = 0; k < job->cur.nto; k++) {
		uint32_t i = job->cur.to_nodes[k];
		if (job->nodes[i].lost && ptc_job_node_indispensable(job, &job->nodes[i])) {
			ptc_job_reason_lost(&job->why, i);
			return true;
		}
	}
	return false;
}

void ptc_job_enter(struct ptc_job *job, enum ptc_job_phase phase)
{
	const struct ptc_job_state *s = ptc_job_state(phase);
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
	else if (s->waits == PTC_JOB_WAITS_TXN || phase == PTC_JOB_ABORTING)
		txn_send(job, phase_txn(job));
	else if (s->waits == PTC_JOB_WAITS_LOCAL)
		ptc_job_push(job, (enum ptc_job_update_kind)s->update)->seq = job->local_seq = ++job->seq;
	else
		ptc_job_nodes_ask(job, s->from, s->to);
	if (phase == PTC_JOB_DIGESTING)
		ptc_job_nodes_ask(job, s->from, s->to);
	if (s->to && target_lost(job))
		ptc_job_switch_fail(job);
	else
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
	const struct ptc_job_state *s = ptc_job_state(job->phase);

	if (job->phase == PTC_JOB_CHECKING) {
		ptc_job_nodes_release(job, false);
		switch_ends(job);
	} else if (s->next & (1u << PTC_JOB_ABORTING) && s->waits != PTC_JOB_WAITS_TXN &&
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

/* A node has restarted while the shell compared: it is asked again, from the first phase on in which nodes answer for
 * their ranks and tables. */
static void ask_again(struct ptc_job *job)
{
	ptc_job_nodes_release(job, false);
	ptc_job_enter_after(job, PTC_JOB_ENDING);
}

void ptc_job_advance(struct ptc_job *job)
{
	if (job->txn_seq || job->local_seq)
		return;
	if (ptc_job_state(job->phase)->waits == PTC_JOB_WAITS_LOCAL && ptc_job_asks_again(job))
		ask_again(job);
	else if (job->pending == 0)
		phase_complete(job);
}
