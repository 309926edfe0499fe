/* SPDX-License-Identifier: Apache-2.0 */
/* The document of the cluster's profile (docs/control.md, "profile"), as a struct and as text. Failure modes: the text
 * is no JSON or lacks a member (PTC_EINVAL, with its name), memory. */
#include "daemon/planning/links/links.h"

#include "formats/json.h"

#include <string.h>

#define VERSION 1

static const struct ptc_member doc_rows[] = {
	PTC_ROW(struct ptc_profile_doc, "profile", profile, STRING, PTC_IF(struct ptc_profile_doc, profile)),
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

void ptc_profile_doc_done(struct ptc_profile_doc *d)
{
	ptc_members_done(&doc_members, d);
}

char *ptc_profile_doc_encode(const struct ptc_profile_doc *d, const struct ptc_link_changes *changed)
{
	json_t *root = d->profile ? json_pack("{s:i}", "version", VERSION)
				  : json_pack("{s:i, s:n}", "version", VERSION, "profile");
	char *text = NULL;

	if (root && ptc_members_put(root, &doc_members, d) == 0 &&
	    (!changed || ptc_members_put(root, &changes_members, changed) == 0))
		text = ptc_json_text(root);
	json_decref(root);
	return text;
}

int ptc_profile_doc_decode(const char *what, const char *json, struct ptc_profile_doc *ret, struct ptc_error *err)
{
	struct ptc_profile_doc d = { 0 };
	json_t *root = NULL;
	int rc = ptc_json_load(what, json, strlen(json), &root, err);

	if (rc == 0 && json_is_null(json_object_get(root, "profile")))
		json_object_del(root, "profile");
	if (rc == 0)
		rc = ptc_members_from_json(what, &doc_members, root, &d, err);
	json_decref(root);
	if (rc) {
		ptc_profile_doc_done(&d);
		return rc;
	}
	*ret = d;
	return 0;
}
