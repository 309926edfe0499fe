/* SPDX-License-Identifier: Apache-2.0 */
/* See cgroup.h. */
#include "daemon/workers/process/cgroup.h"

#include "daemon/workers/process/spawn.h"

#include "base/cleanup.h"
#include "base/sys/child.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES      4096
#define PROC_FILE_BYTES (1u << 20) /* mountinfo of a machine with thousands of containers */
#define KILL_PASSES     1000       /* a millisecond apart, for programs that fork faster than we kill */

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* ---- which directory is ours ------------------------------------------------- */

/* Our path in the v2 hierarchy: the line "0::/path" of /proc/self/cgroup. */
static bool own_path(char *ret_path, size_t size)
{
	ptc_auto_free char *text = NULL;
	char *save = NULL;
	size_t len;

	if (ptc_sys_read_file("/proc/self/cgroup", PROC_FILE_BYTES, &text, &len, NULL))
		return false;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (strncmp(line, "0::/", 4) == 0 && strncmp(line, "0::/..", 6) != 0)
			return snprintf(ret_path, size, "%s", line + 3) < (int)size;
	return false;
}

/* Where that path is mounted. Lines of mountinfo: "id parent major:minor root mountpoint options ... - type source
 * options". */
static bool mounted_path(const char *own, char *ret_dir, size_t size)
{
	ptc_auto_free char *text = NULL;
	char root[PATH_BYTES], mount[PATH_BYTES];
	char *save = NULL;
	size_t len;

	if (ptc_sys_read_file("/proc/self/mountinfo", PROC_FILE_BYTES, &text, &len, NULL))
		return false;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		const char *type = strstr(line, " - cgroup2 "), *rest = own;

		if (!type || sscanf(line, "%*d %*d %*s %4095s %4095s", root, mount) != 2)
			continue;
		if (strcmp(root, "/") != 0) {
			if (strncmp(own, root, strlen(root)) != 0)
				continue;
			rest = own + strlen(root);
		}
		if (snprintf(ret_dir, size, "%s%s", mount, strcmp(rest, "/") == 0 ? "" : rest) < (int)size)
			return true;
	}
	return false;
}

/* systemd takes every cgroup for its own but for those it has marked (Delegate=yes in a unit). */
static bool delegated(const char *dir)
{
	const char *names[] = { "trusted.delegate", "user.delegate" };
	char value[4];

	if (access("/run/systemd/system", F_OK) != 0)
		return true;
	for (int i = 0; i < 2; i++)
		if (getxattr(dir, names[i], value, sizeof value) == 1 && value[0] == '1')
			return true;
	return false;
}

void ptc_cgroup_find(char *ret_dir, size_t size)
{
	char own[PATH_BYTES], dir[PATH_BYTES], procs[PATH_BYTES + 16];

	*ret_dir = '\0';
	if (!own_path(own, sizeof own) || !mounted_path(own, dir, sizeof dir) || strlen(dir) >= size)
		return;
	/* what moves a process into a group below must be allowed to write here too */
	snprintf(procs, sizeof procs, "%s/cgroup.procs", dir);
	if (access(dir, W_OK) == 0 && access(procs, W_OK) == 0 && delegated(dir))
		snprintf(ret_dir, size, "%s", dir);
}

/* ---- one cgroup ---------------------------------------------------------------- */

