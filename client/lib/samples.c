// SPDX-License-Identifier: Apache-2.0
/* The order of samples (order/order.h), for programs. Happy path: arithmetic. Failure mode: arguments out of range. */
#include "client/lib/internal.h"

#include "order/order.h"

static bool sampling(const struct ptc_sampling *s, struct ptc_order *ret_order, struct ptc_batch *ret_batch)
{
	if (!s || s->size < sizeof(*s))
		return false;
	return (s->sequential ? ptc_order_init_sequential(ret_order, s->samples)
			      : ptc_order_init(ret_order, s->samples, s->seed)) &&
	       ptc_batch_init(ret_batch, s->global_batch, s->micro_batch, s->dp);
}

uint64_t ptc_micro_steps(const struct ptc_sampling *s)
{
	struct ptc_order order;
	struct ptc_batch batch;

	return sampling(s, &order, &batch) ? batch.n_micro : 0;
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
