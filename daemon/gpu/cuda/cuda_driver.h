/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, found at run time: libcuda.so.1 by dlopen, each function of cuda_functions.h by cuGetProcAddress in
 * the version we declare. Nothing of ours is linked against it, so the same packages run on nodes without it.
 *
 * ptc_cuda_open loads the driver once for the process and never unloads it. Any thread. The table lives until exit.
 *
 * Failure modes: no driver (PTC_ENODEVICES), one older than PTC_CUDA_VERSION_MIN (PTC_EVERSION), a driver that cannot
 * start (ptc_cuda_fault). All leave the process usable without a GPU. */
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

/* What has to be treated as failed. */
enum ptc_gpu_blame {
	PTC_GPU_BLAME_NONE,
	PTC_GPU_BLAME_REQUEST, /* this request alone; the next one may succeed */
	PTC_GPU_BLAME_RANK,    /* the process whose memory it is */
	PTC_GPU_BLAME_DEVICE,
	PTC_GPU_BLAME_NODE, /* its driver */
};

struct ptc_cuda_fault {
	int status; /* enum ptc_status */
	enum ptc_gpu_blame blame;
	bool sticky; /* the context is gone: every later call of this process fails, so the process has to be replaced
		      */
};

int ptc_cuda_open(const struct ptc_cuda **ret, struct ptc_error *err);
/* One more function of the driver, by its name and version (as in cuda_functions.h). */
int ptc_cuda_resolve(const char *name, int version, void **ret, struct ptc_error *err);
/* What a result of the driver means. The only place where CUDA's numbers are translated. */
struct ptc_cuda_fault ptc_cuda_fault(CUresult result);
/* 0 for CUDA_SUCCESS. Else the fault's status, with "what: NAME (number): advice" in err and the fault in *ret_fault.
 * cu and ret_fault may be NULL. */
int ptc_cuda_check(const struct ptc_cuda *cu, CUresult result, struct ptc_cuda_fault *ret_fault, struct ptc_error *err,
		   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
const char *ptc_gpu_blame_name(enum ptc_gpu_blame blame);
