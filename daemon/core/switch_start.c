/* SPDX-License-Identifier: Apache-2.0 */
/* Switches that are requested, and switches that are found in etcd: which are possible, which phases each has, and
 * where a begun switch goes on. See job_core.h for the rules and job_core.c for the whole.
 *
 * Happy path: SWITCH is checked against the record and adopted; START without an intent is idle.
 *
 * Failure modes
 *   a request that contradicts itself or the record   DONE with PTC_EINVAL or PTC_ESTATE; nothing else happens
 *   an intent that does not fit the record            cleared (PTC_ECORRUPT)
 *   an intent of an import that is not ours           cleared: its client is gone
 *   our intent is gone                                the record tells whether it was committed. If not, CLEAR is sent
 *                                                     again, so that no earlier transaction of it can succeed */
#include "daemon/core/job_internal.h"

#include "base/check.h"

/* ---- switches ------------------------------------------------------------------------ */

static const char *resize_wrong(const struct ptc_switch *s)
{
	if (s->nto == 0)
		return "no node to switch to";
	if (s->to_generation != s->from_generation + 1)
		return "the generation must grow by one";
	if (s->from_generation == 0 && (s->from_snapshot || s->run_from))
		return "a job that never was has neither state nor ranks";
	if (s->run_from && s->nfrom == 0)
		return "no node whose ranks to stop";
	if (s->from_snapshot == 0 && !s->run_from) {
		if (!s->run_to)
			return "no state to resize";
		return s->to_snapshot ? "no state to make a snapshot of" : NULL;
	}
	if (s->nfrom == 0)
		return "no state to resize";
	return s->to_snapshot != s->from_snapshot + 1 ? "the snapshot must grow by one" : NULL;
}

static const char *snapshot_wrong(const struct ptc_switch *s)
{
	if (s->from_generation == 0 || s->nfrom == 0 || !s->run_from)
		return "no ranks to take a snapshot of";
	if (s->nto)
		return "a snapshot goes to no other node";
	if (s->to_generation != s->from_generation || s->to_snapshot != s->from_snapshot + 1)
		return "only the snapshot must grow, by one";
	if (s->held && s->run_to)
		return "ranks that are held do not go on";
	return NULL;
}

static const char *halt_wrong(const struct ptc_switch *s)
{
	if (s->from_generation == 0 || s->nfrom == 0)
		return "nothing to halt";
	if (s->nto)
		return "a halt goes to no other node";
	if (s->to_generation != s->from_generation || s->to_snapshot != s->from_snapshot)
		return "a halt changes neither generation nor snapshot";
	return NULL;
}

/* NULL, or what is wrong with it. The lists' distinctness is checked on adoption. */
static const char *switch_wrong(const struct ptc_switch *s)
{
	if (s->id == 0)
		return "a switch needs an id";
	if (s->stored && (s->kind != PTC_SWITCH_IMPORT || !s->from_snapshot))
		return "only a job that has state goes back to an older one";
	if (!ptc_job_list_valid(s->from_nodes, s->nfrom) || !ptc_job_list_valid(s->to_nodes, s->nto))
		return "bad list of nodes";
	switch (s->kind) {
	case PTC_SWITCH_RESIZE:
		return s->held ? "only a snapshot is of held ranks" : resize_wrong(s);
	case PTC_SWITCH_SNAPSHOT:
		return snapshot_wrong(s);
	case PTC_SWITCH_HALT:
		return halt_wrong(s);
	case PTC_SWITCH_IMPORT:
		if (s->nto == 0)
			return "no node to switch to";
		if (s->run_from || s->run_to)
			return "an import has no ranks";
		if (s->to_generation != s->from_generation + 1 || s->to_snapshot != s->from_snapshot + 1)
			return "generation and snapshot must each grow by one";
		return NULL;
	}
	return "unknown kind of switch";
}

