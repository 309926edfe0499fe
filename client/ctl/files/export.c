/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl export: writes a job's state into files. If TARGET ends in .safetensors, it is a file for the parameters;
 * otherwise it is a directory for everything.
 *
 * Failure: finished files stay, and the file that is being written is removed. If a switch replaces the state during
 * the export, that is no failure: the new committed state is read instead. If its bytes are the same, only the file
 * that is being written begins again; otherwise all files do. This happens a bounded number of times. A node that is
 * well may count as down until it has a lease again, because its coordinator was started anew; such a node is asked
 * again for a few seconds. */
#include "client/ctl/files/export.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "client/ctl/checkpoint/checkpoint.h"
#include "client/ctl/files/files.h"
#include "client/ctl/show/show.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define ATTEMPTS    10  /* each switch takes two at most: its snapshot, its generation */
#define RETRY_PAUSE 200 /* ms: to let the daemon that answers see the commit */
#define PEER_TRIES  25  /* so often a node that does not answer is asked again: five seconds at least */

static const struct ctl_option options[] = {
	{ "field", "NAME=PATH", "write this field into this file; repeat the option for each field" },
	{ "dcp", "DIR",
	  "write a checkpoint of torch.distributed.checkpoint instead; ptcctl import can read it (docs/archive.md)" },
	{ "snapshot", "STEP|snap-N",
	  "an older snapshot that the job keeps (ptcctl snapshots), instead of the committed one" },
	{ "ranks", "DIR",
	  "write one file per rank and field instead: DIR/rank-R.FIELD.safetensors (FIELD: param, or a field)" },
};

static bool is_file_name(const char *target)
{
	const char *suffix = ".safetensors";
	size_t n = strlen(target), k = strlen(suffix);

	return n > k && !strcmp(target + n - k, suffix);
}

/* Only the last component is made: a path that does not exist is more likely a mistake. */
static int make_directory(const char *dir, struct ptc_error *err)
{
	struct stat sb;

	if (!mkdir(dir, 0755))
		return 0;
	if (errno == EEXIST && !stat(dir, &sb) && S_ISDIR(sb.st_mode))
		return 0;
	if (errno == EEXIST)
		return ptc_error_set(err, PTC_EEXIST,
				     "%s is not a directory, and a file for the parameters ends in .safetensors", dir);
	return ptc_error_errno(err, errno, "cannot create the directory %s", dir);
}

static const char *field_target(const struct ctl *c, const char *field)
{
	size_t at = 0, n = strlen(field);
	const char *value;

	while ((value = ctl_option_next(c, "field", &at)))
		if (!strncmp(value, field, n) && value[n] == '=')
			return value + n + 1;
	return NULL;
}

static int check_fields(const struct ctl_export *ex, struct ptc_error *err)
{
	const char *value;
	size_t at = 0;

	while ((value = ctl_option_next(ex->c, "field", &at))) {
		size_t n = strcspn(value, "="), f = 0;

		while (f <= ex->desc.spec.nfields && (strncmp(ptc_state_field_name(&ex->desc.spec, f), value, n) ||
						      ptc_state_field_name(&ex->desc.spec, f)[n]))
			f++;
		if (f > ex->desc.spec.nfields)
			return ptc_error_set(err, PTC_EINVAL, "the job has no field \"%.*s\"",
					     (int)PTC_MIN(n, (size_t)63), value);
	}
	return 0;
}

/* What goes where: a field with a file of its own, else the target. NULL: not wanted. */
static const char *file_of(const struct ctl_export *ex, size_t field)
{
	const char *own = field_target(ex->c, ptc_state_field_name(&ex->desc.spec, field));

	if (own || field || !is_file_name(ex->c->args[1]))
		return own;
	return ex->c->args[1];
}

static int export_whole(struct ctl_export *ex, struct ptc_error *err)
{
	const struct ptc_spec *spec = &ex->desc.spec;
	const char *dir = is_file_name(ex->c->args[1]) ? NULL : ex->c->args[1];
	int rc = dir ? make_directory(dir, err) : 0;

	for (size_t f = 0; f <= spec->nfields; f++)
		for (size_t t = 0; t < spec->ntensors; t++)
			if (dir || file_of(ex, f))
				ex->total_bytes += (uint64_t)ptc_item_bytes(spec, t * (1 + spec->nfields) + f);
	for (size_t f = 0; f <= spec->nfields && !rc; f++) {
		const char *file = file_of(ex, f);

		if (file)
			rc = ctl_export_file(ex, f, file, err);
		else if (dir)
			rc = ctl_export_directory(ex, f, dir, err);
	}
	return rc;
}

