/* SPDX-License-Identifier: Apache-2.0 */
/* The transfer engine, from the search for sources to the last byte in place.
 *
 * Happy path: the destination's plan says which node gives which part. Parts of one node are asked for together, up to
 * a request's limits: one Fetch, whose payload is copied from the socket's slices to where each part belongs, run by
 * run, without a buffer in between. ptc_transfer_run does that on a few threads, each with a ticket for the request
 * under way, while the owner's thread watches; ptc_transfer_open and _drain do it on the owner's thread alone.
 *
 * Failure modes: a source that fails, that sends fewer, more or malformed bytes (never past the memory asked for), or
 * from which no message comes for env.stall_ms, is left out, and all is planned again over the others; when none is
 * left, PTC_EPEER naming the tensor, the node and why. With wait_ms, the source is asked again instead, and PTC_EPEER
 * names it when the time is over. Our own store or memory failing ends the transfer with its code. If the owner has to
 * stop, every stream is cancelled: PTC_ECANCELED; complete parts stay. */
#include "daemon/agent/transfer/transfer.h"

#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/near/near.h"
#include "daemon/agent/transfer/near_message.h"
#include "daemon/store/store_table.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/memory/chunk_read.h"
#include "base/number/count.h"
#include "base/number/search.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AGAIN_MS     20 /* at first; a thousand nodes that wait for one must leave it time to do what they wait for */
#define AGAIN_MAX_MS 200
#define NEAR_SLICE   (256 << 10) /* of bytes that are read from a file and then told: they are in the cache */

/* One Fetch. */
struct ptc_request {
	struct ptc_transfer *t;
	struct ptc_request *next; /* of ptc_transfer_open */
	pthread_t id;
	unsigned thread, lane;
	uint32_t node;
	const struct ptc_part *parts;
	size_t n;
	struct ptc_rpc_stream *stream;
	bool watched;     /* under the lock: the watching thread may cancel the stream */
	bool local, lied; /* how it failed: by ourselves, not by the source; the source broke the protocol */
	/* of a near source; file NULL: it is none */
	struct ptc_near_file *file;
	struct ptc_near_list *list; /* of the message that is being read */
	struct ptc_chunk_reader reader;
	bool ends_later;              /* once all has been read there, its status is not waited for */
	bool file_taken, file_failed; /* the source has said places in the file; what was read there was wrong */
	/* the part that is being received */
	size_t at; /* of parts */
	bool open; /* this one has begun */
	struct ptc_transfer_dst dst;
	struct ptc_runs runs;
	int64_t in_run, in_part; /* bytes received */
	int64_t untold;          /* of these, since the destination was told */
};

/* ---- who gives what ---- */

int ptc_transfer_cover(struct ptc_transfer *t, uint32_t item, size_t to, const struct ptc_box *box, uint32_t prefer,
		       uint32_t first, struct ptc_error *err)
{
	const struct ptc_part want = { .item = item, .to = to, .box = *box };
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	struct ptc_item_replicas replicas = { 0 };
	bool all;
	int rc = ptc_geometry_replicas(t->g, item, &replicas, err);

	if (rc == 0)
		rc = ptc_parts_cover(&want, replicas.v, replicas.n, t->usable, prefer, first, &t->parts, &all, err);
	ptc_item_replicas_done(&replicas);
	if (rc || all)
		return rc;
	return ptc_error_set(err, t->why.code == PTC_ECORRUPT ? PTC_ECORRUPT : PTC_EPEER,
			     "no node left that has all of \"%.400s\"%s%.400s",
			     ptc_geometry_item_name(t->g, item, name, sizeof(name)), t->why.code ? ": " : "",
			     t->why.text);
}

PTC_COMPARE(part_compare, struct ptc_part,
	    PTC_THEN(PTC_ORDER(a->node, b->node),
		     PTC_THEN(PTC_ORDER(a->to, b->to), ptc_box_order_off(&a->box, &b->box))))

/* Asks the destination what is missing. Sorts the parts by node. If a node has a box of several ranks, its parts are
 * merged, so it is asked for fewer parts, often for one run. */
