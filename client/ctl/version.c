/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl version: prints ptcctl's own version. */
#include "client/ctl/verbs.h"

static int run(struct ctl *c, struct ptc_error *err)
{
	if (c->json)
		printf("{\"version\":\"%s\"}\n", PTC_VERSION);
	else
		printf("ptcctl %s\n", PTC_VERSION);
	return 0;
}

const struct ctl_verb ctl_version = {
	.name = "version",
	.args = "",
	.about = "Print the version of ptcctl",
	.run = run,
};
