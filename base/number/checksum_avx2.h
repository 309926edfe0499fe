/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for processors with AVX2. The sums equal libxxhash's. libxxhash is built for any x86-64 and takes twice the time
 * when the bytes are in cache. Only for a processor with AVX2; base/number/digest.c chooses. Needs libc only, because
 * libptc is built from it, too. Pure; thread-safe. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
uint64_t ptc_checksum_avx2(const void *data, size_t len);
/* The same sum. Right after a piece of data was summed, and is in the processor's cache, each(arg, at, n) is called for
 * its n bytes, which begin at data + at. The pieces follow each other. */
uint64_t ptc_checksum_each_avx2(const void *data, size_t len, void (*each)(void *arg, size_t at, size_t n), void *arg);
#endif
