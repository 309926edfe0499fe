/* SPDX-License-Identifier: Apache-2.0 */
/* What verbs print: documents as tables or JSON, plans and summaries for a person,
 * progress. Functions write to stdout (progress: to stderr); ctl_flush and main
 * notice that nobody takes the output. Failure: a document that is none of ours
 * (PTC_ECORRUPT), memory. */
#pragma once

#include "client/ctl/line/ctl.h"

/* phases.c */
/* What happens in that phase of a switch; NULL: not one that we know. */
const char *ctl_phase_about(const char *phase);

/* tables.c */
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
/* As that, of the objects in the lists `inner` of the list's objects: each with its outer object's member `key` before
 * it. With
 * --format json those alone, each with that member, in an object whose member `inner` is their list. */
int ctl_print_inner(const struct ctl *c, const char *json, const char *list, const char *inner, const char *key,
		    const struct ctl_column *columns, size_t n, struct ptc_error *err);
/* If as_of_ms is not 0, tells a person on stderr that the coordinator is unreachable, and that the answer is of that
 * time. */
void ctl_note_as_of(const struct ctl *c, int64_t as_of_ms);
int ctl_print_plan(const struct ctl *c, const char *json, struct ptc_error *err);
int ctl_print_summary(const struct ctl *c, const char *json, struct ptc_error *err);
struct json_t;
void ctl_put_pause(const struct json_t *pause); /* report.c: how long training stood still, and for what */
/* job_status.c: shows the jobs; for a single job, also the states of its ranks. */
int ctl_print_status(const struct ctl *c, const char *json, bool one, struct ptc_error *err);
/* "1.5 GiB"; returns buf. */
const char *ctl_bytes(uint64_t bytes, char *buf, size_t size);

/* markup.c: so that HTML and XML read s as text; control characters become spaces. s: UTF-8, or NULL for nothing. */
struct ptc_buf;
void ctl_put_escaped(struct ptc_buf *b, const char *s);

/* progress.c: on stderr; one line that changes on a terminal, else nothing or, where that is wanted, a line per phase
 * and every few seconds. */
struct ctl_progress {
	bool terminal, open; /* open: the terminal's line has text */
	char phase[32];
	int64_t began_ns, phase_start_ns, shown_ns;
	uint64_t phase_first;
};
void ctl_progress_want_lines(void);             /* for all that is shown from now on */
void ctl_progress_init(struct ctl_progress *p); /* the call whose progress it is begins then */
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
/* Ends a followed call: prints the summary, or that the work goes on; passes errors on. */
int ctl_follow_end(struct ctl *c, struct ctl_follow *f, int rc, struct ptc_error *err);
