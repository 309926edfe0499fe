/* SPDX-License-Identifier: Apache-2.0 */
/* A generation's ranks on this node: how they are started, which there are, and where they have their tensors. Happy
 * path: the allocation says which ranks are here, the job's description says how they start, and their declarations say
 * where their memory is. The layout and the declarations are walked side by side.
 *
 * Failure modes: no ranks run on this node, or others than should (PTC_ESTATE naming ranks); declarations differ from
 * the layout (PTC_ELAYOUT naming rank and tensor). */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/memory/rank_group.h"
#include "formats/job/job.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ptc_group_workers(struct ptc_agent *agent, struct ptc_error *err)
{
	if (agent->env.workers)
		return 0;
	return ptc_error_set(err, PTC_ESTATE, "node %s runs no ranks: its daemon was started without them",
			     agent->node);
}

void ptc_group_key_of(const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which, struct ptc_group_key *ret)
{
	*ret = (struct ptc_group_key){ .generation = which->number, .incarnation = which->incarnation };
	snprintf(ret->uuid, sizeof(ret->uuid), "%s", info->uuid);
}

/* ---- how they are started ---- */

void ptc_group_start_done(struct ptc_group_start *s, struct ptc_agent *agent)
{
	if (s->job_ref)
		agent->env.job_release(agent->env.arg, s->job_ref);
	ptc_geometry_done(&s->place);
	ptc_free(s->ranks);
	ptc_free(s->config);
	ptc_free(s->config_text);
	ptc_free(s->env);
	*s = (struct ptc_group_start){ 0 };
}

/* Nodes are numbered by their lowest rank. */
static int number_nodes(struct ptc_group_desc *d, const struct ptc_geometry *g, uint32_t self, struct ptc_error *err)
{
	bool *seen = ptc_calloc(g->nnodes, sizeof *seen);

	if (!seen)
		return ptc_nomem(err);
	for (uint32_t r = 0; r < g->allocation.world; r++) {
		uint32_t node = g->allocation.ranks[r].node;

		if (seen[node])
			continue;
		seen[node] = true;
		if (node == self)
			d->node_rank = d->nodes;
		d->nodes++;
	}
	ptc_free(seen);
	return 0;
}

static int ranks_make(struct ptc_group_start *s, uint32_t self, struct ptc_error *err)
{
	const struct ptc_allocation *a = &s->place.allocation;
	size_t n = 0;

	for (uint32_t r = 0; r < a->world; r++)
		n += a->ranks[r].node == self;
	s->ranks = ptc_calloc(n ? n : 1, sizeof *s->ranks);
	if (!s->ranks)
		return ptc_nomem(err);
	n = 0;
	for (uint32_t r = 0; r < a->world; r++) {
		struct ptc_coords k = ptc_config_coords(s->config, r);

		if (a->ranks[r].node != self)
			continue;
		s->ranks[n] = (struct ptc_group_rank){ .rank = r,
						       .local_rank = (uint32_t)n,
						       .device = a->ranks[r].index,
						       .tp = k.tp,
						       .pp = k.pp,
						       .dp = k.dp,
						       .cp = k.cp };
		n++;
	}
	s->desc.ranks = s->ranks;
	s->desc.nranks = n;
	return 0;
}

static int desc_fill(struct ptc_group_start *s, const Ptc__V1__SwitchInfo *info, struct ptc_error *err)
{
	const struct ptc_geometry *g = &s->place;
	const struct ptc_config *c = s->config;
	uint32_t first = g->allocation.ranks[0].node;
	struct ptc_group_desc *d = &s->desc;

	if (strlen(g->addresses[first]) >= sizeof(d->rank0_address))
		return ptc_error_set(err, PTC_ELIMIT, "the address of node %s is too long", g->nodes[first]);
	s->config_text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	if (!s->config_text || ptc_config_format(c, s->config_text, PTC_CONFIG_TEXT_MAX))
		return ptc_nomem(err);
	d->job = info->job;
	d->uid = (uid_t)info->uid;
	d->config = s->config_text;
	d->degrees[0] = c->tp;
	d->degrees[1] = c->pp;
	d->degrees[2] = c->dp;
	d->degrees[3] = c->cp;
	d->degrees[4] = c->ep;
	d->degrees[5] = c->etp;
	d->zero = c->zero;
	d->micro_batch = c->micro_batch;
	d->global_batch = c->global_batch;
	d->recomputes = c->nrecompute > 0;
	d->scheduled = c->schedule > 0;
	d->world = g->allocation.world;
	snprintf(d->rank0_node, sizeof(d->rank0_node), "%s", g->nodes[first]);
	snprintf(d->rank0_address, sizeof(d->rank0_address), "%s", g->addresses[first]);
	return 0;
}

/* The job's variables, and its seed for whatever has to be random in the same way on every node and after every start.
 */
