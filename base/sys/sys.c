/* SPDX-License-Identifier: Apache-2.0 */
/* See sys.h. */
#include "base/sys/sys.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* of Linux 6.16; a number that an older kernel refuses */
#endif

#define PATH_BYTES 4096

/* Passes the point "<point>.<when>"; true: the test wants a failure. */
static bool at_point(const char *point, const char *when)
{
	char name[96];

	if (!ptc_fault_armed || !point)
		return false;
	snprintf(name, sizeof name, "%s.%s", point, when);
	return ptc_fault_hit(name);
}

static int write_all(int fd, const char *data, size_t len)
{
	while (len > 0) {
		ssize_t n = write(fd, data, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno;
		data += n;
		len -= (size_t)n;
	}
	return fsync(fd) == 0 ? 0 : errno;
}

static int sync_parent(const char *path)
{
	char dir[PATH_BYTES];
	ptc_auto_close int fd = -1;
	char *slash;

	snprintf(dir, sizeof dir, "%s", path);
	slash = strrchr(dir, '/');
	if (slash == dir)
		slash++;
	if (slash)
		*slash = '\0';
	fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	return fsync(fd) == 0 ? 0 : errno;
}

int ptc_sys_write_file(const char *path, const void *data, size_t len, mode_t mode, const char *point,
		       struct ptc_error *err)
{
	char tmp[PATH_BYTES];
	int fd, e;

	if (snprintf(tmp, sizeof tmp, "%s.tmp", path) >= (int)sizeof tmp)
		return ptc_error_set(err, PTC_ELIMIT, "%s: path too long", path);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	if (fd < 0)
		return ptc_error_errno(err, errno, "cannot create %s", tmp);
	e = write_all(fd, data, len);
	close(fd);
	if (!e && at_point(point, "before"))
		e = EIO;
	if (!e && rename(tmp, path) != 0)
		e = errno;
	if (e) {
		unlink(tmp);
		return ptc_error_errno(err, e, "cannot write %s", path);
	}
	at_point(point, "after");
	e = sync_parent(path);
	return e ? ptc_error_errno(err, e, "cannot sync the directory of %s", path) : 0;
}

int ptc_sys_create_beside(const char *path, mode_t mode, int *ret_fd, char **ret_tmp, struct ptc_error *err)
{
	/* another number where a process of our pid died before us */
	for (int i = 0; i < 1000; i++) {
		char *tmp = ptc_asprintf("%s.tmp-%d-%d", path, (int)getpid(), i);
		int fd, e;

		if (!tmp)
			return ptc_nomem(err);
		fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
		e = errno;
		if (fd >= 0) {
			*ret_fd = fd;
			*ret_tmp = tmp;
			return 0;
		}
		ptc_free(tmp);
		if (e != EEXIST)
			return ptc_error_errno(err, e, "cannot create %s", path);
	}
	return ptc_error_set(err, PTC_EEXIST, "cannot create %s: too many temporary files beside it", path);
}

int ptc_sys_publish(int fd, const char *tmp, const char *path, const char *point, struct ptc_error *err)
{
	int e = at_point(point, "before") ? EIO : fsync(fd) == 0 ? 0 : errno;

	if (!e && rename(tmp, path) != 0)
		e = errno;
	if (e)
		return ptc_error_errno(err, e, "cannot write %s", path);
	at_point(point, "after");
	e = sync_parent(path);
	return e ? ptc_error_errno(err, e, "cannot sync the directory of %s", path) : 0;
}

int ptc_sys_flush(int fd, const char *path, const char *point, struct ptc_error *err)
{
	int e = at_point(point, "before") ? EIO : fsync(fd) == 0 ? 0 : errno;

	if (e)
		return ptc_error_errno(err, e, "cannot write %s", path);
	at_point(point, "after");
	return 0;
}

int ptc_sys_rename_dir(const char *tmp, const char *path, const char *point, struct ptc_error *err)
{
	ptc_auto_close int fd = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? ptc_error_errno(err, errno, "cannot write %s", path)
		      : ptc_sys_publish(fd, tmp, path, point, err);
}

/* A shell's pipe has a writer; the open of a named one without would wait for ever, and a device may have no end. */
static int check_readable(int fd, const char *path, struct ptc_error *err)
{
	struct statfs fs;
	struct stat st;

	if (fstat(fd, &st) != 0 || (S_ISFIFO(st.st_mode) && fstatfs(fd, &fs) != 0))
		return ptc_error_errno(err, errno, "cannot read %s", path);
	if (S_ISREG(st.st_mode))
		return 0;
	if (!S_ISFIFO(st.st_mode) || fs.f_type != PIPEFS_MAGIC)
		return ptc_error_set(err, PTC_EINVAL, "cannot read %s: not a regular file", path);
	return fcntl(fd, F_SETFL, 0) == 0 ? 0 : ptc_error_errno(err, errno, "cannot read %s", path);
}

int ptc_sys_read_file(const char *path, size_t max, char **ret_data, size_t *ret_len, struct ptc_error *err)
{
	ptc_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct ptc_buf buf = PTC_BUF_INIT;
	char block[16384];
	ssize_t n;
	int rc;

	if (fd < 0)
		return ptc_error_errno(err, errno, "cannot open %s", path);
	rc = check_readable(fd, path, err);
	if (rc)
		return rc;
	while ((n = read(fd, block, sizeof block)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 || buf.len + (size_t)n > max)
			break;
		ptc_buf_append(&buf, block, (size_t)n);
	}
	if (n != 0) {
		int e = errno;

		ptc_buf_done(&buf);
		return n < 0 ? ptc_error_errno(err, e, "cannot read %s", path)
			     : ptc_error_set(err, PTC_ELIMIT, "%s: larger than %zu bytes", path, max);
	}
	ptc_buf_append(&buf, "", 0);
	if (ptc_buf_failed(&buf)) {
		ptc_buf_done(&buf);
		return ptc_nomem(err);
	}
	*ret_data = ptc_buf_steal(&buf, ret_len);
	return 0;
}

void ptc_sys_standard_fds(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
			(void)!open("/dev/null",
				    fd == STDIN_FILENO ? O_WRONLY : O_RDONLY); /* the lowest free one: fd */
}

int ptc_sys_unlink(const char *path, const char *point, struct ptc_error *err)
{
	if (at_point(point, "before"))
		return ptc_error_errno(err, EIO, "cannot remove %s", path);
	if (unlink(path) != 0 && errno != ENOENT)
		return ptc_error_errno(err, errno, "cannot remove %s", path);
	at_point(point, "after");
	return 0;
}

static int make_dir(const char *dir, mode_t mode, struct ptc_error *err)
{
	if (mkdir(dir, mode ? mode : 0777) == 0)
		return !mode || chmod(dir, mode) == 0 ? 0
						      : ptc_error_errno(err, errno, "cannot set the mode of %s", dir);
	return errno == EEXIST ? 0 : ptc_error_errno(err, errno, "cannot create %s", dir);
}

int ptc_sys_mkdirs(const char *path, mode_t mode, struct ptc_error *err)
{
	char dir[PATH_BYTES];
	int rc;

	if (snprintf(dir, sizeof dir, "%s", path) >= (int)sizeof dir)
		return ptc_error_set(err, PTC_ELIMIT, "%s: path too long", path);
	for (char *p = dir + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		rc = make_dir(dir, mode ? 0755 : 0, err);
		if (rc)
			return rc;
		*p = '/';
	}
	return make_dir(dir, mode, err);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	return (flag == FTW_DP ? rmdir(path) : unlink(path)) == 0 || errno == ENOENT ? 0 : -1;
}

int ptc_sys_remove_tree(const char *path, const char *point, struct ptc_error *err)
{
	if (at_point(point, "before"))
		return ptc_error_errno(err, EIO, "cannot remove %s", path);
	if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
		return ptc_error_errno(err, errno, "cannot remove %s", path);
	at_point(point, "after");
	return 0;
}

static int64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void ptc_sys_take_descriptors(int fd, bool yes)
{
	int value = yes;

	(void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof value);
}

int64_t ptc_sys_now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

int64_t ptc_sys_realtime_ms(void)
{
	return clock_ns(CLOCK_REALTIME) / 1000000;
}

int ptc_sys_random(void *buf, size_t len, struct ptc_error *err)
{
	char *p = buf;

	while (len > 0) {
		ssize_t n = getrandom(p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ptc_error_errno(err, errno, "getrandom");
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int ptc_sys_uuid(char ret_uuid[37], struct ptc_error *err)
{
	uint8_t b[16];
	int rc = ptc_sys_random(b, sizeof b, err);

	if (rc)
		return rc;
	b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
	b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
	snprintf(ret_uuid, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
		 b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return 0;
}

int64_t ptc_sys_skip_zeros(int fd, int64_t from)
{
	char block[4096];
	off_t at = lseek(fd, (off_t)from, SEEK_DATA);
	ssize_t n;

	if (at < 0)
		return lseek(fd, 0, SEEK_END); /* nothing but a hole, or nothing */
	/* data begins with a block, of which the hole has zeroed a part; a huge page of tmpfs is zeroed as a whole */
	for (; (n = pread(fd, block, sizeof block, at)) > 0; at += n)
		for (ssize_t i = 0; i < n; i++)
			if (block[i] != '\0')
				return at + i;
	return at;
}

bool ptc_sys_file_changed(const char *path, struct stat *seen)
{
	struct stat now;
	bool same;

	if (stat(path, &now) != 0)
		memset(&now, 0, sizeof now);
	same = now.st_dev == seen->st_dev && now.st_ino == seen->st_ino && now.st_size == seen->st_size &&
	       now.st_mtim.tv_sec == seen->st_mtim.tv_sec && now.st_mtim.tv_nsec == seen->st_mtim.tv_nsec;
	*seen = now;
	return !same;
}
