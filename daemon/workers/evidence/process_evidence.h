/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's view of a process that hangs, and of the machine. Happy path: text is added to a buffer. Failure modes:
 * if something cannot be read, because it is gone or because ptcd is not root, the text says so. Threads: any. Nothing
 * here touches the process's memory, which may be what hangs. For daemon/workers/evidence only. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Adds the state, stack and system call of each thread of the process and of those that it has started, until b has
 * max bytes; if that is not all, it says so. */
void ptc_evidence_process(struct ptc_buf *b, pid_t pid, size_t max);
/* Whether the process has a handler for the signal. */
bool ptc_evidence_catches(pid_t pid, int sig);
/* Adds the last lines in which the kernel's log names an error of a device (Xid). path: /dev/kmsg. */
void ptc_evidence_kernel(struct ptc_buf *b, const char *path);
