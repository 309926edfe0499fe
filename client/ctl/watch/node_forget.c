/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl node forget: takes a node that is gone for good out of the list. */
#include "client/ctl/watch/watch.h"

static int run(struct ctl *c, struct ptc_error *err)
{
	int rc = ctl_connect(c, err);

	return rc ? rc : ptc_admin_node_forget(c->admin, c->args[0], err);
}

const struct ctl_verb ctl_node_forget = {
	.name = "node forget",
	.args = "NODE",
	.about = "Remove a node that is gone for good from listings",
	.help = "Nodes that are down stay in `ptcctl nodes`, because they may come back. This command removes\n"
		"one of them, with its marks (drained, lost, bad devices). The node must count as lost, and no\n"
		"job may need it; otherwise the error names these jobs. If the node comes back nevertheless,\n"
		"it is listed again, without these marks. Only root may do this.\n",
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
