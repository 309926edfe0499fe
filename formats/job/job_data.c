/* SPDX-License-Identifier: Apache-2.0 */
/* What a job consumes: "data". Happy path: a map of cursor names, each with one dataset or a mix of several. The
 * program that submits the job looks datasets up and pins their identity (`source`); a description that comes as JSON
 * has it already. Failure: file and line of the key at fault. */
#include "formats/job/job_decode.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/limits.h"
#include "base/number/search.h"
#include "formats/json.h"
#include "formats/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PART_KEYS  "dataset", "source", "samples", "shuffle", "block"
#define WHOLE_KEYS "seed", "global_batch", "micro_batch", "by_length"
static const char *const one_keys[] = { PART_KEYS, WHOLE_KEYS };
static const char *const mix_keys[] = { "mix", WHOLE_KEYS };
static const char *const part_keys[] = { PART_KEYS, "weight" };
/* In the order of `sequential`. */
static const char *const shuffles[] = { "true", "false" };

#define PART(key, member, ...) PTC_DOC_FIELD(struct ptc_job_part, key, member, __VA_ARGS__)
static const struct ptc_doc_row part_rows[] = {
	PART("samples", samples, COUNT, .min = 1, .max = PTC_DOC_NO_MAX),
	PART("shuffle", sequential, WORD, .max = 1, .words = shuffles),
	PART("block", block, COUNT, .min = 1, .max = PTC_DOC_NO_MAX),
	PART("weight", weight, COUNT, .min = 1, .max = PTC_JOB_MAX_WEIGHT, .fallback = 1, .always = true),
};
static const struct ptc_doc_table weighed_table = PTC_DOC_TABLE(part_rows);
static const struct ptc_doc_table part_table = { part_rows, PTC_ARRAY_LEN(part_rows) - 1 };

static const char *const by_lengths[] = { "false", "true" };
#define DATA(key, member, ...) PTC_DOC_FIELD(struct ptc_job_data, key, member, __VA_ARGS__)
static const struct ptc_doc_row data_rows[] = {
	DATA("seed", seed, COUNT, .max = PTC_DOC_NO_MAX, .always = true),
	DATA("global_batch", global_batch, COUNT, .min = 1, .max = UINT32_MAX),
	DATA("micro_batch", micro_batch, COUNT, .min = 1, .max = UINT32_MAX),
	DATA("by_length", by_length, WORD, .max = 1, .words = by_lengths),
};
static const struct ptc_doc_table data_table = PTC_DOC_TABLE(data_rows);

/* The name of a dataset, and, once it has been looked up, what it is. */
static int get_names(struct ptc_job_decoder *d, const struct ptc_doc_node *map, struct ptc_job_part *part)
{
	const struct ptc_doc_node *dataset = ptc_doc_get(map, "dataset"), *source = ptc_doc_get(map, "source");
	const char *text = NULL, *hash = "";
	int rc = dataset ? ptc_doc_text(d->doc, dataset, "dataset", &text, d->err)
			 : ptc_doc_error(d->doc, map, d->err, PTC_EINVAL, "data names no \"dataset\"");

	if (!rc && ptc_name_check_job(text, NULL))
		rc = ptc_doc_error(d->doc, dataset, d->err, PTC_EINVAL, "\"%.80s\" cannot be the name of a dataset",
				   text);
	if (!rc && source)
		rc = ptc_doc_text(d->doc, source, "source", &hash, d->err);
	if (!rc && source && (strlen(hash) != 32 || strspn(hash, "0123456789abcdef") != 32))
		rc = ptc_doc_error(d->doc, source, d->err, PTC_EINVAL,
				   "source is 32 hex digits; leave it out to take the dataset as it is now");
	if (rc)
		return rc;
	snprintf(part->dataset, sizeof part->dataset, "%s", text);
	snprintf(part->source, sizeof part->source, "%s", hash);
	return 0;
}

static int get_part(struct ptc_job_decoder *d, const struct ptc_doc_node *map, struct ptc_job_part *part)
{
	int rc = get_names(d, map, part);

	ptc_doc_fallbacks(&weighed_table, part);
	if (!rc)
		rc = ptc_doc_read_to(d->doc, map, NULL, &weighed_table, part, d->err);
	if (!rc && part->sequential && part->block)
		rc = ptc_doc_error(d->doc, map, d->err, PTC_EINVAL,
				   "block says how to shuffle, but shuffle is false; leave one out");
	return rc;
}

static int get_mix(struct ptc_job_decoder *d, const struct ptc_doc_node *mix, struct ptc_job_data *data)
{
	if (mix->kind != PTC_DOC_LIST || mix->n < 2 || mix->n > PTC_JOB_MAX_PARTS)
		return ptc_doc_error(d->doc, mix, d->err, PTC_EINVAL, "mix is a list of 2 to %d datasets",
				     PTC_JOB_MAX_PARTS);
	for (const struct ptc_doc_node *n = mix->first; n; n = n->next) {
		int rc =
			ptc_doc_check_map(d->doc, n, "a dataset of a mix", part_keys, PTC_ARRAY_LEN(part_keys), d->err);

		if (!rc)
			rc = get_part(d, n, &data->parts[data->nparts++]);
		if (rc)
			return rc;
	}
	return 0;
}

