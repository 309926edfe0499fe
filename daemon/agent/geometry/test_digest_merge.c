/* SPDX-License-Identifier: Apache-2.0 */
/* The merge of digests in windows of any size, on random layouts and allocations, against an oracle that counts bytes.
 * The digest of a byte is a random number, and that of a box the XOR over its bytes. The seed is printed. */
#include "daemon/agent/calls/agent_limits.h"
#include "daemon/agent/geometry/digest_merge.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/test_seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MAX_TENSORS 9
#define MAX_ITEMS   (2 * MAX_TENSORS)
#define MAX_BYTES   512 /* of an item */
#define NODES       4

static uint64_t rng, seed_of_case;

static uint64_t rnd(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (rng >> 11) % n;
}

#define CHECK(x)                                                                                                       \
	do {                                                                                                           \
		if (!(x))                                                                                              \
			fail_msg("case %llu: %s", (unsigned long long)seed_of_case, #x);                               \
	} while (0)

/* ---- a state and who holds it ---- */

struct state {
	struct ptc_tensor tensors[MAX_TENSORS];
	struct ptc_field field;
	struct ptc_rule rule;
	struct ptc_spec spec;
	struct ptc_layout *layout;
	struct ptc_geometry g;
	struct ptc_device devices[16];
	char names[NODES][16], *nodes[NODES];
};

static void geometry_make(struct state *s, uint32_t nnodes, bool spread)
{
	Ptc__V1__Generation which;
	const uint32_t world = ptc_layout_world(s->layout);

	ptc__v1__generation__init(&which);
	for (uint32_t r = 0; r < world; r++)
		s->devices[r] = (struct ptc_device){ spread ? r % nnodes : (uint32_t)rnd(nnodes), r };
	for (uint32_t n = 0; n < nnodes; n++) {
		snprintf(s->names[n], sizeof s->names[n], "n%u", n);
		s->nodes[n] = s->names[n];
	}
	s->g = (struct ptc_geometry){ .spec = &s->spec,
				      .layout = s->layout,
				      .allocation = { s->devices, world },
				      .nodes = s->nodes,
				      .nnodes = nnodes };
	assert_int_equal(ptc_geometry_copies(&s->g, &which, NULL), 0);
}

static void state_done(struct state *s)
{
	ptc_geometry_copies_done(&s->g);
	ptc_layout_free(s->layout);
}

static void state_make(struct state *s)
{
	static const char *const configs[] = { "tp=1",      "tp=2", "tp=4",        "dp=3",
					       "dp=2,tp=2", "tp=8", "dp=4,zero=3", "dp=2,tp=2,zero=1" };
	struct ptc_config config;

	*s = (struct state){ .field = { "m", PTC_U8, false }, .rule = { .match = "*" } };
	s->spec = (struct ptc_spec){ .name = "job", .tensors = s->tensors, .fields = &s->field, .rules = &s->rule };
	s->spec.ntensors = 1 + rnd(MAX_TENSORS);
	s->spec.nfields = rnd(2);
	s->spec.nrules = 1;
	s->rule.splits[0].axis = PTC_AXIS_TP;
	for (size_t i = 0; i < s->spec.ntensors; i++) {
		struct ptc_tensor *t = &s->tensors[i];
		static const char *const names[MAX_TENSORS] = { "a", "b", "c", "d", "e", "f", "g", "h", "i" };

		*t = (struct ptc_tensor){ .name = names[i], .dtype = rnd(2) ? PTC_U8 : PTC_F32 };
		t->ndim = 1 + (uint32_t)rnd(2);
		t->shape[0] = (int64_t)(8 * rnd(3));
		t->shape[1] = 1 + (int64_t)rnd(5);
	}
	assert_int_equal(ptc_config_parse(configs[rnd(PTC_ARRAY_LEN(configs))], &config, NULL), 0);
	assert_int_equal(ptc_layout_new(&s->spec, &config, &s->layout, NULL), 0);
	geometry_make(s, 1 + (uint32_t)rnd(NODES), false);
}

/* ---- the oracle ---- */

static uint64_t byte_digest(uint32_t item, size_t at)
{
	uint64_t x = (seed_of_case + item * UINT64_C(100003) + at + 1) * UINT64_C(0x9E3779B97F4A7C15);

	x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	return x ^ x >> 31;
}

/* The digest of a box, byte by byte. holds: its bytes are marked, unless NULL. */
static uint64_t box_digest(const struct state *s, uint32_t item, const struct ptc_box *box, bool *holds)
{
	int64_t shape[PTC_MAX_DIMS], volume = ptc_box_volume(box);
	uint64_t digest = 0;
	uint32_t ndim;

	assert_int_equal(ptc_item_byte_shape(&s->spec, item, &ndim, shape, NULL), 0);
	for (int64_t k = 0; k < volume; k++) {
		int64_t rest = k, at = 0, step = 1;

		for (uint32_t d = ndim; d-- > 0;) {
			at += (box->off[d] + rest % box->ext[d]) * step;
			rest /= box->ext[d];
			step *= shape[d];
		}
		digest ^= byte_digest(item, (size_t)at);
		if (holds)
			holds[at] = true;
	}
	return digest;
}

/* What nodes say, and what is to come of it. */
struct answers {
	struct ptc_needs needs[NODES];
	uint32_t *index[NODES];
	uint64_t *digests[NODES];
	size_t n[NODES];
	uint64_t items[MAX_ITEMS];
	uint32_t left_out; /* NODES: none */
	int rc;
};

static void answers_make(const struct state *s, struct answers *a)
{
	*a = (struct answers){ .left_out = NODES };
	for (uint32_t n = 0; n < s->g.nnodes; n++) {
		struct ptc_needs *needs = &a->needs[n];

		CHECK(!ptc_layout_node_needs(s->layout, &s->g.allocation, n, needs, NULL));
		a->n[n] = needs->n;
		a->index[n] = ptc_calloc(needs->n + 1, sizeof *a->index[n]);
		a->digests[n] = ptc_calloc(needs->n + 1, sizeof *a->digests[n]);
		for (size_t i = 0; i < needs->n; i++) {
			a->index[n][i] = (uint32_t)i;
			a->digests[n][i] = box_digest(s, needs->v[i].item, &needs->v[i].box, NULL);
		}
	}
	for (uint32_t i = 0; i < ptc_spec_items(&s->spec); i++)
		for (int64_t k = 0; k < ptc_item_bytes(&s->spec, i); k++)
			a->items[i] ^= byte_digest(i, (size_t)k);
}

static void answers_done(struct answers *a)
{
	for (size_t n = 0; n < NODES; n++) {
		ptc_needs_done(&a->needs[n]);
		ptc_free(a->index[n]);
		ptc_free(a->digests[n]);
	}
}

/* Do the nodes that are not left out have every byte? */
static bool covered(const struct state *s, const struct answers *a)
{
	static bool holds[MAX_ITEMS][MAX_BYTES];

	memset(holds, 0, sizeof holds);
	for (uint32_t n = 0; n < s->g.nnodes; n++)
		for (size_t i = 0; i < a->needs[n].n && n != a->left_out; i++)
			box_digest(s, a->needs[n].v[i].item, &a->needs[n].v[i].box, holds[a->needs[n].v[i].item]);
	for (uint32_t i = 0; i < ptc_spec_items(&s->spec); i++)
		for (int64_t k = 0; k < ptc_item_bytes(&s->spec, i); k++)
			if (!holds[i][k])
				return false;
	return true;
}

/* One node lies, says less or more than it should, or is left out; or all is well. */
static void answers_spoil(const struct state *s, struct answers *a)
{
	const uint32_t n = (uint32_t)rnd(s->g.nnodes);
	const uint64_t how = rnd(5);
	size_t i;

	if (how == 1) {
		a->left_out = n;
		a->rc = covered(s, a) ? 0 : PTC_ESTATE;
	} else if (how == 2) { /* its last box, or one that it does not have */
		a->index[n][a->n[n]] = (uint32_t)(a->n[n] + rnd(3));
		a->n[n]++;
		a->rc = PTC_EPEER;
	}
	if (how < 3 || !a->n[n])
		return;
	i = rnd(a->n[n]);
	if (how == 3) {
		a->digests[n][i] ^= 1;
		a->rc = PTC_EDIGEST;
	} else { /* from the last to the first, without one */
		for (size_t k = 0; k < a->n[n] / 2; k++) {
			const size_t m = a->n[n] - 1 - k;
			const uint64_t digest = a->digests[n][k];

			a->digests[n][k] = a->digests[n][m];
			a->digests[n][m] = digest;
			a->index[n][k] = (uint32_t)m;
			a->index[n][m] = (uint32_t)k;
		}
		i = a->n[n] - 1;
		a->n[n] = i;
		a->rc = PTC_ESTATE;
	}
}

/* ---- the merge ---- */

static int merge(const struct state *s, const struct answers *a, size_t boxes, uint32_t items, uint64_t *ret,
		 struct ptc_error *err)
{
	struct ptc_digests *d = NULL;
	int rc = ptc_digests_new(&s->g, &d, err);

	if (!rc)
		ptc_digests_bound(d, boxes, items);
	for (uint32_t n = 0; n < s->g.nnodes && !rc; n++) /* in two messages */
		for (size_t half = 0; half < 2 && !rc; half++) {
			const size_t from = half ? a->n[n] / 2 : 0, to = half ? a->n[n] : a->n[n] / 2;

			rc = ptc_digests_add(d, n, a->index[n] + from, a->digests[n] + from, to - from, err);
		}
	if (!rc && a->left_out < NODES)
		ptc_digests_leave_out(d, a->left_out);
	if (!rc)
		rc = ptc_digests_merge(d, a->items, ret, err);
	ptc_digests_free(d);
	return rc;
}

static void windows_of_any_size(void **state)
{
	static const uint32_t items[] = { 1, 2, 7, MAX_ITEMS };
	static const size_t boxes[] = { 1, 5, 1000 };
	const uint64_t cases = ptc_test_size(3000, 20000, 100000);
	uint64_t of[5] = { 0 };
	static struct state s;

	for (uint64_t k = 0; k < cases; k++) {
		struct answers a;
		char said[PTC_ERROR_MAX] = "";

		seed_of_case = ptc_test_seed() + k;
		rng = seed_of_case * UINT64_C(0x9E3779B97F4A7C15) | 1;
		state_make(&s);
		answers_make(&s, &a);
		answers_spoil(&s, &a);
		for (size_t i = 0; i < PTC_ARRAY_LEN(items) * PTC_ARRAY_LEN(boxes); i++) {
			struct ptc_error err = PTC_ERROR_INIT;
			uint64_t got[MAX_ITEMS] = { 0 };

			CHECK(merge(&s, &a, boxes[i % 3], items[i / 3], got, &err) == a.rc);
			CHECK(a.rc || !memcmp(got, a.items, sizeof got));
			CHECK(!i || !strcmp(said, err.text));
			snprintf(said, sizeof said, "%s", err.text);
		}
		of[a.rc == 0 ? 0 : a.rc == PTC_ESTATE ? 1 : a.rc == PTC_EPEER ? 2 : 3]++;
		answers_done(&a);
		state_done(&s);
	}
	print_message("%llu agree, %llu incomplete, %llu too many, %llu differ\n", (unsigned long long)of[0],
		      (unsigned long long)of[1], (unsigned long long)of[2], (unsigned long long)of[3]);
	assert_true(of[0] && of[1] && of[2] && of[3]);
	assert_int_equal(ptc_alloc_live(), 0);
}

/* ---- memory ---- */

#define MANY 20000 /* tensors: the first half is whole on each node, and each node has two parts of the others */

struct many {
	struct state s;
	uint64_t digests[NODES][3 * MANY / 2], expected[MANY], got[MANY];
	uint32_t index[3 * MANY / 2];
};

static void many_make(struct many *m)
{
	struct ptc_tensor *tensors = ptc_calloc(MANY, sizeof *tensors);
	struct ptc_config config;

	m->s = (struct state){ .rule = { .match = "u*", .splits[0].axis = PTC_AXIS_TP } };
	m->s.spec = (struct ptc_spec){ .name = "job", .tensors = tensors, .ntensors = MANY };
	m->s.spec.rules = &m->s.rule;
	m->s.spec.nrules = 1;
	for (size_t i = 0; i < MANY; i++)
		tensors[i] =
			(struct ptc_tensor){ ptc_asprintf("%c%05zu", i < MANY / 2 ? 't' : 'u', i), PTC_U8, 1, { 8 } };
	assert_int_equal(ptc_config_parse("tp=8", &config, NULL), 0);
	assert_int_equal(ptc_layout_new(&m->s.spec, &config, &m->s.layout, NULL), 0);
	geometry_make(&m->s, NODES, true);
	for (size_t i = 0; i < PTC_ARRAY_LEN(m->index); i++) {
		m->index[i] = (uint32_t)i;
		for (uint32_t n = 0; n < NODES; n++) {
			m->digests[n][i] = i < MANY / 2 ? i : NODES * i + n;
			if (i < MANY / 2)
				m->expected[i] = i;
			else
				m->expected[MANY / 2 + (i - MANY / 2) / 2] ^= m->digests[n][i];
		}
	}
}

static void many_done(struct many *m)
{
	for (size_t i = 0; i < MANY; i++)
		ptc_free((void *)(uintptr_t)m->s.spec.tensors[i].name);
	state_done(&m->s);
	ptc_free(m->s.spec.tensors);
}

/* The memory of a window and 8 bytes for each item are enough. Windows that are guessed from whole tensors have too
 * many boxes where tensors are cut. */
static void memory_does_not_grow_with_the_number_of_items(void **state)
{
	const uint64_t window = PTC_AGENT_MERGE_BOXES * UINT64_C(200), scratch = 16 << 10;
	static struct many m;
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t before, made;
	struct ptc_digests *d;

	many_make(&m);
	assert_int_equal(ptc_digests_new(&m.s.g, &d, &err), 0);
	for (uint32_t n = 0; n < NODES; n++)
		assert_int_equal(ptc_digests_add(d, n, m.index, m.digests[n], PTC_ARRAY_LEN(m.index), &err), 0);
	before = ptc_alloc_bytes();
	made = ptc_alloc_count();
	ptc_alloc_limit_set(before + window + scratch + sizeof m.got);
	assert_int_equal(ptc_digests_merge(d, m.expected, m.got, &err), 0);
	assert_memory_equal(m.got, m.expected, sizeof m.got);
	/* six for the windows, two to list each node's boxes in each of some 20 windows */
	assert_in_range(ptc_alloc_count() - made, 6, 6 + 2 * NODES * 20);
	/* reserved before the first window: with less it fails, and has compared nothing */
	m.expected[0]++;
	ptc_alloc_limit_set(before + window / 2);
	assert_int_equal(ptc_digests_merge(d, m.expected, m.got, &err), PTC_ENOMEM);
	ptc_alloc_limit_set(UINT64_MAX);
	assert_int_equal(ptc_digests_merge(d, m.expected, m.got, &err), PTC_EDIGEST);
	assert_int_equal(ptc_alloc_bytes(), before);
	ptc_digests_free(d);
	many_done(&m);
	assert_int_equal(ptc_alloc_live(), 0);
}

static void every_allocation_fails_in_turn(void **state)
{
	static struct state s;
	struct answers a;
	uint64_t got[MAX_ITEMS], failed = 0;
	int rc = PTC_ENOMEM;
	int64_t live;

	seed_of_case = ptc_test_seed();
	rng = seed_of_case * UINT64_C(0x9E3779B97F4A7C15) | 1;
	state_make(&s);
	answers_make(&s, &a);
	live = ptc_alloc_live();
	for (uint64_t n = 1; rc; n++, failed++) {
		struct ptc_error err = PTC_ERROR_INIT;

		ptc_alloc_fail_at(n);
		rc = merge(&s, &a, 5, 2, got, &err);
		ptc_alloc_fail_at(0);
		CHECK(!rc || rc == PTC_ENOMEM);
		CHECK(ptc_alloc_live() == live);
	}
	CHECK(failed > 5);
	answers_done(&a);
	state_done(&s);
	assert_int_equal(ptc_alloc_live(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(windows_of_any_size),
		cmocka_unit_test(memory_does_not_grow_with_the_number_of_items),
		cmocka_unit_test(every_allocation_fails_in_turn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
