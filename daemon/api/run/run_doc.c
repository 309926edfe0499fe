/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of what a job's ranks do, as status shows it: `run` in docs/control.md. */
#include "daemon/api/run/run.h"

#include "base/check.h"
#include "formats/json.h"

#include <math.h>

#define WHOLE_MAX 1e17 /* nodes write whole numbers below it without an exponent */

/* As a node has written it: JSON tells whole numbers from others. */
static json_t *report_json(double value)
{
	if (!isfinite(value))
		return json_null();
	return value == trunc(value) && fabs(value) < WHOLE_MAX ? json_integer((json_int_t)value) : json_real(value);
}

static void put_memory(json_t *row, const struct ptc_rank_memory *m)
{
	json_t *to;

	if (!m->copied_by)
		return;
	to = json_pack("{s:s}", "copied_by", m->copied_by);
	if (m->marks)
		json_object_set_new(to, "marks", json_string(m->marks));
	if (m->has_step) {
		json_object_set_new(to, "device_step", json_integer((json_int_t)m->step));
		json_object_set_new(to, "device_whole", json_boolean(m->whole));
	}
	if (m->why)
		json_object_set_new(to, "why", json_string(m->why));
	if (m->copy)
		json_object_set_new(to, "copy", json_string(m->copy));
	if (m->copy_why)
		json_object_set_new(to, "copy_why", json_string(m->copy_why));
	json_object_set_new(row, "device_memory", to);
}

static void put_slot(json_t *to, const struct ptc_rank_row *r)
{
	json_object_set_new(to, "pid", json_integer(r->pid));
	json_object_set_new(to, "step", r->has_step ? json_integer((json_int_t)r->step) : json_null());
	if (r->has_whole)
		json_object_set_new(to, "whole", json_boolean(r->whole));
	if (r->has_stalled)
		json_object_set_new(to, "stalled_s", json_integer(r->stalled_s));
	if (r->has_hangs)
		json_object_set_new(to, "hangs_s", json_integer(r->hangs_s));
}

static void put_process(json_t *to, const struct ptc_rank_row *r)
{
	json_t *reports = json_object();

	put_memory(to, &r->memory);
	for (size_t i = 0; i < r->nreports; i++)
		json_object_set_new(reports, r->reports[i].name, report_json(r->reports[i].value));
	json_object_set_new(to, "reports", reports);
	json_object_set_new(to, "cgroup", json_string(r->cgroup ? r->cgroup : ""));
	json_object_set_new(to, "log", r->log ? json_string(r->log) : json_null());
}

/* A step each so many seconds; 0: it is not known. */
static double steps_per_s(const struct ptc_rank_row *r)
{
	return r && r->step_s > 0 ? 1 / r->step_s : 0;
}

static json_t *row_json(const struct ptc_rank_row *r)
{
	json_t *to = json_pack("{s:I, s:I, s:I, s:s}", "rank", (json_int_t)r->rank, "generation",
			       (json_int_t)r->generation, "incarnation", (json_int_t)r->incarnation, "state", r->state);

	if (r->slot)
		put_slot(to, r);
	if (r->says_device)
		json_object_set_new(to, "on_device", r->on_device ? json_integer(r->device) : json_null());
	if (r->slot)
		put_process(to, r);
	return to;
}

static json_t *rank_json(const struct ptc_run_rank *k)
{
	json_t *to =
		k->row ? row_json(k->row)
		       : json_pack("{s:s, s:I}", "state", k->heard ? "exited" : "unknown", "rank", (json_int_t)k->rank);

	json_object_set_new(to, "node", json_string(k->node));
	json_object_set_new(to, "device", json_integer(k->device));
	if (steps_per_s(k->row) > 0)
		json_object_set_new(to, "steps_per_s", json_real(steps_per_s(k->row)));
	if (k->health[0])
		json_object_set_new(to, "device_health", json_string(k->health));
	return to;
}

/* Of each report, the lowest rank's. */
static void put_reports(json_t *to, const struct ptc_run_state *run)
{
	json_t *reports = json_object();

	for (size_t i = 0; i < run->nranks; i++) {
		const struct ptc_rank_row *r = run->ranks[i].row;

		for (size_t k = 0; r && k < r->nreports; k++)
			if (!json_object_get(reports, r->reports[k].name))
				json_object_set_new(reports, r->reports[k].name, report_json(r->reports[k].value));
	}
	if (json_object_size(reports))
		json_object_set(to, "reports", reports);
	json_decref(reports);
}

