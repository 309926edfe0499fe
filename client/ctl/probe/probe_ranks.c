/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: probe_ranks.h. */
#include "client/ctl/probe/probe_ranks.h"

#include "base/alloc.h"

#include <string.h>

static bool at_an_end(uint32_t place, uint32_t degree)
{
	return place < 2 || place == degree - 1;
}

/* Whether it is among those that are built first. */
static bool first(const struct ctl_ranks *r, uint32_t rank)
{
	struct ptc_coords k = ptc_config_coords(&r->config, rank);

	return at_an_end(k.dp, r->config.dp) && at_an_end(k.cp, r->config.cp);
}

int ctl_ranks_init(struct ctl_ranks *r, const struct ptc_config *config, bool all, struct ptc_error *err)
{
	int rc;

	memset(r, 0, sizeof *r);
	r->config = *config;
	rc = ptc_config_world(config, &r->world, err);
	if (rc)
		return rc;
	r->v = ptc_calloc(r->world, sizeof *r->v);
	if (!r->v)
		return ptc_nomem(err);
	all = all || r->world <= CTL_RANKS_SMALL;
	for (uint32_t rank = 0; rank < r->world; rank++)
		if (all || first(r, rank))
			r->v[r->n++] = rank;
	r->compared = r->n == r->world;
	return 0;
}

void ctl_ranks_done(struct ctl_ranks *r)
{
	ptc_free(r->v);
	r->v = NULL;
}

bool ctl_ranks_take(struct ctl_ranks *r, uint32_t *ret_rank)
{
	if (r->at == r->n)
		return false;
	*ret_rank = r->v[r->at++];
	r->built++;
	return true;
}

void ctl_ranks_give_back(struct ctl_ranks *r, uint32_t rank)
{
	r->v[--r->at] = rank;
	r->built--;
}

/* The rank with the same places along tp and pp, and the first along dp and cp. */
static uint32_t like(const struct ctl_ranks *r, uint32_t rank)
{
	struct ptc_coords k = ptc_config_coords(&r->config, rank);

	k.dp = k.cp = 0;
	return ptc_config_rank(&r->config, &k);
}

int ctl_ranks_more(struct ctl_ranks *r, struct ptc_declared_merge *m, struct ptc_error *err)
{
	bool replicas = true;
	int rc = 0;

	if (r->compared)
		return 0;
	r->compared = true;
	for (size_t i = 0; i < r->n && replicas; i++)
		replicas = ptc_declared_merge_alike(m, r->v[i], like(r, r->v[i]));
	r->n = r->at = 0;
	for (uint32_t rank = 0; rank < r->world && !rc; rank++) {
		if (first(r, rank))
			continue;
		if (replicas)
			rc = ptc_declared_merge_like(m, rank, like(r, rank), err);
		else
			r->v[r->n++] = rank;
	}
	return rc;
}
