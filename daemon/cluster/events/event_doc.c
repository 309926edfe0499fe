/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: tables write an event, and read the few members that a daemon needs. Failure modes: event_doc.h. */
#include "daemon/cluster/events/event_doc.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/versions.h"
#include "formats/json.h"

#include <stdlib.h>
#include <string.h>

#define AS(key, type, member, ...) PTC_ROW(struct ptc_##type, key, member, __VA_ARGS__)
#define IS(type, member, ...)      AS(#member, type, member, __VA_ARGS__)
#define IF(type, member)           PTC_IF(struct ptc_##type, member)

static const struct ptc_member pause_rows[] = {
	IS(switch_pause, total_ms, REAL),
	IS(switch_pause, stop_ms, REAL),
	IS(switch_pause, copy_ms, REAL),
	IS(switch_pause, commit_ms, REAL),
	IS(switch_pause, end_ms, REAL),
	IS(switch_pause, build_ms, REAL),
	IS(switch_pause, move_ms, REAL),
	IS(switch_pause, restore_ms, REAL),
	IS(switch_pause, slowed_ms, REAL, IF(switch_pause, has_slowed)),
	IS(switch_pause, lost_ms, REAL, IF(switch_pause, has_lost)),
	IS(switch_pause, first_step_ms, REAL, IF(switch_pause, has_first_step)),
};
static const struct ptc_members pause_members = PTC_MEMBERS(pause_rows, struct ptc_switch_pause);
static const struct ptc_member totals_rows[] = {
	IS(plan_totals, in_place, I64),
	IS(plan_totals, within_node, I64),
	IS(plan_totals, between_nodes, I64),
	AS("bound_this_mapping", plan_totals, bound_mapping, I64),
	AS("bound_any_mapping", plan_totals, bound_any, I64),
	IS(plan_totals, bound_exact, BOOL),
	IS(plan_totals, gap, I64),
	IS(plan_totals, reset, I64),
	IS(plan_totals, derived, I64),
};
const struct ptc_members ptc_plan_totals_members = PTC_MEMBERS(totals_rows, struct ptc_plan_totals);
static const struct ptc_member moved_rows[] = {
	IS(switch_moved, node, TEXT),
	IS(switch_moved, in_bytes, I64),
	IS(switch_moved, out_bytes, I64),
};
static const struct ptc_members moved_members = PTC_MEMBERS(moved_rows, struct ptc_switch_moved);
static const struct ptc_member placed_rows[] = {
	IS(switch_placed, node, TEXT),
	IS(switch_placed, ranks, STRING),
};
static const struct ptc_members placed_members = PTC_MEMBERS(placed_rows, struct ptc_switch_placed);

#define COMMITTED          PTC_IF_TEXT(struct ptc_switch_end, kind)
#define COUNT(member)      PTC_COUNT(struct ptc_switch_end, member)
#define DEVICE_BYTES(from) IS(switch_end, device_##from##_bytes, U64, IF(switch_end, on_devices))

static const struct ptc_member end_rows[] = {
	IS(switch_end, id, U64, .optional = true),
	IS(switch_end, status, INT, IF(switch_end, why)),
	IS(switch_end, why, STRING, IF(switch_end, why)),
#define READ 3 /* what a daemon reads */
	IS(switch_end, kind, TEXT, COMMITTED),
	IS(switch_end, generation, U64, COMMITTED),
	IS(switch_end, snapshot, U64, COMMITTED),
	IS(switch_end, step, U64, COMMITTED),
	IS(switch_end, from, STRING, COMMITTED),
	IS(switch_end, to, STRING, COMMITTED),
	IS(switch_end, received_bytes, U64, COMMITTED),
	IS(switch_end, near_bytes, U64, IF(switch_end, near_bytes)),
	IS(switch_end, copied_bytes, U64, COMMITTED),
	IS(switch_end, digests_verified, U64, COMMITTED),
	IS(switch_end, preserved, TEXT, COMMITTED),
	IS(switch_end, seconds, REAL, COMMITTED),
	IS(switch_end, captured_bytes, U64, IF(switch_end, ran)),
	IS(switch_end, pause, MAP, IF(switch_end, ran), .of = &pause_members),
	DEVICE_BYTES(kept),
	DEVICE_BYTES(peer),
	DEVICE_BYTES(host),
	AS("device_unfinished", switch_end, unfinished, BOOL, IF(switch_end, unfinished)),
	IS(switch_end, built_ahead_ms, REAL, IF(switch_end, ahead)),
#define IN_SUMMARY 22 /* what a summary has, too */
	IS(switch_end, totals, MAP, IF(switch_end, counted), .of = &ptc_plan_totals_members),
	IS(switch_end, nodes, LIST, COUNT(nnodes), IF(switch_end, counted), .of = &moved_members),
	IS(switch_end, before, LIST, COUNT(nbefore), IF(switch_end, nbefore), .of = &placed_members),
	IS(switch_end, after, LIST, COUNT(nafter), IF(switch_end, nafter), .of = &placed_members),
};
_Static_assert(PTC_ARRAY_LEN(end_rows) == IN_SUMMARY + 4, "");
static const struct ptc_members end_members = PTC_MEMBERS(end_rows, struct ptc_switch_end);
static const struct ptc_members read_members = { end_rows, READ, sizeof(struct ptc_switch_end), false };
static const struct ptc_members summary_members = { end_rows, IN_SUMMARY, sizeof(struct ptc_switch_end), false };

