/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a document is packed with jansson, members in a fixed order,
 * compact, so that equal documents have equal hashes. Failure modes: anything
 * but the expected members and types is PTC_EINVAL naming the document; a
 * version that is not next to ours, or a need that we do not know, is PTC_EVERSION.
 * What is written is of the version that all members read (base/number/versions.h). */
#include "daemon/cluster/records.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/versions.h"

#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The version to write: all members of the cluster read it. */
#define WRITTEN ((int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION))

static char *dump(json_t *root)
{
	char *text;

	if (root && ptc_version_adds() &&
	    json_object_set_new(root, "added", json_integer((json_int_t)PTC_VERSION_ADDED))) {
		json_decref(root);
		return NULL;
	}
	text = root ? ptc_json_text(root) : NULL;

	json_decref(root);
	return text;
}

static int load(const char *what, const char *json, size_t len, json_t **ret_root, struct ptc_error *err)
{
	char name[32];
	json_t *root;
	int rc = ptc_json_load(what, json, len, &root, err);

	if (rc)
		return rc;
	snprintf(name, sizeof name, "%s document", what);
	rc = ptc_json_version(name, root, PTC_DOC_OLDEST, PTC_DOC_VERSION, err);
	if (rc) {
		json_decref(root);
		return rc;
	}
	*ret_root = root;
	return 0;
}

static int malformed(const char *what, json_t *root, struct ptc_error *err)
{
	json_decref(root);
	return ptc_error_set(err, PTC_EINVAL, "%s document: malformed or a member is missing", what);
}

/* false when src is NULL or does not fit. */
static bool take(char *dst, size_t size, const char *src)
{
	size_t len = src ? strlen(src) : size;

	if (len >= size)
		return false;
	memcpy(dst, src, len + 1);
	return true;
}

/* ---- node ---------------------------------------------------------------- */

char *ptc_node_doc_encode(const struct ptc_node_doc *d)
{
	/* The oldest there is: who is too far from us is to learn that from "documents". */
	return dump(json_pack("{s:i, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:b, s:i, s:[I,I]}", "version", PTC_DOC_OLDEST,
			      "node", d->name, "address", d->address, "devices", (json_int_t)d->devices,
			      "ceiling_bytes", (json_int_t)d->ceiling_bytes, "store_id", d->store_id, "boot_id",
			      d->boot_id, "rack", d->rack, "insecure", (int)d->insecure, "pid", d->pid, "documents",
			      (json_int_t)d->documents_oldest, (json_int_t)d->documents));
}

int ptc_node_doc_decode(const char *json, size_t len, struct ptc_node_doc *ret_doc, struct ptc_error *err)
{
	const char *name = NULL, *address = NULL, *store_id = NULL, *boot_id = NULL, *rack = NULL;
	struct ptc_node_doc d = { 0 };
	json_int_t devices = 0, ceiling = 0, oldest = 1, newest = 1; /* of a ptcd that says none */
	int insecure = 0;
	json_t *root, *documents;
	int rc = load("node", json, len, &root, err);

	if (rc)
		return rc;
	documents = json_object_get(root, "documents");
	if (documents && json_unpack(documents, "[I,I]", &oldest, &newest) != 0)
		oldest = 0;
	if (json_unpack(root, "{s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:b, s:i}", "node", &name, "address", &address,
			"devices", &devices, "ceiling_bytes", &ceiling, "store_id", &store_id, "boot_id", &boot_id,
			"rack", &rack, "insecure", &insecure, "pid", &d.pid) != 0 ||
	    !take(d.name, sizeof d.name, name) || !take(d.address, sizeof d.address, address) ||
	    !take(d.store_id, sizeof d.store_id, store_id) || !take(d.boot_id, sizeof d.boot_id, boot_id) ||
	    !take(d.rack, sizeof d.rack, rack) || devices < 0 || devices > PTC_MAX_DEVICES_PER_NODE || ceiling < 0 ||
	    oldest < 1 || newest < oldest || newest > UINT32_MAX)
		return malformed("node", root, err);
	d.devices = (uint32_t)devices;
	d.ceiling_bytes = (uint64_t)ceiling;
	d.insecure = insecure;
	d.documents_oldest = (uint32_t)oldest;
	d.documents = (uint32_t)newest;
	json_decref(root);
	*ret_doc = d;
	return 0;
}

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

#define NO_GROUP ((json_int_t)UINT32_MAX) /* as a gid it is none */

