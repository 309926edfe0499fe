/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of memory that is many times larger than the caches, and that nobody reads soon. A store past the caches does
 * not read its line first, so such a copy takes two thirds of memcpy's time. Failure modes: none; where the processor
 * cannot do that, and for short runs, it is memcpy. */
#pragma once

#include <stddef.h>

/* As memcpy. What it has written may reach other threads and processes only after ptc_past_caches_end. */
void ptc_past_caches_copy(void *to, const void *from, size_t bytes);
/* Once after the last copy of this thread, before anybody hears of the bytes. */
void ptc_past_caches_end(void);
