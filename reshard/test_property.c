/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts, plans and placements of small random states against an oracle that
 * writes out, element by element, which global element lies at each position
 * of each rank's buffer. The oracle uses only the spec and arithmetic of its
 * own, no box. PTC_TEST_SEED and PTC_CASES override; a failure prints the case. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/test_seed.h"
#include "reshard/place/place.h"
#include "reshard/regions/regions.h"
#include "reshard/spec/lint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_TENSORS 3
#define MAX_FIELDS  2
#define MAX_ITEMS   (MAX_TENSORS * (1 + MAX_FIELDS))
#define MAX_LOCAL   4096
#define MAX_WORLD   24
#define MAX_NODES   8
#define MAX_BYTES   1536 /* of one item, at 8 bytes an element */

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

/* ---- random inputs ---- */

struct input {
	struct ptc_spec spec;
	struct ptc_tensor tensors[MAX_TENSORS];
	struct ptc_field fields[MAX_FIELDS];
	struct ptc_rule rules[MAX_TENSORS + 1];
	int64_t blocks[MAX_TENSORS + 1][3];
};

static const char *const names[MAX_TENSORS] = { "h.0.w", "h.1.w", "h.3.w" };
static const char *const matches[MAX_TENSORS] = { "h.0.*", "h.[1]?w", "*" };

static int64_t random_dim(void)
{
	static const int64_t likely[] = { 0, 1, 2, 3, 4, 6, 8, 12, 12, 16, 24 };

	return likely[rnd(sizeof likely / sizeof *likely)];
}

/* A rule for tensor t that lint accepts. */
static void random_rule(struct input *in, size_t i, const struct ptc_tensor *t)
{
	struct ptc_rule *r = &in->rules[i];
	int64_t size;

	*r = (struct ptc_rule){ .match = matches[i % MAX_TENSORS] };
	r->place = (enum ptc_place)rnd(5);
	if (r->place == PTC_PLACE_LAYER)
		r->layer = "h.{}.w";
	if (t->ndim == 0 || rnd(4) == 0)
		return;
	r->splits[0].axis = PTC_AXIS_TP;
	r->splits[0].dim = (uint32_t)rnd(t->ndim);
	r->splits[0].kind = (enum ptc_split_kind)rnd(3);
	size = t->shape[r->splits[0].dim];
	switch (rnd(4)) {
	case 0:
		r->splits[0].pad_to = 1 + rnd(4);
		break;
	case 1:
		if (size >= 3) {
			int64_t *b = in->blocks[i];

			b[0] = 1 + rnd(size - 2);
			b[1] = 1 + rnd(size - b[0] - 1);
			b[2] = size - b[0] - b[1];
			r->splits[0].blocks = b;
			r->splits[0].nblocks = 3;
		}
		break;
	case 2:
		for (r->splits[0].unit = 1 + rnd(6); size % r->splits[0].unit;)
			r->splits[0].unit--;
		break;
	default:
		break;
	}
}

static void random_input(struct input *in)
{
	static const enum ptc_dtype dtypes[] = { PTC_U8, PTC_BF16, PTC_F32, PTC_C64 };

	memset(in, 0, sizeof *in);
	in->spec = (struct ptc_spec){ .name = "job", .tensors = in->tensors, .fields = in->fields, .rules = in->rules };
	in->spec.ntensors = 1 + (size_t)rnd(MAX_TENSORS);
	in->spec.nfields = (size_t)rnd(MAX_FIELDS + 1);
	for (size_t f = 0; f < in->spec.nfields; f++)
		in->fields[f] = (struct ptc_field){ f ? "master" : "exp_avg", dtypes[rnd(4)], rnd(2) == 0 };
	for (size_t i = 0; i < in->spec.ntensors; i++) {
		struct ptc_tensor *t = &in->tensors[i];

		*t = (struct ptc_tensor){ .name = names[i], .dtype = dtypes[rnd(4)], .ndim = (uint32_t)rnd(4) };
		for (uint32_t d = 0; d < t->ndim; d++)
			t->shape[d] = d < 2 ? random_dim() : rnd(3);
		if (t->ndim == 3 && t->shape[0] * t->shape[1] * t->shape[2] * 8 > MAX_BYTES)
			t->shape[1] = 3;
		if (t->ndim >= 2 && t->shape[0] * t->shape[1] * 8 > MAX_BYTES)
			t->shape[0] = 7;
	}
	/* one rule per tensor, all but the last matching it only; sometimes none for the last */
	in->spec.nrules = in->spec.ntensors;
	for (size_t i = 0; i < in->spec.ntensors; i++) {
		random_rule(in, i, &in->tensors[i]);
		if (i + 1 == in->spec.ntensors && i + 1 < MAX_TENSORS && i == 0 && rnd(4) == 0)
			in->spec.nrules = 0;
	}
	if (in->spec.nrules && in->spec.nfields && rnd(4) == 0) { /* a first rule for one field of everything */
		memmove(in->rules + 1, in->rules, in->spec.nrules * sizeof *in->rules);
		in->rules[0] = (struct ptc_rule){ .match = "*", .fields = "exp_avg" };
		in->spec.nrules++;
	}
}

static struct ptc_config random_config(uint32_t max_world)
{
	static const char *const orders[] = { "tp-cp-ep-dp-pp", "pp-dp-cp-tp-ep", "dp-tp-pp-cp-ep", "cp-ep-pp-dp-tp" };
	struct ptc_config c;
	char text[128];
	uint32_t world;

