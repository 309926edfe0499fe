/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of a view's state: facts about its nodes, and copies in the form of messages. Failure: memory. */
#include "daemon/documents/view_copies.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

bool ptc_view_placed(const struct ptc_view *v, const char *node)
{
	return ptc_copies_keeper(&v->copies, node) || ptc_manifest_placed(&v->manifest, node);
}

uint64_t ptc_view_table(const struct ptc_view *v, const char *node)
{
	const struct ptc_copies_keeper *h = ptc_copies_keeper(&v->copies, node);

	return h ? h->table : v->from_snapshot;
}

uint32_t ptc_view_number(const struct ptc_view *v, const char *node)
{
	uint32_t i = 0;

	while (i < v->nnodes && strcmp(v->nodes[i], node) != 0)
		i++;
	ptc_require(i < v->nnodes); /* ptc_view_nodes has put every one there */
	return i;
}

int ptc_view_copies_info(const struct ptc_view *v, const struct ptc_copies_doc *doc, Ptc__V1__Copies *ret)
{
	ptc__v1__copies__init(ret);
	ret->nodes = ptc_calloc(doc->nkeepers, sizeof *ret->nodes);
	ret->snapshots = ptc_calloc(doc->nkeepers, sizeof *ret->snapshots);
	ret->keepers = ptc_calloc(doc->nparts, sizeof *ret->keepers);
	ret->ranks = ptc_calloc(doc->nparts, sizeof *ret->ranks);
	ret->sets = ptc_calloc(doc->nparts, sizeof *ret->sets);
	ret->items = ptc_calloc(doc->nitems, sizeof *ret->items);
	if (!ret->nodes || !ret->snapshots || !ret->keepers || !ret->ranks || !ret->sets || !ret->items)
		return PTC_ENOMEM;
	ret->n_nodes = ret->n_snapshots = doc->nkeepers;
	ret->n_keepers = ret->n_ranks = ret->n_sets = doc->nparts;
	ret->n_items = doc->nitems;
	for (size_t i = 0; i < doc->nkeepers; i++) {
		ret->nodes[i] = ptc_view_number(v, doc->keepers[i].node);
		ret->snapshots[i] = doc->keepers[i].table;
	}
	for (size_t i = 0; i < doc->nparts; i++) {
		ret->keepers[i] = doc->parts[i].keeper;
		ret->ranks[i] = doc->parts[i].rank;
		ret->sets[i] = doc->parts[i].items;
	}
	for (size_t i = 0; i < doc->nitems; i++) {
		ret->items[i].data = doc->items[i].v;
		ret->items[i].len = doc->items[i].n;
	}
	return 0;
}

void ptc_view_copies_info_done(Ptc__V1__Copies *c)
{
	ptc_free(c->nodes);
	ptc_free(c->snapshots);
	ptc_free(c->keepers);
	ptc_free(c->ranks);
	ptc_free(c->sets);
	ptc_free(c->items);
}
