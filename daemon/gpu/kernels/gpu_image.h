/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels as the driver loads them: a fat binary for sm_80, sm_90, sm_100 and PTX, made where CMake finds nvcc and
 * part of ptc-gpu. Without nvcc there are none: boxes are copied by the driver's strided copies, digests are computed
 * by the CPU.
 *
 * PTC_GPU_KERNELS in the environment: a file with another image, or "off" for none. It lives until exit. Any thread.
 *
 * Failure modes: none; where there is no image ret_why, which may be NULL, says the reason. */
#pragma once

#include <stddef.h>

/* NULL: no image. */
const void *ptc_gpu_image(const char **ret_why);
