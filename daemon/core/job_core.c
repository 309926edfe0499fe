/* SPDX-License-Identifier: Apache-2.0 */
/* The events of the job core: see job_core.h for the protocol and for what it asks of shell, nodes and etcd. This file
 * has the events. switch_phases.c has the states and their moves, switch_moves.c the begin and the end of each phase,
 * switch_nodes.c the requests to nodes, switch_replies.c their answers. switch_start.c says where a switch begins, and
 * where one that was found in etcd goes on.
 *
 * Happy path: START, IDLE, SWITCH; CHECKING cleans the nodes that take part and asks for a dry run; INTENT makes the
 * switch durable; STARTING and ARMING get new ranks ready and stop the old; SEALING, AGREEING and COMMIT1 make the
 * snapshot; ENDING, BUILDING, LAYOUT put the new ranks in the place of the old; PREPARING, FILLING, DIGESTING make the
 * new tables; DIGESTING also asks whether they are still there; COMMIT2 makes the new generation; FINISHING drops what
 * is no longer needed and lets ranks go; DONE.
 *
 * Failure modes
 *   a node answers with a retriable status  again after 1, 2, 4 .. ticks, max_attempts times, then the switch aborts
 *   a node answers with anything else       the switch aborts
 *   a node is down                          waited for, node_wait_ms, then the switch aborts. FINISHING never waits
 *   a node is lost, or has lost its table   a switch of state leaves it out, if others hold all; else the switch aborts
 *   a node is lost after it has pulled      the switch aborts for want of an answer to STAND, or commits if it has one
 *   a node is back without the ranks that   BUILD says so, and the switch aborts: other ranks have met them, and new
 *   it had built, before COMMIT2            ones would build alone. A ptcd that finds its ranks again answers as before
 *   a node says we are fenced               RELOAD
 *   a transaction conflicts or is unknown   RELOAD, max_attempts times in a row, then the switch aborts
 *   abort while a transaction is in flight  remembered until its outcome is known; a committed switch stays committed
 *   abort before ENDING                     ranks go on from where they wait
 *   abort after it                          CLEAR makes a new incarnation: the old generation starts again from the
 *                                           new snapshot
 *   lock lost                               DONE (PTC_EFENCED) for the switch, STOPPED; nothing more from this job
 *
 * Why nothing old can hurt a new switch: table keys are used again after an abort, so a node that was away during the
 * abort could hold a sealed table of the failed attempt under the very key of the next. Hence `stale`: an intent is
 * written only after every node in it has answered a FINISH. And a FINISH is sent only when no intent is in etcd:
 * before INTENT, after CLEAR or after COMMIT2, so that a controller that has lost its lock cannot drop what its
 * successor builds on. Requests are ordered by (fence, seq) at the node.
 *
 * Time is counted in ticks of one timer, armed only while something waits. */
#include "daemon/core/job_internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

#define TICK_MS 200 /* resolution of back-off and of node_wait_ms */

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
		for (uint32_t i = 0; i < job->nnodes; i++) {
			bool gives = ptc_job_gives(job, i);
			if (job->nodes[i].in_record &&
			    !gives) /* what it has, ranks too, is not the record's any more */
				job->nodes[i].stale = true;
			job->nodes[i].in_record = gives;
		}
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
		ptc_job_advance(job);
		return;
	}
	ptc_job_reason_set(&job->why, ev->status, PTC_JOB_NO_NODE, "%s: %s", what,
			   ev->text && ev->text[0] ? ev->text : ptc_status_name(ev->status));
	ptc_job_switch_fail(job);
}

static void on_filled(struct ptc_job *job)
{
	if (job->phase != PTC_JOB_FILLING || !ptc_job_sent(job) || job->filled)
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
			ptc_job_reload_send(job);
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
		job->why.lost = false;
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
		struct ptc_job_node *v = ptc_reallocarray(job->nodes, count, sizeof *v);
		if (!v)
			return PTC_ENOMEM;
		memset(v + job->nnodes, 0, (count - job->nnodes) * sizeof *v);
		for (uint32_t i = job->nnodes; i < count; i++)
			v[i].stale = true;
		job->nodes = v;
		job->nnodes = count;
	}
	/* at most SEND, CANCEL, SEND to each, and the rest */
	return PTC_ROOM(job->updates, 4 * (size_t)job->nnodes + 16, job->updates_cap) ? 0 : PTC_ENOMEM;
}

static int reserve_list(uint32_t **list, uint32_t *cap, uint32_t n)
{
	return n > PTC_MAX_NODES || PTC_ROOM(*list, n, *cap) ? 0 : PTC_ENOMEM;
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
	if (ev->kind >= PTC_EV_NODE_UP && ev->kind <= PTC_EV_NODE_FOUND && ev->node < PTC_MAX_NODES)
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
	case PTC_EV_NODE_LOST:
	case PTC_EV_NODE_FOUND:
		if (!ptc_fails(ev->node < job->nnodes))
			ptc_job_on_node_lost(job, ev->node, ev->kind == PTC_EV_NODE_LOST);
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
	ptc_job_check(job);
	ret_updates->v = job->updates;
	ret_updates->n = job->nupdates;
	return 0;
}

int ptc_job_new(const struct ptc_job_opts *opts, struct ptc_job **ret_job, struct ptc_error *err)
{
	uint32_t wait_ms = opts && opts->node_wait_ms ? opts->node_wait_ms : PTC_JOB_NODE_WAIT_MS;
	struct ptc_job *job = ptc_calloc(1, sizeof *job);
	if (!job)
		return ptc_nomem(err);
	job->max_attempts = opts && opts->max_attempts ? opts->max_attempts : PTC_JOB_ATTEMPTS_MAX;
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

uint64_t ptc_job_take_seq(struct ptc_job *job)
{
	return ++job->seq;
}
