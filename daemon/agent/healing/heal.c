/* SPDX-License-Identifier: Apache-2.0 */
/* Heals the known damaged blocks of a job, and says when the agent is busy with a switch (ptc_agent_busy). Happy path
 * and failure modes: heal.h. */
#include "daemon/agent/healing/heal.h"

#include "daemon/agent/calls/agent_state.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

#define WAIT_S    30  /* for another thread that heals; it waits for no node that heals */
#define TRIES_MAX 512 /* of one reader: each heals a block at least, or finds that another thread has */
#define IDLE_MAX  3   /* of these, such that nothing was found to heal */

/* Readers of thousands of small tensors in one block that nobody has a copy of would each try to heal it: what a try in
 * vain cost is not spent again before ten times as long, or this, has passed. */
#define VAIN_SHARE  10
#define VAIN_MAX_NS INT64_C(30000000000)

struct healing {
	struct ptc_block_source source;
	const struct ptc_agent_committed *committed;
	char text[600]; /* how it was healed, or why it was not */
};

static bool committed_block(const struct healing *h)
{
	const struct ptc_table_key *key = ptc_block_key(h->source.block);

	struct ptc_table_key with_copies = ptc_geometry_key(h->committed->g);

	return key->generation == h->committed->g->generation &&
	       (key->snapshot == h->committed->g->snapshot || key->snapshot == with_copies.snapshot);
}

/* ---- by the block's checksum ---- */

static int write_from(struct healing *h, const char *node, struct ptc_error *err)
{
	int rc = ptc_block_heal(h->source.block, err);

	if (!rc)
		snprintf(h->text, sizeof h->text, "healed from node %s", node);
	return rc;
}

/* *ret_done: it was written, or could not be. */
static int by_checksum(struct healing *h, bool *ret_done, struct ptc_error *err)
{
	struct ptc_block_source *s = &h->source;

	*ret_done = true;
	/* a table that a switch is making may have bytes of its own, and this node the committed ones besides */
	if (!committed_block(h) && ptc_block_source_local(s) && ptc_block_right(s->block))
		return write_from(h, s->agent->node, err);
	for (uint32_t node = 0; node < s->g->nnodes; node++)
		if (s->usable[node] && ptc_block_source_put(s, node) && ptc_block_right(s->block))
			return write_from(h, s->g->nodes[node], err);
	*ret_done = false;
	return 0;
}

/* ---- by the manifest's digests ---- */

static int item_digest(struct healing *h, uint32_t item, uint64_t *ret, struct ptc_error *err)
{
	struct ptc_block_source *s = &h->source;
	struct ptc_boxes have = { 0 }, rest = { 0 };
	uint64_t digest = 0, around = 0;
	struct ptc_box whole;
	int64_t shape[PTC_MAX_DIMS];
	uint32_t ndim;
	int rc = ptc_geometry_shape(s->g, item, &ndim, shape, err);

	if (rc)
		return rc;
	whole = ptc_box_whole(ndim, shape);
	for (size_t i = 0; !rc && i < s->nparts; i++)
		if (s->parts[i].item == item) {
			digest ^= ptc_box_digest(s->bytes[i], &s->parts[i].box, ndim, shape);
			rc = ptc_boxes_push(&have, &s->parts[i].box);
		}
	if (rc == 0)
		rc = ptc_boxes_missing(&whole, have.v, have.n, &rest);
	if (rc)
		ptc_error_set(err, rc, "no memory to heal a block");
	if (rc == 0)
		rc = ptc_block_source_digest(s, item, &rest, &around, err);
	ptc_boxes_done(&have);
	ptc_boxes_done(&rest);
	*ret = digest ^ around;
	return rc;
}

static bool first_of_item(const struct ptc_block_source *s, size_t part)
{
	for (size_t i = 0; i < part; i++)
		if (s->parts[i].item == s->parts[part].item)
			return false;
	return true;
}

/* Every tensor of the block, with the bytes that were put in their place, has the manifest's digest. */
static int proven(struct healing *h, const char *node, struct ptc_error *err)
{
	struct ptc_block_source *s = &h->source;
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	uint64_t digest = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < s->nparts; i++) {
		uint32_t item = s->parts[i].item;

		if (!s->whole[i])
			return ptc_error_set(err, PTC_EPEER, "no other node has all of its bytes");
		if (!first_of_item(s, i))
			continue;
		rc = item_digest(h, item, &digest, err);
		if (!rc && (item >= h->committed->ndigests || digest != h->committed->digests[item]))
			rc = ptc_error_set(err, PTC_EDIGEST, "with the bytes of node %s, \"%.300s\" has another digest",
					   node, ptc_geometry_item_name(s->g, item, name, sizeof name));
	}
	return rc;
}

