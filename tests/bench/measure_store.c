/* SPDX-License-Identifier: Apache-2.0 */
/* The store by itself: reserve, fill through the map, checksums, seal; then reads.
 *
 * Happy path: each round makes a table of the whole memory in extents of PTC_EXTENT_MAX_BYTES, reads it back in three
 * ways and drops it, so that the next round gets its chunks again. The first round's chunks are new.
 *
 * Failure modes: whatever the store reports; bytes that differ are PTC_ECORRUPT. */
#include "tests/bench/measure.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SPANS 16

struct measure_store {
	const struct measure_memory *m;
	struct ptc_store *store;
	struct ptc_table_key key;
	struct ptc_store_box *boxes; /* one item each */
	uint32_t *extents;
	size_t n;
};

static int64_t length_of(const struct measure_store *s, size_t i)
{
	return s->boxes[i].box.ext[0];
}

static uint8_t *at(uint8_t *base, size_t i)
{
	return base + i * PTC_EXTENT_MAX_BYTES;
}

static int open_store(struct measure_store *s, const char *dir, struct ptc_error *err)
{
	ptc_auto_free char *meta = ptc_asprintf("%s/meta", dir), *chunks = ptc_asprintf("%s/chunks", dir);
	const uint64_t ceiling = 2 * s->m->bytes + (64u << 20);
	const struct ptc_store_opts opts = {
		.meta_dir = meta, .chunk_dir = chunks, .chunk_ceiling = ceiling, .cushion_bytes = ceiling
	};
	int rc = meta && chunks ? ptc_store_open(&opts, &s->store, err) : ptc_nomem(err);

	if (!rc)
		rc = ptc_sys_uuid(s->key.uuid, err);
	return rc ? rc : ptc_store_job_create(s->store, s->key.uuid, geteuid(), err);
}

int measure_store_new(const char *dir, const struct measure_memory *m, struct measure_store **ret,
		      struct ptc_error *err)
{
	struct measure_store *s = ptc_calloc(1, sizeof *s);
	int rc;

	if (!s)
		return ptc_nomem(err);
	s->m = m;
	s->n = (m->bytes + PTC_EXTENT_MAX_BYTES - 1) / PTC_EXTENT_MAX_BYTES;
	s->boxes = ptc_calloc(s->n, sizeof *s->boxes);
	s->extents = ptc_calloc(s->n, sizeof *s->extents);
	rc = s->boxes && s->extents ? 0 : ptc_nomem(err);
	for (size_t i = 0; !rc && i < s->n; i++) {
		int64_t left = (int64_t)(m->bytes - i * PTC_EXTENT_MAX_BYTES);

		s->boxes[i].item = (uint32_t)i;
		s->boxes[i].box = (struct ptc_box){ .ndim = 1, .ext = { PTC_MIN(left, PTC_EXTENT_MAX_BYTES) } };
	}
	if (!rc)
		rc = open_store(s, dir, err);
	if (rc) {
		measure_store_free(s);
		return rc;
	}
	*ret = s;
	return 0;
}

struct measure_store *measure_store_free(struct measure_store *s)
{
	if (!s)
		return NULL;
	ptc_store_close(s->store);
	ptc_free(s->boxes);
	ptc_free(s->extents);
	ptc_free(s);
	return NULL;
}

static int fill(struct measure_store *s, struct ptc_table *t, struct ptc_error *err)
{
	struct iovec iov[SPANS];
	int rc = 0;

	for (size_t i = 0; !rc && i < s->n; i++) {
		int n = ptc_table_extent_iov(t, s->extents[i], 0, length_of(s, i), iov, SPANS);
		const uint8_t *from = at(s->m->src, i);

		if (n <= 0)
			return ptc_error_set(err, PTC_ESTATE, "extent %zu cannot be filled", i);
		for (int k = 0; k < n; from += iov[k++].iov_len)
			memcpy(iov[k].iov_base, from, iov[k].iov_len);
		rc = ptc_table_filled(t, s->extents[i], err);
	}
	return rc;
}

static int write_table(struct measure_store *s, struct ptc_table **ret, struct measured *ret_write,
		       struct ptc_error *err)
{
	struct measure_clock c = measure_start();
	struct ptc_table *t = NULL;
	int rc;

	s->key.generation++;
	rc = ptc_table_begin(s->store, &s->key, &t, err);
	if (!rc)
		rc = ptc_table_reserve(t, s->boxes, s->n, s->extents, err);
	if (!rc)
		rc = fill(s, t, err);
	if (!rc)
		rc = ptc_table_seal(t, err);
	if (rc) {
		ptc_table_unref(t);
		return rc;
	}
	*ret_write = measure_end(&c, (int64_t)s->m->bytes);
	*ret = t;
	return 0;
}

static int read_table(struct measure_store *s, struct ptc_table *t, struct measured *ret, struct ptc_error *err)
{
	struct measure_clock c = measure_start();
	int rc = 0;

	for (size_t i = 0; !rc && i < s->n; i++)
		rc = ptc_table_read(t, s->boxes[i].item, &s->boxes[i].box, at(s->m->dst, i), err);
	*ret = measure_end(&c, (int64_t)s->m->bytes);
	if (!rc && memcmp(s->m->src, s->m->dst, s->m->bytes) != 0)
		rc = ptc_error_set(err, PTC_ECORRUPT, "the store gave back other bytes");
	return rc;
}

static int read_spans(struct measure_store *s, struct ptc_table *t, struct measured *ret, struct ptc_error *err)
{
	struct measure_clock c = measure_start();
	struct iovec iov[SPANS];
	int rc = 0, n = 0;

	for (size_t i = 0; !rc && i < s->n; i++) {
		uint8_t *to = at(s->m->dst, i);

		rc = ptc_table_read_iov(t, s->boxes[i].item, &s->boxes[i].box, iov, SPANS, &n, err);
		if (!rc && n == 0)
			rc = ptc_error_set(err, PTC_ESTATE, "extent %zu is not contiguous", i);
		for (int k = 0; !rc && k < n; to += iov[k++].iov_len)
			memcpy(to, iov[k].iov_base, iov[k].iov_len);
	}
	*ret = measure_end(&c, (int64_t)s->m->bytes);
	return rc;
}

int measure_store_round(struct measure_store *s, struct measure_store_round *ret, struct ptc_error *err)
{
	struct ptc_table *t;
	struct measure_clock c;
	int64_t bytes;
	int rc = write_table(s, &t, &ret->write, err);

	if (rc)
		return rc;
	memset(s->m->dst, 0, s->m->bytes);
	rc = read_table(s, t, &ret->read, err);
	if (!rc)
		rc = read_spans(s, t, &ret->read_iov, err);
	c = measure_start();
	if (!rc)
		rc = ptc_table_scrub(t, NULL, NULL, &bytes, err);
	ret->verify = measure_end(&c, (int64_t)s->m->bytes);
	ptc_table_unref(t);
	return rc ? rc : ptc_store_keep(s->store, s->key.uuid, NULL, 0, err);
}
