/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts layers into pipeline stages: what each device has of them, and which devices may be the fullest. Its devices
 * may be of different kinds. Cannot fail. */
#include "planner/cost/stages.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

/* Layers as the devices of a pipeline compute them. */
struct devices {
	const struct ptc_layers *const *l;
	const uint8_t *which; /* NULL: all as l[0] */
	uint32_t pp;
	uint32_t end; /* a stage begins after so many layers; 0: there is no such place */
};

static struct devices devices_of(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *const *l,
				 const uint8_t *which)
{
	bool apart = w->encoder_apart && c->pp * c->vpp > 1;

	return (struct devices){ l, which, c->pp, apart ? ptc_model_encoder(w->model) : 0 };
}

static const struct ptc_layers *layers_at(const struct devices *x, uint32_t stage)
{
	return x->l[x->which ? x->which[stage % x->pp] : 0];
}

static double layer_seconds(const struct ptc_layer_cost *l)
{
	return l->compute + l->tp + l->cp + l->ep;
}

/* As many layers as stay within `most` seconds for each stage, from the last one back, leaving one for
 * each stage before it: what is left over falls to the first stages, which hold the most activations.
 * Returns 0 when all layers are placed, else the least bound above `most` that changes something. */
static double fill(const struct ptc_work *w, const struct devices *x, uint32_t stages, double most, uint32_t *cut)
{
	const struct ptc_model *m = w->model;
	uint32_t left = m->layers;
	double next = INFINITY;

	for (uint32_t s = stages; s-- > 0;) {
		const struct ptc_layers *l = layers_at(x, s);
		double sum = s + 1 == stages ? l->head_s : 0;
		uint32_t end = left;

		while (left > s && !(left == x->end && left < end)) {
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

/* Seconds of a layer on the fastest of the pipeline's devices. */
static double least_seconds(const struct devices *x, uint8_t kind)
{
	double least = layer_seconds(&x->l[0]->kind[kind]);

	for (uint32_t i = 0; x->which && i < x->pp; i++)
		least = PTC_MIN(least, layer_seconds(&layers_at(x, i)->kind[kind]));
	return least;
}

/* The cut whose slowest stage is the fastest: the bound rises to the next sum that matters until all
 * layers are placed. */
static void cut_by_time(const struct ptc_work *w, const struct devices *x, uint32_t stages, uint32_t *cut)
{
	double sum = layers_at(x, stages - 1)->head_s, most = 0, least[PTC_MODEL_MAX_KINDS];

	for (uint8_t k = 0; k < w->model->nkinds; k++)
		least[k] = least_seconds(x, k);
	for (uint32_t i = 0; i < w->model->layers; i++) {
		sum += least[w->model->kind[i]];
		most = PTC_MAX(most, least[w->model->kind[i]]);
	}
	most = PTC_MAX(most, sum / stages * (1 - 1e-9));
	for (double next; (next = fill(w, x, stages, most, cut)) > 0;)
		most = next;
}

static void cut_even(uint32_t layers, uint32_t stages, uint32_t *cut)
{
	for (uint32_t s = 0; s < stages; s++)
		cut[s] = layers / stages + (s < layers % stages);
}

/* Seconds of the slowest stage. */
static double slowest(const struct ptc_work *w, const struct devices *x, uint32_t stages, const uint32_t *cut)
{
	double most = 0;

	for (uint32_t s = 0, at = 0; s < stages; s++) {
		double sum = s + 1 == stages ? layers_at(x, s)->head_s : 0;

		for (uint32_t i = 0; i < cut[s]; i++, at++)
			sum += layer_seconds(&layers_at(x, s)->kind[w->model->kind[at]]);
		most = PTC_MAX(most, sum);
	}
	return most;
}

/* The encoder's layers and the decoder's, each evenly over stages of its own: as many for the encoder as make the
 * slowest stage the fastest. */
static void cut_apart(const struct ptc_work *w, const struct devices *x, uint32_t stages, uint32_t *cut)
{
	uint32_t decoder = w->model->layers - x->end, best = 0;
	double least = INFINITY;

	for (uint32_t n = 1; n < stages; n++) {
		double s;

		if (n > x->end || stages - n > decoder)
			continue;
		cut_even(x->end, n, cut);
		cut_even(decoder, stages - n, cut + n);
		s = slowest(w, x, stages, cut);
		if (s < least) {
			least = s;
			best = n;
		}
	}
	cut_even(x->end, best, cut);
	cut_even(decoder, stages - best, cut + best);
}

static void cut_mixed(const struct ptc_work *w, const struct ptc_cand *c, const struct devices *x, uint32_t *cut)
{
	uint32_t stages = c->pp * c->vpp;

	if (w->stages)
		memcpy(cut, w->stages, stages * sizeof *cut);
	else if (w->uneven && stages > 1)
		cut_by_time(w, x, stages, cut);
	else if (x->end)
		cut_apart(w, x, stages, cut);
	else
		cut_even(w->model->layers, stages, cut);
}

void ptc_cost_cut(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *l, uint32_t *cut)
{
	struct devices x = devices_of(w, c, &l, NULL);

	cut_mixed(w, c, &x, cut);
}

void ptc_cost_cut_mixed(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *const *l,
			const uint8_t *which, uint32_t *cut)
{
	struct devices x = devices_of(w, c, l, which);

	cut_mixed(w, c, &x, cut);
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

static void sum_devices(const struct ptc_work *w, const struct ptc_cand *c, const struct devices *x,
			const uint32_t *cut, struct device_sum *d)
{
	uint32_t at = 0, stages = c->pp * c->vpp;
	const struct ptc_layers *last = layers_at(x, c->pp - 1);

	memset(d, 0, c->pp * sizeof *d);
	for (uint32_t s = 0; s < stages; s++)
		/* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): cut_mixed sets every stage */
		for (uint32_t i = 0; i < cut[s]; i++, at++)
			add_layer(&d[s % c->pp], &layers_at(x, s)->kind[w->model->kind[at]]);
	d[0].dense += last->embedding;
	d[c->pp - 1].seconds += last->head_s;
	d[c->pp - 1].compute += last->head_s;
	if (!w->model->tied || c->pp > 1) /* a tied head is a copy where the pipeline ends elsewhere */
		d[c->pp - 1].dense += last->head;
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
			double hbm, struct ptc_pipe *p)
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
	p->dense_hbm = PTC_MAX(p->dense_hbm, d->dense / hbm);
	p->expert_hbm = PTC_MAX(p->expert_hbm, d->expert / hbm);
	if (d->seconds > p->busiest_s) {
		p->busiest_s = d->seconds;
		p->compute_s = d->compute;
		p->tp_s = d->tp;
		p->cp_s = d->cp;
		p->ep_s = d->ep;
	}
}

void ptc_cost_pipe_mixed(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *const *l,
			 const uint8_t *which, struct ptc_pipe *ret)
{
	struct devices x = devices_of(w, c, l, which);
	uint32_t cut[PTC_MODEL_MAX_LAYERS];
	struct device_sum d[PTC_MODEL_MAX_LAYERS];

	ret->stages = c->pp * c->vpp;
	ret->busiest_s = ret->all_s = ret->dense_max = ret->expert_max = ret->dense_all = 0;
	ret->dense_hbm = ret->expert_hbm = 0;
	ret->nfull = 0;
	ret->logits = l[0]->logits;
	ret->boundary_bytes = l[0]->boundary_bytes;
	ret->layer_params = l[0]->layer_params;
	cut_mixed(w, c, &x, cut);
	sum_devices(w, c, &x, cut, d);
	for (uint32_t i = 0; i < c->pp; i++)
		take_device(w, c, &d[i], i, layers_at(&x, i)->hbm, ret);
}

void ptc_cost_pipe(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *l, struct ptc_pipe *ret)
{
	ptc_cost_pipe_mixed(w, c, &l, NULL, ret);
}
