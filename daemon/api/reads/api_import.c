/* SPDX-License-Identifier: Apache-2.0 */
/* Import as the gateway sees it: the daemon the client talks to.
 *
 * Happy path: ImportBegin (on the controller) reserves memory on every node; ImportData streams scatter the bytes from
 * here to the nodes. A stream has a thread only while its client sends, and for a turn at a time: a client that waits
 * for another daemon keeps nobody waiting here (docs/decisions/0075-imports-do-not-wait-in-circles.md); ImportCommit
 * (on the controller, api_import_commit.c) seals, compares digests with what the client read, and commits. Failure
 * modes: the client goes away in the middle of its data (the import is aborted, nothing is left), an import that was
 * aborted meanwhile (PTC_ESTATE: import again). */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/gateway/gateway.h"
#include "daemon/agent/tables/import_window.h"
#include "daemon/api/reads/reads.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/job_events.h"

#include <stdio.h>
#include <string.h>

#define INTENT_WAIT_MS 5000
#define POLL_MS        20
#define LINGER_MS      20
#define TURN_NS        INT64_C(250000000)

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

struct layout_ask {
	struct ptc_daemon *d;
	const char *uuid;
	uint64_t id;
	char *hash;
	bool open;
};

static void layout_on_loop(void *arg)
{
	struct layout_ask *a = arg;
	struct ptc_controller *ctl = ptc_controller_find(&a->d->controllers, a->uuid);

	a->open = ctl && ptc_controller_import_layout(ctl, a->id, a->hash);
}

int ptc_api_import_layout(struct ptc_daemon *d, const char *uuid, uint64_t id, char ret_hash[PTC_HASH_HEX],
			  struct ptc_error *err)
{
	struct layout_ask a = { .d = d, .uuid = uuid, .id = id, .hash = ret_hash };
	int rc = ptc_loop_call(d->loop, layout_on_loop, &a);

	if (rc)
		return ptc_error_set(err, rc, "the daemon is stopping");
	return a.open ? 0 : ptc_error_set(err, PTC_ESTATE, "the import is not open any more (aborted?); import again");
}

static int begin_reply(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_target *t, uint64_t id,
		       struct ptc_error *err)
{
	Ptc__V1__ImportBeginReply reply = PTC__V1__IMPORT_BEGIN_REPLY__INIT;
	char layout[PTC_HASH_HEX] = "";
	size_t len = 0;
	char *json = NULL;
	int rc = ptc_api_import_layout(d, t->meta.uuid, id, layout, err);

	if (rc == 0)
		rc = ptc_api_spec_of(d, &t->meta, layout, &json, &len, err);
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
	struct ptc_import_window *window; /* the client hands bytes over there; NULL: in messages */
	uint64_t bytes;
	int64_t heard_ns; /* when the client has last sent something */
	uint8_t *buf;     /* a message; kept from one to the next of a turn, so that its pages are there */
	size_t room;
	bool over; /* it is answered, or the controller was told */
};

/* What a stream has come to. */
enum heard { HEARD_SOMETHING, HEARD_NOTHING, HEARD_END };

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
int ptc_api_import_find(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job, uint64_t id,
			struct ptc_target *ret_target, struct ptc_error *err)
{
	int rc = ptc_api_await(d, call, job, shows_import, &id, INTENT_WAIT_MS, ret_target, err);

	if (rc && rc != PTC_ETIMEOUT)
		return rc;
	if (!ret_target->has_intent || ret_target->intent.id != id || ret_target->intent.kind != PTC_SWITCH_IMPORT)
		return ptc_error_set(err, PTC_ESTATE, "import %llu of job %s is not open (aborted?); import again",
				     (unsigned long long)id, job);
	return 0;
}

static int find_import(struct import *im, const char *job, uint64_t id, struct ptc_error *err)
{
	struct ptc_view v;
	int rc = ptc_api_import_find(im->d, im->call, job, id, &im->target, err);

	if (rc == 0)
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
	return ptc_scatter_new(im->d->agent, &im->geometry, im->target.meta.uuid, id, im->call, &im->scatter, err);
}

static int part_write(struct import *im, const struct ptc_import_part *part, struct ptc_error *err)
{
	int rc = ptc_scatter_write(im->scatter, part->item, part->offset, part->data, part->len, err);

	im->bytes += rc ? 0 : part->len;
	return rc;
}

