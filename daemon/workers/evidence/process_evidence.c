/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what /proc says of a rank that hangs. Happy path and failure modes: process_evidence.h. A process that is
 * traced or in execve may keep a reader of some of them for a moment; none waits for the process's memory. */
#include "daemon/workers/evidence/process_evidence.h"

#include "base/check.h"
#include "base/cleanup.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES    4096
#define STATUS_BYTES  4096
#define THREADS_MAX   256 /* of one process */
#define PROCESSES_MAX 32  /* of one rank */
#define XIDS_MAX      100
#define KMSG_BYTES    8192 /* the kernel's longest record */

/* Reads what fits; bytes, or -1 with errno. dir: of /proc. */
static ssize_t read_small(int dir, const char *name, char *buf, size_t size)
{
	ptc_auto_close int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);

	buf[n > 0 ? n : 0] = '\0';
	return n;
}

static void chomp(char *s)
{
	size_t n = strlen(s);

	while (n && isspace((unsigned char)s[n - 1]))
		s[--n] = '\0';
}

/* The line that begins so, without that; "": there is none. */
static void status_line(const char *status, const char *key, char *ret, size_t size)
{
	const char *at = strstr(status, key);

	snprintf(ret, size, "%.*s", at ? (int)strcspn(at + strlen(key), "\n") : 0, at ? at + strlen(key) : "");
}

static void put_indented(struct ptc_buf *b, const char *text)
{
	for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n')
		ptc_buf_printf(b, "    %.*s\n", (int)strcspn(p, "\n"), p);
}

static void put_file(struct ptc_buf *b, int dir, const char *name)
{
	char text[FILE_BYTES];
	ssize_t n = read_small(dir, name, text, sizeof text);

	chomp(text);
	if (n < 0)
		ptc_buf_printf(b, "    %s: %s\n", name, strerror(errno));
	else if (strchr(text, '\n'))
		put_indented(b, text);
	else
		ptc_buf_printf(b, "    %s: %s\n", name, *text ? text : "nothing");
}

static void put_thread(struct ptc_buf *b, int tasks, const char *id)
{
	ptc_auto_close int dir = openat(tasks, id, O_PATH | O_DIRECTORY | O_CLOEXEC);
	char status[STATUS_BYTES], comm[64], state[64];

	if (dir < 0 || read_small(dir, "status", status, sizeof status) < 0)
		return; /* it has ended */
	(void)read_small(dir, "comm", comm, sizeof comm);
	chomp(comm);
	status_line(status, "\nState:\t", state, sizeof state);
	ptc_buf_printf(b, "  thread %s %s: %s\n", id, comm, state);
	put_file(b, dir, "wchan");
	put_file(b, dir, "syscall");
	put_file(b, dir, "stack");
}

static void put_status(struct ptc_buf *b, int dir)
{
	static const char *const keys[] = { "\nState:\t",   "\nPPid:\t",  "\nTracerPid:\t", "\nUid:\t",
					    "\nThreads:\t", "\nVmRSS:\t", "\nSigCgt:\t" };
	char status[STATUS_BYTES], value[128];

	if (read_small(dir, "status", status, sizeof status) < 0)
		return;
	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++) {
		status_line(status, keys[i], value, sizeof value);
		if (*value)
			ptc_buf_printf(b, "  %.*s %s\n", (int)strcspn(keys[i] + 1, "\t"), keys[i] + 1, value);
	}
}

/* Adds to ids those that the thread has started. */
static void add_children(int tasks, const char *id, pid_t *ids, size_t *n)
{
	ptc_auto_close int dir = openat(tasks, id, O_PATH | O_DIRECTORY | O_CLOEXEC);
	char text[FILE_BYTES], *save = NULL;

	if (dir < 0 || read_small(dir, "children", text, sizeof text) <= 0)
		return;
	for (char *w = strtok_r(text, " ", &save); w && *n < PROCESSES_MAX; w = strtok_r(NULL, " ", &save))
		ids[(*n)++] = (pid_t)strtol(w, NULL, 10);
}

