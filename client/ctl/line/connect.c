/* SPDX-License-Identifier: Apache-2.0 */
/* Connects a verb of ptcctl to a daemon, and deals with signals and with output that may have lost its reader. */
#include "client/ctl/line/ctl.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	(void)number;
	interrupted = 1;
}

/* What a shell or nohup had us ignore stays ignored. */
static void handle_signal(int number, void (*handler)(int), int flags)
{
	struct sigaction sa = { .sa_handler = handler, .sa_flags = flags }, was;

	if (!sigaction(number, NULL, &was) && was.sa_handler != SIG_IGN)
		sigaction(number, &sa, NULL);
}

void ctl_catch_signals(void)
{
	handle_signal(SIGINT, on_signal, 0);
	handle_signal(SIGTERM, on_signal, 0);
	handle_signal(SIGHUP, on_signal, 0);
}

/* The signal has its default again, and ends us when this returns. */
static void on_leave(int number)
{
	static const char text[] =
		"\nptcctl: interrupted; work that the daemon has begun goes on (ptcctl status, ptcctl abort)\n";
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);

	(void)n;
	raise(number);
}

void ctl_leave_on_signals(void)
{
	handle_signal(SIGINT, on_leave, (int)SA_RESETHAND);
	handle_signal(SIGTERM, on_leave, (int)SA_RESETHAND);
}

bool ctl_interrupted(void)
{
	return interrupted;
}

bool ctl_flush(struct ctl *c)
{
	if (fflush(stdout))
		c->output_errno = errno;
	return c->output_errno || ctl_interrupted();
}

int ctl_connect(struct ctl *c, struct ptc_error *err)
{
	return c->admin ? 0 : ptc_admin_open(&c->opts, &c->admin, err);
}