	do {
		snprintf(text, sizeof text, "tp=%d,pp=%d,dp=%d,cp=%d,zero=%d,order=%s", 1 + (int)rnd(6),
			 1 + (int)rnd(4), 1 + (int)rnd(4), rnd(3) ? 1 : 2, (int)rnd(2), orders[rnd(4)]);
		CHECK(ptc_config_parse(text, &c, NULL) == 0);
		CHECK(ptc_config_world(&c, &world, NULL) == 0);
	} while (world > max_world);
	return c;
}

/* ---- the oracle ---- */

struct local {
	bool present;
	int64_t n;
	int64_t at[MAX_LOCAL]; /* global element at each position, -1: padding */
};

/* The rule of an item by the patterns above: rule i rules tensor i, except for a first rule made for exp_avg. */
static const struct ptc_rule *oracle_rule(const struct input *in, size_t tensor, size_t field)
{
	bool special = in->spec.nrules && in->rules[0].fields;

	if (special && field == 1)
		return &in->rules[0];
	if (in->spec.nrules == 0)
		return NULL;
	return &in->rules[tensor + special];
}

static bool oracle_stage(const struct input *in, const struct ptc_rule *r, size_t tensor, const struct ptc_config *c,
			 uint32_t pp)
{
	static const uint32_t layer_of[MAX_TENSORS] = { 0, 1, 3 };
	uint32_t layers = 0, at = 0;

	if (!r || r->place == PTC_PLACE_ALL)
		return true;
	if (r->place == PTC_PLACE_FIRST)
		return pp == 0;
	if (r->place == PTC_PLACE_LAST)
		return pp + 1 == c->pp;
	if (r->place == PTC_PLACE_ENDS)
		return pp == 0 || pp + 1 == c->pp;
	for (size_t t = 0; t < in->spec.ntensors; t++)
		for (size_t f = 0; f <= in->spec.nfields; f++) {
			const struct ptc_rule *o = oracle_rule(in, t, f);

			if (o && o->place == PTC_PLACE_LAYER && layer_of[t] >= layers)
				layers = layer_of[t] + 1;
		}
	/* deal layers out one by one: stage s gets layers until its quota is met */
	for (uint32_t s = 0; s < c->pp; s++) {
		uint32_t quota = layers / c->pp + (s < layers % c->pp ? 1 : 0);

		for (uint32_t k = 0; k < quota; k++)
			if (at++ == layer_of[tensor])
				return s == pp;
	}
	return false;
}

/* Which rank has unit u of n when it is not replicated: by handing units out. */
static int64_t unit_owner(enum ptc_split_kind kind, int64_t u, int64_t n, int64_t degree)
{
	int64_t rank = 0, got = 0;

	for (int64_t i = 0;; i++) {
		int64_t quota = n / degree;

		if (kind == PTC_SPLIT_CEIL && n % degree)
			quota++;
		if (kind == PTC_SPLIT_BALANCED && rank < n % degree)
			quota++;
		if (got == quota) {
			rank++;
			got = 0;
			i--;
			continue;
		}
		if (i == u)
			return rank;
		got++;
	}
}

/* Indices along the split dim that tp rank t has, in local order; false: impossible. */
static bool oracle_dim(const struct ptc_rule *r, int64_t size, int64_t degree, int64_t t, int64_t *out, int64_t *ret_n)
{
	int64_t n = 0, start = 0, unit = r->splits[0].unit ? r->splits[0].unit : 1;

	if (r->splits[0].pad_to) {
		int64_t padded = size;

		while (padded % (r->splits[0].pad_to * degree))
			padded++;
		for (int64_t i = 0; i < padded; i++)
			if (i / (padded / degree) == t)
				out[n++] = i < size ? i : -1;
		*ret_n = n;
		return true;
	}
	for (size_t b = 0; b < (r->splits[0].nblocks ? r->splits[0].nblocks : 1); b++) {
		int64_t len = r->splits[0].nblocks ? r->splits[0].blocks[b] : size, units = len / unit;
		bool shared = r->splits[0].kind == PTC_SPLIT_EVEN && r->splits[0].unit && units && units < degree &&
			      degree % units == 0;

		if (r->splits[0].kind == PTC_SPLIT_EVEN && units % degree && !shared)
			return false;
		for (int64_t i = 0; i < len; i++) {
			bool mine = shared ? i / unit == t * units / degree
					   : unit_owner(r->splits[0].kind, i / unit, units, degree) == t;

			if (mine)
				out[n++] = start + i;
		}
		start += len;
	}
	*ret_n = n;
	return true;
}

/* Position in the dp*cp group, by counting the ranks of the group below. */
static uint32_t group_position(const struct ptc_config *c, uint32_t rank)
{
	struct ptc_coords me = ptc_config_coords(c, rank);
	uint32_t n = 0;

	for (uint32_t r = 0; r < rank; r++) {
		struct ptc_coords k = ptc_config_coords(c, r);

		n += k.tp == me.tp && k.pp == me.pp;
	}
	return n;
}

static bool oracle_local(const struct input *in, const struct ptc_config *c, uint32_t rank, size_t item,
			 struct local *out)
{
	size_t tensor = item / (1 + in->spec.nfields), field = item % (1 + in->spec.nfields);
	const struct ptc_tensor *t = &in->tensors[tensor];
	const struct ptc_rule *r = oracle_rule(in, tensor, field);
	struct ptc_coords k = ptc_config_coords(c, rank);
	int64_t dim[MAX_LOCAL], len = 0, shape[PTC_MAX_DIMS], total = 1;