static int env_make(struct ptc_group_start *s, const struct ptc_job_desc *job, struct ptc_error *err)
{
	static const char name[] = "PTC_SEED=";
	const size_t entries = job->run.nenv + 2, room = sizeof(name) + 20; /* digits of a uint64_t */
	size_t n = 0;
	char *seed;

	s->env = ptc_calloc(1, entries * sizeof *s->env + room);
	if (!s->env)
		return ptc_nomem(err);
	for (size_t i = 0; i < job->run.nenv; i++)
		if (strncmp(job->run.env[i], name, strlen(name)) != 0)
			s->env[n++] = job->run.env[i];
	seed = (char *)(s->env + entries);
	snprintf(seed, room, "%s%llu", name, (unsigned long long)ptc_job_seed(job, s->desc.key.uuid));
	s->env[n] = seed;
	s->desc.env = s->env;
	return 0;
}

/* What job.yaml says of it. */
static int run_read(struct ptc_group_start *s, const struct ptc_job_desc *job, struct ptc_error *err)
{
	if (!job->has_run || !job->run.cwd)
		return ptc_error_set(err, PTC_ESTATE, "job %s has no program to run: its job.yaml has no \"run\"",
				     s->desc.job);
	s->desc.argv = (const char *const *)job->run.argv;
	s->desc.cwd = job->run.cwd;
	s->desc.mode = job->mode == PTC_JOB_REBUILD ? PTC_MODE_REBUILD : PTC_MODE_RESTART;
	s->desc.fast_copy = job->copy == PTC_JOB_COPY_FAST;
	s->desc.share_devices = job->share_devices;
	s->desc.standby_ms = job->elastic.standby ? job->run.build_timeout_ms : 0;
	s->desc.grace_ms = (uint32_t)PTC_MIN(job->run.grace_ms, (uint64_t)UINT32_MAX);
	s->desc.log_bytes = job->run.log_bytes;
	s->desc.snapshot_every = job->snapshot_every;
	return env_make(s, job, err);
}

static int start_fill(struct ptc_group_start *s, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
		      const Ptc__V1__Generation *which, struct ptc_error *err)
{
	const struct ptc_job_desc *job;
	uint32_t self;
	int rc = ptc_group_workers(agent, err);

	s->config = ptc_calloc(1, sizeof *s->config);
	if (!rc && !s->config)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = ptc_geometry_place(agent, info, which, &s->place, s->config, err);
	if (rc == 0)
		rc = ptc_geometry_node(&s->place, agent->node, &self, err);
	if (rc == 0)
		rc = ranks_make(s, self, err);
	if (rc)
		return rc;
	ptc_group_key_of(info, which, &s->desc.key);
	s->cost_linear = which->cost_linear;
	s->cost_square = which->cost_square;
	rc = number_nodes(&s->desc, &s->place, self, err);
	if (rc == 0)
		rc = desc_fill(s, info, err);
	if (!rc && !agent->env.job_get)
		rc = ptc_error_set(err, PTC_ESTATE, "node %s cannot read jobs' descriptions, so it starts no ranks",
				   agent->node);
	if (rc == 0)
		rc = agent->env.job_get(agent->env.arg, info->uuid, info->spec_hash, &job, &s->job_ref, err);
	return rc ? rc : run_read(s, job, err);
}

int ptc_group_start_make(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
			 struct ptc_group_start *ret, struct ptc_error *err)
{
	struct ptc_group_start s = { 0 };
	int rc = start_fill(&s, agent, info, which, err);

	if (rc) {
		ptc_group_start_done(&s, agent);
		return rc;
	}
	*ret = s;
	return 0;
}

/* ---- which there are ---- */

PTC_BY(by_rank, struct ptc_slot_view, rank.rank)

static int ranks_check(const struct ptc_allocation *a, uint32_t self, const struct ptc_group *group,
		       struct ptc_error *err)
{
	size_t at = 0;

	for (uint32_t r = 0; r < a->world; r++) {
		if (a->ranks[r].node != self)
			continue;
		if (at == group->n || group->v[at].rank.rank != r)
			return ptc_error_set(err, PTC_ESTATE,
					     "rank %u of generation %llu should be on this node, but is not here", r,
					     (unsigned long long)group->key.generation);
		at++;
	}
	if (at < group->n)
		return ptc_error_set(err, PTC_ESTATE,
				     "rank %u of generation %llu is on this node, but should not be here",
				     group->v[at].rank.rank, (unsigned long long)group->key.generation);
	return 0;
}

int ptc_group_open(struct ptc_agent *agent, const struct ptc_allocation *a, uint32_t self,
		   const struct ptc_group_key *key, struct ptc_group *ret, struct ptc_error *err)
{
	struct ptc_group g = { .workers = agent->env.workers, .key = *key };
	int rc = ptc_workers_slots(g.workers, key, &g.raw, &g.n, err);

	if (rc)
		return rc;
	g.nraw = g.n;
	g.v = ptc_reallocarray(NULL, g.n ? g.n : 1, sizeof *g.v);
	if (g.v) {
		memcpy(g.v, g.raw, g.n * sizeof *g.v);
		if (g.n > 1)
			qsort(g.v, g.n, sizeof *g.v, by_rank);
		rc = ranks_check(a, self, &g, err);
	} else {
		rc = ptc_nomem(err);
	}
	if (rc) {
		ptc_group_close(&g);
		return rc;
	}
	*ret = g;
	return 0;
}

