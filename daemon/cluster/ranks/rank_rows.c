/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder of answers to Peer/Ranks. A row is read as far as it goes: the other node may be of another version. */
#include "daemon/cluster/ranks/rank_rows.h"

#include "base/alloc.h"
#include "formats/json.h"

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

static void take_row(const json_t *row, struct ptc_rank_row *r)
{
	const char *state = json_string_value(json_object_get(row, "state"));
	const json_t *on = json_object_get(row, "on_device"), *pid = json_object_get(row, "pid");
	const json_t *reports = json_object_get(row, "reports"), *own = json_object_get(reports, "own_seconds");

	r->rank = ptc_json_count(row, "rank");
	r->generation = ptc_json_count(row, "generation");
	r->incarnation = ptc_json_count(row, "incarnation");
	r->world = ptc_json_count(row, "world");
	r->since_ms = ptc_json_count(row, "since_ms");
	snprintf(r->state, sizeof r->state, "%s", state ? state : "");
	r->lives = (!pid || json_integer_value(pid) > 0) && strcmp(r->state, "exited") != 0;
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
	for (; rc == 0 && rows.n < json_array_size(root); rows.n++)
		take_row(json_array_get(root, rows.n), &rows.v[rows.n]);
	json_decref(root);
	if (rc == 0)
		*ret = rows;
	return rc;
}
