/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/pb.h"

#include "base/alloc.h"

#include <string.h>

static void *pb_alloc(void *unused, size_t size)
{
	return ptc_malloc(size);
}

static void pb_free(void *unused, void *p)
{
	ptc_free(p);
}

ProtobufCAllocator ptc_pb_allocator = { pb_alloc, pb_free, NULL };

int ptc_pb_version(uint32_t version, struct ptc_error *err)
{
	if (ptc_version_reads(version, PTC_WIRE_OLDEST, PTC_WIRE_VERSION))
		return 0;
	return ptc_error_set(
		err, PTC_EVERSION,
		"a message of protocol version %u; this ptc %s speaks %d to %d: upgrade the older end, one "
		"version after the other",
		version, PTC_VERSION, PTC_WIRE_OLDEST, PTC_WIRE_VERSION + 1);
}

size_t ptc_pb_added(uint8_t to[PTC_PB_ADDED_BYTES])
{
#if PTC_VERSION_RAISED
	static const uint8_t field_1000[PTC_PB_ADDED_BYTES] = { 0xc0, 0x3e, 1 };

	memcpy(to, field_1000, sizeof field_1000);
	return sizeof field_1000;
#else
	(void)to;
	return 0;
#endif
}

/* etcd's messages are etcd's. */
static size_t added(const ProtobufCMessage *msg, uint8_t to[PTC_PB_ADDED_BYTES])
{
	return strcmp(msg->descriptor->package_name, "ptc.v1") == 0 ? ptc_pb_added(to) : 0;
}

int ptc_pb_encode(const ProtobufCMessage *msg, void **ret_data, size_t *ret_len, struct ptc_error *err)
{
	uint8_t first[PTC_PB_ADDED_BYTES] = { 0 };
	size_t n = added(msg, first), len = n + protobuf_c_message_get_packed_size(msg);
	uint8_t *data = ptc_malloc(len);

	if (!data)
		return ptc_nomem(err);
	memcpy(data, first, n);
	protobuf_c_message_pack(msg, data + n);
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

/* One varint; false at the end of the data or when it is too long. */
static bool varint(const uint8_t **at, const uint8_t *end, uint64_t *ret)
{
	*ret = 0;
	for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
		uint8_t byte = *(*at)++;

		*ret |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return true;
	}
	return false;
}

/* What follows a tag of that wire type: its length, the tag's own length bytes passed. */
static bool payload(const uint8_t **at, const uint8_t *end, unsigned wire_type, uint64_t *ret_len)
{
	const uint8_t *from = *at;
	uint64_t ignored;

	if (wire_type == PROTOBUF_C_WIRE_TYPE_VARINT) {
		if (!varint(at, end, &ignored))
			return false;
		*ret_len = (uint64_t)(*at - from);
		*at = from;
	} else if (wire_type == PROTOBUF_C_WIRE_TYPE_64BIT) {
		*ret_len = 8;
	} else if (wire_type == PROTOBUF_C_WIRE_TYPE_32BIT) {
		*ret_len = 4;
	} else if (wire_type != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED || !varint(at, end, ret_len)) {
		return false;
	}
	return *ret_len <= (uint64_t)(end - *at);
}

size_t ptc_pb_fields(const ProtobufCMessageDescriptor *type, const void *data, size_t len)
{
	const uint8_t *at = data, *end = at + len;
	size_t n = 0;

	while (at < end) {
		const ProtobufCFieldDescriptor *f;
		uint64_t tag, size;

		if (!varint(&at, end, &tag) || !payload(&at, end, (unsigned)(tag & 7), &size))
			return SIZE_MAX;
		n++;
		f = tag >> 3 <= UINT32_MAX ? protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3)) : NULL;
		if (f && f->type == PROTOBUF_C_TYPE_MESSAGE && (tag & 7) == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) {
			size_t inner = ptc_pb_fields(f->descriptor, at, (size_t)size);

			if (inner == SIZE_MAX)
				return SIZE_MAX;
			n += inner;
		}
		at += size;
	}
	return n;
}

void ptc_pb_free(ProtobufCMessage *msg)
{
	if (msg)
		protobuf_c_message_free_unpacked(msg, &ptc_pb_allocator);
}
