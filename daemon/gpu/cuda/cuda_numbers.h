/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of the CUDA driver's binary interface, as lists. cuda_types.h turns the lists into constants, and
 * test_cuda_abi.c compares them with a toolkit's <cuda.h> where there is one. */
#pragma once

/* X(name, value) */
#define PTC_CUDA_NUMBERS(X)                                                                                            \
	X(CUDA_SUCCESS, 0)                                                                                             \
	X(CUDA_ERROR_INVALID_VALUE, 1)                                                                                 \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                                 \
	X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                                               \
	X(CUDA_ERROR_STUB_LIBRARY, 34)                                                                                 \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                                                                           \
	X(CUDA_ERROR_NO_DEVICE, 100)                                                                                   \
	X(CUDA_ERROR_INVALID_DEVICE, 101)                                                                              \
	X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                                             \
	X(CUDA_ERROR_INVALID_IMAGE, 200)                                                                               \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                                                           \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                                                                     \
	X(CUDA_ERROR_INVALID_PTX, 218)                                                                                 \
	X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221)                                                                      \
	X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)                                                                     \
	X(CUDA_ERROR_MAP_FAILED, 205)                                                                                  \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                                                           \
	X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)                                                                        \
	X(CUDA_ERROR_CONTAINED, 226)                                                                                   \
	X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                                                            \
	X(CUDA_ERROR_INVALID_HANDLE, 400)                                                                              \
	X(CUDA_ERROR_NOT_FOUND, 500)                                                                                   \
	X(CUDA_ERROR_NOT_READY, 600)                                                                                   \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                                             \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                                                                              \
	X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)                                                                 \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                                                                        \
	X(CUDA_ERROR_TOO_MANY_PEERS, 711)                                                                              \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                                              \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                                                                  \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)                                                                        \
	X(CUDA_ERROR_LAUNCH_FAILED, 719)                                                                               \
	X(CUDA_ERROR_NOT_PERMITTED, 800)                                                                               \
	X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                                               \
	X(CUDA_ERROR_SYSTEM_NOT_READY, 802)                                                                            \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)                                                                      \
	X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)                                                                       \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                                                                  \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)                                                                     \
	X(CUDA_ERROR_UNKNOWN, 999)                                                                                     \
	X(CU_GET_PROC_ADDRESS_DEFAULT, 0)                                                                              \
	X(CU_GET_PROC_ADDRESS_SUCCESS, 0)                                                                              \
	X(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, 1)                                                                     \
	X(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, 2)                                                               \
	X(CU_DEVICE_ATTRIBUTE_MAX_PITCH, 11)                                                                           \
	X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                                                \
	X(CU_POINTER_ATTRIBUTE_CONTEXT, 1)                                                                             \
	X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                                                                         \
	X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)                                                                           \
	X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)                                                                          \
	X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                                                                      \
	X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10)                                                         \
	X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14)                                                               \
	X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17)                                                                     \
	X(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 18)                                                                       \
	X(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 19)                                                                  \
	X(CU_MEMORYTYPE_HOST, 1)                                                                                       \
	X(CU_MEMORYTYPE_DEVICE, 2)                                                                                     \
	X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)                                                                       \
	X(CU_MEMHOSTALLOC_PORTABLE, 1)                                                                                 \
	X(CU_MEMHOSTREGISTER_PORTABLE, 1)                                                                              \
	X(CU_MEMHOSTREGISTER_DEVICEMAP, 2)                                                                             \
	X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                                                                 \
	X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                                                       \
	X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                                                              \
	X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)                                                                     \
	X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                                                            \
	X(CU_STREAM_CAPTURE_STATUS_NONE, 0)                                                                            \
	X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)                                                                          \
	X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                                                           \
	X(CU_STREAM_SET_CAPTURE_DEPENDENCIES, 1)                                                                       \
	X(CU_STREAM_MEM_OP_WRITE_VALUE_64, 5)                                                                          \
	X(CU_STREAM_WAIT_VALUE_GEQ, 0)                                                                                 \
	X(CU_STREAM_NON_BLOCKING, 1)                                                                                   \
	X(CU_EVENT_DISABLE_TIMING, 2)                                                                                  \
	X(CU_STREAM_WRITE_VALUE_DEFAULT, 0)

/* X(type, size) and X(type, field, offset), x86-64 and every other LP64 */
#define PTC_CUDA_SIZES(X)                                                                                              \
	X(CUresult, 4)                                                                                                 \
	X(CUdevice, 4)                                                                                                 \
	X(CUdeviceptr, 8)                                                                                              \
	X(CUmemGenericAllocationHandle, 8)                                                                             \
	X(CUdevice_attribute, 4)                                                                                       \
	X(CUpointer_attribute, 4)                                                                                      \
	X(CUmemorytype, 4)                                                                                             \
	X(CUmemAllocationHandleType, 4)                                                                                \
	X(CUdriverProcAddressQueryResult, 4)                                                                           \
	X(CUmemAllocationGranularity_flags, 4)                                                                         \
	X(CUstreamCaptureStatus, 4)                                                                                    \
	X(CUstreamCaptureMode, 4)                                                                                      \
	X(CUstreamBatchMemOpParams, 48)                                                                                \
	X(CUDA_BATCH_MEM_OP_NODE_PARAMS, 32)                                                                           \
	X(CUuuid, 16)                                                                                                  \
	X(CUipcMemHandle, 64)                                                                                          \
	X(CUmemAllocationProp, 32)                                                                                     \
	X(CUmemAccessDesc, 12)                                                                                         \
	X(CUDA_MEMCPY3D, 200)
#define PTC_CUDA_OFFSETS(X)                                                                                            \
	X(CUmemAllocationProp, requestedHandleTypes, 4)                                                                \
	X(CUmemAllocationProp, location, 8)                                                                            \
	X(CUmemAllocationProp, win32HandleMetaData, 16)                                                                \
	X(CUmemAllocationProp, allocFlags, 24)                                                                         \
	X(CUmemAccessDesc, flags, 8)                                                                                   \
	X(CUstreamBatchMemOpParams, writeValue.address, 8)                                                             \
	X(CUstreamBatchMemOpParams, writeValue.value64, 16)                                                            \
	X(CUstreamBatchMemOpParams, writeValue.flags, 24)                                                              \
	X(CUDA_BATCH_MEM_OP_NODE_PARAMS, count, 8)                                                                     \
	X(CUDA_BATCH_MEM_OP_NODE_PARAMS, paramArray, 16)                                                               \
	X(CUDA_BATCH_MEM_OP_NODE_PARAMS, flags, 24)                                                                    \
	X(CUDA_MEMCPY3D, srcMemoryType, 32)                                                                            \
	X(CUDA_MEMCPY3D, srcHost, 40)                                                                                  \
	X(CUDA_MEMCPY3D, srcDevice, 48)                                                                                \
	X(CUDA_MEMCPY3D, srcPitch, 72)                                                                                 \
	X(CUDA_MEMCPY3D, srcHeight, 80)                                                                                \
	X(CUDA_MEMCPY3D, dstMemoryType, 120)                                                                           \
	X(CUDA_MEMCPY3D, dstHost, 128)                                                                                 \
	X(CUDA_MEMCPY3D, dstDevice, 136)                                                                               \
	X(CUDA_MEMCPY3D, dstPitch, 160)                                                                                \
	X(CUDA_MEMCPY3D, dstHeight, 168)                                                                               \
	X(CUDA_MEMCPY3D, WidthInBytes, 176)                                                                            \
	X(CUDA_MEMCPY3D, Depth, 192)
