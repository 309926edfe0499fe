/* SPDX-License-Identifier: Apache-2.0 */
/* Declared layouts against brute force over elements: what is refused, what
 * each rank and node holds, plans between two of them. The oracle counts how
 * often each rank holds each element and knows no class and no box algebra.
 * PTC_TEST_SEED and PTC_CASES override; a failure prints the case. */
#include "base/alloc.h"
#include "base/limits.h"
#include "base/test_seed.h"
#include "reshard/layout/declared.h"
#include "reshard/place/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MAX_TENSORS  4
#define MAX_ELEMENTS 512
#define MAX_WORLD    16
#define MAX_BOXES    24 /* of a tensor on a rank */
#define MAX_NODES    5

static uint64_t rng, case_seed;

static int64_t rnd(int64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (int64_t)((rng >> 11) % (uint64_t)n);
}

#define CHECK(x)                                                                                                       \
	do {                                                                                                           \
		if (!(x))                                                                                              \
			fail_msg("case %llu: %s", (unsigned long long)case_seed, #x);                                  \
	} while (0)

static uint64_t cases(uint64_t n)
{
	const char *s = getenv("PTC_CASES");

	return s ? strtoull(s, NULL, 0) : n;
}

static void seed_case(uint64_t n)
{
	case_seed = ptc_test_seed() + n;
	rng = case_seed * 0x9E3779B97F4A7C15u | 1;
	for (int i = 0; i < 4; i++)
		rnd(2);
}

/* ---- random declarations ---- */

struct tensor {
	const char *name;
	enum ptc_dtype dtype;
	uint32_t ndim;
	int64_t shape[3], elements;
};

struct hold {
	bool declared, tied;
	size_t n;
	int64_t off[MAX_BOXES * 3], ext[MAX_BOXES * 3];
};

struct side {
	struct ptc_config config;
	uint32_t world;
	struct hold holds[MAX_WORLD][MAX_TENSORS];
	uint8_t count[MAX_WORLD][MAX_TENSORS][MAX_ELEMENTS]; /* the oracle */
	struct ptc_declared d;
	struct ptc_layout *layout;
	struct ptc_allocation alloc;
	struct ptc_device devices[MAX_WORLD];
};

static struct tensor tensors[MAX_TENSORS];
static size_t ntensors;

static void random_tensors(void)
{
	static const char *const names[MAX_TENSORS] = { "w", "b:exp_avg", "b", "zz.top" }; /* not in order */
	static const enum ptc_dtype dtypes[] = { PTC_U8, PTC_BF16, PTC_F32, PTC_F64 };
	static const int64_t dims[] = { 0, 1, 2, 3, 4, 5, 6, 8 };

	ntensors = 1 + (size_t)rnd(MAX_TENSORS);
	for (size_t i = 0; i < ntensors; i++) {
		struct tensor *t = &tensors[i];

		*t = (struct tensor){
			.name = names[i], .dtype = dtypes[rnd(4)], .ndim = (uint32_t)rnd(4), .elements = 1
		};
		for (uint32_t d = 0; d < t->ndim; d++)
			t->elements *= t->shape[d] = dims[rnd(40) ? 1 + rnd(7) : 0];
	}
}

static void random_config(struct side *s)
{
	static const char *const orders[] = { "tp-cp-ep-dp-pp", "pp-dp-cp-tp-ep", "dp-tp-pp-cp-ep" };
	char text[128];

	do {
		snprintf(text, sizeof text, "tp=%d,pp=%d,dp=%d,cp=%d,order=%s", 1 + (int)rnd(3), 1 + (int)rnd(3),
			 1 + (int)rnd(3), 1 + (int)rnd(2), orders[rnd(3)]);
		CHECK(ptc_config_parse(text, &s->config, NULL) == 0);
		CHECK(ptc_config_world(&s->config, &s->world, NULL) == 0);
	} while (s->world > MAX_WORLD);
}

static void give(struct hold *h, uint32_t ndim, const int64_t *off, const int64_t *ext)
{
	size_t at = (size_t)rnd((int64_t)h->n + 1); /* in any order */

	if (h->n == MAX_BOXES)
		return;
	memmove(h->off + (at + 1) * ndim, h->off + at * ndim, (h->n - at) * ndim * sizeof *h->off);
	memmove(h->ext + (at + 1) * ndim, h->ext + at * ndim, (h->n - at) * ndim * sizeof *h->ext);
	memcpy(h->off + at * ndim, off, ndim * sizeof *off);
	memcpy(h->ext + at * ndim, ext, ndim * sizeof *ext);
	h->n++;
	h->declared = true;
}

/* One cell of a tensor goes to some ranks of the stages that have it (a bit mask). */
static void deal_cell(struct side *s, size_t tensor, const int64_t *off, const int64_t *ext, uint32_t stages)
{
	uint32_t given = 0;

	if (rnd(300) == 0)
		return; /* left out */
	while (!given)
		for (uint32_t r = 0; r < s->world; r++)
			if ((stages >> ptc_config_coords(&s->config, r).pp & 1) && rnd(3) == 0) {
				give(&s->holds[r][tensor], tensors[tensor].ndim, off, ext);
				given++;
			}
}

/* Cuts a cell in two again and again. */
static void cut_cells(struct side *s, size_t tensor, int64_t *off, int64_t *ext, uint32_t stages, int depth)
{
	uint32_t d = tensors[tensor].ndim ? (uint32_t)rnd(tensors[tensor].ndim) : 0;
	int64_t was_off[3], was_ext[3], at;

	if (depth == 0 || tensors[tensor].ndim == 0 || ext[d] < 2) {
		deal_cell(s, tensor, off, ext, stages);
		return;
	}
	memcpy(was_off, off, sizeof was_off);
	memcpy(was_ext, ext, sizeof was_ext);
	at = 1 + rnd(ext[d] - 1);
	ext[d] = at;
	cut_cells(s, tensor, off, ext, stages, depth - 1);
	memcpy(off, was_off, sizeof was_off);
	memcpy(ext, was_ext, sizeof was_ext);
	off[d] += at;
	ext[d] -= at;
	cut_cells(s, tensor, off, ext, stages, depth - 1);
}

static void random_side(struct side *s)
{
	memset(s, 0, sizeof *s);
	random_config(s);
	for (size_t t = 0; t < ntensors; t++) {
		int64_t off[3] = { 0 }, ext[3];
		bool tied = s->config.pp > 1 && rnd(3) == 0;
		uint32_t stages = tied ? (1u << s->config.pp) - 1 : 1u << rnd(s->config.pp);

		if (rnd(200) == 0)
			stages = (1u << s->config.pp) - 1;
		for (uint32_t r = 0; r < s->world; r++) {
			s->holds[r][t].tied = tied && rnd(400) != 0;
			s->holds[r][t].declared = rnd(4) == 0;
		}
		memcpy(ext, tensors[t].shape, sizeof ext);
		cut_cells(s, t, off, ext, stages, (int)rnd(4));
		if (rnd(100) == 0 && tensors[t].elements > 1) { /* a box more */
			uint32_t r = (uint32_t)rnd(s->world);

			for (uint32_t d = 0; d < tensors[t].ndim; d++) {
				off[d] = rnd(tensors[t].shape[d]);
				ext[d] = 1 + rnd(tensors[t].shape[d] - off[d]);
			}
			give(&s->holds[r][t], tensors[t].ndim, off, ext);
		}
	}
}

/* ---- the oracle ---- */

static void mark_box(const struct tensor *t, const int64_t *off, const int64_t *ext, uint8_t *count)
{
	for (int64_t e = 0; e < t->elements; e++) {
		int64_t rest = e;
		bool in = true;

		for (uint32_t d = t->ndim; d-- > 0; rest /= t->shape[d])
			in &= rest % t->shape[d] >= off[d] && rest % t->shape[d] < off[d] + ext[d];
		count[e] = (uint8_t)(count[e] + in);
	}
}

/* Fills s->count; true when it all should be accepted. */
static bool oracle(struct side *s)
{
	bool good = true;

	for (size_t t = 0; t < ntensors; t++) {
		uint32_t stages = 0;
		bool untied = false, exists = false;

		for (uint32_t r = 0; r < s->world; r++) {
			const struct hold *h = &s->holds[r][t];
			bool any = false;

			exists |= h->declared;
			for (size_t k = 0; k < h->n; k++)
				mark_box(&tensors[t], h->off + k * tensors[t].ndim, h->ext + k * tensors[t].ndim,
					 s->count[r][t]);
			for (int64_t e = 0; e < tensors[t].elements; e++) {
				any |= s->count[r][t][e] > 0;
				good &= s->count[r][t][e] < 2;
			}
			if (any) {
				stages |= 1u << ptc_config_coords(&s->config, r).pp;
				untied |= !h->tied;
			}
		}
		for (int64_t e = 0; e < tensors[t].elements; e++) {
			uint32_t sum = 0;

			for (uint32_t r = 0; r < s->world; r++)
				sum += s->count[r][t][e];
			good &= sum > 0 || !exists; /* who would know of it otherwise? */
		}
		good &= !(stages & (stages - 1)) || !untied;
	}
	return good;
}

/* ---- merging ---- */

static int add_rank(struct ptc_declared_merge *m, const struct side *s, uint32_t rank, struct ptc_error *err)
{
	struct ptc_declared_tensor v[MAX_TENSORS];
	size_t n = 0;

	for (size_t t = 0; t < ntensors; t++) {
		const struct hold *h = &s->holds[rank][t];

		if (h->declared)
			v[n++] = (struct ptc_declared_tensor){ .name = tensors[t].name,
							       .dtype = tensors[t].dtype,
							       .ndim = tensors[t].ndim,
							       .shape = tensors[t].shape,
							       .tied = h->tied,
							       .nboxes = h->n,
							       .off = h->off,
							       .ext = h->ext };
	}
	return ptc_declared_merge_add(m, rank, v, n, err);
}

static int merge_side(const struct side *s, bool backwards, struct ptc_declared *ret, struct ptc_error *err)
{
	struct ptc_declared_merge *m = NULL;
	int rc = ptc_declared_merge_new(&s->config, &m, err);

	for (uint32_t r = 0; r < s->world && !rc; r++)
		rc = add_rank(m, s, backwards ? s->world - 1 - r : r, err);
	if (!rc)
		rc = ptc_declared_merge_finish(m, ret, err);
	ptc_declared_merge_free(m);
	return rc;
}

static void check_equal(const struct ptc_declared *a, const struct ptc_declared *b)
{
	CHECK(a->spec.ntensors == b->spec.ntensors && a->nclasses == b->nclasses && a->world == b->world);
	CHECK(ptc_declared_same(&a->spec, &b->spec, "it", NULL) == 0);
	CHECK(!memcmp(a->ranks, b->ranks, a->world * sizeof *a->ranks));
	for (size_t c = 0; c < a->nclasses; c++) {
		const struct ptc_declared_class *x = &a->classes[c], *y = &b->classes[c];

		CHECK(x->nparts == y->nparts);
		for (size_t i = 0; i < x->nparts; i++) {
			CHECK(x->parts[i].tensor == y->parts[i].tensor && x->parts[i].nboxes == y->parts[i].nboxes);
			for (uint32_t k = 0; k < x->parts[i].nboxes; k++) {
				struct ptc_box p = ptc_declared_box(a, x, &x->parts[i], k);
				struct ptc_box q = ptc_declared_box(b, y, &y->parts[i], k);

				CHECK(ptc_box_equal(&p, &q));
			}
		}
	}
}

/* false: it was refused, as it should have been. */
static bool merge_both_ways(struct side *s)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_declared other = { 0 };
	bool good = oracle(s);
	int rc = merge_side(s, false, &s->d, &err);

	if ((rc == 0) != good)
		fail_msg("case %llu: %s, but: %s", (unsigned long long)case_seed, good ? "is fine" : "is wrong",
			 rc ? err.text : "accepted");
	if (rc) {
		CHECK(rc == PTC_ELAYOUT && strstr(err.text, "tensor \""));
		CHECK(merge_side(s, true, &other, &err) == PTC_ELAYOUT);
		return false;
	}
	CHECK(merge_side(s, true, &other, &err) == 0);
	check_equal(&s->d, &other);
	ptc_declared_done(&other);
	CHECK(ptc_layout_declared_new(&s->d, &s->layout, &err) == 0);
	return true;
}

