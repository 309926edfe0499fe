/* SPDX-License-Identifier: Apache-2.0 */
/* The time and memory of one layer on one device for one micro-batch. It has four parts: matrices, at the efficiency
 * that their size reaches; elementwise kernels, at the speed of memory; a least time to launch kernels; and the
 * traffic of tp, cp and ep, on the links between these ranks. Cannot fail. */
#include "planner/cost/stages.h"
#include "planner/cost/layer_terms.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

struct context {
	enum ptc_recompute recompute; /* of the kind of layers at hand */
	const struct ptc_work *w;
	const struct ptc_cand *c;
	struct ptc_ring tp, cp, ep;
	double flops, hbm; /* of the slowest kind of device */
};

static struct ptc_ring scaled(const struct ptc_work *w, enum ptc_link_class class, uint32_t size, uint32_t stride)
{
	struct ptc_ring r = ptc_cluster_ring(w->cluster, class, size, stride);
	const double *v = w->coefs.v;

	r.bytes_s *= v[r.crosses ? PTC_COEF_NODE : PTC_COEF_INTRA];
	r.latency_s *= v[r.crosses ? PTC_COEF_NODE_LATENCY : PTC_COEF_INTRA_LATENCY];
	return r;
}

static struct context context_of(const struct ptc_work *w, const struct ptc_cand *c)
{
	struct context x = { .w = w, .c = c, .flops = INFINITY, .hbm = INFINITY };

	for (uint32_t i = 0; i < w->cluster->nkinds; i++) {
		x.flops = PTC_MIN(x.flops, w->cluster->kinds[i].flops);
		x.hbm = PTC_MIN(x.hbm, w->cluster->kinds[i].hbm_bytes_s);
	}
	x.tp = scaled(w, PTC_LINK_TP, c->tp, 1);
	x.cp = scaled(w, PTC_LINK_CP, c->cp, c->tp);
	x.ep = scaled(w, PTC_LINK_EP, c->ep, c->etp);
	return x;
}

/* Of the device that the coefficients' defaults are of: A100. */
#define REFERENCE_FLOPS 312e12

/* Seconds of `flops` in matrices of `rows` tokens and `width` columns. The share of the peak falls with the square root
 * of a matrix's area, against one of 1024 x 1024. The work that a device needs to reach half of its peak is that peak
 * times a start-up time (Hockney's n_1/2 = r_inf * t_0), so the area of which a share is lost grows with the peak. */
static double gemm_seconds(const struct context *x, double flops, double rows, double width)
{
	const double *v = x->w->coefs.v;
	double area = PTC_MAX(1.0, rows) / 1024 * PTC_MAX(1.0, width) / 1024;
	double small = v[PTC_COEF_SMALL] * sqrt(x->flops / REFERENCE_FLOPS / area);

	return flops / (x->flops * v[PTC_COEF_GEMM]) * (1 + small);
}

static double attention_flops(const struct context *x, const struct ptc_layer_kind *k)
{
	double f = ptc_layer_attention_flops(x->w->model, k) * x->c->micro_batch / (x->c->tp * x->c->cp);

	return x->w->model->flash ? f / 2 : f;
}

/* Forward time of the matrices that all tokens meet, and of the experts. */
static double matrices_seconds(const struct context *x, const struct ptc_layer_kind *k, double tokens)
{
	const struct ptc_model *m = x->w->model;
	const struct ptc_cand *c = x->c;
	double expert = (double)k->topk * k->expert_ffn * m->hidden * (k->glu ? 3 : 2);
	double dense = ptc_layer_multiplied(m, k) - expert, s;

	s = gemm_seconds(x, 2 * tokens * dense / c->tp + attention_flops(x, k), tokens, (double)m->hidden / c->tp);
	if (k->experts) {
		double rows = tokens * k->topk * c->ep / k->experts;

		s += gemm_seconds(x, 2 * tokens * expert / c->tp, rows, (double)k->expert_ffn / c->etp);
	}
	return s;
}

static void compute_cost(const struct context *x, const struct ptc_layer_kind *k, double tokens,
			 struct ptc_layer_cost *ret)
{
	const struct ptc_work *w = x->w;
	const struct ptc_cand *c = x->c;
	double launch = w->coefs.v[PTC_COEF_LAUNCH], passes = w->coefs.v[PTC_COEF_BYTES] / x->hbm;
	double scores = ptc_layer_scores(w->model, k, c->tp, c->cp, c->micro_batch);
	double all = ptc_layer_activations(w->model, k, c->tp, c->cp, c->micro_batch, w->sequence_parallel,
					   PTC_RECOMPUTE_NONE);
	double busy = matrices_seconds(x, k, tokens) + passes * (all + scores);
	double forward = sqrt(busy * busy + launch * launch); /* the floor and the work, smoothly */

