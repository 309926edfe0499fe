/* SPDX-License-Identifier: Apache-2.0 */
/* The measured document: codec and the few sums over it. A document of another version, or one that is not ours, is
 * PTC_EVERSION or PTC_EINVAL; the caller then goes on without measurements. */
#include "daemon/planning/measured_doc.h"

#include "base/check.h"
#include "formats/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define VERSION 1

char *ptc_measured_encode(const struct ptc_measured_doc *d)
{
	json_t *rows = json_array(), *changes = json_array(), *root;
	char *text;

	for (size_t i = 0; i < d->nrows; i++) {
		const struct ptc_measured_row *r = &d->rows[i];

		json_array_append_new(rows, json_pack("{s:s, s:f, s:f, s:I, s:I}", "config", r->config, "step_s",
						      r->step_s, "peak_bytes", r->peak_bytes, "steps",
						      (json_int_t)r->steps, "time_ms", (json_int_t)r->time_ms));
	}
	for (size_t i = 0; i < d->nchanges; i++) {
		const struct ptc_measured_change *c = &d->changes[i];

		json_array_append_new(changes, json_pack("{s:I, s:f, s:f}", "time_ms", (json_int_t)c->time_ms,
							 "pause_s", c->pause_s, "moving_s", c->moving_s));
	}
	root = json_pack("{s:i, s:o, s:o}", "version", VERSION, "rows", rows, "changes", changes);
	text = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	return text;
}

static double number(const json_t *o, const char *key)
{
	double v = json_number_value(json_object_get(o, key));

	return isfinite(v) && v > 0 ? v : 0;
}

static int read_row(const json_t *o, struct ptc_measured_row *r, struct ptc_error *err)
{
	const char *config = json_string_value(json_object_get(o, "config"));

	*r = (struct ptc_measured_row){ .step_s = number(o, "step_s"),
					.peak_bytes = number(o, "peak_bytes"),
					.steps = ptc_json_count(o, "steps"),
					.time_ms = (int64_t)ptc_json_count(o, "time_ms") };
	if (!config || strlen(config) >= sizeof r->config || !(r->step_s > 0))
		return ptc_error_set(err, PTC_EINVAL, "measured steps: a row without config or step_s");
	snprintf(r->config, sizeof r->config, "%s", config);
	return 0;
}

int ptc_measured_decode(const char *json, size_t len, struct ptc_measured_doc *ret, struct ptc_error *err)
{
	json_t *root = NULL, *rows, *changes, *o;
	size_t i;
	int rc = ptc_json_load("measured steps", json, len, &root, err);

	if (rc)
		return rc;
	memset(ret, 0, sizeof *ret);
	rows = json_object_get(root, "rows");
	changes = json_object_get(root, "changes");
	if (ptc_json_count(root, "version") != VERSION)
		rc = ptc_error_set(err, PTC_EVERSION, "measured steps are of another version");
	else if (json_array_size(rows) > PTC_MEASURED_ROWS || json_array_size(changes) > PTC_MEASURED_CHANGES)
		rc = ptc_error_set(err, PTC_ELIMIT, "measured steps: more than %d rows or %d changes",
				   PTC_MEASURED_ROWS, PTC_MEASURED_CHANGES);
	json_array_foreach(rows, i, o) {
		if (rc == 0)
			rc = read_row(o, &ret->rows[ret->nrows++], err);
	}
	json_array_foreach(changes, i, o) {
		if (rc == 0)
			ret->changes[ret->nchanges++] =
				(struct ptc_measured_change){ .time_ms = (int64_t)ptc_json_count(o, "time_ms"),
							      .pause_s = number(o, "pause_s"),
							      .moving_s = number(o, "moving_s") };
	}
	json_decref(root);
	return rc;
}

void ptc_measured_add(struct ptc_measured_doc *d, const struct ptc_measured_row *row)
{
	size_t at = 0;

	while (at < d->nrows && strcmp(d->rows[at].config, row->config) != 0)
		at++;
	if (at == d->nrows && d->nrows == PTC_MEASURED_ROWS)
		at = 0;
	if (at < d->nrows) {
		memmove(&d->rows[at], &d->rows[at + 1], (d->nrows - at - 1) * sizeof *d->rows);
		d->nrows--;
	}
	d->rows[d->nrows++] = *row;
}

void ptc_measured_change_add(struct ptc_measured_doc *d, const struct ptc_measured_change *change)
{
	if (d->nchanges == PTC_MEASURED_CHANGES)
		memmove(&d->changes[0], &d->changes[1], --d->nchanges * sizeof *d->changes);
	d->changes[d->nchanges++] = *change;
}

double ptc_measured_between_s(const struct ptc_measured_doc *d)
{
	int64_t all;

	if (d->nchanges < 3)
		return 0;
	all = d->changes[d->nchanges - 1].time_ms - d->changes[0].time_ms;
	return all > 0 ? (double)all / 1000 / (double)(d->nchanges - 1) : 0;
}

double ptc_measured_pause_s(const struct ptc_measured_doc *d, double absent)
{
	double sum = 0;
	size_t n = 0;

	for (size_t i = 0; i < d->nchanges; i++)
		if (d->changes[i].pause_s > 0) {
			sum += PTC_MAX(0.0, d->changes[i].pause_s - d->changes[i].moving_s);
			n++;
		}
	return n ? sum / (double)n : absent;
}
