/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for processors with AVX2. The sums equal libxxhash's. libxxhash is built for any x86-64 and takes twice the time
 * when the bytes are in cache. Only base/number/digest.c calls this function, and only on a processor with AVX2. Pure;
 * thread-safe. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
uint64_t ptc_checksum_avx2(const void *data, size_t len);
#endif
