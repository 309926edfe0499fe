/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: items are told apart by their keys; of each geometry the parts'
 * boxes are made once, of each spread the ranks are listed once. A layout made
 * of declarations has one geometry per item, whose parts are its classes.
 *
 * Failure modes: a cut that is not on a byte (which the layout has refused
 * already), limits, memory. */
#include "reshard/layout/side.h"

#include "reshard/regions/regions.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

/* Where a declared class has an item. */
struct place {
	uint32_t cell;
	size_t at;
};

struct maker {
	struct ptc_side *s;
	const struct ptc_layout *l;
	struct ptc_error *err;
	struct ptc_numbers geometry_numbers, spread_numbers;
	struct ptc_lists where_keys;
	uint32_t geometry_cap, spread_cap, where_cap;
	struct ptc_cutter cutter;   /* unless declared */
	struct ptc_part_box *boxes; /* of one geometry */
	size_t nboxes, boxes_cap;
	/* ranks by part: of all classes when declared; else one of parts */
	uint32_t *first, *ranks, *scratch;
	struct ptc_lists parts_keys;
	struct parts {
		uint32_t *first, *ranks;
	} * parts;
	uint32_t parts_cap;
	struct {
		uint32_t *ranks, n;
	} * where; /* by where: the ranks that have something there */
	size_t *item_first;
	struct place *places; /* declared: by item */
};

static bool declared(const struct maker *m)
{
	return !m->l->items;
}

/* ---- keys ---- */

static void put64(uint32_t *v, size_t *n, uint64_t x)
{
	v[(*n)++] = (uint32_t)x;
	v[(*n)++] = (uint32_t)(x >> 32);
}

/* The number of the item's geometry, and where the item lies; the number is s->ngeometries of one not made yet. */
static int find_geometry(struct maker *m, uint32_t item, uint64_t *ret_where, uint32_t *ret)
{
	const struct ptc_tensor *t = &m->s->spec->tensors[item / (1 + m->s->spec->nfields)];
	struct ptc_regions_key key;
	uint32_t v[8 + 2 * PTC_MAX_DIMS];
	size_t n = 0;

	if (!m->l || declared(m)) {
		v[n++] = m->l ? item : 0;
		*ret_where = v[0];
		return ptc_numbers_of(&m->geometry_numbers, v, n, m->s->ngeometries, ret);
	}
	ptc_regions_key(m->l, item, &key);
	*ret_where = key.where;
	*ret = m->s->ngeometries;
	if (ptc_regions_in_buffer(m->l, item)) /* no other item is cut alike */
		return 0;
	put64(v, &n, key.rule ? (uint64_t)(key.rule - m->l->spec->rules) + 1 : 0);
	put64(v, &n, key.form);
	v[n++] = ptc_dtype_bits(ptc_item_dtype(m->s->spec, item));
	for (uint32_t d = 0; d < t->ndim; d++)
		put64(v, &n, (uint64_t)t->shape[d]);
	return ptc_numbers_of(&m->geometry_numbers, v, n, m->s->ngeometries, ret);
}

/* ---- parts ---- */

static int push_boxes(struct maker *m, uint32_t item, uint32_t part, const struct ptc_region *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct ptc_part_box *box;
		int rc;

		if (v[i].padding)
			continue;
		if (!PTC_ROOM(m->boxes, m->nboxes + 1, m->boxes_cap))
			return ptc_nomem(m->err);
		if (m->nboxes >= PTC_MAX_REGIONS)
			return ptc_error_set(m->err, PTC_ELIMIT, "plan: one tensor is cut into more than %u boxes",
					     PTC_MAX_REGIONS);
		box = &m->boxes[m->nboxes];
		rc = ptc_item_byte_box(m->s->spec, item, &v[i].box, &box->box, m->err);
		if (rc)
			return rc;
		box->part = part;
		m->nboxes++;
	}
	return 0;
}

static int declared_boxes(struct maker *m, uint32_t item)
{
	int rc = 0;

	for (size_t i = m->item_first[item]; i < m->item_first[item + 1] && !rc; i++) {
		const struct ptc_rank_layout *cell = &m->l->cells[m->places[i].cell];
		const struct ptc_region *v = cell->regions + m->places[i].at;
		size_t n = 0;

		while (m->places[i].at + n < cell->nregions && v[n].item == item)
			n++;
		rc = push_boxes(m, item, m->places[i].cell, v, n);
	}
	return rc;
}

