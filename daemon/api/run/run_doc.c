/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of what a job's ranks do, as status shows it: `run` in docs/control.md. */
#include "daemon/api/run/run.h"

#include "base/check.h"
#include "formats/json.h"
#include "formats/names.h"

#include <string.h>

#define RUN(key, member, ...)       PTC_ROW(struct ptc_run_state, key, member, __VA_ARGS__)
#define SAID(member, ...)           PTC_ROW(struct ptc_stragglers_said, #member, member, __VA_ARGS__)
#define STRAGGLER(member, kind)     PTC_ROW(struct ptc_straggler, #member, member, kind)
#define LEFT(member, kind)          PTC_ROW(struct ptc_slow_device, #member, member, kind)
#define SUM(member, kind, if_there) PTC_ROW(struct sums, #member, member, kind, PTC_IF(struct sums, if_there))
#define IF(member)                  PTC_IF(struct ptc_run_state, member)
#define IF_TEXT(member)             PTC_IF_TEXT(struct ptc_run_state, member)

static const struct ptc_member left_rows[] = {
	LEFT(node, TEXT),
	LEFT(device, U32),
	LEFT(since_ms, I64),
	LEFT(until_ms, I64),
};
static const struct ptc_members left_members = PTC_MEMBERS(left_rows, struct ptc_slow_device);
static const struct ptc_member straggler_rows[] = {
	STRAGGLER(rank, U32),
	STRAGGLER(node, TEXT),
	STRAGGLER(own_s, REAL),
	STRAGGLER(median_s, REAL),
};
static const struct ptc_members straggler_members = PTC_MEMBERS(straggler_rows, struct ptc_straggler);
static const struct ptc_member said_rows[] = {
	SAID(windows, U32),
	SAID(comparable, U32),
	SAID(slow, U32),
	PTC_ROW(struct ptc_stragglers_said, "list", v, ARRAY, PTC_COUNT(struct ptc_stragglers_said, n),
		.of = &straggler_members),
	SAID(text, TEXT, PTC_IF_TEXT(struct ptc_stragglers_said, text)),
};
static const struct ptc_members said_members = PTC_MEMBERS(said_rows, struct ptc_stragglers_said);
static const struct ptc_member recovery_rows[] = {
	RUN("waits", waits, TEXT, IF_TEXT(waits)),
	RUN("cause", cause, STRING, IF(cause)),
	RUN("reached", reached, U64, IF(reached)),
	RUN("restarts", restarts, U64, IF(restarts)),
};
static const struct ptc_members recovery_members = PTC_MEMBERS(recovery_rows, struct ptc_run_state);
/* One of these is there, which follow each other in the struct. */
#define RECOVERS                                                                                                       \
	.if_offset = offsetof(struct ptc_run_state, cause),                                                            \
	.if_size = offsetof(struct ptc_run_state, waits) + 1 - offsetof(struct ptc_run_state, cause)
static const struct ptc_member run_rows[] = {
	RUN("state", state, STRING),
	RUN("incarnation", incarnation, U64),
	RUN("left_devices", left.v, LIST, IF(left.n), PTC_COUNT(struct ptc_run_state, left.n), .of = &left_members),
	RUN("stragglers", stragglers, MAP, IF(stragglers.windows), .of = &said_members),
	{ "recovery", PTC_IS_MAP, RECOVERS, .of = &recovery_members },
	RUN("stays", stays, TEXT, IF_TEXT(stays)),
	RUN("text", failed, TEXT, IF_TEXT(failed)),
	RUN("gave_up", gave_up, TEXT, IF_TEXT(gave_up)),
};
static const struct ptc_members run_members = PTC_MEMBERS(run_rows, struct ptc_run_state);

/* The least step of the ranks that have one, the slowest rate, the longest stall. */
struct sums {
	bool has_step, has_hangs;
	uint64_t step;
	double steps_per_s; /* 0: it is not known */
	int64_t stalled_s, hangs_s;
};
static const struct ptc_member sum_rows[] = {
	SUM(step, U64, has_step),
	SUM(steps_per_s, REAL, steps_per_s),
	SUM(stalled_s, I64, stalled_s),
	SUM(hangs_s, I64, has_hangs),
};
static const struct ptc_members sum_members = PTC_MEMBERS(sum_rows, struct sums);

/* A step each so many seconds; 0: it is not known. */
static double steps_per_s(const struct ptc_rank_row *r)
{
	return r && r->step_s > 0 ? 1 / r->step_s : 0;
}

static void add(struct sums *s, const struct ptc_rank_row *r)
{
	const double rate = steps_per_s(r);

	if (r->has_step)
		s->step = s->has_step ? PTC_MIN(s->step, r->step) : r->step;
	s->has_step |= r->has_step;
	if (rate > 0)
		s->steps_per_s = s->steps_per_s > 0 ? PTC_MIN(s->steps_per_s, rate) : rate;
	s->stalled_s = PTC_MAX(s->stalled_s, r->stalled_s);
	s->hangs_s = PTC_MAX(s->hangs_s, r->hangs_s);
	s->has_hangs |= r->has_hangs;
}

static json_t *rank_json(const struct ptc_run_rank *k)
{
	json_t *to =
		k->row ? ptc_members_to_json(&ptc_rank_row_members, k->row)
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
static void put_ranks(json_t *to, const struct ptc_run_state *run)
{
	json_t *ranks = json_array(), *reports = json_object();
	struct sums sums = { 0 };

	for (size_t i = 0; i < run->nranks; i++) {
		json_t *one = rank_json(&run->ranks[i]);

		if (run->ranks[i].row)
			add(&sums, run->ranks[i].row);
		json_object_update_missing(reports, json_object_get(one, "reports"));
		json_array_append_new(ranks, one);
	}
	(void)ptc_members_put(to, &sum_members, &sums);
	if (json_object_size(reports))
		json_object_set(to, "reports", reports);
	json_decref(reports);
	json_object_set_new(to, "ranks", ranks);
}

/* Processes that wait without a rank for the job's next start. */
static void put_standby(json_t *to, const struct ptc_run_state *run)
{
	json_t *list = json_array();

	for (size_t i = 0; run->said && i < run->nnodes; i++)
		for (size_t k = 0; k < run->said[i].n; k++) {
			const struct ptc_rank_row *row = &run->said[i].v[k];
			bool waits = strcmp(row->state, "standby") == 0;

			if (waits || strcmp(row->state, "standby starts") == 0)
				json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "node", run->nodes[i], "pid",
								      (json_int_t)row->pid, "state",
								      waits ? "waiting" : "starting"));
		}
	if (json_array_size(list))
		json_object_set(to, "standby", list);
	json_decref(list);
}

json_t *ptc_run_state_json(const struct ptc_run_state *run)
{
	struct ptc_run_state said = *run;
	json_t *to;

	/* a text that was cut may end in the middle of a character */
	if (!ptc_name_is_utf8(said.waits))
		said.waits[0] = '\0';
	if (!ptc_name_is_utf8(said.stays))
		said.stays[0] = '\0';
	if (!ptc_name_is_utf8(said.failed))
		said.failed[0] = '\0';
	to = ptc_members_to_json(&run_members, &said);
	if (run->live)
		put_ranks(to, run);
	if (run->live)
		put_standby(to, run);
	return to;
}
