/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's life: made for a slot, sampled while it runs, taken out of its group, reaped, removed.
 *
 * Happy path: the loop sees that the process has ended; a thread waits for what its helper says of the end, ends what
 * is left in its cgroup, and takes down the status. Failure modes: no memory for that thread's task: the loop looks
 * itself. A process that was killed may leave memory on devices, and its blobs: these are kept (docs/decisions/0033).
 */
#include "daemon/workers/process/cgroup.h"
#include "daemon/workers/session/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

struct worker *ptc_worker_new_locked(struct job *job, unsigned number)
{
	struct worker *k = ptc_calloc(1, sizeof *k);

	if (!k)
		return NULL;
	k->job = job;
	k->number = number;
	k->pidfd = k->page_fd = k->kept.fd = k->process.pidfd = -1;
	k->next = job->workers;
	job->workers = k;
	job->nworkers++;
	return k;
}

void ptc_worker_drop_generation(struct worker *k)
{
	k->declared = ptc_declared_unref(k->declared);
	k->layout = ptc_declared_unref(k->layout);
	k->rank_state = ptc_rank_state_unref(k->rank_state);
	k->restore = ptc_rank_state_unref(k->restore);
	k->staging = ptc_staging_unref(k->staging);
	k->hold.published = ptc_rank_state_unref(k->hold.published);
	k->hold.read = false;
	ptc_close(&k->kept.fd);
	k->go = k->finished = k->staged = k->get.active = false;
	k->seen = k->stale = false;
	k->resumes = WORKER_ABSENT;
	k->step_seconds = 0;
	k->nsteps = 0;
}

void ptc_worker_drop_page(struct worker *k)
{
	if (k->page)
		munmap(k->page, PTC_LOCAL_PAGE);
	ptc_close(&k->page_fd);
	k->page = NULL;
	k->page_fd = -1;
}

/* Killed, or aborted as by NCCL's watchdog: not by a fault of its own code. */
static bool cut_off(const struct worker *k)
{
	return k->status_known && WIFSIGNALED(k->status) &&
	       (WTERMSIG(k->status) == SIGKILL || WTERMSIG(k->status) == SIGABRT);
}

/* Whether its tensors on devices are still there, under handles that are ours, and a mark of the device says at which
 * step they are whole. */
static bool devices_outlived(const struct worker *k)
{
	const struct declared *d = k->declared;

	if (!d->ndevices || d->path != DEVICE_MAPPED || atomic_load(&k->page->marks) != PTC_LOCAL_MARKS_PROVEN)
		return false;
	for (size_t i = 0; i < d->ndevices; i++)
		if (d->devices[i].fd < 0)
			return false;
	return true;
}

/* Its memory on devices, or its blobs and cursors, are there still. */
static bool outlived(const struct worker *k)
{
	return cut_off(k) && k->group && k->group->built && !k->group->ending && !k->exit_wanted && k->page &&
	       k->declared && (k->phase == WORKER_RUNNING || k->phase == WORKER_STOPPED) &&
	       atomic_load(&k->page->survives) && (k->kept.fd >= 0 || devices_outlived(k));
}

void ptc_worker_detach_locked(struct worker *k)
{
	struct group *g = k->group;

	if (!g)
		return;
	if (k->outlived) {
		k->outlived = k->devices_outlived = false;
		ptc_worker_drop_generation(k);
		ptc_worker_drop_page(k);
	}
	if (k->ended)
		g->slots[k->slot].exited = true;
	g->slots[k->slot].worker = NULL;
	k->group = NULL;
}

void ptc_worker_remove_locked(struct worker *k)
{
	struct worker **at = &k->job->workers;

	ptc_worker_detach_locked(k);
	while (*at != k)
		at = &(*at)->next;
	*at = k->next;
	k->job->nworkers--;
	if (k->conn) {
		k->conn->worker = NULL;
		k->conn->broken = true;
	}
	ptc_worker_drop_generation(k);
	ptc_worker_drop_page(k);
	ptc_close(&k->pidfd);
	ptc_process_done(&k->process);
	ptc_free(k);
}

