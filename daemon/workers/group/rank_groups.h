/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of ranks, from start to end: the steps of a switch with the ranks on this node.
 *
 * Happy path, by call: start -> (training goes on) -> arm, arm, wait_stopped -> slots read by the
 * agent -> end -> build -> slots restored by the agent -> go.
 *
 * Failure modes: a rank exits (PTC_ESTATE; the line names the rank and its status, and the end of its log follows); a
 * rank never comes to a boundary, so the caller's wait ends (PTC_ETIMEOUT; the line names the ranks); a rank declares
 * nonsense (PTC_ELAYOUT; the line names the tensor).
 *
 * Threads: any. Functions that wait take a `struct ptc_wait`. */
#pragma once

#include "daemon/workers/types/group_desc.h"
#include "base/status.h"

struct ptc_workers;

/* Starts a process for every rank of the group, and waits until all wait in ptc_next. Idempotent. In mode rebuild, a
 * process of the job's running group counts as started if the switch frees it. Where the job has no other group that is
 * to stay, processes that were told to exit are waited for first. */
int ptc_workers_start(struct ptc_workers *w, const struct ptc_group_desc *desc, const struct ptc_wait *wait,
		      struct ptc_error *err);
/* One round of arming. *ret_passed: a rank is at or past `stop`; each such rank waits at its next boundary at the
 * latest. *ret_step: the greatest step that a rank has published. Ranks that wait at an earlier stop go on to this one.
 */
int ptc_workers_arm(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, bool *ret_passed,
		    uint64_t *ret_step, struct ptc_error *err);
/* Waits until every rank of the group waits at `stop`. A rank may have state that can be taken at a later boundary
 * only. This is no failure: ret_later, of PTC_WORKERS_LATER_MAX bytes, names the rank and the reason; "" if there is no
 * such rank. With ret_later NULL such a rank counts as one that refuses. */
int ptc_workers_wait_stopped(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, char *ret_later,
			     const struct ptc_wait *wait, struct ptc_error *err);
#define PTC_WORKERS_LATER_MAX 320 /* a rank's number, and the reason that libptc sends */
/* Lets ranks that wait at a stop go on, and clears the stop of ranks that run. Finished ranks stay: the end of the job
 * (drop) or of the generation (end) lets them return from ptc_finish. Of the job's own snapshots, `leave_out` that are
 * due after step `since` are left out. */
int ptc_workers_release(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t since, uint32_t leave_out,
			struct ptc_error *err);
/* Ends the group's generation: waits until every rank has exited or waits in ptc_next, and kills ranks after the grace
 * time. */
int ptc_workers_end(struct ptc_workers *w, const struct ptc_group_key *key, const struct ptc_wait *wait,
		    struct ptc_error *err);
struct ptc_rank_state;
/* Gives the group's ranks their generation, and waits until all have declared, with the addresses of their memory.
 * start_step and has_state: see ptc.h. rank_states: with has_state, of each rank of desc; NULL: none. */
int ptc_workers_build(struct ptc_workers *w, const struct ptc_group_desc *desc, uint64_t start_step, bool has_state,
		      const struct ptc_rank_state *rank_states, const struct ptc_wait *wait, struct ptc_error *err);
/* Does the same, but waits only until all have declared their tensors, with or without memory. Ranks that have declared
 * without memory stay BUILDING, and their views have the tensors. */
int ptc_workers_build_layout(struct ptc_workers *w, const struct ptc_group_desc *desc, uint64_t start_step,
			     bool has_state, const struct ptc_rank_state *rank_states, const struct ptc_wait *wait,
			     struct ptc_error *err);
/* Sets the step at which the group's declared ranks begin. If ranks are built ahead, their snapshot is made later, so
 * the step is known only now. */
int ptc_workers_start_step(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t start_step,
			   struct ptc_error *err);
/* Ends every process of the job outside the groups `keep` (their uuid is not looked at), in the background. n 0: all.
 * given_up: the job is to be started again, so processes have at most WORKERS_GIVEN_UP_MS to end, also those that were
 * told to exit before. Processes that wait without a rank stay if n or given_up is set. */
void ptc_workers_drop(struct ptc_workers *w, const char *uuid, const struct ptc_group_key *keep, size_t n,
		      bool given_up);
/* Has `want` processes of desc's program wait on this node without a rank, while all of the job's ranks here run
 * (docs/decisions/0064). ptc_workers_start takes them before it starts others. They are started later, one after the
 * other, at a low priority. want 0: there are to be none. Call it again whenever the job goes on. */
int ptc_workers_standby(struct ptc_workers *w, const struct ptc_group_desc *desc, size_t want, struct ptc_error *err);
void ptc_workers_standby_end(struct ptc_workers *w, const char *uuid);
/* Tells the group's ranks that their generation has ended, and does not wait until they have exited. Nobody needs their
 * memory, so they exit at a low priority. The group is removed once they have exited. */
void ptc_workers_tell_end(struct ptc_workers *w, const struct ptc_group_key *key);

/* A device has failed: ends the ranks that have it as soon as nobody reads their memory, and reports their groups as
 * FAILED with `gone`. pid: only this process, because its memory cannot be read. pid 0: all processes on the device
 * whose step does not change any more. why: one line that names the device. Idempotent. */
void ptc_workers_device_failed(struct ptc_workers *w, uint32_t device, pid_t pid, const char *why);

/* For a deleted job: does what ptc_workers_drop does for all groups, and removes the job's folder once none of its
 * processes runs here. Idempotent. */
void ptc_workers_forget(struct ptc_workers *w, const char *uuid);
/* Calls fn for each job with a folder here. fn must not call this room. */
void ptc_workers_jobs(struct ptc_workers *w, void (*fn)(void *arg, const char *uuid), void *arg);
/* Reports the group's events again, because another group's events may have replaced them at the controller. */
void ptc_workers_report_again(struct ptc_workers *w, const struct ptc_group_key *key);
/* Has each call that waits here ask its `cancelled` now. Call it after the answer has changed, without locks. */
void ptc_workers_look_again(struct ptc_workers *w);

/* Looks for processes that any ptcd has started with this `dir` and that still run. *ret_pid: one of them, or 0. A
 * missing `dir` has none. */
int ptc_workers_running(const char *dir, pid_t *ret_pid, struct ptc_error *err);
