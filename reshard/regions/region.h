/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: the boxes of an item that a rank holds, and their places in the rank's buffer. Data only; the function that
 * fills a struct says who frees it. */
#pragma once

#include "reshard/spec/spec.h"

/* A box of an item on a rank, and its place in the rank's dense buffer for that item. */
struct ptc_region {
	uint32_t item;
	bool padding;                     /* zeros, outside the logical shape; never stored or moved */
	struct ptc_box box;               /* elements, global index space */
	int64_t buf_off;                  /* elements, into the rank's local tensor of local_shape */
	int64_t buf_stride[PTC_MAX_DIMS]; /* elements */
};
struct ptc_rank_layout {
	struct ptc_region *regions;
	size_t nregions;
}; /* by item, then row-major */
/* The local tensor of an item on a rank. A 0 in the shape: the rank's part is empty. A scalar has ndim 0. */
struct ptc_local_shape {
	uint32_t item;
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
};
