/* SPDX-License-Identifier: Apache-2.0 */
/* Where tensors lie in the buffers that shard=buffer cuts: Megatron's
 * distributed optimizer and FSDP1's flat parameters. Happy path: tensors are
 * put in the order that the spec states; for each stage, field, dtype and
 * place on the axes that splits name, one walk over the stage's tensors gives
 * each its first element in its bucket and each bucket the length of a rank's
 * range. Failure modes: memory, sums that overflow; nothing is kept then. */
#include "reshard/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* A tensor's place in the order: unit, group of patterns, number for {}, pattern, name. */
struct slot {
	int64_t unit, number;
	uint32_t group, pattern, tensor;
	const char *name;
};

struct walk {
	struct ptc_layout *l;
	const uint32_t *order; /* tensors */
	uint32_t *items;       /* of the stage at hand, in order */
	size_t nitems;
	uint32_t chunk, pp;
	struct ptc_error *err;
};

/* Runs of digits compare as numbers. */
static int natural(const char *a, const char *b)
{
	while (*a && *b) {
		size_t na = strspn(a, "0123456789"), nb = strspn(b, "0123456789");

		if (na && nb) {
			int c;

			while (na > 1 && *a == '0')
				a++, na--;
			while (nb > 1 && *b == '0')
				b++, nb--;
			c = na != nb ? (na < nb ? -1 : 1) : strncmp(a, b, na);
			if (c)
				return c;
			a += na;
			b += nb;
		} else if (*a != *b) {
			break;
		} else {
			a++;
			b++;
		}
	}
	return (unsigned char)*a - (unsigned char)*b;
}

static int by_slot(const void *pa, const void *pb)
{
	const struct slot *a = pa, *b = pb;
	int c;

	if (a->unit != b->unit)
		return a->unit < b->unit ? -1 : 1;
	if (a->group != b->group)
		return a->group < b->group ? -1 : 1;
	if (a->number != b->number)
		return a->number < b->number ? -1 : 1;
	if (a->pattern != b->pattern)
		return a->pattern < b->pattern ? -1 : 1;
	c = natural(a->name, b->name);
	return c ? c : strcmp(a->name, b->name);
}

static void find_slot(const struct ptc_buffers *f, struct slot *s)
{
	uint32_t group = 0;

	s->pattern = (uint32_t)f->norder;
	for (uint32_t i = 0; i < f->norder; i++) {
		const char *pattern = f->order[i];
		bool layered = strstr(pattern, "{}");

		/* neighbours with {} are one group: all of them for one number, then for the next */
		group += i && !(layered && strstr(f->order[i - 1], "{}"));
		if (layered ? ptc_layer_match(pattern, s->name, &s->number)
			    : ptc_glob_match(pattern, strlen(pattern), s->name, strlen(s->name))) {
			s->pattern = i;
			break;
		}
	}
	s->group = s->pattern < f->norder ? group : UINT32_MAX;
}

/* Tensors in the order of buffers; NULL without memory. */
static uint32_t *order_tensors(const struct ptc_layout *l)
{
	const struct ptc_spec *spec = l->spec;
	const struct ptc_buffers *f = &spec->buffers;
	struct slot *v = ptc_calloc(spec->ntensors, sizeof *v);
	uint32_t *order = ptc_calloc(spec->ntensors, sizeof *order);

	for (uint32_t t = 0; v && order && t < spec->ntensors; t++) {
		const struct ptc_layout_item *i = &l->items[t * (1 + spec->nfields)];
		bool layered = i->rule && i->rule->place == PTC_PLACE_LAYER;

		v[t] = (struct slot){ .tensor = t, .name = spec->tensors[t].name };
		v[t].unit = f->by_layer && layered ? 1 + (int64_t)i->layer : 0;
		find_slot(f, &v[t]);
	}
	if (v && order) {
		qsort(v, spec->ntensors, sizeof *v, by_slot);
		for (size_t i = 0; i < spec->ntensors; i++)
			order[i] = v[f->reverse ? spec->ntensors - 1 - i : i].tensor;
	} else {
		ptc_free(order);
		order = NULL;
	}
	ptc_free(v);
	return order;
}

