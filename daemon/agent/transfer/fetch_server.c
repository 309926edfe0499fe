/* SPDX-License-Identifier: Apache-2.0 */
/* Fetch: bytes of boxes out of a sealed table, or out of the filled extents of a table that is not sealed yet. Happy
 * path: each box is cut into messages of about PTC_BULK_MESSAGE_BYTES. Long contiguous runs go as references into the
 * store's map; once gRPC has sent them, the reference to the table is given back. The rest is packed into staging, for
 * which a ticket is taken. The store verifies block checksums when it gives bytes out.
 *
 * A caller that has this node's chunk file open (near/near.h) gets the places of long runs instead (near_message.h),
 * and verifies what it reads there. The table is kept until the caller says, by half-closing, that it has read
 * everything, but for two seconds at most.
 *
 * Failure modes: a table or part of a box that is not here (PTC_ENOTFOUND), a block that does not verify
 * (PTC_ECORRUPT), a malformed request (PTC_EINVAL), too many boxes (PTC_ELIMIT), memory (PTC_ENOMEM), the caller gone
 * (PTC_ECANCELED). On any of them every reference and ticket is given back. */
#include "daemon/agent/calls/operation.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/agent/transfer/near_message.h"
#include "daemon/agent/transfer/transfer.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define FETCH_PARTS       512
#define FETCH_SPANS       16
#define FETCH_ALIAS_BYTES (16u << 10) /* shorter boxes are cheaper packed */
#define FETCH_BOX_WORK    4096        /* bytes that are packed in the time that a box takes by itself */

struct out {
	struct ptc_agent *agent;
	struct ptc_agent_op op;
	struct ptc_rpc_call *call;
	struct ptc_table *table;
	struct ptc_table_key key;
	bool as_is; /* nothing is healed for it: the caller is healing, and we might wait for each other */
	bool begun; /* the table may not be sealed */
	struct ptc_staging *staging; /* one reference is ours */
	struct ptc_rpc_part parts[FETCH_PARTS + 1];
	size_t nparts; /* from 1 on; 0 is the head */
	size_t payload;
	uint64_t left;            /* of the whole request, not yet in a message */
	uint64_t unasked;         /* bytes since the caller was last found to be there */
	struct ptc_verified seen; /* for this message */
	/* of a caller that has our file; NULL: it does not, or the file is on a disk */
	struct ptc_near_list *near;
	bool placed; /* a place was sent */
};

static void release_table(void *table)
{
	ptc_table_unref(table);
}

static void out_reset(struct out *o)
{
	if (o->near)
		o->near->nspans = o->near->nchunks = o->near->bytes = 0;
	ptc_staging_release(o->staging);
	o->staging = NULL;
	o->nparts = 0;
	o->payload = 0;
	o->seen = (struct ptc_verified){ 0 };
}

/* With a list there is at most one other part: what is packed. */
static int near_flush(struct out *o, struct ptc_error *err)
{
	const struct ptc_near_list *l = o->near;
	const size_t spans = l->nspans * sizeof *l->spans, chunks = l->nchunks * sizeof *l->chunks;
	const struct ptc_wire_near counts = { (uint32_t)l->nspans, (uint32_t)l->nchunks };
	struct ptc_rpc_part parts[4] = { { 0 }, { .data = l->spans, .len = spans } };
	uint8_t head[32];
	size_t n = 2;
	int rc;

	if (chunks)
		parts[n++] = (struct ptc_rpc_part){ .data = l->chunks, .len = chunks };
	if (o->nparts)
		parts[n++] = o->parts[1];
	parts[0] = (struct ptc_rpc_part){ .data = head,
					  .len = ptc_wire_near_head(head, counts, spans + chunks + o->payload) };
	rc = ptc_rpc_call_send(o->call, parts, n, err);
	o->placed = o->placed || l->nchunks;
	out_reset(o);
	return rc;
}

static int out_flush(struct out *o, struct ptc_error *err)
{
	uint8_t head[16];
	int rc;

	if (o->near && o->near->nspans)
		return near_flush(o, err);
	if (!o->nparts)
		return 0;
	o->parts[0] = (struct ptc_rpc_part){ .data = head, .len = ptc_wire_data_head(head, o->payload) };
	rc = ptc_rpc_call_send(o->call, o->parts, o->nparts + 1, err);
	out_reset(o);
	return rc;
}

