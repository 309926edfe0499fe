/* SPDX-License-Identifier: Apache-2.0 */
/* Import and export as the gateway sees them: the daemon the client talks to.
 *
 * Happy path of import: ImportBegin (on the controller) reserves memory on
 * every node; ImportData streams scatter the bytes from here to the nodes;
 * ImportCommit (on the controller) seals, compares digests with what the
 * client read, and commits. Export reads the committed generation from
 * wherever its bytes are. Failure modes: the client goes away in the middle of
 * its data (the import is aborted, nothing is left), bytes that are not what
 * the client read (PTC_EDIGEST naming the tensor), a generation that was
 * replaced while it was exported (PTC_ESTATE: export again). */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/log.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/api/queries/queries.h"
#include "daemon/api/reads/reads.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/job_events.h"
#include "daemon/cluster/quota.h"
#include "formats/dataset/ledger.h"
#include "formats/json.h"
#include "formats/state/layout_doc.h"
#include "daemon/agent/gateway/gateway.h"
#include "reshard/layout/declared.h"

#include <stdio.h>
#include <string.h>

#define HEADERS_MAX_BYTES (16u << 20)
#define FILE_NAME_MAX     255
#define INTENT_WAIT_MS    5000
#define POLL_MS           20

/* ---- ImportBegin -----------------------------------------------------------------
 * After its answer the call stays open until the import has ended: its end is how the controller learns that the
 * client, or the daemon in between, is gone. Nobody else would notice one that dies before or after its data. */

struct abandon {
	struct ptc_daemon *d;
	const char *uuid;
	uint64_t id;
};

static void abandon_on_loop(void *arg)
{
	struct abandon *a = arg;
	struct ptc_controller *ctl = ptc_controller_find(&a->d->controllers, a->uuid);

	if (ctl)
		ptc_controller_abandon(ctl, a->id);
}

static int begin_reply(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_target *t, uint64_t id,
		       struct ptc_error *err)
{
	Ptc__V1__ImportBeginReply reply = PTC__V1__IMPORT_BEGIN_REPLY__INIT;
	size_t len = 0;
	char *json = NULL;
	int rc = ptc_specs_read(&d->docs, t->meta.uuid, t->meta.spec_hash, &json, &len, err);

	if (rc)
		return rc;
	reply.version = PTC_WIRE_VERSION;
	reply.import_id = id;
	reply.resumes = true;
	reply.spec_json.data = (uint8_t *)json;
	reply.spec_json.len = len;
	rc = ptc_pb_call_send(call, &reply.base, err);
	ptc_free(json);
	return rc;
}

/* An import that is open: its call lasts until it ends, and abandons it when it ends before. */
struct opened {
	struct ptc_daemon *d;
	struct ptc_target t;
	struct abandon a;
	struct ptc_watcher *w;    /* here; or: */
	struct ptc_rpc_stream *s; /* at the controller's; cancelled when we go away before the import has ended */
	bool started, replied, seen, ended;
	int64_t since_ns;
};

static void opened_free(void *arg)
{
	struct opened *o = arg;

	if (o->w && o->started && !o->ended)
		ptc_loop_call(o->d->loop, abandon_on_loop, &o->a);
	ptc_watcher_unref(o->w);
	ptc_rpc_stream_free(o->s);
	ptc_free(o);
}

static struct opened *opened_new(struct ptc_daemon *d, const struct ptc_target *t)
{
	struct opened *o = ptc_calloc(1, sizeof *o);

	if (!o)
		return NULL;
	o->d = d;
	o->t = *t;
	o->a = (struct abandon){ d, o->t.meta.uuid, ptc_api_new_id() };
	o->since_ns = ptc_sys_now_ns();
	return o;
}

