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

static const char *const by_words[] = { "bytes", "links" };
static const struct ptc_member placed_rows[] = {
	PTC_ROW(struct ptc_advice_placed, "by", by, WORD, .max = PTC_PLACED_BY_LINKS, .words = by_words),
	{ "links_bytes_s", PTC_IS_MAP, .of = &link_members }, /* offset 0: of the whole */
	PTC_ROW(struct ptc_advice_placed, "gap", gap, REAL),
};
static const struct ptc_members placed_members = PTC_MEMBERS(placed_rows, struct ptc_advice_placed);

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
	ROW(placed, MAP, PTC_IF(struct ptc_advice_row, is_placed), .of = &placed_members),
	ROW(break_even_s, REAL, PTC_IF(struct ptc_advice_row, pays)),
};
const struct ptc_members ptc_advice_row_members = PTC_MEMBERS(row_rows, struct ptc_advice_row);

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

/* Memory and price are null where nothing is known of them. */
#define KIND(member, ...) PTC_ROW(struct ptc_advice_kind, #member, member, __VA_ARGS__)
static const struct ptc_member kind_rows[] = {
	KIND(name, TEXT),
	KIND(devices, U32),
	KIND(memory_bytes, REAL, PTC_IF(struct ptc_advice_kind, memory_known), .null = true),
	KIND(price_hour, REAL, PTC_IF(struct ptc_advice_kind, price_hour), .null = true),
};
static const struct ptc_members kind_members = PTC_MEMBERS(kind_rows, struct ptc_advice_kind);

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

json_t *ptc_advice_json(const struct ptc_advice *a)
{
	json_t *root = ptc_members_to_doc(1, &head_members, a);

	if (!root)
		return NULL;
	ptc_members_put_list(root, "kinds", &kind_members, a->kinds, a->nkinds);
	if (a->counts) {
		ptc_members_put_list(root, "counts", &count_members, a->counts, a->ncounts);
		return root;
	}
	json_object_set_new(root, "why", json_string(a->why));
	ptc_members_put_list(root, "candidates", &ptc_advice_row_members, a->rows, a->nrows);
	ptc_members_put_list(root, "measured", &measured_members, a->measured, a->nmeasured);
	return root;
}
