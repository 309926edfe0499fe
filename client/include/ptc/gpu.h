/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: what a program says of its device. ptc/ptc.h includes this header.
 *
 * The library uses the CUDA driver that the program has loaded. Failure modes: where there is none, or it cannot do
 * what is wanted, the functions say so and stops go on as without them. */
#ifndef PTC_GPU_H
#define PTC_GPU_H

#include <ptc/result.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ptc_client ptc_client;

/* Names the CUDA stream (a CUstream or cudaStream_t; NULL: the default stream) in whose order the program's device
 * changes declared memory: work on other streams has to be joined to it before ptc_boundary, and has to wait for what
 * it has at ptc_update_begin. Its device has to be current on the thread. From then on ptc_boundary and
 * ptc_update_begin also have the device write a mark, in the order of the stream, without waiting for it (some
 * microseconds). So a stop waits for the mark and not for the whole device, which may hang in a collective. Call it
 * after ptc_next, in each generation. 1: marks are in use. 0: they are not, and stops wait for the whole device, as
 * without this call: there is no driver or no current device, the driver cannot do it, another stream was named in this
 * generation, or the stream is capturing a CUDA graph. ptc_update_begin within a capture ends marks, for its mark would
 * be written once, and not at each launch of the graph. */
PTC_API int ptc_stream(ptc_client *c, void *stream);
#ifdef __cplusplus
}
#endif
#endif
