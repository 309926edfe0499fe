/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the ptcctl binary: arguments, help, exit codes, one line per error.
 * No daemon is running; where one is needed its absence is the error. */
#include "client/ctl/test_control_server.h"

static void test_help(void **state)
{
	static const char *const verbs[][2] = {
		{ "nodes", NULL },      { "status", NULL },       { "job", "create" },    { "job", "delete" },
		{ "job", "list" },      { "import", NULL },       { "export", NULL },     { "plan", NULL },
		{ "resize", NULL },     { "drain", NULL },        { "abort", NULL },      { "snapshots", NULL },
		{ "verify", NULL },     { "events", NULL },       { "version", NULL },    { "completion", NULL },
		{ "help", NULL },       { "run", NULL },          { "stop", NULL },       { "logs", NULL },
		{ "snapshot", NULL },   { "layout", NULL },       { "mount", NULL },      { "umount", NULL },
		{ "rules", "lint" },    { "rules", "show" },      { "dataset", "add" },   { "dataset", "list" },
		{ "dataset", "check" }, { "dataset", "inspect" }, { "dataset", "proof" }, { "dataset", "remove" },
		{ "report", NULL },     { "top", NULL },          { "node", "lost" },     { "rollback", NULL },
	};

	assert_int_equal(RUN("--help"), 0);
	for (size_t i = 0; i < PTC_ARRAY_LEN(verbs); i++)
		assert_non_null(strstr(out, verbs[i][0]));
	for (size_t i = 0; i < PTC_ARRAY_LEN(verbs); i++) {
		if (verbs[i][1])
			assert_int_equal(RUN(verbs[i][0], verbs[i][1], "--help"), 0);
		else
			assert_int_equal(RUN(verbs[i][0], "--help"), 0);
		assert_non_null(strstr(out, "usage: ptcctl "));
		assert_non_null(strstr(out, "exit status"));
		assert_string_equal(errors, "");
	}
	assert_int_equal(RUN("-h"), 0);
	assert_int_equal(RUN("resize", "-h"), 0);
	assert_non_null(strstr(out, "--dry-run"));
	assert_int_equal(RUN("help", "job"), 0);
	assert_non_null(strstr(out, "job create"));
	assert_non_null(strstr(out, "job delete"));
	assert_int_equal(RUN("help", "nothing"), 2);
}

static void test_version(void **state)
{
	assert_int_equal(RUN("version"), 0);
	assert_int_equal(strncmp(out, "ptcctl ", 7), 0);
	assert_int_equal(RUN("--version"), 0);
	assert_int_equal(RUN("version", "--format", "json"), 0);
	assert_int_equal(strncmp(out, "{\"version\":\"", 12), 0);
}

static void test_unknown_words(void **state)
{
	assert_int_equal(ctl((const char *const[]){ NULL }), 2);
	one_line("ptcctl: ", "no verb");
	assert_int_equal(RUN("resizee"), 2);
	one_line("ptcctl: unknown verb \"resizee\"", "did you mean \"resize\"?");
	assert_int_equal(RUN("frobnicate"), 2);
	one_line("ptcctl: unknown verb", "--help");
	assert_int_equal(RUN("job"), 2);
	one_line("ptcctl: \"job\" needs a second word", "create, delete, list");
	assert_int_equal(RUN("job", "crate"), 2);
	one_line("ptcctl: unknown verb", "did you mean \"create\"");
	assert_int_equal(RUN("nodes", "--fromat", "json"), 2);
	one_line("ptcctl nodes: unknown option \"--fromat\"", "did you mean \"--format\"?");
	assert_int_equal(RUN("resize", "j", "--cofnig=tp=2"), 2);
	one_line("ptcctl resize: unknown option \"--cofnig\"", "\"--config\"");
	assert_int_equal(RUN("nodes", "-x"), 2);
	one_line("ptcctl nodes: unknown option \"-x\"", "");
	assert_int_equal(RUN("nodes", "-"), 2);
	one_line("ptcctl nodes: one argument too many", "");
	assert_int_equal(RUN("bad\nverb\033[31m"), 2);
	one_line("ptcctl: unknown verb", "");
}

