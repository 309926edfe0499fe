/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the two geometries of each pair are cut along each other once, however many items have that pair. Items
 * form groups by their pair and by the ranks that hold them; the atoms of a group form classes. Failure modes: layouts
 * of different states (PTC_ELAYOUT naming tensors), limits, memory. */
#include "reshard/plan/change.h"

#include "base/alloc.h"
#include "base/check.h"
#include "reshard/spec/lint.h"

#include <stdio.h>
#include <string.h>

struct maker {
	struct ptc_change *c;
	struct ptc_error *err;
	struct ptc_numbers atoms_numbers, group_numbers;
	uint32_t atoms_cap, group_cap;
};

/* ---- atoms ---- */

static int push_atom(struct ptc_atoms *a, const struct ptc_box *box, uint32_t to, uint32_t from)
{
	uint32_t key[2] = { to, from }, pair;
	size_t cap = a->cap;

	if (!PTC_ROOM(a->box, a->n + 1, cap) || !PTC_ROOM(a->pair, a->n + 1, a->cap))
		return PTC_ENOMEM;
	if (ptc_lists_intern(&a->pairs, key, 2, &pair))
		return PTC_ENOMEM;
	a->box[a->n] = *box;
	a->pair[a->n++] = pair;
	return 0;
}

/* What of piece i of `to` no piece of `from` has: the atoms from `mark` on are what some has. */
static int push_rest(struct ptc_atoms *a, size_t mark, const struct ptc_box *box, uint32_t set)
{
	struct ptc_boxes rest = { 0 };
	int rc = ptc_boxes_missing(box, a->box + mark, a->n - mark, &rest);

	for (size_t i = 0; i < rest.n && !rc; i++)
		rc = push_atom(a, &rest.v[i], set, PTC_NOBODY);
	ptc_boxes_done(&rest);
	return rc;
}

static int cut_piece(struct ptc_atoms *a, const struct ptc_pieces *to, size_t i, const struct ptc_pieces *from)
{
	const struct ptc_box *box = &to->box[i];
	int64_t left = ptc_box_volume(box), end = from->n ? box->off[from->dim] + box->ext[from->dim] : 0;
	size_t mark = a->n;
	struct ptc_box common;

	for (size_t k = from->n ? ptc_pieces_first(from, box->off[from->dim]) : 0;
	     left && k < from->n && from->box[k].off[from->dim] < end; k++) {
		if (!ptc_box_intersect(box, &from->box[k], &common))
			continue;
		left -= ptc_box_volume(&common);
		if (push_atom(a, &common, to->set[i], from->set[k]))
			return PTC_ENOMEM;
	}
	return left ? push_rest(a, mark, box, to->set[i]) : 0;
}

/* Gives back what was taken ahead. */
static int trim(struct ptc_atoms *a)
{
	struct ptc_box *box = ptc_reallocarray(a->box, a->n, sizeof *box);
	uint32_t *pair;

	if (!box)
		return PTC_ENOMEM;
	a->box = box;
	a->cap = a->n;
	pair = ptc_reallocarray(a->pair, a->n, sizeof *pair);
	if (!pair)
		return PTC_ENOMEM;
	a->pair = pair;
	return ptc_lists_seal(&a->pairs);
}

static int cut_atoms(struct ptc_atoms *a, const struct ptc_pieces *to, const struct ptc_pieces *from)
{
	int rc = 0;

	for (size_t i = 0; i < to->n && !rc; i++)
		rc = cut_piece(a, to, i, from);
	if (rc)
		return rc;
	a->pair_bytes = ptc_calloc(a->pairs.n, sizeof *a->pair_bytes);
	if (!a->pair_bytes)
		return PTC_ENOMEM;
	for (size_t i = 0; i < a->n; i++)
		a->pair_bytes[a->pair[i]] += ptc_box_volume(&a->box[i]);
	return a->n ? trim(a) : 0;
}

static void atoms_done(struct ptc_atoms *a)
{
	ptc_free(a->box);
	ptc_free(a->pair);
	ptc_free(a->pair_bytes);
	ptc_lists_done(&a->pairs);
}

/* Does no other item have the geometries and spreads of this one? */
static bool alone(const struct ptc_change *c, uint32_t item)
{
	return c->to.spreads[c->to.item_spread[item]].alone || c->from.spreads[c->from.item_spread[item]].alone;
}

/* The atoms of an item's geometries. */
static int find_atoms(struct maker *m, uint32_t item, uint32_t *ret)
{
	struct ptc_change *c = m->c;
	uint32_t key[2] = { c->to.spreads[c->to.item_spread[item]].geometry,
			    c->from.spreads[c->from.item_spread[item]].geometry };

	*ret = c->natoms;
	if (!alone(c, item) && ptc_numbers_of(&m->atoms_numbers, key, 2, c->natoms, ret))
		return ptc_nomem(m->err);
	if (*ret < c->natoms)
		return 0;
	if (!PTC_ROOM(c->atoms, c->natoms + 1, m->atoms_cap))
		return ptc_nomem(m->err);
	c->atoms[c->natoms] = (struct ptc_atoms){ 0 };
	if (cut_atoms(&c->atoms[c->natoms++], &c->to.geometries[key[0]], &c->from.geometries[key[1]]))
		return ptc_nomem(m->err);
	return 0;
}

