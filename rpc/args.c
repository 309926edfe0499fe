/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of gRPC's channels and servers: limits, keepalive, and features that are switched off everywhere. Nothing
 * here can fail; more arguments than there is room for are a mistake of ours (ptc_require). */
#include "rpc/internal.h"

void ptc_rpc_args_int(struct ptc_rpc_args *a, const char *key, int value)
{
	union {
		const char *in;
		char *out;
	} k = { .in = key };

	ptc_require(a->count < PTC_RPC_MAX_ARGS);
	a->list[a->count++] = (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = k.out, .value.integer = value };
}

void ptc_rpc_args_str(struct ptc_rpc_args *a, const char *key, char *value)
{
	ptc_rpc_args_int(a, key, 0);
	a->list[a->count - 1].type = GRPC_ARG_STRING;
	a->list[a->count - 1].value.string = value;
}

int ptc_rpc_keepalive(int keepalive_ms)
{
	return keepalive_ms > 0 ? PTC_MAX(keepalive_ms, PTC_RPC_KEEPALIVE_MIN_MS) : PTC_RPC_KEEPALIVE_MS;
}

void ptc_rpc_args_common(struct ptc_rpc_args *a, uint32_t max_message_bytes, int keepalive_ms, bool permit_idle)
{
	uint32_t max = max_message_bytes ? max_message_bytes : PTC_CONTROL_MESSAGE_MAX;
	int ka = ptc_rpc_keepalive(keepalive_ms);

	a->count = 0;
	ptc_rpc_args_int(a, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)PTC_MIN(max, (uint32_t)INT32_MAX));
	ptc_rpc_args_int(a, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
	ptc_rpc_args_int(a, GRPC_ARG_MAX_METADATA_SIZE, PTC_RPC_METADATA_BYTES);
	ptc_rpc_args_int(a, GRPC_ARG_KEEPALIVE_TIME_MS, ka);
	ptc_rpc_args_int(a, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ka);
	ptc_rpc_args_int(a, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, permit_idle);
	ptc_rpc_args_int(a, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
	ptc_rpc_args_int(a, GRPC_ARG_ENABLE_CHANNELZ, 0);
	/* No compression: a small message that unpacks to a huge one is no use to us. */
	ptc_rpc_args_int(a, GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
	ptc_rpc_args_int(a, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

void ptc_rpc_args_bulk(struct ptc_rpc_args *a, int window)
{
	ptc_rpc_args_int(a, GRPC_ARG_HTTP2_MAX_FRAME_SIZE, PTC_RPC_BULK_FRAME);
	ptc_rpc_args_int(a, GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, window);
}

grpc_channel_args ptc_rpc_args_core(struct ptc_rpc_args *a)
{
	return (grpc_channel_args){ .num_args = a->count, .args = a->list };
}