static int rule_boxes(struct maker *m, uint32_t item)
{
	uint32_t nruns = ptc_regions_nruns(m->l, item);
	struct ptc_part_run run;
	int rc = 0;

	for (uint32_t k = 0; k < nruns && !rc; k++) {
		ptc_regions_run(m->l, item, k, &run);
		for (uint32_t i = 0, p = run.first; i < run.n && !rc; i++, p += run.step) {
			rc = ptc_cutter_part(&m->cutter, item, p);
			if (!rc)
				rc = push_boxes(m, item, p, m->cutter.regions, m->cutter.n);
		}
	}
	return rc;
}

static int new_geometry(struct maker *m, uint32_t item)
{
	struct ptc_side *s = m->s;
	int rc = 0;

	if (!PTC_ROOM(s->geometries, s->ngeometries + 1, m->geometry_cap))
		return ptc_nomem(m->err);
	m->nboxes = 0;
	if (m->l)
		rc = declared(m) ? declared_boxes(m, item) : rule_boxes(m, item);
	if (rc)
		return rc;
	if (ptc_pieces_make(&s->geometries[s->ngeometries], m->boxes, m->nboxes))
		return ptc_nomem(m->err);
	s->cut = s->cut || s->geometries[s->ngeometries].cut;
	s->ngeometries++;
	return 0;
}

/* ---- ranks ---- */

/* The ranks that have any part of items there, listed when it is first asked for. */
static int where_ranks(struct maker *m, uint32_t item, uint64_t where, const uint32_t **ret, uint32_t *ret_n)
{
	uint32_t v[2], id, n = 0, part;
	size_t len = 0;

	put64(v, &len, where);
	if (ptc_lists_intern(&m->where_keys, v, len, &id))
		return ptc_nomem(m->err);
	if (id == m->where_cap) {
		void *more = ptc_reallocarray(m->where, (size_t)id + 1, sizeof *m->where);

		if (!more)
			return ptc_nomem(m->err);
		m->where = more;
		for (uint32_t r = 0; r < m->l->world; r++)
			if (ptc_regions_part(m->l, item, r, &part))
				m->scratch[n++] = r;
		m->where[id].ranks = ptc_calloc(n, sizeof *m->scratch);
		if (!m->where[id].ranks)
			return ptc_nomem(m->err);
		m->where_cap++;
		memcpy(m->where[id].ranks, m->scratch, n * sizeof *m->scratch);
		m->where[id].n = n;
	}
	*ret = m->where[id].ranks;
	*ret_n = m->where[id].n;
	return 0;
}

/* Ranks sorted by part: m->first, m->ranks. */
static int sort_ranks(struct maker *m, uint32_t item, uint64_t where)
{
	uint32_t nparts = ptc_regions_nparts(m->l, item), n = 0, part;
	const uint32_t *ranks = NULL;
	int rc = where_ranks(m, item, where, &ranks, &n);

	if (rc)
		return rc;
	m->first = ptc_calloc((size_t)nparts + 2, sizeof *m->first);
	m->ranks = ptc_calloc(n, sizeof *m->ranks);
	if (!m->first || !m->ranks) {
		ptc_free(m->first);
		ptc_free(m->ranks);
		return ptc_nomem(m->err);
	}
	for (uint32_t i = 0; i < n; i++) {
		if (ptc_fails(ptc_regions_part(m->l, item, ranks[i], &part)))
			return ptc_error_set(m->err, PTC_EINTERNAL,
					     "plan: a rank holds no part of an item that it should hold");
		m->first[part + 2]++;
		m->scratch[i] = part;
	}
	for (uint32_t p = 0; p < nparts; p++)
		m->first[p + 2] += m->first[p + 1];
	for (uint32_t i = 0; i < n; i++)
		m->ranks[m->first[m->scratch[i] + 1]++] = ranks[i];
	return 0;
}

