// SPDX-License-Identifier: Apache-2.0
/* Mount points. Root mounts itself; others through Debian's setuid fusermount3,
 * which hands the descriptor over a socket (its protocol: _FUSE_COMMFD, one
 * byte with the descriptor beside it).
 * Happy path: nothing is mounted at the directory, the mount is made.
 * Failure modes: a mount of ours that nobody serves (detached first), of
 * somebody else (PTC_EEXIST), a directory that is not there or not allowed, no
 * FUSE in this kernel or container (PTC_EIO, with what to do). */
#include "fusefs/internal.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define FS_TYPE    "fuse.ptc"
#define HELPER     "fusermount3"
#define HELPER_MS  10000
#define LINE_BYTES 8192

extern char **environ;

/* mountinfo writes these bytes as octal numbers. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (s[0] == '\\' && s[1] && s[2] && s[3]) {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = '\0';
}

/* The type of what is mounted there last; false: nothing is. */
static bool mount_type(const char *dir, char ret_type[64])
{
	ptc_auto_fclose FILE *f = fopen("/proc/self/mountinfo", "re");
	ptc_auto_free char *line = ptc_malloc(LINE_BYTES);
	bool found = false;

	while (f && line && fgets(line, LINE_BYTES, f)) {
		char point[4097];
		const char *dash = strstr(line, " - ");

		if (!dash || sscanf(line, "%*s %*s %*s %*s %4096s", point) != 1)
			continue;
		unescape(point);
		if (!strcmp(point, dir) && sscanf(dash + 3, "%63s", ret_type) == 1)
			found = true;
	}
	return found;
}

enum ptc_fs_mounted ptc_fs_mounted(const char *dir)
{
	char type[64];
	struct statvfs st;

	if (!mount_type(dir, type))
		return PTC_FS_NONE;
	if (strcmp(type, FS_TYPE))
		return PTC_FS_OTHER;
	/* not stat: the kernel believes the root's attributes. This is answered by the threads that take requests: nothing to wait for
	 * where somebody serves. */
	return statvfs(dir, &st) && errno == ENOTCONN ? PTC_FS_STALE : PTC_FS_LIVE;
}

/* What it wrote, without its name and the newline. */
static void read_reason(int fd, char *text, size_t size)
{
	ssize_t n = read(fd, text, size - 1);
	size_t skip = strlen(HELPER ": ");

	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	if (!strncmp(text, HELPER ": ", skip))
		memmove(text, text + skip, strlen(text + skip) + 1);
}

/* Starts fusermount3, waits for it. On failure its reason. */
static int helper_run(char *const *argv, int comm_fd, struct ptc_error *err)
{
	char var[32], reason[256] = "";
	posix_spawn_file_actions_t actions;
	int status = 0, said[2], e;
	pid_t pid;

	if (pipe2(said, O_CLOEXEC | O_NONBLOCK))
		return ptc_error_errno(err, errno, "cannot make a pipe");
	snprintf(var, sizeof(var), "%d", comm_fd);
	if (comm_fd >= 0)
		setenv("_FUSE_COMMFD", var, 1);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, said[1], STDERR_FILENO);
	e = posix_spawnp(&pid, HELPER, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (comm_fd >= 0)
		unsetenv("_FUSE_COMMFD");
	close(said[1]);
	while (!e && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	read_reason(said[0], reason, sizeof(reason));
	close(said[0]);
	if (e)
		return ptc_error_errno(err, e, "cannot start fusermount3 (Debian's package fuse3)");
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return 0;
	return ptc_error_set(err, PTC_EIO, "fusermount3: %s", reason[0] ? reason : "failed");
}

int ptc_fs_unmount(const char *dir, struct ptc_error *err)
{
	char name[] = HELPER, lazily[] = "-uz", end[] = "--";
	char *argv[] = { name, lazily, end, NULL, NULL };
	char type[64];
	int rc = 0;

	if (!mount_type(dir, type))
		return ptc_error_set(err, PTC_ENOTFOUND, "nothing is mounted at %s", dir);
	for (int i = 0; i < 16 && !rc && mount_type(dir, type); i++) {
		if (strcmp(type, FS_TYPE))
			return ptc_error_set(err, PTC_EEXIST, "%s: what is mounted there (%s) is not ours", dir, type);
		argv[3] = strdup(dir);
		if (geteuid() != 0)
			rc = argv[3] ? helper_run(argv, -1, err) : PTC_ENOMEM;
		else if (umount2(dir, MNT_DETACH) && errno != EINVAL)
			rc = ptc_error_errno(err, errno, "cannot unmount %s", dir);
		free(argv[3]);
	}
	return rc;
}

static int receive_fd(int sock, int *ret_fd)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	struct pollfd p = { .fd = sock, .events = POLLIN };
	const struct cmsghdr *c;

	if (poll(&p, 1, HELPER_MS) != 1 || recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) <= 0)
		return -1;
	c = CMSG_FIRSTHDR(&msg);
	if (!c || c->cmsg_type != SCM_RIGHTS)
		return -1;
	memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
	return 0;
}

