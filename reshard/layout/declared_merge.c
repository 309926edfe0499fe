/* SPDX-License-Identifier: Apache-2.0 */
/* Merging what ranks declare. Happy path: names become numbers in order of arrival. A rank's parts become a class that
 * is looked up by its content, so a rank that equals another one costs nothing. finish puts names in order, numbers
 * classes by their lowest rank and checks the whole. Failure modes: see declared.h. */
#include "reshard/layout/declared.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/number/search.h"
#include "reshard/layout/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_RANK UINT32_MAX

struct entry {
	struct ptc_tensor t; /* name is ours */
	uint32_t rank;       /* that declared it first */
	uint32_t holder;     /* a rank that holds part of it, or NO_RANK ... */
	uint32_t other;      /* ... and one of another pipeline stage */
	uint32_t untied;     /* a holder that did not say tied */
};

/* Content of a class as it was given, for lookup. */
struct known {
	struct ptc_declared_class c;
	uint64_t hash;
};

/* Open addressing; slots hold a number + 1. */
struct table {
	uint32_t *slots;
	size_t size, used;
};

struct ptc_declared_merge {
	struct ptc_config config;
	uint32_t world;
	uint32_t *ranks; /* rank -> class in order of arrival + 1; 0: not yet */
	struct entry *entries;
	size_t nentries, entries_cap;
	struct known *classes;
	size_t nclasses, classes_cap;
	struct table names, contents;
	/* of the rank being added */
	struct ptc_declared_part *parts;
	size_t parts_cap;
	int64_t *v;
	size_t nv, v_cap;
	struct ptc_boxes boxes;
};

int ptc_declared_merge_new(const struct ptc_config *config, struct ptc_declared_merge **ret_merge,
			   struct ptc_error *err)
{
	struct ptc_declared_merge *m;
	uint32_t world;
	int rc = ptc_config_world(config, &world, err);

	if (rc)
		return rc;
	m = ptc_calloc(1, sizeof *m);
	if (!m)
		return ptc_nomem(err);
	m->config = *config;
	m->world = world;
	m->ranks = ptc_calloc(world, sizeof *m->ranks);
	if (!m->ranks || !PTC_ROOM(m->v, 64, m->v_cap)) {
		ptc_declared_merge_free(m);
		return ptc_nomem(err);
	}
	*ret_merge = m;
	return 0;
}

struct ptc_declared_merge *ptc_declared_merge_free(struct ptc_declared_merge *m)
{
	if (!m)
		return NULL;
	for (size_t i = 0; i < m->nentries; i++)
		ptc_free((void *)(uintptr_t)m->entries[i].t.name);
	for (size_t i = 0; i < m->nclasses; i++) {
		ptc_free(m->classes[i].c.parts);
		ptc_free(m->classes[i].c.v);
	}
	ptc_free(m->entries);
	ptc_free(m->classes);
	ptc_free(m->ranks);
	ptc_free(m->names.slots);
	ptc_free(m->contents.slots);
	ptc_free(m->parts);
	ptc_free(m->v);
	ptc_boxes_done(&m->boxes);
	ptc_free(m);
	return NULL;
}

/* ---- tables ---- */

static uint64_t entry_hash(const struct ptc_declared_merge *m, size_t i)
{
	return ptc_checksum(m->entries[i].t.name, strlen(m->entries[i].t.name));
}

static uint64_t class_hash(const struct ptc_declared_merge *m, size_t i)
{
	return m->classes[i].hash;
}

static void table_put(struct table *t, uint64_t hash, size_t number)
{
	size_t at = hash & (t->size - 1);

	while (t->slots[at])
		at = (at + 1) & (t->size - 1);
	t->slots[at] = (uint32_t)number + 1;
	t->used++;
}

