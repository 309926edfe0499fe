/* SPDX-License-Identifier: Apache-2.0 */
/* Works out the shape of a switch once, and keeps it in a cache. Happy path: the key is the message without its
 * numbers, and without members that do not affect where tensors lie. The first caller who needs a derived value
 * makes it, under the shape's lock. Failure modes: memory; a value that could not be made is tried again by the
 * next caller. */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/geometry/geometry_shape.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"
#include "reshard/plan/plan.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <string.h>

/* ---- the boxes of all nodes ---- */

int ptc_geometry_boxes(const struct ptc_geometry *g, uint32_t node, uint32_t first, uint32_t end, size_t most,
		       struct ptc_needs *needs, struct ptc_error *err)
{
	const uint32_t *ranks = g->node_ranks + g->node_first[node];

	return ptc_layout_ranks_needs(g->copied, ranks, g->node_first[node + 1] - g->node_first[node], first, end, most,
				      needs, err);
}

static struct ptc_replicas *replicas_free(struct ptc_replicas *r)
{
	if (!r)
		return NULL;
	ptc_free(r->v);
	ptc_free(r->first);
	ptc_free(r);
	return NULL;
}

/* The boxes of these items on all nodes, one node after the other: those of node n end at ends[n]. */
static int list_all(const struct ptc_geometry *g, uint32_t first, uint32_t end, size_t most, struct ptc_needs *ret,
		    size_t *ends, struct ptc_error *err)
{
	int rc = 0;

	for (uint32_t n = 0; n < g->nnodes && !rc; n++) {
		rc = ptc_geometry_boxes(g, n, first, end, most, ret, err);
		ends[n] = ret->n;
	}
	return rc;
}

/* Puts every node's boxes where they belong. A node's boxes come by item, so their order stays. */
static int replicas_sort(struct ptc_replicas *r, const struct ptc_geometry *g, const struct ptc_needs *all,
			 const size_t *ends, struct ptc_error *err)
{
	size_t items = ptc_spec_items(g->spec), *first = ptc_calloc(items + 2, sizeof *first), k = 0;

	r->first = first;
	r->v = ptc_reallocarray(NULL, all->n ? all->n : 1, sizeof *r->v);
	if (!first || !r->v)
		return ptc_nomem(err);
	for (size_t i = 0; i < all->n; i++)
		first[all->v[i].item + 2]++;
	for (size_t i = 2; i < items + 2; i++)
		first[i] += first[i - 1];
	/* first[item + 1] is where the next one of item goes; at the end it is where item + 1 begins. */
	for (uint32_t n = 0; n < g->nnodes; n++)
		for (; k < ends[n]; k++)
			r->v[first[all->v[k].item + 1]++] = (struct ptc_replica){ all->v[k].item, n, all->v[k].box };
	return 0;
}

/* PTC_ELIMIT: they are too many to be kept. */
static int replicas_build(const struct ptc_geometry *g, struct ptc_replicas **ret, struct ptc_error *err)
{
	struct ptc_replicas *r = ptc_calloc(1, sizeof *r);
	size_t *ends = ptc_calloc(g->nnodes, sizeof *ends);
	struct ptc_needs all = { 0 };
	int rc = r && ends ? 0 : ptc_nomem(err);

	if (!rc)
		rc = list_all(g, 0, (uint32_t)ptc_spec_items(g->spec), PTC_AGENT_REPLICAS_KEPT, &all, ends, err);
	if (!rc)
		rc = replicas_sort(r, g, &all, ends, err);
	ptc_needs_done(&all);
	ptc_free(ends);
	if (rc) {
		replicas_free(r);
		return rc;
	}
	*ret = r;
	return 0;
}

static int replicas_of_item(const struct ptc_geometry *g, uint32_t item, struct ptc_item_replicas *ret,
			    struct ptc_error *err)
{
	size_t *ends = ptc_calloc(g->nnodes, sizeof *ends), k = 0;
	struct ptc_needs all = { 0 };
	int rc = ends ? list_all(g, item, item + 1, SIZE_MAX, &all, ends, err) : ptc_nomem(err);
	struct ptc_replica *v = rc ? NULL : ptc_reallocarray(NULL, all.n ? all.n : 1, sizeof *v);

	if (!rc && !v)
		rc = ptc_nomem(err);
	for (uint32_t n = 0; n < g->nnodes && !rc; n++)
		for (; k < ends[n]; k++)
			v[k] = (struct ptc_replica){ item, n, all.v[k].box };
	if (!rc)
		*ret = (struct ptc_item_replicas){ v, all.n, v };
	ptc_needs_done(&all);
	ptc_free(ends);
	return rc;
}

