// SPDX-License-Identifier: Apache-2.0
/* A switch as a picture: each node a row, before on the left and after on the
 * right, a cell per device with its rank; a cell after is filled by what stays
 * on the device, comes from its node, and comes from others. Lines join nodes
 * that send and get, as wide as their bytes. Failure mode: memory. */
#include "client/ctl/plans/offline.h"

#include "base/alloc.h"
#include "base/check.h"
#include "client/ctl/show/show.h"

#include <inttypes.h>
#include <string.h>

#define MAX_NODES    256 /* a picture of more says nothing */
#define CELL         44
#define GAP          6
#define ROW          (CELL + 18)
#define LEFT         70
#define MIDDLE       180
#define TOP          64
#define LETTER       9 /* the widest a letter of a heading is likely to be */
#define LEGEND_WIDTH 480

struct rank_bytes {
	int64_t kept, within, between;
};

struct picture {
	const struct ctl_switch *s;
	struct rank_bytes *ranks; /* of the new layout */
	int64_t *lines;           /* src * nodes + dst */
	uint32_t nodes, per_node;
};

static int count(void *arg, const struct ptc_move *m)
{
	struct picture *p = arg;
	struct rank_bytes *r = &p->ranks[m->dst_rank];
	int64_t bytes = ptc_box_volume(&m->box);

	switch (m->kind) {
	case PTC_MOVE_KEEP:
		r->kept += bytes;
		break;
	case PTC_MOVE_BETWEEN:
		r->between += bytes;
		p->lines[(size_t)m->src_node * p->nodes + m->dst_node] += bytes;
		break;
	default:
		r->within += bytes;
	}
	return 0;
}

static uint32_t side_width(const struct picture *p)
{
	return p->per_node * (CELL + GAP);
}

static uint32_t cell_x(const struct picture *p, uint32_t device, bool after)
{
	return LEFT + (after ? side_width(p) + MIDDLE : 0) + device * (CELL + GAP);
}

static uint32_t cell_y(uint32_t node)
{
	return TOP + node * ROW;
}

static void put_rect(double x, double y, double w, double h, const char *fill, const char *stroke)
{
	printf("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" stroke=\"%s\"/>\n", x, y, w, h,
	       fill, stroke);
}

static void put_label(double x, double y, int size, const char *anchor, const char *text)
{
	printf("<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\">%s</text>\n", x, y, size, anchor, text);
}

static void put_rank(const struct ptc_layout *l, uint32_t rank, uint32_t x, uint32_t y)
{
	struct ptc_coords k = ptc_config_coords(ptc_layout_config(l), rank);
	char text[64];

	snprintf(text, sizeof text, "%u", rank);
	put_label(x + CELL / 2.0, y + 18, 13, "middle", text);
	snprintf(text, sizeof text, "t%u p%u d%u", k.tp, k.pp, k.dp);
	put_label(x + CELL / 2.0, y + 33, 9, "middle", text);
}

/* From the bottom: kept, from the node, from others. */
static void put_fill(const struct rank_bytes *r, uint32_t x, uint32_t y)
{
	static const char *const colours[] = { "#9fd39f", "#f3d98b", "#eb9a8f" };
	const int64_t parts[] = { r->kept, r->within, r->between };
	double all = (double)(r->kept + r->within + r->between), at = y + CELL;

	for (int i = 0; i < 3 && all > 0; i++) {
		double h = (double)parts[i] / all * CELL;

		at -= h;
		if (h > 0)
			put_rect(x, at, CELL, h, colours[i], "none");
	}
	put_rect(x, y, CELL, CELL, "none", "#333");
}

static void put_lines(const struct picture *p)
{
	double x = LEFT + side_width(p) + 4, most = 1;

	for (size_t i = 0; i < (size_t)p->nodes * p->nodes; i++)
		most = PTC_MAX(most, (double)p->lines[i]);
	for (uint32_t a = 0; a < p->nodes; a++)
		for (uint32_t b = 0; b < p->nodes; b++) {
			int64_t bytes = p->lines[(size_t)a * p->nodes + b];

			if (bytes)
				printf("<line x1=\"%.0f\" y1=\"%u\" x2=\"%.0f\" y2=\"%u\" stroke=\"#b5483a\" "
				       "stroke-opacity=\"0.6\" stroke-width=\"%.2f\"><title>node %u to node %u: "
				       "%" PRId64 " bytes</title></line>\n",
				       x, cell_y(a) + CELL / 2, x + MIDDLE - 14, cell_y(b) + CELL / 2,
				       0.5 + 5.5 * (double)bytes / most, a, b, bytes);
		}
}

