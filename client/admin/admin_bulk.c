/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin's import and export: the calls that carry a job's bytes. Happy path: messages of at most
 * PTC_ADMIN_CHUNK_BYTES on the bulk channel. Failure: see admin.c; a read that ends early or runs over is PTC_EPEER
 * with both counts. */
#include "client/admin/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"

#include <inttypes.h>
#include <ptc/admin_resume.h>
#include <ptc/admin_older.h>
#include <string.h>

#define SERVICE      "/ptc.v1.Control/"
#define DATA_TAG     ((15u << 3) | 2u) /* field 15, bytes: ImportChunk.data and Data.data */
#define VERSION_TAG  ((1u << 3) | 0u)  /* field 1, varint */
#define SUM_TAG      ((4u << 3) | 0u)  /* field 4, varint: Data.sum */
#define CHUNK_HEADER 512               /* a packed ImportChunk without data: a job's name and four numbers */

static size_t put_varint(uint8_t *p, uint64_t v)
{
	size_t n = 0;

	for (; v >= 0x80; v >>= 7)
		p[n++] = (uint8_t)(v | 0x80);
	p[n++] = (uint8_t)v;
	return n;
}

/* Bytes used; 0 when it does not end. */
static size_t get_varint(const uint8_t *p, size_t len, uint64_t *ret)
{
	uint64_t v = 0;

	for (size_t n = 0; n < len && n < 10; n++) {
		v |= (uint64_t)(p[n] & 0x7f) << (7 * n);
		if (!(p[n] & 0x80)) {
			*ret = v;
			return n + 1;
		}
	}
	return 0;
}

/* ---- import ---- */

struct ptc_admin_stream {
	struct ptc_rpc_stream *rpc;
	char *job;
	uint64_t import_id;
	bool finished;
	struct ptc_admin_window window; /* fd -1: bytes go in messages */
	void *room;                     /* for them; NULL: nobody has asked for it yet */
};

/* What a program sees, and what is behind it. */
struct import {
	struct ptc_admin_import seen;
	char *config, *spec;
	struct ptc_rpc_stream *held; /* its end tells the daemon that the program is gone */
};

static int import_take(struct import *import, struct ptc_rpc_message *m, struct ptc_error *err)
{
	ProtobufCMessage *reply = NULL;
	Ptc__V1__ImportBeginReply *r;
	ptc_auto_free void *data = NULL;
	size_t len;
	int rc = ptc_admin_gather(m, &data, &len, err);

	if (!rc)
		rc = ptc_admin_unpack(data, len, &ptc__v1__import_begin_reply__descriptor, &reply, err);
	if (rc)
		return rc;
	r = (Ptc__V1__ImportBeginReply *)reply;
	import->config = ptc_strdup(r->config);
	import->spec = ptc_strndup((const char *)r->spec_json.data, r->spec_json.len);
	import->seen = (struct ptc_admin_import){ .size = sizeof import->seen,
						  .id = r->import_id,
						  .config = import->config,
						  .spec = import->spec,
						  .spec_len = r->spec_json.len,
						  .resumes = r->resumes };
	ptc_admin_reply_free(reply);
	return import->config && import->spec ? 0 : ptc_nomem(err);
}

static int import_ask(struct ptc_admin *a, const struct ptc_admin_target *t, struct import *import,
		      struct ptc_error *err)
{
	Ptc__V1__ImportBeginRequest request;
	struct ptc_rpc_message *m = NULL;
	int rc;

	ptc__v1__import_begin_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(t->job);
	request.config = ptc_admin_borrow(t->config);
	request.gpus = t->gpus;
	request.nodes = (char **)(uintptr_t)t->nodes;
	request.n_nodes = t->nnodes;
	rc = ptc_admin_open_stream(a, a->control, SERVICE "ImportBegin", &request.base, &import->held, err);
	if (!rc)
		rc = ptc_rpc_stream_recv(import->held, &m, err);
	if (!rc && !m) {
		rc = ptc_rpc_stream_finish(import->held, err);
		if (!rc)
			rc = ptc_error_set(err, PTC_EPEER, "the daemon ended the import before it began");
	}
	return rc ? rc : import_take(import, m, err);
}

