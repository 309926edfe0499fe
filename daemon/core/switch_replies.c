/* SPDX-License-Identifier: Apache-2.0 */
/* Deals with nodes' answers: retries, waiting for nodes that come and go, the rounds of arming. See job_core.c for the
 * whole.
 *
 * Happy path: switch_nodes.c asks the nodes that a phase needs; the last answer ends the phase.
 *
 * Failure modes
 *   retriable answer      held back for 1, 2, 4 .. ticks, then sent again; max_attempts in a row abort the switch
 *   any other             aborts the switch; in FINISHING, ABORTING and IDLE the node stays stale and is tried again
 *   down                  waited for; what it was asked is asked again when it is back
 *   down often            in one phase, more than max_attempts times: then it no longer excuses failed pulls of others
 *   restarted in ARMING   its ranks go on, and the stop may be forgotten: it is armed again before it is sent STOP
 *   restarted in STARTING, BUILDING   asked again: its processes may have gone with the machine
 *   restarted in LAYOUT to DIGESTING  asked again whether its ranks are there (BUILD), and its table (PREPARE, PULL);
 *                                     if the shell compares just then, all are asked once it has answered
 *   gone in DIGESTING, its key is there     does not answer STAND; the switch waits until its key goes, or aborts
 *                                     after max_attempts
 *   answers STAND without its table         as restarted; the same node max_attempts times in a switch aborts it
 *   down or restarted in FILLING, DIGESTING of an import that a client sends   aborts it, also where the node had
 *                                     answered PULL: its table may be gone, and nobody sends it again
 *   passed again          a new round, later; max_attempts repetitions abort the switch
 *   a rank wants a later stop   a new round for the next step; PTC_JOB_MOVES_MAX of them abort the switch */
#include "daemon/core/job_internal.h"

#include "base/check.h"

#define BACKOFF_MAX_LOG2 5 /* longest back-off: 32 ticks */

static const char *op_name(int op)
{
	static const char *const names[] = {
		[PTC_OP_CHECK] = "check",     [PTC_OP_SEAL] = "seal",     [PTC_OP_PREPARE] = "prepare",
		[PTC_OP_PULL] = "pull",       [PTC_OP_FINISH] = "finish", [PTC_OP_START] = "start",
		[PTC_OP_WARM] = "warm",       [PTC_OP_ARM] = "arm",       [PTC_OP_STOP] = "stop",
		[PTC_OP_CAPTURE] = "capture", [PTC_OP_END] = "end",       [PTC_OP_BUILD] = "build",
		[PTC_OP_STAND] = "stand",
	};
	return (unsigned)op < PTC_ARRAY_LEN(names) ? names[op] : "?";
}

/* ---- arming: the rounds after the first (switch_nodes.c) ------------------------------------ */

/* The next round, later than anything published; or too many were needed. */
static void arming_again(struct ptc_job *job)
{
	const struct ptc_job_arming *a = &job->arming;
	if (a->rounds > job->max_attempts) {
		ptc_job_reason_set(&job->why, PTC_ETIMEOUT, PTC_JOB_NO_NODE,
				   "arming: ranks were past their stop in each of %u rounds", a->rounds);
		ptc_job_switch_fail(job);
		return;
	}
	uint64_t later = a->greatest == UINT64_MAX ? a->greatest : a->greatest + 1;
	ptc_job_arming_round(job, PTC_MAX(a->stop, later));
	for (uint32_t k = 0; k < job->cur.nfrom; k++) {
		uint32_t i = job->cur.from_nodes[k];
		ptc_job_node_cancel(job, i); /* its STOP */
		ptc_job_node_want(job, &job->nodes[i]);
	}
	ptc_job_nodes_try(job);
}

static void arming_reply(struct ptc_job *job, struct ptc_job_node *n, const struct ptc_job_event *ev)
{
	struct ptc_job_arming *a = &job->arming;
	n->armed = true;
	a->unarmed--;
	a->passed |= ev->passed;
	a->greatest = PTC_MAX(a->greatest, ev->step);
	if (a->unarmed)
		return;
	if (a->passed) {
		arming_again(job);
	} else {
		a->stopping = true;
		ptc_job_nodes_try(job);
	}
}

/* All ranks wait at the stop, so none is ahead of another; where one's state cannot be taken there, all go on to the
 * next step. */
static void stop_reply(struct ptc_job *job, struct ptc_job_node *n, const struct ptc_job_event *ev)
{
	struct ptc_job_arming *a = &job->arming;
	ptc_job_node_answered(job, n);
	if (ev->passed)
		ptc_job_reason_set(&job->later, PTC_ESTATE, ev->node, "%s", ev->text ? ev->text : "");
	if (job->pending || !job->later.status)
		return;
	if (a->moves == PTC_JOB_MOVES_MAX || a->stop == UINT64_MAX) {
		ptc_job_reason_set(&job->why, PTC_ESTATE, job->later.node,
				   "the stop has moved on by %u boundaries, to step %llu, and there still %s", a->moves,
				   (unsigned long long)a->stop, job->later.text);
		ptc_job_switch_fail(job);
		return;
	}
	a->moves++;
	a->rounds = 0;
	ptc_job_arming_round(job, a->stop + 1);
	for (uint32_t k = 0; k < job->cur.nfrom; k++)
		ptc_job_node_want(job, &job->nodes[job->cur.from_nodes[k]]);
	ptc_job_nodes_try(job);
}

