/* SPDX-License-Identifier: Apache-2.0 */
/* What a live job runs: "run" (with the environment that ranks get), "mode", "build", "copy", "snapshot_every",
 * "seed", "elastic", "share_devices". Happy path: decode; where the description is submitted, resolve completes it
 * with the submitter's working directory and environment. Failure: file and line of the key at fault; PTC_ELIMIT for
 * what execve or etcd would not take. */
#include "formats/job/job_decode.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/number/search.h"
#include "base/number/units.h"
#include "formats/doc_rows.h"
#include "formats/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN(key, member, ...) PTC_DOC_FIELD(struct ptc_job_run, key, member, __VA_ARGS__)
static const struct ptc_doc_row run_rows[] = {
	{ "argv", PTC_DOC_OTHER },
	{ "cwd", PTC_DOC_OTHER },
	{ "env", PTC_DOC_OTHER },
	RUN("grace", grace_ms, MS, .max = PTC_RUN_GRACE_MAX_MS, .fallback = PTC_RUN_GRACE_MS),
	RUN("boundary_timeout", boundary_timeout_ms, MS, .min = PTC_RUN_BOUNDARY_MIN_MS, .max = PTC_RUN_BOUNDARY_MAX_MS,
	    .fallback = PTC_RUN_BOUNDARY_MS),
	RUN("build_timeout", build_timeout_ms, MS, .min = PTC_RUN_BOUNDARY_MIN_MS, .max = PTC_RUN_BOUNDARY_MAX_MS,
	    .fallback = PTC_RUN_BOUNDARY_MS),
	RUN("log_bytes", log_bytes, BYTES, .min = PTC_RUN_LOG_MIN_BYTES, .max = PTC_RUN_LOG_MAX_BYTES,
	    .fallback = PTC_RUN_LOG_BYTES),
};
const struct ptc_doc_table ptc_job_run_table = PTC_DOC_TABLE(run_rows);

/* In the order of the enums; the last mode is not one yet. */
static const char *const modes[] = { "restart", "rebuild", "keep" }, *const builds[] = { "after", "ahead" },
			 *const copies[] = { "lean", "fast", "async" },
			 *const failures[] = { "shrink", "wait", "stop" };
static const char *const joins[] = { "ignore", "grow" }, *const standbys[] = { "none", "import" },
			 *const truths[] = { "false", "true" }, *const hangs[] = { "ignore", "report", "recover" },
			 *const stragglers[] = { "ignore", "report", "drain" },
			 *const differences[] = { "report", "majority", "primary" };

#define ELASTIC(key, member, ...) PTC_DOC_FIELD(struct ptc_job_elastic, key, member, __VA_ARGS__)
static const struct ptc_doc_row elastic_rows[] = {
	ELASTIC("min_gpus", min_gpus, COUNT, .min = 1, .max = PTC_MAX_RANKS),
	ELASTIC("max_gpus", max_gpus, COUNT, .min = 1, .max = PTC_MAX_RANKS),
	ELASTIC("on_failure", on_failure, WORD, .max = PTC_JOB_STOP, .words = failures),
	ELASTIC("on_join", grow, WORD, .max = 1, .words = joins),
	ELASTIC("join_after", join_after_ms, ONLY_MS, .min = 1, .max = PTC_JOB_JOIN_AFTER_MAX_MS),
	ELASTIC("max_restarts", max_restarts, COUNT, .max = PTC_JOB_RESTARTS_MAX),
	ELASTIC("standby", standby, WORD, .max = 1, .words = standbys),
	ELASTIC("on_hang", on_hang, WORD, .max = PTC_JOB_HANG_RECOVER, .words = hangs),
	ELASTIC("hang_after", hang_after_ms, ONLY_MS, .min = PTC_JOB_HANG_AFTER_MIN_MS,
		.max = PTC_JOB_HANG_AFTER_MAX_MS),
	ELASTIC("hang_steps", hang_steps, COUNT, .min = 1, .max = PTC_JOB_HANG_STEPS_MAX),
	ELASTIC("on_straggler", on_straggler, WORD, .max = PTC_JOB_STRAGGLER_DRAIN, .words = stragglers),
	ELASTIC("on_difference", on_difference, WORD, .max = PTC_JOB_DIFFERENCE_PRIMARY, .words = differences),
	ELASTIC("straggler_percent", straggler_percent, COUNT, .min = PTC_JOB_STRAGGLER_MIN,
		.max = PTC_JOB_STRAGGLER_MAX),
	ELASTIC("straggler_steps", straggler_steps, COUNT, .min = 1, .max = PTC_JOB_HANG_STEPS_MAX),
	ELASTIC("straggler_backoff", straggler_backoff_ms, ONLY_MS, .min = PTC_JOB_HANG_AFTER_MIN_MS,
		.max = PTC_JOB_HANG_AFTER_MAX_MS),
	ELASTIC("straggler_drains", straggler_drains, COUNT, .min = 1, .max = PTC_JOB_STRAGGLER_DRAINS),
};
static const struct ptc_doc_table elastic_table = PTC_DOC_TABLE(elastic_rows);

