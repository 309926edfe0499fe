/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a document is the members of its struct, in the order of its table, compact, so that equal documents have
 * equal hashes. Failure modes: a member is missing or has an impossible value: PTC_EINVAL naming document and member.
 * We cannot read the version, or the document names in "needs" something that we do not know: PTC_EVERSION. Documents
 * are written in the version that all members read (base/number/versions.h). */
#include "daemon/cluster/records.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/versions.h"

#include "formats/json.h"
#include "formats/members.h"
#include "formats/names.h"
#include "formats/state/long_values.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The version to write: all members of the cluster read it. */
#define WRITTEN ((int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION))

static char *dump(json_t *root)
{
	char *text = NULL;

	if (root && (!ptc_version_adds() ||
		     json_object_set_new(root, "added", json_integer((json_int_t)PTC_VERSION_ADDED)) == 0))
		text = ptc_json_text(root);
	json_decref(root);
	return text;
}

/* What a reader of the document must know. */
static int put_need(json_t *root, const char *name)
{
	json_t *needs = json_object_get(root, "needs");

	return needs ? json_array_append_new(needs, json_string(name))
		     : json_object_set_new(root, "needs", json_pack("[s]", name));
}

static bool is_known(const char *const *known, const char *name)
{
	while (*known && strcmp(*known, name) != 0)
		known++;
	return *known != NULL;
}

/* what: "record document". known: names that it may need, the last one NULL; NULL: none. */
static int load(const char *what, const char *const *known, const char *json, size_t len, json_t **ret_root,
		struct ptc_error *err)
{
	int rc = ptc_json_load(what, json, len, ret_root, err);

	for (json_t *needs = json_object_get(*ret_root, "needs"); rc == 0 && known && json_array_size(needs);) {
		const char *first = json_string_value(json_array_get(needs, 0));

		if (!first || !is_known(known, first) || json_array_remove(needs, 0) != 0)
			break;
	}
	if (rc == 0)
		rc = ptc_json_version(what, *ret_root, PTC_DOC_OLDEST, PTC_DOC_VERSION, err);
	if (rc) {
		json_decref(*ret_root);
		*ret_root = NULL;
	}
	return rc;
}

/* Of a document that is its members alone. *to as of ptc_members_from_json. */
static int unpack(const char *what, const char *const *known, const struct ptc_members *t, const char *json, size_t len,
		  void *to, struct ptc_error *err)
{
	json_t *root = NULL;
	int rc = load(what, known, json, len, &root, err);

	if (rc == 0)
		rc = ptc_members_from_json(what, t, root, to, err);
	json_decref(root);
	return rc;
}

/* A document that is its members alone. sound: what must be true of its members
 * together; ...: initialisers of what may be missing. */