static int transfer_plan(struct ptc_transfer *t, struct ptc_error *err)
{
	struct ptc_parts *p = &t->parts;
	struct ptc_boxes same = { 0 };
	size_t out = 0;
	int rc = 0;

	if (t->to->plan) {
		p->n = 0;
		rc = t->to->plan(t->arg, t, err);
	}
	if (rc || !p->n)
		return rc;
	ptc_sort(p->v, p->n, sizeof *p->v, part_compare);
	for (size_t i = 0, end; !rc && i < p->n; i = end) {
		const struct ptc_part part = p->v[i];

		for (end = i + 1; end < p->n && p->v[end].node == part.node && p->v[end].to == part.to;)
			end++;
		if (end - i == 1) { /* most of them */
			if (out < i)
				p->v[out] = p->v[i];
			out++;
			continue;
		}
		same.n = 0;
		for (size_t k = i; !rc && k < end; k++)
			rc = ptc_boxes_push(&same, &p->v[k].box);
		if (rc)
			break;
		ptc_boxes_join(same.v, &same.n);
		for (size_t k = 0; k < same.n; k++)
			p->v[out++] = (struct ptc_part){ part.node, part.item, part.to, same.v[k] };
	}
	p->n = out;
	ptc_boxes_done(&same);
	return rc ? ptc_error_set(err, rc, "no memory for %zu parts of a transfer", p->n) : 0;
}

/* How many of the first of n parts, all of one node, are asked for together. */
static size_t request_parts(const struct ptc_part *parts, size_t n)
{
	int64_t bytes = 0;
	size_t i;

	for (i = 0; i < n && i < PTC_AGENT_REQUEST_BOXES && parts[i].node == parts->node; i++) {
		bytes += ptc_box_volume(&parts[i].box);
		if (i && bytes > PTC_AGENT_REQUEST_BYTES)
			break;
	}
	return i;
}

/* ---- a request ---- */

int ptc_extent_spans(struct ptc_table *table, uint32_t extent, uint32_t item, const struct ptc_box *box,
		     struct iovec *iov, int max, int *ret_n, struct ptc_error *err)
{
	*ret_n = ptc_table_extent_iov(table, extent, 0, ptc_box_volume(box), iov, max);
	if (*ret_n > 0)
		return 0;
	return ptc_error_set(err, PTC_ESTATE, "item %u: its table was dropped or sealed while bytes came", item);
}

static int peer_open(struct ptc_agent *agent, const struct ptc_geometry *g, uint32_t node, unsigned lane,
		     const char *method, int timeout_ms, struct ptc_rpc_stream **ret_stream, struct ptc_error *err)
{
	struct ptc_rpc_channel *channel;
	int rc = agent->env.channel(agent->env.arg, g->nodes[node], g->addresses[node], true, lane, &channel, err);

	if (rc == 0)
		rc = ptc_rpc_stream_open(channel, method, timeout_ms, NULL, 0, ret_stream, err);
	if (rc == 0)
		ptc_rpc_stream_patience(*ret_stream, ptc_agent_stall_ms(agent));
	return rc;
}

int ptc_peer_open(struct ptc_agent *agent, const struct ptc_geometry *g, uint32_t node, const char *method,
		  const struct ptc_rpc_call *caller, struct ptc_rpc_stream **ret_stream, struct ptc_error *err)
{
	int rc = peer_open(agent, g, node, 0, method, 0, ret_stream, err);

	if (!rc && caller)
		ptc_rpc_stream_follow(*ret_stream, caller);
	return rc;
}

static int peer_send(struct ptc_rpc_stream *stream, const ProtobufCMessage *request, struct ptc_error *err)
{
	ptc_auto_free void *data = NULL;
	struct ptc_rpc_part part = { 0 };
	int rc = ptc_pb_encode(request, &data, &part.len, err);

	part.data = data;
	return rc ? rc : ptc_rpc_stream_send(stream, &part, 1, err);
}

int ptc_peer_ask(struct ptc_rpc_stream *stream, const ProtobufCMessage *request, struct ptc_error *err)
{
	int rc = peer_send(stream, request, err);

	return rc ? rc : ptc_rpc_stream_half_close(stream, err);
}

static bool goes_by_network(struct ptc_transfer *t, uint32_t node)
{
	bool yes;

	pthread_mutex_lock(&t->shared.lock);
	yes = t->by_network && t->by_network[node];
	pthread_mutex_unlock(&t->shared.lock);
	return yes;
}

/* Finds the file of a near source. One that failed in this transfer gives none. A source does not heal in it, and an
 * unfilled table has no checksums. */
