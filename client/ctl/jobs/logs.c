/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl logs: what ranks wrote. Lines go out as they came. Only on a terminal, control characters become "?", and a
 * line that was rewritten with carriage returns shows its last state only. Failure: see admin.c; if the verb cannot
 * write its output, it ends. */
#include "client/ctl/jobs/jobs.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "formats/json.h"

#include <string.h>
#include <unistd.h>

static const struct ctl_option options[] = {
	{ "follow", NULL, "also show new output, until the job has ended", 'f' },
	{ "rank", "R|all", "the rank (default 0); all: every rank, with \"[rank R] \" before each line" },
	{ "lines", "N", "print the last N lines; default: all" },
	{ "evidence", NULL, "instead, show the records of ranks that hung: states, stacks, errors of devices" },
	{ "now", NULL, "with --evidence: first make new records of the ranks that run" },
};

struct printer {
	struct ctl *c;
	bool prefix, terminal;
};

/* Text that may be anything as a JSON string: what is not UTF-8 becomes "?". */
static json_t *any_string(const char *text, size_t len)
{
	json_t *s = json_stringn(text, len);
	char *copy;

	if (s)
		return s;
	copy = ptc_strndup(text, len);
	for (size_t i = 0; copy && i < len; i++)
		if (!copy[i] || (unsigned char)copy[i] >= 0x80)
			copy[i] = '?';
	s = copy ? json_stringn(copy, len) : NULL;
	ptc_free(copy);
	return s;
}

static void put_json(uint32_t rank, const char *line, size_t len)
{
	json_t *doc = json_pack("{s:I, s:o?}", "rank", (json_int_t)rank, "text", any_string(line, len));
	char *text = doc ? ptc_json_text(doc) : NULL;

	if (text)
		puts(text);
	ptc_free(text);
	json_decref(doc);
}

static void put_terminal(const char *line, size_t len)
{
	const char *last;

	while (len && line[len - 1] == '\r')
		len--;
	last = memrchr(line, '\r', len);
	for (const char *p = last ? last + 1 : line; p < line + len; p++)
		putchar(((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f ? '?' : *p);
}

static void put_line(const struct printer *log, uint32_t rank, const char *line, size_t len)
{
	if (log->c->json) {
		put_json(rank, line, len);
		return;
	}
	if (log->prefix)
		printf("[rank %u] ", (unsigned)rank);
	if (log->terminal)
		put_terminal(line, len);
	else
		fwrite(line, 1, len, stdout);
	putchar('\n');
}

static int on_log(void *arg, uint32_t rank, const void *data, size_t len)
{
	const struct printer *log = arg;

	for (const char *p = data; len;) {
		const char *end = memchr(p, '\n', len);
		size_t n = end ? (size_t)(end - p) : len;

		put_line(log, rank, p, n);
		p += end ? n + 1 : n;
		len -= end ? n + 1 : n;
	}
	return ctl_flush(log->c);
}

int ctl_logs_show(struct ctl *c, const struct ptc_admin_logs *what, struct ptc_error *err)
{
	struct printer log = { .c = c, .prefix = what->all, .terminal = isatty(STDOUT_FILENO) };

	return ptc_admin_logs(c->admin, what, on_log, &log, err);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *rank = ctl_option(c, "rank"), *lines = ctl_option(c, "lines");
	struct ptc_admin_logs what = { .size = sizeof what,
				       .job = c->args[0],
				       .follow = ctl_option(c, "follow") != NULL };
	uint64_t number = 0, most = 0;
	int rc = 0;

	what.all = rank && !strcmp(rank, "all");
	what.evidence = ctl_option(c, "evidence") != NULL;
	what.now = ctl_option(c, "now") != NULL;
	if (what.now && !what.evidence)
		return ctl_usage(err, "--now goes with --evidence");
	if (what.evidence && (rank || lines || what.follow))
		return ctl_usage(err, "--evidence is of all ranks, and has no other option than --now");
	if (rank && !what.all && ctl_number("--rank", rank, 0, PTC_MAX_RANKS - 1, &number, err))
		return ctl_usage(err, "--rank is a number in 0..%u or \"all\", not \"%.40s\"", PTC_MAX_RANKS - 1, rank);
	if (lines)
		rc = ctl_number("--lines", lines, 1, UINT32_MAX, &most, err);
	if (!rc)
		rc = ctl_connect(c, err);
	what.rank = (uint32_t)number;
	what.lines = (uint32_t)most;
	return rc ? rc : ctl_logs_show(c, &what, err);
}

const struct ctl_verb ctl_logs = {
	.name = "logs",
	.args = "[JOB]",
	.about = "Show the output of a job's ranks on stdout and stderr",
	.help = "If the job does not run, ptcctl shows the output of its newest ranks, also of a start that\n"
		"failed. After a resize, --follow goes on with the output of the new processes.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