int ptc_admin_import_begin(struct ptc_admin *a, const struct ptc_admin_target *target,
			   struct ptc_admin_import **ret_import, struct ptc_error *err)
{
	struct ptc_admin_target t;
	int rc = PTC_ADMIN_TAKE(target, target, &t, err);
	struct import *import = rc ? NULL : ptc_calloc(1, sizeof *import);

	if (rc)
		return rc;
	rc = import ? import_ask(a, &t, import, err) : ptc_nomem(err);
	if (rc) {
		ptc_admin_import_done(import ? &import->seen : NULL);
		return rc;
	}
	*ret_import = &import->seen;
	return 0;
}

struct ptc_admin_import *ptc_admin_import_done(struct ptc_admin_import *seen)
{
	struct import *import = (struct import *)seen; /* its first member */

	if (!import)
		return NULL;
	ptc_rpc_stream_free(import->held);
	ptc_free(import->config);
	ptc_free(import->spec);
	ptc_free(import);
	return NULL;
}

/* The daemon's own reason is better than "broken stream". */
static int failed(struct ptc_admin_stream *s, int rc, struct ptc_error *err)
{
	int status;

	if (!rc || rc == PTC_ETIMEOUT)
		return rc;
	s->finished = true;
	status = ptc_rpc_stream_finish(s->rpc, err);
	return status ? status : rc;
}

static int send_message(struct ptc_admin_stream *s, uint32_t item, uint64_t offset, const void *data, size_t len,
			struct ptc_error *err)
{
	uint8_t header[CHUNK_HEADER];
	struct ptc_rpc_part parts[2] = { { .data = header }, { .data = data, .len = len } };
	Ptc__V1__ImportChunk chunk;
	size_t n;

	ptc__v1__import_chunk__init(&chunk);
	chunk.version = PTC_ADMIN_VERSION;
	chunk.job = s->job;
	chunk.import_id = s->import_id;
	chunk.item = item;
	chunk.offset = offset;
	if (s->window.fd >= 0)
		chunk.window = (ProtobufCBinaryData){ .data = s->window.key, .len = sizeof s->window.key };
	n = ptc_pb_added(header);
	if (n + protobuf_c_message_get_packed_size(&chunk.base) > sizeof(header) - 2 * 10)
		return ptc_error_set(err, PTC_EINVAL, "the job's name is too long");
	n += protobuf_c_message_pack(&chunk.base, header + n);
	n += put_varint(header + n, DATA_TAG);
	n += put_varint(header + n, len);
	parts[0].len = n;
	return failed(s, ptc_rpc_stream_send(s->rpc, parts, len ? 2 : 1, err), err);
}

int ptc_admin_import_open(struct ptc_admin *a, const char *job, uint64_t import_id,
			  struct ptc_admin_stream **ret_stream, struct ptc_error *err)
{
	struct ptc_admin_stream *s = ptc_calloc(1, sizeof *s);
	int rc;

	if (!s)
		return ptc_nomem(err);
	s->job = ptc_strdup(job);
	s->import_id = import_id;
	s->window.fd = -1;
	rc = s->job ? ptc_rpc_stream_open(a->bulk, SERVICE "ImportData", a->stream_timeout_ms, NULL, 0, &s->rpc, err)
		    : ptc_nomem(err);
	if (!rc && ptc_admin_window_open(a, s->rpc, a->stream_timeout_ms, &s->window))
		rc = send_message(s, 0, 0, NULL, 0, err);
	if (rc) {
		ptc_admin_import_close(s);
		return rc;
	}
	*ret_stream = s;
	return 0;
}

/* A copy into each slot; none for a caller who has read into it (ptc_admin_import_room). */
static int send_window(struct ptc_admin_stream *s, uint32_t item, uint64_t offset, const uint8_t *data, size_t len,
		       struct ptc_error *err)
{
	size_t n, room;
	void *slot;