/* ---- groups ---- */

/* Nobody has it yet, and nobody sends it: only what it takes is counted. */
static int add_reset(struct maker *m, uint32_t item)
{
	struct ptc_change *c = m->c;
	const struct ptc_spread *to = &c->to.spreads[c->to.item_spread[item]];
	const struct ptc_pieces *p = &c->to.geometries[to->geometry];

	if (!c->reset_bytes)
		c->reset_bytes = ptc_calloc(c->to.sets.n, sizeof *c->reset_bytes);
	if (!c->reset_bytes)
		return ptc_nomem(m->err);
	for (uint32_t i = 0; i < p->sets.n; i++)
		c->reset_bytes[to->sets[i]] += p->set_bytes[i];
	c->item_group[item] = PTC_NOBODY;
	return 0;
}

static int new_group(struct maker *m, uint32_t item, bool derived)
{
	struct ptc_change *c = m->c;
	const struct ptc_spread *to = &c->to.spreads[c->to.item_spread[item]];
	const struct ptc_spread *from = &c->from.spreads[c->from.item_spread[item]];
	const struct ptc_atoms *a;
	struct ptc_group *g;
	uint32_t atoms;
	int rc = find_atoms(m, item, &atoms);

	if (rc)
		return rc;
	if (!PTC_ROOM(c->groups, c->ngroups + 1, m->group_cap))
		return ptc_nomem(m->err);
	a = &c->atoms[atoms];
	g = &c->groups[c->ngroups];
	*g = (struct ptc_group){ .atoms = atoms,
				 .classes = ptc_calloc(a->pairs.n, sizeof *g->classes),
				 .derived = derived };
	if (!g->classes)
		return ptc_nomem(m->err);
	c->ngroups++;
	for (uint32_t i = 0; i < a->pairs.n; i++) {
		uint32_t set = a->pairs.v[2 * (size_t)i + 1];
		uint32_t key[2] = { to->sets[a->pairs.v[2 * (size_t)i]],
				    set == PTC_NOBODY ? PTC_NOBODY : from->sets[set] };

		if (ptc_lists_intern(&c->classes, key, 2, &g->classes[i]))
			return ptc_nomem(m->err);
	}
	return 0;
}

/* The group of an item, made when it is the first of it. */
static int join_group(struct maker *m, uint32_t item)
{
	struct ptc_change *c = m->c;
	bool derived = c->from.layout && ptc_layout_derives(c->to.layout, item);
	uint32_t key[3] = { c->to.item_spread[item], c->from.item_spread[item], derived };
	int rc = 0;

	if (c->from.layout && ptc_layout_resets(c->to.layout, item))
		return add_reset(m, item);
	c->item_group[item] = c->ngroups;
	if (!alone(c, item) && ptc_numbers_of(&m->group_numbers, key, 3, c->ngroups, &c->item_group[item]))
		return ptc_nomem(m->err);
	if (c->item_group[item] == c->ngroups)
		rc = new_group(m, item, derived);
	if (!rc)
		c->groups[c->item_group[item]].n++;
	return rc;
}

static int make_groups(struct maker *m)
{
	struct ptc_change *c = m->c;
	size_t n = c->to.nitems;
	int rc = 0;

	c->item_group = ptc_calloc(n, sizeof *c->item_group);
	c->items = ptc_calloc(n, sizeof *c->items);
	if (!c->item_group || !c->items)
		return ptc_nomem(m->err);
	for (size_t item = 0; item < n && !rc; item++)
		rc = join_group(m, (uint32_t)item);
	if (rc)
		return rc;
	for (uint32_t g = 0, at = 0; g < c->ngroups; g++) {
		c->groups[g].first = at;
		at += (uint32_t)c->groups[g].n;
		c->groups[g].n = 0;
	}
	for (size_t item = 0; item < n; item++) {
		uint32_t group = c->item_group[item];

		if (group != PTC_NOBODY)
			c->items[c->groups[group].first + c->groups[group].n++] = (uint32_t)item;
	}
	return 0;
}

static int sum_classes(struct maker *m)
{
	struct ptc_change *c = m->c;

	c->bytes = ptc_calloc(c->classes.n, sizeof *c->bytes);
	if (!c->bytes)
		return ptc_nomem(m->err);
	for (uint32_t i = 0; i < c->ngroups; i++) {
		const struct ptc_group *g = &c->groups[i];
		const struct ptc_atoms *a = &c->atoms[g->atoms];
		int64_t *sum;

		if (g->derived && !c->derived_bytes)
			c->derived_bytes = ptc_calloc(c->classes.n, sizeof *c->derived_bytes);
		sum = g->derived ? c->derived_bytes : c->bytes;
		if (!sum)
			return ptc_nomem(m->err);
		for (uint32_t k = 0; k < a->pairs.n; k++)
			sum[g->classes[k]] += a->pair_bytes[k] * (int64_t)g->n;
	}
	return 0;
}

