/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes: starts a program, waits for its end, ends it. It also finds a process again that an earlier process
 * of ours started.
 *
 * Happy path: ptc_child_start returns when the program runs (its execve has succeeded). The child has an empty signal
 * mask, no handler of ours, and no descriptors but its standard ones and `fds`.
 *
 * Failure modes: the program cannot be run, or its folder or pid file cannot be used. Then nothing runs, and the code
 * is that of the errno.
 *
 * Threads: any. Nothing is shared: the owner of a struct ptc_child guards it. Two threads may signal and await one
 * child at the same time. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PTC_CHILD_FD      3 /* the child's number for the first descriptor of `fds`; the others follow */
#define PTC_CHILD_FDS_MAX 32

struct ptc_child {
	pid_t pid; /* 0: none */
	int pidfd; /* readable when the child has ended; -1 where pid is 0 */
};
#define PTC_CHILD_NONE ((struct ptc_child){ .pidfd = -1 })

struct ptc_child_args {
	const char *path;                /* without a '/', it is searched in PATH */
	char *const *argv, *const *envp; /* NULL-terminated; envp NULL: our environment */
	const int *fds;                  /* the child gets duplicates; the caller keeps its own */
	unsigned nfds;
	int output, errors;   /* standard output (0: /dev/null) and standard error (0: ours; -1: /dev/null) */
	bool session;         /* the child leads a session of its own */
	bool default_signals; /* signals that we ignore have their default action */
	bool ends_with_us;    /* the child is killed when the thread that starts it ends */
	const char *dir;      /* the child's working directory, with umask 077; NULL: ours */
	const char *pid_file; /* the child writes its /proc/self/stat there before it runs the program; NULL: nowhere */
};

int ptc_child_start(const struct ptc_child_args *args, struct ptc_child *ret_child, struct ptc_error *err);
/* Waits at most timeout_ms for the child's end (< 0: without limit). true: it has ended and was reaped. *ret_status
 * (may be NULL) is waitpid's status. It is 0 where another process is the parent, or where an earlier call got the
 * status. The pidfd stays open. */
bool ptc_child_wait(const struct ptc_child *c, int timeout_ms, int *ret_status);
/* Waits at most timeout_ms for the process's end, but does not reap it. Any process may be its parent. */
bool ptc_child_ended(int pidfd, int timeout_ms);
void ptc_child_signal(const struct ptc_child *c, int sig);
/* Closes the pidfd, and sets *c to PTC_CHILD_NONE. Fine for PTC_CHILD_NONE, too. */
void ptc_child_close(struct ptc_child *c);
/* Sends SIGTERM, and SIGKILL after term_ms. Returns when the child has ended, and closes *c. A child that hangs in the
 * kernel ends when the kernel lets it, so this is for threads that may wait for ever. */
void ptc_child_end(struct ptc_child *c, int term_ms);
/* For a child that was killed and hangs in the kernel: a thread reaps it once it has ended. Takes it over, and sets *c
 * to PTC_CHILD_NONE. Of more than PTC_CHILD_LEFT_MAX such children, the further ones are not reaped. */
#define PTC_CHILD_LEFT_MAX 32
void ptc_child_leave(struct ptc_child *c);
/* Does what ptc_child_end does, but a thread waits, and calls ended(arg) when the child has ended. Takes the child
 * over, and sets *c to PTC_CHILD_NONE. If PTC_CHILD_LEFT_MAX children are left already, the child is killed at once, is
 * not reaped, and the caller's thread calls `ended`. */
void ptc_child_end_later(struct ptc_child *c, int term_ms, void (*ended)(void *arg), void *arg);
/* Reads a child's output from a pipe until its end, or until size - 1 bytes are there, and adds a NUL. Returns the
 * number of bytes; -1 with errno, which is ETIMEDOUT after timeout_ms. */
ssize_t ptc_child_read(int fd, int timeout_ms, char *text, size_t size);

struct ptc_process_stat {
	char name[17], state;
	pid_t pid, parent;
	uint64_t start_time; /* clock ticks since boot: with the pid, it names a process until the next boot */
};
/* Parses a line of /proc/PID/stat. false: it is not such a line. */
bool ptc_process_stat_parse(const char *line, struct ptc_process_stat *ret_stat);
/* Reads /proc/PID/stat. false: there is no such process. Allocates nothing. */
bool ptc_process_stat(pid_t pid, struct ptc_process_stat *ret_stat);
/* Opens a pidfd of the process that has this pid and start time, and fills *ret_stat (may be NULL). -1: the process is
 * gone. A process that has ended and was not reaped yet is still there. */
int ptc_process_open(pid_t pid, uint64_t start_time, struct ptc_process_stat *ret_stat);
