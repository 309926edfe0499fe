/* SPDX-License-Identifier: Apache-2.0 */
/* Checking declarations, and the layout made of them. Happy path: classes are
 * checked one by one, then each tensor's distinct boxes are laid side by side
 * and must leave nothing out; a class becomes a cell whose regions lie one
 * after the other in the rank's dense buffer. Failure modes: see declared.h. */
#include "reshard/layout/declared.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/search.h"
#include "reshard/layout/internal.h"
#include "reshard/spec/lint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOX_TEXT 128

void ptc_declared_done(struct ptc_declared *d)
{
	if (!d)
		return;
	for (size_t i = 0; d->classes && i < d->nclasses; i++) {
		ptc_free(d->classes[i].parts);
		ptc_free(d->classes[i].v);
	}
	ptc_free(d->classes);
	ptc_free(d->ranks);
	ptc_spec_done(&d->spec);
	memset(d, 0, sizeof *d);
}

struct ptc_box ptc_declared_box(const struct ptc_declared *d, const struct ptc_declared_class *c,
				const struct ptc_declared_part *p, uint32_t k)
{
	uint32_t ndim = d->spec.tensors[p->tensor].ndim;
	struct ptc_box box = { .ndim = ndim };
	const int64_t *v = c->v + p->first + (size_t)k * 2 * ndim;

	for (uint32_t i = 0; i < ndim; i++) {
		box.off[i] = v[i];
		box.ext[i] = v[ndim + i];
	}
	return box;
}

/* "[0:4, 8:16]" as Python would write it. */
static const char *box_text(const struct ptc_box *b, char text[BOX_TEXT])
{
	size_t n = (size_t)snprintf(text, BOX_TEXT, "[");

	for (uint32_t i = 0; i < b->ndim && n < BOX_TEXT - 1; i++)
		n += (size_t)snprintf(text + n, BOX_TEXT - n, "%s%" PRId64 ":%" PRId64, i ? ", " : "", b->off[i],
				      b->off[i] + b->ext[i]);
	if (n < BOX_TEXT - 1)
		snprintf(text + n, BOX_TEXT - n, "]");
	return text;
}

/* ---- one class ---- */

struct checker {
	const struct ptc_declared *d;
	uint32_t *lowest; /* class -> lowest rank */
	struct ptc_error *err;
};

static const struct ptc_tensor *tensor_of(const struct checker *k, const struct ptc_declared_part *p)
{
	return &k->d->spec.tensors[p->tensor];
}

static int check_box(const struct checker *k, uint32_t rank, const struct ptc_declared_part *p,
		     const struct ptc_box *box)
{
	const struct ptc_tensor *t = tensor_of(k, p);
	struct ptc_box bytes;

	for (uint32_t i = 0; i < t->ndim; i++)
		if (box->off[i] < 0 || box->ext[i] <= 0 || box->off[i] > t->shape[i] ||
		    box->ext[i] > t->shape[i] - box->off[i])
			return ptc_error_set(
				k->err, PTC_ELAYOUT,
				"tensor \"%s\": rank %u declares %lld elements from %lld on of dim %u, which has %lld",
				t->name, rank, (long long)box->ext[i], (long long)box->off[i], i,
				(long long)t->shape[i]);
	if (ptc_dtype_bits(t->dtype) % 8 == 0)
		return 0;
	return ptc_item_byte_box(&k->d->spec, p->tensor, box, &bytes, k->err);
}

