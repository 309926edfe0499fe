/* SPDX-License-Identifier: Apache-2.0 */
/* Scatter: a gateway sends ranges of items to every node that needs part of them. Happy path: a range is cut into
 * boxes, and each box into the parts that nodes need. The parts of a node go out over one Put stream; this node's parts
 * go straight to the store. Failure modes: a range outside the item (PTC_EINVAL), a node that is gone or refuses (its
 * code, named), or that takes nothing, or does not acknowledge, for env.stall_ms (PTC_ETIMEOUT, named), a caller that
 * is gone (PTC_ECANCELED); after any of them, call nothing but free; the caller aborts the import. */
#include "daemon/agent/calls/operation.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/gateway/gateway.h"
#include "daemon/agent/gateway/send_watch.h"
#include "daemon/agent/transfer/transfer.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"

#include <stdio.h>
#include <string.h>

struct target {
	struct ptc_rpc_stream *stream; /* opened at the first byte */
	uint64_t bytes;
};

struct ptc_scatter {
	struct ptc_agent *agent;
	const struct ptc_geometry *to;
	struct ptc_rpc_call *caller;
	uint64_t import_id;
	char uuid[37];
	struct target *targets;      /* per node */
	struct ptc_put_target local; /* job NULL: not opened */
	uint32_t self;               /* UINT32_MAX: we hold nothing of it */
};

int ptc_scatter_new(struct ptc_agent *agent, const struct ptc_geometry *to, const char *uuid, uint64_t import_id,
		    struct ptc_rpc_call *caller, struct ptc_scatter **ret_scatter, struct ptc_error *err)
{
	struct ptc_scatter *s;

	if (strlen(uuid) != 36)
		return ptc_error_set(err, PTC_EINVAL, "job identifier \"%.40s\" in a request: not a UUID", uuid);
	s = ptc_calloc(1, sizeof *s);
	if (!s)
		return ptc_nomem(err);
	s->agent = agent;
	s->to = to;
	s->caller = caller;
	s->import_id = import_id;
	snprintf(s->uuid, sizeof s->uuid, "%s", uuid);
	s->targets = ptc_calloc(to->nnodes, sizeof *s->targets);
	if (!s->targets) {
		ptc_free(s);
		return ptc_nomem(err);
	}
	if (ptc_geometry_node(to, agent->node, &s->self, NULL))
		s->self = UINT32_MAX;
	*ret_scatter = s;
	return 0;
}

struct ptc_scatter *ptc_scatter_free(struct ptc_scatter *s)
{
	if (!s)
		return NULL;
	for (size_t i = 0; i < s->to->nnodes; i++)
		ptc_rpc_stream_free(s->targets[i].stream);
	ptc_put_target_close(&s->local);
	ptc_free(s->targets);
	ptc_free(s);
	return NULL;
}

static int named(const struct ptc_scatter *s, uint32_t node, int r, struct ptc_error *err)
{
	if (r)
		ptc_error_wrap(err, "node %s", s->to->nodes[node]);
	return r;
}

static size_t chunk_head(const struct ptc_scatter *s, uint32_t item, const struct ptc_box *box, uint64_t payload,
			 uint8_t head[PTC_WIRE_HEAD_MAX])
{
	Ptc__V1__PutChunk chunk;
	size_t n;

	ptc__v1__put_chunk__init(&chunk);
	chunk.version = PTC_WIRE_VERSION;
	chunk.uuid = (char *)(uintptr_t)s->uuid;
	chunk.import_id = s->import_id;
	chunk.item = item;
	chunk.n_offset = chunk.n_extent = box->ndim;
	chunk.offset = (int64_t *)(uintptr_t)box->off;
	chunk.extent = (int64_t *)(uintptr_t)box->ext;
	n = ptc_pb_added(head);
	ptc_require(n + ptc__v1__put_chunk__get_packed_size(&chunk) + 12 <= PTC_WIRE_HEAD_MAX);
	n += ptc__v1__put_chunk__pack(&chunk, head + n);
	return ptc_wire_put_data_tag(head, n, payload);
}

/* At most one message to a node, or to our own store. data: box's bytes, compact. */
static int part_give(struct ptc_scatter *s, uint32_t node, uint32_t item, const struct ptc_box *box, const void *data,
		     struct ptc_error *err)
{
	size_t len = (size_t)ptc_box_volume(box);
	struct target *to = &s->targets[node];
	uint8_t head[PTC_WIRE_HEAD_MAX];
	struct ptc_rpc_part parts[2] = { { .data = head }, { .data = data, .len = len } };
	struct ptc_error why = PTC_ERROR_INIT;
	uint64_t ticket;
	int rc = 0;

