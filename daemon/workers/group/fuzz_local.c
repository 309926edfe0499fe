/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point for all that comes from ranks and from group files. First byte: 0: the rest is frames, each after
 * its length (2 bytes); 1: a group's file; else: the type of one message, which is the rest. What is accepted must
 * survive being written and read again, and keep what the daemon relies on. */
#include "daemon/workers/group/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_declared(struct declared *d)
{
	if (ptc_declared_finish(d, NULL))
		return;
	for (size_t i = 1; i < d->ntensors; i++)
		ptc_require(strcmp(d->tensors[i - 1].name, d->tensors[i].name) < 0);
	for (size_t i = 1; i < d->nspans; i++)
		ptc_require(d->spans[i - 1].address + d->spans[i - 1].bytes < d->spans[i].address &&
			    d->spans[i - 1].offset + d->spans[i - 1].bytes <= d->spans[i].offset);
	for (size_t i = 0; i < d->ntensors; i++) {
		const struct ptc_slot_tensor *t = &d->tensors[i];
		struct ptc_box whole = ptc_box_whole(t->ndim, t->shape), both;

		for (size_t j = 0; j < t->nregions; j++) {
			ptc_require(ptc_declared_span(d, t->regions[j].address, ptc_dtype_bits(t->dtype) / 8));
			ptc_require(t->ndim == 0 || ptc_box_contains(&whole, &t->regions[j].box));
			for (size_t k = 0; k < j && k < 8 && t->ndim; k++)
				ptc_require(!ptc_box_intersect(&t->regions[j].box, &t->regions[k].box, &both));
		}
	}
}

static void try_tensor(struct declared *d, const uint8_t *data, size_t len)
{
	struct ptc_local_tensor t;

	if (ptc_local_get_tensor(data, len, &t))
		(void)ptc_declared_add(d, &t, NULL);
}

static void try_rank_state(uint8_t type, const uint8_t *data, size_t len)
{
	struct rank_state *k = ptc_rank_state_new();
	struct ptc_local_cursor c;
	struct ptc_local_blob b;

	if (!k)
		return;
	if (type == PTC_LOCAL_BLOB && ptc_local_get_blob(data, len, &b)) {
		ptc_require(ptc_rank_state_set_blob(&k, &b) == 0 && ptc_rank_state_set_blob(&k, &b) == 0);
		ptc_require(k->nblobs == 1 && k->blobs[0].len == b.len);
	}
	if (type == PTC_LOCAL_CURSOR && ptc_local_get_cursor(data, len, &c)) {
		ptc_require(ptc_rank_state_set_cursor(&k, &c) == 0);
		ptc_require(k->ncursors == 1 && k->cursors[0].position == c.position);
	}
	ptc_rank_state_unref(k);
}