static bool intent_fits(const struct ptc_job *job)
{
	const struct ptc_switch *s = &job->cur;
	if (s->kind == PTC_SWITCH_HALT || switch_wrong(s))
		return false;
	return ptc_job_record_is(job, s->from_generation, s->from_snapshot) || ptc_job_half_way(job);
}

/* Makes s the current switch (room was reserved). false: a node is listed twice or a list cannot be read. */
static bool switch_adopt(struct ptc_job *job, const struct ptc_switch *s)
{
	bool ok = ptc_job_list_valid(s->from_nodes, s->nfrom) && ptc_job_list_valid(s->to_nodes, s->nto);
	job->cur = *s;
	job->has_switch = true;
	if (s->held)
		job->arming.stop = s->stop;
	if (!ok)
		job->cur.nfrom = job->cur.nto = 0;
	job->cur.from_nodes = job->from_buf;
	job->cur.to_nodes = job->to_buf;
	for (uint32_t i = 0; i < job->cur.nfrom; i++) {
		struct ptc_job_node *n = &job->nodes[job->from_buf[i] = s->from_nodes[i]];
		ok = ok && !n->from;
		n->from = true;
	}
	for (uint32_t i = 0; i < job->cur.nto; i++) {
		struct ptc_job_node *n = &job->nodes[job->to_buf[i] = s->to_nodes[i]];
		ok = ok && !n->to;
		n->to = true;
	}
	return ok;
}

static void refuse(struct ptc_job *job, uint64_t id, int status, const char *text)
{
	struct ptc_job_reason r = { .status = 0 };
	ptc_job_reason_set(&r, status, PTC_JOB_NO_NODE, "%s", text);
	ptc_job_push_done(job, id, &r);
}

void ptc_job_on_switch(struct ptc_job *job, const struct ptc_switch *s)
{
	const char *wrong = switch_wrong(s);
	if (!wrong && s->id == job->reported_id)
		wrong = "the id was used before";
	if (job->phase != PTC_JOB_IDLE) {
		refuse(job, s->id, PTC_ESTATE,
		       job->has_switch                 ? "a switch is running"
		       : job->phase == PTC_JOB_STOPPED ? "this is no longer the controller"
						       : "the controller is still reading the record");
		return;
	}
	if (wrong || !ptc_job_record_is(job, s->from_generation, s->from_snapshot)) {
		refuse(job, s->id, wrong ? PTC_EINVAL : PTC_ESTATE, wrong ? wrong : "the record has changed");
		return;
	}
	if (!switch_adopt(job, s)) {
		ptc_job_switch_forget(job);
		refuse(job, s->id, PTC_EINVAL, "a node is listed twice");
		return;
	}
	job->own = true;
	job->reloads = 0;
	ptc_job_enter_after(job, PTC_JOB_IDLE);
}

/* ---- START: what is written down ------------------------------------------------------ */

static void start_record(struct ptc_job *job, const struct ptc_job_event *ev)
{
	bool members = ev->nrecord_nodes > 0 && ptc_job_list_valid(ev->record_nodes, ev->nrecord_nodes);
	bool other_life = job->fence != ev->fence; /* somebody else may have held the lock */
	bool changed = job->generation != ev->generation || job->snapshot != ev->snapshot;
	job->fence = ev->fence;
	job->generation = ev->generation;
	job->snapshot = ev->snapshot;
	job->intent_there = ev->intent != NULL;
	job->checked = job->checked && !other_life;
	job->arming.done = job->arming.done && !other_life;
	for (uint32_t i = 0; i < job->nnodes; i++) {
		struct ptc_job_node *n = &job->nodes[i];
		n->stale |= other_life || (changed && (n->in_record || !job->members_known));
		n->in_record = false;
	}
	job->members_known = members;
	for (uint32_t i = 0; members && i < ev->nrecord_nodes; i++)
		job->nodes[ev->record_nodes[i]].in_record = true;
}