static void put_process(struct ptc_buf *b, pid_t pid, pid_t *ids, size_t *n, size_t max)
{
	char path[32], comm[64];
	ptc_auto_close int dir = -1, tasks = -1;
	size_t threads = 0;
	struct dirent *e;
	int copy;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d", (int)pid);
	dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	tasks = dir < 0 ? -1 : openat(dir, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	copy = tasks < 0 ? -1 : fcntl(tasks, F_DUPFD_CLOEXEC, 0);
	d = copy < 0 ? NULL : fdopendir(copy);
	if (!d) {
		ptc_close(&copy);
		ptc_buf_printf(b, "process %d: has ended\n", (int)pid);
		return;
	}
	(void)read_small(dir, "comm", comm, sizeof comm);
	chomp(comm);
	ptc_buf_printf(b, "process %d %s\n", (int)pid, comm);
	put_status(b, dir);
	while (b->len <= max && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		if (threads++ < THREADS_MAX)
			put_thread(b, tasks, e->d_name);
		add_children(tasks, e->d_name, ids, n);
	}
	closedir(d);
	if (threads > THREADS_MAX)
		ptc_buf_printf(b, "  %zu more threads are left out\n", threads - THREADS_MAX);
}

void ptc_evidence_process(struct ptc_buf *b, pid_t pid, size_t max)
{
	static const char left_out[] = "the rest is left out\n";
	pid_t ids[PROCESSES_MAX] = { pid };
	size_t n = 1;

	for (size_t i = 0; i < n && b->len <= max; i++)
		put_process(b, ids[i], ids, &n, max);
	if (n == PROCESSES_MAX)
		ptc_buf_printf(b, "more processes than these %d are left out\n", PROCESSES_MAX);
	if (b->len <= max || max < sizeof left_out)
		return;
	b->len = max - (sizeof left_out - 1);
	while (b->len && b->data[b->len - 1] != '\n')
		b->len--;
	ptc_buf_puts(b, left_out);
}

bool ptc_evidence_catches(pid_t pid, int sig)
{
	char path[32], status[STATUS_BYTES], mask[32];
	ptc_auto_close int dir = -1;

	snprintf(path, sizeof path, "/proc/%d", (int)pid);
	dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 || read_small(dir, "status", status, sizeof status) <= 0)
		return false;
	status_line(status, "\nSigCgt:\t", mask, sizeof mask);
	return strtoull(mask, NULL, 16) >> (sig - 1) & 1;
}

/* A line of the kernel's log: "6,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, ...", the third number in µs. */
static void put_kernel_line(struct ptc_buf *b, const char *line)
{
	const char *text = strchr(line, ';');
	unsigned long long us = 0;

	if (!text || sscanf(line, "%*[^,],%*[^,],%llu", &us) != 1)
		return;
	ptc_buf_printf(b, "  %llu.%06llu s after boot: %s\n", us / 1000000, us % 1000000, text + 1);
}

/* One record a read, unless it is a file of a test. */
static void take_lines(char *buf, char last[][256], size_t *n)
{
	char *save = NULL;

	for (char *l = strtok_r(buf, "\n", &save); l; l = strtok_r(NULL, "\n", &save))
		if (strstr(l, "Xid"))
			snprintf(last[(*n)++ % XIDS_MAX], sizeof last[0], "%s", l);
}

void ptc_evidence_kernel(struct ptc_buf *b, const char *path)
{
	ptc_auto_close int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	char buf[KMSG_BYTES + 1], last[XIDS_MAX][256];
	ssize_t got;
	size_t n = 0;

	if (fd < 0) {
		ptc_buf_printf(b, "the kernel's log: %s: %s\n", path, strerror(errno));
		return;
	}
	while ((got = read(fd, buf, sizeof buf - 1)) > 0 || (got < 0 && (errno == EPIPE || errno == EINTR))) {
		if (got < 0)
			continue; /* records were overwritten before they were read */
		buf[got] = '\0';
		take_lines(buf, last, &n);
	}
	if (got < 0 && errno != EAGAIN)
		ptc_buf_printf(b, "the kernel's log: %s: %s\n", path, strerror(errno));
	else
		ptc_buf_printf(b, "the kernel's log has %zu lines about errors of devices (Xid)%s\n", n,
			       n > XIDS_MAX ? "; the last ones:"
			       : n          ? ":"
					    : "");
	for (size_t i = n > XIDS_MAX ? n - XIDS_MAX : 0; i < n; i++)
		put_kernel_line(b, last[i % XIDS_MAX]);
}