static void file_open(struct ptc_request *q)
{
	struct ptc_transfer *t = q->t;
	struct ptc_table_key key = ptc_geometry_key(t->g);

	if (t->begun || t->healing || goes_by_network(t, q->node))
		return;
	key.snapshot = ptc_geometry_snapshot(t->g, q->node, t->snapshot);
	q->file = ptc_near_file_get(t->agent->near, t->g->nodes[q->node], t->g->addresses[q->node], &key);
	q->reader = (struct ptc_chunk_reader){ .fd = q->file ? q->file->fd : -1 };
}

static void file_close(struct ptc_request *q)
{
	ptc_chunk_reader_done(&q->reader);
	ptc_near_file_put(q->t->agent->near, q->file, !q->file_taken || q->file_failed);
	q->file = NULL;
	ptc_free(q->list);
	q->list = NULL;
}

static int request_open(struct ptc_request *q, struct ptc_error *err)
{
	struct ptc_transfer *t = q->t;
	Ptc__V1__FetchRequest msg;
	Ptc__V1__Near near = PTC__V1__NEAR__INIT;
	ptc_auto_free Ptc__V1__Box *boxes = ptc_reallocarray(NULL, q->n, sizeof *boxes);
	ptc_auto_free Ptc__V1__Box **ptrs = ptc_reallocarray(NULL, q->n, sizeof *ptrs);
	int rc;

	if (!boxes || !ptrs)
		return ptc_error_set(err, PTC_ENOMEM, "no memory to ask for %zu boxes", q->n);
	ptc__v1__fetch_request__init(&msg);
	msg.version = PTC_WIRE_VERSION;
	msg.uuid = (char *)(uintptr_t)t->g->uuid;
	msg.generation = t->g->generation;
	msg.snapshot = ptc_geometry_snapshot(t->g, q->node, t->snapshot);
	msg.begun = t->begun;
	msg.healing = t->healing;
	for (size_t i = 0; i < q->n; i++) {
		const struct ptc_part *part = &q->parts[i];

		ptc__v1__box__init(&boxes[i]);
		boxes[i].item = part->item;
		boxes[i].n_offset = boxes[i].n_extent = part->box.ndim;
		boxes[i].offset = (int64_t *)(uintptr_t)part->box.off;
		boxes[i].extent = (int64_t *)(uintptr_t)part->box.ext;
		ptrs[i] = &boxes[i];
	}
	msg.n_boxes = q->n;
	msg.boxes = ptrs;
	file_open(q);
	if (q->file) {
		near.magic = PTC_DIRECT_READ_MAGIC;
		near.dev = q->file->dev;
		near.ino = q->file->ino;
		msg.near = &near;
	}
	rc = peer_open(t->agent, t->g, q->node, q->lane, "/ptc.v1.Peer/Fetch", t->timeout_ms, &q->stream, err);
	if (!rc && t->caller)
		ptc_rpc_stream_follow(q->stream, t->caller);
	if (rc || q->file) /* which is half-closed once all has been read */
		return rc ? rc : peer_send(q->stream, &msg.base, err);
	return ptc_peer_ask(q->stream, &msg.base, err);
}

/* Bytes to receive: in memory, or at a place of the near file. */
struct from {
	const uint8_t *memory;
	const struct ptc_chunk_sums *chunk;
	uint64_t at;
};

/* False: the file's bytes are not right, or cannot be read. */
static bool dst_write(struct ptc_request *q, int64_t off, struct from from, size_t len)
{
	const struct ptc_transfer_dst *dst = &q->dst;
	int i = 0;

	while (len) {
		uint8_t *to;
		size_t n;

		for (; off >= (int64_t)dst->iov[i].iov_len; i++)
			off -= (int64_t)dst->iov[i].iov_len;
		n = PTC_MIN(len, dst->iov[i].iov_len - (size_t)off);
		to = (uint8_t *)dst->iov[i].iov_base + off;
		if (from.memory)
			memcpy(to, from.memory, n);
		else if (!ptc_chunk_read(&q->reader, from.chunk, from.at, to, n))
			return false;
		if (ptc_fault("agent.receive.bytes")) /* a test's wire that lies: one bit is another one */
			*to ^= 1;
		from.memory += from.memory ? n : 0;
		from.at += n;
		len -= n;
		off += (int64_t)n;
	}
	return true;
}

