/* SPDX-License-Identifier: Apache-2.0 */
/* The hash of a plan, by which nodes find out whether they have made the same plan. It is a hash of the hashes of the
 * moves, so that no memory is needed and no padding byte or byte order gets in.
 *
 * Happy path without a list of moves: each move is noted in 24 bytes. Most moves have the same few boxes, and these are
 * noted once each. The notes are dealt out by item, then by destination; the few of one item and one destination are
 * sorted by box.
 *
 * Failure modes: those of ptc_plan_stream; memory. */
#include "reshard/plan/plan.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/number/search.h"
#include "reshard/plan/change.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the text of a move ---- */

#define NUMBER_MAX 24 /* characters of a number, with the one before it */

/* " 17", as printf writes it, at text. Returns how long it is. */
static size_t put_number(char *text, char before, int64_t v)
{
	char digits[20];
	uint64_t left = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
	size_t n = 0, len = 0;

	do
		digits[n++] = (char)('0' + left % 10);
	while ((left /= 10));
	text[len++] = before;
	if (v < 0)
		text[len++] = '-';
	while (n)
		text[len++] = digits[--n];
	return len;
}

struct hasher {
	char hex[33]; /* of the moves so far */
	/* of the last move: its text behind the item. Most moves in a row differ in their item only. */
	char tail[NUMBER_MAX * (4 + 2 * PTC_MAX_DIMS)];
	size_t tail_len;
	uint32_t numbers[4];       /* those behind the item */
	const struct ptc_box *box; /* it stays as it is for as long as the hasher */
};

static void hash_begin(struct hasher *h)
{
	*h = (struct hasher){ 0 };
	memset(h->hex, '0', 32);
}

static void hash_move(struct hasher *h, const uint32_t numbers[5], const struct ptc_box *box)
{
	char text[32 + NUMBER_MAX + sizeof h->tail];
	size_t n = 32;

	if (h->box != box || memcmp(h->numbers, numbers + 1, sizeof h->numbers) != 0) {
		h->box = box;
		memcpy(h->numbers, numbers + 1, sizeof h->numbers);
		h->tail_len = 0;
		for (size_t i = 0; i < 4; i++)
			h->tail_len += put_number(h->tail + h->tail_len, ' ', h->numbers[i]);
		for (uint32_t d = 0; d < box->ndim; d++) {
			h->tail_len += put_number(h->tail + h->tail_len, ' ', box->off[d]);
			h->tail_len += put_number(h->tail + h->tail_len, '+', box->ext[d]);
		}
	}
	memcpy(text, h->hex, 32);
	n += put_number(text + n, ' ', numbers[0]);
	memcpy(text + n, h->tail, h->tail_len);
	ptc_content_hash(text, n + h->tail_len, h->hex);
}

static void hash_end(const struct hasher *h, const struct ptc_plan *p, size_t nmoves, char ret_hex[33])
{
	char text[33 + 24 * 4];
	size_t n = (size_t)snprintf(text, sizeof text, "%s v1 %zu %lld %lld", h->hex, nmoves, (long long)p->in_place,
				    (long long)p->between_nodes);

	ptc_content_hash(text, n, ret_hex);
}

void ptc_plan_hash(const struct ptc_plan *p, char ret_hex[33])
{
	struct hasher h;

	hash_begin(&h);
	for (size_t i = 0; i < p->nmoves; i++) {
		const struct ptc_move *m = &p->moves[i];

		hash_move(&h, (const uint32_t[]){ m->item, m->src_node, m->dst_node, m->src_rank, m->dst_rank },
			  &m->box);
	}
	hash_end(&h, p, p->nmoves, ret_hex);
}

/* ---- without a list of moves ---- */

struct note {
	uint32_t item, src_node, dst_node, src_rank, dst_rank, box;
};

struct notes {
	struct note *v;
	size_t n, cap;
	struct ptc_boxes boxes;
	struct ptc_error *err;
};

