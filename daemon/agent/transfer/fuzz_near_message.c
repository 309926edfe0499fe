/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: a near node's places, as a hostile one may send them: the counts of spans and chunks, two bytes
 * each, and the payload. What is accepted lies in its chunks and in the payload. */
#include "daemon/agent/transfer/near_message.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct ptc_near_list list;
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t inlined = 0, bytes = 0;
	uint16_t counts[2];
	size_t at;

	if (len < sizeof counts)
		return 0;
	memcpy(counts, data, sizeof counts);
	data += sizeof counts;
	len -= sizeof counts;
	if (ptc_near_list_parse(&list, data, len, counts[0], counts[1], &at, &err)) {
		ptc_require(err.code == PTC_EPEER && !strchr(err.text, '\n'));
		return 0;
	}
	ptc_require(list.nspans == counts[0] && list.nchunks == counts[1]);
	for (size_t i = 0; i < list.nspans; i++) {
		const struct ptc_direct_read_span *s = &list.spans[i];

		bytes += s->bytes;
		if (s->chunk == PTC_NEAR_INLINE) {
			inlined += s->bytes;
			continue;
		}
		ptc_require(s->chunk < list.nchunks && s->at >= list.chunks[s->chunk].at);
		ptc_require(s->bytes && s->at - list.chunks[s->chunk].at + s->bytes <= PTC_CHUNK_BYTES);
	}
	ptc_require(bytes == list.bytes && at + inlined == len);
	return 0;
}
