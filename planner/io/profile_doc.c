// SPDX-License-Identifier: Apache-2.0
/* A cluster's profile: devices by kind, links, measured groups, measured steps. Fails on numbers that are missing, negative or
 * contradict each other, with their place. */
#include "planner/io/plan_doc.h"
#include "planner/io/plan_value.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "planner/search/as_config.h"

#include <stdio.h>
#include <string.h>

static const char *const profile_keys[] = { "version", "devices_per_node", "devices", "links", "groups", "measured" };
static const char *const device_keys[] = { "name", "nodes", "flops", "hbm_bytes_s", "memory_bytes", "price_hour" };
static const char *const link_keys[] = { "intra_bytes_s", "intra_latency_s", "node_bytes_s", "node_latency_s" };
static const char *const group_keys[] = { "size", "stride", "bytes_s" };
static const char *const measured_keys[] = { "config", "step_s", "peak_bytes" };

struct reader {
	const struct ptc_doc *doc;
	struct ptc_error *err;
	struct ptc_plan_profile *p;
	const struct ptc_plan_devices *known; /* NULL: none */
	enum ptc_math dtype;
};
typedef int (*item_fn)(struct reader *r, const struct ptc_doc_node *node);

/* Each map of a list, which may be absent. */
static int each(struct reader *r, const char *key, size_t most, const char *const *keys, size_t nkeys, item_fn fn)
{
	const struct ptc_doc_node *list = ptc_doc_get(r->doc->root, key);
	int rc = 0;

	if (!list)
		return 0;
	if (list->kind != PTC_DOC_LIST || list->n > most)
		return ptc_doc_error(r->doc, list, r->err, PTC_EINVAL, "%s must be a list of at most %zu", key, most);
	for (const struct ptc_doc_node *n = list->first; n && !rc; n = n->next) {
		rc = ptc_doc_check_map(r->doc, n, key, keys, nkeys, r->err);
		if (!rc)
			rc = fn(r, n);
	}
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
	struct {
		const char *key;
		double *to;
	} numbers[] = { { "flops", &k->flops },
			{ "hbm_bytes_s", &k->hbm_bytes_s },
			{ "memory_bytes", &k->memory_bytes },
			{ "price_hour", &k->price_hour } };
	int rc = name ? ptc_doc_text(r->doc, name, "name", &text, r->err)
		      : ptc_doc_error(r->doc, node, r->err, PTC_EINVAL, "a device without a name");

	if (rc)
		return rc;
	if (strlen(text) > PTC_DEVICE_NAME_MAX)
		return ptc_doc_error(r->doc, name, r->err, PTC_EINVAL, "a device's name has at most %d characters",
				     PTC_DEVICE_NAME_MAX);
	rc = take_known(r, name, text, k);
	for (size_t i = 0; i < PTC_ARRAY_LEN(numbers) && !rc; i++)
		rc = ptc_plan_number(r->doc, node, numbers[i].key, 0, 1e21, *numbers[i].to, numbers[i].to, r->err);
	return rc ? rc : ptc_plan_count(r->doc, node, "nodes", 1, 1u << 17, 1, &k->nodes, r->err);
}

static int read_group(struct reader *r, const struct ptc_doc_node *node)
{
	struct ptc_measured_group *g = &r->p->cluster.groups[r->p->cluster.ngroups++];
	int rc = ptc_plan_count(r->doc, node, "size", 2, 1u << 17, 0, &g->size, r->err);

	if (!rc)
		rc = ptc_plan_count(r->doc, node, "stride", 1, 1u << 17, 1, &g->stride, r->err);
	return rc ? rc : ptc_plan_number(r->doc, node, "bytes_s", 1, 1e15, 0, &g->bytes_s, r->err);
}

static int read_measured(struct reader *r, const struct ptc_doc_node *node)
{
	struct ptc_plan_measured *m = &r->p->measured[r->p->nmeasured];
	const struct ptc_doc_node *config = ptc_doc_get(node, "config");
	ptc_auto_free struct ptc_config *parsed = ptc_calloc(1, sizeof *parsed);
	struct ptc_error why = PTC_ERROR_INIT;
	int rc;

	if (!parsed)
		return ptc_error_set(r->err, PTC_ENOMEM, "out of memory");
	if (!config || config->kind != PTC_DOC_TEXT)
		return ptc_doc_error(r->doc, node, r->err, PTC_EINVAL, "a measured step needs its config");
	rc = ptc_cand_parse(config->text, &m->cand, parsed, &why);
	if (rc)
		return ptc_doc_error(r->doc, config, r->err, rc, "%s", why.text);
	if (!parsed->global_batch)
		return ptc_doc_error(r->doc, config, r->err, PTC_EINVAL, "a measured config says its global_batch");
	rc = ptc_plan_number(r->doc, node, "step_s", 1e-9, 1e9, 0, &m->step_s, r->err);
	if (!rc)
		rc = ptc_plan_number(r->doc, node, "peak_bytes", 1, 1e15, 0, &m->peak_bytes, r->err);
	m->global_batch = parsed->global_batch;
	r->p->nmeasured++;
	return rc;
}