static void usable_again(struct ptc_block_source *s)
{
	for (uint32_t i = 0; i < s->g->nnodes; i++)
		s->usable[i] = strcmp(s->g->nodes[i], s->agent->node) != 0;
}

static int renew_from(struct healing *h, const char *node, struct ptc_error *err)
{
	int rc = proven(h, node, err);

	if (rc == 0)
		rc = ptc_block_renew(h->source.block, err);
	if (!rc)
		snprintf(h->text, sizeof h->text, "healed with the bytes of node %s, which have the manifest's digests",
			 node);
	return rc;
}

static int by_digests(struct healing *h, struct ptc_error *err)
{
	struct ptc_block_source *s = &h->source;
	struct ptc_error own = PTC_ERROR_INIT;
	int rc = ptc_error_set(err, PTC_ECORRUPT, "no other node has all of its bytes");

	if (s->why.code)
		rc = ptc_error_set(err, PTC_ECORRUPT, "%.400s", s->why.text);
	if (!committed_block(h))
		return rc;
	usable_again(s); /* what failed may answer now */
	for (uint32_t node = 0; node < s->g->nnodes; node++) {
		if (!s->usable[node] || !ptc_block_source_put(s, node))
			continue;
		rc = renew_from(h, s->g->nodes[node], err);
		if (!rc)
			return 0;
	}
	usable_again(s);
	ptc_block_source_found(
		s); /* bytes that nobody has a copy of are right, if only dead ones beside them were hit */
	return renew_from(h, s->agent->node, &own) ? rc : 0;
}

/* ---- a block, a job ---- */

/* *ret_gone: nothing is wrong with it any more. */
static int heal_block(struct ptc_agent *agent, const struct ptc_agent_committed *committed,
		      const struct ptc_store_damage *d, struct healing *h, bool *ret_gone, struct ptc_error *err)
{
	struct ptc_table_key prefer = ptc_geometry_key(committed->g);
	bool done = false;
	int rc;

	h->committed = committed;
	h->source = (struct ptc_block_source){ .agent = agent, .g = committed->g };
	rc = ptc_block_open(agent->env.store, d, &prefer, &h->source.block, err);
	*ret_gone = !rc && !h->source.block;
	if (rc || *ret_gone)
		return rc;
	rc = ptc_block_source_init(&h->source, err);
	if (rc == 0)
		rc = by_checksum(h, &done, err);
	if (!rc && !done)
		rc = by_digests(h, err);
	ptc_block_source_done(&h->source);
	h->source.block = ptc_block_free(h->source.block);
	return rc;
}

static void heal_one(struct ptc_agent *agent, const struct ptc_agent_committed *committed,
		     const struct ptc_store_damage *d, struct ptc_heal_counts *counts)
{
	struct ptc_agent_healed report = { .what = d };
	struct ptc_error why = PTC_ERROR_INIT;
	struct healing h = { .text = "" };
	bool gone;

	report.status = heal_block(agent, committed, d, &h, &gone, &why);
	if (report.status)
		counts->left++;
	else
		counts->healed++;
	report.text = report.status ? why.text : gone ? "its bytes are right again" : h.text;
	if (agent->env.healed)
		agent->env.healed(agent->env.arg, &report);
}

static struct ptc_heal_vain *vain_of(struct ptc_agent *agent, const char *uuid)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(agent->heal_vain); i++)
		if (strcmp(agent->heal_vain[i].uuid, uuid) == 0)
			return &agent->heal_vain[i];
	return NULL;
}

static void vain_note(struct ptc_agent *agent, const char *uuid, size_t blocks, const struct ptc_heal_counts *counts,
		      int64_t began_ns)
{
	struct ptc_heal_vain *vain = vain_of(agent, uuid);
	int64_t now = ptc_sys_now_ns();

	if (counts->healed || !counts->left) {
		if (vain)
			vain->uuid[0] = '\0';
		return;
	}
	if (!vain)
		vain = &agent->heal_vain[agent->heal_vain_next++ % PTC_ARRAY_LEN(agent->heal_vain)];
	snprintf(vain->uuid, sizeof vain->uuid, "%s", uuid);
	vain->blocks = blocks;
	vain->again_ns = now + PTC_MIN(VAIN_SHARE * (now - began_ns), VAIN_MAX_NS);
}

