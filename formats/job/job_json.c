/* SPDX-License-Identifier: Apache-2.0 */
/* The canonical JSON of a job description. Happy path: fixed key order,
 * defaults left out, no white space, so equal descriptions are equal bytes.
 * Failure: PTC_ENOMEM, or PTC_ELIMIT above PTC_SPEC_MAX_BYTES. */
#include "formats/job/job_decode.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "formats/json.h"
#include "formats/names.h"
#include "formats/scan.h"

#include <inttypes.h>
#include <string.h>

static void put_tensors(struct ptc_buf *b, const struct ptc_spec *spec)
{
	ptc_buf_puts(b, ",\"tensors\":[");
	for (size_t i = 0; i < spec->ntensors; i++) {
		const struct ptc_tensor *t = &spec->tensors[i];

		ptc_buf_puts(b, i ? ",{\"name\":" : "{\"name\":");
		ptc_json_put_string(b, t->name);
		ptc_buf_printf(b, ",\"dtype\":\"%s\",\"shape\":[", ptc_dtype_name(t->dtype));
		for (uint32_t d = 0; d < t->ndim; d++)
			ptc_buf_printf(b, "%s%" PRId64, d ? "," : "", t->shape[d]);
		ptc_buf_puts(b, "]}");
	}
	ptc_buf_puts(b, "]");
}

/* Where the tensors' list begins. */
static bool scan_head(struct ptc_scan *s)
{
	uint64_t version;
	char *name = NULL;
	bool fine = !ptc_scan_text(s, "{\"version\":") && !ptc_scan_number(s, UINT32_MAX, &version) &&
		    !ptc_scan_text(s, ",\"name\":") && !ptc_scan_string(s, PTC_NAME_MAX, &name) &&
		    !ptc_scan_text(s, ",\"tensors\":[");

	ptc_free(name);
	return fine;
}

/* before: NULL, or the tensor before it, which mostly has the same dtype. */
static bool scan_tensor(struct ptc_scan *s, const struct ptc_tensor *before, struct ptc_tensor *t)
{
	char dtype[16], *name = NULL;
	size_t n = 0;
	int64_t bits;

	if (ptc_scan_text(s, "{\"name\":") || ptc_scan_string(s, PTC_TENSOR_NAME_MAX, &name))
		return false;
	t->name = name;
	if (ptc_name_check_tensor(name, s->err) || ptc_scan_text(s, ",\"dtype\":\""))
		return false;
	for (; s->at < s->end && *s->at != '"' && n < sizeof dtype - 1; s->at++)
		dtype[n++] = *s->at;
	dtype[n] = '\0';
	if (before && strcmp(dtype, ptc_dtype_name(before->dtype)) == 0)
		t->dtype = before->dtype;
	else if (!ptc_dtype_parse(dtype, &t->dtype))
		return false;
	if (ptc_scan_text(s, "\",\"shape\":["))
		return false;
	bits = (int64_t)ptc_dtype_bits(t->dtype);
	while (!ptc_scan_is(s, "]}")) {
		uint64_t size;

		if ((t->ndim && ptc_scan_text(s, ",")) || t->ndim == PTC_MAX_DIMS ||
		    ptc_scan_number(s, INT64_MAX, &size) || ptc_ckd_mul(&bits, bits, (int64_t)size))
			return false;
		t->shape[t->ndim++] = (int64_t)size;
	}
	return bits % 8 == 0;
}

static bool scan_list(struct ptc_scan *s, struct ptc_spec *spec)
{
	struct ptc_tensor *v;
	size_t cap = 0;

	do {
		struct ptc_tensor *t;

		if (spec->ntensors == PTC_MAX_TENSORS)
			return false;
		if (!PTC_ROOM(spec->tensors, spec->ntensors + 1, cap))
			return !ptc_nomem(s->err);
		t = &spec->tensors[spec->ntensors++];
		*t = (struct ptc_tensor){ 0 };
		if (!scan_tensor(s, spec->ntensors > 1 ? t - 1 : NULL, t) ||
		    (spec->ntensors > 1 && strcmp(t[-1].name, t->name) >= 0))
			return false;
	} while (ptc_scan_is(s, ","));
	if (s->at == s->end || *s->at != ']')
		return false; /* what else stands here is not looked at again */
	v = ptc_reallocarray(spec->tensors, spec->ntensors, sizeof *v); /* they are kept for long */
	if (!v)
		return !ptc_nomem(s->err);
	spec->tensors = v;
	return true;
}

