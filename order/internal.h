/* SPDX-License-Identifier: Apache-2.0 */
/* Inside order/. */
#pragma once

#include "order/order.h"

/* The seed of block i of an order, or of part i of a mixture: output 1 + i of SplitMix64 seeded with seed (output 0 is
 * the key of an order's own epochs). */
uint64_t ptc_order_seed(uint64_t seed, uint64_t i);
