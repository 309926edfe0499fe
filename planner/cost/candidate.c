/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates: whether they are possible, their text, and their whole estimate. */
#include "planner/cost/on_kinds.h"

#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void ptc_coefs_default(struct ptc_coefs *ret)
{
	*ret = (struct ptc_coefs){ { 0.7, 0.3, 6e-4, 1.3, 1, 1, 1, 1, 6e-3, 1, 0.8 } };
}

void ptc_memory_rules_default(struct ptc_memory_rules *ret)
{
	*ret = (struct ptc_memory_rules){ 2, 4, 12, 10, 1, PTC_MEMORY_RESERVE, PTC_MEMORY_WASTE };
}

static const char *const recomputes[] = { "none", "selective", "full" };

void ptc_cand_format(const struct ptc_cand *c, char buf[PTC_CAND_TEXT_MAX])
{
	const struct {
		const char *name;
		uint32_t value;
	} keys[] = { { "tp", c->tp }, { "pp", c->pp },   { "dp", c->dp },  { "cp", c->cp },
		     { "ep", c->ep }, { "etp", c->etp }, { "vpp", c->vpp } };
	size_t n = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++)
		if (i < 3 || keys[i].value > 1)
			n += (size_t)snprintf(buf + n, PTC_CAND_TEXT_MAX - n, "%s%s=%u", n ? "," : "", keys[i].name,
					      keys[i].value);
	if (c->zero)
		n += (size_t)snprintf(buf + n, PTC_CAND_TEXT_MAX - n, ",zero=%u", c->zero);
	n += (size_t)snprintf(buf + n, PTC_CAND_TEXT_MAX - n, ",micro_batch=%u", c->micro_batch);
	if ((c->recompute || c->recompute_others) && n < PTC_CAND_TEXT_MAX)
		n += (size_t)snprintf(buf + n, PTC_CAND_TEXT_MAX - n, ",recompute=%s", recomputes[c->recompute]);
	for (uint32_t k = 1; c->recompute_others >> (2 * (k - 1)) && n < PTC_CAND_TEXT_MAX; k++)
		n += (size_t)snprintf(buf + n, PTC_CAND_TEXT_MAX - n, "/%s", recomputes[ptc_cand_recompute(c, k)]);
}

static int check_layers(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_error *err)
{
	for (uint32_t i = 0; i < w->model->nkinds; i++) {
		const struct ptc_layer_kind *k = &w->model->kinds[i];

		if (k->heads % c->tp)
			return ptc_error_set(err, PTC_EINVAL, "tp=%u does not divide %u heads", c->tp, k->heads);
		if (k->ssm_inner % c->tp)
			return ptc_error_set(err, PTC_EINVAL, "tp=%u does not divide the state space's width %u", c->tp,
					     k->ssm_inner);
		if (k->ffn % c->tp)
			return ptc_error_set(err, PTC_EINVAL, "tp=%u does not divide ffn %u", c->tp, k->ffn);
		if (ptc_layer_seq(w->model, k) % c->cp)
			return ptc_error_set(err, PTC_EINVAL, "cp=%u does not divide seq %u", c->cp,
					     ptc_layer_seq(w->model, k));
		if (k->experts && (k->experts % c->ep || k->expert_ffn % c->etp))
			return ptc_error_set(err, PTC_EINVAL, "ep=%u,etp=%u do not divide %u experts of width %u",
					     c->ep, c->etp, k->experts, k->expert_ffn);
	}
	return 0;
}

static int check_stages(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_error *err)
{
	uint64_t stages = (uint64_t)c->pp * c->vpp, sum = 0;

	if (stages > w->model->layers)
		return ptc_error_set(err, PTC_EINVAL, "pp=%u,vpp=%u are more stages than %u layers", c->pp, c->vpp,
				     w->model->layers);
	if (c->vpp > 1 && (c->pp == 1 || ptc_cost_micro_batches(w, c) % c->pp))
		return ptc_error_set(err, PTC_EINVAL, "vpp=%u needs pp > 1 and micro-batches in multiples of pp=%u",
				     c->vpp, c->pp);
	if (!w->stages)
		return 0;
	for (uint32_t i = 0; i < w->nstages; i++)
		sum += w->stages[i];
	if (w->nstages != stages || sum != w->model->layers)
		return ptc_error_set(err, PTC_EINVAL, "stages lists %u stages, but must have %u layers in %u stages",
				     w->nstages, w->model->layers, (uint32_t)stages);
	return 0;
}

