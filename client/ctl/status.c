// SPDX-License-Identifier: Apache-2.0
/* ptcctl status: the jobs; of one, all that is known. */
#include "client/ctl/verbs.h"

#include "base/check.h"

static const struct ctl_column columns[] = {
	{ "job", NULL, NULL },
	{ "phase", NULL, NULL },
	{ "generation", NULL, NULL },
	{ "snapshot", NULL, NULL },
	{ "step", NULL, NULL },
	{ "config", NULL, NULL },
	{ "state_bytes", NULL, NULL },
	{ "bytes_done", NULL, "moved_bytes" },
	{ "bytes_total", NULL, "of_bytes" },
	{ "controller", NULL, NULL },
};

static int run(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_status(c->admin, c->args[0], &json, err);
	if (!rc)
		rc = ctl_print_columns(c, json, "jobs", columns, PTC_ARRAY_LEN(columns), err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_status = {
	.name = "status",
	.args = "[JOB]",
	.about = "Show a job, or all jobs: generation, configuration, what is going on",
	.max_args = 1,
	.run = run,
};