static int here_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct opened *o = arg;
	bool there;
	int rc = ptc_watcher_look(o->w, o->replied ? NULL : ptc_job_phase_name(PTC_JOB_FILLING), &there, err);

	if (rc == 0 && there && o->replied) {
		o->ended = true;
		return 0;
	}
	if (rc == 0 && there) {
		rc = begin_reply(o->d, call, &o->t, o->a.id, err);
		o->replied = true;
		o->since_ns = ptc_sys_now_ns();
	}
	ptc_rpc_call_again(call, ptc_wait_ms(o->since_ns));
	return rc;
}

static int begin_here(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__ImportBeginRequest *req,
		      const struct ptc_target *t, struct ptc_error *err)
{
	struct ptc_plan_request pr = {
		.config = req->config,
		.gpus = req->gpus,
		.or_same = true,
		.or_one = true,
		.nodes = req->nodes,
		.nnodes = req->n_nodes,
	};
	struct opened *o = opened_new(d, t);
	int rc;

	if (o)
		o->w = ptc_watcher_new(o->a.id);
	rc = o && o->w ? ptc_api_start_switch(d, call, req->job, &(struct ptc_api_ask){ .kind = PTC_SWITCH_IMPORT },
					      &pr, o->w, o->a.id, err)
		       : ptc_nomem(err);
	if (rc) {
		if (o)
			opened_free(o);
		return rc;
	}
	o->started = true;
	ptc_rpc_call_follow(call, 0, here_step, o, opened_free);
	return 0;
}

/* Our mirror shows the import a moment after it began, and then until it has ended. */
static bool import_open(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job, uint64_t id, bool *seen)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_target t;
	bool open = ptc_api_find(d, call, job, &t, &ignored) == 0 && t.has_intent && t.intent.id == id;

	*seen |= open;
	return open || !*seen;
}

static int relay_reply(struct opened *o, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ImportBeginReply *reply;
	struct ptc_rpc_message *m = NULL;
	int rc = ptc_rpc_stream_recv(o->s, &m, err);

	if (rc == 0 && !m)
		rc = ptc_error_set(err, PTC_EPEER, "the controller ended the call without an answer");
	if (rc == 0)
		rc = ptc_pb_message(m, &ptc__v1__import_begin_reply__descriptor, (ProtobufCMessage **)&reply, err);
	ptc_rpc_message_done(m);
	if (rc)
		return rc;
	o->a.id = reply->import_id;
	o->replied = true;
	o->since_ns = ptc_sys_now_ns();
	rc = ptc_pb_call_send(call, &reply->base, err);
	ptc_pb_free(&reply->base);
	return rc;
}

static int there_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct opened *o = arg;
	bool late;
	int rc = 0;

	if (!o->replied) {
		if (ptc_rpc_stream_ready(o->s))
			rc = relay_reply(o, call, err);
		ptc_rpc_call_again(call, ptc_wait_ms(o->since_ns));
		return rc;
	}
	late = ptc_sys_now_ns() - o->since_ns > INTENT_WAIT_MS * INT64_C(1000000);
	if (!import_open(o->d, call, o->t.meta.name, o->a.id, &o->seen) || (!o->seen && late))
		return 0; /* late: over before we saw it */
	ptc_rpc_call_again(call, POLL_MS);
	return 0;
}

/* The daemon in between. */
static int begin_there(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__ImportBeginRequest *req,
		       const struct ptc_target *t, struct ptc_error *err)
{
	struct opened *o = opened_new(d, t);
	int rc = o ? ptc_api_forward_open(d, t, call, "/ptc.v1.Control/ImportBegin", &req->base, 0, &o->s, err)
		   : ptc_nomem(err);

	if (rc) {
		ptc_free(o);
		return rc;
	}
	ptc_rpc_stream_follow(o->s, NULL);
	ptc_rpc_call_follow(call, 0, there_step, o, opened_free);
	return 0;
}

PTC_API_HANDLER(ptc_api_import_begin)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ImportBeginRequest *req;
	struct ptc_target t;
	int rc = ptc_pb_call_recv(call, &ptc__v1__import_begin_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_find_controlled(d, call, req->job, &t, err);
	if (rc == 0)
		rc = t.ours ? begin_here(d, call, req, &t, err) : begin_there(d, call, req, &t, err);
	ptc_pb_free(&req->base);
	return rc;
}

