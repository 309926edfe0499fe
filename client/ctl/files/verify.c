/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl verify: has every block and digest of a job's state checked. */
#include "client/ctl/files/files.h"
#include "client/ctl/show/show.h"

static int run(struct ctl *c, struct ptc_error *err)
{
	struct ctl_follow follow = { 0 };
	int rc = ctl_connect(c, err);

	if (rc)
		return rc;
	ctl_progress_init(&follow.progress);
	rc = ctl_option(c, "repair") ? ptc_admin_repair(c->admin, c->args[0], ctl_follow_fn, &follow, err)
				     : ptc_admin_verify(c->admin, c->args[0], ctl_follow_fn, &follow, err);
	return ctl_follow_end(c, &follow, rc, err);
}

static const struct ctl_option options[] = {
	{ "repair", NULL, "heal damaged blocks from other nodes' copies" },
};

const struct ctl_verb ctl_verify = {
	.name = "verify",
	.args = "[JOB]",
	.about = "Read every block of a job on every node again, and compare digests",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
