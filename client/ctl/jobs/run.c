/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl run: starts a job's ranks, also of a new job (-f). With a description the job is created first, or, where it
 * exists, compared; then its ranks are started. --follow shows what they write until they have ended, and fails when
 * the job did. Failure: PTC_EEXIST for a job of another description; a job that was created and could not be started
 * stays, and the error says so. */
#include "client/ctl/jobs/jobs.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "client/ctl/show/show.h"
#include "formats/job/job.h"
#include "formats/json.h"

#include <string.h>

static const struct ctl_option options[] = {
	{ "file", "FILE", "the job's description (docs/job.md); creates the job if it does not exist", 'f' },
	CTL_TARGET_OPTIONS,
	{ "wait", NULL, "wait until the ranks train, and print the summary" },
	{ "follow", NULL, "show the output of all ranks until the job has ended; exit status 1 if the job failed" },
};

/* The one job in a status document, borrowed from *ret_doc. */
static int get_job(struct ctl *c, const char *job, json_t **ret_doc, const json_t **ret_row, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL;
	int rc = ptc_admin_status(c->admin, job, &text, err);

	if (!rc)
		rc = ptc_json_load("the daemon's answer", text, strlen(text), ret_doc, err);
	if (!rc)
		*ret_row = json_array_get(json_object_get(*ret_doc, "jobs"), 0);
	return rc;
}

static int hash_of(const char *spec, size_t len, char ret_hex[33], struct ptc_error *err)
{
	struct ptc_job_desc desc;
	int rc = ptc_job_from_json(spec, len, &desc, err);

	if (rc)
		return rc;
	rc = ptc_job_hash(&desc, ret_hex, err);
	ptc_job_desc_done(&desc);
	return rc;
}

/* A job of that name exists: it has to be the one the file describes. */
static int compare(struct ctl *c, const char *file, const char *job, const char *spec, size_t len,
		   struct ptc_error *err)
{
	json_t *doc = NULL;
	const json_t *row = NULL;
	const char *theirs;
	char ours[33];
	int rc = get_job(c, job, &doc, &row, err);

	if (rc == PTC_ENOTFOUND)
		return ptc_error_set(err, PTC_ECONFLICT, "job \"%s\" is being created or deleted; try again", job);
	if (rc)
		return rc;
	rc = hash_of(spec, len, ours, err);
	if (rc) {
		json_decref(doc);
		return rc;
	}
	theirs = json_string_value(json_object_get(row, "spec_hash"));
	if (!theirs)
		rc = ptc_error_set(err, PTC_EVERSION,
				   "job \"%s\" exists, and the daemon does not say how it is described; "
				   "leave out --file to run it",
				   job);
	else if (strcmp(theirs, ours) != 0)
		rc = ptc_error_set(
			err, PTC_EEXIST,
			"job \"%s\" exists with another description than %s; run it as it is (ptcctl run %s), "
			"or delete it first (ptcctl job delete %s)",
			job, file, job, job);
	json_decref(doc);
	return rc;
}

/* The job of the file exists afterwards. */
static int create(struct ctl *c, const char *file, char **ret_job, bool *ret_created, struct ptc_error *err)
{
	ptc_auto_free char *spec = NULL, *uuid = NULL, *json = NULL;
	json_t *created = NULL;
	char *job = NULL;
	size_t len = 0;
	int rc = ctl_job_read(c, file, &job, &spec, &len, err);

	if (!rc)
		rc = ctl_connect(c, err);
	if (!rc)
		rc = ptc_admin_job_create(c->admin, spec, len, &uuid, &json, err);
	*ret_created = !rc;
	if (!rc && ptc_json_load("the daemon's answer", json, strlen(json), &created, NULL) == 0)
		ctl_job_note_loss(c, created);
	json_decref(created);
	if (rc == PTC_EEXIST)
		rc = compare(c, file, job, spec, len, err);
	if (rc) {
		ptc_free(job);
		return rc;
	}
	*ret_job = job;
	return 0;
}

/* How the job ended, in one line and our status. */
static int put_end(struct ctl *c, const char *job, struct ptc_error *err)
{
	const json_t *row = NULL, *run;
	const char *state, *text;
	json_t *doc = NULL;
	int rc = get_job(c, job, &doc, &row, err);

	if (rc)
		return rc;
	run = json_object_get(row, "run");
	state = json_string_value(json_object_get(run, "state"));
	text = json_string_value(json_object_get(run, "text"));
	if (state && !strcmp(state, "failed"))
		rc = ptc_error_set(err, PTC_ESTATE, "job %s failed: %s", job,
				   text && *text ? text : "see ptcctl events");
	else if (!c->json)
		printf("job %s: %s, snapshot of step %" JSON_INTEGER_FORMAT "\n", job, state ? state : "ended",
		       json_integer_value(json_object_get(row, "step")));
	json_decref(doc);
	return rc;
}

static int start(struct ctl *c, const struct ctl_target *target, bool created, struct ptc_error *err)
{
	const struct ptc_admin_logs what = { .size = sizeof what, .job = target->t.job, .all = true, .follow = true };
	bool follow = ctl_option(c, "follow") != NULL;
	struct ctl_follow f = { .detach = !follow && !ctl_option(c, "wait") };
	int rc;

	ctl_progress_init(&f.progress);
	ctl_leave_on_signals();
	rc = ptc_admin_run(c->admin, &target->t, ctl_follow_fn, &f, err);
	rc = ctl_follow_end(c, &f, rc, err);
	if (rc && created)
		ptc_error_wrap(err, "job %s was created but not started", target->t.job);
	if (rc || !follow)
		return rc;
	fflush(stdout);
	rc = ctl_logs_show(c, &what, err);
	return rc ? rc : put_end(c, target->t.job, err);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *file = ctl_option(c, "file");
	struct ctl_target target = { 0 };
	ptc_auto_free char *named = NULL;
	bool created = false;
	int rc;

	if ((file != NULL) == (c->nargs == 1))
		return ctl_usage(err, "needs --file FILE, or the JOB that is to run again, and not both");
	rc = ctl_target_get(c, c->args[0], &target, err);
	if (rc)
		return rc;
	rc = file ? create(c, file, &named, &created, err) : ctl_connect(c, err);
	if (!rc && named)
		target.t.job = named;
	if (created && !c->json)
		printf("job %s created\n", target.t.job);
	fflush(stdout);
	if (!rc)
		rc = start(c, &target, created, err);
	ctl_target_done(&target);
	return rc;
}

const struct ctl_verb ctl_run = {
	.name = "run",
	.args = "-f FILE | [JOB]",
	.about = "Start the ranks of a new job, or start a job's ranks again",
	.help = "A job that ran before goes on from its newest snapshot. Without --gpus and --config it keeps\n"
		"its configuration. A new job gets the largest entry of its `gpus` table for which there are\n"
		"devices. If you interrupt --follow, the job goes on; ptcctl stop ends it.\n",
	CTL_OPTIONS(options),
	.max_args = 1,
	.job_missing = ctl_job_missing_without_file,
	.run = run,
};
