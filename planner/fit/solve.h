/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric positive definite systems, row-major, n by n. Cannot fail but by saying so. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Lower factor in place; false where the matrix is not positive definite. */
bool ptc_cholesky(double *a, size_t n);
/* Solves L x = b, then L' x = b, in place. */
void ptc_cholesky_forward(const double *l, size_t n, double *b);
void ptc_cholesky_back(const double *l, size_t n, double *b);
