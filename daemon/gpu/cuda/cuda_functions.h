/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the CUDA driver that we call, as one list. cuda_driver.h makes a table of pointers from it, and
 * cuda_driver.c fills the table. The fake driver under tests/ implements the functions. test_cuda_abi.c compares them
 * with a toolkit's headers.
 *
 * X(name, version, parameters): `version` is the CUDA version (1000 * major + 10 * minor) in which this form of the
 * function appeared. cuGetProcAddress gives the newest form that is not newer. So it gives exactly the form declared
 * here, whatever suffix the driver's symbol has. All functions return CUresult. */
#pragma once

/* Functions that ptc-gpu calls, and those with which a process describes the device memory that it owns (gpu_export.h).
 */
#define PTC_CUDA_FUNCTIONS(X)                                                                                          \
	X(cuInit, 2000, (unsigned flags))                                                                              \
	X(cuGetErrorName, 6000, (CUresult error, const char **name))                                                   \
	X(cuDeviceGetCount, 2000, (int *count))                                                                        \
	X(cuDeviceGet, 2000, (CUdevice * device, int ordinal))                                                         \
	X(cuDeviceGetUuid, 11040, (CUuuid * uuid, CUdevice device))                                                    \
	X(cuDeviceGetAttribute, 2000, (int *value, CUdevice_attribute attribute, CUdevice device))                     \
	X(cuDevicePrimaryCtxRetain, 7000, (CUcontext * context, CUdevice device))                                      \
	X(cuDevicePrimaryCtxRelease, 11000, (CUdevice device))                                                         \
	X(cuCtxSetCurrent, 4000, (CUcontext context))                                                                  \
	X(cuCtxGetId, 12000, (CUcontext context, unsigned long long *id))                                              \
	X(cuDeviceCanAccessPeer, 4000, (int *can, CUdevice device, CUdevice peer))                                     \
	X(cuCtxEnablePeerAccess, 4000, (CUcontext peer, unsigned flags))                                               \
	X(cuMemGetAddressRange, 3020, (CUdeviceptr * base, size_t * size, CUdeviceptr address))                        \
	X(cuMemHostAlloc, 2020, (void **p, size_t size, unsigned flags))                                               \
	X(cuMemFreeHost, 2000, (void *p))                                                                              \
	X(cuMemHostRegister, 6050, (void *p, size_t size, unsigned flags))                                             \
	X(cuMemHostUnregister, 4000, (void *p))                                                                        \
	X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr * address, void *p, unsigned flags))                           \
	X(cuPointerGetAttributes, 7000,                                                                                \
	  (unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr address))                         \
	X(cuIpcGetMemHandle, 4010, (CUipcMemHandle * handle, CUdeviceptr address))                                     \
	X(cuIpcOpenMemHandle, 11000, (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags))                   \
	X(cuIpcCloseMemHandle, 4010, (CUdeviceptr address))                                                            \
	X(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle * handle, void *address))                  \
	X(cuMemExportToShareableHandle, 10020,                                                                         \
	  (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,                       \
	   unsigned long long flags))                                                                                  \
	X(cuMemImportFromShareableHandle, 10020,                                                                       \
	  (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type))                    \
	X(cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))                                                  \
	X(cuMemAddressReserve, 10020,                                                                                  \
	  (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags))          \
	X(cuMemAddressFree, 10020, (CUdeviceptr address, size_t size))                                                 \
	X(cuMemMap, 10020,                                                                                             \
	  (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,                       \
	   unsigned long long flags))                                                                                  \
	X(cuMemUnmap, 10020, (CUdeviceptr address, size_t size))                                                       \
	X(cuMemSetAccess, 10020, (CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count))      \
	X(cuMemcpyDtoHAsync, 3020, (void *to, CUdeviceptr from, size_t size, CUstream stream))                         \
	X(cuMemcpyHtoDAsync, 3020, (CUdeviceptr to, const void *from, size_t size, CUstream stream))                   \
	X(cuMemcpy3DAsync, 3020, (const CUDA_MEMCPY3D *copy, CUstream stream))                                         \
	X(cuStreamCreateWithPriority, 5050, (CUstream * stream, unsigned flags, int priority))                         \
	X(cuStreamDestroy, 4000, (CUstream stream))                                                                    \
	X(cuStreamSynchronize, 2000, (CUstream stream))                                                                \
	X(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned flags))                                   \
	X(cuStreamWriteValue64, 11070, (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags))       \
	X(cuEventCreate, 2000, (CUevent * event, unsigned flags))                                                      \
	X(cuEventDestroy, 4000, (CUevent event))                                                                       \
	X(cuEventRecord, 2000, (CUevent event, CUstream stream))                                                       \
	X(cuMemAlloc, 3020, (CUdeviceptr * address, size_t size))                                                      \
	X(cuMemFree, 3020, (CUdeviceptr address))                                                                      \
	X(cuMemGetInfo, 3020, (size_t * free, size_t * total))                                                         \
	X(cuMemsetD8Async, 3020, (CUdeviceptr address, unsigned char value, size_t size, CUstream stream))             \
	X(cuModuleLoadData, 2000, (CUmodule * module, const void *image))                                              \
	X(cuModuleUnload, 2000, (CUmodule module))                                                                     \
	X(cuModuleGetFunction, 2000, (CUfunction * function, CUmodule module, const char *name))                       \
	X(cuLaunchKernel, 4000,                                                                                        \
	  (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
	   unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra))                 \
	X(cuEventSynchronize, 2000, (CUevent event))

