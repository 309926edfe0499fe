// SPDX-License-Identifier: Apache-2.0
/* A pipeline: where the layers are cut, what each device has of them, and which devices may be the
 * fullest. Cannot fail. */
#include "planner/cost/stages.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

static double layer_seconds(const struct ptc_layer_cost *l)
{
	return l->compute + l->tp + l->cp + l->ep;
}

/* As many layers as stay within `most` seconds for each stage, from the last one back, leaving one for
 * each stage before it: what is left over falls to the first stages, which hold the most activations.
 * Returns 0 when all layers are placed, else the least bound above `most` that changes something. */
static double fill(const struct ptc_work *w, const struct ptc_layers *l, uint32_t stages, double most, uint32_t *cut)
{
	const struct ptc_model *m = w->model;
	uint32_t left = m->layers;
	double next = INFINITY;

	for (uint32_t s = stages; s-- > 0;) {
		double sum = s + 1 == stages ? l->head_s : 0;
		uint32_t end = left;

		while (left > s) {
			double with = sum + layer_seconds(&l->kind[m->kind[left - 1]]);

			if (with > most) {
				next = PTC_MIN(next, with);
				break;
			}
			sum = with;
			left--;
		}
		if (left == end) /* a stage without a layer: the bound is too small */
			return next;
		cut[s] = end - left;
	}
	return left ? next : 0;
}

/* The cut whose slowest stage is the fastest: the bound rises to the next sum that matters until all
 * layers are placed. */
static void cut_by_time(const struct ptc_work *w, const struct ptc_layers *l, uint32_t stages, uint32_t *cut)
{
	double sum = l->head_s, most = 0;

	for (uint32_t i = 0; i < w->model->layers; i++) {
		double s = layer_seconds(&l->kind[w->model->kind[i]]);

		sum += s;
		most = PTC_MAX(most, s);
	}
	most = PTC_MAX(most, sum / stages * (1 - 1e-9));
	for (double next; (next = fill(w, l, stages, most, cut)) > 0;)
		most = next;
}

static void cut_even(uint32_t layers, uint32_t stages, uint32_t *cut)
{
	for (uint32_t s = 0; s < stages; s++)
		cut[s] = layers / stages + (s < layers % stages);
}

void ptc_cost_cut(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *l, uint32_t *cut)
{
	uint32_t stages = c->pp * c->vpp;

	if (w->stages)
		memcpy(cut, w->stages, stages * sizeof *cut);
	else if (w->uneven && stages > 1)
		cut_by_time(w, l, stages, cut);
	else
		cut_even(w->model->layers, stages, cut);
}

/* Sums of device d over its stages d, d + pp, ... */
struct device_sum {
	double seconds, compute, tp, cp, ep, dense, expert, kept, working;
};

static void add_layer(struct device_sum *d, const struct ptc_layer_cost *l)
{
	d->seconds += layer_seconds(l);
	d->compute += l->compute;
	d->tp += l->tp;
	d->cp += l->cp;
	d->ep += l->ep;
	d->dense += l->dense;
	d->expert += l->expert;
	d->kept += l->kept;
	d->working = PTC_MAX(d->working, l->working);
}

static void sum_devices(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *l,
			const uint32_t *cut, struct device_sum *d)
{
	uint32_t at = 0, stages = c->pp * c->vpp;

	memset(d, 0, c->pp * sizeof *d);
	for (uint32_t s = 0; s < stages; s++)
		for (uint32_t i = 0; i < cut[s]; i++, at++)
			add_layer(&d[s % c->pp], &l->kind[w->model->kind[at]]);
	d[0].dense += l->embedding;
	d[c->pp - 1].seconds += l->head_s;
	d[c->pp - 1].compute += l->head_s;
	if (!w->model->tied || c->pp > 1) /* a tied head is a copy where the pipeline ends elsewhere */
		d[c->pp - 1].dense += l->head;
}

static bool covers(const struct ptc_stage_point *a, const struct ptc_stage_point *b)
{
	return a->dense >= b->dense && a->expert >= b->expert && a->activations >= b->activations &&
	       a->working >= b->working;
}

/* Devices that no other one covers. */
static void add_point(struct ptc_pipe *p, const struct ptc_stage_point *point)
{
	uint32_t n = 0;

	if (p->nfull > PTC_PIPE_POINTS)
		return;
	for (uint32_t i = 0; i < p->nfull; i++)
		if (covers(&p->full[i], point))
			return;
	for (uint32_t i = 0; i < p->nfull; i++)
		if (!covers(point, &p->full[i]))
			p->full[n++] = p->full[i];
	if (n == PTC_PIPE_POINTS) {
		p->nfull = PTC_PIPE_POINTS + 1; /* too many: ptc_cost_memory looks at all devices */
		return;
	}
	p->full[n++] = *point;
	p->nfull = n;
}

static void take_device(const struct ptc_work *w, const struct ptc_cand *c, const struct device_sum *d, uint32_t i,
			struct ptc_pipe *p)
{
	struct ptc_cand filled = *c;
	struct ptc_stage_point point = { d->dense, d->expert, 0, d->working, i };

	filled.dp = 1;
	filled.micro_batch = 1; /* as many micro-batches as there can be */
	point.activations = d->kept * ptc_cost_in_flight(w, &filled, i);
	if (i + 1 == c->pp)
		point.working += p->logits;
	p->dense[i] = d->dense;
	p->expert[i] = d->expert;
	p->kept[i] = d->kept;
	p->working[i] = point.working;
	add_point(p, &point);
	p->all_s += d->seconds;
	p->dense_all += d->dense;
	p->dense_max = PTC_MAX(p->dense_max, d->dense);
	p->expert_max = PTC_MAX(p->expert_max, d->expert);
	if (d->seconds > p->busiest_s) {
		p->busiest_s = d->seconds;
		p->compute_s = d->compute;
		p->tp_s = d->tp;
		p->cp_s = d->cp;
		p->ep_s = d->ep;
	}
}

void ptc_cost_pipe(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *l, struct ptc_pipe *ret)
{
	uint32_t cut[PTC_MODEL_MAX_LAYERS];
	struct device_sum d[PTC_MODEL_MAX_LAYERS];

	ret->stages = c->pp * c->vpp;
	ret->busiest_s = ret->all_s = ret->dense_max = ret->expert_max = ret->dense_all = 0;
	ret->nfull = 0;
	ret->logits = l->logits;
	ret->boundary_bytes = l->boundary_bytes;
	ret->layer_params = l->layer_params;
	ptc_cost_cut(w, c, l, cut);
	sum_devices(w, c, l, cut, d);
	for (uint32_t i = 0; i < c->pp; i++)
		take_device(w, c, &d[i], i, ret);
}
