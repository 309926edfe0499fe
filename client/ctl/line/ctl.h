/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl: a table of verbs over libptcadmin. Each verb has a file; options,
 * help and completions come from the table. A verb returns 0 (exit 0), a code
 * of base/status.h (exit 1) or CTL_USAGE (exit 2), and fills err, which main
 * prints as the one line "ptcctl VERB: text".
 *
 * Here: what a verb is, the command line it was given, the daemon it speaks to
 * and the job and target that the line means. One thread; the caller of main
 * owns struct ctl, all that points into argv is borrowed. */
#pragma once

#include "base/status.h"

#include <ptc/admin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CTL_USAGE       1 /* what a verb returns for wrong arguments */
#define CTL_MAX_ARGS    4
#define CTL_MAX_OPTIONS 128

struct ctl_option {
	const char *name; /* without dashes */
	const char *arg;  /* what its value is called; NULL: a flag */
	const char *help; /* one line */
	char letter;      /* a short form, "-f"; 0: none */
};

struct ctl;
struct ctl_verb {
	const char *name;  /* "nodes", "job create" */
	const char *args;  /* "JOB PATH" */
	const char *about; /* one line */
	const char *help;  /* further lines, may be NULL */
	const struct ctl_option *options;
	size_t noptions;
	int min_args, max_args;
	bool svg;     /* --format may be svg, too */
	bool deletes; /* removes a job's state, so that its name must be given */
	/* args[0] is a JOB that may be left out (job_choice.c); returns whether the arguments leave it out. NULL: no
	 * JOB. */
	bool (*job_missing)(const struct ctl *c);
	int (*run)(struct ctl *c, struct ptc_error *err);
};
#define CTL_OPTIONS(o) .options = (o), .noptions = sizeof(o) / sizeof((o)[0])

struct ctl {
	const struct ctl_verb *verb;
	const char *args[CTL_MAX_ARGS];
	int nargs;
	struct {
		const struct ctl_option *option;
		const char *value;
	} given[CTL_MAX_OPTIONS];
	size_t ngiven;
	bool json, svg;
	bool noted_as_of; /* events: once */
	struct ptc_admin_opts opts;
	struct ptc_admin *admin;
	int output_errno; /* ctl_flush failed with it */
	char *chosen;     /* the job that was not named on the command line; backs args[0] */
};

/* options.c */
const char *ctl_option(const struct ctl *c, const char *name); /* last value ("" for a flag); NULL: not given */
/* Values of an option that may be repeated; *at begins as 0. NULL: no more. */
const char *ctl_option_next(const struct ctl *c, const char *name, size_t *at);
int ctl_usage(struct ptc_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#ifdef __clang_analyzer__
#define ctl_usage(...) PTC_NEVER_0(ctl_usage(__VA_ARGS__))
#endif
/* "500ms", "30s", "5m", "2h"; label names the option. */
int ctl_duration(const char *label, const char *text, int *ret_ms, struct ptc_error *err);
int ctl_number(const char *label, const char *text, uint64_t min, uint64_t max, uint64_t *ret, struct ptc_error *err);

/* job_choice.c */
/* Puts the job in front of the arguments where they leave it out. */
int ctl_job_choose(struct ctl *c, struct ptc_error *err);
/* Common values of ctl_verb.job_missing. */
bool ctl_job_missing(const struct ctl *c);              /* fewer arguments than the verb needs */
bool ctl_job_missing_without_file(const struct ctl *c); /* neither an argument nor --file */

/* connect.c */
/* Opens c->admin where it is not open yet. */
int ctl_connect(struct ctl *c, struct ptc_error *err);
/* From here on SIGINT, SIGTERM and SIGHUP only set what ctl_interrupted returns. */
void ctl_catch_signals(void);
/* SIGINT and SIGTERM end us, but say first that what a daemon was asked for does not end with us. */
void ctl_leave_on_signals(void);
bool ctl_interrupted(void);
/* After each line of a stream. True: it ends here, and main says so where that is because nobody takes the output. */
bool ctl_flush(struct ctl *c);

/* target.c: --config, --gpus and --nodes. */
struct ctl_target {
	struct ptc_admin_target t;
	char *names; /* backs t.nodes */
	const char **nodes;
};
#define CTL_TARGET_OPTIONS                                                                                             \
	{ "config", "CONFIG", "configuration, e.g. tp=2,pp=2,dp=1" },                                                  \
		{ "gpus", "N", "number of devices; docs/job.md says which configuration the job then gets" },          \
	{                                                                                                              \
		"nodes", "A,B", "only these nodes"                                                                     \
	}
int ctl_target_get(const struct ctl *c, const char *job, struct ctl_target *ret_target, struct ptc_error *err);
void ctl_target_done(struct ctl_target *target);
/* snapshot_choice.c: the number of the job's snapshot that a text names: "snap-N", or a step. If several snapshots have
 * that step, the newest counts. kept: the committed one does not count. */
int ctl_snapshot_choose(struct ctl *c, const char *job, const char *text, bool kept, uint64_t *ret_snapshot,
			struct ptc_error *err);
/* Directories with rule sets, separated by ':'; ptc_free it. */
char *ctl_rules_path(void);
