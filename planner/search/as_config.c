/* SPDX-License-Identifier: Apache-2.0 */
/* Degrees to and from struct ptc_config. Fails on a candidate that cannot be. */
#include "planner/search/as_config.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "planner/cost/on_kinds.h"

#include <stdio.h>
#include <string.h>

/* What reshard takes where no stages are listed: the first ones get the extra layer. */
static bool is_default(const uint32_t *layers, uint32_t stages, uint32_t all)
{
	for (uint32_t s = 0; s < stages; s++)
		if (layers[s] != all / stages + (s < all % stages))
			return false;
	return true;
}

int ptc_cand_config_on(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_on_kinds *on,
		       struct ptc_config *ret, struct ptc_error *err)
{
	uint32_t layers[PTC_MODEL_MAX_LAYERS], stages = c->pp * c->vpp, world;
	char text[PTC_CAND_TEXT_MAX + 96];
	size_t at;
	bool mixed = on && w->cluster->nkinds > 1;
	int rc = mixed ? ptc_cand_check(w, c, err) : ptc_stage_layers(w, c, layers, err);

	if (rc == 0 && mixed)
		ptc_placed_layers(w, c, on, layers);
	if (rc)
		return rc;
	at = (size_t)snprintf(text, sizeof text,
			      "tp=%u,pp=%u,dp=%u,cp=%u,ep=%u,etp=%u,zero=%u,micro_batch=%u,global_batch=%u", c->tp,
			      c->pp, c->dp, c->cp, c->ep, c->etp, c->zero, c->micro_batch, w->global_batch);
	if (c->vpp > 1)
		snprintf(text + at, sizeof text - at, ",vpp=%u", c->vpp);
	rc = ptc_config_parse(text, ret, err);
	if (rc)
		return rc;
	if (!is_default(layers, stages, w->model->layers)) {
		ret->nstages = stages;
		memcpy(ret->stages, layers, stages * sizeof *layers);
	}
	if (mixed && on->by_data && on->first && on->micro_batches[0] != on->micro_batches[1])
		ret->micro_steps = (struct ptc_micro_runs){
			2, { { on->first, on->micro_batches[0] }, { c->dp - on->first, on->micro_batches[1] } }
		};
	for (uint32_t k = 0; k < w->model->nkinds; k++)
		ret->recompute[ret->nrecompute++] = (uint8_t)ptc_cand_recompute(c, k);
	ptc_config_recompute_trim(ret);
	return ptc_config_world(ret, &world, err);
}

int ptc_cand_config(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_config *ret, struct ptc_error *err)
{
	return ptc_cand_config_on(w, c, NULL, ret, err);
}

void ptc_cand_from_config(const struct ptc_config *c, struct ptc_cand *ret)
{
	*ret = (struct ptc_cand){ .tp = c->tp,
				  .cp = c->cp,
				  .dp = c->dp,
				  .pp = c->pp,
				  .ep = c->ep,
				  .etp = c->etp,
				  .vpp = c->vpp ? c->vpp : 1,
				  .micro_batch = c->micro_batch ? c->micro_batch : 1,
				  .zero = (uint8_t)c->zero,
				  .recompute = c->nrecompute ? c->recompute[0] : PTC_RECOMPUTE_NONE };
	for (uint32_t k = 1; k < c->nrecompute; k++)
		if (c->recompute[k] != ret->recompute)
			ret->recompute_others |= (uint16_t)((c->recompute[k] + 1) << (2 * (k - 1)));
}

int ptc_cand_parse(const char *text, struct ptc_cand *ret, struct ptc_config *ret_config, struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *config = ptc_calloc(1, sizeof *config);
	int rc = config ? ptc_config_parse(text, config, err) : ptc_nomem(err);

	if (rc)
		return rc;
	ptc_cand_from_config(config, ret);
	if (ret_config)
		*ret_config = *config;
	return 0;
}
