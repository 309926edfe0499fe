// SPDX-License-Identifier: Apache-2.0
/* ptcctl plan: what a resize would do. */
#include "client/ctl/verbs.h"

static const struct ctl_option options[] = { CTL_TARGET_OPTIONS };

static int run(struct ctl *c, struct ptc_error *err)
{
	struct ctl_target target = { 0 };
	char *json = NULL;
	int rc = ctl_target_get(c, c->args[0], &target, err);

	if (rc)
		return rc;
	rc = ctl_connect(c, err);
	if (!rc)
		rc = ptc_admin_plan(c->admin, &target.t, &json, err);
	if (!rc)
		rc = ctl_print_plan(c, json, err);
	ptc_admin_free(json);
	ctl_target_done(&target);
	return rc;
}

const struct ctl_verb ctl_plan = {
	.name = "plan",
	.args = "JOB",
	.about = "Show what a resize would move, and whether it is possible",
	.help = "For a job that runs also what happens to the process of each rank: restart (replaced by one started "
		"ahead), "
		"rebuild\n"
		"(stays, and builds its model anew), start (there was none).\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
