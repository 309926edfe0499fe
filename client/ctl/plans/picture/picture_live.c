/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a daemon as a picture. A node has a row if the node has ranks before or after the switch, moves bytes, is
 * down, or is drained. The document knows bytes by node, so all cells of a node are filled alike. Failure modes: a
 * document that contradicts itself (PTC_EPEER), memory. */
#include "client/ctl/plans/picture/picture.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>

struct live {
	json_t *doc;
	struct ctl_picture p;
	struct ptc_config from, to;
	struct ctl_picture_node *nodes;
	struct ctl_picture_rank *was, *now;
	uint32_t *devices;
	int64_t *held; /* bytes per node after the switch */
	char note[256], colours[320];
};

static const char *string(const json_t *object, const char *key)
{
	const char *s = json_string_value(json_object_get(object, key));

	return s ? s : "";
}

static int wrong(struct ptc_error *err, const char *member)
{
	return ptc_error_set(err, PTC_EPEER, "the daemon's plan makes no picture: `%s` is not as docs/control.md says",
			     member);
}

/* ---- rows ------------------------------------------------------------------------------ */

static bool names_node(const json_t *ranks, const char *node)
{
	const json_t *rank;
	size_t i;

	json_array_foreach(ranks, i, rank) {
		if (!strcmp(string(rank, "node"), node))
			return true;
	}
	return false;
}

static bool is_shown(const struct live *l, const json_t *row)
{
	const char *name = string(row, "node");

	return strcmp(string(row, "state"), "up") != 0 || ptc_json_count(row, "in_bytes") ||
	       ptc_json_count(row, "out_bytes") || ptc_json_count(row, "held_bytes") ||
	       names_node(json_object_get(l->doc, "from_ranks"), name) ||
	       names_node(json_object_get(l->doc, "ranks"), name);
}

static void take_node(struct live *l, const json_t *row)
{
	const char *state = string(row, "state");
	uint32_t n = l->p.nnodes++;

	l->nodes[n] = (struct ctl_picture_node){ .name = string(row, "node"),
						 .state = !strcmp(state, "down")      ? CTL_NODE_DOWN
							  : !strcmp(state, "drained") ? CTL_NODE_DRAINED
										      : CTL_NODE_UP,
						 .in_bytes = (int64_t)ptc_json_count(row, "in_bytes"),
						 .out_bytes = (int64_t)ptc_json_count(row, "out_bytes") };
	l->held[n] = (int64_t)ptc_json_count(row, "held_bytes");
	l->devices[n] = (uint32_t)PTC_MIN(ptc_json_count(row, "devices"), (uint64_t)PTC_MAX_DEVICES_PER_NODE);
	l->p.per_node = PTC_MAX(l->p.per_node, l->devices[n]);
}

static int take_nodes(struct live *l, struct ptc_error *err)
{
	const json_t *rows = json_object_get(l->doc, "nodes"), *row;
	size_t n = json_array_size(rows), i, shown = 0;

	if (!n || !json_object_get(json_array_get(rows, 0), "state"))
		return ptc_error_set(err, PTC_EPEER,
				     "the daemon does not say what a picture needs; upgrade it, or use --format table");
	l->nodes = ptc_calloc(n, sizeof *l->nodes);
	l->held = ptc_calloc(n, sizeof *l->held);
	l->devices = ptc_calloc(n, sizeof *l->devices);
	if (!l->nodes || !l->held || !l->devices)
		return ptc_nomem(err);
	json_array_foreach(rows, i, row) {
		if (!is_shown(l, row))
			continue;
		if (++shown > CTL_PICTURE_NODES) {
			l->p.nnodes = (uint32_t)shown; /* too many, as drawing says */
			return 0;
		}
		take_node(l, row);
	}
	l->p.nodes = l->nodes;
	l->p.devices = l->devices;
	return 0;
}

/* ---- ranks ----------------------------------------------------------------------------- */

