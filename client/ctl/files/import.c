/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl import: reads safetensors files and checkpoints, and makes a job's state of them. Happy path: headers read
 * and checked, ImportBegin, the bytes in streams, ImportCommit with the digests of what was read. Failure: before
 * ImportBegin nothing has happened; after it the import is aborted, so the job is as it was. */
#include "client/ctl/files/import.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"
#include "client/ctl/files/files.h"
#include "client/ctl/show/show.h"
#include "reshard/spec/config.h"
#include "reshard/spec/lint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define DEFAULT_STREAMS 2

static const struct ctl_option options[] = {
	{ "field", "NAME=PATH",
	  "the file or directory of a field, e.g. exp_avg=exp_avg.safetensors; repeat for each field" },
	{ "model", "NAME",
	  "for a checkpoint: the key of the model's state dict, e.g. app.model (default model; \"\": none)" },
	{ "optim", "NAME", "for a checkpoint: the key of the optimizer's state dict (default optim)" },
	CTL_TARGET_OPTIONS,
	{ "streams", "N", "number of parallel streams, 1 to 16 (default 2)" },
};

/* The path given for a field, else NAME.safetensors or NAME/ beside the parameters when PATH is a directory. */
static char *field_path(const struct ctl *c, const char *field)
{
	size_t at = 0, n = strlen(field);
	const char *value;
	struct stat sb;

	while ((value = ctl_option_next(c, "field", &at)))
		if (!strncmp(value, field, n) && value[n] == '=')
			return ptc_strdup(value + n + 1);
	if (stat(c->args[1], &sb) || !S_ISDIR(sb.st_mode))
		return NULL;
	for (size_t i = 0; i < 2; i++) {
		char *path = i ? ptc_asprintf("%s/%s", c->args[1], field)
			       : ptc_asprintf("%s/%s.safetensors", c->args[1], field);

		if (path && !stat(path, &sb))
			return path;
		ptc_free(path);
	}
	return NULL;
}

/* Every --field names a field of the job. */
static int check_fields(const struct ctl *c, const struct ptc_spec *spec, struct ptc_error *err)
{
	ptc_auto_free bool *seen = ptc_calloc(spec->nfields + 1, sizeof *seen);
	const char *value;
	size_t at = 0;

	if (!seen)
		return ptc_nomem(err);
	while ((value = ctl_option_next(c, "field", &at))) {
		size_t n = strcspn(value, "="), f = 0;

		while (f < spec->nfields && (strncmp(spec->fields[f].name, value, n) || spec->fields[f].name[n]))
			f++;
		if (f == spec->nfields)
			return ptc_error_set(err, PTC_EINVAL, "the job has no field \"%.*s\"",
					     (int)PTC_MIN(n, (size_t)63), value);
		if (seen[f])
			return ptc_error_set(err, PTC_EINVAL, "--field %s is given twice", spec->fields[f].name);
		seen[f] = true;
	}
	return 0;
}

/* missing, or else surplus. */
static int wrong_tensor(const char *path, const struct ptc_tensor *missing, const struct ptc_tensor *surplus,
			struct ptc_error *err)
{
	if (missing)
		return ptc_error_set(err, PTC_EINVAL, "%s has no tensor \"%s\"", path, missing->name);
	return ptc_error_set(err, PTC_EINVAL, "%s: tensor \"%s\" is not one of the job's", path,
			     surplus ? surplus->name : "");
}

/* Is the file's tensor longer in the one dim that the rule pads? */
static bool is_padded(const struct ptc_rule *rule, const struct ptc_tensor *have, const struct ptc_tensor *want)
{
	uint32_t longer = 0, padded = 0;

	if (!rule || have->ndim != want->ndim)
		return false;
	for (uint32_t d = 0; d < have->ndim; d++) {
		if (have->shape[d] < want->shape[d])
			return false;
		longer |= (have->shape[d] > want->shape[d] ? 1u : 0) << d;
	}
	for (size_t i = 0; i < PTC_MAX_SPLITS; i++)
		padded |= (rule->splits[i].pad_to ? 1u : 0) << rule->splits[i].dim;
	return longer && longer == padded;
}

