/* SPDX-License-Identifier: Apache-2.0 */
/* A candidate as the configuration that the rest of ptc knows, and back. */
#pragma once

#include "planner/cost/step.h"
#include "reshard/spec/config.h"

/* Stages are listed where they are not the default. */
int ptc_cand_config(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_config *ret, struct ptc_error *err);
/* A configuration's text with "recompute=none|selective|full" among its keys, as ptc_cand_format writes it. ret_config
 * may be NULL; else it gets what is not the candidate's: the global batch, stages. */
int ptc_cand_parse(const char *text, struct ptc_cand *ret, struct ptc_config *ret_config, struct ptc_error *err);
/* recompute is not part of a configuration and is left 0; micro_batch 0 becomes 1. */
void ptc_cand_from_config(const struct ptc_config *c, struct ptc_cand *ret);
