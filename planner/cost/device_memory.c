/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of the fullest device: states as ZeRO cuts them, activations in flight, what the layer at work and the
 * logits take, the reserve. Cannot fail. */
#include "planner/cost/stages.h"

#include "base/check.h"

double ptc_cost_in_flight(const struct ptc_work *w, const struct ptc_cand *c, uint32_t device)
{
	double m = ptc_cost_micro_batches(w, c), warm;

	if (w->schedule == PTC_SCHEDULE_GPIPE)
		return m;
	if (c->vpp == 1)
		return PTC_MIN(m, c->pp - device);
	/* Interleaved, in stages of which a device has vpp: two for each device after it, and all but one
	 * of its own for each pipeline's worth. On the first: 1 + (p - 1)/(p v) times its layers. */
	warm = 2.0 * (c->pp - 1 - device) + (c->vpp - 1.0) * c->pp + 1;
	return PTC_MIN(m, warm / c->vpp);
}

/* Bytes kept of one parameter where `d` ranks share what ZeRO cuts. */
static double state_bytes(const struct ptc_work *w, const struct ptc_cand *c, double d)
{
	const struct ptc_memory_rules *b = &w->memory;
	double weight = c->zero == 3 ? b->weight_bytes / d : b->weight_bytes;
	double grad = c->zero >= 2 ? b->grad_bytes / d : b->grad_bytes;

	return weight + grad + (c->zero ? b->optim_bytes / d : b->optim_bytes);
}

struct fullest {
	double per_dense, per_expert, activations, gathered;
};

static void consider(const struct ptc_work *w, const struct fullest *f, const struct ptc_stage_point *s,
		     struct ptc_estimate *ret)
{
	double states = s->dense * f->per_dense + s->expert * f->per_expert + f->gathered;
	double act = f->activations * (s->activations + s->working);
	double all = states + act + w->memory.reserve_bytes, peak = all + w->memory.waste * act;

	ret->peak_bytes = PTC_MAX(ret->peak_bytes, peak);
	if (all > ret->memory_bytes) {
		ret->memory_bytes = all;
		ret->state_bytes = states;
		ret->activation_bytes = act;
		ret->fullest_stage = s->stage;
	}
}

static struct fullest shares(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p)
{
	double d = c->dp * c->cp, edp = c->tp * c->cp * c->dp / (double)(c->ep * c->etp);
	struct fullest f = { state_bytes(w, c, d), state_bytes(w, c, edp), w->memory.activations, 0 };

	if (c->zero == 3) /* this layer and the next, whole, and one's gradients */
		f.gathered = p->layer_params * (2 * w->memory.weight_bytes + w->memory.grad_bytes);
	return f;
}

static struct ptc_stage_point device_point(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p,
					   uint32_t i)
{
	return (struct ptc_stage_point){ p->dense[i], p->expert[i], p->kept[i] * ptc_cost_in_flight(w, c, i),
					 p->working[i], i };
}

void ptc_cost_device_memory(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p, uint32_t i,
			    struct ptc_estimate *ret)
{
	struct fullest f = shares(w, c, p);
	struct ptc_stage_point s = device_point(w, c, p, i);

	ret->memory_bytes = ret->peak_bytes = 0;
	consider(w, &f, &s, ret);
}

void ptc_cost_memory(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p,
		     struct ptc_estimate *ret)
{
	struct fullest f = shares(w, c, p);
	uint32_t m = ptc_cost_micro_batches(w, c);

	ret->memory_bytes = ret->peak_bytes = 0;
	/* The list is of pipelines that are filled; GPipe's in-flight count is m itself. */
	if (m >= 2 * c->pp && p->nfull && p->nfull <= PTC_PIPE_POINTS && w->schedule != PTC_SCHEDULE_GPIPE) {
		for (uint32_t i = 0; i < p->nfull; i++)
			consider(w, &f, &p->full[i], ret);
		return;
	}
	for (uint32_t i = 0; i < c->pp; i++) {
		struct ptc_stage_point s = device_point(w, c, p, i);

		consider(w, &f, &s, ret);
	}
}
