/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's backend: what gpu_cuda.c (devices, mappings) and gpu_copy.c (copies, digests) share. */
#pragma once

#include "daemon/gpu/backend/gpu_ops.h"

/* A ring between the device and host memory that is not pinned: while one slot is emptied the others fill. Four slots of
 * 4 MiB keep a PCIe 5 link busy for the time of a memcpy of one slot, and cost 16 MiB of pinned memory a device. */
#define PTC_GPU_SLOTS      4
#define PTC_GPU_SLOT_BYTES ((uint64_t)4 << 20)

struct ptc_gpu_slot {
	unsigned char *bytes;
	CUevent done;
};

struct ptc_gpu {
	const struct ptc_cuda *cu;
	char uuid[PTC_GPU_UUID_SIZE];
	CUdevice device;
	CUcontext context;
	CUstream stream;
	uint64_t max_pitch; /* bytes from a row to the next that a strided copy may have */
	struct ptc_gpu_budget *budget;
	bool ring_counted;
	struct ptc_gpu_slot ring[PTC_GPU_SLOTS];
	struct ptc_gpu_memory *memory; /* list */
};

struct ptc_gpu_memory {
	struct ptc_gpu_memory *next;
	enum ptc_gpu_path path;
	CUdeviceptr base;
	uint64_t bytes, handle_bytes, handles, mapped; /* VMM: handles mapped so far */
};

int ptc_gpu_cuda_copy(struct ptc_gpu *g, struct ptc_gpu_memory *m, enum ptc_gpu_direction direction,
		      const struct ptc_gpu_host *host, const struct ptc_gpu_part *parts, size_t nparts,
		      struct ptc_gpu_failure *f);
int ptc_gpu_cuda_digest(struct ptc_gpu *g, struct ptc_gpu_memory *m, const struct ptc_gpu_part *parts, size_t nparts,
			uint64_t *ret_digest, struct ptc_gpu_failure *f);
/* The driver's answer as a failure. */
#define ptc_gpu_check(g, result, f, ...) ptc_cuda_check((g)->cu, result, &(f)->fault, &(f)->err, __VA_ARGS__)