static int mount_by_helper(const char *dir, int *ret_fd, struct ptc_error *err)
{
	char name[] = HELPER, flag[] = "-o", options[128], end[] = "--";
	char *argv[] = { name, flag, options, end, strdup(dir), NULL };
	int pair[2], rc;

	if (!argv[4] || socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) {
		free(argv[4]);
		return ptc_error_errno(err, errno, "cannot ask fusermount3");
	}
	fcntl(pair[0], F_SETFD, FD_CLOEXEC);
	snprintf(options, sizeof(options), "ro,nosuid,nodev,fsname=ptc,subtype=ptc,default_permissions,max_read=%u",
		 FS_READ_MAX);
	rc = helper_run(argv, pair[1], err);
	close(pair[1]);
	if (!rc && receive_fd(pair[0], ret_fd))
		rc = ptc_error_set(err, PTC_EIO, "fusermount3 gave no descriptor for %s", dir);
	close(pair[0]);
	free(argv[4]);
	return rc;
}

static int mount_ourselves(const char *dir, bool others, int *ret_fd, struct ptc_error *err)
{
	char options[160];
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return ptc_error_errno(err, errno,
				       "/dev/fuse (is the module fuse loaded, and given to this container?)");
	snprintf(options, sizeof(options),
		 "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions,max_read=%u%s", fd,
		 (unsigned)geteuid(), (unsigned)getegid(), FS_READ_MAX, others ? ",allow_other" : "");
	if (mount("ptc", dir, FS_TYPE, MS_RDONLY | MS_NOSUID | MS_NODEV, options)) {
		int e = errno;

		close(fd);
		return ptc_error_errno(err, e, "cannot mount at %s", dir);
	}
	*ret_fd = fd;
	return 0;
}

/* Without a look at the mount itself, which hangs where its server is stopped: the caller knows that nobody serves it. */
static enum ptc_fs_mounted whose(const char *dir)
{
	char type[64];

	return !mount_type(dir, type) ? PTC_FS_NONE : strcmp(type, FS_TYPE) ? PTC_FS_OTHER : PTC_FS_STALE;
}

int fs_mountpoint_open(const char *dir, bool others, bool alone, int *ret_fd, struct ptc_error *err)
{
	struct stat st;
	int rc = 0;

	switch (alone ? whose(dir) : ptc_fs_mounted(dir)) {
	case PTC_FS_STALE:
		rc = ptc_fs_unmount(dir, err);
		break;
	case PTC_FS_LIVE:
		return ptc_error_set(err, PTC_EEXIST, "%s: a file system of ours is mounted there already", dir);
	case PTC_FS_OTHER:
		return ptc_error_set(err, PTC_EEXIST, "%s: something else is mounted there", dir);
	case PTC_FS_NONE:
		break;
	}
	if (rc)
		return rc;
	if (stat(dir, &st) || !S_ISDIR(st.st_mode))
		return ptc_error_set(err, PTC_ENOTFOUND, "%s is no directory that is there", dir);
	if (geteuid() == 0)
		return mount_ourselves(dir, others, ret_fd, err);
	return mount_by_helper(dir, ret_fd, err);
}
