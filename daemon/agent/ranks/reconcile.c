/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the ranks here those that Finish names. Happy path: ranks that wait with their declarations get the snapshot's
 * bytes and go. Ranks that wait at a stop go on, and ranks that run are left alone. Ranks that are not there are
 * started and built first. All other ranks of the job are ended.
 *
 * The work is done on a thread of its own, in the job's order like a request. A later Finish ends it; other requests
 * wait for it (calls/operation.h). Finish waits for it for a while, so its answer usually says that ranks go. Slow work
 * (a start that imports for a minute) goes on after the answer. Either way a failure is a worker event, not Finish's
 * error: the record is committed, and asking again would not help.
 *
 * Failure modes: bytes that are not here or do not verify, declarations other
 * than the generation's layout, a rank that dies, ranks that have gone with the
 * machine after they went on (worker events naming one). */
#include "daemon/agent/ranks/internal.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/workers/types/worker_event.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/number/count.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <stdio.h>
#include <string.h>

/* Counted: by its thread and by the Finish that waits. */
struct reconciler {
	struct ptc_agent *agent;
	ProtobufCMessage *msg; /* a copy */
	const Ptc__V1__FinishRequest *req;
	struct ptc_agent_op op;
	uint64_t number;               /* ptc_agent_reconciles */
	struct ptc_device_bytes bytes; /* that its restore wrote; read once it is done */
	bool gone;                     /* what failed is that ranks that had gone on, or their state, are not here */
	unsigned refs;                 /* under the agent's lock, as done */
	bool done;
};

static void reconciler_free(struct reconciler *s)
{
	ptc_pb_free(s->msg);
	ptc_free(s);
}

static void reconciler_unref(struct reconciler *s)
{
	bool last;

	pthread_mutex_lock(&s->agent->shared.lock);
	last = !--s->refs;
	pthread_mutex_unlock(&s->agent->shared.lock);
	if (last)
		reconciler_free(s);
}

static bool reconciler_stopped(void *arg)
{
	struct reconciler *s = arg;
	bool stopping;

	pthread_mutex_lock(&s->agent->shared.lock);
	stopping = s->agent->shared.stopping;
	pthread_mutex_unlock(&s->agent->shared.lock);
	return stopping || ptc_agent_op_stopped(&s->op);
}

/* ---- restored, and told to go ---- */

static int slot_go(const struct ptc_slot_view *slot, const struct ptc_group_desc *desc,
		   const struct ptc_rank_states *rank_states, bool restored, struct ptc_error *err)
{
	struct ptc_rank_state none = { 0 }, *of = &none;

	for (size_t i = 0; rank_states->of && i < desc->nranks; i++)
		if (desc->ranks[i].rank == slot->rank.rank)
			of = &rank_states->of[i];
	return ptc_slot_go(slot, restored, of->blobs, of->nblobs, of->cursors, of->ncursors, err);
}

/* Of a table that is opened. */
static bool is_gone(int status)
{
	return status == PTC_ENOTFOUND || status == PTC_ELOST || status == PTC_ECORRUPT;
}