	for (size_t done = 0; done < len; done += n) {
		int rc = ptc_admin_window_slot(&s->window, &slot, &room, err);

		if (rc)
			return rc;
		n = PTC_MIN(len - done, room);
		if (data + done != slot)
			memcpy(slot, data + done, n);
		rc = ptc_admin_window_send(&s->window, item, offset + done, n, err);
		if (rc)
			return rc;
	}
	return 0;
}

int ptc_admin_import_room(struct ptc_admin_stream *s, void **ret_room, size_t *ret_len, struct ptc_error *err)
{
	if (s->window.fd >= 0)
		return failed(s, ptc_admin_window_slot(&s->window, ret_room, ret_len, err), err);
	if (!s->room)
		s->room = ptc_malloc(PTC_ADMIN_CHUNK_BYTES);
	*ret_room = s->room;
	*ret_len = PTC_ADMIN_CHUNK_BYTES;
	return s->room ? 0 : ptc_nomem(err);
}

int ptc_admin_import_send(struct ptc_admin_stream *s, uint32_t item, uint64_t offset, const void *data, size_t len,
			  struct ptc_error *err)
{
	if (len > PTC_ADMIN_CHUNK_BYTES)
		return ptc_error_set(err, PTC_EINVAL, "%zu bytes in one chunk, at most %u are allowed", len,
				     PTC_ADMIN_CHUNK_BYTES);
	if (s->window.fd < 0)
		return send_message(s, item, offset, data, len, err);
	return failed(s, send_window(s, item, offset, data, len, err), err);
}

static int import_result(struct ptc_admin_stream *s, uint64_t *ret_bytes, struct ptc_error *err)
{
	struct ptc_rpc_message *msg = NULL;
	ptc_auto_free void *data = NULL;
	ProtobufCMessage *reply = NULL;
	size_t len = 0;
	int rc = ptc_rpc_stream_recv(s->rpc, &msg, err);

	if (rc || !msg)
		return rc;
	rc = ptc_admin_gather(msg, &data, &len, err);
	if (!rc)
		rc = ptc_admin_unpack(data, len, &ptc__v1__import_data_reply__descriptor, &reply, err);
	if (!rc)
		*ret_bytes = ((Ptc__V1__ImportDataReply *)reply)->bytes;
	ptc_admin_reply_free(reply);
	return rc;
}

int ptc_admin_import_finish(struct ptc_admin_stream *s, uint64_t *ret_bytes, struct ptc_error *err)
{
	uint64_t bytes = 0;
	int rc, status;

	ptc_admin_window_finish(&s->window);
	rc = ptc_rpc_stream_half_close(s->rpc, err);
	if (!rc)
		rc = import_result(s, &bytes, err);
	s->finished = true;
	status = ptc_rpc_stream_finish(s->rpc, rc ? NULL : err);
	if (!rc)
		rc = status;
	if (!rc)
		*ret_bytes = bytes;
	return rc;
}

struct ptc_admin_stream *ptc_admin_import_close(struct ptc_admin_stream *s)
{
	if (!s)
		return NULL;
	ptc_rpc_stream_free(s->rpc);
	ptc_admin_window_done(&s->window);
	ptc_free(s->room);
	ptc_free(s->job);
	ptc_free(s);
	return NULL;
}

/* Messages for the files; borrowed from them. */
static int pack_files(const struct ptc_admin_file *files, size_t nfiles, Ptc__V1__ImportedFile **ret_messages,
		      Ptc__V1__ImportedFile ***ret_list, struct ptc_error *err)
{
	Ptc__V1__ImportedFile *messages = ptc_calloc(nfiles, sizeof *messages);
	Ptc__V1__ImportedFile **list = ptc_calloc(nfiles, sizeof *list);

	if (!messages || !list) {
		ptc_free(messages);
		ptc_free(list);
		return ptc_nomem(err);
	}
	for (size_t i = 0; i < nfiles; i++) {
		ptc__v1__imported_file__init(&messages[i]);
		messages[i].field = ptc_admin_borrow(files[i].field);
		messages[i].name = ptc_admin_borrow(files[i].name);
		messages[i].header.data = (uint8_t *)(uintptr_t)files[i].header;
		messages[i].header.len = files[i].header_len;
		messages[i].items = (uint32_t *)(uintptr_t)files[i].items;
		messages[i].n_items = files[i].nitems;
		list[i] = &messages[i];
	}
	*ret_messages = messages;
	*ret_list = list;
	return 0;
}

