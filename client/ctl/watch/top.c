/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl top: nodes and jobs, again every few seconds until it is interrupted.
 *
 * Happy path: on a terminal each picture replaces the one before it; elsewhere
 * they follow each other, as with --format json (a document a line).
 *
 * Failure modes: those of asking a daemon; a job that is gone between the list
 * and its own question is left out. */
#include "client/ctl/watch/watch.h"

#include "base/alloc.h"
#include "base/check.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define JOBS_MAX      50 /* whose ranks are asked for; a screen shows fewer */
#define EVERY_MS      2000
#define POLL_MS       100 /* how soon an interrupt ends the wait */
#define CLEAR_SCREEN  "\033[H\033[2J"
#define ENDLESS_COUNT UINT64_MAX

static const struct ctl_option options[] = {
	{ "every", "DURATION", "time between two pictures (default 2s)" },
	{ "count", "N", "end after N pictures; default: go on until interrupted" },
};

static const struct ctl_column node_columns[] = {
	{ "node", NULL, NULL },          { "state", NULL, NULL },         { "devices", NULL, NULL },
	{ "used_bytes", "store", NULL }, { "ceiling_bytes", NULL, NULL },
};

static const struct ctl_column job_columns[] = {
	{ "job", NULL, NULL },
	{ "state", "run", "run" },
	{ "config", NULL, NULL },
	{ "generation", NULL, NULL },
	{ "step", "run", NULL },
	{ "steps_per_s", "run", NULL },
	{ "stalled_s", "run", NULL },
	{ "reports", "run", NULL },
	{ "phase", NULL, NULL },
	{ "bytes_done", NULL, "moved_bytes" },
	{ "bytes_total", NULL, "of_bytes" },
	{ "state_bytes", NULL, NULL },
};

/* A job's row with what its ranks do; the one of the list where the job cannot be asked. */
static json_t *detailed(struct ctl *c, json_t *row)
{
	const char *name = json_string_value(json_object_get(row, "job"));
	json_t *doc = NULL, *found = NULL;
	char *json = NULL;

	if (name && ptc_admin_status(c->admin, name, &json, NULL) == 0 &&
	    ptc_json_load("status", json, strlen(json), &doc, NULL) == 0)
		found = json_array_get(json_object_get(doc, "jobs"), 0);
	found = json_incref(found ? found : row);
	json_decref(doc);
	ptc_admin_free(json);
	return found;
}

/* {"version", "nodes", "jobs"}; ptc_free it. */
static int look(struct ctl *c, char **ret_json, struct ptc_error *err)
{
	json_t *nodes = NULL, *jobs = NULL, *rows = json_array(), *row, *doc;
	char *json = NULL;
	size_t i;
	int rc = ptc_admin_nodes(c->admin, &json, err);

	if (!rc)
		rc = ptc_json_load("nodes", json, strlen(json), &nodes, err);
	ptc_admin_free(json);
	json = NULL;
	if (!rc)
		rc = ptc_admin_status(c->admin, NULL, &json, err);
	if (!rc)
		rc = ptc_json_load("status", json, strlen(json), &jobs, err);
	ptc_admin_free(json);
	json_array_foreach(json_object_get(jobs, "jobs"), i, row)
		json_array_append_new(rows, i < JOBS_MAX ? detailed(c, row) : json_incref(row));
	if (!rc) {
		doc = json_pack("{s:i, s:O, s:O}", "version", 1, "nodes", json_object_get(nodes, "nodes"), "jobs",
				rows);
		*ret_json = doc ? ptc_json_text(doc) : NULL;
		json_decref(doc);
		rc = *ret_json ? 0 : ptc_nomem(err);
	}
	json_decref(rows);
	json_decref(jobs);
	json_decref(nodes);
	return rc;
}

static int show(struct ctl *c, const char *json, struct ptc_error *err)
{
	int rc;

	if (c->json) {
		puts(json);
		return 0;
	}
	if (isatty(STDOUT_FILENO))
		fputs(CLEAR_SCREEN, stdout);
	rc = ctl_print_columns(c, json, "nodes", node_columns, PTC_ARRAY_LEN(node_columns), err);
	putchar('\n');
	if (!rc)
		rc = ctl_print_columns(c, json, "jobs", job_columns, PTC_ARRAY_LEN(job_columns), err);
	return rc;
}

static void wait_ms(int ms)
{
	const struct timespec part = { .tv_nsec = POLL_MS * 1000000L };

	for (int waited = 0; waited < ms && !ctl_interrupted(); waited += POLL_MS)
		nanosleep(&part, NULL);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *every = ctl_option(c, "every"), *count = ctl_option(c, "count");
	uint64_t left = ENDLESS_COUNT;
	int every_ms = EVERY_MS, rc = 0;

	if (every)
		rc = ctl_duration("--every", every, &every_ms, err);
	if (!rc && count)
		rc = ctl_number("--count", count, 1, ENDLESS_COUNT - 1, &left, err);
	if (!rc)
		rc = ctl_connect(c, err);
	if (rc)
		return rc;
	ctl_catch_signals();
	for (;;) {
		char *json = NULL;

		rc = look(c, &json, err);
		if (!rc)
			rc = show(c, json, err);
		ptc_free(json);
		if (rc || ctl_flush(c) || (count && --left == 0))
			return rc;
		wait_ms(every_ms);
		if (ctl_interrupted())
			return 0;
	}
}

const struct ctl_verb ctl_top = {
	.name = "top",
	.args = "",
	.about = "Watch nodes and jobs: steps, rates, memory, moving bytes",
	CTL_OPTIONS(options),
	.run = run,
};