/* Gives back what was collected and never sent. */
static void out_drop(struct out *o)
{
	for (size_t i = 1; i <= o->nparts; i++)
		o->parts[i].release(o->parts[i].arg);
	out_reset(o);
}

static int out_alias(struct out *o, uint32_t item, const struct ptc_box *box, bool *ret_done, struct ptc_error *err)
{
	struct iovec iov[FETCH_SPANS];
	int n = 0, r = ptc_table_read_iov(o->table, item, box, iov, FETCH_SPANS, &n, err);

	*ret_done = !r && n > 0;
	for (int i = 0; !r && i < n; i++) {
		o->parts[++o->nparts] = (struct ptc_rpc_part){ iov[i].iov_base, iov[i].iov_len, release_table,
							       ptc_table_ref(o->table) };
		o->payload += iov[i].iov_len;
	}
	return r;
}

static int out_pack(struct out *o, uint32_t item, const struct ptc_box *box, size_t len, struct ptc_error *err)
{
	struct ptc_staging *s = o->staging;
	struct ptc_rpc_part *last = &o->parts[o->nparts];
	unsigned char *to;
	int rc;

	if (!s) {
		size_t size = PTC_BULK_MESSAGE_BYTES - o->payload;

		rc = ptc_staging_new(&o->agent->send, (size_t)PTC_MIN((uint64_t)size, o->left), ptc_agent_op_stopped,
				     &o->op, &s, err);
		if (rc)
			return rc;
		o->staging = s;
	}
	to = s->data + s->used;
	rc = o->begun ? ptc_table_read_filled(o->table, item, box, to, err)
		      : ptc_table_read_row(o->table, item, box, to, &o->seen, err);
	if (rc)
		return rc;
	s->used += len;
	o->payload += len;
	if (o->nparts && last->arg == s) {
		last->len += len;
		return 0;
	}
	ptc_staging_ref(s);
	o->parts[++o->nparts] = (struct ptc_rpc_part){ to, len, ptc_staging_release, s };
	return 0;
}

/* ---- to a near caller ---- */

/* Adds the box's places, if its runs are long and the list has room. */
static int near_add(struct out *o, uint32_t item, const struct ptc_box *box, size_t len, struct ptc_error *err)
{
	struct ptc_near_list *l = o->near;
	struct ptc_spans spans = { .v = (struct ptc_span *)l->spans,
				   .n = l->nspans,
				   .max = PTC_ARRAY_LEN(l->spans),
				   .chunks = (struct ptc_span_chunk *)l->chunks,
				   .nchunks = l->nchunks,
				   .max_chunks = PTC_ARRAY_LEN(l->chunks) };
	struct ptc_direct_read_span last = { 0 }; /* may grow */
	int rc;

	if (l->nspans)
		last = l->spans[l->nspans - 1];
	rc = ptc_table_spans(o->table, item, box, &spans, err);
	if (!rc && len >= (spans.n - l->nspans) * PTC_NEAR_RUN) {
		l->nspans = spans.n;
		l->nchunks = spans.nchunks;
		l->bytes += len;
		return 0;
	}
	if (l->nspans)
		l->spans[l->nspans - 1] = last;
	return rc ? rc : PTC_ELIMIT;
}

/* *ret_done false: the box is to be packed. */
static int out_near(struct out *o, uint32_t item, const struct ptc_box *box, size_t len, bool *ret_done,
		    struct ptc_error *err)
{
	int rc = len < PTC_NEAR_RUN ? PTC_ELIMIT : near_add(o, item, box, len, NULL);

	if (rc == PTC_ELIMIT && len >= PTC_NEAR_RUN && o->near->nspans > PTC_ARRAY_LEN(o->near->spans) / 2) {
		rc = out_flush(o, err);
		if (rc)
			return rc;
		rc = near_add(o, item, box, len, NULL);
	}
	*ret_done = !rc;
	return 0;
}

/* What is packed has its place in the list, too. */
static int near_pack(struct out *o, uint32_t item, const struct ptc_box *box, size_t len, struct ptc_error *err)
{
	struct ptc_near_list *l = o->near;
	int rc = l->nspans == PTC_ARRAY_LEN(l->spans) ? out_flush(o, err) : 0;

	if (rc == 0)
		rc = out_pack(o, item, box, len, err);
	if (rc)
		return rc;
	if (l->nspans && l->spans[l->nspans - 1].chunk == PTC_NEAR_INLINE)
		l->spans[l->nspans - 1].bytes += len;
	else
		l->spans[l->nspans++] = (struct ptc_direct_read_span){ .bytes = len, .chunk = PTC_NEAR_INLINE };
	return 0;
}

