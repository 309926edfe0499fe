/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's local tensor of an item, from this node's table. Happy path: a
 * window of the rank's buffer is zeroed, then each region's bytes that fall
 * into it are read and put where the region's strides say; regions are halved
 * until a part lies inside the window and fits the scratch memory.
 *
 * Failure modes: the rank has nothing of the item or bytes are not here
 * (PTC_ENOTFOUND), strides that do not fall on bytes (PTC_ELAYOUT). */
#include "daemon/agent/calls/operation.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/tables/rank_tensor.h"
#include "daemon/agent/tables/tables.h"

#include "base/check.h"
#include "base/number/digest.h"

#include <string.h>

int ptc_rank_tensor_init(struct ptc_rank_tensor *t, const struct ptc_geometry *g, struct ptc_table *table,
			 uint32_t rank, uint32_t item, struct ptc_error *err)
{
	struct ptc_local_shape shape;
	uint64_t bits;

	if (rank >= g->allocation.world)
		return ptc_error_set(err, PTC_EINVAL, "there is no rank %u; the job has %u ranks", rank,
				     g->allocation.world);
	if (item >= ptc_spec_items(g->spec))
		return ptc_error_set(err, PTC_EINVAL, "there is no item %u; the job has %zu items", item,
				     ptc_spec_items(g->spec));
	if (!ptc_layout_local_shape(g->layout, rank, item, &shape))
		return ptc_error_set(err, PTC_ENOTFOUND, "rank %u has no part of item %u", rank, item);
	bits = ptc_dtype_bits(ptc_item_dtype(g->spec, item));
	for (uint32_t d = 0; d < shape.ndim; d++)
		if (ptc_ckd_mul(&bits, bits, (uint64_t)shape.shape[d]))
			return ptc_error_set(err, PTC_ELAYOUT, "item %u is too large on rank %u", item, rank);
	if (bits % 8)
		return ptc_error_set(err, PTC_ELAYOUT, "item %u does not have a whole number of bytes on rank %u", item,
				     rank);
	*t = (struct ptc_rank_tensor){ .g = g, .table = table, .rank = rank, .item = item, .bytes = bits / 8 };
	return 0;
}

int ptc_rank_range_end(const struct ptc_rank_tensor *t, const struct ptc_rank_range *range, uint64_t *ret_end,
		       struct ptc_error *err)
{
	if (range->offset > t->bytes || range->length > t->bytes - range->offset)
		return ptc_error_set(err, PTC_EINVAL,
				     "%llu bytes from byte %llu on exceed the local tensor of rank %u, item %u, which "
				     "has %llu bytes",
				     (unsigned long long)range->length, (unsigned long long)range->offset, t->rank,
				     t->item, (unsigned long long)t->bytes);
	*ret_end = range->length ? range->offset + range->length : t->bytes;
	return 0;
}

int ptc_rank_tensor_open(struct ptc_agent *agent, const struct ptc_geometry *g, const struct ptc_rank_range *range,
			 struct ptc_rank_tensor *ret, uint64_t *ret_end, struct ptc_error *err)
{
	struct ptc_table_key key = ptc_geometry_key(g);
	struct ptc_table *table;
	int rc = ptc_agent_table_open(agent, &key, &table, err);

	if (rc)
		return rc;
	rc = ptc_rank_tensor_init(ret, g, table, range->rank, range->item, err);
	if (rc == 0)
		rc = ptc_rank_range_end(ret, range, ret_end, err);
	if (rc)
		ptc_table_unref(table);
	return rc;
}

struct window {
	const struct ptc_rank_tensor *t;
	int64_t from, to; /* bytes of the rank's buffer */
	uint8_t *dst;
	void *scratch;
	/* of the current region */
	struct ptc_box region; /* bytes */
	int64_t base, stride[PTC_MAX_DIMS];
};

/* Where a sub-box of the region begins and ends in the rank's buffer. */
static void span_of(const struct window *w, const struct ptc_box *box, int64_t *ret_lo, int64_t *ret_hi)
{
	int64_t lo = w->base, hi;

	for (uint32_t d = 0; d < box->ndim; d++)
		lo += (box->off[d] - w->region.off[d]) * w->stride[d];
	hi = lo + 1;
	for (uint32_t d = 0; d < box->ndim; d++)
		hi += (box->ext[d] - 1) * w->stride[d];
	*ret_lo = lo;
	*ret_hi = hi;
}

