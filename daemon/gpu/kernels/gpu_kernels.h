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
#define PTC_GPU_KERNEL_DIGEST_RUN  "ptc_gpu_digest_run_2"
#define PTC_GPU_KERNEL_DIGEST_ROWS "ptc_gpu_digest_rows_1"

#define PTC_GPU_BLOCK 256u /* threads of a block, for every kernel */

/* A digest's lanes, one for each thread, and the words of a lane in one block. A block within the run is read without
 * checks. */
#define PTC_GPU_LANES       128u
#define PTC_GPU_ROWS        80u
#define PTC_GPU_CHUNKS_MAX  4096u
/* Blocks of threads that a multiprocessor has at once, at 128 registers a thread. */
#define PTC_GPU_BLOCKS_BUSY 2u

/* pack turns a box of strided rows into a run without gaps; unpack does the opposite. `unit` (1, 2, 4, 8 or 16) divides
 * both sides' addresses, width, row and slice. The box has fewer than 2^32 units. */
struct ptc_gpu_pack {
	uint64_t box, packed;
	uint64_t row, slice;
	uint32_t unit, width_units, height, units; /* units: number of units of the whole box */
};

/* XORs the digest of a run of memory into *result. The run is cut into chunks of equal length, and leading zero words,
 * which do not change a digest, fill the first chunk. PTC_GPU_LANES threads read the 32-bit words of a chunk in turn. A
 * chunk consists of blocks; in a block, each thread reads PTC_GPU_ROWS words. */
struct ptc_gpu_digest_run {
	uint64_t words;                                        /* address of the first word, a multiple of 4 */
	uint64_t nwords, result;                               /* result: address */
	uint64_t chunks, blocks;                               /* blocks: of a chunk */
	uint64_t lane_low[16], lane_high[PTC_GPU_LANES / 16];  /* x^(32 * i), x^(32 * 16 * i) */
	uint64_t chunk_low[16], chunk_mid[16], chunk_high[16]; /* c^i, c^(16 * i), c^(256 * i) * factor */
	uint32_t first_mask, last_mask; /* the bytes of the first and the last word that belong to the run */
};
/* In these comments c is x^(bits of a chunk). `factor` is the factor of the whole run's polynomial in the digest,
 * divided by x^(bits of a block), because the kernel computes as if a block of zeros followed. */

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
