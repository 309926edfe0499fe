/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to the nodes of a job: which nodes a phase needs, and which operation each gets, one at a time.
 * switch_replies.c has what they answer. Nothing here fails. */
#include "daemon/core/job_internal.h"

#include "base/check.h"

#define NO_OP (-1)

/* ---- asking ----------------------------------------------------------------------- */

bool ptc_job_may_finish(const struct ptc_job *job)
{
	return job->phase == PTC_JOB_IDLE || job->phase == PTC_JOB_FINISHING ||
	       (job->phase == PTC_JOB_ABORTING && !job->txn_seq);
}

/* Its ranks may be gone since they were built, and with them what others have met. */
static bool ranks_asked(const struct ptc_job *job, const struct ptc_job_node *n)
{
	return n->again && job->cur.run_to;
}

/* What the node is to do next in this phase, or NO_OP. */
static int node_next_op(const struct ptc_job *job, const struct ptc_job_node *n)
{
	if (ptc_job_may_finish(job))
		return n->stale ? PTC_OP_FINISH : NO_OP;
	if (!n->need)
		return NO_OP;
	switch (job->phase) {
	case PTC_JOB_CHECKING:
		return n->stale ? PTC_OP_FINISH : n->to ? PTC_OP_CHECK : NO_OP;
	case PTC_JOB_STARTING:
		return PTC_OP_START;
	case PTC_JOB_WARMING:
		return PTC_OP_WARM;
	case PTC_JOB_ARMING:
		return !n->armed ? PTC_OP_ARM : job->arming.stopping ? PTC_OP_STOP : NO_OP;
	case PTC_JOB_SEALING:
		return job->cur.run_from ? PTC_OP_CAPTURE : PTC_OP_SEAL;
	case PTC_JOB_ENDING:
		return PTC_OP_END;
	case PTC_JOB_BUILDING:
		return PTC_OP_BUILD;
	case PTC_JOB_PREPARING:
		return ranks_asked(job, n) ? PTC_OP_BUILD : PTC_OP_PREPARE;
	case PTC_JOB_FILLING:
		if (ptc_job_sent(job))
			return job->filled ? PTC_OP_PULL : NO_OP;
		if (ranks_asked(job, n))
			return PTC_OP_BUILD;
		return n->prepared ? PTC_OP_PULL : PTC_OP_PREPARE;
	case PTC_JOB_DIGESTING: /* one that has restarted answers for its table in FILLING again */
		return n->again ? NO_OP : PTC_OP_STAND;
	default:
		return NO_OP;
	}
}

/* A snapshot starts no ranks. */
static void unsettle(const struct ptc_job *job, struct ptc_job_node *n)
{
	n->settled = n->settled && job->has_switch && job->cur.kind == PTC_SWITCH_SNAPSHOT;
}

void ptc_job_node_try(struct ptc_job *job, uint32_t i)
{
	struct ptc_job_node *n = &job->nodes[i];
	if (!n->up || n->seq || n->backoff)
		return;
	int op = node_next_op(job, n);
	if (op == NO_OP)
		return;
	struct ptc_job_update *u = ptc_job_push(job, PTC_UP_SEND);
	u->node = i;
	u->op = (enum ptc_job_op)op;
	u->seq = n->seq = ++job->seq;
	n->op = op;
	if (op == PTC_OP_FINISH && job->generation > 0 && (n->in_record || !job->members_known)) {
		u->has_keep = true;
		u->keep_generation = job->generation;
		u->keep_snapshot = job->snapshot;
	}
	if (op == PTC_OP_ARM || op == PTC_OP_STOP || op == PTC_OP_CAPTURE)
		u->stop = job->arming.stop;
	if (op == PTC_OP_START || op == PTC_OP_BUILD) {
		u->built = n->built;
		u->resumed = !job->own;
	}
	n->built |= op == PTC_OP_BUILD;
	if (op != PTC_OP_CHECK && op != PTC_OP_FINISH) {
		n->stale = true;
		unsettle(job, n);
	}
}

void ptc_job_nodes_try(struct ptc_job *job)
{
	for (uint32_t i = 0; i < job->nnodes; i++)
		ptc_job_node_try(job, i);
}

void ptc_job_node_cancel(struct ptc_job *job, uint32_t i)
{
	struct ptc_job_node *n = &job->nodes[i];
	if (!n->seq)
		return;
	struct ptc_job_update *u = ptc_job_push(job, PTC_UP_CANCEL);
	u->node = i;
	u->op = (enum ptc_job_op)n->op;
	u->seq = n->seq;
	n->seq = 0;
}

void ptc_job_node_mark_stale(struct ptc_job *job, uint32_t i)
{
	ptc_job_node_cancel(job, i);
	job->nodes[i].stale = true;
	unsettle(job, &job->nodes[i]);
}

void ptc_job_nodes_release(struct ptc_job *job, bool cancel_finish)
{
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct ptc_job_node *n = &job->nodes[i];
		n->need = false;
		if (n->op != PTC_OP_FINISH || cancel_finish)
			ptc_job_node_cancel(job, i);
	}
	job->pending = 0;
}