/* Room for one more. */
static int table_grow(struct ptc_declared_merge *m, struct table *t,
		      uint64_t (*hash)(const struct ptc_declared_merge *, size_t))
{
	size_t size = t->size ? 2 * t->size : 256, used = t->used;
	struct table new = { .size = size };

	if (t->used + 1 <= t->size / 2)
		return 0;
	new.slots = ptc_calloc(size, sizeof *new.slots);
	if (!new.slots)
		return PTC_ENOMEM;
	for (size_t i = 0; i < used; i++)
		table_put(&new, hash(m, i), i);
	ptc_free(t->slots);
	*t = new;
	return 0;
}

/* ---- one tensor of a rank ---- */

static int add_entry(struct ptc_declared_merge *m, uint32_t rank, const struct ptc_declared_tensor *t,
		     uint32_t *ret_entry, struct ptc_error *err)
{
	struct entry e = { .t = { .dtype = t->dtype, .ndim = t->ndim },
			   .rank = rank,
			   .holder = NO_RANK,
			   .other = NO_RANK,
			   .untied = NO_RANK };

	if (m->nentries >= PTC_MAX_TENSORS)
		return ptc_error_set(err, PTC_ELIMIT, "more than %u tensors are declared", PTC_MAX_TENSORS);
	if (table_grow(m, &m->names, entry_hash) || !PTC_ROOM(m->entries, m->nentries + 1, m->entries_cap) ||
	    !(e.t.name = ptc_strdup(t->name)))
		return ptc_nomem(err);
	for (uint32_t i = 0; i < t->ndim; i++)
		e.t.shape[i] = t->shape[i];
	m->entries[m->nentries] = e;
	table_put(&m->names, entry_hash(m, m->nentries), m->nentries);
	*ret_entry = (uint32_t)m->nentries++;
	return 0;
}

static int compare_entry(const struct entry *e, uint32_t rank, const struct ptc_declared_tensor *t,
			 struct ptc_error *err)
{
	bool same = e->t.ndim == t->ndim;

	if (e->t.dtype != t->dtype)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rank %u declares it as %s, rank %u as %s",
				     e->t.name, e->rank, ptc_dtype_name(e->t.dtype), rank, ptc_dtype_name(t->dtype));
	if (!same)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rank %u declares %u dims, rank %u declares %u",
				     e->t.name, e->rank, e->t.ndim, rank, t->ndim);
	for (uint32_t i = 0; i < t->ndim; i++)
		if (e->t.shape[i] != t->shape[i])
			return ptc_error_set(err, PTC_ELAYOUT,
					     "tensor \"%s\": rank %u declares dim %u as %lld, rank %u as %lld; the "
					     "shape is that of the whole tensor",
					     e->t.name, e->rank, i, (long long)e->t.shape[i], rank,
					     (long long)t->shape[i]);
	return 0;
}

static int find_entry(struct ptc_declared_merge *m, uint32_t rank, const struct ptc_declared_tensor *t,
		      uint32_t *ret_entry, struct ptc_error *err)
{
	size_t len = strnlen(t->name, PTC_TENSOR_NAME_MAX + 1);

	if (!len || len > PTC_TENSOR_NAME_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "rank %u: a tensor name is empty or longer than %d bytes", rank,
				     PTC_TENSOR_NAME_MAX);
	if (t->ndim > PTC_MAX_DIMS || t->nboxes > PTC_MAX_DECLARED_BOXES)
		return ptc_error_set(err, PTC_ELIMIT,
				     "tensor \"%s\": rank %u declares %u dims in %zu boxes, at most %d and %d", t->name,
				     rank, t->ndim, t->nboxes, PTC_MAX_DIMS, PTC_MAX_DECLARED_BOXES);
	for (size_t at = ptc_checksum(t->name, len); m->names.size; at++) {
		uint32_t slot = m->names.slots[at & (m->names.size - 1)];

		if (!slot)
			break;
		if (strcmp(m->entries[slot - 1].t.name, t->name))
			continue;
		*ret_entry = slot - 1;
		return compare_entry(&m->entries[slot - 1], rank, t, err);
	}
	return add_entry(m, rank, t, ret_entry, err);
}

