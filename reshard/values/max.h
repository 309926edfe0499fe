/* SPDX-License-Identifier: Apache-2.0 */
/* Max-reduce: the greatest of replicas, element by element (state: max). Pure; any thread. */
#pragma once

#include "reshard/spec/spec.h"

/* Whether the dtype can be max-reduced: F64, F32, F16, BF16, integers of whole bytes, BOOL. Other dtypes have no order,
 * or none that everybody agrees on. */
bool ptc_max_has(enum ptc_dtype t);
/* Replaces each of n elements of `to` by the greater of itself and the element of `from`. Both lie as in tensors:
 * little endian, any alignment. Requires ptc_max_has(t).
 *
 * The resulting bytes do not depend on the order in which replicas are taken, nor on how often. Equal bytes stay. Of
 * different ones, if any is a NaN, the result is the dtype's quiet NaN (torch.maximum also propagates NaN, but may give
 * another one). -0 is less than +0. */
void ptc_max_take(enum ptc_dtype t, const void *from, size_t n, void *to);