static int part_begin(struct ptc_request *q, const struct ptc_part *part, struct ptc_error *err)
{
	size_t room = 0;
	int rc = q->t->to->begin(q->t->arg, q->thread, part, &q->dst, err);

	if (rc)
		return rc;
	for (int i = 0; i < q->dst.niov; i++)
		room += q->dst.iov[i].iov_len;
	if (ptc_fails(ptc_box_contains(&q->dst.outer, &part->box)) ||
	    ptc_fails(room >= (size_t)ptc_box_volume(&q->dst.outer)))
		return ptc_error_set(err, PTC_EINTERNAL, "internal error: no memory was set aside for a box of item %u",
				     part->item);
	ptc_runs_init(&q->runs, &q->dst.outer, &part->box, &part->box);
	q->in_run = q->in_part = 0;
	q->open = true;
	return 0;
}

static int file_failed(struct ptc_request *q, struct ptc_error *err)
{
	q->file_failed = true;
	return ptc_error_set(err, PTC_EPEER, "bytes in its memory are damaged, or were replaced");
}

/* Tells the destination what is in place, once it is known that no byte of it was replaced meanwhile. */
static int request_tell(struct ptc_request *q, struct ptc_error *err)
{
	const struct ptc_transfer_to *to = q->t->to;
	int rc;

	q->untold = 0;
	if (!ptc_chunk_unchanged(&q->reader))
		return file_failed(q, err);
	rc = q->open && to->arrived ? to->arrived(q->t->arg, q->thread, &q->parts[q->at], q->in_part, err) : 0;
	q->local = rc != 0;
	return rc;
}

/* The part's last byte is in place. */
static int part_end(struct ptc_request *q, const struct ptc_part *part, struct ptc_error *err)
{
	const struct ptc_transfer_to *to = q->t->to;
	int rc = request_tell(q, err);

	if (!rc && to->end) {
		rc = to->end(q->t->arg, part, &q->dst, err);
		q->local = rc != 0;
	}
	q->open = false;
	q->at++;
	return rc;
}

/* Copies a span of payload to where parts belong. */
static int request_feed(struct ptc_request *q, struct from from, size_t len, struct ptc_error *err)
{
	int rc = 0;

	while (!rc && len) {
		const struct ptc_part *part = &q->parts[q->at];
		size_t n;

		if (q->at == q->n) {
			q->lied = true;
			return ptc_error_set(err, PTC_EPEER, "sent more bytes than asked for");
		}
		rc = q->open ? 0 : part_begin(q, part, err);
		q->local = rc != 0;
		if (rc)
			break;
		n = (size_t)PTC_MIN((int64_t)len, q->runs.run_bytes - q->in_run);
		if (!dst_write(q, q->runs.a_off + q->in_run, from, n))
			return file_failed(q, err);
		from.memory += from.memory ? n : 0;
		from.at += n;
		len -= n;
		q->in_run += (int64_t)n;
		q->in_part += (int64_t)n;
		q->untold += (int64_t)n;
		if (q->in_run < q->runs.run_bytes)
			break;
		q->in_run = 0;
		ptc_runs_next(&q->runs);
		if (q->runs.done == q->runs.count)
			rc = part_end(q, part, err);
	}
	return rc;
}

static int feed_message(struct ptc_request *q, struct ptc_rpc_message *msg, struct ptc_error *err)
{
	const void *span;
	size_t n;
	int rc = 0;

	while (!rc && (n = ptc_rpc_message_next(msg, &span))) {
		rc = request_feed(q, (struct from){ .memory = span }, n, err);
		if (rc == 0)
			rc = request_tell(q, err);
	}
	return rc;
}

/* Inline bytes of a list: the next ones of the message, of whose slice *left bytes at *at are left. */
static int feed_inline(struct ptc_request *q, struct ptc_rpc_message *msg, size_t len, const uint8_t **at, size_t *left,
		       struct ptc_error *err)
{
	int rc = 0;

	while (!rc && len) {
		const void *span = *at;
		size_t n;

		if (!*left)
			*left = ptc_rpc_message_next(msg, &span);
		n = PTC_MIN(len, *left);
		if (ptc_fails(n > 0)) /* ptc_near_list_read has counted them */
			return ptc_error_set(err, PTC_EPEER, "malformed message: it is too short");
		rc = request_feed(q, (struct from){ .memory = span }, n, err);
		*at = (const uint8_t *)span + n;
		*left -= n;
		len -= n;
	}
	return rc;
}

