/* SPDX-License-Identifier: Apache-2.0 */
/* Geometry: what a Generation on the wire means, as a layout and allocation.
 * Happy path: numbers checked, spec looked up by hash, layout built (or taken
 * from a layout document, with its spec); the list of replicas is built at first use. Geometries of server calls are
 * cached, so that thousands of calls about one generation build it once.
 *
 * Failure modes: numbers that contradict each other (PTC_EINVAL naming them),
 * an unknown spec or layout document (the provider's code), a configuration that does not fit
 * (PTC_ELAYOUT). */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/geometry/geometry_shape.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/limits.h"
#include "base/number/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void names_free(char **names, size_t n)
{
	for (size_t i = 0; names && i < n; i++)
		ptc_free(names[i]);
	ptc_free(names);
}

void ptc_geometry_own_done(struct ptc_geometry *g)
{
	ptc_geometry_copies_done(g);
	ptc_layout_free(g->own_layout);
	ptc_allocation_done(&g->allocation);
	names_free(g->nodes, g->nnodes);
	names_free(g->addresses, g->nnodes);
	if (g->spec_ref)
		g->agent->env.spec_release(g->agent->env.arg, g->spec_ref);
	if (g->layout_ref)
		g->agent->env.layout_release(g->agent->env.arg, g->layout_ref);
	*g = (struct ptc_geometry){ 0 };
}

static int name_check(const char *name, struct ptc_error *err)
{
	size_t len = strnlen(name, PTC_NAME_MAX + 1);

	if (!len || len > PTC_NAME_MAX || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != len)
		return ptc_error_set(err, PTC_EINVAL, "node name \"%.*s\" in a request: not a valid name", PTC_NAME_MAX,
				     name);
	return 0;
}

static int uuid_check(const char *uuid, struct ptc_error *err)
{
	if (strlen(uuid) != 36 || strspn(uuid, "0123456789abcdef-") != 36)
		return ptc_error_set(err, PTC_EINVAL, "job identifier \"%.40s\" in a request: not a UUID", uuid);
	return 0;
}

PTC_COMPARE(name_compare, char *const, strcmp(*a, *b))

static int names_distinct(char **names, size_t n, struct ptc_error *err)
{
	char **sorted = ptc_reallocarray(NULL, n, sizeof *sorted);
	int rc = 0;

	if (!sorted)
		return ptc_nomem(err);
	memcpy(sorted, names, n * sizeof *sorted);
	qsort(sorted, n, sizeof *sorted, name_compare);
	for (size_t i = 1; !rc && i < n; i++)
		if (!strcmp(sorted[i - 1], sorted[i]))
			rc = ptc_error_set(err, PTC_EINVAL, "node %s is listed twice", sorted[i]);
	ptc_free(sorted);
	return rc;
}

int ptc_switch_info_check(uint32_t version, const Ptc__V1__SwitchInfo *info, struct ptc_error *err)
{
	int rc = ptc_pb_version(version, err);

	if (rc)
		return rc;
	if (!info)
		return ptc_error_set(err, PTC_EINVAL, "the request names no switch");
	rc = uuid_check(info->uuid, err);
	if (rc)
		return rc;
	if (strlen(info->spec_hash) > 64)
		return ptc_error_set(err, PTC_EINVAL,
				     "the request has a spec hash of %zu characters; at most 64 are possible",
				     strlen(info->spec_hash));
	if (!info->n_nodes || info->n_nodes > PTC_MAX_NODES || info->n_addresses != info->n_nodes)
		return ptc_error_set(err, PTC_EINVAL,
				     "the request names %zu nodes and %zu addresses; each node needs one",
				     info->n_nodes, info->n_addresses);
	for (size_t i = 0; i < info->n_nodes && !rc; i++)
		rc = name_check(info->nodes[i], err);
	if (rc)
		return rc;
	for (size_t i = 0; i < info->n_lost; i++)
		if (info->lost[i] >= info->n_nodes)
			return ptc_error_set(err, PTC_EINVAL,
					     "the request says that node number %u is lost; it names %zu nodes",
					     info->lost[i], info->n_nodes);
	return names_distinct(info->nodes, info->n_nodes, err);
}

static int names_copy(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info)
{
	g->nodes = ptc_calloc(info->n_nodes, sizeof *g->nodes);
	g->addresses = ptc_calloc(info->n_nodes, sizeof *g->addresses);
	g->nnodes = info->n_nodes;
	if (!g->nodes || !g->addresses)
		return PTC_ENOMEM;
	for (size_t i = 0; i < info->n_nodes; i++) {
		g->nodes[i] = ptc_strdup(info->nodes[i]);
		g->addresses[i] = ptc_strdup(info->addresses[i]);
		if (!g->nodes[i] || !g->addresses[i])
			return PTC_ENOMEM;
	}
	return 0;
}

