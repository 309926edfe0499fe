/* SPDX-License-Identifier: Apache-2.0 */
/* The document of the cluster's profile (docs/control.md, "profile"), as a struct and as text. Failure modes: the text
 * is no JSON or lacks a member (PTC_EINVAL, with its name), memory. */
#include "daemon/planning/links/links.h"

#include "formats/json.h"

#include <string.h>

#define VERSION 1

static const struct ptc_member doc_rows[] = {
	PTC_ROW(struct ptc_profile_doc, "profile", profile, STRING, PTC_IF(struct ptc_profile_doc, profile),
		.null = true),
	PTC_ROW(struct ptc_profile_doc, "pairs", pairs.v, LIST, .optional = true,
		PTC_COUNT(struct ptc_profile_doc, pairs.n), .of = &ptc_link_members),
	PTC_ROW(struct ptc_profile_doc, "set_ms", set_ms, I64, PTC_IF(struct ptc_profile_doc, set_ms)),
	PTC_ROW(struct ptc_profile_doc, "measured_ms", measured_ms, I64, PTC_IF(struct ptc_profile_doc, measured_ms)),
	PTC_ROW(struct ptc_profile_doc, "changed_ms", changed_ms, I64, PTC_IF(struct ptc_profile_doc, changed_ms)),
};
static const struct ptc_members doc_members = PTC_MEMBERS(doc_rows, struct ptc_profile_doc);
static const struct ptc_member changes_rows[] = {
	PTC_ROW(struct ptc_link_changes, "changed", v, LIST, PTC_COUNT(struct ptc_link_changes, n),
		.of = &ptc_link_change_members),
};
static const struct ptc_members changes_members = PTC_MEMBERS(changes_rows, struct ptc_link_changes);
static const struct ptc_member failed_rows[] = {
	PTC_ROW(struct ptc_links, "failed", v, LIST, PTC_COUNT(struct ptc_links, n), .of = &ptc_link_way_members),
};
static const struct ptc_members failed_members = PTC_MEMBERS(failed_rows, struct ptc_links);

void ptc_profile_doc_done(struct ptc_profile_doc *d)
{
	ptc_members_done(&doc_members, d);
}

char *ptc_profile_doc_encode(const struct ptc_profile_doc *d, const struct ptc_link_changes *changed,
			     const struct ptc_links *failed)
{
	json_t *root = ptc_members_to_doc(VERSION, &doc_members, d);
	char *text = NULL;

	if (root && (!changed || ptc_members_put(root, &changes_members, changed) == 0) &&
	    (!failed || ptc_members_put(root, &failed_members, failed) == 0))
		text = ptc_json_text(root);
	json_decref(root);
	return text;
}

int ptc_profile_doc_decode(const char *what, const char *json, struct ptc_profile_doc *ret, struct ptc_error *err)
{
	struct ptc_profile_doc d = { 0 };
	int rc = ptc_members_from_text(what, 0, 0, &doc_members, json, strlen(json), &d, err);

	if (rc == 0)
		*ret = d;
	return rc;
}
