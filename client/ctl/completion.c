// SPDX-License-Identifier: Apache-2.0
/* ptcctl completion bash: a script made from the table of verbs. */
#include "client/ctl/verbs.h"

#include <string.h>

static void put_option_words(const struct ctl_option *options, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf(" --%s", options[i].name);
}

/* Words that may follow "ptcctl", each once. */
static void put_first_words(void)
{
	const char *last = "";
	size_t last_len = 0;

	for (size_t i = 0; i < ctl_nverbs; i++) {
		size_t n = strcspn(ctl_verbs[i]->name, " ");

		if (n != last_len || strncmp(last, ctl_verbs[i]->name, n))
			printf(" %.*s", (int)n, ctl_verbs[i]->name);
		last = ctl_verbs[i]->name;
		last_len = n;
	}
}

static void put_cases(void)
{
	for (size_t i = 0; i < ctl_nverbs; i++) {
		const struct ctl_verb *v = ctl_verbs[i];

		printf("\t\"%s\") words=\"", v->name);
		put_option_words(v->options, v->noptions);
		puts("\" ;;");
	}
}

static int run(struct ctl *c, struct ptc_error *err)
{
	if (strcmp(c->args[0], "bash"))
		return ctl_usage(err, "only bash is known, not \"%.40s\"", c->args[0]);
	puts("# source <(ptcctl completion bash)");
	puts("_ptcctl() {");
	puts("\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words "
	     "globals");
	puts("\tcase $prev in");
	puts("\t--format) COMPREPLY=($(compgen -W \"table json svg\" -- \"$cur\")); return ;;");
	puts("\t--socket|--ca|--cert|--key|--file) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;");
	puts("\tesac");
	printf("\tif [ \"$COMP_CWORD\" -eq 1 ]; then COMPREPLY=($(compgen -W \"");
	put_first_words();
	puts("\" -- \"$cur\")); return; fi");
	puts("\tif [ \"$verb\" = job ]; then");
	puts("\t\tif [ \"$COMP_CWORD\" -eq 2 ]; then COMPREPLY=($(compgen -W \"create delete list\" -- \"$cur\")); "
	     "return; fi");
	puts("\t\tverb=\"job ${COMP_WORDS[2]}\"\n\tfi");
	puts("\tif [ \"$verb\" = rules ]; then");
	puts("\t\tif [ \"$COMP_CWORD\" -eq 2 ]; then COMPREPLY=($(compgen -W \"lint show\" -- \"$cur\")); return; fi");
	puts("\t\tverb=\"rules ${COMP_WORDS[2]}\"\n\tfi");
	puts("\tif [ \"$verb\" = dataset ]; then");
	puts("\t\tif [ \"$COMP_CWORD\" -eq 2 ]; then COMPREPLY=($(compgen -W \"add check inspect list proof remove\" "
	     "-- "
	     "\"$cur\")); "
	     "return; fi");
	puts("\t\tverb=\"dataset ${COMP_WORDS[2]}\"\n\tfi");
	printf("\tglobals=\"");
	put_option_words(ctl_globals, ctl_nglobals);
	puts("\"\n\tcase $verb in");
	put_cases();
	puts("\tesac");
	puts("\tcase $cur in");
	puts("\t-*) COMPREPLY=($(compgen -W \"$words $globals\" -- \"$cur\")) ;;");
	puts("\t*) COMPREPLY=($(compgen -f -- \"$cur\")) ;;");
	puts("\tesac\n}");
	puts("complete -o filenames -F _ptcctl ptcctl");
	return 0;
}

const struct ctl_verb ctl_completion = {
	.name = "completion",
	.args = "bash",
	.about = "Print a completion script for a shell",
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
