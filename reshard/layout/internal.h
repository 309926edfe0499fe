/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by layout.c, declared.c, declared_merge.c, holdings.c and with_copies.c. */
#pragma once

#include "reshard/layout/side.h"
#include "reshard/regions/regions.h"

/* The last step of making a layout: makes the layout's side (reshard/layout/side.h) if it needs one. */
int ptc_layout_finalize(struct ptc_layout *l, struct ptc_error *err);
/* Ranks that hold the same regions share a cell. The cell of a rank. */
uint32_t ptc_layout_cell(const struct ptc_layout *l, uint32_t rank);
