/* SPDX-License-Identifier: Apache-2.0 */
/* The table of verbs, and the help made from it. */
#include "client/ctl/verbs.h"

#include "client/ctl/archive/archive_verbs.h"
#include "client/ctl/datasets/datasets.h"
#include "client/ctl/files/files.h"
#include "client/ctl/jobs/jobs.h"
#include "client/ctl/plans/plans.h"
#include "client/ctl/probe/probe_verbs.h"
#include "client/ctl/watch/watch.h"

#include <string.h>

const struct ctl_option ctl_globals[] = {
	{ "help", NULL, "print this help", 'h' },
	{ "version", NULL, "print the version" },
	{ "format", "table|json", "format of listings (default table); plans and advice also as svg" },
	{ "timeout", "DURATION", "stop waiting after this time, e.g. 30s; the work goes on" },
	{ "progress", NULL, "print progress as lines on stderr, if stderr is no terminal (default: print none)" },
	{ "socket", "PATH", "the daemon's socket (default $PTC_SOCKET, else " PTC_ADMIN_DEFAULT_SOCKET ")" },
	{ "server", "HOST:PORT", "a daemon over TCP with mutual TLS, instead of the socket" },
	{ "ca", "FILE", "with --server: the certificate authority" },
	{ "cert", "FILE", "with --server: your certificate" },
	{ "key", "FILE", "with --server: the key of your certificate" },
	{ "member", "DNS-NAME", "with --server: tls.member of the daemon's cluster (default ptc-node)" },
};
const size_t ctl_nglobals = sizeof(ctl_globals) / sizeof(ctl_globals[0]);

const struct ctl_verb *const ctl_verbs[] = {
	&ctl_nodes, /* in the order of `ptcctl help` */
	&ctl_node_lost,     &ctl_node_forget,    &ctl_device_bad,   &ctl_cluster_recover, &ctl_cluster_rejoin,
	&ctl_status,        &ctl_job_create,     &ctl_job_delete,   &ctl_job_list,        &ctl_run,
	&ctl_stop,          &ctl_logs,           &ctl_import,       &ctl_export,          &ctl_layout,
	&ctl_plan,          &ctl_advise,         &ctl_probe,        &ctl_profile,         &ctl_rules_lint,
	&ctl_rules_show,    &ctl_resize,         &ctl_drain,        &ctl_abort,           &ctl_snapshot,
	&ctl_snapshots,     &ctl_rollback,       &ctl_verify,       &ctl_archive_verb,    &ctl_events,
	&ctl_report,        &ctl_dataset_add,    &ctl_dataset_list, &ctl_dataset_check,   &ctl_dataset_inspect,
	&ctl_dataset_proof, &ctl_dataset_remove, &ctl_mount,        &ctl_umount,          &ctl_top,
	&ctl_version,       &ctl_completion,     &ctl_help,
};
const size_t ctl_nverbs = sizeof(ctl_verbs) / sizeof(ctl_verbs[0]);

static void put_options(const struct ctl_option *options, size_t n, FILE *out)
{
	for (size_t i = 0; i < n; i++) {
		char left[64], letter[8] = "";

		if (options[i].letter)
			snprintf(letter, sizeof(letter), "-%c, ", options[i].letter);
		snprintf(left, sizeof(left), "%s--%s%s%s", letter, options[i].name, options[i].arg ? " " : "",
			 options[i].arg ? options[i].arg : "");
		fprintf(out, "  %-22s %s\n", left, options[i].help);
	}
}

void ctl_help_verb(const struct ctl_verb *verb, FILE *out)
{
	fprintf(out, "usage: ptcctl %s%s%s%s\n\n%s.\n", verb->name, verb->args[0] ? " " : "", verb->args,
		verb->noptions ? " [options]" : "", verb->about);
	if (verb->help)
		fprintf(out, "\n%s", verb->help);
	if (verb->noptions) {
		fputs("\noptions:\n", out);
		put_options(verb->options, verb->noptions, out);
	}
	fputs("\nglobal options:\n", out);
	put_options(ctl_globals, ctl_nglobals, out);
	fputs("\nexit status: 0 done, 1 failed, 2 wrong usage\n", out);
}

void ctl_help_all(FILE *out)
{
	fputs("usage: ptcctl VERB [arguments] [options]\n\nverbs:\n", out);
	for (size_t i = 0; i < ctl_nverbs; i++)
		fprintf(out, "  %-16s %s\n", ctl_verbs[i]->name, ctl_verbs[i]->about);
	fputs("\nglobal options:\n", out);
	put_options(ctl_globals, ctl_nglobals, out);
	fputs("\nexit status: 0 done, 1 failed, 2 wrong usage. \"ptcctl VERB --help\" says more.\n", out);
}