static int check_part(const struct checker *k, uint32_t rank, const struct ptc_declared_class *c,
		      const struct ptc_declared_part *p)
{
	const struct ptc_tensor *t = tensor_of(k, p);
	struct ptc_box a, b, common;
	char text[BOX_TEXT];

	if (p->nboxes > PTC_MAX_DECLARED_BOXES)
		return ptc_error_set(k->err, PTC_ELIMIT, "tensor \"%s\": rank %u declares %u boxes, at most %u",
				     t->name, rank, p->nboxes, PTC_MAX_DECLARED_BOXES);
	if (p->first > c->nv || (c->nv - p->first) / 2 / PTC_MAX(t->ndim, 1u) < (t->ndim ? p->nboxes : 0))
		return ptc_error_set(k->err, PTC_EINVAL, "tensor \"%s\": boxes of rank %u are missing", t->name, rank);
	if (!t->ndim && p->nboxes > 1)
		return ptc_error_set(k->err, PTC_ELAYOUT, "tensor \"%s\": rank %u declares a scalar %u times", t->name,
				     rank, p->nboxes);
	for (uint32_t i = 0; i < p->nboxes; i++) {
		int rc;

		a = ptc_declared_box(k->d, c, p, i);
		rc = check_box(k, rank, p, &a);
		if (rc)
			return rc;
	}
	for (uint32_t i = 0; i < p->nboxes; i++) {
		a = ptc_declared_box(k->d, c, p, i);
		for (uint32_t m = i + 1; m < p->nboxes; m++) {
			b = ptc_declared_box(k->d, c, p, m);
			if (m == i + 1 && ptc_box_order_off(&a, &b) > 0)
				return ptc_error_set(k->err, PTC_EINVAL,
						     "tensor \"%s\": boxes of rank %u are not in order", t->name, rank);
			if (b.off[0] >= a.off[0] + a.ext[0])
				break;
			if (ptc_box_intersect(&a, &b, &common))
				return ptc_error_set(k->err, PTC_ELAYOUT,
						     "tensor \"%s\": rank %u declares %s in two boxes", t->name, rank,
						     box_text(&common, text));
		}
	}
	return 0;
}

static int check_class(const struct checker *k, size_t class)
{
	const struct ptc_declared_class *c = &k->d->classes[class];

	for (size_t i = 0; i < c->nparts; i++) {
		int rc;

		if (c->parts[i].tensor >= k->d->spec.ntensors || (i && c->parts[i].tensor <= c->parts[i - 1].tensor))
			return ptc_error_set(k->err, PTC_EINVAL,
					     "class %zu: its tensors are out of order or out of range", class);
		rc = check_part(k, k->lowest[class], c, &c->parts[i]);
		if (rc)
			return rc;
	}
	return 0;
}

/* ---- nothing is left out ---- */

struct ref {
	uint32_t class, part;
};

PTC_COMPARE(box_compare, struct ptc_box, ptc_box_order(a, b))

static void keep_distinct(struct ptc_boxes *b)
{
	size_t n = 0;

	if (b->n)
		qsort(b->v, b->n, sizeof *b->v, box_compare);
	for (size_t i = 0; i < b->n; i++)
		if (!n || !ptc_box_equal(&b->v[n - 1], &b->v[i]))
			b->v[n++] = b->v[i];
	b->n = n;
}

/* Sorted and distinct: they add up, and none meets another. */
static bool tiles(const struct ptc_boxes *b, const struct ptc_box *whole)
{
	int64_t sum = 0;
	struct ptc_box common;

	for (size_t i = 0; i < b->n; i++)
		if (ptc_ckd_add(&sum, sum, ptc_box_volume(&b->v[i])))
			return false;
	if (sum != ptc_box_volume(whole))
		return false;
	for (size_t i = 0; i < b->n; i++)
		for (size_t k = i + 1; k < b->n && b->v[k].off[0] < b->v[i].off[0] + b->v[i].ext[0]; k++)
			if (ptc_box_intersect(&b->v[i], &b->v[k], &common))
				return false;
	return true;
}

static int check_tensor(const struct checker *k, uint32_t tensor, const struct ref *refs, size_t nrefs)
{
	const struct ptc_tensor *t = &k->d->spec.tensors[tensor];
	struct ptc_box whole = ptc_box_whole(t->ndim, t->shape);
	struct ptc_boxes have = { 0 }, left = { 0 };
	char text[BOX_TEXT];
	bool all = ptc_box_empty(&whole);
	int rc = 0;

	for (size_t i = 0; i < nrefs && !all && !rc; i++) {
		const struct ptc_declared_class *c = &k->d->classes[refs[i].class];
		const struct ptc_declared_part *p = &c->parts[refs[i].part];

		for (uint32_t m = 0; m < p->nboxes && !all && !rc; m++) {
			struct ptc_box box = ptc_declared_box(k->d, c, p, m);

			all = ptc_box_equal(&box, &whole);
			rc = ptc_boxes_push(&have, &box);
		}
	}
	if (!rc && !all) {
		keep_distinct(&have);
		all = tiles(&have, &whole);
		rc = all ? 0 : ptc_boxes_missing(&whole, have.v, have.n, &left);
	}
	if (rc)
		rc = ptc_nomem(k->err);
	else if (!all && left.n)
		rc = ptc_error_set(k->err, PTC_ELAYOUT, "tensor \"%s\": no rank holds %s of it%s", t->name,
				   box_text(&left.v[0], text), left.n > 1 ? ", and more is missing" : "");
	ptc_boxes_done(&have);
	ptc_boxes_done(&left);
	return rc;
}