/* Which part a rank has depends on the rule and on where the item is, not on its sizes. */
static int ranks_by_part(struct maker *m, uint32_t item, uint64_t where)
{
	const struct ptc_rule *rule = m->l->items[item].rule;
	uint32_t v[8], id;
	size_t n = 0;
	int rc;

	put64(v, &n, where);
	put64(v, &n, rule ? (uint64_t)(rule - m->l->spec->rules) + 1 : 0);
	v[n++] = ptc_regions_nparts(m->l, item);
	v[n++] = item % (1 + m->s->spec->nfields) > 0;
	v[n++] = m->s->spec->tensors[item / (1 + m->s->spec->nfields)].ndim;
	if (ptc_lists_intern(&m->parts_keys, v, n, &id))
		return ptc_nomem(m->err);
	if (id == m->parts_cap) {
		struct parts *more = ptc_reallocarray(m->parts, (size_t)id + 1, sizeof *more);

		if (!more)
			return ptc_nomem(m->err);
		m->parts = more;
		rc = sort_ranks(m, item, where);
		if (rc) {
			m->first = m->ranks = NULL;
			return rc;
		}
		m->parts[m->parts_cap++] = (struct parts){ m->first, m->ranks };
	}
	m->first = m->parts[id].first;
	m->ranks = m->parts[id].ranks;
	return 0;
}

PTC_BY_VALUE(by_number, uint32_t)

/* The ranks of a set of parts; each rank has one part. */
static int ranks_of(struct maker *m, const uint32_t *parts, size_t nparts, uint32_t *ret)
{
	size_t n = 0;

	if (nparts == 1)
		return ptc_lists_intern(&m->s->sets, m->ranks + m->first[parts[0]],
					m->first[parts[0] + 1] - m->first[parts[0]], ret);
	for (size_t i = 0; i < nparts; i++) {
		uint32_t count = m->first[parts[i] + 1] - m->first[parts[i]];

		memcpy(m->scratch + n, m->ranks + m->first[parts[i]], count * sizeof *m->scratch);
		n += count;
	}
	if (n > 1)
		qsort(m->scratch, n, sizeof *m->scratch, by_number);
	return ptc_lists_intern(&m->s->sets, m->scratch, n, ret);
}

static bool alone(const struct maker *m, uint32_t item)
{
	return m->l && !declared(m) && ptc_regions_in_buffer(m->l, item);
}

static int new_spread(struct maker *m, uint32_t item, uint32_t geometry, uint64_t where)
{
	struct ptc_side *s = m->s;
	const struct ptc_pieces *p = &s->geometries[geometry];
	struct ptc_spread *spread;
	int rc = 0;

	if (!PTC_ROOM(s->spreads, s->nspreads + 1, m->spread_cap))
		return ptc_nomem(m->err);
	spread = &s->spreads[s->nspreads];
	spread->geometry = geometry;
	spread->alone = alone(m, item);
	spread->sets = ptc_calloc(p->sets.n, sizeof *spread->sets);
	if (!spread->sets)
		return ptc_nomem(m->err);
	s->nspreads++;
	if (m->l && !declared(m))
		rc = ranks_by_part(m, item, where);
	for (uint32_t i = 0; i < p->sets.n && !rc; i++) {
		size_t n;
		const uint32_t *parts = ptc_lists_at(&p->sets, i, &n);

		if (ranks_of(m, parts, n, &spread->sets[i]))
			return ptc_nomem(m->err);
	}
	return rc;
}

/* ---- the whole ---- */

/* Declared: ranks by class, and classes by item. */
static int index_declared(struct maker *m)
{
	const struct ptc_layout *l = m->l;
	size_t n = 0, *next;

	m->first = ptc_calloc((size_t)l->ncells + 2, sizeof *m->first);
	m->ranks = ptc_calloc(l->world, sizeof *m->ranks);
	if (!m->first || !m->ranks)
		return ptc_nomem(m->err);
	for (uint32_t r = 0; r < l->world; r++)
		m->first[l->rank_cells[r] + 2]++;
	for (uint32_t c = 0; c < l->ncells; c++)
		m->first[c + 2] += m->first[c + 1];
	for (uint32_t r = 0; r < l->world; r++)
		m->ranks[m->first[l->rank_cells[r] + 1]++] = r;
	m->item_first = ptc_calloc(m->s->nitems + 2, sizeof *m->item_first);
	if (!m->item_first)
		return ptc_nomem(m->err);
	next = m->item_first + 1;
	for (uint32_t c = 0; c < l->ncells; c++)
		for (size_t i = 0; i < l->cells[c].nregions; i++)
			if (i == 0 || l->cells[c].regions[i].item != l->cells[c].regions[i - 1].item) {
				next[l->cells[c].regions[i].item + 1]++;
				n++;
			}
	for (size_t i = 0; i < m->s->nitems; i++)
		next[i + 1] += next[i];
	m->places = ptc_calloc(n, sizeof *m->places);
	if (!m->places)
		return ptc_nomem(m->err);
	for (uint32_t c = 0; c < l->ncells; c++)
		for (size_t i = 0; i < l->cells[c].nregions; i++)
			if (i == 0 || l->cells[c].regions[i].item != l->cells[c].regions[i - 1].item)
				m->places[next[l->cells[c].regions[i].item]++] = (struct place){ c, i };
	return 0;
}

