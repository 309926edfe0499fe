// SPDX-License-Identifier: Apache-2.0
/* ptcctl status: the jobs; of one, all that is known. */
#include "client/ctl/watch/watch.h"

#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Which tensors no live node has, and where to look for them. */
static void put_lost(const json_t *lost)
{
	const json_t *list = json_object_get(lost, "list");
	json_t *row, *node;
	size_t i, k;

	if (!lost)
		return;
	printf("warning: %" PRIu64 " bytes of %" PRIu64 " tensors are on no live node; these nodes had them last:\n",
	       ptc_json_count(lost, "bytes"), ptc_json_count(lost, "tensors"));
	json_array_foreach(list, i, row) {
		const char *name = json_string_value(json_object_get(row, "tensor"));

		printf("  %s  %" PRIu64 " bytes  ", name ? name : "?", ptc_json_count(row, "bytes"));
		json_array_foreach(json_object_get(row, "nodes"), k, node)
			printf("%s%s", k ? ", " : "", json_string_value(node) ? json_string_value(node) : "?");
		puts("");
	}
	if (json_array_size(list) < ptc_json_count(lost, "tensors"))
		printf("  and %" PRIu64 " more\n", ptc_json_count(lost, "tensors") - json_array_size(list));
}

/* What is wrong with the daemon that answered, if anything: nobody should read past it. */
static void put_warnings(const struct ctl *c, const char *json)
{
	json_t *doc = NULL, *job;
	const json_t *d;
	size_t i;

	if (c->json || ptc_json_load("status", json, strlen(json), &doc, NULL) != 0)
		return;
	d = json_object_get(doc, "daemon");
	if (json_is_true(json_object_get(d, "coordinator_full")))
		puts("warning: etcd takes no writes: its database has come to its quota (\"etcd is full\" in "
		     "docs/install.md)");
	if (json_is_false(json_object_get(d, "coordinator_ok")))
		puts("warning: the coordinator (etcd) is unreachable; what is shown may be old, nothing can be "
		     "committed");
	if (json_is_true(json_object_get(d, "insecure")))
		puts("warning: --insecure-loopback: peers are not authenticated");
	json_array_foreach(json_object_get(doc, "jobs"), i, job)
		put_lost(json_object_get(job, "lost"));
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
		rc = ctl_print_status(c, json, c->nargs > 0, err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_status = {
	.name = "status",
	.args = "[JOB]",
	.about = "Show a job, or all jobs: generation, configuration, what is going on",
	.help = "Of one job that runs also step, rate, what it reports (loss, ...), and its ranks.\n",
	.max_args = 1,
	.run = run,
};
