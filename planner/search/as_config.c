// SPDX-License-Identifier: Apache-2.0
/* Degrees to and from struct ptc_config. Fails on a candidate that cannot be. */
#include "planner/search/as_config.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

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

static const char *const recomputes[] = { "none", "selective", "full" }; /* enum ptc_recompute */

/* Takes "recompute=WORD" out of the text. */
static int take_recompute(char *text, uint8_t *ret, struct ptc_error *err)
{
	char *at = strstr(text, "recompute="), *value;
	size_t n;

	*ret = PTC_RECOMPUTE_NONE;
	if (!at || (at > text && at[-1] != ','))
		return 0;
	value = at + strlen("recompute=");
	n = strcspn(value, ",");
	for (uint8_t i = 0; i < PTC_ARRAY_LEN(recomputes); i++)
		if (strlen(recomputes[i]) == n && !memcmp(value, recomputes[i], n)) {
			char *end = value + n;

			*ret = i;
			if (*end) /* the comma after it, else the one before */
				memmove(at, end + 1, strlen(end + 1) + 1);
			else
				at[at > text ? -1 : 0] = '\0';
			return 0;
		}
	return ptc_error_set(err, PTC_EINVAL, "configuration: recompute is none, selective or full, not \"%.*s\"",
			     (int)n, value);
}

int ptc_cand_parse(const char *text, struct ptc_cand *ret, struct ptc_config *ret_config, struct ptc_error *err)
{
	ptc_auto_free char *left = ptc_strdup(text);
	ptc_auto_free struct ptc_config *config = ptc_calloc(1, sizeof *config);
	uint8_t recompute;
	int rc;

	if (!left || !config)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	rc = take_recompute(left, &recompute, err);
	if (!rc)
		rc = ptc_config_parse(left, config, err);
	if (rc)
		return rc;
	ptc_cand_from_config(config, ret);
	ret->recompute = recompute;
	if (ret_config)
		*ret_config = *config;
	return 0;
}
