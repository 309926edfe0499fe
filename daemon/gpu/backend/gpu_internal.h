/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's backend: the state that gpu_cuda.c (devices, mappings), gpu_copy.c (copies, digests) and gpu_launch.c
 * (kernels) share. Each device's objects belong to its thread; a copier's belong to the thread that copies by it. */
#pragma once

#include "daemon/gpu/backend/gpu_ops.h"
#include "daemon/gpu/kernels/gpu_kernels.h"

/* A ring of pinned slots between the device and host memory that is not pinned: a CPU empties one slot while the device
 * fills the others. One CPU moves 8 to 13 GB/s between a slot and host memory, a PCIe 5 link 55. So each copier has
 * slots of its own. Four of 2 MiB were the best on a device: with slots of 1 MiB eight copiers came to 35 GB/s, with
 * these to 50 (docs/decisions/0053-copy-threads.md). */
#define PTC_GPU_SLOTS      4
#define PTC_GPU_SLOT_BYTES ((uint64_t)2 << 20)
_Static_assert(PTC_GPU_SLOTS *PTC_GPU_SLOT_BYTES == PTC_GPU_COPIER_BYTES, "what the ring's callers count");
/* Rows shorter than this are packed by a kernel into the slot's device memory. The driver's strided copies move longer
 * ones. */
#define PTC_GPU_SHORT_ROW ((uint64_t)16 << 10)

#define PTC_GPU_PEERS_MAX 32
#define PTC_GPU_BEGUN_MAX 2 /* copies of a copier that have begun and not ended */

/* A piece of a part that one call of the driver can copy. */
struct ptc_gpu_tile {
	uint64_t device_at, other_at;
	uint64_t width, height, depth;
	uint64_t after; /* digest: the tensor's bytes after the tile's last byte */
};

struct ptc_gpu_slot {
	unsigned char *bytes;
	CUdeviceptr buffer; /* device memory of the same size, once kernels are loaded */
	CUevent packed;     /* the slot's device memory is filled, by a kernel or over the link */
	CUevent done;
	/* The tile under way in it. */
	struct ptc_gpu_tile tile;
	struct ptc_gpu_part part;
	enum ptc_gpu_direction direction;
	unsigned char *host; /* NULL: digest */
};

/* The loaded kernels. `buffers` is the device memory of all slots of the ring. */
struct ptc_gpu_kernels {
	enum { PTC_GPU_KERNELS_UNTRIED, PTC_GPU_KERNELS_LOADED, PTC_GPU_KERNELS_REFUSED } state;
	CUmodule module;
	CUfunction pack, unpack, digest_run, digest_rows;
	CUdeviceptr buffers, scratch;
	uint64_t chunks; /* of a long digest, so that all multiprocessors work on it at once */
};

/* What one thread copies with. Its next copy begins while the last tiles of the one before are under way, so that the
 * link never waits for a copy's end. */
struct ptc_gpu_copier {
	CUstream stream;  /* kernels that pack rows */
	CUstream link[2]; /* by direction: copies from and to the host, each for a copy engine */
	struct ptc_gpu_slot slots[PTC_GPU_SLOTS];
	uint64_t issued, finished; /* tiles; tile n is in slot n % PTC_GPU_SLOTS */
	uint64_t digest;           /* of the tiles that were digested */
	/* Copies that have begun, oldest first: the number of tiles that had been issued at the end of each. */
	uint64_t begun[PTC_GPU_BEGUN_MAX];
	unsigned nbegun;
	struct ptc_gpu_failure failure; /* of the oldest; its status is 0 until a tile of it fails */
};

struct ptc_gpu {
	const struct ptc_cuda *cu;
	char uuid[PTC_GPU_UUID_SIZE];
	CUdevice device;
	CUcontext context;
	CUstream stream;    /* digests, and copies within the device */
	uint64_t max_pitch; /* greatest distance of rows, in bytes, that the driver's strided copy takes */
	struct ptc_gpu_budget *budget;
	uint64_t ring_counted; /* bytes of the budget */
	struct ptc_gpu_copier copiers[PTC_GPU_COPIERS_MAX];
	unsigned ncopiers;
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

bool ptc_gpu_cuda_packs(const struct ptc_gpu_part *parts, size_t nparts);
int ptc_gpu_cuda_copy(struct ptc_gpu *g, unsigned copier, struct ptc_gpu_memory *m, enum ptc_gpu_direction direction,
		      const struct ptc_gpu_host *host, const struct ptc_gpu_part *parts, size_t nparts, bool kernels,
		      struct ptc_gpu_failure *f);
int ptc_gpu_cuda_copied(struct ptc_gpu *g, unsigned copier, struct ptc_gpu_failure *f);
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
/* Moves a box to or from the slot's device memory, in the order of the stream; at most a slot's bytes. Of `size`, only
 * the sizes and the device's strides are used. */
CUresult ptc_gpu_launch_move(struct ptc_gpu *g, CUstream stream, enum ptc_gpu_direction direction, CUdeviceptr box,
			     const struct ptc_gpu_part *size, const struct ptc_gpu_slot *slot);
/* Computes a digest and waits for it. */
int ptc_gpu_launch_digest(struct ptc_gpu *g, CUdeviceptr base, const struct ptc_gpu_part *parts, size_t nparts,
			  uint64_t *ret_digest, struct ptc_gpu_failure *f);
/* Turns the driver's answer into a failure. */
#define ptc_gpu_check(g, result, f, ...) ptc_cuda_check((g)->cu, result, &(f)->fault, &(f)->err, __VA_ARGS__)
