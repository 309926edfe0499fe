/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens of a sequence a context-parallel rank has. The zig-zag split is that of Megatron-LM's context
 * parallelism (get_batch_on_this_cp_rank) and of Llama 3 (The Llama 3 Herd of Models, 2024, section 3.3.2).
 *
 * Happy path: arithmetic. Failure modes: arguments out of range are refused. */
#include "order/order.h"

static struct ptc_chunk chunk(uint64_t length, uint64_t size, uint64_t i)
{
	struct ptc_chunk c = { .first = i * size, .length = size };

	if (c.first < length)
		c.real = length - c.first < size ? length - c.first : size;
	return c;
}

uint32_t ptc_order_chunks(uint64_t length, uint32_t cp, uint32_t cp_rank, bool zigzag, struct ptc_chunk ret_chunks[2])
{
	uint64_t n = zigzag ? 2 * (uint64_t)cp : cp, size;

	if (!length || length > PTC_ORDER_MAX || cp_rank >= cp)
		return 0;
	size = length / n + (length % n != 0);
	ret_chunks[0] = chunk(length, size, cp_rank);
	if (!zigzag)
		return 1;
	ret_chunks[1] = chunk(length, size, n - 1 - cp_rank);
	return 2;
}
