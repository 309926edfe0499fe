/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl node forget. */
#include "client/ctl/watch/watch.h"

static int run(struct ctl *c, struct ptc_error *err)
{
	int rc = ctl_connect(c, err);

	return rc ? rc : ptc_admin_node_forget(c->admin, c->args[0], err);
}

const struct ctl_verb ctl_node_forget = {
	.name = "node forget",
	.args = "NODE",
	.about = "Take a node that is gone for good off the list",
	.help = "Nodes that are down stay in `ptcctl nodes`, because they may come back. This takes one out, with its\n"
		"marks (drained, lost, bad devices). The node must count as lost, and no job may need it: the line\n"
		"names those that do. A node that comes back all the same is listed again, without these marks.\n"
		"Only root may do this.\n",
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
