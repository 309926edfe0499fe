/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder of answers to Peer/Ranks. A row is read as far as it goes: the other node may be of another version. */
#include "daemon/cluster/ranks/rank_rows.h"

#include "base/alloc.h"
#include "formats/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool whole_number(const json_t *row, const char *key, uint64_t *ret)
{
	const json_t *v = json_object_get(row, key);

	if (!json_is_integer(v))
		return false;
	*ret = (uint64_t)json_integer_value(v);
	return true;
}

/* The text in memory of its own. False: out of memory. No text: *ret stays NULL. */
static bool own_text(const json_t *of, const char *key, char **ret)
{
	const char *text = json_string_value(json_object_get(of, key));

	return !text || (*ret = ptc_strdup(text));
}

static bool take_memory(const json_t *of, struct ptc_rank_memory *m)
{
	m->has_step = whole_number(of, "device_step", &m->step);
	m->whole = json_is_true(json_object_get(of, "device_whole"));
	return own_text(of, "copied_by", &m->copied_by) && own_text(of, "marks", &m->marks) &&
	       own_text(of, "why", &m->why) && own_text(of, "copy", &m->copy) && own_text(of, "copy_why", &m->copy_why);
}

static bool take_reports(json_t *of, struct ptc_rank_row *r)
{
	const char *name;
	json_t *value;

	if (!json_object_size(of))
		return true;
	r->reports = ptc_calloc(json_object_size(of), sizeof *r->reports);
	if (!r->reports)
		return false;
	json_object_foreach(of, name, value) {
		struct ptc_rank_report *report = &r->reports[r->nreports++];

		report->name = ptc_strdup(name);
		report->value = json_is_number(value) ? json_number_value(value) : NAN;
		if (!report->name)
			return false;
	}
	return true;
}

/* What daemons decide by. */
static void take_numbers(const json_t *row, struct ptc_rank_row *r)
{
	const char *state = json_string_value(json_object_get(row, "state"));
	const json_t *on = json_object_get(row, "on_device");
	const json_t *reports = json_object_get(row, "reports"), *own = json_object_get(reports, "own_seconds");

	r->rank = ptc_json_count(row, "rank");
	r->generation = ptc_json_count(row, "generation");
	r->incarnation = ptc_json_count(row, "incarnation");
	r->world = ptc_json_count(row, "world");
	r->since_ms = ptc_json_count(row, "since_ms");
	snprintf(r->state, sizeof r->state, "%s", state ? state : "");
	r->has_step = whole_number(row, "step", &r->step);
	r->has_start = whole_number(row, "start_step", &r->start_step);
	r->step_s = json_number_value(json_object_get(row, "step_seconds"));
	r->median_step_s = json_number_value(json_object_get(row, "median_step_seconds"));
	r->peak_bytes = json_number_value(json_object_get(reports, "peak_bytes"));
	r->has_own = json_is_number(own);
	r->own_s = json_number_value(own);
	r->says_device = on != NULL;
	r->on_device = json_is_integer(on);
	r->device = json_integer_value(on);
}

/* Returns 0; -1: out of memory. */
static int take_row(const json_t *row, struct ptc_rank_row *r)
{
	const json_t *pid = json_object_get(row, "pid"), *whole = json_object_get(row, "whole");
	const json_t *stalled = json_object_get(row, "stalled_s"), *hangs = json_object_get(row, "hangs_s");

	take_numbers(row, r);
	r->slot = pid != NULL;
	r->pid = json_integer_value(pid);
	r->lives = (!pid || r->pid > 0) && strcmp(r->state, "exited") != 0;
	r->has_whole = whole != NULL;
	r->whole = json_is_true(whole);
	r->has_stalled = stalled != NULL;
	r->stalled_s = json_integer_value(stalled);
	r->has_hangs = hangs != NULL;
	r->hangs_s = json_integer_value(hangs);
	return take_memory(json_object_get(row, "device_memory"), &r->memory) &&
			       take_reports(json_object_get(row, "reports"), r) &&
			       own_text(row, "cgroup", &r->cgroup) && own_text(row, "log", &r->log)
		       ? 0
		       : -1;
}

int ptc_rank_rows_decode(const char *json, struct ptc_rank_rows *ret, struct ptc_error *err)
{
	struct ptc_rank_rows rows = { 0 };
	json_t *root = NULL;
	int rc = ptc_json_load("ranks", json, strlen(json), &root, err);

	if (rc)
		return rc;
	if (!json_is_array(root))
		rc = ptc_error_set(err, PTC_EINVAL, "ranks: the node's answer is not a list");
	if (rc == 0 && json_array_size(root)) {
		rows.v = ptc_calloc(json_array_size(root), sizeof *rows.v);
		rc = rows.v ? 0 : ptc_nomem(err);
	}
	while (rc == 0 && rows.n < json_array_size(root)) {
		rows.n++;
		if (take_row(json_array_get(root, rows.n - 1), &rows.v[rows.n - 1]) != 0)
			rc = ptc_nomem(err);
	}
	json_decref(root);
	if (rc)
		ptc_rank_rows_done(&rows);
	else
		*ret = rows;
	return rc;
}

void ptc_rank_rows_done(struct ptc_rank_rows *rows)
{
	for (size_t i = 0; i < rows->n; i++) {
		struct ptc_rank_row *r = &rows->v[i];

		for (size_t k = 0; k < r->nreports; k++)
			ptc_free(r->reports[k].name);
		ptc_free(r->reports);
		ptc_free(r->memory.copied_by);
		ptc_free(r->memory.marks);
		ptc_free(r->memory.why);
		ptc_free(r->memory.copy);
		ptc_free(r->memory.copy_why);
		ptc_free(r->cgroup);
		ptc_free(r->log);
	}
	ptc_free(rows->v);
	*rows = (struct ptc_rank_rows){ 0 };
}

const struct ptc_rank_row *ptc_rank_rows_find(const struct ptc_rank_rows *rows, uint32_t rank, uint64_t generation,
					      uint64_t incarnation)
{
	for (size_t i = 0; i < rows->n; i++)
		if (rows->v[i].rank == rank && rows->v[i].generation == generation &&
		    rows->v[i].incarnation == incarnation)
			return &rows->v[i];
	return NULL;
}