static void test_arguments(void **state)
{
	assert_int_equal(RUN("nodes", "--format", "xml"), 2);
	one_line("ptcctl nodes: --format is table or json", "xml");
	assert_int_equal(RUN("nodes", "--format"), 2);
	one_line("ptcctl nodes: --format needs a value", "");
	assert_int_equal(RUN("nodes", "--socket="), 2);
	one_line("ptcctl nodes: --socket needs a value", "");
	assert_int_equal(RUN("nodes", "extra"), 2);
	one_line("ptcctl nodes: one argument too many", "extra");
	assert_int_equal(RUN("status", ""), 2);
	one_line("ptcctl status: argument 1 is empty; it takes [JOB]", "");
	assert_int_equal(RUN("import"), 2);
	one_line("ptcctl import: needs [JOB] PATH", "");
	assert_int_equal(RUN("resize", "j", "--wait=yes"), 2);
	one_line("ptcctl resize: --wait takes no value", "");
	assert_int_equal(RUN("resize", "j"), 2);
	one_line("ptcctl resize: needs --config CONFIG or --gpus N", "");
	assert_int_equal(RUN("resize", "j", "--gpus", "-1"), 2);
	one_line("ptcctl resize: --gpus is a number", "-1");
	assert_int_equal(RUN("resize", "j", "--config", "tp=2,tp=2"), 2);
	one_line("ptcctl resize: ", "tp");
	assert_int_equal(RUN("resize", "j", "--config", "tp=2", "--gpus", "4"), 2);
	one_line("ptcctl resize: --config has 2 ranks", "4");
	assert_int_equal(RUN("plan", "j", "--nodes", ","), 2);
	one_line("ptcctl plan: --nodes names no node", "");
	assert_int_equal(RUN("import", "j", "p", "--field", "x"), 2);
	one_line("ptcctl import: --field is NAME=PATH", "");
	assert_int_equal(RUN("import", "j", "p", "--streams", "0"), 2);
	one_line("ptcctl import: --streams", "1..16");
	assert_int_equal(RUN("export", "j", "d", "--ranks", "e"), 2);
	one_line("ptcctl export: needs a TARGET or --ranks", "");
	assert_int_equal(RUN("events", "j", "--limit", "many"), 2);
	one_line("ptcctl events: --limit is a number", "many");
	assert_int_equal(RUN("run", "j", "-f", "x.yaml"), 2);
	one_line("ptcctl run: needs --file FILE, or the JOB", "not both");
	assert_int_equal(RUN("run", "j", "k"), 2);
	one_line("ptcctl run: one argument too many", "k");
	assert_int_equal(RUN("run", "j", "--config", "tp=0"), 2);
	one_line("ptcctl run: ", "degree");
	assert_int_equal(RUN("run", "j", "--gpus", "0"), 2);
	one_line("ptcctl run: --gpus is a number", "0");
	assert_int_equal(RUN("run", "-f"), 2);
	one_line("ptcctl run: --file needs a value", "");
	assert_int_equal(RUN("logs", "j", "--rank", "-1"), 2);
	one_line("ptcctl logs: --rank is a number in 0..131071 or \"all\"", "-1");
	assert_int_equal(RUN("logs", "j", "--rank", "131072"), 2);
	one_line("ptcctl logs: --rank is a number", "131072");
	assert_int_equal(RUN("logs", "j", "--rank", "two"), 2);
	one_line("ptcctl logs: --rank is a number", "two");
	assert_int_equal(RUN("logs", "j", "--lines", "0"), 2);
	one_line("ptcctl logs: --lines is a number", "0");
	assert_int_equal(RUN("logs", "j", "--lines", "4294967296"), 2);
	assert_int_equal(RUN("snapshot", "j", "k"), 2);
	one_line("ptcctl snapshot: one argument too many", "k");
	assert_int_equal(RUN("completion", "tcsh"), 2);
	one_line("ptcctl completion: bash, zsh and fish", "tcsh");
	assert_int_equal(RUN("job", "create"), 2);
	one_line("ptcctl job create: needs --file FILE", "");
}

static void test_durations(void **state)
{
	assert_int_equal(RUN("nodes", "--timeout", "30"), 2);
	one_line("ptcctl nodes: --timeout needs a unit", "30s");
	assert_int_equal(RUN("nodes", "--timeout", "soon"), 2);
	one_line("ptcctl nodes: --timeout is a duration", "soon");
	assert_int_equal(RUN("nodes", "--timeout", "3d"), 2);
	one_line("ptcctl nodes: --timeout: unknown unit \"d\"", "");
	assert_int_equal(RUN("nodes", "--timeout", "0s"), 2);
	one_line("ptcctl nodes: --timeout must be", "");
	assert_int_equal(RUN("nodes", "--timeout", "99999999999999999999h"), 2);
	assert_int_equal(RUN("nodes", "--timeout", "999999h"), 2);
}

