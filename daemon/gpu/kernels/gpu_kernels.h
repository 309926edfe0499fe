/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of the kernels in gpu_kernels.cu: each kernel takes one of these structs by value. nvcc reads this
 * header as C++, and our own compiler as C. Addresses are device addresses. Sizes and distances are bytes unless
 * stated. */
#pragma once

#include <stdint.h>

/* The number at the end rises when a struct's meaning changes. As part of the kernel's name, it makes the driver refuse
 * an image of another version. */
#define PTC_GPU_KERNEL_PACK        "ptc_gpu_pack_1"
#define PTC_GPU_KERNEL_UNPACK      "ptc_gpu_unpack_1"
#define PTC_GPU_KERNEL_DIGEST_RUN  "ptc_gpu_digest_run_1"
#define PTC_GPU_KERNEL_DIGEST_ROWS "ptc_gpu_digest_rows_1"

#define PTC_GPU_BLOCK         256u /* threads of a block, for every kernel */
#define PTC_GPU_LANES_MAX_LOG 16u

/* pack turns a box of strided rows into a run without gaps; unpack does the opposite. `unit` (1, 2, 4, 8 or 16) divides
 * both sides' addresses, width, row and slice. The box has fewer than 2^32 units. */
struct ptc_gpu_pack {
	uint64_t box, packed;
	uint64_t row, slice;
	uint32_t unit, width_units, height, units; /* units: number of units of the whole box */
};

/* XORs the digest of a run of memory into *result. 2^lanes_log threads read the run's 32-bit words in turn. Leading
 * zero words do not change a digest. So the run begins at a multiple of 64 * 2^lanes_log words before its last one. */
struct ptc_gpu_digest_run {
	uint64_t words;                         /* address of the first word, a multiple of 4 */
	uint64_t nwords, steps;                 /* steps: words of each lane, with leading zeros; a multiple of 64 */
	uint64_t result;                        /* address */
	uint64_t factor;                        /* factor of the whole run's polynomial */
	uint64_t step;                          /* x^(32 * lanes) */
	uint64_t powers[PTC_GPU_LANES_MAX_LOG]; /* x^(32 * 2^i) */
	uint32_t lanes_log;
	uint32_t first_mask, last_mask; /* the bytes of the first and the last word that belong to the run */
	uint32_t reserved;
};

/* XORs the digest of a box whose rows lie apart in their tensor into *result. A row is cut into `segments` of
 * segment_bytes, the last one shorter. A thread takes one of these, or `group` whole rows of a slice. */
struct ptc_gpu_digest_rows {
	uint64_t box, row, slice;        /* on the device */
	uint64_t other_row, other_slice; /* in the tensor */
	uint64_t width, height, depth;
	uint64_t after; /* the tensor's bytes after the box's last byte */
	uint64_t segments, segment_bytes, group;
	uint64_t result, table; /* addresses; table: ptc_digest_run of each single byte, 256 numbers */
	uint64_t row_power;     /* x^(8 * other_row) */
	uint64_t powers[64];    /* x^(8 * 2^i) */
};
