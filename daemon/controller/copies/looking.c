/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the regions that lack copies, and nodes for them. Happy path: nodes are asked whether they have the tables that
 * record and document name; regions are counted; the next document names the copies that are there and those that are
 * to come. Failure modes: documents that cannot be read (their code), memory. */
#include "daemon/controller/copies/copy_keeper.h"
#include "daemon/controller/loss/copied_layout.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"

#include <stdio.h>
#include <string.h>

#define ROUND_BITS 20 /* of a table's number; the rest is the snapshot's */

struct look {
	struct ptc_controller *ctl;
	struct ptc_copy_keeper *c;
	struct ptc_view view;
	struct ptc_copies_doc now; /* the document, whether it holds or not */
	struct ptc_copy_keeper_nodes nodes;
	bool *older; /* of each node of the view: it keeps older snapshots */
	struct ptc_older_doc kept;
	uint64_t round;
	struct ptc_copy_keeper_seen seen;
};

void ptc_copy_keeper_nodes_done(struct ptc_copy_keeper_nodes *nodes)
{
	for (uint32_t i = 0; nodes->names && i < nodes->n; i++)
		ptc_free(nodes->names[i]);
	ptc_free(nodes->names);
	ptc_free(nodes->own);
	ptc_free(nodes->rack);
	ptc_free(nodes->usable);
	ptc_free(nodes->target);
	ptc_free(nodes->leaving);
	*nodes = (struct ptc_copy_keeper_nodes){ 0 };
}

static uint32_t number(struct ptc_copy_keeper_nodes *nodes, const char *name)
{
	uint32_t i = 0;

	while (i < nodes->n && strcmp(nodes->names[i], name) != 0)
		i++;
	if (i < nodes->n)
		return i;
	nodes->names[i] = ptc_strdup(name);
	nodes->own[i] = nodes->rack[i] = i;
	nodes->n += nodes->names[i] != NULL;
	return i;
}

/* Nodes of a rack are in the domain of the first of them. */
static void set_rack(struct ptc_cluster *c, struct ptc_copy_keeper_nodes *nodes, uint32_t at, const char *rack)
{
	for (uint32_t i = 0; rack[0] && i < ptc_cluster_nnodes(c); i++) {
		const struct ptc_node *n = ptc_cluster_node(c, i);

		if (strcmp(n->doc.rack, rack) == 0) {
			nodes->rack[at] = number(nodes, n->doc.name);
			return;
		}
	}
}

int ptc_copy_keeper_nodes(struct ptc_controllers *all, const struct ptc_view *v, bool up,
			  struct ptc_copy_keeper_nodes *ret)
{
	struct ptc_cluster *c = all->cluster;
	const size_t most = v->nnodes + ptc_cluster_nnodes(c);
	struct ptc_copy_keeper_nodes nodes = { .names = ptc_calloc(most, sizeof *nodes.names),
					       .own = ptc_calloc(most, sizeof *nodes.own),
					       .rack = ptc_calloc(most, sizeof *nodes.rack),
					       .usable = ptc_calloc(most, sizeof *nodes.usable),
					       .target = ptc_calloc(most, sizeof *nodes.target) };
	bool fine = nodes.names && nodes.own && nodes.rack && nodes.usable && nodes.target;

	for (size_t i = 0; fine && i < v->nnodes; i++)
		fine = number(&nodes, v->nodes[i]) == i && nodes.n == i + 1;
	for (uint32_t i = 0; fine && i < ptc_cluster_nnodes(c); i++) {
		const struct ptc_node *n = ptc_cluster_node(c, i);
		uint32_t at = number(&nodes, n->doc.name);

		fine = at < nodes.n;
		if (!fine)
			break;
		nodes.usable[at] = at < v->nnodes && ptc_view_placed(v, n->doc.name) && (n->up || (!up && !n->lost));
		nodes.target[at] = n->up && !n->drained;
		set_rack(c, &nodes, at, n->doc.rack);
	}
	if (!fine) {
		ptc_copy_keeper_nodes_done(&nodes);
		return PTC_ENOMEM;
	}
	*ret = nodes;
	return 0;
}

/* How many tensors are left, and one of them. */
static void note_left(const struct ptc_spec *spec, const struct ptc_copies_found *f, struct ptc_leaving_left *left)
{
	left->bytes = (uint64_t)f->bytes;
	left->nowhere = (uint64_t)f->nowhere;
	left->gone = (uint64_t)f->nobody;
	left->out = !f->bytes && !f->nobody;
	for (size_t item = 0; item < ptc_spec_items(spec); item++) {
		bool in = false;

		for (size_t i = 0; i < f->nitems && !in; i++)
			in = f->items[i][item / 8] >> item % 8 & 1;
		if (in && !left->tensors++)
			ptc_item_name(spec, item, left->tensor, sizeof left->tensor);
	}
}

