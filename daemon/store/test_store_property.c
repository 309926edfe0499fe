/* SPDX-License-Identifier: Apache-2.0 */
/* Random tensors, random needs, chains of tables derived from each other, with restarts in between; the oracle is one
 * byte per element saying whether the node has it, and the tensors themselves. */
#include "daemon/store/test_store_place.h"

#include "base/test_seed.h"

#include <time.h>

#define ITEMS 6

static unsigned seed;

static int64_t below(int64_t n)
{
	return ((int64_t)rand_r(&seed) << 20 ^ rand_r(&seed)) % n;
}

struct item {
	uint32_t ndim;
	int64_t shape[3], bytes;
	uint8_t *data, *have, *want;
};

static struct item items[ITEMS];

static void make_items(void)
{
	static const int64_t scale[ITEMS] = { 1, 7, 60, 300, 3000, 11000 }; /* kB, roughly */

	for (int i = 0; i < ITEMS; i++) {
		struct item *it = &items[i];
		int64_t left = scale[i] * 1000;

		it->ndim = (uint32_t)(1 + below(3));
		it->bytes = 1;
		for (uint32_t d = 0; d < it->ndim; d++) {
			int64_t most = d + 1 == it->ndim ? left : 1 + below(it->ndim == 2 ? 3000 : 60);

			it->shape[d] = 1 + below(most > 0 ? most : 1);
			if (d + 1 == it->ndim && most > 1)
				it->shape[d] = most;
			left /= it->shape[d];
			it->bytes *= it->shape[d];
		}
		it->data = malloc((size_t)it->bytes);
		it->have = calloc((size_t)it->bytes, 1);
		it->want = calloc((size_t)it->bytes, 1);
		for (int64_t k = 0; k < it->bytes; k++)
			it->data[k] = (uint8_t)rand_r(&seed);
	}
}

static void free_items(void)
{
	for (int i = 0; i < ITEMS; i++) {
		free(items[i].data);
		free(items[i].have);
		free(items[i].want);
	}
	memset(items, 0, sizeof items);
}

static struct ptc_box random_box(const struct item *it)
{
	struct ptc_box b = { .ndim = it->ndim };

	for (uint32_t d = 0; d < it->ndim; d++) {
		int64_t parts = 1 + below(4), at = below(parts);

		if (below(4) == 0) { /* ragged */
			b.off[d] = below(it->shape[d]);
			b.ext[d] = 1 + below(it->shape[d] - b.off[d]);
		} else { /* one of equal shares */
			b.off[d] = it->shape[d] * at / parts;
			b.ext[d] = it->shape[d] * (at + 1) / parts - b.off[d];
		}
	}
	return b;
}

/* fn(byte) over the rows of b. */
static void paint(const struct item *it, const struct ptc_box *b, uint8_t *mask, uint8_t value, int64_t *ret_clashes)
{
	int64_t n = volume(b), row = b->ext[b->ndim - 1];

	for (int64_t i = 0; i < n; i += row) {
		uint8_t *p = mask + flat(b, it->shape, i);

		for (int64_t k = 0; k < row; k++) {
			if (ret_clashes && p[k])
				++*ret_clashes;
			p[k] = value;
		}
	}
}

static bool covered(const struct item *it, const struct ptc_box *b)
{
	int64_t n = volume(b), row = b->ext[b->ndim - 1];

	for (int64_t i = 0; i < n; i += row)
		if (memchr(it->have + flat(b, it->shape, i), 0, (size_t)row))
			return false;
	return true;
}

static size_t random_needs(struct ptc_store_box *v, size_t max)
{
	size_t n = 1 + (size_t)below((int64_t)max);

	for (int i = 0; i < ITEMS; i++)
		memset(items[i].want, 0, (size_t)items[i].bytes);
	for (size_t i = 0; i < n; i++) {
		v[i].item = (uint32_t)below(ITEMS);
		v[i].box = random_box(&items[v[i].item]);
		if (volume(&v[i].box) > 0)
			paint(&items[v[i].item], &v[i].box, items[v[i].item].want, 1, NULL);
	}
	return n;
}

