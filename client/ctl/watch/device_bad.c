/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl device bad: an operator says that a device is bad, or well again. */
#include "client/ctl/watch/watch.h"

#include "base/limits.h"

#include <stdio.h>
#include <string.h>

static const struct ctl_option options[] = {
	{ "undo", NULL, "the device is good again" },
};

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *colon = strrchr(c->args[0], ':');
	char node[PTC_NAME_MAX + 1];
	uint64_t device = 0;
	int rc;

	if (!colon || colon == c->args[0] || (size_t)(colon - c->args[0]) >= sizeof node ||
	    ctl_number("the device", colon + 1, 0, PTC_MAX_DEVICES_PER_NODE - 1, &device, err))
		return ctl_usage(err, "\"%.80s\" names no device; write NODE:INDEX, as `ptcctl nodes --devices` does",
				 c->args[0]);
	snprintf(node, sizeof node, "%.*s", (int)(colon - c->args[0]), c->args[0]);
	rc = ctl_connect(c, err);
	return rc ? rc : ptc_admin_device_bad(c->admin, node, (uint32_t)device, ctl_option(c, "undo") != NULL, err);
}

const struct ctl_verb ctl_device_bad = {
	.name = "device bad",
	.args = "NODE:INDEX",
	.about = "Mark a device bad, so that no ranks get it",
	.help = "Ranks that run on the device go on. `ptcctl resize` or the next start leaves the device out.\n"
		"The mark stays until it is undone, also over restarts. After --undo, jobs that have left the\n"
		"device because their ranks were slow there (`on_straggler: drain`) may have it again. Only\n"
		"root may do this.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
