/* SPDX-License-Identifier: Apache-2.0 */
/* What a live job runs: "run", "mode", "build", "copy", "snapshot_every", "seed", "elastic", "share_devices". Happy
 * path: decode; where the description is submitted, resolve completes it with the submitter's working directory and
 * environment. Failure: file and line of the key at fault; PTC_ELIMIT for what execve or etcd would not take. */
#include "formats/job/job_decode.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/number/units.h"
#include "base/number/search.h"
#include "formats/doc_rows.h"
#include "formats/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const run_keys[] = {
	"argv", "cwd", "env", "grace", "boundary_timeout", "build_timeout", "log_bytes"
};
/* In the order of enum ptc_job_mode; the last one is not one yet. */
static const char *const modes[] = { "restart", "rebuild", "keep" };
/* In the order of enum ptc_job_build. */
static const char *const builds[] = { "after", "ahead" };
static const char *const copies[] = { "lean", "fast", "async" };
/* In the order of enum ptc_job_on_failure. */
static const char *const failures[] = { "shrink", "wait", "stop" };
/* Of the submitter's shell and terminal, or set by ptcd for each rank; a trailing '*' stands for the rest of the name.
 * They would be wrong in a rank, or make descriptions differ that are the same. */
static const char *const not_inherited[] = {
	"PTC_*",
	"_",
	"PWD",
	"OLDPWD",
	"SHLVL",
	"SSH_*",
	"TERM",
	"COLUMNS",
	"LINES",
	"TMUX*",
	"STY",
	"WINDOW",
	"WINDOWID",
	"XDG_SESSION_*",
	"XDG_RUNTIME_DIR",
	"RANK",
	"LOCAL_RANK",
	"WORLD_SIZE",
	"LOCAL_WORLD_SIZE",
	"NODE_RANK",
	"MASTER_ADDR",
	"MASTER_PORT",
};

/* ---- decoding ---------------------------------------------------------------- */

/* Any text, empty too. */
static int get_text(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const char *label,
		    const char **ret_text)
{
	if (node->kind != PTC_DOC_TEXT || !node->string)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "%s must be a text", label);
	*ret_text = node->text;
	return 0;
}

static int decode_argv(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	struct ptc_job_run *run = &d->job->run;
	size_t bytes = 0;

	if (node->kind != PTC_DOC_LIST || !node->n)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "argv must be a list: the program and its arguments");
	if (node->n > PTC_RUN_MAX_ARGS)
		return ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT, "argv has %zu entries, at most %d are supported",
				     node->n, PTC_RUN_MAX_ARGS);
	run->argv = ptc_calloc(node->n + 1, sizeof *run->argv);
	if (!run->argv)
		return ptc_nomem(d->err);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		const char *text = NULL;
		int rc = get_text(d, n, "an entry of argv", &text);

		if (rc)
			return rc;
		if (!run->argc && !*text)
			return ptc_doc_error(d->doc, n, d->err, PTC_EINVAL, "argv names no program");
		bytes += strlen(text) + 1;
		if (bytes > PTC_RUN_ARGS_BYTES)
			return ptc_doc_error(d->doc, n, d->err, PTC_ELIMIT, "argv has more than %d bytes",
					     PTC_RUN_ARGS_BYTES);
		run->argv[run->argc] = ptc_strdup(text);
		if (!run->argv[run->argc++])
			return ptc_nomem(d->err);
	}
	return 0;
}

static size_t name_len(const char *variable)
{
	return strcspn(variable, "=");
}

static int compare_names(const char *a, const char *b)
{
	const size_t na = name_len(a), nb = name_len(b);
	const int order = memcmp(a, b, PTC_MIN(na, nb));

	return order ? order : (na > nb) - (na < nb);
}

/* By name, as the canonical form has them. */
PTC_COMPARE(compare_variables, char *const, compare_names(*a, *b))

static int decode_variable(struct ptc_job_decoder *d, const struct ptc_doc_node *node, size_t *bytes)
{
	struct ptc_job_run *run = &d->job->run;
	const char *value = NULL;
	int rc;

	if (!node->key[0] || strchr(node->key, '='))
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "\"%.80s\" cannot be a variable's name: it is empty or has a '='", node->key);
	rc = get_text(d, node, "a variable", &value);
	if (rc)
		return rc;
	*bytes += strlen(node->key) + strlen(value) + 2;
	if (*bytes > PTC_RUN_ENV_BYTES)
		return ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT, "env has more than %d bytes", PTC_RUN_ENV_BYTES);
	run->env[run->nenv] = ptc_asprintf("%s=%s", node->key, value);
	return run->env[run->nenv++] ? 0 : ptc_nomem(d->err);
}

