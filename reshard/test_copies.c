/* SPDX-License-Identifier: Apache-2.0 */
/* Copies beside a layout, compared byte by byte with a count that knows needs of nodes only: what is found to lack,
 * where it goes, and that then every byte is in as many domains as asked for, with nodes lost, in racks, and again
 * after a loss. */
#include "base/alloc.h"
#include "base/test_seed.h"
#include "reshard/copies/copies.h"
#include "reshard/plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t rnd_state;

static uint64_t rnd(uint64_t below)
{
	rnd_state ^= rnd_state << 13;
	rnd_state ^= rnd_state >> 7;
	rnd_state ^= rnd_state << 17;
	return rnd_state % below;
}

#define NODES     8
#define MAX_BYTES 4096
#define MAX_ADD   512

static struct ptc_tensor tensors[] = { { "h.0.w", PTC_BF16, 2, { 16, 12 } },
				       { "h.1.w", PTC_BF16, 2, { 16, 12 } },
				       { "norm", PTC_F32, 1, { 13 } },
				       { "wte", PTC_BF16, 2, { 32, 8 } } };
static struct ptc_field fields[] = { { "exp_avg", PTC_F32, false } };
static struct ptc_rule rules[] = {
	{ .match = "h.*", .splits[0].axis = PTC_AXIS_TP, .place = PTC_PLACE_LAYER, .layer = "h.{}.w" },
	{ .match = "wte", .splits[0].axis = PTC_AXIS_TP, .place = PTC_PLACE_ENDS },
};
static const struct ptc_spec spec = {
	.name = "job",
	.tensors = tensors,
	.ntensors = 4,
	.fields = fields,
	.nfields = 1,
	.rules = rules,
	.nrules = 2,
};
#define ITEMS 8

/* What is held: the layout, and copies as ptc_copies_find gave them. */
struct held {
	struct ptc_layout *base, *held;
	struct ptc_device ranks[64 + MAX_ADD];
	struct ptc_allocation at;
	struct ptc_copy copies[MAX_ADD];
	uint32_t n, world;
	uint8_t *items[MAX_ADD];
	size_t nitems;
};

static void make(struct held *h, const char *config)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_config c;

	memset(h, 0, sizeof *h);
	if (ptc_config_parse(config, &c, &err) || ptc_layout_new(&spec, &c, &h->base, &err))
		fail_msg("%s: %s", config, err.text);
	h->world = ptc_layout_world(h->base);
	h->at = (struct ptc_allocation){ h->ranks, h->world };
	assert_int_equal(ptc_layout_with_copies(h->base, NULL, 0, &h->held, &err), 0);
}

static void again(struct held *h)
{
	struct ptc_error err = PTC_ERROR_INIT;

	ptc_layout_free(h->held);
	if (ptc_layout_with_copies(h->base, h->copies, h->n, &h->held, &err))
		fail_msg("%s", err.text);
	h->at.world = h->world + h->n;
	assert_int_equal(ptc_layout_world(h->held), h->at.world);
}

static void add(struct held *h, struct ptc_copies_found *f)
{
	size_t first = h->nitems;

	for (size_t i = 0; i < f->nitems; i++) {
		h->items[h->nitems++] = f->items[i];
		f->items[i] = NULL;
	}
	assert_true(h->n + f->nadd <= MAX_ADD);
	for (size_t i = 0; i < f->nadd; i++) {
		h->copies[h->n] = (struct ptc_copy){ f->add[i].rank, h->items[first + f->add[i].items] };
		h->ranks[h->world + h->n] = (struct ptc_device){ f->add[i].node, PTC_MAX_DEVICES_PER_NODE + h->n };
		h->n++;
	}
	again(h);
}

static void release(struct held *h)
{
	for (size_t i = 0; i < h->nitems; i++)
		ptc_free(h->items[i]);
	ptc_layout_free(h->held);
	ptc_layout_free(h->base);
}

/* ---- the oracle: every byte by itself ---- */

static void mark(const struct ptc_box *box, const int64_t *shape, uint32_t bit, uint32_t *v)
{
	int64_t n = ptc_box_volume(box);

	for (int64_t i = 0; i < n; i++) {
		int64_t at = 0, rest = i, stride = 1;

		for (uint32_t d = box->ndim; d-- > 0;) {
			at += (box->off[d] + rest % box->ext[d]) * stride;
			rest /= box->ext[d];
			stride *= shape[d];
		}
		assert_true(at < MAX_BYTES);
		v[at] |= 1u << bit;
	}
}

struct counted {
	uint32_t fewest;
	int64_t lacks, nobody; /* nobody: bytes that no domain has */
};

static uint32_t in[ITEMS][MAX_BYTES]; /* by the last count: of each byte, the domains that have it */

