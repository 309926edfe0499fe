/* SPDX-License-Identifier: Apache-2.0 */
/* Digests kept from a capture, against an oracle that knows neither grid nor runs: the digest of a tensor in which all
 * bytes outside of a box are zero. Random layouts before and after; tables that share chunks, copy, or have other bytes
 * for an item. Whatever is not known is read, so a wrong or forgotten byte changes the digest. */
#include "base/check.h"
#include "base/number/search.h"
#include "base/test_seed.h"
#include "daemon/agent/capture/captured_digests.h"
#include "daemon/store/test_store_place.h"

#define ITEMS 5
#define BYTES (96 * 4096)
#define BAND  (16 << 10) /* so that small tensors have many cells */
#define RUN   64
#define SLICE (100 << 10)

static uint64_t seed, cases;
static unsigned state;
static struct ptc_tensor tensors[ITEMS] = {
	{ "a", PTC_U8, 2, { 96, 4096 } },   { "b", PTC_U8, 2, { 700, 512 } }, { "c", PTC_U8, 1, { 200000 } },
	{ "d", PTC_U8, 3, { 7, 60, 640 } }, { "e", PTC_U8, 2, { 3, 5 } },
};
static struct ptc_spec spec = { .name = "captured", .tensors = tensors, .ntensors = ITEMS };
static const struct ptc_geometry geometry = { .spec = &spec };
static uint8_t bytes[2][ITEMS][BYTES]; /* of the captured table; of what comes later */

static int64_t rnd(int64_t n)
{
	return rand_r(&state) % n;
}

static void *box_room(struct ptc_needs *needs)
{
	assert_int_equal(PTC_ROOM(needs->v, needs->n + 1, needs->cap), true);
	return &needs->v[needs->n++];
}

/* Cuts at random, or in halves, until a box is one rank's. Some boxes are on other nodes. */
static void deal(struct ptc_needs *needs, uint32_t item, struct ptc_box box, int depth, int64_t here)
{
	uint32_t d = (uint32_t)rnd(box.ndim);
	struct ptc_box rest = box;
	int64_t at;

	if (!depth || box.ext[d] < 2 || rnd(6) == 0) {
		if (rnd(10) < here)
			*(struct ptc_need *)box_room(needs) = (struct ptc_need){ item, box };
		return;
	}
	at = rnd(3) ? box.ext[d] / 2 : 1 + rnd(box.ext[d] - 1);
	box.ext[d] = at;
	rest.off[d] += at;
	rest.ext[d] -= at;
	deal(needs, item, box, depth - 1, here);
	deal(needs, item, rest, depth - 1, here);
}

static struct ptc_needs layout(int64_t here)
{
	struct ptc_needs needs = { 0 };

	for (uint32_t i = 0; i < ITEMS; i++) {
		deal(&needs, i, ptc_box_whole(tensors[i].ndim, tensors[i].shape), (int)rnd(4), here);
		if (rnd(5) == 0) /* replicas of other sizes, too */
			deal(&needs, i, ptc_box_whole(tensors[i].ndim, tensors[i].shape), 1, here);
	}
	return needs;
}

static struct ptc_store_box *boxes_of(const struct ptc_needs *needs)
{
	struct ptc_store_box *v = malloc((needs->n + 1) * sizeof *v);

	for (size_t i = 0; i < needs->n; i++)
		v[i] = (struct ptc_store_box){ needs->v[i].item, needs->v[i].box };
	return v;
}

static uint64_t oracle(const uint8_t *tensor, const int64_t *shape, uint32_t ndim, const struct ptc_box *box)
{
	const struct ptc_box whole = ptc_box_whole(ndim, shape);
	uint8_t *only = calloc((size_t)volume(&whole), 1);
	int64_t row = box->ext[ndim - 1];
	uint64_t digest;

	for (int64_t i = 0; i < volume(box); i += row)
		memcpy(only + flat(box, shape, i), tensor + flat(box, shape, i), (size_t)row);
	digest = ptc_digest_run(only, (size_t)volume(&whole));
	free(only);
	return digest;
}

