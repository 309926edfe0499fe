/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a request becomes a configuration (given, from the job's table,
 * or the default), the live devices it may use are listed, reshard/ places the
 * ranks and counts what moves. Failure modes: more devices asked for than are
 * known (PTC_ENODEVICES: only a scheduler grants nodes), a rule that does not
 * fit (PTC_ELAYOUT naming the tensor), bytes without a live source (PTC_ELOST). */
#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/daemon.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>

void ptc_planned_done(struct ptc_planned *p)
{
	ptc_generation_doc_done(&p->to);
	ptc_free(p->json);
	memset(p, 0, sizeof *p);
}

/* ---- which configuration -------------------------------------------------------- */

/* No --config and nothing in the table: keep tp and pp when they divide n, else dp alone. */
static int default_config(const char *current, uint32_t gpus, struct ptc_config *ret_config, struct ptc_error *err)
{
	struct ptc_config c;
	char text[32];
	int rc;

	if (current && ptc_config_parse(current, &c, NULL) == 0 && c.tp * c.pp * c.cp != 0 &&
	    gpus % (c.tp * c.pp * c.cp) == 0) {
		c.dp = gpus / (c.tp * c.pp * c.cp);
		*ret_config = c;
		return 0;
	}
	snprintf(text, sizeof text, "dp=%u", gpus);
	rc = ptc_config_parse(text, ret_config, err);
	return rc;
}

static int choose_config(const struct ptc_job_desc *desc, const char *current, const struct ptc_plan_request *req,
			 struct ptc_config *ret_config, struct ptc_error *err)
{
	const struct ptc_config *known;
	uint32_t world;
	int rc;

	if (req->config && req->config[0]) {
		rc = ptc_config_parse(req->config, ret_config, err);
		if (rc == 0)
			rc = ptc_config_world(ret_config, &world, err);
		if (rc == 0 && req->gpus && world != req->gpus)
			rc = ptc_error_set(err, PTC_EINVAL, "--config %s needs %u devices, --gpus says %u", req->config,
					   world, req->gpus);
		return rc;
	}
	if (req->gpus == 0)
		return ptc_error_set(err, PTC_EINVAL, "neither a configuration nor a number of gpus is given");
	known = ptc_job_config_for(desc, req->gpus);
	if (known) {
		*ret_config = *known;
		return 0;
	}
	return default_config(current, req->gpus, ret_config, err);
}

/* ---- which devices ---------------------------------------------------------------- */

struct pool {
	struct ptc_daemon *d;
	const struct ptc_plan_request *req;
	char **names; /* plan node number -> name; the view's nodes come first */
	size_t nnames;
	bool *usable;       /* as a source */
	uint64_t *ceilings; /* of chunks; 0: not known, the node is down */
	struct ptc_device *devices;
	size_t ndevices;
	const struct ptc_view *v;
	int rc;
};

static bool wanted(const struct pool *p, const char *name)
{
	for (size_t i = 0; i < p->req->nnodes; i++)
		if (strcmp(p->req->nodes[i], name) == 0)
			return true;
	return p->req->nnodes == 0;
}

static uint32_t pool_name(struct pool *p, const char *name)
{
	for (size_t i = 0; i < p->nnames; i++)
		if (strcmp(p->names[i], name) == 0)
			return (uint32_t)i;
	p->names[p->nnames] = ptc_strdup(name);
	if (!p->names[p->nnames])
		p->rc = PTC_ENOMEM;
	return (uint32_t)p->nnames++;
}

/* Loop thread. */
static void collect(void *arg)
{
	struct pool *p = arg;
	struct ptc_cluster *c = p->d->cluster;
	size_t most = ptc_cluster_nnodes(c) + p->v->nnodes, devices = 0;

	for (uint32_t i = 0; i < ptc_cluster_nnodes(c); i++)
		devices += ptc_cluster_node(c, i)->doc.devices;
	p->names = ptc_calloc(most, sizeof *p->names);
	p->usable = ptc_calloc(most, sizeof *p->usable);
	p->ceilings = ptc_calloc(most, sizeof *p->ceilings);
	p->devices = ptc_calloc(devices, sizeof *p->devices);
	if (!p->names || !p->usable || !p->ceilings || !p->devices) {
		p->rc = PTC_ENOMEM;
		return;
	}
	for (size_t i = 0; i < p->v->nnodes; i++)
		pool_name(p, p->v->nodes[i]);
	for (uint32_t i = 0; i < ptc_cluster_nnodes(c); i++) {
		const struct ptc_node *n = ptc_cluster_node(c, i);
		uint32_t number;

		if (!n->up || p->rc)
			continue;
		number = pool_name(p, n->doc.name);
		p->usable[number] = true;
		p->ceilings[number] = n->doc.ceiling_bytes;
		if (n->drained || !wanted(p, n->doc.name))
			continue;
		for (uint32_t k = 0; k < n->doc.devices; k++)
			p->devices[p->ndevices++] = (struct ptc_device){ number, k };
	}
}

