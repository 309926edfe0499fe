/* SPDX-License-Identifier: Apache-2.0 */
/* For planner/cost only: the bytes of a layer's activations that attention's scores take. */
#pragma once

#include "planner/cost/step.h"

double ptc_layer_scores(const struct ptc_model *m, const struct ptc_layer_kind *k, uint32_t tp, uint32_t cp,
			uint32_t micro_batch);
