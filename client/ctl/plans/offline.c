/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster and the layouts that options describe. Happy path: the job is
 * read, nodes are numbered from 0, devices of a node too; the old ranks lie on
 * devices in order. Failure: CTL_USAGE for an option that makes no sense,
 * else what reading and laying out says. */
#include "client/ctl/plans/offline.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "formats/json.h"
#include "formats/state/layout_doc.h"
#include "reshard/spec/lint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *ctl_field_name(const struct ptc_spec *s, uint32_t item)
{
	size_t f = item % (1 + s->nfields);

	return f ? s->fields[f - 1].name : "param";
}

void ctl_put_numbers(const int64_t *v, uint32_t n)
{
	putchar('[');
	for (uint32_t i = 0; i < n; i++)
		printf("%s%" PRId64, i ? "," : "", v[i]);
	putchar(']');
}

static int quote_names(struct ctl_offline *o, struct ptc_error *err)
{
	const struct ptc_spec *s = &o->job.spec;

	o->names = ptc_calloc(s->ntensors, sizeof *o->names);
	if (!o->names)
		return ptc_nomem(err);
	for (size_t i = 0; i < s->ntensors; i++) {
		struct ptc_buf b = { 0 };

		ptc_json_put_string(&b, s->tensors[i].name);
		o->names[i] = ptc_buf_steal(&b, NULL);
		if (!o->names[i])
			return ptc_nomem(err);
	}
	return 0;
}

static int read_job(const char *file, const char *rules, bool layouts, struct ptc_job_desc *ret, struct ptc_error *err)
{
	int rc = ptc_job_read(file, rules, ret, err);

	if (!rc && layouts)
		return 0;
	if (!rc && !ret->spec.ntensors)
		rc = ptc_error_set(
			err, PTC_ELAYOUT,
			"%s: no tensors; those of a live job are known once its ranks have declared them, or "
			"from a probe (ptcctl probe -o FILE, then --layout FILE)",
			file);
	return rc ? rc : ptc_spec_lint(&ret->spec, err);
}

static int read_layout(const char *path, struct ptc_declared *ret, struct ptc_error *err)
{
	ptc_auto_free char *json = NULL;
	size_t len;
	int rc = ptc_sys_read_file(path, PTC_LAYOUT_DOC_MAX_BYTES, &json, &len, err);

	if (!rc && (rc = ptc_layout_doc_decode(json, len, ret, err)) != 0)
		ptc_error_wrap(err, "%s", path);
	return rc;
}

/* --layout: the job's tensors are theirs. */
static int read_layouts(const struct ctl *c, const char *file, struct ctl_offline *o, struct ptc_error *err)
{
	struct ptc_declared first;
	const char *path;
	size_t at = 0;
	int rc = o->job.spec.ntensors || o->other
			 ? ctl_usage(err, "--layout is for a live job that has no rules, and excludes --to-file; %s",
				     file)
			 : 0;

	o->declared = ptc_calloc(CTL_LAYOUTS_MAX, sizeof *o->declared);
	if (!rc && !o->declared)
		rc = ptc_nomem(err);
	while (!rc && (path = ctl_option_next(c, "layout", &at))) {
		if (o->ndeclared == CTL_LAYOUTS_MAX)
			return ctl_usage(err, "more than %d --layout", CTL_LAYOUTS_MAX);
		rc = read_layout(path, &o->declared[o->ndeclared], err);
		if (rc)
			return rc;
		o->ndeclared++;
		rc = ptc_declared_same(&o->declared[0].spec, &o->declared[o->ndeclared - 1].spec, path, err);
	}
	if (!rc && (rc = read_layout(ctl_option(c, "layout"), &first, err)) == 0) {
		ptc_spec_done(&o->job.spec);
		o->job.spec = first.spec;
		first.spec = (struct ptc_spec){ 0 };
		ptc_declared_done(&first);
	}
	return rc;
}

int ctl_offline_open(const struct ctl *c, struct ctl_offline *ret, struct ptc_error *err)
{
	ptc_auto_free char *rules = ctl_rules_path();
	const char *file = ctl_option(c, "file"), *after = ctl_option(c, "to-file");
	struct ctl_offline o = { .other = after != NULL };
	bool layouts = ctl_option(c, "layout") != NULL;
	int rc;

	if (!file)
		return ctl_usage(err, "-f FILE is missing: the job's description");
	if (!rules)
		return ptc_nomem(err);
	rc = read_job(file, rules, layouts, &o.job, err);
	if (!rc && layouts)
		rc = read_layouts(c, file, &o, err);
	if (!rc && after)
		rc = read_job(after, rules, false, &o.after, err);
	if (!rc)
		rc = quote_names(&o, err);
	if (rc)
		ctl_offline_done(&o);
	else
		*ret = o;
	return rc;
}

