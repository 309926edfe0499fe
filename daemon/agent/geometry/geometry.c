/* SPDX-License-Identifier: Apache-2.0 */
/* Geometry: what a Generation on the wire means, as a layout and allocation.
 * Happy path: numbers checked, spec looked up by hash, layout built (or taken
 * from a layout document, with its spec); the list of replicas is built at first use. Geometries of server calls are cached, so
 * that thousands of calls about one generation build it once.
 * Failure modes: numbers that contradict each other (PTC_EINVAL naming them),
 * an unknown spec or layout document (the provider's code), a configuration that does not fit
 * (PTC_ELAYOUT). */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/geometry/geometry.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ptc_replicas {
	pthread_mutex_t lock;
	struct ptc_replica *v; /* NULL until built; by item, then node */
	size_t n;
	size_t *first; /* items + 1 */
};

static struct ptc_replicas *replicas_free(struct ptc_replicas *h)
{
	if (!h)
		return NULL;
	pthread_mutex_destroy(&h->lock);
	ptc_free(h->v);
	ptc_free(h->first);
	ptc_free(h);
	return NULL;
}

static void names_free(char **names, size_t n)
{
	for (size_t i = 0; names && i < n; i++)
		ptc_free(names[i]);
	ptc_free(names);
}

void ptc_geometry_done(struct ptc_geometry *g)
{
	replicas_free(g->replicas);
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
		return ptc_error_set(err, PTC_EINVAL, "a node name that is none: \"%.*s\"", PTC_NAME_MAX, name);
	return 0;
}

static int uuid_check(const char *uuid, struct ptc_error *err)
{
	if (strlen(uuid) != 36 || strspn(uuid, "0123456789abcdef-") != 36)
		return ptc_error_set(err, PTC_EINVAL, "a job identifier that is none: \"%.40s\"", uuid);
	return 0;
}

static int name_compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int names_distinct(char **names, size_t n, struct ptc_error *err)
{
	char **sorted = ptc_reallocarray(NULL, n, sizeof(*sorted));
	int r = 0;

	if (!sorted)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu node names", n);
	memcpy(sorted, names, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), name_compare);
	for (size_t i = 1; !r && i < n; i++)
		if (!strcmp(sorted[i - 1], sorted[i]))
			r = ptc_error_set(err, PTC_EINVAL, "node %s is listed twice", sorted[i]);
	ptc_free(sorted);
	return r;
}

int ptc_switch_info_check(uint32_t version, const Ptc__V1__SwitchInfo *info, struct ptc_error *err)
{
	int r = ptc_pb_version(version, err);

	if (r)
		return r;
	if (!info)
		return ptc_error_set(err, PTC_EINVAL, "a request that names no switch");
	r = uuid_check(info->uuid, err);
	if (r)
		return r;
	if (strlen(info->spec_hash) > 64)
		return ptc_error_set(err, PTC_EINVAL, "a spec hash of %zu characters", strlen(info->spec_hash));
	if (!info->n_nodes || info->n_nodes > PTC_MAX_NODES || info->n_addresses != info->n_nodes)
		return ptc_error_set(err, PTC_EINVAL, "%zu nodes with %zu addresses", info->n_nodes, info->n_addresses);
	for (size_t i = 0; i < info->n_nodes && !r; i++)
		r = name_check(info->nodes[i], err);
	if (r)
		return r;
	for (size_t i = 0; i < info->n_lost; i++)
		if (info->lost[i] >= info->n_nodes)
			return ptc_error_set(err, PTC_EINVAL, "lost node number %u of %zu", info->lost[i],
					     info->n_nodes);
	return names_distinct(info->nodes, info->n_nodes, err);
}

