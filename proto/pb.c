/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/pb.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stddef.h>
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

/* ---- arenas ---- */

#define BLOCK_BYTES                                                                                                    \
	((size_t)64 << 10) /* at least; fewer allocations than this has parts, and little that stays unused */

struct ptc_pb_block {
	struct ptc_pb_block *next;
	max_align_t data[];
};

static void *arena_alloc(void *arg, size_t size)
{
	struct ptc_pb_arena *a = arg;
	struct ptc_pb_block *block;
	size_t room, all;

	if (ptc_ckd_add(&size, PTC_MAX(size, (size_t)1), sizeof(max_align_t) - 1))
		return NULL;
	size -= size % sizeof(max_align_t);
	if (size > a->left) {
		room = PTC_MAX(size, BLOCK_BYTES);
		block = ptc_ckd_add(&all, room, sizeof *block) ? NULL : ptc_malloc(all);
		if (!block)
			return NULL;
		block->next = a->blocks;
		a->blocks = block;
		a->left = room;
	}
	a->left -= size; /* from the end of the block */
	return (char *)a->blocks->data + a->left;
}

static void arena_free(void *arg, void *p)
{
	(void)arg; /* with the arena */
	(void)p;
}

void ptc_pb_arena_done(struct ptc_pb_arena *a)
{
	struct ptc_pb_block *block;

	while ((block = a->blocks)) {
		a->blocks = block->next;
		ptc_free(block);
	}
	a->left = 0;
}

int ptc_pb_decode(const ProtobufCMessageDescriptor *type, const void *data, size_t len, ProtobufCMessage **ret_msg,
		  struct ptc_error *err)
{
	return ptc_pb_decode_in(NULL, type, data, len, ret_msg, err);
}

int ptc_pb_decode_in(struct ptc_pb_arena *a, const ProtobufCMessageDescriptor *type, const void *data, size_t len,
		     ProtobufCMessage **ret_msg, struct ptc_error *err)
{
	ProtobufCAllocator in = { arena_alloc, arena_free, a };
	ProtobufCMessage *msg = protobuf_c_message_unpack(type, a ? &in : &ptc_pb_allocator, len, data);

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
