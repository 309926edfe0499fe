/* SPDX-License-Identifier: Apache-2.0 */
/* Finds jobs, groups and workers. Counts references to a group; the last one frees it. The only failure is that a thing
 * is not found. */
#pragma once

#include "daemon/workers/state/worker_state.h"

struct job *ptc_workers_job_locked(struct ptc_workers *w, const char *uuid);
struct group *ptc_group_find_in(const struct job *job,
				const struct ptc_group_key *key); /* job may be NULL. NULL: there is none */
struct group *ptc_group_find_locked(struct ptc_workers *w, const struct ptc_group_key *key);
struct group *ptc_group_ref(struct group *g);
void ptc_group_unref_locked(struct group *g);
bool ptc_group_is(const struct group *g, uint64_t generation, uint64_t incarnation);
/* Fills err and returns PTC_ENOTFOUND: there is no such group here. */
int ptc_group_missing(const struct ptc_group_key *key, struct ptc_error *err);
#ifdef __clang_analyzer__
#define ptc_group_missing(...) PTC_NEVER_0(ptc_group_missing(__VA_ARGS__))
#endif
enum ptc_slot_state ptc_group_slot_state(const struct group *g, size_t i);
uint32_t ptc_group_grace_ms(const struct group *g);
/* Tells the ranks for how long a call waits for them: a rank that waits for its device gives up before that, and says
 * why.
 */
void ptc_group_patience_locked(struct group *g, const struct ptc_wait *wait);
void ptc_group_free(struct group *g);
/* NULL: the job or the process is unknown. */
struct worker *ptc_worker_find_locked(struct ptc_workers *w, const char *uuid, unsigned number);
/* The worker is a rank of a generation: it was given one, which has not ended yet. */
static inline bool ptc_worker_in_generation(const struct worker *k)
{
	return k->phase >= WORKER_BUILDING && k->phase <= WORKER_STOPPED;
}
/* The worker's generation ends or has ended, or its process has to exit. */
bool ptc_worker_ending(const struct worker *k);

/* Whether a process that is started as the one description says is like one that is started as the other says. */
bool ptc_group_same_program(const struct ptc_group_desc *a, const struct ptc_group_desc *b);
/* The worker waits without a rank for the job's next start (standby.c), and is to go on. */
bool ptc_worker_stands_by(const struct worker *k);
/* One of these that is of g's program and lives, first those that wait in ptc_next; NULL: none. */
struct worker *ptc_group_find_standby_locked(const struct group *g);

/* Which processes of a job may be ranks of a group in mode rebuild. A process that has run on a device has a context
 * there and nowhere else, so it serves the slots of that device. A new process serves any remaining slot. A process of
 * an earlier ptcd serves none if nobody knows on which device it has run. */
bool ptc_worker_usable(const struct worker *k); /* it lives, is to go on, and waits for a group */
/* Whether it waits in ptc_next, or will come there: it ends its generation, or belongs to a group that was built. */
bool ptc_worker_present(const struct worker *k);
/* Whether g may use k, now or later. present: only if ptc_worker_present(k) is true, too. */
bool ptc_group_serves(const struct group *g, const struct worker *k, bool present);
/* How many processes g still lacks, beside those that serve it. */
size_t ptc_group_lacks_locked(const struct ptc_workers *w, const struct group *g, bool present);
/* Whether k, which is free, is to stay for g, which is not built yet. Free processes before k in the job's list come
 * first. */
bool ptc_group_wants_locked(const struct ptc_workers *w, const struct group *g, const struct worker *k);
/* A process that waits, for a slot on the device; NULL: none. */
struct worker *ptc_group_free_worker_locked(const struct ptc_workers *w, const struct group *g, uint32_t device);
/* A process that has run on the device is on its way to ptc_next. */
bool ptc_group_one_comes_locked(const struct ptc_workers *w, const struct group *g, uint32_t device);
