/* SPDX-License-Identifier: Apache-2.0 */
/* Of planner/fit's own: the model's coefficients from rows that are known to be possible. */
#pragma once

#include "planner/fit/fit.h"

/* Starts from and is held near *prior: a coefficient off by a factor e counts as a row off by sqrt(held). */
void ptc_fit_coefs(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *prior, double held,
		   double *residuals, struct ptc_coefs *ret);
/* log(predicted / measured) of each row. */
void ptc_fit_residuals(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *coefs, double *ret);
