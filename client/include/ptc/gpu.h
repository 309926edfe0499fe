/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: what a program says of its device, and device memory for state. ptc/ptc.h includes this header.
 *
 * ptc_pool_alloc gives memory that ptc-gpu can map wherever the driver exports descriptors, also in containers and for
 * ranks of other users, where CUDA's IPC handles may not work. ptcd holds the descriptors until the generation ends, so
 * the device keeps the memory when the rank is killed. The functions have the form that
 * torch.cuda.memory.CUDAPluggableAllocator wants, and ptc.torch.state_pool() uses them so.
 *
 * The library uses the CUDA driver that the program has loaded. Failure modes: where there is none, or it cannot do
 * what is wanted, the functions say so and stops go on as without them. */
#ifndef PTC_GPU_H
#define PTC_GPU_H

#include <ptc/result.h>
#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ptc_client ptc_client;

/* Names the CUDA stream (a CUstream or cudaStream_t; NULL: the default stream) in whose order the program's device
 * changes declared memory: work on other streams has to be joined to it before ptc_boundary, and has to wait, at
 * ptc_update_begin, for the work that is queued on it. Name it before a CUDA graph with an update is captured: captured
 * before that, ptc_update_begin knows of no stream and puts no mark into the graph. Nobody can find that out later. The
 * device's marks would then say that the state is whole in the middle of a launch. Such a graph needs ptc_update_begin
 * before each launch. Its device has to be current on the thread. From then on ptc_boundary and ptc_update_begin also
 * have the device write a mark, in the order of the stream, without waiting for it (some microseconds). So a stop waits
 * for the mark and not for the whole device, which may hang in a collective. Call it after ptc_next, in each
 * generation. 1: marks are in use. 0: they are not, and stops wait for the whole device, as without this call: there is
 * no driver or no current device, the driver cannot do it, another stream was named in this generation, or the stream
 * is capturing a CUDA graph. */
PTC_API int ptc_stream(ptc_client *c, void *stream);
/* For an update in a CUDA graph, in the place of ptc_update_begin: call it while `stream` captures the graph, before
 * the first change of declared memory is captured. Then each launch of the graph clears the device's mark first. Launch
 * the graph in the order of the stream of ptc_stream. If that stream itself captures the graph, ptc_update_begin does
 * the same. 1: the mark is in the graph. 0: no stream was named before, or the driver cannot do it; there are no marks
 * in this generation then, and stops wait for the whole device. PTC_R_INVALID: `stream` captures no graph; or after
 * ptc_survive, with which ptc_update_begin has to be called before each launch. */
PTC_API int ptc_update_captured(ptc_client *c, void *stream);
/* `size` bytes on CUDA's device number `device`, which is current on the thread: one handle for each call, so rounded
 * up to 2 MiB. NULL: no memory, or no driver. Where the driver exports no descriptors the memory is plain, and the rank
 * copies it itself (docs/gpu.md). stream: not used. Any thread. */
PTC_API void *ptc_pool_alloc(ssize_t size, int device, void *stream);
/* Frees what ptc_pool_alloc returned; NULL ok. Waits for the device first, as cudaFree does. Only `p` is used. */
PTC_API void ptc_pool_free(void *p, size_t size, int device, void *stream);
#ifdef __cplusplus
}
#endif
#endif
