/* SPDX-License-Identifier: Apache-2.0 */
/* Which items' bytes a part of a file consists of. Pure. */
#pragma once

#include "fusefs/source/fs_source.h"

/* start: where each item of the file begins, and the end of the last. Index of the item in which byte off lies. */
size_t ptc_fs_item_at(const struct ptc_state_file *sf, const uint64_t *start, uint64_t off);
/* The items' ranges for bytes [off, end) behind the file's head; ptc_free *ret. Returns 0 or PTC_ENOMEM. */
int ptc_fs_ranges_of(const struct ptc_state_file *sf, const uint64_t *start, uint64_t off, uint64_t end,
		     struct ptc_fs_range **ret, size_t *ret_n);