/* ---- what ranks hold ---- */

/* Our number of the spec's tensor. */
static size_t ours(const struct side *s, uint32_t item)
{
	for (size_t t = 0; t < ntensors; t++)
		if (!strcmp(tensors[t].name, s->d.spec.tensors[item].name))
			return t;
	CHECK(!"a tensor nobody declared");
	return 0;
}

/* Each position of the local tensor is one element that the rank holds. */
static void check_positions(const struct side *s, uint32_t rank, uint32_t item, int64_t n)
{
	struct ptc_rank_layout l;
	const struct tensor *t = &tensors[ours(s, item)];
	int64_t at[MAX_ELEMENTS], last = -1;

	CHECK(ptc_layout_rank(s->layout, rank, &l, NULL) == 0);
	memset(at, 0xff, sizeof at);
	for (size_t i = 0; i < l.nregions; i++) {
		const struct ptc_region *r = &l.regions[i];

		if (r->item != item)
			continue;
		CHECK(!r->padding && r->box.ndim == t->ndim);
		for (int64_t k = 0; k < ptc_box_volume(&r->box); k++) {
			int64_t rest = k, where = r->buf_off, element = 0, idx[3] = { 0 };

			for (uint32_t d = t->ndim; d-- > 0; rest /= r->box.ext[d])
				idx[d] = rest % r->box.ext[d];
			for (uint32_t d = 0; d < t->ndim; d++) {
				where += idx[d] * r->buf_stride[d];
				element = element * t->shape[d] + r->box.off[d] + idx[d];
			}
			CHECK(where >= 0 && where < n && at[where] == -1);
			at[where] = element;
			CHECK(s->count[rank][ours(s, item)][element] == 1);
			if (k == 0) { /* boxes in order of their first element */
				CHECK(element > last);
				last = element;
			}
		}
	}
	for (int64_t k = 0; k < n; k++)
		CHECK(at[k] >= 0);
	ptc_rank_layout_done(&l);
}

