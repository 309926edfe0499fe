/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl rollback: the state of an older snapshot. If the job runs, it is first ended without another snapshot, and
 * started again afterwards. End, rollback and start are three switches. With --skip-data the job is ended with a
 * snapshot, which records the job's position in its data. Failure: switches that are done stay, and the error says what
 * is left to do. */
#include "client/ctl/jobs/jobs.h"

#include "base/cleanup.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <ptc/admin_older.h>
#include <string.h>

static const struct ctl_option options[] = {
	{ "to", "STEP|snap-N", "the snapshot, by its step or its number (ptcctl snapshots)" },
	{ "skip-data", NULL, "keep the present position in the data; do not return to the snapshot's" },
};

enum state { AT_REST, LIVE, RECOVERING };

static int runs(struct ctl *c, const char *job, enum state *ret_runs, struct ptc_error *err)
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
	*ret_runs = state && !strcmp(state, "live")         ? LIVE
		    : state && !strcmp(state, "recovering") ? RECOVERING
							    : AT_REST;
	json_decref(doc);
	return 0;
}

/* What is asked for. */
struct back {
	const char *job;
	uint64_t snapshot;
	bool skip_data;
	enum state was;
};

enum part { END, GO_BACK, START };

static int do_part(struct ctl *c, const struct back *b, enum part part, struct ptc_error *err)
{
	const struct ptc_admin_target same = { .size = sizeof same, .job = b->job };
	struct ctl_follow follow = { 0 };
	int rc;

	ctl_progress_init(&follow.progress);
	if (part == END) /* only ranks that run can say how far they have come */
		rc = ptc_admin_stop(c->admin, b->job, !b->skip_data || b->was != LIVE, ctl_follow_fn, &follow, err);
	else if (part == START)
		rc = ptc_admin_run(c->admin, &same, ctl_follow_fn, &follow, err);
	else if (b->skip_data)
		rc = ptc_admin_rollback_skip(c->admin, b->job, b->snapshot, ctl_follow_fn, &follow, err);
	else
		rc = ptc_admin_rollback(c->admin, b->job, b->snapshot, ctl_follow_fn, &follow, err);
	return ctl_follow_end(c, &follow, rc, err);
}

/* Before ranks end: whether the job can go back at all. */
static int check(struct ctl *c, const struct back *b, struct ptc_error *err)
{
	int rc;

	if (b->skip_data)
		return ptc_admin_rollback_skip_check(c->admin, b->job, b->snapshot, err);
	rc = ptc_admin_rollback_check(c->admin, b->job, b->snapshot, err);
	return rc == PTC_ESTATE ? 0 : rc; /* a daemon that is older says that the job runs, and finds out afterwards */
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *to = ctl_option(c, "to");
	struct back b = { .job = c->args[0], .skip_data = ctl_option(c, "skip-data") };
	int rc;

	if (!to)
		return ctl_usage(err, "needs --to STEP, or --to snap-N; ptcctl snapshots lists them");
	rc = ctl_snapshot_choose(c, b.job, to, true, &b.snapshot, err);
	if (!rc)
		rc = runs(c, b.job, &b.was, err);
	if (rc)
		return rc;
	ctl_leave_on_signals();
	if (b.was != AT_REST)
		rc = check(c, &b, err);
	if (!rc && b.was != AT_REST)
		rc = do_part(c, &b, END, err);
	if (rc)
		return rc;
	rc = do_part(c, &b, GO_BACK, err);
	if (rc && b.was != AT_REST)
		return ptc_error_wrap(err, "the job's ranks have ended, and its state is as it was (ptcctl run %s)",
				      b.job);
	if (rc || b.was == AT_REST)
		return rc;
	rc = do_part(c, &b, START, err);
	if (rc)
		ptc_error_wrap(err, "the job has gone back, and does not run (ptcctl run %s)", b.job);
	return rc;
}

const struct ctl_verb ctl_rollback = {
	.name = "rollback",
	.args = "[JOB]",
	.about = "Go back to an older snapshot",
	.help = "The job's tensors, its ranks' states, its position in the data and its step become those of\n"
		"the snapshot. The result gets a generation and a snapshot number of its own. So files and\n"
		"the ledger tell apart two steps with the same number.\n"
		"ptcctl first checks that the nodes have the whole snapshot. If the job runs, ptcctl then\n"
		"ends it as ptcctl stop --now does, and starts it again afterwards. Steps since the job's\n"
		"last snapshot are lost. The last snapshot stays as an older one, if the job keeps enough\n"
		"snapshots (keep in job.yaml).\n"
		"With --skip-data the job keeps its present position in the data. So it does not train again\n"
		"on samples that it has consumed since the snapshot. If the job runs, it is then ended with a\n"
		"snapshot, as by ptcctl stop. If it does not run, the position of its last snapshot counts.\n"
		"ptcctl dataset proof names the skipped positions. The program has to begin at the position\n"
		"of its cursor (ptc_cursor_get), not at a position that it computes from the step.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