	out->n = 0;
	if (r && r->splits[0].axis == PTC_AXIS_TP && !oracle_dim(r, t->shape[r->splits[0].dim], c->tp, k.tp, dim, &len))
		return false;
	out->present = oracle_stage(in, r, tensor, c, k.pp);
	if (!out->present)
		return true;
	for (uint32_t d = 0; d < t->ndim; d++) {
		shape[d] = r && r->splits[0].axis == PTC_AXIS_TP && d == r->splits[0].dim ? len : t->shape[d];
		total *= shape[d];
	}
	for (int64_t i = 0; i < total; i++) {
		int64_t rest = i, global = 0, scale = 1;
		bool pad = false;

		for (uint32_t d = t->ndim; d-- > 0;) {
			int64_t x = rest % shape[d];

			rest /= shape[d];
			if (r && r->splits[0].axis == PTC_AXIS_TP && d == r->splits[0].dim)
				x = dim[x];
			pad |= x < 0;
			global += x * scale;
			scale *= t->shape[d];
		}
		out->at[out->n++] = pad ? -1 : global;
	}
	if (c->zero && field) {
		int64_t parts = c->dp * c->cp, chunk = (total + parts - 1) / parts, n = 0;
		int64_t from = group_position(c, rank) * chunk;

		for (int64_t i = from; i < from + chunk && i < total; i++)
			out->at[n++] = out->at[i];
		out->n = n;
	}
	return true;
}

static bool oracle_possible(const struct input *in, const struct ptc_config *c, uint32_t world, struct local *scratch)
{
	for (uint32_t r = 0; r < world; r++)
		for (size_t i = 0; i < ptc_spec_items(&in->spec); i++)
			if (!oracle_local(in, c, r, i, scratch))
				return false;
	return true;
}

/* ---- layouts ---- */

static void paint_region(const struct ptc_tensor *t, const struct ptc_region *r, int64_t *buf, int64_t n)
{
	int64_t count = ptc_box_volume(&r->box);

	for (int64_t e = 0; e < count; e++) {
		int64_t rest = e, pos = r->buf_off, global = 0, scale = 1;

		for (uint32_t d = t->ndim; d-- > 0;) {
			int64_t x = rest % r->box.ext[d];

			rest /= r->box.ext[d];
			pos += x * r->buf_stride[d];
			global += (r->box.off[d] + x) * scale;
			scale *= t->shape[d];
		}
		CHECK(pos >= 0 && pos < n);
		CHECK(buf[pos] == -2);
		buf[pos] = r->padding ? -1 : global;
	}
}

static void check_rank(const struct input *in, const struct ptc_config *c, const struct ptc_layout *l, uint32_t rank)
{
	static struct local want;
	static int64_t buf[MAX_LOCAL];
	struct ptc_rank_layout rl;
	size_t at = 0;

	CHECK(ptc_layout_rank(l, rank, &rl, NULL) == 0);

	for (uint32_t item = 0; item < ptc_spec_items(&in->spec); item++) {
		const struct ptc_tensor *t = &in->tensors[item / (1 + in->spec.nfields)];
		struct ptc_local_shape shape;
		int64_t n = 1;

		CHECK(oracle_local(in, c, rank, item, &want));
		CHECK(ptc_layout_local_shape(l, rank, item, &shape) == want.present);
		for (uint32_t d = 0; want.present && d < shape.ndim; d++)
			n *= shape.shape[d];
		CHECK(!want.present || n == want.n);
		for (int64_t i = 0; i < want.n; i++)
			buf[i] = -2;
		for (; at < rl.nregions && rl.regions[at].item == item; at++)
			paint_region(t, &rl.regions[at], buf, want.n);
		CHECK(want.n == 0 || !memcmp(buf, want.at, (size_t)want.n * sizeof *buf));
	}
	CHECK(at == rl.nregions);
	ptc_rank_layout_done(&rl);
}

static int64_t item_size(const struct input *in, size_t item)
{
	return ptc_dtype_bits(ptc_item_dtype(&in->spec, item)) / 8;
}

/* The region's box in bytes. */
static struct ptc_box byte_box(const struct ptc_region *r, int64_t size)
{
	struct ptc_box b = r->box;

	if (b.ndim == 0)
		return (struct ptc_box){ .ndim = 1, .ext = { size } };
	b.off[b.ndim - 1] *= size;
	b.ext[b.ndim - 1] *= size;
	return b;
}

