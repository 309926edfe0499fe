/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf messages over rpc/: one message in, one out. All functions block; do not call them on the loop. Free a
 * message with its protobuf-c function. */
#pragma once

#include "proto/pb.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

int ptc_pb_call_send(struct ptc_rpc_call *call, const ProtobufCMessage *msg, struct ptc_error *err);
/* Receives the next request message, and checks its version (field 1 of every ptc message). PTC_EINVAL: the client sent
 * none. */
int ptc_pb_call_recv(struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret_msg,
		     struct ptc_error *err);
/* Parses the bytes of a message that a client sent. PTC_EINVAL: it does not parse. PTC_ELIMIT: it has more fields than
 * any request needs. */
int ptc_pb_request(const ProtobufCMessageDescriptor *type, const void *data, size_t len, ProtobufCMessage **ret_msg,
		   struct ptc_error *err);
/* Parses a received message; m stays the caller's. */
int ptc_pb_message(struct ptc_rpc_message *m, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret_msg,
		   struct ptc_error *err);
/* A blocking unary call; ret_reply may be NULL. */
int ptc_pb_unary(struct ptc_rpc_channel *channel, const char *method, const ProtobufCMessage *request, int timeout_ms,
		 const struct ptc_rpc_meta *meta, size_t nmeta, const ProtobufCMessageDescriptor *type,
		 ProtobufCMessage **ret_reply, struct ptc_error *err);
