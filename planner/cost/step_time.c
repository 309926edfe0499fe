/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a step of m micro-batches, from a pipeline's sums: bubble, communication, optimizer. It has these parts:
 * m - 1 micro-batches on the busiest device, one micro-batch on all devices of the pipeline in turn, what crosses
 * stages, the gradients, the optimizer. Cannot fail. */
#include "planner/cost/stages.h"

#include "base/check.h"

#include <math.h>

uint32_t ptc_cost_micro_batches(const struct ptc_work *w, const struct ptc_cand *c)
{
	uint64_t once = (uint64_t)c->micro_batch * c->dp;

	return (uint32_t)((w->global_batch + once - 1) / once);
}

/* phases: how often all have to hear of all, 2 of an all-reduce. Each waits log2(size) latencies, as recursive halving
 * and doubling do (Thakur et al. 2005). */
static double ring_seconds(const struct ptc_work *w, uint32_t size, uint32_t stride, double bytes, double phases)
{
	struct ptc_ring r = ptc_cluster_ring(w->cluster, PTC_LINK_DP, size, stride);
	const double *v = w->coefs.v;
	double latency = r.measured ? 0 /* it is in what was measured */
				    : r.latency_s * v[r.crosses ? PTC_COEF_NODE_LATENCY : PTC_COEF_INTRA_LATENCY];

	if (size < 2 || bytes <= 0)
		return 0;
	return (double)(size - 1) / size * bytes / (r.bytes_s * v[r.crosses ? PTC_COEF_NODE : PTC_COEF_INTRA]) +
	       phases * latency * log2(size);
}

/* Handing activations on, and gradients back, for one micro-batch at one boundary. Across nodes each
 * rank of tp sends its share (scatter-gather), so that a node sends per_node/tp tensors. A measured hop is from one
 * device to the next; its time contains the latency. */
static double boundary_seconds(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p)
{
	const struct ptc_cluster_profile *n = w->cluster;
	const double *v = w->coefs.v;
	uint32_t devices = ptc_cand_devices(c);
	bool crosses = devices > n->per_node;
	double measured = ptc_cluster_hop(n, c->pp, devices / c->pp) * v[crosses ? PTC_COEF_NODE : PTC_COEF_INTRA];

	if (c->pp == 1)
		return 0;
	if (measured > 0)
		return 2 * p->boundary_bytes / (crosses ? c->tp : 1) / measured;
	if (!crosses)
		return 2 * (p->boundary_bytes / (n->intra_bytes_s * v[PTC_COEF_INTRA]) +
			    n->intra_latency_s * v[PTC_COEF_INTRA_LATENCY]);
	return 2 * (p->boundary_bytes * PTC_MAX(1.0, (double)n->per_node / c->tp) /
			    (ptc_cluster_node_bytes_s(n, PTC_LINK_PP) * v[PTC_COEF_NODE]) +
		    n->node_latency_s * v[PTC_COEF_NODE_LATENCY]);
}

/* Seconds that gathering parameters and scattering gradients of ZeRO-3 takes for one micro-batch. */
static double gather_seconds(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p)
{
	uint32_t edp = c->tp * c->cp * c->dp / (c->ep * c->etp);
	double moved = 2 * w->memory.weight_bytes + w->reduce_bytes;

	return ring_seconds(w, c->dp * c->cp, c->tp, moved * p->dense_max, 3) +
	       ring_seconds(w, edp, c->ep * c->etp, moved * p->expert_max, 3);
}

static double gradient_seconds(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p)
{
	uint32_t edp = c->tp * c->cp * c->dp / (c->ep * c->etp);

	return ring_seconds(w, c->dp * c->cp, c->tp, 2 * w->reduce_bytes * p->dense_max, 2) +
	       ring_seconds(w, edp, c->ep * c->etp, 2 * w->reduce_bytes * p->expert_max, 2);
}

static double optimizer_seconds(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p)
{
	double d = c->dp * c->cp, edp = c->tp * c->cp * c->dp / (double)(c->ep * c->etp);
	double read = c->zero ? p->dense_hbm / d + p->expert_hbm / edp : p->dense_hbm + p->expert_hbm;
	const struct ptc_memory_rules *b = &w->memory;

	return w->coefs.v[PTC_COEF_OPTIMIZER] * read * (b->weight_bytes + b->grad_bytes + b->optim_bytes);
}

/* Share of a pass through the pipeline that is waited for besides the busiest device's own work. */
static double bubble_share(const struct ptc_work *w, const struct ptc_cand *c)
{
	if (w->schedule == PTC_SCHEDULE_ZB1P)
		return 1.0 / 3;
	return 1.0 / c->vpp;
}

/* What hops add to the m - 1 micro-batches of the busiest device; hop: there and back. 1F1B waits for each, as its
 * warm-up has no micro-batch to spare. GPipe passes all forward first: a hop runs beside the next micro-batch's
 * computing (Zhuang et al., MLSys 2023). */
static double hops_seconds(const struct ptc_work *w, const struct ptc_cand *c, double hop, double m, double busiest)
{
	double forward = busiest / (c->recompute == PTC_RECOMPUTE_FULL ? 4 : 3), one = hop / 2;

	if (w->schedule != PTC_SCHEDULE_GPIPE)
		return (m - 1) * c->vpp * hop;
	return (m - 1) * (PTC_MAX(0.0, one - forward) + PTC_MAX(0.0, one - (busiest - forward)));
}

void ptc_cost_time(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p,
		   struct ptc_estimate *ret)
{
	double m = ptc_cost_micro_batches(w, c), busiest = p->busiest_s, dp = w->coefs.v[PTC_COEF_DP];
	double hop = boundary_seconds(w, c, p);

	ret->micro_batches = (uint32_t)m;
	ret->compute_s = m * p->compute_s;
	ret->tp_s = m * p->tp_s;
	ret->cp_s = m * p->cp_s;
	ret->ep_s = m * p->ep_s;
	ret->pp_s = hops_seconds(w, c, hop, m, busiest) + (c->pp - 1) * hop;
	ret->bubble_s = (p->all_s - busiest) * bubble_share(w, c);
	ret->dp_s = 0;
	if (c->zero == 3) { /* beside the computing of each micro-batch, as far as there is some */
		double g = gather_seconds(w, c, p);
		double slower = (w->cluster->overlap > 0 ? w->cluster->overlap : PTC_OVERLAP_DEFAULT) - 1;

		ret->dp_s = m * (PTC_MAX(0.0, g - busiest) + slower * PTC_MIN(g, busiest)) * PTC_MIN(1.0, dp);
	} else {
		ret->dp_s = dp * gradient_seconds(w, c, p);
	}
	ret->optimizer_s = optimizer_seconds(w, c, p);
	ret->fixed_s = w->coefs.v[PTC_COEF_FIXED];
	ret->step_s = m * busiest + ret->pp_s + ret->bubble_s + ret->dp_s + ret->optimizer_s + ret->fixed_s;
}
