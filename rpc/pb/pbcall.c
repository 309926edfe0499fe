/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/pb/pbcall.h"

#include "base/alloc.h"
#include "base/limits.h"

int ptc_pb_call_send(struct ptc_rpc_call *call, const ProtobufCMessage *msg, struct ptc_error *err)
{
	void *data;
	size_t len;
	int rc = ptc_pb_encode(msg, &data, &len, err);

	if (rc)
		return rc;
	rc = ptc_rpc_call_send(call, &(struct ptc_rpc_part){ .data = data, .len = len }, 1, err);
	ptc_free(data);
	return rc;
}

static int decode_bytes(const ProtobufCMessageDescriptor *type, size_t max_fields, const void *data, size_t len,
			ProtobufCMessage **ret_msg, struct ptc_error *err)
{
	size_t fields = max_fields ? ptc_pb_fields(type, data, len) : 0;

	if (fields > max_fields && fields != SIZE_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "%s has %zu fields; at most %zu are allowed", type->short_name,
				     fields, max_fields);
	return ptc_pb_decode(type, data, len, ret_msg, err);
}

static int decode(struct ptc_rpc_message *m, const ProtobufCMessageDescriptor *type, size_t max_fields,
		  ProtobufCMessage **ret_msg, struct ptc_error *err)
{
	size_t len = ptc_rpc_message_len(m);
	void *data = ptc_malloc(len);
	int rc;

	if (!data)
		return ptc_nomem(err);
	ptc_rpc_message_read(m, data, len);
	rc = decode_bytes(type, max_fields, data, len, ret_msg, err);
	ptc_free(data);
	return rc;
}

int ptc_pb_message(struct ptc_rpc_message *m, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret_msg,
		   struct ptc_error *err)
{
	return decode(m, type, 0, ret_msg, err);
}

static int named(int rc, const ProtobufCMessageDescriptor *type, struct ptc_error *err)
{
	return rc == PTC_EPEER ? ptc_error_set(err, PTC_EINVAL, "the request is not a valid %s message", type->name)
			       : rc;
}

static int request(struct ptc_rpc_message *m, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret_msg,
		   struct ptc_error *err)
{
	return named(decode(m, type, PTC_CONTROL_FIELDS_MAX, ret_msg, err), type, err);
}

int ptc_pb_request(const ProtobufCMessageDescriptor *type, const void *data, size_t len, ProtobufCMessage **ret_msg,
		   struct ptc_error *err)
{
	return named(decode_bytes(type, PTC_CONTROL_FIELDS_MAX, data, len, ret_msg, err), type, err);
}

int ptc_pb_call_recv(struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret_msg,
		     struct ptc_error *err)
{
	struct ptc_rpc_message *m = NULL;
	ProtobufCMessage *msg = NULL;
	const ProtobufCFieldDescriptor *version;
	int rc = ptc_rpc_call_recv(call, &m, err);

	if (rc)
		return rc;
	if (!m)
		return ptc_error_set(err, PTC_EINVAL, "the call came without a request");
	rc = request(m, type, &msg, err);
	ptc_rpc_message_done(m);
	if (rc)
		return rc;
	version = protobuf_c_message_descriptor_get_field_by_name(type, "version");
	if (version)
		rc = ptc_pb_version(*(const uint32_t *)(const void *)((const char *)msg + version->offset), err);
	if (rc) {
		ptc_pb_free(msg);
		return rc;
	}
	*ret_msg = msg;
	return 0;
}

int ptc_pb_unary(struct ptc_rpc_channel *channel, const char *method, const ProtobufCMessage *request, int timeout_ms,
		 const struct ptc_rpc_meta *meta, size_t nmeta, const ProtobufCMessageDescriptor *type,
		 ProtobufCMessage **ret_reply, struct ptc_error *err)
{
	void *data, *reply;
	size_t len, reply_len;
	int rc = ptc_pb_encode(request, &data, &len, err);

	if (rc)
		return rc;
	rc = ptc_rpc_unary(channel, method, data, len, timeout_ms, meta, nmeta, &reply, &reply_len, err);
	ptc_free(data);
	if (rc)
		return rc;
	if (ret_reply)
		rc = ptc_pb_decode(type, reply, reply_len, ret_reply, err);
	ptc_free(reply);
	return rc;
}