void ctl_offline_done(struct ctl_offline *o)
{
	for (size_t i = 0; o->names && i < o->job.spec.ntensors; i++)
		ptc_free(o->names[i]);
	ptc_free(o->names);
	ptc_free(o->cluster.devices);
	ptc_free(o->cluster.usable);
	ptc_free(o->cluster.pinned);
	ptc_free(o->cluster.drained);
	ptc_free(o->cluster.failed);
	ptc_free(o->cluster.racks);
	ptc_job_desc_done(&o->job);
	ptc_job_desc_done(&o->after);
	for (size_t i = 0; i < o->ndeclared; i++)
		ptc_declared_done(&o->declared[i]);
	ptc_free(o->declared);
	memset(o, 0, sizeof *o);
}

/* ---- the cluster ---- */

/* One of "0,2/1,5": a node, or one of its devices. */
static int next_place(const struct ctl_cluster *k, const char *label, bool devices, const char **at, uint64_t *ret_node,
		      uint64_t *ret_device, struct ptc_error *err)
{
	char *end;

	*ret_device = UINT64_MAX;
	*ret_node = strtoull(*at, &end, 10);
	if (end == *at || *ret_node >= k->nodes)
		return ctl_usage(err, "--%s: \"%.40s\" begins with no number of one of the %u nodes", label, *at,
				 k->nodes);
	if (devices && *end == '/') {
		*at = end + 1;
		*ret_device = strtoull(*at, &end, 10);
		if (end == *at || *ret_device >= k->per_node)
			return ctl_usage(err, "--%s: \"%.40s\" begins with no number of one of the %u devices", label,
					 *at, k->per_node);
	}
	if (*end && *end != ',')
		return ctl_usage(err, "--%s: \"%.40s\" is not a list of %s", label, end,
				 devices ? "NODE or NODE/DEVICE" : "nodes");
	*at = *end ? end + 1 : end;
	return 0;
}

/* Marks devices[i] out for what an option lists, and what else that means. */
static int apply_list(const struct ctl *c, struct ctl_cluster *k, const char *label, bool *out, bool *nodes, bool value,
		      struct ptc_error *err)
{
	const char *text = ctl_option(c, label);
	bool failed = !strcmp(label, "failed");
	uint64_t node, device;

	while (text && *text) {
		int rc = next_place(k, label, failed, &text, &node, &device, err);

		if (rc)
			return rc;
		if (nodes && device == UINT64_MAX)
			nodes[node] = value;
		for (uint32_t d = 0; out && d < k->per_node; d++)
			if (device == UINT64_MAX || device == d)
				out[node * k->per_node + d] = true;
		if (failed && device != UINT64_MAX)
			k->failed[node * k->per_node + device] = true;
	}
	return 0;
}

static int apply_options(const struct ctl *c, struct ctl_cluster *k, bool *out, struct ptc_error *err)
{
	const char *rack = ctl_option(c, "nodes-per-rack");
	uint64_t per_rack = 0;
	int rc = apply_list(c, k, "drain", out, k->drained, true, err);

	if (!rc)
		rc = apply_list(c, k, "failed", out, k->usable, false, err);
	if (!rc)
		rc = apply_list(c, k, "pin", NULL, k->pinned, true, err);
	if (!rc && rack)
		rc = ctl_number("--nodes-per-rack", rack, 1, PTC_MAX_NODES, &per_rack, err);
	if (rc || !rack)
		return rc;
	k->racks = ptc_calloc(k->nodes, sizeof *k->racks);
	for (uint32_t n = 0; k->racks && n < k->nodes; n++)
		k->racks[n] = n / (uint32_t)per_rack;
	return k->racks ? 0 : ptc_nomem(err);
}

