/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, found at run time: dlopen of libcuda.so.1, and cuGetProcAddress for each function of
 * cuda_functions.h in the version that we declare. Nothing of ours is linked against the driver, so the same packages
 * run on nodes without it.
 *
 * ptc_cuda_open loads the driver once for the process and never unloads it. The table lives until exit. Any thread.
 *
 * Failure modes: there is no driver (PTC_ENODEVICES), it is older than PTC_CUDA_VERSION_MIN (PTC_EVERSION), or it
 * cannot start (ptc_cuda_fault). After any of these, the process works without a GPU. */
#pragma once

#include "base/status.h"
#include "daemon/gpu/cuda/cuda_functions.h"
#include "daemon/gpu/cuda/cuda_types.h"

#define PTC_CUDA_LIBRARY     "libcuda.so.1"
#define PTC_CUDA_VERSION_MIN 12000 /* cuGetProcAddress_v2, cuCtxGetId */

#define PTC_CUDA_FIELD(name, version, parameters) CUresult(*name) parameters;
struct ptc_cuda {
	int version; /* 1000 * major + 10 * minor: the newest CUDA the driver supports */
	PTC_CUDA_FUNCTIONS(PTC_CUDA_FIELD)
};

/* Which part must be treated as failed. */
enum ptc_gpu_blame {
	PTC_GPU_BLAME_NONE,
	PTC_GPU_BLAME_REQUEST, /* this request alone; the next one may succeed */
	PTC_GPU_BLAME_RANK,    /* the process that owns the memory */
	PTC_GPU_BLAME_DEVICE,
	PTC_GPU_BLAME_NODE, /* the node's driver */
};

struct ptc_cuda_fault {
	int status; /* enum ptc_status */
	enum ptc_gpu_blame blame;
	/* the context is gone and every later call of this process fails, so the process must be replaced */
	bool sticky;
};

int ptc_cuda_open(const struct ptc_cuda **ret, struct ptc_error *err);
/* Finds one more function of the driver, by its name and version (as in cuda_functions.h). */
int ptc_cuda_resolve(const char *name, int version, void **ret, struct ptc_error *err);
/* The meaning of a driver's result. Only this function translates CUDA's numbers. */
struct ptc_cuda_fault ptc_cuda_fault(CUresult result);
/* Returns 0 for CUDA_SUCCESS. Otherwise it returns the fault's status, and sets "what: NAME (number): advice" in err
 * and *ret_fault. cu and ret_fault may be NULL. */
int ptc_cuda_check(const struct ptc_cuda *cu, CUresult result, struct ptc_cuda_fault *ret_fault, struct ptc_error *err,
		   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