static int slots_restore(struct reconciler *s, const struct ptc_group *group, struct ptc_error *err)
{
	const Ptc__V1__SwitchInfo *info = s->req->info;
	struct ptc_restore job = { .group = group, .stop = reconciler_stopped, .arg = s };
	struct ptc_geometry_ref *ref = NULL;
	int64_t began = ptc_sys_now_ns();
	struct ptc_table_key key;
	int rc = ptc_geometry_get(s->agent, info, info->from, &ref, err);

	if (rc)
		return rc;
	job.g = &ref->g;
	key = ptc_geometry_key(job.g);
	rc = ptc_table_open(s->agent->env.store, &key, &job.table, err);
	s->gone = is_gone(rc);
	job.residents = ptc_residents_take(s->agent, info->uuid);
	job.prefetched = ptc_prefetch_take(s->agent, info->uuid);
	if (rc == 0)
		rc = ptc_restore_slots(&job, &s->bytes, err);
	if (!rc) {
		ptc_info("agent",
			 "job %s: generation %llu: ranks restored in %.3f s, %llu bytes on their devices, %llu from "
			 "other devices, %llu to devices from the host",
			 info->uuid, (unsigned long long)info->from->number, (double)(ptc_sys_now_ns() - began) / 1e9,
			 (unsigned long long)s->bytes.kept, (unsigned long long)s->bytes.peer,
			 (unsigned long long)s->bytes.host);
		ptc_count_add(PTC_COUNT_DEVICE_KEPT_BYTES, s->bytes.kept);
		ptc_count_add(PTC_COUNT_DEVICE_PEER_BYTES, s->bytes.peer);
		ptc_count_add(PTC_COUNT_DEVICE_HOST_BYTES, s->bytes.host);
	}
	ptc_prefetch_free(job.prefetched);
	ptc_residents_free(job.residents);
	ptc_table_unref(job.table);
	ptc_geometry_put(ref);
	return rc;
}

/* Without a snapshot there is nothing to restore, but what is declared must be what the generation says, if it says. */
static int slots_check(struct reconciler *s, const struct ptc_group *group, struct ptc_error *err)
{
	const Ptc__V1__SwitchInfo *info = s->req->info;
	struct ptc_slot_sources sources = { 0 };
	struct ptc_geometry_ref *ref = NULL;
	int rc;

	if (!info->from->layout_hash[0])
		return 0;
	rc = ptc_geometry_get(s->agent, info, info->from, &ref, err);
	if (rc == 0)
		rc = ptc_slot_sources_make(&ref->g, group, &sources, err);
	ptc_slot_sources_done(&sources);
	ptc_geometry_put(ref);
	return rc;
}

static size_t count(const struct ptc_group *group, enum ptc_slot_state state)
{
	size_t n = 0;

	for (size_t i = 0; i < group->n; i++)
		n += group->v[i].state == state;
	return n;
}

static int declared_go(struct reconciler *s, const struct ptc_group_start *start, const struct ptc_group *group,
		       struct ptc_error *err)
{
	bool restored = s->req->info->from->snapshot != 0;
	struct ptc_rank_states rank_states = { 0 };
	int rc = restored ? slots_restore(s, group, err) : slots_check(s, group, err);

	if (rc == 0)
		rc = ptc_workers_start_step(s->agent->env.workers, &start->desc.key, s->req->start_step, err);
	if (rc == 0)
		rc = ptc_rank_states_read(s->agent, s->req->uuid, s->req->state_hash, &start->desc, &rank_states, err);
	for (size_t i = 0; !rc && i < group->n; i++)
		if (group->v[i].state == PTC_SLOT_DECLARED)
			rc = slot_go(&group->v[i], &start->desc, &rank_states, restored, err);
	ptc_rank_states_done(&rank_states);
	return rc;
}

/* ---- the whole ---- */

/* Whether every rank of the group is past the point where it would have to be started and built. */
static bool group_stands(const struct ptc_group *group)
{
	return count(group, PTC_SLOT_DECLARED) + count(group, PTC_SLOT_RUNNING) + count(group, PTC_SLOT_STOPPED) +
		       count(group, PTC_SLOT_EXITED) ==
	       group->n;
}

static int group_revive(struct reconciler *s, const struct ptc_group_start *start, struct ptc_error *err)
{
	struct ptc_wait wait = { .cancelled = reconciler_stopped, .arg = s };
	bool state = s->req->info->from->snapshot != 0;
	struct ptc_rank_states rank_states;
	int rc = ptc_rank_states_read(s->agent, s->req->uuid, s->req->state_hash, &start->desc, &rank_states, err);

	if (rc == 0)
		rc = ptc_workers_start(s->agent->env.workers, &start->desc, &wait, err);
	if (rc == 0)
		ptc_rank_cost_tell(s->agent, start);
	if (rc == 0)
		rc = ptc_rank_built_note(s->agent, &start->desc.key, err);
	if (rc == 0)
		rc = ptc_workers_build(s->agent->env.workers, &start->desc, s->req->start_step, state, rank_states.of,
				       &wait, err);
	ptc_rank_states_done(&rank_states);
	return rc;
}