static void pool_done(struct pool *p)
{
	for (size_t i = 0; i < p->nnames; i++)
		ptc_free(p->names[i]);
	ptc_free(p->names);
	ptc_free(p->usable);
	ptc_free(p->ceilings);
	ptc_free(p->devices);
}

static int check_known(const struct pool *p, struct ptc_error *err)
{
	for (size_t i = 0; i < p->req->nnodes; i++) {
		bool found = false;

		for (size_t k = 0; k < p->nnames && !found; k++)
			found = strcmp(p->names[k], p->req->nodes[i]) == 0 && p->usable[k];
		if (!found)
			return ptc_error_set(err, PTC_ENOTFOUND,
					     "node \"%s\" is not known or is down; see `ptcctl nodes`",
					     p->req->nodes[i]);
	}
	return 0;
}

/* ---- the plan ------------------------------------------------------------------------ */

struct layouts {
	struct ptc_layout *from, *to;
	struct ptc_allocation from_alloc, to_alloc;
	struct ptc_plan *plan;
	struct ptc_plan *need; /* the same layout brought to empty nodes: in_bytes is what each node will hold */
	int64_t gap;
};

static void layouts_done(struct layouts *l)
{
	ptc_layout_free(l->from);
	ptc_layout_free(l->to);
	ptc_allocation_done(&l->from_alloc);
	ptc_allocation_done(&l->to_alloc);
	ptc_plan_free(l->plan);
	ptc_plan_free(l->need);
}

static int make_layouts(const struct ptc_spec *spec, const struct ptc_view *v, const struct ptc_config *config,
			const struct pool *p, struct layouts *l, struct ptc_error *err)
{
	struct ptc_config from;
	uint32_t world;
	int rc = ptc_config_world(config, &world, err);

	if (rc == 0 && world > p->ndevices) /* before a layout is made, which for many ranks is large */
		rc = ptc_error_set(
			err, PTC_ENODEVICES,
			"%u devices are needed, %zu are known, up and not drained; add nodes first (`ptcctl nodes`)",
			world, p->ndevices);
	if (rc == 0)
		rc = ptc_layout_new(spec, config, &l->to, err);
	if (rc == 0 && v->from_generation) {
		rc = ptc_config_parse(v->from.config, &from, err);
		if (rc == 0)
			rc = ptc_layout_new(spec, &from, &l->from, err);
		if (rc == 0 && ptc_view_allocation(v, &v->from, &l->from_alloc) != 0)
			rc = ptc_error_set(err, PTC_ENOMEM, "out of memory");
	}
	if (rc)
		return rc;
	rc = ptc_place(spec, l->from, l->from ? &l->from_alloc : NULL, l->to, p->devices, p->ndevices,
		       (uint32_t)p->nnames, &l->to_alloc, &l->gap, err);
	if (rc == 0)
		rc = ptc_plan_new(spec, l->from, l->from ? &l->from_alloc : NULL, l->to, &l->to_alloc,
				  (uint32_t)p->nnames, p->usable, &l->plan, err);
	if (rc == 0)
		rc = ptc_plan_new(spec, NULL, NULL, l->to, &l->to_alloc, (uint32_t)p->nnames, NULL, &l->need, err);
	return rc;
}

/* Names only nodes that ranks use, in order of first use. */
static int make_doc(const struct pool *p, const struct ptc_config *config, const struct ptc_allocation *a,
		    struct ptc_generation_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_generation_doc g = { 0 };
	ptc_auto_free uint32_t *number = ptc_malloc(p->nnames * sizeof *number);
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);

	g.nodes = ptc_calloc(p->nnames, sizeof *g.nodes);
	g.rank_node = ptc_calloc(a->world, sizeof *g.rank_node);
	g.rank_device = ptc_calloc(a->world, sizeof *g.rank_device);
	if (!number || !text || !g.nodes || !g.rank_node || !g.rank_device)
		goto nomem;
	memset(number, 0xff, p->nnames * sizeof *number);
	if (ptc_config_format(config, text, PTC_CONFIG_TEXT_MAX) != 0 || !(g.config = ptc_strdup(text)))
		goto nomem;
	g.world = a->world;
	for (uint32_t r = 0; r < a->world; r++) {
		uint32_t n = a->ranks[r].node;

		if (number[n] == UINT32_MAX) {
			number[n] = (uint32_t)g.nnodes;
			g.nodes[g.nnodes] = ptc_strdup(p->names[n]);
			if (!g.nodes[g.nnodes++])
				goto nomem;
		}
		g.rank_node[r] = number[n];
		g.rank_device[r] = a->ranks[r].index;
	}
	*ret_doc = g;
	return 0;
