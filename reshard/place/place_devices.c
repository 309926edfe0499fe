/* SPDX-License-Identifier: Apache-2.0 */
/* The cheapest devices of one node for the ranks of some blocks. Failure modes: memory. */
#include "reshard/place/internal.h"

#include "base/alloc.h"
#include "base/status.h"

/* p->device_has of the classes that a node's devices have, or 0 again. */
static void mark_devices(const struct ptc_placer *p, const struct ptc_place_node *at, bool set)
{
	for (uint32_t d = 0; d < at->ndevices; d++)
		for (size_t i = p->holds.first[at->first + d]; i < p->holds.first[at->first + d + 1]; i++) {
			uint64_t *mask = &p->device_has[p->holds.list[i]];

			*mask = set ? *mask | UINT64_C(1) << d : 0;
		}
}

/* What a rank lacks on each device of the node. */
static void device_costs(const struct ptc_placer *p, uint32_t rank, size_t cols, int64_t *cost)
{
	for (size_t i = p->needs.first[rank]; i < p->needs.first[rank + 1]; i++) {
		uint64_t has = p->device_has[p->needs.list[i]];
		int64_t bytes = p->bytes[p->needs.list[i]];

		for (size_t d = 0; d < cols; d++)
			cost[d] += has >> d & 1 ? 0 : bytes;
	}
}

int ptc_place_devices(const struct ptc_placer *p, uint32_t node, const uint32_t *blocks, uint32_t n, uint32_t *ret_cols,
		      int64_t *ret_cost)
{
	const struct ptc_place_node *at = &p->nodes[node];
	size_t rows = (size_t)n * p->block_size, cols = at->ndevices;
	int64_t *cost = ptc_calloc(rows * cols, sizeof *cost);
	uint32_t *scratch = ret_cols ? NULL : ptc_calloc(rows, sizeof *scratch);
	int rc = PTC_ENOMEM;

	mark_devices(p, at, true);
	for (size_t r = 0; cost && r < rows; r++)
		device_costs(p, p->ranks[blocks[r / p->block_size] * p->block_size + r % p->block_size], cols,
			     cost + r * cols);
	mark_devices(p, at, false);
	if (cost && (ret_cols || scratch))
		rc = ptc_assign(rows, cols, NULL, cost, INT64_MAX, ret_cols ? ret_cols : scratch, ret_cost);
	ptc_free(cost);
	ptc_free(scratch);
	return rc;
}
