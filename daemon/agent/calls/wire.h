/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's messages on the wire: versions, boxes, and the framing of bulk payload.
 *
 * A bulk message (Data, PutChunk) is a protobuf whose `bytes data = 15` comes last. So a sender puts a small head in
 * front of memory that it aliases. A receiver reads the head and copies the rest once, from the socket's slices to its
 * place. A receiver refuses a bulk message if fields follow the data, or if the length of the data is not that of the
 * rest of the message. Bounds: PTC_WIRE_HEAD_MAX for a head, base/limits.h for the rest. */
#pragma once

#include "base/status.h"
#include "proto/pb.h"
#include "reshard/box/box.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <protobuf-c/protobuf-c.h>

#define PTC_WIRE_HEAD_MAX 512

struct Ptc__V1__Box;
/* Makes a box of plain numbers. Checks that dims are in range, offsets not negative and extents positive, and that
 * neither end nor volume overflows. */
int ptc_wire_box(const int64_t *off, size_t noff, const int64_t *ext, size_t next, struct ptc_box *ret_box,
		 struct ptc_error *err);

/* Appends tag and length of field 15 to head, which has room for 12 bytes more. Returns the new length. */
size_t ptc_wire_put_data_tag(uint8_t *head, size_t len, uint64_t payload);
/* Makes the head of a Data message with `payload` bytes; the head has at most 16 bytes. */
size_t ptc_wire_data_head(uint8_t *head, uint64_t payload);

/* Gives the bytes of a message: len bytes, or fewer at the message's end. */
struct ptc_wire_source {
	size_t (*read)(void *arg, void *dst, size_t len);
	void *arg;
	size_t left; /* bytes of the message that nobody has read yet */
};
/* Reads a bulk message up to its payload. head gets the fields before field 15, a valid protobuf. *ret_payload gets the
 * length of the payload, which is the rest of the message. */
int ptc_wire_head_read(struct ptc_wire_source *src, uint8_t head[PTC_WIRE_HEAD_MAX], size_t *ret_head_len,
		       uint64_t *ret_payload, struct ptc_error *err);
int ptc_wire_message_head(struct ptc_rpc_message *msg, uint8_t head[PTC_WIRE_HEAD_MAX], size_t *ret_head_len,
			  uint64_t *ret_payload, struct ptc_error *err);
/* Does the same for a Data message, and checks its version. *ret_sum: 0, or the sum (base/number/digest.h). */
int ptc_wire_summed_open(struct ptc_rpc_message *msg, uint64_t *ret_sum, uint64_t *ret_payload, struct ptc_error *err);
/* As ptc_wire_data_head, for a message with a sum; the head has at most 32 bytes. */
size_t ptc_wire_summed_head(uint8_t *head, uint64_t sum, uint64_t payload);
/* The counts of places in a Data message of Fetch; both 0: its payload is bytes (transfer/near_message.h). */
struct ptc_wire_near {
	uint32_t spans, chunks;
};
int ptc_wire_near_open(struct ptc_rpc_message *msg, struct ptc_wire_near *ret_near, uint64_t *ret_payload,
		       struct ptc_error *err);
/* As ptc_wire_data_head; the head has at most 28 bytes. */
size_t ptc_wire_near_head(uint8_t *head, struct ptc_wire_near near, uint64_t payload);

/* Decodes a control message; ptc_pb_free it. */
int ptc_wire_decode(struct ptc_rpc_message *msg, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret,
		    struct ptc_error *err);
/* Does the same, but allocates the message from the arena, with which the message is freed. arena NULL: as
 * ptc_wire_decode. */
int ptc_wire_decode_in(struct ptc_pb_arena *arena, struct ptc_rpc_message *msg, const ProtobufCMessageDescriptor *type,
		       ProtobufCMessage **ret, struct ptc_error *err);