#define ROUND_TRIP(kind)                                                                                               \
	do {                                                                                                           \
		struct ptc_local_##kind a, b;                                                                          \
		struct ptc_local_out o = { .grow = ptc_realloc }, again = { .grow = ptc_realloc };                     \
                                                                                                                       \
		if (!ptc_local_get_##kind(data, len, &a))                                                              \
			break;                                                                                         \
		ptc_local_put_##kind(&o, &a);                                                                          \
		ptc_require(ptc_local_get_##kind(o.data, o.len, &b));                                                  \
		ptc_local_put_##kind(&again, &b);                                                                      \
		ptc_require(o.len == again.len && memcmp(o.data, again.data, o.len) == 0);                             \
		ptc_free(o.data);                                                                                      \
		ptc_free(again.data);                                                                                  \
	} while (0)

static void round_trips(const uint8_t *data, size_t len)
{
	ROUND_TRIP(hello);
	ROUND_TRIP(welcome);
	ROUND_TRIP(generation);
	ROUND_TRIP(blob);
	ROUND_TRIP(cursor);
	ROUND_TRIP(stopped);
	ROUND_TRIP(rendezvous);
	ROUND_TRIP(restored);
	ROUND_TRIP(filled);
}

static void one_message(uint8_t type, const uint8_t *data, size_t len)
{
	struct ptc_local_staging s;
	struct ptc_local_refusal r;
	struct ptc_local_span span;
	struct ptc_local_fill f;
	struct ptc_local_rows rows;
	struct ptc_direct_read_chunk chunk;
	uint64_t a, b;

	if (type == PTC_LOCAL_TENSOR) {
		struct declared *d = ptc_declared_new();

		if (!d)
			return;
		try_tensor(d, data, len);
		check_declared(d);
		ptc_declared_unref(d);
	}
	try_rank_state(type, data, len);
	round_trips(data, len);
	if (ptc_local_get_staging(data, len, &s))
		for (uint32_t i = 0; i < s.nspans && ptc_local_get_span(&s, &span); i++)
			ptc_require(span.offset + span.bytes <= s.bytes);
	if (ptc_local_get_fill(data, len, &f)) {
		for (uint32_t i = 0; i < f.nrows && ptc_local_get_rows(&f, &rows); i++) {
			uint64_t last = rows.offset + (rows.count - 1) * rows.offset_step;

			ptc_require(last >= rows.offset && last + rows.bytes >= last && last + rows.bytes <= INT64_MAX);
		}
		for (uint32_t i = 0; i < f.nchunks; i++)
			ptc_require(ptc_local_get_chunk(&f, &chunk) || chunk.at > INT64_MAX / 2);
	}
	(void)ptc_local_get_refusal(data, len, &r);
	(void)ptc_local_get_number(data, len, &a);
	(void)ptc_local_get_ended(data, len, &a, &b);
}

/* All tensors of one connection go into one declaration, as a rank's do. */
static void frames(const uint8_t *data, size_t len)
{
	struct declared *d = ptc_declared_new();
	struct ptc_local_message m;
	struct ptc_local_conn c;

	ptc_local_conn_init(&c, -1, ptc_realloc);
	while (d && len >= 2) {
		size_t n = (size_t)data[0] | (size_t)data[1] << 8;
		int rc;

		data += 2;
		len -= 2;
		n = PTC_MIN(n, len);
		rc = ptc_local_feed(&c, data, n, -1, &m);
		if (rc < 0)
			break;
		if (rc && m.type == PTC_LOCAL_TENSOR)
			try_tensor(d, m.data, m.len);
		data += n;
		len -= n;
	}
	if (d)
		check_declared(d);
	ptc_declared_unref(d);
	ptc_local_conn_done(&c, ptc_free);
}

/* As it is, and with a checksum that fits, so that what is behind it is reached. */
static void group_file(const uint8_t *data, size_t len)
{
	struct group *g = NULL;
	uint8_t *copy;
	uint64_t sum;

	if (ptc_group_load(data, len, &g, NULL) == 0)
		ptc_group_free(g);
	copy = len >= sizeof sum ? ptc_malloc(len) : NULL;
	if (!copy)
		return;
	memcpy(copy, data, len);
	sum = ptc_checksum(copy, len - sizeof sum);
	memcpy(copy + len - sizeof sum, &sum, sizeof sum);
	if (ptc_group_load(copy, len, &g, NULL) == 0) {
		ptc_require(g->desc.argv[0] && g->desc.nranks > 0);
		ptc_group_free(g);
	}
	ptc_free(copy);
}

static void rendezvous_file(const uint8_t *data, size_t len)
{
	struct group g = { .refs = 1 };
	size_t good = ptc_rendezvous_decode(&g, data, len);

	ptc_require(good <= len && (g.nrendezvous > 0) == (good > 0));
	for (size_t i = 0; i < g.nrendezvous; i++) {
		ptc_free(g.rendezvous[i].key);
		ptc_free(g.rendezvous[i].value);
	}
	ptc_free(g.rendezvous);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	if (!len)
		return 0;
	if (data[0] == 0)
		frames(data + 1, len - 1);
	else if (data[0] == 1)
		group_file(data + 1, len - 1);
	else if (data[0] == 255)
		rendezvous_file(data + 1, len - 1);
	else
		one_message(data[0], data + 1, len - 1);
	return 0;
}
