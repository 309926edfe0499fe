/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl snapshots: prints the daemon's document. */
#include "client/ctl/jobs/jobs.h"

#include "base/check.h"
#include "client/ctl/show/show.h"

static const struct ctl_column columns[] = {
	{ "snapshot", NULL, NULL },    { "generation", NULL, NULL }, { "step", NULL, NULL },
	{ "state", NULL, NULL },       { "bridge", NULL, NULL },     { "config", NULL, NULL },
	{ "state_bytes", NULL, NULL }, { "tensors", NULL, NULL },    { "fewest", "copies", "copies" },
	{ "manifest", NULL, NULL },
};

static int run(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_snapshots(c->admin, c->args[0], &json, err);
	if (!rc)
		rc = ctl_print_columns(c, json, "snapshots", columns, PTC_ARRAY_LEN(columns), err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_snapshots = {
	.name = "snapshots",
	.args = "[JOB]",
	.about = "List a job's snapshots",
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