/* Reads bytes in the near file. */
static int feed_list(struct ptc_request *q, struct ptc_rpc_message *msg, struct ptc_error *err)
{
	const struct ptc_near_list *l = q->list;
	const uint8_t *at = NULL;
	size_t left = 0;
	uint64_t read = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < l->nspans; i++) {
		const struct ptc_direct_read_span *s = &l->spans[i];

		if (s->chunk == PTC_NEAR_INLINE) {
			rc = feed_inline(q, msg, s->bytes, &at, &left, err);
			continue;
		}
		for (uint64_t off = 0, n; !rc && off < s->bytes; off += n) {
			const struct from from = { .chunk = &l->chunks[s->chunk], .at = s->at + off };

			n = PTC_MIN(s->bytes - off, (uint64_t)NEAR_SLICE);
			rc = request_feed(q, from, n, err);
			if (!rc && q->untold >= NEAR_SLICE)
				rc = request_tell(q, err);
		}
		read += s->bytes;
	}
	if (rc == 0)
		rc = request_tell(q, err);
	atomic_fetch_add(&q->t->near_bytes, (int64_t)read);
	ptc_count_add(PTC_COUNT_NEAR_BYTES, read);
	return rc;
}

/* *ret_bytes: the bytes that have come with the message. */
static int request_take(struct ptc_request *q, struct ptc_rpc_message *msg, uint64_t *ret_bytes, struct ptc_error *err)
{
	struct ptc_wire_near near;
	int rc = ptc_wire_near_open(msg, &near, ret_bytes, err);

	q->lied = rc != 0;
	if (rc || !near.spans)
		return rc ? rc : feed_message(q, msg, err);
	if (!q->file) {
		q->lied = true;
		return ptc_error_set(err, PTC_EPEER, "sent places in a file that nobody has named");
	}
	q->list = q->list ? q->list : ptc_malloc(sizeof *q->list);
	if (!q->list) {
		q->local = true;
		return ptc_error_set(err, PTC_ENOMEM, "no memory for places of bytes");
	}
	q->file_taken = true;
	rc = ptc_near_list_read(q->list, msg, near.spans, near.chunks, *ret_bytes, err);
	q->lied = rc != 0;
	*ret_bytes = q->list->bytes;
	return rc ? rc : feed_list(q, msg, err);
}

/* Receives everything asked for, strictly, and the source's status. */
static int request_drain(struct ptc_request *q, struct ptc_error *err)
{
	struct ptc_rpc_message *msg;
	int rc;

	while (!(rc = ptc_rpc_stream_recv(q->stream, &msg, err)) && msg) {
		uint64_t bytes = 0;

		rc = request_take(q, msg, &bytes, err);
		ptc_rpc_message_done(msg);
		if (!rc && ptc_fault("agent.receive.middle")) {
			q->local = true;
			rc = ptc_error_set(err, PTC_EIO, "fault agent.receive.middle");
		}
		if (!rc && q->file && q->at == q->n) /* it may let go of them */
			rc = ptc_rpc_stream_half_close(q->stream, err);
		if (rc)
			return rc;
		atomic_fetch_add(&q->t->wire_bytes, (int64_t)bytes);
		if (q->t->alone && !q->file_taken) /* memory is no link */
			atomic_fetch_add(&q->t->alone[q->node].all_bytes, (int64_t)bytes);
		if (q->ends_later && q->file_taken && q->at == q->n)
			return 0;
	}
	if (rc == 0)
		rc = ptc_rpc_stream_finish(q->stream, err);
	if (!rc && q->at != q->n)
		rc = ptc_error_set(err, PTC_EPEER, "sent only %zu of %zu requested boxes", q->at, q->n);
	return rc;
}

/* What was read in a near source's memory is wrong: it is asked for it over the network, as any other node. False: no
 * memory to note that. */
static bool source_by_network(struct ptc_transfer *t, uint32_t node, const struct ptc_error *why)
{
	if (!t->by_network)
		t->by_network = ptc_calloc(t->g->nnodes, sizeof *t->by_network);
	if (!t->by_network)
		return false;
	t->by_network[node] = true;
	t->failures++;
	ptc_count_add(PTC_COUNT_NEAR_FAILURES, 1);
	ptc_warn("agent", "bytes of node %s come over the network, not from memory: %s", t->g->nodes[node], why->text);
	return true;
}

/* Leaves out a source that has failed. Its code, where the failure is ours or nobody else will do: the transfer fails.
 */
static int source_failed(struct ptc_transfer *t, const struct ptc_request *q, uint32_t node, int code, bool local,
			 struct ptc_error *why, struct ptc_error *err)
{
	const char *name = t->g->nodes[node];

