/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and replies of peer calls, and which operation of a job runs now. Happy path: a handler enters its job,
 * works, leaves.
 *
 * Failure modes: a fence lower than one seen (PTC_EFENCED, checked before and after waiting), or, at the first request
 * of a job, lower than the lock's (PTC_EFENCED); the caller gone while waiting (PTC_ECANCELED). */
#include "daemon/agent/calls/operation.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/agent/calls/wire.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <stdio.h>
#include <string.h>

int ptc_agent_request(struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret,
		      struct ptc_error *err)
{
	return ptc_agent_request_in(NULL, call, type, ret, err);
}

int ptc_agent_request_in(struct ptc_pb_arena *arena, struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type,
			 ProtobufCMessage **ret, struct ptc_error *err)
{
	struct ptc_rpc_message *msg;
	int rc = ptc_rpc_call_recv(call, &msg, err);

	if (rc)
		return rc;
	if (!msg)
		return ptc_error_set(err, PTC_EINVAL, "the call has no request message");
	rc = ptc_wire_decode_in(arena, msg, type, ret, err);
	ptc_rpc_message_done(msg);
	return rc;
}

int ptc_agent_reply(struct ptc_rpc_call *call, const ProtobufCMessage *msg, struct ptc_error *err)
{
	ptc_auto_free void *data = NULL;
	struct ptc_rpc_part part = { 0 };
	int rc = ptc_pb_encode(msg, &data, &part.len, err);

	if (rc)
		return rc;
	part.data = data;
	return ptc_rpc_call_send(call, &part, 1, err);
}

bool ptc_agent_op_stopped(void *arg)
{
	struct ptc_agent_op *op = arg;

	return (op->call && ptc_rpc_call_cancelled(op->call)) || (op->job && atomic_load(&op->job->cancel));
}

static struct ptc_agent_job *job_find_locked(struct ptc_agent *agent, const char *uuid)
{
	struct ptc_agent_job *job = agent->shared.jobs;

	while (job && strcmp(job->uuid, uuid))
		job = job->next;
	return job;
}

static struct ptc_agent_job *job_ref_locked(struct ptc_agent *agent, const char *uuid)
{
	struct ptc_agent_job *job = job_find_locked(agent, uuid);

	if (!job) {
		job = ptc_calloc(1, sizeof *job);
		if (!job)
			return NULL;
		snprintf(job->uuid, sizeof job->uuid, "%s", uuid);
		job->next = agent->shared.jobs;
		agent->shared.jobs = job;
	}
	job->refs++;
	return job;
}

static void job_unref_locked(struct ptc_agent *agent, struct ptc_agent_job *job)
{
	struct ptc_agent_job **at = &agent->shared.jobs;

	/* one that was sent ordered requests is kept: it knows which came last */
	if (--job->refs || job->prepared || job->captured || job->seen_seq || job->reconciles)
		return;
	while (*at != job)
		at = &(*at)->next;
	*at = job->next;
	ptc_free(job);
}

/* True when a later request of the job came first. */
static bool overtaken_locked(const struct ptc_agent_job *job, int64_t fence, uint64_t seq)
{
	return fence < job->seen_fence || (fence == job->seen_fence && seq && seq < job->seen_seq);
}

static int refuse_overtaken(const struct ptc_agent_job *job, uint64_t seq, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_EFENCED, "request %llu of job %s was overtaken by request %llu",
			     (unsigned long long)seq, job->uuid, (unsigned long long)job->seen_seq);
}

/* Remembers the request's place in the order. *ret_newer: it comes after all before it. */
static int note_locked(struct ptc_agent_job *job, int64_t fence, uint64_t seq, bool *ret_newer, struct ptc_error *err)
{
	if (overtaken_locked(job, fence, seq))
		return refuse_overtaken(job, seq, err);
	*ret_newer = fence > job->seen_fence || seq > job->seen_seq;
	if (*ret_newer) {
		job->seen_fence = fence;
		job->seen_seq = seq;
	}
	return 0;
}

static int refuse_reconciled(const struct ptc_agent_job *job, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ESTATE,
			     "ranks of job %s are still being started and built here; ask again when they run",
			     job->uuid);
}

/* Without the lock for a moment. */
static void wake_locked(struct ptc_agent *agent)
{
	pthread_mutex_unlock(&agent->shared.lock);
	agent->wake(agent);
	pthread_mutex_lock(&agent->shared.lock);
}

static int wait_turn_locked(struct ptc_agent_op *op, int64_t fence, uint64_t seq, enum ptc_agent_turn turn, bool newer,
			    struct ptc_error *err)
{
	struct ptc_agent *agent = op->agent;
	struct ptc_agent_job *job = op->job;
	int64_t until = ptc_sys_now_ns() + INT64_C(1000000) * PTC_AGENT_RECONCILE_MS;