int ptc_cand_check(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_error *err)
{
	const uint32_t v[] = { c->tp, c->cp, c->dp, c->pp, c->ep, c->etp, c->vpp, c->micro_batch };
	uint64_t world = 1;
	int rc;

	for (size_t i = 0; i < PTC_ARRAY_LEN(v); i++)
		if (!v[i] || v[i] > (1u << 20))
			return ptc_error_set(err, PTC_EINVAL,
					     "a degree of the configuration is %u; it must be in 1..1048576", v[i]);
	for (size_t i = 0; i < 4; i++)
		if ((world *= v[i]) > (1u << 20))
			return ptc_error_set(err, PTC_EINVAL, "the configuration needs more than 1048576 devices");
	for (uint32_t k = 1; k < PTC_MODEL_MAX_KINDS; k++) {
		if (!(c->recompute_others >> (2 * (k - 1)) & 3))
			continue;
		if (k >= w->model->nkinds)
			return ptc_error_set(err, PTC_EINVAL, "recompute names %u kinds of layers; the model has %u",
					     k + 1, w->model->nkinds);
		if (ptc_cand_recompute(c, k) == c->recompute)
			return ptc_error_set(err, PTC_EINVAL,
					     "recompute repeats the first kind's value for kind %u of layers", k + 1);
	}
	if (c->zero > 3 || c->recompute > PTC_RECOMPUTE_FULL)
		return ptc_error_set(err, PTC_EINVAL, "zero=%u or recompute=%u is unknown", c->zero, c->recompute);
	if (!w->global_batch)
		return ptc_error_set(err, PTC_EINVAL, "the global batch is 0");
	if ((uint64_t)c->tp * c->cp * c->dp % ((uint64_t)c->ep * c->etp))
		return ptc_error_set(err, PTC_EINVAL, "ep=%u,etp=%u do not divide tp*cp*dp=%u", c->ep, c->etp,
				     c->tp * c->cp * c->dp);
	rc = check_layers(w, c, err);
	return rc ? rc : check_stages(w, c, err);
}

int ptc_estimate(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_estimate *ret, struct ptc_error *err)
{
	struct ptc_layers layers;
	struct ptc_pipe pipe;
	int rc = ptc_cand_check(w, c, err);

	if (rc)
		return rc;
	memset(ret, 0, sizeof *ret);
	if (w->cluster->nkinds > 1)
		return ptc_placer_estimate(w, c, ret, err);
	ptc_cost_layers(w, c, &layers);
	ptc_cost_pipe(w, c, &layers, &pipe);
	ptc_cost_time(w, c, &pipe, ret);
	ptc_cost_memory(w, c, &pipe, ret);
	return 0;
}

int ptc_pipe_memory(const struct ptc_work *w, const struct ptc_cand *c, double *ret, struct ptc_error *err)
{
	struct ptc_layers layers;
	struct ptc_pipe pipe;
	int rc = ptc_cand_check(w, c, err);

	if (rc)
		return rc;
	ptc_cost_layers(w, c, &layers);
	ptc_cost_pipe(w, c, &layers, &pipe);
	for (uint32_t i = 0; i < c->pp; i++) {
		struct ptc_estimate one = { 0 };

		ptc_cost_device_memory(w, c, &pipe, i, &one);
		ret[i] = one.peak_bytes;
	}
	return 0;
}

int ptc_stage_layers(const struct ptc_work *w, const struct ptc_cand *c, uint32_t *ret, struct ptc_error *err)
{
	struct ptc_layers layers;
	int rc = ptc_cand_check(w, c, err);

	if (rc)
		return rc;
	ptc_cost_layers(w, c, &layers);
	ptc_cost_cut(w, c, &layers, ret);
	return 0;
}
