/* SPDX-License-Identifier: Apache-2.0 */
/* The peer calls that start, stop and ask ranks of this node: thin layers over ptc_workers. Calls that change
 * something are ordered like all other calls of a job, and a later one ends the wait of an earlier one. Calls that
 * wait long are streams that send an empty message about every second: so neither side needs a deadline, and dropping
 * the call ends the wait.
 *
 * Failure modes: no ranks run here (PTC_ESTATE), whatever ptc_workers says. */
#include "daemon/agent/calls/wire.h"
#include "daemon/store/store.h"
#include "daemon/agent/ranks/internal.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/gpu/node/node_devices.h"
#include "daemon/workers/group/hold/group_hold.h"
#include "daemon/workers/group/rank_status.h"
#include "daemon/workers/session/rank_rendezvous.h"
#include "formats/job/job.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what they have in common ---- */

struct live {
	struct ptc_agent *agent;
	struct ptc_agent_op op;
	struct ptc_rpc_call *call;
	ProtobufCMessage *msg;
	const Ptc__V1__WorkersRequest *req;
	const Ptc__V1__Generation *which;
	struct ptc_group_key key;
	bool beats; /* a stream */
	int64_t last_beat_ns;
};

static int live_reply(struct ptc_rpc_call *call, Ptc__V1__WorkersReply *reply, struct ptc_error *err)
{
	reply->version = PTC_WIRE_VERSION;
	return ptc_agent_reply(call, &reply->base, err);
}

/* A ptc_wait's question, asked often enough to be the clock of heartbeats as well. */
static bool live_cancelled(void *arg)
{
	struct live *l = arg;
	Ptc__V1__WorkersReply beat;
	int64_t now = ptc_sys_now_ns();

	if (ptc_agent_op_stopped(&l->op))
		return true;
	if (!l->beats || now - l->last_beat_ns < PTC_AGENT_BEAT_MS * INT64_C(1000000))
		return false;
	l->last_beat_ns = now;
	ptc__v1__workers_reply__init(&beat);
	return live_reply(l->call, &beat, NULL) != 0;
}

static void wake(struct ptc_agent *agent)
{
	if (agent->env.workers)
		ptc_workers_look_again(agent->env.workers);
}

void ptc_agent_ranks_init(struct ptc_agent *agent)
{
	agent->wake = wake;
}

static struct ptc_wait live_wait(struct live *l)
{
	return (struct ptc_wait){ .cancelled = live_cancelled, .arg = l };
}

static int live_open(struct live *l, void *agent, struct ptc_rpc_call *call, bool beats, struct ptc_error *err)
{
	int rc;

	*l = (struct live){ .agent = agent, .call = call, .beats = beats, .last_beat_ns = ptc_sys_now_ns() };
	rc = ptc_agent_request(call, &ptc__v1__workers_request__descriptor, &l->msg, err);
	l->req = (const Ptc__V1__WorkersRequest *)l->msg;
	if (rc == 0)
		rc = ptc_switch_info_check(l->req->version, l->req->info, err);
	if (rc == 0)
		rc = ptc_group_workers(agent, err);
	if (rc)
		return rc;
	l->which = l->req->from ? l->req->info->from : l->req->info->to;
	if (!l->which || !l->which->number)
		return ptc_error_set(err, PTC_EINVAL, "the request names no generation");
	ptc_group_key_of(l->req->info, l->which, &l->key);
	rc = ptc_store_job_create(l->agent->env.store, l->req->info->uuid, l->req->info->uid, err);
	return rc ? rc
		  : ptc_agent_enter(agent, call, l->req->info->uuid, l->req->info->fence, l->req->info->seq,
				    PTC_TURN_IN_ORDER, &l->op, err);
}

static int live_close(struct live *l, int r)
{
	ptc_agent_leave(&l->op);
	ptc_pb_free(l->msg);
	return r;
}

/* ---- Warm, Arm, Start, Stop, End ---- */

