/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: health_check.h. */
#include "daemon/gpu/node/health_check.h"
#include "daemon/gpu/node/node_devices.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/child.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_MAX 4096
#define KILLED_MS  2000 /* a process ends within, unless the kernel keeps it */
#define DRAIN_MAX  16   /* reads of what a command that has ended left in its pipe */
#define NOT_FOUND  127  /* a shell's exit status: there is no such program */
#define NOT_RUN    126

struct ptc_health_check {
	struct ptc_health_check_opts o;
	pthread_t thread;
	int stop;               /* an eventfd */
	struct ptc_child child; /* runs, or could not be ended */
	char said[256];         /* what the log said last; "": nothing, or all was well */
};

struct output {
	char text[OUTPUT_MAX + 1];
	size_t n;
};

/* True: nothing more comes. */
static bool read_some(int fd, struct output *out)
{
	char more[OUTPUT_MAX];
	ssize_t n = read(fd, more, sizeof more);
	size_t room = OUTPUT_MAX - out->n;

	if (n < 0)
		return errno != EAGAIN && errno != EINTR;
	memcpy(out->text + out->n, more, PTC_MIN((size_t)n, room));
	out->n += PTC_MIN((size_t)n, room);
	return n == 0;
}

static void drain(int fd, struct output *out)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	for (int i = 0; i < DRAIN_MAX && poll(&p, 1, 0) > 0; i++)
		if (read_some(fd, out))
			break;
	for (size_t i = 0; i < out->n; i++) /* whatever a program prints is one line of plain text elsewhere */
		if (out->text[i] != '\n' && (out->text[i] < ' ' || out->text[i] > '~'))
			out->text[i] = '?';
	out->text[out->n] = '\0';
}

enum end { ENDED, HANGS, STOPPED };

static enum end await(struct ptc_health_check *h, int fd, struct output *out)
{
	const int64_t until = ptc_sys_now_ns() + h->o.timeout_ms * 1000000;
	struct pollfd p[] = { { .fd = h->stop, .events = POLLIN },
			      { .fd = h->child.pidfd, .events = POLLIN },
			      { .fd = fd, .events = POLLIN } };

	for (;;) {
		int64_t left = (until - ptc_sys_now_ns()) / 1000000;

		if (left <= 0)
			return HANGS;
		if (poll(p, PTC_ARRAY_LEN(p), (int)PTC_MIN(left, 60000)) <= 0)
			continue;
		if (p[0].revents)
			return STOPPED;
		if (p[1].revents)
			return ENDED;
		if (p[2].revents && read_some(fd, out))
			p[2].fd = -1;
	}
}

/* Its whole session: nothing that it has started stays. Before it is reaped, for its number is not given away till
 * then. False: the kernel keeps it. */
static bool end_child(struct ptc_health_check *h, int *ret_status)
{
	(void)kill(-h->child.pid, SIGKILL);
	if (!ptc_child_wait(&h->child, KILLED_MS, ret_status))
		return false;
	ptc_child_close(&h->child);
	return true;
}

static void say(struct ptc_health_check *h, const char *text)
{
	if (strcmp(h->said, text) == 0)
		return;
	snprintf(h->said, sizeof h->said, "%s", text);
	if (*text)
		ptc_warn("health", "%s", text);
	else
		ptc_info("health", "the health command finds every device well");
}

/* ---- what it said ---------------------------------------------------------------- */

/* "device 3: reason"; SIZE_MAX: it is no such line. */
static size_t device_of(const char *line, size_t n, const char **ret_why)
{
	char *end;
	unsigned long i;

	if (strncmp(line, "device ", 7) != 0 || line[7] < '0' || line[7] > '9')
		return SIZE_MAX;
	i = strtoul(line + 7, &end, 10);
	if (*end != ':' || i >= n)
		return SIZE_MAX;
	*ret_why = end + 1 + strspn(end + 1, " ");
	return i;
}

static void put_why(char why[PTC_NODE_DEVICE_WHY], const char *text, int status)
{
	if (text && *text)
		snprintf(why, PTC_NODE_DEVICE_WHY, "%.*s", PTC_NODE_DEVICE_WHY - 1, text);
	else
		snprintf(why, PTC_NODE_DEVICE_WHY, "the health command has exit status %d", status);
}

