/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of ranks, from start to end: what a switch has done with the ranks on this node.
 *
 * Happy path, by call: start -> (training goes on) -> arm, arm, wait_stopped -> slots read by the
 * agent -> end -> build -> slots restored by the agent -> go. Failure modes: a rank that exits
 * (PTC_ESTATE naming rank, status and the end of its log), that never comes to a boundary (the
 * caller's wait ends: PTC_ETIMEOUT naming ranks), that declares nonsense (PTC_ELAYOUT naming
 * tensor).
 *
 * Threads: every function may be called from any thread. Waiting ones take a `struct ptc_wait`. */
#pragma once

#include "daemon/workers/types/group_desc.h"
#include "base/status.h"

struct ptc_workers;

/* Processes for every rank of the group exist and wait. Idempotent. rebuild: those of the job's running group that will be free count. */
int ptc_workers_start(struct ptc_workers *w, const struct ptc_group_desc *desc, const struct ptc_wait *wait,
		      struct ptc_error *err);
/* One round of arming. *ret_passed: some rank is at or past `stop`; *ret_step: the greatest step any rank has published; then
 * each such rank is held at its next boundary at the latest. Ranks that wait at an earlier stop go on to this one. */
int ptc_workers_arm(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, bool *ret_passed,
		    uint64_t *ret_step, struct ptc_error *err);
/* Waits until every rank of the group waits at `stop`. A rank whose state cannot be taken there, but at a later boundary, is no
 * failure: ret_later, of PTC_WORKERS_LATER_MAX bytes, says which rank and why; "" when there is none. With ret_later NULL such a
 * rank is one that refuses. */
int ptc_workers_wait_stopped(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, char *ret_later,
			     const struct ptc_wait *wait, struct ptc_error *err);
#define PTC_WORKERS_LATER_MAX 320 /* a rank's number and what libptc sends as the reason */
/* Ranks of the group that wait at a stop go on (0); ranks that run are left alone, and their stop is cleared. Finished ranks stay: the
 * end of the job (drop) or of the generation (end) lets them return from ptc_finish. */
int ptc_workers_release(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_error *err);
/* The group's generation is over: waits until every rank has exited or waits in ptc_next, killing after the grace time. */
int ptc_workers_end(struct ptc_workers *w, const struct ptc_group_key *key, const struct ptc_wait *wait,
		    struct ptc_error *err);
struct ptc_rank_state;
/* Gives the group's ranks their generation; waits until all have declared. start_step and has_state: see ptc.h. carried:
 * with has_state, of each rank of desc; NULL: nothing. */
int ptc_workers_build(struct ptc_workers *w, const struct ptc_group_desc *desc, uint64_t start_step, bool has_state,
		      const struct ptc_rank_state *rank_states, const struct ptc_wait *wait, struct ptc_error *err);
/* Ends every process of the job that is not of `keep` (NULL: all), in the background. */
void ptc_workers_drop(struct ptc_workers *w, const char *uuid, const struct ptc_group_key *keep);

/* The job has been deleted: as drop, and once nothing of it runs here its folder goes. Idempotent. */
void ptc_workers_forget(struct ptc_workers *w, const char *uuid);
/* Jobs that have a folder here. fn must not call back. */
void ptc_workers_jobs(struct ptc_workers *w, void (*fn)(void *arg, const char *uuid), void *arg);
/* Says again what is to be said of the group: what it said before may have been overwritten by what another group said. */
void ptc_workers_report_again(struct ptc_workers *w, const struct ptc_group_key *key);

/* Whether processes that some ptcd has started with this `dir` still run: *ret_pid is one of them, or 0. Nothing there is nothing. */
int ptc_workers_running(const char *dir, pid_t *ret_pid, struct ptc_error *err);