static void test_connections(void **state)
{
	assert_int_equal(RUN("nodes", "--server", "h:1"), 2);
	one_line("ptcctl nodes: --server needs --ca, --cert and --key", "");
	assert_int_equal(RUN("nodes", "--server", "h:1", "--socket", "s"), 2);
	one_line("ptcctl nodes: --server and --socket", "");
	/* options may come before the verb */
	assert_int_equal(RUN("--timeout", "5s", "--socket", "/nonexistent/ptc.sock", "nodes"), 1);
	one_line("ptcctl nodes: ", "");
	setenv("PTC_SOCKET", "/nonexistent/other.sock", 1);
	assert_int_equal(RUN("status", "--timeout", "5s"), 1);
	one_line("ptcctl status: ", "");
	unsetenv("PTC_SOCKET");
}

static void test_job_file(void **state)
{
	static const char text[] = "version: 1\nname: a\ntensors: []\nrulse: bert\n";
	char path[] = "/tmp/ptc-test-ctl.XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, sizeof(text) - 1), (ssize_t)sizeof(text) - 1);
	close(fd);
	assert_int_equal(RUN("job", "create", "-f", path), 1);
	one_line("ptcctl job create: ", ":4: unknown key \"rulse\" in the job; did you mean \"rules\"?");
	assert_int_equal(RUN("job", "create", "--file=/nonexistent.yaml"), 1);
	one_line("ptcctl job create: ", "/nonexistent.yaml");
	assert_int_equal(RUN("run", "-f", path), 1);
	one_line("ptcctl run: ", ":4: unknown key \"rulse\" in the job");
	/* not a safetensors file: refused before any daemon is asked */
	assert_int_equal(RUN("import", "a", path), 1);
	one_line("ptcctl import: ", path);
	unlink(path);
}

static void write_job(const char *path, const char *rules, const char *gpus)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	fprintf(f,
		"version: 1\nname: a\ntensors:\n- {name: h.0.k, dtype: F32, shape: [8, 4]}\n"
		"- {name: h.0.w, dtype: F32, shape: [12, 4]}\nrules: %s\ngpus: %s\n",
		rules, gpus);
	assert_int_equal(fclose(f), 0);
}