/* The least step of the ranks that have one, the slowest rate, the longest stall. */
static void put_sums(json_t *to, const struct ptc_run_state *run)
{
	int64_t stalled = 0, hangs = -1;
	double slowest = 0;
	bool stepped = false;
	uint64_t least = 0;

	for (size_t i = 0; i < run->nranks; i++) {
		const struct ptc_rank_row *r = run->ranks[i].row;
		double rate = steps_per_s(r);

		if (!r)
			continue;
		if (r->has_step)
			least = stepped ? PTC_MIN(least, r->step) : r->step;
		stepped = stepped || r->has_step;
		if (rate > 0)
			slowest = slowest > 0 ? PTC_MIN(slowest, rate) : rate;
		stalled = PTC_MAX(stalled, r->stalled_s);
		if (r->has_hangs)
			hangs = PTC_MAX(hangs, r->hangs_s);
	}
	if (stepped)
		json_object_set_new(to, "step", json_integer((json_int_t)least));
	if (slowest > 0)
		json_object_set_new(to, "steps_per_s", json_real(slowest));
	if (stalled)
		json_object_set_new(to, "stalled_s", json_integer(stalled));
	if (hangs >= 0)
		json_object_set_new(to, "hangs_s", json_integer(hangs));
}

static void put_left(json_t *to, const struct ptc_slow_devices *left)
{
	json_t *list = json_array();

	for (size_t i = 0; i < left->n; i++)
		json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I}", "node", left->v[i].node, "device",
						      (json_int_t)left->v[i].device, "since_ms",
						      (json_int_t)left->v[i].since_ms, "until_ms",
						      (json_int_t)left->v[i].until_ms));
	if (left->n)
		json_object_set(to, "left_devices", list);
	json_decref(list);
}

static void put_stragglers(json_t *to, const struct ptc_stragglers_said *s)
{
	json_t *list, *all;

	if (!s->windows)
		return;
	list = json_array();
	for (uint32_t i = 0; i < s->n; i++)
		json_array_append_new(list,
				      json_pack("{s:I, s:s, s:f, s:f}", "rank", (json_int_t)s->v[i].rank, "node",
						s->v[i].node, "own_s", s->v[i].own_s, "median_s", s->v[i].median_s));
	all = json_pack("{s:I, s:I, s:I, s:o}", "windows", (json_int_t)s->windows, "comparable",
			(json_int_t)s->comparable, "slow", (json_int_t)s->slow, "list", list);
	if (all && s->text[0])
		json_object_set_new(all, "text", json_string(s->text));
	if (all)
		json_object_set_new(to, "stragglers", all);
}

static void put_recovery(json_t *to, const struct ptc_run_state *run)
{
	json_t *r = json_object();

	if (run->waits[0])
		json_object_set_new(r, "waits", json_string(run->waits));
	if (run->cause)
		json_object_set_new(r, "cause", json_string(run->cause));
	if (run->reached)
		json_object_set_new(r, "reached", json_integer((json_int_t)run->reached));
	if (run->restarts)
		json_object_set_new(r, "restarts", json_integer((json_int_t)run->restarts));
	if (json_object_size(r))
		json_object_set(to, "recovery", r);
	json_decref(r);
}

json_t *ptc_run_state_json(const struct ptc_run_state *run)
{
	json_t *to = json_pack("{s:s, s:I}", "state", run->state, "incarnation", (json_int_t)run->incarnation), *ranks;

	put_left(to, &run->left);
	put_stragglers(to, &run->stragglers);
	put_recovery(to, run);
	if (run->stays[0])
		json_object_set_new(to, "stays", json_string(run->stays));
	if (run->failed[0])
		json_object_set_new(to, "text", json_string(run->failed));
	if (!run->live)
		return to;
	put_sums(to, run);
	put_reports(to, run);
	ranks = json_array();
	for (size_t i = 0; i < run->nranks; i++)
		json_array_append_new(ranks, rank_json(&run->ranks[i]));
	json_object_set_new(to, "ranks", ranks);
	return to;
}
