/* SPDX-License-Identifier: Apache-2.0 */
/* The call ExportInfo: what a client learns of a snapshot before it reads its bytes (api_read.c).
 *
 * Happy path: the committed generation, or an older snapshot that is kept, with its tensors, the headers of imported
 * files, and what its ranks had. Failure modes: a snapshot that the job does not keep (PTC_ENOTFOUND). */
#include "base/alloc.h"
#include "daemon/api/queries/queries.h"
#include "daemon/api/reads/reads.h"
#include "formats/dataset/ledger.h"
#include "formats/json.h"
#include "formats/state/layout_doc.h"
#include "reshard/layout/declared.h"

#include <string.h>

static int load_header(struct ptc_daemon *d, const char *uuid, const struct ptc_file_doc *doc, Ptc__V1__ImportedFile *f,
		       struct ptc_error *err)
{
	size_t len;
	char *json;
	int rc = ptc_document_get(d->docs.kept, uuid, doc->header_hash, PTC_IMPORT_HEADERS_MAX_BYTES, &json, &len, err);

	if (rc)
		return rc;
	ptc__v1__imported_file__init(f);
	f->field = doc->field;
	f->name = doc->name;
	f->items = doc->items;
	f->n_items = doc->nitems;
	f->header.data = ptc_malloc(len + 8);
	if (!f->header.data) {
		ptc_free(json);
		return ptc_nomem(err);
	}
	for (int i = 0; i < 8; i++)
		f->header.data[i] = (uint8_t)((uint64_t)len >> (8 * i));
	memcpy(f->header.data + 8, json, len);
	f->header.len = len + 8;
	ptc_free(json);
	return 0;
}

int ptc_api_spec_of(struct ptc_daemon *d, const struct ptc_meta_doc *meta, const char *layout_hash, char **ret_json,
		    size_t *ret_len, struct ptc_error *err)
{
	const struct ptc_declared *declared;
	const struct ptc_layout *layout;
	const struct ptc_job_desc *job;
	struct ptc_rule any = { .match = "*" }; /* a description has rules; whoever exports or imports needs none */
	struct ptc_job_desc desc = { 0 };
	void *ref, *job_ref;
	int rc;

	if (!layout_hash[0])
		return ptc_specs_read(&d->docs, meta->uuid, meta->spec_hash, ret_json, ret_len, err);
	rc = ptc_specs_get(d->docs.specs, meta->uuid, meta->spec_hash, &job, &job_ref, err);
	if (rc)
		return rc;
	rc = ptc_layouts_get(d->docs.layouts, meta->uuid, layout_hash, &declared, &layout, &ref, err);
	if (rc) {
		ptc_specs_release(job_ref);
		return rc;
	}
	desc.spec = declared->spec; /* borrowed, as is: */
	desc.files = job->files;
	desc.spec.name = (char *)(uintptr_t)meta->name; /* only read */
	desc.spec.rules = &any;
	desc.spec.nrules = 1;
	rc = ptc_job_to_json(&desc, ret_json, ret_len, err);
	ptc_layouts_release(ref);
	ptc_specs_release(job_ref);
	return rc;
}

/* What an export says of the generation's ranks. */
struct export_ranks {
	char *json, *layout, *state, *ledger;
	size_t layout_len, state_len;
};

/* What a job goes on with, beside its tensors. */
static int export_resume(struct ptc_daemon *d, const struct ptc_view *v, struct export_ranks *ret,
			 struct ptc_error *err)
{
	json_t *ledger = ptc_members_to_json(&ptc_ledger_members, &v->manifest.ledger);

	ret->ledger = ledger ? ptc_json_text(ledger) : NULL;
	json_decref(ledger);
	if (!ret->ledger)
		return ptc_nomem(err);
	if (!v->manifest.state_hash[0])
		return 0;
	return ptc_document_get(d->docs.kept, v->meta.uuid, v->manifest.state_hash, PTC_STATE_DOC_MAX_BYTES,
				&ret->state, &ret->state_len, err);
}

static int export_ranks(struct ptc_daemon *d, const struct ptc_view *v, bool resume, struct export_ranks *ret,
			struct ptc_error *err)
{
	int rc = resume ? export_resume(d, v, ret, err) : 0;

	if (rc)
		return rc;
	ret->json = ptc_api_ranks_json(&v->from);
	if (!ret->json)
		return ptc_nomem(err);
	if (!v->from.layout_hash[0])
		return 0;
	return ptc_document_get(d->docs.kept, v->meta.uuid, v->from.layout_hash, PTC_LAYOUT_DOC_MAX_BYTES, &ret->layout,
				&ret->layout_len, err);
}

