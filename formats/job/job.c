/* SPDX-License-Identifier: Apache-2.0 */
/* Reads job.yaml by the tables of its keys: version, name, tensors, fields and others. Happy path: the tree is decoded
 * key by key into a spec, tensors are sorted by name, the rules are linted. Failure: PTC_EINVAL, PTC_ELIMIT or
 * PTC_EVERSION with file and line, PTC_ENOTFOUND for a named file that is not there, PTC_ELAYOUT from the linter; a
 * half-built description is released. */
#include "formats/job/job.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "base/number/search.h"
#include "formats/job/job_decode.h"
#include "formats/json.h"
#include "formats/names.h"
#include "formats/tensors/safetensors.h"
#include "reshard/spec/lint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Beside those of ptc_job_live_table and ptc_job_last_table. */
static const char *const job_keys[] = { "version", "name", "tensors", "fields", "rules", "buffers", "gpus",
					"run",     "data", "blobs",   "files",  "model", "space" };
static const char *const tensor_keys[] = { "name", "dtype", "shape" };
static const char *const from_keys[] = { "from" };
static const char *const field_keys[] = { "dtype" };
static const char *const files_keys[] = { "group", "carry" };
static const char *const domains[] = { "node", "rack" }, *const changes[] = { "event", "replan" };
static const char *const copied[] = { "snapshot", "step" };

#define COPIES_BUDGET 10 /* percent */

static void put_budget(struct ptc_buf *b, const void *copies)
{
	const struct ptc_job_copies *c = copies;

	if (c->steps && c->budget != COPIES_BUDGET)
		ptc_buf_printf(b, ",\"budget\":\"%u%%\"", c->budget);
}

static const struct ptc_doc_row copies_rows[] = {
	PTC_DOC_FIELD(struct ptc_job_copies, "count", count, COUNT, .min = 1, .max = PTC_JOB_MAX_COPIES, .fallback = 1),
	PTC_DOC_FIELD(struct ptc_job_copies, "across", racks, WORD, .max = 1, .words = domains),
	PTC_DOC_FIELD(struct ptc_job_copies, "every", steps, WORD, .max = 1, .words = copied),
	{ .key = "budget", .kind = PTC_DOC_OTHER, .put = put_budget },
};
static const struct ptc_doc_table copies_table = PTC_DOC_TABLE(copies_rows);

#define ARCHIVE(key, member, ...) PTC_DOC_FIELD(struct ptc_job_archive, key, member, __VA_ARGS__)
static const struct ptc_doc_row archive_rows[] = {
	{ "dir", PTC_DOC_OTHER },
	ARCHIVE("every", every_ms, MS, .max = PTC_JOB_ARCHIVE_EVERY_MAX),
	ARCHIVE("keep", keep, COUNT, .min = 1, .max = PTC_JOB_ARCHIVE_KEEP_MAX, .fallback = PTC_JOB_ARCHIVE_KEEP),
	ARCHIVE("rate", rate, BYTES, .min = 1, .max = PTC_DOC_NO_MAX),
};
static const struct ptc_doc_table archive_table = PTC_DOC_TABLE(archive_rows);

static const struct ptc_doc_row keep_rows[] = {
	PTC_DOC_FIELD(struct ptc_job_keep, "last", last, COUNT, .min = 1, .max = PTC_JOB_KEEP_MAX, .fallback = 1,
		      .always = true),
	PTC_DOC_FIELD(struct ptc_job_keep, "every", every, COUNT, .min = 1, .max = PTC_DOC_NO_MAX),
};
static const struct ptc_doc_table keep_table = PTC_DOC_TABLE(keep_rows);

static void put_archive(struct ptc_buf *b, const void *job)
{
	const struct ptc_job_archive *a = &((const struct ptc_job_desc *)job)->archive;

	if (!a->dir)
		return;
	ptc_buf_puts(b, ",\"archive\":{\"dir\":");
	ptc_json_put_string(b, a->dir);
	ptc_doc_write(b, &archive_table, a);
	ptc_buf_puts(b, "}");
}

