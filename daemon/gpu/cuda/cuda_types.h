/* SPDX-License-Identifier: Apache-2.0 */
/* The types of the CUDA driver's binary interface, as far as we use them.
 *
 * Debian's main section has no <cuda.h>, and a package must be built alike with and without it. So we declare the types
 * ourselves. Where a toolkit is installed, test_cuda_abi.c compiles cuda_functions.h and cuda_numbers.h against its
 * headers. It compares every function's type and version, every number, and every struct's size and offsets. */
#pragma once

#include "daemon/gpu/cuda/cuda_numbers.h"

#include <stddef.h>
#include <stdint.h>

typedef int CUresult; /* an enum of the same size in <cuda.h>; numbers we do not name occur */
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUarray_st *CUarray;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

typedef unsigned CUdevice_attribute;
typedef unsigned CUpointer_attribute;
typedef unsigned CUmemorytype;
typedef unsigned CUmemAllocationType;
typedef unsigned CUmemAllocationHandleType;
typedef unsigned CUmemLocationType;
typedef unsigned CUmemAccess_flags;
typedef unsigned CUdriverProcAddressQueryResult;
typedef unsigned CUstreamCaptureStatus;
typedef unsigned CUstreamCaptureMode;
typedef unsigned CUmemAllocationGranularity_flags;

typedef struct {
	char bytes[16];
} CUuuid;

typedef struct {
	char reserved[64];
} CUipcMemHandle;

typedef struct {
	CUmemLocationType type;
	int id;
} CUmemLocation;

typedef struct {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct {
	size_t srcXInBytes, srcY, srcZ, srcLOD;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	void *reserved0;
	size_t srcPitch, srcHeight;
	size_t dstXInBytes, dstY, dstZ, dstLOD;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	void *reserved1;
	size_t dstPitch, dstHeight;
	size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

/* Of the members of the driver's union, only the one that writes a value is declared. */
typedef union {
	unsigned operation;
	struct {
		unsigned operation;
		CUdeviceptr address;
		union {
			uint32_t value;
			cuuint64_t value64;
		};
		unsigned flags;
		CUdeviceptr alias;
	} writeValue;
	cuuint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef struct {
	CUcontext ctx;
	unsigned count;
	CUstreamBatchMemOpParams *paramArray;
	unsigned flags;
} CUDA_BATCH_MEM_OP_NODE_PARAMS;

#define PTC_CUDA_ENUM(name, value) name = (value),
enum { PTC_CUDA_NUMBERS(PTC_CUDA_ENUM) };
#undef PTC_CUDA_ENUM
