/* SPDX-License-Identifier: Apache-2.0 */
/* What ptc-gpu does with one device, as a table of functions: `cuda` (gpu_cuda.c) on the driver, `null` (gpu_null.c)
 * where there is none. ptc-gpu runs one thread for each device it uses; every call about a device is made on its
 * thread.
 *
 * Owned: struct ptc_gpu by its thread from attach to detach; struct ptc_gpu_memory by the device, from map to unmap.
 * Errors: a failure holds what to say and what counts as failed. After a sticky one nothing but detach may be called.
 */
#pragma once

#include "daemon/gpu/cuda/gpu_export.h"

#include <stdatomic.h>

struct ptc_gpu;        /* a device with a context */
struct ptc_gpu_memory; /* a rank's allocation, mapped */

struct ptc_gpu_failure {
	struct ptc_cuda_fault fault;
	struct ptc_error err;
};

/* Page-locked host memory, of all devices together: reserved before it is locked. */
struct ptc_gpu_budget {
	uint64_t max;
	_Atomic uint64_t used;
};
int ptc_gpu_budget_take(struct ptc_gpu_budget *b, uint64_t bytes, struct ptc_error *err); /* PTC_ENOSPC */
void ptc_gpu_budget_give(struct ptc_gpu_budget *b, uint64_t bytes);

/* A strided box of at most three dimensions: depth slices of height rows of width bytes. device_row and device_slice
 * are the bytes from one row or slice to the next on the device, other_* the same on the other side, which is host
 * memory for a copy and the logical tensor for a digest. Unused dimensions are 1. Rows do not overlap. */
struct ptc_gpu_part {
	uint64_t device_at; /* of the first byte, from the beginning of the mapped memory */
	uint64_t other_at;  /* copy: of the first byte, from the beginning of the host map; digest: the tensor's bytes
			       after the  box's last byte */
	uint64_t width, height, depth;
	uint64_t device_row, device_slice;
	uint64_t other_row, other_slice;
};

struct ptc_gpu_host {
	unsigned char *base;
	bool pinned; /* page-locked as a whole: copies need no ring */
};

enum ptc_gpu_direction { PTC_GPU_OUT, PTC_GPU_IN };

struct ptc_gpu_ops {
	const char *name;
	/* A context on the device, and its ring of pinned memory, taken from the budget. */
	int (*attach)(const char *uuid, struct ptc_gpu_budget *budget, struct ptc_gpu **ret, struct ptc_gpu_failure *f);
	void (*detach)(struct ptc_gpu *g); /* unmaps what is mapped */
	/* IPC: maps. VMM: reserves addresses; the memory is there once map_handles has been given every handle. */
	int (*map)(struct ptc_gpu *g, const struct ptc_gpu_export *e, struct ptc_gpu_memory **ret,
		   struct ptc_gpu_failure *f);
	/* The next n handles in order. The caller closes the descriptors. */
	int (*map_handles)(struct ptc_gpu *g, struct ptc_gpu_memory *m, const int *fds, unsigned n,
			   struct ptc_gpu_failure *f);
	/* m is freed in any case. A failure is sticky: the driver may hold the memory until the process ends. unpin
	 * alike. */
	int (*unmap)(struct ptc_gpu *g, struct ptc_gpu_memory *m, struct ptc_gpu_failure *f);
	/* The caller has taken the bytes from the budget. */
	int (*pin)(struct ptc_gpu *g, void *p, uint64_t bytes, struct ptc_gpu_failure *f);
	int (*unpin)(struct ptc_gpu *g, void *p, struct ptc_gpu_failure *f);
	/* Returns when the bytes have arrived. Parts were checked against both sides. */
	int (*copy)(struct ptc_gpu *g, struct ptc_gpu_memory *m, enum ptc_gpu_direction direction,
		    const struct ptc_gpu_host *host, const struct ptc_gpu_part *parts, size_t nparts,
		    struct ptc_gpu_failure *f);
	/* XOR of what the parts contribute to their tensor's digest (base/number/digest.h). */
	int (*digest)(struct ptc_gpu *g, struct ptc_gpu_memory *m, const struct ptc_gpu_part *parts, size_t nparts,
		      uint64_t *ret_digest, struct ptc_gpu_failure *f);
};

/* The driver's, or the null backend when there is none. *ret_why says why it is null, "" else; it lives until exit. */
const struct ptc_gpu_ops *ptc_gpu_backend(const char **ret_why);
extern const struct ptc_gpu_ops ptc_gpu_cuda_ops;
const struct ptc_gpu_ops *ptc_gpu_null_ops(int status, const char *why);

/* A failure that is not the driver's. Returns status. */
int ptc_gpu_fail(struct ptc_gpu_failure *f, int status, enum ptc_gpu_blame blame, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
