/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster's profile: devices by kind, links, measured groups and hops, measured steps. Fails on numbers that are
 * missing, negative or contradict each other, with their place. */
#include "planner/io/plan_doc.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "formats/doc_rows.h"
#include "planner/search/as_config.h"

#include <stdio.h>
#include <string.h>

struct reader {
	const struct ptc_doc *doc;
	struct ptc_error *err;
	struct ptc_plan_profile *p;
	const struct ptc_plan_devices *known; /* NULL: none */
	enum ptc_math dtype;
};
typedef int (*item_fn)(struct reader *r, const struct ptc_doc_node *node);

/* Each map of a list, which may be absent. */
static int each(struct reader *r, const char *key, size_t most, item_fn fn)
{
	const struct ptc_doc_node *list = ptc_doc_get(r->doc->root, key);
	int rc = 0;

	if (!list)
		return 0;
	if (list->kind != PTC_DOC_LIST || list->n > most)
		return ptc_doc_error(r->doc, list, r->err, PTC_EINVAL, "%s must be a list of at most %zu", key, most);
	for (const struct ptc_doc_node *n = list->first; n && !rc; n = n->next)
		rc = fn(r, n);
	return rc;
}

/* What a name stands for: in the caller's devices, else in those built in. */
static int take_known(struct reader *r, const struct ptc_doc_node *node, const char *name, struct ptc_device_kind *k)
{
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = r->known ? ptc_plan_device_find(r->known, name, r->dtype, k, &why) : PTC_ENOTFOUND;

	if (rc && rc != PTC_ENOTFOUND)
		return ptc_doc_error(r->doc, node, r->err, rc, "%s", why.text);
	if (!rc)
		return 0;
	if (!ptc_device_kind_known(name, k)) /* all numbers are needed then; the check names the missing one */
		snprintf(k->name, sizeof k->name, "%s", name);
	else if (r->dtype > PTC_MATH_FP16)
		return ptc_doc_error(r->doc, node, r->err, PTC_EINVAL,
				     "only the 16-bit peak of device %s is known here; give a file of devices", name);
	return 0;
}

static int read_device(struct reader *r, const struct ptc_doc_node *node)
{
	struct ptc_device_kind *k = &r->p->cluster.kinds[r->p->cluster.nkinds++];
	const struct ptc_doc_node *name = ptc_doc_get(node, "name");
	const char *text = NULL;
	const struct ptc_doc_row rows[] = { { "name", PTC_DOC_OTHER },
					    { "nodes", PTC_DOC_COUNT, &k->nodes, 1, PTC_MAX_RANKS },
					    { "flops", PTC_DOC_REAL, &k->flops, 0, 1e21 },
					    { "hbm_bytes_s", PTC_DOC_REAL, &k->hbm_bytes_s, 0, 1e21 },
					    { "memory_bytes", PTC_DOC_REAL, &k->memory_bytes, 0, 1e21 },
					    { "price_hour", PTC_DOC_REAL, &k->price_hour, 0, 1e21 } };
	int rc = name ? ptc_doc_text(r->doc, name, "name", &text, r->err)
		      : ptc_doc_error(r->doc, node, r->err, PTC_EINVAL, "a device without a name");

	if (rc)
		return rc;
	if (strlen(text) > PTC_DEVICE_NAME_MAX)
		return ptc_doc_error(r->doc, name, r->err, PTC_EINVAL, "a device's name has at most %d characters",
				     PTC_DEVICE_NAME_MAX);
	rc = take_known(r, name, text, k);
	k->nodes = 1;
	return rc ? rc : ptc_doc_read(r->doc, node, "devices", rows, PTC_ARRAY_LEN(rows), r->err);
}

static int read_measured_group(struct reader *r, const struct ptc_doc_node *node, const char *list,
			       struct ptc_measured_group *g)
{
	const struct ptc_doc_row rows[] = { { "size", PTC_DOC_COUNT, &g->size, 2, PTC_MAX_RANKS },
					    { "stride", PTC_DOC_COUNT, &g->stride, 1, PTC_MAX_RANKS },
					    { "bytes_s", PTC_DOC_REAL, &g->bytes_s, 1, 1e15 } };

	g->stride = 1;
	return ptc_doc_read(r->doc, node, list, rows, PTC_ARRAY_LEN(rows), r->err);
}

static int read_group(struct reader *r, const struct ptc_doc_node *node)
{
	struct ptc_cluster_profile *c = &r->p->cluster;

	return read_measured_group(r, node, "groups", &c->groups[c->ngroups++]);
}

static int read_hop(struct reader *r, const struct ptc_doc_node *node)
{
	struct ptc_cluster_profile *c = &r->p->cluster;

	return read_measured_group(r, node, "hops", &c->hops[c->nhops++]);
}