static void start_with_intent(struct ptc_job *job, bool readable)
{
	struct ptc_job_reason *why = &job->why;
	job->intent_held = true;
	if (!readable || !intent_fits(job))
		ptc_job_reason_set(why, PTC_ECORRUPT, PTC_JOB_NO_NODE,
				   "the intent found does not fit the record %llu.%llu",
				   (unsigned long long)job->generation, (unsigned long long)job->snapshot);
	if (job->cur.id == job->reported_id)
		ptc_job_reason_set(why, PTC_ECANCELED, PTC_JOB_NO_NODE, "this switch had ended already");
	if (ptc_job_sent(job) && !job->own)
		ptc_job_reason_set(why, PTC_ECANCELED, PTC_JOB_NO_NODE, "import ended with the controller that ran it");
	if (job->reloads >= job->max_attempts)
		ptc_job_reason_set(why, PTC_ECONFLICT, PTC_JOB_NO_NODE, "no transaction succeeded in %u attempts",
				   job->reloads);
	if (why->status)
		ptc_job_enter(job, PTC_JOB_ABORTING);
	else if (ptc_job_half_way(job))
		ptc_job_enter_after(job, PTC_JOB_COMMIT1);
	else if (job->arming.done) /* a COMMIT1 of ours may be on its way: the same stop, the same snapshot */
		ptc_job_enter(job, PTC_JOB_SEALING);
	else
		ptc_job_enter_after(job, PTC_JOB_INTENT);
}

/* Our switch is under way and no intent is there: committed, never written, or gone. */
static void start_without_intent(struct ptc_job *job, bool halted)
{
	const struct ptc_switch *s = &job->cur;
	bool there = ptc_job_record_is(job, s->to_generation, s->to_snapshot);
	if (there && (s->kind == PTC_SWITCH_HALT ? halted : job->intent_held)) {
		ptc_job_enter(job, PTC_JOB_FINISHING);
		return;
	}
	if (job->committed) { /* and others have gone on from there */
		ptc_job_move(job, PTC_JOB_IDLE);
		ptc_job_switch_report(job);
		ptc_job_nodes_try(job);
		return;
	}
	if (job->intent_held || !ptc_job_record_is(job, s->from_generation, s->from_snapshot))
		ptc_job_reason_set(&job->why, PTC_ECONFLICT, PTC_JOB_NO_NODE, "%s, the record is %llu.%llu",
				   job->intent_held ? "the intent is gone" : "somebody else has written",
				   (unsigned long long)job->generation, (unsigned long long)job->snapshot);
	if (job->reloads >= job->max_attempts)
		ptc_job_reason_set(&job->why, PTC_ECOORD, PTC_JOB_NO_NODE, "%s could not be written in %u attempts",
				   s->kind == PTC_SWITCH_HALT ? "the record" : "the intent", job->reloads);
	if (job->why.status)
		ptc_job_enter(job, PTC_JOB_ABORTING);
	else
		ptc_job_enter_after(job, job->checked ? PTC_JOB_CHECKING : PTC_JOB_IDLE);
}

void ptc_job_on_start(struct ptc_job *job, const struct ptc_job_event *ev)
{
	if (job->phase != PTC_JOB_NEW && job->phase != PTC_JOB_RELOADING)
		return;
	if (ev->seq && ev->seq != job->reload_seq)
		return; /* read for an earlier RELOAD: may be older than what has been written since */
	bool readable = true;
	job->reload_backoff = 0;
	job->reload_seq = 0;
	start_record(job, ev);
	if (job->has_switch && ev->intent && ev->intent->id != job->cur.id) {
		ptc_job_reason_set(&job->why, PTC_ECONFLICT, PTC_JOB_NO_NODE, "another switch was found under way");
		ptc_job_switch_report(job);
	}
	if (ev->intent && !job->has_switch)
		readable = switch_adopt(job, ev->intent);
	if (ev->intent)
		start_with_intent(job, readable);
	else if (job->has_switch)
		start_without_intent(job, ev->halted);
	else
		ptc_job_enter(job, PTC_JOB_IDLE);
}
