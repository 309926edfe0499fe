/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl help [VERB]: the help of verbs and options. */
#include "client/ctl/verbs.h"

#include <string.h>

static const struct ctl_option options[] = {
	{ "man", NULL, "print the manual page, ptcctl(1), as roff" },
};

static int run(struct ctl *c, struct ptc_error *err)
{
	char name[64];
	bool found = false;

	if (ctl_option(c, "man")) {
		ctl_man(stdout);
		return 0;
	}
	if (!c->nargs) {
		ctl_help_all(stdout);
		return 0;
	}
	snprintf(name, sizeof(name), "%.30s%s%.30s", c->args[0], c->nargs > 1 ? " " : "",
		 c->nargs > 1 ? c->args[1] : "");
	for (size_t i = 0; i < ctl_nverbs; i++) {
		const char *verb = ctl_verbs[i]->name;
		size_t n = strlen(name);

		/* "job" stands for all of its verbs */
		if (strncmp(verb, name, n) || (verb[n] && verb[n] != ' '))
			continue;
		if (found)
			putchar('\n');
		ctl_help_verb(ctl_verbs[i], stdout);
		found = true;
	}
	return found ? 0 : ctl_usage(err, "unknown verb \"%s\"; see ptcctl --help", name);
}

const struct ctl_verb ctl_help = {
	.name = "help",
	.args = "[VERB]",
	.about = "Explain a verb",
	CTL_OPTIONS(options),
	.max_args = 2,
	.run = run,
};