static int names_copy(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info)
{
	g->nodes = ptc_calloc(info->n_nodes, sizeof(*g->nodes));
	g->addresses = ptc_calloc(info->n_nodes, sizeof(*g->addresses));
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

static int device_compare(const void *a, const void *b)
{
	const struct ptc_device *x = a, *y = b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

static int devices_distinct(const struct ptc_allocation *a, struct ptc_error *err)
{
	struct ptc_device *sorted = ptc_reallocarray(NULL, a->world, sizeof(*sorted));
	int r = 0;

	if (!sorted)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %u devices", a->world);
	memcpy(sorted, a->ranks, a->world * sizeof(*sorted));
	qsort(sorted, a->world, sizeof(*sorted), device_compare);
	for (uint32_t i = 1; !r && i < a->world; i++)
		if (!device_compare(&sorted[i - 1], &sorted[i]))
			r = ptc_error_set(err, PTC_EINVAL, "device %u of node number %u has two ranks", sorted[i].index,
					  sorted[i].node);
	ptc_free(sorted);
	return r;
}

static int allocation_read(struct ptc_geometry *g, const Ptc__V1__Generation *which, struct ptc_error *err)
{
	size_t n = which->n_nodes;

	if (!n || n > PTC_MAX_RANKS || which->n_devices != n)
		return ptc_error_set(err, PTC_EINVAL, "generation %llu has %zu ranks on %zu devices",
				     (unsigned long long)which->number, n, which->n_devices);
	g->allocation.ranks = ptc_reallocarray(NULL, n, sizeof(*g->allocation.ranks));
	if (!g->allocation.ranks)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu ranks", n);
	g->allocation.world = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		if (which->nodes[i] >= g->nnodes || which->devices[i] >= PTC_MAX_DEVICES_PER_NODE)
			return ptc_error_set(err, PTC_EINVAL, "rank %zu on node number %u of %zu, device %u", i,
					     which->nodes[i], g->nnodes, which->devices[i]);
		g->allocation.ranks[i] = (struct ptc_device){ which->nodes[i], which->devices[i] };
	}
	return devices_distinct(&g->allocation, err);
}

static int layout_read(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info, const struct ptc_config *config,
		       struct ptc_error *err)
{
	const struct ptc_agent_env *env = &g->agent->env;
	int r = env->spec_get(env->arg, info->uuid, info->spec_hash, &g->spec, &g->spec_ref, err);

	r = r ? r : ptc_layout_new(g->spec, config, &g->own_layout, err);
	g->layout = g->own_layout;
	return r;
}

/* The document says which configuration it is of; so must the generation. */
static int layout_borrow(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
			 const struct ptc_config *config, struct ptc_error *err)
{
	const struct ptc_agent_env *env = &g->agent->env;
	char *texts = ptc_calloc(2, PTC_CONFIG_TEXT_MAX);
	int r = 0;

	if (!env->layout_get)
		r = ptc_error_set(err, PTC_ESTATE, "node %s knows no layouts that ranks declare", g->agent->node);
	else if (!texts)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for a configuration");
	r = r ? r
	      : env->layout_get(env->arg, info->uuid, which->layout_hash, &g->spec, &g->layout, &g->layout_ref, err);
	if (!r && (ptc_config_format(config, texts, PTC_CONFIG_TEXT_MAX) ||
		   ptc_config_format(ptc_layout_config(g->layout), texts + PTC_CONFIG_TEXT_MAX, PTC_CONFIG_TEXT_MAX) ||
		   strcmp(texts, texts + PTC_CONFIG_TEXT_MAX)))
		r = ptc_error_set(err, PTC_EINVAL, "generation %llu is %.200s, its layout document is of %.200s",
				  (unsigned long long)which->number, texts, texts + PTC_CONFIG_TEXT_MAX);
	ptc_free(texts);
	return r;
}

static int layout_make(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		       struct ptc_error *err)
{
	struct ptc_config *config = ptc_calloc(1, sizeof(*config));
	int r = config ? 0 : ptc_error_set(err, PTC_ENOMEM, "no memory for a configuration");

	r = r ? r : ptc_config_parse(which->config, config, err);
	if (!r)
		r = which->layout_hash[0] ? layout_borrow(g, info, which, config, err)
					  : layout_read(g, info, config, err);
	ptc_free(config);
	if (r)
		return r;
	if (ptc_layout_world(g->layout) != g->allocation.world)
		return ptc_error_set(err, PTC_EINVAL, "configuration %.200s has %u ranks, the allocation %u",
				     which->config, ptc_layout_world(g->layout), g->allocation.world);
	return 0;
}

static int place_read(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		      struct ptc_error *err)
{
	if (names_copy(g, info))
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu node names", info->n_nodes);
	return allocation_read(g, which, err);
}

static int geometry_build(struct ptc_geometry *g, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
			  struct ptc_error *err)
{
	int r = place_read(g, info, which, err);

	if (r)
		return r;
	g->replicas = ptc_calloc(1, sizeof(*g->replicas));
	if (!g->replicas)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for a geometry");
	ptc_require(!pthread_mutex_init(&g->replicas->lock, NULL));
	return layout_make(g, info, which, err);
}

int ptc_geometry_place(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		       struct ptc_geometry *ret_geometry, struct ptc_config *ret_config, struct ptc_error *err)
{
	struct ptc_geometry g = { .agent = agent };
	uint32_t world = 0;
	int r = 0;

	if (!which || !which->number)
		return ptc_error_set(err, PTC_EINVAL, "no generation is named");
	g.generation = which->number;
	g.snapshot = which->snapshot;
	snprintf(g.uuid, sizeof(g.uuid), "%s", info->uuid);
	snprintf(g.spec_hash, sizeof(g.spec_hash), "%s", info->spec_hash);
	r = place_read(&g, info, which, err);
	r = r ? r : ptc_config_parse(which->config, ret_config, err);
	r = r ? r : ptc_config_world(ret_config, &world, err);
	if (!r && world != g.allocation.world)
		r = ptc_error_set(err, PTC_EINVAL, "configuration %.200s has %u ranks, the allocation %u",
				  which->config, world, g.allocation.world);
	if (r) {
		ptc_geometry_done(&g);
		return r;
	}
	*ret_geometry = g;
	return 0;
}

int ptc_agent_geometry(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		       const struct Ptc__V1__Generation *which, struct ptc_geometry *ret_geometry,
		       struct ptc_error *err)
{
	struct ptc_geometry g = { .agent = agent };
	int r = ptc_switch_info_check(PTC_WIRE_VERSION, info, err);

	if (r)
		return r;
	if (!which || !which->number)
		return ptc_error_set(err, PTC_EINVAL, "no generation is named");
	if (strlen(which->layout_hash) > 64)
		return ptc_error_set(err, PTC_EINVAL, "a layout hash of %zu characters", strlen(which->layout_hash));
	g.generation = which->number;
	g.snapshot = which->snapshot;
	snprintf(g.uuid, sizeof g.uuid, "%s", info->uuid);
	snprintf(g.spec_hash, sizeof g.spec_hash, "%s", info->spec_hash);
	r = geometry_build(&g, info, which, err);
	if (r) {
		ptc_geometry_done(&g);
		return r;
	}
	*ret_geometry = g;
	return 0;
}

/* ---- replicas ---- */

struct node_needs {
	struct ptc_needs *v; /* per node of the geometry */
	size_t total;
};

static int needs_of_all(const struct ptc_geometry *g, struct node_needs *ret, struct ptc_error *err)
{
	bool *used = ptc_calloc(g->nnodes, sizeof(*used));
	int r = 0;

	ret->v = ptc_calloc(g->nnodes, sizeof(*ret->v));
	if (!used || !ret->v)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for %zu nodes", g->nnodes);
	for (uint32_t i = 0; !r && i < g->allocation.world; i++)
		used[g->allocation.ranks[i].node] = true;
	for (uint32_t i = 0; !r && i < g->nnodes; i++) {
		if (!used[i])
			continue;
		r = ptc_layout_node_needs(g->layout, &g->allocation, i, &ret->v[i], err);
		ret->total += r ? 0 : ret->v[i].n;
	}
	ptc_free(used);
	return r;
}

static int replicas_sort(struct ptc_replicas *h, const struct ptc_geometry *g, const struct node_needs *all,
			 struct ptc_error *err)
{
	size_t items = ptc_spec_items(g->spec), *first = ptc_calloc(items + 2, sizeof(*first));
	struct ptc_replica *v = ptc_reallocarray(NULL, all->total ? all->total : 1, sizeof(*v));

	if (!first || !v) {
		ptc_free(first);
		ptc_free(v);
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", all->total);
	}
	for (size_t i = 0; i < g->nnodes; i++)
		for (size_t k = 0; k < all->v[i].n; k++)
			first[all->v[i].v[k].item + 2]++;
	for (size_t i = 2; i < items + 2; i++)
		first[i] += first[i - 1];
	/* first[item + 1] is where the next one of item goes; at the end it is where item + 1 begins. */
	for (uint32_t i = 0; i < g->nnodes; i++)
		for (size_t k = 0; k < all->v[i].n; k++) {
			const struct ptc_need *need = &all->v[i].v[k];

			v[first[need->item + 1]++] = (struct ptc_replica){ need->item, i, need->box };
		}
	h->first = first;
	h->n = all->total;
	h->v = v;
	return 0;
}

static int replicas_build_locked(struct ptc_replicas *h, const struct ptc_geometry *g, struct ptc_error *err)
{
	struct node_needs all = { 0 };
	int r = needs_of_all(g, &all, err);

	r = r ? r : replicas_sort(h, g, &all, err);
	for (size_t i = 0; all.v && i < g->nnodes; i++)
		ptc_needs_done(&all.v[i]);
	ptc_free(all.v);
	return r;
}

int ptc_geometry_replicas(const struct ptc_geometry *g, uint32_t item, const struct ptc_replica **ret, size_t *ret_n,
			  struct ptc_error *err)
{
	struct ptc_replicas *h = g->replicas;
	int r = 0;

	if (item >= ptc_spec_items(g->spec))
		return ptc_error_set(err, PTC_EINVAL, "item %u of %zu", item, ptc_spec_items(g->spec));
	pthread_mutex_lock(&h->lock);
	if (!h->v)
		r = replicas_build_locked(h, g, err);
	pthread_mutex_unlock(&h->lock);
	if (r)
		return r;
	*ret = h->v + h->first[item];
	*ret_n = h->first[item + 1] - h->first[item];
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
		return ptc_error_set(err, PTC_EINVAL, "item %u of %zu", item, ptc_spec_items(g->spec));
	return ptc_item_byte_shape(g->spec, item, ret_ndim, ret_shape, err);
}

struct ptc_table_key ptc_geometry_key(const struct ptc_geometry *g)
{
	struct ptc_table_key key = { .generation = g->generation, .snapshot = g->snapshot };

	memcpy(key.uuid, g->uuid, sizeof(key.uuid));
	return key;
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

/* ---- cache ---- */

static int cache_key(const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which, char ret_key[33],
		     struct ptc_error *err)
{
	Ptc__V1__SwitchInfo only;
	Ptc__V1__Generation gen = *which;
	void *data;
	size_t len;
	int r;

	ptc__v1__switch_info__init(&only);
	only.uuid = info->uuid;
	only.spec_hash = info->spec_hash;
	only.n_nodes = info->n_nodes;
	only.nodes = info->nodes;
	only.n_addresses = info->n_addresses;
	only.addresses = info->addresses;
	gen.incarnation = 0; /* where tensors lie does not depend on it */
	only.from = &gen;
	r = ptc_pb_encode(&only.base, &data, &len, err);
	if (r)
		return r;
	ptc_content_hash(data, len, ret_key);
	ptc_free(data);
	return 0;
}

/* Finds it and moves it to the front, with a reference for the caller. */
static struct ptc_geometry_ref *cache_find(struct ptc_agent *agent, const char *key)
{
	struct ptc_geometry_ref **at = &agent->shared.geometries, *found;

	pthread_mutex_lock(&agent->shared.lock);
	while (*at && strcmp((*at)->key, key))
		at = &(*at)->next;
	found = *at;
	if (found) {
		*at = found->next;
		found->next = agent->shared.geometries;
		agent->shared.geometries = found;
		found->refs++;
	}
	pthread_mutex_unlock(&agent->shared.lock);
	return found;
}

static void cache_add(struct ptc_agent *agent, struct ptc_geometry_ref *ref)
{
	struct ptc_geometry_ref **at = &agent->shared.geometries, *old = NULL;

	pthread_mutex_lock(&agent->shared.lock);
	ref->next = agent->shared.geometries;
	agent->shared.geometries = ref;
	for (unsigned n = 0; *at && n < PTC_AGENT_GEOMETRIES; n++)
		at = &(*at)->next;
	if (*at) {
		old = *at;
		*at = old->next;
		old->next = NULL;
	}
	pthread_mutex_unlock(&agent->shared.lock);
	ptc_geometry_put(agent, old);
}

int ptc_geometry_get(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		     struct ptc_geometry_ref **ret, struct ptc_error *err)
{
	struct ptc_geometry_ref *ref;
	char key[33];
	int r;

	if (!which || !which->number)
		return ptc_error_set(err, PTC_EINVAL, "no generation is named");
	r = cache_key(info, which, key, err);
	if (r)
		return r;
	ref = cache_find(agent, key);
	if (!ref) {
		ref = ptc_calloc(1, sizeof(*ref));
		if (!ref)
			return ptc_error_set(err, PTC_ENOMEM, "no memory for a geometry");
		r = ptc_agent_geometry(agent, info, which, &ref->g, err);
		if (r) {
			ptc_free(ref);
			return r;
		}
		memcpy(ref->key, key, sizeof(key));
		ref->refs = 2;
		cache_add(agent, ref);
	}
	*ret = ref;
	return 0;
}

void ptc_geometry_put(struct ptc_agent *agent, struct ptc_geometry_ref *ref)
{
	bool last;

	if (!ref)
		return;
	pthread_mutex_lock(&agent->shared.lock);
	last = !--ref->refs;
	pthread_mutex_unlock(&agent->shared.lock);
	if (!last)
		return;
	ptc_geometry_done(&ref->g);
	ptc_free(ref);
}

void ptc_geometry_cache_done(struct ptc_agent *agent)
{
	struct ptc_geometry_ref *ref;

	while ((ref = agent->shared.geometries)) {
		agent->shared.geometries = ref->next;
		ptc_geometry_put(agent, ref);
	}
}
