/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings of files whose huge pages count. A huge page of a file on tmpfs is one entry of a process's page table only
 * if address and offset have the same place in it; else it is 512 entries, and one fault each.
 *
 * Failure modes: none but those of mmap. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* MAP_SHARED of `bytes` bytes at `offset` (a multiple of a page), at an address that fits. The caller calls munmap.
 * MAP_FAILED: errno says why. */
void *ptc_huge_map(int fd, uint64_t offset, size_t bytes, int prot);

/* For a library that calls mmap itself: afterwards the kernel's first choice for the next mapping of `bytes` bytes
 * is an address that fits offset 0, unless another thread maps something first. The caller gives the answer to
 * ptc_huge_unaim after that mapping. It works by a small mapping that fills what is above that place. */
struct ptc_huge_aim {
	void *filler;
	size_t bytes;
};
struct ptc_huge_aim ptc_huge_aim(size_t bytes);
void ptc_huge_unaim(struct ptc_huge_aim aim);
