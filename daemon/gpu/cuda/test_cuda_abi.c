/* SPDX-License-Identifier: Apache-2.0 */
/* Our declarations of the driver's interface against a toolkit's. Compiled twice: with PTC_TOOLKIT, where CMake finds a
 * toolkit, the lists are checked against <cuda.h> and <cudaTypedefs.h>; without it against our own types, so that a
 * number in a list cannot drift from the struct it describes. All of it is checked by the compiler. */
#ifdef PTC_TOOLKIT
#include <cuda.h>
#include <cudaTypedefs.h>
#include <stddef.h>

#include "daemon/gpu/cuda/cuda_functions.h"
#include "daemon/gpu/cuda/cuda_numbers.h"

/* The function's declared type is the toolkit's of that version. */
#define SAME_TYPE(name, version, parameters)                                                                           \
	typedef CUresult(*our_##name) parameters;                                                                      \
	_Static_assert(__builtin_types_compatible_p(our_##name, PFN_##name##_v##version), #name);
PTC_CUDA_FUNCTIONS(SAME_TYPE)
PTC_CUDA_CLIENT_FUNCTIONS(SAME_TYPE)
PTC_CUDA_TRAINER_FUNCTIONS(SAME_TYPE)
#else
#include "daemon/gpu/cuda/cuda_functions.h"
#include "daemon/gpu/cuda/cuda_types.h"
#endif

#define SAME_NUMBER(name, value)         _Static_assert((long long)(name) == (value), #name);
#define SAME_SIZE(type, size)            _Static_assert(sizeof(type) == (size), #type);
#define SAME_OFFSET(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field);
PTC_CUDA_NUMBERS(SAME_NUMBER)
PTC_CUDA_SIZES(SAME_SIZE)
PTC_CUDA_OFFSETS(SAME_OFFSET)

int main(void)
{
	return 0;
}