/* PTC_ESTATE, PTC_ELOST: ranks of this incarnation cannot be started here any more. One that may have gone on is steps
 * ahead of a new one, others have met one that was built, and in a generation that has no snapshot yet ranks begin only
 * where the switch to it began them: a store that knows nothing of that is another one than it was then. */
static int gone_check(struct reconciler *s, const struct ptc_group_key *key, struct ptc_error *err)
{
	bool gone = false, begun = true;
	int rc = ptc_rank_note_is(s->agent, PTC_RANKS_GONE_ON, key, &gone, err);

	if (rc == 0 && !s->req->info->from->snapshot)
		rc = ptc_rank_note_is(s->agent, PTC_RANKS_BEGUN, key, &begun, err);
	if (rc || (!gone && begun))
		return rc ? rc : ptc_rank_built_check(s->agent, key, false, err);
	return ptc_error_set(err, PTC_ESTATE,
			     "ranks of generation %llu no longer run on this node (was it restarted?); the job has "
			     "to begin again at its last snapshot",
			     (unsigned long long)key->generation);
}

/* What ranks that have to be started would be given. They are not started for nothing: others would wait for them. */
static int table_check(struct reconciler *s, struct ptc_error *err)
{
	const Ptc__V1__SwitchInfo *info = s->req->info;
	struct ptc_geometry_ref *ref = NULL;
	struct ptc_table *table = NULL;
	struct ptc_table_key key;
	int rc;

	if (!info->from->snapshot)
		return 0;
	rc = ptc_geometry_get(s->agent, info, info->from, &ref, err);
	if (rc)
		return rc;
	key = ptc_geometry_key(&ref->g);
	rc = ptc_table_open(s->agent->env.store, &key, &table, err);
	s->gone = is_gone(rc);
	ptc_table_unref(table);
	ptc_geometry_put(ref);
	return rc;
}

static int group_reconcile(struct reconciler *s, const struct ptc_group_start *start, uint32_t self,
			   struct ptc_error *err)
{
	const struct ptc_allocation *a = &start->place.allocation;
	const struct ptc_group_key *key = &start->desc.key;
	struct ptc_group group = { 0 };
	int rc = ptc_group_open(s->agent, a, self, key, &group, err);

	if (rc == PTC_ENOTFOUND || rc == PTC_ESTATE || (!rc && !group_stands(&group))) {
		ptc_group_close(&group);
		rc = gone_check(s, key, err);
		s->gone = rc == PTC_ESTATE || rc == PTC_ELOST;
		if (rc == 0)
			rc = table_check(s, err);
		if (rc == 0)
			rc = group_revive(s, start, err);
		if (rc == 0)
			rc = ptc_group_open(s->agent, a, self, key, &group, err);
	}
	if (!rc && count(&group, PTC_SLOT_DECLARED)) {
		rc = ptc_rank_note_write(s->agent, PTC_RANKS_GONE_ON, key, err);
		if (rc == 0)
			rc = declared_go(s, start, &group, err);
	}
	if (!rc) /* also a stop that ranks have not come to yet is taken back */
		rc = ptc_workers_release(s->agent->env.workers, key, s->req->start_step, s->req->leave_out, err);
	if (!rc && count(&group, PTC_SLOT_EXITED))
		ptc_workers_report_again(s->agent->env.workers, key);
	ptc_group_close(&group);
	return rc;
}

/* As many as there are ranks: so many are started here again after a failure of the program, and after the loss of
 * another node there are seldom more devices here for the job. Without them a start only takes longer. */
