/* SPDX-License-Identifier: Apache-2.0 */
/* What a disk would hold: a library that a test preloads into ptcd (LD_PRELOAD). The files of some directories, which
 * lie on a tmpfs, are taken for a disk's. Each sync of one of them copies what it would bring to the disk to a file
 * PTC_POWER_SHADOW/INODE. So a test that has killed ptcd can put the directories into a state that a power cut could
 * have left (tests/power.py). PTC_POWER_DIRS has the directories, with ':' between them.
 *
 * LMDB and ptcd sync by msync, fsync, fdatasync, and writes to files that are open with O_DSYNC. A kill in the middle
 * of a copy leaves a part of it, as a power cut does in the middle of a sync. Any thread may call. */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define INSTEAD __attribute__((visibility("default")))
#define EXT4    0xef53
#define PIECE   (64 << 10)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_ours(const char *path)
{
	const char *dirs = getenv("PTC_POWER_DIRS");

	while (dirs && *dirs) {
		const size_t n = strcspn(dirs, ":");

		if (n && strncmp(path, dirs, n) == 0 && (path[n] == '/' || path[n] == '\0'))
			return true;
		dirs += dirs[n] ? n + 1 : n;
	}
	return false;
}

static bool fd_is_ours(int fd, char path[512])
{
	char link[64];
	ssize_t n;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, path, 511);
	path[n < 0 ? 0 : n] = '\0';
	return is_ours(path);
}

static void need(bool ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	abort(); /* the test sees it */
}

static void copy_data(int from, int to, off_t at, off_t end)
{
	static char buf[PIECE]; /* under the lock */

	while (at < end) {
		const size_t n = end - at < PIECE ? (size_t)(end - at) : PIECE;
		const ssize_t got = pread(from, buf, n, at);

		need(got >= 0, "power_shadow: read");
		if (got == 0)
			return; /* it has been cut meanwhile */
		need(syscall(SYS_pwrite64, to, buf, got, at) == got, "power_shadow: write");
		at += got;
	}
}

static void copy_range(int from, int to, off_t at, off_t end)
{
	while (at < end) {
		off_t data = lseek(from, at, SEEK_DATA), hole;

		data = data < 0 || data > end ? end : data;
		if (data > at)
			need(fallocate(to, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, data - at) == 0,
			     "power_shadow: punch");
		hole = data < end ? lseek(from, data, SEEK_HOLE) : end;
		hole = hole < 0 || hole > end ? end : hole;
		copy_data(from, to, data, hole);
		at = hole;
	}
}

/* [off, off + len) of that file reaches the disk now, its length too. */
static void reaches_disk(const char *path, uint64_t off, uint64_t len)
{
	const char *dir = getenv("PTC_POWER_SHADOW");
	const int from = open(path, O_RDONLY | O_CLOEXEC);
	char shadow[512];
	struct stat st;
	int to;

	if (from < 0)
		return; /* it has no name any more */
	if (fstat(from, &st) != 0 || !S_ISREG(st.st_mode)) {
		close(from);
		return;
	}
	snprintf(shadow, sizeof shadow, "%s/%llu", dir ? dir : "", (unsigned long long)st.st_ino);
	pthread_mutex_lock(&lock);
	to = open(shadow, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	need(to >= 0 && ftruncate(to, st.st_size) == 0, shadow);
	if (off < (uint64_t)st.st_size) {
		const uint64_t most = (uint64_t)st.st_size - off;

		copy_range(from, to, (off_t)off, (off_t)(off + (len < most ? len : most)));
	}
	close(to);
	pthread_mutex_unlock(&lock);
	close(from);
}

INSTEAD int fdatasync(int fd)
{
	char path[512];

	if (!fd_is_ours(fd, path))
		return (int)syscall(SYS_fdatasync, fd);
	reaches_disk(path, 0, UINT64_MAX);
	return 0;
}

INSTEAD int fsync(int fd)
{
	char path[512];

	return fd_is_ours(fd, path) ? fdatasync(fd) : (int)syscall(SYS_fsync, fd);
}

INSTEAD int msync(void *p, size_t len, int flags)
{
	unsigned long long lo, hi, off;
	char line[1024], *path;
	FILE *f = fopen("/proc/self/maps", "re");

	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%llx-%llx %*s %llx", &lo, &hi, &off) != 3 || (uintptr_t)p < lo || (uintptr_t)p >= hi)
			continue;
		line[strcspn(line, "\n")] = '\0';
		path = strchr(line, '/');
		if (path && (flags & MS_SYNC) && is_ours(path))
			reaches_disk(path, off + ((uintptr_t)p - lo), len);
		break;
	}
	if (f)
		fclose(f);
	return (int)syscall(SYS_msync, p, len, flags);
}

static ssize_t write_at(int fd, const void *buf, size_t n, off_t off)
{
	const ssize_t done = syscall(SYS_pwrite64, fd, buf, n, off);
	char path[512];

	if (done > 0 && (fcntl(fd, F_GETFL) & O_DSYNC) && fd_is_ours(fd, path))
		reaches_disk(path, (uint64_t)off, (uint64_t)done);
	return done;
}

INSTEAD ssize_t pwrite(int fd, const void *buf, size_t n, off_t off)
{
	return write_at(fd, buf, n, off);
}

INSTEAD ssize_t pwrite64(int fd, const void *buf, size_t n, off_t off)
{
	return write_at(fd, buf, n, off);
}

/* The store asks whether its files are on a disk. */
INSTEAD int fstatfs(int fd, struct statfs *buf)
{
	const int rc = (int)syscall(SYS_fstatfs, fd, buf);
	char path[512];

	if (rc == 0 && fd_is_ours(fd, path))
		buf->f_type = EXT4;
	return rc;
}

INSTEAD int statfs(const char *path, struct statfs *buf)
{
	const int rc = (int)syscall(SYS_statfs, path, buf);

	if (rc == 0 && is_ours(path))
		buf->f_type = EXT4;
	return rc;
}
