/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may use: the machine's, or its control group's where that is less. Both numbers are
 * estimates by the kernel, which other processes change at any time. Any thread. */
#pragma once

#include <stdint.h>

/* Bytes in all. 0: unknown. */
uint64_t ptc_machine_memory(void);
/* Bytes that can be taken without swapping or ending another process. 0: none, or unknown. */
uint64_t ptc_machine_memory_available(void);