#define JOB(key, member, ...) PTC_DOC_FIELD(struct ptc_job_desc, key, member, __VA_ARGS__)
static const struct ptc_doc_row last_rows[] = {
	JOB("on_link_change", replan_on_links, WORD, .max = 1, .words = changes),
	JOB("warning", warning_ms, ONLY_MS, .min = 1, .max = PTC_JOB_WARNING_MAX_MS),
	JOB("copies", copies, SUBMAP, .of = &copies_table),
	{ .key = "archive", .kind = PTC_DOC_OTHER, .put = put_archive },
	JOB("keep", keep, SUBMAP, .of = &keep_table),
};
const struct ptc_doc_table ptc_job_last_table = PTC_DOC_TABLE(last_rows);

/* Puts file and line before the text a check left in d->err. */
static int located(struct ptc_job_decoder *d, const struct ptc_doc_node *node, int rc)
{
	if (rc && node->line)
		ptc_error_wrap(d->err, "%s:%" PRIu32, d->doc->what, node->line);
	else if (rc)
		ptc_error_wrap(d->err, "%s", d->doc->what);
	return rc;
}

/* A key the job can't do without. */
static int require_key(struct ptc_job_decoder *d, const struct ptc_doc_node *map, const char *object, const char *key,
		       const struct ptc_doc_node **ret_node)
{
	*ret_node = ptc_doc_get(map, key);
	if (*ret_node)
		return 0;
	return ptc_doc_error(d->doc, map, d->err, PTC_EINVAL, "%s has no \"%s\"", object, key);
}

/* *ret_later: it is a later ptc's. */
static int decode_version(struct ptc_job_decoder *d, const struct ptc_doc_node *root, bool *ret_later)
{
	const int64_t newest = PTC_JOB_VERSION + (d->yaml ? 0 : 1); /* a person's is read to the letter */
	const struct ptc_doc_node *node = NULL;
	int64_t version = 0;
	int rc = require_key(d, root, "the job", "version", &node);

	if (!rc)
		rc = ptc_doc_int(d->doc, node, "version", 0, INT64_MAX, &version, d->err);
	if (!rc && (version < PTC_JOB_OLDEST || version > newest))
		rc = ptc_doc_error(d->doc, node, d->err, PTC_EVERSION,
				   "version %" PRId64 " is not supported, %d to %" PRId64
				   " are: use the ptc that it was written for",
				   version, PTC_JOB_OLDEST, newest);
	*ret_later = PTC_VERSION_LATER(version, PTC_JOB_VERSION);
	return rc;
}

/* A later ptc's own text: keys that we do not know are passed over, and what must not be it names. Keys inside of
 * others are never passed over. */
static int check_later(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	const struct ptc_doc_node *needs = ptc_doc_get(root, "needs"), *first = needs ? needs->first : NULL;

	if (!needs || (needs->kind == PTC_DOC_LIST && !first))
		return 0;
	return ptc_doc_error(d->doc, needs, d->err, PTC_EVERSION,
			     "the job needs \"%.64s\", which this ptc " PTC_VERSION
			     " does not know: use the ptc that it was "
			     "written for",
			     first && first->text ? first->text : "?");
}

static int decode_name(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	const struct ptc_doc_node *node = NULL;
	const char *name = NULL;
	int rc = require_key(d, root, "the job", "name", &node);

	if (!rc)
		rc = ptc_doc_text(d->doc, node, "name", &name, d->err);
	if (!rc)
		rc = located(d, node, ptc_name_check_job(name, d->err));
	if (rc)
		return rc;
	d->job->spec.name = ptc_strdup(name);
	return d->job->spec.name ? 0 : ptc_nomem(d->err);
}