static int take_rank(struct live *l, const json_t *row, struct ctl_picture_rank *ret)
{
	uint64_t device = ptc_json_count(row, "device");
	uint32_t n = 0;

	while (n < l->p.nnodes && strcmp(l->nodes[n].name, string(row, "node")) != 0)
		n++;
	if (n == l->p.nnodes || device >= PTC_MAX_DEVICES_PER_NODE)
		return PTC_EPEER;
	l->devices[n] = PTC_MAX(l->devices[n], (uint32_t)device + 1); /* a node that is gone tells none */
	l->p.per_node = PTC_MAX(l->p.per_node, l->devices[n]);
	*ret = (struct ctl_picture_rank){ .node = n, .device = (uint32_t)device };
	return 0;
}

static int take_ranks(struct live *l, const char *member, const char *config_member, struct ptc_config *config,
		      struct ctl_picture_rank **ret, uint32_t *ret_n, struct ptc_error *err)
{
	const json_t *rows = json_object_get(l->doc, member), *row;
	size_t n = json_array_size(rows), i;
	uint32_t world = 0;

	if (!n)
		return 0;
	if (ptc_config_parse(string(l->doc, config_member), config, NULL) || ptc_config_world(config, &world, NULL) ||
	    world != n)
		return wrong(err, config_member);
	*ret = ptc_calloc(n, sizeof **ret);
	if (!*ret)
		return ptc_nomem(err);
	json_array_foreach(rows, i, row) {
		if (take_rank(l, row, &(*ret)[i]))
			return wrong(err, member);
	}
	*ret_n = (uint32_t)n;
	return 0;
}

/* Of each node's bytes, what it has already is green, and what it gets red. */
static void fill_cells(struct live *l)
{
	for (uint32_t r = 0; r < l->p.nnow; r++) {
		uint32_t n = l->now[r].node;

		l->now[r].parts[0] = PTC_MAX(l->held[n] - l->nodes[n].in_bytes, 0);
		l->now[r].parts[2] = PTC_MAX(l->nodes[n].in_bytes, 0);
	}
}

/* ---- texts ----------------------------------------------------------------------------- */

static void write_texts(struct live *l)
{
	const json_t *totals = json_object_get(l->doc, "totals");
	const char *from = string(l->doc, "from");
	char bytes[32], bound[32];

	l->p.job = string(l->doc, "job");
	l->p.before = *from ? from : "nothing";
	l->p.after = string(l->doc, "to");
	if (json_is_object(totals)) {
		snprintf(l->note, sizeof l->note, "between nodes %s, bound %s%s",
			 ctl_bytes(ptc_json_count(totals, "between_nodes"), bytes, sizeof bytes),
			 ctl_bytes(ptc_json_count(totals, "bound_any_mapping"), bound, sizeof bound),
			 json_is_true(json_object_get(totals, "bound_exact")) ? " (exact)" : "");
		snprintf(l->colours, sizeof l->colours,
			 "by node, of what its ranks need: green: on the node already; red: from other nodes");
	} else {
		snprintf(l->note, sizeof l->note,
			 "what moves is known once ranks have been built with %.80s for the first time", l->p.after);
		snprintf(l->colours, sizeof l->colours, "a cell: a device and its rank");
	}
	l->p.note = l->note;
	l->p.colours = l->colours;
}

static int draw(struct live *l, struct ptc_error *err)
{
	int rc = take_nodes(l, err);

	if (!rc && l->p.nnodes <= CTL_PICTURE_NODES)
		rc = take_ranks(l, "from_ranks", "from", &l->from, &l->was, &l->p.nwas, err);
	if (!rc && l->p.nnodes <= CTL_PICTURE_NODES)
		rc = take_ranks(l, "ranks", "to", &l->to, &l->now, &l->p.nnow, err);
	if (rc)
		return rc;
	l->p.was = l->was;
	l->p.now = l->now;
	l->p.from = &l->from;
	l->p.to = &l->to;
	fill_cells(l);
	write_texts(l);
	return ctl_picture_print(&l->p, err);
}

int ctl_picture_of_plan(const char *json, struct ptc_error *err)
{
	struct live *l = ptc_calloc(1, sizeof *l); /* configurations are large */
	int rc = l ? ptc_json_load("plan", json, strlen(json), &l->doc, err) : ptc_nomem(err);

	if (!rc)
		rc = draw(l, err);
	if (l) {
		json_decref(l->doc);
		ptc_free(l->nodes);
		ptc_free(l->held);
		ptc_free(l->devices);
		ptc_free(l->was);
		ptc_free(l->now);
	}
	ptc_free(l);
	return rc;
}
