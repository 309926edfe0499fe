/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's backend: the state that gpu_cuda.c (devices, mappings), gpu_copy.c (copies, digests) and gpu_launch.c
 * (kernels) share. Each device's objects belong to its thread. */
#pragma once

#include "daemon/gpu/backend/gpu_ops.h"
#include "daemon/gpu/kernels/gpu_kernels.h"

/* A ring of pinned slots between the device and host memory that is not pinned: the CPU empties one slot while the
 * device fills the others. Four slots of 4 MiB keep a PCIe 5 link busy for the time of a memcpy of one slot. They cost
 * 16 MiB of pinned memory for each device. */
#define PTC_GPU_SLOTS      4
#define PTC_GPU_SLOT_BYTES ((uint64_t)4 << 20)
_Static_assert(PTC_GPU_SLOTS *PTC_GPU_SLOT_BYTES == PTC_GPU_RING_BYTES, "what the ring's callers count");
/* Rows shorter than this are packed by a kernel into the slot's device memory. The driver's strided copies move longer
 * ones. */
#define PTC_GPU_SHORT_ROW ((uint64_t)16 << 10)

#define PTC_GPU_PEERS_MAX 32

struct ptc_gpu_slot {
	unsigned char *bytes;
	CUevent packed; /* a kernel has filled the slot's device memory, or the link has */
	CUevent done;
};

/* The loaded kernels. `buffers` has device memory for each slot of the ring. */
struct ptc_gpu_kernels {
	enum { PTC_GPU_KERNELS_UNTRIED, PTC_GPU_KERNELS_LOADED, PTC_GPU_KERNELS_REFUSED } state;
	CUmodule module;
	CUfunction pack, unpack, digest_run, digest_rows;
	CUdeviceptr buffers, scratch;
	uint64_t chunks; /* of a long digest, so that all multiprocessors work on it at once */
};

struct ptc_gpu {
	const struct ptc_cuda *cu;
	char uuid[PTC_GPU_UUID_SIZE];
	CUdevice device;
	CUcontext context;
	CUstream stream;    /* kernels, and copies within the device */
	CUstream link[2];   /* by direction: copies from and to the host, each for a copy engine */
	uint64_t max_pitch; /* greatest distance of rows, in bytes, that the driver's strided copy takes */
	struct ptc_gpu_budget *budget;
	bool ring_counted;
	struct ptc_gpu_slot ring[PTC_GPU_SLOTS];
	struct ptc_gpu_kernels kernels;
	struct ptc_gpu_memory *memory; /* list of mappings */
	/* Contexts of other devices whose memory this one's may read. */
	CUcontext peers[PTC_GPU_PEERS_MAX];
	unsigned npeers;
};

struct ptc_gpu_memory {
	struct ptc_gpu_memory *next;
	enum ptc_gpu_path path;
	CUcontext context; /* it was mapped in; constant, as the next two are */
	CUdevice device;
	CUdeviceptr base;
	uint64_t bytes, handle_bytes, handles, mapped; /* mapped: VMM handles mapped so far */
};

int ptc_gpu_cuda_copy(struct ptc_gpu *g, struct ptc_gpu_memory *m, enum ptc_gpu_direction direction,
		      const struct ptc_gpu_host *host, const struct ptc_gpu_part *parts, size_t nparts,
		      struct ptc_gpu_failure *f);
int ptc_gpu_cuda_copy_within(struct ptc_gpu *g, struct ptc_gpu_memory *to, struct ptc_gpu_memory *from,
			     const struct ptc_gpu_part *parts, size_t nparts, struct ptc_gpu_failure *f);
int ptc_gpu_cuda_digest(struct ptc_gpu *g, struct ptc_gpu_memory *m, const struct ptc_gpu_part *parts, size_t nparts,
			uint64_t *ret_digest, struct ptc_gpu_failure *f);

/* gpu_launch.c */
/* Merges rows that follow each other without a gap on both sides into one row. */
struct ptc_gpu_part ptc_gpu_part_merged(struct ptc_gpu_part p);
/* Loads the kernels once. *ret_usable false: the device works without them. */
int ptc_gpu_kernels_ready(struct ptc_gpu *g, bool *ret_usable, struct ptc_gpu_failure *f);
void ptc_gpu_kernels_done(struct ptc_gpu *g);
static inline CUdeviceptr ptc_gpu_slot_buffer(const struct ptc_gpu *g, unsigned slot)
{
	return g->kernels.buffers + slot * PTC_GPU_SLOT_BYTES;
}
/* Moves a box to or from the slot's device memory, in stream order; at most a slot's bytes. Of `size`, only the sizes
 * and the device's strides are used. */
CUresult ptc_gpu_launch_move(struct ptc_gpu *g, enum ptc_gpu_direction direction, CUdeviceptr box,
			     const struct ptc_gpu_part *size, unsigned slot);
/* Computes a digest and waits for it. */
int ptc_gpu_launch_digest(struct ptc_gpu *g, CUdeviceptr base, const struct ptc_gpu_part *parts, size_t nparts,
			  uint64_t *ret_digest, struct ptc_gpu_failure *f);
/* Turns the driver's answer into a failure. */
#define ptc_gpu_check(g, result, f, ...) ptc_cuda_check((g)->cu, result, &(f)->fault, &(f)->err, __VA_ARGS__)
