/* SPDX-License-Identifier: Apache-2.0 */
/* A plan for a person: totals beside the bound, a bar per node, who sends to
 * whom. Failure mode: memory. */
#include "client/ctl/plans/offline.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"
#include "client/ctl/show/show.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BAR        32
#define MAX_ROWS   64 /* of nodes, and of pairs of nodes */
#define MAX_PAIRED 1024

struct pair {
	uint32_t src, dst;
	int64_t bytes;
	uint64_t moves;
};

struct pairs {
	uint32_t nnodes;
	struct pair *v; /* nnodes * nnodes; NULL: too many */
};

static int count(void *arg, const struct ptc_move *m)
{
	struct pairs *p = arg;
	struct pair *at;

	if (!p->v || m->kind != PTC_MOVE_BETWEEN)
		return 0;
	at = &p->v[(size_t)m->src_node * p->nnodes + m->dst_node];
	at->src = m->src_node;
	at->dst = m->dst_node;
	at->bytes += ptc_box_volume(&m->box);
	at->moves++;
	return 0;
}

PTC_COMPARE(by_bytes, struct pair,
	    PTC_THEN(PTC_ORDER(b->bytes, a->bytes), PTC_THEN(PTC_ORDER(a->src, b->src), PTC_ORDER(a->dst, b->dst))))

static void put_pairs(struct pairs *p)
{
	size_t n = (size_t)p->nnodes * p->nnodes, used = 0;
	char text[32];

	if (!p->v)
		return;
	for (size_t i = 0; i < n; i++)
		if (p->v[i].moves)
			p->v[used++] = p->v[i];
	if (used > 1)
		qsort(p->v, used, sizeof *p->v, by_bytes);
	if (used)
		puts("\nfrom node  to node         bytes      moves");
	for (size_t i = 0; i < used && i < MAX_ROWS; i++)
		printf("%9u  %7u  %12s  %9" PRIu64 "\n", p->v[i].src, p->v[i].dst,
		       ctl_bytes((uint64_t)p->v[i].bytes, text, sizeof text), p->v[i].moves);
	if (used > MAX_ROWS)
		printf("... and %zu more pairs\n", used - MAX_ROWS);
}

static void put_bytes(const char *label, int64_t bytes, const char *note)
{
	char text[32];

	printf("  %-24s %12s%s%s\n", label, ctl_bytes((uint64_t)bytes, text, sizeof text), *note ? "  " : "", note);
}

static void put_totals(const struct ctl_switch *s, const struct ptc_plan *p)
{
	int64_t peak = 0, ns = ptc_plan_time_ns(p, &s->rates);
	char note[64];
	uint32_t at = 0;

	for (uint32_t n = 0; n < p->nnodes; n++)
		if (p->peak_bytes[n] > peak) {
			peak = p->peak_bytes[n];
			at = n;
		}
	put_bytes("between nodes", p->between_nodes, "each byte enters a node once");
	put_bytes("bound, this mapping", p->bound_mapping, "");
	put_bytes("bound, any mapping", p->bound_any,
		  p->bound_any_exact ? "no mapping moves less" : "perhaps none reaches it");
	put_bytes("between devices", p->within_node, "inside nodes");
	put_bytes("stays on its device", p->kept, "");
	put_bytes("in place on its node", p->in_place, "");
	if (p->reset)
		put_bytes("begins as zeros", p->reset, "reset by rules");
	if (p->derived)
		put_bytes("made from masters", p->derived, "derived by rules");
	snprintf(note, sizeof note, "on node %u", at);
	put_bytes("peak of a node", peak, note);
	printf("  %-24s %12.3f s at %.0f GB/s per node and way\n", "estimated", (double)ns / 1e9,
	       (double)s->rates.node_in / 1e9);
	printf("  %-24s %12" PRIu64 " between nodes, %" PRIu64 " within\n", "moves", p->nbetween, p->nwithin);
	if (s->groups.split)
		printf("  %-24s %12u of %u are on more nodes than one needs\n", "TP groups", s->groups.split,
		       s->groups.n);
}

static void put_bar(int64_t value, int64_t most, char mark)
{
	int n = most ? (int)((double)value / (double)most * BAR + 0.5) : 0;

	if (value && !n)
		n = 1;
	for (int i = 0; i < n; i++)
		putchar(mark);
}

/* In '<', out '>'. */
static void put_nodes(const struct ptc_plan *p)
{
	int64_t most = 0;
	char in[32], out[32];
	uint32_t shown = 0, quiet = 0;

	for (uint32_t n = 0; n < p->nnodes; n++)
		most = PTC_MAX(most, PTC_MAX(p->in_bytes[n], p->out_bytes[n]));
	puts("\nnode            in           out");
	for (uint32_t n = 0; n < p->nnodes; n++) {
		if ((!p->in_bytes[n] && !p->out_bytes[n]) || shown == MAX_ROWS) {
			quiet++;
			continue;
		}
		shown++;
		printf("%4u  %12s  %12s  ", n, ctl_bytes((uint64_t)p->in_bytes[n], in, sizeof in),
		       ctl_bytes((uint64_t)p->out_bytes[n], out, sizeof out));
		put_bar(p->in_bytes[n], most, '<');
		put_bar(p->out_bytes[n], most, '>');
		putchar('\n');
	}
	if (quiet)
		printf("%s%u nodes%s\n", shown ? "and " : "", quiet,
		       shown == MAX_ROWS ? " more" : " neither get nor send anything");
}

int ctl_plan_table(const struct ctl_switch *s, struct ptc_error *err)
{
	struct pairs pairs = { .nnodes = s->o->cluster.nodes };
	struct ptc_plan *p;
	int rc;

	if (pairs.nnodes <= MAX_PAIRED) {
		pairs.v = ptc_calloc((size_t)pairs.nnodes * pairs.nnodes, sizeof *pairs.v);
		if (!pairs.v)
			return ptc_nomem(err);
	}
	rc = ctl_switch_plan(s, count, &pairs, false, &p, err);
	if (!rc) {
		printf("%s (%u ranks) -> %s (%u ranks) on %u nodes of %u devices\n", s->from_text,
		       ptc_layout_world(s->from), s->to_text, ptc_layout_world(s->to), s->o->cluster.nodes,
		       s->o->cluster.per_node);
		put_totals(s, p);
		put_nodes(p);
		put_pairs(&pairs);
		ptc_plan_free(p);
	}
	ptc_free(pairs.v);
	return rc;
}