static void begin_commit(Ptc__V1__ImportCommitRequest *request, const char *job, uint64_t import_id,
			 const uint64_t *digests, size_t ndigests)
{
	ptc__v1__import_commit_request__init(request);
	request->version = PTC_ADMIN_VERSION;
	request->job = ptc_admin_borrow(job);
	request->import_id = import_id;
	request->digests = (uint64_t *)(uintptr_t)digests;
	request->n_digests = ndigests;
}

int ptc_admin_import_commit(struct ptc_admin *a, const char *job, uint64_t import_id, const uint64_t *digests,
			    size_t ndigests, const struct ptc_admin_file *files, size_t nfiles,
			    ptc_admin_progress_fn fn, void *arg, struct ptc_error *err)
{
	ptc_auto_free Ptc__V1__ImportedFile *messages = NULL;
	ptc_auto_free Ptc__V1__ImportedFile **list = NULL;
	Ptc__V1__ImportCommitRequest request;
	size_t headers = 0;
	int rc = 0;

	for (size_t i = 0; i < nfiles; i++)
		if (ptc_ckd_add(&headers, headers, files[i].header_len))
			headers = SIZE_MAX;
	if (headers > PTC_ADMIN_HEADERS_MAX)
		nfiles = 0;
	if (nfiles)
		rc = pack_files(files, nfiles, &messages, &list, err);
	if (rc)
		return rc;
	begin_commit(&request, job, import_id, digests, ndigests);
	request.files = list;
	request.n_files = nfiles;
	return ptc_admin_follow(a, SERVICE "ImportCommit", &request.base, fn, arg, err);
}

int ptc_admin_import_resume(struct ptc_admin *a, const char *job, uint64_t import_id, const uint64_t *digests,
			    size_t ndigests, const struct ptc_admin_resume *resume, ptc_admin_progress_fn fn, void *arg,
			    struct ptc_error *err)
{
	Ptc__V1__ImportCommitRequest request;
	struct ptc_admin_resume r;
	int rc = PTC_ADMIN_TAKE(resume, resume, &r, err);

	if (rc)
		return rc;
	begin_commit(&request, job, import_id, digests, ndigests);
	request.step = r.step;
	request.state_json.data = (uint8_t *)(uintptr_t)r.state;
	request.state_json.len = r.state_len;
	request.ledger_json.data = (uint8_t *)(uintptr_t)r.ledger;
	request.ledger_json.len = r.ledger_len;
	return ptc_admin_follow(a, SERVICE "ImportCommit", &request.base, fn, arg, err);
}

uint64_t ptc_admin_digest(uint64_t before, const void *data, size_t len)
{
	return ptc_digest_append(before, data, len);
}

/* ---- export ---- */

/* What a program sees, and what it points into. */
struct export
{
	struct ptc_admin_export seen;
	struct ptc_admin_file *files;
	ProtobufCMessage *reply;
};

static int view_files(struct export *x, const Ptc__V1__ExportInfoReply *r, struct ptc_error *err)
{
	if (!r->n_files)
		return 0;
	x->files = ptc_calloc(r->n_files, sizeof *x->files);
	if (!x->files)
		return ptc_nomem(err);
	for (size_t i = 0; i < r->n_files; i++) {
		const Ptc__V1__ImportedFile *f = r->files[i];

		x->files[i] = (struct ptc_admin_file){ f->field,      f->name,  f->header.data,
						       f->header.len, f->items, f->n_items };
	}
	x->seen.files = x->files;
	x->seen.nfiles = r->n_files;
	return 0;
}

