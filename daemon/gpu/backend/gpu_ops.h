/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of ptc-gpu on one device, as a table of functions: `cuda` (gpu_cuda.c) uses the driver, `null`
 * (gpu_null.c) is for nodes without one.
 *
 * Threads: ptc-gpu runs one thread for each device that it uses, and makes every call about a device on its thread, but
 * for `copy` and `copied`. Copies in one direction run at once, on threads that have called `enter`. Each of these
 * threads uses a copier of its own. Meanwhile the device's thread calls nothing but `packs` and `kernels`. Ownership:
 * the thread owns struct ptc_gpu from attach to detach; the device owns struct ptc_gpu_memory from map to unmap.
 * Failure modes: struct ptc_gpu_failure has the message and says what counts as failed. After a sticky failure, call
 * nothing but detach. */
#pragma once

#include "daemon/gpu/cuda/gpu_export.h"

#include <stdatomic.h>

struct ptc_gpu;        /* a device with a context */
struct ptc_gpu_memory; /* a rank's mapped allocation */

struct ptc_gpu_failure {
	struct ptc_cuda_fault fault;
	struct ptc_error err;
};

#define PTC_GPU_COPIERS_MAX  8                   /* copies of one device that run at once */
#define PTC_GPU_COPIER_BYTES ((uint64_t)8 << 20) /* page-locked for each of them, of each attached device */

/* A budget of page-locked host memory for all devices together. Bytes are reserved before they are locked. */
struct ptc_gpu_budget {
	uint64_t max;
	_Atomic uint64_t used;
};
int ptc_gpu_budget_take(struct ptc_gpu_budget *b, uint64_t bytes, struct ptc_error *err); /* PTC_ENOSPC */
void ptc_gpu_budget_give(struct ptc_gpu_budget *b, uint64_t bytes);

/* A strided box of at most three dimensions: `depth` slices of `height` rows of `width` bytes. device_row and
 * device_slice are the distances of rows and slices on the device, in bytes. other_* are the same on the other side:
 * host memory for a copy, the logical tensor for a digest. Unused dimensions are 1. Rows do not overlap. */
struct ptc_gpu_part {
	uint64_t device_at; /* of the first byte, from the begin of the mapped memory */
	/* For a copy: of the first byte, from the begin of the host map. For a digest: the tensor's bytes after the
	 * box's last byte. */
	uint64_t other_at;
	uint64_t width, height, depth;
	uint64_t device_row, device_slice;
	uint64_t other_row, other_slice;
};

struct ptc_gpu_host {
	unsigned char *base;
	/* Of the map, from its begin on: page-locked in pieces of `step` bytes, so copies need no ring. No copy of the
	 * driver's crosses the end of a piece. */
	uint64_t locked, step;
};

enum ptc_gpu_direction { PTC_GPU_OUT, PTC_GPU_IN };

struct ptc_gpu_ops {
	const char *name;
	/* Makes a context on the device, and its ring of pinned memory, which is taken from the budget. Each of
	 * `copiers` (1 to PTC_GPU_COPIERS_MAX) has a part of the ring, of PTC_GPU_COPIER_BYTES. */
	int (*attach)(const char *uuid, unsigned copiers, struct ptc_gpu_budget *budget, struct ptc_gpu **ret,
		      struct ptc_gpu_failure *f);
	void (*detach)(struct ptc_gpu *g); /* unmaps all memory first */
	/* IPC: maps the memory. VMM: reserves addresses; the memory is mapped once map_handles has got every handle. */
	int (*map)(struct ptc_gpu *g, const struct ptc_gpu_export *e, struct ptc_gpu_memory **ret,
		   struct ptc_gpu_failure *f);
	/* Maps the next n handles, in order. The caller closes the descriptors. */
	int (*map_handles)(struct ptc_gpu *g, struct ptc_gpu_memory *m, const int *fds, unsigned n,
			   struct ptc_gpu_failure *f);
	/* Frees m in any case. A failure is sticky, because the driver may hold the memory until the process ends. The
	 * same holds for unpin. */
	int (*unmap)(struct ptc_gpu *g, struct ptc_gpu_memory *m, struct ptc_gpu_failure *f);
	/* Page-locks memory. The caller has taken the bytes from the budget. */
	int (*pin)(struct ptc_gpu *g, void *p, uint64_t bytes, struct ptc_gpu_failure *f);
	int (*unpin)(struct ptc_gpu *g, void *p, struct ptc_gpu_failure *f);
	/* On a thread that copies, once: the device's context becomes the thread's. */
	int (*enter)(struct ptc_gpu *g, struct ptc_gpu_failure *f);
	/* Whether kernels are of use for a copy of these parts. */
	bool (*packs)(const struct ptc_gpu_part *parts, size_t nparts);
	/* Loads kernels, the first time. No copy is under way then. *ret_kernels: `copy` may use them. */
	int (*kernels)(struct ptc_gpu *g, bool *ret_kernels, struct ptc_gpu_failure *f);
	/* Begins a copy: when it returns, its last bytes may still be under way, and `copied` waits for them. The
	 * caller has checked the parts against both sides. copier: from 0 on, below attach's number. A copier has at
	 * most two copies that have begun and not ended. After a failure nothing of this copy is under way. */
	int (*copy)(struct ptc_gpu *g, unsigned copier, struct ptc_gpu_memory *m, enum ptc_gpu_direction direction,
		    const struct ptc_gpu_host *host, const struct ptc_gpu_part *parts, size_t nparts, bool kernels,
		    struct ptc_gpu_failure *f);
	/* Waits until the oldest copy that the copier has begun has ended. After a failure nothing of it is under way.
	 */
	int (*copied)(struct ptc_gpu *g, unsigned copier, struct ptc_gpu_failure *f);
	/* Takes memory of our own; unmap frees it. beside false: fails without kernels, because its digests would cross
	 * the link. beside true: needs no kernels, but a trainer goes on meanwhile, so a sixteenth of the device has to
	 * stay free (PTC_ENOSPC). */
	int (*keep)(struct ptc_gpu *g, uint64_t bytes, bool beside, struct ptc_gpu_memory **ret,
		    struct ptc_gpu_failure *f);
	/* Copies to memory of this device from other memory of this device, or from memory that another device keeps.
	 * The caller ensures that both stay until the call returns. In a part, device_* is the side of `to`. The caller
	 * has checked both sides. PTC_ENODEVICES: this device cannot map the other one's memory. */
	int (*copy_within)(struct ptc_gpu *g, struct ptc_gpu_memory *to, struct ptc_gpu_memory *from,
			   const struct ptc_gpu_part *parts, size_t nparts, struct ptc_gpu_failure *f);
	/* The XOR of the parts' shares of their tensor's digest (base/number/digest.h). */
	int (*digest)(struct ptc_gpu *g, struct ptc_gpu_memory *m, const struct ptc_gpu_part *parts, size_t nparts,
		      uint64_t *ret_digest, struct ptc_gpu_failure *f);
};

/* The driver's backend, or the null one if there is no driver. *ret_why says why it is null; otherwise it is "". The
 * text lives until exit. */
const struct ptc_gpu_ops *ptc_gpu_backend(const char **ret_why);
extern const struct ptc_gpu_ops ptc_gpu_cuda_ops;

/* Fills a failure that is not the driver's. Returns status. */
int ptc_gpu_fail(struct ptc_gpu_failure *f, int status, enum ptc_gpu_blame blame, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
#ifdef __clang_analyzer__
#define ptc_gpu_fail(...) PTC_NEVER_0(ptc_gpu_fail(__VA_ARGS__))
#endif
