/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: writes the file `held`, then freezes the cgroup (or sends SIGSTOP); ptc_process_frozen() says when no
 * thread runs any more. Failure modes: freeze.h. */
#include "daemon/workers/process/freeze.h"

#include "daemon/workers/process/cgroup.h"
#include "daemon/workers/process/process.h"

#include "base/cleanup.h"
#include "base/sys/child.h"
#include "base/sys/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *held_path(const struct ptc_process *p, char path[sizeof p->dir + 8])
{
	snprintf(path, sizeof p->dir + 8, "%s/held", p->dir);
	return path;
}

int ptc_process_freeze(const struct ptc_process *p, struct ptc_error *err)
{
	int rc = ptc_process_held_write(p->dir, err);

	if (rc)
		return rc;
	if (*p->cgroup && ptc_cgroup_freeze(p->cgroup, true) == 0)
		return 0;
	return ptc_process_signal(p, SIGSTOP, err);
}

static bool thread_stands(pid_t pid, const char *thread)
{
	struct ptc_process_stat st;
	char path[64], line[4096];
	ptc_auto_close int fd = -1;
	ssize_t n;

	snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", (int)pid, thread);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
	if (n <= 0)
		return fd < 0 && errno == ENOENT; /* it has ended */
	line[n] = '\0';
	return ptc_process_stat_parse(line, &st) && (st.state == 'T' || st.state == 'Z' || st.state == 'X');
}

bool ptc_process_frozen(const struct ptc_process *p, pid_t pid)
{
	char path[64];
	struct dirent *e;
	bool all = true;
	DIR *d;

	if (*p->cgroup && ptc_cgroup_frozen(p->cgroup))
		return true;
	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	d = opendir(path);
	if (!d)
		return false;
	while (all && (e = readdir(d)))
		all = e->d_name[0] == '.' || thread_stands(pid, e->d_name);
	closedir(d);
	return all;
}

void ptc_process_thaw(const struct ptc_process *p)
{
	char path[sizeof p->dir + 8];

	if (*p->cgroup)
		(void)ptc_cgroup_freeze(p->cgroup, false);
	(void)ptc_process_signal(p, SIGCONT, NULL); /* of one that was stopped otherwise, too */
	(void)ptc_sys_unlink(held_path(p, path), "process.held", NULL);
}

void ptc_process_stays_frozen(const struct ptc_process *p)
{
	(void)ptc_process_held_write(p->dir, NULL);
}

void ptc_process_thaw_left(const struct ptc_process *p)
{
	char path[sizeof p->dir + 8];

	if (p->pidfd >= 0 && access(held_path(p, path), F_OK) == 0)
		ptc_process_thaw(p);
}