/* ---- ImportData --------------------------------------------------------------------- */

struct import {
	struct ptc_daemon *d;
	struct ptc_rpc_call *call;
	struct ptc_target target;
	char job[PTC_NAME_MAX + 16]; /* as the client names it */
	uint64_t id;
	struct ptc_geometry geometry;
	bool have_geometry;
	struct ptc_scatter *scatter;
	uint64_t bytes;
	uint8_t *buf; /* a message; kept from one to the next, so that its pages are there */
	size_t room;
};

/* One message of an import. Its bytes are where the message was read to, or in head. */
struct chunk {
	Ptc__V1__ImportChunk *head;
	const uint8_t *data;
	size_t len;
};

struct unread {
	const uint8_t *at, *end;
};

static size_t unread_read(void *arg, void *dst, size_t len)
{
	struct unread *u = arg;
	const size_t n = PTC_MIN(len, (size_t)(u->end - u->at));

	memcpy(dst, u->at, n);
	u->at += n;
	return n;
}

/* The bytes are copied out of the message once. Field 15 is last in what our clients send, so the rest is decoded
 * alone; a message of another order is decoded as a whole. ptc_pb_free ret->head. */
static int chunk_read(struct import *im, struct ptc_rpc_message *m, struct chunk *ret, struct ptc_error *err)
{
	const ProtobufCMessageDescriptor *type = &ptc__v1__import_chunk__descriptor;
	const size_t len = ptc_rpc_message_len(m);
	uint8_t head[PTC_WIRE_HEAD_MAX];
	struct unread unread;
	struct ptc_wire_source src = { unread_read, &unread, len };
	uint64_t payload;
	size_t head_len;
	int rc;

	if (!PTC_ROOM(im->buf, len + 1, im->room))
		return ptc_nomem(err);
	ptc_rpc_message_read(m, im->buf, len);
	unread = (struct unread){ im->buf, im->buf + len };
	if (ptc_wire_head_read(&src, head, &head_len, &payload, NULL) == 0) {
		rc = ptc_pb_request(type, head, head_len, (ProtobufCMessage **)&ret->head, err);
		ret->data = im->buf + (len - payload);
		ret->len = (size_t)payload;
		return rc;
	}
	rc = ptc_pb_request(type, im->buf, len, (ProtobufCMessage **)&ret->head, err);
	if (rc == 0) {
		ret->data = ret->head->data.data;
		ret->len = ret->head->data.len;
	}
	return rc;
}

static bool shows_import(const struct ptc_target *t, const void *arg)
{
	const uint64_t *id = arg;

	return t->has_intent && t->intent.id == *id;
}

/* The intent is committed when ImportBegin returns; our mirror may be a moment behind. */
static int find_import(struct import *im, const char *job, uint64_t id, struct ptc_error *err)
{
	struct ptc_view v;
	int rc = ptc_api_await(im->d, im->call, job, shows_import, &id, INTENT_WAIT_MS, &im->target, err);

	if (rc && rc != PTC_ETIMEOUT)
		return rc;
	if (!im->target.has_intent || im->target.intent.id != id || im->target.intent.kind != PTC_SWITCH_IMPORT)
		return ptc_error_set(err, PTC_ESTATE, "import %llu of job %s is not open (aborted?); import again",
				     (unsigned long long)id, job);
	rc = ptc_api_view(im->d, &im->target, true, false, &v, err);
	if (rc)
		return rc;
	rc = v.switch_id == id ? ptc_view_geometry(im->d->agent, &v, true, &im->geometry, err)
			       : ptc_error_set(err, PTC_ESTATE, "import %llu of job %s was aborted; import again",
					       (unsigned long long)id, job);
	ptc_view_done(&v);
	if (rc)
		return rc;
	im->have_geometry = true;
	im->id = id;
	snprintf(im->job, sizeof im->job, "%s", job);
	return ptc_scatter_new(im->d->agent, &im->geometry, im->target.meta.uuid, id, &im->scatter, err);
}