/* Needs as layouts give them: at most one of each item, by item. Mostly what the need before was, or its first half. */
static size_t ordered_needs(struct ptc_store_box *v)
{
	static struct ptc_box before[ITEMS];
	size_t n = 0;

	for (uint32_t i = 0; i < ITEMS; i++) {
		const struct ptc_box whole = ptc_box_whole(items[i].ndim, items[i].shape);
		struct ptc_box *b = &before[i];

		memset(items[i].want, 0, (size_t)items[i].bytes);
		if (!ptc_box_contains(&whole, b) || below(6) == 0) /* of another chain */
			*b = random_box(&items[i]);
		else if (below(5) == 0)
			b->ext[0] = (b->ext[0] + 1) / 2;
		if (volume(b) == 0 || below(8) == 0)
			continue;
		v[n++] = (struct ptc_store_box){ i, *b };
		paint(&items[i], b, items[i].want, 1, NULL);
	}
	return n;
}

/* Missing must be, byte for byte, what is wanted and not had. */
static void check_missing(const struct ptc_store_boxes *m, bool had_source)
{
	int64_t clashes = 0, bytes = 0;

	for (size_t i = 0; i < m->n; i++) {
		struct item *it = &items[m->v[i].item];

		assert_true(volume(&m->v[i].box) <= PTC_EXTENT_MAX_BYTES);
		bytes += volume(&m->v[i].box);
		paint(it, &m->v[i].box, it->want, 2, NULL);
	}
	assert_int_equal(bytes, m->bytes);
	for (int i = 0; i < ITEMS; i++)
		for (int64_t k = 0; k < items[i].bytes; k++) {
			bool had = had_source && items[i].have[k];

			bytes -= items[i].want[k] == 2;
			clashes += items[i].want[k] == 2 && had;  /* fetched though here */
			clashes += items[i].want[k] == 1 && !had; /* forgotten */
			items[i].have[k] = items[i].want[k] != 0;
		}
	assert_int_equal(bytes, 0); /* disjoint, and nothing that is not wanted */
	assert_int_equal(clashes, 0);
}

static void write_range(struct ptc_table *t, uint32_t extent, const uint8_t *bytes, int64_t off, int64_t end)
{
	struct iovec iov[4];

	while (off < end) {
		int k = ptc_table_extent_iov(t, extent, off, end - off, iov, 4);

		assert_true(k > 0);
		for (int i = 0; i < k; i++) {
			memcpy(iov[i].iov_base, bytes + off, iov[i].iov_len);
			off += (int64_t)iov[i].iov_len;
		}
	}
}

/* In parts that are said to be ready, some of them twice; at times after a fill that was begun and given up. */
static void fill_by_parts(struct ptc_table *t, uint32_t extent, const struct ptc_store_box *box, const uint8_t *buf)
{
	int64_t n = volume(&box->box), begin = below(n), at;
	uint32_t again;

	if (below(3) == 0) {
		uint8_t *other = malloc((size_t)n);

		memset(other, 0x5a, (size_t)n);
		write_range(t, extent, other, 0, n);
		ptc_table_extent_ready(t, extent, 0, 0, n);
		free(other);
		ok(ptc_table_reserve(t, box, 1, &again, err));
		assert_int_equal(again, extent);
	}
	for (at = begin; at < n;) {
		int64_t to = at + 1 + below(n - at);

		write_range(t, extent, buf, at, to);
		ptc_table_extent_ready(t, extent, begin, below(3) ? at - begin : 0, to - begin);
		at = to;
	}
	write_range(t, extent, buf, 0, begin);
	if (below(2))
		ptc_table_extent_ready(t, extent, 0, 0, begin);
}

static void fill_missing(struct ptc_table *t, const struct ptc_store_boxes *m)
{
	uint32_t *e = calloc(m->n + 1, sizeof *e);
	size_t half = (size_t)below((int64_t)m->n + 1);

	ok(ptc_table_reserve(t, m->v, half, e, err));
	ok(ptc_table_reserve(t, m->v + half, m->n - half, e + half, err));
	for (size_t i = 0; i < m->n; i++) {
		const struct item *it = &items[m->v[i].item];
		uint8_t *buf = malloc((size_t)volume(&m->v[i].box));

		cut_out(buf, it->data, it->shape, &m->v[i].box);
		if (below(3)) {
			if (below(2))
				fill_extent(t, e[i], buf, volume(&m->v[i].box));
			else
				fill_by_parts(t, e[i], &m->v[i], buf);
			ok(ptc_table_filled(t, e[i], err));
		} else {
			ok(ptc_table_write(t, m->v[i].item, &m->v[i].box, buf, err));
		}
		free(buf);
	}
	free(e);
	ok(ptc_table_filled_all(t, err));
}

