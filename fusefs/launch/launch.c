// SPDX-License-Identifier: Apache-2.0
/* Happy path: the program beside ours (or where it is installed) is spawned, a
 * line comes over a pipe, an empty one once it has mounted. Failure modes: no
 * such program, the line says why not, the pipe ends without one. */
#include "fusefs/launch/launch.h"

#include "base/cleanup.h"
#include "base/sys/helper.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define ARGS_MAX   32
#define READY_FD   3

extern char **environ;

static int argv_of(const char *const *args, bool ready, const char *argv[ARGS_MAX], struct ptc_error *err)
{
	size_t n = 0;

	argv[n++] = "ptc-fuse";
	if (ready) {
		argv[n++] = "--ready-fd";
		argv[n++] = "3";
	}
	while (*args && n < ARGS_MAX - 1)
		argv[n++] = *args++;
	argv[n] = NULL;
	return *args ? ptc_error_set(err, PTC_ELIMIT, "too many arguments for ptc-fuse") : 0;
}

int ptc_fuse_exec(const char *const *args, struct ptc_error *err)
{
	const char *argv[ARGS_MAX];
	char path[PTC_HELPER_PATH];
	int rc = ptc_helper_find("ptc-fuse", "PTC_FUSE", path, err);

	rc = rc ? rc : argv_of(args, false, argv, err);
	if (rc)
		return rc;
	execv(path, (char *const *)(uintptr_t)argv);
	return ptc_error_errno(err, errno, "cannot run %s", path);
}

static int spawn(const char *path, const char *const *argv, int ready_fd, bool quiet, pid_t *ret_pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	int e;

	sigemptyset(&none);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attr);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	if (quiet)
		posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, ready_fd, READY_FD);
	/* the store's descriptors are not close-on-exec */
	posix_spawn_file_actions_addclosefrom_np(&actions, READY_FD + 1);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
	e = posix_spawn(ret_pid, path, &actions, &attr, (char *const *)(uintptr_t)argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return e;
}

/* Its line; the empty one is success. */
static int await(int fd, int timeout_ms, struct ptc_error *err)
{
	int64_t end_ns = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000;
	char text[PTC_ERROR_MAX];
	size_t n = 0;

	while (n < sizeof(text) - 1) {
		int64_t left_ms = (end_ns - ptc_sys_now_ns()) / 1000000;
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ssize_t got;

		if (left_ms < 0 || !poll(&p, 1, (int)left_ms))
			return ptc_error_set(err, PTC_ETIMEOUT, "ptc-fuse has not mounted within %d ms", timeout_ms);
		got = read(fd, text + n, sizeof(text) - 1 - n);
		if (got <= 0)
			break;
		n += (size_t)got;
		if (text[n - 1] == '\n')
			break;
	}
	if (n == 1)
		return 0;
	text[n ? n - 1 : 0] = '\0';
	return ptc_error_set(err, PTC_EIO, "%s", n ? text : "ptc-fuse ended before it had mounted");
}

int ptc_fuse_launch(const char *const *args, bool quiet, int timeout_ms, pid_t *ret_pid, struct ptc_error *err)
{
	const char *argv[ARGS_MAX];
	char path[PTC_HELPER_PATH];
	int fds[2], e, rc = ptc_helper_find("ptc-fuse", "PTC_FUSE", path, err);
	pid_t pid;

	rc = rc ? rc : argv_of(args, true, argv, err);
	if (rc)
		return rc;
	if (pipe2(fds, O_CLOEXEC))
		return ptc_error_errno(err, errno, "cannot make a pipe");
	/* above the number that it gets in the child, where dup2 onto itself would leave it close-on-exec */
	e = fcntl(fds[1], F_DUPFD_CLOEXEC, 10);
	close(fds[1]);
	fds[1] = e;
	e = fds[1] < 0 ? errno : spawn(path, argv, fds[1], quiet, &pid);
	if (fds[1] >= 0)
		close(fds[1]);
	rc = e ? ptc_error_errno(err, e, "cannot start %s", path) : await(fds[0], timeout_ms, err);
	close(fds[0]);
	if (!e && rc) {
		if (rc == PTC_ETIMEOUT)
			kill(pid, SIGTERM);
		waitpid(pid, NULL, rc == PTC_ETIMEOUT ? WNOHANG : 0);
	}
	if (!rc)
		*ret_pid = pid;
	return rc;
}

bool ptc_fuse_lock_held(const char *lock, pid_t *ret_pid, char *ret_dir, size_t size)
{
	ptc_auto_close int fd = open(lock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	char text[PATH_BYTES + 32] = "";
	int at = 0;

	if (fd < 0 || !flock(fd, LOCK_SH | LOCK_NB))
		return false;
	*ret_pid = 0;
	ret_dir[0] = '\0';
	if (read(fd, text, sizeof(text) - 1) <= 0 || sscanf(text, "%d %n", ret_pid, &at) != 1 || !at)
		return true; /* it has just begun */
	snprintf(ret_dir, size, "%.*s", (int)strcspn(text + at, "\n"), text + at);
	return true;
}