static int import_message(struct import *im, struct ptc_rpc_message *m, struct ptc_error *err)
{
	struct chunk chunk = { 0 };
	const Ptc__V1__ImportChunk *c;
	int rc = chunk_read(im, m, &chunk, err);

	if (rc)
		return rc;
	c = chunk.head;
	rc = ptc_pb_version(c->version, err);
	if (rc == 0 && !im->scatter)
		rc = find_import(im, c->job, c->import_id, err);
	if (rc == 0 && (c->import_id != im->id || strcmp(c->job, im->job) != 0))
		rc = ptc_error_set(err, PTC_EINVAL, "an import stream has data of two imports; open a stream for each");
	if (rc == 0 && chunk.len > PTC_BULK_MESSAGE_BYTES)
		rc = ptc_error_set(err, PTC_ELIMIT, "an import message has %zu bytes; at most %u are allowed",
				   chunk.len, PTC_BULK_MESSAGE_BYTES);
	if (rc == 0 && chunk.len)
		rc = ptc_scatter_write(im->scatter, c->item, c->offset, chunk.data, chunk.len, err);
	im->bytes += chunk.len;
	ptc_pb_free(&chunk.head->base);
	return rc;
}

/* The data stream broke: nobody will finish this import, so the controller is told. */
static void give_up(struct import *im, const char *why)
{
	Ptc__V1__AbortRequest req = PTC__V1__ABORT_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	char uid[16];

	if (!im->id)
		return;
	ptc_event(im->d->cluster, im->target.meta.uuid, "import", "data stream ended early: %s", why);
	if (!im->target.has_lock ||
	    ptc_channels_get(im->d->channels, im->target.controller, im->target.address, false, 0, &channel, NULL) != 0)
		return;
	snprintf(uid, sizeof uid, "%u", (unsigned)im->target.meta.uid);
	req.version = PTC_WIRE_VERSION;
	req.job = im->target.meta.uuid;
	req.id = im->id;
	ptc_pb_unary(channel, "/ptc.v1.Control/Abort", &req.base, INTENT_WAIT_MS,
		     &(struct ptc_rpc_meta){ "ptc-uid", uid }, 1, NULL, NULL, NULL);
}

static int import_run(struct import *im, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	int rc;

	while ((rc = ptc_rpc_call_recv(im->call, &m, err)) == 0 && m) {
		rc = import_message(im, m, err);
		ptc_rpc_message_done(m);
		if (rc)
			return rc;
	}
	if (rc == 0 && ptc_rpc_call_cancelled(im->call))
		rc = ptc_error_set(err, PTC_ECANCELED, "the client went away");
	if (rc == 0 && im->scatter)
		rc = ptc_scatter_finish(im->scatter, err);
	return rc;
}

PTC_API_HANDLER(ptc_api_import_data)
{
	struct import im = { .d = arg, .call = call };
	Ptc__V1__ImportDataReply reply = PTC__V1__IMPORT_DATA_REPLY__INIT;
	struct ptc_error own = PTC_ERROR_INIT;
	int rc = import_run(&im, &own);

	ptc_scatter_free(im.scatter);
	ptc_free(im.buf);
	if (im.have_geometry)
		ptc_geometry_done(&im.geometry);
	if (rc) {
		give_up(&im, own.text);
		return ptc_error_set(err, rc, "%s", own.text);
	}
	reply.version = PTC_WIRE_VERSION;
	reply.bytes = im.bytes;
	return ptc_pb_call_send(call, &reply.base, err);
}

