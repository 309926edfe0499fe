/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an import: its commit, on the controller.
 *
 * Happy path: what the client says of its files, of ranks' states and of the samples consumed (the ledger) is checked
 * and kept; the controller seals, compares digests with what the client read, and commits. Failure modes: what does not
 * describe the job's tensors (PTC_EINVAL naming the file), bytes that are not what the client read (PTC_EDIGEST naming
 * the tensor). */
#include "base/alloc.h"
#include "base/check.h"
#include "daemon/api/reads/reads.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/quota.h"
#include "formats/dataset/ledger.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>

#define FILE_NAME_MAX 255

struct commit {
	struct ptc_daemon *d;
	const char *uuid;
	uint64_t id;
	struct ptc_manifest_doc imported;
	struct ptc_watcher *watcher;
	struct ptc_error *err;
	int rc;
};

static void commit_on_loop(void *arg)
{
	struct commit *c = arg;
	struct ptc_controller *ctl = ptc_controller_find(&c->d->controllers, c->uuid);

	c->rc = ctl ? ptc_controller_filled(ctl, c->id, &c->imported, c->watcher, c->err)
		    : ptc_error_set(c->err, PTC_ESTATE, "this daemon does not control the job any more; import again");
	if (c->rc && ctl)
		ptc_controller_tidy(ctl);
}

/* What is kept goes into the manifest, which every daemon reads: only what describes this job's tensors may. */
static int check_file(const struct ptc_spec *spec, const Ptc__V1__ImportedFile *f, bool *seen, struct ptc_error *err)
{
	size_t items = ptc_spec_items(spec), field = 0;

	while (field < spec->nfields && strcmp(f->field, spec->fields[field].name) != 0)
		field++;
	if (field == spec->nfields && strcmp(f->field, "param") != 0)
		return ptc_error_set(err, PTC_EINVAL,
				     "an imported file is of field \"%.63s\", but the job has no such field", f->field);
	if (!f->name[0] || strlen(f->name) > FILE_NAME_MAX || strchr(f->name, '/'))
		return ptc_error_set(err, PTC_EINVAL,
				     "an imported file has the name \"%.100s\"; a name has 1 to %d bytes, and no '/'",
				     f->name, FILE_NAME_MAX);
	if (f->header.len < 8)
		return ptc_error_set(err, PTC_EINVAL,
				     "imported file %s has a header of %zu bytes; at least 8 are needed", f->name,
				     f->header.len);
	for (size_t i = 0; i < f->n_items; i++) {
		if (f->items[i] >= items || seen[f->items[i]])
			return ptc_error_set(
				err, PTC_EINVAL,
				"imported file %s names item %u twice, or it is not one of the job's %zu items",
				f->name, f->items[i], items);
		seen[f->items[i]] = true;
	}
	return 0;
}

/* A file name may be any bytes; JSON may not. Such a file is exported with a header of ours. */
static bool keepable(const Ptc__V1__ImportedFile *f)
{
	json_t *name = json_string(f->name);

	json_decref(name);
	return name != NULL;
}

static int check_request(const struct ptc_spec *spec, const Ptc__V1__ImportCommitRequest *req, struct ptc_error *err)
{
	size_t items = ptc_spec_items(spec);
	bool *seen = ptc_calloc(items, sizeof *seen);
	int rc = seen ? 0 : ptc_nomem(err);

	if (rc == 0 && req->n_digests != items)
		rc = ptc_error_set(err, PTC_EINVAL, "the client sent %zu digests, but the job has %zu items",
				   req->n_digests, items);
	if (rc == 0 && req->n_files > PTC_MAX(items, 1))
		rc = ptc_error_set(err, PTC_EINVAL, "the client sent %zu files, but the job has %zu items",
				   req->n_files, items);
	for (size_t i = 0; rc == 0 && i < req->n_files; i++)
		rc = check_file(spec, req->files[i], seen, err);
	ptc_free(seen);
	return rc;
}

/* The tensors are those of the job's description, or those that ranks once declared. */
static int check_commit(struct ptc_daemon *d, const struct ptc_meta_doc *meta, const Ptc__V1__ImportCommitRequest *req,
			struct ptc_error *err)
{
	const struct ptc_declared *declared;
	const struct ptc_layout *layout;
	const struct ptc_job_desc *desc;
	char hash[PTC_HASH_HEX];
	void *ref;
	int rc = ptc_api_import_layout(d, meta->uuid, req->import_id, hash, err);

	if (rc == 0 && hash[0]) {
		rc = ptc_layouts_get(d->docs.layouts, meta->uuid, hash, &declared, &layout, &ref, err);
		if (rc)
			return rc;
		rc = check_request(&declared->spec, req, err);
		ptc_layouts_release(ref);
		return rc;
	}
	if (rc == 0)
		rc = ptc_specs_get(d->docs.specs, meta->uuid, meta->spec_hash, &desc, &ref, err);
	if (rc)
		return rc;
	rc = check_request(&desc->spec, req, err);
	ptc_specs_release(ref);
	return rc;
}

/* Of headers, which are kept for exports that have the same. */
static size_t header_bytes(const Ptc__V1__ImportCommitRequest *req)
{
	size_t total = 0;

	for (size_t i = 0; i < req->n_files; i++)
		total += req->files[i]->header.len;
	return total <= PTC_IMPORT_HEADERS_MAX_BYTES ? total : 0;
}