static int decode_env(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	struct ptc_job_run *run = &d->job->run;
	size_t bytes = 0;

	if (node->kind != PTC_DOC_MAP)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "env must be a map of variables");
	if (node->n > PTC_RUN_MAX_ENV)
		return ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT,
				     "env has %zu variables, at most %d are supported", node->n, PTC_RUN_MAX_ENV);
	run->env = ptc_calloc(node->n + 1, sizeof *run->env);
	if (!run->env)
		return ptc_nomem(d->err);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		int rc = decode_variable(d, n, &bytes);

		if (rc)
			return rc;
	}
	qsort(run->env, run->nenv, sizeof *run->env, compare_variables);
	return 0;
}

static int decode_cwd(struct ptc_job_decoder *d, const struct ptc_doc_node *run, const struct ptc_doc_node *node)
{
	const char *cwd = NULL;
	int rc;

	if (!node && d->dir)
		return 0; /* the submitter's */
	if (!node)
		return ptc_doc_error(d->doc, run, d->err, PTC_EINVAL, "run has no \"cwd\"");
	rc = ptc_doc_text(d->doc, node, "cwd", &cwd, d->err);
	if (rc)
		return rc;
	if (cwd[0] != '/' && !d->dir)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "cwd must be an absolute path here");
	if (strlen(cwd) > PTC_RUN_CWD_MAX)
		return ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT, "cwd has more than %d bytes", PTC_RUN_CWD_MAX);
	d->job->run.cwd = cwd[0] == '/' ? ptc_strdup(cwd) : ptc_asprintf("%s/%s", d->dir, cwd);
	return d->job->run.cwd ? 0 : ptc_nomem(d->err);
}

/* A size or a duration in min..max; *ret_value keeps its default where there is no such key. */
int ptc_job_decode_quantity(struct ptc_job_decoder *d, const struct ptc_doc_node *run, const char *key, bool bytes,
			    uint64_t min, uint64_t max, uint64_t *ret_value)
{
	const struct ptc_doc_node *node = ptc_doc_get(run, key);
	char low[PTC_UNITS_MAX], high[PTC_UNITS_MAX];
	struct ptc_error why = PTC_ERROR_INIT;
	const char *text = NULL;
	uint64_t value = 0;
	int rc;

	if (!node)
		return 0;
	rc = ptc_doc_text(d->doc, node, key, &text, d->err);
	if (rc)
		return rc;
	rc = bytes ? ptc_units_parse_bytes(text, &value, &why) : ptc_units_parse_ms(text, &value, &why);
	if (rc)
		return ptc_doc_error(d->doc, node, d->err, rc, "%s: %s", key, why.text);
	if (value < min || value > max)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "%s must be in %s..%s, not %.40s", key,
				     bytes ? ptc_units_print_bytes(min, low) : ptc_units_print_ms(min, low),
				     bytes ? ptc_units_print_bytes(max, high) : ptc_units_print_ms(max, high), text);
	*ret_value = value;
	return 0;
}

static int decode_run(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	struct ptc_job_run *run = &d->job->run;
	const struct ptc_doc_node *argv, *env;
	int rc;

	d->job->has_run = true;
	*run = (struct ptc_job_run){ .grace_ms = PTC_RUN_GRACE_MS,
				     .boundary_timeout_ms = PTC_RUN_BOUNDARY_MS,
				     .build_timeout_ms = PTC_RUN_BOUNDARY_MS,
				     .log_bytes = PTC_RUN_LOG_BYTES };
	rc = ptc_doc_check_map(d->doc, node, "run", run_keys, PTC_ARRAY_LEN(run_keys), d->err);
	argv = ptc_doc_get(node, "argv");
	env = ptc_doc_get(node, "env");
	if (!rc)
		rc = argv ? decode_argv(d, argv)
			  : ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "run has no \"argv\"");
	if (!rc)
		rc = decode_cwd(d, node, ptc_doc_get(node, "cwd"));
	if (!rc && env)
		rc = decode_env(d, env);
	if (!rc)
		rc = ptc_job_decode_quantity(d, node, "grace", false, 0, PTC_RUN_GRACE_MAX_MS, &run->grace_ms);
	if (!rc)
		rc = ptc_job_decode_quantity(d, node, "boundary_timeout", false, PTC_RUN_BOUNDARY_MIN_MS,
					     PTC_RUN_BOUNDARY_MAX_MS, &run->boundary_timeout_ms);
	if (!rc)
		rc = ptc_job_decode_quantity(d, node, "build_timeout", false, PTC_RUN_BOUNDARY_MIN_MS,
					     PTC_RUN_BOUNDARY_MAX_MS, &run->build_timeout_ms);
	if (!rc)
		rc = ptc_job_decode_quantity(d, node, "log_bytes", true, PTC_RUN_LOG_MIN_BYTES, PTC_RUN_LOG_MAX_BYTES,
					     &run->log_bytes);
	return rc;
}