/* ---- ImportCommit --------------------------------------------------------------------- */

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
		return ptc_error_set(err, PTC_EINVAL, "imported file with the name \"%.100s\"", f->name);
	if (f->header.len < 8)
		return ptc_error_set(err, PTC_EINVAL, "file %s: header of %zu bytes", f->name, f->header.len);
	for (size_t i = 0; i < f->n_items; i++) {
		if (f->items[i] >= items || seen[f->items[i]])
			return ptc_error_set(err, PTC_EINVAL, "file %s: item %u is not one of %zu, or is there twice",
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

static int check_commit(struct ptc_daemon *d, const struct ptc_meta_doc *meta, const Ptc__V1__ImportCommitRequest *req,
			struct ptc_error *err)
{
	const struct ptc_job_desc *desc;
	size_t items;
	bool *seen;
	void *ref;
	int rc = ptc_specs_get(d->docs.specs, meta->uuid, meta->spec_hash, &desc, &ref, err);

	if (rc)
		return rc;
	items = ptc_spec_items(&desc->spec);
	seen = ptc_calloc(items, sizeof *seen);
	if (!seen)
		rc = ptc_nomem(err);
	if (rc == 0 && req->n_digests != items)
		rc = ptc_error_set(err, PTC_EINVAL, "the client sent %zu digests, but the job has %zu items",
				   req->n_digests, items);
	if (rc == 0 && req->n_files > PTC_MAX(items, 1))
		rc = ptc_error_set(err, PTC_EINVAL, "the client sent %zu files, but the job has %zu items",
				   req->n_files, items);
	for (size_t i = 0; rc == 0 && i < req->n_files; i++)
		rc = check_file(&desc->spec, req->files[i], seen, err);
	ptc_free(seen);
	ptc_specs_release(ref);
	return rc;
}

/* Of headers, which are kept for exports that have the same. */
static size_t header_bytes(const Ptc__V1__ImportCommitRequest *req)
{
	size_t total = 0;

	for (size_t i = 0; i < req->n_files; i++)
		total += req->files[i]->header.len;
	return total <= HEADERS_MAX_BYTES ? total : 0;
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
	rc = req->step <= INT64_MAX ? 0 : ptc_error_set(err, PTC_EINVAL, "an imported state after 2^63 steps or more");
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

/* ---- export ------------------------------------------------------------------------------ */

static int load_header(struct ptc_daemon *d, const char *uuid, const struct ptc_file_doc *doc, Ptc__V1__ImportedFile *f,
		       struct ptc_error *err)
{
	size_t len;
	char *json;
	int rc = ptc_document_get(d->docs.kept, uuid, doc->header_hash, HEADERS_MAX_BYTES, &json, &len, err);

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

/* What an export is of: the job's own description, or, where ranks have declared their tensors, these. */
static int export_spec(struct ptc_daemon *d, const struct ptc_view *v, char **ret_json, size_t *ret_len,
		       struct ptc_error *err)
{
	const struct ptc_declared *declared;
	const struct ptc_layout *layout;
	const struct ptc_job_desc *job;
	struct ptc_rule any = { .match = "*" }; /* a description has rules; whoever exports needs none */
	struct ptc_job_desc desc = { 0 };
	void *ref, *job_ref;
	int rc;

	if (!v->from.layout_hash[0])
		return ptc_specs_read(&d->docs, v->meta.uuid, v->meta.spec_hash, ret_json, ret_len, err);
	rc = ptc_specs_get(d->docs.specs, v->meta.uuid, v->meta.spec_hash, &job, &job_ref, err);
	if (rc)
		return rc;
	rc = ptc_layouts_get(d->docs.layouts, v->meta.uuid, v->from.layout_hash, &declared, &layout, &ref, err);
	if (rc) {
		ptc_specs_release(job_ref);
		return rc;
	}
	desc.spec = declared->spec; /* borrowed, as is: */
	desc.files = job->files;
	desc.spec.name = v->meta.name;
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
	ret->json = ptc_api_ranks_json(v);
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
	int rc = files && list ? export_spec(d, v, &json, &len, err) : ptc_nomem(err);

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
	if (rc == 0 && snapshot && snapshot != t.record.snapshot && !ptc_api_go_back(d, &t, snapshot))
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

/* Spans go out as the payload of a Data message whose head is written by hand: copied once, into the transport. */
static int send_span(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	uint8_t head[PTC_WIRE_HEAD_MAX];
	struct ptc_rpc_part parts[] = {
		{ .data = head, .len = ptc_wire_data_head(head, len) },
		{ .data = data, .len = len },
	};

	return ptc_rpc_call_send(arg, parts, PTC_ARRAY_LEN(parts), err);
}

/* Bytes that lie in the store go out from there, without a copy. */
static int send_parts(void *arg, struct ptc_rpc_part *parts, size_t n, struct ptc_error *err)
{
	uint8_t head[PTC_WIRE_HEAD_MAX];
	uint64_t len = 0;

	for (size_t i = 1; i < n; i++)
		len += parts[i].len;
	parts[0] = (struct ptc_rpc_part){ .data = head, .len = ptc_wire_data_head(head, len) };
	return ptc_rpc_call_send(arg, parts, n, err);
}

PTC_API_HANDLER(ptc_api_read)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ReadRequest *req;
	struct ptc_read_view *v;
	int rc = ptc_pb_call_recv(call, &ptc__v1__read_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_read_view(d, call, req->job, req->uuid, req->generation, req->snapshot, &v, err);
	if (rc == 0) {
		rc = ptc_agent_gather(d->agent, &v->geometry, v->view.meta.uuid, req->item, req->offset, req->length,
				      send_span, send_parts, call, err);
		ptc_read_view_put(v);
	}
	ptc_pb_free(&req->base);
	return rc;
}

static int ranges_of(const Ptc__V1__ReadManyRequest *req, struct ptc_item_range **ret, struct ptc_error *err)
{
	struct ptc_item_range *v;

	if (req->n_offsets != req->n_items || req->n_lengths != req->n_items)
		return ptc_error_set(
			err, PTC_EINVAL,
			"the request has %zu items, %zu offsets and %zu lengths; each range needs all three",
			req->n_items, req->n_offsets, req->n_lengths);
	if (req->n_items > PTC_READ_MANY_RANGES)
		return ptc_error_set(err, PTC_ELIMIT, "one call asks for %zu ranges; at most %d are possible",
				     req->n_items, PTC_READ_MANY_RANGES);
	v = ptc_calloc(PTC_MAX(req->n_items, (size_t)1), sizeof *v);
	if (!v)
		return ptc_nomem(err);
	for (size_t i = 0; i < req->n_items; i++)
		v[i] = (struct ptc_item_range){ req->items[i], req->offsets[i], req->lengths[i] };
	*ret = v;
	return 0;
}

PTC_API_HANDLER(ptc_api_read_many)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ReadManyRequest *req;
	struct ptc_item_range *ranges = NULL;
	struct ptc_read_view *v;
	int rc = ptc_pb_call_recv(call, &ptc__v1__read_many_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ranges_of(req, &ranges, err);
	if (rc == 0)
		rc = ptc_api_read_view(d, call, req->job, req->uuid, req->generation, req->snapshot, &v, err);
	if (rc == 0) {
		rc = ptc_agent_gather_many(d->agent, &v->geometry, v->view.meta.uuid, ranges, req->n_items, send_span,
					   call, err);
		ptc_read_view_put(v);
	}
	ptc_free(ranges);
	ptc_pb_free(&req->base);
	return rc;
}

PTC_API_HANDLER(ptc_api_read_rank)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ReadRankRequest *req;
	struct ptc_read_view *v;
	struct ptc_rank_range range;
	struct ptc_info info;
	int rc = ptc_pb_call_recv(call, &ptc__v1__read_rank_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	range = (struct ptc_rank_range){ req->rank, req->item, req->offset, req->length };
	rc = ptc_api_read_view(d, call, req->job, req->uuid, req->generation, req->snapshot, &v, err);
	if (rc == 0) {
		rc = ptc_view_info(&v->view, &info, err);
		if (rc == 0) {
			rc = ptc_agent_gather_rank(d->agent, &v->geometry, info.pb, &range, send_span, call, err);
			ptc_info_done(&info);
		}
		ptc_read_view_put(v);
	}
	ptc_pb_free(&req->base);
	return rc;
}
