/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/pb.h"

#include "base/alloc.h"

static void *pb_alloc(void *unused, size_t size)
{
	return ptc_malloc(size);
}

static void pb_free(void *unused, void *p)
{
	ptc_free(p);
}

ProtobufCAllocator ptc_pb_allocator = { pb_alloc, pb_free, NULL };

void ptc_pb_pack(const ProtobufCMessage *msg, struct ptc_buf *b)
{
	void *to = ptc_buf_extend(b, protobuf_c_message_get_packed_size(msg));

	if (to)
		protobuf_c_message_pack(msg, to);
}

int ptc_pb_encode(const ProtobufCMessage *msg, void **ret_data, size_t *ret_len, struct ptc_error *err)
{
	size_t len = protobuf_c_message_get_packed_size(msg);
	void *data = ptc_malloc(len);

	if (!data)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory encoding a %s of %zu bytes",
				     msg->descriptor->short_name, len);
	protobuf_c_message_pack(msg, data);
	*ret_data = data;
	*ret_len = len;
	return 0;
}

int ptc_pb_decode(const ProtobufCMessageDescriptor *type, const void *data, size_t len, ProtobufCMessage **ret_msg,
		  struct ptc_error *err)
{
	ProtobufCMessage *msg = protobuf_c_message_unpack(type, &ptc_pb_allocator, len, data);

	if (!msg)
		return ptc_error_set(err, PTC_EPEER, "%zu bytes do not parse as a %s (or memory ran out)", len,
				     type->short_name);
	*ret_msg = msg;
	return 0;
}

void ptc_pb_free(ProtobufCMessage *msg)
{
	if (msg)
		protobuf_c_message_free_unpacked(msg, &ptc_pb_allocator);
}
