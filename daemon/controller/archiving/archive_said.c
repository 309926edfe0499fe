/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: archive_said.h. */
#include "daemon/controller/archiving/archive_said.h"

#include "formats/members.h"
#include "formats/names.h"

#define WHAT             "what ptc-archive says"
#define ROW(member, ...) PTC_ROW(struct ptc_archive_said, #member, member, __VA_ARGS__, .optional = true)

static const struct ptc_member rows[] = {
	ROW(archive, TEXT),   ROW(step, U64),     ROW(time_ms, I64),
#define SHOWN 3
	ROW(generation, U64), ROW(snapshot, U64), ROW(wait_ms, U64), ROW(fresh, BOOL), ROW(error, TEXT),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct ptc_archive_said);
static const struct ptc_members shown = { rows, SHOWN, sizeof(struct ptc_archive_said), false };

#define STATE(key, member, ...) PTC_ROW(struct ptc_archive_state, key, member, __VA_ARGS__)

static const struct ptc_member state_rows[] = {
	STATE("dir", dir, STRING),
	STATE("running", running, BOOL),
	STATE(NULL, said, MAP, PTC_IF_TEXT(struct ptc_archive_state, said.archive), .of = &shown),
	STATE("failed", failed, TEXT, PTC_IF_TEXT(struct ptc_archive_state, failed)),
};
static const struct ptc_members state_members = PTC_MEMBERS(state_rows, struct ptc_archive_state);

int ptc_archive_said_decode(const char *json, size_t len, struct ptc_archive_said *ret, struct ptc_error *err)
{
	struct ptc_archive_said s = { .wait_ms = 0 };
	int rc = ptc_members_from_text(WHAT, 0, 0, &members, json, len, &s, err);

	if (rc == 0 && !s.error[0] && !s.archive[0])
		rc = ptc_error_set(err, PTC_EINVAL, WHAT ": it names neither an archive nor an error");
	if (rc == 0)
		*ret = s;
	return rc;
}

json_t *ptc_archive_state_json(const struct ptc_archive_state *s)
{
	struct ptc_archive_state said = *s;

	if (!ptc_name_is_utf8(said.failed)) /* a text that was cut may end in the middle of a character */
		said.failed[0] = '\0';
	return ptc_members_to_json(&state_members, &said);
}