static void put_cells(const struct picture *p)
{
	const struct ctl_switch *s = p->s;
	char text[64];

	for (uint32_t n = 0; n < p->nodes; n++) {
		snprintf(text, sizeof text, "node %u", n);
		put_label(LEFT - 10, cell_y(n) + CELL / 2.0 + 4, 12, "end", text);
		for (uint32_t d = 0; d < p->per_node; d++) {
			put_rect(cell_x(p, d, false), cell_y(n), CELL, CELL, "#f4f4f4", "#ccc");
			put_rect(cell_x(p, d, true), cell_y(n), CELL, CELL, "#f4f4f4", "#ccc");
		}
	}
	for (uint32_t r = 0; r < s->was.world; r++) {
		uint32_t x = cell_x(p, s->was.ranks[r].index, false), y = cell_y(s->was.ranks[r].node);

		put_rect(x, y, CELL, CELL, "#d7e3f4", "#333");
		put_rank(s->from, r, x, y);
	}
	for (uint32_t r = 0; r < s->now.world; r++) {
		uint32_t x = cell_x(p, s->now.ranks[r].index, true), y = cell_y(s->now.ranks[r].node);

		put_fill(&p->ranks[r], x, y);
		put_rank(s->to, r, x, y);
	}
}

static void put_legend(const struct picture *p, const struct ptc_plan *plan)
{
	const struct ctl_switch *s = p->s;
	char text[256], bytes[32], bound[32];
	uint32_t y = TOP + p->nodes * ROW;

	/* one above the other and the rest below, as each may be longer than the cells are wide */
	put_label(LEFT, 24, 14, "start", s->from_text);
	put_label(cell_x(p, 0, true), 44, 14, "start", s->to_text);
	snprintf(text, sizeof text, "between nodes %s, bound %s%s",
		 ctl_bytes((uint64_t)plan->between_nodes, bytes, sizeof bytes),
		 ctl_bytes((uint64_t)plan->bound_any, bound, sizeof bound), plan->bound_any_exact ? " (exact)" : "");
	put_label(LEFT, y + 14, 12, "start", text);
	put_label(LEFT, y + 32, 11, "start",
		  "green: stays on its device; yellow: from its node; red: from other nodes");
}

static void draw(const struct picture *p, const struct ptc_plan *plan)
{
	uint32_t width = LEFT + 2 * side_width(p) + MIDDLE + 20, height = TOP + p->nodes * ROW + 44;

	width = PTC_MAX(width, LEFT + LEGEND_WIDTH);
	width = PTC_MAX(width, cell_x(p, 0, true) + (uint32_t)strlen(p->s->to_text) * LETTER + 20);

	printf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" font-family=\"sans-serif\">\n",
	       width, height);
	put_rect(0, 0, width, height, "white", "none");
	put_legend(p, plan);
	put_lines(p);
	put_cells(p);
	puts("</svg>");
}

int ctl_plan_svg(const struct ctl_switch *s, struct ptc_error *err)
{
	struct picture p = { .s = s, .nodes = s->o->cluster.nodes, .per_node = s->o->cluster.per_node };
	struct ptc_plan *plan;
	int rc;

	if (p.nodes > MAX_NODES)
		return ptc_error_set(err, PTC_ELIMIT, "a picture of more than %d nodes; use --format table", MAX_NODES);
	p.ranks = ptc_calloc(s->now.world, sizeof *p.ranks);
	p.lines = ptc_calloc((size_t)p.nodes * p.nodes, sizeof *p.lines);
	rc = p.ranks && p.lines ? ctl_switch_plan(s, count, &p, true, &plan, err)
				: ptc_error_set(err, PTC_ENOMEM, "out of memory");
	if (!rc) {
		draw(&p, plan);
		ptc_plan_free(plan);
	}
	ptc_free(p.ranks);
	ptc_free(p.lines);
	return rc;
}