static int wrong_shape(const char *path, const struct ptc_rule *rule, const struct ptc_tensor *have,
		       const struct ptc_tensor *want, struct ptc_error *err)
{
	char is[256], says[256];

	return ptc_error_set(err, PTC_EINVAL, "%s: tensor \"%s\" is %s, the job says %s%s", path, have->name,
			     ptc_shape_text(have->ndim, have->shape, is, sizeof is),
			     ptc_shape_text(want->ndim, want->shape, says, sizeof says),
			     is_padded(rule, have, want)
				     ? "; padding is no part of a tensor: leave it out of the file, or "
				       "give the job the file's shape"
				     : "");
}

/* The tensors of a set are the job's, with the field's dtype. */
static int check_set(const struct ptc_spec *spec, const struct ptc_st_set *set, size_t field, const char *path,
		     struct ptc_error *err)
{
	size_t common = PTC_MIN(set->nrefs, spec->ntensors);

	for (size_t i = 0; i < common; i++) {
		const struct ptc_tensor *have = &ptc_st_set_tensor(set, i)->t, *want = &spec->tensors[i];
		enum ptc_dtype dtype = ptc_item_dtype(spec, i * (1 + spec->nfields) + field);
		int order = strcmp(have->name, want->name);

		if (order)
			return wrong_tensor(path, order < 0 ? NULL : want, have, err);
		if (have->dtype != dtype)
			return ptc_error_set(err, PTC_EINVAL, "%s: tensor \"%s\" is %s, the job says %s", path,
					     have->name, ptc_dtype_name(have->dtype), ptc_dtype_name(dtype));
		if (have->ndim != want->ndim || memcmp(have->shape, want->shape, have->ndim * sizeof(have->shape[0])))
			return wrong_shape(path, ptc_spec_rule(spec, i * (1 + spec->nfields) + field), have, want, err);
	}
	if (set->nrefs > common)
		return wrong_tensor(path, NULL, &ptc_st_set_tensor(set, common)->t, err);
	return spec->ntensors > common ? wrong_tensor(path, &spec->tensors[common], NULL, err) : 0;
}

static int read_sets(struct ctl_import *im, struct ptc_error *err)
{
	const struct ptc_spec *spec = &im->desc.spec;
	int rc = check_fields(im->c, spec, err);

	if (rc)
		return rc;
	im->sets = ptc_calloc(1 + spec->nfields, sizeof *im->sets);
	if (!im->sets)
		return ptc_nomem(err);
	for (size_t f = 0; f <= spec->nfields && !rc; f++) {
		ptc_auto_free char *path = f ? field_path(im->c, spec->fields[f - 1].name) : ptc_strdup(im->c->args[1]);

		if (!path)
			return ptc_error_set(err, PTC_EINVAL,
					     "field \"%s\" of the job: no file given (--field %s=PATH)",
					     f ? spec->fields[f - 1].name : "", f ? spec->fields[f - 1].name : "");
		rc = ptc_st_set_read(path, &im->sets[f], err);
		if (!rc) {
			im->nsets++;
			rc = check_set(spec, &im->sets[f], f, path, err);
		}
	}
	return rc;
}

/* The item of a tensor in field f's set: its place in name order says which tensor it is. */
static int list_parts(struct ctl_import *im, struct ptc_error *err)
{
	const struct ptc_spec *spec = &im->desc.spec;
	size_t items = ptc_spec_items(spec);

	im->parts = ptc_calloc(PTC_MAX(items, 1), sizeof *im->parts);
	im->digests = ptc_calloc(PTC_MAX(items, 1), sizeof *im->digests);
	if (!im->parts || !im->digests)
		return ptc_nomem(err);
	for (size_t f = 0; f < im->nsets; f++) {
		const struct ptc_st_set *set = &im->sets[f];
		ptc_auto_free size_t *first = ptc_calloc(set->nfiles + 1, sizeof *first);

		if (!first)
			return ptc_nomem(err);
		for (size_t i = 0; i < set->nfiles; i++)
			first[i + 1] = first[i] + set->files[i].st.ntensors;
		/* put each where its bytes come in its file */
		for (size_t i = 0; i < set->nrefs; i++) {
			const struct ptc_st_file *file = &set->files[set->refs[i].file];

			im->parts[im->nparts + first[set->refs[i].file] + set->refs[i].tensor] =
				(struct ctl_import_part){ .file = file,
							  .tensor = ptc_st_set_tensor(set, i),
							  .item = (uint32_t)(i * (1 + spec->nfields) + f) };
		}
		for (size_t i = 0; i < set->nfiles; i++) {
			const struct ptc_st *st = &set->files[i].st;
			struct ctl_import_part *p = &im->parts[im->nparts + first[i]];
			ptc_auto_free struct ctl_import_part *copy = ptc_calloc(PTC_MAX(st->ntensors, 1), sizeof *copy);

			if (!copy)
				return ptc_nomem(err);
			memcpy(copy, p, st->ntensors * sizeof *p);
			for (size_t k = 0; k < st->ntensors; k++)
				p[k] = copy[st->by_offset[k]];
		}
		im->nparts += set->nrefs;
		im->total_bytes += (uint64_t)set->data_bytes;
	}
	return 0;
}

