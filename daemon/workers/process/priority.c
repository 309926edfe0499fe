/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path down: the file `low` is written, then each value. Happy path back: each process and thread that still has
 * a lowered value gets its old one, then the file is removed. At a process's end no file is written: nobody needs the
 * values before. Failure modes: priority.h. If ptcd is killed in between, the file is there, and the way back is taken
 * again. */
#include "daemon/workers/process/priority.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/child.h"
#include "base/sys/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NICE_MORE  10 /* about a tenth of what others get */
#define NICE_MAX   19
#define WEIGHT_END "1\n" /* the least */
#define OOM_MORE   500   /* half of all memory counts more */
#define OOM_MAX    1000
#define WEIGHT     "100\n" /* a new cgroup's */
#define WEIGHT_LOW "10\n"
#define PATH_BYTES 512
#define PASSES_MAX 8    /* over its processes: some may be started meanwhile */
#define PIDS_MAX   4096 /* of one process; what a rank starts is far less */

/* The file `low`. -1: it was not changed. */
struct low {
	int nice, nice_low;
	int oom, oom_low;
	int session, weight; /* 1: lowered */
};

/* ---- small files ------------------------------------------------------------- */

static bool write_text(const char *path, const char *text)
{
	ptc_auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

static bool write_number(const char *path, int n)
{
	char text[16];

	snprintf(text, sizeof text, "%d", n);
	return write_text(path, text);
}

static bool read_number(const char *path, int *ret)
{
	ptc_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[16] = "";

	return fd >= 0 && read(fd, text, sizeof text - 1) > 0 && sscanf(text, "%d", ret) == 1;
}

static const char *proc(char path[PATH_BYTES], pid_t pid, const char *name)
{
	snprintf(path, PATH_BYTES, "/proc/%d/%s", (int)pid, name);
	return path;
}

static const char *in_dir(char path[PATH_BYTES], const char *dir, const char *name)
{
	snprintf(path, PATH_BYTES, "%s/%s", dir, name);
	return path;
}

static bool note_write(const struct low *l)
{
	ptc_auto_close int fd = open("low", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);

	return fd >= 0 && dprintf(fd, "nice %d %d\noom %d %d\nsession %d\nweight %d\nend .\n", l->nice, l->nice_low,
				  l->oom, l->oom_low, l->session, l->weight) > 0;
}

static bool note_read(const char *dir, struct low *ret)
{
	char path[PATH_BYTES], text[256] = "";
	ptc_auto_close int fd = open(in_dir(path, dir, "low"), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	return fd >= 0 && read(fd, text, sizeof text - 1) > 0 &&
	       sscanf(text, "nice %d %d oom %d %d session %d weight %d end .", &ret->nice, &ret->nice_low, &ret->oom,
		      &ret->oom_low, &ret->session, &ret->weight) == 6;
}

/* ---- down ----------------------------------------------------------------------- */

static bool capable(unsigned cap)
{
	struct __user_cap_header_struct h = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct d[_LINUX_CAPABILITY_U32S_3];

	return syscall(SYS_capget, &h, d) == 0 && (d[cap / 32].effective & (UINT32_C(1) << (cap % 32)));
}

/* Whether we may give a process a lower nice value than it has. */
static bool may_take_back(int nice)
{
	struct rlimit l;

	return capable(CAP_SYS_NICE) || (getrlimit(RLIMIT_NICE, &l) == 0 && l.rlim_cur >= (rlim_t)(20 - nice));
}

/* What it is to be. The program has begun nothing yet, and has one thread. */
static struct low choose(pid_t pid, const char *cgroup)
{
	struct low l = { 0 };
	char path[PATH_BYTES];
	int n;

	l.weight = *cgroup && access(in_dir(path, cgroup, "cpu.weight"), W_OK) == 0;
	errno = 0;
	n = getpriority(PRIO_PROCESS, (id_t)pid);
	l.nice = l.nice_low = errno ? 0 : n;
	if (!l.weight && !errno && may_take_back(n)) {
		l.nice_low = PTC_MIN(n + NICE_MORE, NICE_MAX);
		/* without that right the kernel takes ten values a second of all processes together */
		l.session = capable(CAP_SYS_ADMIN) && access(proc(path, pid, "autogroup"), W_OK) == 0;
	}
	/* of a ptcd that the kernel spares: its programs are not spared (exec_main.c) */
	if (read_number(proc(path, pid, "oom_score_adj"), &n)) {
		l.oom = PTC_MAX(n, 0);
		l.oom_low = PTC_MIN(l.oom + OOM_MORE, OOM_MAX);
	}
	return l;
}

bool ptc_priority_lower(pid_t pid, const char *cgroup)
{
	const struct low l = choose(pid, cgroup);
	char path[PATH_BYTES];

	if (!note_write(&l))
		return false;
	if (l.weight)
		(void)write_text(in_dir(path, cgroup, "cpu.weight"), WEIGHT_LOW);
	if (l.nice_low != l.nice)
		(void)setpriority(PRIO_PROCESS, (id_t)pid, l.nice_low);
	if (l.session)
		(void)write_number(proc(path, pid, "autogroup"), NICE_MORE);
	if (l.oom_low != l.oom)
		(void)write_number(proc(path, pid, "oom_score_adj"), l.oom_low);
	return true;
}

/* ---- up ------------------------------------------------------------------------- */

struct pids {
	size_t n;
	pid_t of[PIDS_MAX];
};

static void add_from(struct pids *l, const char *path)
{
	ptc_auto_fclose FILE *f = fopen(path, "re");
	int pid;

	while (f && l->n < PIDS_MAX && fscanf(f, "%d", &pid) == 1)
		if (pid > 0) /* 0: one that our pid namespace does not show */
			l->of[l->n++] = pid;
}

/* Calls fn for each thread; the number of those for which it returned true. */
static unsigned each_thread(pid_t pid, bool (*fn)(int thread, void *arg), void *arg)
{
	char path[PATH_BYTES];
	DIR *d = opendir(proc(path, pid, "task"));
	struct dirent *e;
	unsigned n = 0;

	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			n += fn(atoi(e->d_name), arg);
	if (d)
		closedir(d);
	return n;
}

/* Its processes now: those of its cgroup, else those of its session. */
static void find_all(const struct ptc_process *p, struct pids *l)
{
	char path[PATH_BYTES];
	struct dirent *e;
	DIR *d;

	l->n = 0;
	if (*p->cgroup) {
		add_from(l, in_dir(path, p->cgroup, "cgroup.procs"));
		return;
	}
	d = opendir("/proc");
	while (d && (e = readdir(d)) && l->n < PIDS_MAX) {
		const pid_t pid = (pid_t)atoi(e->d_name);

		if (pid > 0 && getsid(pid) == p->pid)
			l->of[l->n++] = pid;
	}
	if (d)
		closedir(d);
}

static bool raise_thread(int thread, void *arg)
{
	const struct low *l = arg;
	int now;

	errno = 0;
	now = getpriority(PRIO_PROCESS, (id_t)thread);
	return !errno && now == l->nice_low && setpriority(PRIO_PROCESS, (id_t)thread, l->nice) == 0;
}

/* The number of values that were changed. */
static unsigned raise_process(pid_t pid, struct low *l)
{
	char path[PATH_BYTES];
	unsigned n = l->nice_low != l->nice ? each_thread(pid, raise_thread, l) : 0;
	int now;

	if (l->oom_low != l->oom && read_number(proc(path, pid, "oom_score_adj"), &now) && now == l->oom_low)
		n += write_number(path, l->oom);
	return n;
}

static bool is_there(const struct ptc_process *p)
{
	struct ptc_process_stat st;

	return p->pid > 1 && ptc_process_stat(p->pid, &st) && st.start_time == p->start_time;
}

bool ptc_priority_is_low(const struct ptc_process *p)
{
	struct low l;

	return note_read(p->dir, &l);
}

void ptc_priority_raise(const struct ptc_process *p)
{
	char path[PATH_BYTES];
	struct pids all;
	struct low l;
	unsigned changed = 1;

	if (!note_read(p->dir, &l))
		return;
	if (is_there(p)) {
		if (l.weight)
			(void)write_text(in_dir(path, p->cgroup, "cpu.weight"), WEIGHT);
		if (l.session)
			(void)write_number(proc(path, p->pid, "autogroup"), 0);
		for (int i = 0; i < PASSES_MAX && changed; i++) {
			changed = 0;
			find_all(p, &all);
			for (size_t k = 0; k < all.n; k++)
				changed += raise_process(all.of[k], &l);
		}
	}
	(void)ptc_sys_unlink(in_dir(path, p->dir, "low"), "process.low", NULL); /* else the next ptcd does */
}

/* ---- at its end ------------------------------------------------------------------ */

/* nice: of all threads of its process group. Where that is refused, the process is as quick as the others: no harm. */
static void set_end(const struct ptc_process *p, const char *weight, int nice, int session)
{
	char path[PATH_BYTES];

	if (*p->cgroup && write_text(in_dir(path, p->cgroup, "cpu.weight"), weight))
		return;
	(void)setpriority(PRIO_PGRP, (id_t)p->pid, nice);
	if (capable(CAP_SYS_ADMIN))
		(void)write_number(proc(path, p->pid, "autogroup"), session);
}

void ptc_priority_yield(const struct ptc_process *p)
{
	const int ours = getpriority(PRIO_PROCESS, 0);

	if (is_there(p))
		set_end(p, WEIGHT_END, may_take_back(ours) ? NICE_MAX : PTC_MIN(ours + NICE_MORE, NICE_MAX), NICE_MAX);
}

void ptc_priority_hurry(const struct ptc_process *p)
{
	const int ours = getpriority(PRIO_PROCESS, 0);

	if (is_there(p) && may_take_back(ours))
		set_end(p, WEIGHT, ours, 0);
}