static int view(struct export *x, struct ptc_error *err)
{
	const Ptc__V1__ExportInfoReply *r = (const Ptc__V1__ExportInfoReply *)x->reply;

	x->seen = (struct ptc_admin_export){ .size = sizeof x->seen,
					     .generation = r->generation,
					     .snapshot = r->snapshot,
					     .config = r->config,
					     .spec = r->spec_json.data,
					     .spec_len = r->spec_json.len,
					     .digests = r->digests,
					     .ndigests = r->n_digests,
					     .uuid = r->uuid,
					     .step = r->step,
					     .created_ms = r->created_ms,
					     .as_of_ms = r->as_of_ms,
					     .ranks_json = r->ranks_json,
					     .declared = r->declared,
					     .layout_json = r->layout_json.data,
					     .layout_len = r->layout_json.len,
					     .state = r->state_json.data,
					     .state_len = r->state_json.len,
					     .ledger = r->ledger_json.data,
					     .ledger_len = r->ledger_json.len };
	return view_files(x, r, err);
}

static int export_info(struct ptc_admin *a, const char *job, uint64_t snapshot, bool resume,
		       struct ptc_admin_export **ret_export, struct ptc_error *err)
{
	struct export *x = ptc_calloc(1, sizeof *x);
	Ptc__V1__ExportInfoRequest request;
	int rc;

	if (!x)
		return ptc_nomem(err);
	ptc__v1__export_info_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.resume = resume;
	request.snapshot = snapshot;
	rc = ptc_admin_call(a, SERVICE "ExportInfo", &request.base, &ptc__v1__export_info_reply__descriptor, &x->reply,
			    err);
	if (rc == 0)
		rc = view(x, err);
	if (rc == 0 && snapshot && x->seen.snapshot != snapshot)
		rc = ptc_error_set(err, PTC_EVERSION, "the daemon is too old to read snapshots that are not committed");
	if (rc)
		ptc_admin_export_done(&x->seen);
	else
		*ret_export = &x->seen;
	return rc;
}

int ptc_admin_export_info(struct ptc_admin *a, const char *job, struct ptc_admin_export **ret_export,
			  struct ptc_error *err)
{
	return export_info(a, job, 0, false, ret_export, err);
}

int ptc_admin_export_resume(struct ptc_admin *a, const char *job, struct ptc_admin_export **ret_export,
			    struct ptc_error *err)
{
	return export_info(a, job, 0, true, ret_export, err);
}

int ptc_admin_export_snapshot(struct ptc_admin *a, const char *job, uint64_t snapshot,
			      struct ptc_admin_export **ret_export, struct ptc_error *err)
{
	return export_info(a, job, snapshot, true, ret_export, err);
}

struct ptc_admin_export *ptc_admin_export_done(struct ptc_admin_export *seen)
{
	struct export *x = (struct export *)seen; /* its first member */

	if (!x)
		return NULL;
	ptc_free(x->files);
	ptc_admin_reply_free(x->reply);
	ptc_free(x);
	return NULL;
}

struct ptc_admin_reading {
	struct ptc_rpc_stream *rpc;
	uint32_t item;
	bool sized; /* length is what has to come */
	uint64_t length;
	uint64_t got;                /* bytes so far */
	bool ranked;                 /* of a rank: messages have sums of ... */
	struct ptc_rank_asked asked; /* ... this; offset: of what comes next */
};

struct data {
	const uint8_t *p;
	size_t len;
	uint64_t version, sum;
};

/* The data of a packed Data message, without unpacking it (that would copy). False: malformed. */
static bool find_data(const uint8_t *p, size_t len, struct data *ret)
{
	*ret = (struct data){ .p = p };
	while (len) {
		uint64_t tag, value = 0;
		size_t n = get_varint(p, len, &tag), m = n ? get_varint(p + n, len - n, &value) : 0;

		if (!m)
			return false;
		p += n + m;
		len -= n + m;
		if (tag == VERSION_TAG)
			ret->version = value;
		if (tag == SUM_TAG)
			ret->sum = value;
		if ((tag & 7) == 0)
			continue;
		if ((tag & 7) != 2 || value > len)
			return false;
		if (tag == DATA_TAG) {
			ret->p = p;
			ret->len = value;
		}
		p += value;
		len -= value;
	}
	return true;
}