int ptc_job_scan_tensors(const void *data, size_t len, struct ptc_spec *spec, struct ptc_buf *rest)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_scan s = { .what = "spec", .begin = data, .at = data, .end = (const char *)data + len, .err = &why };

	if (!scan_head(&s))
		return why.code == PTC_ENOMEM ? PTC_ENOMEM : PTC_EINVAL;
	ptc_buf_append(rest, s.begin, (size_t)(s.at - s.begin));
	if (!scan_list(&s, spec))
		return why.code == PTC_ENOMEM ? PTC_ENOMEM : PTC_EINVAL;
	ptc_buf_append(rest, s.at, (size_t)(s.end - s.at));
	return ptc_buf_failed(rest) ? PTC_ENOMEM : 0;
}

static void put_fields(struct ptc_buf *b, const struct ptc_spec *spec)
{
	ptc_buf_puts(b, ",\"fields\":{");
	for (size_t i = 0; i < spec->nfields; i++) {
		const struct ptc_field *f = &spec->fields[i];

		ptc_buf_printf(b, "%s\"%s\":{\"dtype\":\"%s\"}", i ? "," : "", f->name,
			       f->same_dtype ? "same" : ptc_dtype_name(f->dtype));
	}
	ptc_buf_puts(b, "}");
}

static void put_numbers(struct ptc_buf *b, const char *open, const int64_t *v, size_t n, const char *close)
{
	ptc_buf_puts(b, open);
	for (size_t i = 0; i < n; i++)
		ptc_buf_printf(b, "%s%" PRId64, i ? "," : "", v[i]);
	ptc_buf_puts(b, close);
}

static void put_split(struct ptc_buf *b, const struct ptc_split *s)
{
	ptc_buf_printf(b, "{\"axis\":\"%s\",\"dim\":%" PRIu32 ",\"kind\":\"%s\"", ptc_job_axes[s->axis], s->dim,
		       ptc_job_kinds[s->kind]);
	if (s->nblocks && s->ratio)
		put_numbers(b, ",\"blocks\":{\"ratio\":[", s->blocks, s->nblocks, "]}");
	else if (s->nblocks)
		put_numbers(b, ",\"blocks\":[", s->blocks, s->nblocks, "]");
	if (s->interleave)
		ptc_buf_printf(b, ",\"interleave\":%" PRId64, s->interleave);
	if (s->npermute)
		put_numbers(b, ",\"permute\":[", s->permute, s->npermute, "]");
	if (s->units)
		put_numbers(b, ",\"unit\":[", s->units, s->nblocks, "]");
	if (s->unit)
		ptc_buf_printf(b, ",\"unit\":%" PRId64, s->unit);
	if (s->pad_to)
		ptc_buf_printf(b, ",\"pad_to\":%" PRId64, s->pad_to);
	ptc_buf_puts(b, "}");
}

/* One as a map, several as a list of them. */
static void put_splits(struct ptc_buf *b, const struct ptc_rule *r)
{
	bool list = r->splits[1].axis != PTC_AXIS_NONE;

	ptc_buf_puts(b, list ? ",\"split\":[" : ",\"split\":");
	for (size_t i = 0; i < PTC_MAX_SPLITS && r->splits[i].axis != PTC_AXIS_NONE; i++) {
		if (i)
			ptc_buf_puts(b, ",");
		put_split(b, &r->splits[i]);
	}
	ptc_buf_puts(b, list ? "]" : "");
}

static void put_expert(struct ptc_buf *b, const struct ptc_rule *r)
{
	ptc_buf_puts(b, r->nexperts ? ",\"expert\":{\"match\":" : ",\"expert\":");
	ptc_json_put_string(b, r->expert);
	if (r->nexperts)
		put_numbers(b, ",\"order\":[", r->experts, r->nexperts, "]}");
}

/* "a,b" as ["a","b"]; field names need no escapes. */
static void put_field_list(struct ptc_buf *b, const char *fields)
{
	ptc_buf_puts(b, ",\"fields\":[");
	for (const char *p = fields; *p;) {
		size_t n = strcspn(p, ",");

		ptc_buf_printf(b, "%s\"%.*s\"", p == fields ? "" : ",", (int)n, p);
		p += n + (p[n] == ',');
	}
	ptc_buf_puts(b, "]");
}

