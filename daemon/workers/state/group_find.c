/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and groups by name, and the end of a group in memory. Happy path: a group is found by its
 * key, and freed with its last reference. Failure modes: none but that it is not there. */
#include "daemon/workers/state/group_find.h"
#include "daemon/workers/state/rank_declarations.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

struct job *ptc_workers_job_locked(struct ptc_workers *w, const char *uuid)
{
	for (struct job *j = w->jobs; j; j = j->next)
		if (strcmp(j->uuid, uuid) == 0)
			return j;
	return NULL;
}

void ptc_group_free(struct group *g)
{
	if (!g)
		return;
	if (g->job)
		g->job->held--;
	for (size_t i = 0; i < g->nrendezvous; i++) {
		ptc_free(g->rendezvous[i].key);
		ptc_free(g->rendezvous[i].value);
	}
	ptc_free(g->rendezvous);
	ptc_free(g->argv);
	ptc_free(g->env);
	ptc_free(g->ranks);
	for (size_t i = 0; g->rank_states && i < g->desc.nranks; i++)
		ptc_rank_state_unref(g->rank_states[i]);
	ptc_free(g->rank_states);
	ptc_free(g->slots);
	ptc_free(g->bytes);
	ptc_free(g);
}

struct group *ptc_group_ref(struct group *g)
{
	g->refs++;
	return g;
}

void ptc_group_unref_locked(struct group *g)
{
	if (--g->refs == 0)
		ptc_group_free(g);
}

bool ptc_group_is(const struct group *g, uint64_t generation, uint64_t incarnation)
{
	return g->desc.key.generation == generation && g->desc.key.incarnation == incarnation;
}

struct group *ptc_group_find_in(const struct job *job, const struct ptc_group_key *key)
{
	for (struct group *g = job ? job->groups : NULL; g; g = g->next)
		if (ptc_group_is(g, key->generation, key->incarnation))
			return g;
	return NULL;
}

struct group *ptc_group_find_locked(struct ptc_workers *w, const struct ptc_group_key *key)
{
	return ptc_group_find_in(ptc_workers_job_locked(w, key->uuid), key);
}

int(ptc_group_missing)(const struct ptc_group_key *key, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENOTFOUND, "no ranks of job %s, generation %llu, incarnation %llu are here",
			     key->uuid, (unsigned long long)key->generation, (unsigned long long)key->incarnation);
}

enum ptc_slot_state ptc_group_slot_state(const struct group *g, size_t i)
{
	static const enum ptc_slot_state of[] = {
		[WORKER_ABSENT] = PTC_SLOT_SPAWNED,    [WORKER_CONNECTED] = PTC_SLOT_SPAWNED,
		[WORKER_WAITING] = PTC_SLOT_WAITING,   [WORKER_BUILDING] = PTC_SLOT_BUILDING,
		[WORKER_DECLARED] = PTC_SLOT_DECLARED, [WORKER_RUNNING] = PTC_SLOT_RUNNING,
		[WORKER_STOPPED] = PTC_SLOT_STOPPED,   [WORKER_ENDING] = PTC_SLOT_ENDING,
	};
	const struct worker *k = g->slots[i].worker;

	if (g->slots[i].exited || (k && k->ended))
		return PTC_SLOT_EXITED;
	if (!k)
		return g->ending ? PTC_SLOT_EXITED : PTC_SLOT_SPAWNED;
	return g->ending ? PTC_SLOT_ENDING : of[k->phase];
}

uint32_t ptc_group_grace_ms(const struct group *g)
{
	uint32_t grace = g->desc.grace_ms ? g->desc.grace_ms : WORKERS_GRACE_MS;

	return g->given_up ? PTC_MIN(grace, WORKERS_GIVEN_UP_MS) : grace;
}

struct worker *ptc_worker_find_locked(struct ptc_workers *w, const char *uuid, unsigned number)
{
	struct job *job = ptc_workers_job_locked(w, uuid);

	for (struct worker *k = job ? job->workers : NULL; k; k = k->next)
		if (k->number == number)
			return k;
	return NULL;
}

bool ptc_worker_ending(const struct worker *k)
{
	return ptc_worker_in_generation(k) && (k->exit_wanted || k->stale || !k->group || k->group->ending ||
					       !ptc_group_is(k->group, k->generation, k->incarnation));
}

void ptc_group_patience_locked(struct group *g, const struct ptc_wait *wait)
{
	uint64_t ms = wait && wait->timeout_ms > 0 ? (uint64_t)wait->timeout_ms : 0;

	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct worker *k = g->slots[i].worker;

		if (k && !k->ended && k->page)
			atomic_store(&k->page->patience_ms, ms);
	}
}

/* ---- processes that wait without a rank ---- */

static bool same_list(const char *const *a, const char *const *b)
{
	size_t i = 0;

	while (a[i] && b[i] && strcmp(a[i], b[i]) == 0)
		i++;
	return !a[i] && !b[i];
}

bool ptc_group_same_program(const struct ptc_group_desc *a, const struct ptc_group_desc *b)
{
	return a->uid == b->uid && strcmp(a->cwd, b->cwd) == 0 && same_list(a->argv, b->argv) &&
	       same_list(a->env, b->env);
}