	if (node == s->self) {
		rc = s->local.job ? 0 : ptc_put_target_open(s->agent, s->uuid, s->import_id, &s->local, err);
		return rc ? rc : ptc_put_target_write(&s->local, item, box, data, err);
	}
	parts[0].len = chunk_head(s, item, box, len, head);
	rc = ptc_pool_take(&s->agent->push, len, ptc_caller_gone, s->caller, &ticket, err);
	if (rc)
		return rc;
	if (!to->stream) /* the node expects its first message soon */
		rc = ptc_peer_open(s->agent, s->to, node, "/ptc.v1.Peer/Put", s->caller, &to->stream, err);
	if (!to->stream) {
		ptc_pool_give(&s->agent->push, ticket);
		return rc;
	}
	rc = ptc_send_watched(s->agent->sends, to->stream, parts, s->caller, ptc_agent_stall_ms(s->agent), err);
	ptc_pool_give(&s->agent->push, ticket);
	to->bytes += rc ? 0 : len;
	/* The node closed the stream: what it says is worth more than that it did. */
	if (rc && rc != PTC_ECANCELED && rc != PTC_ETIMEOUT && ptc_rpc_stream_finish(to->stream, &why))
		return ptc_error_set(err, why.code, "%s", why.text);
	return rc;
}

/* What a node needs of `box`, whose bytes are compact at data. scratch: made when it is needed. */
static int cut_give(struct ptc_scatter *s, uint32_t node, const struct ptc_store_box *box, const uint8_t *data,
		    const struct ptc_box *cut, struct ptc_staging **scratch, struct ptc_error *err)
{
	struct ptc_boxes pieces = { 0 };
	struct ptc_runs runs;
	int rc = 0;

	if (ptc_box_chop(cut, PTC_BULK_MESSAGE_BYTES, &pieces))
		rc = ptc_error_set(err, PTC_ENOMEM, "no memory to cut a box");
	for (size_t i = 0; !rc && i < pieces.n; i++) {
		const struct ptc_box *piece = &pieces.v[i];

		ptc_runs_init(&runs, &box->box, piece, piece);
		if (runs.count == 1) {
			rc = part_give(s, node, box->item, piece, data + runs.a_off, err);
			continue;
		}
		if (!*scratch)
			rc = ptc_staging_new(&s->agent->gate, PTC_BULK_MESSAGE_BYTES, ptc_caller_gone, s->caller,
					     scratch, err);
		if (rc)
			break;
		ptc_box_copy((*scratch)->data, piece, data, &box->box, piece);
		rc = part_give(s, node, box->item, piece, (*scratch)->data, err);
	}
	ptc_boxes_done(&pieces);
	return named(s, node, rc, err);
}

int ptc_scatter_write(struct ptc_scatter *s, uint32_t item, uint64_t offset, const void *data, size_t len,
		      struct ptc_error *err)
{
	const struct ptc_item_range range = { item, offset, len };
	struct ptc_item_replicas replicas = { 0 };
	struct ptc_staging *scratch = NULL;
	struct ptc_boxes boxes = { 0 };
	int64_t shape[PTC_MAX_DIMS];
	const uint8_t *at = data;
	struct ptc_box cut;
	uint32_t ndim;
	int rc = ptc_geometry_shape(s->to, item, &ndim, shape, err);

	rc = rc || !len ? rc : ptc_item_range_check(s->to, &range, err);
	if (rc || !len)
		return rc;
	if (ptc_box_from_range(ndim, shape, (int64_t)offset, (int64_t)len, &boxes))
		rc = ptc_error_set(err, PTC_ENOMEM, "no memory to cut a range");
	if (rc == 0)
		rc = ptc_geometry_replicas(s->to, item, &replicas, err);
	for (size_t i = 0; !rc && i < boxes.n; i++) {
		const struct ptc_store_box box = { item, boxes.v[i] };

		for (size_t k = 0; !rc && k < replicas.n; k++)
			if (ptc_box_intersect(&replicas.v[k].box, &box.box, &cut))
				rc = cut_give(s, replicas.v[k].node, &box, at, &cut, &scratch, err);
		at += ptc_box_volume(&box.box);
	}
	ptc_item_replicas_done(&replicas);
	ptc_staging_release(scratch);
	ptc_boxes_done(&boxes);
	return rc;
}

static int target_finish(struct target *t, struct ptc_error *err)
{
	ProtobufCMessage *pb = NULL;
	struct ptc_rpc_message *msg;
	const Ptc__V1__PutReply *reply;
	int rc = ptc_rpc_stream_half_close(t->stream, err);

	if (rc == 0)
		rc = ptc_rpc_stream_recv(t->stream, &msg, err);
	if (rc)
		return rc;
	if (msg) {
		rc = ptc_wire_decode(msg, &ptc__v1__put_reply__descriptor, &pb, err);
		ptc_rpc_message_done(msg);
	}
	if (rc == 0)
		rc = ptc_rpc_stream_finish(t->stream, err);
	reply = (const Ptc__V1__PutReply *)pb;
	if (!rc && (!reply || reply->bytes != t->bytes))
		rc = ptc_error_set(err, PTC_EPEER, "acknowledged %llu of %llu bytes",
				   (unsigned long long)(reply ? reply->bytes : 0), (unsigned long long)t->bytes);
	ptc_pb_free(pb);
	return rc;
}

int ptc_scatter_finish(struct ptc_scatter *s, struct ptc_error *err)
{
	for (uint32_t i = 0; i < s->to->nnodes; i++) {
		int rc = s->targets[i].stream ? named(s, i, target_finish(&s->targets[i], err), err) : 0;

		if (rc)
			return rc;
		s->targets[i].stream = ptc_rpc_stream_free(s->targets[i].stream);
	}
	return 0;
}
