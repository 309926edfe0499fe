/* SPDX-License-Identifier: Apache-2.0 */
/* What Finish says of ranks, made so. Happy path: ranks that wait with their
 * declarations get the snapshot's bytes and go; those that wait at a stop go
 * on; those that run are left alone; ranks that are not there are started and
 * built first; all others of the job are ended.
 *
 * It is done on a thread of its own, in the job's order like a request: a
 * later request ends it. Finish waits for it for a while, so that its answer
 * usually says that ranks go; what is slow (a start that imports for a minute)
 * goes on behind the answer. Either way a failure is news, not Finish's error:
 * the record is committed, and asking again would not help.
 * Failure modes: bytes that are not here or do not verify, declarations other
 * than the generation's layout, a rank that dies, ranks that have gone with the
 * machine after they went on (news naming one). */
#include "daemon/agent/ranks/internal.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/workers/types/worker_news.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

/* Counted: by its thread and by the Finish that waits. */
struct settler {
	struct ptc_agent *agent;
	ProtobufCMessage *msg; /* a copy */
	const Ptc__V1__FinishRequest *req;
	struct ptc_agent_op op;
	unsigned refs; /* under the agent's lock, as done */
	bool done;
};

static void settler_free(struct settler *s)
{
	ptc_pb_free(s->msg);
	ptc_free(s);
}

static void settler_unref(struct settler *s)
{
	bool last;

	pthread_mutex_lock(&s->agent->shared.lock);
	last = !--s->refs;
	pthread_mutex_unlock(&s->agent->shared.lock);
	if (last)
		settler_free(s);
}

static bool settler_stopped(void *arg)
{
	struct settler *s = arg;
	bool stopping;

	pthread_mutex_lock(&s->agent->shared.lock);
	stopping = s->agent->shared.stopping;
	pthread_mutex_unlock(&s->agent->shared.lock);
	return stopping || ptc_agent_op_stopped(&s->op);
}

/* ---- restored, and told to go ---- */

static int seat_go(const struct ptc_seat_view *seat, const struct ptc_group_desc *desc,
		   const struct ptc_carried *carried, bool restored, struct ptc_error *err)
{
	struct ptc_seat_carried none = { 0 }, *of = &none;

	for (size_t i = 0; carried->of && i < desc->nranks; i++)
		if (desc->ranks[i].rank == seat->rank.rank)
			of = &carried->of[i];
	return ptc_seat_go(seat, restored, of->blobs, of->nblobs, of->cursors, of->ncursors, err);
}

static int seats_restore(struct settler *s, const struct ptc_group *group, struct ptc_error *err)
{
	const Ptc__V1__SwitchInfo *info = s->req->info;
	struct ptc_restore job = { .group = group, .stop = settler_stopped, .arg = s };
	struct ptc_geometry_ref *ref = NULL;
	int64_t began = ptc_sys_now_ns();
	struct ptc_table_key key;
	int r = ptc_geometry_get(s->agent, info, info->from, &ref, err);

	if (r)
		return r;
	job.g = &ref->g;
	key = ptc_geometry_key(job.g);
	r = ptc_table_open(s->agent->env.store, &key, &job.table, err);
	r = r ? r : ptc_restore_seats(&job, err);
	if (!r)
		ptc_info("agent", "job %s: generation %llu: ranks restored in %.3f s", info->uuid,
			 (unsigned long long)info->from->number, (double)(ptc_sys_now_ns() - began) / 1e9);
	ptc_table_unref(job.table);
	ptc_geometry_put(s->agent, ref);
	return r;
}

/* Without a snapshot there is nothing to restore, but what is declared must be what the generation says, if it says. */
static int seats_check(struct settler *s, const struct ptc_group *group, struct ptc_error *err)
{
	const Ptc__V1__SwitchInfo *info = s->req->info;
	struct ptc_seat_sources sources = { 0 };
	struct ptc_geometry_ref *ref = NULL;
	int r;

	if (!info->from->layout_hash[0])
		return 0;
	r = ptc_geometry_get(s->agent, info, info->from, &ref, err);
	r = r ? r : ptc_seat_sources_make(&ref->g, group, &sources, err);
	ptc_seat_sources_done(&sources);
	ptc_geometry_put(s->agent, ref);
	return r;
}

static size_t count(const struct ptc_group *group, enum ptc_seat_state state)
{
	size_t n = 0;

	for (size_t i = 0; i < group->n; i++)
		n += group->v[i].state == state;
	return n;
}

static int declared_go(struct settler *s, const struct ptc_group_start *start, const struct ptc_group *group,
		       struct ptc_error *err)
{
	bool restored = s->req->info->from->snapshot != 0;
	struct ptc_carried carried = { 0 };
	int r = restored ? seats_restore(s, group, err) : seats_check(s, group, err);

