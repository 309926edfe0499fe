// SPDX-License-Identifier: Apache-2.0
/* Happy path: posix_spawn with our socket as descriptor 3 and nothing else of ours; pidfd to wait on.
 * Failure modes: it cannot be started; it does not end (a wait in the driver that cannot be interrupted). */
#include "daemon/gpu/client/gpu_child.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/gpu/gpu_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* `theirs` becomes descriptor `as` of the child. */
static int spawn(const char *path, char **argv, int theirs, int as, pid_t *ret_pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	int e;

	sigemptyset(&none);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attr);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, theirs, as);
	if (as != STDOUT_FILENO)
		posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_addclosefrom_np(&actions, as == STDOUT_FILENO ? PTC_GPU_FD : as + 1);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	e = posix_spawn(ret_pid, path, &actions, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return e;
}

static int open_pidfd(struct ptc_gpu_child *child, struct ptc_error *err)
{
	int e;

	child->pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
	if (child->pidfd >= 0)
		return 0;
	e = errno;
	kill(child->pid, SIGKILL);
	(void)waitpid(child->pid, NULL, 0);
	return ptc_error_errno(err, e, "pidfd_open");
}

int ptc_gpu_child_start(const char *path, uint64_t pinned_max, struct ptc_gpu_child *ret, struct ptc_error *err)
{
	char name[] = "ptc-gpu", serve[] = "--serve", pinned[] = "--pinned", bytes[32];
	char *argv[] = { name, serve, pinned, bytes, NULL };
	struct ptc_gpu_child child;
	int fds[2], e, rc;

	snprintf(bytes, sizeof bytes, "%" PRIu64, pinned_max);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
		return ptc_error_errno(err, errno, "make a socket for ptc-gpu");
	e = spawn(path, argv, fds[1], PTC_GPU_FD, &child.pid);
	close(fds[1]);
	rc = e ? ptc_error_errno(err, e, "cannot start %s", path) : open_pidfd(&child, err);
	if (rc) {
		close(fds[0]);
		return rc;
	}
	child.socket = fds[0];
	*ret = child;
	return 0;
}

void ptc_gpu_child_kill(const struct ptc_gpu_child *child)
{
	syscall(SYS_pidfd_send_signal, child->pidfd, SIGKILL, NULL, 0);
}

bool ptc_gpu_child_ended(const struct ptc_gpu_child *child, int timeout_ms, char *text, size_t size)
{
	struct pollfd p = { .fd = child->pidfd, .events = POLLIN };
	int64_t until = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000;
	int status, left = timeout_ms;

	while (poll(&p, 1, left) < 0 && errno == EINTR && left > 0)
		left = (int)((until - ptc_sys_now_ns()) / 1000000);
	if (!(p.revents & POLLIN) || waitpid(child->pid, &status, WNOHANG) != child->pid)
		return false;
	if (WIFSIGNALED(status))
		snprintf(text, size, "was killed by signal %d", WTERMSIG(status));
	else
		snprintf(text, size, "ended with status %d", WEXITSTATUS(status));
	return true;
}

/* Until its end of the pipe is closed. */
static int read_all(int fd, int64_t until_ns, size_t max, struct ptc_buf *b, struct ptc_error *err)
{
	char part[4096];

	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t left = (until_ns - ptc_sys_now_ns()) / 1000000;
		ssize_t got;

		if (left <= 0 || poll(&p, 1, (int)left) == 0)
			return ptc_error_set(err, PTC_ETIMEOUT, "ptc-gpu --list does not answer: see nvidia-smi");
		got = read(fd, part, sizeof part);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return ptc_error_errno(err, errno, "read what ptc-gpu --list prints");
		if (got == 0)
			return 0;
		if (b->len + (size_t)got > max)
			return ptc_error_set(err, PTC_ELIMIT, "ptc-gpu --list prints more than %zu bytes", max);
		ptc_buf_append(b, part, (size_t)got);
	}
}

int ptc_gpu_child_list(const char *path, int timeout_ms, size_t max, char **ret, struct ptc_error *err)
{
	char name[] = "ptc-gpu", list[] = "--list", text[64] = "does not end";
	char *argv[] = { name, list, NULL };
	struct ptc_gpu_child child;
	struct ptc_buf b = PTC_BUF_INIT;
	int64_t until = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000;
	int fds[2], e, rc;

	if (pipe2(fds, O_CLOEXEC) != 0)
		return ptc_error_errno(err, errno, "make a pipe for ptc-gpu");
	e = spawn(path, argv, fds[1], STDOUT_FILENO, &child.pid);
	close(fds[1]);
	rc = e ? ptc_error_errno(err, e, "cannot start %s", path) : open_pidfd(&child, err);
	if (rc) {
		close(fds[0]);
		return rc;
	}
	rc = read_all(fds[0], until, max, &b, err);
	close(fds[0]);
	if (rc)
		ptc_gpu_child_kill(&child);
	if (!ptc_gpu_child_ended(&child, 1000, text, sizeof text))
		ptc_gpu_child_kill(&child);
	close(child.pidfd);
	if (rc == 0 && strcmp(text, "ended with status 0") != 0)
		rc = ptc_error_set(err, PTC_EIO, "ptc-gpu --list %s", text);
	if (rc == 0) {
		*ret = ptc_buf_steal(&b, NULL);
		rc = *ret ? 0 : ptc_error_set(err, PTC_ENOMEM, "out of memory");
	}
	ptc_buf_done(&b);
	return rc;
}