/* Of each item: the digests of what ranks hold of it, as boxes, what others had before left out, are the whole's. */
static void check_digests(const struct input *in, const struct ptc_layout *l, uint32_t world)
{
	static uint8_t data[MAX_BYTES], part[MAX_BYTES];
	struct ptc_boxes had[MAX_ITEMS] = { 0 };
	uint64_t sums[MAX_ITEMS] = { 0 };
	struct ptc_box whole = { 0 };

	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)rnd(256);
	for (uint32_t r = 0; r < world; r++) {
		struct ptc_rank_layout rl;

		CHECK(ptc_layout_rank(l, r, &rl, NULL) == 0);
		for (size_t i = 0; i < rl.nregions; i++) {
			const struct ptc_region *g = &rl.regions[i];
			struct ptc_box box = byte_box(g, item_size(in, g->item));
			struct ptc_boxes *h = &had[g->item], rest = { 0 };

			CHECK(ptc_item_byte_shape(&in->spec, g->item, &whole.ndim, whole.ext, NULL) == 0);
			if (!g->padding)
				CHECK(ptc_boxes_missing(&box, h->v, h->n, &rest) == 0);
			for (size_t k = 0; k < rest.n; k++) {
				ptc_box_copy(part, &rest.v[k], data, &whole, &rest.v[k]);
				sums[g->item] ^= ptc_box_digest(part, &rest.v[k], whole.ndim, whole.ext);
				CHECK(ptc_boxes_push(h, &rest.v[k]) == 0);
			}
			ptc_boxes_done(&rest);
		}
		ptc_rank_layout_done(&rl);
	}
	for (size_t i = 0; i < ptc_spec_items(&in->spec); i++) {
		CHECK(ptc_item_byte_shape(&in->spec, i, &whole.ndim, whole.ext, NULL) == 0);
		CHECK(ptc_box_empty(&whole) || sums[i] == ptc_box_digest(data, &whole, whole.ndim, whole.ext));
		ptc_boxes_done(&had[i]);
	}
}

/* ---- plans ---- */

/* One byte per byte of each item. */
struct bitmap {
	uint8_t b[MAX_ITEMS][MAX_BYTES];
};

static void mark_rank(const struct input *in, const struct ptc_config *c, uint32_t rank, struct bitmap *m)
{
	static struct local have;

	for (size_t item = 0; item < ptc_spec_items(&in->spec); item++) {
		CHECK(oracle_local(in, c, rank, item, &have));
		for (int64_t i = 0; i < have.n; i++)
			if (have.at[i] >= 0)
				memset(&m->b[item][have.at[i] * item_size(in, item)], 1, (size_t)item_size(in, item));
	}
}

static void add_box(const struct input *in, size_t item, const struct ptc_box *box, struct bitmap *m)
{
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS], n = ptc_box_volume(box);

	CHECK(ptc_item_byte_shape(&in->spec, item, &ndim, shape, NULL) == 0);
	CHECK(ndim == box->ndim);
	for (int64_t e = 0; e < n; e++) {
		int64_t rest = e, pos = 0, scale = 1;

		for (uint32_t d = ndim; d-- > 0;) {
			pos += (box->off[d] + rest % box->ext[d]) * scale;
			rest /= box->ext[d];
			scale *= shape[d];
		}
		m->b[item][pos]++;
	}
}

struct side {
	struct ptc_config config;
	uint32_t world;
	struct ptc_layout *layout;
	struct ptc_device devices[MAX_WORLD];
	struct ptc_allocation alloc;
	struct bitmap node[MAX_NODES];
};

static bool random_side(const struct input *in, struct side *s, uint32_t max_world, uint32_t nnodes, uint32_t per_node)
{
	static struct local scratch;
	struct ptc_error err = PTC_ERROR_INIT;
	uint32_t room = nnodes * per_node, slots[64];
	bool possible;
	int rc;

	s->config = random_config(max_world < room ? max_world : room);
	CHECK(ptc_config_world(&s->config, &s->world, NULL) == 0);
	possible = oracle_possible(in, &s->config, s->world, &scratch);
	rc = ptc_layout_new(&in->spec, &s->config, &s->layout, &err);
	if (rc != (possible ? 0 : PTC_ELAYOUT))
		fail_msg("case %llu: layout: %d (%s), possible %d", (unsigned long long)case_seed, rc, err.text,
			 possible);
	if (rc)
		return false;
	for (uint32_t i = 0; i < room; i++)
		slots[i] = i;
	for (uint32_t r = 0; r < s->world; r++) {
		uint32_t k = r + (uint32_t)rnd(room - r), d = slots[k];

		slots[k] = slots[r];
		slots[r] = d;
		s->devices[r] = (struct ptc_device){ d / per_node, d % per_node };
	}
	s->alloc = (struct ptc_allocation){ s->devices, s->world };
	memset(s->node, 0, sizeof s->node);
	for (uint32_t r = 0; r < s->world; r++) {
		check_rank(in, &s->config, s->layout, r);
		mark_rank(in, &s->config, r, &s->node[s->devices[r].node]);
	}
	return true;
}

static void check_same(const struct ptc_needs *a, const struct ptc_needs *b)
{
	CHECK(a->n == b->n && a->bytes == b->bytes);
	for (size_t i = 0; i < a->n; i++)
		CHECK(a->v[i].item == b->v[i].item && ptc_box_equal(&a->v[i].box, &b->v[i].box));
}

/* In windows of some items, with room for as many boxes as there are and for one less, and from the layout's regions
 * instead of its compressed form: the same boxes. */