	if (q && q->file_failed && source_by_network(t, node, why))
		return 0;
	if (local || code == PTC_ENOMEM)
		return ptc_error_set(err, code, "%s", why->text);
	ptc_debug("agent", "transfer from node %s failed: %s", name, why->text);
	ptc_geometry_name_error(t->g, why);
	if (!t->usable)
		return ptc_error_set(err, PTC_EPEER, "node %s does not give the replicas that count: %.800s", name,
				     why->text);
	t->usable[node] = false;
	t->failures++;
	ptc_error_set(&t->why, t->says_damaged && code == PTC_ECORRUPT ? code : PTC_EPEER, "node %s: %.800s", name,
		      why->text);
	return 0;
}

/* ---- on the owner's thread alone ---- */

static void requests_drop(struct ptc_transfer *t)
{
	struct ptc_request *q;

	while ((q = t->requests)) {
		t->requests = q->next;
		if (q->file_taken && q->at == q->n && ptc_rpc_stream_ready(q->stream)) /* else it is cancelled */
			(void)ptc_rpc_stream_finish(q->stream, NULL);
		ptc_rpc_stream_free(q->stream);
		file_close(q);
		ptc_free(q);
	}
	ptc_parts_done(&t->parts);
}

void ptc_transfer_done(struct ptc_transfer *t)
{
	requests_drop(t);
	ptc_free(t->by_network);
	t->by_network = NULL;
}

int ptc_transfer_open(struct ptc_transfer *t, struct ptc_error *err)
{
	unsigned before;
	int rc;

	do {
		struct ptc_request **last = &t->requests;

		before = t->failures;
		requests_drop(t);
		rc = transfer_plan(t, err);
		for (size_t i = 0, n; !rc && i < t->parts.n; i += n) {
			struct ptc_error why = PTC_ERROR_INIT;
			const struct ptc_part *parts = &t->parts.v[i];
			struct ptc_request *q;

			n = request_parts(parts, t->parts.n - i);
			if (t->to->local && parts->node == t->self)
				continue;
			q = ptc_calloc(1, sizeof *q);
			if (!q)
				return ptc_error_set(err, PTC_ENOMEM, "no memory to ask for %zu boxes", n);
			*q = (struct ptc_request){
				.t = t, .node = parts->node, .parts = parts, .n = n, .ends_later = true
			};
			*last = q;
			last = &q->next;
			rc = request_open(q, &why);
			rc = rc ? source_failed(t, q, q->node, rc, q->local, &why, err) : 0;
		}
	} while (!rc && t->failures > before);
	return rc;
}

int ptc_transfer_drain(struct ptc_transfer *t, struct ptc_error *err)
{
	for (;;) {
		struct ptc_error why = PTC_ERROR_INIT;
		const struct ptc_request *failed = NULL;
		uint32_t node = t->self;
		bool local;
		int rc = 0;

		for (size_t i = 0; t->to->local && !rc && i < t->parts.n; i++)
			if (t->parts.v[i].node == node)
				rc = t->to->local(t->arg, &t->parts.v[i], &why);
		local = rc == PTC_EINTERNAL;
		for (struct ptc_request *q = t->requests; !rc && q; q = q->next) {
			rc = request_drain(q, &why);
			ptc_chunk_reader_done(&q->reader);
			node = q->node;
			local = q->local;
			failed = q;
		}
		if (!rc)
			return 0;
		if (t->caller && ptc_rpc_call_cancelled(t->caller))
			return ptc_error_set(err, PTC_ECANCELED, "whoever asked for the bytes is gone");
		rc = source_failed(t, failed, node, rc, local, &why, err);
		if (rc == 0)
			rc = ptc_transfer_open(t, err);
		if (rc)
			return rc;
	}
}

/* ---- several requests at a time ---- */

struct ptc_transfer_source *ptc_transfer_choose(struct ptc_transfer_source *sources, size_t n, uint32_t self)
{
	struct ptc_transfer_source *best = NULL;

	for (size_t k = 0; k < n; k++) {
		struct ptc_transfer_source *s = &sources[(k + self) % n];

		if (s->failed || s->next == s->end || s->lanes == (1u << PTC_AGENT_LANES) - 1)
			continue;
		if (!best || __builtin_popcount(s->lanes) < __builtin_popcount(best->lanes) ||
		    (__builtin_popcount(s->lanes) == __builtin_popcount(best->lanes) &&
		     s->end - s->next > best->end - best->next))
			best = s;
	}
	return best;
}