/* What the table that belongs to this generation takes here; 0: nothing, or nobody can say. */
static int64_t table_bytes(struct live *l, const Ptc__V1__Generation *which)
{
	return ptc_warm_bytes(l->agent, l->req->info, which);
}

/* The switch will need memory, and making it takes as long as several copies of the state. So it is made while ranks
 * still run; a table for which there is no room is refused when it is made, by name. */
static void warm(struct live *l, int64_t bytes)
{
	ptc_warm(l->agent, l->req->info->uuid, bytes, live_cancelled, l);
}

/* Before anything stops. Where the next layout is not known yet, nothing is. */
static int check_devices(struct live *l, struct ptc_error *err)
{
	const Ptc__V1__Generation *next = l->req->info->to, *now = l->req->info->from;
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_geometry_ref *to = NULL, *from = NULL;
	struct ptc_rank_groups groups = { 0 };
	struct ptc_group_key key, key_to;
	uint32_t self_to, self_from;
	int rc = 0;

	if (!next || !next->number || !now || !now->number ||
	    ptc_geometry_get(l->agent, l->req->info, next, &to, &ignored) != 0)
		return 0;
	ptc_group_key_of(l->req->info, now, &key);
	ptc_group_key_of(l->req->info, next, &key_to);
	if (!ptc_geometry_get(l->agent, l->req->info, now, &from, &ignored) &&
	    !ptc_geometry_node(&from->g, l->agent->node, &self_from, &ignored) &&
	    !ptc_geometry_node(&to->g, l->agent->node, &self_to, &ignored) &&
	    !ptc_group_open(l->agent, &from->g.allocation, self_from, &key, &groups.now, &ignored)) {
		/* There are none where they are built after the old ones have ended. */
		(void)ptc_group_open(l->agent, &to->g.allocation, self_to, &key_to, &groups.next, &ignored);
		rc = ptc_device_room(l->agent, &to->g, self_to, &groups, err);
	}
	ptc_group_close(&groups.now);
	ptc_group_close(&groups.next);
	ptc_geometry_put(from);
	ptc_geometry_put(to);
	return rc;
}

/* Holds the ranks, and says of each whether its state can be taken. */
static int hold(struct live *l, struct ptc_error *err)
{
	struct ptc_workers *w = l->agent->env.workers;
	struct ptc_wait wait = live_wait(l);
	Ptc__V1__HeldRank *ranks = NULL, **list = NULL;
	struct ptc_slot_view *slots = NULL;
	Ptc__V1__WorkersReply reply;
	size_t n = 0;
	int rc = ptc_workers_hold(w, &l->key, l->req->hold_ms, l->req->go_on_to, &wait, err);

	ptc__v1__workers_reply__init(&reply);
	if (rc == 0)
		rc = ptc_workers_slots(w, &l->key, &slots, &n, err);
	if (rc == 0) {
		ranks = ptc_calloc(n ? n : 1, sizeof *ranks);
		list = ptc_calloc(n ? n : 1, sizeof *list);
		rc = ranks && list ? 0 : ptc_nomem(err);
	}
	for (size_t i = 0; !rc && i < n; i++) {
		ptc__v1__held_rank__init(list[i] = &ranks[i]);
		ranks[i].rank = slots[i].rank.rank;
		ranks[i].published = slots[i].published;
		ranks[i].step = slots[i].step;
		ranks[i].not_held = (char *)(uintptr_t)(slots[i].not_held ? slots[i].not_held : "");
		ranks[i].stays = slots[i].stays;
		ranks[i].promises = slots[i].promises;
	}
	reply.held = list;
	reply.n_held = n;
	if (rc == 0)
		rc = live_reply(l->call, &reply, err);
	if (slots)
		ptc_workers_slots_done(w, slots, n);
	ptc_free(ranks);
	ptc_free(list);
	return rc;
}

