/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the program beside ours (or where it is installed) is spawned. Once it has mounted, an empty line comes
 * over a pipe. Failure modes: there is no such program; a line that is not empty says why it cannot mount; the pipe
 * ends without a line; it says nothing in time. Then it is told to end. If it does not at once, a thread reaps it once
 * it has. */
#include "fusefs/launch/launch.h"

#include "base/cleanup.h"
#include "base/sys/child.h"
#include "base/sys/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define ARGS_MAX   32
#define ENDS_MS    1000 /* a process that says why it cannot mount has nothing left to do */

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

	if (rc == 0)
		rc = argv_of(args, false, argv, err);
	if (rc)
		return rc;
	execv(path, (char *const *)(uintptr_t)argv);
	return ptc_error_errno(err, errno, "cannot run %s", path);
}

/* Its line; the empty one is success. */
static int await(int fd, int timeout_ms, struct ptc_error *err)
{
	char text[PTC_ERROR_MAX];
	ssize_t n = ptc_child_read(fd, timeout_ms, text, sizeof(text));

	if (n < 0 && errno == ETIMEDOUT)
		return ptc_error_set(err, PTC_ETIMEOUT, "ptc-fuse has not mounted within %d ms", timeout_ms);
	if (n == 1)
		return 0;
	text[n > 0 ? n - 1 : 0] = '\0';
	return ptc_error_set(err, PTC_EIO, "%s", n > 0 ? text : "ptc-fuse ended before it had mounted");
}

int ptc_fuse_launch(const char *const *words, bool quiet, int timeout_ms, pid_t *ret_pid, struct ptc_error *err)
{
	const char *argv[ARGS_MAX];
	char path[PTC_HELPER_PATH];
	int fds[2], rc = ptc_helper_find("ptc-fuse", "PTC_FUSE", path, err);
	struct ptc_child_args args = { .path = path, .nfds = 1, .errors = quiet ? -1 : 0, .session = true };
	struct ptc_child c;

	if (rc == 0)
		rc = argv_of(words, true, argv, err);
	if (rc)
		return rc;
	if (pipe2(fds, O_CLOEXEC))
		return ptc_error_errno(err, errno, "cannot make a pipe");
	args.argv = (char *const *)(uintptr_t)argv;
	args.fds = &fds[1];
	rc = ptc_child_start(&args, &c, err);
	close(fds[1]);
	if (!rc) {
		rc = await(fds[0], timeout_ms, err);
		if (rc == PTC_ETIMEOUT)
			ptc_child_signal(&c, SIGTERM);
		if (rc == 0)
			*ret_pid = c.pid;
		if (rc && !ptc_child_wait(&c, rc == PTC_ETIMEOUT ? 0 : ENDS_MS, NULL))
			ptc_child_leave(&c);
		ptc_child_close(&c);
	}
	close(fds[0]);
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

void ptc_fuse_lock_backing(const char *lock, uint64_t *ret_bytes, uint64_t *ret_open)
{
	ptc_auto_fclose FILE *f = fopen(lock, "re");
	char line[PATH_BYTES + 32];

	*ret_bytes = *ret_open = 0;
	while (f && fgets(line, sizeof(line), f)) /* an older ptc-fuse does not say what is open */
		if (sscanf(line, "backing %" SCNu64 " %*u %" SCNu64, ret_bytes, ret_open) >= 1)
			break;
}
