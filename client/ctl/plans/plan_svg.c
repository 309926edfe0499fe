/* SPDX-License-Identifier: Apache-2.0 */
/* A plan made of a file as a picture: what each rank keeps and gets, and what
 * each node sends to each, counted move by move. Failure mode: memory. */
#include "client/ctl/plans/offline.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "client/ctl/plans/picture/picture.h"
#include "client/ctl/show/show.h"

#include <stdio.h>

#define NAME_SIZE 24

struct counts {
	struct ctl_picture_rank *ranks; /* of the new layout */
	int64_t *lines;                 /* src * nodes + dst */
	uint32_t nodes;
};

static int count(void *arg, const struct ptc_move *m)
{
	struct counts *k = arg;
	int64_t *parts = k->ranks[m->dst_rank].parts, bytes = ptc_box_volume(&m->box);

	switch (m->kind) {
	case PTC_MOVE_KEEP:
		parts[0] += bytes;
		break;
	case PTC_MOVE_BETWEEN:
		parts[2] += bytes;
		k->lines[(size_t)m->src_node * k->nodes + m->dst_node] += bytes;
		break;
	default:
		parts[1] += bytes;
	}
	return 0;
}

/* New; NULL without memory. */
static struct ctl_picture_rank *ranks_of(const struct ptc_allocation *a)
{
	struct ctl_picture_rank *ranks = ptc_calloc(a->world, sizeof *ranks);

	for (uint32_t r = 0; ranks && r < a->world; r++)
		ranks[r] = (struct ctl_picture_rank){ .node = a->ranks[r].node, .device = a->ranks[r].index };
	return ranks;
}

static void name_nodes(const struct ctl_cluster *k, struct ctl_picture_node *nodes, char (*names)[NAME_SIZE])
{
	for (uint32_t n = 0; n < k->nodes; n++) {
		snprintf(names[n], NAME_SIZE, "node %u", n);
		nodes[n].name = names[n];
		nodes[n].state = !k->usable[n] ? CTL_NODE_DOWN : k->drained[n] ? CTL_NODE_DRAINED : CTL_NODE_UP;
	}
}

static int print(const struct ctl_switch *s, struct ctl_picture *p, const struct ptc_plan *plan, struct ptc_error *err)
{
	char note[256], bytes[32], bound[32];
	int rc;

	snprintf(note, sizeof note, "between nodes %s, bound %s%s",
		 ctl_bytes((uint64_t)plan->between_nodes, bytes, sizeof bytes),
		 ctl_bytes((uint64_t)plan->bound_any, bound, sizeof bound), plan->bound_any_exact ? " (exact)" : "");
	p->job = s->o->job.spec.name;
	p->before = s->from_text;
	p->after = s->to_text;
	p->from = ptc_layout_config(s->from);
	p->to = ptc_layout_config(s->to);
	p->note = note;
	p->colours = "green: stays on its device; yellow: from its node; red: from other nodes";
	rc = ctl_picture_print(p, err);
	p->note = NULL;
	return rc;
}

int ctl_plan_svg(const struct ctl_switch *s, struct ptc_error *err)
{
	const struct ctl_cluster *k = &s->o->cluster;
	ptc_auto_free struct ctl_picture_node *nodes = NULL;
	ptc_auto_free struct ctl_picture_rank *was = NULL, *now = NULL;
	ptc_auto_free int64_t *lines = NULL;
	ptc_auto_free char(*names)[NAME_SIZE] = NULL;
	struct ctl_picture p = { .nnodes = k->nodes, .per_node = k->per_node, .failed = k->failed };
	struct counts counts;
	struct ptc_plan *plan;
	int rc;

	if (k->nodes > CTL_PICTURE_NODES) /* before the lines of all of them */
		return ctl_picture_print(&p, err);
	nodes = ptc_calloc(k->nodes, sizeof *nodes);
	names = ptc_calloc(k->nodes, sizeof *names);
	was = ranks_of(&s->was);
	now = ranks_of(&s->now);
	lines = ptc_calloc((size_t)k->nodes * k->nodes, sizeof *lines);
	if (!nodes || !names || !was || !now || !lines)
		return ptc_nomem(err);
	name_nodes(k, nodes, names);
	counts = (struct counts){ now, lines, k->nodes };
	rc = ctl_switch_plan(s, count, &counts, true, &plan, err);
	if (rc)
		return rc;
	p.nodes = nodes;
	p.was = was;
	p.nwas = s->was.world;
	p.now = now;
	p.nnow = s->now.world;
	p.lines = lines;
	rc = print(s, &p, plan, err);
	ptc_plan_free(plan);
	return rc;
}