void ptc_group_close(struct ptc_group *group)
{
	if (group->raw)
		ptc_workers_slots_done(group->workers, group->raw, group->nraw);
	ptc_free(group->v);
	*group = (struct ptc_group){ 0 };
}

/* ---- where they have what ---- */

struct matcher {
	const struct ptc_geometry *g;
	const struct ptc_slot_view *slot;
	uint32_t number; /* of the slot */
	struct ptc_slot_sources *out;
	size_t cap;
	struct ptc_error *err;
};

static int otherwise(const struct matcher *m, const char *name)
{
	return ptc_error_set(m->err, PTC_ELAYOUT,
			     "tensor \"%.300s\": the declaration of rank %u differs from the layout of generation %llu",
			     name, m->slot->rank.rank, (unsigned long long)m->g->generation);
}

static int source_push(struct matcher *m, uint32_t item, const struct ptc_slot_region *region)
{
	struct ptc_slot_source *s;

	if (!PTC_ROOM(m->out->v, m->out->n + 1, m->cap))
		return ptc_nomem(m->err);
	s = &m->out->v[m->out->n++];
	s->item = item;
	s->slot = m->number;
	s->secondary = s->max = false;
	return ptc_strided_init(&s->at, m->g->spec, item, region, m->err);
}

/* The regions of one declared tensor, beside the layout's from *at on. */
static int match_tensor(struct matcher *m, const struct ptc_slot_tensor *t, uint32_t item,
			const struct ptc_rank_layout *l, size_t *at)
{
	const struct ptc_tensor *is = &m->g->spec->tensors[item];
	int rc = 0;

	if (is->dtype != t->dtype || is->ndim != t->ndim || memcmp(is->shape, t->shape, t->ndim * sizeof *t->shape))
		return otherwise(m, t->name);
	for (size_t i = 0; !rc && i < t->nregions; i++) {
		const struct ptc_slot_region *region = &t->regions[i];

		if (ptc_box_empty(&region->box))
			continue;
		if (*at == l->nregions || l->regions[*at].item != item ||
		    !ptc_box_equal(&l->regions[*at].box, &region->box))
			return otherwise(m, t->name);
		++*at;
		rc = source_push(m, item, region);
	}
	if (!rc && *at < l->nregions && l->regions[*at].item == item)
		rc = otherwise(m, t->name);
	return rc;
}

/* Both lists are in name order. */
static int match_regions(struct matcher *m, const struct ptc_rank_layout *l)
{
	const struct ptc_spec *spec = m->g->spec;
	size_t at = 0;
	uint32_t item = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < m->slot->ntensors; i++) {
		const struct ptc_slot_tensor *t = &m->slot->tensors[i];

		while (item < spec->ntensors && strcmp(spec->tensors[item].name, t->name) < 0)
			item++;
		if (at < l->nregions && l->regions[at].item < item)
			return otherwise(m, spec->tensors[l->regions[at].item].name);
		if (item == spec->ntensors || strcmp(spec->tensors[item].name, t->name))
			return otherwise(m, t->name);
		rc = match_tensor(m, t, item, l, &at);
	}
	if (!rc && at < l->nregions)
		rc = otherwise(m, spec->tensors[l->regions[at].item].name);
	return rc;
}

static int match_slot(struct matcher *m)
{
	struct ptc_rank_layout l;
	int rc = ptc_layout_rank(m->g->layout, m->slot->rank.rank, &l, m->err);

	if (rc)
		return rc;
	rc = match_regions(m, &l);
	ptc_rank_layout_done(&l);
	return rc;
}

PTC_BY2(by_item, struct ptc_slot_source, item, slot)

void ptc_slot_sources_done(struct ptc_slot_sources *s)
{
	ptc_free(s->v);
	*s = (struct ptc_slot_sources){ 0 };
}

int ptc_slot_sources_make(const struct ptc_geometry *g, const struct ptc_group *group, struct ptc_slot_sources *ret,
			  struct ptc_error *err)
{
	struct ptc_slot_sources out = { 0 };
	struct matcher m = { .g = g, .out = &out, .err = err };
	int rc = 0;

	if (!g->layout_ref)
		return ptc_error_set(err, PTC_ESTATE, "generation %llu has no layout that its ranks have declared",
				     (unsigned long long)g->generation);
	for (size_t i = 0; !rc && i < group->n; i++) {
		m.slot = &group->v[i];
		m.number = (uint32_t)i;
		rc = match_slot(&m);
	}
	if (rc) {
		ptc_slot_sources_done(&out);
		return rc;
	}
	if (out.n > 1)
		qsort(out.v, out.n, sizeof *out.v, by_item);
	*ret = out;
	return 0;
}
