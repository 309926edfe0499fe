/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: weighed_devices.h. */
#include "daemon/cluster/devices/weighed_devices.h"

#include "base/number/versions.h"
#include "formats/members.h"

static const struct ptc_member node_rows[] = {
	PTC_ROW(struct ptc_weighed_node, NULL, node, TEXT),
	PTC_ROW(struct ptc_weighed_node, NULL, devices, U32),
};
static const struct ptc_members node_members = PTC_MEMBERS(node_rows, struct ptc_weighed_node);
static const struct ptc_member rows[] = {
	PTC_ROW(struct ptc_weighed_doc, "nodes", v, KEYED, PTC_COUNT(struct ptc_weighed_doc, n), .of = &node_members),
	PTC_ROW(struct ptc_weighed_doc, "stays", stays, TEXT, PTC_IF_TEXT(struct ptc_weighed_doc, stays)),
	PTC_ROW(struct ptc_weighed_doc, "failed", failed, BOOL, PTC_IF(struct ptc_weighed_doc, failed)),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct ptc_weighed_doc);

char *ptc_weighed_doc_encode(const struct ptc_weighed_doc *d)
{
	return ptc_members_to_text((int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), &members, d);
}

int ptc_weighed_doc_decode(const char *json, size_t len, struct ptc_weighed_doc *ret, struct ptc_error *err)
{
	struct ptc_weighed_doc d = { 0 };
	int rc =
		ptc_members_from_text("weighed devices", PTC_DOC_OLDEST, PTC_DOC_VERSION, &members, json, len, &d, err);

	if (rc == 0)
		*ret = d;
	return rc;
}

void ptc_weighed_doc_done(struct ptc_weighed_doc *d)
{
	ptc_members_done(&members, d);
}