static int read_measured(struct reader *r, const struct ptc_doc_node *node)
{
	struct ptc_plan_measured *m = &r->p->measured[r->p->nmeasured];
	const struct ptc_doc_node *config = ptc_doc_get(node, "config");
	ptc_auto_free struct ptc_config *parsed = ptc_calloc(1, sizeof *parsed);
	const struct ptc_doc_row rows[] = { { "config", PTC_DOC_OTHER },
					    { "step_s", PTC_DOC_REAL, &m->step_s, 1e-9, 1e9 },
					    { "noise", PTC_DOC_REAL, &m->noise, 1e-3, 1 },
					    { "peak_bytes", PTC_DOC_REAL, &m->peak_bytes, 1, 1e15 } };
	struct ptc_error why = PTC_ERROR_INIT;
	int rc;

	if (!parsed)
		return ptc_nomem(r->err);
	if (!config || config->kind != PTC_DOC_TEXT)
		return ptc_doc_error(r->doc, node, r->err, PTC_EINVAL, "a measured step must have its config");
	rc = ptc_cand_parse(config->text, &m->cand, parsed, &why);
	if (rc)
		return ptc_doc_error(r->doc, config, r->err, rc, "%s", why.text);
	if (!parsed->global_batch)
		return ptc_doc_error(r->doc, config, r->err, PTC_EINVAL,
				     "a measured config must have its global_batch");
	rc = ptc_doc_read(r->doc, node, "measured", rows, PTC_ARRAY_LEN(rows), r->err);
	m->global_batch = parsed->global_batch;
	r->p->nmeasured++;
	return rc;
}

static int read_links(struct reader *r)
{
	struct ptc_cluster_profile *c = &r->p->cluster;
	const struct ptc_doc_node *node = ptc_doc_get(r->doc->root, "links");
	const struct ptc_doc_row rows[] = { { "intra_bytes_s", PTC_DOC_REAL, &c->intra_bytes_s, 1, 1e15 },
					    { "intra_latency_s", PTC_DOC_REAL, &c->intra_latency_s, 0, 10 },
					    { "node_bytes_s", PTC_DOC_REAL, &c->node_bytes_s, 1, 1e15 },
					    { "node_latency_s", PTC_DOC_REAL, &c->node_latency_s, 0, 10 } };

	if (!node)
		return ptc_doc_error(r->doc, r->doc->root, r->err, PTC_EINVAL,
				     "the profile has no links; measure them");
	c->intra_latency_s = 2e-5;
	c->node_latency_s = 5e-5;
	return ptc_doc_read(r->doc, node, "links", rows, PTC_ARRAY_LEN(rows), r->err);
}

static int read_all(struct reader *r)
{
	const struct ptc_doc_node *root = r->doc->root, *list;
	struct ptc_plan_profile *p = r->p;
	struct ptc_error why = PTC_ERROR_INIT;
	uint32_t version = 1;
	const struct ptc_doc_row rows[] = { { "version", PTC_DOC_COUNT, &version, 1, 1 },
					    { "devices_per_node", PTC_DOC_COUNT, &p->cluster.per_node, 1, 1024 },
					    { "devices", PTC_DOC_OTHER },
					    { "links", PTC_DOC_OTHER },
					    { "groups", PTC_DOC_OTHER },
					    { "hops", PTC_DOC_OTHER },
					    { "overlap", PTC_DOC_REAL, &p->cluster.overlap, 1, PTC_OVERLAP_MAX },
					    { "measured", PTC_DOC_OTHER } };
	int rc;

	p->cluster.per_node = 8;
	rc = ptc_doc_read(r->doc, root, "the profile", rows, PTC_ARRAY_LEN(rows), r->err);
	if (!rc)
		rc = each(r, "devices", PTC_DEVICE_MAX_KINDS, read_device);
	if (!rc)
		rc = read_links(r);
	if (!rc)
		rc = each(r, "groups", PTC_MEASURED_MAX_GROUPS, read_group);
	if (!rc)
		rc = each(r, "hops", PTC_MEASURED_MAX_GROUPS, read_hop);
	list = rc ? NULL : ptc_doc_get(root, "measured");
	if (list && list->n) {
		p->measured = ptc_calloc(list->n, sizeof *p->measured);
		if (!p->measured)
			return ptc_nomem(r->err);
		rc = each(r, "measured", PTC_PLAN_MAX_MEASURED, read_measured);
	}
	if (!rc && ptc_cluster_profile_check(&p->cluster, &why))
		rc = ptc_doc_error(r->doc, root, r->err, PTC_EINVAL, "%s", why.text);
	return rc;
}

int ptc_plan_profile_read(const struct ptc_doc *doc, struct ptc_plan_profile *ret, struct ptc_error *err)
{
	return ptc_plan_profile_read_with(doc, NULL, PTC_MATH_16BIT, ret, err);
}

int ptc_plan_profile_read_with(const struct ptc_doc *doc, const struct ptc_plan_devices *known, enum ptc_math dtype,
			       struct ptc_plan_profile *ret, struct ptc_error *err)
{
	struct ptc_plan_profile p = { 0 };
	struct reader r = { doc, err, &p, known, dtype };
	int rc = read_all(&r);

	if (rc)
		ptc_plan_profile_done(&p);
	else
		*ret = p;
	return rc;
}

void ptc_plan_profile_done(struct ptc_plan_profile *p)
{
	ptc_free(p->measured);
	memset(p, 0, sizeof *p);
}