void ptc_job_node_want(struct ptc_job *job, struct ptc_job_node *n)
{
	if (!n->need) {
		n->need = true;
		job->pending++;
	}
}

void ptc_job_node_answered(struct ptc_job *job, struct ptc_job_node *n)
{
	if (n->need) {
		n->need = false;
		job->pending--;
	}
}

bool ptc_job_node_awaited(const struct ptc_job *job, const struct ptc_job_node *n)
{
	bool source = n->from && !n->left_out && !n->lost;
	bool moving = job->phase == PTC_JOB_PREPARING || job->phase == PTC_JOB_FILLING;
	return n->need || (moving && source && job->cur.kind == PTC_SWITCH_RESIZE && job->pending > 0);
}

/* The state comes from other nodes than the record's, whose ranks must have ended all the same: a HALT waits for no
 * node that is down. */
static bool ends_ranks(const struct ptc_job *job, const struct ptc_job_node *n)
{
	return job->cur.stored && job->phase == PTC_JOB_CHECKING && job->members_known && n->in_record;
}

bool ptc_job_node_dispensable(const struct ptc_job *job, const struct ptc_job_node *n)
{
	return (n->from || ends_ranks(job, n)) && !n->to && (!job->cur.run_from || job->cur.held) &&
	       (job->phase == PTC_JOB_CHECKING || job->phase == PTC_JOB_SEALING);
}

bool ptc_job_node_indispensable(const struct ptc_job *job, const struct ptc_job_node *n)
{
	const bool trains = job->cur.run_from && n->from; /* ranks of the record run there */
	return n->to && !trains && !ptc_job_may_finish(job) && job->phase != PTC_JOB_ABORTING;
}

void ptc_job_node_leave_out(struct ptc_job *job, uint32_t i)
{
	struct ptc_job_node *n = &job->nodes[i];
	n->left_out = true;
	ptc_job_node_answered(job, n);
}

bool ptc_job_gives(const struct ptc_job *job, uint32_t node)
{
	return job->has_switch && node < job->nnodes && job->nodes[node].from && !job->nodes[node].left_out;
}

bool ptc_job_settled(const struct ptc_job *job, uint32_t node)
{
	return node < job->nnodes && job->nodes[node].up && job->nodes[node].settled;
}

bool ptc_job_awaits_down(const struct ptc_job *job, uint32_t node)
{
	return job->has_switch && !ptc_job_may_finish(job) && node < job->nnodes && !job->nodes[node].up &&
	       ptc_job_node_awaited(job, &job->nodes[node]);
}

void ptc_job_nodes_ask(struct ptc_job *job, bool from, bool to)
{
	ptc_require(job->pending == 0);
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct ptc_job_node *n = &job->nodes[i];
		if (n->lost && ptc_job_node_dispensable(job, n))
			n->left_out = true;
		n->need = (((from && n->from) || ends_ranks(job, n)) && !n->left_out) || (to && n->to);
		if (job->phase == PTC_JOB_BUILDING || job->phase == PTC_JOB_PREPARING)
			n->again = false; /* all are asked */
		if (job->phase == PTC_JOB_CHECKING && !n->to && !n->stale)
			n->need = false; /* a clean node that only gives needs no dry run */
		job->pending += n->need;
		n->attempts = n->backoff = n->down_ticks = n->downs = 0;
	}
	for (uint32_t i = 0; i < job->nnodes; i++) {
		if (!job->nodes[i].up && ptc_job_node_awaited(job, &job->nodes[i]))
			ptc_job_want_tick(job);
		ptc_job_node_try(job, i);
	}
}

void ptc_job_nodes_finish(struct ptc_job *job)
{
	ptc_require(job->pending == 0);
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct ptc_job_node *n = &job->nodes[i];
		if (!n->from && !n->to)
			continue;
		ptc_job_node_mark_stale(job, i);
		n->attempts = n->backoff = 0;
		n->need = n->up;
		job->pending += n->need;
	}
	ptc_job_nodes_try(job);
}

/* ---- arming (docs/decisions/0002-live-jobs.md) ---------------------------------------------
 *
 *   round: ARM stop to all -- none passed --> STOP stop to all -- all wait --> the phase ends
 *     ^                          |                |
 *     +-- stop = max(p) + 1 -----+- some passed --+ (one that restarted and was armed again)
 *     +-- stop + 1 --------------------------------- all wait, and the state of one cannot be taken there
 */

void ptc_job_arming_round(struct ptc_job *job, uint64_t stop)
{
	struct ptc_job_arming *a = &job->arming;
	*a = (struct ptc_job_arming){
		.stop = stop, .rounds = a->rounds + 1, .moves = a->moves, .unarmed = job->cur.nfrom
	};
	job->later.status = 0;
	for (uint32_t k = 0; k < job->cur.nfrom; k++)
		job->nodes[job->cur.from_nodes[k]].armed = false;
}

void ptc_job_arm(struct ptc_job *job)
{
	job->arming.rounds = job->arming.moves = 0;
	ptc_job_arming_round(job, job->cur.stop);
	ptc_job_nodes_ask(job, true, false);
}