	ret->compute = forward * (x->recompute == PTC_RECOMPUTE_FULL ? 4 : 3);
	if (x->recompute == PTC_RECOMPUTE_SELECTIVE && k->heads)
		ret->compute += gemm_seconds(x, attention_flops(x, k), tokens, (double)w->model->hidden / c->tp) +
				passes * 2 * scores;
}

static void traffic_cost(const struct context *x, const struct ptc_layer_kind *k, double tokens,
			 struct ptc_layer_cost *ret)
{
	const struct ptc_cand *c = x->c;
	double h = x->w->model->hidden, bytes = 2 * tokens * h;
	double again = x->recompute == PTC_RECOMPUTE_FULL ? 1.5 : 1;

	if (c->tp > 1) { /* an all-reduce after attention and after the ffn, forward and backward */
		double reduces = 2 * (!!k->heads + !!k->cross + !!k->ssm_inner + (k->ffn || k->experts)) * again;
		double one = 2.0 * (c->tp - 1) / c->tp * bytes / x->tp.bytes_s + x->tp.latency_s * log2(c->tp);

		ret->tp = reduces * one;
	}
	if (c->cp > 1 && k->heads) { /* keys and values around a ring; gradients too on the way back */
		double block = tokens * 2 * k->kv_heads * k->head_dim * 2 / PTC_MIN(c->tp, k->kv_heads);
		double ring = (c->cp - 1) * (block / x->cp.bytes_s + x->cp.latency_s);
		double under = gemm_seconds(x, attention_flops(x, k), tokens, h / c->tp);
		double rounds = x->recompute == PTC_RECOMPUTE_FULL ? 2 : 1;

		ret->cp = rounds * PTC_MAX(0.0, ring - under) + PTC_MAX(0.0, 2 * ring - 2 * under);
	}
	if (c->ep > 1 && k->experts) { /* to the experts and back, forward and backward */
		double sent = bytes * k->topk / c->tp * (c->ep - 1) / c->ep;

		ret->ep = 4 * again * (sent / x->ep.bytes_s + x->ep.latency_s * log2(c->ep));
	}
}

static void memory_cost(const struct context *x, const struct ptc_layer_kind *k, struct ptc_layer_cost *ret)
{
	const struct ptc_work *w = x->w;
	const struct ptc_cand *c = x->c;
	struct ptc_layer_params p = ptc_layer_params(w->model, k);
	double none = ptc_layer_activations(w->model, k, c->tp, c->cp, c->micro_batch, w->sequence_parallel,
					    PTC_RECOMPUTE_NONE);

	ret->dense = p.dense / c->tp;
	ret->expert = p.expert / ((double)c->ep * c->etp);
	ret->kept =
		ptc_layer_activations(w->model, k, c->tp, c->cp, c->micro_batch, w->sequence_parallel, x->recompute);
	ret->working =
		x->recompute == PTC_RECOMPUTE_NONE ? 0 : none - (x->recompute == PTC_RECOMPUTE_FULL ? 0 : ret->kept);
}

void ptc_cost_layers(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_layers *ret)
{
	struct context x = context_of(w, c);
	const struct ptc_model *m = w->model;
	double tokens = (double)c->micro_batch * m->seq / c->cp;
	double logits = tokens * m->vocab / c->tp;

	memset(ret, 0, sizeof *ret);
	ret->hbm = x.hbm;
	for (uint32_t i = 0; i < m->nkinds; i++) {
		const struct ptc_layer_kind *k = &m->kinds[i];
		double t = (double)c->micro_batch * ptc_layer_seq(m, k) / c->cp;

		x.recompute = ptc_cand_recompute(c, i);
		compute_cost(&x, k, t, &ret->kind[i]);
		traffic_cost(&x, k, t, &ret->kind[i]);
		memory_cost(&x, k, &ret->kind[i]);
		ret->layer_params = PTC_MAX(ret->layer_params, ret->kind[i].dense + ret->kind[i].expert);
	}
	ret->head_s = gemm_seconds(&x, 6 * logits * m->hidden, tokens, (double)m->hidden / c->tp) +
		      w->coefs.v[PTC_COEF_BYTES] * 12 * logits / x.hbm;
	ret->embedding = ptc_model_embedding(m) / c->tp;
	ret->head = (double)m->vocab * m->hidden / c->tp;
	ret->logits = logits * w->memory.logit_bytes;
	ret->boundary_bytes = 2 * tokens * m->hidden;
}
