/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes (geometry_shape.h), and the cache of them. Happy path: the key is the message without its numbers, and without
 * members that do not affect where tensors lie. The first caller who needs a derived value makes it, under the shape's
 * lock. Failure modes: memory; a value that could not be made is tried again by the next caller. */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/geometry/geometry_shape.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"
#include "reshard/plan/plan.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <string.h>

struct node_needs {
	struct ptc_needs *v; /* per node of the geometry */
	size_t total;
};

static int needs_of_all(const struct ptc_geometry *g, struct node_needs *ret, struct ptc_error *err)
{
	bool *used = ptc_calloc(g->nnodes, sizeof *used);
	int rc = 0;

	ret->v = ptc_calloc(g->nnodes, sizeof *ret->v);
	if (!used || !ret->v)
		rc = ptc_nomem(err);
	for (uint32_t i = 0; !rc && i < g->copied_at.world; i++)
		used[g->copied_at.ranks[i].node] = true;
	for (uint32_t i = 0; !rc && i < g->nnodes; i++) {
		if (!used[i])
			continue;
		rc = ptc_layout_node_needs(g->copied, &g->copied_at, i, &ret->v[i], err);
		ret->total += rc ? 0 : ret->v[i].n;
	}
	ptc_free(used);
	return rc;
}

struct ptc_replicas *ptc_replicas_free(struct ptc_replicas *r)
{
	if (!r)
		return NULL;
	ptc_free(r->v);
	ptc_free(r->first);
	ptc_free(r->counts);
	ptc_free(r);
	return NULL;
}

/* Puts every node's boxes where they belong. A node's boxes come by item, so their order stays. */
static int replicas_sort(struct ptc_replicas *r, const struct ptc_geometry *g, const struct node_needs *all,
			 struct ptc_error *err)
{
	size_t items = ptc_spec_items(g->spec), *first = ptc_calloc(items + 2, sizeof *first);

	r->first = first;
	r->v = ptc_reallocarray(NULL, all->total ? all->total : 1, sizeof *r->v);
	r->counts = ptc_calloc(g->nnodes, sizeof *r->counts);
	if (!first || !r->v || !r->counts)
		return ptc_nomem(err);
	for (size_t i = 0; i < g->nnodes; i++)
		for (size_t k = 0; k < all->v[i].n; k++) {
			if (ptc_fails(!k || all->v[i].v[k].item >= all->v[i].v[k - 1].item))
				return ptc_error_set(err, PTC_EINTERNAL, "internal error: boxes are not by item");
			first[all->v[i].v[k].item + 2]++;
		}
	for (size_t i = 2; i < items + 2; i++)
		first[i] += first[i - 1];
	/* first[item + 1] is where the next one of item goes; at the end it is where item + 1 begins. */
	for (uint32_t i = 0; i < g->nnodes; i++) {
		r->counts[i] = all->v[i].n;
		for (size_t k = 0; k < all->v[i].n; k++) {
			const struct ptc_need *need = &all->v[i].v[k];

			r->v[first[need->item + 1]++] = (struct ptc_replica){ need->item, i, need->box };
		}
	}
	return 0;
}

static int replicas_build(const struct ptc_geometry *g, struct ptc_replicas **ret, size_t *ret_total,
			  struct ptc_error *err)
{
	struct node_needs all = { 0 };
	struct ptc_replicas *r = ptc_calloc(1, sizeof *r);
	int rc = r ? needs_of_all(g, &all, err) : ptc_nomem(err);

	if (rc == 0)
		rc = replicas_sort(r, g, &all, err);
	for (size_t i = 0; all.v && i < g->nnodes; i++)
		ptc_needs_done(&all.v[i]);
	ptc_free(all.v);
	if (rc) {
		ptc_replicas_free(r);
		return rc;
	}
	*ret = r;
	*ret_total = all.total;
	return 0;
}

int ptc_geometry_replicas(const struct ptc_geometry *g, uint32_t item, const struct ptc_replica **ret, size_t *ret_n,
			  struct ptc_error *err)
{
	struct ptc_geometry_shape *h = g->shape;
	size_t total;
	int rc = 0;

	if (item >= ptc_spec_items(g->spec))
		return ptc_error_set(err, PTC_EINVAL, "there is no item %u; the job has %zu items", item,
				     ptc_spec_items(g->spec));
	pthread_mutex_lock(&h->lock);
	if (!h->replicas)
		rc = replicas_build(&h->g, &h->replicas, &total, err);
	pthread_mutex_unlock(&h->lock);
	if (rc)
		return rc;
	*ret = h->replicas->v + h->replicas->first[item];
	*ret_n = h->replicas->first[item + 1] - h->replicas->first[item];
	return 0;
}

int ptc_geometry_replicas_all(const struct ptc_geometry *g, const struct ptc_replicas **ret,
			      struct ptc_replicas **ret_own, struct ptc_error *err)
{
	struct ptc_geometry_shape *h = g->shape;
	struct ptc_replicas *made = NULL;
	size_t total = 0;
	int rc = 0;

	pthread_mutex_lock(&h->lock);
	if (!h->replicas)
		rc = replicas_build(&h->g, &made, &total, err);
	if (!rc && made && total <= PTC_AGENT_REPLICAS_KEPT) {
		h->replicas = made;
		made = NULL;
	}
	if (!rc) {
		*ret = made ? made : h->replicas;
		*ret_own = made;
	}
	pthread_mutex_unlock(&h->lock);
	return rc;
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
	ptc_replicas_free(h->replicas);
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