int ptc_copy_keeper_find(struct ptc_controllers *all, const struct ptc_view *v,
			 const struct ptc_copy_keeper_nodes *nodes, struct ptc_leaving_left *left,
			 struct ptc_job_copies *ret_config, struct ptc_copies_found *ret, struct ptc_error *err)
{
	const struct ptc_declared *declared;
	const struct ptc_job_desc *desc;
	struct ptc_copied_layout h = { 0 };
	struct ptc_copies_ask ask;
	void *ref = NULL;
	int rc = ptc_specs_get(all->docs.specs, v->meta.uuid, v->meta.spec_hash, &desc, &ref, err);

	if (rc)
		return rc;
	*ret_config = desc->copies;
	rc = ptc_copied_layout_init(&h, all, v, &desc->spec, &declared, err);
	ask = (struct ptc_copies_ask){ .held = h.with.layout,
				       .world = v->from.world,
				       .at = &h.with.at,
				       .nnodes = nodes->n,
				       .domain = desc->copies.racks && !left ? nodes->rack : nodes->own,
				       .usable = nodes->usable,
				       .target = nodes->target,
				       .leaving = nodes->leaving,
				       .count = left ? 1 : desc->copies.count };
	if (rc == 0)
		rc = ptc_copies_find(&ask, ret, err);
	if (rc == 0 && left)
		note_left(ptc_layout_spec(h.with.layout), ret, left);
	ptc_copied_layout_done(&h);
	ptc_specs_release(ref);
	return rc;
}

/* ---- the next document ---- */

static bool usable(const struct look *k, const char *node)
{
	for (uint32_t i = 0; i < k->nodes.n; i++)
		if (strcmp(k->nodes.names[i], node) == 0)
			return k->nodes.usable[i];
	return false;
}

static uint64_t table_number(const struct look *k)
{
	uint64_t round = k->round;

	for (size_t i = 0; i < k->now.nkeepers; i++) {
		uint64_t n = k->now.keepers[i].table & ~PTC_COPIES_TABLE;

		if (n >> ROUND_BITS == k->view.from_snapshot)
			round = PTC_MAX(round, (n & ((1u << ROUND_BITS) - 1)) + 1);
	}
	return PTC_COPIES_TABLE | k->view.from_snapshot << ROUND_BITS | (round & ((1u << ROUND_BITS) - 1));
}

/* What holds of the document, and what does not as old. */
static int begin_next(struct look *k)
{
	struct ptc_copies_doc *next = &k->seen.next;
	bool holds = k->view.copies.nkeepers > 0;
	int rc = holds ? ptc_copies_doc_copy(&k->view.copies, next) : 0;

	if (rc || holds)
		return rc;
	if (ptc_copies_doc_copy(&k->now, next) != 0)
		return PTC_ENOMEM;
	ptc_free(next->old);
	next->old = next->keepers; /* a set that was not complete leaves the one before it behind */
	next->nold = next->nkeepers;
	next->keepers = NULL;
	next->nkeepers = next->nparts = 0;
	while (next->nitems)
		ptc_free(next->items[--next->nitems].v);
	next->generation = k->view.from_generation;
	memcpy(next->generation_hash, k->view.manifest.generation_hash, sizeof next->generation_hash);
	ptc_copies_content(k->view.manifest.digests, k->view.manifest.ndigests, next->content);
	return 0;
}

static int add_target(struct look *k, const char *node)
{
	struct ptc_copy_keeper_seen *s = &k->seen;

	for (size_t i = 0; i < s->ntargets; i++)
		if (strcmp(s->targets[i], node) == 0)
			return 0;
	if (!PTC_MORE(s->targets, s->ntargets))
		return PTC_ENOMEM;
	s->targets[s->ntargets] = ptc_strdup(node);
	return s->targets[s->ntargets] ? (s->ntargets++, 0) : PTC_ENOMEM;
}