static void check_windows(const struct input *in, const struct side *s, uint32_t node, const struct ptc_needs *want)
{
	static const uint32_t sizes[] = { 1, 2, 7, MAX_ITEMS };
	const uint32_t nitems = (uint32_t)ptc_spec_items(&in->spec), size = sizes[rnd(4)];
	struct ptc_side *compressed = s->layout->side;
	uint32_t ranks[MAX_WORLD];
	size_t n = 0;

	for (uint32_t r = 0; r < s->world; r++)
		if (s->devices[r].node == node)
			ranks[n++] = r;
	for (int way = 0; way < 2; way++) {
		struct ptc_needs got = { 0 };

		s->layout->side = way ? NULL : compressed;
		for (uint32_t at = 0; at < nitems; at += size)
			CHECK(!ptc_layout_ranks_needs(s->layout, ranks, n, at, PTC_MIN(at + size, nitems), want->n,
						      &got, NULL));
		check_same(&got, want);
		ptc_needs_done(&got);
		if (want->n)
			CHECK(ptc_layout_ranks_needs(s->layout, ranks, n, 0, nitems, want->n - 1, &got, NULL) ==
			      PTC_ELIMIT);
		CHECK(!got.n && !got.bytes && got.cap <= 2 * want->n + 16);
		ptc_needs_done(&got);
	}
	s->layout->side = compressed;
}

static void check_needs(const struct input *in, const struct side *s, uint32_t node)
{
	static struct bitmap got;
	struct ptc_needs needs;
	int64_t bytes = 0;

	memset(&got, 0, sizeof got);
	CHECK(ptc_layout_node_needs(s->layout, &s->alloc, node, &needs, NULL) == 0);
	for (size_t i = 0; i < needs.n; i++) {
		add_box(in, needs.v[i].item, &needs.v[i].box, &got);
		bytes += ptc_box_volume(&needs.v[i].box);
		CHECK(i == 0 || needs.v[i].item >= needs.v[i - 1].item);
	}
	CHECK(bytes == needs.bytes);
	CHECK(!memcmp(&got, &s->node[node], sizeof got)); /* exact, and nothing twice */
	check_windows(in, s, node, &needs);
	ptc_needs_done(&needs);
}

/* Does some usable node have every byte that `to` needs? */
static bool nothing_lost(const struct side *from, const struct side *to, uint32_t nnodes, const bool *usable)
{
	for (size_t i = 0; i < sizeof to->node[0]; i++)
		for (uint32_t n = 0; n < nnodes; n++) {
			bool somewhere = !(&to->node[n].b[0][0])[i];

			for (uint32_t k = 0; k < nnodes; k++)
				somewhere |= usable[k] && (&from->node[k].b[0][0])[i];
			if (!somewhere)
				return false;
		}
	return true;
}

/* Bytes that devices of new ranks had not, less what enters their nodes: each device's share comes from within it, but
 * for the one that brings it. */
static int64_t oracle_within(const struct input *in, const struct side *from, const struct side *to, const bool *usable,
			     int64_t between, int64_t *ret_kept)
{
	static struct bitmap need, had;
	int64_t sum = 0, kept = 0;

	for (uint32_t r = 0; r < to->world; r++) { /* one rank per device here */
		uint32_t n = to->devices[r].node;

		memset(&need, 0, sizeof need);
		memset(&had, 0, sizeof had);
		mark_rank(in, &to->config, r, &need);
		for (uint32_t k = 0; k < from->world; k++)
			if (from->devices[k].node == n && from->devices[k].index == to->devices[r].index)
				mark_rank(in, &from->config, k, &had);
		for (size_t i = 0; i < sizeof need; i++) {
			bool has = usable[n] && (&had.b[0][0])[i];

			sum += (&need.b[0][0])[i] && !has;
			kept += (&need.b[0][0])[i] && has;
		}
	}
	*ret_kept = kept;
	return sum - between;
}

static void check_moves(const struct input *in, const struct side *from, const struct side *to, uint32_t nnodes,
			const bool *usable, const struct ptc_plan *p)
{
	static struct bitmap got[MAX_NODES], one;
	int64_t in_bytes[MAX_NODES] = { 0 }, out_bytes[MAX_NODES] = { 0 }, in_place = 0, between = 0;
	int64_t kept;

	memset(got, 0, sizeof got);
	for (size_t i = 0; i < p->nmoves; i++) {
		const struct ptc_move *m = &p->moves[i];

		memset(&one, 0, sizeof one);
		add_box(in, m->item, &m->box, &one);
		CHECK(m->src_node != m->dst_node && usable[m->src_node]);
		CHECK(from->devices[m->src_rank].node == m->src_node && to->devices[m->dst_rank].node == m->dst_node);
		for (int64_t k = 0; k < MAX_BYTES; k++) {
			CHECK(!one.b[m->item][k] || from->node[m->src_node].b[m->item][k]);
			got[m->dst_node].b[m->item][k] += one.b[m->item][k];
		}
		in_bytes[m->dst_node] += ptc_box_volume(&m->box);
		out_bytes[m->src_node] += ptc_box_volume(&m->box);
	}
	for (uint32_t n = 0; n < nnodes; n++) {
		for (size_t i = 0; i < sizeof one; i++) {
			bool need = (&to->node[n].b[0][0])[i];
			bool have = usable[n] && (&from->node[n].b[0][0])[i];

			CHECK((&got[n].b[0][0])[i] == (need && !have));
			in_place += need && have;
		}
		CHECK(in_bytes[n] == p->in_bytes[n] && out_bytes[n] == p->out_bytes[n]);
		between += in_bytes[n];
	}
	CHECK(in_place == p->in_place && between == p->between_nodes && between == p->bound_mapping);
	CHECK(oracle_within(in, from, to, usable, between, &kept) == p->within_node);
	CHECK(kept == p->kept);
}

