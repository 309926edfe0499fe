/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl job: create, delete, list. create reads job.yaml here, with its rule
 * sets and headers, and sends the canonical JSON. */
#include "client/ctl/jobs/jobs.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "client/ctl/datasets/datasets.h"
#include "client/ctl/show/show.h"
#include "formats/job/job.h"
#include "formats/json.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct ctl_option create_options[] = {
	{ "file", "FILE", "the job's description (docs/job.md); required", 'f' },
};

/* Of `warning`: what a node alone has may take longer to copy. */
static void warn_of_leaving(const json_t *created)
{
	const json_t *row, *leaves;
	size_t i;

	json_array_foreach(json_object_get(created, "gpus"), i, row) {
		leaves = json_object_get(row, "leaves");
		if (json_is_false(json_object_get(leaves, "fits")))
			fprintf(stderr, "ptcctl: warning: %s: %s\n", json_string_value(json_object_get(row, "config")),
				json_string_value(json_object_get(leaves, "text")));
		else if (leaves && json_is_null(json_object_get(leaves, "fits")))
			fprintf(stderr,
				"ptcctl: warning: %s: links are not measured (`ptcctl profile` does it), so nobody "
				"knows whether the bytes that only one node has can be copied in time\n",
				json_string_value(json_object_get(row, "config")));
	}
}

static void warn_of_timeouts(const json_t *created)
{
	const json_t *line;
	size_t i;

	json_array_foreach(json_object_get(created, "timeouts"), i, line)
		fprintf(stderr, "ptcctl: warning: %s\n", json_string_value(line) ? json_string_value(line) : "?");
}

void ctl_job_note_loss(const struct ctl *c, const json_t *created)
{
	const json_t *line;
	size_t i;

	if (!c->json)
		json_array_foreach(json_object_get(created, "node_loss"), i, line)
			fprintf(stderr, "ptcctl: note: %s\n", json_string_value(line) ? json_string_value(line) : "?");
}

/* {"uuid": ..., and what the daemon's document says}. */
static int print_created(const struct ctl *c, const char *uuid, const char *json, struct ptc_error *err)
{
	json_t *doc = json_pack("{ss}", "uuid", uuid), *more = NULL;
	char *text = NULL;
	int rc = 0;

	if (json[0])
		rc = ptc_json_load("the daemon's answer", json, strlen(json), &more, err);
	if (!rc && doc && json_is_object(more))
		json_object_update(doc, more);
	warn_of_leaving(more);
	warn_of_timeouts(more);
	ctl_job_note_loss(c, more);
	if (doc && !c->json) { /* they have been said */
		json_object_del(doc, "node_loss");
		json_object_del(doc, "timeouts");
	}
	if (!rc)
		text = doc ? ptc_json_text(doc) : NULL;
	if (!rc)
		rc = text ? ctl_print(c, text, err) : ptc_nomem(err);
	ptc_free(text);
	json_decref(doc);
	json_decref(more);
	return rc;
}

/* A live job's ranks run as we do: here, with our environment. */
static int resolve(struct ptc_job_desc *job, struct ptc_error *err)
{
	char cwd[PATH_MAX];

	if (!getcwd(cwd, sizeof(cwd)))
		return ptc_error_errno(err, errno, "cannot tell the working directory");
	return ptc_job_resolve_run(job, cwd, environ, err);
}

/* Groups' names are ours; daemons keep the number, which is the same on every node as users' are. */
static int resolve_group(struct ptc_job_desc *job, struct ptc_error *err)
{
	const struct group *g;

	if (!job->files.group[0])
		return 0;
	errno = 0;
	g = getgrnam(job->files.group);
	if (!g && errno && errno != ENOENT)
		return ptc_error_errno(err, errno, "files: cannot look group \"%s\" up", job->files.group);
	if (!g)
		return ptc_error_set(err, PTC_ENOTFOUND, "files: there is no group \"%s\" here; write its number",
				     job->files.group);
	job->files.gid = g->gr_gid;
	job->files.group[0] = '\0';
	return 0;
}

int ctl_job_read(struct ctl *c, const char *file, char **ret_name, char **ret_spec, size_t *ret_len,
		 struct ptc_error *err)
{
	ptc_auto_free char *rules = ctl_rules_path();
	struct ptc_job_desc job = { 0 };
	char *name = NULL;
	int rc;

	if (!rules)
		return ptc_nomem(err);
	rc = ptc_job_read(file, rules, &job, err);
	if (!rc)
		rc = resolve(&job, err);
	if (!rc)
		rc = resolve_group(&job, err);
	if (!rc)
		rc = ctl_dataset_pin(c, &job, err);
	if (!rc) {
		name = ptc_strdup(job.spec.name);
		rc = name ? ptc_job_to_json(&job, ret_spec, ret_len, err) : ptc_nomem(err);
	}
	ptc_job_desc_done(&job);
	if (rc)
		ptc_free(name);
	else
		*ret_name = name;
	return rc;
}

static int run_create(struct ctl *c, struct ptc_error *err)
{
	ptc_auto_free char *name = NULL, *spec = NULL, *uuid = NULL, *json = NULL;
	const char *file = ctl_option(c, "file");
	size_t len = 0;
	int rc;

	if (!file)
		return ctl_usage(err, "needs --file FILE");
	rc = ctl_job_read(c, file, &name, &spec, &len, err);
	if (!rc)
		rc = ctl_connect(c, err);
	if (!rc)
		rc = ptc_admin_job_create(c->admin, spec, len, &uuid, &json, err);
	return rc ? rc : print_created(c, uuid, json, err);
}

const struct ctl_verb ctl_job_create = {
	.name = "job create",
	.args = "-f FILE",
	.about = "Create a job from a description",
	.help = "The new job has no state. Import some, or start the job's ranks (ptcctl run) if the\n"
		"description has `run:`. ptcctl looks for named rule sets in $PTC_RULES_DIR, among the\n"
		"installed ones, in deploy/rules above this program, and among the built-in ones (ptcctl\n"
		"rules show).\n",
	CTL_OPTIONS(create_options),
	.run = run_create,
};

static int run_delete(struct ctl *c, struct ptc_error *err)
{
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_job_delete(c->admin, c->args[0], err);
	if (!rc && c->json) /* a name the daemon knew needs no escapes */
		printf("{\"version\":1,\"job\":\"%s\",\"deleted\":true}\n", c->args[0]);
	return rc;
}

const struct ctl_verb ctl_job_delete = {
	.name = "job delete",
	.args = "JOB",
	.about = "Delete a job and its state on every node",
	.min_args = 1,
	.max_args = 1,
	.deletes = true,
	.job_missing = ctl_job_missing,
	.run = run_delete,
};

static const struct ctl_option list_options[] = {
	{ "names", NULL, "print only the names, one a line" },
};

static const struct ctl_column list_columns[] = {
	{ "job", NULL, NULL },        { "uid", NULL, NULL },      { "state", "run", "run" }, { "phase", NULL, NULL },
	{ "generation", NULL, NULL }, { "snapshot", NULL, NULL }, { "step", NULL, NULL },    { "uuid", NULL, NULL },
};

static int run_list(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_job_list(c->admin, &json, err);
	if (!rc)
		rc = ctl_option(c, "names")
			     ? ctl_print_names(json, "jobs", "job", err)
			     : ctl_print_columns(c, json, "jobs", list_columns, PTC_ARRAY_LEN(list_columns), err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_job_list = {
	.name = "job list",
	.args = "",
	.about = "List the jobs you may see",
	CTL_OPTIONS(list_options),
	.run = run_list,
};
