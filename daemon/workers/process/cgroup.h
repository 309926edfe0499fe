/* SPDX-License-Identifier: Apache-2.0 */
/* cgroups v2, by their file system, below a directory that ptcd may divide (ptc_cgroup_find in spawn.h). They have no
 * controllers: a cgroup serves to find and to kill every process that a program has started.
 *
 * Failure modes: ptcd has no right to make a cgroup; the kernel has no cgroup.kill (before 5.14), so each process gets
 * a signal in turn until none is left; the cgroup is gone, which is no failure. Threads: any. For rooms of
 * daemon/workers only. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

/* Makes a cgroup, or takes an empty one of that name. */
int ptc_cgroup_make(const char *path, struct ptc_error *err);
int ptc_cgroup_enter(const char *path, pid_t pid, struct ptc_error *err);
int ptc_cgroup_signal(const char *path, int sig, struct ptc_error *err); /* 0 also if the cgroup is gone */
/* Stops every process of a cgroup, or lets them go on. Returns 0 or an errno (before Linux 5.2 there is no freezer). */
int ptc_cgroup_freeze(const char *path, bool yes);
bool ptc_cgroup_frozen(const char *path);
bool ptc_cgroup_populated(const char *path); /* a process runs in it, or in a cgroup in it */
/* Removes a cgroup, unless a process runs in it. */
void ptc_cgroup_remove_empty(const char *path, int timeout_ms);
/* Removes the cgroups of processes below that directory in which nothing runs, and whose helper is gone: who knew of
 * them has been killed, or their processes' folders have been removed. */
void ptc_cgroup_remove_left(const char *parent, int timeout_ms);
/* Kills the processes of a cgroup, waits for their end, and removes the cgroup and the cgroups in it. */
int ptc_cgroup_remove(const char *path, int timeout_ms, struct ptc_error *err);