/* Fills what is missing with the bytes of that generation, and digests it by slices: captured NULL: as Pull does. */
static void fill(struct ptc_table *t, const struct ptc_store_boxes *missing, int which, const struct ptc_digest_fill *f,
		 struct ptc_captured *captured)
{
	uint32_t *extents = malloc((missing->n + 1) * sizeof *extents);
	uint8_t *compact = malloc(BYTES);

	if (missing->n)
		ok(ptc_table_reserve(t, missing->v, missing->n, extents, err));
	for (size_t i = 0; i < missing->n; i++) {
		const struct ptc_store_box *b = &missing->v[i];
		struct ptc_boxes slices = { 0 };

		cut_out(compact, bytes[which][b->item], tensors[b->item].shape, &b->box);
		fill_extent(t, extents[i], compact, volume(&b->box));
		ok(ptc_box_chop(&b->box, SLICE, &slices));
		for (size_t k = 0; k < slices.n; k++)
			ok(captured ? ptc_captured_digest(captured, f, extents[i], b->item, &slices.v[k], err)
				    : ptc_digest_part(f, extents[i], b->item, &slices.v[k], err));
		ptc_boxes_done(&slices);
		ok(ptc_table_filled(t, extents[i], err));
	}
	ok(ptc_table_seal(t, err));
	free(compact);
	free(extents);
}

static struct ptc_table *begin(struct ptc_store *s, uint64_t number)
{
	struct ptc_table_key key = key_of(JOB_A, number, number);
	struct ptc_table *t;

	ok(ptc_table_begin(s, &key, &t, err));
	return t;
}

static struct ptc_table *capture(struct ptc_store *s, const struct ptc_needs *needs, struct ptc_captured *captured)
{
	uint64_t *digests = calloc(needs->n + 1, sizeof *digests);
	struct ptc_store_box *boxes = boxes_of(needs);
	struct ptc_store_boxes missing = { 0 };
	struct ptc_table *t = begin(s, 1);
	struct ptc_digest_fill f = { t, &geometry, needs, digests };
	int64_t new_bytes;

	ok(ptc_table_derive(t, NULL, NULL, boxes, needs->n, false, &missing, &new_bytes, err));
	fill(t, &missing, 0, &f, captured);
	for (size_t i = 0; i < needs->n; i++) {
		const struct ptc_tensor *x = &tensors[needs->v[i].item];

		assert_int_equal(digests[i], oracle(bytes[0][needs->v[i].item], x->shape, x->ndim, &needs->v[i].box));
	}
	ptc_captured_seal(captured, t);
	ptc_store_boxes_done(&missing);
	free(boxes);
	free(digests);
	return t;
}

/* Of a need: bytes that were missing are the later ones. */
static uint64_t expected(const struct ptc_need *need, const struct ptc_store_boxes *missing)
{
	const struct ptc_tensor *x = &tensors[need->item];
	uint64_t digest = oracle(bytes[0][need->item], x->shape, x->ndim, &need->box);
	struct ptc_box cut;

	for (size_t i = 0; i < missing->n; i++)
		if (missing->v[i].item == need->item && ptc_box_intersect(&missing->v[i].box, &need->box, &cut))
			digest ^= oracle(bytes[0][need->item], x->shape, x->ndim, &cut) ^
				  oracle(bytes[1][need->item], x->shape, x->ndim, &cut);
	return digest;
}

PTC_BY(by_item, struct ptc_store_box, item)

