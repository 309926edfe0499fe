/* SPDX-License-Identifier: Apache-2.0 */
/* The order of samples (order/order.h), for programs. Happy path: arithmetic. Failure modes: arguments out of range;
 * for ptc_balance_step no memory to work with, and costs that are too large. */
#include "client/lib/internal.h"

#include "order/order.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The configuration's micro steps. false: they are none, which ptcd never says. */
static bool micro_runs(const char *config, struct ptc_micro_runs *ret)
{
	static const char key[] = "micro_steps=";
	size_t n;

	*ret = (struct ptc_micro_runs){ 0 };
	for (const char *p = config; p && *p; p += n + (p[n] != '\0')) {
		n = strcspn(p, ",");
		if (!strncmp(p, key, sizeof key - 1))
			return ptc_micro_runs_parse(p + sizeof key - 1, n - (sizeof key - 1), ret);
	}
	return true;
}

static bool sampling(const struct ptc_sampling *s, struct ptc_order *ret_order, struct ptc_batch *ret_batch)
{
	struct ptc_micro_runs runs;

	if (!s || s->size < offsetof(struct ptc_sampling, config) ||
	    !micro_runs(s->size < sizeof *s ? NULL : s->config, &runs))
		return false;
	return (s->sequential ? ptc_order_init_sequential(ret_order, s->samples)
			      : ptc_order_init(ret_order, s->samples, s->seed)) &&
	       ptc_batch_init_runs(ret_batch, s->global_batch, s->micro_batch, s->dp, &runs);
}

uint64_t ptc_micro_steps(const struct ptc_sampling *s)
{
	struct ptc_order order;
	struct ptc_batch batch;

	return sampling(s, &order, &batch) ? batch.n_micro : 0;
}

uint64_t ptc_rank_micro_steps(const struct ptc_sampling *s, uint32_t dp_rank)
{
	struct ptc_order order;
	struct ptc_batch batch;

	return sampling(s, &order, &batch) ? ptc_batch_steps(&batch, dp_rank) : 0;
}

int ptc_micro_batch(const struct ptc_sampling *s, uint64_t position, uint64_t micro_step, uint32_t dp_rank,
		    uint64_t *ret_samples, float *ret_weights)
{
	struct ptc_order order;
	struct ptc_batch batch;

	if (!ret_samples || !ret_weights || !sampling(s, &order, &batch) ||
	    !ptc_batch_fill(&batch, &order, position, micro_step, dp_rank, ret_samples, ret_weights))
		return ptc_client_fail(NULL, PTC_R_INVALID, "ptc_micro_batch: an argument is out of range");
	return 0;
}

int ptc_balance_step(const struct ptc_sampling *s, const uint64_t *lengths, uint64_t linear, uint64_t square,
		     uint64_t *ret_slots, struct ptc_balance *ret_balance)
{
	struct ptc_order order;
	struct ptc_batch batch;
	struct ptc_batch_cost cost;
	struct ptc_balance_item *work;
	bool fits;

	if (!lengths || !ret_slots || (ret_balance && ret_balance->size < sizeof *ret_balance) ||
	    !sampling(s, &order, &batch))
		return ptc_client_fail(NULL, PTC_R_INVALID, "ptc_balance_step: an argument is out of range");
	if (batch.runs.n)
		return ptc_client_fail(NULL, PTC_R_INVALID,
				       "ptc_balance_step: samples are not assigned by length where ranks compute "
				       "unequally many micro steps");
	work = ptc_balance_work(&batch) ? calloc(ptc_balance_work(&batch), sizeof *work) : NULL;
	if (!work)
		return ptc_client_fail(NULL, PTC_R_MEMORY, "ptc_balance_step: no memory for %llu samples",
				       (unsigned long long)batch.global);
	fits = ptc_batch_balance(&batch, lengths, (struct ptc_cost){ linear, square }, work, ret_slots, &cost);
	free(work);
	if (!fits)
		return ptc_client_fail(NULL, PTC_R_LIMIT,
				       "ptc_balance_step: lengths or coefficients so large that the costs of %llu "
				       "samples do not fit 64 bits when added up",
				       (unsigned long long)batch.global);
	if (ret_balance)
		*ret_balance = (struct ptc_balance){ .size = ret_balance->size,
						     .max = cost.max,
						     .total = cost.total,
						     .count_max = cost.count_max,
						     .count_total = cost.count_total };
	return 0;
}

int ptc_sequence_slice(uint64_t length, uint32_t cp, uint32_t cp_rank, int zigzag, struct ptc_slice ret_slices[2])
{
	struct ptc_chunk chunks[2];
	uint32_t n = ret_slices ? ptc_order_chunks(length, cp, cp_rank, zigzag != 0, chunks) : 0;

	for (uint32_t i = 0; i < n; i++)
		ret_slices[i] = (struct ptc_slice){ chunks[i].first, chunks[i].length, chunks[i].real };
	return n ? (int)n : ptc_client_fail(NULL, PTC_R_INVALID, "ptc_sequence_slice: an argument is out of range");
}
