// SPDX-License-Identifier: Apache-2.0
/* ptcctl. Happy path: parse, run the verb, exit 0. Failure: exactly one line
 * on stderr, exit 1 (failed) or 2 (usage). */
#include "client/ctl/ctl.h"

#include "base/fault.h"
#include "base/sys.h"
#include "formats/json.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
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
	static const char text[] = "\nptcctl: interrupted; what was started goes on (ptcctl status, ptcctl abort)\n";
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

/* One line whatever the text holds. */
static void print_error(const struct ctl *c, const struct ptc_error *err)
{
	char text[PTC_ERROR_MAX];

	snprintf(text, sizeof(text), "%s", err->text[0] ? err->text : "failed");
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = ' ';
	fprintf(stderr, "ptcctl%s%s: %s\n", c->verb ? " " : "", c->verb ? c->verb->name : "", text);
}

static int run(struct ctl *c, int argc, char **argv, struct ptc_error *err)
{
	bool help = false;
	int rc = ctl_parse(c, argc, argv, &help, err);

	if (rc)
		return rc;
	if (help && c->verb)
		ctl_help_verb(c->verb, stdout);
	else if (help)
		ctl_help_all(stdout);
	else if (!c->verb)
		printf("ptcctl %s\n", PTC_VERSION);
	else
		rc = c->verb->run(c, err);
	if (c->output_errno)
		return ptc_error_errno(err, c->output_errno, "writing the output");
	if (!rc && (fflush(stdout) || ferror(stdout)))
		rc = ptc_error_errno(err, errno, "writing the output");
	return rc;
}

int main(int argc, char **argv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ctl c = { 0 };
	int rc;

	ptc_sys_standard_fds();
	ptc_fault_init();
	ptc_json_init();
	signal(SIGPIPE, SIG_IGN);
	rc = run(&c, argc, argv, &err);
	ptc_admin_close(c.admin);
	if (rc)
		print_error(&c, &err);
	return rc == CTL_USAGE ? 2 : rc ? 1 : 0;
}
