/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: a byte that chooses a kind of message, then its wire form.
 * Its fields are counted before it is decoded, as for callers. It is the same
 * in an arena. A message that is read again after it was written is the same
 * then. */
#include "base/alloc.h"
#include "base/check.h"
#include "proto/pb.h"

#include "etcd.pb-c.h"
#include "ptc.pb-c.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Messages that come from outside: from callers, from peers, from etcd. The others are parts of them. */
static const ProtobufCMessageDescriptor *const types[] = {
	&ptc__v1__list_request__descriptor,     &ptc__v1__job_request__descriptor,
	&ptc__v1__resize_request__descriptor,   &ptc__v1__import_chunk__descriptor,
	&ptc__v1__switch_info__descriptor,      &ptc__v1__pull_reply__descriptor,
	&ptc__v1__workers_reply__descriptor,    &ptc__v1__samples_request__descriptor,
	&ptc__etcd__range_response__descriptor, &ptc__etcd__txn_response__descriptor,
	&ptc__etcd__watch_response__descriptor,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	const ProtobufCMessageDescriptor *type;
	ProtobufCMessage *first = NULL, *second = NULL, *inside = NULL;
	struct ptc_pb_arena arena = { 0 };
	void *wire, *again;
	size_t n, m;

	if (!len)
		return 0;
	type = types[data[0] % PTC_ARRAY_LEN(types)];
	n = ptc_pb_fields(type, data + 1, len - 1);
	if (ptc_pb_decode(type, data + 1, len - 1, &first, NULL))
		return 0;
	ptc_require(n != SIZE_MAX && n <= len);
	ptc_require(ptc_pb_encode(first, &wire, &n, NULL) == 0);
	ptc_require(ptc_pb_decode_in(&arena, type, data + 1, len - 1, &inside, NULL) == 0);
	ptc_require(ptc_pb_encode(inside, &again, &m, NULL) == 0);
	ptc_require(n == m && !memcmp(wire, again, n));
	ptc_free(again);
	ptc_pb_arena_done(&arena);
	/* protobuf-c writes unknown fields as they came, also such as it does not read again */
	if (ptc_pb_decode(type, wire, n, &second, NULL) == 0) {
		ptc_require(ptc_pb_encode(second, &again, &m, NULL) == 0);
		ptc_require(n == m && !memcmp(wire, again, n));
		ptc_free(again);
	}
	ptc_free(wire);
	ptc_pb_free(first);
	ptc_pb_free(second);
	return 0;
}