/* A blob of the job's, for as long as the job is there. */
static int put_blob(struct commit *c, const void *data, size_t len, char *ret_hash, struct ptc_error *err)
{
	char meta[96];

	snprintf(meta, sizeof meta, "/ptc/jobs/%s/meta", c->uuid); /* written once */
	return ptc_blob_put(ptc_cluster_etcd(c->d->cluster), c->uuid,
			    &(struct ptc_etcd_compare){ meta, PTC_ETCD_VERSION, 1 }, data, len, ret_hash, err);
}

static int keep_header(struct commit *c, const Ptc__V1__ImportedFile *f, struct ptc_file_doc *doc,
		       struct ptc_error *err)
{
	doc->field = ptc_strdup(f->field);
	doc->name = ptc_strdup(f->name);
	doc->items = ptc_reallocarray(NULL, f->n_items, sizeof *doc->items);
	if (!doc->field || !doc->name || !doc->items)
		return ptc_nomem(err);
	for (size_t i = 0; i < f->n_items; i++)
		doc->items[i] = f->items[i];
	doc->nitems = f->n_items;
	/* the first 8 bytes only count the rest */
	return put_blob(c, f->header.data + 8, f->header.len - 8, doc->header_hash, err);
}

/* The ranks' states, as a snapshot has them: every daemon reads the document, so it has to be one. */
static int fill_state(struct commit *c, const ProtobufCBinaryData *json, struct ptc_error *err)
{
	struct ptc_state state = { 0 };
	int rc;

	if (!json->len)
		return 0;
	if (json->len > PTC_STATE_DOC_MAX_BYTES)
		return ptc_error_set(err, PTC_ELIMIT,
				     "the imported ranks' states have %zu bytes; at most %u are possible", json->len,
				     PTC_STATE_DOC_MAX_BYTES);
	rc = ptc_state_doc_decode(json->data, json->len, &state, err);
	ptc_state_done(&state);
	if (rc) {
		ptc_error_wrap(err, "the imported ranks' states");
		return rc;
	}
	return put_blob(c, json->data, json->len, c->imported.state_hash, err);
}

static int fill_ledger(struct commit *c, const ProtobufCBinaryData *json, struct ptc_error *err)
{
	json_t *root = NULL;
	int rc = json->len ? ptc_json_load("the imported ledger", json->data, json->len, &root, err) : 0;

	if (rc || !root)
		return rc;
	rc = ptc_ledger_from_json(root, &c->imported.ledger);
	json_decref(root);
	return rc ? ptc_error_set(err, rc, "the imported ledger is malformed") : 0;
}

static int commit_fill(struct commit *c, const Ptc__V1__ImportCommitRequest *req, struct ptc_error *err)
{
	struct ptc_manifest_doc *m = &c->imported;
	int rc;

	m->digests = ptc_reallocarray(NULL, req->n_digests, sizeof *m->digests);
	m->files = ptc_calloc(req->n_files, sizeof *m->files);
	if (!m->digests || !m->files)
		return ptc_nomem(err);
	for (size_t i = 0; i < req->n_digests; i++)
		m->digests[i] = req->digests[i];
	m->ndigests = req->n_digests;
	m->step = req->step;
	rc = req->step <= INT64_MAX
		     ? 0
		     : ptc_error_set(err, PTC_EINVAL,
				     "the imported state has 2^63 steps or more behind it; fewer are possible");
	if (rc == 0)
		rc = fill_state(c, &req->state_json, err);
	if (rc == 0)
		rc = fill_ledger(c, &req->ledger_json, err);
	for (size_t i = 0; header_bytes(req) && rc == 0 && i < req->n_files; i++)
		if (keepable(req->files[i]))
			rc = keep_header(c, req->files[i], &m->files[m->nfiles++], err);
	return rc;
}

static int commit_here(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__ImportCommitRequest *req,
		       const struct ptc_target *t, struct ptc_error *err)
{
	struct commit c = { .d = d, .uuid = t->meta.uuid, .id = req->import_id, .err = err };
	struct ptc_watcher *w = ptc_watcher_new(req->import_id);
	int rc = w ? check_commit(d, &t->meta, req, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_quota_document(d->cluster, t->meta.uid, header_bytes(req) + req->state_json.len,
					"the headers of the imported files, and ranks' states", err);
	if (rc == 0)
		rc = commit_fill(&c, req, err);
	if (rc == 0) {
		c.watcher = ptc_watcher_ref(w);
		rc = ptc_loop_call(d->loop, commit_on_loop, &c);
		rc = rc ? ptc_error_set(err, rc, "the daemon is stopping") : c.rc;
	}
	if (rc) {
		ptc_manifest_doc_done(&c.imported);
		ptc_watcher_unref(c.watcher);
	} else {
		rc = ptc_api_stream(d, t, w, call, err);
	}
	ptc_watcher_unref(w);
	return rc;
}

PTC_API_HANDLER(ptc_api_import_commit)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ImportCommitRequest *req;
	struct ptc_target t;
	int rc = ptc_pb_call_recv(call, &ptc__v1__import_commit_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_find_controlled(d, call, req->job, &t, err);
	if (rc == 0)
		rc = t.ours ? commit_here(d, call, req, &t, err)
			    : ptc_api_forward_switch(d, &t, call, "/ptc.v1.Control/ImportCommit", &req->base,
						     req->import_id, err);
	ptc_pb_free(&req->base);
	return rc;
}
