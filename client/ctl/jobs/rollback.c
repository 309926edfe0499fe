/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl rollback: the state of an older snapshot. If the job runs, it is first ended without another snapshot, and
 * started again afterwards. End, rollback and start are three switches. Failure: switches that are done stay, and the
 * error says what is left to do. */
#include "client/ctl/jobs/jobs.h"

#include "base/cleanup.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <ptc/admin_older.h>
#include <string.h>

static const struct ctl_option options[] = {
	{ "to", "STEP|snap-N", "the snapshot, by its step or its number (ptcctl snapshots)" },
};

static int runs(struct ctl *c, const char *job, bool *ret_runs, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL;
	const char *state;
	json_t *doc = NULL;
	int rc = ptc_admin_status(c->admin, job, &text, err);

	if (!rc)
		rc = ptc_json_load("the daemon's answer", text, strlen(text), &doc, err);
	if (rc)
		return rc;
	state = json_string_value(
		json_object_get(json_object_get(json_array_get(json_object_get(doc, "jobs"), 0), "run"), "state"));
	*ret_runs = state && (!strcmp(state, "live") || !strcmp(state, "recovering"));
	json_decref(doc);
	return 0;
}

enum part { END, GO_BACK, START };

static int do_part(struct ctl *c, const char *job, enum part part, uint64_t snapshot, struct ptc_error *err)
{
	const struct ptc_admin_target same = { .size = sizeof same, .job = job };
	struct ctl_follow follow = { 0 };
	int rc;

	ctl_progress_init(&follow.progress);
	if (part == END)
		rc = ptc_admin_stop(c->admin, job, true, ctl_follow_fn, &follow, err);
	else if (part == GO_BACK)
		rc = ptc_admin_rollback(c->admin, job, snapshot, ctl_follow_fn, &follow, err);
	else
		rc = ptc_admin_run(c->admin, &same, ctl_follow_fn, &follow, err);
	return ctl_follow_end(c, &follow, rc, err);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *to = ctl_option(c, "to"), *job = c->args[0];
	uint64_t snapshot = 0;
	bool live = false;
	int rc;

	if (!to)
		return ctl_usage(err, "needs --to STEP, or --to snap-N; ptcctl snapshots lists them");
	rc = ctl_snapshot_choose(c, job, to, true, &snapshot, err);
	if (!rc)
		rc = runs(c, job, &live, err);
	if (rc)
		return rc;
	ctl_leave_on_signals();
	if (live) /* a daemon that is older says that the job runs, and finds out what lacks when ranks have ended */
		rc = ptc_admin_rollback_check(c->admin, job, snapshot, err);
	if (rc && rc != PTC_ESTATE)
		return rc;
	rc = 0;
	if (live)
		rc = do_part(c, job, END, 0, err);
	if (rc)
		return rc;
	rc = do_part(c, job, GO_BACK, snapshot, err);
	if (rc && live)
		return ptc_error_wrap(err, "the job's ranks have ended, and its state is as it was (ptcctl run %s)",
				      job);
	if (rc || !live)
		return rc;
	rc = do_part(c, job, START, 0, err);
	if (rc)
		ptc_error_wrap(err, "the job has gone back, and does not run (ptcctl run %s)", job);
	return rc;
}

const struct ctl_verb ctl_rollback = {
	.name = "rollback",
	.args = "[JOB]",
	.about = "Go back to an older snapshot",
	.help = "The job's state becomes that of the snapshot: tensors, the ranks' states, the place in the\n"
		"data, and the step. It gets a generation and a snapshot number of its own, so files and\n"
		"the ledger tell apart steps that are trained twice. ptcctl first checks that the nodes\n"
		"have all of the snapshot. If the job runs, it is then ended as by ptcctl stop --now, and\n"
		"started again afterwards. Steps since its last snapshot are lost. That snapshot stays as\n"
		"an older one, if the job keeps enough of them (keep in job.yaml).\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
