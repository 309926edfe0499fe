// SPDX-License-Identifier: Apache-2.0
/* ptcctl verify. */
#include "client/ctl/files/files.h"
#include "client/ctl/show/show.h"

static int run(struct ctl *c, struct ptc_error *err)
{
	struct ctl_follow follow = { 0 };
	int rc = ctl_connect(c, err);

	if (rc)
		return rc;
	ctl_progress_init(&follow.progress);
	rc = ptc_admin_verify(c->admin, c->args[0], ctl_follow_fn, &follow, err);
	return ctl_follow_end(c, &follow, rc, err);
}

const struct ctl_verb ctl_verify = {
	.name = "verify",
	.args = "[JOB]",
	.about = "Read every block on every node again and compare digests",
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
