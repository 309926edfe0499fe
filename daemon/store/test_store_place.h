/* SPDX-License-Identifier: Apache-2.0 */
/* What the store's tests share: a private directory, a store in it, tensors of known bytes. */
#pragma once

#include "base/alloc.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"
#include "daemon/store/store.h"
#include "daemon/store/store_read.h"
#include "daemon/store/store_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define JOB_A "00000000-0000-4000-8000-00000000000a"
#define JOB_B "00000000-0000-4000-8000-00000000000b"

struct place {
	char dir[64], meta[80], chunks[80];
	bool damaged; /* by the test, so a file of it may have been set aside */
};

/* A test that fails leaves its directory to this. */
static struct place *places[64];

static inline void places_sweep(void)
{
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
		if (places[i])
			(void)ptc_sys_remove_tree(places[i]->dir, NULL, NULL);
}

static inline void place_track(struct place *p, bool gone)
{
	static bool armed;

	if (!armed)
		armed = atexit(places_sweep) == 0;
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
		if (gone ? places[i] && strcmp(places[i]->dir, p->dir) == 0 : !places[i]) {
			free(places[i]);
			places[i] = gone ? NULL : malloc(sizeof *p);
			if (places[i])
				*places[i] = *p;
			return;
		}
}

/* base: where to make it, e.g. /dev/shm for tmpfs. */
static inline void place_make(struct place *p, const char *base)
{
	*p = (struct place){ 0 };
	snprintf(p->dir, sizeof p->dir, "%s/ptc-store-XXXXXX", base);
	assert_non_null(mkdtemp(p->dir));
	place_track(p, false);
	snprintf(p->meta, sizeof p->meta, "%s/meta", p->dir);
	snprintf(p->chunks, sizeof p->chunks, "%s/chunks", p->dir);
}

/* No store of a test is taken for a damaged one without being one. */
static inline void place_whole(const struct place *p)
{
	const char *const names[] = { "meta", "chunks/" JOB_A, "chunks/" JOB_B };
	char path[160];

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		snprintf(path, sizeof path, "%s/%s/data.mdb.damaged", p->dir, names[i]);
		if (access(path, F_OK) == 0)
			fail_msg("%s: a whole file was set aside", path);
	}
}

static inline void place_remove(struct place *p)
{
	if (!p->damaged)
		place_whole(p);
	assert_int_equal(ptc_sys_remove_tree(p->dir, NULL, NULL), 0);
	place_track(p, true);
}

/* One bit of JOB_A's chunks, where these bytes are first found. */
static inline void flip_bit(const struct place *p, const uint8_t *near, size_t n)
{
	char path[160];
	uint8_t *data;
	size_t len, got;
	FILE *f;

	snprintf(path, sizeof path, "%s/%s/data.mdb", p->chunks, JOB_A);
	f = fopen(path, "r+");
	data = malloc(16u << 20);
	len = fread(data, 1, 16u << 20, f);
	for (got = 0; got + n <= len && memcmp(data + got, near, n) != 0;)
		got++;
	assert_true(got + n <= len);
	fseek(f, (long)got, SEEK_SET);
	fputc(data[got] ^ 4, f);
	fclose(f);
	free(data);
}

static inline const char *fast_base(void)
{
	return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
}

#define ok(call)                                                                                                       \
	do {                                                                                                           \
		struct ptc_error err_ = PTC_ERROR_INIT, *err = &err_;                                                  \
		int rc_ = (call);                                                                                      \
		if (rc_)                                                                                               \
			fail_msg("%s:%d: %s: %d %s", __FILE__, __LINE__, #call, rc_, err->text);                       \
	} while (0)

static inline struct ptc_store *store_open(const struct place *p, uint64_t ceiling)
{
	struct ptc_store_opts o = { .meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = ceiling };
	struct ptc_store *s = NULL;

	ok(ptc_store_open(&o, &s, err));
	return s;
}

static inline struct ptc_table_key key_of(const char *uuid, uint64_t generation, uint64_t snapshot)
{
	struct ptc_table_key k = { .generation = generation, .snapshot = snapshot };

	memcpy(k.uuid, uuid, 37);
	return k;
}

static inline struct ptc_box box_of(uint32_t ndim, const int64_t *off, const int64_t *ext)
{
	struct ptc_box b = { .ndim = ndim };

	memcpy(b.off, off, ndim * sizeof *off);
	memcpy(b.ext, ext, ndim * sizeof *ext);
	return b;
}

#define BOX1(o, e)           box_of(1, (int64_t[]){ o }, (int64_t[]){ e })
#define BOX2(o0, o1, e0, e1) box_of(2, (int64_t[]){ o0, o1 }, (int64_t[]){ e0, e1 })

/* Element by element, on purpose: nothing here shares code with what is tested. */
static inline int64_t flat(const struct ptc_box *b, const int64_t *shape, int64_t i)
{
	int64_t idx[PTC_MAX_DIMS], at = 0;

	for (uint32_t d = b->ndim; d-- > 0;) {
		idx[d] = b->off[d] + i % b->ext[d];
		i /= b->ext[d];
	}
	for (uint32_t d = 0; d < b->ndim; d++)
		at = at * shape[d] + idx[d];
	return at;
}

static inline int64_t volume(const struct ptc_box *b)
{
	int64_t v = 1;

	for (uint32_t d = 0; d < b->ndim; d++)
		v *= b->ext[d];
	return v;
}

/* Bytes of box out of tensor, compact. */
static inline void cut_out(uint8_t *dst, const uint8_t *tensor, const int64_t *shape, const struct ptc_box *b)
{
	int64_t n = volume(b), row = b->ext[b->ndim - 1];

	for (int64_t i = 0; i < n; i += row)
		memcpy(dst + i, tensor + flat(b, shape, i), (size_t)row);
}

static inline void fill_extent(struct ptc_table *t, uint32_t extent, const uint8_t *bytes, int64_t n)
{
	struct iovec iov[4];
	int64_t off = 0;

	while (off < n) {
		int k = ptc_table_extent_iov(t, extent, off, n - off, iov, 4);

		assert_true(k > 0);
		for (int i = 0; i < k; i++) {
			memcpy(iov[i].iov_base, bytes + off, iov[i].iov_len);
			off += (int64_t)iov[i].iov_len;
		}
	}
	assert_int_equal(off, n);
}