static int decode_mode(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	size_t i = 0;
	int rc = ptc_doc_word(d->doc, node, "mode", modes, PTC_ARRAY_LEN(modes), &i, d->err);

	if (!rc && i > PTC_JOB_REBUILD)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "mode keep is not supported yet; write restart or rebuild");
	d->job->mode = (enum ptc_job_mode)i;
	return rc;
}

/* After decode_mode. */
static int decode_build(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	size_t i = 0;
	int rc = ptc_doc_word(d->doc, node, "build", builds, PTC_ARRAY_LEN(builds), &i, d->err);

	if (!rc && i == PTC_JOB_BUILD_AHEAD && d->job->mode != PTC_JOB_RESTART)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "build: ahead needs mode: restart, for a process that trains cannot build");
	d->job->build = (enum ptc_job_build)i;
	return rc;
}

/* After the others of `elastic`. recovers: what on_hang says, if it is there. */
static int decode_hang(struct ptc_job_decoder *d, const struct ptc_doc_node *node, bool recovers,
		       struct ptc_job_elastic *e)
{
	static const char *const of_it[] = { "hang_after", "hang_steps" };

	if (ptc_doc_get(node, "on_hang")) {
		e->on_hang = recovers ? PTC_JOB_HANG_RECOVER : PTC_JOB_HANG_REPORT;
		e->hang_after_ms = PTC_JOB_HANG_AFTER_MS;
		if (!ptc_doc_get(node, "hang_steps"))
			e->hang_steps = PTC_JOB_HANG_STEPS;
		return ptc_job_decode_quantity(d, node, "hang_after", false, PTC_JOB_HANG_AFTER_MIN_MS,
					       PTC_JOB_HANG_AFTER_MAX_MS, &e->hang_after_ms);
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(of_it); i++)
		if (ptc_doc_get(node, of_it[i]))
			return ptc_doc_error(d->doc, ptc_doc_get(node, of_it[i]), d->err, PTC_EINVAL,
					     "%s says nothing without on_hang; write on_hang: report, or recover",
					     of_it[i]);
	return 0;
}

static int decode_elastic(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	static const char *const joins[] = { "ignore", "grow" }, *const hangs[] = { "report", "recover" };
	struct ptc_job_elastic e = { .on_failure = PTC_JOB_SHRINK };
	enum ptc_job_on_join { IGNORE, GROW } on_join = IGNORE;
	enum ptc_job_hangs { REPORT, RECOVER } on_hang = REPORT;
	const struct ptc_doc_row rows[] = {
		{ "min_gpus", PTC_DOC_COUNT, &e.min_gpus, 1, PTC_MAX_RANKS, NULL },
		{ "max_gpus", PTC_DOC_COUNT, &e.max_gpus, 1, PTC_MAX_RANKS, NULL },
		{ "on_failure", PTC_DOC_WORD, &e.on_failure, 0, PTC_JOB_STOP, failures },
		{ "on_join", PTC_DOC_WORD, &on_join, 0, GROW, joins },
		{ "join_after", PTC_DOC_OTHER },
		{ "max_restarts", PTC_DOC_COUNT, &e.max_restarts, 0, PTC_JOB_RESTARTS_MAX, NULL },
		{ "on_hang", PTC_DOC_WORD, &on_hang, 0, RECOVER, hangs },
		{ "hang_after", PTC_DOC_OTHER },
		{ "hang_steps", PTC_DOC_COUNT, &e.hang_steps, 0, PTC_JOB_HANG_STEPS_MAX, NULL },
	};
	int rc = ptc_doc_read(d->doc, node, "elastic", rows, PTC_ARRAY_LEN(rows), d->err);

	if (!rc && e.max_gpus && e.max_gpus < e.min_gpus)
		rc = ptc_doc_error(d->doc, ptc_doc_get(node, "max_gpus"), d->err, PTC_EINVAL,
				   "max_gpus (%" PRIu32 ") is less than min_gpus (%" PRIu32 ")", e.max_gpus,
				   e.min_gpus);
	if (!rc)
		rc = ptc_job_decode_quantity(d, node, "join_after", false, 1, PTC_JOB_JOIN_AFTER_MAX_MS,
					     &e.join_after_ms);
	if (!rc)
		rc = decode_hang(d, node, on_hang == RECOVER, &e);
	e.grow = on_join == GROW;
	d->job->elastic = e;
	return rc;
}

