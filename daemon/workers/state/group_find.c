// SPDX-License-Identifier: Apache-2.0
/* Jobs and groups by name, and the end of a group in memory. Happy path: a group is found by its
 * key, and freed with its last reference. Failure modes: none but that it is not there. */
#include "daemon/workers/state/group_find.h"
#include "daemon/workers/state/rank_declarations.h"

#include "base/alloc.h"

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
	for (size_t i = 0; i < g->nmeets; i++) {
		ptc_free(g->meets[i].key);
		ptc_free(g->meets[i].value);
	}
	ptc_free(g->meets);
	ptc_free(g->argv);
	ptc_free(g->env);
	ptc_free(g->ranks);
	for (size_t i = 0; g->carried && i < g->desc.nranks; i++)
		ptc_carry_unref(g->carried[i]);
	ptc_free(g->carried);
	ptc_free(g->seats);
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

bool ptc_group_is(const struct group *g, uint64_t generation, uint64_t launch)
{
	return g->desc.key.generation == generation && g->desc.key.launch == launch;
}

struct group *ptc_group_find_in(const struct job *job, const struct ptc_group_key *key)
{
	for (struct group *g = job ? job->groups : NULL; g; g = g->next)
		if (ptc_group_is(g, key->generation, key->launch))
			return g;
	return NULL;
}

struct group *ptc_group_find_locked(struct ptc_workers *w, const struct ptc_group_key *key)
{
	return ptc_group_find_in(ptc_workers_job_locked(w, key->uuid), key);
}

int ptc_group_missing(const struct ptc_group_key *key, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENOTFOUND, "no ranks of job %s, generation %llu, launch %llu are here", key->uuid,
			     (unsigned long long)key->generation, (unsigned long long)key->launch);
}

enum ptc_seat_state ptc_group_seat_state(const struct group *g, size_t i)
{
	static const enum ptc_seat_state of[] = {
		[WORKER_ABSENT] = PTC_SEAT_SPAWNED,    [WORKER_CONNECTED] = PTC_SEAT_SPAWNED,
		[WORKER_WAITING] = PTC_SEAT_WAITING,   [WORKER_BUILDING] = PTC_SEAT_BUILDING,
		[WORKER_DECLARED] = PTC_SEAT_DECLARED, [WORKER_RUNNING] = PTC_SEAT_RUNNING,
		[WORKER_STOPPED] = PTC_SEAT_STOPPED,   [WORKER_ENDING] = PTC_SEAT_ENDING,
	};
	const struct worker *k = g->seats[i].worker;

	if (g->seats[i].exited || (k && k->ended))
		return PTC_SEAT_EXITED;
	if (!k)
		return g->ending ? PTC_SEAT_EXITED : PTC_SEAT_SPAWNED;
	return g->ending ? PTC_SEAT_ENDING : of[k->phase];
}

uint32_t ptc_group_grace_ms(const struct group *g)
{
	return g->desc.grace_ms ? g->desc.grace_ms : WORKERS_GRACE_MS;
}
