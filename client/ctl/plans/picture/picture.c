/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a switch. A cell of a rank after the switch is filled from the bottom with three shares: bytes that stay on the
 * device, bytes from the rank's node, bytes from other nodes. Lines join nodes that send and get; a line is as wide as
 * its bytes. If only sums are known, lines end at one bar in the middle, which stands for the network. A node that is
 * down or drained lies on a band, with its state below its name; what failed is crossed out; the legend explains the
 * marks that are there. Failure mode: memory. */
#include "client/ctl/plans/picture/picture.h"

#include "base/buf.h"
#include "base/check.h"
#include "client/ctl/show/show.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CELL         44
#define GAP          6
#define ROW          (CELL + 18)
#define LEFT         70
#define MIDDLE       180
#define TOP          64
#define LETTER       9 /* the widest a letter of a heading is likely to be */
#define LEGEND_WIDTH 480
#define LEGEND_LINE  18
#define NMARKS       3

struct drawing {
	const struct ctl_picture *p;
	struct ptc_buf b;
	uint32_t left;
	bool marks[NMARKS]; /* which of the legend's are there */
};

static const struct {
	const char *class, *fill, *about;
} marks[NMARKS] = {
	{ "down", "#fbdcd9", "node is down, with all that it had" },
	{ "drained", "#fff1c2", "node is drained: no rank is put there, it may send" },
	{ "failed", "none", "device failed: no rank is put there" },
};

static uint32_t side_width(const struct drawing *d)
{
	return d->p->per_node * (CELL + GAP);
}

static uint32_t cell_x(const struct drawing *d, uint32_t device, bool after)
{
	return d->left + (after ? side_width(d) + MIDDLE : 0) + device * (CELL + GAP);
}

static uint32_t cell_y(uint32_t node)
{
	return TOP + node * ROW;
}

static void put_rect(struct drawing *d, double x, double y, double w, double h, const char *fill, const char *stroke)
{
	ptc_buf_printf(&d->b,
		       "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" stroke=\"%s\"/>\n", x, y,
		       w, h, fill, stroke);
}

static void put_label(struct drawing *d, double x, double y, int size, const char *anchor, const char *text)
{
	ptc_buf_printf(&d->b, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\">", x, y, size, anchor);
	ctl_put_escaped(&d->b, text);
	ptc_buf_puts(&d->b, "</text>\n");
}

static void put_rank(struct drawing *d, const struct ptc_config *c, uint32_t rank, uint32_t x, uint32_t y)
{
	struct ptc_coords k = ptc_config_coords(c, rank);
	char text[64];

	snprintf(text, sizeof text, "%u", rank);
	put_label(d, x + CELL / 2.0, y + 18, 13, "middle", text);
	snprintf(text, sizeof text, "t%u p%u d%u", k.tp, k.pp, k.dp);
	put_label(d, x + CELL / 2.0, y + 33, 9, "middle", text);
}

static void put_fill(struct drawing *d, const int64_t parts[3], uint32_t x, uint32_t y)
{
	static const char *const colours[] = { "#9fd39f", "#f3d98b", "#eb9a8f" };
	double all = (double)(parts[0] + parts[1] + parts[2]), at = y + CELL;

	for (int i = 0; i < 3 && all > 0; i++) {
		double h = (double)parts[i] / all * CELL;

		at -= h;
		if (h > 0)
			put_rect(d, x, at, CELL, h, colours[i], "none");
	}
	put_rect(d, x, y, CELL, CELL, "none", "#333");
}

/* ---- what failed or is to be left ------------------------------------------------------ */

static void put_cross(struct drawing *d, double x, double y, double size)
{
	ptc_buf_printf(&d->b,
		       "<path class=\"failed\" d=\"M%.1f %.1fl%.1f %.1fm-%.1f 0l%.1f -%.1f\" stroke=\"#b5483a\" "
		       "stroke-width=\"2\" fill=\"none\"/>\n",
		       x, y, size, size, size, size, size);
}

static void put_band(struct drawing *d, int mark, double x, double y, double w, double h)
{
	ptc_buf_printf(&d->b, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
		       marks[mark].class, x, y, w, h, marks[mark].fill);
}

/* The mark of a node that is not up. */
static int mark_of(const struct ctl_picture_node *n)
{
	return n->state == CTL_NODE_DOWN ? 0 : 1;
}

static bool device_failed(const struct ctl_picture *p, uint32_t node, uint32_t device)
{
	return p->nodes[node].state == CTL_NODE_DOWN || (p->failed && p->failed[node * p->per_node + device]);
}

