/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out a configuration, places its ranks on the pool's devices, and counts what moves.
 *
 * A job whose ranks declare their tensors is placed by the layout that it had under that configuration before. The
 * first time there is no such layout. Ranks then stay where they are, unless TP groups would be better together
 * elsewhere. TP groups stay in one rack if they all fit. If not, racks do not count: a job that goes on over several
 * racks is better than one that stops.
 *
 * Failure modes: a rule that does not fit (PTC_ELAYOUT naming the tensor), bytes without a live source (PTC_ELOST), too
 * few devices (PTC_ENODEVICES), memory. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "daemon/controller/internal.h"
#include "daemon/controller/plan/internal.h"

void ptc_plan_layouts_done(struct ptc_plan_layouts *l)
{
	ptc_layouts_release(l->from_ref);
	ptc_layouts_release(l->to_ref);
	ptc_view_copied_done(&l->copied);
	ptc_allocation_done(&l->from_alloc);
	ptc_allocation_done(&l->to_alloc);
	ptc_plan_free(l->plan);
	ptc_plan_free(l->need);
}

/* Laid out by what ranks have declared, or by the job's rules. */
int ptc_plan_layout_get(struct ptc_controllers *all, const struct ptc_view *v, const char *layout_hash,
			const char *config, const struct ptc_spec **ret_spec, const struct ptc_layout **ret_layout,
			void **ret_ref, struct ptc_error *err)
{
	const struct ptc_declared *declared;
	int rc;

	if (!layout_hash[0])
		return ptc_layouts_of_rules(&all->docs, v->meta.uuid, v->meta.spec_hash, config, ret_spec, ret_layout,
					    ret_ref, err);
	rc = ptc_layouts_get(all->docs.layouts, v->meta.uuid, layout_hash, &declared, ret_layout, ret_ref, err);
	if (rc == 0)
		*ret_spec = &declared->spec;
	return rc;
}

/* The layout that holds state now, if any does, and where its ranks are. */
int ptc_plan_layout_from(struct ptc_controllers *all, const struct ptc_view *v, struct ptc_plan_layouts *l,
			 struct ptc_error *err)
{
	int rc;

	if (!v->from_generation)
		return 0;
	if (ptc_view_allocation(v, &v->from, &l->from_alloc) != 0)
		return ptc_nomem(err);
	l->copied_at = l->from_alloc;
	/* live ranks hold state before their first snapshot, and have declared what */
	if (!v->from_snapshot && !v->from.layout_hash[0])
		return 0;
	rc = ptc_plan_layout_get(all, v, v->from.layout_hash, v->from.config, &l->spec, &l->from, &l->from_ref, err);
	if (rc || !v->copies.nparts)
		return rc;
	rc = ptc_view_copied(v, l->from, &l->copied, err);
	if (rc == 0) {
		l->from = l->copied.layout;
		l->copied_at = l->copied.at;
	}
	return rc;
}

/* Without a layout nothing says which mapping moves least: ranks stay where a rank of that number is, others take the
 * devices in node order. */
static int stay(const struct ptc_device_pool *p, const struct ptc_allocation *from, uint32_t world,
		struct ptc_allocation *ret, struct ptc_error *err)
{
	struct ptc_device *ranks = ptc_calloc(world, sizeof *ranks);
	ptc_auto_free bool *used = ptc_calloc(p->ndevices, sizeof *used), *placed = ptc_calloc(world, sizeof *placed);
	size_t at = 0;

	if (!ranks || !used || !placed) {
		ptc_free(ranks);
		return ptc_nomem(err);
	}
	for (uint32_t r = 0; r < world && r < from->world; r++)
		if (ptc_device_pool_has(p, used, from->ranks[r], &at)) {
			ranks[r] = p->devices[at];
			used[at] = placed[r] = true;
		}
	at = 0;
	for (uint32_t r = 0; r < world; r++) {
		if (placed[r])
			continue;
		while (used[at])
			at++;
		ranks[r] = p->devices[at];
		used[at] = true;
	}
	*ret = (struct ptc_allocation){ ranks, world };
	return 0;
}

/* Within racks, if that is possible. */
static int place_ranks(const struct ptc_device_pool *p, const struct ptc_change *change,
		       const struct ptc_allocation *from, struct ptc_allocation *ret, int64_t *ret_gap,
		       struct ptc_error *err)
{
	struct ptc_place_opts opts = ptc_device_pool_opts(p);
	int rc = opts.racks ? ptc_change_place(change, from, &opts, ret, ret_gap, NULL) : PTC_ENODEVICES;

