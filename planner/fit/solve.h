/* SPDX-License-Identifier: Apache-2.0 */
/* Solves symmetric positive definite systems; matrices are n by n, row-major. Pure; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Replaces a by its lower factor. false: the matrix is not positive definite. */
bool ptc_cholesky(double *a, size_t n);
/* Solves L x = b, then L' x = b, in place. */
void ptc_cholesky_forward(const double *l, size_t n, double *b);
void ptc_cholesky_back(const double *l, size_t n, double *b);