int ptc_job_decode_run(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	static const char *const live_keys[] = { "mode",    "copy",  "snapshot_every", "seed",
						 "elastic", "build", "share_devices" };
	static const char *const truths[] = { "false", "true" };
	const struct ptc_doc_node *run = ptc_doc_get(root, "run"), *node[PTC_ARRAY_LEN(live_keys)];
	int64_t every = 0, seed = 0;
	size_t copy = 0, shares = 0;
	int rc = run ? decode_run(d, run) : 0;

	for (size_t i = 0; i < PTC_ARRAY_LEN(live_keys); i++) {
		node[i] = ptc_doc_get(root, live_keys[i]);
		if (!rc && node[i] && !run)
			rc = ptc_doc_error(d->doc, node[i], d->err, PTC_EINVAL,
					   "\"%s\" is for jobs that run something; the job has no \"run\"",
					   live_keys[i]);
	}
	if (!rc && node[0])
		rc = decode_mode(d, node[0]);
	if (!rc && node[1])
		rc = ptc_doc_word(d->doc, node[1], "copy", copies, PTC_ARRAY_LEN(copies), &copy, d->err);
	if (!rc && node[2])
		rc = ptc_doc_int(d->doc, node[2], "snapshot_every", 0, INT64_MAX, &every, d->err);
	if (!rc && node[3])
		rc = ptc_doc_int(d->doc, node[3], "seed", 0, INT64_MAX, &seed, d->err);
	if (!rc && node[4])
		rc = decode_elastic(d, node[4]);
	if (!rc && node[5])
		rc = decode_build(d, node[5]);
	if (!rc && node[6])
		rc = ptc_doc_word(d->doc, node[6], live_keys[6], truths, PTC_ARRAY_LEN(truths), &shares, d->err);
	if (rc)
		return rc;
	d->job->share_devices = shares == 1;
	d->job->fast_copy = copy == 1;
	d->job->async_copy = copy == 2;
	d->job->snapshot_every = (uint64_t)every;
	d->job->has_seed = node[3] != NULL;
	d->job->seed = (uint64_t)seed;
	return 0;
}

uint64_t ptc_job_seed(const struct ptc_job_desc *job, const char *uuid)
{
	static const char hex[] = "0123456789abcdef";
	uint64_t seed = 0;

	if (job->has_seed)
		return job->seed;
	for (size_t digits = 0; *uuid && digits < 16; uuid++) {
		const char *digit = strchr(hex, *uuid);

		if (!digit)
			continue; /* a dash */
		seed = seed << 4 | (uint64_t)(digit - hex);
		digits++;
	}
	return seed;
}

void ptc_job_run_done(struct ptc_job_run *run)
{
	for (size_t i = 0; i < run->argc; i++)
		ptc_free(run->argv[i]);
	for (size_t i = 0; i < run->nenv; i++)
		ptc_free(run->env[i]);
	ptc_free(run->argv);
	ptc_free(run->env);
	ptc_free(run->cwd);
	memset(run, 0, sizeof *run);
}

/* ---- submitting ------------------------------------------------------------------ */

static bool inherited(const char *variable)
{
	const size_t n = name_len(variable);

	if (!n || !variable[n])
		return false;
	for (size_t i = 0; i < PTC_ARRAY_LEN(not_inherited); i++) {
		const char *name = not_inherited[i], *star = strchr(name, '*');

		if (star ? n >= (size_t)(star - name) && !memcmp(variable, name, (size_t)(star - name))
			 : n == strlen(name) && !memcmp(variable, name, n))
			return false;
	}
	return true;
}