static struct counted count(const struct held *h, const uint32_t *domain, const bool *usable, uint32_t target)
{
	struct counted c = { UINT32_MAX, 0, 0 };
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];

	memset(in, 0, sizeof in);
	for (uint32_t node = 0; node < NODES; node++) {
		struct ptc_needs needs;

		assert_int_equal(ptc_layout_node_needs(h->held, &h->at, node, &needs, NULL), 0);
		for (size_t i = 0; usable[node] && i < needs.n; i++) {
			assert_int_equal(ptc_item_byte_shape(&spec, needs.v[i].item, &ndim, shape, NULL), 0);
			mark(&needs.v[i].box, shape, domain[node], in[needs.v[i].item]);
		}
		ptc_needs_done(&needs);
	}
	for (uint32_t item = 0; item < ITEMS; item++)
		for (int64_t b = 0; b < ptc_item_bytes(&spec, item); b++) {
			uint32_t n = (uint32_t)__builtin_popcount(in[item][b]);

			c.fewest = n < c.fewest ? n : c.fewest;
			c.lacks += n && n < target ? target - n : 0;
			c.nobody += !n;
		}
	return c;
}

/* ---- the test ---- */

static const char *const configs[] = {
	"tp=2",           "tp=4",        "tp=2,dp=2",        "tp=1,dp=3",        "tp=2,pp=2",
	"tp=2,pp=2,dp=2", "dp=4,zero=1", "tp=2,dp=2,zero=1", "tp=1,dp=2,zero=3", "dp=4,zero=3"
};

/* A switch from here is planned as if copies were ranks: nothing that has a usable copy is lost. */
static void plan_from(const struct held *h, const bool *usable, bool whole)
{
	struct ptc_layout *to;
	struct ptc_config c;
	struct ptc_device device = { 0, 0 };
	struct ptc_allocation one = { &device, 1 };
	struct ptc_plan *plan = NULL;
	struct ptc_lost *lost = NULL;
	size_t n = 0;
	int rc;

	assert_int_equal(ptc_config_parse("tp=1", &c, NULL), 0);
	assert_int_equal(ptc_layout_new(&spec, &c, &to, NULL), 0);
	rc = ptc_plan_new(&spec, h->held, &h->at, to, &one, NODES, usable, &plan, NULL);
	assert_int_equal(rc, whole ? 0 : PTC_ELOST);
	ptc_plan_free(plan);
	assert_int_equal(ptc_layout_lost(h->held, &h->at, NODES, usable, &lost, &n, NULL), 0);
	assert_int_equal(n == 0, whole);
	ptc_free(lost);
	ptc_layout_free(to);
}

static void one_case(void)
{
	const char *config = configs[rnd(sizeof configs / sizeof *configs)];
	uint32_t domain[NODES], ndomains = 0, racks = rnd(2) ? 0 : 2 + (uint32_t)rnd(3);
	uint32_t target = 1 + (uint32_t)rnd(3), gone = (uint32_t)rnd(NODES);
	bool usable[NODES], seen[NODES] = { false };
	struct ptc_copies_found f;
	struct ptc_error err = PTC_ERROR_INIT;
	struct counted c;
	struct held h;

	make(&h, config);
	for (uint32_t n = 0; n < NODES; n++) {
		domain[n] = racks ? n % racks : n;
		usable[n] = true;
	}
	for (uint32_t r = 0; r < h.world; r++)
		h.ranks[r] = (struct ptc_device){ (uint32_t)rnd(NODES), r };
	for (int round = 0; round < 2; round++) {
		struct ptc_copies_ask ask = { .held = h.held,
					      .world = h.world,
					      .at = &h.at,
					      .nnodes = NODES,
					      .domain = domain,
					      .usable = usable,
					      .target = usable,
					      .count = target };

		for (uint32_t n = 0; n < NODES; n++) {
			ndomains += usable[n] && !seen[domain[n]];
			seen[domain[n]] = seen[domain[n]] || usable[n];
		}
		c = count(&h, domain, usable, target);
		if (ptc_copies_find(&ask, &f, &err))
			fail_msg("%s: %s", config, err.text);
		assert_int_equal(f.fewest, c.fewest);
		assert_int_equal(f.bytes, c.lacks);
		assert_int_equal(f.nobody, c.nobody);
		assert_int_equal(f.nowhere == 0, ndomains >= target || !c.lacks);
		add(&h, &f);
		ptc_copies_found_done(&f);
		plan_from(&h, usable, c.fewest > 0);
		if (ndomains >= target && c.fewest > 0)
			assert_true(count(&h, domain, usable, target).fewest >= target);
		/* and a node is lost, for good */
		usable[gone] = false;
		memset(seen, 0, sizeof seen);
		ndomains = 0;
		if (target > 1 && !racks && c.fewest > 0 && !round)
			plan_from(&h, usable, true);
	}
	release(&h);
}

static void by_bytes(void **state)
{
	(void)state;
	rnd_state = ptc_test_seed() * UINT64_C(0x9e3779b97f4a7c15) | 1;
	for (int i = 0; i < 300; i++)
		one_case();
}