/* ---- a checkpoint instead of files ---- */

/* The names of both parts of the state dict, as --model and --optim say. */
static int read_entries(struct ctl_import *im, struct ptc_error *err)
{
	const char *model = ctl_option(im->c, "model"), *optim = ctl_option(im->c, "optim");
	ptc_auto_free char *m = ptc_asprintf("%s%s", model ? model : "model", model && !model[0] ? "" : ".");
	ptc_auto_free char *o = ptc_asprintf("%s%s", optim ? optim : "optim", optim && !optim[0] ? "" : ".");
	const struct ctl_ck_prefixes prefixes = { m, o };

	if (!m || !o)
		return ptc_nomem(err);
	return ctl_ck_match(&im->checkpoint, &im->desc.spec, &prefixes, &im->entries, err);
}

/* In the order of items. */
static int list_entries(struct ctl_import *im, struct ptc_error *err)
{
	size_t items = ptc_spec_items(&im->desc.spec);

	im->parts = ptc_calloc(PTC_MAX(items, 1), sizeof *im->parts);
	im->digests = ptc_calloc(PTC_MAX(items, 1), sizeof *im->digests);
	if (!im->parts || !im->digests)
		return ptc_nomem(err);
	for (size_t i = 0; i < items; i++) {
		im->parts[im->nparts++] = (struct ctl_import_part){ .entry = im->entries[i], .item = (uint32_t)i };
		im->total_bytes += (uint64_t)ptc_item_bytes(&im->desc.spec, i);
	}
	return 0;
}

/* A checkpoint that ptc wrote has to match ptc.json. */
static int check_digests(const struct ctl_import *im, struct ptc_error *err)
{
	uint64_t want;

	for (size_t i = 0; i < im->nparts; i++)
		if (ctl_ck_digest(&im->checkpoint, im->entries[i]->key, &want) && want != im->digests[i])
			return ptc_error_set(err, PTC_EDIGEST,
					     "%s: \"%s\" has digest %016" PRIx64 ", " CTL_CK_DOCUMENT
					     " says %016" PRIx64 ": the checkpoint is damaged; take another one",
					     im->checkpoint.dir, im->entries[i]->key, im->digests[i], want);
	return 0;
}

static int check_resumes(const struct ctl_import *im, const struct ptc_admin_import *begun, struct ptc_error *err)
{
	const struct ptc_admin_resume *r = &im->checkpoint.resume;

	if (begun->resumes || !(r->step || r->state_len || r->ledger_len))
		return 0;
	return ptc_error_set(err, PTC_EVERSION,
			     "%s is the state after step %" PRIu64
			     ", and the daemon that controls the job is older and would begin at step 0; upgrade it",
			     im->checkpoint.dir, r->step);
}

static int commit_checkpoint(struct ctl_import *im, uint64_t import_id, struct ctl_follow *follow,
			     struct ptc_error *err)
{
	return ptc_admin_import_resume(im->c->admin, im->job, import_id, im->digests, ptc_spec_items(&im->desc.spec),
				       &im->checkpoint.resume, ctl_follow_fn, follow, err);
}

/* Parts are file by file, so a file's items are a run of them. */
static int commit(struct ctl_import *im, uint64_t import_id, struct ctl_follow *follow, struct ptc_error *err)
{
	const struct ptc_spec *spec = &im->desc.spec;
	ptc_auto_free uint32_t *items = ptc_calloc(PTC_MAX(im->nparts, 1), sizeof *items);
	ptc_auto_free struct ptc_admin_file *files = NULL;
	size_t nfiles = 0, at = 0, n = 0;

	for (size_t f = 0; f < im->nsets; f++)
		nfiles += im->sets[f].nfiles;
	files = ptc_calloc(PTC_MAX(nfiles, 1), sizeof *files);
	if (!items || !files)
		return ptc_nomem(err);
	for (size_t i = 0; i < im->nparts; i++)
		items[i] = im->parts[i].item;
	for (size_t f = 0; f < im->nsets; f++)
		for (size_t i = 0; i < im->sets[f].nfiles; i++) {
			const struct ptc_st_file *file = &im->sets[f].files[i];

			files[n++] = (struct ptc_admin_file){
				.field = f ? spec->fields[f - 1].name : "param",
				.name = file->name,
				.header = file->st.raw,
				.header_len = file->st.raw_len,
				.items = items + at,
				.nitems = file->st.ntensors,
			};
			at += file->st.ntensors;
		}
	return ptc_admin_import_commit(im->c->admin, im->job, import_id, im->digests, ptc_spec_items(spec), files,
				       nfiles, ctl_follow_fn, follow, err);
}