/* The next table, of which some items begin anew. Returns the bytes whose digests were known. */
static int64_t switch_to(struct ptc_store *s, struct ptc_table *from, const struct ptc_captured *captured,
			 const struct ptc_needs *needs, int64_t *total)
{
	bool anew = rnd(6) == 0, fresh[ITEMS] = { anew || rnd(6) == 0, anew || rnd(6) == 0, anew, anew, anew };
	uint64_t *digests = calloc(needs->n + 1, sizeof *digests);
	struct ptc_store_box *boxes = boxes_of(needs);
	struct ptc_store_boxes missing = { 0 };
	struct ptc_table *t = begin(s, 2);
	struct ptc_digest_fill f = { t, &geometry, needs, digests };
	struct ptc_captured_known known = { captured, t, &geometry, 0 };
	struct ptc_digest_job job = { .table = t,
				      .g = &geometry,
				      .needs = needs,
				      .digests = digests,
				      .known = ptc_captured_known,
				      .known_arg = &known };
	int64_t new_bytes;

	ok(ptc_table_derive(t, from, fresh, boxes, needs->n, false, &missing, &new_bytes, err));
	fill(t, &missing, 1, &f, NULL);
	ptc_sort(missing.v, missing.n, sizeof *missing.v, by_item);
	if (rnd(3)) {
		job.done = missing.v;
		job.ndone = missing.n;
	} /* else as after a source has failed: all is digested anew */
	ok(ptc_digest_needs(&job, err));
	for (size_t i = 0; i < needs->n; i++) {
		assert_int_equal(digests[i], expected(&needs->v[i], &missing));
		*total += volume(&needs->v[i].box);
	}
	ptc_table_unref(t);
	ptc_store_boxes_done(&missing);
	free(boxes);
	free(digests);
	return known.bytes;
}

static void test_random(void **arg)
{
	int64_t known = 0, total = 0;

	(void)arg;
	for (uint64_t i = 0; i < cases; i++) {
		struct ptc_needs before, after;
		struct ptc_captured *captured = ptc_captured_new(BAND, RUN);
		struct ptc_store *s;
		struct ptc_table *t;
		struct place p;

		state = (unsigned)(seed + i);
		for (size_t k = 0; k < sizeof bytes; k++)
			((uint8_t *)bytes)[k] = (uint8_t)(rand_r(&state) >> 3);
		before = layout(rnd(3) ? 10 : 8);
		after = layout(rnd(3) ? 10 : 6); /* chunks that keep less are copied */
		place_make(&p, fast_base());
		s = store_open(&p, 64ull << 20);
		ok(ptc_store_job_create(s, JOB_A, getuid(), err));
		t = capture(s, &before, captured);
		known += switch_to(s, t, captured, &after, &total);
		ptc_table_unref(t);
		ptc_captured_free(captured);
		ptc_needs_done(&before);
		ptc_needs_done(&after);
		ptc_store_close(s);
		place_remove(&p);
	}
	printf("%lld of %lld bytes were not read\n", (long long)known, (long long)total);
	assert_true(known > total / 8);
	assert_int_equal(ptc_alloc_live(), 0);
}

/* A bit that flips after the capture changes no kept digest. Whoever reads the bytes finds it. */
static void test_flipped(void **arg)
{
	struct ptc_needs all = { 0 };
	struct ptc_captured *captured = ptc_captured_new(BAND, RUN);
	struct ptc_captured_known known = { .captured = captured, .g = &geometry };
	struct ptc_digest_job job = { .g = &geometry, .needs = &all };
	struct ptc_error why = PTC_ERROR_INIT;
	int64_t read;
	uint64_t digest;
	struct ptc_store *s;
	struct place p;

	(void)arg;
	*(struct ptc_need *)box_room(&all) = (struct ptc_need){ 0, ptc_box_whole(2, tensors[0].shape) };
	place_make(&p, fast_base());
	p.damaged = true;
	s = store_open(&p, 64ull << 20);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	job.table = known.table = capture(s, &all, captured);
	job.digests = &digest;
	flip_bit(&p, bytes[0][0] + 5000, 64);
	job.known = ptc_captured_known;
	job.known_arg = &known;
	ok(ptc_digest_needs(&job, err));
	assert_int_equal(digest, ptc_digest_run(bytes[0][0], BYTES));
	assert_int_equal(known.bytes, BYTES);
	job.known = NULL;
	assert_int_equal(ptc_digest_needs(&job, &why), PTC_ECORRUPT);
	assert_int_equal(ptc_table_scrub(job.table, NULL, NULL, &read, &why), PTC_ECORRUPT);
	ptc_table_unref(job.table);
	ptc_captured_free(captured);
	ptc_needs_done(&all);
	ptc_store_close(s);
	place_remove(&p);
	assert_int_equal(ptc_alloc_live(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_flipped),
	};

	seed = ptc_test_seed();
	cases = ptc_test_size(40, 200, 2000);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
