/* SPDX-License-Identifier: Apache-2.0 */
/* The boxes of a layout that no usable node has any more. Nodes list their boxes by item, so one cursor per node goes
 * over the items.
 *
 * Failure modes: memory. */
#include "reshard/layout/layout.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

struct finder {
	const bool *usable;
	uint32_t nnodes;
	struct ptc_needs *needs; /* per node */
	size_t *at;              /* its first need of an item not looked at yet */
	struct ptc_boxes have, left;
	struct ptc_lost *v;
	size_t n, cap;
};

static bool has_item(const struct finder *f, uint32_t node, size_t at, uint32_t item)
{
	return at < f->needs[node].n && f->needs[node].v[at].item == item;
}

static int add(struct finder *f, uint32_t item, uint32_t node, int64_t bytes)
{
	struct ptc_lost *l = f->n ? &f->v[f->n - 1] : NULL;

	if (!l || l->item != item) {
		if (!PTC_ROOM(f->v, f->n + 1, f->cap))
			return PTC_ENOMEM;
		l = &f->v[f->n++];
		*l = (struct ptc_lost){ .item = item };
	}
	l->bytes += bytes;
	if (l->nnodes == 0 || (l->nnodes < PTC_LOST_NODES && l->nodes[l->nnodes - 1] != node))
		l->nodes[l->nnodes++] = node;
	return 0;
}

/* One box of a node that is gone: what of it is nowhere, and of that what no node before it lost too. */
static int take_box(struct finder *f, uint32_t item, uint32_t node, const struct ptc_box *box, size_t nhave)
{
	int64_t bytes = 0;
	bool any;
	int rc;

	f->left.n = 0;
	rc = ptc_boxes_missing(box, f->have.v, nhave, &f->left);
	any = f->left.n > 0;
	f->left.n = 0;
	if (!rc && any)
		rc = ptc_boxes_missing(box, f->have.v, f->have.n, &f->left);
	for (size_t i = 0; i < f->left.n; i++)
		bytes += ptc_box_volume(&f->left.v[i]);
	if (!rc && any)
		rc = ptc_boxes_push(&f->have, box);
	return rc || !any ? rc : add(f, item, node, bytes);
}

static int take_item(struct finder *f, uint32_t item)
{
	size_t nhave;
	int rc = 0;

	f->have.n = 0;
	for (uint32_t n = 0; n < f->nnodes; n++)
		for (size_t i = f->at[n]; f->usable[n] && has_item(f, n, i, item) && !rc; i++)
			rc = ptc_boxes_push(&f->have, &f->needs[n].v[i].box);
	nhave = f->have.n;
	for (uint32_t n = 0; n < f->nnodes; n++)
		for (; has_item(f, n, f->at[n], item) && !rc; f->at[n]++)
			if (!f->usable[n])
				rc = take_box(f, item, n, &f->needs[n].v[f->at[n]].box, nhave);
	return rc;
}

int ptc_layout_lost(const struct ptc_layout *l, const struct ptc_allocation *a, uint32_t nnodes, const bool *usable,
		    struct ptc_lost **ret_lost, size_t *ret_n, struct ptc_error *err)
{
	struct finder f = { .usable = usable, .nnodes = nnodes };
	size_t nitems = ptc_spec_items(ptc_layout_spec(l));
	int rc;

	f.needs = ptc_calloc(nnodes, sizeof *f.needs);
	f.at = ptc_calloc(nnodes, sizeof *f.at);
	rc = f.needs && f.at ? 0 : ptc_nomem(err);
	for (uint32_t n = 0; n < nnodes && !rc; n++)
		rc = ptc_layout_node_needs(l, a, n, &f.needs[n], err);
	for (size_t item = 0; item < nitems && !rc; item++)
		if (take_item(&f, (uint32_t)item))
			rc = ptc_nomem(err);
	for (uint32_t n = 0; n < nnodes && f.needs; n++)
		ptc_needs_done(&f.needs[n]);
	ptc_free(f.needs);
	ptc_free(f.at);
	ptc_boxes_done(&f.have);
	ptc_boxes_done(&f.left);
	if (rc) {
		ptc_free(f.v);
		return rc;
	}
	*ret_lost = f.v;
	*ret_n = f.n;
	return 0;
}
