/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's local tensor, for a client.
 *
 * Happy path: the tensor is read from the table of the rank's node, which may be this one. If that node is down, says
 * nothing for env.stall_ms, or lacks its table, the rank's regions are read as ranges of their item from any node with
 * a replica or copy (gather.c). They are put where the rank would have them.
 *
 * Failure modes: those of gather.c; the rank has no part of the item (PTC_ENOTFOUND). A read that fails after its first
 * byte is not tried elsewhere. */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/gateway/gateway.h"
#include "daemon/agent/tables/rank_tensor.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/agent/transfer/transfer.h"
#include "daemon/store/store_table.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/number/digest.h"

#include <string.h>

/* Of one read elsewhere. It has no ticket, for reads take one themselves; PTC_MAX_SERVER_CALLS bounds how many there
 * are.
 */
#define ELSEWHERE_BYTES (256u << 10)

/* ---- from its node ---- */

static int rank_local(struct ptc_agent *agent, const struct ptc_geometry *g, const struct ptc_rank_range *range,
		      ptc_sink_fn sink, void *arg, struct ptc_rpc_call *caller, struct ptc_error *err)
{
	uint64_t end;
	struct ptc_staging *s = NULL;
	struct ptc_rank_tensor t;
	struct ptc_heal_tries tries = { .n = 0 };
	int rc = ptc_rank_tensor_open(agent, g, range, &t, &end, err);

	if (rc)
		return rc;
	rc = ptc_staging_new(&agent->gate, PTC_BULK_MESSAGE_BYTES + PTC_RANK_SCRATCH, ptc_caller_gone, caller, &s, err);
	for (uint64_t off = range->offset, len; !rc && off < end; off += len) {
		len = PTC_MIN(end - off, (uint64_t)PTC_BULK_MESSAGE_BYTES);
		do
			rc = ptc_rank_tensor_read(&t, off, (size_t)len, s->data, s->data + PTC_BULK_MESSAGE_BYTES, err);
		while (ptc_agent_heals(agent, g->uuid, rc, &tries));
		if (rc == 0)
			rc = sink(arg, s->data, (size_t)len, err);
	}
	ptc_staging_release(s);
	ptc_table_unref(t.table);
	return rc;
}

/* The bytes of one message. Their sum is known when the last of them have been passed on; then the read fails. */
static int rank_message(struct ptc_rpc_message *msg, const struct ptc_rank_asked *asked, uint64_t left,
			ptc_sink_fn sink, void *arg, uint64_t *ret_len, struct ptc_error *err)
{
	const void *span;
	uint64_t said, sum = ptc_rank_sum_begin(asked), payload;
	size_t n;
	int rc = ptc_wire_summed_open(msg, &said, &payload, err);

	if (!rc && (payload > left || payload > PTC_BULK_MESSAGE_MAX))
		rc = ptc_error_set(err, PTC_EPEER, "sent more bytes than were asked for");
	while (!rc && (n = ptc_rpc_message_next(msg, &span))) {
		sum = ptc_rank_sum_add(sum, span, n);
		rc = sink(arg, span, n, err);
	}
	if (!rc && said && said != sum)
		rc = ptc_error_set(err, PTC_EPEER, "bytes of rank %llu changed on the way here: ask again",
				   (unsigned long long)asked->rank);
	if (rc == 0)
		*ret_len = payload;
	return rc;
}

static int rank_remote(struct ptc_rpc_stream *stream, struct ptc_rank_asked *asked, uint64_t left, ptc_sink_fn sink,
		       void *arg, struct ptc_error *err)
{
	struct ptc_rpc_message *msg;
	int rc;

	while (!(rc = ptc_rpc_stream_recv(stream, &msg, err)) && msg) {
		uint64_t len;

		rc = rank_message(msg, asked, left, sink, arg, &len, err);
		ptc_rpc_message_done(msg);
		if (rc)
			return rc;
		left -= len;
		asked->offset += len;
	}
	if (rc == 0)
		rc = ptc_rpc_stream_finish(stream, err);
	if (!rc && left)
		rc = ptc_error_set(err, PTC_EPEER, "sent %llu bytes fewer than were asked for",
				   (unsigned long long)left);
	return rc;
}

/* Whether anything has been delivered yet. */
struct counted {
	ptc_sink_fn sink;
	void *arg;
	bool some;
};

static int count_sink(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct counted *c = arg;

	c->some = true;
	return c->sink(c->arg, data, len, err);
}

static int rank_from_node(struct ptc_agent *agent, const struct ptc_geometry *g, const struct Ptc__V1__SwitchInfo *info,
			  const struct ptc_rank_range *range, uint64_t end, struct counted *to,
			  struct ptc_rpc_call *caller, struct ptc_error *err)
{
	Ptc__V1__FetchRankRequest req = PTC__V1__FETCH_RANK_REQUEST__INIT;
	Ptc__V1__SwitchInfo plain = *info;
	struct ptc_rpc_stream *stream = NULL;
	struct ptc_rank_asked asked = { info->from->number, info->from->snapshot, range->rank, range->item,
					range->offset };
	const uint32_t node = g->allocation.ranks[range->rank].node;
	int rc;