/* A new process of a node whose ranks others wait for. If only ptcd died, they go on, but a stop may be forgotten. If
 * the machine died, they are gone. So the node is asked again for operations that it has answered already. */
static void node_restarted(struct ptc_job *job, struct ptc_job_node *n)
{
	if (job->phase == PTC_JOB_ARMING && n->from) {
		job->arming.unarmed += n->armed;
		n->armed = false;
		ptc_job_node_want(job, n);
	} else if ((job->phase == PTC_JOB_STARTING || job->phase == PTC_JOB_BUILDING) && n->to) {
		ptc_job_node_want(job, n);
	} else if (n->to && !ptc_job_sent(job) && job->phase >= PTC_JOB_LAYOUT && job->phase <= PTC_JOB_DIGESTING) {
		n->again = true;
		if (job->phase == PTC_JOB_PREPARING || job->phase == PTC_JOB_FILLING)
			ptc_job_node_want(job, n);
	}
}

/* ---- answers --------------------------------------------------------------------------- */

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

static void node_back_off(struct ptc_job *job, struct ptc_job_node *n)
{
	n->backoff = 1u << PTC_MIN(n->attempts, BACKOFF_MAX_LOG2);
	n->attempts += n->attempts < UINT32_MAX;
	ptc_job_want_tick(job);
}

static void reply_good(struct ptc_job *job, uint32_t i, int op, const struct ptc_job_event *ev)
{
	struct ptc_job_node *n = &job->nodes[i];
	n->fenced = 0;
	if (op != PTC_OP_PREPARE) /* else a PULL that keeps asking for it would never run out of attempts */
		n->attempts = 0;
	switch (op) {
	case PTC_OP_FINISH:
		n->stale = false;
		n->settled = true;
		if (job->phase != PTC_JOB_CHECKING || !n->to)
			ptc_job_node_answered(job, n);
		break;
	case PTC_OP_BUILD:
		n->again = false;
		if (job->phase == PTC_JOB_BUILDING)
			ptc_job_node_answered(job, n);
		break;
	case PTC_OP_PREPARE:
		n->prepared = true;
		n->again = false;
		if (job->phase == PTC_JOB_PREPARING)
			ptc_job_node_answered(job, n);
		break;
	case PTC_OP_ARM:
		arming_reply(job, n, ev);
		break;
	case PTC_OP_STOP:
		stop_reply(job, n, ev);
		break;
	default:
		ptc_job_node_answered(job, n);
		break;
	}
	ptc_job_node_try(job, i);
}

/* A source that is down explains why PREPARE finds bytes nowhere and PULL fails; neither counts while it is waited for.
 * So does one that came up after request seq was sent. */
static bool source_down(const struct ptc_job *job, uint64_t seq)
{
	bool moving = job->phase == PTC_JOB_PREPARING || job->phase == PTC_JOB_FILLING;
	for (uint32_t k = 0; moving && k < job->cur.nfrom; k++) {
		const struct ptc_job_node *n = &job->nodes[job->cur.from_nodes[k]];
		if (n->downs > job->max_attempts) /* it comes and goes, and would be waited for without end */
			continue;
		if ((!n->up || n->up_seq >= seq) && !n->lost && !n->left_out)
			return true;
	}
	return false;
}

/* It is there, and its table is not, or not what its ranks held. */
static bool table_gone(const struct ptc_job *job, int op, int status)
{
	if (op == PTC_OP_CAPTURE && job->cur.held)
		return status == PTC_ENOTFOUND || status == PTC_ELOST;
	return op == PTC_OP_SEAL && (status == PTC_ENOTFOUND || status == PTC_ELOST || status == PTC_ECORRUPT);
}

/* What it has pulled is gone: it has restarted without our noticing, and is asked from PREPARE on, as one that is seen
 * to restart. */
static bool pulls_again(const struct ptc_job *job, struct ptc_job_node *n, int op, int status)
{
	if (op != PTC_OP_STAND || status != PTC_ENOTFOUND || ptc_job_sent(job) || n->refills + 1 >= job->max_attempts)
		return false;
	n->refills++;
	n->prepared = false;
	n->again = true;
	return true;
}

