/* SPDX-License-Identifier: Apache-2.0 */
/* Work that takes time, off the loop. Operations on etcd block, so they run on a few threads of their own. Computation
 * runs on libuv's pool.
 *
 * A task is a list of steps and belongs to a lane: a job's uuid, or another name. Tasks of one lane run one after
 * another, step by step, in the order of their ptc_tasks_run. Lanes run beside each other. So a job's keys change in
 * one order. A job whose digests take seconds to merge, or whose documents take seconds to write, delays no other job.
 *
 * A job has further lanes, for work that none of its commits waits for: copies, archives, plans. Such steps are
 * `aside`. All jobs' steps aside together hold at most half of the threads of their kind; the others wait for their
 * turn, in order. So one job never holds all threads, however many lanes it works in.
 *
 * Failure modes: no memory for a task (PTC_ENOMEM; nothing has begun). A step reports its errors through its argument;
 * the steps after it still run. */
#pragma once

#include "daemon/coord/etcd.h"

#include <stdbool.h>
#include <stdint.h>

#define PTC_LANE_MAX       40 /* bytes of a lane's name, with its NUL; a uuid fits */
#define PTC_TASK_STEPS_MAX 3

enum ptc_task_kind { PTC_TASK_ETCD, PTC_TASK_COMPUTE };
struct ptc_task_step {
	enum ptc_task_kind kind;
	void (*run)(void *arg, struct ptc_etcd *etcd);
	bool aside; /* no commit waits for it */
};

struct ptc_tasks;
/* Borrows loop and etcd, and gives etcd to the steps. */
int ptc_tasks_new(struct ptc_loop *loop, struct ptc_etcd *etcd, struct ptc_tasks **ret_tasks, struct ptc_error *err);
int ptc_tasks_start(struct ptc_tasks *t, struct ptc_error *err); /* until then tasks wait */
/* Runs the steps after delay_ms, then done (NULL ok) on the loop. A step without `run` ends the list. Any thread.
 * PTC_ECANCELED: ptc_tasks_free has begun. */
int ptc_tasks_run(struct ptc_tasks *t, const char *lane, int64_t delay_ms, const struct ptc_task_step *steps,
		  void (*done)(void *arg), void *arg);
/* Call this on the loop thread, after ptc_loop_stop. Tasks run to their end, but for those whose delay has not passed.
 * The call runs each `done` that can no longer run on the loop. NULL ok. */
struct ptc_tasks *ptc_tasks_free(struct ptc_tasks *t);
