/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that outlive ptcd. The helper `ptc-exec` starts each (setsid, close_range, initgroups, setgid, setuid, cwd,
 * environment, output to its log, a cgroup of its own). It records how the process ended, so a ptcd that is not the
 * parent can tell, too.
 *
 * A process has a folder `dir` (0700, owned by ptcd) with these files. `process` has pid, start time, boot id and
 * token; it is written and synced before the program runs. `exit` has the wait status; the helper renames it into place
 * when the program has ended. `log` has the program's standard output and error, and the job's owner owns it. When the
 * log exceeds its limit, its older half becomes a hole. `held` is there while the process is frozen (freeze.h), `low`
 * while it has a low priority (priority.h).
 *
 * Failure modes: there is no such program, user or cwd (PTC_EINVAL, before the program has begun). The cgroup is not
 * writable: the process group serves instead, and `cgroup` is empty. The helper was killed: pid and start time find the
 * program, but its status is unknown.
 *
 * Threads: any; the only shared state is the file system. Nothing blocks longer than a fork and an exec, but for
 * ptc_process_wait and ptc_program_look. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ptc_spawn {
	const char *dir; /* ptc_process_spawn makes it */
	const char *const *argv, *const *env;
	const char *cwd;
	uid_t uid;
	const char *token;       /* 32 hex digits; kept in `process` */
	const char *cgroup;      /* directory of the parent cgroup; NULL: none */
	const char *cgroup_name; /* beginning of the cgroup's name; the helper adds its pid */
	uint64_t log_bytes;      /* limit of the log, at which its older half goes */
	bool low;                /* it has a low priority until ptc_priority_raise (priority.h) */
};

struct ptc_process {
	char dir[256];
	char token[33];
	char cgroup[256];    /* "": none */
	pid_t pid;           /* of the program; its process group and session */
	uint64_t start_time; /* field 22 of /proc/PID/stat */
	int pidfd;           /* readable once the program ends; -1: it had ended already */
};

/* What the files of a program are at a moment: device, inode, size, and when they were written. Zeros: there are none,
 * or nobody can see them. */
struct ptc_program_files {
	uint64_t of[2][5];
};
#define PTC_PROGRAM_LOOK_MS 2000
/* Looks, as that user, at argv[0] and at the script that it runs: the first argument that is no option. argv[0] counts
 * only if it has a '/', and there is no script behind a long option, -c or -m. A helper of its own looks, because a
 * file system may not answer: then all is zeros after PTC_PROGRAM_LOOK_MS. */
void ptc_program_look(const char *cwd, uid_t uid, const char *const *argv, struct ptc_program_files *ret);

/* On success the program runs: its execve has succeeded. After PTC_ETIMEOUT and PTC_EIO a folder may remain;
 * ptc_process_adopt tells whether a process runs. */
int ptc_process_spawn(const struct ptc_spawn *s, struct ptc_process *ret_process, struct ptc_error *err);
/* Finds an earlier process by its folder, and checks its pidfd by start time and boot id. It also finds a process that
 * has ended (pidfd -1). A process from before the last boot has pid 0. PTC_ENOTFOUND: no process of this folder has
 * begun or will begin; the call then removes the rest of the attempt, except a log. */
int ptc_process_adopt(const char *dir, struct ptc_process *ret_process, struct ptc_error *err);
/* Waits for the end. True: the process has ended. timeout_ms < 0: no limit. */
bool ptc_process_wait(const struct ptc_process *p, int timeout_ms);
/* Gives the wait(2) status of a process that has ended. False: the helper was killed, so the status is unknown, and
 * *ret_status is 0. */
bool ptc_process_status(const struct ptc_process *p, int *ret_status);
/* Sends a signal to the program's whole cgroup, or process group. 0 also if these are gone. */
int ptc_process_signal(const struct ptc_process *p, int sig, struct ptc_error *err);
/* Gives the last whole lines of the log, at most size - 1 bytes, NUL-terminated. */
void ptc_process_log_tail(const struct ptc_process *p, char *buf, size_t size);
/* The offset where an open log begins. Before it lies a hole in place of the cut lines, so offsets never change for a
 * reader that follows the log. */
uint64_t ptc_process_log_begin(int fd);
/* Removes the cgroup and folder of a process that has ended. keep_log: keeps the log. */
void ptc_process_remove(struct ptc_process *p, bool keep_log);
void ptc_process_done(struct ptc_process *p); /* closes the pidfd; touches nothing else */
/* Finds the writable cgroup directory for groups: v2, or the v2 part of a hybrid; "" if there is none. */
void ptc_cgroup_find(char *ret_dir, size_t size);