static int decode_dtype(struct ptc_job_decoder *d, const struct ptc_doc_node *node, enum ptc_dtype *ret_dtype)
{
	const char *name = NULL, *known[PTC_DTYPE_COUNT], *near;
	int rc = ptc_doc_text(d->doc, node, "dtype", &name, d->err);

	if (rc || ptc_dtype_parse(name, ret_dtype))
		return rc;
	for (int i = 0; i < PTC_DTYPE_COUNT; i++)
		known[i] = ptc_dtype_name((enum ptc_dtype)i);
	near = ptc_name_nearest(name, known, PTC_DTYPE_COUNT);
	return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "unknown dtype \"%.40s\"%s%s%s", name,
			     near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static int decode_shape(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_tensor *t)
{
	int64_t elements = 1;

	if (node->kind != PTC_DOC_LIST)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "shape must be a list of sizes");
	if (node->n > PTC_MAX_DIMS)
		return ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT, "%zu dims, at most %d are supported", node->n,
				     PTC_MAX_DIMS);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		int rc = ptc_doc_int(d->doc, n, "a size", 0, INT64_MAX, &t->shape[t->ndim], d->err);

		if (rc)
			return rc;
		if (ptc_ckd_mul(&elements, elements, t->shape[t->ndim++]))
			return ptc_doc_error(d->doc, n, d->err, PTC_EINVAL, "shape overflows");
	}
	if (ptc_ckd_mul(&elements, elements, (int64_t)ptc_dtype_bits(t->dtype)))
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "size overflows");
	if (elements % 8)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "%" PRId64 " bits of %s are not whole bytes",
				     elements, ptc_dtype_name(t->dtype));
	return 0;
}

static int decode_tensor(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_tensor *t)
{
	const struct ptc_doc_node *name = NULL, *dtype = NULL, *shape = NULL;
	const char *text = NULL;
	int rc;

	rc = ptc_doc_check_map(d->doc, node, "a tensor", tensor_keys, PTC_ARRAY_LEN(tensor_keys), d->err);
	if (!rc)
		rc = require_key(d, node, "a tensor", "name", &name);
	if (!rc)
		rc = require_key(d, node, "a tensor", "dtype", &dtype);
	if (!rc)
		rc = require_key(d, node, "a tensor", "shape", &shape);
	if (!rc)
		rc = ptc_doc_text(d->doc, name, "name", &text, d->err);
	if (!rc)
		rc = located(d, name, ptc_name_check_tensor(text, d->err));
	if (!rc)
		rc = decode_dtype(d, dtype, &t->dtype);
	if (!rc)
		rc = decode_shape(d, shape, t);
	if (rc)
		return rc;
	t->name = ptc_strdup(text);
	return t->name ? 0 : ptc_nomem(d->err);
}

PTC_BY_NAME(compare_tensor, struct ptc_tensor, name)

static int decode_tensor_list(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	struct ptc_spec *spec = &d->job->spec;

	if (!node->n)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "the job has no tensors");
	if (node->n > PTC_MAX_TENSORS)
		return ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT, "%zu tensors, at most %u are supported", node->n,
				     PTC_MAX_TENSORS);
	spec->tensors = ptc_calloc(node->n, sizeof *spec->tensors);
	if (!spec->tensors)
		return ptc_nomem(d->err);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		int rc = decode_tensor(d, n, &spec->tensors[spec->ntensors++]);

		if (rc)
			return rc;
	}
	qsort(spec->tensors, spec->ntensors, sizeof *spec->tensors, compare_tensor);
	for (size_t i = 1; i < spec->ntensors; i++)
		if (!strcmp(spec->tensors[i - 1].name, spec->tensors[i].name))
			return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "tensor \"%s\" appears twice",
					     spec->tensors[i].name);
	return 0;
}

/* Copies the tensors of a checkpoint, which come in name order without duplicates. */
static int copy_tensors(struct ptc_job_decoder *d, const struct ptc_st_set *set)
{
	struct ptc_spec *spec = &d->job->spec;

	spec->tensors = ptc_calloc(PTC_MAX(set->nrefs, 1), sizeof *spec->tensors);
	if (!spec->tensors)
		return ptc_nomem(d->err);
	for (size_t i = 0; i < set->nrefs; i++) {
		struct ptc_tensor *t = &spec->tensors[spec->ntensors];

		*t = ptc_st_set_tensor(set, i)->t;
		t->name = ptc_strdup(t->name);
		if (!t->name)
			return ptc_nomem(d->err);
		spec->ntensors++;
	}
	return 0;
}

