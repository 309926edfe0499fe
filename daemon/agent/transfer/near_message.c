/* SPDX-License-Identifier: Apache-2.0 */
/* Failure modes: counts over their limits, a list longer than its message, a span outside of its chunk, inline spans
 * that are not the rest of the message: PTC_EPEER, and nothing is read by the list. */
#include "daemon/agent/transfer/near_message.h"

#include "base/check.h"
#include "daemon/agent/calls/wire.h"

#include <string.h>

_Static_assert(sizeof(struct ptc_chunk_sums) == sizeof(struct ptc_direct_read_chunk), "chunks come as they are sent");
/* NOLINTNEXTLINE(misc-redundant-expression): equal values under two names are what is asserted */
_Static_assert(PTC_DIRECT_READ_CHUNK_BYTES == PTC_CHUNK_BYTES, "and lie in chunks of the same size");

static int malformed(struct ptc_error *err)
{
	return ptc_error_set(err, PTC_EPEER, "malformed message: its places do not lie in their chunks");
}

static int list_check(struct ptc_near_list *l, uint64_t rest, struct ptc_error *err)
{
	l->bytes = 0;
	for (size_t i = 0; i < l->nspans; i++) {
		const struct ptc_direct_read_span *s = &l->spans[i];
		const bool in_message = s->chunk == PTC_NEAR_INLINE;
		uint64_t room = rest;

		if (!in_message) {
			if (s->chunk >= l->nchunks || s->at < l->chunks[s->chunk].at ||
			    s->at - l->chunks[s->chunk].at >= PTC_CHUNK_BYTES)
				return malformed(err);
			room = PTC_CHUNK_BYTES - (s->at - l->chunks[s->chunk].at);
		}
		if (!s->bytes || s->bytes > room)
			return malformed(err);
		rest -= in_message ? s->bytes : 0;
		l->bytes += s->bytes;
	}
	return rest ? malformed(err) : 0;
}

static int list_read(struct ptc_near_list *l, struct ptc_wire_source *src, uint64_t nspans, uint64_t nchunks,
		     struct ptc_error *err)
{
	const size_t spans = (size_t)nspans * sizeof *l->spans, chunks = (size_t)nchunks * sizeof *l->chunks;

	if (nspans > PTC_ARRAY_LEN(l->spans) || nchunks > PTC_ARRAY_LEN(l->chunks) || spans + chunks > src->left ||
	    src->read(src->arg, l->spans, spans) != spans || src->read(src->arg, l->chunks, chunks) != chunks)
		return malformed(err);
	l->nspans = (size_t)nspans;
	l->nchunks = (size_t)nchunks;
	return list_check(l, src->left - spans - chunks, err);
}

static size_t message_read(void *arg, void *dst, size_t len)
{
	return len ? ptc_rpc_message_read(arg, dst, len) : 0;
}

int ptc_near_list_read(struct ptc_near_list *l, struct ptc_rpc_message *msg, uint64_t nspans, uint64_t nchunks,
		       uint64_t payload, struct ptc_error *err)
{
	struct ptc_wire_source src = { message_read, msg, (size_t)payload };

	return list_read(l, &src, nspans, nchunks, err);
}

static size_t memory_read(void *arg, void *dst, size_t len)
{
	const uint8_t **at = arg;

	memcpy(dst, *at, len);
	*at += len;
	return len;
}

int ptc_near_list_parse(struct ptc_near_list *l, const void *data, size_t len, uint64_t nspans, uint64_t nchunks,
			size_t *ret_at, struct ptc_error *err)
{
	const uint8_t *at = data;
	struct ptc_wire_source src = { memory_read, &at, len };
	int rc = list_read(l, &src, nspans, nchunks, err);

	*ret_at = (size_t)(at - (const uint8_t *)data);
	return rc;
}
