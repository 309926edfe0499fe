/* SPDX-License-Identifier: Apache-2.0 */
/* Between layout.c, declared.c, side.c, holdings.c and lost.c. */
#pragma once

#include "reshard/layout/side.h"
#include "reshard/regions/regions.h"

/* Finds out whether l needs its side, and makes it. The last thing done to a layout that is made. */
int ptc_layout_finalize(struct ptc_layout *l, struct ptc_error *err);
/* Ranks that hold the same share a cell. */
uint32_t ptc_layout_ncells(const struct ptc_layout *l);
uint32_t ptc_layout_cell(const struct ptc_layout *l, uint32_t rank);