static int decode_tensors_from(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	const struct ptc_doc_node *from = NULL;
	struct ptc_st_set set = { 0 };
	const char *path = NULL;
	int rc;

	rc = ptc_doc_check_map(d->doc, node, "tensors", from_keys, PTC_ARRAY_LEN(from_keys), d->err);
	if (!rc)
		rc = require_key(d, node, "tensors", "from", &from);
	if (!rc)
		rc = ptc_doc_text(d->doc, from, "from", &path, d->err);
	if (!rc && !d->dir)
		rc = ptc_doc_error(d->doc, from, d->err, PTC_EINVAL, "tensors must be a list here, not a file");
	if (rc)
		return rc;
	d->job->source = path[0] == '/' ? ptc_strdup(path) : ptc_asprintf("%s/%s", d->dir, path);
	if (!d->job->source)
		return ptc_nomem(d->err);
	rc = located(d, from, ptc_st_set_read(d->job->source, &set, d->err));
	if (rc)
		return rc;
	if (set.nrefs)
		rc = copy_tensors(d, &set);
	else
		rc = ptc_doc_error(d->doc, from, d->err, PTC_EINVAL, "%s holds no tensors", d->job->source);
	ptc_st_set_done(&set);
	return rc;
}

static int decode_field(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_field *f)
{
	const struct ptc_doc_node *dtype;
	int rc;

	rc = located(d, node, ptc_name_check_field(node->key, d->err));
	if (!rc)
		rc = ptc_doc_check_map(d->doc, node, "a field", field_keys, PTC_ARRAY_LEN(field_keys), d->err);
	if (rc)
		return rc;
	dtype = ptc_doc_get(node, "dtype");
	f->same_dtype = !dtype || (dtype->text && !strcmp(dtype->text, "same"));
	if (!f->same_dtype)
		rc = decode_dtype(d, dtype, &f->dtype);
	if (rc)
		return rc;
	f->name = ptc_strdup(node->key);
	return f->name ? 0 : ptc_nomem(d->err);
}

PTC_BY_NAME(compare_field, struct ptc_field, name)

/* Kept in name order, so that equal jobs written differently are equal. */
static int decode_fields(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	struct ptc_spec *spec = &d->job->spec;

	if (node->kind != PTC_DOC_MAP)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "fields must be a map of field names");
	if (node->n > PTC_MAX_FIELDS)
		return ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT, "%zu fields, at most %d are supported", node->n,
				     PTC_MAX_FIELDS);
	spec->fields = ptc_calloc(PTC_MAX(node->n, 1), sizeof *spec->fields);
	if (!spec->fields)
		return ptc_nomem(d->err);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		int rc = decode_field(d, n, &spec->fields[spec->nfields++]);

		if (rc)
			return rc;
	}
	qsort(spec->fields, spec->nfields, sizeof *spec->fields, compare_field);
	return 0;
}

/* tensors, fields and rules. A live job may have none: then its ranks declare them, and rules, if there are any, say
 * which replicas count. */
static int decode_spec(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	const struct ptc_doc_node *tensors = NULL, *rules = NULL, *fields = ptc_doc_get(root, "fields");
	int rc;

	if (d->job->has_run && !fields && !ptc_doc_get(root, "tensors")) {
		rules = ptc_doc_get(root, "rules");
		return rules ? ptc_job_decode_rules(d, rules) : 0;
	}
	rc = require_key(d, root, "the job", "tensors", &tensors);
	if (!rc)
		rc = d->scanned                      ? 0
		     : tensors->kind == PTC_DOC_LIST ? decode_tensor_list(d, tensors)
						     : decode_tensors_from(d, tensors);
	if (!rc && fields)
		rc = decode_fields(d, fields);
	if (!rc)
		rc = require_key(d, root, "the job", "rules", &rules);
	if (!rc)
		rc = ptc_job_decode_buffers(d, ptc_doc_get(root, "buffers"));
	d->own_buffers = d->has_buffers;
	return rc ? rc : ptc_job_decode_rules(d, rules);
}