/* Parts by tensor: refs[first[t] .. first[t + 1]). */
static int index_parts(const struct ptc_declared *d, struct ref **ret_refs, size_t **ret_first)
{
	size_t *first = ptc_calloc(d->spec.ntensors + 2, sizeof *first), *next = first + 1;
	struct ref *refs;

	if (!first)
		return PTC_ENOMEM;
	for (size_t c = 0; c < d->nclasses; c++)
		for (size_t i = 0; i < d->classes[c].nparts; i++)
			next[d->classes[c].parts[i].tensor + 1]++;
	for (size_t t = 0; t < d->spec.ntensors; t++)
		next[t + 1] += next[t];
	refs = ptc_calloc(next[d->spec.ntensors], sizeof *refs);
	if (!refs) {
		ptc_free(first);
		return PTC_ENOMEM;
	}
	for (size_t c = 0; c < d->nclasses; c++)
		for (size_t i = 0; i < d->classes[c].nparts; i++)
			refs[next[d->classes[c].parts[i].tensor]++] = (struct ref){ (uint32_t)c, (uint32_t)i };
	*ret_refs = refs;
	*ret_first = first;
	return 0;
}

static int check_cover(const struct checker *k)
{
	struct ref *refs = NULL;
	size_t *first = NULL;
	int rc = index_parts(k->d, &refs, &first) ? ptc_nomem(k->err) : 0;

	if (rc)
		return rc;
	for (size_t t = 0; t < k->d->spec.ntensors && !rc; t++)
		rc = check_tensor(k, (uint32_t)t, refs + first[t], first[t + 1] - first[t]);
	ptc_free(refs);
	ptc_free(first);
	return rc;
}

/* ---- the whole ---- */

/* Classes are numbered by their lowest rank; fills lowest. */
static int check_ranks(const struct checker *k)
{
	const struct ptc_declared *d = k->d;
	size_t seen = 0;

	for (uint32_t r = 0; r < d->world; r++) {
		if (d->ranks[r] > seen || d->ranks[r] >= d->nclasses)
			return ptc_error_set(k->err, PTC_EINVAL,
					     "rank %u: class %u is out of order or not one of %zu classes", r,
					     d->ranks[r], d->nclasses);
		if (d->ranks[r] == seen)
			k->lowest[seen++] = r;
	}
	if (seen != d->nclasses)
		return ptc_error_set(k->err, PTC_EINVAL, "%zu of %zu classes belong to no rank", d->nclasses - seen,
				     d->nclasses);
	return 0;
}

static int check_size(const struct ptc_declared *d, struct ptc_error *err)
{
	size_t total = 0;

	if (d->spec.nfields || d->spec.nrules)
		return ptc_error_set(err, PTC_EINVAL, "declared tensors have no fields and no rules");
	for (size_t c = 0; c < d->nclasses; c++)
		for (size_t i = 0; i < d->classes[c].nparts; i++) {
			total += PTC_MAX(d->classes[c].parts[i].nboxes, 1u);
			if (total > PTC_MAX_REGIONS)
				return ptc_error_set(err, PTC_ELIMIT, "more than %u declared regions in all",
						     PTC_MAX_REGIONS);
		}
	return 0;
}