	r = r ? r : ptc_carried_read(s->agent, s->req->uuid, s->req->state_hash, &start->desc, &carried, err);
	for (size_t i = 0; !r && i < group->n; i++)
		if (group->v[i].state == PTC_SEAT_DECLARED)
			r = seat_go(&group->v[i], &start->desc, &carried, restored, err);
	ptc_carried_done(&carried);
	return r;
}

/* ---- the whole ---- */

/* Whether every rank of the group is past the point where it would have to be started and built. */
static bool group_stands(const struct ptc_group *group)
{
	return count(group, PTC_SEAT_DECLARED) + count(group, PTC_SEAT_RUNNING) + count(group, PTC_SEAT_STOPPED) +
		       count(group, PTC_SEAT_EXITED) ==
	       group->n;
}

static int group_revive(struct settler *s, const struct ptc_group_start *start, struct ptc_error *err)
{
	struct ptc_wait wait = { .cancelled = settler_stopped, .arg = s };
	bool state = s->req->info->from->snapshot != 0;
	struct ptc_carried carried;
	int r = ptc_carried_read(s->agent, s->req->uuid, s->req->state_hash, &start->desc, &carried, err);

	r = r ? r : ptc_workers_start(s->agent->env.workers, &start->desc, &wait, err);
	r = r ? r
	      : ptc_workers_build(s->agent->env.workers, &start->desc, s->req->start_step, state, carried.of, &wait,
				  err);
	ptc_carried_done(&carried);
	return r;
}

/* Once a rank may have gone on, one that is started anew cannot join: the store remembers which launch that was last. */
#define GONE "gone"

static int gone_write(struct settler *s, const struct ptc_group_key *key, struct ptc_error *err)
{
	uint64_t which[2] = { key->generation, key->launch };

	return ptc_store_note_put(s->agent->env.store, key->uuid, GONE, which, sizeof(which), err);
}

/* PTC_ESTATE: ranks of this launch went on from here, and are not here any more. */
static int gone_check(struct settler *s, const struct ptc_group_key *key, struct ptc_error *err)
{
	uint64_t which[2] = { key->generation, key->launch };
	struct ptc_error ignored = PTC_ERROR_INIT;
	void *note;
	size_t len;
	int r = ptc_store_note_get(s->agent->env.store, key->uuid, GONE, &note, &len, &ignored);
	bool gone = !r && len == sizeof(which) && memcmp(note, which, len) == 0;

	if (r)
		return r == PTC_ENOTFOUND ? 0 : ptc_error_set(err, r, "%s", ignored.text);
	ptc_free(note);
	return gone ? ptc_error_set(err, PTC_ESTATE,
				    "ranks of generation %llu that had gone on are not on this node any more (was it "
				    "restarted?); run the job again from its last snapshot",
				    (unsigned long long)key->generation)
		    : 0;
}

static int group_settle(struct settler *s, const struct ptc_group_start *start, uint32_t self, struct ptc_error *err)
{
	const struct ptc_allocation *a = &start->place.allocation;
	const struct ptc_group_key *key = &start->desc.key;
	struct ptc_group group = { 0 };
	int r = ptc_group_open(s->agent, a, self, key, &group, err);

	if (r == PTC_ENOTFOUND || r == PTC_ESTATE || (!r && !group_stands(&group))) {
		ptc_group_close(&group);
		r = gone_check(s, key, err);
		r = r ? r : group_revive(s, start, err);
		r = r ? r : ptc_group_open(s->agent, a, self, key, &group, err);
	}
	if (!r && count(&group, PTC_SEAT_DECLARED)) {
		r = gone_write(s, key, err);
		r = r ? r : declared_go(s, start, &group, err);
	}
	if (!r) /* also a stop that ranks have not come to yet is taken back */
		r = ptc_workers_release(s->agent->env.workers, key, err);
	if (!r && count(&group, PTC_SEAT_EXITED))
		ptc_workers_retell(s->agent->env.workers, key);
	ptc_group_close(&group);
	return r;
}

static bool node_takes_part(const struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info)
{
	for (size_t i = 0; i < info->n_nodes; i++)
		if (!strcmp(info->nodes[i], agent->node))
			return true;
	return false;
}

/* *ret_first: the lowest rank here, for news. */
static int settle(struct settler *s, uint32_t *ret_first, struct ptc_error *err)
{
	const Ptc__V1__SwitchInfo *info = s->req->info;
	struct ptc_group_start start = { 0 };
	struct ptc_group_key key;
	uint32_t self = 0;
	int r;

	ptc_group_key_of(info, info->from, &key);
	ptc_workers_drop(s->agent->env.workers, info->uuid, &key);
	if (!node_takes_part(s->agent, info))
		return 0;
	r = ptc_group_start_make(s->agent, info, info->from, &start, err);
	r = r ? r : ptc_geometry_node(&start.place, s->agent->node, &self, err);
	if (!r && start.desc.nranks) {
		*ret_first = start.desc.ranks[0].rank;
		do /* a rank that hangs may connect anew later */
			r = group_settle(s, &start, self, err);
		while (r == PTC_ETIMEOUT && !settler_stopped(s));
	}
	ptc_group_start_done(&start, s->agent);
	return r;
}

