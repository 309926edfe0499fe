/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl run: starts a job's ranks, also of a new job (-f). With a description the job is created first, or, where it
 * exists, compared; with --from it then gets a checkpoint's state; then its ranks are started. --follow shows what they
 * write until they have ended, and fails when the job did. Failure: PTC_EEXIST for a job of another description; a job
 * that was created and could not be started stays, and the error says so. If a checkpoint cannot be imported, the job
 * is as it was, and one that was created for it is deleted. */
#include "client/ctl/jobs/jobs.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "client/ctl/archive/archive.h"
#include "client/ctl/files/import.h"
#include "client/ctl/show/show.h"
#include "formats/job/job.h"
#include "formats/json.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#define UNDO_PAUSE_MS 50
#define UNDO_TRIES    200

static const struct ctl_option options[] = {
	{ "file", "FILE", "the job's description (docs/job.md); creates the job if it does not exist", 'f' },
	{ "from", "DIR", "begin with the state of the checkpoint DIR, or of the newest one in the archive DIR" },
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

/* The job of the file exists afterwards. *ret_created: what the daemon says of it, if it is new. */
static int create(struct ctl *c, const char *file, const char *job, const char *spec, size_t len, json_t **ret_created,
		  struct ptc_error *err)
{
	ptc_auto_free char *uuid = NULL, *json = NULL;
	int rc = ptc_admin_job_create(c->admin, spec, len, &uuid, &json, err);

	if (rc == PTC_EEXIST)
		return compare(c, file, job, spec, len, err);
	if (!rc && ptc_json_load("the daemon's answer", json, strlen(json), ret_created, NULL))
		*ret_created = json_object(); /* nothing that a person has to read */
	return rc;
}

/* ---- a checkpoint's state ---- */

/* Whole, before anything is made. */
static int open_checkpoint(const char *dir, const char *job, struct ctl_ck_source *ret, struct ptc_error *err)
{
	const char *name = strchr(job, ':'); /* UID:NAME */
	ptc_auto_free char *path = ctl_ck_is(dir) ? ptc_strdup(dir) : NULL;
	int rc = path ? 0 : ctl_archive_find(dir, name ? name + 1 : job, &path, err);

	return rc ? rc : ctl_ck_open(path, ret, err);
}

static int check_empty(struct ctl *c, const char *job, struct ptc_error *err)
{
	json_t *doc = NULL;
	const json_t *row = NULL;
	int rc = get_job(c, job, &doc, &row, err);

	if (!rc && json_is_true(json_object_get(row, "has_state")))
		rc = ptc_error_set(
			err, PTC_ESTATE,
			"job %s has state already, of step %" PRIu64
			": `ptcctl run %s` goes on with it; to begin with a checkpoint, delete the job first "
			"(ptcctl job delete %s)",
			job, ptc_json_count(row, "step"), job, job);
	json_decref(doc);
	return rc;
}

/* Whether the ranks can run as they are asked to, before bytes move. */
static int check_target(struct ctl *c, const struct ctl_target *target, struct ptc_error *err)
{
	ptc_auto_free char *plan = NULL;
	int rc;

	if (!target->t.config && !target->t.gpus)
		return 0;
	rc = ptc_admin_plan(c->admin, &target->t, &plan, err);
	return rc ? ptc_error_wrap(err, "job %s cannot run under %s", target->t.job,
				   target->t.config ? target->t.config : "that number of devices")
		  : 0;
}

/* A job that was made for a checkpoint which it has not got. An import that was aborted may still be ending. */
static void undo(struct ctl *c, const char *job, struct ptc_error *err)
{
	const struct timespec pause = { 0, UNDO_PAUSE_MS * INT64_C(1000000) };
	struct ptc_error ignored = PTC_ERROR_INIT;
	int rc = PTC_ESTATE;

	for (int i = 0; i < UNDO_TRIES && rc == PTC_ESTATE && !check_empty(c, job, &ignored); i++) {
		rc = ptc_admin_job_delete(c->admin, job, &ignored);
		if (rc == PTC_ESTATE)
			nanosleep(&pause, NULL);
	}
	if (rc)
		ptc_error_wrap(err, "job %s was created, and is still there (ptcctl status %s)", job, job);
}

static int fill(struct ctl *c, const struct ctl_target *target, struct ctl_ck_source *checkpoint, bool created,
		struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_strdup(checkpoint->dir);
	uint64_t step = checkpoint->resume.step;
	const char *job = target->t.job;
	int rc = path ? check_empty(c, job, err) : ptc_nomem(err);

	if (!rc)
		rc = check_target(c, target, err);
	if (!rc)
		rc = ctl_import_checkpoint(c, target, checkpoint, err);
	if (rc && created)
		undo(c, job, err);
	if (!rc)
		fprintf(c->json ? stderr : stdout, "job %s has the state of %s, step %" PRIu64 "\n", job, path, step);
	return rc;
}

/* ---- the ranks ---- */

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

static int start(struct ctl *c, const struct ctl_target *target, bool created, bool filled, struct ptc_error *err)
{
	const struct ptc_admin_logs what = { .size = sizeof what, .job = target->t.job, .all = true, .follow = true };
	bool follow = ctl_option(c, "follow") != NULL;
	struct ctl_follow f = { .detach = !follow && !ctl_option(c, "wait") };
	int rc;

	ctl_progress_init(&f.progress);
	ctl_leave_on_signals();
	rc = ptc_admin_run(c->admin, &target->t, ctl_follow_fn, &f, err);
	rc = ctl_follow_end(c, &f, rc, err);
	if (rc && filled)
		ptc_error_wrap(err, "job %s has the checkpoint's state but was not started (ptcctl run %s)",
			       target->t.job, target->t.job);
	else if (rc && created)
		ptc_error_wrap(err, "job %s was created but not started", target->t.job);
	if (rc || !follow)
		return rc;
	fflush(stdout);
	rc = ctl_logs_show(c, &what, err);
	return rc ? rc : put_end(c, target->t.job, err);
}

static int begin(struct ctl *c, struct ctl_target *target, struct ctl_ck_source *checkpoint, struct ptc_error *err)
{
	const char *file = ctl_option(c, "file"), *from = ctl_option(c, "from");
	ptc_auto_free char *named = NULL, *spec = NULL, *config = NULL;
	json_t *created = NULL;
	size_t len = 0;
	int rc = file ? ctl_job_read(c, file, &named, &spec, &len, err) : 0;

	if (!rc && file)
		target->t.job = named;
	if (!rc && from)
		rc = open_checkpoint(from, target->t.job, checkpoint, err);
	if (!rc && checkpoint->config && !target->t.config && !target->t.gpus) {
		config = ptc_strdup(checkpoint->config);
		target->t.config = config;
		rc = config ? 0 : ptc_nomem(err);
	}
	if (!rc)
		rc = ctl_connect(c, err);
	if (!rc && file)
		rc = create(c, file, named, spec, len, &created, err);
	if (!rc && from)
		rc = fill(c, target, checkpoint, created != NULL, err);
	if (!rc && created)
		ctl_job_note_loss(c, created);
	if (!rc && created && !c->json)
		printf("job %s created\n", target->t.job);
	fflush(stdout);
	if (!rc)
		rc = start(c, target, created != NULL, from != NULL, err);
	json_decref(created);
	return rc;
}

static int run(struct ctl *c, struct ptc_error *err)
{
	struct ctl_ck_source checkpoint = { 0 };
	struct ctl_target target = { 0 };
	int rc;

	if ((ctl_option(c, "file") != NULL) == (c->nargs == 1))
		return ctl_usage(err, "needs --file FILE, or the JOB that is to run again, and not both");
	rc = ctl_target_get(c, c->args[0], &target, err);
	if (rc)
		return rc;
	rc = begin(c, &target, &checkpoint, err);
	ctl_ck_close(&checkpoint);
	ctl_target_done(&target);
	return rc;
}

const struct ctl_verb ctl_run = {
	.name = "run",
	.args = "-f FILE | [JOB]",
	.about = "Start the ranks of a new job, or start a job's ranks again",
	.help = "A job that ran before goes on from its newest snapshot. Without --gpus and --config it keeps\n"
		"its configuration. A new job gets the largest entry of its `gpus` table for which there are\n"
		"devices. If you interrupt --follow, the job goes on; ptcctl stop ends it.\n"
		"With --from, a job without state gets the tensors, ranks' states, step and position in the\n"
		"data of a checkpoint first (docs/archive.md). ptcctl checks the checkpoint before it creates\n"
		"the job. Without --gpus and --config the ranks run under the checkpoint's configuration.\n",
	CTL_OPTIONS(options),
	.max_args = 1,
	.job_missing = ctl_job_missing_without_file,
	.run = run,
};
