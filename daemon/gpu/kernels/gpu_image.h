/* SPDX-License-Identifier: Apache-2.0 */
/* The image of the kernels that the driver loads: a fat binary for sm_80, sm_90, sm_100 and PTX. It is built where
 * CMake finds nvcc, and is part of ptc-gpu. Without it, the driver's strided copies move boxes, and the CPU computes
 * digests.
 *
 * PTC_GPU_KERNELS in the environment names a file with another image; "off" means none. The image lives until exit. Any
 * thread. There are no failure modes; if there is no image, *ret_why says the reason. ret_why may be NULL. */
#pragma once

#include <stddef.h>

/* NULL: no image. */
const void *ptc_gpu_image(const char **ret_why);