int ptc_agent_on_arm(void *agent, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__WorkersReply reply;
	bool passed = false;
	struct live l;
	int rc = live_open(&l, agent, call, false, err);

	ptc__v1__workers_reply__init(&reply);
	if (!rc && l.req->hold_ms)
		return live_close(&l, hold(&l, err));
	if (!rc && l.req->warm)
		rc = check_devices(&l, err);
	if (!rc && l.req->let_go)
		rc = ptc_workers_let_go(l.agent->env.workers, &l.key, err);
	else if (!rc && l.req->warm)
		warm(&l, table_bytes(&l, l.req->info->from) + table_bytes(&l, l.req->info->to));
	else if (!rc)
		rc = ptc_workers_arm(l.agent->env.workers, &l.key, l.req->stop, &passed, &reply.step, err);
	reply.passed = passed;
	if (rc == 0)
		rc = live_reply(call, &reply, err);
	return live_close(&l, rc);
}

/* How long the job says to wait for ranks to get to a boundary, or to be built. */
static int job_timeout(struct live *l, bool build, int64_t *ret_ms, struct ptc_error *err)
{
	const struct ptc_agent_env *env = &l->agent->env;
	const struct ptc_job_desc *job;
	void *ref;
	int rc;

	if (!env->job_get)
		return ptc_error_set(err, PTC_ESTATE, "node %s cannot read jobs' descriptions, so it starts no ranks",
				     l->agent->node);
	rc = env->job_get(env->arg, l->req->info->uuid, l->req->info->spec_hash, &job, &ref, err);
	if (rc)
		return rc;
	*ret_ms = (int64_t)(build ? job->run.build_timeout_ms : job->run.boundary_timeout_ms);
	env->job_release(env->arg, ref);
	return 0;
}

/* Asking again would only wait as long again. */
static int no_longer(int r, const char *key, const struct ptc_wait *wait, struct ptc_error *err)
{
	struct ptc_error late = *err;

	if (r != PTC_ETIMEOUT)
		return r;
	return ptc_error_set(err, PTC_ESTATE, "%s of %lld s is over %.900s", key, (long long)(wait->timeout_ms / 1000),
			     late.text);
}

void ptc_rank_cost_tell(struct ptc_agent *agent, const struct ptc_group_start *s)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char text[48] = "";

	if (strcmp(s->desc.rank0_node, agent->node) != 0)
		return;
	if (s->cost_linear || s->cost_square)
		snprintf(text, sizeof text, "%llu %llu", (unsigned long long)s->cost_linear,
			 (unsigned long long)s->cost_square);
	if (ptc_workers_rendezvous_put(agent->env.workers, &s->desc.key, PTC_LENGTH_COST_KEY, text, strlen(text), &err))
		ptc_warn("agent", "job=%s what samples cost is not told to its ranks: %s", s->desc.job, err.text);
}

/* Whether the controller says, or has to assume, that these ranks were built here before. The notes of a store that has
 * come since the switch began were in another one, and a controller that has resumed the switch has asked nobody. A
 * daemon that is starting does not know yet when its store came. */
static int were_built(const struct live *l, bool *ret, struct ptc_error *err)
{
	const struct ptc_agent_env *env = &l->agent->env;
	int64_t since = env->store_since ? env->store_since(env->arg) : 1;

	*ret = l->req->built;
	if (*ret || l->req->resumed <= 0)
		return 0;
	if (!since)
		return ptc_error_set(err, PTC_ECOORD, "this node is starting, and is not in the cluster yet");
	*ret = since > l->req->resumed;
	return 0;
}

static int built_check(const struct live *l, const struct ptc_group_key *key, struct ptc_error *err)
{
	bool built = false;
	int rc = were_built(l, &built, err);

	return rc ? rc : ptc_rank_built_check(l->agent, key, built, err);
}

