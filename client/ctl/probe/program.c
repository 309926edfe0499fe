/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: program.h. */
#include "client/ctl/probe/program.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TAIL_LINES 20
#define STRAYS_MS  5000 /* for killed processes to end */
#define SET_BY_US  24   /* variables, at most */

/* Ours come last and win. */
static bool ours(const char *entry)
{
	static const char *const names[] = {
		"PTC_WORKER_SOCKET=", "PTC_WORKER_TOKEN=", "PTC_JOB=",   "PTC_SEED=",
		"PTC_PROBE=",         "PTC_HUGE_PAGES=",   "RANK=",      "WORLD_SIZE=",
		"LOCAL_RANK=",        "LOCAL_WORLD_SIZE=", "NODE_RANK=", "CUDA_VISIBLE_DEVICES=",
		"PTC_DEVICES="
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++)
		if (!strncmp(entry, names[i], strlen(names[i])))
			return true;
	return false;
}

/* The list is the caller's, and points into `text`. */
static char **environment(const struct ctl_program_start *s, const char *token, struct ptc_buf *text)
{
	char *const *given = s->job->run.env;
	size_t n = 0, at = 0;
	bool threads = false;
	char **list;

	ptc_buf_printf(text, "PTC_PROBE=1%cPTC_WORKER_SOCKET=%s%cPTC_WORKER_TOKEN=%s%cPTC_JOB=%s%c", 0, s->socket, 0,
		       token, 0, s->name, 0);
	ptc_buf_printf(text, "PTC_SEED=%" PRIu64 "%cPTC_HUGE_PAGES=0%cCUDA_VISIBLE_DEVICES=%c", s->job->seed, 0, 0, 0);
	if (s->rank)
		ptc_buf_printf(text, "RANK=%u%cWORLD_SIZE=%u%cLOCAL_RANK=%u%cLOCAL_WORLD_SIZE=%u%cNODE_RANK=%u%c",
			       s->rank->rank, 0, s->rank->world, 0, s->rank->local_rank, 0, s->rank->local_world, 0,
			       s->rank->node_rank, 0);
	for (; given && given[n]; n++)
		threads = threads || !strncmp(given[n], "OMP_NUM_THREADS=", 16);
	if (!threads) /* shapes need no more */
		ptc_buf_printf(text, "OMP_NUM_THREADS=1%c", 0);
	list = ptc_buf_failed(text) ? NULL : ptc_calloc(n + SET_BY_US, sizeof *list);
	for (size_t i = 0; list && i < n; i++)
		if (!ours(given[i]))
			list[at++] = given[i];
	for (char *p = text->data; list && p < text->data + text->len; p += strlen(p) + 1)
		list[at++] = p;
	return list;
}

static int make_token(char ret[33], struct ptc_error *err)
{
	uint8_t b[16];
	int rc = ptc_sys_random(b, sizeof b, err);

	for (size_t i = 0; !rc && i < sizeof b; i++)
		snprintf(ret + 2 * i, 3, "%02x", b[i]);
	return rc;
}

static int start(const struct ctl_program_start *s, struct ctl_program *p, int output, struct ptc_error *err)
{
	struct ptc_buf text = PTC_BUF_INIT;
	ptc_auto_free char **env = environment(s, p->token, &text);
	struct ptc_child_args args = { .path = s->job->run.argv[0],
				       .argv = s->job->run.argv,
				       .envp = env,
				       .output = output,
				       .errors = output,
				       .session = true,
				       .default_signals = true,
				       .ends_with_us = true,
				       .dir = s->job->run.cwd };
	struct rlimit memory = { s->memory_bytes, s->memory_bytes };
	int rc = env ? ptc_child_start(&args, &p->child, err) : ptc_nomem(err);

	if (!rc)
		(void)prlimit(p->child.pid, RLIMIT_DATA, &memory, NULL); /* it may have ended */
	ptc_buf_done(&text);
	return rc;
}

int ctl_program_start(const struct ctl_program_start *s, struct ctl_program *ret, struct ptc_error *err)
{
	struct ctl_program p = { .child = PTC_CHILD_NONE, .output = -1 };
	int fds[2], rc = make_token(p.token, err);

	if (rc)
		return rc;
	if (pipe2(fds, O_CLOEXEC) != 0)
		return ptc_error_errno(err, errno, "pipe");
	p.output = fds[0];
	(void)fcntl(p.output, F_SETFL, O_NONBLOCK);
	rc = start(s, &p, fds[1], err);
	close(fds[1]);
	if (rc) {
		close(fds[0]);
		return rc;
	}
	*ret = p;
	return 0;
}

