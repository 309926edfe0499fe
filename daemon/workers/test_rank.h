/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of ranks that do what they should not. Each prints what went wrong and returns 3, or returns 0. */
#pragma once

#include <stdint.h>

/* Frames by hand, with the token of this process. */
int test_rank_raw(void);
/* Frames by hand: declares a tensor "t" of so many bytes, and each byte as an allocation of its own on a device. */
#define TEST_RANGES_BYTES 4096
int test_rank_ranges(void);
/* Each call of ptc.h in a way it forbids. */
int test_rank_misuse(void);

/* Declares a tensor "t" at this address, filled with 'r'. Once a file "turn" is in the folder $PTC_TEST_DIR, it
 * executes "victim" there, which is to be this program as setuid root, and has 's' at that address when a file "turned"
 * is there. */
#define TEST_TURN_ADDRESS UINT64_C(0x7e8000001000) /* free in every program, a sanitizer's too */
#define TEST_TURN_BYTES   4096
int test_rank_turns(void);
int test_victim(const char *dir);

/* Mounts a file system at dir until standard input ends. Its only file, "w" of so many bytes, can be mapped; who reads
 * it hangs in the kernel until the file system has gone. Returns 77 where it cannot be mounted. */
#define TEST_HUNG_BYTES 65536
int test_hungfs(const char *dir);