/* Byte by byte: lost is what a node that is gone had and no usable one has. */
static void check_lost(const struct side *from, uint32_t nnodes, const bool *usable)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_lost *lost = NULL;
	size_t nlost = 0, at = 0;

	CHECK(!ptc_layout_lost(from->layout, &from->alloc, nnodes, usable, &lost, &nlost, &err));
	for (uint32_t item = 0; item < sizeof from->node[0].b / sizeof from->node[0].b[0]; item++) {
		bool had[MAX_NODES] = { false };
		uint32_t nodes = 0;
		int64_t bytes = 0;

		for (size_t i = 0; i < sizeof from->node[0].b[0]; i++) {
			bool gone = false, here = false;

			for (uint32_t n = 0; n < nnodes; n++)
				*(usable[n] ? &here : &gone) |= from->node[n].b[item][i];
			bytes += gone && !here;
			for (uint32_t n = 0; n < nnodes && gone && !here; n++)
				had[n] |= from->node[n].b[item][i];
		}
		if (!bytes)
			continue;
		CHECK(at < nlost && lost[at].item == item && lost[at].bytes == bytes);
		for (uint32_t n = 0; n < nnodes; n++)
			if (had[n] && nodes < PTC_LOST_NODES)
				CHECK(lost[at].nodes[nodes++] == n);
		CHECK(lost[at++].nnodes == nodes);
	}
	CHECK(at == nlost);
	ptc_free(lost);
}

/* The hash that other versions' daemons compare with ours: of each move as printf writes it, and the hash before. */
static void hash_as_written(const struct ptc_plan *p, char ret[33])
{
	char text[2048];
	size_t n;

	memset(ret, '0', 32);
	ret[32] = '\0';
	for (size_t i = 0; i < p->nmoves; i++) {
		const struct ptc_move *m = &p->moves[i];

		n = (size_t)snprintf(text, sizeof text, "%s %u %u %u %u %u", ret, m->item, m->src_node, m->dst_node,
				     m->src_rank, m->dst_rank);
		for (uint32_t d = 0; d < m->box.ndim; d++)
			n += (size_t)snprintf(text + n, sizeof text - n, " %lld+%lld", (long long)m->box.off[d],
					      (long long)m->box.ext[d]);
		ptc_content_hash(text, n, ret);
	}
	n = (size_t)snprintf(text, sizeof text, "%s v1 %zu %lld %lld", ret, p->nmoves, (long long)p->in_place,
			     (long long)p->between_nodes);
	ptc_content_hash(text, n, ret);
}

/* Plans with the moves into one node have, node after node, the moves of the whole plan. */
static void check_plans_into(const struct side *from, const struct side *to, uint32_t nnodes, const bool *usable,
			     const struct ptc_plan *whole)
{
	struct ptc_error err = PTC_ERROR_INIT;
	size_t at = 0;

	for (uint32_t node = 0; node < nnodes; node++) {
		struct ptc_plan *p = NULL;

		CHECK(!ptc_plan_into(from->layout, &from->alloc, to->layout, &to->alloc, nnodes, usable, node, &p,
				     &err));
		CHECK(p->between_nodes == whole->between_nodes && at + p->nmoves <= whole->nmoves);
		for (size_t i = 0; i < p->nmoves; i++, at++) {
			const struct ptc_move *a = &p->moves[i], *b = &whole->moves[at];

			CHECK(a->dst_node == node && b->dst_node == node && a->item == b->item && a->kind == b->kind);
			CHECK(a->src_node == b->src_node && a->src_rank == b->src_rank && a->dst_rank == b->dst_rank);
			CHECK(ptc_box_equal(&a->box, &b->box));
		}
		ptc_plan_free(p);
	}
	CHECK(at == whole->nmoves);
}

static void check_plan(const struct input *in, const struct side *from, const struct side *to, uint32_t nnodes)
{
	bool usable[MAX_NODES];
	struct ptc_plan *p = NULL, *again = NULL;
	struct ptc_error err = PTC_ERROR_INIT;
	char hash[33], hash2[33], of[33];
	int rc;

	for (uint32_t n = 0; n < nnodes; n++)
		usable[n] = rnd(10) > 0;
	check_lost(from, nnodes, usable);
	rc = ptc_plan_new(&in->spec, from->layout, &from->alloc, to->layout, &to->alloc, nnodes, usable, &p, &err);
	CHECK(rc == (nothing_lost(from, to, nnodes, usable) ? 0 : PTC_ELOST));
	CHECK(ptc_plan_hash_of(from->layout, &from->alloc, to->layout, &to->alloc, nnodes, usable, of, &err) == rc);
	if (rc) {
		CHECK(strstr(err.text, "tensor \"h."));
		return;
	}
	check_moves(in, from, to, nnodes, usable, p);
	CHECK(!ptc_plan_new(&in->spec, from->layout, &from->alloc, to->layout, &to->alloc, nnodes, usable, &again,
			    &err));
	ptc_plan_hash(p, hash);
	ptc_plan_hash(again, hash2);
	CHECK(!strcmp(hash, hash2));
	hash_as_written(p, hash2);
	CHECK(!strcmp(hash, hash2));
	CHECK(!strcmp(of, hash));
	check_plans_into(from, to, nnodes, usable, p);
	ptc_plan_free(p);
	ptc_plan_free(again);
}

static uint64_t cases(uint64_t dflt)
{
	const char *s = getenv("PTC_CASES");

	return s ? strtoull(s, NULL, 0) : dflt;
}

static void seed_case(uint64_t n)
{
	case_seed = ptc_test_seed() + n;
	rng = case_seed * 0x9E3779B97F4A7C15u | 1;
	for (int i = 0; i < 4; i++)
		rnd(2);
}