int ptc_geometry_replicas(const struct ptc_geometry *g, uint32_t item, struct ptc_item_replicas *ret,
			  struct ptc_error *err)
{
	struct ptc_geometry_shape *h = g->shape;
	const struct ptc_replicas *r;
	int rc = 0;

	if (item >= ptc_spec_items(g->spec))
		return ptc_error_set(err, PTC_EINVAL, "there is no item %u; the job has %zu items", item,
				     ptc_spec_items(g->spec));
	pthread_mutex_lock(&h->lock);
	if (!h->replicas && !h->too_many)
		rc = replicas_build(&h->g, &h->replicas, err);
	h->too_many = h->too_many || rc == PTC_ELIMIT;
	r = h->replicas;
	pthread_mutex_unlock(&h->lock);
	if (rc && rc != PTC_ELIMIT && rc != PTC_ENOMEM)
		return rc;
	if (!r) /* those of one item may fit where all do not */
		return replicas_of_item(g, item, ret, err);
	*ret = (struct ptc_item_replicas){ r->v + r->first[item], r->first[item + 1] - r->first[item], NULL };
	return 0;
}

void ptc_item_replicas_done(struct ptc_item_replicas *r)
{
	ptc_free(r->own);
	*r = (struct ptc_item_replicas){ 0 };
}

/* ---- this node's boxes ---- */

int ptc_geometry_needs(const struct ptc_geometry *g, bool copies, const struct ptc_needs **ret, struct ptc_error *err)
{
	struct ptc_geometry_shape *h = g->shape;
	const bool beside = copies && g->copied != g->layout;
	struct needs_here *n = &h->needs[beside];
	uint32_t self;
	int rc = ptc_geometry_node(g, g->agent->node, &self, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&h->lock);
	if (!n->made)
		rc = beside ? ptc_layout_node_needs(g->copied, &g->copied_at, self, &n->needs, err)
			    : ptc_layout_node_needs(g->layout, &g->allocation, self, &n->needs, err);
	n->made = !rc;
	pthread_mutex_unlock(&h->lock);
	if (!rc)
		*ret = &n->needs;
	return rc;
}

/* ---- the plan ---- */

/* A plan follows from both shapes and from who may be a source. */
static int plan_name(const struct ptc_geometry *from, const struct ptc_geometry *to, const bool *usable,
		     char ret_name[33])
{
	const size_t len = sizeof to->shape->cached.key;
	char *all = ptc_calloc(1, len + to->nnodes);

	if (!all)
		return PTC_ENOMEM;
	if (from)
		memcpy(all, from->shape->cached.key, len);
	for (size_t i = 0; i < to->nnodes; i++)
		all[len + i] = usable[i];
	ptc_content_hash(all, len + to->nnodes, ret_name);
	ptc_free(all);
	return 0;
}

bool ptc_geometry_plan_known(const struct ptc_geometry *from, const struct ptc_geometry *to, const bool *usable,
			     char ret_hash[33])
{
	struct ptc_geometry_shape *h = to->shape;
	char name[33];
	bool known;

	if (plan_name(from, to, usable, name))
		return false;
	pthread_mutex_lock(&h->lock);
	known = strcmp(h->plan_of, name) == 0;
	if (known)
		memcpy(ret_hash, h->plan_hash, sizeof h->plan_hash);
	pthread_mutex_unlock(&h->lock);
	return known;
}

void ptc_geometry_plan_note(const struct ptc_geometry *from, const struct ptc_geometry *to, const bool *usable,
			    const char hash[33])
{
	struct ptc_geometry_shape *h = to->shape;
	char name[33];

	if (plan_name(from, to, usable, name))
		return;
	pthread_mutex_lock(&h->lock);
	memcpy(h->plan_of, name, sizeof name);
	memcpy(h->plan_hash, hash, sizeof h->plan_hash);
	pthread_mutex_unlock(&h->lock);
}

struct ptc_plan *ptc_geometry_plan_take(const struct ptc_geometry *from, const struct ptc_geometry *to,
					const bool *usable)
{
	struct ptc_geometry_shape *h = to->shape;
	struct ptc_plan *plan = NULL;
	char name[33];

	if (plan_name(from, to, usable, name))
		return NULL;
	pthread_mutex_lock(&h->lock);
	if (h->into && strcmp(h->into_of, name) == 0) {
		plan = h->into;
		h->into = NULL;
	}
	pthread_mutex_unlock(&h->lock);
	return plan;
}

void ptc_geometry_plan_keep(const struct ptc_geometry *from, const struct ptc_geometry *to, const bool *usable,
			    struct ptc_plan *plan)
{
	struct ptc_geometry_shape *h = to->shape;
	struct ptc_plan *before = plan;
	char name[33];

