/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl drain: moves jobs off a node, also before it is taken away (--within). */
#include "client/ctl/jobs/jobs.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

static const struct ctl_option options[] = {
	{ "job", "JOB", "only this job; default: every job that you may resize" },
	{ "within", "TIME",
	  "the node goes after TIME: copy to other nodes the bytes that exist only there, and wait for the copies" },
	{ "undo", NULL, "allow ranks on the node again" },
	{ "wait", NULL, "wait until the jobs have left the node" },
};

static const char *text_of(const json_t *job, const char *key)
{
	const char *text = json_string_value(json_object_get(job, key));

	return text ? text : "";
}

static void put_job(const json_t *job)
{
	const char *state = text_of(job, "state"), *why = text_of(job, "why");
	uint64_t step = ptc_json_count(job, "step");

	if (!strcmp(state, "moved"))
		printf("job %s: nothing of it is on the node any more\n", text_of(job, "job"));
	else if (!strcmp(state, "starts"))
		printf("job %s: stopped at step %" PRIu64 ", all of it is on other nodes, where it starts again\n",
		       text_of(job, "job"), step);
	else if (!strcmp(state, "copied"))
		printf("job %s: all of snapshot %" PRIu64 ", step %" PRIu64 ", is on other nodes%s%s\n",
		       text_of(job, "job"), ptc_json_count(job, "snapshot"), step, *why ? "; " : "", why);
	else
		printf("job %s: LATE: %s\n", text_of(job, "job"), why);
}

/* What a daemon says of a node that is taken away. The call fails where a job is late: whoever waits has to know. */
static int put_left(struct ctl *c, const char *summary, struct ptc_error *err)
{
	json_t *doc = NULL, *jobs, *job;
	size_t i, late = 0;
	int rc = ptc_json_load("summary", summary, strlen(summary), &doc, err);

	if (rc)
		return rc;
	jobs = json_object_get(doc, "jobs");
	if (!json_is_array(jobs)) {
		rc = ptc_error_set(err, PTC_EVERSION,
				   "the daemon is of a version without --within, and has drained the node "
				   "without a limit");
	} else if (c->json) {
		rc = ctl_print(c, summary, err);
	} else if (!json_array_size(jobs)) {
		printf("node %s has nothing of any job\n", text_of(doc, "node"));
	}
	json_array_foreach(jobs, i, job) {
		late += !strcmp(text_of(job, "state"), "late");
		if (!c->json)
			put_job(job);
	}
	if (!rc && late)
		rc = ptc_error_set(err, PTC_ETIMEOUT,
				   "after %.1f s, %zu jobs have not left node %s: bytes that only this node has are "
				   "lost if it goes now",
				   json_number_value(json_object_get(doc, "seconds")), late, text_of(doc, "node"));
	json_decref(doc);
	return rc;
}

static int leave(struct ctl *c, int ms, struct ctl_follow *follow, struct ptc_error *err)
{
	int rc = ptc_admin_drain_within(c->admin, c->args[0], ctl_option(c, "job"), (uint64_t)ms, ctl_follow_fn, follow,
					err);

	ctl_progress_end(&follow->progress);
	if (!rc && follow->summary)
		rc = put_left(c, follow->summary, err);
	ptc_free(follow->summary);
	return rc;
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *within = ctl_option(c, "within");
	struct ctl_follow follow = { .detach = !ctl_option(c, "wait") && !ctl_option(c, "undo") && !within };
	int rc, ms = 0;

	if (ctl_option(c, "undo") && (ctl_option(c, "job") || within))
		return ctl_usage(err, "--undo opens the node again; it goes with neither --job nor --within");
	rc = within ? ctl_duration("--within", within, &ms, err) : 0;
	if (rc == 0)
		rc = ctl_connect(c, err);
	if (rc)
		return rc;
	ctl_progress_init(&follow.progress);
	ctl_leave_on_signals();
	if (within)
		return leave(c, ms, &follow, err);
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
	.help = "If root drains a node, no new ranks are placed on it until --undo. With --within, ptcctl\n"
		"waits until no job has bytes on this node only, but at most for TIME. If a job still has such\n"
		"bytes then, the command fails and names the job.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