static int transfer(struct ctl_import *im, const struct ptc_admin_import *begun, unsigned nstreams,
		    struct ptc_error *err)
{
	struct ctl_follow follow = { 0 };
	bool checkpoint = im->checkpoint.dir != NULL;
	int rc;

	if (ptc_fault("import.begun"))
		return ptc_error_set(err, PTC_EIO, "fault point import.begun");
	rc = checkpoint ? check_resumes(im, begun, err) : 0;
	if (!rc)
		rc = ptc_job_from_json(begun->spec, begun->spec_len, &im->desc, err);
	if (!rc)
		rc = (checkpoint ? read_entries : read_sets)(im, err);
	if (!rc)
		rc = (checkpoint ? list_entries : list_parts)(im, err);
	if (!rc && ptc_fault("import.read"))
		rc = ptc_error_set(err, PTC_EIO, "fault point import.read");
	if (!rc)
		rc = ctl_import_send(im, begun->id, nstreams, err);
	if (!rc && checkpoint)
		rc = check_digests(im, err);
	if (!rc && ptc_fault("import.sent"))
		rc = ptc_error_set(err, PTC_EIO, "fault point import.sent");
	if (rc)
		return rc;
	ctl_progress_init(&follow.progress);
	im->committing = true;
	rc = (checkpoint ? commit_checkpoint : commit)(im, begun->id, &follow, err);
	if (im->to_run) {
		ptc_free(follow.summary);
		follow.summary = NULL;
	}
	return ctl_follow_end(im->c, &follow, rc, err);
}

static void import_done(struct ctl_import *im)
{
	for (size_t f = 0; f < im->nsets; f++)
		ptc_st_set_done(&im->sets[f]);
	ptc_free(im->sets);
	ptc_free(im->parts);
	ptc_free(im->digests);
	ptc_free(im->entries);
	ctl_ck_close(&im->checkpoint);
	ptc_job_desc_done(&im->desc);
}

/* The parameters' headers, or a checkpoint's metadata, before anything is reserved, so that a bad file changes nothing
 * at all. */
static int check_early(struct ctl_import *im, const char *path, struct ptc_error *err)
{
	struct ptc_st_set set = { 0 };
	int rc;

	if (ctl_ck_is(path))
		return ctl_ck_open(path, &im->checkpoint, err);
	rc = ptc_st_set_read(path, &set, err);
	ptc_st_set_done(&set);
	return rc;
}

/* A job without state; of one that has some nothing is changed. */
static int check_empty(struct ctl_import *im, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL;
	json_t *doc = NULL;
	int rc = ptc_admin_status(im->c->admin, im->job, &text, err);

	if (!rc)
		rc = ptc_json_load("the daemon's answer", text, strlen(text), &doc, err);
	if (!rc && json_is_true(json_object_get(json_array_get(json_object_get(doc, "jobs"), 0), "has_state")))
		rc = ptc_error_set(err, PTC_ESTATE, "job %s has state already; delete it and create it again", im->job);
	json_decref(doc);
	return rc;
}

static bool is_same_config(const char *a, const char *b)
{
	ptc_auto_free char *text = ptc_malloc(2 * PTC_CONFIG_TEXT_MAX);
	struct ptc_config config;

	for (int i = 0; i < 2; i++)
		if (!text || ptc_config_parse(i ? b : a, &config, NULL) ||
		    ptc_config_format(&config, text + i * PTC_CONFIG_TEXT_MAX, PTC_CONFIG_TEXT_MAX))
			return false;
	return !strcmp(text, text + PTC_CONFIG_TEXT_MAX);
}