static int export_files(struct ctl_export *ex, struct ptc_error *err)
{
	const char *ranks = ctl_option(ex->c, "ranks");
	int rc = ptc_job_from_json(ex->info->spec, ex->info->spec_len, &ex->desc, err);

	if (!rc && ex->info->ndigests != ptc_spec_items(&ex->desc.spec))
		rc = ptc_error_set(err, PTC_EPEER,
				   "the daemon sent %zu digests, but the job has %zu items; use the ptcctl of the "
				   "daemon's package",
				   ex->info->ndigests, ptc_spec_items(&ex->desc.spec));
	if (!rc)
		rc = check_fields(ex, err);
	if (!rc)
		rc = ctl_export_kept(ex, err);
	if (rc)
		return rc;
	ex->nth = 0;
	ex->total_bytes = 0;
	ctl_progress_init(&ex->progress);
	if (ranks) {
		rc = make_directory(ranks, err);
		if (!rc)
			rc = ctl_export_ranks(ex, ranks, err);
	} else {
		rc = export_whole(ex, err);
	}
	ctl_progress_end(&ex->progress);
	return rc;
}

/* ---- a job that is switched while it is read ---- */

/* The same bytes, in the same files: what is written already may stay. A rank's part depends on the configuration too.
 */
static bool same_state(const struct ctl_export *ex, const struct ptc_admin_export *now)
{
	const struct ptc_admin_export *was = ex->info;
	bool same = was->spec_len == now->spec_len && !memcmp(was->spec, now->spec, was->spec_len) &&
		    was->ndigests == now->ndigests &&
		    !memcmp(was->digests, now->digests, was->ndigests * sizeof(was->digests[0])) &&
		    was->nfiles == now->nfiles && (!ctl_option(ex->c, "ranks") || !strcmp(was->config, now->config));

	for (size_t i = 0; i < was->nfiles && same; i++)
		same = !strcmp(was->files[i].field, now->files[i].field) &&
		       !strcmp(was->files[i].name, now->files[i].name) && was->files[i].nitems == now->files[i].nitems;
	return same;
}

/* Errors with which a read may fail because its generation is being replaced. */
static bool may_have_moved(int rc)
{
	return rc == PTC_ESTATE || rc == PTC_ENOTFOUND || rc == PTC_ELOST || rc == PTC_EPEER || rc == PTC_EDIGEST;
}

static void say_again(const struct ctl_export *ex, const struct ptc_admin_export *now, bool same)
{
	fprintf(stderr,
		"ptcctl export: job %s was switched while it was read (now generation %" PRIu64 ", snapshot %" PRIu64
		"); reading %s again\n",
		ex->job, now->generation, now->snapshot, same && ex->file[0] ? ex->file : "everything");
	fflush(stderr);
}

/* After a failure: takes up the state that is committed now. False: it is the state that was read, or it cannot be had;
 * the failure stands. */
static bool take_up(struct ctl_export *ex, int failure)
{
	struct ptc_admin_export *now;
	bool moved, same;

	if (!may_have_moved(failure) || ctl_interrupted())
		return false;
	nanosleep(&(struct timespec){ .tv_nsec = RETRY_PAUSE * 1000000L }, NULL);
	if (ex->snapshot ? ptc_admin_export_snapshot(ex->c->admin, ex->job, ex->snapshot, &now, NULL)
			 : ptc_admin_export_info(ex->c->admin, ex->job, &now, NULL))
		return false;
	moved = now->generation != ex->info->generation || now->snapshot != ex->info->snapshot;
	/* With ESTATE the daemon itself said so, and may know more in a moment. */
	if (moved || failure == PTC_ESTATE ? ++ex->attempts >= ATTEMPTS
					   : failure != PTC_EPEER || ++ex->peer_tries > PEER_TRIES) {
		ptc_admin_export_done(now);
		return false;
	}
	same = same_state(ex, now);
	if (moved)
		say_again(ex, now, same);
	if (!same) {
		ex->written_ranks =
			(uint32_t)PTC_MAX(ex->written_ranks, ex->finished / (1 + ex->desc.spec.nfields) + 1);
		ex->finished = 0;
		ex->file_bytes = 0;
		json_array_clear(ex->written);
	}
	ex->done_bytes = ex->file_bytes;
	ctl_export_homes_done(ex);
	ptc_job_desc_done(&ex->desc);
	ptc_admin_export_done(ex->info);
	ex->info = now;
	return true;
}

static int export(struct ctl_export *ex, struct ptc_error *err)
{
	int rc = export_files(ex, err);

	while (rc && take_up(ex, rc)) {
		err->code = 0;
		err->text[0] = '\0';
		rc = export_files(ex, err);
	}
	if (rc && ex->attempts == ATTEMPTS)
		ptc_error_wrap(err, "gave up after %d attempts", ATTEMPTS);
	return rc;
}