/* Functions that only libptc calls, in a trainer's process. libptc has its own code to find them (client/lib/device).
 */
#define PTC_CUDA_CLIENT_FUNCTIONS(X)                                                                                   \
	X(cuCtxGetCurrent, 4000, (CUcontext * context))                                                                \
	X(cuCtxPushCurrent, 4000, (CUcontext context))                                                                 \
	X(cuCtxPopCurrent, 4000, (CUcontext * context))                                                                \
	X(cuCtxGetDevice, 2000, (CUdevice * device))                                                                   \
	X(cuDevicePrimaryCtxGetState, 7000, (CUdevice device, unsigned *flags, int *active))                           \
	X(cuCtxSynchronize, 2000, (void))                                                                              \
	X(cuStreamQuery, 2000, (CUstream stream))                                                                      \
	X(cuStreamIsCapturing, 10000, (CUstream stream, CUstreamCaptureStatus * status))                               \
	X(cuStreamGetCaptureInfo, 11030,                                                                               \
	  (CUstream stream, CUstreamCaptureStatus * status, cuuint64_t * id, CUgraph * graph,                          \
	   const CUgraphNode **dependencies, size_t *count))                                                           \
	X(cuStreamUpdateCaptureDependencies, 11030,                                                                    \
	  (CUstream stream, CUgraphNode * dependencies, size_t count, unsigned flags))                                 \
	X(cuGraphAddBatchMemOpNode, 11070,                                                                             \
	  (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies, size_t count,                           \
	   const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters))                                                           \
	X(cuMemGetAllocationGranularity, 10020,                                                                        \
	  (size_t * granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option))            \
	X(cuMemCreate, 10020,                                                                                          \
	  (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,                        \
	   unsigned long long flags))                                                                                  \
	X(cuMemcpyDtoH, 3020, (void *to, CUdeviceptr from, size_t size))                                               \
	X(cuMemcpyHtoD, 3020, (CUdeviceptr to, const void *from, size_t size))

/* Functions that only the trainers of our tests call. */
#define PTC_CUDA_TRAINER_FUNCTIONS(X)                                                                                  \
	X(cuCtxCreate, 3020, (CUcontext * context, unsigned flags, CUdevice device))                                   \
	X(cuCtxDestroy, 4000, (CUcontext context))                                                                     \
	X(cuMemAllocAsync, 11020, (CUdeviceptr * address, size_t size, CUstream stream))                               \
	X(cuMemFreeAsync, 11020, (CUdeviceptr address, CUstream stream))                                               \
	X(cuStreamWaitValue64, 11070, (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags))        \
	X(cuStreamBeginCapture, 10010, (CUstream stream, CUstreamCaptureMode mode))                                    \
	X(cuStreamEndCapture, 10000, (CUstream stream, CUgraph * graph))                                               \
	X(cuGraphInstantiateWithFlags, 11040, (CUgraphExec * exec, CUgraph graph, unsigned long long flags))           \
	X(cuGraphLaunch, 10000, (CUgraphExec exec, CUstream stream))                                                   \
	X(cuGraphExecDestroy, 10000, (CUgraphExec exec))                                                               \
	X(cuGraphDestroy, 10000, (CUgraph graph))