nomem:
	ptc_generation_doc_done(&g);
	return ptc_error_set(err, PTC_ENOMEM, "out of memory");
}

static json_t *node_rows(const struct pool *p, const struct layouts *l)
{
	const struct ptc_plan *plan = l->plan;
	json_t *rows = json_array();

	for (size_t i = 0; i < p->nnames; i++)
		if (plan->in_bytes[i] || plan->out_bytes[i] || l->need->in_bytes[i])
			json_array_append_new(rows, json_pack("{s:s, s:I, s:I, s:I, s:I}", "node", p->names[i],
							      "in_bytes", (json_int_t)plan->in_bytes[i], "out_bytes",
							      (json_int_t)plan->out_bytes[i], "held_bytes",
							      (json_int_t)l->need->in_bytes[i], "ceiling_bytes",
							      (json_int_t)p->ceilings[i]));
	return rows;
}

static char *plan_json(const struct pool *p, const struct ptc_view *v, const struct ptc_generation_doc *to,
		       const struct layouts *l)
{
	json_t *ranks = json_array(), *root;
	char *text;

	for (uint32_t r = 0; r < to->world; r++)
		json_array_append_new(ranks,
				      json_pack("{s:I, s:s, s:I}", "rank", (json_int_t)r, "node",
						to->nodes[to->rank_node[r]], "device", (json_int_t)to->rank_device[r]));
	root = json_pack("{s:i, s:s, s:s, s:s, s:o, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:b, s:I}}", "version", 1, "job",
			 v->meta.name, "from", v->from.config ? v->from.config : "", "to", to->config, "ranks", ranks,
			 "nodes", node_rows(p, l), "totals", "in_place", (json_int_t)l->plan->in_place, "within_node",
			 (json_int_t)l->plan->within_node, "between_nodes", (json_int_t)l->plan->between_nodes,
			 "bound_this_mapping", (json_int_t)l->plan->bound_mapping, "bound_any_mapping",
			 (json_int_t)(l->plan->between_nodes - l->gap), "bound_exact", (int)(l->gap == 0), "gap",
			 (json_int_t)l->gap);
	text = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	return text;
}

int ptc_plan_switch(struct ptc_daemon *d, const struct ptc_view *v, const struct ptc_plan_request *req,
		    struct ptc_planned *ret_planned, struct ptc_error *err)
{
	struct pool p = { .d = d, .req = req, .v = v };
	struct ptc_planned planned = { 0 };
	struct layouts l = { 0 };
	const struct ptc_job_desc *desc;
	struct ptc_config config;
	void *ref = NULL;
	int rc = req->nnodes > PTC_MAX_NODES
			 ? ptc_error_set(err, PTC_ELIMIT, "%zu nodes are named; at most %u exist", req->nnodes,
					 PTC_MAX_NODES)
			 : ptc_specs_get(d->specs, v->meta.uuid, v->meta.spec_hash, &desc, &ref, err);

	if (rc == 0)
		rc = choose_config(desc, v->from.config, req, &config, err);
	if (rc == 0)
		rc = ptc_loop_call(d->loop, collect, &p);
	if (rc == 0 && p.rc)
		rc = ptc_error_set(err, p.rc, "out of memory");
	if (rc == 0)
		rc = check_known(&p, err);
	if (rc == 0)
		rc = make_layouts(&desc->spec, v, &config, &p, &l, err);
	if (rc == 0)
		rc = make_doc(&p, &config, &l.to_alloc, &planned.to, err);
	if (rc == 0) {
		planned.json = plan_json(&p, v, &planned.to, &l);
		rc = planned.json ? 0 : ptc_error_set(err, PTC_ENOMEM, "out of memory");
	}
	layouts_done(&l);
	pool_done(&p);
	ptc_specs_release(ref);
	if (rc) {
		ptc_planned_done(&planned);
		return rc;
	}
	*ret_planned = planned;
	return 0;
}