static int get_data(struct ptc_job_decoder *d, const struct ptc_doc_node *root, const struct ptc_doc_node *map,
		    struct ptc_job_data *data)
{
	const struct ptc_doc_node *mix = map->kind == PTC_DOC_MAP ? ptc_doc_get(map, "mix") : NULL;
	int rc = ptc_doc_check_map(d->doc, map, "data", mix ? mix_keys : one_keys,
				   mix ? PTC_ARRAY_LEN(mix_keys) : PTC_ARRAY_LEN(one_keys), d->err);

	if (!rc && ptc_name_check_field(map->key, NULL))
		rc = ptc_doc_error(d->doc, map, d->err, PTC_EINVAL, "\"%.80s\" cannot be a name of data", map->key);
	if (rc)
		return rc;
	snprintf(data->name, sizeof data->name, "%s", map->key);
	data->parts = ptc_calloc(mix ? PTC_MAX(mix->n, 1) : 1, sizeof *data->parts);
	if (!data->parts)
		return ptc_nomem(d->err);
	if (mix)
		rc = get_mix(d, mix, data);
	else
		rc = get_part(d, map, &data->parts[data->nparts++]);
	if (!rc)
		rc = ptc_doc_read_to(d->doc, map, NULL, &data_table, data, d->err);
	if (!rc && data->by_length && !ptc_doc_get(root, "model"))
		rc = ptc_doc_error(d->doc, ptc_doc_get(map, "by_length"), d->err, PTC_EINVAL,
				   "by_length needs a model:, from which the planner says what a sample costs");
	return rc;
}

PTC_BY_NAME(compare, struct ptc_job_data, name)

int ptc_job_decode_data(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	const struct ptc_doc_node *map = ptc_doc_get(root, "data");

	if (!map)
		return 0;
	if (map->kind != PTC_DOC_MAP || !map->n || map->n > PTC_JOB_MAX_DATA)
		return ptc_doc_error(d->doc, map, d->err, PTC_EINVAL, "data is a map of 1 to %d names",
				     PTC_JOB_MAX_DATA);
	d->job->data = ptc_calloc(map->n, sizeof *d->job->data);
	if (!d->job->data)
		return ptc_nomem(d->err);
	for (const struct ptc_doc_node *n = map->first; n; n = n->next) {
		int rc = get_data(d, root, n, &d->job->data[d->job->ndata++]);

		if (rc)
			return rc;
	}
	qsort(d->job->data, d->job->ndata, sizeof *d->job->data, compare);
	return 0;
}

void ptc_job_data_done(struct ptc_job_desc *job)
{
	for (size_t i = 0; i < job->ndata; i++)
		ptc_free(job->data[i].parts);
	ptc_free(job->data);
}

int ptc_job_data_mix(const struct ptc_job_data *data, char ret_hex[33])
{
	struct ptc_buf b = PTC_BUF_INIT;
	int rc;

	for (uint32_t i = 0; i < data->nparts; i++)
		ptc_buf_printf(&b, "%s %u %" PRIu64 " %d\n", data->parts[i].source, data->parts[i].weight,
			       data->parts[i].block, (int)data->parts[i].sequential);
	rc = ptc_buf_failed(&b) ? PTC_ENOMEM : 0;
	if (!rc)
		ptc_content_hash(b.data ? b.data : "", b.len, ret_hex);
	ptc_buf_done(&b);
	return rc;
}

/* ---- writing ---- */

static void put_part(struct ptc_buf *b, const struct ptc_job_part *p, bool weighed)
{
	ptc_buf_printf(b, "\"dataset\":\"%s\"", p->dataset);
	if (p->source[0])
		ptc_buf_printf(b, ",\"source\":\"%s\"", p->source);
	ptc_doc_write(b, weighed ? &weighed_table : &part_table, p);
}

void ptc_job_put_data(struct ptc_buf *b, const struct ptc_job_desc *job)
{
	for (size_t i = 0; i < job->ndata; i++) {
		const struct ptc_job_data *data = &job->data[i];

		ptc_buf_puts(b, i ? "," : ",\"data\":{");
		ptc_json_put_string(b, data->name);
		ptc_buf_puts(b, ":{");
		if (data->nparts == 1)
			put_part(b, &data->parts[0], false);
		for (uint32_t k = 0; data->nparts > 1 && k < data->nparts; k++) {
			ptc_buf_puts(b, k ? "},{" : "\"mix\":[{");
			put_part(b, &data->parts[k], true);
		}
		ptc_buf_puts(b, data->nparts > 1 ? "}]" : "");
		ptc_doc_write(b, &data_table, data);
		ptc_buf_puts(b, "}");
	}
	if (job->ndata)
		ptc_buf_puts(b, "}");
}
