/* SPDX-License-Identifier: Apache-2.0 */
/* Advice as JSON. A row that has no JSON, because a number of it is not finite, is left out of its list. */
#include "daemon/planning/advice/advice.h"

#include "base/alloc.h"
#include "formats/members.h"

#include <string.h>

#define LINK(key, class)                                                                                               \
	PTC_ROW(struct ptc_advice_placed, key, bytes_s[class], REAL, PTC_IF(struct ptc_advice_placed, bytes_s[class]))
static const struct ptc_member link_rows[] = { LINK("tp", PTC_LINK_TP), LINK("cp", PTC_LINK_CP),
					       LINK("ep", PTC_LINK_EP), LINK("dp", PTC_LINK_DP),
					       LINK("pp", PTC_LINK_PP) };
static const struct ptc_members link_members = PTC_MEMBERS(link_rows, struct ptc_advice_placed);

#define PART(key, member) PTC_ROW(struct ptc_advice_parts, key, member, REAL)
static const struct ptc_member part_rows[] = { PART("compute", compute_s), PART("tp", tp_s),
					       PART("cp", cp_s),           PART("ep", ep_s),
					       PART("pp", pp_s),           PART("bubble", bubble_s),
					       PART("dp", dp_s),           PART("optimizer", optimizer_s),
					       PART("fixed", fixed_s) };
static const struct ptc_members part_members = PTC_MEMBERS(part_rows, struct ptc_advice_parts);

#define ROW(member, kind, ...) PTC_ROW(struct ptc_advice_row, #member, member, kind, __VA_ARGS__)
#define IF_PRICED              PTC_IF(struct ptc_advice_row, priced)
static const struct ptc_member row_rows[] = {
	ROW(config, STRING),
	ROW(devices, U32),
	ROW(step_s, REAL),
	ROW(error, REAL),
	ROW(samples_s, REAL),
	ROW(memory_bytes, REAL),
	ROW(state_bytes, REAL),
	ROW(activation_bytes, REAL),
	ROW(micro_batches, U32),
	PTC_ROW(struct ptc_advice_row, "parts_s", parts, MAP, .of = &part_members),
	ROW(pause_s, REAL),
	ROW(runs_now, BOOL),
	ROW(moved_bytes, REAL, IF_PRICED),
	ROW(moved_bytes_least, REAL, IF_PRICED),
	ROW(moved_exact, BOOL, IF_PRICED),
};
static const struct ptc_members row_members = PTC_MEMBERS(row_rows, struct ptc_advice_row);

#define COUNT(member, kind, ...) PTC_ROW(struct ptc_advice_count, #member, member, kind, __VA_ARGS__)
#define IF_FITS                  PTC_IF(struct ptc_advice_count, config)
#define IF_COUNT_PRICED          PTC_IF(struct ptc_advice_count, priced)
static const struct ptc_member count_rows[] = {
	COUNT(gpus, U32),
	COUNT(config, STRING, IF_FITS),
	COUNT(devices, U32, IF_FITS),
	COUNT(step_s, REAL, IF_FITS),
	COUNT(error, REAL, IF_FITS),
	COUNT(samples_s, REAL, IF_FITS),
	COUNT(memory_bytes, REAL, IF_FITS),
	COUNT(pause_s, REAL, IF_COUNT_PRICED),
	COUNT(moved_bytes, REAL, IF_COUNT_PRICED),
	COUNT(moved_exact, BOOL, IF_COUNT_PRICED),
};
static const struct ptc_members count_members = PTC_MEMBERS(count_rows, struct ptc_advice_count);

#define MEASURED(member, kind) PTC_ROW(struct ptc_advice_measured, #member, member, kind)
static const struct ptc_member measured_rows[] = { MEASURED(config, STRING), MEASURED(step_s, REAL),
						   MEASURED(steps, U64), MEASURED(time_ms, I64) };
static const struct ptc_members measured_members = PTC_MEMBERS(measured_rows, struct ptc_advice_measured);

