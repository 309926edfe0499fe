/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl cluster recover and cluster rejoin: print the daemon's lines. */
#include "client/ctl/watch/watch.h"

#include "base/alloc.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <ptc/admin_recover.h>

#include <string.h>

static const struct ctl_option recover_options[] = {
	{ "nodes", "N=A,M=B", "the nodes that are left, each with its address (advertise in its ptcd.yaml)" },
	{ "dry-run", NULL, "change nothing; show which commits would be taken" },
	{ "old-is-gone", NULL,
	  "recover although the former etcd still answers; you promise that it will not be used again" },
};

static const struct ctl_option rejoin_options[] = {
	{ "drop", NULL, "also drop bytes of jobs that the cluster does not know" },
};

static int print_lines(const struct ctl *c, const char *json, struct ptc_error *err)
{
	json_t *root, *line;
	size_t i;
	int rc;

	if (c->json) {
		puts(json);
		return 0;
	}
	rc = ptc_json_load("the answer", json, strlen(json), &root, err);
	if (rc)
		return rc;
	json_array_foreach(json_object_get(root, "lines"), i, line)
		puts(json_string_value(line));
	if (json_object_get(root, "epoch"))
		printf("%s: coordination epoch %llu\n", ctl_option(c, "dry-run") ? "nothing was changed" : "recovered",
		       (unsigned long long)ptc_json_count(root, "epoch"));
	json_decref(root);
	return 0;
}

static int call(struct ctl *c, const struct ptc_admin_recover *how, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_cluster_recover(c->admin, how, &json, err);
	if (!rc)
		rc = print_lines(c, json, err);
	ptc_admin_free(json);
	return rc;
}

static int run_recover(struct ctl *c, struct ptc_error *err)
{
	struct ptc_admin_recover how = { .size = sizeof how,
					 .dry_run = ctl_option(c, "dry-run") != NULL,
					 .old_is_gone = ctl_option(c, "old-is-gone") != NULL };
	const char *given = ctl_option(c, "nodes");
	char *names, *save = NULL;
	const char **v = NULL;
	int rc = 0;

	if (!given)
		return ctl_usage(err,
				 "--nodes says which nodes are left, e.g. --nodes n1=10.0.0.1:7070,n2=10.0.0.2:7070");
	names = ptc_strdup(given);
	v = ptc_calloc(strlen(given) + 1, sizeof *v);
	if (!names || !v)
		rc = ptc_nomem(err);
	for (char *n = rc ? NULL : strtok_r(names, ",", &save); n; n = strtok_r(NULL, ",", &save))
		v[how.nnodes++] = n;
	how.nodes = v;
	if (!rc)
		rc = call(c, &how, err);
	ptc_free(names);
	ptc_free(v);
	return rc;
}

const struct ctl_verb ctl_cluster_recover = {
	.name = "cluster recover",
	.args = "",
	.about = "Go on with an empty etcd after the former one is gone for good",
	.help = "First set `coordinator` of every node of --nodes to the empty etcd, and start ptcd there.\n"
		"These daemons wait. Then give this command to one of them. For each job, ptc takes the\n"
		"newest commit whose tensors are all on these nodes, at most one commit back\n"
		"(docs/failures.md). If the command is interrupted, give it again. Only root may do this.\n",
	CTL_OPTIONS(recover_options),
	.run = run_recover,
};

static int run_rejoin(struct ctl *c, struct ptc_error *err)
{
	const struct ptc_admin_recover how = { .size = sizeof how, .rejoin = 1, .drop = ctl_option(c, "drop") != NULL };

	return call(c, &how, err);
}

const struct ctl_verb ctl_cluster_rejoin = {
	.name = "cluster rejoin",
	.args = "",
	.about = "Bring back a node that was not there when the cluster was recovered",
	.help = "First set `coordinator` of the node to the etcd that the other nodes have, and start ptcd\n"
		"there. Then give this command to that node. The node keeps the tables that the cluster has\n"
		"committed, and drops all others. Only root may do this.\n",
	CTL_OPTIONS(rejoin_options),
	.run = run_rejoin,
};