/* Is the item in this chunk's model part, on pipeline rank w->pp? */
static bool in_chunk(const struct walk *w, uint32_t item)
{
	const struct ptc_layout_item *i = &w->l->items[item];
	uint32_t pp = w->l->config.pp, last = pp * PTC_MAX(w->l->config.vpp, 1u) - 1;

	switch (i->rule ? i->rule->place : PTC_PLACE_ALL) {
	case PTC_PLACE_LAYER:
		return w->chunk == i->chunk;
	case PTC_PLACE_FIRST:
		return w->chunk == 0;
	case PTC_PLACE_LAST:
		return w->chunk == last;
	case PTC_PLACE_ENDS:
		return w->chunk == 0 || (pp > 1 && w->chunk == last);
	default:
		return w->chunk < pp;
	}
}

static void list_items(struct walk *w, size_t field)
{
	const struct ptc_spec *spec = w->l->spec;

	w->nitems = 0;
	for (size_t i = 0; i < spec->ntensors; i++) {
		uint32_t item = w->order[i] * (uint32_t)(1 + spec->nfields) + (uint32_t)field;

		if (ptc_regions_in_buffer(w->l, item) && in_chunk(w, item))
			w->items[w->nitems++] = item;
	}
}

static int64_t gcd(int64_t a, int64_t b)
{
	while (b) {
		int64_t r = a % b;

		a = b;
		b = r;
	}
	return a;
}

static bool round_up(int64_t v, int64_t step, int64_t *ret)
{
	return !ptc_ckd_add(ret, v, v % step ? step - v % step : 0);
}

/* A bucket from `first` on, as it is filled. */
struct bucket {
	int64_t start, pos; /* elements of the buffer */
	int64_t unit;
	size_t n; /* tensors in it */
};

static struct ptc_flat_at *slot_of(const struct walk *w, uint32_t item, const uint32_t at[PTC_WAYS])
{
	return &w->l->flats[w->l->items[item].flats + ptc_regions_flat_slot(w->l, item, at)];
}

/* The parameter's, for all its fields. */
static int64_t unit_of(const struct walk *w, uint32_t item)
{
	const struct ptc_layout_item *i = &w->l->items[item - item % (1 + w->l->spec->nfields)];

	return w->l->spec->buffers.by_layer && i->rule && i->rule->place == PTC_PLACE_LAYER ? 1 + (int64_t)i->layer : 0;
}

/* Is it in the walk over a dtype, and over tensors of experts or not, at these indices? */
static bool takes_part(const struct walk *w, uint32_t item, enum ptc_dtype dtype, bool expert,
		       const uint32_t at[PTC_WAYS])
{
	const struct ptc_tensor *t = &w->l->spec->tensors[item / (1 + w->l->spec->nfields)];

	return t->dtype == dtype && ptc_regions_is_expert(w->l, item) == expert &&
	       ptc_regions_is_at(w->l, item, w->pp, at[PTC_AXIS_EP]);
}

/* Ends the bucket: its tensors, the last b->n that took part before item `end`, learn where it begins and how long each
 * rank's range of it is. */
static bool close_bucket(struct walk *w, struct bucket *b, size_t end, enum ptc_dtype dtype, bool expert,
			 const uint32_t at[PTC_WAYS])
{
	int64_t n = ptc_regions_zero_degree(w->l, expert), pad = PTC_MAX(w->l->spec->buffers.pad, 1), size, step;

	if (!b->n)
		return true;
	step = n * PTC_MAX(w->l->spec->buffers.range, 1);
	if (ptc_ckd_mul(&step, step, pad / gcd(pad, step)) || !round_up(b->pos - b->start, step, &size))
		return false;
	for (size_t i = end; b->n && i-- > 0;) {
		struct ptc_flat_at *f = slot_of(w, w->items[i], at);

		if (!takes_part(w, w->items[i], dtype, expert, at))
			continue;
		f->first -= b->start;
		f->range = size / n;
		b->n--;
	}
	if (ptc_ckd_add(&b->start, b->start, size))
		return false;
	b->pos = b->start;
	return true;
}