static int check_sum(struct ptc_admin_reading *r, const struct data *d, struct ptc_error *err)
{
	if (r->ranked && d->sum && d->sum != ptc_rank_sum_add(ptc_rank_sum_begin(&r->asked), d->p, d->len))
		return ptc_error_set(err, PTC_EPEER,
				     "item %u: bytes of rank %" PRIu64 " changed on the way from the daemon: ask again",
				     r->item, r->asked.rank);
	r->asked.offset += d->len;
	r->got += d->len;
	return 0;
}

/* One message's bytes to fn; buf is kept from message to message. */
static int deliver(struct ptc_admin_reading *r, struct ptc_rpc_message *msg, void **buf, size_t *cap,
		   ptc_admin_data_fn fn, void *arg, struct ptc_error *err)
{
	size_t len = ptc_rpc_message_len(msg);
	struct data data;
	int rc;

	if (len > *cap) {
		void *bigger = ptc_realloc(*buf, len);

		if (!bigger) {
			ptc_rpc_message_done(msg);
			return ptc_nomem(err);
		}
		*buf = bigger;
		*cap = len;
	}
	len = ptc_rpc_message_read(msg, *buf, len);
	ptc_rpc_message_done(msg);
	ptc_require(*buf || !len);
	if (!find_data(*buf, len, &data))
		return ptc_error_set(err, PTC_EPEER, "the daemon's reply does not decode (Data)");
	if (!ptc_version_reads(data.version, PTC_WIRE_OLDEST, PTC_ADMIN_VERSION))
		return ptc_error_set(err, PTC_EVERSION,
				     "the daemon speaks protocol version %" PRIu64
				     ", this program %d to %d: use the ptcctl of the daemon's package",
				     data.version, PTC_WIRE_OLDEST, PTC_ADMIN_VERSION + 1);
	rc = check_sum(r, &data, err);
	return !rc && data.len ? fn(arg, data.p, data.len, err) : rc;
}

static int reading_new(struct ptc_admin *a, const char *method, const ProtobufCMessage *request,
		       struct ptc_admin_reading **ret_reading, struct ptc_error *err)
{
	struct ptc_admin_reading *r = ptc_calloc(1, sizeof *r);
	int rc = r ? ptc_admin_open_stream(a, a->bulk, method, request, &r->rpc, err) : ptc_nomem(err);

	if (rc) {
		ptc_free(r);
		return rc;
	}
	*ret_reading = r;
	return 0;
}

/* Of one item, whose bytes are known to be so many. */
static int reading_of_item(struct ptc_admin *a, const char *method, const ProtobufCMessage *request, uint32_t item,
			   uint64_t length, struct ptc_admin_reading **ret_reading, struct ptc_error *err)
{
	int rc = reading_new(a, method, request, ret_reading, err);

	if (rc)
		return rc;
	(*ret_reading)->item = item;
	(*ret_reading)->sized = true;
	(*ret_reading)->length = length;
	return 0;
}

int ptc_admin_read_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t item,
			 uint64_t offset, uint64_t length, struct ptc_admin_reading **ret_reading,
			 struct ptc_error *err)
{
	Ptc__V1__ReadRequest request;

	ptc__v1__read_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.generation = e->generation;
	request.snapshot = e->snapshot;
	request.item = item;
	request.offset = offset;
	request.length = length;
	request.uuid = ptc_admin_borrow(e->uuid);
	return reading_of_item(a, SERVICE "Read", &request.base, item, length, ret_reading, err);
}

int ptc_admin_read_rank_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t rank,
			      uint32_t item, uint64_t offset, uint64_t length, struct ptc_admin_reading **ret_reading,
			      struct ptc_error *err)
{
	Ptc__V1__ReadRankRequest request;
	int rc;

	ptc__v1__read_rank_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.generation = e->generation;
	request.snapshot = e->snapshot;
	request.rank = rank;
	request.item = item;
	request.offset = offset;
	request.length = length;
	request.uuid = ptc_admin_borrow(e->uuid);
	rc = reading_of_item(a, SERVICE "ReadRank", &request.base, item, length, ret_reading, err);
	if (rc)
		return rc;
	(*ret_reading)->ranked = true;
	(*ret_reading)->asked = (struct ptc_rank_asked){ e->generation, e->snapshot, rank, item, offset };
	return 0;
}