/* Any thread. */
static bool transfer_stopped(void *arg)
{
	return atomic_load(&((struct ptc_transfer *)arg)->shared.stopped);
}

/* Requests have begun or ended: a span in which one node alone sent is over, or begins. */
static void count_alone_locked(struct ptc_transfer *t)
{
	uint32_t sender = UINT32_MAX, senders = 0;
	int64_t now = ptc_sys_now_ns();

	if (!t->alone)
		return;
	for (uint32_t i = 0; i < t->g->nnodes; i++)
		if (t->sources[i].lanes) {
			sender = i;
			senders++;
		}
	if (senders != 1)
		sender = UINT32_MAX;
	if (sender == t->shared.sender)
		return;
	if (t->shared.sender != UINT32_MAX) {
		struct ptc_transfer_alone *a = &t->alone[t->shared.sender];

		a->ns += now - t->shared.mark_ns;
		a->bytes += atomic_load(&a->all_bytes) - t->shared.mark_bytes;
	}
	t->shared.sender = sender;
	t->shared.mark_ns = now;
	t->shared.mark_bytes = sender == UINT32_MAX ? 0 : atomic_load(&t->alone[sender].all_bytes);
}

/* The request of thread q from the source that is chosen, on a free lane of it. */
static bool request_pick_locked(struct ptc_request *q)
{
	struct ptc_transfer *t = q->t;
	struct ptc_transfer_source *s = ptc_transfer_choose(t->sources, t->g->nnodes, t->self);

	if (transfer_stopped(t) || !s)
		return false;
	q->node = (uint32_t)(s - t->sources);
	q->parts = t->parts.v + s->next;
	q->n = request_parts(q->parts, s->end - s->next);
	s->next += q->n;
	q->lane = (unsigned)__builtin_ctz(~s->lanes);
	s->lanes |= 1u << q->lane;
	count_alone_locked(t);
	return true;
}

static void request_watch(struct ptc_request *q, bool watch)
{
	pthread_mutex_lock(&q->t->shared.lock);
	q->watched = watch;
	pthread_mutex_unlock(&q->t->shared.lock);
}

/* Once. Its ticket is only held while it is under way. */
static int request_run(struct ptc_request *q, struct ptc_error *err)
{
	struct ptc_transfer *t = q->t;
	uint64_t ticket;
	int rc = ptc_pool_take(&t->agent->recv, PTC_AGENT_RECV_TICKET + t->scratch_bytes, transfer_stopped, t, &ticket,
			       err);

	q->at = 0;
	q->open = q->lied = q->file_taken = q->file_failed = false;
	q->local = rc != 0;
	if (rc)
		return rc;
	if (t->scratch_bytes && !(q->dst.scratch = ptc_malloc(t->scratch_bytes)))
		rc = ptc_error_set(err, PTC_ENOMEM, "no memory to receive boxes");
	if (rc == 0)
		rc = request_open(q, err);
	if (!rc) {
		request_watch(q, true);
		rc = request_drain(q, err);
		request_watch(q, false);
	}
	q->stream = ptc_rpc_stream_free(q->stream);
	file_close(q);
	ptc_free(q->dst.scratch);
	q->dst.scratch = NULL;
	ptc_pool_give(&t->agent->recv, ticket);
	return rc;
}

static void *request_thread(void *arg)
{
	struct ptc_request *q = arg;
	struct ptc_transfer *t = q->t;

	pthread_mutex_lock(&t->shared.lock);
	while (request_pick_locked(q)) {
		int64_t end = ptc_sys_now_ns() + (int64_t)t->wait_ms * 1000000;
		struct ptc_error why;
		int rc;

		pthread_mutex_unlock(&t->shared.lock);
		for (unsigned ms = AGAIN_MS;; ms = PTC_MIN(2 * ms, AGAIN_MAX_MS)) {
			why = (struct ptc_error)PTC_ERROR_INIT;
			rc = request_run(q, &why);
			if (!rc || q->local || rc == PTC_ENOMEM || transfer_stopped(t) || ptc_sys_now_ns() >= end)
				break;
			usleep(ms * 1000);
		}
		pthread_mutex_lock(&t->shared.lock);
		t->sources[q->node].lanes &= ~(1u << q->lane);
		count_alone_locked(t);
		if (rc && !transfer_stopped(t)) {
			t->lied = t->lied || q->lied;
			t->sources[q->node].failed = true;
			t->shared.status = source_failed(t, q, q->node, rc, q->local, &why, &t->shared.err);
			if (t->shared.status)
				atomic_store(&t->shared.stopped, true);
		}
	}
	t->shared.running--;
	pthread_cond_signal(&t->shared.cond);
	pthread_mutex_unlock(&t->shared.lock);
	return NULL;
}