static bool is_compact(const struct window *w, const struct ptc_box *box)
{
	int64_t step = 1;

	for (uint32_t d = box->ndim; d-- > 0; step *= box->ext[d])
		if (box->ext[d] > 1 && w->stride[d] != step)
			return false;
	return true;
}

/* Row by row from compact memory to the strides of the rank's buffer. */
static void scatter(const struct window *w, const struct ptc_box *box, const uint8_t *from, int64_t lo)
{
	uint32_t last = box->ndim - 1;
	int64_t idx[PTC_MAX_DIMS] = { 0 }, row = box->ext[last];
	int64_t rows = ptc_box_volume(box) / row;

	for (int64_t i = 0; i < rows; i++) {
		int64_t at = lo - w->from;

		for (uint32_t d = 0; d < last; d++)
			at += idx[d] * w->stride[d];
		memcpy(w->dst + at, from + i * row, (size_t)row);
		for (uint32_t d = last; d-- > 0;) {
			if (++idx[d] < box->ext[d])
				break;
			idx[d] = 0;
		}
	}
}

static int read_box(const struct ptc_rank_tensor *t, const struct ptc_box *box, void *dst, struct ptc_error *err)
{
	return t->read ? t->read(t->read_arg, t->item, box, dst, err)
		       : ptc_table_read(t->table, t->item, box, dst, err);
}

static int place_whole(const struct window *w, const struct ptc_box *box, int64_t lo, struct ptc_error *err)
{
	int rc;

	if (is_compact(w, box))
		return read_box(w->t, box, w->dst + (lo - w->from), err);
	rc = read_box(w->t, box, w->scratch, err);
	if (!rc)
		scatter(w, box, w->scratch, lo);
	return rc;
}

static int place(const struct window *w, const struct ptc_box *box, struct ptc_error *err)
{
	struct ptc_box half = *box;
	int64_t lo, hi;
	uint32_t d = 0;
	int rc;

	span_of(w, box, &lo, &hi);
	if (hi <= w->from || lo >= w->to)
		return 0;
	if (lo >= w->from && hi <= w->to && ptc_box_volume(box) <= PTC_RANK_SCRATCH)
		return place_whole(w, box, lo, err);
	while (d + 1 < box->ndim && box->ext[d] == 1)
		d++;
	half.ext[d] = box->ext[d] / 2;
	rc = place(w, &half, err);
	half.off[d] += half.ext[d];
	half.ext[d] = box->ext[d] - half.ext[d];
	return rc ? rc : place(w, &half, err);
}

static int region_bytes(struct window *w, const struct ptc_region *region, struct ptc_error *err)
{
	const struct ptc_spec *spec = w->t->g->spec;
	int64_t bits = ptc_dtype_bits(ptc_item_dtype(spec, w->t->item)), base;
	uint32_t last;
	int rc = ptc_item_byte_box(spec, w->t->item, &region->box, &w->region, err);

	if (rc)
		return rc;
	last = w->region.ndim - 1;
	base = region->buf_off * bits;
	if (last < region->box.ndim && region->box.ext[region->box.ndim - 1] > 1 &&
	    region->buf_stride[region->box.ndim - 1] != 1)
		base = 1; /* elements apart from each other: no byte runs */
	for (uint32_t d = 0; d < last; d++) {
		if (region->buf_stride[d] * bits % 8)
			base = 1;
		w->stride[d] = region->buf_stride[d] * bits / 8;
	}
	w->stride[last] = 1;
	w->base = base / 8;
	if (base % 8)
		return ptc_error_set(err, PTC_ELAYOUT, "item %u on rank %u does not lie on whole bytes", w->t->item,
				     w->t->rank);
	return 0;
}

int ptc_rank_tensor_read(const struct ptc_rank_tensor *t, uint64_t off, size_t len, void *dst, void *scratch,
			 struct ptc_error *err)
{
	struct ptc_rank_layout l;
	struct window w = { .t = t, .dst = dst, .scratch = scratch };
	int rc;