int ptc_agent_on_start(void *agent, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__WorkersReply reply;
	struct ptc_group_start s = { 0 };
	struct live l;
	int rc = live_open(&l, agent, call, false, err);

	ptc__v1__workers_reply__init(&reply);
	if (!rc)
		rc = ptc_group_start_make(agent, l.req->info, l.which, &s, err);
	if (!rc && s.desc.nranks) {
		struct ptc_wait wait = live_wait(&l);

		s.desc.low = l.req->ahead;
		rc = job_timeout(&l, true, &wait.timeout_ms, err);
		if (rc == 0)
			rc = built_check(&l, &s.desc.key, err);
		if (!rc && !l.req->has_state)
			rc = ptc_rank_note_write(l.agent, PTC_RANKS_BEGUN, &s.desc.key, err);
		if (rc == 0)
			rc = ptc_workers_start(l.agent->env.workers, &s.desc, &wait, err);
		if (rc == 0)
			ptc_rank_cost_tell(l.agent, &s);
		rc = no_longer(rc, "build_timeout", &wait, err);
		if (rc == 0)
			warm(&l, table_bytes(&l, l.which));
	}
	ptc_group_start_done(&s, agent);
	if (rc == 0)
		rc = live_reply(call, &reply, err);
	return live_close(&l, rc);
}

int ptc_agent_on_stop(void *agent, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__WorkersReply reply;
	char later[PTC_WORKERS_LATER_MAX] = "";
	struct ptc_wait wait;
	struct live l;
	int rc = live_open(&l, agent, call, true, err);

	ptc__v1__workers_reply__init(&reply);
	wait = live_wait(&l);
	if (rc == 0)
		rc = job_timeout(&l, false, &wait.timeout_ms, err);
	if (!rc) {
		rc = ptc_workers_wait_stopped(l.agent->env.workers, &l.key, l.req->stop, l.req->moves ? later : NULL,
					      &wait, err);
		rc = no_longer(rc, "boundary_timeout", &wait, err);
		reply.step = l.req->stop;
		reply.passed = *later != '\0';
		reply.why = later;
	}
	reply.finished = true;
	if (rc == 0)
		rc = live_reply(call, &reply, err);
	return live_close(&l, rc);
}

static void tell_end(struct live *l)
{
	struct ptc_group_key other;

	ptc_workers_tell_end(l->agent->env.workers, &l->key);
	if (l->req->from || !l->req->info->from)
		return;
	/* Ranks that were built ahead, for nothing: what they said may stand in the place of what those said that
	 * train. */
	ptc_group_key_of(l->req->info, l->req->info->from, &other);
	ptc_workers_report_again(l->agent->env.workers, &other);
}

int ptc_agent_on_end(void *agent, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__WorkersReply reply;
	struct live l;
	int rc = live_open(&l, agent, call, true, err);

	ptc__v1__workers_reply__init(&reply);
	if (!rc) {
		struct ptc_wait wait = live_wait(&l);

		if (l.req->told && ptc_fault("agent.end.told"))
			rc = ptc_error_set(err, PTC_EIO, "a test wants these ranks not to be told");
		else if (l.req->told)
			tell_end(&l);
		else
			rc = ptc_workers_end(l.agent->env.workers, &l.key, &wait, err);
		if (rc == PTC_ENOTFOUND) /* nothing of it is here, so it is over */
			rc = 0;
	}
	if (!rc && l.req->n_keep)
		rc = ptc_agent_tables_drop_old(agent, l.req->info->uuid, l.req->keep, l.req->n_keep, err);
	reply.finished = true;
	if (rc == 0)
		rc = live_reply(call, &reply, err);
	return live_close(&l, rc);
}

/* ---- Build ---- */

struct declarations {
	Ptc__V1__WorkersReply reply;
	Ptc__V1__RankLayout *ranks, **rank_list;
	Ptc__V1__RankTensor *tensors, **tensor_list;
	int64_t *numbers;
};

static void declarations_done(struct declarations *d)
{
	ptc_free(d->ranks);
	ptc_free(d->rank_list);
	ptc_free(d->tensors);
	ptc_free(d->tensor_list);
	ptc_free(d->numbers);
}