/* A number as it is; a name is looked up by who submits the job. */
static int decode_group(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	struct ptc_job_files *files = &d->job->files;
	const char *name = NULL;
	int64_t gid = 0;
	int rc;

	files->shared = true;
	if (node->kind == PTC_DOC_TEXT && node->plain && node->text[0] &&
	    !node->text[strspn(node->text, "0123456789")]) {
		rc = ptc_doc_int(d->doc, node, "group", 0, UINT32_MAX - 1, &gid, d->err);
		files->gid = (gid_t)gid;
		return rc;
	}
	rc = ptc_doc_text(d->doc, node, "group", &name, d->err);
	if (!rc && (!name[0] || strlen(name) > PTC_JOB_GROUP_MAX || strpbrk(name, ":,\n")))
		rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "\"%.80s\" cannot be the name of a group", name);
	if (!rc)
		snprintf(files->group, sizeof files->group, "%s", name);
	return rc;
}

static int decode_files(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	const struct ptc_doc_node *group, *carry;
	int rc = ptc_doc_check_map(d->doc, node, "files", files_keys, PTC_ARRAY_LEN(files_keys), d->err);

	if (rc)
		return rc;
	group = ptc_doc_get(node, "group");
	carry = ptc_doc_get(node, "carry");
	if (!group && !carry)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "files has no \"group\" and no \"carry\"");
	if (group)
		rc = decode_group(d, group);
	return rc || !carry ? rc : ptc_job_decode_carried(d, carry);
}

/* The same directory on whichever node writes, so it does not depend on where the job file is. */
static int decode_archive_dir(struct ptc_job_decoder *d, const struct ptc_doc_node *map, struct ptc_job_archive *a)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, "dir");
	const char *dir = NULL;
	int rc;

	if (!node)
		return ptc_doc_error(d->doc, map, d->err, PTC_EINVAL,
				     "archive has no \"dir\": write the directory of the checkpoints");
	rc = ptc_doc_text(d->doc, node, "dir", &dir, d->err);
	if (rc)
		return rc;
	if (dir[0] != '/' || strlen(dir) > PTC_RUN_CWD_MAX)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "dir of archive is an absolute path of at most %d bytes, which all nodes have",
				     PTC_RUN_CWD_MAX);
	a->dir = ptc_strdup(dir);
	return a->dir ? 0 : ptc_nomem(d->err);
}

static int decode_archive(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	struct ptc_job_archive *a = &d->job->archive;
	int rc;

	ptc_doc_fallbacks(&archive_table, a);
	rc = ptc_doc_read_to(d->doc, node, "archive", &archive_table, a, d->err);
	return rc ? rc : decode_archive_dir(d, node, a);
}

/* As in "5%". */
static int decode_budget(struct ptc_job_decoder *d, const struct ptc_doc_node *node, uint8_t *ret)
{
	const char *text = NULL;
	unsigned percent = 0;
	int rc = ptc_doc_text(d->doc, node, "budget", &text, d->err);

	if (rc)
		return rc;
	for (; *text >= '0' && *text <= '9' && percent <= 100; text++)
		percent = percent * 10 + (unsigned)(*text - '0');
	if (percent < 1 || percent > 100 || strcmp(text, "%") != 0)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "budget of copies is a share of the time from 1%% to 100%%, such as 5%%");
	*ret = (uint8_t)percent;
	return 0;
}

/* What the table cannot say of the copies. With every: step a snapshot may be due at each step. */
static int decode_copies(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	const struct ptc_doc_node *every = ptc_doc_get(node, "every"), *budget = ptc_doc_get(node, "budget");
	struct ptc_job_copies *c = &d->job->copies;

	c->racks = c->racks && c->count > 1;
	c->budget = c->steps ? COPIES_BUDGET : 0;
	if (!ptc_doc_get(node, "count"))
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "copies has no \"count\": write on how many nodes each region should be");
	if (budget && !c->steps)
		return ptc_doc_error(d->doc, budget, d->err, PTC_EINVAL,
				     "budget of copies goes with every: step; other snapshots come as "
				     "snapshot_every says");
	if (!c->steps)
		return 0;
	if (!d->job->has_run)
		return ptc_doc_error(d->doc, every, d->err, PTC_EINVAL,
				     "every: step of copies is for jobs with \"run\": others have no steps");
	if (c->count < 2)
		return ptc_doc_error(d->doc, every, d->err, PTC_EINVAL,
				     "every: step of copies needs a count of 2 or more");
	if (d->job->snapshot_every > 1)
		return ptc_doc_error(d->doc, every, d->err, PTC_EINVAL,
				     "every: step of copies says when snapshots are due: leave out snapshot_every");
	d->job->snapshot_every = 1;
	return budget ? decode_budget(d, budget, &c->budget) : 0;
}

