/* SPDX-License-Identifier: Apache-2.0 */
/* Inside formats/dcp: names as pickles have them, and archives' members. No failure modes. */
#pragma once

#include "reshard/spec/spec.h"

/* "torch\nfloat32"; NULL: PyTorch has no such dtype. */
const char *ptc_torch_dtype_global(enum ptc_dtype dtype);
/* "torch\nFloatStorage"; NULL: torch.save writes bytes and the dtype. */
const char *ptc_torch_class_global(enum ptc_dtype dtype);

/* All names that may be in a checkpoint, as ptc_pickle_read takes them. */
extern const char *const ptc_torch_names[];