static int add_found(struct look *k)
{
	const struct ptc_copies_found *f = &k->seen.found;
	struct ptc_copies_doc *next = &k->seen.next;
	const size_t bytes = k->view.manifest.ndigests / 8 + 1;
	const uint64_t table = table_number(k);
	uint32_t keeper, items;
	int rc = 0;

	for (size_t i = 0; !rc && i < f->nadd; i++) {
		const char *node = k->nodes.names[f->add[i].node];

		rc = ptc_copies_doc_items(next, f->items[f->add[i].items], bytes, &items);
		if (rc == 0)
			rc = ptc_copies_doc_hold(next, node, table, &keeper);
		if (rc == 0)
			rc = ptc_copies_doc_add(next, keeper, f->add[i].rank, items);
		if (rc == 0)
			rc = add_target(k, node);
	}
	return rc;
}

/* Everything is on as many nodes as asked for, without them. While anything lacks they stay: a node that is gone may
 * come back with the only copy. */
static void drop_spare(struct look *k)
{
	struct ptc_copies_doc *next = &k->seen.next;

	if (k->seen.urgent || k->seen.found.fewest < k->seen.config.count)
		return;
	k->seen.spare = next->nold > 0;
	next->nold = 0;
	for (size_t i = next->nkeepers; i-- > 0;)
		if (!usable(k, next->keepers[i].node)) {
			char node[PTC_NAME_MAX + 1];

			snprintf(node, sizeof node, "%s", next->keepers[i].node);
			ptc_copies_doc_drop(next, node);
			k->seen.spare = true;
		}
}

static int note_without(struct look *k, const char *node)
{
	struct ptc_copy_keeper_seen *s = &k->seen;

	if (!PTC_MORE(s->without, s->nwithout))
		return ptc_nomem(&s->err);
	memcpy(s->without[s->nwithout++], node, strlen(node) + 1);
	return 0;
}

/* Those that are up are asked: a table may have gone with its chunks. */
static int ask_nodes(struct look *k)
{
	bool *has = ptc_calloc(k->view.nnodes, sizeof *has);
	int rc = 0;

	if (!has)
		return ptc_nomem(&k->seen.err);
	ptc_lost_ask(k->ctl->all, &k->view, has);
	for (size_t i = 0; !rc && i < k->view.nnodes; i++)
		if (!k->view.down[i]) {
			if (!has[i] && k->older[i]) /* its chunks may come back, and these snapshots with them */
				k->nodes.target[i] = false;
			else if (!has[i])
				rc = note_without(k, k->view.nodes[i]);
			k->nodes.usable[i] = k->nodes.usable[i] && has[i];
		}
	ptc_free(has);
	return rc;
}

/* Waits for other nodes, and for documents. */
static void look_ask(void *arg, struct ptc_etcd *e)
{
	struct look *k = arg;
	struct ptc_copy_keeper_seen *s = &k->seen;

	(void)e;
	ptc_older_ask_bridge(k->ctl->all, &k->view.meta, &k->kept, s->unbridged);
	s->status = ptc_fault("copies.look") ? ptc_error_set(&s->err, PTC_EIO, "a test wants no look") : ask_nodes(k);
}

static void look_work(void *arg, struct ptc_etcd *e)
{
	struct look *k = arg;
	struct ptc_copy_keeper_seen *s = &k->seen;

	(void)e;
	if (s->status == 0)
		s->status = ptc_copy_keeper_find(k->ctl->all, &k->view, &k->nodes, s->urgent ? &s->left : NULL,
						 &s->config, &s->found, &s->err);
	if (s->status || s->found.fewest == 0)
		s->nwithout = 0; /* the only copy may be where nobody finds it now */
	if (s->status || (s->config.count == 1 && !s->found.nadd && !k->now.nkeepers && !k->now.nold))
		return;
	s->status = begin_next(k);
	if (s->status == 0)
		s->status = add_found(k);
	if (s->status)
		ptc_nomem(&s->err);
	else
		drop_spare(k);
}

static void look_done(void *arg)
{
	struct look *k = arg;

	k->c->looked(k->c, &k->seen);
	for (size_t i = 0; i < k->seen.ntargets; i++)
		ptc_free(k->seen.targets[i]);
	ptc_free(k->seen.targets);
	ptc_free(k->seen.without);
	ptc_copies_found_done(&k->seen.found);
	ptc_copies_doc_done(&k->seen.next);
	ptc_copies_doc_done(&k->now);
	ptc_free(k->older);
	ptc_copy_keeper_nodes_done(&k->nodes);
	ptc_view_done(&k->view);
	ptc_controller_unref(k->ctl);
	ptc_free(k);
}

