/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that a rank sends in a step to its neighbour of each class, from the same terms as the
 * step's time. Fails on a candidate that cannot be. */
#include "planner/cost/stages.h"
#include "planner/mapping/mapping.h"

#include "base/check.h"

/* A ring of n passes (n-1)/n of what is reduced, twice. */
static double reduced(uint32_t n, double bytes)
{
	return 2.0 * (n - 1) / n * bytes;
}

int ptc_mapping_traffic_of(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_mapping_traffic *ret,
			   struct ptc_error *err)
{
	struct ptc_layers layers;
	struct ptc_pipe pipe;
	double m, hidden, per_device;
	int rc = ptc_cand_check(w, c, err);

	if (rc)
		return rc;
	ptc_cost_layers(w, c, &layers);
	ptc_cost_pipe(w, c, &layers, &pipe);
	m = ptc_cost_micro_batches(w, c);
	hidden = layers.boundary_bytes;
	per_device = (double)w->model->layers / c->pp;
	ret->tp = m * per_device * (c->recompute == PTC_RECOMPUTE_FULL ? 6 : 4) * reduced(c->tp, hidden);
	ret->cp = m * per_device * 3 * (c->cp - 1) * hidden;
	ret->dp = reduced(c->dp * c->cp, w->reduce_bytes * (pipe.dense_max + pipe.expert_max)) *
		  (c->zero == 3 ? m * 1.5 : 1);
	ret->pp = 2 * m * c->vpp * hidden / c->tp;
	return 0;
}