static void export_reply(Ptc__V1__ExportInfoReply *reply, const struct ptc_view *v, uint64_t step, int64_t as_of_ms,
			 const struct export_ranks *ranks)
{
	reply->version = PTC_WIRE_VERSION;
	reply->generation = v->from_generation;
	reply->snapshot = v->from_snapshot;
	reply->config = v->from.config;
	reply->uuid = (char *)(uintptr_t)v->meta.uuid; /* packing only reads */
	reply->step = step;
	reply->created_ms = v->meta.created_ms;
	reply->as_of_ms = as_of_ms;
	reply->declared = v->from.layout_hash[0] != '\0';
	reply->ranks_json = ranks->json;
	reply->layout_json.data = (uint8_t *)ranks->layout;
	reply->layout_json.len = ranks->layout_len;
	reply->state_json.data = (uint8_t *)ranks->state;
	reply->state_json.len = ranks->state_len;
	reply->ledger_json.data = (uint8_t *)ranks->ledger;
	reply->ledger_json.len = ranks->ledger ? strlen(ranks->ledger) : 0;
	reply->n_digests = v->manifest.ndigests;
	reply->digests = v->manifest.digests;
}

static int send_export_info(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_view *v, uint64_t step,
			    bool resume, struct ptc_error *err)
{
	Ptc__V1__ExportInfoReply reply = PTC__V1__EXPORT_INFO_REPLY__INIT;
	const struct ptc_manifest_doc *m = &v->manifest;
	Ptc__V1__ImportedFile *files = ptc_calloc(m->nfiles, sizeof *files);
	Ptc__V1__ImportedFile **list = ptc_calloc(m->nfiles, sizeof *list);
	struct export_ranks ranks = { 0 };
	char *json = NULL;
	size_t len = 0;
	int rc = files && list ? ptc_api_spec_of(d, &v->meta, v->from.layout_hash, &json, &len, err) : ptc_nomem(err);

	for (size_t i = 0; rc == 0 && i < m->nfiles; i++) {
		rc = load_header(d, v->meta.uuid, &m->files[i], &files[i], err);
		list[i] = &files[i];
	}
	if (rc == 0)
		rc = export_ranks(d, v, resume, &ranks, err);
	if (rc == 0) {
		export_reply(&reply, v, step, ptc_api_as_of(d), &ranks);
		reply.spec_json.data = (uint8_t *)json;
		reply.spec_json.len = len;
		reply.n_files = m->nfiles;
		reply.files = list;
		rc = ptc_pb_call_send(call, &reply.base, err);
	}
	for (size_t i = 0; files && i < m->nfiles; i++)
		ptc_free(files[i].header.data);
	ptc_free(files);
	ptc_free(list);
	ptc_free(json);
	ptc_free(ranks.json);
	ptc_free(ranks.layout);
	ptc_free(ranks.state);
	ptc_free(ranks.ledger);
	return rc;
}

static int not_kept(const struct ptc_target *t, uint64_t snapshot, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENOTFOUND, "job \"%s\" does not keep snapshot %llu; see `ptcctl snapshots %s`",
			     t->meta.name, (unsigned long long)snapshot, t->meta.name);
}

PTC_API_HANDLER(ptc_api_export_info)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ExportInfoRequest *req;
	struct ptc_target t;
	struct ptc_view v;
	uint64_t snapshot;
	bool resume;
	int rc = ptc_pb_call_recv(call, &ptc__v1__export_info_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_find(d, call, req->job, &t, err);
	resume = req->resume;
	snapshot = req->snapshot;
	ptc_pb_free(&req->base);
	if (rc == 0)
		rc = ptc_api_need_snapshot(&t, err);
	if (rc == 0 && snapshot && snapshot != t.record.snapshot && !ptc_api_go_back(d, &t, 0, snapshot))
		rc = not_kept(&t, snapshot, err);
	if (rc == 0)
		rc = ptc_api_view(d, &t, false, true, &v, err);
	if (rc)
		return rc;
	if (snapshot && v.from_snapshot != snapshot) { /* it has gone while it was looked at */
		ptc_view_done(&v);
		return not_kept(&t, snapshot, err);
	}
	rc = send_export_info(d, call, &v, t.record.step, resume, err);
	ptc_view_done(&v);
	return rc;
}