char *ptc_meta_doc_encode(const struct ptc_meta_doc *d)
{
	return dump(json_pack("{s:i, s:s, s:s, s:I, s:s, s:I, s:o*}", "version", WRITTEN, "uuid", d->uuid, "name",
			      d->name, "uid", (json_int_t)d->uid, "spec", d->spec_hash, "created_ms",
			      (json_int_t)d->created_ms, "files_group",
			      d->shared ? json_integer((json_int_t)d->gid) : NULL));
}

int ptc_meta_doc_decode(const char *json, size_t len, struct ptc_meta_doc *ret_doc, struct ptc_error *err)
{
	const char *uuid = NULL, *name = NULL, *spec = NULL;
	struct ptc_meta_doc d = { 0 };
	json_int_t uid = -1, created = 0, gid = NO_GROUP;
	json_t *root;
	int rc = load("job meta", json, len, &root, err);

	if (rc)
		return rc;
	if (json_unpack(root, "{s:s, s:s, s:I, s:s, s:I, s?I}", "uuid", &uuid, "name", &name, "uid", &uid, "spec",
			&spec, "created_ms", &created, "files_group", &gid) != 0 ||
	    !take(d.uuid, sizeof d.uuid, uuid) || !take(d.name, sizeof d.name, name) ||
	    !take(d.spec_hash, sizeof d.spec_hash, spec) || uid < 0 || uid > UINT32_MAX || gid < 0 || gid > NO_GROUP)
		return malformed("job meta", root, err);
	d.uid = (uid_t)uid;
	d.shared = gid != NO_GROUP;
	d.gid = d.shared ? (gid_t)gid : 0;
	d.created_ms = created;
	json_decref(root);
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

/* The place of a name in a list; false: it is not there. */
static bool name_find(const char *const *names, int n, const char *name, int *ret)
{
	for (int i = 0; name && i < n; i++)
		if (strcmp(names[i], name) == 0) {
			*ret = i;
			return true;
		}
	return false;
}

char *ptc_record_doc_encode(const struct ptc_record_doc *d)
{
	json_t *root = json_pack("{s:i, s:I, s:I, s:I, s:s, s:{}}", "version", WRITTEN, "generation",
				 (json_int_t)d->generation, "snapshot", (json_int_t)d->snapshot, "step",
				 (json_int_t)d->step, "manifest", d->manifest_hash, "cursors");

	if (root && d->run != PTC_RUN_NONE &&
	    (json_object_set_new(root, "run", json_string(runs[d->run])) != 0 ||
	     json_object_set_new(root, "incarnation", json_integer((json_int_t)d->incarnation)))) {
		json_decref(root);
		return NULL;
	}
	if (root && d->switch_id && json_object_set_new(root, "switch", json_integer((json_int_t)d->switch_id))) {
		json_decref(root);
		return NULL;
	}
	return dump(root);
}

int ptc_record_doc_decode(const char *json, size_t len, struct ptc_record_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_record_doc d = { 0 };
	json_int_t generation = 0, snapshot = 0, step = 0, incarnation = 0, switch_id = 0;
	const char *manifest = NULL, *run = runs[PTC_RUN_NONE];
	int number = 0;
	json_t *root;
	int rc = load("record", json, len, &root, err);

	if (rc)
		return rc;
	if (json_unpack(root, "{s:I, s:I, s:I, s:s, s?s, s?I, s?I}", "generation", &generation, "snapshot", &snapshot,
			"step", &step, "manifest", &manifest, "run", &run, "incarnation", &incarnation, "switch",
			&switch_id) != 0 ||
	    generation < 1 || snapshot < 0 || step < 0 || incarnation < 0 || switch_id < 0 ||
	    !name_find(runs, PTC_RUN_COUNT, run, &number) || (snapshot == 0 && number == PTC_RUN_NONE) ||
	    !take(d.manifest_hash, sizeof d.manifest_hash, manifest))
		return malformed("record", root, err);
	d.generation = (uint64_t)generation;
	d.snapshot = (uint64_t)snapshot;
	d.step = (uint64_t)step;
	d.run = (enum ptc_run)number;
	d.incarnation = (uint64_t)incarnation;
	d.switch_id = (uint64_t)switch_id;
	json_decref(root);
	*ret_doc = d;
	return 0;
}

/* ---- intent -------------------------------------------------------------- */

static const char *const kinds[] = {
	[PTC_SWITCH_RESIZE] = "resize",
	[PTC_SWITCH_IMPORT] = "import",
	[PTC_SWITCH_SNAPSHOT] = "snapshot",
	[PTC_SWITCH_HALT] = "halt",
};

char *ptc_intent_doc_encode(const struct ptc_intent_doc *d)
{
	json_t *root =
		json_pack("{s:i, s:I, s:s, s:I, s:I, s:I, s:I, s:s, s:I}", "version", WRITTEN, "id", (json_int_t)d->id,
			  "kind", kinds[d->kind], "from_generation", (json_int_t)d->from_generation, "from_snapshot",
			  (json_int_t)d->from_snapshot, "to_generation", (json_int_t)d->to_generation, "to_snapshot",
			  (json_int_t)d->to_snapshot, "generation", d->generation_hash, "started_ms",
			  (json_int_t)d->started_ms);
	json_t *run = NULL;

	if (d->run_from || d->run_to)
		run = json_pack("{s:b, s:b, s:s, s:I}", "from", (int)d->run_from, "to", (int)d->run_to, "end",
				runs[d->end], "stop", (json_int_t)d->stop);
	if (root && run && json_object_set_new(root, "run", run) != 0) {
		json_decref(root);
		return NULL;
	}
	return dump(root);
}

static bool intent_run(json_t *run, struct ptc_intent_doc *d)
{
	int from = 0, to = 0, number = 0;
	const char *end = NULL;
	json_int_t stop = 0;

	if (!run)
		return true;
	if (json_unpack(run, "{s:b, s:b, s:s, s:I}", "from", &from, "to", &to, "end", &end, "stop", &stop) != 0 ||
	    !name_find(runs, PTC_RUN_COUNT, end, &number) || stop < 0)
		return false;
	d->run_from = from;
	d->run_to = to;
	d->end = (enum ptc_run)number;
	d->stop = (uint64_t)stop;
	return true;
}

int ptc_intent_doc_decode(const char *json, size_t len, struct ptc_intent_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_intent_doc d = { 0 };
	json_int_t id = 0, fg = 0, fs = 0, tg = 0, ts = 0, started = 0;
	const char *kind = NULL, *generation = NULL;
	json_t *root, *run = NULL;
	int number = 0, rc = load("intent", json, len, &root, err);

	if (rc)
		return rc;
	if (json_unpack(root, "{s:I, s:s, s:I, s:I, s:I, s:I, s:s, s:I, s?o}", "id", &id, "kind", &kind,
			"from_generation", &fg, "from_snapshot", &fs, "to_generation", &tg, "to_snapshot", &ts,
			"generation", &generation, "started_ms", &started, "run", &run) != 0 ||
	    !take(d.generation_hash, sizeof d.generation_hash, generation) || id < 1 || fg < 0 || fs < 0 || tg < 1 ||
	    ts < 0 || !name_find(kinds, PTC_ARRAY_LEN(kinds), kind, &number) || !intent_run(run, &d) ||
	    (ts == 0 && !d.run_to))
		return malformed("intent", root, err);
	d.kind = (enum ptc_switch_kind)number;
	d.id = (uint64_t)id;
	d.from_generation = (uint64_t)fg;
	d.from_snapshot = (uint64_t)fs;
	d.to_generation = (uint64_t)tg;
	d.to_snapshot = (uint64_t)ts;
	d.started_ms = started;
	json_decref(root);
	*ret_doc = d;
	return 0;
}

/* ---- generation ---------------------------------------------------------- */

char *ptc_generation_doc_encode(const struct ptc_generation_doc *d)
{
	json_t *nodes = json_array(), *ranks = json_array(), *root;

	for (size_t i = 0; i < d->nnodes; i++)
		json_array_append_new(nodes, json_string(d->nodes[i]));
	for (uint32_t r = 0; r < d->world; r++)
		json_array_append_new(ranks,
				      json_pack("[I,I]", (json_int_t)d->rank_node[r], (json_int_t)d->rank_device[r]));
	root = json_pack("{s:i, s:s, s:o, s:o}", "version", WRITTEN, "config", d->config, "nodes", nodes, "ranks",
			 ranks);
	if (root && d->layout_hash[0] && json_object_set_new(root, "layout", json_string(d->layout_hash)) != 0) {
		json_decref(root);
		return NULL;
	}
	return dump(root);
}

void ptc_generation_doc_done(struct ptc_generation_doc *d)
{
	for (size_t i = 0; i < d->nnodes; i++)
		ptc_free(d->nodes[i]);
	ptc_free(d->nodes);
	ptc_free(d->config);
	ptc_free(d->rank_node);
	ptc_free(d->rank_device);
	memset(d, 0, sizeof *d);
}

static int generation_alloc(struct ptc_generation_doc *d, const char *config, size_t nnodes, uint32_t world)
{
	memset(d, 0, sizeof *d);
	d->config = ptc_strdup(config);
	d->nodes = ptc_calloc(nnodes, sizeof *d->nodes);
	d->rank_node = ptc_calloc(world, sizeof *d->rank_node);
	d->rank_device = ptc_calloc(world, sizeof *d->rank_device);
	if (!d->config || !d->nodes || !d->rank_node || !d->rank_device) {
		ptc_generation_doc_done(d);
		return PTC_ENOMEM;
	}
	d->nnodes = nnodes;
	d->world = world;
	return 0;
}

int ptc_generation_doc_copy(const struct ptc_generation_doc *d, struct ptc_generation_doc *ret_doc)
{
	struct ptc_generation_doc c;
	int rc = generation_alloc(&c, d->config, d->nnodes, d->world);

	if (rc)
		return rc;
	for (size_t i = 0; i < d->nnodes && rc == 0; i++) {
		c.nodes[i] = ptc_strdup(d->nodes[i]);
		rc = c.nodes[i] ? 0 : PTC_ENOMEM;
	}
	if (rc) {
		ptc_generation_doc_done(&c);
		return rc;
	}
	memcpy(c.rank_node, d->rank_node, d->world * sizeof *c.rank_node);
	memcpy(c.rank_device, d->rank_device, d->world * sizeof *c.rank_device);
	memcpy(c.layout_hash, d->layout_hash, sizeof c.layout_hash);
	*ret_doc = c;
	return 0;
}

static bool generation_fill(struct ptc_generation_doc *d, json_t *nodes, json_t *ranks)
{
	size_t i;
	json_t *v;

	json_array_foreach(nodes, i, v) {
		if (!json_is_string(v) || json_string_length(v) > PTC_NAME_MAX)
			return false;
		d->nodes[i] = ptc_strdup(json_string_value(v));
		if (!d->nodes[i])
			return false;
	}
	json_array_foreach(ranks, i, v) {
		json_int_t node = -1, device = -1;

		if (json_unpack(v, "[I,I!]", &node, &device) != 0 || node < 0 || (size_t)node >= d->nnodes ||
		    device < 0 || device >= PTC_MAX_DEVICES_PER_NODE)
			return false;
		d->rank_node[i] = (uint32_t)node;
		d->rank_device[i] = (uint32_t)device;
	}
	return true;
}

int ptc_generation_doc_decode(const char *json, size_t len, struct ptc_generation_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_generation_doc d;
	const char *config = NULL, *layout = "";
	json_t *root, *nodes = NULL, *ranks = NULL;
	int rc = load("generation", json, len, &root, err);

	if (rc)
		return rc;
	if (json_unpack(root, "{s:s, s:o, s:o, s?s}", "config", &config, "nodes", &nodes, "ranks", &ranks, "layout",
			&layout) != 0 ||
	    strlen(layout) >= PTC_HASH_HEX || !json_is_array(nodes) || !json_is_array(ranks) ||
	    json_array_size(nodes) > PTC_MAX_NODES || json_array_size(ranks) > PTC_MAX_RANKS)
		return malformed("generation", root, err);
	rc = generation_alloc(&d, config, json_array_size(nodes), (uint32_t)json_array_size(ranks));
	if (rc) {
		json_decref(root);
		return ptc_error_set(err, rc, "generation document: out of memory");
	}
	take(d.layout_hash, sizeof d.layout_hash, layout);
	if (!generation_fill(&d, nodes, ranks)) {
		ptc_generation_doc_done(&d);
		return malformed("generation", root, err);
	}
	json_decref(root);
	*ret_doc = d;
	return 0;
}

/* ---- manifest ------------------------------------------------------------ */

static json_t *file_pack(const struct ptc_file_doc *f)
{
	json_t *items = json_array();

	for (size_t i = 0; i < f->nitems; i++)
		json_array_append_new(items, json_integer(f->items[i]));
	return json_pack("{s:s, s:s, s:s, s:o}", "field", f->field, "name", f->name, "header", f->header_hash, "items",
			 items);
}

/* What only live jobs have. */
static int manifest_live(json_t *root, const struct ptc_manifest_doc *d)
{
	json_t *layouts;
	int rc = 0;

	if (d->ledger.n)
		rc = json_object_set_new(root, "ledger", ptc_ledger_to_json(&d->ledger));
	if (rc)
		return rc;
	if (d->state_hash[0])
		rc = json_object_set_new(root, "state", json_string(d->state_hash));
	if (rc || d->nlayouts == 0)
		return rc;
	layouts = json_array();
	for (size_t i = 0; i < d->nlayouts; i++)
		json_array_append_new(layouts, json_pack("[s,s]", d->layouts[i].config, d->layouts[i].layout_hash));
	return json_object_set_new(root, "layouts", layouts);
}

char *ptc_manifest_doc_encode(const struct ptc_manifest_doc *d)
{
	json_t *files = json_array(), *root;
	struct ptc_buf hex = PTC_BUF_INIT;
	char *text;

	for (size_t i = 0; i < d->ndigests; i++)
		ptc_buf_printf(&hex, "%016" PRIx64, d->digests[i]);
	for (size_t i = 0; i < d->nfiles; i++)
		json_array_append_new(files, file_pack(&d->files[i]));
	root = json_pack("{s:i, s:I, s:I, s:I, s:s, s:s, s:s, s:o}", "version", WRITTEN, "generation",
			 (json_int_t)d->generation, "snapshot", (json_int_t)d->snapshot, "step", (json_int_t)d->step,
			 "spec", d->spec_hash, "layout", d->generation_hash, "digests", hex.data ? hex.data : "",
			 "files", files);
	if (root && manifest_live(root, d) != 0) {
		json_decref(root);
		root = NULL;
	}
	text = dump(root);
	if (ptc_buf_failed(&hex)) {
		ptc_free(text);
		text = NULL;
	}
	ptc_buf_done(&hex);
	return text;
}

void ptc_manifest_doc_done(struct ptc_manifest_doc *d)
{
	for (size_t i = 0; i < d->nfiles; i++) {
		ptc_free(d->files[i].field);
		ptc_free(d->files[i].name);
		ptc_free(d->files[i].items);
	}
	for (size_t i = 0; i < d->nlayouts; i++)
		ptc_free(d->layouts[i].config);
	ptc_free(d->layouts);
	ptc_ledger_done(&d->ledger);
	ptc_free(d->files);
	ptc_free(d->digests);
	memset(d, 0, sizeof *d);
}

int ptc_manifest_layout_add(struct ptc_manifest_doc *d, const char *config, const char *hash)
{
	struct ptc_known_layout *v = ptc_reallocarray(d->layouts, d->nlayouts + 1, sizeof *v), known = { 0 };

	if (!v)
		return PTC_ENOMEM;
	d->layouts = v;
	if (!take(known.layout_hash, sizeof known.layout_hash, hash) || !(known.config = ptc_strdup(config)))
		return PTC_ENOMEM;
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

static bool layouts_fill(struct ptc_manifest_doc *d, json_t *layouts)
{
	size_t i;
	json_t *v;

	if (!layouts)
		return true;
	if (!json_is_array(layouts) || json_array_size(layouts) > PTC_KNOWN_LAYOUTS_MAX)
		return false;
	json_array_foreach(layouts, i, v) {
		const char *config = NULL, *hash = NULL;

		if (json_unpack(v, "[s,s!]", &config, &hash) != 0 || strlen(hash) >= PTC_HASH_HEX ||
		    ptc_manifest_layout_add(d, config, hash) != 0)
			return false;
	}
	return true;
}

static bool digests_fill(struct ptc_manifest_doc *d, const char *hex)
{
	size_t len = strlen(hex);

	if (len % 16 != 0)
		return false;
	d->ndigests = len / 16;
	d->digests = ptc_calloc(d->ndigests, sizeof *d->digests);
	if (!d->digests)
		return false;
	for (size_t i = 0; i < d->ndigests; i++) {
		char one[17] = { 0 };

		memcpy(one, hex + 16 * i, 16);
		if (strspn(one, "0123456789abcdef") != 16) /* strtoull would take signs, spaces and 0x */
			return false;
		d->digests[i] = strtoull(one, NULL, 16);
	}
	return true;
}

static bool file_fill(struct ptc_file_doc *f, json_t *v)
{
	const char *field = NULL, *name = NULL, *header = NULL;
	json_t *items = NULL, *item;
	size_t i;

	if (json_unpack(v, "{s:s, s:s, s:s, s:o}", "field", &field, "name", &name, "header", &header, "items",
			&items) != 0 ||
	    !json_is_array(items) || !take(f->header_hash, sizeof f->header_hash, header))
		return false;
	f->field = ptc_strdup(field);
	f->name = ptc_strdup(name);
	f->items = ptc_calloc(json_array_size(items), sizeof *f->items);
	if (!f->field || !f->name || !f->items)
		return false;
	f->nitems = json_array_size(items);
	json_array_foreach(items, i, item) {
		if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > UINT32_MAX)
			return false;
		f->items[i] = (uint32_t)json_integer_value(item);
	}
	return true;
}

static bool files_fill(struct ptc_manifest_doc *d, json_t *files)
{
	size_t i;
	json_t *v;

	d->files = ptc_calloc(json_array_size(files), sizeof *d->files);
	if (!d->files)
		return false;
	d->nfiles = json_array_size(files);
	json_array_foreach(files, i, v)
		if (!file_fill(&d->files[i], v))
			return false;
	return true;
}

int ptc_manifest_doc_decode(const char *json, size_t len, struct ptc_manifest_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_manifest_doc d = { 0 };
	json_int_t generation = 0, snapshot = 0, step = 0;
	const char *spec = NULL, *layout = NULL, *digests = NULL, *state = "";
	json_t *root, *files = NULL, *layouts = NULL, *ledger = NULL;
	int rc = load("manifest", json, len, &root, err);

	if (rc)
		return rc;
	if (json_unpack(root, "{s:I, s:I, s:I, s:s, s:s, s:s, s:o, s?s, s?o, s?o}", "generation", &generation,
			"snapshot", &snapshot, "step", &step, "spec", &spec, "layout", &layout, "digests", &digests,
			"files", &files, "state", &state, "layouts", &layouts, "ledger", &ledger) != 0 ||
	    !json_is_array(files) || generation < 1 || snapshot < 0 || step < 0 ||
	    !take(d.state_hash, sizeof d.state_hash, state) || !layouts_fill(&d, layouts) ||
	    (ledger && ptc_ledger_from_json(ledger, &d.ledger) != 0) || !take(d.spec_hash, sizeof d.spec_hash, spec) ||
	    !take(d.generation_hash, sizeof d.generation_hash, layout) || !digests_fill(&d, digests) ||
	    !files_fill(&d, files)) {
		ptc_manifest_doc_done(&d);
		return malformed("manifest", root, err);
	}
	d.generation = (uint64_t)generation;
	d.snapshot = (uint64_t)snapshot;
	d.step = (uint64_t)step;
	json_decref(root);
	*ret_doc = d;
	return 0;
}

/* ---- worker -------------------------------------------------------------- */

static const char *const worker_states[PTC_WORKER_STATES] = {
	[PTC_WORKER_FAILED] = "failed",
	[PTC_WORKER_FINISHED] = "finished",
	[PTC_WORKER_DUE] = "due",
};

char *ptc_worker_doc_encode(const struct ptc_worker_doc *d)
{
	/* a log may hold anything; JSON holds only UTF-8 */
	json_t *text = json_string(d->text);

	return dump(json_pack("{s:i, s:I, s:I, s:s, s:I, s:I, s:i, s:o}", "version", WRITTEN, "generation",
			      (json_int_t)d->generation, "incarnation", (json_int_t)d->incarnation, "state",
			      worker_states[d->state], "rank", (json_int_t)d->rank, "step", (json_int_t)d->step, "exit",
			      d->exit_status, "text", text ? text : json_string("(not text)")));
}

int ptc_worker_doc_decode(const char *json, size_t len, struct ptc_worker_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_worker_doc d = { 0 };
	json_int_t generation = 0, incarnation = 0, rank = 0, step = 0;
	const char *state = NULL, *text = NULL;
	int number = 0;
	json_t *root;
	int rc = load("worker", json, len, &root, err);

	if (rc)
		return rc;
	if (json_unpack(root, "{s:I, s:I, s:s, s:I, s:I, s:i, s:s}", "generation", &generation, "incarnation",
			&incarnation, "state", &state, "rank", &rank, "step", &step, "exit", &d.exit_status, "text",
			&text) != 0 ||
	    generation < 1 || incarnation < 0 || rank < 0 || rank >= PTC_MAX_RANKS || step < 0 ||
	    !name_find(worker_states, PTC_WORKER_STATES, state, &number) || !take(d.text, sizeof d.text, text))
		return malformed("worker", root, err);
	d.generation = (uint64_t)generation;
	d.incarnation = (uint64_t)incarnation;
	d.rank = (uint32_t)rank;
	d.step = (uint64_t)step;
	d.state = (enum ptc_worker_state)number;
	json_decref(root);
	*ret_doc = d;
	return 0;
}
