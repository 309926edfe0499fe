/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl rules: lint, show. lint reads a job's file, lays it out under each
 * configuration of its gpus table and those given, and says all that is wrong
 * or probably not meant. No daemon is asked. */
#include "client/ctl/plans/offline.h"
#include "client/ctl/plans/plans.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "formats/json.h"
#include "reshard/spec/lint.h"

#include <string.h>

#define MAX_FINDINGS 1000 /* printed; a wrong pattern can hit every tensor of a million */

static const struct ctl_option options[] = {
	{ "file", "FILE", "the job's description (docs/job.md)", 'f' },
	{ "config", "CONFIG", "also check this configuration; may be repeated" },
};

struct report {
	bool json;
	size_t wrong, notes;
	bool failed; /* out of memory for a line */
};

static void put_finding(struct report *r, bool wrong, const char *text)
{
	struct ptc_buf b = PTC_BUF_INIT;

	if (r->wrong + r->notes > MAX_FINDINGS)
		return;
	if (!r->json) {
		printf("%s: %s\n", wrong ? "error" : "note", text);
		return;
	}
	ptc_json_put_string(&b, text);
	r->failed |= ptc_buf_failed(&b);
	printf("%s{\"severity\":\"%s\",\"text\":%s}", r->wrong + r->notes > 1 ? ",\n" : "\n", wrong ? "error" : "note",
	       b.data ? b.data : "\"\"");
	ptc_buf_done(&b);
}

static void found(void *arg, bool wrong, const char *text)
{
	struct report *r = arg;

	r->wrong += wrong;
	r->notes += !wrong;
	put_finding(r, wrong, text);
}

/* One configuration: what does not come out under it. */
static int try_config(struct report *r, const struct ptc_spec *spec, const struct ptc_config *config)
{
	struct ptc_error err = PTC_ERROR_INIT;
	static char text[PTC_CONFIG_TEXT_MAX + sizeof err.text + 8]; /* one thread; too large for a stack */
	struct ptc_layout *l = NULL;
	int rc = ptc_layout_new(spec, config, &l, &err);
	size_t n;

	ptc_layout_free(l);
	if (!rc || rc == PTC_ENOMEM)
		return rc;
	if (ptc_config_format(config, text, PTC_CONFIG_TEXT_MAX))
		text[0] = '\0';
	n = strlen(text);
	snprintf(text + n, sizeof text - n, ": %s", err.text);
	found(r, true, text);
	return 0;
}

/* The configurations of the gpus table and those given. */
struct tried {
	const struct ptc_config **v;
	struct ptc_config *given;
	size_t n;
};

static int list_configs(const struct ctl *c, const struct ptc_job_desc *job, struct tried *ret, struct ptc_error *err)
{
	const char *text;
	size_t at = 0, given = 0;
	int rc = 0;

	while (ctl_option_next(c, "config", &at))
		given++;
	ret->given = ptc_calloc(given, sizeof *ret->given);
	ret->v = ptc_calloc(job->ngpus + given, sizeof *ret->v);
	if (!ret->given || !ret->v)
		return ptc_nomem(err);
	for (; ret->n < job->ngpus; ret->n++)
		ret->v[ret->n] = &job->gpus[ret->n].config;
	at = 0;
	for (size_t i = 0; !rc && (text = ctl_option_next(c, "config", &at)); i++) {
		rc = ptc_config_parse(text, &ret->given[i], err);
		ret->v[ret->n++] = &ret->given[i];
	}
	return rc;
}

static int check_job(const struct ctl *c, struct report *r, const struct ptc_job_desc *job, struct ptc_error *err)
{
	struct tried tried = { 0 };
	int rc = list_configs(c, job, &tried, err);
	char line[400];

	for (size_t i = 0; ptc_job_timeout_clash(job, 0, i, line, sizeof line); i++)
		found(r, false, line);
	if (rc == 0)
		rc = ptc_spec_review(&job->spec, found, r, err);
	if (rc == 0)
		rc = ptc_spec_review_cuts(&job->spec, tried.v, tried.n, found, r, err);
	for (size_t i = 0; i < tried.n && !rc; i++)
		rc = try_config(r, &job->spec, tried.v[i]);
	ptc_free(tried.v);
	ptc_free(tried.given);
	return rc == PTC_ENOMEM || r->failed ? ptc_nomem(err) : rc;
}

static int run_lint(struct ctl *c, struct ptc_error *err)
{
	struct report r = { .json = c->json };
	struct ctl_offline o = { 0 };
	int rc = ctl_offline_open(c, &o, err);

	if (rc)
		return rc;
	if (r.json)
		printf("{\"findings\":[");
	rc = check_job(c, &r, &o.job, err);
	if (r.json)
		printf("],\"errors\":%zu,\"notes\":%zu}\n", r.wrong, r.notes);
	else if (!rc && !r.wrong)
		printf("%zu tensors, %zu rules, %zu configurations of the gpus table: nothing wrong\n",
		       o.job.spec.ntensors, o.job.spec.nrules, o.job.ngpus);
	ctl_offline_done(&o);
	if (!rc && r.wrong)
		rc = ptc_error_set(err, PTC_ELAYOUT, "%zu error%s%s", r.wrong, r.wrong > 1 ? "s" : "",
				   r.wrong + r.notes > MAX_FINDINGS ? "; the first are printed" : "");
	return rc;
}

static int run_show(struct ctl *c, struct ptc_error *err)
{
	for (const struct ptc_rule_set *s = ptc_rule_sets; s->name; s++) {
		if (!c->nargs)
			puts(s->name);
		else if (!strcmp(s->name, c->args[0]))
			fputs(s->text, stdout);
		else
			continue;
		if (c->nargs)
			return 0;
	}
	return c->nargs ? ptc_error_set(err, PTC_ENOTFOUND,
					"no rule set \"%.64s\" is built in; \"ptcctl rules show\" lists them",
					c->args[0])
			: 0;
}

const struct ctl_verb ctl_rules_lint = {
	.name = "rules lint",
	.args = "",
	.about = "Check a job file's rules against its tensors and configurations",
	.help = "ptcctl computes the layout under each configuration of the job's `gpus` table, and of each\n"
		"--config. It refuses rules that are ambiguous, that overlap, or that leave a part of a\n"
		"tensor uncovered; the error names tensor, axis and sizes. It notes timeouts of the job that\n"
		"contradict each other. The exit status is 1 if anything is wrong.\n",
	CTL_OPTIONS(options),
	.run = run_lint,
};
const struct ctl_verb ctl_rules_show = {
	.name = "rules show",
	.args = "[NAME]",
	.about = "Print a built-in rule set, or the names of all sets",
	.help = "To change a set, print it to a file in a directory of $PTC_RULES_DIR and change the file. Or\n"
		"copy the set's rules into the job's file.\n",
	.max_args = 1,
	.run = run_show,
};