static void reply_bad(struct ptc_job *job, uint32_t i, int op, const struct ptc_job_event *ev)
{
	struct ptc_job_node *n = &job->nodes[i];
	bool again = status_retriable(ev->status);
	if (table_gone(job, op, ev->status)) {
		ptc_job_node_leave_out(job, i);
		return;
	}
	if (pulls_again(job, n, op, ev->status))
		return;
	if (op == PTC_OP_PULL && ev->status == PTC_ESTATE && !ptc_job_sent(job)) {
		n->prepared = false; /* it has forgotten: restarted without our noticing */
		again = true;
	}
	if (op == PTC_OP_PREPARE && ev->status == PTC_ELOST && source_down(job, ev->seq))
		again = true; /* what it has is there again with it */
	node_back_off(job, n);
	if (again && (op == PTC_OP_PULL || op == PTC_OP_PREPARE) && source_down(job, ev->seq))
		n->attempts = 1;
	if (again && n->attempts < job->max_attempts)
		return;
	if (ptc_job_may_finish(job)) { /* stays stale; tried again while idle */
		ptc_job_node_answered(job, n);
	} else if (n->need) {
		bool fenced = ev->status == PTC_EFENCED; /* and etcd says that the lock is ours */
		ptc_job_reason_set(&job->why, fenced ? PTC_ECONFLICT : ev->status, i, "%s: %s", op_name(op),
				   ev->text && ev->text[0] ? ev->text : ptc_status_name(ev->status));
		ptc_job_switch_fail(job);
	}
}

void ptc_job_on_reply(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (ev->node >= job->nnodes || !ev->seq || job->nodes[ev->node].seq != ev->seq)
		return;
	struct ptc_job_node *n = &job->nodes[ev->node];
	n->seq = 0;
	/* Somebody else may have the lock now: etcd says so. If it says again and again that we have it, the node has
	 * obeyed another etcd, or a later state of this one, and is like any node that refuses. */
	if (ev->status == PTC_EFENCED && job->reloads < job->max_attempts && n->fenced + 1 < job->max_attempts) {
		n->fenced++;
		if (job->phase == PTC_JOB_FILLING && ptc_job_sent(job))
			ptc_job_reason_set(&job->why, PTC_EFENCED, ev->node, "%s: a newer controller exists",
					   op_name(n->op));
		if (!job->txn_seq) /* else its outcome tells */
			ptc_job_reload(job);
		return;
	}
	if (ev->status == 0)
		reply_good(job, ev->node, n->op, ev);
	else
		reply_bad(job, ev->node, n->op, ev);
	ptc_job_advance(job);
}

/* ---- coming and going --------------------------------------------------------------------- */

void ptc_job_on_node_down(struct ptc_job *job, uint32_t i)
{
	struct ptc_job_node *n = &job->nodes[i];
	ptc_job_node_cancel(job, i);
	n->downs += n->up;
	n->up = n->prepared = false;
	n->attempts = n->backoff = n->down_ticks = n->fenced = 0;
	node_restarted(job, n);
	if (ptc_job_may_finish(job)) {
		ptc_job_node_answered(job, n);
		ptc_job_advance(job);
	} else if (n->to && ptc_job_sent(job) && (job->phase == PTC_JOB_FILLING || job->phase == PTC_JOB_DIGESTING)) {
		ptc_job_reason_set(&job->why, PTC_EPEER, i, "went away during the import; what it was sent is lost");
		ptc_job_switch_fail(job);
	} else {
		if (ptc_job_node_awaited(job, n))
			ptc_job_want_tick(job);
		if (job->phase == PTC_JOB_DIGESTING) /* where only nodes were waited for, it is asked again now */
			ptc_job_advance(job);
	}
}

void ptc_job_on_node_up(struct ptc_job *job, uint32_t i)
{
	if (job->nodes[i].up) /* it has restarted */
		ptc_job_on_node_down(job, i);
	job->nodes[i].up = true;
	job->nodes[i].up_seq = job->seq;
	job->nodes[i].lost = false;
	job->nodes[i].stale = true;
	job->nodes[i].settled = false;
	ptc_job_node_try(job, i);
}

void ptc_job_node_tick(struct ptc_job *job, uint32_t i)
{
	struct ptc_job_node *n = &job->nodes[i];
	if (n->backoff && --n->backoff)
		ptc_job_want_tick(job);
	ptc_job_node_try(job, i);
	if (n->up || !ptc_job_node_awaited(job, n))
		return;
	ptc_job_want_tick(job);
	if (++n->down_ticks < job->wait_ticks)
		return;
	if (!job->why.status) {
		job->why.waited_ms = job->tick_ms * job->wait_ticks;
		ptc_job_reason_set(&job->why, PTC_EPEER, i, "down for more than %u ms", job->why.waited_ms);
	}
	ptc_job_switch_fail(job);
}

void ptc_job_on_node_lost(struct ptc_job *job, uint32_t i, bool lost)
{
	struct ptc_job_node *n = &job->nodes[i];
	if (lost && n->up)
		ptc_job_on_node_down(job, i);
	n->lost = lost;
	if (!lost || !job->has_switch)
		return;
	if (ptc_job_node_indispensable(job, n)) {
		ptc_job_reason_lost(&job->why, i);
		ptc_job_switch_fail(job);
	} else if (ptc_job_node_dispensable(job, n)) {
		ptc_job_node_leave_out(job, i);
		ptc_job_advance(job);
	}
}