/* Who holds it, as far as the question of pipeline stages goes. */
static void note_holder(const struct ptc_declared_merge *m, struct entry *e, uint32_t rank, bool tied)
{
	if (!tied && e->untied == NO_RANK)
		e->untied = rank;
	if (e->holder == NO_RANK)
		e->holder = rank;
	else if (e->other == NO_RANK &&
		 ptc_config_coords(&m->config, e->holder).pp != ptc_config_coords(&m->config, rank).pp)
		e->other = rank;
}

PTC_COMPARE(box_compare, struct ptc_box, ptc_box_order(a, b))

/* Appends the boxes of t, in order and without empty ones, to m->v. */
static int add_boxes(struct ptc_declared_merge *m, const struct ptc_declared_tensor *t, struct ptc_declared_part *p)
{
	struct ptc_box box = { .ndim = t->ndim };
	size_t numbers = 2 * (size_t)t->ndim * t->nboxes;

	p->first = m->nv;
	m->boxes.n = 0;
	for (size_t k = 0; k < t->nboxes; k++) {
		bool nothing = false;

		for (uint32_t i = 0; i < t->ndim; i++) {
			box.off[i] = t->off[k * t->ndim + i];
			box.ext[i] = t->ext[k * t->ndim + i];
			nothing |= !box.ext[i]; /* what is negative stays, to be refused */
		}
		if (!nothing && ptc_boxes_push(&m->boxes, &box))
			return PTC_ENOMEM;
	}
	if (m->boxes.n > 1)
		qsort(m->boxes.v, m->boxes.n, sizeof *m->boxes.v, box_compare);
	if (!PTC_ROOM(m->v, m->nv + numbers, m->v_cap))
		return PTC_ENOMEM;
	for (size_t k = 0; k < m->boxes.n; k++) {
		memcpy(m->v + m->nv, m->boxes.v[k].off, t->ndim * sizeof *m->v);
		memcpy(m->v + m->nv + t->ndim, m->boxes.v[k].ext, t->ndim * sizeof *m->v);
		m->nv += 2 * (size_t)t->ndim;
	}
	p->nboxes = (uint32_t)m->boxes.n;
	return 0;
}

static int add_tensor(struct ptc_declared_merge *m, uint32_t rank, const struct ptc_declared_tensor *t,
		      struct ptc_declared_part *p, struct ptc_error *err)
{
	int rc = find_entry(m, rank, t, &p->tensor, err);

	if (rc)
		return rc;
	if (add_boxes(m, t, p))
		return ptc_nomem(err);
	if (p->nboxes)
		note_holder(m, &m->entries[p->tensor], rank, t->tied);
	return 0;
}

/* ---- one rank ---- */

PTC_BY(part_compare, struct ptc_declared_part, tensor)

/* Puts m->parts and what they point at into one order that depends on their content only. */
static int make_class(struct ptc_declared_merge *m, size_t nparts, struct known *ret)
{
	struct ptc_declared_class c = { .nparts = nparts };

	c.parts = ptc_calloc(nparts ? nparts : 1, sizeof *c.parts);
	c.v = ptc_calloc(m->nv ? m->nv : 1, sizeof *c.v);
	if (!c.parts || !c.v) {
		ptc_free(c.parts);
		ptc_free(c.v);
		return PTC_ENOMEM;
	}
	for (size_t i = 0; i < nparts; i++) {
		const struct ptc_declared_part *p = &m->parts[i];
		size_t n = 2 * (size_t)m->entries[p->tensor].t.ndim * p->nboxes;

		c.parts[i] = (struct ptc_declared_part){ p->tensor, p->nboxes, c.nv };
		memcpy(c.v + c.nv, m->v + p->first, n * sizeof *c.v);
		c.nv += n;
	}
	ret->c = c;
	ret->hash = ptc_checksum(c.parts, nparts * sizeof *c.parts) ^
		    ptc_checksum(c.v, c.nv * sizeof *c.v) * UINT64_C(0x9E3779B97F4A7C15);
	return 0;
}

static bool class_equal(const struct ptc_declared_class *a, const struct ptc_declared_class *b)
{
	return a->nparts == b->nparts && a->nv == b->nv && !memcmp(a->parts, b->parts, a->nparts * sizeof *a->parts) &&
	       !memcmp(a->v, b->v, a->nv * sizeof *a->v);
}

