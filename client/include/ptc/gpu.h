/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: what a program says of its device, and device memory for state. ptc/ptc.h includes this header.
 *
 * If the driver exports descriptors, ptc-gpu can map the memory of ptc_pool_alloc. This works in containers and for
 * ranks of other users, too, where CUDA's IPC handles may not work. ptcd holds the descriptors until the generation
 * ends, so the device keeps the memory when the rank is killed. The functions for memory have the form that
 * torch.cuda.memory.CUDAPluggableAllocator needs, for ptc.torch.state_pool().
 *
 * The library uses the CUDA driver that the program has loaded. Failure modes: if there is no driver, or the driver
 * cannot do what a function needs, ptc_stream and ptc_update_captured return 0, and ptc_pool_alloc returns NULL or
 * plain memory. Stops then work as if the function had not been called. */
#ifndef PTC_GPU_H
#define PTC_GPU_H

#include <ptc/result.h>
#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ptc_client ptc_client;

/* Names the CUDA stream (a CUstream or cudaStream_t; NULL: the default stream) on which the program changes declared
 * memory: all changes happen in the order of this stream. Before ptc_boundary, let this stream wait for your work on
 * other streams. After ptc_update_begin, let other streams wait for the work that is queued on this stream. From this
 * call on, ptc_boundary and ptc_update_begin make the device write a mark, in the order of the stream, and do not wait
 * for it; each call takes some microseconds. A mark is a number in host memory; it says up to where the device has done
 * the work of the stream. A stop then waits for the mark and not for the whole device, which may hang in a collective.
 * Call this after ptc_next, in each generation, on a thread where the stream's device is current. Call it before you
 * capture a CUDA graph with an update. A graph that was captured earlier does not clear the mark when it changes the
 * state. libptc cannot see that, and would take the state for whole in the middle of a launch. So call ptc_update_begin
 * before each launch of such a graph. 1: marks are in use. 0: they are not, and stops wait for the whole device. The
 * reason is one of these: there is no driver or no current device; the driver cannot write marks; another stream was
 * named in this generation; the stream is capturing a CUDA graph. */
PTC_API int ptc_stream(ptc_client *c, void *stream);
/* Takes the place of ptc_update_begin for an update in a CUDA graph. Call this while `stream` captures the graph,
 * before the first change of declared memory is captured. Each launch of the graph then clears the device's mark first.
 * Launch the graph in the order of the stream of ptc_stream. If that stream itself captures the graph, ptc_update_begin
 * has the same effect as this call. 1: the mark is in the graph. 0: no stream was named before, or the driver cannot
 * put a mark into a graph. This generation then has no marks, and stops wait for the whole device. PTC_R_INVALID:
 * `stream` captures no graph; or ptc_survive was called, after which each launch needs ptc_update_begin. */
PTC_API int ptc_update_captured(ptc_client *c, void *stream);
/* `size` bytes on CUDA's device number `device`, which is current on the thread. Each call makes one handle, whose size
 * is a multiple of 2 MiB. NULL: no memory, or no driver. Where the driver exports no descriptors the memory is plain,
 * and the rank copies it itself (docs/gpu.md). stream: not used. Any thread. */
PTC_API void *ptc_pool_alloc(ssize_t size, int device, void *stream);
/* Frees what ptc_pool_alloc returned; NULL ok. Waits for the device first, as cudaFree does. Only `p` is used. */
PTC_API void ptc_pool_free(void *p, size_t size, int device, void *stream);
#ifdef __cplusplus
}
#endif
#endif
