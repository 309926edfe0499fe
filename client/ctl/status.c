// SPDX-License-Identifier: Apache-2.0
/* ptcctl status: prints the daemon's document. */
#include "client/ctl/verbs.h"

static int run(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_status(c->admin, c->args[0], &json, err);
	if (!rc)
		rc = ctl_print(c, json, err);
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