/* The keys of ptc_job_last_table, and what the table cannot say of them. */
static int decode_last(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	const struct ptc_doc_node *copies = ptc_doc_get(root, "copies"), *keep = ptc_doc_get(root, "keep");
	const struct ptc_doc_node *archive = ptc_doc_get(root, "archive");
	struct ptc_job_desc *job = d->job;
	int rc;

	ptc_doc_fallbacks(&ptc_job_last_table, job);
	rc = ptc_doc_read_to(d->doc, root, NULL, &ptc_job_last_table, job, d->err);
	if (!rc && job->replan_on_links && !job->model)
		rc = ptc_doc_error(d->doc, ptc_doc_get(root, "on_link_change"), d->err, PTC_EINVAL,
				   "on_link_change: replan needs a model:, from which the planner predicts steps");
	if (!rc && copies)
		rc = decode_copies(d, copies);
	if (!rc && keep && !job->has_run)
		rc = ptc_doc_error(d->doc, keep, d->err, PTC_EINVAL,
				   "keep is for jobs with \"run\": the state of others does not change");
	return !rc && archive ? decode_archive(d, archive) : rc;
}

static int check_keys(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	const char *known[64];
	size_t n = 0;

	for (size_t i = 0; i < PTC_ARRAY_LEN(job_keys); i++)
		known[n++] = job_keys[i];
	for (size_t i = 0; i < ptc_job_live_table.n; i++)
		known[n++] = ptc_job_live_table.v[i].key;
	for (size_t i = 0; i < PTC_ARRAY_LEN(last_rows); i++)
		known[n++] = last_rows[i].key;
	return ptc_doc_check_map(d->doc, root, "the job", known, n, d->err);
}

static int check_states(struct ptc_job_decoder *d)
{
	return d->yaml ? ptc_job_check_states(d->job, d->err) : 0;
}

static int decode_job(struct ptc_job_decoder *d)
{
	const struct ptc_doc_node *root = d->doc->root, *gpus, *files;
	bool later = false;
	int rc;

	if (root->kind != PTC_DOC_MAP)
		return ptc_doc_error(d->doc, root, d->err, PTC_EINVAL, "the job is not a map");
	rc = decode_version(d, root, &later); /* first: another version has other keys */
	if (!rc && later)
		rc = check_later(d, root);
	else if (!rc)
		rc = check_keys(d, root);
	if (!rc)
		rc = decode_name(d, root);
	if (!rc)
		rc = ptc_job_decode_run(d, root);
	if (!rc)
		rc = decode_spec(d, root);
	if (!rc)
		rc = ptc_job_decode_data(d, root);
	if (!rc)
		rc = ptc_job_decode_blobs(d, root);
	if (!rc)
		rc = ptc_job_decode_planning(d, root);
	if (!rc)
		rc = decode_last(d, root);
	gpus = ptc_doc_get(root, "gpus");
	if (!rc && gpus)
		rc = ptc_job_decode_gpus(d, gpus);
	files = ptc_doc_get(root, "files");
	if (!rc && files)
		rc = decode_files(d, files);
	if (!rc && ((rc = ptc_spec_lint(&d->job->spec, d->err)) || (rc = check_states(d))))
		ptc_error_wrap(d->err, "%s", d->doc->what);
	return rc;
}

