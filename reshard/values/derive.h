/* SPDX-License-Identifier: Apache-2.0 */
/* Makes parameters from their masters (state: derive). Pure; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Converts n F32 values to n BF16 values. Both lie as in tensors: little endian, any alignment. `to` may equal `from`.
 * It rounds to the nearest value, ties to even; beyond the largest value it gives infinity, as CPUs, GPUs and PyTorch
 * do. Every NaN becomes 0x7fc0, as with PyTorch on a CPU; other devices differ. */
void ptc_derive_bf16(const void *from, size_t n, void *to);
