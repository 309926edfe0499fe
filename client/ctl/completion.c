/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl completion SHELL: a script made from the table of verbs. A verb of two words ("job create") is completed word
 * by word. Printing a script asks no daemon; the script does when it completes a job's or a node's name. */
#include "client/ctl/verbs.h"

#include <string.h>

/* ---- the table, as shells want it ------------------------------------------- */

/* Length of the verb's first word. */
static size_t first_word(const struct ctl_verb *v)
{
	return strcspn(v->name, " ");
}

/* Does the verb before have the same first word? */
static bool same_group(size_t i)
{
	const struct ctl_verb *a = ctl_verbs[i], *b = i ? ctl_verbs[i - 1] : NULL;

	return b && first_word(a) == first_word(b) && !strncmp(a->name, b->name, first_word(a));
}

/* Second words of the group that verb i begins. */
static void put_second_words(size_t i)
{
	do
		printf(" %s", ctl_verbs[i]->name + first_word(ctl_verbs[i]) + 1);
	while (++i < ctl_nverbs && same_group(i));
}

static void put_option_words(const struct ctl_option *options, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf(" --%s", options[i].name);
}

/* In single quotes of a shell, which text of ours may hold; without what ends a description in zsh and fish. */
static void put_quoted(const char *text)
{
	for (const char *p = text; *p; p++)
		if (*p == '\'')
			fputs("'\\''", stdout);
		else if (*p == '[' || *p == ']' || *p == ':')
			putchar(*p == ':' ? ';' : *p == '[' ? '(' : ')');
		else
			putchar(*p);
}

/* The verb that lists the names of which the verb's first argument is one; NULL: it is none. */
static const char *named(const struct ctl_verb *v)
{
	return !strcmp(v->args, "NODE") ? "nodes" : v->job_missing || !strcmp(v->args, "[JOB]") ? "job list" : NULL;
}

/* ---- bash --------------------------------------------------------------------- */

static void bash_groups(void)
{
	for (size_t i = 0; i < ctl_nverbs; i++) {
		const char *name = ctl_verbs[i]->name;
		int n = (int)first_word(ctl_verbs[i]);

		if (same_group(i) || !name[n])
			continue;
		printf("\tif [ \"$verb\" = %.*s ]; then\n"
		       "\t\tif [ \"$COMP_CWORD\" -eq 2 ]; then COMPREPLY=($(compgen -W \"",
		       n, name);
		put_second_words(i);
		printf("\" -- \"$cur\")); return; fi\n\t\tverb=\"%.*s ${COMP_WORDS[2]}\"\n\tfi\n", n, name);
	}
}

static void bash(void)
{
	puts("# source <(ptcctl completion bash)");
	puts("_ptcctl() {");
	puts("\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words names "
	     "globals");
	puts("\tcase $prev in");
	puts("\t--format) COMPREPLY=($(compgen -W \"table json svg\" -- \"$cur\")); return ;;");
	puts("\t--nodes) COMPREPLY=($(compgen -W \"$(ptcctl nodes --names 2>/dev/null)\" -- \"$cur\")); return ;;");
	puts("\t--job) COMPREPLY=($(compgen -W \"$(ptcctl job list --names 2>/dev/null)\" -- \"$cur\")); return ;;");
	puts("\t--socket|--ca|--cert|--key|--file) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;");
	puts("\tesac");
	printf("\tif [ \"$COMP_CWORD\" -eq 1 ]; then COMPREPLY=($(compgen -W \"");
	for (size_t i = 0; i < ctl_nverbs; i++)
		if (!same_group(i))
			printf(" %.*s", (int)first_word(ctl_verbs[i]), ctl_verbs[i]->name);
	puts("\" -- \"$cur\")); return; fi");
	bash_groups();
	printf("\tglobals=\"");
	put_option_words(ctl_globals, ctl_nglobals);
	puts("\"\n\tcase $verb in");
	for (size_t i = 0; i < ctl_nverbs; i++) {
		printf("\t\"%s\") words=\"", ctl_verbs[i]->name);
		put_option_words(ctl_verbs[i]->options, ctl_verbs[i]->noptions);
		printf("\"");
		if (named(ctl_verbs[i]))
			printf(" names=\"%s\"", named(ctl_verbs[i]));
		puts(" ;;");
	}
	puts("\tesac");
	puts("\tcase $cur in");
	puts("\t-*) COMPREPLY=($(compgen -W \"$words $globals\" -- \"$cur\")) ;;");
	puts("\t*) [ -z \"$names\" ] || COMPREPLY=($(compgen -W \"$(ptcctl $names --names 2>/dev/null)\" -- "
	     "\"$cur\"))");
	puts("\t   [ -n \"$COMPREPLY\" ] || COMPREPLY=($(compgen -f -- \"$cur\")) ;;");
	puts("\tesac\n}");
	puts("complete -o filenames -F _ptcctl ptcctl");
}

