/* SPDX-License-Identifier: Apache-2.0 */
/* The calls Read and ReadRank: bytes of a committed generation, from wherever they are: ranges of tensors, and of
 * ranks' files.
 *
 * Failure modes: a generation that was replaced while it was read (PTC_ESTATE: export again). */
#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/gateway/gateway.h"
#include "daemon/api/reads/reads.h"

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
				      send_span, send_parts, call, call, err);
		ptc_read_view_put(v);
	}
	ptc_pb_free(&req->base);
	return rc;
}

int ptc_api_ranges(const struct ptc_asked_ranges *a, struct ptc_item_range **ret, struct ptc_error *err)
{
	struct ptc_item_range *v;

	if (a->noffsets != a->nitems || a->nlengths != a->nitems)
		return ptc_error_set(
			err, PTC_EINVAL,
			"the request has %zu items, %zu offsets and %zu lengths; each range needs all three", a->nitems,
			a->noffsets, a->nlengths);
	if (a->nitems > PTC_READ_MANY_RANGES)
		return ptc_error_set(err, PTC_ELIMIT, "one call asks for %zu ranges; at most %d are possible",
				     a->nitems, PTC_READ_MANY_RANGES);
	v = ptc_calloc(PTC_MAX(a->nitems, (size_t)1), sizeof *v);
	if (!v)
		return ptc_nomem(err);
	for (size_t i = 0; i < a->nitems; i++)
		v[i] = (struct ptc_item_range){ a->items[i], a->offsets[i], a->lengths[i] };
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
	rc = ptc_api_read_view(d, call, req->job, req->uuid, req->generation, req->snapshot, &v, err);
	if (rc == 0) {
		rc = ptc_api_ranges(&PTC_ASKED_RANGES(req), &ranges, err);
		if (rc == 0)
			rc = ptc_agent_gather_many(d->agent, &v->geometry, v->view.meta.uuid, ranges, req->n_items,
						   PTC_READ_MANY_BYTES, send_span, call, call, err);
		ptc_read_view_put(v);
	}
	ptc_free(ranges);
	ptc_pb_free(&req->base);
	return rc;
}

struct rank_reply {
	struct ptc_rpc_call *call;
	struct ptc_rank_asked asked; /* offset: of what comes next */
};

static int send_rank_span(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct rank_reply *r = arg;
	uint64_t sum = ptc_rank_sum_add(ptc_rank_sum_begin(&r->asked), data, len);
	uint8_t head[PTC_WIRE_HEAD_MAX];
	struct ptc_rpc_part parts[] = {
		{ .data = head, .len = ptc_wire_summed_head(head, sum, len) },
		{ .data = data, .len = len },
	};

	r->asked.offset += len;
	return ptc_rpc_call_send(r->call, parts, PTC_ARRAY_LEN(parts), err);
}

PTC_API_HANDLER(ptc_api_read_rank)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ReadRankRequest *req;
	struct ptc_read_view *v;
	struct ptc_rank_range range;
	struct rank_reply reply = { .call = call };
	struct ptc_info info;
	int rc = ptc_pb_call_recv(call, &ptc__v1__read_rank_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	range = (struct ptc_rank_range){ req->rank, req->item, req->offset, req->length };
	reply.asked = (struct ptc_rank_asked){ req->generation, req->snapshot, req->rank, req->item, req->offset };
	rc = ptc_api_read_view(d, call, req->job, req->uuid, req->generation, req->snapshot, &v, err);
	if (rc == 0) {
		rc = ptc_view_info(&v->view, &info, err);
		if (rc == 0) {
			rc = ptc_agent_gather_rank(d->agent, &v->geometry, info.pb, &range, send_rank_span, &reply,
						   call, err);
			ptc_info_done(&info);
		}
		ptc_read_view_put(v);
	}
	ptc_pb_free(&req->base);
	return rc;
}