static void layouts_and_plans(void **state)
{
	static struct input in;
	static struct side from, to;
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t n = cases(10000), done = 0;

	for (uint64_t i = 0; i < n; i++) {
		uint32_t nnodes, per_node;

		seed_case(i);
		random_input(&in);
		if (ptc_spec_lint(&in.spec, &err))
			fail_msg("case %llu: %s", (unsigned long long)case_seed, err.text);
		nnodes = 1 + (uint32_t)rnd(6);
		per_node = 1 + (uint32_t)rnd(6);
		from.layout = to.layout = NULL;
		if (random_side(&in, &from, MAX_WORLD, nnodes, per_node) &&
		    random_side(&in, &to, MAX_WORLD, nnodes, per_node)) {
			check_digests(&in, to.layout, to.world);
			check_needs(&in, &to, (uint32_t)rnd(nnodes));
			check_plan(&in, &from, &to, nnodes);
			done++;
		}
		from.layout = ptc_layout_free(from.layout);
		to.layout = ptc_layout_free(to.layout);
	}
	print_message("%llu cases, %llu planned\n", (unsigned long long)n, (unsigned long long)done);
	assert_true(n < 100 || done > n / 4);
	assert_int_equal(ptc_alloc_live(), 0);
}

/* ---- placement: every way to put ranks on devices ---- */

#define BRUTE 8 /* devices, and so ranks */

struct brute {
	const struct input *in;
	const struct side *from, *to;
	uint32_t nnodes, nmay;
	struct ptc_device may[BRUTE];
	bool usable[BRUTE], pinned[BRUTE];
	uint32_t racks[BRUTE];
	bool in_racks;
	/* made of it */
	uint32_t block_of[BRUTE], group_of[BRUTE]; /* per rank */
	struct bitmap had[BRUTE];                  /* per device of may */
	int64_t lack[BRUTE][BRUTE];                /* rank, device: what the device has not */
	int64_t enter[BRUTE][1 << BRUTE];          /* node, set of ranks: what the node has not */
	uint32_t where[BRUTE];                     /* rank -> device */
	int64_t best_node, best_device;
};

static int64_t lack(const struct bitmap *need, const struct bitmap *have)
{
	int64_t sum = 0;

	for (size_t i = 0; i < sizeof *need; i++)
		sum += (&need->b[0][0])[i] && !(&have->b[0][0])[i];
	return sum;
}

/* The block size as place.h says: the largest divisor of tp of which all blocks fit whole on nodes. */
static uint32_t brute_block(const struct brute *b, uint32_t tp)
{
	for (uint32_t d = tp; d > 1; d--) {
		uint32_t room = 0, on[BRUTE] = { 0 };

		for (uint32_t k = 0; k < b->nmay; k++)
			room += ++on[b->may[k].node] % d == 0 ? d : 0;
		if (tp % d == 0 && room >= b->to->world)
			return d;
	}
	return 1;
}

static void brute_blocks(struct brute *b)
{
	const struct ptc_config *c = &b->to->config;
	uint32_t size = brute_block(b, c->tp);

	for (uint32_t r = 0; r < b->to->world; r++) {
		struct ptc_coords k = ptc_config_coords(c, r);

		b->group_of[r] = (k.pp * c->dp + k.dp) * c->cp + k.cp;
		b->block_of[r] = k.tp / size;
	}
}

static void brute_tables(struct brute *b)
{
	static struct bitmap all[1 << BRUTE], none;

	for (uint32_t set = 1; set < 1u << b->to->world; set++) {
		uint32_t rank = (uint32_t)__builtin_ctz(set), rest = set & (set - 1);

		all[set] = all[rest];
		if (!rest)
			memset(&all[set], 0, sizeof all[set]);
		mark_rank(b->in, &b->to->config, rank, &all[set]);
		for (uint32_t n = 0; n < b->nnodes; n++)
			b->enter[n][set] = lack(&all[set], b->usable[n] ? &b->from->node[n] : &none);
	}
	for (uint32_t k = 0; k < b->nmay; k++) {
		const struct ptc_device *d = &b->may[k];

		memset(&b->had[k], 0, sizeof b->had[k]);
		for (uint32_t r = 0; r < b->from->world; r++)
			if (b->usable[d->node] && !memcmp(&b->from->devices[r], d, sizeof *d))
				mark_rank(b->in, &b->from->config, r, &b->had[k]);
		for (uint32_t r = 0; r < b->to->world; r++)
			b->lack[r][k] = lack(&all[1u << r], &b->had[k]);
	}
}

/* May rank be on device k, the ranks below it being where they are? */
static bool brute_fits(const struct brute *b, uint32_t rank, uint32_t k)
{
	for (uint32_t q = 0; q < rank; q++) {
		uint32_t n = b->may[k].node, m = b->may[b->where[q]].node;

		if (b->where[q] == k)
			return false;
		if (b->group_of[q] != b->group_of[rank] || n == m)
			continue;
		if (b->block_of[q] == b->block_of[rank] || (b->in_racks && b->racks[n] != b->racks[m]))
			return false;
	}
	return true;
}