static void standbys_reconcile(struct ptc_agent *agent, const struct ptc_group_desc *desc)
{
	struct ptc_error err = PTC_ERROR_INIT;

	if (ptc_workers_standby(agent->env.workers, desc, desc->standby_ms ? desc->nranks : 0, &err))
		ptc_warn("agent", "job=%s no processes wait for its next start: %s", desc->job, err.text);
}

static bool node_takes_part(const struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info)
{
	for (size_t i = 0; i < info->n_nodes; i++)
		if (!strcmp(info->nodes[i], agent->node))
			return true;
	return false;
}

/* *ret_first: the lowest rank here, for worker events. */
static int reconcile(struct reconciler *s, uint32_t *ret_first, struct ptc_error *err)
{
	const Ptc__V1__SwitchInfo *info = s->req->info;
	struct ptc_group_start start = { 0 };
	struct ptc_group_key keep[2];
	uint32_t self = 0;
	int rc;

	ptc_group_key_of(info, info->from, &keep[0]);
	keep[1] = keep[0];
	keep[1].generation = s->req->ahead_generation;
	keep[1].incarnation = s->req->ahead_incarnation;
	ptc_workers_drop(s->agent->env.workers, info->uuid, keep, s->req->ahead_generation ? 2 : 1, false);
	if (!node_takes_part(s->agent, info)) {
		ptc_workers_standby_end(s->agent->env.workers, info->uuid);
		return 0;
	}
	rc = ptc_group_start_make(s->agent, info, info->from, &start, err);
	if (rc == 0)
		rc = ptc_geometry_node(&start.place, s->agent->node, &self, err);
	if (!rc && start.desc.nranks) {
		*ret_first = start.desc.ranks[0].rank;
		do /* a rank that hangs may connect anew later */
			rc = group_reconcile(s, &start, self, err);
		while (rc == PTC_ETIMEOUT && !reconciler_stopped(s));
	}
	if (rc == 0)
		standbys_reconcile(s->agent, &start.desc);
	ptc_group_start_done(&start, s->agent);
	return rc;
}

static void tell(struct reconciler *s, uint32_t rank, int status, const struct ptc_error *err)
{
	struct ptc_worker_event event = {
		.kind = PTC_WORKER_EVENT_FAILED, .rank = rank, .step = s->gone ? 0 : s->req->start_step, .gone = s->gone
	};

	if (!s->agent->env.event)
		return;
	ptc_group_key_of(s->req->info, s->req->info->from, &event.key);
	snprintf(event.text, sizeof(event.text), "%.900s (%s)", err->text,
		 ptc_status_name(status)); /* who tells it names the node */
	s->agent->env.event(s->agent->env.arg, &event);
}

static void reconciler_main(void *arg)
{
	struct reconciler *s = arg;
	struct ptc_agent *agent = s->agent;
	struct ptc_error err = PTC_ERROR_INIT;
	uint32_t rank = 0;
	bool last;
	int rc = ptc_agent_enter_reconcile(agent, s->req->uuid, s->req->fence, s->number, &s->op, &err);

	if (rc == 0)
		rc = reconcile(s, &rank, &err);
	if (rc && rc != PTC_ECANCELED && rc != PTC_EFENCED && !reconciler_stopped(s))
		tell(s, rank, rc, &err);
	if (s->op.job && !reconciler_stopped(s)) { /* of a switch that restored nobody here */
		ptc_residents_drop(agent, s->req->uuid);
		ptc_prefetch_drop(agent, s->req->uuid);
	}
	ptc_agent_reconciled(agent, s->req->uuid, s->number);
	ptc_agent_leave(&s->op);
	pthread_mutex_lock(&agent->shared.lock);
	s->done = true;
	last = !--s->refs;
	pthread_cond_broadcast(&agent->shared.cond);
	pthread_mutex_unlock(&agent->shared.lock);
	if (last)
		reconciler_free(s);
}

