/* SPDX-License-Identifier: Apache-2.0 */
/* The table of answers to Peer/Ranks, which status shows, too. A row is read as far as it goes: the other node may be
 * of another version. */
#include "formats/ranks/rank_rows.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

#define ROW(key, member, ...) PTC_ROW(struct ptc_rank_row, key, member, __VA_ARGS__)
#define IF(member)            PTC_IF(struct ptc_rank_row, member)
#define SEEN(member)          PTC_SEEN(struct ptc_rank_row, member)
#define MEMORY(key, member)   PTC_ROW(struct ptc_rank_memory, key, member, STRING, PTC_IF(struct ptc_rank_memory, member))
#define PART(members, if_there)                                                                                        \
	{                                                                                                              \
		NULL, PTC_IS_MAP, IF(if_there), .of = &(members)                                                       \
	}

static const struct ptc_member memory_rows[] = {
	MEMORY("copied_by", copied_by),
	MEMORY("marks", marks),
	PTC_ROW(struct ptc_rank_memory, "device_step", step, U64, PTC_SEEN(struct ptc_rank_memory, has_step)),
	PTC_ROW(struct ptc_rank_memory, "device_whole", whole, BOOL, PTC_IF(struct ptc_rank_memory, has_step)),
	MEMORY("why", why),
	MEMORY("copy", copy),
	MEMORY("copy_why", copy_why),
};
static const struct ptc_members memory_members = PTC_MEMBERS(memory_rows, struct ptc_rank_memory);
static const struct ptc_member report_rows[] = {
	PTC_ROW(struct ptc_rank_report, NULL, name, STRING),
	PTC_ROW(struct ptc_rank_report, NULL, value, NUMBER),
};
static const struct ptc_members report_members = PTC_MEMBERS(report_rows, struct ptc_rank_report);
static const struct ptc_member slot_rows[] = {
	ROW("pid", pid, I64, SEEN(slot)),
	ROW("step", step, U64, SEEN(has_step), .null = true),
	ROW("whole", whole, BOOL, SEEN(has_whole)),
	ROW("stalled_s", stalled_s, I64, SEEN(has_stalled)),
	ROW("hangs_s", hangs_s, I64, SEEN(has_hangs)),
};
static const struct ptc_members slot_members = PTC_MEMBERS(slot_rows, struct ptc_rank_row);
static const struct ptc_member device_rows[] = { ROW("on_device", device, I64, SEEN(on_device), .null = true) };
static const struct ptc_members device_members = PTC_MEMBERS(device_rows, struct ptc_rank_row);
static const struct ptc_member process_rows[] = {
	ROW("device_memory", memory, MAP, IF(memory.copied_by), .of = &memory_members),
	ROW("survives", survives, BOOL, SEEN(says_survives)),
	ROW("survives_not", survives_not, STRING, IF(survives_not)),
	ROW("survives_broken", survives_broken, BOOL, IF(survives_broken)),
	ROW("survives_sampled", sampled, U64, SEEN(has_sampled)),
	ROW("survives_checked", checked, U64, SEEN(has_checked)),
	ROW("reports", reports, KEYED, .optional = true, PTC_COUNT(struct ptc_rank_row, nreports),
	    .of = &report_members),
	ROW("memory_peak_bytes", memory_peak, U64, IF(memory_peak)),
	ROW("cgroup", cgroup, STRING, IF(cgroup)),
	ROW("log", log, STRING, IF(log), .null = true),
};
static const struct ptc_members process_members = PTC_MEMBERS(process_rows, struct ptc_rank_row);
static const struct ptc_member rows[] = {
	ROW("rank", rank, U64, .optional = true),
	ROW("generation", generation, U64, .optional = true),
	ROW("incarnation", incarnation, U64, .optional = true),
	ROW("state", state, TEXT, .optional = true),
	PART(slot_members, slot),
	PART(device_members, says_device),
	PART(process_members, slot),
#define SHOWN 7 /* what status shows */
	ROW("program_pid", program_pid, I64, IF(program_pid)),
	ROW("world", world, U64, IF(world)),
	ROW("since_ms", since_ms, U64, IF(world)),
	ROW("start_step", start_step, U64, SEEN(has_start)),
	ROW("step_seconds", step_s, REAL, IF(step_s), .null = true),
	ROW("median_step_seconds", median_step_s, REAL, IF(median_step_s)),
	/* Only read: null says that it has none. */
	{ "on_device", PTC_IS_EMPTY, SEEN(says_device) },
};
static const struct ptc_members row_members = PTC_MEMBERS(rows, struct ptc_rank_row);
const struct ptc_members ptc_rank_row_members = { rows, SHOWN, sizeof(struct ptc_rank_row), false };
const struct ptc_members ptc_rank_row_answer = { rows, PTC_ARRAY_LEN(rows) - 1, sizeof(struct ptc_rank_row), false };
static const struct ptc_member doc_rows[] = {
	PTC_ROW(struct ptc_rank_rows, NULL, v, LIST, PTC_COUNT(struct ptc_rank_rows, n), .of = &row_members),
};
static const struct ptc_members doc_members = PTC_MEMBERS(doc_rows, struct ptc_rank_rows);

/* What follows from the rest. */
static void conclude(struct ptc_rank_row *r)
{
	r->lives = (!r->slot || r->pid > 0) && strcmp(r->state, "exited") != 0;
	for (size_t i = 0; i < r->nreports; i++) {
		const struct ptc_rank_report *report = &r->reports[i];

		if (isnan(report->value))
			continue;
		if (strcmp(report->name, "peak_bytes") == 0)
			r->peak_bytes = report->value;
		if (strcmp(report->name, "own_seconds") != 0)
			continue;
		r->has_own = true;
		r->own_s = report->value;
	}
}

int ptc_rank_rows_decode(const char *json, struct ptc_rank_rows *ret, struct ptc_error *err)
{
	struct ptc_rank_rows said = { 0 };
	int rc = ptc_members_from_text("ranks", 0, 0, &doc_members, json, strlen(json), &said, err);

	for (size_t i = 0; i < said.n; i++)
		conclude(&said.v[i]);
	if (rc == 0)
		*ret = said;
	return rc;
}

void ptc_rank_rows_done(struct ptc_rank_rows *r)
{
	ptc_members_done(&doc_members, r);
}

const struct ptc_rank_row *ptc_rank_rows_find(const struct ptc_rank_rows *said, uint32_t rank, uint64_t generation,
					      uint64_t incarnation)
{
	for (size_t i = 0; i < said->n; i++)
		if (said->v[i].rank == rank && said->v[i].generation == generation &&
		    said->v[i].incarnation == incarnation)
			return &said->v[i];
	return NULL;
}