int ptc_admin_read_many_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
			      const struct ptc_admin_range *ranges, size_t n, struct ptc_admin_reading **ret_reading,
			      struct ptc_error *err)
{
	ptc_auto_free uint32_t *items = ptc_calloc(n, sizeof *items);
	ptc_auto_free uint64_t *offsets = ptc_calloc(n, sizeof *offsets), *lengths = ptc_calloc(n, sizeof *lengths);
	Ptc__V1__ReadManyRequest request;
	uint64_t bytes = 0;
	int rc;

	if (!items || !offsets || !lengths)
		return ptc_nomem(err);
	for (size_t i = 0; i < n; i++) {
		items[i] = ranges[i].item;
		offsets[i] = ranges[i].offset;
		lengths[i] = ranges[i].length;
		bytes += ranges[i].length;
	}
	ptc__v1__read_many_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.generation = e->generation;
	request.snapshot = e->snapshot;
	request.uuid = ptc_admin_borrow(e->uuid);
	request.items = items;
	request.offsets = offsets;
	request.lengths = lengths;
	request.n_items = request.n_offsets = request.n_lengths = n;
	rc = reading_new(a, SERVICE "ReadMany", &request.base, ret_reading, err);
	if (rc)
		return rc;
	(*ret_reading)->item = ranges[0].item;
	(*ret_reading)->sized = true;
	(*ret_reading)->length = bytes;
	return 0;
}

int ptc_admin_read_take(struct ptc_admin_reading *r, ptc_admin_data_fn fn, void *arg, struct ptc_error *err)
{
	struct ptc_rpc_message *msg = NULL;
	ptc_auto_free void *buf = NULL;
	size_t cap = 0;
	int rc = 0;

	while (!rc) {
		rc = ptc_rpc_stream_recv(r->rpc, &msg, err);
		if (rc || !msg)
			break;
		rc = deliver(r, msg, &buf, &cap, fn, arg, err);
	}
	if (!rc)
		rc = ptc_rpc_stream_finish(r->rpc, err);
	if (!rc && r->sized && r->got != r->length)
		rc = ptc_error_set(err, PTC_EPEER, "item %u: the daemon sent %" PRIu64 " bytes of %" PRIu64, r->item,
				   r->got, r->length);
	return rc;
}

struct ptc_admin_reading *ptc_admin_read_end(struct ptc_admin_reading *r)
{
	if (!r)
		return NULL;
	ptc_rpc_stream_free(r->rpc);
	ptc_free(r);
	return NULL;
}

static int take_and_end(struct ptc_admin_reading *r, ptc_admin_data_fn fn, void *arg, struct ptc_error *err)
{
	int rc = ptc_admin_read_take(r, fn, arg, err);

	ptc_admin_read_end(r);
	return rc;
}

int ptc_admin_read(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t item,
		   uint64_t offset, uint64_t length, ptc_admin_data_fn fn, void *arg, struct ptc_error *err)
{
	struct ptc_admin_reading *r = NULL;
	int rc = ptc_admin_read_begin(a, job, e, item, offset, length, &r, err);

	return rc ? rc : take_and_end(r, fn, arg, err);
}

int ptc_admin_read_rank(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t rank,
			uint32_t item, uint64_t offset, uint64_t length, ptc_admin_data_fn fn, void *arg,
			struct ptc_error *err)
{
	struct ptc_admin_reading *r = NULL;
	int rc = ptc_admin_read_rank_begin(a, job, e, rank, item, offset, length, &r, err);

	return rc ? rc : take_and_end(r, fn, arg, err);
}

int ptc_admin_pin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, const char *reader,
		  uint32_t ttl_ms, struct ptc_error *err)
{
	Ptc__V1__PinRequest request;

	ptc__v1__pin_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.uuid = ptc_admin_borrow(e->uuid);
	request.generation = e->generation;
	request.snapshot = e->snapshot;
	request.reader = ptc_admin_borrow(reader);
	request.ttl_ms = ttl_ms;
	return ptc_admin_call_ack(a, SERVICE "Pin", &request.base, err);
}
