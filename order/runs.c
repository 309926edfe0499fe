/* SPDX-License-Identifier: Apache-2.0 */
/* How many micro steps ranks compute, as text: "2x6:4x3". Failure modes: the text is not a list of runs of ranks, or
 * numbers are out of range. */
#include "order/order.h"

#include <stdio.h>
#include <string.h>

/* A decimal number of 1 .. max, without zeros before it: a list has one text. Returns what follows; NULL: there is
 * none. */
static const char *number(const char *at, const char *end, uint32_t max, uint32_t *ret)
{
	uint64_t v = 0;

	if (at == end || *at == '0')
		return NULL;
	for (; at < end && *at >= '0' && *at <= '9'; at++) {
		v = v * 10 + (uint64_t)(*at - '0');
		if (v > max)
			return NULL;
	}
	*ret = (uint32_t)v;
	return v ? at : NULL;
}

bool ptc_micro_runs_parse(const char *text, size_t len, struct ptc_micro_runs *ret_runs)
{
	struct ptc_micro_runs runs = { 0 };
	const char *at = text, *end = text + len;
	uint32_t ranks = 0, steps = 0;
	uint64_t all = 0;

	for (;; at++) {
		at = number(at, end, PTC_MICRO_RANKS_MAX, &ranks);
		if (!at || at == end || *at != 'x')
			return false;
		at = number(at + 1, end, PTC_MICRO_STEPS_MAX, &steps);
		all += ranks;
		if (!at || all > PTC_MICRO_RANKS_MAX || runs.n == PTC_MICRO_RUNS_MAX ||
		    (runs.n && runs.v[runs.n - 1].steps == steps)) /* equal neighbours are one run */
			return false;
		runs.v[runs.n++] = (struct ptc_micro_run){ ranks, steps };
		if (at == end)
			break;
		if (*at != ':')
			return false;
	}
	*ret_runs = runs;
	return true;
}

void ptc_micro_runs_format(const struct ptc_micro_runs *runs, char buf[PTC_MICRO_TEXT_MAX])
{
	size_t n = 0;

	buf[0] = '\0';
	for (uint32_t i = 0; i < runs->n; i++)
		n += (size_t)snprintf(buf + n, PTC_MICRO_TEXT_MAX - n, "%s%ux%u", i ? ":" : "", runs->v[i].ranks,
				      runs->v[i].steps);
}

uint32_t ptc_micro_runs_ranks(const struct ptc_micro_runs *runs)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < runs->n; i++)
		n += runs->v[i].ranks;
	return n;
}

bool ptc_batch_init_runs(struct ptc_batch *ret_batch, uint64_t global, uint32_t micro, uint32_t dp,
			 const struct ptc_micro_runs *runs)
{
	struct ptc_batch b;
	uint64_t slots = 0;

	if (!runs->n)
		return ptc_batch_init(ret_batch, global, micro, dp);
	if (!ptc_batch_init(&b, global, micro, dp) || b.width > PTC_ORDER_MAX / PTC_MICRO_STEPS_MAX)
		return false;
	b.n_micro = 0;
	b.runs = *runs;
	for (uint32_t i = 0; i < runs->n; i++) {
		slots += (uint64_t)runs->v[i].ranks * runs->v[i].steps * micro;
		if (runs->v[i].steps > b.n_micro)
			b.n_micro = runs->v[i].steps;
	}
	if (ptc_micro_runs_ranks(runs) != dp || slots < global)
		return false;
	*ret_batch = b;
	return true;
}

uint64_t ptc_batch_steps(const struct ptc_batch *batch, uint32_t dp_rank)
{
	uint32_t before = 0;

	if (dp_rank >= batch->dp)
		return 0;
	for (uint32_t i = 0; i < batch->runs.n; i++) {
		before += batch->runs.v[i].ranks;
		if (dp_rank < before)
			return batch->runs.v[i].steps;
	}
	return batch->n_micro;
}
