/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: one table writes the document, and reads it. Failure modes: damage_doc.h. */
#include "daemon/scrub/damage_doc.h"

#include "formats/members.h"

#include <string.h>

static const struct ptc_member block_rows[] = {
	PTC_ROW(struct ptc_damaged_block, "generation", generation, U64),
	PTC_ROW(struct ptc_damaged_block, "item", item, U64),
	PTC_ROW(struct ptc_damaged_block, "text", text, STRING),
};
static const struct ptc_members block_members = PTC_MEMBERS(block_rows, struct ptc_damaged_block);
static const struct ptc_member damage_rows[] = {
	PTC_ROW(struct ptc_damage_doc, "blocks", blocks, U64),
	PTC_ROW(struct ptc_damage_doc, "list", list, LIST, PTC_COUNT(struct ptc_damage_doc, n), .of = &block_members),
};
static const struct ptc_members damage_members = PTC_MEMBERS(damage_rows, struct ptc_damage_doc);

char *ptc_damage_doc_encode(const struct ptc_damage_doc *d)
{
	return ptc_members_to_text(1, &damage_members, d);
}

int ptc_damage_doc_decode(const char *json, size_t len, struct ptc_damage_doc *ret, struct ptc_error *err)
{
	memset(ret, 0, sizeof *ret);
	return ptc_members_from_text("damage", 0, 0, &damage_members, json, len, ret, err);
}

void ptc_damage_doc_done(struct ptc_damage_doc *d)
{
	ptc_members_done(&damage_members, d);
	memset(d, 0, sizeof *d);
}
