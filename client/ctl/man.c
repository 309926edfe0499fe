/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl(1) from the table of verbs: ptcctl help --man. */
#include "client/ctl/verbs.h"

/* Text of ours as roff: no escapes, no requests, and dashes that can be copied into a shell. */
static void put(const char *text, FILE *out)
{
	bool begins = true;

	for (const char *p = text; *p; p++) {
		if (begins && (*p == '.' || *p == '\''))
			fputs("\\&", out);
		if (*p == '\\')
			fputs("\\e", out);
		else if (*p == '-')
			fputs("\\-", out);
		else
			fputc(*p, out);
		begins = *p == '\n';
	}
}

static void put_options(const struct ctl_option *options, size_t n, FILE *out)
{
	for (size_t i = 0; i < n; i++) {
		fputs(".TP\n", out);
		if (options[i].letter)
			fprintf(out, "\\fB\\-%c\\fR, ", options[i].letter);
		fputs("\\fB\\-\\-", out);
		put(options[i].name, out);
		fputs("\\fR", out);
		if (options[i].arg) {
			fputs(" \\fI", out);
			put(options[i].arg, out);
			fputs("\\fR", out);
		}
		fputs("\n\\&", out);
		put(options[i].help, out);
		fputc('\n', out);
	}
}

static void put_verb(const struct ctl_verb *v, FILE *out)
{
	fputs(".SS \"", out);
	put(v->name, out);
	fputs("\"\n\\fBptcctl ", out);
	put(v->name, out);
	fputs("\\fR", out);
	if (v->args[0]) {
		fputs(" \\fI", out);
		put(v->args, out);
		fputs("\\fR", out);
	}
	fprintf(out, "%s\n.PP\n\\&", v->noptions ? " [options]" : "");
	put(v->about, out);
	fputs(".\n", out);
	if (v->help) {
		fputs(".PP\n.nf\n", out); /* lines as they were written: some are tables */
		put(v->help, out);
		fputs(".fi\n", out);
	}
	put_options(v->options, v->noptions, out);
}

void ctl_man(FILE *out)
{
	fputs(".TH PTCCTL 1 \"\" \"ptc " PTC_VERSION "\" \"ptc\"\n"
	      ".SH NAME\nptcctl \\- ask a ptcd: run, resize and inspect jobs\n"
	      ".SH SYNOPSIS\n\\fBptcctl\\fR \\fIVERB\\fR [arguments] [options]\n"
	      ".SH DESCRIPTION\n"
	      "Talks to any ptcd of the cluster: to this node's over its socket, as the user who calls it, or to "
	      "another "
	      "over TCP with a certificate. Options may stand before, between and after arguments; \\fB\\-\\-\\fR ends "
	      "them.\n"
	      ".SH VERBS\n",
	      out);
	for (size_t i = 0; i < ctl_nverbs; i++)
		put_verb(ctl_verbs[i], out);
	fputs(".SH GLOBAL OPTIONS\n", out);
	put_options(ctl_globals, ctl_nglobals, out);
	fputs(".SH ENVIRONMENT\n"
	      ".TP\n\\fBPTC_SOCKET\\fR\nThe daemon's socket, where \\fB\\-\\-socket\\fR is not given.\n"
	      ".TP\n\\fBPTC_RULES_DIR\\fR\nFolders with rule sets, separated by colons, before those installed.\n"
	      ".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage. A failure is one line on standard error.\n"
	      ".SH SEE ALSO\nptcd(8), ptcd.yaml(5), job.yaml(5), ptc\\-fuse(1); documents in /usr/share/doc/ptc\n",
	      out);
}
