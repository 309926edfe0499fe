/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl abort: ends a switch before its second commit. */
#include "client/ctl/jobs/jobs.h"

static int run(struct ctl *c, struct ptc_error *err)
{
	int rc = ctl_connect(c, err);

	return rc ? rc : ptc_admin_abort(c->admin, c->args[0], 0, err);
}

const struct ctl_verb ctl_abort = {
	.name = "abort",
	.args = "[JOB]",
	.about = "End a switch or an import before its commit",
	.help = "The job keeps its generation. After its second commit a switch cannot be aborted.\n",
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