#define LIVE(key, member, ...) PTC_DOC_FIELD(struct ptc_job_desc, key, member, __VA_ARGS__)
static const struct ptc_doc_row live_rows[] = {
	LIVE("mode", mode, WORD, .max = PTC_JOB_REBUILD + 1, .words = modes),
	LIVE("build", build, WORD, .max = PTC_JOB_BUILD_AHEAD, .words = builds),
	LIVE("copy", copy, WORD, .max = PTC_JOB_COPY_ASYNC, .words = copies),
	LIVE("snapshot_every", snapshot_every, COUNT, .max = PTC_DOC_NO_MAX),
	LIVE("seed", seed, COUNT, .max = PTC_DOC_NO_MAX, .given = offsetof(struct ptc_job_desc, has_seed)),
	LIVE("elastic", elastic, SUBMAP, .of = &elastic_table),
	LIVE("share_devices", share_devices, WORD, .max = 1, .words = truths),
};
const struct ptc_doc_table ptc_job_live_table = PTC_DOC_TABLE(live_rows);

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

static int decode_run(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	const struct ptc_doc_node *argv = ptc_doc_get(node, "argv"), *env = ptc_doc_get(node, "env");
	int rc;

	d->job->has_run = true;
	ptc_doc_fallbacks(&ptc_job_run_table, &d->job->run);
	rc = ptc_doc_read_to(d->doc, node, "run", &ptc_job_run_table, &d->job->run, d->err);
	if (!rc)
		rc = argv ? decode_argv(d, argv)
			  : ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "run has no \"argv\"");
	if (!rc)
		rc = decode_cwd(d, node, ptc_doc_get(node, "cwd"));
	return !rc && env ? decode_env(d, env) : rc;
}

static int check_stragglers(struct ptc_job_decoder *d, const struct ptc_doc_node *elastic)
{
	const struct ptc_job_elastic *e = &d->job->elastic;
	const char *key = e->straggler_percent ? "straggler_percent" : "straggler_steps";

	if (!e->on_straggler && (e->straggler_percent || e->straggler_steps))
		return ptc_doc_error(d->doc, ptc_doc_get(elastic, key), d->err, PTC_EINVAL,
				     "%s says nothing without on_straggler; write on_straggler: report, or drain", key);
	key = e->straggler_backoff_ms ? "straggler_backoff" : "straggler_drains";
	if (e->on_straggler != PTC_JOB_STRAGGLER_DRAIN && (e->straggler_backoff_ms || e->straggler_drains))
		return ptc_doc_error(d->doc, ptc_doc_get(elastic, key), d->err, PTC_EINVAL,
				     "%s says nothing without on_straggler: drain", key);
	return 0;
}