/* Offsets and extents from *at on; a scalar's box counts as one dim. */
static void put_boxes(const struct ptc_slot_tensor *t, Ptc__V1__RankTensor *to, int64_t **at)
{
	size_t ndim = t->ndim ? t->ndim : 1, n = ndim * t->nregions;

	to->n_offsets = to->n_extents = n;
	to->offsets = *at;
	to->extents = *at + n;
	*at += 2 * n;
	for (size_t i = 0; i < t->nregions; i++) {
		const struct ptc_box *b = &t->regions[i].box;

		for (size_t k = 0; k < ndim; k++) {
			to->offsets[i * ndim + k] = t->ndim ? b->off[k] : 0;
			to->extents[i * ndim + k] = t->ndim ? b->ext[k] : 1;
		}
	}
}

static int declarations_alloc(struct declarations *d, const struct ptc_group *g, struct ptc_error *err)
{
	size_t tensors = 0, numbers = 0;

	for (size_t i = 0; i < g->n; i++) {
		tensors += g->v[i].ntensors;
		for (size_t k = 0; k < g->v[i].ntensors; k++)
			numbers += 2 * PTC_MAX(g->v[i].tensors[k].ndim, 1u) * g->v[i].tensors[k].nregions;
	}
	d->ranks = ptc_calloc(g->n ? g->n : 1, sizeof *d->ranks);
	d->rank_list = ptc_calloc(g->n ? g->n : 1, sizeof *d->rank_list);
	d->tensors = ptc_calloc(tensors ? tensors : 1, sizeof *d->tensors);
	d->tensor_list = ptc_calloc(tensors ? tensors : 1, sizeof *d->tensor_list);
	d->numbers = ptc_calloc(numbers ? numbers : 1, sizeof *d->numbers);
	if (!d->ranks || !d->rank_list || !d->tensors || !d->tensor_list || !d->numbers)
		return ptc_nomem(err);
	return 0;
}

static int declarations_make(struct declarations *d, const struct ptc_group *g, struct ptc_error *err)
{
	int64_t *at;
	size_t n = 0;
	int rc = declarations_alloc(d, g, err);

	ptc__v1__workers_reply__init(&d->reply);
	if (rc)
		return rc;
	at = d->numbers;
	d->reply.ranks = d->rank_list;
	d->reply.n_ranks = g->n;
	for (size_t i = 0; i < g->n; i++) {
		const struct ptc_slot_view *slot = &g->v[i];
		Ptc__V1__RankLayout *to = d->rank_list[i] = &d->ranks[i];

		ptc__v1__rank_layout__init(to);
		to->rank = slot->rank.rank;
		to->tensors = d->tensor_list + n;
		to->n_tensors = slot->ntensors;
		for (size_t k = 0; k < slot->ntensors; k++, n++) {
			const struct ptc_slot_tensor *t = &slot->tensors[k];
			Ptc__V1__RankTensor *pb = d->tensor_list[n] = &d->tensors[n];

			ptc__v1__rank_tensor__init(pb);
			pb->name = t->name;
			pb->dtype = (char *)(uintptr_t)ptc_dtype_name(t->dtype);
			pb->shape = (int64_t *)(uintptr_t)t->shape;
			pb->n_shape = t->ndim;
			pb->tied = t->tied;
			put_boxes(t, pb, &at);
		}
	}
	return 0;
}

