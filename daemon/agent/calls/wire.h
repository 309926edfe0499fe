/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent's messages look like on the wire: versions, boxes, and the
 * framing of bulk payload. A bulk message (Data, PutChunk) is a protobuf whose
 * `bytes data = 15` comes last, so a sender puts a small hand-made head in
 * front of memory it aliases, and a receiver reads the head and copies the
 * rest once, from the socket's slices to where it belongs. A bulk message
 * with fields after the data, or whose length is not that of the rest, is
 * refused. Bounds: PTC_WIRE_HEAD_MAX for a head, base/limits.h for the rest. */
#pragma once

#include "base/status.h"
#include "proto/pb.h"
#include "reshard/box/box.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <protobuf-c/protobuf-c.h>

#define PTC_WIRE_HEAD_MAX 512

struct Ptc__V1__Box;
/* Plain numbers to a box: dims in range, offsets not negative, extents positive, no overflow of end or volume. */
int ptc_wire_box(const int64_t *off, size_t noff, const int64_t *ext, size_t next, struct ptc_box *ret_box,
		 struct ptc_error *err);

/* Appends tag and length of field 15 to head (room for 12 bytes); returns the new length. */
size_t ptc_wire_put_data_tag(uint8_t *head, size_t len, uint64_t payload);
/* Head of a Data message for payload bytes; at most 16 bytes. */
size_t ptc_wire_data_head(uint8_t *head, uint64_t payload);

/* Where heads are read from: gives len bytes or fewer at the end. */
struct ptc_wire_source {
	size_t (*read)(void *arg, void *dst, size_t len);
	void *arg;
	size_t left; /* bytes of the message not read yet */
};
/* Reads a bulk message up to its payload. head gets the fields before field 15 (a valid protobuf); *ret_payload what
 * follows, which is exactly the rest of the message. */
int ptc_wire_head_read(struct ptc_wire_source *src, uint8_t head[PTC_WIRE_HEAD_MAX], size_t *ret_head_len,
		       uint64_t *ret_payload, struct ptc_error *err);
int ptc_wire_message_head(struct ptc_rpc_message *msg, uint8_t head[PTC_WIRE_HEAD_MAX], size_t *ret_head_len,
			  uint64_t *ret_payload, struct ptc_error *err);
/* The same for Data: checks the version as well. */
int ptc_wire_data_open(struct ptc_rpc_message *msg, uint64_t *ret_payload, struct ptc_error *err);

/* A control message; ptc_pb_free it. */
int ptc_wire_decode(struct ptc_rpc_message *msg, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret,
		    struct ptc_error *err);
