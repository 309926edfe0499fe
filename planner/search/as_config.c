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
				  .zero = (uint8_t)c->zero };
}

static const char *const recomputes[] = { "none", "selective", "full" }; /* enum ptc_recompute */

static bool word_of(const char *word, size_t n, uint8_t *ret)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(recomputes); i++)
		if (strlen(recomputes[i]) == n && !memcmp(word, recomputes[i], n)) {
			*ret = (uint8_t)i;
			return true;
		}
	return false;
}

/* Takes "recompute=WORD" or "recompute=WORD/WORD", of kinds of layers in order, out of the text. */
static int take_recompute(char *text, struct ptc_cand *ret, struct ptc_error *err)
{
	char *at = strstr(text, "recompute="), *value, *end;
	uint8_t word = PTC_RECOMPUTE_NONE;
	uint32_t kind = 0;

	ret->recompute = PTC_RECOMPUTE_NONE;
	ret->recompute_others = 0;
	if (!at || (at > text && at[-1] != ','))
		return 0;
	value = at + strlen("recompute=");
	end = value + strcspn(value, ",");
	for (char *next; value <= end; value = next + 1, kind++) {
		next = value + strcspn(value, "/,");
		if (kind == PTC_MODEL_MAX_KINDS || !word_of(value, (size_t)(next - value), &word))
			return ptc_error_set(err, PTC_EINVAL,
					     "configuration: recompute is none, selective or full, not \"%.*s\"",
					     (int)(next - value), value);
		if (!kind)
			ret->recompute = word;
		else if (word != ret->recompute)
			ret->recompute_others |= (uint16_t)((word + 1) << (2 * (kind - 1)));
		if (next == end)
			break;
	}
	if (*end) /* the comma after it, else the one before */
		memmove(at, end + 1, strlen(end + 1) + 1);
	else
		at[at > text ? -1 : 0] = '\0';
	return 0;
}

int ptc_cand_parse(const char *text, struct ptc_cand *ret, struct ptc_config *ret_config, struct ptc_error *err)
{
	ptc_auto_free char *left = ptc_strdup(text);
	ptc_auto_free struct ptc_config *config = ptc_calloc(1, sizeof *config);
	struct ptc_cand recompute;
	int rc;

	if (!left || !config)
		return ptc_nomem(err);
	rc = take_recompute(left, &recompute, err);
	if (!rc)
		rc = ptc_config_parse(left, config, err);
	if (rc)
		return rc;
	ptc_cand_from_config(config, ret);
	ret->recompute = recompute.recompute;
	ret->recompute_others = recompute.recompute_others;
	if (ret_config)
		*ret_config = *config;
	return 0;
}