static void check_ranks(const struct side *s)
{
	for (uint32_t r = 0; r < s->world; r++)
		for (uint32_t item = 0; item < s->d.spec.ntensors; item++) {
			struct ptc_local_shape shape;
			size_t t = ours(s, item), boxes = 0;
			const struct hold *h = &s->holds[r][t];
			int64_t n = 0, volume = 1;

			for (int64_t e = 0; e < tensors[t].elements; e++)
				n += s->count[r][t][e];
			boxes = n ? h->n : 0;
			CHECK(ptc_layout_local_shape(s->layout, r, item, &shape) == h->declared);
			if (!h->declared)
				continue;
			for (uint32_t d = 0; d < shape.ndim; d++)
				volume *= shape.shape[d];
			CHECK(volume == n);
			CHECK(shape.ndim == (boxes == 1 ? tensors[t].ndim : 1));
			check_positions(s, r, item, n);
		}
}

/* ---- what nodes hold, and moves ---- */

static void random_allocation(struct side *s, uint32_t nnodes)
{
	for (uint32_t r = 0; r < s->world; r++)
		s->devices[r] = (struct ptc_device){ (uint32_t)rnd(nnodes), r };
	s->alloc = (struct ptc_allocation){ s->devices, s->world };
}

/* Marks the elements of a byte box. */
static void mark_bytes(const struct side *s, uint32_t item, const struct ptc_box *b, uint8_t *count)
{
	const struct tensor *t = &tensors[ours(s, item)];
	int64_t size = ptc_dtype_bits(t->dtype) / 8, off[3] = { 0 }, ext[3] = { 1 };

	CHECK(b->ndim == (t->ndim ? t->ndim : 1));
	for (uint32_t d = 0; d < t->ndim; d++) {
		off[d] = d + 1 == t->ndim ? b->off[d] / size : b->off[d];
		ext[d] = d + 1 == t->ndim ? b->ext[d] / size : b->ext[d];
	}
	CHECK(b->off[b->ndim - 1] % size == 0 && b->ext[b->ndim - 1] % size == 0);
	mark_box(t, off, ext, count);
}

