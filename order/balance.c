/* SPDX-License-Identifier: Apache-2.0 */
/* A global batch by what its samples cost: longest processing time first (R. L. Graham: Bounds on Multiprocessing
 * Timing Anomalies, SIAM J. Appl. Math. 17, 1969) with a limit of slots, first to ranks, then within each to its micro
 * steps.
 *
 * Happy path: samples leave a heap by falling cost. There is a heap of ranks, and one of each rank's micro steps; at
 * its root is the one that takes the next sample. Failure modes: costs that do not fit 64 bits are refused. */
#include "order/internal.h"

#define FULL UINT64_MAX /* more than any cost: what has no room sinks to the bottom of its heap */

static bool before(const struct ptc_balance_item *a, const struct ptc_balance_item *b)
{
	if (a->cost != b->cost)
		return a->cost < b->cost;
	if (a->count != b->count)
		return a->count < b->count;
	return a->index < b->index;
}

static void sift(struct ptc_balance_item *heap, uint64_t n, uint64_t i)
{
	struct ptc_balance_item moved = heap[i];

	for (uint64_t k; (k = 2 * i + 1) < n; i = k) {
		if (k + 1 < n && before(&heap[k + 1], &heap[k]))
			k++;
		if (!before(&heap[k], &moved))
			break;
		heap[i] = heap[k];
	}
	heap[i] = moved;
}

static void init_heap(struct ptc_balance_item *heap, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		heap[i] = (struct ptc_balance_item){ .index = i };
}

/* The root gets one more; returns what it was. */
static struct ptc_balance_item give(struct ptc_balance_item *heap, uint64_t n, uint64_t cost, uint64_t room)
{
	struct ptc_balance_item was = heap[0];

	heap[0].count++;
	heap[0].cost = heap[0].count == room ? FULL : was.cost + cost;
	sift(heap, n, 0);
	return was;
}

/* FULL: it does not fit. */
static uint64_t cost_of(const struct ptc_cost *c, uint64_t length)
{
	uint64_t x;

	if (length && c->square > UINT64_MAX / length)
		return FULL;
	x = c->square * length;
	if (c->linear > UINT64_MAX - x)
		return FULL;
	x += c->linear;
	return length && x > UINT64_MAX / length ? FULL : x * length;
}

/* Costs of all slots, split by count; ranks: dp items. False: they are too large to be added up. */
static bool count_split(const struct ptc_batch *b, const uint64_t *lengths, const struct ptc_cost *c,
			struct ptc_balance_item *ranks, struct ptc_batch_cost *ret)
{
	uint64_t slots = b->n_micro * b->width;

	for (uint64_t i = 0; i < b->global; i++)
		if (cost_of(c, lengths[i]) >= FULL / slots)
			return false;
	init_heap(ranks, b->dp);
	for (uint64_t s = 0; s < slots; s++) {
		struct ptc_balance_item *rank = &ranks[s % b->width / b->micro];
		uint64_t cost = cost_of(c, lengths[s % b->global]);

		ret->count_total += cost;
		rank->cost += cost;
		ret->count_max = rank->cost > ret->count_max ? rank->cost : ret->count_max;
	}
	return true;
}

uint64_t ptc_balance_work(const struct ptc_batch *batch)
{
	/* Micro steps times ranks are below global + dp, so that this has less than 2^60 items of less than 2^5 bytes.
	 */
	return !batch->global || batch->global >> 58 || batch->runs.n
		       ? 0
		       : batch->global + batch->dp + batch->n_micro * batch->dp;
}

bool ptc_batch_balance(const struct ptc_batch *batch, const uint64_t *lengths, struct ptc_cost cost,
		       struct ptc_balance_item *work, uint64_t *ret_slots, struct ptc_batch_cost *ret_cost)
{
	struct ptc_balance_item *items = work, *ranks = items + batch->global, *micros = ranks + batch->dp,
				item = { 0 };
	uint64_t slots = batch->n_micro * batch->width, n = batch->global, room = batch->n_micro * batch->micro, c = 0;
	struct ptc_batch_cost got = { 0 };

	if (!ptc_balance_work(batch) || !count_split(batch, lengths, &cost, ranks, &got))
		return false;
	for (uint64_t i = 0; i < n; i++)
		items[i] = (struct ptc_balance_item){ .cost = FULL - cost_of(&cost, lengths[i]), .index = i };
	for (uint64_t i = n / 2; i-- > 0;)
		sift(items, n, i);
	init_heap(ranks, batch->dp);
	for (uint64_t d = 0; d < batch->dp; d++)
		init_heap(micros + d * batch->n_micro, batch->n_micro);

	for (uint64_t i = 0; i < slots; i++) {
		struct ptc_balance_item rank, micro;

		if (i < n) {
			item = items[0];
			items[0] = items[n - 1 - i];
			sift(items, n - 1 - i, 0);
			c = FULL - item.cost;
		}
		rank = give(ranks, batch->dp, c, room);
		micro = give(micros + rank.index * batch->n_micro, batch->n_micro, c, batch->micro);
		ret_slots[micro.index * batch->width + rank.index * batch->micro + micro.count] =
			i < n ? item.index : n + item.index;
		got.total += c;
		got.max = rank.cost + c > got.max ? rank.cost + c : got.max;
	}
	if (got.count_max < got.max) {
		for (uint64_t s = 0; s < slots; s++)
			ret_slots[s] = s < n ? s : n + s % n;
		got.max = got.count_max;
		got.total = got.count_total;
	}
	*ret_cost = got;
	return true;
}
