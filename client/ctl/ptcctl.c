/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl's main: finds the verb, and runs it. Happy path: parse, run the verb, exit 0. Failure: exactly one line on
 * stderr, exit 1 (failed) or 2 (usage). */
#include "client/ctl/verbs.h"

#include "base/alloc.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "formats/json.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
		rc = ctl_job_choose(c, err);
	if (!rc && !help && c->verb)
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
	ptc_free(c.chosen);
	if (rc)
		print_error(&c, &err);
	return rc == CTL_USAGE ? 2 : rc ? 1 : 0;
}