	if (turn == PTC_TURN_FINISH)
		job->reconciles = 0;
	while (job->busy || job->writers || job->reconciles) {
		bool cancels = job->busy && !job->reconciles && (newer || turn == PTC_TURN_FINISH) &&
			       !atomic_exchange(&job->cancel, true);

		if (op->call && ptc_rpc_call_cancelled(op->call))
			return ptc_error_set(err, PTC_ECANCELED, "cancelled while job %s was busy", job->uuid);
		if (job->reconciles && (ptc_sys_now_ns() > until || agent->shared.stopping))
			return refuse_reconciled(job, err);
		if (cancels) /* ranks may stand still until this request is answered */
			wake_locked(agent);
		else
			ptc_cond_wait_ms(&agent->shared.cond, &agent->shared.lock, 100);
		if (overtaken_locked(job, fence, seq))
			return refuse_overtaken(job, seq, err);
	}
	job->busy = true;
	atomic_store(&job->cancel, false);
	return 0;
}

static void job_drop(struct ptc_agent_op *op)
{
	pthread_mutex_lock(&op->agent->shared.lock);
	job_unref_locked(op->agent, op->job);
	pthread_mutex_unlock(&op->agent->shared.lock);
}

/* The first request of a job in the life of this process. What the node did before was for a lock that is held now, or
 * for an earlier one. So a controller that has lost the lock is refused, though the node's store may be new. */
static int check_first(struct ptc_agent_op *op, int64_t fence, uint64_t seq, struct ptc_error *err)
{
	const struct ptc_agent_env *env = &op->agent->env;
	int64_t least = 0;
	int rc = env->least_fence ? env->least_fence(env->arg, op->job->uuid, &least) : 0;

	if (rc)
		return ptc_error_set(err, rc, "the daemon is stopping");
	if (fence >= least)
		return 0;
	return ptc_error_set(err, PTC_EFENCED,
			     "request %llu of job %s is of a controller that has lost the job's lock (fence %lld, and "
			     "%lld is the least now)",
			     (unsigned long long)seq, op->job->uuid, (long long)fence, (long long)least);
}

/* Takes the request's place in the order. */
static int take_place(struct ptc_agent_op *op, int64_t fence, uint64_t seq, bool *ret_newer, struct ptc_error *err)
{
	struct ptc_agent *agent = op->agent;
	bool first;
	int rc;

	pthread_mutex_lock(&agent->shared.lock);
	first = !op->job->seen_fence;
	pthread_mutex_unlock(&agent->shared.lock);
	rc = first ? check_first(op, fence, seq, err) : 0;
	if (rc)
		return rc;
	pthread_mutex_lock(&agent->shared.lock);
	rc = note_locked(op->job, fence, seq, ret_newer, err);
	pthread_mutex_unlock(&agent->shared.lock);
	return rc;
}

int ptc_agent_enter(struct ptc_agent *agent, const struct ptc_rpc_call *call, const char *uuid, int64_t fence,
		    uint64_t seq, enum ptc_agent_turn turn, struct ptc_agent_op *ret_op, struct ptc_error *err)
{
	struct ptc_agent_op op = { agent, NULL, call };
	bool newer = false;
	int rc;

	pthread_mutex_lock(&agent->shared.lock);
	op.job = job_ref_locked(agent, uuid);
	pthread_mutex_unlock(&agent->shared.lock);
	if (!op.job)
		return ptc_nomem(err);
	rc = take_place(&op, fence, seq, &newer, err);
	if (rc == 0)
		rc = ptc_store_fence(agent->env.store, uuid, fence, err);
	if (!rc) {
		pthread_mutex_lock(&agent->shared.lock);
		rc = wait_turn_locked(&op, fence, seq, turn, newer, err);
		pthread_mutex_unlock(&agent->shared.lock);
	}
	if (rc) {
		job_drop(&op);
		return rc;
	}
	rc = ptc_store_fence(agent->env.store, uuid, fence, err);
	if (rc) {
		ptc_agent_leave(&op);
		return rc;
	}
	*ret_op = op;
	return 0;
}

void ptc_agent_leave(struct ptc_agent_op *op)
{
	if (!op->job)
		return;
	pthread_mutex_lock(&op->agent->shared.lock);
	op->job->busy = false;
	job_unref_locked(op->agent, op->job);
	op->job = NULL;
	pthread_cond_broadcast(&op->agent->shared.cond);
	pthread_mutex_unlock(&op->agent->shared.lock);
}

int ptc_agent_enter_deleted(struct ptc_agent *agent, const char *uuid, struct ptc_agent_op *ret_op,
			    struct ptc_error *err)
{
	struct ptc_agent_op op = { agent, NULL, NULL };
	int rc;

	pthread_mutex_lock(&agent->shared.lock);
	op.job = job_ref_locked(agent, uuid); /* also one of which nothing is known: none begins meanwhile */
	rc = op.job ? wait_turn_locked(&op, INT64_MAX, 0, PTC_TURN_FINISH, true, err) : ptc_nomem(err);
	if (rc && op.job)
		job_unref_locked(agent, op.job);
	pthread_mutex_unlock(&agent->shared.lock);
	if (rc == 0)
		*ret_op = op;
	return rc;
}