static void test_rules(void **state)
{
	char path[] = "/tmp/ptc-test-ctl.XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	close(fd);
	write_job(path, "[{match: 'h.*', split: {axis: tp, dim: 0}, layer: 'h.{}.*'}]", "{2: {tp: 2}, 4: {tp: 4}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 0);
	assert_non_null(strstr(out, "2 tensors, 1 rules, 2 configurations"));
	assert_string_equal(errors, "");
	/* uncovered, ambiguous, and what does not come out under a configuration */
	assert_int_equal(RUN("rules", "lint", "-f", path, "--config", "tp=8", "--config", "pp=2,stages=1:1"), 1);
	assert_non_null(strstr(out, "error: tp=8: tensor \"h.0.w\": dim 0 (12) is not divisible by tp 8"));
	assert_non_null(strstr(out, "error: pp=2,stages=1:1: configuration: stages sum to 2, the model has 1 layers"));
	assert_string_equal(errors, "ptcctl rules lint: 2 errors\n");
	write_job(path, "[{match: 'h.*.k'}]", "{2: {dp: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path, "--format", "json"), 1);
	expect(out, "tensor \\\"h.0.w\\\" [12, 4] is covered by no rule");
	write_job(path, "[{match: 'h.*'}, {match: 'h.*.w', split: {axis: tp, dim: 0}}]", "{2: {tp: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 1);
	assert_non_null(strstr(out, "tensor \"h.0.w\" [12, 4] is ambiguous: rule 0 (\"h.*\")"));
	/* rules in their natural order, the special ones first and one for the rest last, are not ambiguous */
	write_job(path, "[{match: '*.w', split: {axis: tp, dim: 0}}, {match: 'h.0.*', split: {axis: tp, dim: 1}}]",
		  "{2: {tp: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 0);
	assert_non_null(strstr(out, "nothing wrong"));
	/* what is not cut, by name and bytes; not where that is said */
	write_job(path, "[{match: '*'}]", "{2: {tp: 2}, 4: {tp: 1, dp: 2, pp: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 1);
	assert_non_null(strstr(out, "error: tp=2: tp=2 cuts nothing: no tensor's rule names it; 2 ranks would "
				    "each hold the same 320B"));
	assert_non_null(strstr(out, "error: pp=2,dp=2: pp=2 places nothing"));
	assert_non_null(strstr(out, "tensor \"h.0.w\" [12, 4], 192B: rule 0 (\"*\") leaves it whole"));
	write_job(path, "[{match: '*.w', split: {axis: tp, dim: 0}}, {match: '*', split: {axis: none}}]",
		  "{2: {tp: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 0);
	write_job(path, "[{match: '*.w', split: {axis: tp, dim: 0}}, {match: '*'}]",
		  "{2: {tp: 2}, 4: {tp: 2, dp: 2, ep: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 1);
	assert_non_null(strstr(out, "tensor \"h.0.k\" [8, 4], 128B: rule 1 (\"*\") leaves it whole"));
	assert_non_null(strstr(out, "dp=2,ep=2: ep=2 cuts nothing"));
	/* blocks that leave elements out, or overlap */
	write_job(path, "[{match: '*', split: {axis: tp, dim: 0, blocks: [4, 3]}}]", "{2: {tp: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 1);
	one_line("ptcctl rules lint: ", "dim 0 (8): blocks of rule \"*\" sum to 7: 1 elements are in none");
	write_job(path, "[{match: '*', split: {axis: tp, dim: 0, blocks: [4, 8]}}]", "{2: {tp: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 1);
	one_line("ptcctl rules lint: ", "sum to 12: 4 elements are in two or beyond the end");
	write_job(path, "lama", "{2: {tp: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 1);
	one_line("ptcctl rules lint: ", "no rule set \"lama\"");
	expect(errors, "did you mean \"llama\"?");
	write_job(path, "{use: llama, hed: 4}", "{2: {tp: 2}}");
	assert_int_equal(RUN("rules", "lint", "-f", path), 1);
	one_line("ptcctl rules lint: ", "did you mean \"head\"?");
	unlink(path);
	assert_int_equal(RUN("rules", "lint"), 2);
	assert_int_equal(RUN("rules", "show"), 0);
	assert_non_null(strstr(out, "mixtral\n"));
	assert_int_equal(RUN("rules", "show", "llama"), 0);
	assert_non_null(strstr(out, "parameters: {head: 128}"));
	assert_int_equal(RUN("rules", "show", "nothing"), 1);
	one_line("ptcctl rules show: ", "no rule set \"nothing\"");
}

/* What a live job runs is completed with our environment before any daemon is asked. */
static void test_live_job_file(void **state)
{
	static const char text[] = "version: 1\nname: a\nrun: {argv: [a]}\n";
	char path[] = "/tmp/ptc-test-ctl.XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, sizeof(text) - 1), (ssize_t)sizeof(text) - 1);
	close(fd);
	setenv("LATIN", "\xfc", 1);
	assert_int_equal(RUN("job", "create", "-f", path, "--socket", "/nonexistent/ptc.sock"), 1);
	one_line("ptcctl job create: ", "the environment variable LATIN is not UTF-8");
	unsetenv("LATIN");
	assert_int_equal(RUN("job", "create", "-f", path, "--socket", "/nonexistent/ptc.sock"), 1);
	one_line("ptcctl job create: ", "/nonexistent/ptc.sock");
	unlink(path);
}

static void test_completion(void **state)
{
	assert_int_equal(RUN("completion", "bash"), 0);
	assert_non_null(strstr(out, "complete -o filenames -F _ptcctl ptcctl"));
	assert_non_null(strstr(out, "\"job create\") words=\" --file\""));
	assert_non_null(strstr(out, " nodes node device cluster status job run stop logs import export"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_help),          cmocka_unit_test(test_version),
		cmocka_unit_test(test_unknown_words), cmocka_unit_test(test_arguments),
		cmocka_unit_test(test_durations),     cmocka_unit_test(test_connections),
		cmocka_unit_test(test_job_file),      cmocka_unit_test(test_live_job_file),
		cmocka_unit_test(test_rules),         cmocka_unit_test(test_completion),
	};

	unsetenv("PTC_SOCKET");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
