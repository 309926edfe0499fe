/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that outlive us. Each is started through the helper `ptc-exec`
 * (setsid, close_range, initgroups, setgid, setuid, cwd, environment, output to its log, own cgroup), which records how it
 * ended, so that a ptcd that was not its parent any more can still tell.
 *
 * Files of a process, in its own folder `dir` (0700, ours): `process` (pid, start time, boot id, token; written and synced before the
 * program runs), `exit` (wait status; renamed into place by the helper when the program has ended), `log` (owner's, the program's
 * standard output and error; when it takes more room than stated, its older half becomes a hole).
 * Failure modes: no such program, user, cwd (one line, before the program has begun: PTC_EINVAL); cgroup not writable (the process
 * group serves instead, and `cgroup` is empty); killed helper (the program is found by pid and start time; its status is unknown).
 *
 * Threads: any; no shared state but the file system. Nothing here blocks longer than a fork and an exec take, but for
 * ptc_process_wait. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ptc_spawn {
	const char *dir; /* made here */
	const char *const *argv, *const *env;
	const char *cwd;
	uid_t uid;
	const char *token;       /* 32 hex digits; kept in `process` */
	const char *cgroup;      /* parent cgroup directory to make the process's own in, or NULL */
	const char *cgroup_name; /* its beginning; the helper adds its pid */
	uint64_t log_bytes;      /* the log is cut there: the older half goes */
};

struct ptc_process {
	char dir[256];
	char token[33];
	char cgroup[256];    /* "": none */
	pid_t pid;           /* of the program; its process group and session */
	uint64_t start_time; /* field 22 of /proc/PID/stat */
	int pidfd;           /* readable when it has ended; -1 when it has */
};

/* On success the program runs (its execve has succeeded). After PTC_ETIMEOUT and PTC_EIO a folder may remain: ptc_process_adopt tells
 * what came of it. */
int ptc_process_spawn(const struct ptc_spawn *s, struct ptc_process *ret_process, struct ptc_error *err);
/* Finds a process that was started before, by its folder: pidfd, checked by start time and boot id. A process that has ended is found
 * too (pidfd -1). PTC_ENOTFOUND: the folder holds none that began, nor will it: what was left of the attempt is removed, but for a log.
 * One from before the last boot has pid 0. */
int ptc_process_adopt(const char *dir, struct ptc_process *ret_process, struct ptc_error *err);
/* true: it has ended. timeout_ms < 0: as long as it takes. */
bool ptc_process_wait(const struct ptc_process *p, int timeout_ms);
/* Its wait(2) status; false: not known (helper killed), then *ret_status is 0. Only after it has ended. */
bool ptc_process_status(const struct ptc_process *p, int *ret_status);
/* To the program's whole cgroup, or process group. 0 also when it is gone. */
int ptc_process_signal(const struct ptc_process *p, int sig, struct ptc_error *err);
/* Last lines of its log, at most size - 1 bytes, NUL-terminated; cut at a line. */
void ptc_process_log_tail(const struct ptc_process *p, char *buf, size_t size);
/* Where an open log begins: what was cut is a hole before that, so that offsets stay as they are for whoever follows it. */
uint64_t ptc_process_log_begin(int fd);
/* Ended: removes cgroup and folder (keep_log: all but the log). */
void ptc_process_remove(struct ptc_process *p, bool keep_log);
void ptc_process_done(struct ptc_process *p); /* closes the pidfd; touches nothing else */
/* The writable cgroup directory to make groups in: v2, or the v2 part of a hybrid; "" if there is none. */
void ptc_cgroup_find(char *ret_dir, size_t size);