/* The caller has this file open. */
static bool has_file(struct ptc_table *table, const Ptc__V1__Near *near)
{
	const uint8_t *base;
	uint64_t bytes;
	struct stat st;
	int fd = -1;
	bool same;

	if (near->magic != PTC_DIRECT_READ_MAGIC || ptc_table_file(table, &fd, &base, &bytes, NULL))
		return false;
	same = !fstat(fd, &st) && st.st_dev == near->dev && st.st_ino == near->ino;
	ptc_close(&fd);
	return same;
}

/* Without memory for the list, or if many wait already, bytes are sent. */
static void near_begin(struct out *o, const Ptc__V1__FetchRequest *req)
{
	struct ptc_agent *agent = o->agent;

	if (!req->near || !agent->near || o->begun || !has_file(o->table, req->near))
		return;
	if (atomic_fetch_add(&agent->near_calls, 1) < PTC_AGENT_NEAR)
		o->near = ptc_malloc(sizeof *o->near);
	if (!o->near)
		atomic_fetch_sub(&agent->near_calls, 1);
	out_reset(o);
}

static void near_end(struct out *o)
{
	if (!o->near)
		return;
	atomic_fetch_sub(&o->agent->near_calls, 1);
	ptc_free(o->near);
	o->near = NULL;
}

/* Keeps the table until the caller has read in the file what it was told of, or is gone: once it has read that, it need
 * not wait for the status. A caller that takes long, such as an export whose client does, keeps no others waiting: it
 * then reads without that, and finds out if the bytes are others by then. */
static int near_wait(struct out *o, struct ptc_error *err)
{
	struct ptc_rpc_message *msg = NULL;
	int rc = o->placed ? ptc_rpc_call_recv_within(o->call, PTC_AGENT_NEAR_MS, &msg, NULL) : 0;

	if (rc == PTC_ETIMEOUT)
		return 0;
	if (rc && rc != PTC_ECANCELED)
		return ptc_error_set(err, rc, "the half-close of a fetch did not come");
	if (!msg)
		return rc == PTC_ECANCELED ? 0 : rc;
	ptc_rpc_message_done(msg);
	return ptc_error_set(err, PTC_EINVAL, "a fetch is one request; another message has come");
}

static int out_bytes(struct out *o, uint32_t item, const struct ptc_box *box, size_t len, struct ptc_error *err)
{
	bool done = false;
	int rc = 0;

	if (o->near) {
		rc = out_near(o, item, box, len, &done, err);
		return rc || done ? rc : near_pack(o, item, box, len, err);
	}
	if (len >= FETCH_ALIAS_BYTES && !o->begun)
		rc = out_alias(o, item, box, &done, err);
	return rc || done ? rc : out_pack(o, item, box, len, err);
}

static int out_box(struct out *o, uint32_t item, const struct ptc_box *box, struct ptc_error *err)
{
	struct ptc_heal_tries tries = { 0, 0 };
	size_t len = (size_t)ptc_box_volume(box);
	int rc = 0, sent;

	if (o->payload + len > PTC_BULK_MESSAGE_BYTES || o->nparts + FETCH_SPANS > FETCH_PARTS ||
	    (o->near && o->near->bytes >= PTC_NEAR_BYTES))
		rc = out_flush(o, err);
	while (!rc) {
		rc = out_bytes(o, item, box, len, err);
		if (rc != PTC_ECORRUPT)
			break;
		sent = out_flush(o, NULL); /* nothing is healed with a ticket */
		out_reset(o);
		if (sent || o->as_is || !ptc_agent_heals(o->agent, o->key.uuid, rc, &tries))
			break;
		rc = 0;
	}
	o->left -= len;
	o->unasked += len + FETCH_BOX_WORK;
	if (rc || o->unasked < PTC_BULK_MESSAGE_BYTES)
		return rc;
	o->unasked = 0;
	if (ptc_agent_op_stopped(&o->op))
		rc = ptc_error_set(err, PTC_ECANCELED, "the node that fetched has closed the call");
	return rc;
}