static const char *const models[] = { "none", "inferred", "described" };
#define REMEMBERED(key, member, kind) PTC_ROW(struct ptc_advice, key, remembered.member, kind)
static const struct ptc_member remembered_rows[] = { REMEMBERED("devices", devices, U32),
						     REMEMBERED("frontier", frontier, BOOL),
						     REMEMBERED("searches", searches, U64) };
static const struct ptc_members remembered_members = PTC_MEMBERS(remembered_rows, struct ptc_advice);

#define HEAD(member, kind, ...) PTC_ROW(struct ptc_advice, #member, member, kind, __VA_ARGS__)
static const struct ptc_member head_rows[] = {
	HEAD(gpus, U32),
	HEAD(calibrated, BOOL),
	HEAD(measured_steps, U64),
	HEAD(profiled, BOOL),
	HEAD(links_known, BOOL),
	HEAD(horizon_s, REAL),
	HEAD(model, WORD, .max = PTC_MODEL_DESCRIBED, .words = models),
	{ "remembered", PTC_IS_MAP, .of = &remembered_members }, /* offset 0: of the whole */
};
static const struct ptc_members head_members = PTC_MEMBERS(head_rows, struct ptc_advice);

void ptc_advice_row_done(struct ptc_advice_row *r)
{
	ptc_free(r->config);
	memset(r, 0, sizeof *r);
}

static json_t *placed_json(const struct ptc_advice_placed *p)
{
	return json_pack("{s:s, s:o, s:f}", "by", p->by == PTC_PLACED_BY_LINKS ? "links" : "bytes", "links_bytes_s",
			 ptc_members_to_json(&link_members, p), "gap", p->gap);
}

json_t *ptc_advice_row_json(const struct ptc_advice_row *r)
{
	json_t *o = ptc_members_to_json(&row_members, r);

	if (o && r->is_placed)
		json_object_set_new(o, "placed", placed_json(&r->placed));
	if (o && r->pays)
		json_object_set_new(o, "break_even_s", json_real(r->break_even_s));
	return o;
}

void ptc_advice_done(struct ptc_advice *a)
{
	for (size_t i = 0; i < a->nrows; i++)
		ptc_advice_row_done(&a->rows[i]);
	for (size_t i = 0; i < a->nmeasured; i++)
		ptc_free(a->measured[i].config);
	for (size_t i = 0; i < a->ncounts; i++)
		ptc_free(a->counts[i].config);
	ptc_free(a->kinds);
	ptc_free(a->rows);
	ptc_free(a->measured);
	ptc_free(a->counts);
	memset(a, 0, sizeof *a);
}

/* Memory and price are null where nothing is known of them. */
static json_t *kinds_json(const struct ptc_advice *a)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < a->nkinds; i++) {
		const struct ptc_advice_kind *k = &a->kinds[i];

		json_array_append_new(rows, json_pack("{s:s, s:I, s:o, s:o}", "name", k->name, "devices",
						      (json_int_t)k->devices, "memory_bytes",
						      k->memory_known ? json_real(k->memory_bytes) : json_null(),
						      "price_hour",
						      k->price_hour > 0 ? json_real(k->price_hour) : json_null()));
	}
	return rows;
}

json_t *ptc_advice_json(const struct ptc_advice *a)
{
	json_t *root = json_pack("{s:i}", "version", 1), *rows = json_array();

	if (!root || ptc_members_put(root, &head_members, a) != 0) {
		json_decref(root);
		json_decref(rows);
		return NULL;
	}
	json_object_set_new(root, "kinds", kinds_json(a));
	if (a->counts) {
		for (size_t i = 0; i < a->ncounts; i++)
			json_array_append_new(rows, ptc_members_to_json(&count_members, &a->counts[i]));
		json_object_set_new(root, "counts", rows);
		return root;
	}
	json_object_set_new(root, "why", json_string(a->why));
	for (size_t i = 0; i < a->nrows; i++)
		json_array_append_new(rows, ptc_advice_row_json(&a->rows[i]));
	json_object_set_new(root, "candidates", rows);
	rows = json_array();
	for (size_t i = 0; i < a->nmeasured; i++)
		json_array_append_new(rows, ptc_members_to_json(&measured_members, &a->measured[i]));
	json_object_set_new(root, "measured", rows);
	return root;
}
