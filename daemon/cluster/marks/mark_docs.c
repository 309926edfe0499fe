/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a document is the members of its struct, in the order of its table. Failure modes: mark_docs.h. */
#include "daemon/cluster/marks/mark_docs.h"

#include "base/number/versions.h"
#include "formats/members.h"

#define ROW(doc, member, ...) PTC_ROW(struct ptc_##doc, #member, member, __VA_ARGS__)
/* written: the version in which it is written; ours: the newest that we know, 0: its version does not matter; ...: the
 * rows. */
#define DOCUMENT(name, what, written, ours, ...)                                                                       \
	static const struct ptc_member name##_rows[] = { __VA_ARGS__ };                                                \
	static const struct ptc_members name##_members = PTC_MEMBERS(name##_rows, struct ptc_##name##_doc);            \
                                                                                                                       \
	char *ptc_##name##_doc_encode(const struct ptc_##name##_doc *d)                                                \
	{                                                                                                              \
		return ptc_members_to_text(written, &name##_members, d);                                               \
	}                                                                                                              \
	int ptc_##name##_doc_decode(const char *json, size_t len, struct ptc_##name##_doc *ret_doc,                    \
				    struct ptc_error *err)                                                             \
	{                                                                                                              \
		struct ptc_##name##_doc d = { 0 };                                                                     \
		int rc = ptc_members_from_text(what, PTC_DOC_OLDEST, ours, &name##_members, json, len, &d, err);       \
                                                                                                                       \
		if (!rc)                                                                                               \
			*ret_doc = d;                                                                                  \
		return rc;                                                                                             \
	}

DOCUMENT(lock, "lock document", 1, 0, ROW(lock_doc, node, TEXT))
DOCUMENT(barrier, "barrier document", 1, 0, ROW(barrier_doc, cleared, U64))
DOCUMENT(creation, "document of a creation", 1, 0, ROW(creation_doc, node, TEXT), ROW(creation_doc, boot_id, TEXT),
	 ROW(creation_doc, uid, U32, .optional = true))
DOCUMENT(announced, "document of an announced job", 1, 0, ROW(announced_doc, bytes, U64))
DOCUMENT(key, "/ptc/key", (int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), PTC_DOC_VERSION,
	 ROW(key_doc, id, TEXT, .min = PTC_KEY_ID_TEXT - 1))