/* reader: not if the same blocks were tried in vain just now. */
static int heal_known(struct ptc_agent *agent, const char *uuid, bool reader, struct ptc_heal_counts *ret,
		      struct ptc_error *err)
{
	const struct ptc_heal_vain *vain = reader ? vain_of(agent, uuid) : NULL;
	struct ptc_agent_committed committed = { 0 };
	struct ptc_store_damage *v = NULL;
	int64_t began = ptc_sys_now_ns();
	size_t n = 0;
	int rc = ptc_store_damaged(agent->env.store, uuid, &v, &n, err);

	if (rc || !n)
		return rc;
	if (vain && vain->blocks == n && began < vain->again_ns) {
		ret->left = (unsigned)n;
		ptc_free(v);
		return 0;
	}
	rc = agent->env.committed_get(agent->env.arg, uuid, &committed, err);
	for (size_t i = 0; !rc && i < n && !atomic_load(&agent->heal_stop); i++)
		heal_one(agent, &committed, &v[i], ret);
	if (rc) {
		ret->left = (unsigned)n;
		ptc_error_wrap(err, "the job's committed state, which says who has copies");
	} else {
		agent->env.committed_release(agent->env.arg, &committed);
	}
	vain_note(agent, uuid, n, ret, began);
	ptc_free(v);
	return rc;
}

/* One thread at a time. False: another one has been at it for WAIT_S. */
static bool heal_begins(struct ptc_agent *agent)
{
	const int64_t until_ns = ptc_sys_now_ns() + WAIT_S * INT64_C(1000000000);
	bool in_time = true, mine;

	pthread_mutex_lock(&agent->shared.lock);
	while (agent->shared.healing && in_time)
		in_time = ptc_cond_wait_until(&agent->shared.cond, &agent->shared.lock, until_ns);
	mine = !agent->shared.healing;
	agent->shared.healing = true;
	pthread_mutex_unlock(&agent->shared.lock);
	return mine;
}

static void heal_ends(struct ptc_agent *agent)
{
	pthread_mutex_lock(&agent->shared.lock);
	agent->shared.healing = false;
	pthread_cond_broadcast(&agent->shared.cond);
	pthread_mutex_unlock(&agent->shared.lock);
}

static int heal(struct ptc_agent *agent, const char *uuid, bool reader, struct ptc_heal_counts *ret,
		struct ptc_error *err)
{
	int rc;

	*ret = (struct ptc_heal_counts){ 0, 0 };
	if (!agent->env.committed_get)
		return ptc_error_set(err, PTC_ESTATE, "this node does not heal: its daemon has no committed states");
	if (!heal_begins(agent))
		return ptc_error_set(err, PTC_ESTATE, "other blocks are being healed");
	rc = heal_known(agent, uuid, reader, ret, err);
	heal_ends(agent);
	return rc;
}

int ptc_agent_heal(struct ptc_agent *agent, const char *uuid, struct ptc_heal_counts *ret, struct ptc_error *err)
{
	return heal(agent, uuid, false, ret, err);
}

/* Whether to read again. */
static bool heal_for_reader(struct ptc_agent *agent, const char *uuid, struct ptc_heal_tries *tries)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_heal_counts counts;

	if (++tries->n > TRIES_MAX || heal(agent, uuid, !tries->now, &counts, &err) != 0)
		return false;
	tries->now = false;
	tries->healed += counts.healed;
	return counts.healed || (!counts.left && tries->n <= IDLE_MAX);
}

/* Of a job that is not here any more no Finish comes: it was deleted before this node could answer one. */
static bool job_busy(struct ptc_agent *agent, const struct ptc_agent_job *j)
{
	uid_t uid;

	return j->busy || j->writers || (j->prepared && ptc_store_job_owner(agent->env.store, j->uuid, &uid) == 0);
}

bool ptc_agent_busy(struct ptc_agent *agent)
{
	bool busy = false;

	pthread_mutex_lock(&agent->shared.lock);
	for (const struct ptc_agent_job *j = agent->shared.jobs; j && !busy; j = j->next)
		busy = job_busy(agent, j);
	pthread_mutex_unlock(&agent->shared.lock);
	return busy;
}

void ptc_agent_healing_init(struct ptc_agent *agent)
{
	agent->heal = heal_for_reader;
}

void ptc_agent_healing_stop(struct ptc_agent *agent)
{
	if (agent)
		atomic_store(&agent->heal_stop, true);
}
