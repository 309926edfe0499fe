/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as JSON (docs/plan.md), written move by move, so that a large one needs no memory. Numbers count elements,
 * unless a member's name says bytes. */
#include "client/ctl/plans/offline.h"

#include "base/check.h"

#include <inttypes.h>

struct writer {
	const struct ctl_switch *s;
	bool any;
};

static void put_slot(const char *name, const struct ptc_allocation *a, uint32_t rank)
{
	printf("\"%s\":{\"node\":%u,\"device\":%u,\"rank\":%u}", name, a->ranks[rank].node, a->ranks[rank].index, rank);
}

static int put_move(void *arg, const struct ptc_move *m)
{
	static const char *const kinds[] = { "between_nodes", "within_node", "forward", "keep" };
	struct writer *w = arg;
	const struct ctl_switch *s = w->s;
	const struct ptc_spec *spec = &s->o->job.spec;
	struct ptc_box e;

	ptc_item_elements(spec, m->item, &m->box, &e);
	printf("%s{\"tensor\":%s,\"field\":\"%s\",\"kind\":\"%s\",", w->any ? ",\n" : "\n",
	       s->o->names[m->item / (1 + spec->nfields)], ctl_field_name(spec, m->item), kinds[m->kind]);
	put_slot("src", m->kind == PTC_MOVE_FORWARD ? &s->now : &s->was, m->src_rank);
	putchar(',');
	put_slot("dst", &s->now, m->dst_rank);
	fputs(",\"offset\":", stdout);
	ctl_put_numbers(e.off, e.ndim);
	fputs(",\"extent\":", stdout);
	ctl_put_numbers(e.ext, e.ndim);
	printf(",\"bytes\":%" PRId64, ptc_box_volume(&m->box));
	if (m->kind == PTC_MOVE_BETWEEN)
		printf(",\"turn\":%u", ptc_move_turn(m, s->o->cluster.nodes));
	putchar('}');
	w->any = true;
	return 0;
}

static void put_side(const char *name, const char *config, const struct ptc_allocation *a)
{
	printf("\"%s\":{\"config\":\"%s\",\"ranks\":[", name, config);
	for (uint32_t r = 0; r < a->world; r++)
		printf("%s{\"rank\":%u,\"node\":%u,\"device\":%u}", r ? "," : "", r, a->ranks[r].node,
		       a->ranks[r].index);
	puts("]},");
}

static void put_nodes(const struct ptc_plan *p)
{
	fputs("\"nodes\":[", stdout);
	for (uint32_t n = 0; n < p->nnodes; n++)
		printf("%s{\"node\":%u,\"in_bytes\":%" PRId64 ",\"out_bytes\":%" PRId64 ",\"within_bytes\":%" PRId64
		       ",\"peak_bytes\":%" PRId64 "}",
		       n ? ",\n" : "\n", n, p->in_bytes[n], p->out_bytes[n], p->within_bytes[n], p->peak_bytes[n]);
	puts("],");
}

static void put_groups(const struct ptc_groups *g)
{
	printf("\"groups\":{\"count\":%u,\"split\":%u,\"across_racks\":%u},\n", g->n, g->split, g->across);
}

static void put_totals(const struct ctl_switch *s, const struct ptc_plan *p)
{
	printf("\"totals\":{\"kept\":%" PRId64 ",\"in_place\":%" PRId64 ",\"within_node\":%" PRId64
	       ",\"between_nodes\":%" PRId64 ",\"bound_this_mapping\":%" PRId64 ",\"bound_any_mapping\":%" PRId64
	       ",\"bound_exact\":%s,\"gap\":%" PRId64,
	       p->kept, p->in_place, p->within_node, p->between_nodes, p->bound_mapping, p->bound_any,
	       p->bound_any_exact ? "true" : "false", p->between_nodes - p->bound_any);
	printf(",\"reset\":%" PRId64 ",\"derived\":%" PRId64 ",\"moves_between_nodes\":%" PRIu64
	       ",\"moves_within_node\":%" PRIu64 ",\"estimated_ns\":%" PRId64 "}}\n",
	       p->reset, p->derived, p->nbetween, p->nwithin, ptc_plan_time_ns(p, &s->rates));
}

int ctl_plan_json(const struct ctl_switch *s, struct ptc_error *err)
{
	struct writer w = { .s = s };
	struct ptc_plan *p;
	char from[PTC_CONFIG_TEXT_MAX], to[PTC_CONFIG_TEXT_MAX];
	int rc;

	if (ptc_config_format(ptc_layout_config(s->from), from, sizeof(from)) ||
	    ptc_config_format(ptc_layout_config(s->to), to, sizeof(to)))
		return ptc_error_set(err, PTC_ELIMIT, "the configuration is too long to print");
	printf("{\"version\":1,");
	put_side("from", from, &s->was);
	put_side("to", to, &s->now);
	fputs("\"moves\":[", stdout);
	rc = ctl_switch_plan(s, put_move, &w, false, &p, err);
	if (rc)
		return rc;
	puts("],");
	put_nodes(p);
	put_groups(&s->groups);
	put_totals(s, p);
	ptc_plan_free(p);
	return 0;
}
