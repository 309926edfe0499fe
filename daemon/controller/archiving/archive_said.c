/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: archive_said.h. */
#include "daemon/controller/archiving/archive_said.h"

#include "formats/members.h"

#define WHAT             "what ptc-archive says"
#define ROW(member, ...) PTC_ROW(struct ptc_archive_said, #member, member, __VA_ARGS__, .optional = true)

static const struct ptc_member rows[] = {
	ROW(archive, TEXT),   ROW(step, U64),     ROW(time_ms, I64),
#define SHOWN 3
	ROW(generation, U64), ROW(snapshot, U64), ROW(wait_ms, U64), ROW(fresh, BOOL), ROW(error, TEXT),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct ptc_archive_said);
static const struct ptc_members shown = { rows, SHOWN, sizeof(struct ptc_archive_said), false };

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

int ptc_archive_said_put(json_t *to, const struct ptc_archive_said *s)
{
	return ptc_members_put(to, &shown, s);
}
