/* SPDX-License-Identifier: Apache-2.0 */
/* Names in the store: a table's key, a box of an item, a list of boxes. Plain data; the caller owns a list. */
#pragma once

#include "reshard/box/box.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ptc_store;
struct ptc_table; /* a counted reference to a table in memory */

struct ptc_table_key {
	char uuid[37];
	uint64_t generation, snapshot;
};

static inline bool ptc_table_key_same(const struct ptc_table_key *a, const struct ptc_table_key *b)
{
	return a->generation == b->generation && a->snapshot == b->snapshot && !strcmp(a->uuid, b->uuid);
}

struct ptc_store_box {
	uint32_t item;
	struct ptc_box box;
};
struct ptc_store_boxes {
	struct ptc_store_box *v;
	size_t n;
	int64_t bytes;
};
void ptc_store_boxes_done(struct ptc_store_boxes *b);
