/* SPDX-License-Identifier: Apache-2.0 */
/* The greatest of replicas, element by element (state: max). Pure; any thread. */
#pragma once

#include "reshard/spec/spec.h"

/* F64, F32, F16, BF16, integers of whole bytes, BOOL. Others have no order, or none that everybody agrees on. */
bool ptc_max_has(enum ptc_dtype t);
/* Each of n elements of `to` becomes the greater of itself and that of `from`, both as they lie in tensors (little
 * endian, any alignment). Whatever the order and however often replicas are taken, the bytes that come out are the
 * same: equal bytes stay what they are; of different ones where any is a NaN it is the dtype's quiet NaN (as
 * torch.maximum propagates it; which NaN differs), and -0 is less than +0. ptc_max_has(t). */
void ptc_max_take(enum ptc_dtype t, const void *from, size_t n, void *to);