static void find_marks(struct drawing *d)
{
	const struct ctl_picture *p = d->p;

	for (uint32_t n = 0; n < p->nnodes; n++) {
		if (p->nodes[n].state != CTL_NODE_UP)
			d->marks[mark_of(&p->nodes[n])] = true;
		else
			for (uint32_t i = 0; i < p->per_node; i++)
				d->marks[2] |= device_failed(p, n, i);
	}
}

static uint32_t count_marks(const struct drawing *d)
{
	uint32_t n = 0;

	for (int i = 0; i < NMARKS; i++)
		n += d->marks[i];
	return n;
}

static void put_mark_legend(struct drawing *d, uint32_t y)
{
	for (int i = 0; i < NMARKS; i++) {
		if (!d->marks[i])
			continue;
		if (i < 2)
			put_band(d, i, d->left, y - 10, 14, 12);
		else
			put_cross(d, d->left + 1, y - 10, 12);
		put_label(d, d->left + 20, y, 11, "start", marks[i].about);
		y += LEGEND_LINE;
	}
}

/* ---- lines ----------------------------------------------------------------------------- */

static void put_line(struct drawing *d, double from_x, uint32_t from_y, double to_x, uint32_t to_y, double share)
{
	ptc_buf_printf(&d->b,
		       "<line x1=\"%.0f\" y1=\"%u\" x2=\"%.0f\" y2=\"%u\" stroke=\"#b5483a\" stroke-opacity=\"0.6\" "
		       "stroke-width=\"%.2f\"><title>",
		       from_x, from_y, to_x, to_y, 0.5 + 5.5 * share);
}

static void put_pairs(struct drawing *d)
{
	const struct ctl_picture *p = d->p;
	double x = d->left + side_width(d) + 4, most = 1;

	for (size_t i = 0; i < (size_t)p->nnodes * p->nnodes; i++)
		most = PTC_MAX(most, (double)p->lines[i]);
	for (uint32_t a = 0; a < p->nnodes; a++)
		for (uint32_t b = 0; b < p->nnodes; b++) {
			int64_t bytes = p->lines[(size_t)a * p->nnodes + b];

			if (!bytes)
				continue;
			put_line(d, x, cell_y(a) + CELL / 2, x + MIDDLE - 14, cell_y(b) + CELL / 2,
				 (double)bytes / most);
			ctl_put_escaped(&d->b, p->nodes[a].name);
			ptc_buf_puts(&d->b, " to ");
			ctl_put_escaped(&d->b, p->nodes[b].name);
			ptc_buf_printf(&d->b, ": %" PRId64 " bytes</title></line>\n", bytes);
		}
}

static void put_sum(struct drawing *d, uint32_t node, bool in, double most)
{
	const struct ctl_picture_node *n = &d->p->nodes[node];
	double x = d->left + side_width(d) + 4, middle = x + MIDDLE / 2.0 - 7;
	int64_t bytes = in ? n->in_bytes : n->out_bytes;
	uint32_t y = cell_y(node) + CELL / 2;
	char text[32];

	if (bytes <= 0)
		return;
	put_line(d, in ? middle : x, y, in ? x + MIDDLE - 14 : middle, y, (double)bytes / most);
	ctl_put_escaped(&d->b, n->name);
	ptc_buf_printf(&d->b, " %s %" PRId64 " bytes</title></line>\n", in ? "gets" : "sends", bytes);
	put_label(d, (in ? middle + x + MIDDLE - 14 : x + middle) / 2, y - 7, 9, "middle",
		  ctl_bytes((uint64_t)bytes, text, sizeof text));
}

static void put_sums(struct drawing *d)
{
	const struct ctl_picture *p = d->p;
	double x = d->left + side_width(d) + 4 + MIDDLE / 2.0 - 7, most = 0;

	for (uint32_t n = 0; n < p->nnodes; n++)
		most = PTC_MAX(most, (double)PTC_MAX(p->nodes[n].in_bytes, p->nodes[n].out_bytes));
	if (most <= 0)
		return;
	put_rect(d, x - 2, TOP, 4, (p->nnodes - 1) * ROW + CELL, "#999", "none");
	for (uint32_t n = 0; n < p->nnodes; n++) {
		put_sum(d, n, false, most);
		put_sum(d, n, true, most);
	}
}

/* ---- cells ----------------------------------------------------------------------------- */