static bool transfer_poll(struct ptc_transfer *t)
{
	if (t->stop(t->owner))
		atomic_store(&t->shared.stopped, true);
	return transfer_stopped(t);
}

/* Until every thread has gone: cancels every stream when the transfer is to end. */
static void transfer_watch(struct ptc_transfer *t, unsigned n)
{
	unsigned tick = 0;

	pthread_mutex_lock(&t->shared.lock);
	while (t->shared.running) {
		bool stop;

		ptc_cond_wait_ms(&t->shared.cond, &t->shared.lock, PTC_AGENT_TICK_MS / 4);
		stop = transfer_poll(t);
		for (unsigned i = 0; stop && i < n; i++)
			if (t->requests[i].watched)
				ptc_rpc_stream_cancel(t->requests[i].stream);
		if (!t->shared.running || stop || tick++ % 4 != 3)
			continue;
		pthread_mutex_unlock(&t->shared.lock);
		t->tick(t->owner);
		pthread_mutex_lock(&t->shared.lock);
	}
	pthread_mutex_unlock(&t->shared.lock);
}

/* Asks for every part once, of the sources that are left. */
static int transfer_round(struct ptc_transfer *t, struct ptc_error *err)
{
	const struct ptc_parts *p = &t->parts;
	size_t want = 0;
	unsigned n = 0;

	memset(t->sources, 0, t->g->nnodes * sizeof *t->sources);
	t->shared.sender = UINT32_MAX;
	for (size_t i = 0; i < p->n;) {
		struct ptc_transfer_source *s = &t->sources[p->v[i].node];

		for (s->next = i; i < p->n && &t->sources[p->v[i].node] == s;)
			i++;
		s->end = i;
		want += PTC_MIN(s->end - s->next, PTC_AGENT_LANES);
	}
	want = PTC_MIN(want, t->threads);
	t->shared.running = (unsigned)want;
	for (; n < want; n++) {
		struct ptc_request *q = &t->requests[n];

		*q = (struct ptc_request){ .t = t, .thread = n };
		if (ptc_thread_start(&q->id, "ptc-transfer", request_thread, q, NULL))
			break;
	}
	pthread_mutex_lock(&t->shared.lock);
	t->shared.running -= (unsigned)want - n;
	pthread_mutex_unlock(&t->shared.lock);
	if (!n)
		return ptc_error_set(err, PTC_ENOMEM, "no thread for a transfer");
	transfer_watch(t, n);
	for (unsigned i = 0; i < n; i++)
		pthread_join(t->requests[i].id, NULL);
	if (t->shared.status)
		return ptc_error_set(err, t->shared.status, "%s", t->shared.err.text);
	return transfer_poll(t) ? ptc_error_set(err, PTC_ECANCELED, "%s was cancelled", t->what) : 0;
}

/* Each round but the last takes a source away, so there are at most as many as nodes. */
int ptc_transfer_run(struct ptc_transfer *t, struct ptc_error *err)
{
	unsigned before;
	int rc;

	ptc_require(!pthread_mutex_init(&t->shared.lock, NULL));
	ptc_cond_init(&t->shared.cond);
	t->sources = NULL;
	t->requests = ptc_calloc(t->threads, sizeof *t->requests);
	t->sources = ptc_calloc(t->g->nnodes, sizeof *t->sources);
	do {
		before = t->failures;
		rc = t->requests && t->sources ? transfer_plan(t, err)
					       : ptc_error_set(err, PTC_ENOMEM, "no memory for a transfer");
		rc = rc || !t->parts.n ? rc : transfer_round(t, err);
	} while (!rc && t->failures > before);
	ptc_free(t->sources);
	ptc_free(t->requests);
	ptc_free(t->by_network);
	t->by_network = NULL;
	t->sources = NULL;
	t->requests = NULL;
	ptc_parts_done(&t->parts);
	pthread_cond_destroy(&t->shared.cond);
	pthread_mutex_destroy(&t->shared.lock);
	return rc;
}
