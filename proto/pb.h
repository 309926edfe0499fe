/* SPDX-License-Identifier: Apache-2.0 */
/* protobuf-c over our allocator and buffers. Failure modes: out of memory,
 * and for unpacking bytes that do not parse (PTC_EPEER). Thread-safe. */
#pragma once

#include "base/buf.h"
#include "base/number/versions.h"
#include "base/status.h"

#include <protobuf-c/protobuf-c.h>

/* Of ptc.v1. A message of a version next to ours is read: fields that we do not know are passed over. */
#define PTC_WIRE_VERSION   PTC_VERSION_NUMBER(1)
#define PTC_WIRE_OLDEST    1
#define PTC_PB_ADDED_BYTES 3

/* PTC_EVERSION unless we speak it. */
int ptc_pb_version(uint32_t version, struct ptc_error *err);
/* Where every message of ptc.v1 begins: the field that a raised build adds (base/number/versions.h). Returns its
 * length, 0 in any other build. */
size_t ptc_pb_added(uint8_t to[PTC_PB_ADDED_BYTES]);
/* Pass it to every generated __unpack and __free_unpacked. protobuf-c takes it non-const but never writes to it. */
extern ProtobufCAllocator ptc_pb_allocator;

/* Whole wire form in its own memory (ptc_free it); never NULL on success, also for an empty message. */
int ptc_pb_encode(const ProtobufCMessage *msg, void **ret_data, size_t *ret_len, struct ptc_error *err);
/* *ret_msg: protobuf_c_message_free_unpacked(msg, &ptc_pb_allocator), or ptc_pb_free. */
int ptc_pb_decode(const ProtobufCMessageDescriptor *type, const void *data, size_t len, ProtobufCMessage **ret_msg,
		  struct ptc_error *err);
/* The memory of messages that have very many parts, and are read and forgotten: it is taken in large blocks and freed
 * at once. Begins zeroed; belongs to one thread. */
struct ptc_pb_arena { /* private */
	struct ptc_pb_block *blocks;
	size_t left; /* in the first block */
};
/* As ptc_pb_decode, but that the message is freed with the arena, and only so. a NULL: ptc_pb_decode. */
int ptc_pb_decode_in(struct ptc_pb_arena *a, const ProtobufCMessageDescriptor *type, const void *data, size_t len,
		     ProtobufCMessage **ret_msg, struct ptc_error *err);
void ptc_pb_arena_done(struct ptc_pb_arena *a);
/* How many fields the wire form has, nested ones included (a packed list is one); SIZE_MAX when it does not parse. A
 * field of two bytes costs protobuf-c about fifty, so whoever reads from strangers bounds it before decoding. */
size_t ptc_pb_fields(const ProtobufCMessageDescriptor *type, const void *data, size_t len);
void ptc_pb_free(ProtobufCMessage *msg); /* NULL ok */