static void put_rule(struct ptc_buf *b, const struct ptc_rule *r)
{
	static const char *const places[] = { NULL, NULL, "first", "last", "ends" };

	ptc_buf_puts(b, "{\"match\":");
	ptc_json_put_string(b, r->match);
	if (r->splits[0].axis != PTC_AXIS_NONE)
		put_splits(b, r);
	if (r->place == PTC_PLACE_LAYER && !r->layer) {
		ptc_buf_printf(b, ",\"layer\":{\"at\":%" PRId64 "}", r->layer_offset);
	} else if (r->place == PTC_PLACE_LAYER) {
		ptc_buf_puts(b, r->layer_offset ? ",\"layer\":{\"match\":" : ",\"layer\":");
		ptc_json_put_string(b, r->layer);
		if (r->layer_offset)
			ptc_buf_printf(b, ",\"offset\":%" PRId64 "}", r->layer_offset);
	} else if (r->place != PTC_PLACE_ALL) {
		ptc_buf_printf(b, ",\"layer\":\"%s\"", places[r->place]);
	}
	if (r->expert)
		put_expert(b, r);
	if (r->shard == PTC_SHARD_DIM)
		ptc_buf_printf(b, ",\"shard\":{\"dim\":%" PRIu32 "}", r->shard_dim);
	else if (r->shard != PTC_SHARD_CONFIG)
		ptc_buf_printf(b, ",\"shard\":\"%s\"", r->shard == PTC_SHARD_NONE ? "none" : "flat");
	if (r->fields)
		put_field_list(b, r->fields);
	if (r->primary != PTC_AXIS_NONE)
		ptc_buf_printf(b, ",\"state\":{\"replicate\":{\"%s\":%" PRIu32 "}}}", ptc_job_axes[r->primary],
			       r->primary_at);
	else if (r->master)
		ptc_buf_printf(b, ",\"state\":{\"derive\":\"%s\"}}", r->master);
	else
		ptc_buf_printf(b, ",\"state\":\"%s\"}", ptc_job_states[r->carry]);
}

static void put_order(struct ptc_buf *b, const struct ptc_buffers *f)
{
	if (!f->norder)
		return;
	ptc_doc_write_key(b, "order");
	for (size_t i = 0; i < f->norder; i++) {
		ptc_buf_puts(b, i ? "," : "[");
		ptc_json_put_string(b, f->order[i]);
	}
	ptc_buf_puts(b, "]");
}

static void put_groups(struct ptc_buf *b, const struct ptc_buffers *f)
{
	if (!f->ngroups)
		return;
	ptc_doc_write_key(b, "groups");
	for (size_t i = 0; i < f->ngroups; i++) {
		bool first = !i || f->groups[i].number != f->groups[i - 1].number;

		ptc_buf_puts(b, !i ? "[[" : first ? "],[" : ",");
		ptc_json_put_string(b, f->groups[i].glob);
	}
	ptc_buf_puts(b, "]]");
}

static void put_buffers(struct ptc_buf *b, const struct ptc_buffers *f)
{
	if (!f->norder && !f->ngroups && !ptc_doc_differs(&ptc_job_buffers_table, f))
		return;
	ptc_buf_puts(b, ",\"buffers\":{");
	put_order(b, f);
	put_groups(b, f);
	ptc_doc_write(b, &ptc_job_buffers_table, f);
	ptc_buf_puts(b, "}");
}

static int put_gpus(struct ptc_buf *b, const struct ptc_job_desc *job, struct ptc_error *err)
{
	char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	int rc = text ? 0 : ptc_nomem(err);

	ptc_buf_puts(b, ",\"gpus\":{");
	for (size_t i = 0; i < job->ngpus && !rc; i++) {
		if (ptc_config_format(&job->gpus[i].config, text, PTC_CONFIG_TEXT_MAX) < 0)
			rc = ptc_error_set(err, PTC_ELIMIT, "the configuration for %" PRIu32 " devices is too long",
					   job->gpus[i].n);
		else
			ptc_buf_printf(b, "%s\"%" PRIu32 "\":\"%s\"", i ? "," : "", job->gpus[i].n, text);
	}
	ptc_buf_puts(b, "}");
	ptc_free(text);
	return rc;
}

static void put_strings(struct ptc_buf *b, char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (i)
			ptc_buf_puts(b, ",");
		ptc_json_put_string(b, list[i]);
	}
}

