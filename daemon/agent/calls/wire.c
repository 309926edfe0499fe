/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a head of a few bytes, then payload. Failure modes: bytes that
 * do not parse, a head over its limit, lengths that do not add up (all
 * PTC_EPEER), a version we do not speak (PTC_EVERSION). Nothing is read past
 * the message, whatever its numbers say. */
#include "daemon/agent/calls/wire.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"

#include <string.h>

int ptc_wire_box(const int64_t *off, size_t noff, const int64_t *ext, size_t next, struct ptc_box *ret_box,
		 struct ptc_error *err)
{
	struct ptc_box box = { .ndim = (uint32_t)noff };
	int64_t volume = 1, end;

	if (!noff || noff > PTC_MAX_DIMS || noff != next)
		return ptc_error_set(
			err, PTC_EINVAL,
			"a box in the message has %zu offsets and %zu extents; it needs one of each for every dim",
			noff, next);
	for (size_t d = 0; d < noff; d++) {
		if (off[d] < 0 || ext[d] <= 0 || ptc_ckd_add(&end, off[d], ext[d]) ||
		    ptc_ckd_mul(&volume, volume, ext[d]))
			return ptc_error_set(err, PTC_EINVAL,
					     "a box in the message has offset %lld and extent %lld in dim %zu; offsets "
					     "begin at 0, extents at 1",
					     (long long)off[d], (long long)ext[d], d);
		box.off[d] = off[d];
		box.ext[d] = ext[d];
	}
	*ret_box = box;
	return 0;
}

static size_t put_varint(uint8_t *head, size_t len, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		head[len++] = (uint8_t)(v | 0x80);
	head[len++] = (uint8_t)v;
	return len;
}

size_t ptc_wire_put_data_tag(uint8_t *head, size_t len, uint64_t payload)
{
	head[len++] = (15 << 3) | 2;
	return put_varint(head, len, payload);
}

size_t ptc_wire_data_head(uint8_t *head, uint64_t payload)
{
	return ptc_wire_near_head(head, (struct ptc_wire_near){ 0, 0 }, payload);
}

size_t ptc_wire_summed_head(uint8_t *head, uint64_t sum, uint64_t payload)
{
	size_t len = ptc_pb_added(head);

	head[len++] = 1 << 3;
	head[len++] = PTC_WIRE_VERSION;
	head[len++] = 4 << 3;
	len = put_varint(head, len, sum);
	return ptc_wire_put_data_tag(head, len, payload);
}

size_t ptc_wire_near_head(uint8_t *head, struct ptc_wire_near near, uint64_t payload)
{
	size_t len = ptc_pb_added(head);

	head[len++] = 1 << 3;
	head[len++] = PTC_WIRE_VERSION;
	if (near.spans) {
		head[len++] = 2 << 3;
		len = put_varint(head, len, near.spans);
		head[len++] = 3 << 3;
		len = put_varint(head, len, near.chunks);
	}
	return ptc_wire_put_data_tag(head, len, payload);
}

struct head {
	struct ptc_wire_source *src;
	uint8_t *bytes;
	size_t len;
};

static bool head_bytes(struct head *h, size_t n)
{
	if (n > h->src->left || n > PTC_WIRE_HEAD_MAX - h->len || h->src->read(h->src->arg, h->bytes + h->len, n) != n)
		return false;
	h->src->left -= n;
	h->len += n;
	return true;
}

static bool head_varint(struct head *h, uint64_t *ret)
{
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 64; shift += 7) {
		if (!head_bytes(h, 1))
			return false;
		v |= (uint64_t)(h->bytes[h->len - 1] & 0x7f) << shift;
		if (!(h->bytes[h->len - 1] & 0x80)) {
			*ret = v;
			return true;
		}
	}
	return false;
}