#define ENCODE(name, version)                                                                                          \
	char *ptc_##name##_doc_encode(const struct ptc_##name##_doc *d)                                                \
	{                                                                                                              \
		return dump(ptc_members_to_doc(version, &name##_members, d));                                          \
	}
#define DECODE(name, what, sound, ...)                                                                                 \
	int ptc_##name##_doc_decode(const char *json, size_t len, struct ptc_##name##_doc *ret_doc,                    \
				    struct ptc_error *err)                                                             \
	{                                                                                                              \
		struct ptc_##name##_doc d = { __VA_ARGS__ };                                                           \
		int rc = unpack(what, NULL, &name##_members, json, len, &d, err);                                      \
                                                                                                                       \
		if (!rc && !(sound))                                                                                   \
			rc = ptc_error_set(err, PTC_EINVAL, what ": its members contradict each other");               \
		if (!rc)                                                                                               \
			*ret_doc = d;                                                                                  \
		return rc;                                                                                             \
	}
#define AS(key, doc, member, ...) PTC_ROW(struct ptc_##doc, key, member, __VA_ARGS__)
#define IS(doc, member, ...)      AS(#member, doc, member, __VA_ARGS__)
#define IF(doc, member)           PTC_IF(struct ptc_##doc, member)
#define IF_TEXT(doc, member)      PTC_IF_TEXT(struct ptc_##doc, member)
#define COUNT(doc, member)        PTC_COUNT(struct ptc_##doc, member)

/* ---- node ---------------------------------------------------------------- */

static const struct ptc_member node_rows[] = {
	AS("node", node_doc, name, TEXT),
	IS(node_doc, address, TEXT),
	IS(node_doc, devices, U32, .max = PTC_MAX_DEVICES_PER_NODE),
	IS(node_doc, device_name, TEXT, IF_TEXT(node_doc, device_name)),
	IS(node_doc, device_bytes, U64, IF(node_doc, device_bytes)),
	IS(node_doc, unhealthy, TEXT, IF_TEXT(node_doc, unhealthy)),
	IS(node_doc, ceiling_bytes, U64),
	IS(node_doc, store_id, TEXT),
	IS(node_doc, boot_id, TEXT),
	IS(node_doc, rack, TEXT),
	IS(node_doc, insecure, BOOL),
	IS(node_doc, pid, INT),
	{ "documents", PTC_IS_U32, .offset = offsetof(struct ptc_node_doc, documents_oldest), .size = 8, .min = 1,
	  IF(node_doc, documents) },
};
_Static_assert(offsetof(struct ptc_node_doc, documents) == offsetof(struct ptc_node_doc, documents_oldest) + 4, "");
static const struct ptc_members node_members = PTC_MEMBERS(node_rows, struct ptc_node_doc);

/* The oldest there is: who is too far from us is to learn that from "documents". */
ENCODE(node, PTC_DOC_OLDEST)
/* A ptcd that says none reads and writes the first. */
DECODE(node, "node document", d.documents >= d.documents_oldest, .documents_oldest = 1, .documents = 1)

int ptc_node_doc_near(const struct ptc_node_doc *d, struct ptc_error *err)
{
	const uint32_t ours = PTC_DOC_VERSION, theirs = d->documents;

	if (theirs <= ours + 1 && ours <= theirs + 1)
		return 0;
	return ptc_error_set(
		err, PTC_EVERSION,
		"node %s writes documents of version %u, this ptcd %s of version %u, and only versions next to "
		"each other work together: upgrade %s to version %u first",
		d->name, theirs, PTC_VERSION, ours, theirs > ours ? "this node" : "that node",
		theirs > ours ? theirs - 1 : ours - 1);
}

/* ---- meta ---------------------------------------------------------------- */

#define NO_GROUP UINT32_MAX /* as a gid it is none */

static const struct ptc_member meta_rows[] = {
	IS(meta_doc, uuid, TEXT),      IS(meta_doc, name, TEXT),
	IS(meta_doc, uid, U32),        AS("spec", meta_doc, spec_hash, TEXT),
	IS(meta_doc, created_ms, I64), AS("files_group", meta_doc, gid, U32, IF(meta_doc, shared)),
};
static const struct ptc_members meta_members = PTC_MEMBERS(meta_rows, struct ptc_meta_doc);

ENCODE(meta, WRITTEN)

int ptc_meta_doc_decode(const char *json, size_t len, struct ptc_meta_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_meta_doc d = { .gid = NO_GROUP };
	int rc = unpack("job meta document", NULL, &meta_members, json, len, &d, err);

	if (rc)
		return rc;
	d.shared = d.gid != NO_GROUP;
	d.gid = d.shared ? d.gid : 0;
	*ret_doc = d;
	return 0;
}

/* ---- record -------------------------------------------------------------- */

static const char *const runs[PTC_RUN_COUNT] = {
	[PTC_RUN_NONE] = "none", [PTC_RUN_LIVE] = "live",     [PTC_RUN_STOPPED] = "stopped",
	[PTC_RUN_DONE] = "done", [PTC_RUN_FAILED] = "failed",
};

const char *ptc_run_name(enum ptc_run run)
{
	return (unsigned)run < PTC_RUN_COUNT ? runs[run] : "unknown";
}

const char *ptc_record_run_name(const struct ptc_record_doc *d)
{
	return d->recovery ? "recovering" : ptc_run_name(d->run);
}

static const char *const recoveries[PTC_RECOVERY_COUNT] = {
	[PTC_RECOVERY_NONE] = "none",
	[PTC_RECOVERY_NODE] = "node",
	[PTC_RECOVERY_PROGRAM] = "program",
};

static const struct ptc_member record_rows[] = {
	IS(record_doc, generation, U64, .min = 1),
	IS(record_doc, snapshot, U64),
	IS(record_doc, step, U64),
	AS("manifest", record_doc, manifest_hash, TEXT),
	{ "cursors", PTC_IS_EMPTY, .optional = true },
	IS(record_doc, run, WORD, .words = runs, .max = PTC_RUN_COUNT - 1, IF(record_doc, run)),
	IS(record_doc, incarnation, U64, IF(record_doc, run)),
	AS("switch", record_doc, switch_id, U64, IF(record_doc, switch_id)),
	IS(record_doc, recovery, WORD, .words = recoveries, .max = PTC_RECOVERY_COUNT - 1, IF(record_doc, recovery)),
	IS(record_doc, reached, U64, IF(record_doc, reached)),
	IS(record_doc, restarts, U32, IF(record_doc, restarts)),
	IS(record_doc, restarted_ms, I64, IF(record_doc, restarted_ms)),
	IS(record_doc, failed_step, U64, IF(record_doc, failed_step)),
	IS(record_doc, hung, BOOL, IF(record_doc, hung)),
};
static const struct ptc_members record_members = PTC_MEMBERS(record_rows, struct ptc_record_doc);

ENCODE(record, WRITTEN)
DECODE(record, "record document", d.snapshot || d.run != PTC_RUN_NONE, 0)

/* ---- intent -------------------------------------------------------------- */

#define NEED_WITHOUT   "without" /* who passes it over takes tables that nobody has cleaned for this switch's */
#define NEED_PLACEMENT "placement"
#define NEED_SKIP_DATA "skip_data" /* who passes it over goes back in the data, too */

static const char *const kinds[] = {
	[PTC_SWITCH_RESIZE] = "resize",
	[PTC_SWITCH_IMPORT] = "import",
	[PTC_SWITCH_SNAPSHOT] = "snapshot",
	[PTC_SWITCH_HALT] = "halt",
};

/* Of the same struct: a map in the document only. */
static const struct ptc_member intent_run_rows[] = {
	AS("from", intent_doc, run_from, BOOL),
	AS("to", intent_doc, run_to, BOOL),
	IS(intent_doc, end, WORD, .words = runs, .max = PTC_RUN_COUNT - 1),
	IS(intent_doc, stop, U64),
	IS(intent_doc, held, BOOL, IF(intent_doc, held)),
	IS(intent_doc, reached, U64, IF(intent_doc, reached)),
	IS(intent_doc, leaves, BOOL, IF(intent_doc, leaves)),
};
static const struct ptc_members intent_run_members = PTC_MEMBERS(intent_run_rows, struct ptc_intent_doc);

static const struct ptc_member intent_rows[] = {
	IS(intent_doc, id, U64, .min = 1),
	IS(intent_doc, kind, WORD, .words = kinds, .max = PTC_ARRAY_LEN(kinds) - 1),
	IS(intent_doc, from_generation, U64),
	IS(intent_doc, from_snapshot, U64),
	IS(intent_doc, to_generation, U64, .min = 1),
	IS(intent_doc, to_snapshot, U64),
	AS("generation", intent_doc, generation_hash, TEXT),
	IS(intent_doc, started_ms, I64),
	{ "run", PTC_IS_MAP, .of = &intent_run_members, .if_offset = offsetof(struct ptc_intent_doc, run_from),
	  .if_size = offsetof(struct ptc_intent_doc, run_to) + 1 - offsetof(struct ptc_intent_doc, run_from) },
	IS(intent_doc, without, TEXT, IF_TEXT(intent_doc, without)),
	IS(intent_doc, source, U64, IF(intent_doc, source)),
	IS(intent_doc, skip_data, BOOL, IF(intent_doc, skip_data)),
	IS(intent_doc, recovers, BOOL, IF(intent_doc, recovers)),
};
static const struct ptc_members intent_members = PTC_MEMBERS(intent_rows, struct ptc_intent_doc);

char *ptc_intent_doc_encode(const struct ptc_intent_doc *d)
{
	json_t *root = ptc_members_to_doc(WRITTEN, &intent_members, d);

	if (root && ((d->without[0] && put_need(root, NEED_WITHOUT) != 0) ||
		     (d->skip_data && put_need(root, NEED_SKIP_DATA) != 0))) {
		json_decref(root);
		return NULL;
	}
	return dump(root);
}

int ptc_intent_doc_decode(const char *json, size_t len, struct ptc_intent_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_intent_doc d = { 0 };
	static const char *const known[] = { NEED_WITHOUT, NEED_SKIP_DATA, NULL };
	int rc = unpack("intent document", known, &intent_members, json, len, &d, err);

	if (rc == 0 && ((!d.to_snapshot && !d.run_to) || (d.skip_data && !d.source)))
		rc = ptc_error_set(err, PTC_EINVAL, "intent document: its members contradict each other");
	if (rc == 0)
		*ret_doc = d;
	return rc;
}

bool ptc_intent_without(const struct ptc_intent_doc *d, const char *node)
{
	const size_t len = strlen(node);

	for (const char *at = d->without; *at; at += strspn(at, " ")) {
		size_t n = strcspn(at, " ");

		if (n == len && memcmp(at, node, n) == 0)
			return true;
		at += n;
	}
	return false;
}

int ptc_intent_without_add(struct ptc_intent_doc *d, const char *node)
{
	const size_t len = strlen(d->without);

	if (ptc_intent_without(d, node))
		return 0;
	if (len + strlen(node) + 2 > sizeof d->without)
		return PTC_ELIMIT;
	snprintf(d->without + len, sizeof d->without - len, "%s%s", len ? " " : "", node);
	return 0;
}

/* ---- generation ---------------------------------------------------------- */

static const struct ptc_member name_rows[] = { { NULL, PTC_IS_STRING, .size = sizeof(char *), .max = PTC_NAME_MAX } };
static const struct ptc_members name_members = PTC_MEMBERS(name_rows, char *);
static const struct ptc_member generation_rows[] = {
	IS(generation_doc, config, STRING),
	IS(generation_doc, nodes, LIST, COUNT(generation_doc, nnodes), .max = PTC_MAX_NODES, .of = &name_members),
	AS("layout", generation_doc, layout_hash, TEXT, IF_TEXT(generation_doc, layout_hash)),
	IS(generation_doc, cost_linear, U64, IF(generation_doc, cost_linear)),
	IS(generation_doc, cost_square, U64, IF(generation_doc, cost_square)),
};
static const struct ptc_members generation_members = PTC_MEMBERS(generation_rows, struct ptc_generation_doc);
static const struct ptc_members before_ranks = { generation_rows, 2, 0, false },
				after_ranks = { generation_rows + 2, 3, 0, false };

char *ptc_generation_doc_encode(const struct ptc_generation_doc *d)
{
	json_t *ranks = json_array(), *root = ptc_members_to_doc(WRITTEN, &before_ranks, d);

	for (uint32_t r = 0; r < d->world; r++)
		json_array_append_new(ranks,
				      json_pack("[I,I]", (json_int_t)d->rank_node[r], (json_int_t)d->rank_device[r]));
	if (json_object_set_new(root, "ranks", ranks) || ptc_members_put(root, &after_ranks, d)) {
		json_decref(root);
		return NULL;
	}
	return dump(root);
}

void ptc_generation_doc_done(struct ptc_generation_doc *d)
{
	ptc_members_done(&generation_members, d);
	ptc_free(d->rank_node);
	ptc_free(d->rank_device);
	memset(d, 0, sizeof *d);
}

bool ptc_generation_doc_names(const struct ptc_generation_doc *d, const char *node)
{
	for (size_t i = 0; i < d->nnodes; i++)
		if (strcmp(d->nodes[i], node) == 0)
			return true;
	return false;
}

bool ptc_generation_doc_gives(const struct ptc_generation_doc *d, const char *node, uint32_t device)
{
	for (uint32_t r = 0; r < d->world; r++)
		if (d->rank_device[r] == device && strcmp(d->nodes[d->rank_node[r]], node) == 0)
			return true;
	return false;
}

static int ranks_alloc(struct ptc_generation_doc *d, size_t world)
{
	d->rank_node = ptc_calloc(world, sizeof *d->rank_node);
	d->rank_device = ptc_calloc(world, sizeof *d->rank_device);
	d->world = (uint32_t)world;
	return d->rank_node && d->rank_device ? 0 : PTC_ENOMEM;
}

int ptc_generation_doc_copy(const struct ptc_generation_doc *d, struct ptc_generation_doc *ret_doc)
{
	struct ptc_generation_doc c = { .config = ptc_strdup(d->config),
					.nodes = ptc_calloc(d->nnodes, sizeof *c.nodes) };
	int rc = c.config && c.nodes ? ranks_alloc(&c, d->world) : PTC_ENOMEM;

	for (size_t i = 0; i < d->nnodes && rc == 0; i++) {
		c.nodes[c.nnodes++] = ptc_strdup(d->nodes[i]);
		rc = c.nodes[i] ? 0 : PTC_ENOMEM;
	}
	if (rc) {
		ptc_generation_doc_done(&c);
		return rc;
	}
	for (uint32_t i = 0; i < d->world; i++) {
		c.rank_node[i] = d->rank_node[i];
		c.rank_device[i] = d->rank_device[i];
	}
	memcpy(c.layout_hash, d->layout_hash, sizeof c.layout_hash);
	c.cost_linear = d->cost_linear;
	c.cost_square = d->cost_square;
	*ret_doc = c;
	return 0;
}

static int ranks_fill(struct ptc_generation_doc *d, const json_t *ranks, struct ptc_error *err)
{
	size_t i;
	json_t *v;

	if (!json_is_array(ranks) || json_array_size(ranks) > PTC_MAX_RANKS)
		return ptc_error_set(err, PTC_EINVAL, "generation document: \"ranks\" must be a list of at most %u",
				     PTC_MAX_RANKS);
	if (ranks_alloc(d, json_array_size(ranks)))
		return ptc_error_set(err, PTC_ENOMEM, "generation document: out of memory");
	json_array_foreach(ranks, i, v) {
		json_int_t node = -1, device = -1;

		if (json_unpack(v, "[I,I!]", &node, &device) != 0 || node < 0 || (size_t)node >= d->nnodes ||
		    device < 0 || device >= PTC_MAX_DEVICES_PER_NODE)
			return ptc_error_set(err, PTC_EINVAL,
					     "generation document: rank %zu is on no node and device of it", i);
		d->rank_node[i] = (uint32_t)node;
		d->rank_device[i] = (uint32_t)device;
	}
	return 0;
}

int ptc_generation_doc_decode(const char *json, size_t len, struct ptc_generation_doc *ret_doc, struct ptc_error *err)
{
	static const char what[] = "generation document";
	struct ptc_generation_doc d = { 0 };
	json_t *root = NULL;
	int rc = load(what, NULL, json, len, &root, err);

	if (rc == 0)
		rc = ptc_members_from_json(what, &generation_members, root, &d, err);
	if (rc == 0)
		rc = ranks_fill(&d, json_object_get(root, "ranks"), err);
	json_decref(root);
	if (rc)
		ptc_generation_doc_done(&d);
	else
		*ret_doc = d;
	return rc;
}

/* ---- manifest ------------------------------------------------------------ */

static const struct ptc_member item_rows[] = { { NULL, PTC_IS_U32, .size = sizeof(uint32_t) } };
static const struct ptc_members item_members = PTC_MEMBERS(item_rows, uint32_t);
static const struct ptc_member file_rows[] = {
	IS(file_doc, field, STRING),
	IS(file_doc, name, STRING),
	AS("header", file_doc, header_hash, TEXT),
	IS(file_doc, items, LIST, COUNT(file_doc, nitems), .of = &item_members),
};
static const struct ptc_members file_members = PTC_MEMBERS(file_rows, struct ptc_file_doc);
static const struct ptc_member layout_rows[] = {
	AS(NULL, known_layout, config, STRING),
	AS(NULL, known_layout, layout_hash, TEXT),
};
static const struct ptc_members layout_members = PTC_TUPLE(layout_rows, struct ptc_known_layout);
/* Placement in its short form: derived from the layout but for some nodes. Of the same struct: a map in the document
 * only. */
static const struct ptc_member placement_rows[] = {
	IS(manifest_doc, without, LIST, COUNT(manifest_doc, nwithout), .max = PTC_MAX_NODES, .of = &name_members),
};
static const struct ptc_members placement_members = PTC_MEMBERS(placement_rows, struct ptc_manifest_doc);
static const struct ptc_member manifest_rows[] = {
	IS(manifest_doc, generation, U64, .min = 1),
	IS(manifest_doc, snapshot, U64),
	IS(manifest_doc, step, U64),
	AS("spec", manifest_doc, spec_hash, TEXT),
	AS("layout", manifest_doc, generation_hash, TEXT),
#define BEFORE_DIGESTS 5
	IS(manifest_doc, files, LIST, COUNT(manifest_doc, nfiles), .of = &file_members),
	/* what only live jobs have */
	IS(manifest_doc, ledger, MAP, IF(manifest_doc, ledger.n), .of = &ptc_ledger_members),
	AS("state", manifest_doc, state_hash, TEXT, IF_TEXT(manifest_doc, state_hash)),
	IS(manifest_doc, layouts, LIST, COUNT(manifest_doc, nlayouts), IF(manifest_doc, nlayouts),
	   .max = PTC_KNOWN_LAYOUTS_MAX, .of = &layout_members),
	{ "placement", PTC_IS_MAP, .of = &placement_members, IF(manifest_doc, nwithout) },
};
static const struct ptc_members manifest_members = PTC_MEMBERS(manifest_rows, struct ptc_manifest_doc);
static const struct ptc_members before_digests = { manifest_rows, BEFORE_DIGESTS, 0, false };
static const struct ptc_members after_digests = { manifest_rows + BEFORE_DIGESTS,
						  PTC_ARRAY_LEN(manifest_rows) - BEFORE_DIGESTS, 0, false };

/* The text of all but the long values (formats/state/long_values.h), which are empty in it. */
static char *short_text(const struct ptc_manifest_doc *d)
{
	struct ptc_manifest_doc part = *d;
	json_t *root = ptc_members_to_doc(WRITTEN, &before_digests, d);
	char *text = NULL;

	part.files = ptc_calloc(PTC_MAX(d->nfiles, 1u), sizeof *part.files);
	for (size_t i = 0; part.files && i < d->nfiles; i++) {
		part.files[i] = d->files[i];
		part.files[i].nitems = 0;
	}
	if (part.files && json_object_set_new(root, "digests", json_string("")) == 0 &&
	    ptc_members_put(root, &after_digests, &part) == 0 &&
	    (!d->nwithout || put_need(root, NEED_PLACEMENT) == 0)) /* whoever passes it over reads what is not there */
		text = dump(root);
	else
		json_decref(root);
	ptc_free(part.files);
	return text;
}

char *ptc_manifest_doc_encode(const struct ptc_manifest_doc *d)
{
	ptc_auto_free char *text = short_text(d);
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_long_scan s = { 0 };
	struct ptc_long_value v;
	const char *from = text;
	char *all;

	if (!text)
		return NULL;
	s.at = text;
	s.end = text + strlen(text);
	while (ptc_long_next(&s, &v)) {
		ptc_buf_append(&b, from, (size_t)(v.from - from));
		if (v.digests)
			ptc_long_put_digests(&b, d->digests, d->ndigests);
		else
			ptc_long_put_items(&b, d->files[v.file].items, d->files[v.file].nitems);
		from = v.to;
	}
	ptc_buf_puts(&b, from);
	all = ptc_buf_steal(&b, &(size_t){ 0 });
	ptc_buf_done(&b);
	return all;
}

bool ptc_manifest_placed(const struct ptc_manifest_doc *d, const char *node)
{
	for (size_t i = 0; i < d->nwithout; i++)
		if (strcmp(d->without[i], node) == 0)
			return false;
	return true;
}

int ptc_manifest_without_add(struct ptc_manifest_doc *d, const char *node)
{
	char **v = ptc_reallocarray(d->without, d->nwithout + 1, sizeof *v);

	if (!v)
		return PTC_ENOMEM;
	d->without = v;
	v[d->nwithout] = ptc_strdup(node);
	return v[d->nwithout] ? (d->nwithout++, 0) : PTC_ENOMEM;
}

void ptc_manifest_doc_done(struct ptc_manifest_doc *d)
{
	ptc_members_done(&manifest_members, d);
	ptc_free(d->digests);
	memset(d, 0, sizeof *d);
}

int ptc_manifest_layout_add(struct ptc_manifest_doc *d, const char *config, const char *hash)
{
	struct ptc_known_layout *v = ptc_reallocarray(d->layouts, d->nlayouts + 1, sizeof *v), known = { 0 };

	if (!v)
		return PTC_ENOMEM;
	d->layouts = v;
	if (strlen(hash) >= sizeof known.layout_hash || !(known.config = ptc_strdup(config)))
		return PTC_ENOMEM;
	memcpy(known.layout_hash, hash, strlen(hash) + 1);
	for (size_t i = 0; i < d->nlayouts; i++)
		if (strcmp(v[i].config, config) == 0 || (i == 0 && d->nlayouts >= PTC_KNOWN_LAYOUTS_MAX)) {
			ptc_free(v[i].config);
			memmove(&v[i], &v[i + 1], (--d->nlayouts - i) * sizeof *v);
			i--;
		}
	v[d->nlayouts++] = known;
	return 0;
}

const char *ptc_manifest_layout_find(const struct ptc_manifest_doc *d, const char *config)
{
	for (size_t i = 0; i < d->nlayouts; i++)
		if (strcmp(d->layouts[i].config, config) == 0)
			return d->layouts[i].layout_hash;
	return NULL;
}

static int digests_fill(struct ptc_manifest_doc *d, const char *hex, struct ptc_error *err)
{
	size_t len = hex ? strlen(hex) : 0;

	if (!hex || len % 16 != 0 || strspn(hex, "0123456789abcdef") != len)
		return ptc_error_set(err, PTC_EINVAL,
				     "manifest document: \"digests\" must be 16 hexadecimal digits for each tensor");
	d->digests = ptc_calloc(PTC_MAX(len / 16, 1u), sizeof *d->digests);
	if (!d->digests)
		return ptc_error_set(err, PTC_ENOMEM, "manifest document: out of memory");
	for (d->ndigests = 0; d->ndigests < len / 16; d->ndigests++) {
		char one[17] = { 0 };

		memcpy(one, hex + 16 * d->ndigests, 16);
		d->digests[d->ndigests] = strtoull(one, NULL, 16);
	}
	return 0;
}

static int manifest_read(const char *json, size_t len, struct ptc_manifest_doc *ret_doc, struct ptc_error *err)
{
	static const char what[] = "manifest document";
	struct ptc_manifest_doc d = { 0 };
	json_t *root = NULL;
	static const char *const known[] = { NEED_PLACEMENT, NULL };
	int rc = load(what, known, json, len, &root, err);

	if (rc == 0)
		rc = ptc_members_from_json(what, &manifest_members, root, &d, err);
	if (rc == 0)
		rc = digests_fill(&d, json_string_value(json_object_get(root, "digests")), err);
	json_decref(root);
	if (rc)
		ptc_manifest_doc_done(&d);
	else
		*ret_doc = d;
	return rc;
}

/* Puts a long value into the document that was read from the rest. False: it has no place there, or no memory. */
static bool put_long(struct ptc_manifest_doc *d, const struct ptc_long_value *v)
{
	struct ptc_file_doc *f = v->digests || v->file >= d->nfiles ? NULL : &d->files[v->file];

	if (v->digests ? d->ndigests != 0 : !f || f->nitems != 0)
		return false;
	ptc_free(v->digests ? (void *)d->digests : f->items);
	if (v->digests)
		d->digests = NULL;
	else
		f->items = NULL;
	return (v->digests ? ptc_long_digests(v, &d->digests, &d->ndigests)
			   : ptc_long_items(v, &f->items, &f->nitems)) == 0;
}

/* False: the text is to be read as a whole, for what it has or for what its error says. */
static bool read_short(const char *json, size_t len, bool names_only, struct ptc_manifest_doc *d)
{
	struct ptc_long_scan s = { .at = json, .end = json + len };
	struct ptc_buf rest = PTC_BUF_INIT;
	struct ptc_long_value v;
	const char *from = json;
	bool fine;

	while (ptc_long_next(&s, &v)) {
		ptc_buf_append(&rest, from, (size_t)(v.from - from));
		from = v.to;
	}
	ptc_buf_append(&rest, from, (size_t)(json + len - from));
	fine = from != json && !ptc_buf_failed(&rest) && manifest_read(rest.data, rest.len, d, NULL) == 0;
	ptc_buf_done(&rest);
	if (!fine)
		return false;
	s = (struct ptc_long_scan){ .at = json, .end = json + len };
	while (fine && !names_only && ptc_long_next(&s, &v))
		fine = put_long(d, &v);
	if (!fine)
		ptc_manifest_doc_done(d);
	return fine;
}

static int manifest_decode(const char *json, size_t len, bool names_only, struct ptc_manifest_doc *ret_doc,
			   struct ptc_error *err)
{
	struct ptc_manifest_doc d = { 0 };

	if (!read_short(json, len, names_only, &d))
		return manifest_read(json, len, ret_doc, err);
	*ret_doc = d;
	return 0;
}

int ptc_manifest_doc_decode(const char *json, size_t len, struct ptc_manifest_doc *ret_doc, struct ptc_error *err)
{
	return manifest_decode(json, len, false, ret_doc, err);
}

int ptc_manifest_doc_names(const char *json, size_t len, struct ptc_manifest_doc *ret_doc, struct ptc_error *err)
{
	return manifest_decode(json, len, true, ret_doc, err);
}

/* ---- worker -------------------------------------------------------------- */

static const char *const worker_states[PTC_WORKER_STATES] = {
	[PTC_WORKER_FAILED] = "failed",
	[PTC_WORKER_FINISHED] = "finished",
	[PTC_WORKER_DUE] = "due",
};
static const struct ptc_member worker_rows[] = {
	IS(worker_doc, generation, U64, .min = 1),
	IS(worker_doc, incarnation, U64),
	IS(worker_doc, state, WORD, .words = worker_states, .max = PTC_WORKER_STATES - 1),
	IS(worker_doc, rank, U32, .max = PTC_MAX_RANKS - 1),
	IS(worker_doc, step, U64),
	AS("exit", worker_doc, exit_status, INT),
	IS(worker_doc, gone, BOOL, IF(worker_doc, gone)),
	IS(worker_doc, text, TEXT),
};
static const struct ptc_members worker_members = PTC_MEMBERS(worker_rows, struct ptc_worker_doc);

char *ptc_worker_doc_encode(const struct ptc_worker_doc *d)
{
	struct ptc_worker_doc said = *d;

	if (!ptc_name_is_utf8(said.text)) /* a log may hold anything; JSON holds only UTF-8 */
		snprintf(said.text, sizeof said.text, "(not text)");
	return dump(ptc_members_to_doc(WRITTEN, &worker_members, &said));
}

DECODE(worker, "worker document", true, 0)