/* Takes k over. */
static int find_class(struct ptc_declared_merge *m, struct known *k, uint32_t *ret_class)
{
	bool room = !table_grow(m, &m->contents, class_hash) && PTC_ROOM(m->classes, m->nclasses + 1, m->classes_cap);

	for (size_t at = k->hash; room; at++) {
		uint32_t slot = m->contents.slots[at & (m->contents.size - 1)];

		if (!slot) {
			table_put(&m->contents, k->hash, m->nclasses);
			m->classes[m->nclasses] = *k;
			*ret_class = (uint32_t)m->nclasses++;
			return 0;
		}
		if (!class_equal(&m->classes[slot - 1].c, &k->c))
			continue;
		*ret_class = slot - 1;
		break;
	}
	ptc_free(k->c.parts);
	ptc_free(k->c.v);
	return room ? 0 : PTC_ENOMEM;
}

int ptc_declared_merge_add(struct ptc_declared_merge *m, uint32_t rank, const struct ptc_declared_tensor *tensors,
			   size_t ntensors, struct ptc_error *err)
{
	struct known k;
	uint32_t class;
	int rc = 0;

	if (rank >= m->world)
		return ptc_error_set(err, PTC_EINVAL, "rank %u declares tensors, but the configuration has %u ranks",
				     rank, m->world);
	if (ntensors > PTC_MAX_TENSORS)
		return ptc_error_set(err, PTC_ELIMIT, "rank %u declares %zu tensors, at most %u", rank, ntensors,
				     PTC_MAX_TENSORS);
	if (!PTC_ROOM(m->parts, ntensors, m->parts_cap))
		return ptc_nomem(err);
	m->nv = 0;
	for (size_t i = 0; i < ntensors && !rc; i++) {
		m->parts[i] = (struct ptc_declared_part){ 0 };
		rc = add_tensor(m, rank, &tensors[i], &m->parts[i], err);
	}
	if (rc)
		return rc;
	if (ntensors > 1)
		qsort(m->parts, ntensors, sizeof *m->parts, part_compare);
	for (size_t i = 1; i < ntensors; i++)
		if (m->parts[i].tensor == m->parts[i - 1].tensor)
			return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rank %u declares it twice",
					     m->entries[m->parts[i].tensor].t.name, rank);
	if (make_class(m, ntensors, &k) || find_class(m, &k, &class))
		return ptc_nomem(err);
	if (m->ranks[rank] && m->ranks[rank] != class + 1)
		return ptc_error_set(err, PTC_EINVAL, "rank %u has declared twice, and differently", rank);
	m->ranks[rank] = class + 1;
	return 0;
}

bool ptc_declared_merge_alike(const struct ptc_declared_merge *m, uint32_t a, uint32_t b)
{
	return a < m->world && b < m->world && m->ranks[a] && m->ranks[a] == m->ranks[b];
}

int ptc_declared_merge_like(struct ptc_declared_merge *m, uint32_t rank, uint32_t like, struct ptc_error *err)
{
	if (rank >= m->world || like >= m->world || !m->ranks[like])
		return ptc_error_set(err, PTC_EINVAL, "rank %u cannot be like rank %u, which has declared nothing",
				     rank, like);
	if (ptc_config_coords(&m->config, rank).pp != ptc_config_coords(&m->config, like).pp)
		return ptc_error_set(err, PTC_EINVAL, "rank %u is on another pipeline stage than rank %u", rank, like);
	if (m->ranks[rank] && m->ranks[rank] != m->ranks[like])
		return ptc_error_set(err, PTC_EINVAL, "rank %u has declared already, and differently", rank);
	m->ranks[rank] = m->ranks[like]; /* what its stage holds, and what is tied, is known */
	return 0;
}

/* ---- the whole ---- */

