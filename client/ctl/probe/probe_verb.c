/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl probe: the layout that a job's own program makes under a configuration that it has not run under. Failure:
 * CTL_USAGE; a job whose tensors rules describe needs no probe (PTC_EINVAL); what ctl_probe_run says. */
#include "client/ctl/probe/probe.h"
#include "client/ctl/probe/probe_verbs.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/units.h"
#include "base/sys/sys.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"
#include "formats/state/layout_doc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define PROGRAMS_MAX 64

static const struct ctl_option options[] = {
	{ "file", "FILE", "the job's description (docs/job.md), with `run`; required", 'f' },
	{ "config", "CONFIG", "configuration, e.g. tp=2,pp=2,dp=2; required" },
	{ "output", "FILE", "write the layout into this file", 'o' },
	{ "devices-per-node", "M", "number of devices of each node (default 8)" },
	{ "programs", "N", "how many programs run at a time (default: half of the processors, at most 4)" },
	{ "memory", "SIZE", "memory that one program may allocate, e.g. 4GiB (default 8GiB)" },
	{ "limit", "DURATION",
	  "how long a program may take to start, and to build one rank (default: the job's build_timeout)" },
	{ "all", NULL, "build every rank, also ranks that look like replicas of another along dp and cp" },
	{ "show", NULL, "copy the output of the programs to standard error" },
};

static void progress(void *arg, uint32_t done, uint32_t of)
{
	char text[64];

	snprintf(text, sizeof text, "%u of %u ranks", done, of);
	ctl_progress_show(arg, "probe", done, of, text);
}

/* The program, as ptcd would start it for a job that is submitted here and now. */
static int read_job(const char *file, struct ptc_job_desc *ret, struct ptc_error *err)
{
	ptc_auto_free char *rules = ctl_rules_path(), *cwd = getcwd(NULL, 0);
	int rc;

	if (!rules || !cwd)
		return ptc_nomem(err);
	rc = ptc_job_read(file, rules, ret, err);
	if (rc)
		return rc;
	if (!ret->has_run)
		rc = ptc_error_set(err, PTC_EINVAL, "%s: there is no `run`: the job has no program to probe", file);
	else if (ret->spec.ntensors)
		rc = ptc_error_set(
			err, PTC_EINVAL,
			"%s: `tensors` and rules say what each rank holds, so there is nothing to probe; see "
			"ptcctl layout",
			file);
	else
		rc = ptc_job_resolve_run(ret, cwd, environ, err);
	for (size_t i = 0; !rc && i < ret->run.nenv; i++)
		if (!strncmp(ret->run.env[i], "PATH=", 5) && setenv("PATH", ret->run.env[i] + 5, 1) != 0)
			rc = ptc_nomem(err);
	if (rc)
		ptc_job_desc_done(ret);
	return rc;
}

static int take_options(const struct ctl *c, struct ctl_probe *p, struct ptc_error *err)
{
	const char *per_node = ctl_option(c, "devices-per-node"), *programs = ctl_option(c, "programs");
	const char *memory = ctl_option(c, "memory"), *limit = ctl_option(c, "limit");
	uint64_t m = 8, n = (uint64_t)PTC_MIN(PTC_MAX(get_nprocs() / 2, 1), 4);
	int rc = 0, ms = 0;

	p->memory_bytes = UINT64_C(8) << 30;
	p->limit_ms = p->job->run.build_timeout_ms;
	p->all = ctl_option(c, "all") != NULL;
	p->show = ctl_option(c, "show") != NULL;
	if (per_node)
		rc = ctl_number("--devices-per-node", per_node, 1, PTC_MAX_DEVICES_PER_NODE, &m, err);
	if (!rc && programs)
		rc = ctl_number("--programs", programs, 1, PROGRAMS_MAX, &n, err);
	if (!rc && memory && ptc_units_parse_bytes(memory, &p->memory_bytes, err) != 0) {
		ptc_error_wrap(err, "--memory");
		rc = CTL_USAGE;
	}
	if (!rc && limit) {
		rc = ctl_duration("--limit", limit, &ms, err);
		p->limit_ms = (uint64_t)ms;
	}
	p->per_node = (uint32_t)m;
	p->programs = (unsigned)n;
	return rc;
}

static uint64_t class_bytes(const struct ptc_declared *d, const struct ptc_declared_class *k)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < k->nparts; i++)
		for (uint32_t b = 0; b < k->parts[i].nboxes; b++) {
			struct ptc_box box = ptc_declared_box(d, k, &k->parts[i], b);

			bytes += (uint64_t)ptc_box_volume(&box) *
				 ptc_dtype_bits(d->spec.tensors[k->parts[i].tensor].dtype) / 8;
		}
	return bytes;
}

/* answer: what the daemon says of it; NULL: none was told. */
static void put_answer(const json_t *answer)
{
	const char *job = json_string_value(json_object_get(answer, "job")),
		   *differs = json_string_value(json_object_get(answer, "differs"));
	bool declared = !strcmp(json_string_value(json_object_get(answer, "known")) ?: "", "declared");

	if (!answer)
		return;
	if (differs && *differs)
		printf("job %s: its ranks have declared something else under this configuration, and that counts: %s\n",
		       job, differs);
	else
		printf("job %s: %s\n", job,
		       declared ? "its ranks have declared the same under this configuration"
				: "remembered; plan, advise and resize --dry-run count with it");
}

