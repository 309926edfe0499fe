/* SPDX-License-Identifier: Apache-2.0 */
/* Places in a near node's chunk file, as messages of Fetch have them (near/near.h). The payload of such a Data message
 * is near_spans structs ptc_direct_read_span, near_chunks structs ptc_direct_read_chunk, and then bytes. The spans, one
 * after the other, are the bytes of the boxes that were asked for. A span lies in a chunk of the file, or, with chunk
 * PTC_NEAR_INLINE, is the next bytes of the message itself: runs that are too short for a place of their own. Both ends
 * are on one machine, so numbers are in its byte order.
 *
 * A list has room for the largest message: about 90 KiB. One thread owns it. */
#pragma once

#include "base/memory/chunk_read.h"
#include "base/status.h"
#include "proto/direct_read.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_rpc_message;

#define PTC_NEAR_INLINE UINT32_MAX
#define PTC_NEAR_BYTES  (8u << 20) /* of one message: the reader begins while the next one is made */
#define PTC_NEAR_RUN    2048       /* shorter runs are cheaper packed */

struct ptc_near_list {
	size_t nspans, nchunks;
	uint64_t bytes; /* of all spans */
	struct ptc_direct_read_span spans[PTC_DIRECT_READ_SPANS_MAX];
	struct ptc_chunk_sums chunks[PTC_DIRECT_READ_CHUNKS_MAX];
};
/* Reads a list of nspans and nchunks, and checks that each span lies in its chunk, or in the rest of the message.
 * payload: of the whole message. PTC_EPEER: it is malformed. */
int ptc_near_list_read(struct ptc_near_list *l, struct ptc_rpc_message *msg, uint64_t nspans, uint64_t nchunks,
		       uint64_t payload, struct ptc_error *err);
/* Does the same with bytes from memory, for tests. *ret_at: where the inline bytes begin. */
int ptc_near_list_parse(struct ptc_near_list *l, const void *data, size_t len, uint64_t nspans, uint64_t nchunks,
			size_t *ret_at, struct ptc_error *err);
