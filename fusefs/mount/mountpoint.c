/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts and unmounts a directory. Root mounts itself; others through Debian's setuid fusermount3, which hands the
 * descriptor over a socket (its protocol: _FUSE_COMMFD, one byte with the descriptor beside it). Happy path: nothing
 * is mounted at the directory, the mount is made. The mount's source is a unique name, by which its process knows the
 * mount when it ends: by then somebody else may have mounted at the same directory.
 *
 * Failure modes: a mount of ours that nobody serves (detached first), of
 * somebody else (PTC_EEXIST), a directory that is not there or not allowed, no
 * FUSE in this kernel or container (PTC_EIO, with what to do); another mount on
 * top of ours when we end (both are left: what is below answers ENOTCONN). */
#include "fusefs/mount/mountpoint.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/child.h"
#include "base/sys/sys.h"
#include "fusefs/source/fs_source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define FS_TYPE      "fuse.ptc"
#define HELPER       "fusermount3"
#define COMM_FD      "3" /* PTC_CHILD_FD */
#define HELPER_MS    10000
#define LINE_BYTES   8192
#define PATH_BYTES   4097
#define STACK_MAX    16 /* mounts on top of each other that one call takes away */
#define TURN_MS      2000
#define TURN_POLL_MS 20
#define READ_AHEAD   "1024" /* KiB */

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

/* What is on top at a directory. fd keeps the mount from being taken for another one while it is looked at and
 * unmounted. */
struct top {
	enum { TOP_NONE, TOP_OURS, TOP_OTHER } kind;
	int fd; /* O_PATH, of the mount's root; -1: none. No request goes to its server for that */
	char type[64], source[FS_SOURCE_MAX];
};

/* The number of the mount that fd lies in; -1: not known. */
static int mount_id(int fd)
{
	char path[64], line[128];
	int id = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "mnt_id: %d", &id) == 1)
			break;
	if (f)
		fclose(f);
	return id;
}

/* The line of one mount: where it is (unescaped), its type and source. */
static bool mount_line(int id, char point[PATH_BYTES], struct top *t)
{
	ptc_auto_fclose FILE *f = fopen("/proc/self/mountinfo", "re");
	ptc_auto_free char *line = ptc_malloc(LINE_BYTES);

	while (f && line && fgets(line, LINE_BYTES, f)) {
		const char *dash = strstr(line, " - ");
		int n;

		if (!dash || sscanf(line, "%d %*s %*s %*s %4096s", &n, point) != 2 || n != id)
			continue;
		unescape(point);
		return sscanf(dash + 3, "%63s %63s", t->type, t->source) == 2;
	}
	return false;
}

static void top_done(struct top *t)
{
	ptc_close(&t->fd);
}

/* dir may have links in it: what the descriptor says is compared. */
static struct top top_look(const char *dir)
{
	struct top t = { .fd = open(dir, O_PATH | O_CLOEXEC) };
	char link[64], here[PATH_BYTES], point[PATH_BYTES];
	ssize_t n = -1;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", t.fd);
	if (t.fd >= 0)
		n = readlink(link, here, sizeof(here) - 1);
	here[n > 0 ? n : 0] = '\0';
	if (n > 0 && mount_line(mount_id(t.fd), point, &t) && !strcmp(point, here))
		t.kind = strcmp(t.type, FS_TYPE) ? TOP_OTHER : TOP_OURS;
	else
		top_done(&t);
	return t;
}

/* Not stat: the kernel believes the root's attributes. This is answered by the threads that take requests: nothing to
 * wait for where somebody serves. */
static bool top_stale(const struct top *t)
{
	struct statfs st;

	return t->kind == TOP_OURS && fstatfs(t->fd, &st) && (errno == ENOTCONN || errno == ECONNABORTED);
}

/* The folder that dir is in. */
static void parent_of(const char *dir, char ret_parent[PATH_BYTES])
{
	size_t n = strlen(dir);

	while (n > 1 && dir[n - 1] == '/')
		n--;
	while (n > 1 && dir[n - 1] != '/')
		n--;
	snprintf(ret_parent, PATH_BYTES, "%.*s", (int)n, dir);
}

/* Processes of ours that mount or unmount at one directory take turns, by a lock on the folder that it is in: between a
 * look at what is mounted and fusermount3, which unmounts by path, none of them changes it. Whoever else holds that
 * lock delays us, no more. Close the descriptor to give the turn back; -1: no lock was to be had. */