	if (rc == PTC_ENODEVICES || rc == PTC_ELIMIT) {
		opts.racks = NULL;
		rc = ptc_change_place(change, from, &opts, ret, ret_gap, err);
	} else if (rc) {
		ptc_error_set(err, rc, "out of memory");
	}
	return rc;
}

static int count_groups(const struct ptc_device_pool *p, const struct ptc_config *c, const struct ptc_allocation *a,
			struct ptc_groups *ret, struct ptc_error *err)
{
	struct ptc_place_opts opts = ptc_device_pool_opts(p);

	return ptc_place_groups(c, a, &opts, ret, err);
}

/* As for a job without state: TP groups are kept together, and nothing else counts. */
static int place_empty(const struct ptc_device_pool *p, const struct ptc_config *c, struct ptc_allocation *ret,
		       struct ptc_error *err)
{
	static const struct ptc_spec nothing = { .name = "nothing" };
	struct ptc_layout *layout = NULL;
	struct ptc_change *change = NULL;
	int64_t gap;
	int rc = ptc_layout_new(&nothing, c, &layout, err);

	if (rc == 0)
		rc = ptc_change_new(NULL, layout, &change, err);
	if (rc == 0)
		rc = place_ranks(p, change, NULL, ret, &gap, err);
	ptc_change_free(change);
	ptc_layout_free(layout);
	return rc;
}

/* The planner has decided on nodes. */
static int place_decided(const struct ptc_device_pool *p, const struct ptc_config *c, struct ptc_plan_layouts *l,
			 struct ptc_error *err)
{
	int rc = place_empty(p, c, &l->to_alloc, err);

	return rc ? rc : count_groups(p, c, &l->to_alloc, &l->groups, err);
}

/* Ranks stay, unless fewer TP groups are split, or across racks, when they do not. */
int ptc_plan_place_unknown(const struct ptc_device_pool *p, const struct ptc_config *c, uint32_t world,
			   struct ptc_plan_layouts *l, struct ptc_error *err)
{
	struct ptc_allocation anew = { 0 };
	struct ptc_groups other;
	int rc;

	if (p->node_of_rank)
		return place_decided(p, c, l, err);
	rc = stay(p, &l->from_alloc, world, &l->to_alloc, err);

	if (rc == 0)
		rc = count_groups(p, c, &l->to_alloc, &l->groups, err);
	if (rc || (!l->groups.split && !l->groups.across))
		return rc;
	rc = place_empty(p, c, &anew, err);
	if (rc == 0)
		rc = count_groups(p, c, &anew, &other, err);
	if (rc == 0 &&
	    (other.across < l->groups.across || (other.across == l->groups.across && other.split < l->groups.split))) {
		struct ptc_allocation old = l->to_alloc;

		l->to_alloc = anew;
		l->groups = other;
		anew = old;
	}
	ptc_allocation_done(&anew);
	return rc;
}

/* The plan between two layouts, without a list of its moves. */
static int sum_moves(const struct ptc_device_pool *p, const struct ptc_change *change, const struct ptc_plan_layouts *l,
		     const bool *usable, struct ptc_plan **ret, struct ptc_error *err)
{
	static const struct ptc_plan_opts count_only;

	return ptc_plan_stream(change, &l->copied_at, &l->to_alloc, (uint32_t)p->nnames, usable, &count_only, ret, err);
}

static int count_moves(const struct ptc_device_pool *p, const struct ptc_change *change, struct ptc_plan_layouts *l,
		       struct ptc_error *err)
{
	struct ptc_change *alone = NULL;
	int rc = sum_moves(p, change, l, p->usable, &l->plan, err);

	if (rc == PTC_ELOST && l->from) /* the plan knows nodes by number only */
		rc = ptc_lost_error(p->v, l->spec, l->from, &l->copied_at, (uint32_t)p->nnames, p->usable, p->names,
				    err);
	if (rc == 0)
		rc = ptc_change_new(NULL, l->to, &alone, err);
	if (rc == 0)
		rc = sum_moves(p, alone, l, NULL, &l->need, err);
	ptc_change_free(alone);
	return rc;
}

/* The bytes that the best mapping of those ranks moves; the planner has taken another mapping. */
static int bound_of(const struct ptc_device_pool *p, const struct ptc_change *change, struct ptc_plan_layouts *l,
		    struct ptc_error *err)
{
	struct ptc_plan_layouts best = { .spec = l->spec, .from = l->from, .to = l->to, .copied_at = l->copied_at };
	struct ptc_device_pool any = *p;
	int64_t gap = 0;
	int rc;

