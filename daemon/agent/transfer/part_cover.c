/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which nodes give which part of a box. Happy path: the replicas that overlap the box are listed, primaries
 * first. The box is cut in two, so that about half of the replicas lie on either side. Each half is a piece with a
 * list of its replicas, and is cut again. A piece is done once the first replica in its list has all of it. If few
 * replicas are left, they are subtracted from the piece one after the other. Cuts lie where replicas begin, so whole
 * replicas stay whole. If no cut divides the list (no layout makes such replicas), all are subtracted in turn, which
 * is right but quadratic. Failure modes: memory. */
#include "daemon/agent/transfer/transfer.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>

#define FEW    8  /* as many are subtracted one after the other */
#define SAMPLE 63 /* of a list, to find its middle */

int ptc_parts_push(struct ptc_parts *p, uint32_t node, uint32_t item, size_t to, const struct ptc_box *box,
		   struct ptc_error *err)
{
	if (!PTC_ROOM(p->v, p->n + 1, p->cap))
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu parts of a transfer", p->n + 1);
	p->v[p->n++] = (struct ptc_part){ node, item, to, *box };
	return 0;
}

void ptc_parts_done(struct ptc_parts *p)
{
	ptc_free(p->v);
	*p = (struct ptc_parts){ 0 };
}

struct cover {
	const struct ptc_part *want;
	const struct ptc_replica *replicas;
	struct ptc_parts *out;
	bool all; /* nothing is uncovered so far */
};

static int give(struct cover *c, const struct ptc_replica *replica, const struct ptc_box *box)
{
	return ptc_parts_push(c->out, replica->node, c->want->item, c->want->to, box, NULL);
}

static int64_t end_of(const struct ptc_box *b, uint32_t d)
{
	return b->off[d] + b->ext[d];
}

static bool overlaps(const struct ptc_box *a, const struct ptc_box *b)
{
	for (uint32_t d = 0; d < a->ndim && a->ndim == b->ndim; d++)
		if (a->off[d] >= end_of(b, d) || b->off[d] >= end_of(a, d))
			return false;
	return a->ndim == b->ndim && !ptc_box_empty(a) && !ptc_box_empty(b);
}

/* ---- a few ---- */

/* Takes from rest what replica has. */
static int take(struct cover *c, const struct ptc_replica *replica, struct ptc_boxes *rest)
{
	struct ptc_boxes next = { 0 };
	struct ptc_box cut;
	int rc = 0;

	for (size_t i = 0; !rc && i < rest->n; i++) {
		if (!ptc_box_intersect(&rest->v[i], &replica->box, &cut)) {
			rc = ptc_boxes_push(&next, &rest->v[i]);
			continue;
		}
		rc = give(c, replica, &cut);
		if (rc == 0)
			rc = ptc_box_subtract(&rest->v[i], &cut, &next);
	}
	ptc_boxes_done(rest);
	*rest = next;
	return rc;
}

static int in_turn(struct cover *c, const struct ptc_box *box, const uint32_t *v, size_t n)
{
	struct ptc_boxes rest = { 0 };
	int rc = ptc_boxes_push(&rest, box);

	for (size_t i = 0; !rc && rest.n && i < n; i++)
		rc = take(c, &c->replicas[v[i]], &rest);
	c->all = c->all && !rest.n;
	ptc_boxes_done(&rest);
	return rc;
}

/* ---- many ---- */

PTC_BY_VALUE(by_value, int64_t)

/* Where about half of the replicas begin that begin within box along d; *ret_at is then inside the box. */
static bool middle(const struct cover *c, const struct ptc_box *box, const uint32_t *v, size_t n, uint32_t d,
		   int64_t *ret_at)
{
	const size_t step = n / SAMPLE + 1;
	int64_t sample[SAMPLE];
	size_t k = 0;

	for (size_t i = 0; i < n; i += step) {
		const int64_t off = c->replicas[v[i]].box.off[d];

		if (off > box->off[d]) /* and before its end, as they overlap */
			sample[k++] = off;
	}
	if (!k)
		return false;
	qsort(sample, k, sizeof *sample, by_value);
	*ret_at = sample[k / 2];
	return true;
}