static void tell(struct settler *s, uint32_t rank, int status, const struct ptc_error *err)
{
	struct ptc_worker_news news = { .kind = PTC_NEWS_FAILED, .rank = rank, .step = s->req->start_step };

	if (!s->agent->env.news)
		return;
	ptc_group_key_of(s->req->info, s->req->info->from, &news.key);
	snprintf(news.text, sizeof(news.text), "%.900s (%s)", err->text,
		 ptc_status_name(status)); /* who tells it names the node */
	s->agent->env.news(s->agent->env.arg, &news);
}

static void *settler_main(void *arg)
{
	struct settler *s = arg;
	struct ptc_agent *agent = s->agent;
	struct ptc_error err = PTC_ERROR_INIT;
	uint32_t rank = 0;
	bool last;
	int r = ptc_agent_enter(agent, NULL, s->req->uuid, s->req->fence, s->req->seq, true, &s->op, &err);

	r = r ? r : settle(s, &rank, &err);
	if (r && r != PTC_ECANCELED && r != PTC_EFENCED && !settler_stopped(s))
		tell(s, rank, r, &err);
	ptc_agent_leave(&s->op);
	pthread_mutex_lock(&agent->shared.lock);
	s->done = true;
	last = !--s->refs;
	agent->shared.settlers--; /* from the unlock on the agent may be freed */
	pthread_cond_broadcast(&agent->shared.cond);
	pthread_mutex_unlock(&agent->shared.lock);
	if (last)
		settler_free(s);
	return NULL;
}

static int settler_new(struct ptc_agent *agent, const Ptc__V1__FinishRequest *req, struct settler **ret,
		       struct ptc_error *err)
{
	struct settler *s = ptc_calloc(1, sizeof(*s));
	void *data = NULL;
	size_t len;
	int r = s ? ptc_pb_encode(&req->base, &data, &len, err) : ptc_error_set(err, PTC_ENOMEM, "no memory for ranks");

	r = r ? r : ptc_pb_decode(&ptc__v1__finish_request__descriptor, data, len, &s->msg, err);
	ptc_free(data);
	if (r) {
		ptc_free(s);
		return r;
	}
	s->agent = agent;
	s->req = (const Ptc__V1__FinishRequest *)s->msg;
	s->refs = 2;
	*ret = s;
	return 0;
}

static int settler_start(struct settler *s, struct ptc_error *err)
{
	struct ptc_agent *agent = s->agent;
	pthread_t thread;
	int r = 0;

	pthread_mutex_lock(&agent->shared.lock);
	if (agent->shared.stopping || pthread_create(&thread, NULL, settler_main, s)) {
		r = ptc_error_set(err, PTC_ENOMEM, "no thread to start ranks with");
		s->refs--;
	} else {
		pthread_detach(thread);
		agent->shared.settlers++;
	}
	pthread_mutex_unlock(&agent->shared.lock);
	return r;
}

static void settler_wait(struct settler *s)
{
	struct ptc_agent *agent = s->agent;
	uint32_t ms = agent->env.finish_wait_ms ? agent->env.finish_wait_ms : PTC_AGENT_FINISH_MS;
	int64_t until = ptc_sys_now_ns() + (int64_t)ms * 1000000;

	pthread_mutex_lock(&agent->shared.lock);
	while (!s->done && !agent->shared.stopping && ptc_sys_now_ns() < until)
		ptc_cond_wait_ms(&agent->shared.cond, &agent->shared.lock, 100);
	pthread_mutex_unlock(&agent->shared.lock);
}

int ptc_settle(struct ptc_agent *agent, const Ptc__V1__FinishRequest *req, struct ptc_error *err)
{
	struct settler *s;
	int r = 0;

	if (!agent->env.workers)
		return req->live && node_takes_part(agent, req->info) ? ptc_group_workers(agent, err) : 0;
	if (!req->live) {
		ptc_workers_drop(agent->env.workers, req->uuid, NULL);
		return 0;
	}
	r = settler_new(agent, req, &s, err);
	if (r)
		return r;
	r = settler_start(s, err);
	if (!r)
		settler_wait(s);
	settler_unref(s);
	return r;
}

void ptc_settle_stop(struct ptc_agent *agent)
{
	pthread_mutex_lock(&agent->shared.lock);
	agent->shared.stopping = true;
	for (struct ptc_agent_job *job = agent->shared.jobs; job; job = job->next)
		atomic_store(&job->cancel, true);
	pthread_cond_broadcast(&agent->shared.cond);
	while (agent->shared.settlers)
		ptc_cond_wait_ms(&agent->shared.cond, &agent->shared.lock, 100);
	pthread_mutex_unlock(&agent->shared.lock);
}