/* with: what is known of the decoder. Its job may have tensors, which are taken over. */
static int decode(struct ptc_doc *doc, const struct ptc_job_decoder *with, struct ptc_job_desc *ret_job,
		  struct ptc_error *err)
{
	struct ptc_job_desc job = { 0 };
	struct ptc_job_decoder d = *with;
	int rc;

	if (with->job)
		job = *with->job;
	d.doc = doc;
	d.job = &job;
	d.err = err;
	rc = decode_job(&d);
	ptc_doc_done(doc);
	if (rc) {
		ptc_job_desc_done(&job);
		return rc;
	}
	*ret_job = job;
	return 0;
}

int ptc_job_from_yaml(const char *what, const void *data, size_t len, const char *dir, const char *rules_path,
		      struct ptc_job_desc *ret_job, struct ptc_error *err)
{
	struct ptc_doc doc = { 0 };
	int rc;

	if (len > PTC_JOB_YAML_MAX_BYTES)
		return ptc_error_set(err, PTC_ELIMIT, "%s: %zu bytes, at most %u are read", what, len,
				     PTC_JOB_YAML_MAX_BYTES);
	rc = ptc_doc_from_yaml(what, data, len, &doc, err);
	return rc ? rc
		  : decode(&doc, &(struct ptc_job_decoder){ .yaml = true, .dir = dir, .rules_path = rules_path },
			   ret_job, err);
}

int ptc_job_read(const char *path, const char *rules_path, struct ptc_job_desc *ret_job, struct ptc_error *err)
{
	ptc_auto_free char *data = NULL, *dir = NULL;
	const char *slash = strrchr(path, '/');
	size_t len = 0;
	int rc;

	rc = ptc_sys_read_file(path, PTC_JOB_YAML_MAX_BYTES, &data, &len, err);
	if (rc)
		return rc;
	dir = slash ? ptc_strndup(path, (size_t)PTC_MAX(slash - path, 1)) : ptc_strdup(".");
	if (!dir)
		return ptc_nomem(err);
	return ptc_job_from_yaml(path, data, len, dir, rules_path, ret_job, err);
}

/* Canonical text, as our own writers make it, is read without a tree of its tensors. */
int ptc_job_from_json(const void *data, size_t len, struct ptc_job_desc *ret_job, struct ptc_error *err)
{
	struct ptc_job_desc job = { 0 };
	struct ptc_buf rest = PTC_BUF_INIT;
	struct ptc_doc doc = { 0 };
	int rc;

	if (len > PTC_SPEC_MAX_BYTES)
		return ptc_error_set(err, PTC_ELIMIT, "spec: %zu bytes, at most %u are read", len, PTC_SPEC_MAX_BYTES);
	rc = ptc_job_scan_tensors(data, len, &job.spec, &rest);
	if (rc) {
		ptc_buf_done(&rest);
		ptc_job_desc_done(&job);
		if (rc == PTC_ENOMEM)
			return ptc_nomem(err);
		rc = ptc_doc_from_json("spec", data, len, &doc, err);
		return rc ? rc : decode(&doc, &(struct ptc_job_decoder){ 0 }, ret_job, err);
	}
	rc = ptc_doc_from_json("spec", rest.data, rest.len, &doc, err);
	ptc_buf_done(&rest);
	if (rc == 0)
		return decode(&doc, &(struct ptc_job_decoder){ .job = &job, .scanned = true }, ret_job, err);
	ptc_job_desc_done(&job);
	return rc;
}

void ptc_job_desc_done(struct ptc_job_desc *job)
{
	ptc_spec_done(&job->spec);
	ptc_job_run_done(&job->run);
	ptc_job_data_done(job);
	ptc_blob_rules_done(&job->blobs);
	ptc_job_carried_done(&job->files);
	ptc_free(job->gpus);
	ptc_free(job->model);
	ptc_free(job->space);
	ptc_free(job->source);
	ptc_free(job->archive.dir);
	memset(job, 0, sizeof *job);
}

const struct ptc_config *ptc_job_config_for(const struct ptc_job_desc *job, uint32_t n)
{
	for (size_t i = 0; i < job->ngpus; i++)
		if (job->gpus[i].n == n)
			return &job->gpus[i].config;
	return NULL;
}
