/* SPDX-License-Identifier: Apache-2.0 */
/* A transformer from its tensors' names and shapes, where nobody has described it. What shapes do not say (the length
 * of samples, how wide a head is, how many experts serve a token) is the caller's, or taken as usual, which the text
 * says. Pure, any thread. */
#pragma once

#include "planner/model.h"
#include "reshard/spec/spec.h"

struct ptc_infer_given {
	uint32_t seq;   /* tokens of a sample; needed */
	uint32_t heads; /* 0: heads of 128, of narrow models 64 */
	uint32_t topk;  /* experts that serve a token; 0: 2 */
};
#define PTC_INFER_TEXT_MAX 256
/* Of the n parameters v. what: one line, the model as it was understood. PTC_EINVAL: they look like no stack of layers
 * with attention. */
int ptc_model_infer(const struct ptc_tensor *v, size_t n, const struct ptc_infer_given *given, struct ptc_model *ret,
		    char what[PTC_INFER_TEXT_MAX], struct ptc_error *err);
