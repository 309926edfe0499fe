/* SPDX-License-Identifier: Apache-2.0 */
/* Lets a C compiler take gpu_kernels.cu: each part of CUDA's language that it uses is a macro here. A kernel becomes a
 * function that does the work of one thread. The including file sets `kernel_at` and calls that function for each
 * thread in turn (tests/gpu/fake_kernels.c, test_gpu_kernels.c). No kernel waits for another thread, so any order gives
 * the same bytes. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define KERNEL             extern "C" __global__ void
#define DEVICE             static __device__ __forceinline__
#define DEVICE_CALL        static __device__ __noinline__
#define BOUNDS(threads, n) __launch_bounds__(threads, n) /* n blocks share a multiprocessor */
#define UNROLL             _Pragma("unroll")
#define ROLLED             _Pragma("unroll 1")
#define AT(type, address)  ((type *)(address))
#define SWAP32(x)          __byte_perm(x, 0, 0x0123)
#define XOR_INTO(p, value) atomicXor((unsigned long long *)(p), (unsigned long long)(value))
#define THREAD             ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS            ((uint64_t)gridDim.x * blockDim.x)
#else
struct kernel_at {
	uint64_t thread, threads;
};
static __thread struct kernel_at kernel_at;
#define KERNEL      static void
#define DEVICE      static inline
#define DEVICE_CALL static
#define BOUNDS(threads, n)
#define UNROLL
#define ROLLED
#define AT(type, address)  ((type *)(uintptr_t)(address))
#define SWAP32(x)          __builtin_bswap32(x)
#define XOR_INTO(p, value) (*(p) ^= (value))
#define THREAD             kernel_at.thread
#define THREADS            kernel_at.threads
#endif