/* Reads past the value of a field that is not the payload. */
static bool head_skip(struct head *h, unsigned type)
{
	uint64_t n;

	switch (type) {
	case 0:
		return head_varint(h, &n);
	case 1:
		return head_bytes(h, 8);
	case 2:
		return head_varint(h, &n) && n <= PTC_WIRE_HEAD_MAX && head_bytes(h, (size_t)n);
	case 5:
		return head_bytes(h, 4);
	default:
		return false;
	}
}

int ptc_wire_head_read(struct ptc_wire_source *src, uint8_t head[PTC_WIRE_HEAD_MAX], size_t *ret_head_len,
		       uint64_t *ret_payload, struct ptc_error *err)
{
	struct head h = { src, head, 0 };
	uint64_t tag, payload = 0;
	size_t end = 0;

	for (; src->left; end = h.len) {
		if (!head_varint(&h, &tag))
			goto malformed;
		if (tag == ((15 << 3) | 2)) {
			if (!head_varint(&h, &payload) || payload != src->left)
				goto malformed;
			break;
		}
		if (!(tag >> 3) || !head_skip(&h, tag & 7))
			goto malformed;
	}
	*ret_head_len = end;
	*ret_payload = payload;
	return 0;
malformed:
	return ptc_error_set(err, PTC_EPEER, "malformed bulk message: its lengths do not add up");
}

static size_t message_read(void *arg, void *dst, size_t len)
{
	return ptc_rpc_message_read(arg, dst, len);
}

int ptc_wire_message_head(struct ptc_rpc_message *msg, uint8_t head[PTC_WIRE_HEAD_MAX], size_t *ret_head_len,
			  uint64_t *ret_payload, struct ptc_error *err)
{
	struct ptc_wire_source src = { message_read, msg, ptc_rpc_message_len(msg) };

	return ptc_wire_head_read(&src, head, ret_head_len, ret_payload, err);
}

static int data_open(struct ptc_rpc_message *msg, struct ptc_wire_near *ret_near, uint64_t *ret_sum,
		     uint64_t *ret_payload, struct ptc_error *err)
{
	uint8_t head[PTC_WIRE_HEAD_MAX];
	Ptc__V1__Data *data;
	uint32_t version;
	size_t len;
	int rc = ptc_wire_message_head(msg, head, &len, ret_payload, err);

	if (rc)
		return rc;
	data = ptc__v1__data__unpack(&ptc_pb_allocator, len, head);
	if (!data)
		return ptc_error_set(err, PTC_EPEER, "malformed data message: its head cannot be read");
	version = data->version;
	*ret_near = (struct ptc_wire_near){ data->near_spans, data->near_chunks };
	*ret_sum = data->sum;
	ptc__v1__data__free_unpacked(data, &ptc_pb_allocator);
	return ptc_pb_version(version, err);
}

int ptc_wire_summed_open(struct ptc_rpc_message *msg, uint64_t *ret_sum, uint64_t *ret_payload, struct ptc_error *err)
{
	struct ptc_wire_near near;

	return data_open(msg, &near, ret_sum, ret_payload, err);
}

int ptc_wire_near_open(struct ptc_rpc_message *msg, struct ptc_wire_near *ret_near, uint64_t *ret_payload,
		       struct ptc_error *err)
{
	uint64_t sum;

	return data_open(msg, ret_near, &sum, ret_payload, err);
}

int ptc_wire_decode(struct ptc_rpc_message *msg, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret,
		    struct ptc_error *err)
{
	return ptc_wire_decode_in(NULL, msg, type, ret, err);
}

int ptc_wire_decode_in(struct ptc_pb_arena *arena, struct ptc_rpc_message *msg, const ProtobufCMessageDescriptor *type,
		       ProtobufCMessage **ret, struct ptc_error *err)
{
	size_t len = ptc_rpc_message_len(msg);
	ptc_auto_free void *bytes = ptc_malloc(len ? len : 1);

	if (!bytes)
		return ptc_nomem(err);
	if (ptc_rpc_message_read(msg, bytes, len) != len)
		return ptc_error_set(err, PTC_EPEER, "malformed message: it is shorter than its head says");
	return ptc_pb_decode_in(arena, type, bytes, len, ret, err);
}
