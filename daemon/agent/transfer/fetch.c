/* SPDX-License-Identifier: Apache-2.0 */
/* The asking side of Fetch. Happy path: one request, then messages whose
 * payload is copied from the socket's slices to where each box belongs, run
 * by run, without a buffer in between. Failure modes: a peer that sends
 * fewer, more or malformed bytes (PTC_EPEER; never past the memory asked
 * for), its own status, a stream cancelled from outside. */
#include "daemon/agent/calls/agent_state.h"
#include "proto/ptc.pb-c.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/transfer/fetch.h"
#include "proto/pb.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"

#include <string.h>

/* ---- request ---- */

struct request {
	Ptc__V1__FetchRequest msg;
	Ptc__V1__Box *boxes;
	Ptc__V1__Box **ptrs;
};

static int request_make(struct request *q, const struct ptc_geometry *g, const struct ptc_store_box *boxes, size_t n,
			struct ptc_error *err)
{
	q->boxes = ptc_reallocarray(NULL, n, sizeof(*q->boxes));
	q->ptrs = ptc_reallocarray(NULL, n, sizeof(*q->ptrs));
	if (!q->boxes || !q->ptrs)
		return ptc_error_set(err, PTC_ENOMEM, "no memory to ask for %zu boxes", n);
	ptc__v1__fetch_request__init(&q->msg);
	q->msg.version = PTC_WIRE_VERSION;
	q->msg.uuid = (char *)(uintptr_t)g->uuid;
	q->msg.generation = g->generation;
	q->msg.snapshot = g->snapshot;
	for (size_t i = 0; i < n; i++) {
		Ptc__V1__Box *b = &q->boxes[i];

		ptc__v1__box__init(b);
		b->item = boxes[i].item;
		b->n_offset = b->n_extent = boxes[i].box.ndim;
		b->offset = (int64_t *)(uintptr_t)boxes[i].box.off;
		b->extent = (int64_t *)(uintptr_t)boxes[i].box.ext;
		q->ptrs[i] = b;
	}
	q->msg.n_boxes = n;
	q->msg.boxes = q->ptrs;
	return 0;
}

static int request_send(struct ptc_rpc_stream *stream, const struct ptc_geometry *g, const struct ptc_store_box *boxes,
			size_t n, bool begun, struct ptc_error *err)
{
	struct request q = { 0 };
	struct ptc_rpc_part part = { 0 };
	void *data = NULL;
	int r = request_make(&q, g, boxes, n, err);

	q.msg.begun = begun;
	r = r ? r : ptc_pb_encode(&q.msg.base, &data, &part.len, err);
	part.data = data;
	r = r ? r : ptc_rpc_stream_send(stream, &part, 1, err);
	r = r ? r : ptc_rpc_stream_half_close(stream, err);
	ptc_free(data);
	ptc_free(q.boxes);
	ptc_free(q.ptrs);
	return r;
}

int ptc_fetch_open(struct ptc_agent *agent, const struct ptc_geometry *g, uint32_t node, unsigned lane,
		   const struct ptc_store_box *boxes, size_t nboxes, const struct ptc_fetch_ops *ops,
		   struct ptc_fetch *ret_fetch, struct ptc_error *err)
{
	struct ptc_fetch f = { .boxes = boxes, .nboxes = nboxes, .ops = *ops };
	struct ptc_rpc_channel *channel;
	int r = agent->env.channel(agent->env.arg, g->nodes[node], g->addresses[node], true, lane, &channel, err);

	r = r ? r : ptc_rpc_stream_open(channel, "/ptc.v1.Peer/Fetch", ops->timeout_ms, NULL, 0, &f.stream, err);
	if (r)
		return r;
	r = request_send(f.stream, g, boxes, nboxes, ops->begun, err);
	if (r) {
		ptc_fetch_done(&f);
		return r;
	}
	*ret_fetch = f;
	return 0;
}

void ptc_fetch_done(struct ptc_fetch *f)
{
	f->stream = ptc_rpc_stream_free(f->stream);
}

/* ---- receiving ---- */

static void dst_write(const struct ptc_fetch_dst *dst, int64_t off, const uint8_t *from, size_t len)
{
	int i = 0;

	while (len) {
		size_t n;

		for (; off >= (int64_t)dst->iov[i].iov_len; i++)
			off -= (int64_t)dst->iov[i].iov_len;
		n = PTC_MIN(len, dst->iov[i].iov_len - (size_t)off);
		memcpy((uint8_t *)dst->iov[i].iov_base + off, from, n);
		from += n;
		len -= n;
		off += (int64_t)n;
	}
}

/* A test's wire that lies: one bit of what came is another one. */
static void dst_spoil(const struct ptc_fetch_dst *dst, int64_t off, const uint8_t *from)
{
	const uint8_t wrong = *from ^ 1;

	dst_write(dst, off, &wrong, 1);
}

static int box_begin(struct ptc_fetch *f, struct ptc_error *err)
{
	const struct ptc_box *cut = &f->boxes[f->at].box;
	size_t room = 0;
	int r = f->ops.begin(f->ops.arg, f->at, &f->dst, err);

	for (int i = 0; !r && i < f->dst.niov; i++)
		room += f->dst.iov[i].iov_len;
	if (!r && (ptc_fails(ptc_box_contains(&f->dst.outer, cut)) ||
		   ptc_fails(room >= (size_t)ptc_box_volume(&f->dst.outer))))
		r = ptc_error_set(err, PTC_EINTERNAL, "a box of item %u has no place to go", f->boxes[f->at].item);
	if (r) {
		f->local_error = true;
		return r;
	}
	ptc_runs_init(&f->runs, &f->dst.outer, cut, cut);
	f->in_run = f->in_box = 0;
	f->open = true;
	return 0;
}