/* Bytes that a node has. */
static void check_held(const struct held *h, const uint32_t *domain)
{
	const bool every[NODES] = { true, true, true, true, true, true, true, true };
	int64_t got[NODES], want[NODES] = { 0 };

	count(h, domain, every, 1);
	for (uint32_t item = 0; item < ITEMS; item++)
		for (int64_t b = 0; b < ptc_item_bytes(&spec, item); b++)
			for (uint32_t n = 0; n < NODES; n++)
				want[n] += in[item][b] >> n & 1;
	assert_int_equal(ptc_copies_held(h->base, h->at.world, &h->at, NODES, got, NULL), 0);
	assert_memory_equal(got, want, sizeof got);
}

/* Bytes that a node alone has. */
static void check_alone(const struct held *h, const uint32_t *domain)
{
	const bool every[NODES] = { true, true, true, true, true, true, true, true };
	int64_t got[NODES], want[NODES] = { 0 };

	count(h, domain, every, 1);
	for (uint32_t item = 0; item < ITEMS; item++)
		for (int64_t b = 0; b < ptc_item_bytes(&spec, item); b++)
			if (__builtin_popcount(in[item][b]) == 1)
				want[__builtin_ctz(in[item][b])]++;
	assert_int_equal(ptc_copies_alone(h->base, &h->at, NODES, got, NULL), 0);
	assert_memory_equal(got, want, sizeof got);
}

/* Nodes that leave: what they alone have goes to others, and then the others have what all had. */
static void one_leaving(void)
{
	const char *config = configs[rnd(sizeof configs / sizeof *configs)];
	uint32_t domain[NODES];
	bool usable[NODES], leaving[NODES], stays[NODES], any = false;
	struct ptc_copies_found f;
	struct ptc_error err = PTC_ERROR_INIT;
	struct counted all, left;
	struct held h;

	make(&h, config);
	for (uint32_t n = 0; n < NODES; n++) {
		domain[n] = n;
		usable[n] = rnd(8) != 0;
		leaving[n] = rnd(3) == 0;
		stays[n] = usable[n] && !leaving[n];
		any = any || stays[n];
	}
	for (uint32_t r = 0; r < h.world; r++)
		h.ranks[r] = (struct ptc_device){ (uint32_t)rnd(NODES), r };
	check_alone(&h, domain);
	check_held(&h, domain);
	all = count(&h, domain, usable, 1);
	left = count(&h, domain, stays, 1);
	if (ptc_copies_find(&(struct ptc_copies_ask){ .held = h.held,
						      .world = h.world,
						      .at = &h.at,
						      .nnodes = NODES,
						      .domain = domain,
						      .usable = usable,
						      .target = stays,
						      .leaving = leaving,
						      .count = 1 },
			    &f, &err))
		fail_msg("%s: %s", config, err.text);
	assert_int_equal(f.fewest, left.fewest);
	assert_true(f.bytes == 0 || left.fewest == 0);
	assert_int_equal(f.nobody, all.nobody);
	assert_int_equal(f.nowhere, any ? 0 : f.bytes);
	for (size_t i = 0; i < f.nadd; i++)
		assert_true(stays[f.add[i].node]);
	add(&h, &f);
	ptc_copies_found_done(&f);
	if (any && all.fewest > 0) {
		assert_true(count(&h, domain, stays, 1).fewest >= 1);
		plan_from(&h, stays, true);
	}
	release(&h);
}

static void leaves(void **state)
{
	(void)state;
	rnd_state = ptc_test_seed() * UINT64_C(0x9e3779b97f4a7c15) | 1;
	for (int i = 0; i < 200; i++)
		one_leaving();
}

/* tp=2 without replicas on two of four nodes: each half goes to one of the others. */
static void spread(void **state)
{
	uint32_t domain[NODES] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	bool usable[NODES] = { true, true, true, true };
	struct ptc_copies_found f;
	struct held h;

	(void)state;
	make(&h, "tp=2");
	h.ranks[0] = (struct ptc_device){ 0, 0 };
	h.ranks[1] = (struct ptc_device){ 1, 0 };
	assert_int_equal(ptc_copies_find(&(struct ptc_copies_ask){ .held = h.held,
								   .world = 2,
								   .at = &h.at,
								   .nnodes = NODES,
								   .domain = domain,
								   .usable = usable,
								   .target = usable,
								   .count = 2 },
					 &f, NULL),
			 0);
	assert_int_equal(f.fewest, 1);
	assert_int_equal(f.nadd, 2);
	assert_int_equal(f.add[0].node + f.add[1].node, 5);
	assert_int_equal(f.nitems, 1); /* of both the same tensors: what no rule splits is on both already */
	ptc_copies_found_done(&f);
	release(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(by_bytes), cmocka_unit_test(leaves),
					    cmocka_unit_test(spread) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