static void node_holds(const struct side *s, uint32_t node, uint8_t has[MAX_TENSORS][MAX_ELEMENTS])
{
	memset(has, 0, MAX_TENSORS * MAX_ELEMENTS);
	for (uint32_t r = 0; r < s->world; r++)
		for (size_t t = 0; t < ntensors && s->alloc.ranks[r].node == node; t++)
			for (int64_t e = 0; e < tensors[t].elements; e++)
				has[t][e] |= s->count[r][t][e];
}

static void check_needs(const struct side *s, uint32_t nnodes)
{
	static uint8_t has[MAX_TENSORS][MAX_ELEMENTS], listed[MAX_TENSORS][MAX_ELEMENTS];

	for (uint32_t n = 0; n < nnodes; n++) {
		struct ptc_needs needs;

		node_holds(s, n, has);
		memset(listed, 0, sizeof listed);
		CHECK(ptc_layout_node_needs(s->layout, &s->alloc, n, &needs, NULL) == 0);
		for (size_t i = 0; i < needs.n; i++)
			mark_bytes(s, needs.v[i].item, &needs.v[i].box, listed[ours(s, needs.v[i].item)]);
		for (size_t t = 0; t < ntensors; t++)
			CHECK(!memcmp(has[t], listed[t], (size_t)tensors[t].elements));
		ptc_needs_done(&needs);
	}
}

