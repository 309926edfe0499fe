/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl nodes: prints the list of nodes, its columns, and with --devices their devices. The table has the columns
 * that a person looks for first. */
#include "client/ctl/watch/watch.h"

#include "base/check.h"
#include "client/ctl/show/show.h"

static const struct ctl_column columns[] = {
	{ "node", NULL, NULL },          { "state", NULL, NULL },
	{ "devices", NULL, NULL },       { "devices_free", NULL, "free" },
	{ "unhealthy", NULL, NULL },     { "used_bytes", "store", NULL },
	{ "ceiling_bytes", NULL, NULL }, { "peak_bytes", "staging", "staging_peak_bytes" },
	{ "lost", NULL, NULL },          { "quarantined_s", NULL, NULL },
	{ "insecure", NULL, NULL },      { "rack", NULL, NULL },
	{ "address", NULL, NULL },
};

static const struct ctl_column device_columns[] = {
	{ "node", NULL, NULL }, { "device", NULL, NULL }, { "kind", NULL, NULL },         { "health", NULL, NULL },
	{ "name", NULL, NULL }, { "uuid", NULL, NULL },   { "memory_bytes", NULL, NULL }, { "free_bytes", NULL, NULL },
	{ "jobs", NULL, NULL }, { "ranks", NULL, NULL },  { "why", NULL, NULL },
};

static const struct ctl_option options[] = {
	{ "devices", NULL, "show each device: identity, health, the jobs that have it, and their ranks" },
	{ "names", NULL, "print only the names, one a line" },
};

static int run(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_nodes(c->admin, &json, err);
	if (!rc)
		rc = ctl_option(c, "names") ? ctl_print_names(json, "nodes", "node", err)
		     : ctl_option(c, "devices")
			     ? ctl_print_inner(c, json, "nodes", "device_list", "node", device_columns,
					       PTC_ARRAY_LEN(device_columns), err)
			     : ctl_print_columns(c, json, "nodes", columns, PTC_ARRAY_LEN(columns), err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_nodes = {
	.name = "nodes",
	.args = "",
	.about = "List the nodes, their devices and memory",
	CTL_OPTIONS(options),
	.run = run,
};