static int note(void *arg, const struct ptc_move *m)
{
	struct notes *s = arg;

	if (m->kind != PTC_MOVE_BETWEEN)
		return 0;
	if (!PTC_ROOM(s->v, s->n + 1, s->cap))
		return ptc_nomem(s->err);
	if ((!s->boxes.n || !ptc_box_equal(&s->boxes.v[s->boxes.n - 1], &m->box)) && ptc_boxes_push(&s->boxes, &m->box))
		return ptc_nomem(s->err);
	s->v[s->n++] = (struct note){ m->item,     m->src_node, m->dst_node,
				      m->src_rank, m->dst_rank, (uint32_t)(s->boxes.n - 1) };
	return 0;
}

static uint32_t key_of(const struct note *m, bool by_node)
{
	return by_node ? m->dst_node : m->item;
}

/* Deals the notes out to `to`, by item or by destination. Those that are equal keep their order. first: nkeys + 1. */
static void deal(const struct note *v, size_t n, bool by_node, size_t *first, size_t nkeys, struct note *to)
{
	memset(first, 0, (nkeys + 1) * sizeof *first);
	for (size_t i = 0; i < n; i++)
		first[key_of(&v[i], by_node) + 1]++;
	for (size_t k = 0; k < nkeys; k++)
		first[k + 1] += first[k];
	for (size_t i = 0; i < n; i++)
		to[first[key_of(&v[i], by_node)]++] = v[i];
}

static int by_box(const void *a, const void *b, void *boxes)
{
	const struct note *x = a, *y = b;
	const struct ptc_box *v = boxes;

	return ptc_box_order_off(&v[x->box], &v[y->box]);
}

/* By destination, then item, then box, as a plan lists its moves. */
static int notes_sort(struct notes *s, uint32_t nnodes, size_t nitems)
{
	const size_t nkeys = PTC_MAX((size_t)nnodes, nitems);
	struct note *other = ptc_reallocarray(NULL, s->n + 1, sizeof *other);
	size_t *first = ptc_reallocarray(NULL, nkeys + 1, sizeof *first);

	if (other && first) {
		deal(s->v, s->n, false, first, nitems, other);
		deal(other, s->n, true, first, nnodes, s->v);
	}
	ptc_free(other);
	ptc_free(first);
	if (!other || !first)
		return PTC_ENOMEM;
	for (size_t i = 0, end; i < s->n; i = end) {
		for (end = i + 1;
		     end < s->n && s->v[end].item == s->v[i].item && s->v[end].dst_node == s->v[i].dst_node;)
			end++;
		if (end - i > 1)
			qsort_r(s->v + i, end - i, sizeof *s->v, by_box, s->boxes.v);
	}
	return 0;
}

int ptc_plan_hash_of(const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		     const struct ptc_layout *to, const struct ptc_allocation *to_alloc, uint32_t nnodes,
		     const bool *usable, char ret_hex[33], struct ptc_error *err)
{
	struct notes s = { .err = err };
	const struct ptc_plan_opts opts = { .fn = note, .arg = &s };
	struct ptc_plan *plan = NULL;
	struct ptc_change *c;
	struct hasher h;
	int rc = ptc_change_new(from, to, &c, err);

	if (rc)
		return rc;
	rc = ptc_plan_stream(c, from_alloc, to_alloc, nnodes, usable, &opts, &plan, err);
	ptc_change_free(c);
	if (!rc && notes_sort(&s, nnodes, ptc_spec_items(ptc_layout_spec(to))))
		rc = ptc_nomem(err);
	hash_begin(&h);
	for (size_t i = 0; i < s.n && !rc; i++) {
		const struct note *m = &s.v[i];

		hash_move(&h, (const uint32_t[]){ m->item, m->src_node, m->dst_node, m->src_rank, m->dst_rank },
			  &s.boxes.v[m->box]);
	}
	if (!rc)
		hash_end(&h, plan, s.n, ret_hex);
	ptc_plan_free(plan);
	ptc_boxes_done(&s.boxes);
	ptc_free(s.v);
	return rc;
}
