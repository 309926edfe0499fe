/* SPDX-License-Identifier: Apache-2.0 */
/* Where tensors lie in the buffers that shard=buffer cuts: Megatron's distributed optimizer and FSDP1's flat
 * parameters. Happy path: tensors are put in the order that the spec states. Then one walk over a stage's tensors is
 * made for each field, dtype and place on the axes that splits name. The walk gives each tensor its first element in
 * its bucket, and each bucket the length of a rank's range. Failure modes: memory, sums that overflow; nothing is kept
 * then. */
#include "reshard/regions/internal.h"
#include "reshard/spec/glob.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* A tensor's place in the order: unit, run of patterns with {}, number for it, run of patterns with a second {}, number
 * for that, pattern, name. */
struct slot {
	int64_t unit, number[2];
	uint32_t run[2], pattern, tensor;
	const char *name;
};

/* What a walk asks of an item. */
struct entry {
	int64_t unit;
	uint32_t item, ep; /* place on the ep axis; UINT32_MAX: every one */
	enum ptc_dtype dtype;
	bool expert, own; /* own: has a bucket of its own */
};

struct walk {
	struct ptc_layout *l;
	const uint32_t *order; /* tensors */
	int64_t *units;        /* per tensor: its parameter group and layer; what another one follows begins a bucket */
	struct entry *items;   /* of the stage at hand, in order */
	size_t nitems;
	struct ptc_flat_at **part; /* those in the buffer at hand that no bucket has yet, in order */
	size_t npart;
	uint32_t chunk, pp;
	struct ptc_error *err;
};

static size_t digits(const char *s)
{
	size_t n = 0;

	while (s[n] >= '0' && s[n] <= '9')
		n++;
	return n;
}

