/* SPDX-License-Identifier: Apache-2.0 */
/* Which JOB a command means when none is given: the one that $PTC_JOB names,
 * else the only one that the caller may see.
 *
 * Happy path: the name becomes the verb's first argument.
 *
 * Failure modes: no job, or several (CTL_USAGE, in one line that lists them);
 * a verb that deletes state takes a name only from the command line or from
 * $PTC_JOB; the errors of asking a daemon. */
#include "client/ctl/line/ctl.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LISTED_MAX 16 /* names in the error; one line should stay readable */

bool ctl_job_missing(const struct ctl *c)
{
	return c->nargs < c->verb->min_args;
}

bool ctl_job_missing_without_file(const struct ctl *c)
{
	return c->nargs == 0 && !ctl_option(c, "file");
}

/* "a, b, c and 5 more". NULL: out of memory. */
static char *names_of(const json_t *jobs)
{
	struct ptc_buf b = PTC_BUF_INIT;
	json_t *row;
	size_t i;

	json_array_foreach(jobs, i, row) {
		const char *name = json_string_value(json_object_get(row, "job"));

		if (i < LISTED_MAX)
			ptc_buf_printf(&b, "%s%s", i ? ", " : "", name ? name : "?");
	}
	if (json_array_size(jobs) > LISTED_MAX)
		ptc_buf_printf(&b, " and %zu more", json_array_size(jobs) - LISTED_MAX);
	return ptc_buf_steal(&b, NULL);
}

static int choose(const struct ctl *c, const json_t *jobs, char **ret_name, struct ptc_error *err)
{
	size_t n = json_array_size(jobs);
	ptc_auto_free char *names = NULL;

	if (n == 0)
		return ctl_usage(err, "needs JOB; you have none: `ptcctl job create -f FILE` makes one");
	names = names_of(jobs);
	if (!names)
		return ptc_nomem(err);
	if (n > 1)
		return ctl_usage(err, "needs JOB, or $PTC_JOB; you have %s", names);
	if (c->verb->deletes)
		return ctl_usage(err, "needs JOB by its name, because its state will be gone; you have %s", names);
	*ret_name = names;
	names = NULL;
	return 0;
}

static int only_job(struct ctl *c, char **ret_name, struct ptc_error *err)
{
	json_t *doc = NULL;
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_job_list(c->admin, &json, err);
	if (!rc)
		rc = ptc_json_load("the daemon's answer", json, strlen(json), &doc, err);
	if (!rc)
		rc = choose(c, json_object_get(doc, "jobs"), ret_name, err);
	json_decref(doc);
	ptc_admin_free(json);
	return rc;
}

int ctl_job_choose(struct ctl *c, struct ptc_error *err)
{
	const char *named = getenv("PTC_JOB");
	int rc = 0;

	if (!c->verb->job_missing || !c->verb->job_missing(c))
		return 0;
	if (!named || !*named)
		rc = only_job(c, &c->chosen, err);
	else if (!(c->chosen = ptc_strdup(named)))
		rc = ptc_nomem(err);
	if (rc)
		return rc;
	memmove(&c->args[1], &c->args[0], sizeof(c->args) - sizeof(c->args[0]));
	c->args[0] = c->chosen;
	c->nargs++;
	return 0;
}