static int read_links(struct reader *r)
{
	struct ptc_cluster_profile *c = &r->p->cluster;
	const struct ptc_doc_node *node = ptc_doc_get(r->doc->root, "links");
	int rc;

	if (!node)
		return ptc_doc_error(r->doc, r->doc->root, r->err, PTC_EINVAL,
				     "the profile has no links; measure them");
	rc = ptc_doc_check_map(r->doc, node, "links", link_keys, PTC_ARRAY_LEN(link_keys), r->err);
	if (!rc)
		rc = ptc_plan_number(r->doc, node, "intra_bytes_s", 1, 1e15, 0, &c->intra_bytes_s, r->err);
	if (!rc)
		rc = ptc_plan_number(r->doc, node, "intra_latency_s", 0, 10, 2e-5, &c->intra_latency_s, r->err);
	if (!rc)
		rc = ptc_plan_number(r->doc, node, "node_bytes_s", 1, 1e15, 0, &c->node_bytes_s, r->err);
	return rc ? rc : ptc_plan_number(r->doc, node, "node_latency_s", 0, 10, 5e-5, &c->node_latency_s, r->err);
}

static int read_all(struct reader *r)
{
	const struct ptc_doc_node *root = r->doc->root, *list;
	struct ptc_plan_profile *p = r->p;
	struct ptc_error why = PTC_ERROR_INIT;
	uint32_t version = 1;
	int rc = ptc_doc_check_map(r->doc, root, "the profile", profile_keys, PTC_ARRAY_LEN(profile_keys), r->err);

	if (!rc)
		rc = ptc_plan_count(r->doc, root, "version", 1, 1, 1, &version, r->err);
	if (!rc)
		rc = ptc_plan_count(r->doc, root, "devices_per_node", 1, 1024, 8, &p->cluster.per_node, r->err);
	if (!rc)
		rc = each(r, "devices", PTC_DEVICE_MAX_KINDS, device_keys, PTC_ARRAY_LEN(device_keys), read_device);
	if (!rc)
		rc = read_links(r);
	if (!rc)
		rc = each(r, "groups", PTC_MEASURED_MAX_GROUPS, group_keys, PTC_ARRAY_LEN(group_keys), read_group);
	list = rc ? NULL : ptc_doc_get(root, "measured");
	if (list && list->n) {
		p->measured = ptc_calloc(list->n, sizeof *p->measured);
		if (!p->measured)
			return ptc_error_set(r->err, PTC_ENOMEM, "out of memory");
		rc = each(r, "measured", PTC_PLAN_MAX_MEASURED, measured_keys, PTC_ARRAY_LEN(measured_keys),
			  read_measured);
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

int ptc_plan_galvatron_read(const struct ptc_doc *doc, struct ptc_cluster_profile *c, struct ptc_error *err)
{
	uint32_t devices = ptc_cluster_profile_devices(c);

	if (doc->root->kind != PTC_DOC_MAP || !doc->root->n)
		return ptc_doc_error(doc, doc->root, err, PTC_EINVAL, "not a map of bandwidths");
	for (const struct ptc_doc_node *n = doc->root->first; n; n = n->next) {
		struct ptc_measured_group *g = &c->groups[c->ngroups];
		unsigned size, neighbours;
		int end = 0, rc;

		if (sscanf(n->key, "allreduce_size_%5u_consec_%1u%n", &size, &neighbours, &end) != 2 || n->key[end] ||
		    neighbours > 1)
			return ptc_doc_error(doc, n, err, PTC_EINVAL,
					     "\"%.60s\" is no bandwidth of an all-reduce (allreduce_size_N_consec_0|1)",
					     n->key);
		if (size < 2 || size > devices || devices % size)
			return ptc_doc_error(doc, n, err, PTC_EINVAL,
					     "a group of %u does not divide the profile's %u devices", size, devices);
		if (c->ngroups == PTC_MEASURED_MAX_GROUPS)
			return ptc_doc_error(doc, n, err, PTC_ELIMIT, "more than %d groups", PTC_MEASURED_MAX_GROUPS);
		rc = ptc_plan_number(doc, doc->root, n->key, 1e-6, 1e6, 0, &g->bytes_s, err);
		if (rc)
			return rc;
		g->bytes_s *= 1e9;
		g->size = size;
		g->stride = neighbours ? 1 : devices / size;
		c->ngroups++;
	}
	return 0;
}