bool ptc_worker_stands_by(const struct worker *k)
{
	return k->standby && !k->ended && !k->left && !k->exit_wanted;
}

struct worker *ptc_group_find_standby_locked(const struct group *g)
{
	const struct job *job = g->job;
	struct worker *comes = NULL;

	if (!job->standby.like || !ptc_group_same_program(&job->standby.like->desc, &g->desc))
		return NULL;
	for (struct worker *k = job->workers; k; k = k->next) {
		/* The loop may not have seen yet that it has ended. The start of its rank would fail. */
		if (!ptc_worker_stands_by(k) || k->spawning || k->reaping || ptc_process_wait(&k->process, 0))
			continue;
		if (k->phase == WORKER_WAITING)
			return k;
		comes = k;
	}
	return comes;
}

/* ---- which processes may be ranks on which devices (mode rebuild) ---- */

bool ptc_worker_usable(const struct worker *k)
{
	return !k->ended && !k->left && !k->exit_wanted && !k->standby;
}

/* It waits; or it is of a group that runs, and will. */
bool ptc_worker_present(const struct worker *k)
{
	return k->phase == WORKER_WAITING || (k->phase > WORKER_WAITING && k->group && k->group->built) ||
	       (k->phase == WORKER_ENDING && k->ran && k->conn);
}

/* Has run on one device, so that it has a context there and on no other. Where devices are virtual, any device does. */
static bool bound(const struct ptc_workers *w, const struct worker *k)
{
	return w->env.device_ids && k->ran;
}

/* k is, or will be, one that g may use; present: it is there already. */
bool ptc_group_serves(const struct group *g, const struct worker *k, bool present)
{
	return ptc_worker_usable(k) && (!k->group || k->group == g || k->group->desc.mode == PTC_MODE_REBUILD) &&
	       (!present || ptc_worker_present(k));
}

/* Slots of g on `device` that have no process of their own among those that serve it. */
static size_t open_slots(const struct group *g, uint32_t device, bool present)
{
	size_t n = 0;

	for (size_t i = 0; i < g->desc.nranks; i++)
		n += g->ranks[i].device == device &&
		     !(g->slots[i].worker && ptc_group_serves(g, g->slots[i].worker, present));
	return n;
}

static size_t bound_to(const struct ptc_workers *w, const struct group *g, uint32_t device, bool present)
{
	size_t n = 0;

	for (const struct worker *k = g->job->workers; k; k = k->next)
		n += k->group != g && bound(w, k) && k->device == device && ptc_group_serves(g, k, present);
	return n;
}

/* The slots that are left for processes which have no device yet. */
static size_t slots_for_new(const struct ptc_workers *w, const struct group *g, bool present)
{
	size_t n = 0;

	for (size_t i = 0; i < g->desc.nranks; i++) {
		uint32_t device = g->ranks[i].device;
		size_t open, have, first = 0;

		while (g->ranks[first].device != device)
			first++;
		if (first < i) /* this device was counted */
			continue;
		open = open_slots(g, device, present);
		have = bound_to(w, g, device, present);
		n += open > have ? open - have : 0;
	}
	return n;
}

/* How many processes g still lacks, beside those that serve it. */
size_t ptc_group_lacks_locked(const struct ptc_workers *w, const struct group *g, bool present)
{
	size_t want = slots_for_new(w, g, present), have = 0;

	for (const struct worker *k = g->job->workers; k; k = k->next)
		have += k->group != g && !bound(w, k) && ptc_group_serves(g, k, present);
	return want > have ? want - have : 0;
}

bool ptc_group_wants_locked(const struct ptc_workers *w, const struct group *g, const struct worker *k)
{
	size_t before = 0, want;

	if (g->built || g->desc.mode != PTC_MODE_REBUILD)
		return false;
	want = bound(w, k) ? open_slots(g, k->device, false) : slots_for_new(w, g, false);
	for (const struct worker *other = g->job->workers; other != k; other = other->next)
		before += ptc_worker_usable(other) && !other->group && bound(w, other) == bound(w, k) &&
			  (!bound(w, k) || other->device == k->device);
	return before < want;
}

struct worker *ptc_group_free_worker_locked(const struct ptc_workers *w, const struct group *g, uint32_t device)
{
	struct worker *any = NULL;

	for (struct worker *k = g->job->workers; k; k = k->next) {
		if (!ptc_worker_usable(k) || k->group || k->phase != WORKER_WAITING)
			continue;
		if (k->device == device && k->ran)
			return k; /* it has that device's context already */
		if (!bound(w, k) && (!any || (any->ran && !k->ran)))
			any = k;
	}
	return any;
}

/* A process that has run on this device, and is on its way to ptc_next. */
bool ptc_group_one_comes_locked(const struct ptc_workers *w, const struct group *g, uint32_t device)
{
	for (const struct worker *k = g->job->workers; k; k = k->next)
		if (k->group != g && bound(w, k) && k->device == device && k->phase != WORKER_WAITING &&
		    ptc_group_serves(g, k, false))
			return true;
	return false;
}
