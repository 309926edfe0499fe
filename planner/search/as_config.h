/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a candidate to the configuration that the rest of ptc uses, and back. Pure; any thread. */
#pragma once

#include "planner/cost/step.h"
#include "reshard/spec/config.h"

/* Makes the configuration. Stages are listed if they are not the default. */
int ptc_cand_config(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_config *ret, struct ptc_error *err);
/* The same on the kinds of devices that the candidate's estimate has placed it on: with the layers of its stages, or
 * the micro steps of its replicas. */
int ptc_cand_config_on(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_on_kinds *on,
		       struct ptc_config *ret, struct ptc_error *err);
/* Parses a configuration's text, as ptc_cand_format writes it. ret_config may be NULL; otherwise it gets the values
 * that a candidate lacks: the global batch, stages. */
int ptc_cand_parse(const char *text, struct ptc_cand *ret, struct ptc_config *ret_config, struct ptc_error *err);
/* Makes the candidate of a configuration. micro_batch 0 becomes 1. */
void ptc_cand_from_config(const struct ptc_config *c, struct ptc_cand *ret);