/* The dim and place that leave the longer one of both lists shortest; false: none leaves it a quarter shorter. */
static bool choose(const struct cover *c, const struct ptc_box *box, const uint32_t *v, size_t n, uint32_t *ret_dim,
		   int64_t *ret_at)
{
	size_t best = n - n / 4;
	int64_t at;

	for (uint32_t d = 0; d < box->ndim; d++) {
		size_t before = 0, behind = 0;

		if (!middle(c, box, v, n, d, &at))
			continue;
		for (size_t i = 0; i < n; i++) {
			before += c->replicas[v[i]].box.off[d] < at;
			behind += end_of(&c->replicas[v[i]].box, d) > at;
		}
		if (PTC_MAX(before, behind) >= best)
			continue;
		best = PTC_MAX(before, behind);
		*ret_dim = d;
		*ret_at = at;
	}
	return best < n - n / 4;
}

/* Those of v that overlap box, in the same order. */
static size_t overlapping(const struct cover *c, const struct ptc_box *box, const uint32_t *v, size_t n, uint32_t *ret)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++)
		if (overlaps(&c->replicas[v[i]].box, box))
			ret[k++] = v[i];
	return k;
}

/* v: the replicas that overlap box, those that count first in front. Each level has a list that is a quarter shorter.
 */
static int cover(struct cover *c, const struct ptc_box *box, const uint32_t *v, size_t n)
{
	struct ptc_box half[2] = { *box, *box };
	uint32_t *list, d = 0;
	int64_t at = 0;
	int rc = 0;

	if (n && ptc_box_contains(&c->replicas[v[0]].box, box))
		return give(c, &c->replicas[v[0]], box);
	if (n <= FEW || !choose(c, box, v, n, &d, &at))
		return in_turn(c, box, v, n);
	list = ptc_reallocarray(NULL, n, sizeof *list);
	if (!list)
		return PTC_ENOMEM;
	half[0].ext[d] = at - box->off[d];
	half[1].off[d] = at;
	half[1].ext[d] = end_of(box, d) - at;
	for (int i = 0; !rc && i < 2; i++)
		rc = cover(c, &half[i], list, overlapping(c, &half[i], v, n, list));
	ptc_free(list);
	return rc;
}

/* The usable replicas that overlap box, in the order in which they count, up to the first that has all of it. */
static size_t in_order(const struct ptc_box *box, const struct ptc_replica *replicas, size_t n, const bool *usable,
		       uint32_t prefer, uint32_t first, uint32_t *ret)
{
	size_t k = 0;

	for (size_t turn = 0; turn < 2; turn++)
		for (size_t i = 0; i < n; i++) {
			const size_t at = (i + first) % n;
			const struct ptc_replica *h = &replicas[at];

			if ((h->node == prefer) != (turn == 0) || (usable && !usable[h->node]) ||
			    !overlaps(&h->box, box))
				continue;
			ret[k++] = (uint32_t)at;
			if (ptc_box_contains(&h->box, box))
				return k;
		}
	return k;
}

int ptc_parts_cover(const struct ptc_part *want, const struct ptc_replica *replicas, size_t nreplicas,
		    const bool *usable, uint32_t prefer, uint32_t first, struct ptc_parts *out, bool *ret_all,
		    struct ptc_error *err)
{
	struct cover c = { .want = want, .replicas = replicas, .out = out, .all = true };
	uint32_t *v = ptc_reallocarray(NULL, PTC_MAX(nreplicas, (size_t)1), sizeof *v);
	int rc = PTC_ENOMEM;

	if (v)
		rc = cover(&c, &want->box, v, in_order(&want->box, replicas, nreplicas, usable, prefer, first, v));
	ptc_free(v);
	*ret_all = c.all;
	return rc ? ptc_error_set(err, PTC_ENOMEM, "no memory to cover a box of item %u", want->item) : 0;
}