/* ---- the two states ---- */

static int same_fields(const struct ptc_spec *a, const struct ptc_spec *b, struct ptc_error *err)
{
	for (size_t f = 0; f < PTC_MAX(a->nfields, b->nfields); f++) {
		const struct ptc_field *x = f < a->nfields ? &a->fields[f] : NULL;
		const struct ptc_field *y = f < b->nfields ? &b->fields[f] : NULL;

		if (!x || !y || strcmp(x->name, y->name) != 0)
			return ptc_error_set(err, PTC_ELAYOUT, "field %zu is \"%s\" before and \"%s\" after", f + 1,
					     x ? x->name : "", y ? y->name : "");
		if (x->same_dtype != y->same_dtype || (!x->same_dtype && x->dtype != y->dtype))
			return ptc_error_set(err, PTC_ELAYOUT, "field \"%s\" is %s before and %s after", x->name,
					     x->same_dtype ? "of its parameter's dtype" : ptc_dtype_name(x->dtype),
					     y->same_dtype ? "of its parameter's dtype" : ptc_dtype_name(y->dtype));
	}
	return 0;
}

/* Tensors are in name order in both. */
static int same_state(const struct ptc_spec *a, const struct ptc_spec *b, struct ptc_error *err)
{
	char was[160], is[160];

	for (size_t i = 0; a != b && i < PTC_MAX(a->ntensors, b->ntensors); i++) {
		const struct ptc_tensor *x = i < a->ntensors ? &a->tensors[i] : NULL;
		const struct ptc_tensor *y = i < b->ntensors ? &b->tensors[i] : NULL;

		if (x && (!y || strcmp(x->name, y->name) < 0))
			return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\" is not in the new state (%zu tensors)",
					     x->name, b->ntensors);
		if (y && (!x || strcmp(x->name, y->name) > 0))
			return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\" is not in the old state (%zu tensors)",
					     y->name, a->ntensors);
		if (x && y && !ptc_tensor_same(x, y))
			return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\" is %s in the old state, %s in the new",
					     x->name, ptc_tensor_text(x, was, sizeof was),
					     ptc_tensor_text(y, is, sizeof is));
	}
	return a == b ? 0 : same_fields(a, b, err);
}

static int side_of(struct ptc_side *s, bool *borrowed, const struct ptc_layout *l, const struct ptc_spec *spec,
		   struct ptc_error *err)
{
	const struct ptc_side *kept = l ? ptc_layout_side(l) : NULL;

	*borrowed = kept != NULL;
	if (!kept)
		return ptc_side_init(s, l, spec, err);
	*s = *kept;
	return 0;
}

int ptc_change_new(const struct ptc_layout *from, const struct ptc_layout *to, struct ptc_change **ret_change,
		   struct ptc_error *err)
{
	struct maker m = { .err = err };
	int rc = from ? same_state(ptc_layout_spec(from), ptc_layout_spec(to), err) : 0;

	if (rc)
		return rc;
	m.c = ptc_calloc(1, sizeof *m.c);
	if (!m.c)
		return ptc_nomem(m.err);
	m.c->spec = ptc_layout_spec(to);
	rc = side_of(&m.c->to, &m.c->to_borrowed, to, m.c->spec, err);
	if (!rc)
		rc = side_of(&m.c->from, &m.c->from_borrowed, from, m.c->spec, err);
	if (!rc)
		rc = make_groups(&m);
	if (!rc)
		rc = sum_classes(&m);
	ptc_numbers_done(&m.atoms_numbers);
	ptc_numbers_done(&m.group_numbers);
	if (rc)
		ptc_change_free(m.c);
	else
		*ret_change = m.c;
	return rc;
}

struct ptc_change *ptc_change_free(struct ptc_change *c)
{
	if (!c)
		return NULL;
	if (!c->to_borrowed)
		ptc_side_done(&c->to);
	if (!c->from_borrowed)
		ptc_side_done(&c->from);
	for (uint32_t i = 0; i < c->natoms; i++)
		atoms_done(&c->atoms[i]);
	for (uint32_t i = 0; i < c->ngroups; i++)
		ptc_free(c->groups[i].classes);
	ptc_free(c->atoms);
	ptc_free(c->groups);
	ptc_free(c->items);
	ptc_free(c->item_group);
	ptc_free(c->reset_bytes);
	ptc_lists_done(&c->classes);
	ptc_free(c->bytes);
	ptc_free(c->derived_bytes);
	ptc_free(c);
	return NULL;
}