/* A box nobody has is refused before it is cut into pieces. */
static int box_here(struct out *o, uint32_t item, const struct ptc_box *box, struct ptc_error *err)
{
	const int64_t here = ptc_table_has(o->table, item, box), all = ptc_box_volume(box);

	if (here == all)
		return 0;
	return ptc_error_set(err, PTC_ENOTFOUND, "node %s has only %lld of %lld requested bytes of item %u",
			     o->agent->node, (long long)here, (long long)all, item);
}

static int boxes_check(struct out *o, const Ptc__V1__FetchRequest *req, struct ptc_box *boxes, struct ptc_error *err)
{
	for (size_t i = 0; i < req->n_boxes; i++) {
		const Ptc__V1__Box *b = req->boxes[i];
		int rc = ptc_wire_box(b->offset, b->n_offset, b->extent, b->n_extent, &boxes[i], err);

		if (rc == 0)
			rc = box_here(o, b->item, &boxes[i], err);
		if (rc)
			return rc;
		if (ptc_ckd_add(&o->left, o->left, (uint64_t)ptc_box_volume(&boxes[i])))
			return ptc_error_set(err, PTC_EINVAL, "one fetch asks for too many bytes");
	}
	return 0;
}

/* boxes: room for the request's. */
static int serve(struct out *o, const Ptc__V1__FetchRequest *req, struct ptc_box *boxes, struct ptc_error *err)
{
	struct ptc_boxes cut = { 0 };
	int rc = boxes_check(o, req, boxes, err);

	for (size_t i = 0; !rc && i < req->n_boxes; i++) {
		cut.n = 0;
		if (ptc_box_chop(&boxes[i], PTC_BULK_MESSAGE_BYTES, &cut))
			rc = ptc_error_set(err, PTC_ENOMEM, "no memory to cut a box");
		for (size_t k = 0; !rc && k < cut.n; k++)
			rc = out_box(o, req->boxes[i]->item, &cut.v[k], err);
	}
	ptc_boxes_done(&cut);
	if (rc == 0)
		rc = out_flush(o, err);
	if (rc)
		out_drop(o);
	return rc ? rc : near_wait(o, err);
}

static int fetch(struct ptc_agent *agent, struct ptc_rpc_call *call, const Ptc__V1__FetchRequest *req,
		 struct ptc_error *err)
{
	struct ptc_table_key key = { .generation = req->generation, .snapshot = req->snapshot };
	ptc_auto_free struct ptc_box *boxes = NULL;
	ptc_auto_free struct out *o = NULL;
	int rc = ptc_pb_version(req->version, err);

	if (rc)
		return rc;
	if (strlen(req->uuid) != 36)
		return ptc_error_set(err, PTC_EINVAL, "job identifier \"%.40s\" in a request: not a UUID", req->uuid);
	if (req->n_boxes > PTC_MAX_BOXES)
		return ptc_error_set(err, PTC_ELIMIT, "one fetch asks for %zu boxes; at most %u are possible",
				     req->n_boxes, PTC_MAX_BOXES);
	o = ptc_calloc(1, sizeof *o);
	boxes = ptc_reallocarray(NULL, req->n_boxes ? req->n_boxes : 1, sizeof *boxes);
	if (!o || !boxes)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for a fetch of %zu boxes", req->n_boxes);
	o->agent = agent;
	o->call = call;
	o->op = (struct ptc_agent_op){ agent, NULL, call };
	snprintf(key.uuid, sizeof key.uuid, "%s", req->uuid);
	o->begun = req->begun;
	o->key = key;
	o->as_is = req->healing;
	rc = req->begun ? ptc_table_find(agent->env.store, &key, &o->table, err)
			: ptc_agent_table_open(agent, &key, &o->table, err);
	if (rc == 0)
		near_begin(o, req);
	if (rc == 0)
		rc = serve(o, req, boxes, err);
	near_end(o);
	ptc_table_unref(o->table);
	return rc;
}

int ptc_agent_on_fetch(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_pb_arena arena = { 0 }; /* a request has thousands of boxes */
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request_in(&arena, call, &ptc__v1__fetch_request__descriptor, &msg, err);

	if (rc == 0)
		rc = fetch(arg, call, (const Ptc__V1__FetchRequest *)msg, err);
	ptc_pb_arena_done(&arena);
	return rc;
}
