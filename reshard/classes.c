/* SPDX-License-Identifier: Apache-2.0 */
/* Refines each item into atoms, boxes that every cell has whole or not at
 * all, and sums their bytes by the set of cells that need and have them. A
 * set is a node of a trie over cell numbers, in the order cells are looked at,
 * so equal sets are equal nodes. Placement then never looks at a box again.
 * Failure mode: memory. */
#include "reshard/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

struct set {
	uint32_t parent, tag;
	int64_t bytes;
};

struct atom {
	struct ptc_box box;
	uint32_t set;
};

struct refiner {
	const struct ptc_layout *layout[2]; /* to, from */
	size_t *at[2];                      /* per cell: next region */
	struct set *sets;                   /* 0: the empty set */
	size_t nsets, sets_cap;
	uint32_t *table; /* open addressing over sets; 0: free */
	size_t table_size;
	struct atom *atoms; /* of one item; disjoint */
	size_t natoms, atoms_cap;
	struct ptc_boxes left, next, rest;
};

static size_t set_hash(uint32_t parent, uint32_t tag)
{
	return (size_t)((((uint64_t)parent << 32 | tag) * UINT64_C(0x9E3779B97F4A7C15)) >> 20);
}

static void table_put(struct refiner *r, uint32_t id)
{
	size_t i = set_hash(r->sets[id].parent, r->sets[id].tag) & (r->table_size - 1);

	while (r->table[i])
		i = (i + 1) & (r->table_size - 1);
	r->table[i] = id;
}

static int sets_grow(struct refiner *r)
{
	size_t cap = r->sets_cap ? 2 * r->sets_cap : 256;
	struct set *v = ptc_reallocarray(r->sets, cap, sizeof *v);
	uint32_t *table;

	if (!v)
		return PTC_ENOMEM;
	r->sets = v;
	table = ptc_calloc(4 * cap, sizeof *table);
	if (!table)
		return PTC_ENOMEM;
	ptc_free(r->table);
	r->table = table;
	r->table_size = 4 * cap;
	r->sets_cap = cap;
	if (r->nsets == 0)
		r->sets[r->nsets++] = (struct set){ 0 };
	for (size_t i = 1; i < r->nsets; i++)
		table_put(r, (uint32_t)i);
	return 0;
}

/* parent with tag added. */
static int set_add(struct refiner *r, uint32_t parent, uint32_t tag, uint32_t *ret)
{
	if (r->nsets == r->sets_cap && sets_grow(r))
		return PTC_ENOMEM;
	for (size_t i = set_hash(parent, tag) & (r->table_size - 1); r->table[i]; i = (i + 1) & (r->table_size - 1)) {
		const struct set *s = &r->sets[r->table[i]];

		if (s->parent != parent || s->tag != tag)
			continue;
		*ret = r->table[i];
		return 0;
	}
	r->sets[r->nsets] = (struct set){ parent, tag, 0 };
	table_put(r, (uint32_t)r->nsets);
	*ret = (uint32_t)r->nsets++;
	return 0;
}

static int add_atom(struct refiner *r, const struct ptc_box *box, uint32_t set)
{
	if (r->natoms == r->atoms_cap) {
		size_t cap = r->atoms_cap ? 2 * r->atoms_cap : 64;
		struct atom *v = ptc_reallocarray(r->atoms, cap, sizeof *v);

		if (!v)
			return PTC_ENOMEM;
		r->atoms = v;
		r->atoms_cap = cap;
	}
	r->atoms[r->natoms++] = (struct atom){ *box, set };
	return 0;
}

/* Atom i meets the cell's box in common: that part joins the cell's set, the rest becomes atoms of its own. */
static int split_atom(struct refiner *r, size_t i, const struct ptc_box *common, uint32_t tag)
{
	struct atom old = r->atoms[i];
	uint32_t set;

	if (set_add(r, old.set, tag, &set))
		return PTC_ENOMEM;
	r->atoms[i] = (struct atom){ *common, set };
	r->rest.n = 0;
	if (ptc_box_subtract(&old.box, common, &r->rest))
		return PTC_ENOMEM;
	for (size_t k = 0; k < r->rest.n; k++)
		if (add_atom(r, &r->rest.v[k], old.set))
			return PTC_ENOMEM;
	return 0;
}

/* Takes common away from r->left. */
static int shrink_left(struct refiner *r, const struct ptc_box *common)
{
	struct ptc_boxes swap;

	r->next.n = 0;
	for (size_t k = 0; k < r->left.n; k++)
		if (ptc_box_subtract(&r->left.v[k], common, &r->next))
			return PTC_ENOMEM;
	swap = r->left;
	r->left = r->next;
	r->next = swap;
	return 0;
}

/* Cell `tag` has box. What no atom covers becomes new atoms if fresh. */
static int carve(struct refiner *r, const struct ptc_box *box, uint32_t tag, bool fresh)
{
	size_t n = r->natoms;
	struct ptc_box common;
	uint32_t set;

	r->left.n = 0;
	if (ptc_boxes_push(&r->left, box))
		return PTC_ENOMEM;
	for (size_t i = 0; i < n && r->left.n; i++)
		if (ptc_box_intersect(&r->atoms[i].box, box, &common) &&
		    (split_atom(r, i, &common, tag) || shrink_left(r, &common)))
			return PTC_ENOMEM;
	if (!fresh || !r->left.n)
		return 0;
	if (set_add(r, 0, tag, &set))
		return PTC_ENOMEM;
	for (size_t k = 0; k < r->left.n; k++)
		if (add_atom(r, &r->left.v[k], set))
			return PTC_ENOMEM;
	return 0;
}