static int box_arrived(struct ptc_fetch *f, struct ptc_error *err)
{
	int r = f->ops.arrived ? f->ops.arrived(f->ops.arg, f->at, f->in_box, err) : 0;

	f->local_error = r != 0;
	return r;
}

static int box_end(struct ptc_fetch *f, struct ptc_error *err)
{
	int r = box_arrived(f, err);

	r = r ? r : f->ops.end(f->ops.arg, f->at, err);
	f->local_error = r != 0;
	f->open = false;
	f->at++;
	return r;
}

static int feed(struct ptc_fetch *f, const uint8_t *p, size_t len, struct ptc_error *err)
{
	int r = 0;

	while (len && !r) {
		size_t n;

		if (f->at == f->nboxes)
			return ptc_error_set(err, PTC_EPEER, "sent more bytes than asked for");
		if (!f->open) {
			r = box_begin(f, err);
			if (r)
				return r;
		}
		n = (size_t)PTC_MIN((int64_t)len, f->runs.run_bytes - f->in_run);
		dst_write(&f->dst, f->runs.a_off + f->in_run, p, n);
		if (ptc_fault("agent.receive.bytes"))
			dst_spoil(&f->dst, f->runs.a_off + f->in_run, p);
		p += n;
		len -= n;
		f->in_run += (int64_t)n;
		f->in_box += (int64_t)n;
		if (f->in_run < f->runs.run_bytes)
			continue;
		f->in_run = 0;
		ptc_runs_next(&f->runs);
		if (f->runs.done >= f->runs.count)
			r = box_end(f, err);
	}
	return r || !f->open ? r : box_arrived(f, err);
}

static int message_take(struct ptc_fetch *f, struct ptc_rpc_message *msg, struct ptc_error *err)
{
	const void *span;
	uint64_t payload;
	size_t n;
	int r = ptc_wire_data_open(msg, &payload, err);

	while (!r && (n = ptc_rpc_message_next(msg, &span)))
		r = feed(f, span, n, err);
	f->lied = r && !f->local_error;
	if (!r && ptc_fault("agent.receive.middle")) {
		f->local_error = true;
		r = ptc_error_set(err, PTC_EIO, "fault agent.receive.middle");
	}
	if (!r && f->ops.progress)
		f->ops.progress(f->ops.arg, (size_t)payload);
	return r;
}

int ptc_fetch_drain(struct ptc_fetch *f, struct ptc_error *err)
{
	struct ptc_rpc_message *msg;
	int r;

	while (!(r = ptc_rpc_stream_recv(f->stream, &msg, err)) && msg) {
		r = message_take(f, msg, err);
		ptc_rpc_message_done(msg);
		if (r)
			return r;
	}
	r = r ? r : ptc_rpc_stream_finish(f->stream, err);
	if (!r && f->at != f->nboxes)
		r = ptc_error_set(err, PTC_EPEER, "sent fewer bytes than asked for: %zu of %zu boxes", f->at,
				  f->nboxes);
	return r;
}

/* ---- who gives what ---- */

int ptc_parts_push(struct ptc_parts *p, uint32_t node, const struct ptc_box *box)
{
	if (p->n == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 16;
		struct ptc_part *v = ptc_reallocarray(p->v, cap, sizeof(*v));

		if (!v)
			return PTC_ENOMEM;
		p->v = v;
		p->cap = cap;
	}
	p->v[p->n++] = (struct ptc_part){ node, *box };
	return 0;
}

void ptc_parts_done(struct ptc_parts *p)
{
	ptc_free(p->v);
	*p = (struct ptc_parts){ 0 };
}

/* Takes from rest what replica has. */
static int cover_by(const struct ptc_replica *replica, struct ptc_boxes *rest, struct ptc_parts *out)
{
	struct ptc_boxes next = { 0 };
	struct ptc_box cut;
	int r = 0;

	for (size_t i = 0; !r && i < rest->n; i++) {
		if (!ptc_box_intersect(&rest->v[i], &replica->box, &cut)) {
			r = ptc_boxes_push(&next, &rest->v[i]);
			continue;
		}
		r = ptc_parts_push(out, replica->node, &cut);
		r = r ? r : ptc_box_subtract(&rest->v[i], &cut, &next);
	}
	ptc_boxes_done(rest);
	*rest = next;
	return r;
}

static int cover(const struct ptc_replica *replicas, size_t n, const bool *usable, uint32_t prefer, uint32_t first,
		 struct ptc_boxes *rest, struct ptc_parts *out)
{
	int r = 0;

	for (size_t i = 0; !r && rest->n && i < n; i++)
		if (replicas[i].node == prefer && usable[prefer])
			r = cover_by(&replicas[i], rest, out);
	for (size_t i = 0; !r && rest->n && i < n; i++) {
		const struct ptc_replica *h = &replicas[(i + first) % n];

		if (h->node != prefer && usable[h->node])
			r = cover_by(h, rest, out);
	}
	return r;
}

int ptc_parts_cover(const struct ptc_box *box, const struct ptc_replica *replicas, size_t nreplicas, const bool *usable,
		    uint32_t prefer, uint32_t first, struct ptc_parts *out, struct ptc_boxes *uncovered,
		    struct ptc_error *err)
{
	struct ptc_boxes rest = { 0 };
	int r = ptc_boxes_push(&rest, box);

	r = r ? r : cover(replicas, nreplicas, usable, prefer, first, &rest, out);
	for (size_t i = 0; !r && i < rest.n; i++)
		r = ptc_boxes_push(uncovered, &rest.v[i]);
	ptc_boxes_done(&rest);
	return r ? ptc_error_set(err, PTC_ENOMEM, "no memory to cover a box") : 0;
}