	any.node_of_rank = NULL;
	rc = place_ranks(&any, change, &l->copied_at, &best.to_alloc, &gap, err);
	if (rc == 0)
		rc = sum_moves(&any, change, &best, any.usable, &best.plan, err);
	if (rc == 0) {
		l->bound = best.plan->between_nodes - gap;
		l->exact = false;
	}
	ptc_allocation_done(&best.to_alloc);
	ptc_plan_free(best.plan);
	return rc;
}

/* Places and counts; with l->to_alloc given, only counts. */
int ptc_plan_place(const struct ptc_device_pool *p, struct ptc_plan_layouts *l, struct ptc_error *err)
{
	struct ptc_change *change;
	bool placed = l->to_alloc.ranks != NULL;
	int64_t gap = 0;
	int rc = ptc_change_new(l->from, l->to, &change, err);

	if (rc)
		return rc;
	if (!placed)
		rc = place_ranks(p, change, &l->copied_at, &l->to_alloc, &gap, err);
	if (rc == 0)
		rc = count_groups(p, ptc_layout_config(l->to), &l->to_alloc, &l->groups, err);
	if (rc == 0)
		rc = count_moves(p, change, l, err);
	if (rc == 0 && !placed && !p->node_of_rank) {
		l->bound = l->plan->between_nodes - gap;
		l->exact = gap == 0;
	} else if (rc == 0 && !placed) {
		rc = bound_of(p, change, l, err);
	}
	ptc_change_free(change);
	return rc;
}

/* For bytes of more ranks than there are devices. Ranks in a row stay together, and each node gets as many as its
 * devices say. Ranks do not run there: a number that the node's devices do not have does as well. */
static int pack(const struct ptc_device_pool *p, uint32_t world, struct ptc_allocation *ret, struct ptc_error *err)
{
	struct ptc_device *ranks = ptc_calloc(world, sizeof *ranks);
	ptc_auto_free uint32_t *parts = ptc_calloc(p->nnames, sizeof *parts);

	if (!ranks || !parts) {
		ptc_free(ranks);
		return ptc_nomem(err);
	}
	for (uint32_t r = 0; r < world; r++) {
		uint32_t node = p->ndevices ? p->devices[(uint64_t)r * p->ndevices / world].node : 0;

		if (!p->ndevices || parts[node] == PTC_MAX_DEVICES_PER_NODE) {
			ptc_free(ranks);
			return ptc_device_pool_too_few(p, world, err);
		}
		ranks[r] = (struct ptc_device){ node, parts[node]++ };
	}
	*ret = (struct ptc_allocation){ ranks, world };
	return 0;
}

int ptc_plan_layouts_make(struct ptc_controllers *all, const struct ptc_job_desc *desc, const struct ptc_view *v,
			  const struct ptc_config *config, const struct ptc_device_pool *p, struct ptc_plan_layouts *l,
			  char **ret_known, struct ptc_error *err)
{
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	bool declared = desc->spec.ntensors == 0;
	const char *known = NULL;
	bool packed = p->req->packed && declared;
	uint32_t world;
	int rc = ptc_config_world(config, &world, err);

	if (rc == 0 && world > p->ndevices && !packed) /* before a layout is made, which for many ranks is large */
		rc = ptc_device_pool_too_few(p, world, err);
	if (rc == 0 && (!text || ptc_config_format(config, text, PTC_CONFIG_TEXT_MAX) != 0))
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = ptc_plan_layout_from(all, v, l, err);
	if (rc)
		return rc;
	if (declared)
		known = ptc_manifest_layout_find(&v->manifest, text);
	if (packed && !known)
		return ptc_error_set(err, PTC_ESTATE,
				     "the ranks of job %s declare its tensors, and nobody knows yet which: import a "
				     "checkpoint with ptc-layout.json, or write tensors and rules into the job's "
				     "description (docs/archive.md)",
				     v->meta.name);
	if (declared && !known)
		return ptc_plan_place_unknown(p, config, world, l, err);
	rc = ptc_plan_layout_get(all, v, known ? known : "", text, &l->spec, &l->to, &l->to_ref, err);
	if (rc == 0 && known && !(*ret_known = ptc_strdup(known)))
		rc = ptc_nomem(err);
	if (rc == 0 && world > p->ndevices)
		rc = pack(p, world, &l->to_alloc, err);
	return rc ? rc : ptc_plan_place(p, l, err);
}
