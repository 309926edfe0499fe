/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting, waking and tasks. Happy path: a caller waits for `changed` in short turns and asks each
 * time whether to give up; a task runs on a detached thread, and the room stays until it has
 * returned. Failure modes: cancelled, not in time; a task that cannot be started is not run, and
 * the caller does without. */
#include "daemon/workers/state/workers_sync.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <time.h>
#include <unistd.h>

void ptc_workers_wake(struct ptc_workers *w)
{
	uint64_t one = 1;
	ssize_t n = write(w->wake, &one, sizeof one);

	(void)n;
}

void ptc_workers_changed_locked(struct ptc_workers *w)
{
	pthread_cond_broadcast(&w->changed);
	ptc_workers_wake(w);
}

int64_t ptc_workers_deadline(const struct ptc_wait *wait)
{
	return wait && wait->timeout_ms ? ptc_sys_now_ns() + wait->timeout_ms * 1000000 : 0;
}

int ptc_workers_pause_locked(struct ptc_workers *w, const struct ptc_wait *wait, int64_t deadline_ns,
			     struct ptc_error *err)
{
	int64_t now = ptc_sys_now_ns(), until = now + 100000000;

	if (w->quit || (wait && wait->cancelled && wait->cancelled(wait->arg)))
		return ptc_error_set(err, PTC_ECANCELED, "cancelled");
	if (deadline_ns && now >= deadline_ns)
		return ptc_error_set(err, PTC_ETIMEOUT, "not in time");
	if (deadline_ns)
		until = PTC_MIN(until, deadline_ns);
	ptc_cond_wait_until(&w->changed, &w->lock, until);
	return 0;
}

/* ---- tasks -------------------------------------------------------------------- */

struct task {
	struct ptc_workers *w;
	void (*fn)(struct ptc_workers *w, void *arg);
	void *arg;
};

static void run_task(void *arg)
{
	struct task t = *(struct task *)arg;

	ptc_free(arg);
	t.fn(t.w, t.arg);
}

bool ptc_workers_task_locked(struct ptc_workers *w, void (*fn)(struct ptc_workers *w, void *arg), void *arg)
{
	struct task *t = w->quit ? NULL : ptc_malloc(sizeof *t);

	if (!t)
		return false;
	*t = (struct task){ w, fn, arg };
	if (ptc_thread_start_counted(&w->tasks, WORKERS_TASKS_MAX, "ptc-rank-task", run_task, t, NULL) == 0)
		return true;
	ptc_free(t);
	return false;
}