static int reconciler_new(struct ptc_agent *agent, const Ptc__V1__FinishRequest *req, uint64_t number,
			  struct reconciler **ret, struct ptc_error *err)
{
	struct reconciler *s = ptc_calloc(1, sizeof *s);
	void *data = NULL;
	size_t len;
	int rc = s ? ptc_pb_encode(&req->base, &data, &len, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_pb_decode(&ptc__v1__finish_request__descriptor, data, len, &s->msg, err);
	ptc_free(data);
	if (rc) {
		ptc_free(s);
		return rc;
	}
	s->agent = agent;
	s->number = number;
	s->req = (const Ptc__V1__FinishRequest *)s->msg;
	s->refs = 2;
	*ret = s;
	return 0;
}

static int reconciler_start(struct reconciler *s, struct ptc_error *err)
{
	struct ptc_agent *agent = s->agent;
	int rc;

	pthread_mutex_lock(&agent->shared.lock);
	if (agent->shared.stopping)
		rc = ptc_error_set(err, PTC_ECANCELED, "the daemon is stopping");
	else
		rc = ptc_thread_start_counted(&agent->shared.reconcilers, SIZE_MAX, "ptc-reconcile", reconciler_main, s,
					      err);
	s->refs -= rc != 0;
	pthread_mutex_unlock(&agent->shared.lock);
	return rc;
}

static void reconciler_wait(struct reconciler *s, Ptc__V1__FinishReply *ret)
{
	struct ptc_agent *agent = s->agent;
	uint32_t ms = agent->env.finish_wait_ms ? agent->env.finish_wait_ms : PTC_AGENT_FINISH_MS;
	int64_t until = ptc_sys_now_ns() + (int64_t)ms * 1000000;

	pthread_mutex_lock(&agent->shared.lock);
	while (!s->done && !agent->shared.stopping && ptc_sys_now_ns() < until)
		ptc_cond_wait_ms(&agent->shared.cond, &agent->shared.lock, 100);
	ret->device_unfinished = !s->done;
	if (s->done) {
		ret->device_kept_bytes = s->bytes.kept;
		ret->device_peer_bytes = s->bytes.peer;
		ret->device_host_bytes = s->bytes.host;
	}
	pthread_mutex_unlock(&agent->shared.lock);
}

int ptc_reconcile(struct ptc_agent *agent, const Ptc__V1__FinishRequest *req, uint64_t number,
		  Ptc__V1__FinishReply *ret, struct ptc_error *err)
{
	struct reconciler *s;
	int rc = 0;

	if (!agent->env.workers) {
		ptc_agent_reconciled(agent, req->uuid, number);
		return req->live && node_takes_part(agent, req->info) ? ptc_group_workers(agent, err) : 0;
	}
	if (!req->live) {
		ptc_residents_drop(agent, req->uuid);
		ptc_prefetch_drop(agent, req->uuid);
		ptc_workers_drop(agent->env.workers, req->uuid, NULL, 0, req->given_up);
		return 0;
	}
	rc = reconciler_new(agent, req, number, &s, err);
	if (rc == 0) {
		rc = reconciler_start(s, err);
		if (!rc)
			reconciler_wait(s, ret);
		reconciler_unref(s);
	}
	if (rc)
		ptc_agent_reconciled(agent, req->uuid, number);
	return rc;
}

void ptc_reconcile_stop(struct ptc_agent *agent)
{
	pthread_mutex_lock(&agent->shared.lock);
	agent->shared.stopping = true;
	for (struct ptc_agent_job *job = agent->shared.jobs; job; job = job->next)
		atomic_store(&job->cancel, true);
	pthread_cond_broadcast(&agent->shared.cond);
	pthread_mutex_unlock(&agent->shared.lock);
	ptc_thread_count_done(&agent->shared.reconcilers);
}