static void exited_locked(struct ptc_workers *w, struct worker *k, bool known, int status)
{
	k->ended = true;
	k->status_known = known;
	k->status = status;
	ptc_process_done(&k->process);
	if (k->page)
		ptc_local_step(k->page, &k->end_step);
	if (k->conn)
		k->conn->broken = true;
	if (k->group) {
		struct group *g = k->group;

		g->slots[k->slot].exited = true;
		if (g->built && !g->ending && !k->exit_wanted)
			ptc_group_failed_locked(w, g, k, k->slot, NULL);
	}
	/* Users of its memory have references of their own. */
	k->outlived = outlived(k);
	k->devices_outlived = k->outlived && devices_outlived(k);
	if (k->outlived) { /* of a rank that was held: what has been read of it still holds */
		k->hold.asked = k->hold.frozen = false;
		k->hold.read = k->hold.published != NULL;
	} else {
		ptc_worker_drop_generation(k);
		ptc_worker_drop_page(k);
	}
	ptc_close(&k->pidfd);
	ptc_workers_changed_locked(w);
}

struct reap {
	char uuid[37];
	unsigned number;
	struct ptc_process process; /* its pidfd is the worker's */
};

static void reap_task(struct ptc_workers *w, void *arg)
{
	struct reap *r = arg;
	struct worker *k;
	int status;
	bool known = ptc_process_status(&r->process, &status);

	/* Processes that it has left in its cgroup are killed with it, also if its helper was killed. */
	if (*r->process.cgroup)
		(void)ptc_cgroup_remove(r->process.cgroup, WORKERS_CGROUP_MS, NULL);
	pthread_mutex_lock(&w->lock);
	k = ptc_worker_find_locked(w, r->uuid, r->number);
	if (k && !k->ended)
		exited_locked(w, k, known, status);
	pthread_mutex_unlock(&w->lock);
	ptc_free(r);
}

/* Its helper may still be about to write down how it ended. */
void ptc_worker_exited_locked(struct ptc_workers *w, struct worker *k)
{
	struct reap *r;
	int status;
	bool known;

	if (k->ended || k->reaping)
		return;
	k->reaping = true;
	r = ptc_calloc(1, sizeof *r);
	if (r) {
		memcpy(r->uuid, k->job->uuid, sizeof r->uuid);
		r->number = k->number;
		r->process = k->process;
		if (ptc_workers_task_locked(w, reap_task, r))
			return;
		ptc_free(r);
	}
	known = ptc_process_status(&k->process, &status);
	exited_locked(w, k, known, status);
}

void ptc_worker_see(struct worker *k, uint64_t step, int64_t now_ns)
{
	k->seen = true;
	k->seen_step = step;
	k->seen_ns = now_ns;
}

/* Steps between two stops count even if they all end between two samples; else one that hung would be the only one
 * known of a job that stops often. */
void ptc_worker_sample_locked(struct worker *k, int64_t now_ns)
{
	uint64_t step;

	if (!k->page || k->phase != WORKER_RUNNING || !ptc_local_step(k->page, &step)) {
		k->seen = false; /* how long it was held counts neither as a step nor as a stall */
		return;
	}
	if (k->seen && step > k->seen_step) {
		double each = (double)(now_ns - k->seen_ns) * 1e-9 / (double)(step - k->seen_step);

		k->step_seconds = k->step_seconds > 0 ? 0.7 * k->step_seconds + 0.3 * each : each;
		k->last_steps[k->nsteps++ % WORKERS_STEPS] = each;
	}
	if (!k->seen || step > k->seen_step)
		ptc_worker_see(k, step, now_ns);
}

bool ptc_worker_gone(const struct worker *k)
{
	return k->ended || (k->left && ptc_sys_now_ns() - k->left_ns > WORKERS_LEFT_NS);
}

void ptc_worker_left_locked(struct ptc_workers *w, struct worker *k, int64_t now_ns)
{
	bool mine = k->group && ptc_group_is(k->group, k->generation, k->incarnation) && ptc_worker_in_generation(k);

	if (k->left && !k->ended && mine && !k->group->ending && !k->exit_wanted &&
	    now_ns - k->left_ns > WORKERS_LEFT_NS)
		ptc_group_failed_locked(w, k->group, k, k->slot, "closed its client before its generation had ended");
}