PTC_BY2(device_compare, struct ptc_device, node, index)

static int devices_distinct(const struct ptc_allocation *a, struct ptc_error *err)
{
	struct ptc_device *sorted = ptc_reallocarray(NULL, a->world, sizeof *sorted);
	int rc = 0;

	if (!sorted)
		return ptc_nomem(err);
	memcpy(sorted, a->ranks, a->world * sizeof *sorted);
	qsort(sorted, a->world, sizeof *sorted, device_compare);
	for (uint32_t i = 1; !rc && i < a->world; i++)
		if (!device_compare(&sorted[i - 1], &sorted[i]))
			rc = ptc_error_set(err, PTC_EINVAL, "device %u of node number %u has two ranks",
					   sorted[i].index, sorted[i].node);
	ptc_free(sorted);
	return rc;
}

static int allocation_read(struct ptc_geometry *g, const Ptc__V1__Generation *which, struct ptc_error *err)
{
	size_t n = which->n_nodes;

	if (!n || n > PTC_MAX_RANKS || which->n_devices != n)
		return ptc_error_set(err, PTC_EINVAL,
				     "the request gives generation %llu %zu ranks and %zu devices; each rank needs one",
				     (unsigned long long)which->number, n, which->n_devices);
	g->allocation.ranks = ptc_reallocarray(NULL, n, sizeof *g->allocation.ranks);
	if (!g->allocation.ranks)
		return ptc_nomem(err);
	g->allocation.world = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		if (which->nodes[i] >= g->nnodes || which->devices[i] >= PTC_MAX_DEVICES_PER_NODE)
			return ptc_error_set(err, PTC_EINVAL, "the request puts rank %zu on node %u of %zu, device %u",
					     i, which->nodes[i], g->nnodes, which->devices[i]);
		g->allocation.ranks[i] = (struct ptc_device){ which->nodes[i], which->devices[i] };
	}
	return devices_distinct(&g->allocation, err);
}

static int layout_read(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info, const struct ptc_config *config,
		       struct ptc_error *err)
{
	const struct ptc_agent_env *env = &g->agent->env;
	int rc = env->spec_get(env->arg, info->uuid, info->spec_hash, &g->spec, &g->spec_ref, err);

	if (rc == 0)
		rc = ptc_layout_new(g->spec, config, &g->own_layout, err);
	g->layout = g->own_layout;
	return rc;
}

/* The document says which configuration it is of; so must the generation. */
static int layout_borrow(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
			 const struct ptc_config *config, struct ptc_error *err)
{
	const struct ptc_agent_env *env = &g->agent->env;
	char *texts = ptc_calloc(2, PTC_CONFIG_TEXT_MAX);
	int rc = 0;

	if (!env->layout_get)
		rc = ptc_error_set(err, PTC_ESTATE, "node %s has no store for declared layouts", g->agent->node);
	else if (!texts)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = env->layout_get(env->arg, info->uuid, which->layout_hash, &g->spec, &g->layout, &g->layout_ref,
				     err);
	if (!rc && (ptc_config_format(config, texts, PTC_CONFIG_TEXT_MAX) ||
		    ptc_config_format(ptc_layout_config(g->layout), texts + PTC_CONFIG_TEXT_MAX, PTC_CONFIG_TEXT_MAX) ||
		    strcmp(texts, texts + PTC_CONFIG_TEXT_MAX)))
		rc = ptc_error_set(err, PTC_EINVAL, "generation %llu is %.200s, its layout document is of %.200s",
				   (unsigned long long)which->number, texts, texts + PTC_CONFIG_TEXT_MAX);
	ptc_free(texts);
	return rc;
}

static int layout_make(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		       struct ptc_error *err)
{
	struct ptc_config *config = ptc_calloc(1, sizeof *config);
	int rc = config ? 0 : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_config_parse(which->config, config, err);
	if (!rc)
		rc = which->layout_hash[0] ? layout_borrow(g, info, which, config, err)
					   : layout_read(g, info, config, err);
	ptc_free(config);
	if (rc)
		return rc;
	if (ptc_layout_world(g->layout) != g->allocation.world)
		return ptc_error_set(err, PTC_EINVAL, "configuration %.200s has %u ranks, the allocation %u",
				     which->config, ptc_layout_world(g->layout), g->allocation.world);
	return 0;
}

static int place_read(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		      struct ptc_error *err)
{
	if (names_copy(g, info))
		return ptc_nomem(err);
	return allocation_read(g, which, err);
}

