/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters made from their masters (state: derive). Pure; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* n F32 to n BF16, both as they lie in tensors (little endian, any alignment; to may be from): to the nearest, of two
 * as near the even one, beyond the largest infinity, as CPUs, GPUs and PyTorch do. Every NaN becomes 0x7fc0 (PyTorch on
 * a CPU; others differ). */
void ptc_derive_bf16(const void *from, size_t n, void *to);
