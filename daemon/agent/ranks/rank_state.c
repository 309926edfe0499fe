/* SPDX-License-Identifier: Apache-2.0 */
/* The rank state of each rank here, out of the snapshot's state document, which the controller has written. A rank is
 * found by its coordinates. Happy path: read, decoded, and borrowed by the list of each rank. Failure modes: a blob
 * that cannot be read or is no state document, no memory. */
#include "daemon/agent/ranks/internal.h"

#include "base/alloc.h"

void ptc_rank_states_done(struct ptc_rank_states *c)
{
	ptc_state_done(&c->state);
	ptc_free(c->of);
	ptc_free(c->blobs);
	ptc_free(c->cursors);
	*c = (struct ptc_rank_states){ 0 };
}

static int add_blobs(struct ptc_rank_states *c, const struct ptc_state_blob *v, size_t n, struct ptc_error *err)
{
	struct ptc_slot_blob *p = ptc_reallocarray(c->blobs, c->nblobs + n + 1, sizeof *p);

	if (!p)
		return ptc_nomem(err);
	c->blobs = p;
	for (size_t i = 0; i < n; i++)
		p[c->nblobs++] = (struct ptc_slot_blob){ v[i].name, (int)v[i].scope, v[i].data, v[i].len };
	return 0;
}

static int add_rank(struct ptc_rank_states *c, const struct ptc_group_rank *rank, struct ptc_rank_state *to,
		    struct ptc_error *err)
{
	struct ptc_coords at = { rank->tp, rank->pp, rank->dp, rank->cp };
	struct ptc_state_blob *v;
	size_t n;
	int rc = ptc_state_blobs(&c->state, &at, &v, &n, err);

	if (rc)
		return rc;
	rc = add_blobs(c, v, n, err);
	ptc_free(v);
	*to = (struct ptc_rank_state){ .cursors = c->cursors, .nblobs = n, .ncursors = c->state.ncursors };
	return rc;
}

static int lists_make(struct ptc_rank_states *c, const struct ptc_group_desc *desc, struct ptc_error *err)
{
	const struct ptc_state *st = &c->state;
	size_t at = 0;
	int rc = 0;

	c->of = ptc_calloc(desc->nranks, sizeof *c->of);
	c->cursors = ptc_calloc(st->ncursors ? st->ncursors : 1, sizeof *c->cursors);
	if (!c->of || !c->cursors)
		return ptc_nomem(err);
	for (size_t i = 0; i < st->ncursors; i++)
		c->cursors[i] =
			(struct ptc_slot_cursor){ st->cursors[i].name, st->cursors[i].tag, st->cursors[i].position };
	for (size_t i = 0; !rc && i < desc->nranks; i++)
		rc = add_rank(c, &desc->ranks[i], &c->of[i], err);
	for (size_t i = 0; !rc && i < desc->nranks; i++) { /* the array does not move any more */
		c->of[i].blobs = c->blobs + at;
		at += c->of[i].nblobs;
	}
	return rc;
}

int ptc_rank_states_read(struct ptc_agent *agent, const char *uuid, const char *hash, const struct ptc_group_desc *desc,
			 struct ptc_rank_states *ret, struct ptc_error *err)
{
	struct ptc_agent_env *env = &agent->env;
	char *data;
	size_t len;
	int rc;

	*ret = (struct ptc_rank_states){ 0 };
	if (!hash[0] || !desc->nranks)
		return 0;
	if (!env->blob_get)
		return ptc_error_set(err, PTC_ESTATE, "node %s cannot read the rank state", agent->node);
	rc = env->blob_get(env->arg, uuid, hash, &data, &len, err);
	if (rc)
		return rc;
	rc = ptc_state_doc_decode(data, len, &ret->state, err);
	ptc_free(data);
	return rc ? rc : lists_make(ret, desc, err);
}