static int write_to(const char *path, const char *name, const char *text)
{
	char file[PATH_BYTES];
	ptc_auto_close int fd = -1;

	snprintf(file, sizeof file, "%s/%s", path, name);
	fd = open(file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	return write(fd, text, strlen(text)) < 0 ? errno : 0;
}

static bool event_is(const char *path, const char *what)
{
	char file[PATH_BYTES], text[256] = "";
	ptc_auto_close int fd = -1;

	snprintf(file, sizeof file, "%s/cgroup.events", path);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	return fd >= 0 && read(fd, text, sizeof text - 1) > 0 && strstr(text, what) != NULL;
}

bool ptc_cgroup_populated(const char *path)
{
	return event_is(path, "populated 1");
}

int ptc_cgroup_freeze(const char *path, bool yes)
{
	return write_to(path, "cgroup.freeze", yes ? "1" : "0");
}

bool ptc_cgroup_frozen(const char *path)
{
	return event_is(path, "frozen 1");
}

int ptc_cgroup_make(const char *path, struct ptc_error *err)
{
	if (mkdir(path, 0755) == 0)
		return 0;
	if (errno != EEXIST)
		return ptc_error_errno(err, errno, "cannot make the cgroup %s", path);
	return ptc_cgroup_populated(path) ? ptc_error_set(err, PTC_EEXIST, "the cgroup %s is in use", path) : 0;
}

int ptc_cgroup_enter(const char *path, pid_t pid, struct ptc_error *err)
{
	char text[24];
	int e;

	snprintf(text, sizeof text, "%d", (int)pid);
	e = write_to(path, "cgroup.procs", text);
	return e ? ptc_error_errno(err, e, "cannot move a process into the cgroup %s", path) : 0;
}

/* Number of processes signalled, or -1. */
static int signal_each(const char *path, int sig)
{
	char file[PATH_BYTES];
	ptc_auto_fclose FILE *f = NULL;
	int pid, n = 0;

	snprintf(file, sizeof file, "%s/cgroup.procs", path);
	f = fopen(file, "re");
	if (!f)
		return errno == ENOENT ? 0 : -1;
	while (fscanf(f, "%d", &pid) == 1)
		if (pid > 0 && kill(pid, sig) == 0) /* 0: one that our pid namespace does not show */
			n++;
	return n;
}

int ptc_cgroup_signal(const char *path, int sig, struct ptc_error *err)
{
	int e = sig == SIGKILL ? write_to(path, "cgroup.kill", "1") : EINVAL, n = 0;

	if (e == 0 || access(path, F_OK) != 0)
		return 0;
	for (int i = 0; i < KILL_PASSES; i++) {
		n = signal_each(path, sig);
		if (n < 0)
			return ptc_error_set(err, PTC_EIO, "cannot read %s/cgroup.procs", path);
		if (n == 0 || sig != SIGKILL)
			break;
		nap();
	}
	return 0;
}

static int remove_dir(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	bool gone;

	(void)st;
	(void)ftw;
	if (flag != FTW_DP)
		return 0;
	if (ptc_fault("process.cgroup_rmdir.before"))
		return -1;
	gone = rmdir(path) == 0 || errno == ENOENT;
	(void)ptc_fault("process.cgroup_rmdir.after");
	return gone ? 0 : -1;
}

void ptc_cgroup_remove_empty(const char *path, int timeout_ms)
{
	const int64_t deadline = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000;

	while (!ptc_cgroup_populated(path) && nftw(path, remove_dir, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno == EBUSY &&
	       ptc_sys_now_ns() < deadline)
		nap();
}

/* Whether a name is one that a helper gives, NAME.PID, and that helper is gone. */
static bool is_left(const char *name)
{
	const char *dot = strrchr(name, '.');
	struct ptc_process_stat st;
	char *end;
	long pid;

	if (strncmp(name, "ptc-", 4) != 0 || !dot)
		return false;
	pid = strtol(dot + 1, &end, 10);
	if (pid <= 0 || pid > INT_MAX || *end)
		return false;
	return !ptc_process_stat((pid_t)pid, &st) || st.state == 'Z' || st.state == 'X' ||
	       strcmp(st.name, "ptc-exec") != 0;
}

void ptc_cgroup_remove_left(const char *parent, int timeout_ms)
{
	DIR *d = *parent ? opendir(parent) : NULL;
	char path[PATH_BYTES];
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (is_left(e->d_name) && snprintf(path, sizeof path, "%s/%s", parent, e->d_name) < (int)sizeof path)
			ptc_cgroup_remove_empty(path, timeout_ms);
	if (d)
		closedir(d);
}

int ptc_cgroup_remove(const char *path, int timeout_ms, struct ptc_error *err)
{
	const int64_t deadline = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000;
	int rc;

	if (access(path, F_OK) != 0)
		return 0;
	if (ptc_fault("process.cgroup_remove.before"))
		return ptc_error_errno(err, EIO, "cannot remove the cgroup %s", path);
	rc = ptc_cgroup_signal(path, SIGKILL, err);
	if (rc)
		return rc;
	while (ptc_cgroup_populated(path) && ptc_sys_now_ns() < deadline)
		nap();
	/* the kernel takes a moment more to let go of a cgroup whose last process has just ended */
	while ((rc = nftw(path, remove_dir, 16, FTW_DEPTH | FTW_PHYS)) != 0 && errno == EBUSY &&
	       ptc_sys_now_ns() < deadline)
		nap();
	if (rc != 0 && errno != ENOENT)
		return ptc_error_errno(err, errno, "cannot remove the cgroup %s", path);
	(void)ptc_fault("process.cgroup_remove.after");
	return 0;
}