/* ---- zsh ------------------------------------------------------------------------ */

static void zsh_option(const struct ctl_option *o)
{
	printf(" '%s--%s%s[", o->arg ? "*" : "", o->name, o->arg ? "=" : "");
	put_quoted(o->help);
	printf("]");
	if (o->arg) {
		printf(":");
		put_quoted(o->arg);
		printf(":_files");
	}
	printf("'");
}

static void zsh_words(void)
{
	puts("\tif (( CURRENT == 2 )); then");
	printf("\t\tcompadd --");
	for (size_t i = 0; i < ctl_nverbs; i++)
		if (!same_group(i))
			printf(" %.*s", (int)first_word(ctl_verbs[i]), ctl_verbs[i]->name);
	puts("\n\t\treturn\n\tfi");
	for (size_t i = 0; i < ctl_nverbs; i++) {
		int n = (int)first_word(ctl_verbs[i]);

		if (same_group(i) || !ctl_verbs[i]->name[n])
			continue;
		printf("\tif [[ $verb == %.*s ]]; then\n\t\tif (( CURRENT == 3 )); then compadd --", n,
		       ctl_verbs[i]->name);
		put_second_words(i);
		puts("; return; fi\n\t\tverb=\"$verb $words[3]\"\n\tfi");
	}
}

static void zsh(void)
{
	puts("#compdef ptcctl\n# in a folder of $fpath, as _ptcctl\n_ptcctl() {\n\tlocal verb=$words[2]\n\tlocal -a "
	     "options names");
	zsh_words();
	puts("\tcase $verb in");
	for (size_t i = 0; i < ctl_nverbs; i++) {
		printf("\t'%s') options=(", ctl_verbs[i]->name);
		for (size_t j = 0; j < ctl_verbs[i]->noptions; j++)
			zsh_option(&ctl_verbs[i]->options[j]);
		if (named(ctl_verbs[i]))
			printf("); names=($(ptcctl %s --names 2>/dev/null)", named(ctl_verbs[i]));
		puts(") ;;");
	}
	printf("\tesac\n\t_arguments $options");
	for (size_t i = 0; i < ctl_nglobals; i++)
		zsh_option(&ctl_globals[i]);
	puts(" '*:name:_ptcctl_name'\n}\n_ptcctl_name() { (( $#names )) && compadd -- $names || _files }\n_ptcctl "
	     "\"$@\"");
}

/* ---- fish ------------------------------------------------------------------------- */

static void fish_option(const struct ctl_verb *v, const struct ctl_option *o)
{
	printf("complete -c ptcctl");
	if (v) {
		const char *second = strchr(v->name, ' ');

		printf(" -n '__fish_seen_subcommand_from %.*s%s%s'", (int)first_word(v), v->name,
		       second ? "; and __fish_seen_subcommand_from" : "", second ? second : "");
	}
	printf(" -l %s", o->name);
	if (o->letter)
		printf(" -s %c", o->letter);
	printf("%s -d '", o->arg ? " -r" : "");
	put_quoted(o->help);
	puts("'");
}

static void fish(void)
{
	puts("# ptcctl completion fish | source");
	for (size_t i = 0; i < ctl_nverbs; i++) {
		const struct ctl_verb *v = ctl_verbs[i];
		const char *second = strchr(v->name, ' ');

		if (!same_group(i)) {
			printf("complete -c ptcctl -n __fish_use_subcommand -f -a %.*s -d '", (int)first_word(v),
			       v->name);
			put_quoted(second ? "" : v->about);
			puts("'");
		}
		if (second) {
			printf("complete -c ptcctl -n '__fish_seen_subcommand_from %.*s' -f -a %s -d '",
			       (int)first_word(v), v->name, second + 1);
			put_quoted(v->about);
			puts("'");
		}
		if (named(v))
			printf("complete -c ptcctl -n '__fish_seen_subcommand_from %.*s%s%s' -a '(ptcctl %s --names "
			       "2>/dev/null)'\n",
			       (int)first_word(v), v->name, second ? "; and __fish_seen_subcommand_from" : "",
			       second ? second : "", named(v));
		for (size_t j = 0; j < v->noptions; j++)
			fish_option(v, &v->options[j]);
	}
	for (size_t i = 0; i < ctl_nglobals; i++)
		fish_option(NULL, &ctl_globals[i]);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *shell = c->args[0];

	if (!strcmp(shell, "bash"))
		bash();
	else if (!strcmp(shell, "zsh"))
		zsh();
	else if (!strcmp(shell, "fish"))
		fish();
	else
		return ctl_usage(err, "bash, zsh and fish are known, not \"%.40s\"", shell);
	return 0;
}

const struct ctl_verb ctl_completion = {
	.name = "completion",
	.args = "bash|zsh|fish",
	.about = "Print a completion script for a shell",
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