static void brute_search(struct brute *b, uint32_t rank)
{
	int64_t node = 0, device = 0;
	uint32_t sets[BRUTE] = { 0 };

	if (rank < b->to->world) {
		for (uint32_t k = 0; k < b->nmay; k++) {
			if (!brute_fits(b, rank, k))
				continue;
			b->where[rank] = k;
			brute_search(b, rank + 1);
		}
		return;
	}
	for (uint32_t r = 0; r < rank; r++) {
		sets[b->may[b->where[r]].node] |= 1u << r;
		device += b->lack[r][b->where[r]];
	}
	for (uint32_t n = 0; n < b->nnodes; n++) {
		if (b->pinned[n] && !sets[n])
			return;
		node += b->enter[n][sets[n]];
	}
	if (node < b->best_node || (node == b->best_node && device < b->best_device)) {
		b->best_node = node;
		b->best_device = device;
	}
}

/* Its cost is the least, with no gap left, and it meets every constraint. */
static void check_placed(struct brute *b, const struct ptc_allocation *got, int64_t gap)
{
	int64_t node = 0, device = 0;
	uint32_t sets[BRUTE] = { 0 };

	CHECK(got->world == b->to->world && gap == 0);
	for (uint32_t r = 0; r < got->world; r++) {
		uint32_t k = 0;

		while (k < b->nmay && memcmp(&b->may[k], &got->ranks[r], sizeof *got->ranks))
			k++;
		CHECK(k < b->nmay && brute_fits(b, r, k));
		b->where[r] = k;
		sets[b->may[k].node] |= 1u << r;
		device += b->lack[r][k];
	}
	for (uint32_t n = 0; n < b->nnodes; n++) {
		CHECK(!b->pinned[n] || sets[n]);
		node += b->enter[n][sets[n]];
	}
	CHECK(node == b->best_node);
	CHECK(device == b->best_device);
}

/* Returns whether there is a way. */
static bool check_place(struct brute *b)
{
	struct ptc_place_opts opts = { .devices = b->may,
				       .ndevices = b->nmay,
				       .nnodes = b->nnodes,
				       .usable = b->usable,
				       .pinned = b->pinned,
				       .racks = b->in_racks ? b->racks : NULL };
	struct ptc_allocation got;
	struct ptc_change *c;
	int64_t gap = -1;
	int rc;

	brute_blocks(b);
	brute_tables(b);
	b->best_node = b->best_device = INT64_MAX;
	brute_search(b, 0);
	CHECK(ptc_change_new(b->from->layout, b->to->layout, &c, NULL) == 0);
	rc = ptc_change_place(c, &b->from->alloc, &opts, &got, &gap, NULL);
	CHECK(rc == (b->best_node == INT64_MAX ? PTC_ENODEVICES : 0));
	if (!rc) {
		check_placed(b, &got, gap);
		ptc_allocation_done(&got);
	}
	ptc_change_free(c);
	return !rc;
}

/* All devices, in another order than the nodes'; constrained: without some, some nodes lost what they had, others are
 * pinned or in racks. */
static void random_brute(struct brute *b, uint32_t per_node, bool constrained)
{
	b->nmay = 0;
	for (uint32_t n = b->nnodes; n-- > 0;) {
		bool gone = constrained && rnd(8) == 0;

		b->usable[n] = !constrained || rnd(6) > 0;
		b->pinned[n] = constrained && rnd(5) == 0;
		b->racks[n] = (uint32_t)rnd(2);
		for (uint32_t d = 0; d < per_node && !gone; d++)
			if (!constrained || rnd(16) > 0)
				b->may[b->nmay++] = (struct ptc_device){ n, d };
	}
	b->in_racks = constrained && rnd(2);
}

static void place_many(uint64_t n, uint64_t first, bool constrained)
{
	static const uint32_t shapes[][2] = { { 2, 2 }, { 3, 2 }, { 2, 3 }, { 6, 1 }, { 1, 6 }, { 5, 1 },
					      { 4, 2 }, { 2, 4 }, { 8, 1 }, { 1, 8 }, { 4, 2 }, { 2, 4 } };
	static struct input in;
	static struct side from, to;
	static struct brute b;
	uint64_t done = 0, impossible = 0, all = 0;

	for (uint64_t i = 0; i < n; i++) {
		const uint32_t *shape;

		seed_case(i + first);
		random_input(&in);
		shape = shapes[rnd(12)];
		from.layout = to.layout = NULL;
		b.in = &in;
		b.from = &from;
		b.to = &to;
		b.nnodes = shape[0];
		random_brute(&b, shape[1], constrained);
		if (b.nmay && random_side(&in, &from, BRUTE, shape[0], shape[1]) &&
		    random_side(&in, &to, b.nmay, shape[0], shape[1])) {
			bool possible = check_place(&b);

			done += possible;
			impossible += !possible;
			all += possible && to.world == BRUTE;
		}
		from.layout = ptc_layout_free(from.layout);
		to.layout = ptc_layout_free(to.layout);
	}
	print_message("%llu placements, %llu of %d ranks, %llu impossible\n", (unsigned long long)done,
		      (unsigned long long)all, BRUTE, (unsigned long long)impossible);
	assert_true(n < 100 || (done > n / 4 && all > n / 40 && (!constrained || impossible > n / 100)));
	assert_int_equal(ptc_alloc_live(), 0);
}

static void placements(void **state)
{
	place_many(cases(10000) / 20, 1000000, false);
}

static void constrained_placements(void **state)
{
	place_many(cases(10000) / 20, 2000000, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layouts_and_plans),
		cmocka_unit_test(placements),
		cmocka_unit_test(constrained_placements),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