/* What a table cannot say: values that are not supported, and two values that exclude each other. */
static int check_live(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	const struct ptc_job_elastic *e = &d->job->elastic;

	if ((int)d->job->mode > PTC_JOB_REBUILD)
		return ptc_doc_error(d->doc, ptc_doc_get(root, "mode"), d->err, PTC_EINVAL,
				     "mode keep is not supported yet; write restart or rebuild");
	if (d->job->build == PTC_JOB_BUILD_AHEAD && d->job->mode != PTC_JOB_RESTART)
		return ptc_doc_error(d->doc, ptc_doc_get(root, "build"), d->err, PTC_EINVAL,
				     "build: ahead needs mode: restart, for a process that trains cannot build");
	if (e->max_gpus && e->max_gpus < e->min_gpus)
		return ptc_doc_error(d->doc, ptc_doc_get(ptc_doc_get(root, "elastic"), "max_gpus"), d->err, PTC_EINVAL,
				     "max_gpus (%" PRIu32 ") is less than min_gpus (%" PRIu32 ")", e->max_gpus,
				     e->min_gpus);
	if (!e->on_hang && (e->hang_after_ms || e->hang_steps))
		return ptc_doc_error(d->doc,
				     ptc_doc_get(ptc_doc_get(root, "elastic"),
						 e->hang_after_ms ? "hang_after" : "hang_steps"),
				     d->err, PTC_EINVAL,
				     "%s says nothing without on_hang; write on_hang: report, or recover",
				     e->hang_after_ms ? "hang_after" : "hang_steps");
	return check_stragglers(d, ptc_doc_get(root, "elastic"));
}

int ptc_job_decode_run(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	const struct ptc_doc_node *run = ptc_doc_get(root, "run");
	int rc = run ? decode_run(d, run) : 0;

	for (size_t i = 0; !rc && !run && i < ptc_job_live_table.n; i++)
		if (ptc_doc_get(root, live_rows[i].key))
			rc = ptc_doc_error(d->doc, ptc_doc_get(root, live_rows[i].key), d->err, PTC_EINVAL,
					   "\"%s\" is for jobs that run something; the job has no \"run\"",
					   live_rows[i].key);
	if (!rc)
		rc = ptc_doc_read_to(d->doc, root, NULL, &ptc_job_live_table, d->job, d->err);
	return rc ? rc : check_live(d, root);
}

struct timeouts {
	bool counts;
	const char *shorter, *longer; /* what they should be */
	uint64_t shorter_ms, longer_ms;
	const char *so;
};

bool ptc_job_timeout_clash(const struct ptc_job_desc *job, uint64_t lease_ttl_ms, size_t i, char *buf, size_t size)
{
	const struct ptc_job_elastic *e = &job->elastic;
	const struct ptc_job_run *r = &job->run;
	const uint64_t hang_ms = e->hang_after_ms ? e->hang_after_ms : PTC_JOB_HANG_AFTER_MS;
	const struct timeouts rules[] = {
		{ e->on_hang == PTC_JOB_HANG_RECOVER, "hang_after", "boundary_timeout", hang_ms, r->boundary_timeout_ms,
		  "a switch that waits for a rank that hangs is aborted before `on_hang: recover` acts" },
		{ e->on_hang && lease_ttl_ms, "lease_ttl", "hang_after", lease_ttl_ms, hang_ms,
		  "ranks that wait for a lost node count as hanging before the node counts as down" },
		{ true, "grace", "build_timeout", r->grace_ms, r->build_timeout_ms,
		  "a switch gives up new ranks before old ones that do not end by themselves are killed" },
	};
	char shorter[PTC_UNITS_MAX], longer[PTC_UNITS_MAX];

	for (size_t k = 0; job->has_run && k < PTC_ARRAY_LEN(rules); k++) {
		const struct timeouts *t = &rules[k];

		if (!t->counts || t->shorter_ms < t->longer_ms || i--)
			continue;
		snprintf(buf, size, "%s (%s) is not longer than %s (%s), so %s (docs/timeouts.md)", t->longer,
			 ptc_units_print_ms(t->longer_ms, longer), t->shorter,
			 ptc_units_print_ms(t->shorter_ms, shorter), t->so);
		return true;
	}
	return false;
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