/* What the client hands over next in its window. Its end is the window's: the stream says whether that was all. */
static int import_window(struct import *im, enum heard *ret, struct ptc_error *err)
{
	struct ptc_import_part part = { 0 };
	int rc = ptc_import_window_next(im->window, &part, err);

	*ret = rc == PTC_ETIMEOUT ? HEARD_NOTHING : HEARD_SOMETHING;
	if (rc)
		return rc == PTC_ETIMEOUT ? 0 : rc;
	if (!part.len) {
		im->window = ptc_import_window_free(im->window);
		return 0;
	}
	rc = part_write(im, &part, err);
	return rc ? rc : ptc_import_window_taken(im->window, &part, err);
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
	if (rc == 0 && c->window.len && !im->window)
		rc = ptc_import_window_take(im->d->import_windows, c->window.data, c->window.len, ptc_api_uid(im->call),
					    &im->window, err);
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

	im->over = true;
	im->scatter = ptc_scatter_free(im->scatter); /* it sends no more */
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

static int import_stream(struct import *im, enum heard *ret, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	int rc = ptc_rpc_call_recv_within(im->call, LINGER_MS, &m, err);

	*ret = rc == PTC_ETIMEOUT ? HEARD_NOTHING : rc == 0 && !m ? HEARD_END : HEARD_SOMETHING;
	if (rc || !m)
		return rc == PTC_ETIMEOUT ? 0 : rc;
	rc = import_message(im, m, err);
	ptc_rpc_message_done(m);
	return rc;
}

/* What comes within a turn, or until nothing comes for a moment. */
static int import_turn(struct import *im, enum heard *ret, struct ptc_error *err)
{
	const int64_t until = ptc_sys_now_ns() + TURN_NS;
	int rc = 0;

	*ret = HEARD_SOMETHING;
	while (!rc && *ret == HEARD_SOMETHING && ptc_sys_now_ns() < until) {
		rc = im->window ? import_window(im, ret, err) : import_stream(im, ret, err);
		if (*ret == HEARD_SOMETHING)
			im->heard_ns = ptc_sys_now_ns();
	}
	if (rc == 0 && ptc_rpc_call_cancelled(im->call))
		rc = ptc_error_set(err, PTC_ECANCELED, "the client went away");
	if (rc == 0 && *ret == HEARD_END && im->scatter)
		rc = ptc_scatter_finish(im->scatter, err);
	return rc;
}

static void import_free(void *arg)
{
	struct import *im = arg;

	if (!im->over)
		give_up(im, "the client went away");
	ptc_import_window_free(im->window);
	ptc_scatter_free(im->scatter);
	ptc_free(im->buf);
	if (im->have_geometry)
		ptc_geometry_done(&im->geometry);
	ptc_free(im);
}

/* The client waits: for us no longer, but perhaps for another daemon. */
static void import_rest(struct import *im, enum heard heard)
{
	ptc_free(im->buf);
	im->buf = NULL;
	im->room = 0;
	ptc_rpc_call_again(im->call,
			   heard == HEARD_SOMETHING ? 0 : ptc_wait_ms(im->heard_ns)); /* 0: its turn is over */
}

static int import_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ImportDataReply reply = PTC__V1__IMPORT_DATA_REPLY__INIT;
	struct ptc_error own = PTC_ERROR_INIT;
	struct import *im = arg;
	enum heard heard;
	int rc = import_turn(im, &heard, &own);

	if (rc) {
		give_up(im, own.text);
		return ptc_error_set(err, rc, "%s", own.text);
	}
	if (heard != HEARD_END) {
		import_rest(im, heard);
		return 0;
	}
	im->over = true;
	reply.version = PTC_WIRE_VERSION;
	reply.bytes = im->bytes;
	return ptc_pb_call_send(call, &reply.base, err);
}

PTC_API_HANDLER(ptc_api_import_data)
{
	struct import *im = ptc_calloc(1, sizeof *im);

	if (!im)
		return ptc_nomem(err);
	im->d = arg;
	im->call = call;
	im->heard_ns = ptc_sys_now_ns();
	ptc_rpc_call_follow(call, 0, import_step, im, import_free);
	return 0;
}
