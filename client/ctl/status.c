// SPDX-License-Identifier: Apache-2.0
/* ptcctl status: the jobs; of one, all that is known. */
#include "client/ctl/verbs.h"

#include "base/check.h"
#include "formats/json.h"

#include <string.h>

static const struct ctl_column columns[] = {
	{ "job", NULL, NULL },
	{ "phase", NULL, NULL },
	{ "generation", NULL, NULL },
	{ "snapshot", NULL, NULL },
	{ "step", NULL, NULL },
	{ "config", NULL, NULL },
	{ "state_bytes", NULL, NULL },
	{ "bytes_done", NULL, "moved_bytes" },
	{ "bytes_total", NULL, "of_bytes" },
	{ "controller", NULL, NULL },
};

/* What is wrong with the daemon that answered, if anything: nobody should read past it. */
static void put_warnings(const struct ctl *c, const char *json)
{
	json_t *doc = NULL;
	const json_t *d;

	if (c->json || ptc_json_load("status", json, strlen(json), &doc, NULL) != 0)
		return;
	d = json_object_get(doc, "daemon");
	if (json_is_false(json_object_get(d, "coordinator_ok")))
		puts("warning: the coordinator (etcd) is unreachable; what is shown may be old, nothing can be "
		     "committed");
	if (json_is_true(json_object_get(d, "insecure")))
		puts("warning: --insecure-loopback: peers are not authenticated");
	json_decref(doc);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_status(c->admin, c->args[0], &json, err);
	if (!rc)
		put_warnings(c, json);
	if (!rc)
		rc = ctl_print_columns(c, json, "jobs", columns, PTC_ARRAY_LEN(columns), err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_status = {
	.name = "status",
	.args = "[JOB]",
	.about = "Show a job, or all jobs: generation, configuration, what is going on",
	.max_args = 1,
	.run = run,
};