int ptc_declared_check(const struct ptc_declared *d, struct ptc_error *err)
{
	struct checker k = { .d = d, .err = err };
	uint32_t world;
	int rc = ptc_config_world(&d->config, &world, err);

	if (!rc && (world != d->world || world > PTC_MAX_RANKS))
		rc = ptc_error_set(err, PTC_EINVAL, "the declarations are of %u ranks, but the configuration has %u",
				   d->world, world);
	if (!rc)
		rc = check_size(d, err);
	if (!rc)
		rc = ptc_spec_check(&d->spec, err);
	if (rc)
		return rc;
	k.lowest = ptc_calloc(d->nclasses ? d->nclasses : 1, sizeof *k.lowest);
	rc = k.lowest ? check_ranks(&k) : ptc_nomem(err);
	for (size_t c = 0; c < d->nclasses && !rc; c++)
		rc = check_class(&k, c);
	if (!rc)
		rc = check_cover(&k);
	ptc_free(k.lowest);
	return rc;
}

/* ---- the layout ---- */

static void put_region(const struct ptc_declared *d, const struct ptc_declared_class *c,
		       const struct ptc_declared_part *p, uint32_t k, int64_t *at, struct ptc_region *ret)
{
	int64_t stride = 1;

	*ret = (struct ptc_region){ .item = p->tensor, .box = ptc_declared_box(d, c, p, k), .buf_off = *at };
	for (uint32_t i = ret->box.ndim; i-- > 0;) {
		ret->buf_stride[i] = stride;
		stride *= ret->box.ext[i];
	}
	*at += stride;
}

static int fill_cell(struct ptc_layout *l, const struct ptc_declared *d, uint32_t cell)
{
	const struct ptc_declared_class *c = &d->classes[cell];
	struct ptc_layout_empty *empty = &l->empty[cell];
	struct ptc_rank_layout *to = &l->cells[cell];
	size_t regions = 0, none = 0;

	for (size_t i = 0; i < c->nparts; i++) {
		regions += c->parts[i].nboxes;
		none += !c->parts[i].nboxes;
	}
	to->regions = ptc_calloc(regions ? regions : 1, sizeof *to->regions);
	empty->items = ptc_calloc(none ? none : 1, sizeof *empty->items);
	if (!to->regions || !empty->items)
		return PTC_ENOMEM;
	for (size_t i = 0; i < c->nparts; i++) {
		const struct ptc_declared_part *p = &c->parts[i];
		int64_t at = 0;

		if (!p->nboxes)
			empty->items[empty->n++] = p->tensor;
		for (uint32_t k = 0; k < p->nboxes; k++)
			put_region(d, c, p, k, &at, &to->regions[to->nregions++]);
	}
	return 0;
}

static int fill_layout(struct ptc_layout *l, const struct ptc_declared *d)
{
	l->spec = &d->spec;
	l->config = d->config;
	l->world = d->world;
	l->nitems = ptc_spec_items(&d->spec);
	l->cells = ptc_calloc(d->nclasses ? d->nclasses : 1, sizeof *l->cells);
	l->empty = ptc_calloc(d->nclasses ? d->nclasses : 1, sizeof *l->empty);
	l->rank_cells = ptc_calloc(d->world, sizeof *l->rank_cells);
	if (!l->cells || !l->empty || !l->rank_cells)
		return PTC_ENOMEM;
	l->ncells = (uint32_t)d->nclasses;
	memcpy(l->rank_cells, d->ranks, d->world * sizeof *l->rank_cells);
	for (uint32_t c = 0; c < l->ncells; c++)
		if (fill_cell(l, d, c))
			return PTC_ENOMEM;
	return 0;
}

int ptc_layout_declared_new(const struct ptc_declared *d, struct ptc_layout **ret_layout, struct ptc_error *err)
{
	struct ptc_layout *l = ptc_calloc(1, sizeof *l);
	int rc;

	if (!l || fill_layout(l, d)) {
		ptc_layout_free(l);
		return ptc_nomem(err);
	}
	rc = ptc_layout_finalize(l, err);
	if (rc)
		ptc_layout_free(l);
	else
		*ret_layout = l;
	return rc;
}

/* ---- the same state ---- */

int ptc_declared_same(const struct ptc_spec *before, const struct ptc_spec *now, const char *what,
		      struct ptc_error *err)
{
	const struct ptc_tensor *gone = NULL, *new = NULL;
	size_t ngone = 0, nnew = 0, i = 0, k = 0;