static int build_reply(struct live *l, const struct ptc_group_start *s, struct ptc_error *err)
{
	struct declarations d = { 0 };
	struct ptc_group group = { 0 };
	uint32_t self;
	int rc = ptc_geometry_node(&s->place, l->agent->node, &self, err);

	if (rc == 0)
		rc = ptc_group_open(l->agent, &s->place.allocation, self, &l->key, &group, err);
	for (size_t i = 0; !rc && i < group.n; i++)
		if (group.v[i].state == PTC_SLOT_EXITED)
			rc = ptc_error_set(err, PTC_ESTATE, "rank %u exited after it had declared its tensors",
					   group.v[i].rank.rank);
	if (rc == 0)
		rc = declarations_make(&d, &group, err);
	d.reply.finished = true;
	for (size_t i = 0; !rc && i < group.n; i++)
		d.reply.no_memory |= group.v[i].state == PTC_SLOT_BUILDING;
	if (rc == 0)
		rc = live_reply(l->call, &d.reply, err);
	declarations_done(&d);
	ptc_group_close(&group);
	return rc;
}

/* A device of this node that ranks of a generation have. False: there is none, or devices are virtual. */
static bool find_device(const struct ptc_agent *agent, const struct ptc_geometry *g, struct ptc_node_device *ret)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	uint32_t self;

	if (!agent->env.devices || !ptc_node_devices_ids(agent->env.devices) ||
	    ptc_geometry_node(g, agent->node, &self, &ignored) != 0)
		return false;
	for (uint32_t r = 0; r < g->allocation.world; r++) {
		const struct ptc_device *at = &g->allocation.ranks[r];

		if (at->node != self || at->index >= ptc_node_devices_count(agent->env.devices))
			continue;
		ptc_node_devices_get(agent->env.devices, at->index, ret);
		return true;
	}
	return false;
}

/* While they build, the store is read. Where the next layout or the state is not known yet, it is not. */
static void read_ahead(struct live *l)
{
	const Ptc__V1__SwitchInfo *info = l->req->info;
	struct ptc_geometry_ref *from = NULL, *to = NULL;
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_node_device device;

	if (!l->agent->env.prefetch_bytes || !l->req->has_state || !info->from || !info->from->number)
		return;
	if (!ptc_geometry_get(l->agent, info, info->from, &from, &ignored) &&
	    !ptc_geometry_get(l->agent, info, l->which, &to, &ignored) && find_device(l->agent, &to->g, &device))
		ptc_prefetch_begin(l->agent, &from->g, &to->g, device.uuid);
	ptc_geometry_put(from);
	ptc_geometry_put(to);
}

static int build_ranks(struct live *l, const struct ptc_group_start *s, struct ptc_error *err)
{
	const Ptc__V1__WorkersRequest *req = l->req;
	struct ptc_wait wait = live_wait(l);
	struct ptc_rank_states rank_states;
	int rc = ptc_rank_states_read(l->agent, l->key.uuid, req->state_hash, &s->desc, &rank_states, err);

	if (rc == 0)
		rc = job_timeout(l, true, &wait.timeout_ms, err);
	if (rc == 0)
		rc = built_check(l, &s->desc.key, err);
	if (rc == 0)
		rc = ptc_rank_built_note(l->agent, &s->desc.key, err);
	if (!rc) {
		read_ahead(l);
		rc = (req->layout ? ptc_workers_build_layout : ptc_workers_build)(l->agent->env.workers, &s->desc,
										  req->start_step, req->has_state,
										  rank_states.of, &wait, err);
		rc = no_longer(rc, "build_timeout", &wait, err);
	}
	ptc_rank_states_done(&rank_states);
	return rc;
}

int ptc_agent_on_build(void *agent, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__WorkersReply none;
	struct ptc_group_start s = { 0 };
	struct live l;
	int rc = live_open(&l, agent, call, true, err);

	if (rc == 0)
		rc = ptc_group_start_make(agent, l.req->info, l.which, &s, err);
	if (!rc && s.desc.nranks) {
		s.desc.low = l.req->ahead;
		rc = build_ranks(&l, &s, err);
		if (rc == 0)
			rc = build_reply(&l, &s, err);
	} else if (!rc) {
		ptc__v1__workers_reply__init(&none);
		none.finished = true;
		rc = live_reply(call, &none, err);
	}
	ptc_group_start_done(&s, agent);
	return live_close(&l, rc);
}

