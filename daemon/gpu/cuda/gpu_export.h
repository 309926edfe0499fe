/* SPDX-License-Identifier: Apache-2.0 */
/* Describes device memory so that ptc-gpu can map it. The process that owns the memory, a trainer, calls these
 * functions.
 *
 * A binding is a device address and a length. ptc_gpu_export finds the allocation that has them, and the way to share
 * it:
 * - PTC_GPU_PATH_IPC: made by cuMemAlloc; one handle of 64 bytes for the whole allocation.
 * - PTC_GPU_PATH_VMM: mapped by cuMemMap (PyTorch's expandable segments); one descriptor for each of its handles.
 * - PTC_GPU_PATH_TRAINER: neither; only the owner can copy the memory, and `why` says the reason.
 *
 * ptc_gpu_export_fds makes descriptors in batches. They belong to the caller, who closes each batch once it is sent.
 *
 * Threads: any with the memory's context current. Failure modes: it is not device memory (PTC_EINVAL); the driver
 * refuses (its fault's code). */
#pragma once

#include "daemon/gpu/cuda/cuda_driver.h"

#define PTC_GPU_FDS_MAX     253   /* descriptors of one message: the kernel's SCM_MAX_FD */
#define PTC_GPU_HANDLES_MAX 65536 /* handles of one binding: 128 GiB of 2 MiB handles */
#define PTC_GPU_UUID_SIZE   48

enum ptc_gpu_path { PTC_GPU_PATH_IPC = 1, PTC_GPU_PATH_VMM, PTC_GPU_PATH_TRAINER, PTC_GPU_PATH_OWN /* of ptc-gpu */ };

/* An exported allocation. It goes over sockets as raw bytes, because both ends are of one package and one machine. */
struct ptc_gpu_export {
	uint32_t path; /* enum ptc_gpu_path */
	/* in the owner's namespace; a process that passes the struct on writes the pid of the owner's socket here */
	uint32_t pid;
	/* With pid and uuid, these identify the allocation. An address that is used again after a free has another
	 * buffer. */
	uint64_t process_start; /* clock ticks since boot, /proc/PID/stat */
	uint64_t context;
	uint64_t buffer;
	uint64_t bytes;               /* bytes that get mapped: the allocation, or all handles under the range */
	uint64_t offset;              /* of the bound range in these bytes */
	uint64_t handles;             /* VMM: number of handles */
	uint64_t handle_bytes;        /* VMM: bytes of each; handles of different sizes are not shared */
	char uuid[PTC_GPU_UUID_SIZE]; /* of the device: "GPU-…" */
	unsigned char ipc[64];
	char why[96]; /* TRAINER: the reason */
};

int ptc_gpu_export(const struct ptc_cuda *cu, uint64_t address, uint64_t bytes, struct ptc_gpu_export *ret,
		   struct ptc_error *err);
/* Gives descriptors of `count` handles (at most PTC_GPU_FDS_MAX) from `first` on. On failure none is left open. */
int ptc_gpu_export_fds(const struct ptc_cuda *cu, uint64_t address, const struct ptc_gpu_export *e, uint64_t first,
		       unsigned count, int *ret_fds, struct ptc_error *err);
/* A device's identity as NVML writes it. */
int ptc_gpu_uuid(const struct ptc_cuda *cu, CUdevice device, char ret_uuid[PTC_GPU_UUID_SIZE], struct ptc_error *err);
/* The time when a process began. PTC_ENOTFOUND: there is no such process, or it is a zombie. */
int ptc_gpu_process_start(uint32_t pid, uint64_t *ret_start, struct ptc_error *err);