/* For a program; a person sees that it has ended. */
static int print_written(const struct ctl_export *ex, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL;
	json_t *doc = json_pack("{s:i, s:s, s:I, s:I, s:I, s:O}", "version", 1, "job", ex->job, "generation",
				(json_int_t)ex->info->generation, "snapshot", (json_int_t)ex->info->snapshot, "step",
				(json_int_t)ex->info->step, "files", ex->written);

	if (doc && ex->info->as_of_ms)
		json_object_set_new(doc, "as_of_ms", json_integer((json_int_t)ex->info->as_of_ms));
	text = doc ? ptc_json_text(doc) : NULL;
	json_decref(doc);
	return text ? ctl_print(ex->c, text, err) : ptc_nomem(err);
}

/* Takes info over. */
static int export_checkpoint(struct ctl *c, const char *dir, struct ptc_admin_export *info, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL, *file = ptc_asprintf("%s/" CTL_CK_FILE, dir);
	struct ctl_ck_written w;
	json_t *doc;
	int rc = ctl_ck_write_info(c, c->args[0], dir, info, &(struct ctl_ck_write_opts){ 0 }, &w, err);

	if (!rc && !file)
		rc = ptc_nomem(err);
	if (rc || !c->json)
		return rc;
	doc = json_pack("{s:i, s:s, s:I, s:I, s:I, s:[{s:s, s:I}]}", "version", 1, "job", c->args[0], "generation",
			(json_int_t)w.generation, "snapshot", (json_int_t)w.snapshot, "step", (json_int_t)w.step,
			"files", "file", file, "bytes", (json_int_t)w.bytes);
	text = doc ? ptc_json_text(doc) : NULL;
	json_decref(doc);
	return text ? ctl_print(c, text, err) : ptc_nomem(err);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	struct ctl_export ex = { .c = c, .job = c->args[0] };
	const char *dcp = ctl_option(c, "dcp"), *snapshot = ctl_option(c, "snapshot");
	const char *value;
	size_t at = 0;
	int rc;

	if ((c->nargs == 2) + (ctl_option(c, "ranks") != NULL) + (dcp != NULL) != 1 ||
	    (c->chosen && c->nargs == 2 && !strcmp(c->args[0], c->args[1])))
		return ctl_usage(err, "needs a TARGET or --ranks DIR or --dcp DIR, and one of them only");
	while ((value = ctl_option_next(c, "field", &at)))
		if (!strchr(value, '=') || value[0] == '=' || !strchr(value, '=')[1] || c->nargs < 2)
			return ctl_usage(err, "--field is NAME=PATH and goes with a TARGET, not \"%.80s\"", value);
	rc = ctl_connect(c, err);
	ctl_catch_signals();
	if (!rc && snapshot)
		rc = ctl_snapshot_choose(c, ex.job, snapshot, false, &ex.snapshot, err);
	if (!rc && (dcp || snapshot))
		rc = ptc_admin_export_snapshot(c->admin, ex.job, ex.snapshot, &ex.info, err);
	else if (!rc)
		rc = ptc_admin_export_info(c->admin, ex.job, &ex.info, err);
	if (rc)
		return rc;
	if (dcp)
		return export_checkpoint(c, dcp, ex.info, err);
	ctl_note_as_of(c, ex.info->as_of_ms);
	ex.written = json_array();
	rc = ex.written ? export(&ex, err) : ptc_nomem(err);
	if (!rc && c->json)
		rc = print_written(&ex, err);
	json_decref(ex.written);
	ptc_free(ex.kept);
	ctl_export_homes_done(&ex);
	ptc_job_desc_done(&ex.desc);
	ptc_admin_export_done(ex.info);
	return rc;
}

/* One argument is the TARGET, or the JOB beside --ranks or --dcp. */
static bool job_missing(const struct ctl *c)
{
	return c->nargs + (ctl_option(c, "ranks") || ctl_option(c, "dcp")) < 2;
}

const struct ctl_verb ctl_export = {
	.name = "export",
	.args = "[JOB] [TARGET]",
	.about = "Write a job's committed state as safetensors files",
	.help = "TARGET is a directory, or a name that ends in .safetensors. A directory gets everything:\n"
		"model.safetensors and FIELD.safetensors, or the files of the import. A name that ends in\n"
		".safetensors gets the parameters; write fields with --field.\n"
		"A file gets its name only after its digests equal the committed ones. Existing files of\n"
		"these names are replaced. If a switch replaces the state during the export and the bytes\n"
		"are equal, only the file that is being written begins again. If bytes differ, all files do.\n"
		"With --dcp the directory must be absent or empty. The checkpoint gets this name after ptcctl\n"
		"has written it and read it back.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 2,
	.job_missing = job_missing,
	.run = run,
};