/* What it comes to. answer: see put_answer; taken over. */
static int show(const struct ctl *c, const struct ctl_probe *p, const struct ctl_probed *r, json_t *answer,
		struct ptc_error *err)
{
	const struct ptc_declared *d = &r->declared;
	uint64_t state = 0, least = UINT64_MAX, most = 0;
	char a[32], b[32], s[32];
	ptc_auto_free char *text = NULL;
	json_t *row;

	for (size_t i = 0; i < d->spec.ntensors; i++)
		state += (uint64_t)ptc_item_bytes(&d->spec, i);
	for (size_t i = 0; i < d->nclasses; i++) {
		uint64_t bytes = class_bytes(d, &d->classes[i]);

		least = PTC_MIN(least, bytes);
		most = PTC_MAX(most, bytes);
	}
	if (!c->json) {
		printf("%s: %u ranks, %zu tensors, %s of state; a rank holds %s", p->config_text, d->world,
		       d->spec.ntensors, ctl_bytes(state, s, sizeof s), ctl_bytes(least, a, sizeof a));
		if (least != most)
			printf(" to %s", ctl_bytes(most, b, sizeof b));
		printf("\n%u ranks were built%s\n", r->built,
		       r->built < d->world ? "; the others are taken for their replicas (--all builds each)" : "");
		put_answer(answer);
		json_decref(answer);
		return 0;
	}
	row = json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "version", 1, "config", p->config_text, "world",
			(json_int_t)d->world, "built", (json_int_t)r->built, "tensors", (json_int_t)d->spec.ntensors,
			"state_bytes", (json_int_t)state, "rank_bytes_least", (json_int_t)least, "rank_bytes_most",
			(json_int_t)most);
	if (answer)
		json_object_set_new(row, "daemon", answer);
	text = row ? ptc_json_text(row) : NULL;
	json_decref(row);
	if (!text)
		return ptc_nomem(err);
	puts(text);
	return 0;
}

static int tell(struct ctl *c, const char *json, size_t len, json_t **ret_answer, struct ptc_error *err)
{
	char *answer = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_probe(c->admin, c->args[0], json, len, &answer, err);
	if (!rc)
		rc = ptc_json_load("the daemon's answer", answer, strlen(answer), ret_answer, err);
	ptc_admin_free(answer);
	return rc;
}

static int probe(struct ctl *c, struct ctl_probe *p, struct ptc_error *err)
{
	const char *output = ctl_option(c, "output");
	struct ctl_probed r = { 0 };
	ptc_auto_free char *json = NULL;
	struct ctl_progress bar;
	json_t *answer = NULL;
	size_t len = 0;
	int rc;

	ctl_progress_init(&bar);
	ctl_catch_signals();
	p->gone = ctl_interrupted;
	p->progress = progress;
	p->arg = &bar;
	rc = ctl_probe_run(p, &r, err);
	ctl_progress_end(&bar);
	if (rc)
		return rc;
	rc = ptc_layout_doc_encode(&r.declared, &json, &len, err);
	if (!rc && output)
		rc = ptc_sys_write_file(output, json, len, 0644, "probe.layout", err);
	if (!rc && c->nargs)
		rc = tell(c, json, len, &answer, err);
	if (!rc)
		rc = show(c, p, &r, answer, err);
	ptc_declared_done(&r.declared);
	return rc;
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *file = ctl_option(c, "file"), *text = ctl_option(c, "config");
	ptc_auto_free struct ptc_config *config = ptc_calloc(1, sizeof *config);
	ptc_auto_free char *canonical = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	struct ptc_job_desc job = { 0 };
	struct ctl_probe p = { .job = &job, .config = config, .config_text = canonical };
	int rc;

	if (!file || !text)
		return ctl_usage(err, "needs -f FILE and --config CONFIG");
	if (!config || !canonical)
		return ptc_nomem(err);
	rc = ptc_config_parse(text, config, err);
	if (rc || ptc_config_format(config, canonical, PTC_CONFIG_TEXT_MAX) != 0) {
		ptc_error_wrap(err, "--config");
		return CTL_USAGE;
	}
	rc = read_job(file, &job, err);
	if (rc)
		return rc;
	p.name = *job.spec.name ? job.spec.name : "probe";
	rc = take_options(c, &p, err);
	if (!rc)
		rc = probe(c, &p, err);
	ptc_job_desc_done(&job);
	return rc;
}

const struct ctl_verb ctl_probe = {
	.name = "probe",
	.args = "[JOB] -f FILE --config CONFIG",
	.about = "Find which tensors each rank of a live job would hold under a configuration",
	.help = "ptcctl runs the job's own program on this machine, as you, without devices and without other\n"
		"ranks, until the program has declared its tensors. PyTorch programs that use ptc.torch build\n"
		"their model without memory. Any other program sees PTC_PROBE in its environment\n"
		"(docs/probe.md). With JOB, the daemon keeps the layout that was found. Plans and prices of\n"
		"JOB are then exact for this configuration, even if JOB has never had it.\n",
	CTL_OPTIONS(options),
	.max_args = 1,
	.run = run,
};
