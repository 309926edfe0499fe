/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup v2 by its file system, below a directory that is ours to divide
 * (ptc_cgroup_find in spawn.h). No controllers: a cgroup here serves to find and
 * to kill every process that a program has started.
 *
 * Failure modes: no right to make one, a kernel without cgroup.kill (before 5.14: each process is signalled in turn until none is
 * left), a cgroup that is gone (all is well). Threads: any. Internal to daemon/workers, its rooms. */
#pragma once

#include "base/status.h"

#include <sys/types.h>

/* Makes it, or takes an empty one of that name. */
int ptc_cgroup_make(const char *path, struct ptc_error *err);
int ptc_cgroup_enter(const char *path, pid_t pid, struct ptc_error *err);
int ptc_cgroup_signal(const char *path, int sig, struct ptc_error *err); /* 0 also when it is gone */
/* Unless something runs in it. */
void ptc_cgroup_remove_empty(const char *path, int timeout_ms);
/* Kills what is in it, waits for its end, removes it and the cgroups in it. */
int ptc_cgroup_remove(const char *path, int timeout_ms, struct ptc_error *err);