/* One buffer: the items of the stage that take part. */
static int fill_buffer(struct walk *w, enum ptc_dtype dtype, bool expert, const uint32_t at[PTC_WAYS])
{
	const struct ptc_buffers *f = &w->l->spec->buffers;
	int64_t limit = f->first_only && w->chunk ? 0 : f->bucket;
	struct bucket b = { 0 };
	bool ok = true;

	for (size_t i = 0; i < w->nitems && ok; i++) {
		uint32_t item = w->items[i];
		int64_t unit = unit_of(w, item);
		bool own = false;

		if (!takes_part(w, item, dtype, expert, at))
			continue;
		own = w->l->config.pp > 1 && w->l->items[item].rule && w->l->items[item].rule->place == PTC_PLACE_ENDS;
		if (own || unit != b.unit)
			ok = close_bucket(w, &b, i, dtype, expert, at);
		b.unit = unit;
		ok = ok && round_up(b.pos - b.start, PTC_MAX(f->align, 1), &b.pos) &&
		     !ptc_ckd_add(&b.pos, b.pos, b.start);
		slot_of(w, item, at)->first = b.pos;
		ok = ok && !ptc_ckd_add(&b.pos, b.pos, ptc_regions_elements(w->l, item, at));
		b.n++;
		if (ok && (own || (limit && b.pos - b.start >= limit)))
			ok = close_bucket(w, &b, i + 1, dtype, expert, at);
	}
	if (!ok || !close_bucket(w, &b, w->nitems, dtype, expert, at))
		return ptc_error_set(w->err, PTC_ELAYOUT, "layout: a buffer of stage %u overflows 64 bits", w->chunk);
	return 0;
}

/* Every place on the axes that dense or expert tensors can be split over. */
static int fill_stage(struct walk *w, enum ptc_dtype dtype, bool expert)
{
	const struct ptc_config *c = &w->l->config;
	uint32_t at[PTC_WAYS] = { 0 }, a = expert ? c->ep : c->tp, b = expert ? c->etp : 1;
	int rc = 0;

	at[PTC_BY_PLACE] = w->pp;
	for (uint32_t i = 0; i < a * b && !rc; i++) {
		at[expert ? PTC_AXIS_EP : PTC_AXIS_TP] = i % a;
		at[PTC_AXIS_ETP] = i / a;
		rc = fill_buffer(w, dtype, expert, at);
	}
	return rc;
}

static int fill_field(struct walk *w, size_t field)
{
	const struct ptc_spec *spec = w->l->spec;
	uint64_t dtypes = 0;
	int rc = 0;

	list_items(w, field);
	for (size_t i = 0; i < w->nitems; i++)
		dtypes |= UINT64_C(1) << spec->tensors[w->items[i] / (1 + spec->nfields)].dtype;
	for (uint32_t d = 0; d < PTC_DTYPE_COUNT && !rc; d++)
		for (int expert = 0; expert < 2 && !rc; expert++)
			if (dtypes >> d & 1)
				rc = fill_stage(w, (enum ptc_dtype)d, expert);
	return rc;
}

int ptc_buffers_prepare(struct ptc_layout *l, struct ptc_error *err)
{
	struct walk w = { .l = l, .err = err };
	size_t n = 0;
	int rc = 0;

	if (!l->config.zero || l->config.shard != PTC_SHARDS_BUFFER)
		return 0;
	for (uint32_t item = 0; item < l->nitems; item++) {
		l->items[item].flats = n;
		n += ptc_regions_in_buffer(l, item) ? ptc_regions_flat_slots(l, item) : 0;
	}
	l->flats = ptc_calloc(n, sizeof *l->flats);
	w.order = order_tensors(l);
	w.items = ptc_calloc(l->spec->ntensors, sizeof *w.items);
	if (!l->flats || !w.order || !w.items)
		rc = ptc_error_set(err, PTC_ENOMEM, "layout: out of memory");
	for (w.chunk = 0; w.chunk < l->config.pp * PTC_MAX(l->config.vpp, 1u) && !rc; w.chunk++) {
		w.pp = w.chunk % l->config.pp;
		for (size_t f = 0; f <= l->spec->nfields && !rc; f++)
			rc = fill_field(&w, f);
	}
	ptc_free((void *)(uintptr_t)w.order);
	ptc_free(w.items);
	return rc;
}