static void copy_manifest(const struct ptc_manifest_doc *m, struct ptc_manifest_doc *ret)
{
	memcpy(ret->generation_hash, m->generation_hash, sizeof ret->generation_hash);
	ret->digests = ptc_calloc(m->ndigests, sizeof *ret->digests);
	ptc_require(ret->digests);
	if (m->ndigests)
		memcpy(ret->digests, m->digests, m->ndigests * sizeof *ret->digests);
	ret->ndigests = m->ndigests;
	for (size_t i = 0; i < m->nwithout; i++)
		ptc_require(ptc_manifest_without_add(ret, m->without[i]) == 0);
}

/* What leaving nodes have is a source, but no copy. */
static void look_leaving(struct look *k)
{
	struct ptc_copy_keeper_nodes *n = &k->nodes;

	k->seen.urgent = k->c->urgent = ptc_leaving_urgent(k->ctl);
	k->seen.left.record_revision = k->ctl->record_revision;
	k->seen.left.epoch = k->c->epoch;
	if (!ptc_leaving_any(k->ctl))
		return;
	n->leaving = ptc_calloc(n->n, sizeof *n->leaving);
	ptc_require(n->leaving);
	for (uint32_t i = 0; i < n->n; i++) {
		n->leaving[i] = ptc_leaving_has(k->ctl, n->names[i]);
		n->target[i] = n->target[i] && !n->leaving[i];
	}
}

static void look_older(struct look *k)
{
	const struct ptc_older_doc *d = &k->ctl->older.doc;

	k->older = ptc_calloc(k->view.nnodes, sizeof *k->older);
	ptc_require(k->older);
	for (size_t i = 0; i < k->view.nnodes; i++)
		for (size_t o = 0; o < d->n; o++)
			k->older[i] |= ptc_older_has(&d->v[o], k->view.nodes[i]);
}

/* Nodes of the view are asked. */
static void look_emptied(struct look *k)
{
	for (size_t i = 0; i < k->c->nemptied; i++) {
		size_t n = 0;

		while (n < k->view.nnodes && strcmp(k->view.nodes[n], k->c->emptied[i]) != 0)
			n++;
		if (n == k->view.nnodes)
			ptc_require(note_without(k, k->c->emptied[i]) == 0);
	}
}

void ptc_copy_keeper_look(struct ptc_copy_keeper *c)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_ETCD, look_ask, true },
						      { PTC_TASK_COMPUTE, look_work, true },
						      { 0 } };
	struct ptc_controller *ctl = c->ctl;
	struct look *k = ptc_calloc(1, sizeof *k);
	char lane[PTC_LANE_MAX];

	ptc_require(k);
	ptc_copy_keeper_committed(ctl); /* a switch may have left out what is asked about now */
	*k = (struct look){ .ctl = ptc_controller_ref(ctl), .c = c, .round = c->round, .kept = ctl->older.doc };
	k->seen.bridge = k->kept.bridge;
	k->view.meta = ctl->meta;
	k->view.from_generation = ctl->record.generation;
	k->view.from_snapshot = ctl->record.snapshot;
	copy_manifest(&ctl->view.manifest, &k->view.manifest);
	ptc_require(ptc_generation_doc_copy(&ctl->view.from, &k->view.from) == 0 &&
		    ptc_copies_doc_copy(&ctl->view.copies, &k->view.copies) == 0 &&
		    ptc_copies_doc_copy(&ctl->copies, &k->now) == 0 && ptc_view_nodes(&k->view) == 0 &&
		    ptc_view_locate(&k->view, ctl->all->cluster) == 0 &&
		    ptc_copy_keeper_nodes(ctl->all, &k->view, false, &k->nodes) == 0);
	for (size_t i = 0; i < k->nodes.n; i++) {
		uint32_t at;

		k->seen.down |=
			k->nodes.usable[i] && (!ptc_cluster_find_node(ctl->all->cluster, k->nodes.names[i], &at) ||
					       !ptc_cluster_node(ctl->all->cluster, at)->up);
	}
	for (uint32_t i = 0; i < ptc_cluster_nnodes(ctl->all->cluster); i++) {
		const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, i);

		k->seen.elsewhere_down |= !n->up && !n->lost;
	}
	look_leaving(k);
	look_older(k);
	look_emptied(k);
	for (size_t i = 0; i < c->nfull; i++)
		for (uint32_t n = 0; n < k->nodes.n; n++)
			if (strcmp(k->nodes.names[n], c->full[i]) == 0)
				k->nodes.target[n] = false;
	snprintf(lane, sizeof lane, "c/%s", ctl->uuid);
	ptc_require(ptc_cluster_steps(ctl->all->cluster, lane, steps, look_done, k) == 0);
}