/* ---- Meet ---- */

static bool call_gone(void *call)
{
	return ptc_rpc_call_cancelled(call);
}

static int rendezvous_get(struct ptc_agent *agent, struct ptc_rpc_call *call, const struct ptc_group_key *key,
			  const Ptc__V1__RendezvousRequest *req, struct ptc_error *err)
{
	Ptc__V1__RendezvousReply reply = PTC__V1__RENDEZVOUS_REPLY__INIT;
	uint8_t value[4096];
	struct ptc_wait wait = { .cancelled = call_gone, .arg = call };
	bool many = atomic_fetch_add(&agent->rendezvous, 1) >= PTC_AGENT_RENDEZVOUS;
	int rc;

	/* A waiting call is a thread of the server: when many wait, the rest is told to ask again. */
	wait.timeout_ms = many ? 1 : PTC_MAX(PTC_MIN(req->timeout_ms, (uint32_t)PTC_AGENT_RENDEZVOUS_MS), 1u);
	rc = ptc_workers_rendezvous_get(agent->env.workers, key, req->key, value, sizeof(value), &reply.value.len,
					&wait, err);
	atomic_fetch_sub(&agent->rendezvous, 1);
	if (many && rc == PTC_ETIMEOUT) /* it was not waited for */
		rc = ptc_error_set(err, PTC_ENOTFOUND, "key \"%s\" is not there yet", req->key);
	reply.version = PTC_WIRE_VERSION;
	reply.value.data = value;
	return rc ? rc : ptc_agent_reply(call, &reply.base, err);
}

int ptc_agent_on_rendezvous(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__RendezvousReply reply = PTC__V1__RENDEZVOUS_REPLY__INIT;
	struct ptc_agent *agent = arg;
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__rendezvous_request__descriptor, &msg, err);
	const Ptc__V1__RendezvousRequest *req = (const Ptc__V1__RendezvousRequest *)msg;
	struct ptc_group_key key = { 0 };

	if (rc == 0)
		rc = ptc_pb_version(req->version, err);
	if (!rc && (strlen(req->uuid) != 36 || !req->key[0] || strlen(req->key) > 255 || req->value.len > 4096))
		rc = ptc_error_set(
			err, PTC_EINVAL,
			"a rendezvous request with a malformed job, key or value; upgrade the node that sent it");
	if (rc == 0)
		rc = ptc_group_workers(agent, err);
	if (!rc) {
		key.generation = req->generation;
		key.incarnation = req->incarnation;
		snprintf(key.uuid, sizeof(key.uuid), "%s", req->uuid);
	}
	reply.version = PTC_WIRE_VERSION;
	if (!rc && req->put) {
		rc = ptc_workers_rendezvous_put(agent->env.workers, &key, req->key, req->value.data, req->value.len,
						err);
		if (rc == 0)
			rc = ptc_agent_reply(call, &reply.base, err);
	} else if (!rc) {
		rc = rendezvous_get(agent, call, &key, req, err);
	}
	ptc_pb_free(msg);
	return rc;
}

/* ---- Ranks ---- */

int ptc_agent_on_ranks(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__Document reply;
	struct ptc_agent *agent = arg;
	ProtobufCMessage *msg = NULL;
	char *json = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__job_request__descriptor, &msg, err);
	const Ptc__V1__JobRequest *req = (const Ptc__V1__JobRequest *)msg;

	if (rc == 0)
		rc = ptc_pb_version(req->version, err);
	if (rc == 0)
		rc = ptc_group_workers(agent, err);
	if (rc == 0)
		rc = ptc_workers_json(agent->env.workers, req->job, &json, err);
	ptc__v1__document__init(&reply);
	reply.version = PTC_WIRE_VERSION;
	reply.json = json;
	if (rc == 0)
		rc = ptc_agent_reply(call, &reply.base, err);
	ptc_free(json);
	ptc_pb_free(msg);
	return rc;
}
