/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl: a table of verbs over libptcadmin. Each verb has a file; options,
 * help and completions come from the table. A verb returns 0 (exit 0), a code
 * of base/status.h (exit 1) or CTL_USAGE (exit 2), and fills err, which main
 * prints as the one line "ptcctl VERB: text". */
#pragma once

#include "base/status.h"
#include "client/admin/ptcadmin.h"

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
	/* args[0] is a JOB that may be left out (job_choice.c); returns whether the arguments leave it out. NULL: no JOB. */
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

/* verbs.c */
extern const struct ctl_verb *const ctl_verbs[];
extern const size_t ctl_nverbs;
extern const struct ctl_option ctl_globals[];
extern const size_t ctl_nglobals;
void ctl_help_all(FILE *out);
void ctl_help_verb(const struct ctl_verb *verb, FILE *out);

/* man.c: ptcctl(1). */
void ctl_man(FILE *out);

/* options.c */
/* Finds the verb and takes the rest apart. *ret_help: --help was given. CTL_USAGE with err filled. */
int ctl_parse(struct ctl *c, int argc, char **argv, bool *ret_help, struct ptc_error *err);
const char *ctl_option(const struct ctl *c, const char *name); /* last value ("" for a flag); NULL: not given */
/* Values of an option that may be repeated; *at begins as 0. NULL: no more. */
const char *ctl_option_next(const struct ctl *c, const char *name, size_t *at);
int ctl_usage(struct ptc_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
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
		{ "gpus", "N", "number of devices; the job's table says which configuration" },                        \
	{                                                                                                              \
		"nodes", "A,B", "only these nodes"                                                                     \
	}
int ctl_target_get(const struct ctl *c, const char *job, struct ctl_target *ret_target, struct ptc_error *err);
void ctl_target_done(struct ctl_target *target);
/* Directories with rule sets, separated by ':'; ptc_free it. */
char *ctl_rules_path(void);

/* job.c */
/* A description as daemons take it, and the job's name; ptc_free both. */
int ctl_job_read(struct ctl *c, const char *file, char **ret_name, char **ret_spec, size_t *ret_len,
		 struct ptc_error *err);

/* dataset.c */
struct ptc_dataset_doc;
struct ptc_job_desc;
/* Looks up the datasets that a job consumes, and writes down which they are. */
int ctl_dataset_pin(struct ctl *c, struct ptc_job_desc *job, struct ptc_error *err);
int ctl_dataset_find(struct ctl *c, const char *name, struct ptc_dataset_doc *ret_doc, struct ptc_error *err);

/* logs.c */
int ctl_logs_show(struct ctl *c, const struct ptc_admin_logs *what, struct ptc_error *err);

/* phases.c */
/* What happens in that phase of a switch; NULL: not one that we know. */
const char *ctl_phase_about(const char *phase);

/* print.c */
/* A JSON document as the user asked: as it is, or as tables. */
int ctl_print(const struct ctl *c, const char *json, struct ptc_error *err);
/* report.c: the same for a person who wants the point of it. */
struct ctl_column {
	const char *key;  /* a member of each object in the list */
	const char *in;   /* NULL, or the member that holds the object with the key */
	const char *name; /* NULL: key */
};
int ctl_print_names(const char *json, const char *list, const char *key, struct ptc_error *err);
int ctl_print_columns(const struct ctl *c, const char *json, const char *list, const struct ctl_column *columns,
		      size_t n, struct ptc_error *err);
/* On stderr, for a person, where as_of_ms is not 0: the coordinator is away, and what is shown is as of then. */
void ctl_note_as_of(const struct ctl *c, int64_t as_of_ms);
int ctl_print_plan(const struct ctl *c, const char *json, struct ptc_error *err);
int ctl_print_summary(const struct ctl *c, const char *json, struct ptc_error *err);
/* live.c: the jobs; of one, also what its ranks do. */
int ctl_print_status(const struct ctl *c, const char *json, bool one, struct ptc_error *err);
/* "1.5 GiB"; returns buf. */
const char *ctl_bytes(uint64_t bytes, char *buf, size_t size);

/* progress.c: on stderr; one line that changes on a terminal, else nothing or, where that is wanted, a line per phase and every
 * few seconds. */
struct ctl_progress {
	bool terminal, open; /* open: the terminal's line has text */
	char phase[32];
	int64_t phase_start_ns, shown_ns;
	uint64_t phase_first, shown_bytes;
};
void ctl_progress_want_lines(void); /* for all that begin from now on */
void ctl_progress_init(struct ctl_progress *p);
void ctl_progress_show(struct ctl_progress *p, const char *phase, uint64_t done, uint64_t total, const char *text);
void ctl_progress_end(struct ctl_progress *p);
/* A ptc_admin_progress_fn. arg: struct ctl_follow. */
struct ctl_follow {
	struct ctl_progress progress;
	bool detach;   /* stop listening once the work has been accepted */
	bool detached; /* did so */
	char *summary; /* ptc_free it */
};
int ctl_follow_fn(void *arg, const struct ptc_admin_progress *progress);
/* What a followed call returned: prints the summary, or that the work goes on; passes errors on. */
int ctl_follow_end(struct ctl *c, struct ctl_follow *f, int rc, struct ptc_error *err);