/* Byte i of a compact buffer that holds box, by its index in the tensor. */
struct extents {
	const struct item *it;
	const struct ptc_box *box;
	int64_t bytes;
};

static int each_extent(void *arg, const struct ptc_box *extent, const struct ptc_box *part, const struct iovec *spans,
		       int nspans, size_t chunk, struct ptc_error *error)
{
	struct extents *x = arg;
	uint8_t *all = malloc((size_t)volume(extent)), *want = malloc((size_t)volume(part)),
		*got = malloc((size_t)volume(part));
	int64_t at = 0;

	assert_true(ptc_box_contains(extent, part) && ptc_box_contains(x->box, part));
	for (int i = 0; i < nspans; at += (int64_t)spans[i++].iov_len)
		memcpy(all + at, spans[i].iov_base, spans[i].iov_len);
	assert_int_equal(at, volume(extent));
	cut_out(want, x->it->data, x->it->shape, part);
	ptc_box_copy(got, part, all, extent, part);
	assert_memory_equal(got, want, volume(part));
	x->bytes += volume(part);
	free(all);
	free(want);
	free(got);
	return 0;
}

static void check_box(struct ptc_table *t, uint32_t item, const struct ptc_box *b)
{
	struct item *it = &items[item];
	struct extents x = { it, b, 0 };
	int64_t n = volume(b);
	uint8_t *got = malloc((size_t)n), *want = malloc((size_t)n), *alone;
	struct iovec iov[64];
	uint64_t digest;
	int k;

	if (!covered(it, b)) {
		assert_int_equal(ptc_table_read(t, item, b, got, NULL), PTC_ENOTFOUND);
		assert_int_equal(ptc_table_each_extent(t, item, b, each_extent, &x, NULL), PTC_ENOTFOUND);
		assert_int_equal(x.bytes, 0);
		assert_int_equal(ptc_table_digest(t, item, b, it->ndim, it->shape, &digest, NULL), PTC_ENOTFOUND);
		free(got);
		free(want);
		return;
	}
	cut_out(want, it->data, it->shape, b);
	ok(ptc_table_read(t, item, b, got, err));
	assert_memory_equal(got, want, n);
	ok(ptc_table_each_extent(t, item, b, each_extent, &x, err));
	assert_int_equal(x.bytes, n);
	ok(ptc_table_read_iov(t, item, b, iov, 64, &k, err));
	for (int64_t i = 0, at = 0; i < k; at += (int64_t)iov[i++].iov_len) {
		assert_true(at + (int64_t)iov[i].iov_len <= n);
		assert_memory_equal(iov[i].iov_base, want + at, iov[i].iov_len);
		assert_true(i + 1 < k || at + (int64_t)iov[i].iov_len == n);
	}
	ok(ptc_table_digest(t, item, b, it->ndim, it->shape, &digest, err));
	alone = calloc((size_t)it->bytes, 1);
	for (int64_t i = 0, row = b->ext[b->ndim - 1]; i < n; i += row)
		memcpy(alone + flat(b, it->shape, i), want + i, (size_t)row);
	assert_true(digest == ptc_digest_run(alone, (size_t)it->bytes));
	free(alone);
	free(got);
	free(want);
}

/* The pieces are the mask, each byte once; random boxes read back. */
static void check_table(struct ptc_table *t)
{
	size_t n;
	const struct ptc_piece *v = ptc_table_all_pieces(t, &n);
	int64_t clashes = 0, scrubbed;

	for (int i = 0; i < ITEMS; i++)
		memset(items[i].want, 0, (size_t)items[i].bytes);
	for (size_t i = 0; i < n; i++) {
		assert_true(i == 0 || v[i - 1].item <= v[i].item);
		paint(&items[v[i].item], &v[i].live, items[v[i].item].want, 1, &clashes);
		check_box(t, v[i].item, &v[i].live);
	}
	ok(ptc_table_scrub(t, NULL, NULL, &scrubbed, err));
	assert_int_equal(clashes, 0);
	for (int i = 0; i < ITEMS; i++)
		assert_memory_equal(items[i].want, items[i].have, items[i].bytes);
	for (int i = 0; i < 40; i++) {
		uint32_t item = (uint32_t)below(ITEMS);
		struct ptc_box b = random_box(&items[item]);

		if (volume(&b) > 0)
			check_box(t, item, &b);
	}
}

