/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for tests of chunks: n items of almost a chunk each, with bytes that tell generation and number. */
#pragma once

#include "daemon/store/test_store_place.h"

#define ITEM      ((int64_t)900 << 10) /* one to a chunk */
#define ITEMS_MAX 32

/* A table of n items of a job, each filled with its generation and number. */
static inline int items_make(struct ptc_store *s, const char *uuid, uint64_t generation, uint32_t n,
			     struct ptc_error *e)
{
	struct ptc_table_key k = key_of(uuid, generation, generation);
	uint8_t *bytes = malloc(ITEM);
	struct ptc_store_box b[ITEMS_MAX];
	struct ptc_table *t = NULL;
	uint32_t ext[ITEMS_MAX];
	int rc = ptc_table_begin(s, &k, &t, e);

	for (uint32_t i = 0; i < n; i++)
		b[i] = (struct ptc_store_box){ i, BOX1(0, ITEM) };
	if (!rc)
		rc = ptc_table_reserve(t, b, n, ext, e);
	for (uint32_t i = 0; i < n && !rc; i++) {
		memset(bytes, (int)(generation * 31 + i), ITEM);
		fill_extent(t, ext[i], bytes, ITEM);
		rc = ptc_table_filled(t, ext[i], e);
	}
	if (!rc)
		rc = ptc_table_seal(t, e);
	ptc_table_unref(t);
	free(bytes);
	return rc;
}

static inline void items_expect(struct ptc_store *s, const char *uuid, uint64_t generation, uint32_t n)
{
	struct ptc_table_key k = key_of(uuid, generation, generation);
	uint8_t *got = malloc(ITEM), *want = malloc(ITEM);
	struct ptc_box b = BOX1(0, ITEM);
	struct ptc_table *t;

	ok(ptc_table_open(s, &k, &t, err));
	for (uint32_t i = 0; i < n; i++) {
		memset(want, (int)(generation * 31 + i), ITEM);
		ok(ptc_table_read(t, i, &b, got, err));
		assert_memory_equal(got, want, ITEM);
	}
	ptc_table_unref(t);
	free(got);
	free(want);
}
