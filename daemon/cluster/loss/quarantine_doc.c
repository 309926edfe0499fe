/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the members of a document, in the order of their table. Failure modes: quarantine_doc.h. */
#include "daemon/cluster/loss/quarantine_doc.h"

#include "base/check.h"
#include "formats/json.h"
#include "formats/members.h"

#define VERSION 1
#define MS      INT64_C(1000000)
#define FAR_MS  (INT64_C(1) << 42) /* from now: an hour counts, and so does nothing that is longer ago */

struct doc {
	uint32_t losses;
	uint64_t life;
	int64_t lost_ms, until_ms; /* until_ms 0: it has not been quarantined */
};

#define ROW(member, ...) PTC_ROW(struct doc, #member, member, __VA_ARGS__)
static const struct ptc_member rows[] = {
	ROW(losses, U32, .min = 1),
	ROW(life, U64, .min = 1, .max = INT64_MAX),
	ROW(lost_ms, I64),
	ROW(until_ms, I64, PTC_IF(struct doc, until_ms)),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct doc);

char *ptc_quarantine_encode(const struct ptc_quarantine *q, int64_t now_ns, int64_t now_ms)
{
	const struct doc d = { .losses = q->losses,
			       .life = (uint64_t)q->life,
			       .lost_ms = now_ms + (q->lost_ns - now_ns) / MS,
			       .until_ms = q->until_ns ? now_ms + (q->until_ns - now_ns) / MS : 0 };

	return ptc_members_to_text(VERSION, &members, &d);
}

static int64_t to_ns(int64_t ms, int64_t now_ns, int64_t now_ms)
{
	const int64_t ago = ms < 0 || now_ms - ms > FAR_MS ? FAR_MS : now_ms - ms;

	return now_ns - PTC_MAX(ago, -PTC_QUARANTINE_MAX_NS / MS) * MS;
}

int ptc_quarantine_decode(const char *json, size_t len, int64_t now_ns, int64_t now_ms, struct ptc_quarantine *ret,
			  struct ptc_error *err)
{
	struct doc d = { 0 };
	json_t *root = NULL;
	int rc = ptc_json_load("document of a node's losses", json, len, &root, err);

	if (rc == 0)
		rc = ptc_members_from_json("document of a node's losses", &members, root, &d, err);
	json_decref(root);
	if (rc)
		return rc;
	*ret = (struct ptc_quarantine){ .losses = d.losses, .life = (int64_t)d.life };
	ret->lost_ns = PTC_MIN(to_ns(d.lost_ms, now_ns, now_ms), now_ns);
	ret->until_ns = d.until_ms ? to_ns(d.until_ms, now_ns, now_ms) : 0;
	return 0;
}