	if (strcmp(g->nodes[node], agent->node) == 0)
		return rank_local(agent, g, range, count_sink, to, caller, err);
	req.version = PTC_WIRE_VERSION;
	req.info = &plain;
	req.rank = range->rank;
	req.item = range->item;
	req.offset = range->offset;
	req.length = range->length;
	rc = ptc_peer_open(agent, g, node, "/ptc.v1.Peer/FetchRank", caller, &stream, err);
	if (rc == 0)
		rc = ptc_peer_ask(stream, &req.base, err);
	if (rc == 0)
		rc = rank_remote(stream, &asked, end - range->offset, count_sink, to, err);
	ptc_rpc_stream_free(stream);
	return rc;
}

/* ---- from others ---- */

struct elsewhere {
	struct ptc_agent *agent;
	const struct ptc_geometry *g;
	struct ptc_item_range *ranges; /* PTC_READ_MANY_RANGES */
	size_t n;
	uint8_t *to;
	struct ptc_rpc_call *caller;
};

static int take(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct elsewhere *e = arg;

	(void)err;
	memcpy(e->to, data, len);
	e->to += len;
	return 0;
}

static int read_ranges(struct elsewhere *e, struct ptc_error *err)
{
	size_t n = e->n;

	e->n = 0;
	return n ? ptc_agent_gather_many(e->agent, e->g, e->g->uuid, e->ranges, n, PTC_READ_MANY_BYTES, take, e,
					 e->caller, err)
		 : 0;
}

/* A box of an item, in bytes: its rows, or what lies together of them. */
static int read_box(void *arg, uint32_t item, const struct ptc_box *box, void *dst, struct ptc_error *err)
{
	int64_t shape[PTC_MAX_DIMS], idx[PTC_MAX_DIMS] = { 0 }, row;
	struct elsewhere *e = arg;
	uint32_t ndim, last;
	int rc = ptc_geometry_shape(e->g, item, &ndim, shape, err);

	if (rc)
		return rc;
	last = ndim - 1;
	row = box->ext[last];
	while (last > 0 && box->ext[last] == shape[last])
		row *= box->ext[--last];
	e->to = dst;
	e->n = 0;
	for (int64_t left = ptc_box_volume(box) / row; !rc && left > 0; left--) {
		int64_t at = 0;

		for (uint32_t d = 0; d < ndim; d++)
			at = at * shape[d] + box->off[d] + idx[d];
		e->ranges[e->n++] = (struct ptc_item_range){ item, (uint64_t)at, (uint64_t)row };
		if (e->n == PTC_READ_MANY_RANGES)
			rc = read_ranges(e, err);
		for (uint32_t d = last; d-- > 0;) {
			if (++idx[d] < box->ext[d])
				break;
			idx[d] = 0;
		}
	}
	return rc ? rc : read_ranges(e, err);
}

static int rank_from_others(struct ptc_agent *agent, struct ptc_rank_tensor *t, const struct ptc_rank_range *range,
			    uint64_t end, ptc_sink_fn sink, void *arg, struct ptc_rpc_call *caller,
			    struct ptc_error *err)
{
	ptc_auto_free struct ptc_item_range *ranges = ptc_calloc(PTC_READ_MANY_RANGES, sizeof *ranges);
	ptc_auto_free uint8_t *window = ptc_malloc(2 * (size_t)ELSEWHERE_BYTES);
	struct elsewhere e = { .agent = agent, .g = t->g, .ranges = ranges, .caller = caller };
	int rc = 0;

	if (!ranges || !window)
		return ptc_nomem(err);
	t->read = read_box;
	t->read_arg = &e;
	for (uint64_t off = range->offset, len; !rc && off < end; off += len) {
		len = PTC_MIN(end - off, (uint64_t)ELSEWHERE_BYTES);
		rc = ptc_rank_tensor_read(t, off, (size_t)len, window, window + ELSEWHERE_BYTES, err);
		if (rc == 0)
			rc = sink(arg, window, (size_t)len, err);
	}
	t->read_arg = NULL;
	return rc;
}

int ptc_agent_gather_rank(struct ptc_agent *agent, const struct ptc_geometry *g, const struct Ptc__V1__SwitchInfo *info,
			  const struct ptc_rank_range *range, ptc_sink_fn sink, void *arg, struct ptc_rpc_call *caller,
			  struct ptc_error *err)
{
	struct counted to = { sink, arg, false };
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_rank_tensor t;
	const char *node;
	uint64_t end;
	int rc = ptc_rank_tensor_init(&t, g, NULL, range->rank, range->item, err);

	if (rc == 0)
		rc = ptc_rank_range_end(&t, range, &end, err);
	if (rc)
		return rc;
	node = g->nodes[g->allocation.ranks[range->rank].node];
	rc = rank_from_node(agent, g, info, range, end, &to, caller, &why);
	if (!to.some && (rc == PTC_EPEER || rc == PTC_ETIMEOUT || rc == PTC_ENOTFOUND || rc == PTC_ELOST))
		return rank_from_others(agent, &t, range, end, sink, arg, caller, err);
	if (rc == 0)
		return 0;
	ptc_error_set(err, rc, "%s", why.text);
	if (rc == PTC_ECORRUPT)
		ptc_geometry_name_error(g, err);
	if (rc == PTC_ECORRUPT || strcmp(node, agent->node) != 0)
		ptc_error_wrap(err, "node %s", node);
	return rc;
}
