/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a document is the members of its struct, in the order of its table. Failure modes: mark_docs.h. */
#include "daemon/cluster/marks/mark_docs.h"

#include "formats/json.h"
#include "formats/members.h"

static int decode(const char *what, const struct ptc_members *t, const char *json, size_t len, void *to,
		  struct ptc_error *err)
{
	json_t *root = NULL;
	int rc = ptc_json_load(what, json, len, &root, err);

	if (rc == 0)
		rc = ptc_members_from_json(what, t, root, to, err);
	json_decref(root);
	return rc;
}

#define ROW(doc, member, ...) PTC_ROW(struct ptc_##doc, #member, member, __VA_ARGS__)
/* ...: the rows. */
#define DOCUMENT(name, what, ...)                                                                                      \
	static const struct ptc_member name##_rows[] = { __VA_ARGS__ };                                                \
	static const struct ptc_members name##_members = PTC_MEMBERS(name##_rows, struct ptc_##name##_doc);            \
                                                                                                                       \
	char *ptc_##name##_doc_encode(const struct ptc_##name##_doc *d)                                                \
	{                                                                                                              \
		return ptc_members_to_text(1, &name##_members, d);                                                     \
	}                                                                                                              \
	int ptc_##name##_doc_decode(const char *json, size_t len, struct ptc_##name##_doc *ret_doc,                    \
				    struct ptc_error *err)                                                             \
	{                                                                                                              \
		struct ptc_##name##_doc d = { 0 };                                                                     \
		int rc = decode(what, &name##_members, json, len, &d, err);                                            \
                                                                                                                       \
		if (!rc)                                                                                               \
			*ret_doc = d;                                                                                  \
		return rc;                                                                                             \
	}

DOCUMENT(lock, "lock document", ROW(lock_doc, node, TEXT))
DOCUMENT(barrier, "barrier document", ROW(barrier_doc, cleared, U64))
DOCUMENT(creation, "document of a creation", ROW(creation_doc, node, TEXT), ROW(creation_doc, boot_id, TEXT),
	 ROW(creation_doc, uid, U32, .optional = true))
DOCUMENT(announced, "document of an announced job", ROW(announced_doc, bytes, U64))
