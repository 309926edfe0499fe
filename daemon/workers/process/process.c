/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a process's folder, one "key value" a line, and what /proc says of a process. Unknown keys are skipped,
 * so that an older ptcd can read what a newer ptc-exec has written (after going back a version). */
#include "daemon/workers/process/process.h"

#include "daemon/workers/process/spawn.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_MAX_BYTES 4096

/* Nothing here allocates: when memory runs out a process must not be lost that has just begun. */
static int read_text(const char *path, char text[FILE_MAX_BYTES], struct ptc_error *err)
{
	ptc_auto_close int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, FILE_MAX_BYTES - 1);

	text[n > 0 ? n : 0] = '\0';
	return n < 0 ? ptc_error_errno(err, errno, "cannot read %s", path) : 0;
}

static const char *in_dir(const char *dir, const char *name, char *path, size_t size)
{
	snprintf(path, size, "%s%s%s", dir, *dir ? "/" : "", name);
	return path;
}

int ptc_process_record_write(const char *dir, const struct ptc_process_record *r, struct ptc_error *err)
{
	char text[512], path[PTC_EXEC_PATH_MAX + 16];
	int n = snprintf(text, sizeof text,
			 "version %d\npid %d\nhelper %d\nstart_time %" PRIu64 "\nboot %s\ntoken %s\n", PTC_EXEC_VERSION,
			 (int)r->pid, (int)r->helper, r->start_time, r->boot, r->token);

	return ptc_sys_write_file(in_dir(dir, "process", path, sizeof path), text, (size_t)n, 0600, "process.record",
				  err);
}

/* The value of a key; "" if there is none. */
static void value(const char *text, const char *key, char *ret_value, size_t size)
{
	const size_t len = strlen(key);

	*ret_value = '\0';
	for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (strncmp(line, key, len) == 0 && line[len] == ' ')
			snprintf(ret_value, size, "%.*s", (int)strcspn(line + len + 1, "\n"), line + len + 1);
}

int ptc_process_record_read(const char *dir, struct ptc_process_record *ret_record, struct ptc_error *err)
{
	char path[PTC_EXEC_PATH_MAX + 16], pid[24], helper[24], start[24];
	struct ptc_process_record r = { 0 };
	char text[FILE_MAX_BYTES];
	int rc = read_text(in_dir(dir, "process", path, sizeof path), text, err);

	if (rc)
		return rc;
	value(text, "pid", pid, sizeof pid);
	value(text, "helper", helper, sizeof helper);
	value(text, "start_time", start, sizeof start);
	value(text, "boot", r.boot, sizeof r.boot);
	value(text, "token", r.token, sizeof r.token);
	if (sscanf(pid, "%d", &r.pid) != 1 || sscanf(helper, "%d", &r.helper) != 1 || r.pid <= 1 || r.helper <= 1 ||
	    sscanf(start, "%" SCNu64, &r.start_time) != 1 || strlen(r.boot) != 36 || !*r.token)
		return ptc_error_set(err, PTC_ECORRUPT, "%s: not a process's file", path);
	*ret_record = r;
	return 0;
}

int ptc_process_exit_write(const char *dir, int status, struct ptc_error *err)
{
	char text[64], path[PTC_EXEC_PATH_MAX + 16];
	int n = snprintf(text, sizeof text, "version %d\nstatus %d\n", PTC_EXEC_VERSION, status);

	return ptc_sys_write_file(in_dir(dir, "exit", path, sizeof path), text, (size_t)n, 0600, "process.exit", err);
}

bool ptc_process_exit_read(const char *dir, int *ret_status)
{
	char path[PTC_EXEC_PATH_MAX + 16], status[24];
	char text[FILE_MAX_BYTES];

	if (read_text(in_dir(dir, "exit", path, sizeof path), text, NULL))
		return false;
	value(text, "status", status, sizeof status);
	return sscanf(status, "%d", ret_status) == 1;
}