static void keep(struct ctl_program *p, const char *data, size_t n)
{
	size_t over = p->ntail + n > CTL_PROGRAM_TAIL ? p->ntail + n - CTL_PROGRAM_TAIL : 0;

	if (over) {
		size_t drop = PTC_MIN(over, p->ntail);

		memmove(p->tail, p->tail + drop, p->ntail - drop);
		p->ntail -= drop;
		p->cut = true;
	}
	if (n > CTL_PROGRAM_TAIL) {
		data += n - CTL_PROGRAM_TAIL;
		n = CTL_PROGRAM_TAIL;
	}
	memcpy(p->tail + p->ntail, data, n);
	p->ntail += n;
}

void ctl_program_read(struct ctl_program *p, bool show)
{
	char data[4096];
	ssize_t n;

	/* a bounded number of times: a program that never stops writing must not keep us from its limit of time */
	for (int i = 0; i < 16 && p->output >= 0; i++) {
		n = read(p->output, data, sizeof data);
		if (n == 0)
			ptc_close(&p->output);
		if (n <= 0)
			return;
		keep(p, data, (size_t)n);
		if (show)
			(void)!write(STDERR_FILENO, data, (size_t)n);
	}
}

/* Bytes that a terminal would not show as text become '?'. */
static void put_line(const char *line, size_t n)
{
	fputs("  | ", stderr);
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)line[i];

		putc((c < ' ' && c != '\t') || c == 0x7f ? '?' : c, stderr);
	}
	putc('\n', stderr);
}

void ctl_program_put_tail(const struct ctl_program *p)
{
	const char *begin = p->tail, *end = p->tail + p->ntail, *at;
	unsigned lines = 0;

	while (end > begin && end[-1] == '\n')
		end--;
	for (at = end; at > begin && lines < TAIL_LINES; at--)
		lines += at[-1] == '\n';
	if (lines == TAIL_LINES) {
		begin = at + 1;
	} else if (p->cut) {
		const char *first = memchr(begin, '\n', (size_t)(end - begin));

		begin = first ? first + 1 : begin;
	}
	while (begin < end) {
		const char *stop = memchr(begin, '\n', (size_t)(end - begin));

		stop = stop ? stop : end;
		put_line(begin, (size_t)(stop - begin));
		begin = stop + 1;
	}
	fflush(stderr);
}

void ctl_program_end(struct ctl_program *p, int *ret_status)
{
	int status = 0;

	if (p->child.pid) {
		kill(-p->child.pid, SIGKILL); /* the session's first process leads its group */
		ptc_child_signal(&p->child, SIGKILL);
		ptc_child_wait(&p->child, -1, &status);
		ptc_child_close(&p->child);
	}
	if (ret_status)
		*ret_status = status;
	ctl_program_read(p, false);
	ptc_close(&p->output);
}

/* ---- processes that have left their program's session ---- */

void ctl_program_adopt(void)
{
	(void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

/* The parent of a process; 0: there is no such process any more. */
static pid_t parent_of(const char *pid)
{
	char path[64], text[512];
	const char *at;
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	ptc_close(&fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	at = strrchr(text, ')'); /* behind the name, which may have any characters, and the state */
	return at && strlen(at) > 4 ? (pid_t)strtol(at + 4, NULL, 10) : 0;
}

/* A child that nobody has waited for keeps its number, so no other process is killed. */
static void kill_children(void)
{
	DIR *d = opendir("/proc");
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && parent_of(e->d_name) == getpid())
			kill((pid_t)strtol(e->d_name, NULL, 10), SIGKILL);
	if (d)
		closedir(d);
}

void ctl_program_end_strays(void)
{
	const struct timespec nap = { 0, 1000000 };
	pid_t ended = 0;

	/* Who is killed leaves its own children to us, until there are none. */
	for (int ms = 0; ended >= 0 && ms < STRAYS_MS; ms++) {
		kill_children();
		while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
			continue;
		if (ended == 0)
			nanosleep(&nap, NULL);
	}
}