static int turn_take(const char *dir)
{
	char parent[PATH_BYTES];
	int fd;

	parent_of(dir, parent);
	fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int ms = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && ms < TURN_MS; ms += TURN_POLL_MS)
		usleep(TURN_POLL_MS * 1000);
	return fd;
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
	struct ptc_child_args args = { .path = HELPER, .argv = argv, .fds = &comm_fd, .nfds = comm_fd >= 0 };
	struct ptc_child c;
	struct ptc_error why = PTC_ERROR_INIT;
	char reason[256] = "";
	int status = 0, said[2], rc;

	if (pipe2(said, O_CLOEXEC | O_NONBLOCK))
		return ptc_error_errno(err, errno, "cannot make a pipe");
	args.errors = said[1];
	if (comm_fd >= 0)
		setenv("_FUSE_COMMFD", COMM_FD, 1);
	rc = ptc_child_start(&args, &c, &why);
	if (comm_fd >= 0)
		unsetenv("_FUSE_COMMFD");
	close(said[1]);
	if (!rc) {
		ptc_child_wait(&c, -1, &status);
		ptc_child_close(&c);
	}
	read_reason(said[0], reason, sizeof(reason));
	close(said[0]);
	if (rc)
		return ptc_error_set(err, rc, "cannot start fusermount3 (Debian's package fuse3): %s",
				     why.text + strlen("cannot start " HELPER ": "));
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return 0;
	return ptc_error_set(err, PTC_EIO, "fusermount3: %s", reason[0] ? reason : "failed");
}

/* Detaches the mount that t is, not what may have come in its place: as root by its descriptor. fusermount3 takes a
 * path only; turn_take says who stays away meanwhile. */
static int top_unmount(const char *dir, const struct top *t, struct ptc_error *err)
{
	char name[] = HELPER, lazily[] = "-uz", end[] = "--", link[64];
	char *argv[] = { name, lazily, end, NULL, NULL };
	int rc;

	if (geteuid() == 0) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", t->fd);
		if (umount2(link, MNT_DETACH) && errno != EINVAL) /* that: it is none any more */
			return ptc_error_errno(err, errno, "cannot unmount %s", dir);
		return 0;
	}
	argv[3] = strdup(dir);
	rc = argv[3] ? helper_run(argv, -1, err) : ptc_nomem(err);
	free(argv[3]);
	return rc;
}

int ptc_fs_unmount(const char *dir, bool stale, struct ptc_error *err)
{
	ptc_auto_close int turn = turn_take(dir);
	int rc = 0;

	for (int i = 0; i < STACK_MAX && !rc; i++) {
		struct top t = top_look(dir);

		if (t.kind == TOP_NONE || (stale && !top_stale(&t))) {
			top_done(&t);
			return i || stale ? 0 : ptc_error_set(err, PTC_ENOTFOUND, "nothing is mounted at %s", dir);
		}
		if (t.kind == TOP_OTHER)
			rc = ptc_error_set(err, PTC_EEXIST,
					   "%s: another file system (%s) is mounted there; unmount it first", dir,
					   t.type);
		else
			rc = top_unmount(dir, &t, err);
		top_done(&t);
	}
	return rc;
}

/* The device number of the mount with this source, as mountinfo has it: "MAJOR:MINOR". */
static bool device_of(const char *source, char ret_device[24])
{
	ptc_auto_fclose FILE *f = fopen("/proc/self/mountinfo", "re");
	ptc_auto_free char *line = ptc_malloc(LINE_BYTES);

	while (f && line && fgets(line, LINE_BYTES, f)) {
		const char *dash = strstr(line, " - ");
		char found[FS_SOURCE_MAX];

		if (dash && sscanf(dash + 3, "%*s %63s", found) == 1 && !strcmp(found, source))
			return sscanf(line, "%*d %*d %23s", ret_device) == 1;
	}
	return false;
}

void fs_mountpoint_read_ahead(const char *source)
{
	ptc_auto_fclose FILE *f = NULL;
	char device[24], path[64];

	if (geteuid() != 0 || !device_of(source, device))
		return;
	snprintf(path, sizeof(path), "/sys/class/bdi/%s/read_ahead_kb", device);
	f = fopen(path, "we");
	if (!f || fputs(READ_AHEAD, f) < 0 || fflush(f))
		ptc_debug("fuse", "%s: %s; the kernel reads ahead 128 KiB", path, strerror(errno));
}

