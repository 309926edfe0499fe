/* SPDX-License-Identifier: Apache-2.0 */
/* A low priority for a process and all that it starts, and the way back. For ranks that build while others train.
 *
 * - Memory: a higher oom_score_adj. Where memory runs out, the kernel ends such a process first.
 * - Processors: cpu.weight, where the process's cgroup has that file. Else the process's nice value. Where the kernel
 *   divides processors between sessions (autogroup), also the session's nice value. A nice value is left alone if we
 *   have no right to take it back (CAP_SYS_NICE, or RLIMIT_NICE).
 *
 * While it is low, the process's folder has a file `low` with the values before and since. So a later ptcd finds the
 * way back. A process or thread that has chosen a value itself keeps it.
 *
 * Failure modes: the kernel refuses a value, which is then as it was. The file cannot be written: nothing is lowered. A
 * process has ended, which is no failure. Without a cgroup, a process that has left the program's session is not found
 * on the way back, and stays low.
 *
 * Threads: any. For rooms of daemon/workers only. */
#pragma once

#include "daemon/workers/process/spawn.h"

/* For ptc-exec, whose working directory is the process's folder, before the program begins. cgroup "": none. False:
 * nothing was lowered. */
bool ptc_priority_lower(pid_t pid, const char *cgroup);
/* Whether an earlier ptcd, or we, have started it with a low priority that it still has. */
bool ptc_priority_is_low(const struct ptc_process *p);
/* As if it had never been lowered. Takes some system calls for each of its threads. Does nothing if it is not low. */
void ptc_priority_raise(const struct ptc_process *p);

/* The process has only to exit, and nobody waits for it: others come first from now on, by the same means. About a
 * hundredth of what others get; a tenth, where we may not take it back. */
void ptc_priority_yield(const struct ptc_process *p);
/* It is about to be killed: the kernel frees its memory at its own priority. */
void ptc_priority_hurry(const struct ptc_process *p);