/* Runs of digits compare as numbers. */
static int natural(const char *a, const char *b)
{
	while (*a && *b) {
		size_t na = digits(a), nb = digits(b);

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
	for (int i = 0; i < 2; i++) {
		if (a->run[i] != b->run[i])
			return a->run[i] < b->run[i] ? -1 : 1;
		if (a->number[i] != b->number[i])
			return a->number[i] < b->number[i] ? -1 : 1;
	}
	if (a->pattern != b->pattern)
		return a->pattern < b->pattern ? -1 : 1;
	c = natural(a->name, b->name);
	return c ? c : strcmp(a->name, b->name);
}

static bool has_second_hole(const char *pattern)
{
	const char *hole = strstr(pattern, "{}");

	return hole && strstr(hole + 2, "{}");
}

static void find_slot(const struct ptc_buffers *f, struct slot *s)
{
	s->pattern = (uint32_t)f->norder;
	for (uint32_t i = 0; i < f->norder; i++) {
		const char *pattern = f->order[i], *before = i ? f->order[i - 1] : "";

		/* neighbours with {} are one run: all of them for one number, then for the next */
		s->run[0] += i && !(strstr(pattern, "{}") && strstr(before, "{}"));
		s->run[1] += i && !(has_second_hole(pattern) && has_second_hole(before));
		s->number[0] = 0;
		s->number[1] = 0;
		if (ptc_holes_match(pattern, s->name, s->number)) {
			s->pattern = i;
			return;
		}
	}
	s->run[0] = UINT32_MAX;
	s->run[1] = 0;
	s->number[0] = 0;
	s->number[1] = 0;
}

/* The parameter group, then the layer where each is a unit of its own: the parameter's, for all its fields. */
static int64_t find_unit(const struct ptc_layout *l, uint32_t tensor)
{
	const struct ptc_buffers *f = &l->spec->buffers;
	const struct ptc_layout_item *i = &l->items[tensor * (1 + l->spec->nfields)];
	const char *name = l->spec->tensors[tensor].name;
	int64_t group = f->ngroups ? f->groups[f->ngroups - 1].number + 1 : 0, layer = 0;

	for (size_t k = f->ngroups; k-- > 0;)
		if (ptc_glob_match(f->groups[k].glob, strlen(f->groups[k].glob), name, strlen(name)))
			group = f->groups[k].number;
	if (f->by_layer && i->rule && i->rule->place == PTC_PLACE_LAYER)
		layer = 1 + (int64_t)i->layer;
	return group * (1 + (int64_t)UINT32_MAX) + layer;
}

/* Fills w->order and w->units; false without memory. */
static bool order_tensors(struct walk *w)
{
	const struct ptc_spec *spec = w->l->spec;
	const struct ptc_buffers *f = &spec->buffers;
	struct slot *v = ptc_calloc(spec->ntensors, sizeof *v);
	uint32_t *order = ptc_calloc(spec->ntensors, sizeof *order);

	w->order = order;
	w->units = ptc_calloc(spec->ntensors, sizeof *w->units);
	if (!v || !order || !w->units) {
		ptc_free(v);
		return false;
	}
	for (uint32_t t = 0; t < spec->ntensors; t++) {
		w->units[t] = find_unit(w->l, t);
		v[t] = (struct slot){ .tensor = t, .name = spec->tensors[t].name, .unit = w->units[t] };
		find_slot(f, &v[t]);
	}
	qsort(v, spec->ntensors, sizeof *v, by_slot);
	for (size_t i = 0; i < spec->ntensors; i++)
		order[i] = v[f->reverse ? spec->ntensors - 1 - i : i].tensor;
	ptc_free(v);
	return true;
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
		uint32_t tensor = w->order[i], item = tensor * (uint32_t)(1 + spec->nfields) + (uint32_t)field;
		const struct ptc_layout_item *at = &w->l->items[item];

		if (ptc_regions_in_buffer(w->l, item) && in_chunk(w, item))
			w->items[w->nitems++] = (struct entry){
				.item = item,
				.dtype = spec->tensors[tensor].dtype,
				.expert = at->expert,
				.own = w->l->config.pp > 1 && at->rule && at->rule->place == PTC_PLACE_ENDS,
				.ep = at->rule && at->rule->expert ? at->ep : UINT32_MAX,
				.unit = w->units[tensor],
			};
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

/* A bucket from `start` on, as it is filled. */
struct bucket {
	int64_t start, pos; /* elements of the buffer */
	int64_t unit;
};

/* Ends the bucket: its tensors, w->part, learn where it begins and how long each rank's range of it is. */
static bool close_bucket(struct walk *w, struct bucket *b, bool expert)
{
	int64_t n = ptc_regions_zero_degree(w->l, expert), pad = PTC_MAX(w->l->spec->buffers.pad, 1), size, step;

	if (!w->npart)
		return true;
	step = n * PTC_MAX(w->l->spec->buffers.range, 1);
	if (ptc_ckd_mul(&step, step, pad / gcd(pad, step)) || !round_up(b->pos - b->start, step, &size))
		return false;
	for (size_t i = 0; i < w->npart; i++) {
		w->part[i]->first -= b->start;
		w->part[i]->range = size / n;
	}
	w->npart = 0;
	if (ptc_ckd_add(&b->start, b->start, size))
		return false;
	b->pos = b->start;
	return true;
}

/* Elements after which a bucket ends; 0: at the end only. */
static int64_t bucket_size(const struct walk *w)
{
	const struct ptc_buffers *f = &w->l->spec->buffers;

	return f->bucket || f->bucket_per_dp ? PTC_MAX(f->bucket, f->bucket_per_dp * w->l->config.dp) : 0;
}

/* The next tensor of a bucket. */
static bool add_tensor(struct walk *w, struct bucket *b, uint32_t item, const uint32_t at[PTC_WAYS])
{
	struct ptc_flat_at *f = &w->l->flats[w->l->items[item].flats + ptc_regions_flat_slot(w->l, item, at)];

	if (!round_up(b->pos - b->start, PTC_MAX(w->l->spec->buffers.align, 1), &b->pos) ||
	    ptc_ckd_add(&b->pos, b->pos, b->start))
		return false;
	f->first = b->pos;
	w->part[w->npart++] = f;
	return !ptc_ckd_add(&b->pos, b->pos, ptc_regions_elements(w->l, item, at));
}

/* One buffer: the items of the stage that take part. */
static int fill_buffer(struct walk *w, enum ptc_dtype dtype, bool expert, const uint32_t at[PTC_WAYS])
{
	int64_t limit = w->l->spec->buffers.first_only && w->chunk ? 0 : bucket_size(w);
	struct bucket b = { 0 };
	bool ok = true;

	w->npart = 0;
	for (size_t i = 0; i < w->nitems && ok; i++) {
		const struct entry *e = &w->items[i];

		if (e->dtype != dtype || e->expert != expert || (e->ep != UINT32_MAX && e->ep != at[PTC_AXIS_EP]))
			continue;
		if (e->own || e->unit != b.unit)
			ok = close_bucket(w, &b, expert);
		b.unit = e->unit;
		ok = ok && add_tensor(w, &b, e->item, at);
		if (ok && (e->own || (limit && b.pos - b.start >= limit)))
			ok = close_bucket(w, &b, expert);
	}
	if (!ok || !close_bucket(w, &b, expert))
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
	uint64_t dtypes = 0;
	int rc = 0;

	list_items(w, field);
	for (size_t i = 0; i < w->nitems; i++)
		dtypes |= UINT64_C(1) << w->items[i].dtype;
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
	w.items = ptc_calloc(l->spec->ntensors, sizeof *w.items);
	w.part = ptc_calloc(l->spec->ntensors, sizeof *w.part);
	if (!l->flats || !w.items || !w.part || !order_tensors(&w))
		rc = ptc_nomem(err);
	for (w.chunk = 0; w.chunk < l->config.pp * PTC_MAX(l->config.vpp, 1u) && !rc; w.chunk++) {
		w.pp = w.chunk % l->config.pp;
		for (size_t f = 0; f <= l->spec->nfields && !rc; f++)
			rc = fill_field(&w, f);
	}
	ptc_free((void *)(uintptr_t)w.order);
	ptc_free(w.units);
	ptc_free(w.items);
	ptc_free(w.part);
	return rc;
}