/* The verdict of a command that ended with a status other than 0. Cuts the text into lines. */
static void judge(struct ptc_health_check *h, char *text, int status)
{
	char why[PTC_NODE_DEVICES_MAX][PTC_NODE_DEVICE_WHY] = { 0 }, said[sizeof h->said];
	const size_t n = ptc_node_devices_count(h->o.devices);
	const char *first = NULL, *reason;
	char *save = NULL;
	bool some = false;

	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		size_t i = device_of(line, n, &reason);

		first = first ? first : line;
		if (i == SIZE_MAX)
			continue;
		if (!why[i][0])
			put_why(why[i], reason, status);
		first = some ? first : line; /* that is what the log says then */
		some = true;
	}
	for (size_t i = 0; !some && i < n; i++)
		put_why(why[i], first, status);
	snprintf(said, sizeof said, "the health command finds %s not well: %.160s",
		 some ? "some devices" : "every device", first ? first : "it says nothing");
	say(h, said);
	ptc_node_devices_verdict(h->o.devices, why);
}

static void take(struct ptc_health_check *h, enum end end, int status, struct output *out)
{
	char none[PTC_NODE_DEVICES_MAX][PTC_NODE_DEVICE_WHY] = { 0 }, said[sizeof h->said];
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;

	if (end == HANGS)
		snprintf(said, sizeof said,
			 "the health command took longer than its `health.timeout` of %lld ms, and was killed; that "
			 "is no verdict",
			 (long long)h->o.timeout_ms);
	else if (WIFSIGNALED(status))
		snprintf(said, sizeof said, "the health command was ended by signal %d; that is no verdict",
			 WTERMSIG(status));
	else if (code == NOT_RUN || code == NOT_FOUND)
		snprintf(said, sizeof said,
			 "the health command could not run (exit status %d), and that is no verdict: %.120s", code,
			 out->text);
	else if (code)
		judge(h, out->text, code);
	else
		said[0] = '\0';
	if (end != HANGS && !WIFSIGNALED(status) && code && code != NOT_RUN && code != NOT_FOUND)
		return;
	say(h, said);
	if (!said[0])
		ptc_node_devices_verdict(h->o.devices, none);
}

/* ---- runs --------------------------------------------------------------------------- */

static int start(struct ptc_health_check *h, int *ret_fd, struct ptc_error *err)
{
	struct ptc_child_args args = {
		.path = h->o.argv[0], .argv = h->o.argv, .session = true, .default_signals = true, .ends_with_us = true
	};
	int fds[2], rc;

	if (pipe2(fds, O_CLOEXEC) != 0 || fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0)
		return ptc_error_errno(err, errno, "pipe");
	args.output = args.errors = fds[1];
	rc = ptc_child_start(&args, &h->child, err);
	close(fds[1]);
	if (rc)
		close(fds[0]);
	else
		*ret_fd = fds[0];
	return rc;
}

/* False: it is to stop. */
static bool run(struct ptc_health_check *h)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct output out = { .n = 0 };
	char said[sizeof h->said];
	int status = 0, fd = -1;
	enum end end;

	if (h->child.pid && !end_child(h, &status)) {
		say(h, "the health command that was killed has not ended, so it is not run again; that is no verdict");
		return true;
	}
	if (start(h, &fd, &err) != 0) {
		snprintf(said, sizeof said, "the health command cannot be run, and that is no verdict: %.160s",
			 err.text);
		say(h, said);
		return true;
	}
	end = await(h, fd, &out);
	if (end_child(h, &status) && end != STOPPED) {
		drain(fd, &out);
		take(h, end, status, &out);
	}
	close(fd);
	return end != STOPPED;
}

static void *run_all(void *arg)
{
	struct ptc_health_check *h = arg;
	struct pollfd p = { .fd = h->stop, .events = POLLIN };

	do {
		if (!run(h))
			break;
	} while (poll(&p, 1, (int)h->o.every_ms) <= 0);
	ptc_child_close(&h->child);
	return NULL;
}

int ptc_health_check_start(const struct ptc_health_check_opts *opts, struct ptc_health_check **ret,
			   struct ptc_error *err)
{
	struct ptc_health_check *h = ptc_calloc(1, sizeof *h);
	int rc;

	if (!h)
		return ptc_nomem(err);
	h->o = *opts;
	h->child = PTC_CHILD_NONE;
	h->stop = eventfd(0, EFD_CLOEXEC);
	rc = h->stop < 0 ? ptc_error_errno(err, errno, "eventfd")
			 : ptc_thread_start(&h->thread, "ptc-health", run_all, h, err);
	if (rc) {
		if (h->stop >= 0)
			close(h->stop);
		ptc_free(h);
		return rc;
	}
	*ret = h;
	return 0;
}

struct ptc_health_check *ptc_health_check_stop(struct ptc_health_check *h)
{
	const uint64_t one = 1;

	if (!h)
		return NULL;
	ptc_require(write(h->stop, &one, sizeof one) == sizeof one);
	pthread_join(h->thread, NULL);
	close(h->stop);
	ptc_free(h);
	return NULL;
}