static int64_t held_bytes(void)
{
	int64_t n = 0;

	for (int i = 0; i < ITEMS; i++)
		for (int64_t k = 0; k < items[i].bytes; k++)
			n += items[i].have[k];
	return n;
}

/* A snapshot of from, under another number; at times from itself goes while the snapshot is open. */
static struct ptc_table *snapshot_open(struct ptc_store *s, const struct ptc_table_key *from)
{
	const struct ptc_table_key alias = key_of(JOB_A, from->generation, from->snapshot + 1);
	struct ptc_table *t;

	ok(ptc_table_alias(s, from, &alias, err));
	if (below(2))
		ok(ptc_store_keep(s, JOB_A, &alias, 1, err));
	ok(ptc_table_open(s, &alias, &t, err));
	check_table(t);
	return t;
}

/* One switch: derive k from from (or nothing), fill, seal; then nothing else is kept. */
static void step(struct ptc_store *s, const struct ptc_table_key *from, const struct ptc_table_key *k)
{
	struct ptc_store_box needs[12];
	size_t n;
	struct ptc_table *t, *src = NULL;
	struct ptc_store_boxes m, dry;
	struct ptc_store_stats st, before;
	int64_t bytes, planned, slack;

	if (from && below(2))
		src = snapshot_open(s, from);
	else if (from)
		ok(ptc_table_open(s, from, &src, err));
	n = below(3) ? ordered_needs(needs) : random_needs(needs, 12);
	ok(ptc_table_begin(s, k, &t, err));
	ptc_store_stats(s, &before);
	ok(ptc_table_derive(t, src, NULL, needs, n, true, &dry, &planned, err));
	ok(ptc_table_derive(t, src, NULL, needs, n, false, &m, &bytes, err));
	assert_int_equal(planned, bytes);
	assert_int_equal(dry.n, m.n);
	for (size_t i = 0; i < m.n; i++)
		assert_true(dry.v[i].item == m.v[i].item && ptc_box_equal(&dry.v[i].box, &m.v[i].box));
	ptc_store_boxes_done(&dry);
	check_missing(&m, from != NULL);
	fill_missing(t, &m);
	ptc_store_stats(s, &st);
	assert_true(st.used_bytes - before.used_bytes == (uint64_t)planned);
	ptc_store_boxes_done(&m);
	ok(ptc_table_seal(t, err));
	check_table(t);
	ptc_table_unref(src);
	ptc_table_unref(t);
	ok(ptc_store_keep(s, JOB_A, k, 1, err));
	ptc_store_stats(s, &st);
	slack = held_bytes() / 2 + 4 * PTC_CHUNK_BYTES;
	if (st.used_bytes > (uint64_t)(held_bytes() + slack))
		fail_msg("store holds %llu bytes for %lld", (unsigned long long)st.used_bytes, (long long)held_bytes());
}

static void chain(unsigned s0)
{
	struct ptc_table_key k[11];
	struct ptc_store *s;
	struct place p;

	seed = s0;
	print_message("seed %u\n", s0);
	make_items();
	place_make(&p, fast_base());
	s = store_open(&p, 256u << 20);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	for (uint64_t g = 0; g < 11; g++) {
		k[g] = key_of(JOB_A, g, 1);
		step(s, g ? &k[g - 1] : NULL, &k[g]);
		if (below(3) == 0) {
			struct ptc_table *t;

			ptc_store_close(s);
			s = store_open(&p, 256u << 20);
			ok(ptc_table_open(s, &k[g], &t, err));
			check_table(t);
			ptc_table_unref(t);
		}
	}
	ptc_store_close(s);
	place_remove(&p);
	free_items();
	assert_int_equal(ptc_alloc_live(), 0);
}

static void chains_keep_every_byte(void **state)
{
	const char *fixed = getenv("PTC_TEST_SEED"), *rounds = getenv("PTC_ROUNDS");
	unsigned first = (unsigned)ptc_test_seed();
	unsigned n = rounds ? (unsigned)strtoul(rounds, NULL, 10) : 4;

	for (unsigned i = 0; i < (fixed && !rounds ? 1 : n); i++)
		chain(first + i);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(chains_keep_every_byte) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
