/* SPDX-License-Identifier: Apache-2.0 */
/* For planner/fit only: fits the model's coefficients to rows that were checked. */
#pragma once

#include "planner/fit/fit.h"

/* Starts from *prior and stays near it: a coefficient that is off by a factor e counts as much as a row off by
 * sqrt(held). */
void ptc_fit_coefs(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *prior, double held,
		   double *residuals, struct ptc_coefs *ret);
/* Writes log(predicted / measured) of each row. */
void ptc_fit_residuals(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *coefs, double *ret);