int ctl_offline_cluster(const struct ctl *c, uint32_t need, struct ctl_offline *o, struct ptc_error *err)
{
	const char *nodes = ctl_option(c, "nodes"), *per_node = ctl_option(c, "devices-per-node");
	struct ctl_cluster *k = &o->cluster;
	ptc_auto_free bool *out = NULL;
	uint64_t n = 0, m = 8;
	size_t all;
	int rc = 0;

	if (per_node)
		rc = ctl_number("--devices-per-node", per_node, 1, PTC_MAX_DEVICES_PER_NODE, &m, err);
	n = (need + m - 1) / m;
	if (!rc && nodes)
		rc = ctl_number("--nodes", nodes, 1, PTC_MAX_NODES, &n, err);
	if (rc)
		return rc;
	k->nodes = (uint32_t)n;
	k->per_node = (uint32_t)m;
	all = (size_t)n * m;
	k->devices = ptc_calloc(all, sizeof *k->devices);
	k->usable = ptc_calloc(n, sizeof *k->usable);
	k->pinned = ptc_calloc(n, sizeof *k->pinned);
	k->drained = ptc_calloc(n, sizeof *k->drained);
	k->failed = ptc_calloc(all, sizeof *k->failed);
	out = ptc_calloc(all, sizeof *out);
	if (!k->devices || !k->usable || !k->pinned || !k->drained || !k->failed || !out)
		return ptc_nomem(err);
	memset(k->usable, 1, n * sizeof *k->usable);
	rc = apply_options(c, k, out, err);
	for (size_t i = 0; i < all; i++)
		if (!out[i])
			k->devices[k->ndevices++] = (struct ptc_device){ (uint32_t)(i / m), (uint32_t)(i % m) };
	return rc;
}

/* ---- layouts ---- */

int ctl_offline_declared(const struct ctl_offline *o, const char *what, const struct ptc_config *config, bool any_batch,
			 struct ptc_layout **ret, struct ptc_error *err)
{
	ptc_auto_free char *want = ptc_malloc(PTC_CONFIG_TEXT_MAX), *have = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	ptc_auto_free struct ptc_config *its = ptc_calloc(1, sizeof *its);

	if (!want || !have || !its || ptc_config_format(config, want, PTC_CONFIG_TEXT_MAX) != 0)
		return ptc_nomem(err);
	for (size_t i = 0; i < o->ndeclared; i++) {
		*its = o->declared[i].config;
		if (any_batch) {
			its->micro_batch = config->micro_batch;
			its->global_batch = config->global_batch;
			memcpy(its->recompute, config->recompute, sizeof its->recompute);
			its->nrecompute = config->nrecompute;
			its->schedule = config->schedule;
		}
		if (ptc_config_format(its, have, PTC_CONFIG_TEXT_MAX) == 0 && !strcmp(want, have))
			return ptc_layout_declared_new(&o->declared[i], ret, err);
	}
	return ptc_error_set(err, PTC_ENOTFOUND,
			     "%s %.200s: no --layout is of this configuration; ptcctl probe -o FILE makes one", what,
			     want);
}

int ctl_offline_layout(const struct ctl_offline *o, const struct ptc_spec *s, const char *what, const char *config,
		       struct ptc_layout **ret, struct ptc_error *err)
{
	struct ptc_config parsed;
	int rc;

	if (ptc_config_parse(config, &parsed, err)) {
		ptc_error_wrap(err, "%s", what);
		return CTL_USAGE;
	}
	if (o->ndeclared)
		return ctl_offline_declared(o, what, &parsed, false, ret, err);
	rc = ptc_layout_new(s, &parsed, ret, err);
	if (rc)
		ptc_error_wrap(err, "%s %s", what, config);
	return rc;
}

int ctl_offline_in_order(const struct ctl_offline *o, const struct ptc_layout *l, struct ptc_allocation *ret,
			 struct ptc_error *err)
{
	return ptc_allocation_in_order(ptc_layout_world(l), o->cluster.nodes, o->cluster.per_node, ret, err);
}

int ctl_switch_plan(const struct ctl_switch *s, ptc_move_fn fn, void *arg, bool keep, struct ptc_plan **ret_plan,
		    struct ptc_error *err)
{
	struct ptc_plan_opts opts = { .fn = fn, .arg = arg, .keep = keep };
	int rc = ptc_plan_stream(s->change, &s->was, &s->now, s->o->cluster.nodes, s->o->cluster.usable, &opts,
				 ret_plan, err);

	if (rc)
		return rc;
	(*ret_plan)->bound_any = (*ret_plan)->between_nodes - s->gap;
	(*ret_plan)->bound_any_exact = s->gap == 0;
	return 0;
}
