/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the program's CUDA driver, as device.c has found them; for the files of this room. */
#pragma once

#include "client/lib/device/device.h"

#include "daemon/gpu/cuda/cuda_functions.h"
#include "daemon/gpu/cuda/cuda_types.h"

#define PTC_DEVICE_USED(X)                                                                                             \
	X(cuGetErrorName, 6000, (CUresult error, const char **name))                                                   \
	X(cuDeviceGet, 2000, (CUdevice * device, int ordinal))                                                         \
	X(cuDeviceGetUuid, 11040, (CUuuid * uuid, CUdevice device))                                                    \
	X(cuDevicePrimaryCtxRetain, 7000, (CUcontext * context, CUdevice device))                                      \
	X(cuDevicePrimaryCtxRelease, 11000, (CUdevice device))                                                         \
	X(cuCtxGetId, 12000, (CUcontext context, unsigned long long *id))                                              \
	X(cuMemGetAddressRange, 3020, (CUdeviceptr * base, size_t * size, CUdeviceptr address))                        \
	X(cuIpcGetMemHandle, 4010, (CUipcMemHandle * handle, CUdeviceptr address))                                     \
	X(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle * handle, void *address))                  \
	X(cuMemExportToShareableHandle, 10020,                                                                         \
	  (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,                       \
	   unsigned long long flags))                                                                                  \
	X(cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))                                                  \
	X(cuMemHostRegister, 6050, (void *p, size_t size, unsigned flags))                                             \
	X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr * address, void *p, unsigned flags))                           \
	X(cuMemAddressReserve, 10020,                                                                                  \
	  (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags))          \
	X(cuMemAddressFree, 10020, (CUdeviceptr address, size_t size))                                                 \
	X(cuMemMap, 10020,                                                                                             \
	  (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,                       \
	   unsigned long long flags))                                                                                  \
	X(cuMemUnmap, 10020, (CUdeviceptr address, size_t size))                                                       \
	X(cuMemSetAccess, 10020, (CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count))      \
	X(cuStreamWriteValue64, 11070, (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags))       \
	X(cuPointerGetAttributes, 7000,                                                                                \
	  (unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr address))

#define PTC_DEVICE_FIELD(name, version, parameters) CUresult(*name) parameters;
extern struct device_driver {
	PTC_DEVICE_USED(PTC_DEVICE_FIELD)
	PTC_CUDA_CLIENT_FUNCTIONS(PTC_DEVICE_FIELD)
} ptc_device_driver;

/* Whether the program uses the driver by now: only then may the functions be called. */
bool ptc_device_driver_loaded(void);
/* Says what has failed. Returns -1. */
int ptc_device_failed(const char *what, CUresult result, char *why, size_t size);
/* Calls fn with the context current, and makes the thread's own current again. */
CUresult ptc_device_in_context(void *context, CUresult (*fn)(void *arg), void *arg);
