// SPDX-License-Identifier: Apache-2.0
/* ptcctl snapshots: prints the daemon's document. */
#include "client/ctl/verbs.h"

static int run(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_snapshots(c->admin, c->args[0], &json, err);
	if (!rc)
		rc = ctl_print(c, json, err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_snapshots = {
	.name = "snapshots",
	.args = "JOB",
	.about = "List a job's snapshots",
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
