/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl stop and snapshot: both make a snapshot of a live job at a step boundary; after stop there are no ranks. stop
 * --now ends the ranks wherever they are. Once the daemon has accepted such a command, it does not depend on ptcctl any
 * more. */
#include "client/ctl/jobs/jobs.h"
#include "client/ctl/show/show.h"

static const struct ctl_option stop_options[] = {
	{ "now", NULL, "end the ranks without a boundary or a snapshot; their work since the last snapshot is lost" },
	{ "wait", NULL, "wait until the ranks have ended (the default)" },
};

static int run_stop(struct ctl *c, struct ptc_error *err)
{
	struct ctl_follow follow = { 0 };
	int rc = ctl_connect(c, err);

	if (rc)
		return rc;
	ctl_progress_init(&follow.progress);
	ctl_leave_on_signals();
	rc = ptc_admin_stop(c->admin, c->args[0], ctl_option(c, "now") != NULL, ctl_follow_fn, &follow, err);
	return ctl_follow_end(c, &follow, rc, err);
}

const struct ctl_verb ctl_stop = {
	.name = "stop",
	.args = "[JOB]",
	.about = "Stop a job's ranks at a step boundary and keep its state",
	.help = "Waits until the ranks have ended. ptcctl run JOB starts them again at the same step. Between\n"
		"the two commands, ptcctl resize can move the state.\n"
		"Use --now if ranks hang, or if ptc refuses their state. A switch under way is aborted first.\n"
		"The ranks are then told to exit, and killed after the job's `grace`.\n",
	CTL_OPTIONS(stop_options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run_stop,
};

static const struct ctl_option snapshot_options[] = {
	{ "wait", NULL, "wait until the snapshot is committed, and print its summary" },
};

static int run_snapshot(struct ctl *c, struct ptc_error *err)
{
	struct ctl_follow follow = { .detach = !ctl_option(c, "wait") };
	int rc = ctl_connect(c, err);

	if (rc)
		return rc;
	ctl_progress_init(&follow.progress);
	ctl_leave_on_signals();
	rc = ptc_admin_snapshot(c->admin, c->args[0], ctl_follow_fn, &follow, err);
	return ctl_follow_end(c, &follow, rc, err);
}

const struct ctl_verb ctl_snapshot = {
	.name = "snapshot",
	.args = "[JOB]",
	.about = "Take a snapshot of a job that runs; its ranks go on",
	.help = "The new snapshot replaces the one before it, unless the job keeps older ones (keep in\n"
		"job.yaml). The ranks wait while their bytes are copied.\n",
	CTL_OPTIONS(snapshot_options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run_snapshot,
};