static void check_plan(const struct side *from, const struct side *to, uint32_t nnodes, const struct ptc_plan *p)
{
	static uint8_t had[MAX_NODES][MAX_TENSORS][MAX_ELEMENTS], got[MAX_NODES][MAX_TENSORS][MAX_ELEMENTS];
	static uint8_t box[MAX_ELEMENTS], need[MAX_TENSORS][MAX_ELEMENTS];
	int64_t between = 0;

	memset(got, 0, sizeof got);
	for (uint32_t n = 0; n < nnodes; n++)
		node_holds(from, n, had[n]);
	for (size_t i = 0; i < p->nmoves; i++) {
		const struct ptc_move *m = &p->moves[i];
		size_t t = ours(to, m->item);

		memset(box, 0, sizeof box);
		mark_bytes(to, m->item, &m->box, box);
		for (int64_t e = 0; e < tensors[t].elements; e++) {
			CHECK(!box[e] ||
			      (had[m->src_node][t][e] && !had[m->dst_node][t][e] && !got[m->dst_node][t][e]));
			got[m->dst_node][t][e] |= box[e];
		}
	}
	for (uint32_t n = 0; n < nnodes; n++) {
		node_holds(to, n, need);
		for (size_t t = 0; t < ntensors; t++)
			for (int64_t e = 0; e < tensors[t].elements; e++) {
				CHECK(got[n][t][e] == (need[t][e] && !had[n][t][e]));
				between += got[n][t][e] * ptc_dtype_bits(tensors[t].dtype) / 8;
			}
	}
	CHECK(between == p->between_nodes);
}

