/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl node lost: an operator says that a node is lost. */
#include "client/ctl/watch/watch.h"

static const struct ctl_option options[] = {
	{ "undo", NULL, "take the declaration back: switches wait for the node again" },
};

static int run(struct ctl *c, struct ptc_error *err)
{
	int rc = ctl_connect(c, err);

	return rc ? rc : ptc_admin_node_lost(c->admin, c->args[0], ctl_option(c, "undo") != NULL, err);
}

const struct ctl_verb ctl_node_lost = {
	.name = "node lost",
	.args = "NODE",
	.about = "Declare that a node which is down is lost",
	.help = "Switches of jobs whose ranks do not run then go on without the node, if other nodes hold the\n"
		"state (docs/failures.md). The declaration ends when the node is back. Once it is back, jobs\n"
		"whose record names its bytes use these again. Only root may do this.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
