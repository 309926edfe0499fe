/* SPDX-License-Identifier: Apache-2.0 */
/* Finding jobs, groups and workers, and the life of a group in memory: counted, freed with its last
 * reference. Nothing here fails but by not finding. */
#pragma once

#include "daemon/workers/state/worker_state.h"

struct job *ptc_workers_job_locked(struct ptc_workers *w, const char *uuid);
struct group *ptc_group_find_in(const struct job *job,
				const struct ptc_group_key *key); /* job may be NULL; NULL: none */
struct group *ptc_group_find_locked(struct ptc_workers *w, const struct ptc_group_key *key);
struct group *ptc_group_ref(struct group *g);
void ptc_group_unref_locked(struct group *g);
bool ptc_group_is(const struct group *g, uint64_t generation, uint64_t incarnation);
/* ENOTFOUND err: there is no such group here. */
int ptc_group_missing(const struct ptc_group_key *key, struct ptc_error *err);
enum ptc_slot_state ptc_group_slot_state(const struct group *g, size_t i);
uint32_t ptc_group_grace_ms(const struct group *g);
void ptc_group_free(struct group *g);
/* NULL: the job or the process is not known. */
struct worker *ptc_worker_find_locked(struct ptc_workers *w, const char *uuid, unsigned number);
/* A rank of a generation: told of it, and not at its end yet. */
static inline bool ptc_worker_in_generation(const struct worker *k)
{
	return k->phase >= WORKER_BUILDING && k->phase <= WORKER_STOPPED;
}
/* A rank of a generation that ends or has ended, or whose process is to exit. */
bool ptc_worker_ending(const struct worker *k);