	if (plan && plan->nmoves <= PTC_AGENT_PLAN_MOVES && plan_name(from, to, usable, name) == 0) {
		pthread_mutex_lock(&h->lock);
		before = h->into;
		h->into = plan;
		memcpy(h->into_of, name, sizeof name);
		pthread_mutex_unlock(&h->lock);
	}
	ptc_plan_free(before);
}

/* ---- cache ---- */

static int cache_key(const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which, char ret_key[33],
		     struct ptc_error *err)
{
	Ptc__V1__SwitchInfo only;
	Ptc__V1__Generation gen = *which;
	void *data;
	size_t len;
	int rc;

	ptc__v1__switch_info__init(&only);
	only.uuid = info->uuid;
	only.spec_hash = info->spec_hash;
	only.n_nodes = info->n_nodes;
	only.nodes = info->nodes;
	only.n_addresses = info->n_addresses;
	only.addresses = info->addresses;
	/* where tensors lie does not depend on these */
	gen.number = gen.snapshot = gen.incarnation = gen.cost_linear = gen.cost_square = 0;
	only.from = &gen;
	rc = ptc_pb_encode(&only.base, &data, &len, err);
	if (rc)
		return rc;
	ptc_content_hash(data, len, ret_key);
	ptc_free(data);
	return 0;
}

static void drop(struct ptc_cached *cached)
{
	struct ptc_geometry_shape *h = (struct ptc_geometry_shape *)cached;

	ptc_needs_done(&h->needs[0].needs);
	ptc_needs_done(&h->needs[1].needs);
	replicas_free(h->replicas);
	ptc_plan_free(h->into);
	ptc_geometry_own_done(&h->g);
	pthread_mutex_destroy(&h->lock);
	ptc_free(h);
}

void ptc_geometry_cache_init(struct ptc_agent *agent)
{
	ptc_cache_init(&agent->geometries, PTC_AGENT_GEOMETRIES, drop);
}

static int shape_get(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		     struct ptc_geometry_shape **ret, struct ptc_error *err)
{
	struct ptc_geometry_shape *h;
	char key[33];
	int rc = cache_key(info, which, key, err);

	if (rc)
		return rc;
	h = (struct ptc_geometry_shape *)ptc_cache_find(&agent->geometries, key);
	if (!h) {
		h = ptc_calloc(1, sizeof *h);
		if (!h)
			return ptc_nomem(err);
		rc = ptc_geometry_build(agent, info, which, &h->g, err);
		if (rc) {
			ptc_free(h);
			return rc;
		}
		ptc_require(!pthread_mutex_init(&h->lock, NULL));
		h = (struct ptc_geometry_shape *)ptc_cache_add(&agent->geometries, key, &h->cached);
	}
	*ret = h;
	return 0;
}

static void shape_put(struct ptc_geometry_shape *shape)
{
	ptc_cached_unref(&shape->cached);
}

void ptc_geometry_done(struct ptc_geometry *g)
{
	if (!g->shape) {
		ptc_geometry_own_done(g);
		return;
	}
	shape_put(g->shape);
	*g = (struct ptc_geometry){ 0 };
}

int ptc_agent_geometry(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		       const struct Ptc__V1__Generation *which, struct ptc_geometry *ret_geometry,
		       struct ptc_error *err)
{
	struct ptc_geometry_shape *shape;
	int rc = ptc_switch_info_check(PTC_WIRE_VERSION, info, err);

	if (rc)
		return rc;
	if (!which || !which->number)
		return ptc_error_set(err, PTC_EINVAL, "the request names no generation");
	if (strlen(which->layout_hash) > 64)
		return ptc_error_set(err, PTC_EINVAL,
				     "the request has a layout hash of %zu characters; at most 64 are possible",
				     strlen(which->layout_hash));
	rc = shape_get(agent, info, which, &shape, err);
	if (rc)
		return rc;
	*ret_geometry = shape->g;
	ret_geometry->shape = shape;
	ret_geometry->generation = which->number;
	ret_geometry->snapshot = which->snapshot;
	return 0;
}

int ptc_geometry_get(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		     struct ptc_geometry_ref **ret, struct ptc_error *err)
{
	struct ptc_geometry_ref *ref = ptc_calloc(1, sizeof *ref);
	int rc = ref ? ptc_agent_geometry(agent, info, which, &ref->g, err) : ptc_nomem(err);

	if (rc) {
		ptc_free(ref);
		return rc;
	}
	*ret = ref;
	return 0;
}

void ptc_geometry_put(struct ptc_geometry_ref *ref)
{
	if (ref)
		ptc_geometry_done(&ref->g);
	ptc_free(ref);
}