static int take_item(struct maker *m, uint32_t item)
{
	struct ptc_side *s = m->s;
	uint32_t geometry, v[3];
	uint64_t where;
	size_t n = 0;
	int rc = 0;

	if (find_geometry(m, item, &where, &geometry))
		return ptc_nomem(m->err);
	if (geometry == s->ngeometries)
		rc = new_geometry(m, item);
	if (rc)
		return rc;
	v[n++] = geometry;
	put64(v, &n, where);
	s->item_spread[item] = s->nspreads;
	if (alone(m, item))
		return new_spread(m, item, geometry, where);
	if (ptc_numbers_of(&m->spread_numbers, v, n, s->nspreads, &s->item_spread[item]))
		return ptc_nomem(m->err);
	return s->item_spread[item] == s->nspreads ? new_spread(m, item, geometry, where) : 0;
}

static int sum_held(struct maker *m)
{
	struct ptc_side *s = m->s;

	s->held = ptc_calloc(s->sets.n, sizeof *s->held);
	if (!s->held)
		return ptc_nomem(m->err);
	for (size_t item = 0; item < s->nitems; item++) {
		const struct ptc_spread *spread = &s->spreads[s->item_spread[item]];
		const struct ptc_pieces *p = &s->geometries[spread->geometry];

		for (uint32_t i = 0; i < p->sets.n; i++)
			s->held[spread->sets[i]] += p->set_bytes[i];
	}
	return 0;
}

static void maker_done(struct maker *m)
{
	ptc_numbers_done(&m->geometry_numbers);
	ptc_numbers_done(&m->spread_numbers);
	ptc_lists_done(&m->where_keys);
	for (uint32_t i = 0; i < m->where_cap; i++)
		ptc_free(m->where[i].ranks);
	ptc_free(m->where);
	ptc_free(m->boxes);
	ptc_free(m->cutter.regions);
	ptc_cutter_done(&m->cutter);
	for (uint32_t i = 0; i < m->parts_cap; i++) {
		ptc_free(m->parts[i].first);
		ptc_free(m->parts[i].ranks);
	}
	if (m->l && declared(m)) {
		ptc_free(m->first);
		ptc_free(m->ranks);
	}
	ptc_free(m->parts);
	ptc_lists_done(&m->parts_keys);
	ptc_free(m->scratch);
	ptc_free(m->item_first);
	ptc_free(m->places);
}

int ptc_side_init(struct ptc_side *s, const struct ptc_layout *layout, const struct ptc_spec *spec,
		  struct ptc_error *err)
{
	struct maker m = { .s = s, .l = layout, .err = err, .cutter = { .l = layout, .err = err } };
	uint32_t world = layout ? layout->world : 0;
	int rc = 0;

	*s = (struct ptc_side){ .layout = layout, .spec = spec, .nitems = ptc_spec_items(spec) };
	s->item_spread = ptc_calloc(s->nitems, sizeof *s->item_spread);
	m.scratch = ptc_calloc(world, sizeof *m.scratch);
	if (!s->item_spread || !m.scratch)
		rc = ptc_nomem(m.err);
	if (!rc && layout && declared(&m))
		rc = index_declared(&m);
	for (size_t item = 0; item < s->nitems && !rc; item++)
		rc = take_item(&m, (uint32_t)item);
	if (!rc)
		rc = sum_held(&m);
	maker_done(&m);
	if (rc)
		ptc_side_done(s);
	return rc;
}

void ptc_side_done(struct ptc_side *s)
{
	for (uint32_t i = 0; i < s->ngeometries; i++)
		ptc_pieces_done(&s->geometries[i]);
	for (uint32_t i = 0; i < s->nspreads; i++)
		ptc_free(s->spreads[i].sets);
	ptc_free(s->geometries);
	ptc_free(s->spreads);
	ptc_free(s->item_spread);
	ptc_free(s->held);
	ptc_lists_done(&s->sets);
	*s = (struct ptc_side){ 0 };
}