/* No other allocation tried moves less than the bound, and what is called exact is met. */
static void check_place(const struct side *from, struct side *to, uint32_t nnodes)
{
	struct ptc_device devices[MAX_WORLD + 2];
	struct ptc_allocation chosen;
	struct ptc_plan *p;
	int64_t gap, least;

	for (uint32_t i = 0; i < to->world + 2; i++)
		devices[i] = (struct ptc_device){ i % nnodes, i };
	CHECK(ptc_place(&to->d.spec, from->layout, &from->alloc, to->layout, devices, to->world + 2, nnodes, &chosen,
			&gap, NULL) == 0);
	CHECK(ptc_plan_new(&to->d.spec, from->layout, &from->alloc, to->layout, &chosen, nnodes, NULL, &p, NULL) == 0);
	least = p->between_nodes - gap;
	CHECK(gap >= 0 && least >= 0);
	ptc_plan_free(p);
	ptc_allocation_done(&chosen);
	if (to->config.tp > 1) /* blocks stay together, so a random allocation may be better */
		return;
	for (int i = 0; i < 10; i++) {
		for (uint32_t r = to->world; r-- > 1;) {
			uint32_t k = (uint32_t)rnd(r + 1);
			struct ptc_device swap = devices[r];

			devices[r] = devices[k];
			devices[k] = swap;
		}
		to->alloc = (struct ptc_allocation){ devices, to->world };
		CHECK(ptc_plan_new(&to->d.spec, from->layout, &from->alloc, to->layout, &to->alloc, nnodes, NULL, &p,
				   NULL) == 0);
		CHECK(p->between_nodes >= least);
		ptc_plan_free(p);
	}
}

static void side_done(struct side *s)
{
	s->layout = ptc_layout_free(s->layout);
	ptc_declared_done(&s->d);
}

static void layouts_and_plans(void **state)
{
	static struct side from, to;
	int64_t live = ptc_alloc_live();
	uint64_t n = cases(4000), accepted = 0, planned = 0;

	for (uint64_t i = 0; i < n; i++) {
		uint32_t nnodes;
		struct ptc_plan *p;

		seed_case(i);
		random_tensors();
		random_side(&from);
		random_side(&to);
		nnodes = 1 + (uint32_t)rnd(MAX_NODES);
		random_allocation(&from, nnodes);
		random_allocation(&to, nnodes);
		if (merge_both_ways(&from)) {
			accepted++;
			check_ranks(&from);
			check_needs(&from, nnodes);
			if (merge_both_ways(&to) && !ptc_declared_same(&from.d.spec, &to.d.spec, "it", NULL)) {
				planned++;
				CHECK(ptc_plan_new(&to.d.spec, from.layout, &from.alloc, to.layout, &to.alloc, nnodes,
						   NULL, &p, NULL) == 0);
				check_plan(&from, &to, nnodes, p);
				ptc_plan_free(p);
				check_place(&from, &to, nnodes);
			}
		}
		side_done(&from);
		side_done(&to);
		CHECK(ptc_alloc_live() == live);
	}
	printf("%llu cases, %llu accepted, %llu planned\n", (unsigned long long)n, (unsigned long long)accepted,
	       (unsigned long long)planned);
	assert_true(n < 100 || (accepted > n / 4 && accepted < n && planned > n / 8));
}

/* ---- what is said ---- */

struct said {
	uint32_t rank;
	const char *name;
	enum ptc_dtype dtype;
	int64_t size, off, ext;
	bool tied;
};

static int say(const char *config, const struct said *v, size_t n, struct ptc_error *err)
{
	struct ptc_config c;
	struct ptc_declared_merge *m;
	struct ptc_declared d = { 0 };
	uint32_t world;
	int rc = 0;

	assert_int_equal(ptc_config_parse(config, &c, NULL), 0);
	assert_int_equal(ptc_config_world(&c, &world, NULL), 0);
	assert_int_equal(ptc_declared_merge_new(&c, &m, NULL), 0);
	for (uint32_t r = 0; r < world && !rc; r++) {
		struct ptc_declared_tensor t[4];
		size_t k = 0;

		for (size_t i = 0; i < n; i++)
			if (v[i].rank == r)
				t[k++] = (struct ptc_declared_tensor){ v[i].name, v[i].dtype,   1,         &v[i].size,
								       v[i].tied, v[i].ext > 0, &v[i].off, &v[i].ext };
		if (k)
			rc = ptc_declared_merge_add(m, r, t, k, err);
	}
	if (rc == 0)
		rc = ptc_declared_merge_finish(m, &d, err);
	ptc_declared_merge_free(m);
	ptc_declared_done(&d);
	return rc;
}