static bool is_ours(const struct top *t, const char *source)
{
	return t->kind == TOP_OURS && !strcmp(t->source, source);
}

void fs_mountpoint_close(const char *dir, const char *source)
{
	ptc_auto_close int turn = turn_take(dir);
	struct ptc_error err = PTC_ERROR_INIT;
	struct top t = top_look(dir);

	if (is_ours(&t, source) && top_unmount(dir, &t, &err))
		ptc_warn("fuse", "%s", err.text);
	top_done(&t);
}

bool fs_mountpoint_on_top(const char *dir, const char *source)
{
	struct top t = top_look(dir);
	bool is = is_ours(&t, source);

	top_done(&t);
	return is;
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

static int mount_by_helper(const char *dir, const char *source, int *ret_fd, struct ptc_error *err)
{
	char name[] = HELPER, flag[] = "-o", options[160], end[] = "--";
	char *argv[] = { name, flag, options, end, strdup(dir), NULL };
	int pair[2], rc;

	if (!argv[4] || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
		free(argv[4]);
		return ptc_error_errno(err, errno, "cannot ask fusermount3");
	}
	snprintf(options, sizeof(options), "ro,nosuid,nodev,fsname=%s,subtype=ptc,default_permissions,max_read=%u",
		 source, FS_READ_MAX);
	rc = helper_run(argv, pair[1], err);
	close(pair[1]);
	if (!rc && receive_fd(pair[0], ret_fd))
		rc = ptc_error_set(err, PTC_EIO, "fusermount3 gave no descriptor for %s", dir);
	close(pair[0]);
	free(argv[4]);
	return rc;
}

static int mount_ourselves(const char *dir, const char *source, bool others, int *ret_fd, struct ptc_error *err)
{
	char options[160];
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return ptc_error_errno(err, errno,
				       "/dev/fuse (is the module fuse loaded, and given to this container?)");
	snprintf(options, sizeof(options),
		 "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions,max_read=%u%s", fd,
		 (unsigned)geteuid(), (unsigned)getegid(), FS_READ_MAX, others ? ",allow_other" : "");
	if (mount(source, dir, FS_TYPE, MS_RDONLY | MS_NOSUID | MS_NODEV, options)) {
		int e = errno;

		close(fd);
		return ptc_error_errno(err, e, "cannot mount at %s", dir);
	}
	*ret_fd = fd;
	return 0;
}

/* Whatever is on top must not be in the way of a mount. alone: nobody serves what is ours there; its server may be
 * stopped, and a look at it would hang. */
static int make_way(const char *dir, bool alone, struct ptc_error *err)
{
	bool more = true;
	int rc = 0;

	for (int i = 0; i < STACK_MAX && !rc && more; i++) {
		struct top t = top_look(dir);

		more = t.kind == TOP_OURS;
		if (t.kind == TOP_OTHER)
			rc = ptc_error_set(err, PTC_EEXIST, "%s: something else is mounted there", dir);
		else if (more && !alone && !top_stale(&t))
			rc = ptc_error_set(err, PTC_EEXIST, "%s: a ptc file system is mounted there already", dir);
		else if (more)
			rc = top_unmount(dir, &t, err);
		top_done(&t);
	}
	return rc;
}

/* No two mounts have the same: numbers of mounts are given again. */
static int source_new(char ret_source[FS_SOURCE_MAX], struct ptc_error *err)
{
	uint64_t number;
	int rc = ptc_sys_random(&number, sizeof(number), err);

	if (!rc)
		snprintf(ret_source, FS_SOURCE_MAX, "ptc-%016" PRIx64, number);
	return rc;
}

int fs_mountpoint_open(const char *dir, bool others, bool alone, char ret_source[FS_SOURCE_MAX], int *ret_fd,
		       struct ptc_error *err)
{
	ptc_auto_close int turn = turn_take(dir);
	char source[FS_SOURCE_MAX];
	struct stat st;
	int rc = 0;

	rc = make_way(dir, alone, err);
	if (rc)
		return rc;
	if (stat(dir, &st) || !S_ISDIR(st.st_mode))
		return ptc_error_set(err, PTC_ENOTFOUND, "%s is not a directory; create it first", dir);
	rc = source_new(source, err);
	if (rc)
		return rc;
	rc = geteuid() == 0 ? mount_ourselves(dir, source, others, ret_fd, err)
			    : mount_by_helper(dir, source, ret_fd, err);
	if (!rc)
		memcpy(ret_source, source, sizeof(source));
	return rc;
}