bool ptc_process_cgroup_write(const char *cgroup)
{
	ptc_auto_close int fd = open("cgroup", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	char boot[37];

	return fd >= 0 && ptc_process_boot_id(boot, NULL) == 0 && dprintf(fd, "boot %s\npath %s\n", boot, cgroup) > 0;
}

void ptc_process_cgroup_read(const char *dir, char ret_cgroup[PTC_EXEC_PATH_MAX])
{
	char path[PTC_EXEC_PATH_MAX + 16], then[37], now[37];
	char text[FILE_MAX_BYTES];

	*ret_cgroup = '\0';
	if (read_text(in_dir(dir, "cgroup", path, sizeof path), text, NULL) || ptc_process_boot_id(now, NULL))
		return;
	value(text, "boot", then, sizeof then);
	if (strcmp(then, now) == 0)
		value(text, "path", ret_cgroup, PTC_EXEC_PATH_MAX);
}

int ptc_process_held_write(const char *dir, struct ptc_error *err)
{
	char path[PTC_EXEC_PATH_MAX + 16], text[64];
	ptc_auto_close int fd =
		open(in_dir(dir, "held", path, sizeof path), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	int n = snprintf(text, sizeof text, "since %020" PRId64 "\n", ptc_sys_now_ns() / 1000000000);

	if (fd < 0)
		return ptc_error_errno(err, errno, "cannot write %s", path);
	if (pwrite(fd, text, (size_t)n, 0) != n && ftruncate(fd, 0) == 0)
		(void)futimens(fd, NULL); /* the disk is full: by the file's own time then */
	return 0;
}

int64_t ptc_process_held_s(const char *dir)
{
	char path[PTC_EXEC_PATH_MAX + 16], number[24];
	char text[FILE_MAX_BYTES];
	struct stat st;
	int64_t since;

	if (stat(in_dir(dir, "held", path, sizeof path), &st) != 0)
		return -1;
	if (read_text(path, text, NULL) == 0) {
		value(text, "since", number, sizeof number);
		if (sscanf(number, "%" SCNd64, &since) == 1)
			return PTC_MAX(ptc_sys_now_ns() / 1000000000 - since, 0);
	}
	return PTC_MAX((int64_t)(time(NULL) - st.st_mtime), 0);
}

uint64_t ptc_process_log_begin(int fd)
{
	return (uint64_t)ptc_sys_skip_zeros(fd, 0);
}

bool ptc_process_label_write(const char *dir, const struct ptc_process_label *l)
{
	char path[PTC_EXEC_PATH_MAX + 16];
	ptc_auto_close int fd = open(in_dir(dir, "rank", path, sizeof path),
				     O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);

	return fd >= 0 && dprintf(fd,
				  "rank %" PRIu32 "\nworld %" PRIu32 "\ngeneration %" PRIu64 "\nincarnation %" PRIu64
				  "\nbegin %" PRIu64 "\nsince %" PRId64 "\nend .\n",
				  l->rank, l->world, l->generation, l->incarnation, l->begin, l->since_ms) > 0;
}

bool ptc_process_label_read(const char *dir, struct ptc_process_label *ret_label)
{
	static const char *const keys[] = { "rank", "world", "generation", "incarnation", "begin", "since" };
	char path[PTC_EXEC_PATH_MAX + 16], number[24];
	char text[FILE_MAX_BYTES];
	uint64_t v[PTC_ARRAY_LEN(keys)];

	if (read_text(in_dir(dir, "rank", path, sizeof path), text, NULL) || !strstr(text, "\nend .\n"))
		return false;
	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++) {
		value(text, keys[i], number, sizeof number);
		if (sscanf(number, "%" SCNu64, &v[i]) != 1)
			return false;
	}
	*ret_label = (struct ptc_process_label){ .rank = (uint32_t)v[0],
						 .world = (uint32_t)v[1],
						 .generation = v[2],
						 .incarnation = v[3],
						 .begin = v[4],
						 .since_ms = (int64_t)v[5] };
	return v[3] != 0;
}

int ptc_process_boot_id(char ret_boot[37], struct ptc_error *err)
{
	char text[FILE_MAX_BYTES];
	int rc = read_text("/proc/sys/kernel/random/boot_id", text, err);

	if (rc)
		return rc;
	if (strlen(text) < 36)
		return ptc_error_set(err, PTC_EIO, "/proc/sys/kernel/random/boot_id: not a boot id");
	snprintf(ret_boot, 37, "%.36s", text);
	return 0;
}

/* ---- memory ------------------------------------------------------------------ */

/* The number behind a word at the beginning of a line; word "": the first of the file. 0: there is none. */
static uint64_t number_of(const char *path, const char *word)
{
	char text[FILE_MAX_BYTES];
	const size_t len = strlen(word);
	uint64_t n = 0;

	if (read_text(path, text, NULL) != 0)
		return 0;
	for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (strncmp(line, word, len) == 0)
			return sscanf(line + len, "%" SCNu64, &n) == 1 ? n : 0;
	return 0;
}

uint64_t ptc_process_memory_peak(pid_t pid, const char *cgroup)
{
	char path[PTC_EXEC_PATH_MAX + 32];
	uint64_t most, own, shared, all, limit;

	snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
	most = number_of(path, "VmHWM:") << 10;
	own = number_of(path, "RssAnon:") << 10;
	shared = (number_of(path, "RssFile:") + number_of(path, "RssShmem:")) << 10;
	most = PTC_MAX(own, most - PTC_MIN(most, shared));
	if (!*cgroup)
		return most;
	all = number_of(in_dir(cgroup, "memory.stat", path, sizeof path), "anon ");
	most += all - PTC_MIN(all, own);
	/* It also counts what was read of files, so it is a bound and no more. */
	limit = number_of(in_dir(cgroup, "memory.peak", path, sizeof path), "");
	return limit ? PTC_MIN(most, limit) : most;
}
