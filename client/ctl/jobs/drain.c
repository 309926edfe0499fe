/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl drain. */
#include "client/ctl/jobs/jobs.h"
#include "client/ctl/show/show.h"

static const struct ctl_option options[] = {
	{ "job", "JOB", "only this job; default: every job you may resize" },
	{ "undo", NULL, "allow ranks on the node again" },
	{ "wait", NULL, "follow it to its end" },
};

static int run(struct ctl *c, struct ptc_error *err)
{
	struct ctl_follow follow = { .detach = !ctl_option(c, "wait") && !ctl_option(c, "undo") };
	int rc;

	if (ctl_option(c, "undo") && ctl_option(c, "job"))
		return ctl_usage(err, "--undo is about the node, not about one job");
	rc = ctl_connect(c, err);
	if (rc)
		return rc;
	ctl_progress_init(&follow.progress);
	ctl_leave_on_signals();
	if (ctl_option(c, "undo"))
		rc = ptc_admin_undrain(c->admin, c->args[0], ctl_follow_fn, &follow, err);
	else
		rc = ptc_admin_drain(c->admin, c->args[0], ctl_option(c, "job"), ctl_follow_fn, &follow, err);
	return ctl_follow_end(c, &follow, rc, err);
}

const struct ctl_verb ctl_drain = {
	.name = "drain",
	.args = "NODE",
	.about = "Move everything off a node",
	.help = "Root also closes the node for new ranks, until --undo.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
