/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that have ranks on this node. Happy path: the first group of a job makes the job's folders and socket. They are
 * removed with the job's last process and group. Failure modes: another user's job of that name (PTC_EPERM), too many
 * jobs (PTC_ELIMIT), no folder or socket. */
#include "daemon/workers/group/internal.h"
#include "daemon/workers/session/rank_conn.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool uuid_ok(const char *uuid)
{
	return strlen(uuid) == 36 && strspn(uuid, "0123456789abcdef-") == 36;
}

static int job_dirs(struct job *job, struct ptc_error *err)
{
	ptc_auto_free char *groups = ptc_asprintf("%s/groups", job->dir);
	ptc_auto_free char *processes = ptc_asprintf("%s/processes", job->dir);
	int rc;

	if (!groups || !processes)
		return ptc_nomem(err);
	rc = ptc_sys_mkdirs(job->dir, 0711, err);
	if (!rc)
		rc = ptc_sys_mkdirs(groups, 0700, err);
	if (!rc)
		rc = ptc_sys_mkdirs(processes, 0700, err);
	return rc;
}

int ptc_workers_job_make_locked(struct ptc_workers *w, const char *uuid, uid_t uid, struct job **ret,
				struct ptc_error *err)
{
	struct job *job = ptc_workers_job_locked(w, uuid);
	int rc;

	if (job && job->uid != uid)
		return ptc_error_set(err, PTC_EPERM, "job %s belongs to user %u, not to %u", uuid, job->uid, uid);
	if (job) {
		*ret = job;
		return 0;
	}
	if (!uuid_ok(uuid))
		return ptc_error_set(err, PTC_EINVAL, "job identifier \"%.36s\": not a UUID", uuid);
	if (w->njobs == WORKERS_JOBS_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "more than %d jobs with ranks on this node", WORKERS_JOBS_MAX);
	job = ptc_calloc(1, sizeof *job);
	if (!job)
		return ptc_nomem(err);
	job->listen = -1;
	job->uid = uid;
	memcpy(job->uuid, uuid, 37);
	job->dir = ptc_asprintf("%s/%s", w->dir, uuid);
	job->socket = ptc_asprintf("%s/%s/s", w->dir, uuid);
	rc = job->dir && job->socket ? job_dirs(job, err) : ptc_nomem(err);
	if (!rc)
		rc = ptc_conn_listen(job, err);
	if (rc) {
		ptc_workers_job_free(job);
		return rc;
	}
	job->next = w->jobs;
	w->jobs = job;
	w->njobs++;
	*ret = job;
	return 0;
}

void ptc_workers_job_free(struct job *job)
{
	if (!job)
		return;
	if (job->standby.like)
		ptc_group_unref_locked(job->standby.like);
	while (job->workers) {
		struct worker *k = job->workers;

		ptc_worker_detach_locked(k);
		ptc_worker_remove_locked(k);
	}
	while (job->groups) {
		struct group *g = job->groups;

		job->groups = g->next;
		g->job = NULL;
		ptc_group_unref_locked(g);
	}
	ptc_close(&job->listen);
	ptc_free(job->dir);
	ptc_free(job->socket);
	ptc_free(job);
}
