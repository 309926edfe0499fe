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
