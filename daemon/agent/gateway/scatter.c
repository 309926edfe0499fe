/* SPDX-License-Identifier: Apache-2.0 */
/* Scatter: a gateway sends ranges of items to every node that needs part of
 * them. Happy path: a range is cut into boxes, each box into what each node
 * needs; parts go out over one Put stream per node, our own straight to the
 * store. Failure modes: a range outside the item (PTC_EINVAL), a node that is
 * gone or refuses (its code, named); after any of them only free makes
 * sense, and the import is aborted by whoever runs it. */
#include "daemon/agent/calls/operation.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/gateway/gateway.h"

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
	uint64_t import_id;
	char uuid[37];
	struct target *targets;      /* per node */
	struct ptc_put_target local; /* job NULL: not opened */
	uint32_t self;               /* UINT32_MAX: we hold nothing of it */
};

int ptc_scatter_new(struct ptc_agent *agent, const struct ptc_geometry *to, const char *uuid, uint64_t import_id,
		    struct ptc_scatter **ret_scatter, struct ptc_error *err)
{
	struct ptc_scatter *s;

	if (strlen(uuid) != 36)
		return ptc_error_set(err, PTC_EINVAL, "a job identifier that is none: \"%.40s\"", uuid);
	s = ptc_calloc(1, sizeof(*s));
	if (!s)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for an import");
	s->agent = agent;
	s->to = to;
	s->import_id = import_id;
	snprintf(s->uuid, sizeof s->uuid, "%s", uuid);
	s->targets = ptc_calloc(to->nnodes, sizeof(*s->targets));
	if (!s->targets) {
		ptc_free(s);
		return ptc_error_set(err, PTC_ENOMEM, "no memory for an import");
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

static int target_open(struct ptc_scatter *s, uint32_t node, struct ptc_error *err)
{
	struct ptc_agent_env *env = &s->agent->env;
	struct ptc_rpc_channel *channel;
	int r;

	if (s->targets[node].stream)
		return 0;
	r = env->channel(env->arg, s->to->nodes[node], s->to->addresses[node], true, 0, &channel, err);
	return r ? r : ptc_rpc_stream_open(channel, "/ptc.v1.Peer/Put", 0, NULL, 0, &s->targets[node].stream, err);
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

/* data: box's bytes, compact. */
static int part_send(struct ptc_scatter *s, uint32_t node, uint32_t item, const struct ptc_box *box, const void *data,
		     struct ptc_error *err)
{
	size_t len = (size_t)ptc_box_volume(box);
	uint8_t head[PTC_WIRE_HEAD_MAX];
	struct ptc_rpc_part parts[2] = { { .data = head }, { .data = data, .len = len } };
	struct ptc_error why = PTC_ERROR_INIT;
	int r = target_open(s, node, err);
	uint64_t ticket;

	if (r)
		return r;
	parts[0].len = chunk_head(s, item, box, len, head);
	r = ptc_pool_take(&s->agent->push, len, NULL, NULL, &ticket, err);
	if (r)
		return r;
	r = ptc_rpc_stream_send(s->targets[node].stream, parts, 2, err);
	ptc_pool_give(&s->agent->push, ticket);
	if (!r) {
		s->targets[node].bytes += len;
		return 0;
	}
	/* The node closed the stream: what it says is worth more than that it did. */
	if (r != PTC_ECANCELED && ptc_rpc_stream_finish(s->targets[node].stream, &why))
		return ptc_error_set(err, why.code, "%s", why.text);
	return r;
}

static int part_give(struct ptc_scatter *s, uint32_t node, uint32_t item, const struct ptc_box *box, const void *data,
		     struct ptc_error *err)
{
	int r;

	if (node != s->self)
		return part_send(s, node, item, box, data, err);
	if (!s->local.job) {
		r = ptc_put_target_open(s->agent, s->uuid, s->import_id, &s->local, err);
		if (r)
			return r;
	}
	return ptc_put_target_write(&s->local, item, box, data, err);
}

struct range {
	uint32_t item;
	struct ptc_box box;  /* what data holds, compact */
	const uint8_t *data; /* borrowed */
	struct ptc_staging **scratch;
};

static int scratch_get(struct ptc_scatter *s, struct ptc_staging **scratch, struct ptc_error *err)
{
	return *scratch ? 0 : ptc_staging_new(&s->agent->gate, PTC_BULK_MESSAGE_BYTES, NULL, NULL, scratch, err);
}

/* A part of at most one message. */
static int piece_give(struct ptc_scatter *s, uint32_t node, const struct range *range, const struct ptc_box *piece,
		      struct ptc_error *err)
{
	struct ptc_runs runs;
	int r;

	ptc_runs_init(&runs, &range->box, piece, piece);
	if (runs.count == 1)
		return part_give(s, node, range->item, piece, range->data + runs.a_off, err);
	r = scratch_get(s, range->scratch, err);
	if (r)
		return r;
	ptc_box_copy((*range->scratch)->data, piece, range->data, &range->box, piece);
	return part_give(s, node, range->item, piece, (*range->scratch)->data, err);
}

static int cut_give(struct ptc_scatter *s, uint32_t node, const struct range *range, const struct ptc_box *cut,
		    struct ptc_error *err)
{
	struct ptc_boxes pieces = { 0 };
	int r = 0;

	if (ptc_box_chop(cut, PTC_BULK_MESSAGE_BYTES, &pieces))
		r = ptc_error_set(err, PTC_ENOMEM, "no memory to cut a box");
	for (size_t i = 0; !r && i < pieces.n; i++)
		r = piece_give(s, node, range, &pieces.v[i], err);
	ptc_boxes_done(&pieces);
	return named(s, node, r, err);
}

static int range_give(struct ptc_scatter *s, const struct range *range, struct ptc_error *err)
{
	const struct ptc_replica *replicas;
	struct ptc_box cut;
	size_t n;
	int r = ptc_geometry_replicas(s->to, range->item, &replicas, &n, err);

	for (size_t i = 0; !r && i < n; i++)
		if (ptc_box_intersect(&replicas[i].box, &range->box, &cut))
			r = cut_give(s, replicas[i].node, range, &cut, err);
	return r;
}

int ptc_scatter_write(struct ptc_scatter *s, uint32_t item, uint64_t offset, const void *data, size_t len,
		      struct ptc_error *err)
{
	struct ptc_staging *scratch = NULL;
	struct ptc_boxes boxes = { 0 };
	int64_t shape[PTC_MAX_DIMS];
	const uint8_t *at = data;
	uint32_t ndim;
	uint64_t bytes;
	int r = ptc_geometry_shape(s->to, item, &ndim, shape, err);

	if (r || !len)
		return r;
	bytes = (uint64_t)ptc_item_bytes(s->to->spec, item);
	if (offset > bytes || len > bytes - offset)
		return ptc_error_set(err, PTC_EINVAL, "bytes %llu to %llu of item %u, which has %llu",
				     (unsigned long long)offset, (unsigned long long)offset + len, item,
				     (unsigned long long)bytes);
	if (ptc_box_from_range(ndim, shape, (int64_t)offset, (int64_t)len, &boxes))
		r = ptc_error_set(err, PTC_ENOMEM, "no memory to cut a range");
	for (size_t i = 0; !r && i < boxes.n; i++) {
		struct range range = { item, boxes.v[i], at, &scratch };

		r = range_give(s, &range, err);
		at += ptc_box_volume(&boxes.v[i]);
	}
	ptc_staging_release(scratch);
	ptc_boxes_done(&boxes);
	return r;
}

static int target_finish(struct target *t, struct ptc_error *err)
{
	ProtobufCMessage *pb = NULL;
	struct ptc_rpc_message *msg;
	const Ptc__V1__PutReply *reply;
	int r = ptc_rpc_stream_half_close(t->stream, err);

	r = r ? r : ptc_rpc_stream_recv(t->stream, &msg, err);
	if (r)
		return r;
	if (msg) {
		r = ptc_wire_decode(msg, &ptc__v1__put_reply__descriptor, &pb, err);
		ptc_rpc_message_done(msg);
	}
	r = r ? r : ptc_rpc_stream_finish(t->stream, err);
	reply = (const Ptc__V1__PutReply *)pb;
	if (!r && (!reply || reply->bytes != t->bytes))
		r = ptc_error_set(err, PTC_EPEER, "acknowledged %llu of %llu bytes",
				  (unsigned long long)(reply ? reply->bytes : 0), (unsigned long long)t->bytes);
	ptc_pb_free(pb);
	return r;
}

int ptc_scatter_finish(struct ptc_scatter *s, struct ptc_error *err)
{
	for (uint32_t i = 0; i < s->to->nnodes; i++) {
		int r = s->targets[i].stream ? named(s, i, target_finish(&s->targets[i], err), err) : 0;

		if (r)
			return r;
		s->targets[i].stream = ptc_rpc_stream_free(s->targets[i].stream);
	}
	return 0;
}