struct entry {
	const char *text;
	size_t at; /* the job's own first, then in the environment's order */
};

PTC_COMPARE(compare_entries, struct entry, PTC_THEN(compare_names(a->text, b->text), PTC_ORDER(a->at, b->at)))

/* Copies the first of each name, as getenv would find it. */
static int copy_entries(const struct entry *all, size_t n, struct ptc_job_run *ret_run, struct ptc_error *err)
{
	size_t bytes = 0;

	ret_run->env = ptc_calloc(n + 1, sizeof *ret_run->env);
	if (!ret_run->env)
		return ptc_nomem(err);
	for (size_t i = 0; i < n; i++) {
		const char *text = all[i].text;

		if (i && !compare_names(all[i - 1].text, text))
			continue;
		bytes += strlen(text) + 1;
		if (ret_run->nenv == PTC_RUN_MAX_ENV || bytes > PTC_RUN_ENV_BYTES)
			return ptc_error_set(
				err, PTC_ELIMIT,
				"the environment has more than %d variables or %d bytes: unset what the job "
				"does not need (env -i NAME=VALUE ... ptcctl)",
				PTC_RUN_MAX_ENV, PTC_RUN_ENV_BYTES);
		if (!ptc_name_is_utf8(text))
			return ptc_error_set(
				err, PTC_EINVAL,
				"the environment variable %.*s is not UTF-8: unset it, or set it in the job's env",
				(int)PTC_MIN(name_len(text), 80), text);
		ret_run->env[ret_run->nenv] = ptc_strdup(text);
		if (!ret_run->env[ret_run->nenv++])
			return ptc_nomem(err);
	}
	return 0;
}

static int merge_env(struct ptc_job_run *run, char *const *environment, struct ptc_error *err)
{
	struct ptc_job_run merged = { 0 };
	struct entry *all;
	size_t n = 0, m = 0;
	int rc;

	while (environment[n])
		n++;
	all = ptc_calloc(run->nenv + n + 1, sizeof *all);
	if (!all)
		return ptc_nomem(err);
	for (size_t i = 0; i < run->nenv; i++, m++)
		all[m] = (struct entry){ run->env[i], m };
	for (size_t i = 0; i < n; i++)
		if (inherited(environment[i])) {
			all[m] = (struct entry){ environment[i], m };
			m++;
		}
	qsort(all, m, sizeof *all, compare_entries);
	rc = copy_entries(all, m, &merged, err);
	ptc_free(all);
	if (!rc) {
		struct ptc_job_run old = { .env = run->env, .nenv = run->nenv };

		run->env = merged.env;
		run->nenv = merged.nenv;
		merged = old;
	}
	ptc_job_run_done(&merged);
	return rc;
}

/* base/path without "." and empty components; ".." stays, as what it means depends on links. */
static int join(const char *base, const char *path, char **ret_path, struct ptc_error *err)
{
	char *out = ptc_malloc(strlen(base) + strlen(path) + 3), *end = out;
	const char *parts[] = { base, path };

	if (!out)
		return ptc_nomem(err);
	for (size_t i = path[0] == '/'; i < 2; i++)
		for (const char *p = parts[i]; *p;) {
			const size_t n = strcspn(p, "/");

			if (n && !(n == 1 && *p == '.')) {
				*end++ = '/';
				memcpy(end, p, n);
				end += n;
			}
			p += n + (p[n] == '/');
		}
	if (end == out)
		*end++ = '/';
	*end = '\0';
	if (end - out > PTC_RUN_CWD_MAX) {
		ptc_free(out);
		return ptc_error_set(err, PTC_ELIMIT, "cwd has more than %d bytes", PTC_RUN_CWD_MAX);
	}
	*ret_path = out;
	return 0;
}

int ptc_job_resolve_run(struct ptc_job_desc *job, const char *cwd, char *const *environment, struct ptc_error *err)
{
	char *full = NULL;
	int rc;

	if (!job->has_run)
		return 0;
	rc = join(cwd, job->run.cwd ? job->run.cwd : "", &full, err);
	if (!rc && !ptc_name_is_utf8(full))
		rc = ptc_error_set(err, PTC_EINVAL, "the path of cwd is not UTF-8");
	if (!rc)
		rc = merge_env(&job->run, environment, err);
	if (rc) {
		ptc_free(full);
		return rc;
	}
	ptc_free(job->run.cwd);
	job->run.cwd = full;
	return 0;
}
