/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: started with our socket as descriptor 3 and nothing else of ours.
 *
 * Failure modes: it cannot be started; it does not end (a wait in the driver that cannot be interrupted). */
#include "daemon/gpu/client/gpu_child.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/child.h"
#include "daemon/gpu/gpu_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int ptc_gpu_child_start(const char *path, uint64_t pinned_max, unsigned copiers, struct ptc_gpu_child *ret,
			struct ptc_error *err)
{
	char name[] = "ptc-gpu", serve[] = "--serve", pinned[] = "--pinned", bytes[32], copies[] = "--copiers", n[16];
	char *argv[] = { name, serve, pinned, bytes, copies, n, NULL };
	struct ptc_child_args args = { .path = path, .argv = argv, .nfds = 1 };
	int fds[2], rc;

	snprintf(bytes, sizeof bytes, "%" PRIu64, pinned_max);
	snprintf(n, sizeof n, "%u", copiers);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
		return ptc_error_errno(err, errno, "make a socket for ptc-gpu");
	args.fds = &fds[1];
	rc = ptc_child_start(&args, &ret->process, err);
	close(fds[1]);
	if (rc)
		close(fds[0]);
	else
		ret->socket = fds[0];
	return rc;
}

void ptc_gpu_child_kill(const struct ptc_gpu_child *child)
{
	ptc_child_signal(&child->process, SIGKILL);
}

static bool ended(const struct ptc_child *c, int timeout_ms, char *text, size_t size)
{
	int status;

	if (!ptc_child_wait(c, timeout_ms, &status))
		return false;
	if (WIFSIGNALED(status))
		snprintf(text, size, "was killed by signal %d", WTERMSIG(status));
	else
		snprintf(text, size, "ended with status %d", WEXITSTATUS(status));
	return true;
}

bool ptc_gpu_child_ended(const struct ptc_gpu_child *child, int timeout_ms, char *text, size_t size)
{
	return ended(&child->process, timeout_ms, text, size);
}

/* Until its end of the pipe is closed. */
static int read_all(int fd, int timeout_ms, size_t max, char *text, struct ptc_error *err)
{
	ssize_t n = ptc_child_read(fd, timeout_ms, text, max + 2);

	if (n < 0 && errno == ETIMEDOUT)
		return ptc_error_set(err, PTC_ETIMEOUT, "ptc-gpu --list does not answer: see nvidia-smi");
	if (n < 0)
		return ptc_error_errno(err, errno, "read what ptc-gpu --list prints");
	return (size_t)n <= max ? 0 : ptc_error_set(err, PTC_ELIMIT, "ptc-gpu --list prints more than %zu bytes", max);
}

int ptc_gpu_child_list(const char *path, int timeout_ms, size_t max, char **ret, struct ptc_error *err)
{
	char name[] = "ptc-gpu", list[] = "--list", text[64] = "does not end";
	char *argv[] = { name, list, NULL };
	ptc_auto_free char *out = ptc_malloc(max + 2);
	struct ptc_child_args args = { .path = path, .argv = argv };
	struct ptc_child child;
	int fds[2], rc;

	if (!out)
		return ptc_nomem(err);
	if (pipe2(fds, O_CLOEXEC) != 0)
		return ptc_error_errno(err, errno, "make a pipe for ptc-gpu");
	args.output = fds[1];
	rc = ptc_child_start(&args, &child, err);
	close(fds[1]);
	if (rc) {
		close(fds[0]);
		return rc;
	}
	rc = read_all(fds[0], timeout_ms, max, out, err);
	close(fds[0]);
	if (rc)
		ptc_child_signal(&child, SIGKILL);
	if (!ended(&child, 1000, text, sizeof text))
		ptc_child_signal(&child, SIGKILL);
	ptc_child_close(&child);
	if (rc == 0 && strcmp(text, "ended with status 0") != 0)
		rc = ptc_error_set(err, PTC_EIO, "ptc-gpu --list %s", text);
	if (rc == 0) {
		*ret = out;
		out = NULL;
	}
	return rc;
}
