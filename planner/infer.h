/* SPDX-License-Identifier: Apache-2.0 */
/* Infers a transformer from its tensors' names and shapes, for a model without a description. Shapes do not show the
 * length of samples, the width of a head, or how many experts serve a token. The caller gives these, or usual values
 * are taken, which the text says. Pure; any thread. */
#pragma once

#include "planner/model.h"
#include "reshard/spec/spec.h"

struct ptc_infer_given {
	uint32_t seq;   /* tokens of a sample; required */
	uint32_t heads; /* 0: heads of 128, for narrow models 64 */
	uint32_t topk;  /* experts that serve a token; 0: 2 */
};
#define PTC_INFER_TEXT_MAX 256
/* Infers the model of n parameters. what: one line that describes the inferred model. PTC_EINVAL: the parameters are
 * not a stack of layers with attention. */
int ptc_model_infer(const struct ptc_tensor *v, size_t n, const struct ptc_infer_given *given, struct ptc_model *ret,
		    char what[PTC_INFER_TEXT_MAX], struct ptc_error *err);
