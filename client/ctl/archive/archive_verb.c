/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl archive: writes one checkpoint of a job into an archive. */
#include "client/ctl/archive/archive.h"
#include "client/ctl/archive/archive_verbs.h"

#include "base/cleanup.h"
#include "base/number/units.h"

#include <string.h>

#define DEFAULT_KEEP 3

static const struct ctl_option options[] = {
	{ "keep", "N", "how many checkpoints stay (default 3)" },
	{ "rate", "BYTES", "write at most this many bytes a second, e.g. 100MiB" },
};

static int print(struct ctl *c, const struct ctl_archive_round *r, const struct ctl_archived *a, struct ptc_error *err)
{
	char bytes[PTC_UNITS_MAX];
	ptc_auto_free char *text = NULL;
	json_t *doc;

	if (!c->json) {
		printf("%s/%s: step %llu, %s\n", r->dir, a->name, (unsigned long long)a->step,
		       a->fresh ? ctl_bytes(a->bytes, bytes, sizeof bytes) : "it was there");
		return 0;
	}
	doc = json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:b, s:I}", "version", 1, "job", r->name, "dir",
			r->dir, "archive", a->name, "generation", (json_int_t)a->generation, "snapshot",
			(json_int_t)a->snapshot, "step", (json_int_t)a->step, "bytes", (json_int_t)a->bytes, "fresh",
			a->fresh, "removed", (json_int_t)a->removed);
	text = doc ? ptc_json_text(doc) : NULL;
	json_decref(doc);
	return text ? ctl_print(c, text, err) : ptc_nomem(err);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *keep = ctl_option(c, "keep"), *rate = ctl_option(c, "rate");
	struct ctl_archive_round r = { .job = c->args[0], .name = c->args[0], .dir = c->args[1], .keep = DEFAULT_KEEP };
	const char *name = strchr(r.name, ':');
	struct ctl_archived done;
	int rc = 0;

	if (keep)
		rc = ctl_number("--keep", keep, 1, 1000000, &r.keep, err);
	if (!rc && rate && ptc_units_parse_bytes(rate, &r.rate, err))
		return ctl_usage(err, "--rate is a number of bytes such as 100MiB, not \"%.80s\"", rate);
	if (rc)
		return rc;
	if (name) /* UID:NAME */
		r.name = name + 1;
	rc = ctl_connect(c, err);
	ctl_catch_signals();
	if (!rc)
		rc = ctl_archive(c, &r, &done, err);
	return rc ? rc : print(c, &r, &done, err);
}

const struct ctl_verb ctl_archive_verb = {
	.name = "archive",
	.args = "[JOB] DIR",
	.about = "Write a checkpoint of a job's committed state into its archive, and remove the oldest ones",
	.help = "DIR/JOB-step-N-HASH is a checkpoint that plain torch.distributed.checkpoint loads\n"
		"(docs/archive.md). ptcctl gives a checkpoint this name after it has written the checkpoint\n"
		"and read it back. DIR/JOB.newest names the newest one, which is never removed. If the\n"
		"committed state is in the archive already, ptcctl writes nothing. It removes the files that\n"
		"a killed ptcctl left behind.\n",
	CTL_OPTIONS(options),
	.min_args = 2,
	.max_args = 2,
	.job_missing = ctl_job_missing,
	.run = run,
};
