/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl status: the jobs; of one, all that is known. */
#include "client/ctl/watch/watch.h"

#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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

/* Which blocks are damaged, and no node has a copy of. */
static void put_damaged(const json_t *damaged)
{
	json_t *row, *entry;
	size_t i, k;

	json_array_foreach(damaged, i, row) {
		const char *node = json_string_value(json_object_get(row, "node"));

		printf("warning: %" PRIu64 " damaged blocks on node %s have no copy that is right:\n",
		       ptc_json_count(row, "blocks"), node ? node : "?");
		json_array_foreach(json_object_get(row, "list"), k, entry) {
			const char *name = json_string_value(json_object_get(entry, "tensor"));
			const char *text = json_string_value(json_object_get(entry, "text"));

			printf("  %s  %s\n", name ? name : "?", text ? text : "?");
		}
	}
}

/* Nodes that do not have their part of the state, and what that means. */
static void put_absent(const json_t *absent)
{
	json_t *row;
	size_t i;

	json_array_foreach(absent, i, row) {
		const char *node = json_string_value(json_object_get(row, "node"));
		const char *state = json_string_value(json_object_get(row, "state"));
		const char *means = json_string_value(json_object_get(row, "means"));

		printf("warning: node %s is %s: %s\n", node ? node : "?", state ? state : "?", means ? means : "?");
	}
}

/* Fewer copies than the job asks for, and what is done about it. */
static void put_copies(const json_t *copies)
{
	uint64_t count = ptc_json_count(copies, "count"), fewest = ptc_json_count(copies, "fewest");
	uint64_t left = ptc_json_count(copies, "bytes_left"), nowhere = ptc_json_count(copies, "bytes_without_place");
	const char *across = json_string_value(json_object_get(copies, "across"));
	char text[32];

	if (!copies || fewest >= count)
		return;
	printf("warning: some regions are on %llu of %llu %ss; copies of %s %s\n", (unsigned long long)fewest,
	       (unsigned long long)count, across ? across : "node", ctl_bytes(left, text, sizeof text),
	       nowhere ? "are to come, and for some there is no node" : "are to come");
}

#define CERTIFICATE_DAYS 14
#define DAY_MS           INT64_C(86400000)

static void put_certificate(const json_t *d)
{
	const char *node = json_string_value(json_object_get(d, "node"));
	int64_t ends = json_integer_value(json_object_get(d, "certificate_ends_ms"));
	int64_t left = ends - (int64_t)time(NULL) * 1000;

	if (ends && left <= 0)
		printf("warning: a certificate of node %s has ended; have it signed anew, and send ptcd SIGHUP "
		       "(docs/install.md)\n",
		       node ? node : "?");
	else if (ends && left <= CERTIFICATE_DAYS * DAY_MS)
		printf("warning: a certificate of node %s ends in %d days; have it signed anew, and send ptcd SIGHUP "
		       "(docs/install.md)\n",
		       node ? node : "?", (int)(left / DAY_MS));
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
	put_certificate(d);
	json_array_foreach(json_object_get(doc, "jobs"), i, job) {
		put_absent(json_object_get(job, "absent"));
		put_lost(json_object_get(job, "lost"));
		put_copies(json_object_get(job, "copies"));
		put_damaged(json_object_get(job, "damaged"));
	}
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
	.about = "Show a job, or all jobs: generation, configuration, phase",
	.help = "For one job that runs, ptcctl also shows its step, its rate, its ranks, and the values that\n"
		"the ranks report (loss, ...).\n",
	.max_args = 1,
	.run = run,
};
