/* SPDX-License-Identifier: Apache-2.0 */
/* Plans without a model: configurations that were measured, and the same configurations with another dp. Their step
 * times are scaled by the number of micro-batches that a rank has. Memory is not estimated. Deterministic. Pure; any
 * thread. */
#pragma once

#include "planner/search/fastest.h"

/* A measured step of this job's batch. */
struct ptc_scaled_row {
	struct ptc_cand cand;
	double step_s;
};
#define PTC_SCALED_SD 0.3 /* relative, of a scaled step: scaling ignores gradients and waiting */

/* Writes the fastest for at most that many devices, best first, at most max of them. dp: the values that the program
 * takes; n 0: all. Returns their number. */
size_t ptc_scaled_search(const struct ptc_scaled_row *rows, size_t n, uint32_t global_batch,
			 const struct ptc_degrees *dp, uint32_t devices, struct ptc_choice *ret, size_t max);
/* The step of one candidate. False: nothing measured differs from it in dp alone. */
bool ptc_scaled_predict(const struct ptc_scaled_row *rows, size_t n, uint32_t global_batch, const struct ptc_cand *c,
			struct ptc_choice *ret);
