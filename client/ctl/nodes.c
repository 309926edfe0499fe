// SPDX-License-Identifier: Apache-2.0
/* ptcctl nodes: prints the daemon's document. */
#include "client/ctl/verbs.h"

static int run(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_nodes(c->admin, &json, err);
	if (!rc)
		rc = ctl_print(c, json, err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_nodes = {
	.name = "nodes",
	.args = "",
	.about = "List the nodes, their devices and memory",
	.run = run,
};