static void put_node(struct drawing *d, uint32_t n)
{
	const struct ctl_picture *p = d->p;
	uint32_t devices = p->devices ? p->devices[n] : p->per_node;
	bool up = p->nodes[n].state == CTL_NODE_UP;

	if (!up)
		put_band(d, mark_of(&p->nodes[n]), 4, cell_y(n) - 5, cell_x(d, p->per_node, true) - 4, CELL + 10);
	put_label(d, d->left - 10, cell_y(n) + CELL / 2.0 + (up ? 4 : -2), 12, "end", p->nodes[n].name);
	if (!up)
		put_label(d, d->left - 10, cell_y(n) + CELL / 2.0 + 13, 11, "end", marks[mark_of(&p->nodes[n])].class);
	for (uint32_t i = 0; i < devices; i++) {
		put_rect(d, cell_x(d, i, false), cell_y(n), CELL, CELL, "#f4f4f4", "#ccc");
		put_rect(d, cell_x(d, i, true), cell_y(n), CELL, CELL, "#f4f4f4", "#ccc");
	}
}

static void put_cells(struct drawing *d)
{
	const struct ctl_picture *p = d->p;

	for (uint32_t r = 0; r < p->nwas; r++) {
		uint32_t x = cell_x(d, p->was[r].device, false), y = cell_y(p->was[r].node);

		put_rect(d, x, y, CELL, CELL, "#d7e3f4", "#333");
		put_rank(d, p->from, r, x, y);
	}
	for (uint32_t r = 0; r < p->nnow; r++) {
		uint32_t x = cell_x(d, p->now[r].device, true), y = cell_y(p->now[r].node);

		put_fill(d, p->now[r].parts, x, y);
		put_rank(d, p->to, r, x, y);
	}
	for (uint32_t n = 0; n < p->nnodes; n++)
		for (uint32_t i = 0; i < (p->devices ? p->devices[n] : p->per_node); i++)
			if (device_failed(p, n, i))
				put_cross(d, cell_x(d, i, true) + 4, cell_y(n) + 4, CELL - 8);
}

/* One above the other and the rest below, as each may be longer than the cells are wide. */
static void put_texts(struct drawing *d)
{
	const struct ctl_picture *p = d->p;
	uint32_t y = TOP + p->nnodes * ROW;

	put_label(d, d->left, 24, 14, "start", p->before);
	put_label(d, cell_x(d, 0, true), 44, 14, "start", p->after);
	put_label(d, d->left, y + 14, 12, "start", p->note);
	put_label(d, d->left, y + 32, 11, "start", p->colours);
	put_mark_legend(d, y + 32 + LEGEND_LINE);
}

static void draw(struct drawing *d)
{
	const struct ctl_picture *p = d->p;
	uint32_t width, height;

	find_marks(d);
	width = d->left + 2 * side_width(d) + MIDDLE + 20;
	width = PTC_MAX(width, d->left + LEGEND_WIDTH);
	width = PTC_MAX(width, cell_x(d, 0, true) + (uint32_t)strlen(p->after) * LETTER + 20);
	width = PTC_MAX(width, d->left + (uint32_t)strlen(p->before) * LETTER + 20);
	height = TOP + p->nnodes * ROW + 44 + count_marks(d) * LEGEND_LINE;
	ptc_buf_printf(&d->b,
		       "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
		       "font-family=\"sans-serif\">\n<title>",
		       width, height);
	if (p->job)
		ptc_buf_printf(&d->b, "job ");
	ctl_put_escaped(&d->b, p->job);
	ptc_buf_puts(&d->b, p->job ? ": " : "");
	ctl_put_escaped(&d->b, p->before);
	ptc_buf_puts(&d->b, " to ");
	ctl_put_escaped(&d->b, p->after);
	ptc_buf_puts(&d->b, "</title>\n");
	put_rect(d, 0, 0, width, height, "white", "none");
	for (uint32_t n = 0; n < p->nnodes; n++)
		put_node(d, n);
	put_texts(d);
	if (p->lines)
		put_pairs(d);
	else
		put_sums(d);
	put_cells(d);
	ptc_buf_puts(&d->b, "</svg>\n");
}

int ctl_picture_print(const struct ctl_picture *p, struct ptc_error *err)
{
	struct drawing d = { .p = p, .left = LEFT };
	int rc = 0;

	if (p->nnodes > CTL_PICTURE_NODES)
		return ptc_error_set(err, PTC_ELIMIT, "a picture of more than %d nodes; use --format table",
				     CTL_PICTURE_NODES);
	for (uint32_t n = 0; n < p->nnodes; n++)
		d.left = PTC_MAX(d.left, (uint32_t)strlen(p->nodes[n].name) * LETTER + 20);
	draw(&d);
	if (ptc_buf_failed(&d.b))
		rc = ptc_nomem(err);
	else
		fwrite(d.b.data, 1, d.b.len, stdout);
	ptc_buf_done(&d.b);
	return rc;
}