	if (ptc_fails(off <= t->bytes && len <= t->bytes - off))
		return ptc_error_set(err, PTC_EINTERNAL, "internal error: a window lies outside the rank's tensor");
	w.from = (int64_t)off;
	w.to = (int64_t)(off + len);
	memset(dst, 0, len);
	rc = ptc_layout_rank_item(t->g->layout, t->rank, t->item, &l, err);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < l.nregions; i++) {
		if (l.regions[i].padding || ptc_box_empty(&l.regions[i].box))
			continue;
		rc = region_bytes(&w, &l.regions[i], err);
		if (rc == 0)
			rc = place(&w, &w.region, err);
	}
	ptc_rank_layout_done(&l);
	return rc;
}

/* ---- FetchRank ---- */

static int send_window(struct ptc_agent_op *op, struct ptc_rpc_call *call, const struct ptc_rank_tensor *t,
		       const struct ptc_rank_asked *asked, size_t len, struct ptc_heal_tries *tries,
		       struct ptc_error *err)
{
	struct ptc_rpc_part parts[2];
	struct ptc_staging *s;
	uint8_t head[PTC_WIRE_HEAD_MAX];
	uint64_t sum;
	int rc = ptc_staging_new(&op->agent->send, len + PTC_RANK_SCRATCH, ptc_agent_op_stopped, op, &s, err);

	if (rc)
		return rc;
	rc = ptc_rank_tensor_read(t, asked->offset, len, s->data, s->data + len, err);
	if (rc) {
		ptc_staging_release(s);
		return ptc_agent_heals(op->agent, t->g->uuid, rc, tries)
			       ? send_window(op, call, t, asked, len, tries, err)
			       : rc;
	}
	sum = ptc_rank_sum_add(ptc_rank_sum_begin(asked), s->data, len);
	parts[0] = (struct ptc_rpc_part){ .data = head, .len = ptc_wire_summed_head(head, sum, len) };
	parts[1] = (struct ptc_rpc_part){ s->data, len, ptc_staging_release, s };
	return ptc_rpc_call_send(call, parts, 2, err);
}

static int serve(struct ptc_agent *agent, struct ptc_rpc_call *call, const struct ptc_geometry *g,
		 const Ptc__V1__Generation *from, const struct ptc_rank_range *range, struct ptc_error *err)
{
	uint64_t end;
	size_t len;
	struct ptc_rank_asked asked = { from->number, from->snapshot, range->rank, range->item, range->offset };
	struct ptc_agent_op op = { agent, NULL, call };
	struct ptc_rank_tensor t;
	struct ptc_heal_tries tries = { .n = 0 };
	int rc = ptc_rank_tensor_open(agent, g, range, &t, &end, err);

	if (rc)
		return rc;
	for (; !rc && asked.offset < end; asked.offset += len) {
		len = (size_t)PTC_MIN(end - asked.offset, (uint64_t)PTC_BULK_MESSAGE_BYTES);
		rc = send_window(&op, call, &t, &asked, len, &tries, err);
	}
	ptc_table_unref(t.table);
	return rc;
}

static int rank_is_here(struct ptc_agent *agent, const struct ptc_geometry *g, uint32_t rank, struct ptc_error *err)
{
	uint32_t self;
	int rc = ptc_geometry_node(g, agent->node, &self, err);

	if (!rc && (rank >= g->allocation.world || g->allocation.ranks[rank].node != self))
		rc = ptc_error_set(err, PTC_EINVAL, "rank %u is not on node %s", rank, agent->node);
	return rc;
}

int ptc_agent_on_fetch_rank(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	struct ptc_geometry_ref *ref = NULL;
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__fetch_rank_request__descriptor, &msg, err);
	const Ptc__V1__FetchRankRequest *req = (const Ptc__V1__FetchRankRequest *)msg;

	if (rc == 0)
		rc = ptc_switch_info_check(req->version, req->info, err);
	if (rc == 0)
		rc = ptc_geometry_get(agent, req->info, req->info->from, &ref, err);
	if (rc == 0)
		rc = rank_is_here(agent, &ref->g, req->rank, err);
	if (!rc) {
		const struct ptc_rank_range range = { req->rank, req->item, req->offset, req->length };

		rc = serve(agent, call, &ref->g, req->info->from, &range, err);
	}
	ptc_geometry_put(ref);
	ptc_pb_free(msg);
	return rc;
}