	while (i < before->ntensors || k < now->ntensors) {
		const struct ptc_tensor *a = &before->tensors[i], *b = &now->tensors[k];
		char was[160], is[160];
		int c;

		if (i == before->ntensors || k == now->ntensors)
			c = i == before->ntensors ? 1 : -1;
		else
			c = strcmp(a->name, b->name);
		if (!c && !ptc_tensor_same(a, b))
			return ptc_error_set(err, PTC_ELAYOUT,
					     "tensor \"%s\" is %s in the snapshot, and %s declares %s", a->name,
					     ptc_tensor_text(a, was, sizeof was), what,
					     ptc_tensor_text(b, is, sizeof is));
		if (c < 0 && !ngone++)
			gone = a;
		if (c > 0 && !nnew++)
			new = b;
		i += c <= 0;
		k += c >= 0;
	}
	if (!gone && !new)
		return 0;
	if (gone && new)
		return ptc_error_set(err, PTC_ELAYOUT,
				     "%s declares other tensors than the snapshot has: %zu missing (\"%.300s\"), %zu "
				     "new (\"%.300s\"); names must not depend on the configuration",
				     what, ngone, gone->name, nnew, new->name);
	return ptc_error_set(err, PTC_ELAYOUT, "%s %s %zu tensors %s, the first is \"%s\"", what,
			     gone ? "does not declare" : "declares", gone ? ngone : nnew,
			     gone ? "that the snapshot has" : "that the snapshot does not have",
			     gone ? gone->name : new->name);
}

static const struct ptc_declared_part *part_of(const struct ptc_declared_class *c, uint32_t tensor)
{
	size_t low = 0, high = c->nparts;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (c->parts[mid].tensor < tensor)
			low = mid + 1;
		else
			high = mid;
	}
	return low < c->nparts && c->parts[low].tensor == tensor ? &c->parts[low] : NULL;
}

static bool same_part(const struct ptc_declared *a, const struct ptc_declared_class *ca,
		      const struct ptc_declared_class *cb, uint32_t tensor)
{
	const struct ptc_declared_part *p = part_of(ca, tensor), *q = part_of(cb, tensor);
	size_t n = p ? 2 * (size_t)a->spec.tensors[tensor].ndim * p->nboxes : 0;

	if (!p || !q)
		return !p && !q;
	return p->nboxes == q->nboxes && (!n || !memcmp(ca->v + p->first, cb->v + q->first, n * sizeof *ca->v));
}

/* The first tensor below `most` of which the classes have other boxes; `most`: there is none. */
static uint32_t first_other(const struct ptc_declared *was, const struct ptc_declared_class *a,
			    const struct ptc_declared_class *b, uint32_t most)
{
	uint32_t t = 0;

	while (t < most && same_part(was, a, b, t))
		t++;
	return t;
}

bool ptc_declared_differ(const struct ptc_declared *was, const struct ptc_declared *now, char *text, size_t size)
{
	const uint32_t all = (uint32_t)was->spec.ntensors;
	ptc_auto_free uint32_t *pair = ptc_calloc(was->nclasses + 1, sizeof *pair); /* NULL: every rank is compared */
	struct ptc_error err = PTC_ERROR_INIT;
	uint32_t other = all, rank = 0;

	*text = '\0';
	if (ptc_declared_same(&was->spec, &now->spec, "the other", &err) != 0 || was->world != now->world) {
		snprintf(text, size, "%s", err.code ? err.text : "another number of ranks");
		return true;
	}
	for (uint32_t r = 0; r < was->world; r++) {
		uint32_t a = was->ranks[r], b = now->ranks[r], t;

		if (pair && pair[a] == b + 1)
			continue;
		if (pair)
			pair[a] = b + 1;
		t = first_other(was, &was->classes[a], &now->classes[b], other);
		rank = t < other ? r : rank;
		other = t;
	}
	if (other < all)
		snprintf(text, size, "rank %u holds other parts of tensor \"%.300s\"", rank,
			 was->spec.tensors[other].name);
	return other < all;
}