static int check_stages(const struct ptc_declared_merge *m, struct ptc_error *err)
{
	for (size_t i = 0; i < m->nentries; i++) {
		const struct entry *e = &m->entries[i];

		if (e->other == NO_RANK || e->untied == NO_RANK)
			continue;
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\" is on pipeline stages %u (rank %u) and %u (rank %u), and rank %u "
				     "does not declare it tied: number layers globally, or declare it tied",
				     e->t.name, ptc_config_coords(&m->config, e->holder).pp, e->holder,
				     ptc_config_coords(&m->config, e->other).pp, e->other, e->untied);
	}
	for (uint32_t r = 0; r < m->world; r++)
		if (!m->ranks[r])
			return ptc_error_set(err, PTC_ESTATE, "rank %u of %u has declared nothing", r, m->world);
	return 0;
}

struct order {
	const char *name;
	uint32_t entry;
};

PTC_BY_NAME(order_compare, struct order, name)

/* Moves the tensors into the spec, in name order; ret_number: entry -> tensor. */
static int move_tensors(struct ptc_declared_merge *m, struct ptc_declared *d, uint32_t *ret_number)
{
	struct order *order = ptc_calloc(m->nentries ? m->nentries : 1, sizeof *order);

	d->spec.tensors = ptc_calloc(m->nentries ? m->nentries : 1, sizeof *d->spec.tensors);
	if (!order || !d->spec.tensors) {
		ptc_free(order);
		return PTC_ENOMEM;
	}
	for (size_t i = 0; i < m->nentries; i++)
		order[i] = (struct order){ m->entries[i].t.name, (uint32_t)i };
	if (m->nentries > 1)
		qsort(order, m->nentries, sizeof *order, order_compare);
	for (size_t i = 0; i < m->nentries; i++) {
		struct entry *e = &m->entries[order[i].entry];

		d->spec.tensors[i] = e->t;
		e->t.name = NULL;
		ret_number[order[i].entry] = (uint32_t)i;
	}
	d->spec.ntensors = m->nentries;
	m->nentries = 0;
	ptc_free(order);
	return 0;
}

/* Moves the classes, numbered by their lowest rank. */
static int move_classes(struct ptc_declared_merge *m, struct ptc_declared *d, const uint32_t *number)
{
	uint32_t *at = ptc_calloc(m->nclasses ? m->nclasses : 1, sizeof *at); /* new number + 1 */

	d->classes = ptc_calloc(m->nclasses ? m->nclasses : 1, sizeof *d->classes);
	d->ranks = ptc_calloc(m->world, sizeof *d->ranks);
	if (!at || !d->classes || !d->ranks) {
		ptc_free(at);
		return PTC_ENOMEM;
	}
	for (uint32_t r = 0; r < m->world; r++) {
		uint32_t from = m->ranks[r] - 1;
		struct ptc_declared_class *c;

		if (!at[from]) {
			c = &d->classes[d->nclasses];
			*c = m->classes[from].c;
			m->classes[from].c = (struct ptc_declared_class){ 0 };
			for (size_t i = 0; i < c->nparts; i++)
				c->parts[i].tensor = number[c->parts[i].tensor];
			if (c->nparts > 1)
				qsort(c->parts, c->nparts, sizeof *c->parts, part_compare);
			at[from] = (uint32_t)++d->nclasses;
		}
		d->ranks[r] = at[from] - 1;
	}
	ptc_free(at);
	return 0;
}

int ptc_declared_merge_finish(struct ptc_declared_merge *m, struct ptc_declared *ret_declared, struct ptc_error *err)
{
	struct ptc_declared d = { .config = m->config, .world = m->world };
	uint32_t *number;
	int rc = check_stages(m, err);

	if (rc)
		return rc;
	number = ptc_calloc(m->nentries ? m->nentries : 1, sizeof *number);
	if (!number || move_tensors(m, &d, number) || move_classes(m, &d, number))
		rc = ptc_nomem(err);
	ptc_free(number);
	if (!rc)
		rc = ptc_declared_check(&d, err);
	if (rc) {
		ptc_declared_done(&d);
		return rc;
	}
	*ret_declared = d;
	return 0;
}