int ptc_geometry_build(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		       struct ptc_geometry *ret, struct ptc_error *err)
{
	struct ptc_geometry g = { .agent = agent, .generation = which->number, .snapshot = which->snapshot };
	int rc;

	snprintf(g.uuid, sizeof g.uuid, "%s", info->uuid);
	snprintf(g.spec_hash, sizeof g.spec_hash, "%s", info->spec_hash);
	rc = place_read(&g, info, which, err);
	if (!rc)
		rc = layout_make(&g, info, which, err);
	if (!rc)
		rc = ptc_geometry_copies(&g, which, err);
	if (rc) {
		ptc_geometry_own_done(&g);
		return rc;
	}
	*ret = g;
	return 0;
}

int ptc_geometry_place(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		       struct ptc_geometry *ret_geometry, struct ptc_config *ret_config, struct ptc_error *err)
{
	struct ptc_geometry g = { .agent = agent };
	uint32_t world = 0;
	int rc = 0;

	if (!which || !which->number)
		return ptc_error_set(err, PTC_EINVAL, "the request names no generation");
	g.generation = which->number;
	g.snapshot = which->snapshot;
	snprintf(g.uuid, sizeof(g.uuid), "%s", info->uuid);
	snprintf(g.spec_hash, sizeof(g.spec_hash), "%s", info->spec_hash);
	rc = place_read(&g, info, which, err);
	if (rc == 0)
		rc = ptc_config_parse(which->config, ret_config, err);
	if (rc == 0)
		rc = ptc_config_world(ret_config, &world, err);
	if (!rc && world != g.allocation.world)
		rc = ptc_error_set(err, PTC_EINVAL, "configuration %.200s has %u ranks, the allocation %u",
				   which->config, world, g.allocation.world);
	if (rc) {
		ptc_geometry_own_done(&g);
		return rc;
	}
	*ret_geometry = g;
	return 0;
}

int ptc_geometry_node(const struct ptc_geometry *g, const char *name, uint32_t *ret_node, struct ptc_error *err)
{
	for (uint32_t i = 0; i < g->nnodes; i++)
		if (!strcmp(g->nodes[i], name)) {
			*ret_node = i;
			return 0;
		}
	return ptc_error_set(err, PTC_EINVAL, "node %s has no part in generation %llu", name,
			     (unsigned long long)g->generation);
}

int ptc_geometry_shape(const struct ptc_geometry *g, uint32_t item, uint32_t *ret_ndim, int64_t *ret_shape,
		       struct ptc_error *err)
{
	if (item >= ptc_spec_items(g->spec))
		return ptc_error_set(err, PTC_EINVAL, "there is no item %u; the job has %zu items", item,
				     ptc_spec_items(g->spec));
	return ptc_item_byte_shape(g->spec, item, ret_ndim, ret_shape, err);
}

struct ptc_table_key ptc_geometry_key(const struct ptc_geometry *g)
{
	struct ptc_table_key key = { .generation = g->generation, .snapshot = g->snapshot };
	uint32_t self;

	if (g->snapshots && ptc_geometry_node(g, g->agent->node, &self, NULL) == 0)
		key.snapshot = ptc_geometry_snapshot(g, self, g->snapshot);
	memcpy(key.uuid, g->uuid, sizeof(key.uuid));
	return key;
}

uint64_t ptc_geometry_snapshot(const struct ptc_geometry *g, uint32_t node, uint64_t snapshot)
{
	return g->snapshots && snapshot == g->snapshot && g->snapshots[node] ? g->snapshots[node] : snapshot;
}

const char *ptc_geometry_item_name(const struct ptc_geometry *g, uint32_t item, char *buf, size_t size)
{
	return ptc_item_name(g->spec, item, buf, size);
}

int ptc_geometry_name_error(const struct ptc_geometry *g, struct ptc_error *err)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2], text[PTC_ERROR_MAX];
	unsigned item;
	int used = 0;

	if (!err)
		return PTC_EINTERNAL;
	if (sscanf(err->text, "item %u%n", &item, &used) != 1 || item >= ptc_spec_items(g->spec))
		return err->code;
	snprintf(text, sizeof text, "%s", err->text + used);
	return ptc_error_set(err, err->code, "tensor \"%.400s\"%.600s",
			     ptc_geometry_item_name(g, item, name, sizeof name), text);
}

void ptc_agent_memory_short(const struct ptc_agent *agent, int rc, struct ptc_error *err)
{
	struct ptc_alloc_refusal r;
	char numbers[120] = "";

	if (rc != PTC_ENOMEM || !agent->env.work_bytes || (err && strstr(err->text, "memory.work")))
		return;
	if (ptc_alloc_refused(&r) && err && !strstr(err->text, "more bytes are needed"))
		snprintf(numbers, sizeof numbers, " (%llu more bytes are needed, %llu of %llu are free)",
			 (unsigned long long)r.size, (unsigned long long)r.free, (unsigned long long)r.limit);
	ptc_error_wrap(err, "node %s: this job needs more than the memory.work of %llu bytes, raise it%s", agent->node,
		       (unsigned long long)agent->env.work_bytes, numbers);
}
