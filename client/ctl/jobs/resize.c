/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl resize: another configuration or number of devices for a job. Without --wait it returns when the switch has
 * been checked and accepted; the switch does not depend on us either way. */
#include "client/ctl/jobs/jobs.h"

#include "client/ctl/plans/plans.h"
#include "client/ctl/show/show.h"

static const struct ctl_option options[] = {
	CTL_TARGET_OPTIONS,
	{ "dry-run", NULL, "change nothing; show the plan, as ptcctl plan does" },
	{ "wait", NULL, "wait until the switch has ended, and print its summary" },
};

static int resize(struct ctl *c, const struct ctl_target *target, struct ptc_error *err)
{
	struct ctl_follow follow = { .detach = !ctl_option(c, "wait") };
	int rc;

	ctl_progress_init(&follow.progress);
	ctl_leave_on_signals();
	rc = ptc_admin_resize(c->admin, &target->t, ctl_follow_fn, &follow, err);
	return ctl_follow_end(c, &follow, rc, err);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	struct ctl_target target = { 0 };
	int rc;

	if (ctl_option(c, "dry-run"))
		return ctl_plan.run(c, err);
	if (!ctl_option(c, "config") && !ctl_option(c, "gpus"))
		return ctl_usage(err, "needs --config CONFIG or --gpus N");
	rc = ctl_target_get(c, c->args[0], &target, err);
	if (rc)
		return rc;
	rc = ctl_connect(c, err);
	if (!rc)
		rc = resize(c, &target, err);
	ctl_target_done(&target);
	return rc;
}

const struct ctl_verb ctl_resize = {
	.name = "resize",
	.args = "[JOB]",
	.about = "Move a job to another configuration",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