/* A job whose ranks declare their tensors gets these from the checkpoint, and where each byte lies until it runs. */
static int give_layout(struct ctl_import *im, struct ptc_admin_target *t, struct ptc_error *err)
{
	const struct ctl_ck_source *s = &im->checkpoint;
	struct ptc_error why = PTC_ERROR_INIT;
	ptc_auto_free char *known = NULL;
	int rc = check_empty(im, err);

	if (rc)
		return rc;
	rc = ptc_admin_probe(im->c->admin, im->job, s->layout, s->layout_len, &known, &why);
	if (rc == PTC_ESTATE) /* the job's description has tensors and rules */
		return 0;
	if (rc)
		return ptc_error_set(err, rc, "%s/" CTL_CK_LAYOUT ": %s", s->dir, why.text);
	if (!im->to_run && (t->gpus || (t->config && !is_same_config(t->config, s->config))))
		return ctl_usage(err,
				 "the ranks of job %s declare its tensors, so until they run its state has the "
				 "checkpoint's configuration, %s; leave out --config and --gpus",
				 im->job, s->config);
	t->config = s->config;
	t->gpus = 0;
	return 0;
}

static int import(struct ctl_import *im, const struct ctl_target *target, unsigned nstreams, struct ptc_error *err)
{
	struct ptc_admin_target t = target->t;
	struct ptc_admin_import *begun;
	int rc = ctl_connect(im->c, err);

	if (!rc && im->checkpoint.layout && im->checkpoint.config)
		rc = give_layout(im, &t, err);
	if (!rc)
		rc = ptc_admin_import_begin(im->c->admin, &t, &begun, err);
	if (rc)
		return rc;
	ctl_catch_signals();
	rc = transfer(im, begun, nstreams, err);
	/* Once the commit was asked for, how the import ends is the daemon's. */
	if (rc && !im->committing)
		ptc_admin_abort(im->c->admin, im->job, begun->id, NULL);
	ptc_admin_import_done(begun);
	return rc;
}

int ctl_import_checkpoint(struct ctl *c, const struct ctl_target *target, struct ctl_ck_source *checkpoint,
			  struct ptc_error *err)
{
	struct ctl_import im = { .c = c, .job = target->t.job, .checkpoint = *checkpoint, .to_run = true };
	int rc;

	*checkpoint = (struct ctl_ck_source){ 0 };
	rc = import(&im, target, DEFAULT_STREAMS, err);
	import_done(&im);
	return rc;
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *streams = ctl_option(c, "streams"), *value;
	struct ctl_import im = { .c = c, .job = c->args[0] };
	struct ctl_target target = { 0 };
	uint64_t nstreams = DEFAULT_STREAMS;
	size_t at = 0;
	int rc = 0;

	while ((value = ctl_option_next(c, "field", &at)))
		if (!strchr(value, '=') || value[0] == '=' || !strchr(value, '=')[1])
			return ctl_usage(err, "--field is NAME=PATH, not \"%.80s\"", value);
	if (streams)
		rc = ctl_number("--streams", streams, 1, 16, &nstreams, err);
	if (!rc)
		rc = ctl_target_get(c, c->args[0], &target, err);
	if (rc)
		return rc;
	rc = check_early(&im, c->args[1], err);
	if (!rc)
		rc = import(&im, &target, (unsigned)nstreams, err);
	import_done(&im);
	ctl_target_done(&target);
	return rc;
}

const struct ctl_verb ctl_import = {
	.name = "import",
	.args = "[JOB] PATH",
	.about = "Fill a job from safetensors files, or from a checkpoint",
	.help = "PATH is a .safetensors file, a directory with model.safetensors.index.json or\n"
		"model.safetensors, or a checkpoint of torch.distributed.checkpoint (a directory with\n"
		".metadata; docs/archive.md). From a checkpoint that ptc wrote, the job also takes the step,\n"
		"the ranks' states and the consumed samples. A field of the optimizer is a file with the same\n"
		"tensor names. In a directory, ptcctl finds it as FIELD.safetensors or FIELD/. ptcctl streams\n"
		"files, and never keeps a whole file in memory.\n"
		"Without --config and --gpus the job gets the largest entry of its `gpus` table for which\n"
		"there are devices (of --nodes, if given). If the table has no such entry, the job gets tp=1:\n"
		"one rank, which holds everything once. A job whose ranks declare its tensors takes these from\n"
		"the checkpoint (ptc-layout.json), and the configuration, too. ptcctl run --from creates a\n"
		"job, imports a checkpoint and starts the ranks.\n",
	CTL_OPTIONS(options),
	.min_args = 2,
	.max_args = 2,
	.job_missing = ctl_job_missing,
	.run = run,
};