static void refusals(void **state)
{
	static const struct {
		const char *config;
		struct said v[4];
		int code;
		const char *text;
	} all[] = {
		{ "dp=2",
		  { { 0, "w", PTC_F32, 4, 0, 4, 0 }, { 1, "w", PTC_BF16, 4, 0, 4, 0 } },
		  PTC_ELAYOUT,
		  "tensor \"w\": rank 0 declares it as F32, rank 1 as BF16" },
		{ "dp=2",
		  { { 0, "w", PTC_F32, 4, 0, 4, 0 }, { 1, "w", PTC_F32, 2, 0, 2, 0 } },
		  PTC_ELAYOUT,
		  "tensor \"w\": rank 0 declares dim 0 as 4, rank 1 as 2" },
		{ "dp=2", { { 0, "w", PTC_F32, 4, 0, 4, 0 } }, PTC_ESTATE, "rank 1 of 2 has declared nothing" },
		{ "pp=2",
		  { { 0, "w", PTC_F32, 4, 0, 4, 1 }, { 1, "w", PTC_F32, 4, 0, 4, 0 } },
		  PTC_ELAYOUT,
		  "tensor \"w\" is on pipeline stages 0 (rank 0) and 1 (rank 1), and rank 1 does not declare it tied" },
		{ "pp=2", { { 0, "w", PTC_F32, 4, 0, 4, 1 }, { 1, "w", PTC_F32, 4, 0, 4, 1 } }, 0, "" },
		{ "pp=2", { { 0, "w", PTC_F32, 4, 0, 4, 0 }, { 1, "w", PTC_F32, 4, 0, 0, 0 } }, 0, "" },
		{ "dp=2",
		  { { 0, "w", PTC_F32, 4, 0, 2, 0 }, { 1, "w", PTC_F32, 4, 0, 3, 0 } },
		  PTC_ELAYOUT,
		  "tensor \"w\": no rank holds [3:4] of it" },
		{ "dp=2",
		  { { 0, "w", PTC_F32, 4, 2, 3, 0 }, { 1, "w", PTC_F32, 4, 0, 2, 0 } },
		  PTC_ELAYOUT,
		  "tensor \"w\": rank 0 declares 3 elements from 2 on of dim 0, which has 4" },
		{ "dp=2",
		  { { 0, "w", PTC_F32, 4, -1, 3, 0 }, { 1, "w", PTC_F32, 4, 2, 2, 0 } },
		  PTC_ELAYOUT,
		  "tensor \"w\": rank 0 declares 3 elements from -1 on" },
		{ "dp=2",
		  { { 0, "w", PTC_F4, 4, 0, 3, 0 }, { 1, "w", PTC_F4, 4, 3, 1, 0 } },
		  PTC_ELAYOUT,
		  "does not fall on a byte" },
		{ "tp=1,dp=2",
		  { { 0, "w", PTC_F32, 4, 0, 4, 0 }, { 0, "w", PTC_F32, 4, 0, 4, 0 }, { 1, "w", PTC_F32, 4, 0, 4, 0 } },
		  PTC_ELAYOUT,
		  "tensor \"w\": rank 0 declares it twice" },
	};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		size_t n = 0;
		int rc;

		while (n < 4 && all[i].v[n].name)
			n++;
		rc = say(all[i].config, all[i].v, n, &err);
		if (rc != all[i].code || !strstr(err.text, all[i].text))
			fail_msg("%d \"%s\", not %d \"%s\"", rc, err.text, all[i].code, all[i].text);
	}
}