/* Each variable is cut at its '=' for the moment of writing it, in a copy. */
static int put_env(struct ptc_buf *b, const struct ptc_job_run *run, struct ptc_error *err)
{
	ptc_buf_puts(b, ",\"env\":{");
	for (size_t i = 0; i < run->nenv; i++) {
		char *name = ptc_strdup(run->env[i]), *value = name ? strchr(name, '=') : NULL;

		if (!value) {
			ptc_free(name);
			return ptc_nomem(err);
		}
		*value++ = '\0';
		if (i)
			ptc_buf_puts(b, ",");
		ptc_json_put_string(b, name);
		ptc_buf_puts(b, ":");
		ptc_json_put_string(b, value);
		ptc_free(name);
	}
	ptc_buf_puts(b, "}");
	return 0;
}

static int put_run(struct ptc_buf *b, const struct ptc_job_desc *job, struct ptc_error *err)
{
	const struct ptc_job_run *run = &job->run;

	ptc_buf_puts(b, ",\"run\":{\"argv\":[");
	put_strings(b, run->argv, run->argc);
	ptc_buf_puts(b, "]");
	if (run->cwd) {
		ptc_buf_puts(b, ",\"cwd\":");
		ptc_json_put_string(b, run->cwd);
	}
	if (run->nenv && put_env(b, run, err))
		return PTC_ENOMEM;
	ptc_doc_write(b, &ptc_job_run_table, run);
	ptc_buf_puts(b, "}");
	ptc_doc_write(b, &ptc_job_live_table, job);
	return 0;
}

static void put_rules(struct ptc_buf *b, const struct ptc_spec *spec)
{
	ptc_buf_puts(b, ",\"rules\":[");
	for (size_t i = 0; i < spec->nrules; i++) {
		if (i)
			ptc_buf_puts(b, ",");
		put_rule(b, &spec->rules[i]);
	}
	ptc_buf_puts(b, "]");
}

static void put_files(struct ptc_buf *b, const struct ptc_job_files *files)
{
	if (!files->shared && !files->ncarried)
		return;
	ptc_buf_puts(b, ",\"files\":{");
	if (files->shared)
		ptc_buf_puts(b, "\"group\":");
	if (files->shared && files->group[0])
		ptc_json_put_string(b, files->group);
	else if (files->shared)
		ptc_buf_printf(b, "%" PRIu32, (uint32_t)files->gid);
	if (files->shared && files->ncarried)
		ptc_buf_puts(b, ",");
	ptc_job_put_carried(b, files);
	ptc_buf_puts(b, "}");
}

static int put_job(struct ptc_buf *b, const struct ptc_job_desc *job, uint32_t version, bool adds,
		   struct ptc_error *err)
{
	const struct ptc_spec *spec = &job->spec;
	int rc = 0;

	ptc_buf_printf(b, "{\"version\":%" PRIu32 ",\"name\":\"%s\"", version, spec->name);
	if (spec->ntensors || !job->has_run) {
		put_tensors(b, spec);
		if (spec->nfields)
			put_fields(b, spec);
		put_rules(b, spec);
		put_buffers(b, &spec->buffers);
	} else if (spec->nrules) {
		put_rules(b, spec);
	}
	if (job->ngpus)
		rc = put_gpus(b, job, err);
	if (!rc && job->has_run)
		rc = put_run(b, job, err);
	if (rc)
		return rc;
	ptc_job_put_data(b, job);
	ptc_job_put_blobs(b, job);
	put_files(b, &job->files);
	ptc_job_put_planning(b, job);
	ptc_doc_write(b, &ptc_job_last_table, job);
	if (adds)
		ptc_buf_printf(b, ",\"added\":%" PRIu64, PTC_VERSION_ADDED);
	ptc_buf_puts(b, "}");
	if (ptc_buf_failed(b))
		return ptc_nomem(err);
	if (b->len > PTC_SPEC_MAX_BYTES)
		return ptc_error_set(err, PTC_ELIMIT, "the job's description has %zu bytes, at most %u are allowed",
				     b->len, PTC_SPEC_MAX_BYTES);
	return 0;
}

int ptc_job_to_json(const struct ptc_job_desc *job, char **ret_json, size_t *ret_len, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = put_job(&b, job, ptc_version_write(PTC_JOB_VERSION, PTC_JOB_SINCE), ptc_version_adds(), err);

	if (!rc)
		*ret_json = ptc_buf_steal(&b, ret_len);
	ptc_buf_done(&b);
	return rc;
}

int ptc_job_hash(const struct ptc_job_desc *job, char ret_hex[33], struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = put_job(&b, job, PTC_JOB_OLDEST, false, err);

	if (!rc)
		ptc_content_hash(b.data, b.len, ret_hex);
	ptc_buf_done(&b);
	return rc;
}