/* ---- ranks that are brought up ---- */

uint64_t ptc_agent_reconciles(struct ptc_agent_op *op)
{
	struct ptc_agent *agent = op->agent;
	uint64_t number;

	pthread_mutex_lock(&agent->shared.lock);
	number = op->job->reconciles = ++agent->shared.reconciled;
	pthread_mutex_unlock(&agent->shared.lock);
	return number;
}

int ptc_agent_enter_reconcile(struct ptc_agent *agent, const char *uuid, int64_t fence, uint64_t number,
			      struct ptc_agent_op *ret_op, struct ptc_error *err)
{
	struct ptc_agent_op op = { agent, NULL, NULL };
	bool mine;

	pthread_mutex_lock(&agent->shared.lock);
	op.job = job_ref_locked(agent, uuid);
	while (op.job && op.job->reconciles == number && (op.job->busy || op.job->writers))
		ptc_cond_wait_ms(&agent->shared.cond, &agent->shared.lock, 100);
	mine = op.job && op.job->reconciles == number;
	if (mine) {
		op.job->busy = true;
		atomic_store(&op.job->cancel, false);
	} else if (op.job) {
		job_unref_locked(agent, op.job);
	}
	pthread_mutex_unlock(&agent->shared.lock);
	if (!op.job)
		return ptc_nomem(err);
	if (!mine)
		return ptc_error_set(err, PTC_ECANCELED, "a later request has come");
	*ret_op = op;
	return ptc_store_fence(agent->env.store, uuid, fence, err);
}

void ptc_agent_reconciled(struct ptc_agent *agent, const char *uuid, uint64_t number)
{
	struct ptc_agent_job *job;

	pthread_mutex_lock(&agent->shared.lock);
	job = job_find_locked(agent, uuid);
	if (job && job->reconciles == number)
		job->reconciles = 0;
	pthread_cond_broadcast(&agent->shared.cond);
	pthread_mutex_unlock(&agent->shared.lock);
}

/* ---- writers ---- */

static int writer_enter(struct ptc_agent *agent, struct ptc_agent_job *job, uint64_t import_id, struct ptc_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&agent->shared.lock);
	if (!job->prepared || job->switch_id != import_id)
		rc = ptc_error_set(err, PTC_ESTATE, "import %llu of job %s is not open on node %s",
				   (unsigned long long)import_id, job->uuid, agent->node);
	else if (job->busy)
		rc = ptc_error_set(err, PTC_ESTATE, "import %llu of job %s is being committed or aborted on node %s",
				   (unsigned long long)import_id, job->uuid, agent->node);
	else
		job->writers++;
	pthread_mutex_unlock(&agent->shared.lock);
	return rc;
}

static void writer_leave(struct ptc_agent *agent, struct ptc_agent_job *job)
{
	pthread_mutex_lock(&agent->shared.lock);
	if (!--job->writers)
		pthread_cond_broadcast(&agent->shared.cond);
	pthread_mutex_unlock(&agent->shared.lock);
}

int ptc_put_target_open(struct ptc_agent *agent, const char *uuid, uint64_t import_id, struct ptc_put_target *ret,
			struct ptc_error *err)
{
	struct ptc_put_target t = { .agent = agent, .import_id = import_id };
	int rc;

	pthread_mutex_lock(&agent->shared.lock);
	t.job = job_find_locked(agent, uuid);
	if (t.job)
		t.job->refs++;
	pthread_mutex_unlock(&agent->shared.lock);
	if (!t.job)
		return ptc_error_set(err, PTC_ESTATE, "no import of job %.36s is open on node %s", uuid, agent->node);
	rc = writer_enter(agent, t.job, import_id, err);
	if (!rc) {
		rc = ptc_table_begin(agent->env.store, &t.job->key, &t.table, err);
		writer_leave(agent, t.job);
	}
	if (rc) {
		ptc_put_target_close(&t);
		return rc;
	}
	*ret = t;
	return 0;
}

int ptc_put_target_write(struct ptc_put_target *t, uint32_t item, const struct ptc_box *box, const void *data,
			 struct ptc_error *err)
{
	int rc = writer_enter(t->agent, t->job, t->import_id, err);

	if (rc)
		return rc;
	if (ptc_table_sealed(t->table))
		rc = ptc_error_set(err, PTC_ESTATE, "import %llu of job %s is already sealed on node %s",
				   (unsigned long long)t->import_id, t->job->uuid, t->agent->node);
	else
		rc = ptc_table_write(t->table, item, box, data, err);
	writer_leave(t->agent, t->job);
	return rc;
}

void ptc_put_target_close(struct ptc_put_target *t)
{
	t->table = ptc_table_unref(t->table);
	if (!t->job)
		return;
	pthread_mutex_lock(&t->agent->shared.lock);
	job_unref_locked(t->agent, t->job);
	pthread_mutex_unlock(&t->agent->shared.lock);
	t->job = NULL;
}
