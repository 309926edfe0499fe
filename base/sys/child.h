/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes: starting a program, waiting for its end, ending it, and finding one again that an earlier process of
 * ours started.
 *
 * Happy path: ptc_child_start returns when the program runs (its execve has succeeded). The child has an empty signal
 * mask, no handler of ours, and no descriptor but its standard ones and those that it is given.
 *
 * Failure modes: the program cannot be run, its folder or pid file not be used (the code of that errno, before anything
 * runs). Threads: any. Nothing is shared: who owns a struct ptc_child guards it. Two threads may signal and await one
 * child at once. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PTC_CHILD_FD      3 /* the number that the first descriptor of `fds` has in the child */
#define PTC_CHILD_FDS_MAX 32

struct ptc_child {
	pid_t pid; /* 0: none */
	int pidfd; /* readable when it has ended; -1 where pid is 0 */
};
#define PTC_CHILD_NONE ((struct ptc_child){ .pidfd = -1 })

struct ptc_child_args {
	const char *path;                /* without a '/', PATH is searched */
	char *const *argv, *const *envp; /* envp NULL: our environment */
	const int *fds;                  /* stay the caller's */
	unsigned nfds;
	int output, errors;   /* standard output (0: /dev/null) and standard error (0: ours; -1: /dev/null) */
	bool session;         /* it leads a session of its own */
	bool default_signals; /* signals that we ignore have their default action */
	const char *dir;      /* where it runs, with umask 077; NULL: where we do */
	const char *pid_file; /* the child writes its /proc/self/stat there before it runs the program; NULL: nowhere */
};

int ptc_child_start(const struct ptc_child_args *args, struct ptc_child *ret_child, struct ptc_error *err);
/* Waits at most timeout_ms for its end (< 0: as long as it takes). true: it has ended, and is waited for. *ret_status
 * (or NULL) is as of waitpid; 0 where another process is its parent, or an earlier call has got it. The descriptor
 * stays open. */
bool ptc_child_wait(const struct ptc_child *c, int timeout_ms, int *ret_status);
/* The same without waiting for it: of a process whose descriptor this is, whoever is its parent. */
bool ptc_child_ended(int pidfd, int timeout_ms);
void ptc_child_signal(const struct ptc_child *c, int sig);
/* Closes its descriptor; *c is PTC_CHILD_NONE then, which is fine here, too. */
void ptc_child_close(struct ptc_child *c);
/* SIGTERM, after term_ms SIGKILL; returns when it has ended, and closes it. */
void ptc_child_end(struct ptc_child *c, int term_ms);
/* Reads what a child writes to a pipe until its end, or until size - 1 bytes are there; NUL-terminated. The bytes; -1:
 * errno, ETIMEDOUT after timeout_ms. */
ssize_t ptc_child_read(int fd, int timeout_ms, char *text, size_t size);

struct ptc_process_stat {
	char name[17], state;
	pid_t pid, parent;
	uint64_t start_time; /* clock ticks since boot: with the pid, it names a process until the next boot */
};
/* Of a line of /proc/PID/stat. */
bool ptc_process_stat_parse(const char *line, struct ptc_process_stat *ret_stat);
/* false: there is no such process. Allocates nothing. */
bool ptc_process_stat(pid_t pid, struct ptc_process_stat *ret_stat);
/* A descriptor of the process that has this pid and start time, and *ret_stat (or NULL) of it; -1: it is not there any
 * more. One that has ended and is not waited for yet is there. */
int ptc_process_open(pid_t pid, uint64_t start_time, struct ptc_process_stat *ret_stat);