/* side 0: to, 1: from. */
static int carve_side(struct refiner *r, uint32_t item, int side, struct ptc_error *err)
{
	const struct ptc_layout *l = r->layout[side];
	uint32_t base = side ? ptc_layout_ncells(r->layout[0]) : 0;
	struct ptc_box bytes;

	for (uint32_t c = 0; c < ptc_layout_ncells(l); c++) {
		const struct ptc_rank_layout *cell = ptc_layout_cell_at(l, c);
		size_t *at = &r->at[side][c];

		for (; *at < cell->nregions && cell->regions[*at].item == item; ++*at) {
			const struct ptc_region *region = &cell->regions[*at];
			int rc;

			if (region->padding)
				continue;
			rc = ptc_item_byte_box(ptc_layout_spec(l), item, &region->box, &bytes, err);
			if (rc)
				return rc;
			if (carve(r, &bytes, base + c, side == 0))
				return ptc_error_set(err, PTC_ENOMEM, "place: out of memory");
		}
	}
	return 0;
}

/* Counts (list NULL) or lists, per cell of one side, the classes whose set has it. */
static void walk_sets(const struct refiner *r, uint32_t lo, uint32_t hi, size_t *next, uint32_t *list)
{
	uint32_t class = 0;

	for (size_t i = 1; i < r->nsets; i++) {
		if (r->sets[i].bytes == 0)
			continue;
		for (size_t s = i; s; s = r->sets[s].parent) {
			uint32_t tag = r->sets[s].tag;

			if (tag < lo || tag >= hi)
				continue;
			if (list)
				list[next[tag - lo]++] = class;
			else
				next[tag - lo]++;
		}
		class ++;
	}
}

static int list_side(const struct refiner *r, uint32_t lo, uint32_t ncells, struct ptc_class_lists *ret)
{
	size_t *first = ptc_calloc((size_t)ncells + 2, sizeof *first);

	ret->first = first;
	if (!first)
		return PTC_ENOMEM;
	walk_sets(r, lo, lo + ncells, first + 2, NULL);
	for (uint32_t c = 0; c < ncells; c++)
		first[c + 2] += first[c + 1];
	ret->list = ptc_calloc(first[ncells + 1], sizeof *ret->list);
	if (!ret->list)
		return PTC_ENOMEM;
	walk_sets(r, lo, lo + ncells, first + 1, ret->list);
	return 0;
}

static int collect(const struct refiner *r, struct ptc_classes *ret)
{
	uint32_t nto = ptc_layout_ncells(r->layout[0]), nfrom = ptc_layout_ncells(r->layout[1]);

	ret->bytes = ptc_calloc(r->nsets, sizeof *ret->bytes);
	if (!ret->bytes)
		return PTC_ENOMEM;
	for (size_t i = 1; i < r->nsets; i++)
		if (r->sets[i].bytes)
			ret->bytes[ret->n++] = r->sets[i].bytes;
	if (list_side(r, 0, nto, &ret->to))
		return PTC_ENOMEM;
	return list_side(r, nto, nfrom, &ret->from);
}

static void refiner_done(struct refiner *r)
{
	ptc_free(r->at[0]);
	ptc_free(r->at[1]);
	ptc_free(r->sets);
	ptc_free(r->table);
	ptc_free(r->atoms);
	ptc_boxes_done(&r->left);
	ptc_boxes_done(&r->next);
	ptc_boxes_done(&r->rest);
}

int ptc_classes_init(const struct ptc_layout *from, const struct ptc_layout *to, struct ptc_classes *ret,
		     struct ptc_error *err)
{
	struct refiner r = { .layout = { to, from } };
	struct ptc_classes c = { 0 };
	size_t nitems = ptc_spec_items(ptc_layout_spec(to));
	int rc = 0;

	for (int side = 0; side < 2; side++)
		r.at[side] = ptc_calloc(ptc_layout_ncells(r.layout[side]), sizeof *r.at[side]);
	if (!r.at[0] || !r.at[1])
		rc = ptc_error_set(err, PTC_ENOMEM, "place: out of memory");
	for (size_t item = 0; item < nitems && !rc; item++) {
		r.natoms = 0;
		rc = carve_side(&r, (uint32_t)item, 0, err);
		if (!rc)
			rc = carve_side(&r, (uint32_t)item, 1, err);
		for (size_t i = 0; i < r.natoms && !rc; i++)
			r.sets[r.atoms[i].set].bytes += ptc_box_volume(&r.atoms[i].box);
	}
	if (!rc && collect(&r, &c))
		rc = ptc_error_set(err, PTC_ENOMEM, "place: out of memory");
	refiner_done(&r);
	if (rc)
		ptc_classes_done(&c);
	else
		*ret = c;
	return rc;
}

void ptc_classes_done(struct ptc_classes *c)
{
	ptc_free(c->bytes);
	ptc_free(c->to.first);
	ptc_free(c->to.list);
	ptc_free(c->from.first);
	ptc_free(c->from.list);
	*c = (struct ptc_classes){ 0 };
}
