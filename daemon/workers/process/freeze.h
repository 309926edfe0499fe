/* SPDX-License-Identifier: Apache-2.0 */
/* Freezes and thaws a process with all that it has started: by its cgroup, else by SIGSTOP and SIGCONT to its process
 * group. While it is frozen, its folder has a file `held`, so that a later ptcd, or the process's helper, thaws it.
 *
 * Failure modes: the file cannot be written, or the kernel refuses: the process runs on. A process that has ended is no
 * failure. Threads: any. For rooms of daemon/workers only. */
#pragma once

#include "daemon/workers/process/spawn.h"

/* Begins it; the kernel needs a moment. */
int ptc_process_freeze(const struct ptc_process *p, struct ptc_error *err);
/* Whether no thread of pid, which is p's program or one that it has started, runs any more. */
bool ptc_process_frozen(const struct ptc_process *p, pid_t pid);
void ptc_process_thaw(const struct ptc_process *p);
/* The process's helper counts anew for how long it has been frozen. */
void ptc_process_stays_frozen(const struct ptc_process *p);
/* Thaws it if an earlier ptcd has frozen it. */
void ptc_process_thaw_left(const struct ptc_process *p);