int ptc_switch_end_put(json_t *root, const struct ptc_switch_end *e)
{
	return ptc_members_put(root, &summary_members, e);
}

void ptc_switch_end_done(struct ptc_switch_end *e)
{
	ptc_members_done(&end_members, e);
	memset(e, 0, sizeof *e);
}

/* ---- events ---- */

static const struct ptc_member event_rows[] = {
	IS(event_doc, time_ms, I64),
	IS(event_doc, node, STRING),
	IS(event_doc, kind, STRING),
	IS(event_doc, text, STRING),
	AS("switch", event_doc, end, MAP, IF(event_doc, end.id), .of = &end_members),
};
static const struct ptc_members event_members = PTC_MEMBERS(event_rows, struct ptc_event_doc);
static const struct ptc_member event_read_rows[] = {
	IS(event_doc, number, U64, .optional = true),
	IS(event_doc, kind, STRING, .optional = true),
	AS("switch", event_doc, end, MAP, .optional = true, .of = &read_members),
};
static const struct ptc_members event_read_members = PTC_MEMBERS(event_read_rows, struct ptc_event_doc);

/* Control characters of a rank's log take six bytes each. */
char *ptc_event_doc_encode(const struct ptc_event_doc *d)
{
	const int version = (int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION);
	ptc_auto_free char *text = ptc_strdup(d->text);
	struct ptc_event_doc cut = *d;

	cut.text = text;
	for (size_t len = text ? strlen(text) : 0; text; len /= 2) {
		char *json;

		while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80) /* not in the middle of a character */
			len--;
		text[len] = '\0';
		json = ptc_members_to_text(version, &event_members, &cut);
		if (!json && cut.end.id) { /* its reason may not be UTF-8 */
			cut.end.id = 0;
			json = ptc_members_to_text(version, &event_members, &cut);
		}
		if (!json || len == 0 || strlen(json) <= PTC_EVENT_MAX_BYTES)
			return json;
		ptc_free(json);
	}
	return NULL;
}

int ptc_event_doc_decode(const char *json, size_t len, struct ptc_event_doc *ret, struct ptc_error *err)
{
	memset(ret, 0, sizeof *ret);
	return ptc_members_from_text("event", 0, 0, &event_read_members, json, len, ret, err);
}

void ptc_event_doc_done(struct ptc_event_doc *d)
{
	ptc_members_done(&event_read_members, d);
	memset(d, 0, sizeof *d);
}

/* ---- read ---- */

int ptc_read_events_add(struct ptc_read_events *to, uint64_t number, const char *text, size_t len)
{
	struct ptc_event_doc doc = { 0 };
	json_t *json = NULL;
	int rc = ptc_json_load("event", text, len, &json, NULL);

	if (rc == 0)
		rc = ptc_members_from_json("event", &event_read_members, json, &doc, NULL);
	number = number ? number : doc.number;
	ptc_event_doc_done(&doc);
	if (rc == 0 && json_object_set_new(json, "number", json_integer((json_int_t)number)) != 0)
		rc = PTC_ENOMEM;
	if (rc == 0 && !PTC_MORE(to->v, to->n))
		rc = PTC_ENOMEM;
	if (rc == 0)
		to->v[to->n++] = (struct ptc_read_event){ number, json };
	else
		json_decref(json);
	return rc == PTC_ENOMEM ? rc : 0;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = ((const struct ptc_read_event *)a)->number, y = ((const struct ptc_read_event *)b)->number;

	return x < y ? -1 : x > y;
}

void ptc_read_events_sort(struct ptc_read_events *e, uint64_t after)
{
	size_t kept = 0;

	if (e->n)
		qsort(e->v, e->n, sizeof *e->v, by_number);
	for (size_t i = 0; i < e->n; i++) {
		struct ptc_read_event line = e->v[i];

		if (line.number <= after || (kept && e->v[kept - 1].number == line.number))
			json_decref(line.json);
		else
			e->v[kept++] = line;
	}
	e->n = kept;
}

void ptc_read_events_done(struct ptc_read_events *e)
{
	for (size_t i = 0; i < e->n; i++)
		json_decref(e->v[i].json);
	ptc_free(e->v);
	memset(e, 0, sizeof *e);
}
