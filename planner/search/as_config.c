// SPDX-License-Identifier: Apache-2.0
/* Degrees to and from struct ptc_config. Fails on a candidate that cannot be. */
#include "planner/search/as_config.h"

#include "base/check.h"

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

int ptc_cand_config(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_config *ret, struct ptc_error *err)
{
	uint32_t layers[PTC_MODEL_MAX_LAYERS], stages = c->pp * c->vpp, world;
	char text[PTC_CAND_TEXT_MAX + 96];
	size_t at;
	int rc = ptc_stage_layers(w, c, layers, err);

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
	return ptc_config_world(ret, &world, err);
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
				  .zero = (uint8_t)c->zero };
}