static void same_state(void **state)
{
	struct ptc_tensor a[] = { { "a", PTC_F32, 1, { 4 } }, { "b", PTC_F32, 2, { 4, 2 } } };
	struct ptc_tensor b[] = { { "a", PTC_F32, 1, { 4 } }, { "b", PTC_BF16, 2, { 4, 2 } } };
	struct ptc_tensor c[] = { { "a", PTC_F32, 1, { 4 } }, { "c", PTC_F32, 2, { 4, 2 } } };
	struct ptc_spec sa = { .tensors = a, .ntensors = 2 }, sb = { .tensors = b, .ntensors = 2 };
	struct ptc_spec sc = { .tensors = c, .ntensors = 2 }, one = { .tensors = a, .ntensors = 1 };
	struct ptc_error err;

	assert_int_equal(ptc_declared_same(&sa, &sa, "tp=2", &err), 0);
	assert_int_equal(ptc_declared_same(&sa, &sb, "tp=2", &err), PTC_ELAYOUT);
	assert_string_equal(err.text, "tensor \"b\" is F32 [4, 2] in the snapshot, and tp=2 declares BF16 [4, 2]");
	assert_int_equal(ptc_declared_same(&sa, &sc, "tp=2", &err), PTC_ELAYOUT);
	assert_non_null(strstr(err.text, "1 missing (\"b\"), 1 new (\"c\")"));
	assert_int_equal(ptc_declared_same(&sa, &one, "tp=2", &err), PTC_ELAYOUT);
	assert_non_null(strstr(err.text, "does not declare 1 tensors that the snapshot has, the first is \"b\""));
	assert_int_equal(ptc_declared_same(&one, &sa, "tp=2", &err), PTC_ELAYOUT);
	assert_non_null(strstr(err.text, "declares 1 tensors that the snapshot does not have, the first is \"b\""));
}

/* 10,240 ranks that declare 400 tensors each, in 8 ways: memory grows with the ways. */
static void many_ranks(void **state)
{
	static struct ptc_declared_tensor t[400];
	static char names[400][32];
	static int64_t shape[2] = { 4096, 1024 }, off[2], ext[2] = { 512, 1024 };
	struct ptc_config config;
	struct ptc_declared_merge *m;
	struct ptc_declared d;
	struct ptc_layout *l;
	uint64_t before = ptc_alloc_bytes();
	clock_t start = clock();

	assert_int_equal(ptc_config_parse("tp=8,dp=1280", &config, NULL), 0);
	assert_int_equal(ptc_declared_merge_new(&config, &m, NULL), 0);
	for (size_t i = 0; i < 400; i++) {
		snprintf(names[i], sizeof names[i], "h.%zu.w", i);
		t[i] = (struct ptc_declared_tensor){ names[i], PTC_F32, 2, shape, false, 1, off, ext };
	}
	for (uint32_t r = 0; r < 10240; r++) {
		off[0] = 512 * (r % 8);
		assert_int_equal(ptc_declared_merge_add(m, r, t, 400, NULL), 0);
	}
	assert_int_equal(ptc_declared_merge_finish(m, &d, NULL), 0);
	ptc_declared_merge_free(m);
	assert_int_equal(d.nclasses, 8);
	assert_int_equal(ptc_layout_declared_new(&d, &l, NULL), 0);
	assert_int_equal(ptc_layout_world(l), 10240);
	printf("10240 ranks: %llu bytes, %.2f s of CPU\n", (unsigned long long)(ptc_alloc_bytes() - before),
	       (double)(clock() - start) / CLOCKS_PER_SEC);
	assert_true(ptc_alloc_bytes() - before < (4u << 20));
	ptc_layout_free(l);
	ptc_declared_done(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refusals),
		cmocka_unit_test(same_state),
		cmocka_unit_test(layouts_and_plans),
		cmocka_unit_test(many_ranks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
