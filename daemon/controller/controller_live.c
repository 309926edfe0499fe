/* SPDX-License-Identifier: Apache-2.0 */
/* A controller's work for jobs whose ranks run: it compares captures, merges declarations, and acts on worker events.
 *
 * Happy path: AGREE compares the replicas' digests and cursors of all nodes, and writes the state document of blobs.
 * LAYOUT merges the declarations of all ranks, and compares them with what the old generation held. Then it writes the
 * layout document, and the generation that names this document. If no switch is under way, a worker event of a node (a
 * rank failed, all have finished, a snapshot is due) becomes a switch. AGREE and LAYOUT are tasks of the job's lane,
 * with copies of everything that they need.
 *
 * Failure modes: replicas on two nodes differ (PTC_EDIGEST naming tensor and nodes; replicas on one node are compared
 * there: capture_fill.c); declarations contradict each other, the old generation or a rule (PTC_ELAYOUT); etcd is
 * unreachable (PTC_ECOORD). The switch then aborts: in AGREE nothing is committed; in LAYOUT the new snapshot may be
 * committed already. */
#include "daemon/cluster/job_events.h"
#include "daemon/controller/internal.h"
#include "daemon/agent/geometry/rank_reports.h"
#include "daemon/agent/geometry/replica_votes.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/number/fence.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "formats/job/job.h"
#include "formats/state/state_doc.h"
#include "formats/state/state_gone.h"
#include "proto/pb.h"

#include "ptc.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A view of one generation, as `to`, that owns what it names. */
static void view_of(const struct ptc_controller *ctl, const struct ptc_generation_doc *g, uint64_t generation,
		    uint64_t snapshot, struct ptc_view *ret_view)
{
	*ret_view = (struct ptc_view){ .meta = ctl->meta, .to_generation = generation, .to_snapshot = snapshot };
	ptc_require(ptc_generation_doc_copy(g, &ret_view->to) == 0 && ptc_view_nodes(ret_view) == 0);
}

/* ---- AGREE --------------------------------------------------------------------- */

struct agree {
	struct ptc_ctl_task task;
	int64_t fence;
	bool held;            /* of the ranks that have survived a loss */
	char gone_blobs[256]; /* then: which blobs have gone with the others; "": none */
	struct ptc_view view; /* the captured generation, as `to` */
	struct ptc_merge merge;
	Ptc__V1__PullReply **captures;
	const char **captured_on; /* the node of each, as `merge` names it */
	size_t ncaptures;
	uint64_t *items;
	size_t nitems;
	enum ptc_job_on_difference on_difference;
	struct ptc_odd_rank *odd; /* if replicas differ, and it is known which ones are wrong */
	size_t nodd;
	char state_hash[PTC_HASH_HEX];
	char *to_config;                    /* where the switch goes; NULL: it is a snapshot */
	struct ptc_rank_states rank_states; /* of the ranks there */
	uint64_t old_step, step;            /* of the snapshot before, of this one */
	struct ptc_ledger ledger;           /* of the snapshot before */
	struct ptc_ledger cursors;          /* of this one */
};

static void agree_release(struct ptc_ctl_task *t)
{
	struct agree *a = (struct agree *)t;

	for (size_t i = 0; i < a->ncaptures; i++)
		ptc_pb_free(&a->captures[i]->base);
	ptc_free(a->captures);
	ptc_free(a->captured_on);
	ptc_free(a->odd);
	ptc_merge_done(&a->merge);
	ptc_view_done(&a->view);
	ptc_free(a->items);
	ptc_free(a->to_config);
	ptc_ledger_done(&a->cursors);
	ptc_ledger_done(&a->ledger);
}

/* What the position of data means, as ptc.torch's sampler says it where there is one dataset. */
static int data_tag(const struct ptc_job_data *data, uint64_t batch, uint64_t micro, const struct ptc_config *config,
		    const struct ptc_generation_doc *of, char *tag, size_t size, struct ptc_error *err)
{
	const struct ptc_job_part *part = &data->parts[0];
	char how[48] = "", mix[33] = "", steps[PTC_MICRO_TEXT_MAX];
	int n;

	if (ptc_job_data_mix(data, mix))
		return ptc_nomem(err);
	if (part->sequential)
		snprintf(how, sizeof how, ",sequential=1");
	else if (part->block)
		snprintf(how, sizeof how, ",block=%" PRIu64, part->block);
	if (data->nparts > 1)
		n = snprintf(tag, size, "mix=%s,seed=%" PRIu64 PTC_STATE_COUNTED ",batch=%" PRIu64 ",micro=%" PRIu64,
			     mix, data->seed, batch, micro);
	else
		n = snprintf(tag, size,
			     "n=%" PRIu64 ",seed=%" PRIu64 "%s" PTC_STATE_COUNTED ",batch=%" PRIu64 ",micro=%" PRIu64,
			     part->samples, data->seed, how, batch, micro);
	ptc_micro_runs_format(&config->micro_steps, steps);
	if (steps[0])
		snprintf(tag + n, size - (size_t)n, ",micro_steps=%s", steps);
	else if (data->by_length && (of->cost_linear || of->cost_square)) /* else by count */
		snprintf(tag + n, size - (size_t)n, ",by_length=1,linear=%" PRIu64 ",square=%" PRIu64, of->cost_linear,
			 of->cost_square);
	return 0;
}

/* Data whose cursor no rank sets advances by its batch with each step. */
static int count_data(struct agree *a, const struct ptc_config *config, struct ptc_state *s)
{
	const struct ptc_job_desc *desc;
	void *ref;
	int rc = ptc_specs_get(a->task.ctl->all->docs.specs, a->view.meta.uuid, a->view.meta.spec_hash, &desc, &ref,
			       &a->task.err);

	if (rc)
		return rc;
	for (size_t i = 0; rc == 0 && i < desc->ndata; i++) {
		const struct ptc_job_data *data = &desc->data[i];
		uint64_t batch = config->global_batch ? config->global_batch : data->global_batch;
		uint64_t micro = config->micro_batch ? config->micro_batch : data->micro_batch;
		char tag[PTC_STATE_NAME_MAX + 1];

		rc = data_tag(data, batch, micro, config, &a->view.to, tag, sizeof tag, &a->task.err);
		if (!rc && batch && micro)
			rc = ptc_state_count(s,
					     &(struct ptc_state_cursor){
						     .name = desc->data[i].name,
						     .tag = tag,
						     .position = ptc_ledger_position(&a->ledger, data->name,
										     a->old_step, a->step, batch) },
					     &a->task.err);
	}
	ptc_specs_release(ref);
	return rc;
}

/* Of ranks that have survived a loss: the job's blobs are of the lowest of them. PTC_ESTATE: a rule wants what the
 * others had. */
static int collect_survivors(struct agree *a, const struct ptc_config *config, struct ptc_state *s)
{
	const Ptc__V1__RankState *lowest = NULL;
	Ptc__V1__RankState first = PTC__V1__RANK_STATE__INIT;
	Ptc__V1__Blob *blobs[PTC_STATE_BLOBS];
	const struct ptc_job_desc *desc;
	size_t nranks = 0;
	void *ref;
	int rc;

	for (size_t i = 0; i < a->ncaptures; i++)
		for (size_t k = 0; k < a->captures[i]->n_ranks; k++, nranks++)
			if (!lowest || a->captures[i]->ranks[k]->rank < lowest->rank)
				lowest = a->captures[i]->ranks[k];
	rc = ptc_specs_get(a->task.ctl->all->docs.specs, a->view.meta.uuid, a->view.meta.spec_hash, &desc, &ref,
			   &a->task.err);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && nranks < a->view.to.world && i < desc->blobs.n; i++)
		if (desc->blobs.v[i].fate == PTC_FATE_CARRY)
			rc = ptc_error_set(
				&a->task.err, PTC_ESTATE,
				"the job's rule for blobs \"%.200s\" is carry, and some ranks that had them are "
				"lost",
				desc->blobs.v[i].match);
	ptc_specs_release(ref);
	if (rc || !lowest || lowest->rank == 0)
		return rc;
	first.blobs = blobs;
	for (size_t i = 0; i < lowest->n_blobs && first.n_blobs < PTC_STATE_BLOBS; i++)
		if (lowest->blobs[i]->scope == PTC_STATE_JOB)
			blobs[first.n_blobs++] = lowest->blobs[i];
	return ptc_agent_state_add(s, config, &first, &a->task.err);
}

/* Ranks that have gone said nothing; what others have of the kind, they had. */
static void note_gone(struct agree *a, const struct ptc_config *config, const struct ptc_state *s)
{
	bool *spoke = ptc_calloc(a->view.to.world, sizeof *spoke);

	ptc_require(spoke);
	for (size_t i = 0; i < a->ncaptures; i++)
		for (size_t k = 0; k < a->captures[i]->n_ranks; k++)
			if (a->captures[i]->ranks[k]->rank < a->view.to.world)
				spoke[a->captures[i]->ranks[k]->rank] = true;
	ptc_state_gone_text(s, config, a->view.to.world, spoke, a->gone_blobs, sizeof a->gone_blobs);
	ptc_free(spoke);
}

/* All that ranks gave, as the job's rules let them. */
static int collect_state(struct agree *a, struct ptc_state *s)
{
	struct ptc_config config;
	int rc = ptc_config_parse(a->view.to.config, &config, &a->task.err);

	for (size_t i = 0; rc == 0 && i < a->ncaptures; i++)
		for (size_t k = 0; rc == 0 && k < a->captures[i]->n_ranks; k++)
			rc = ptc_agent_state_add(s, &config, a->captures[i]->ranks[k], &a->task.err);
	if (!rc && a->held) {
		note_gone(a, &config, s);
		rc = collect_survivors(a, &config, s);
	}
	if (rc == 0)
		rc = ptc_rank_states_check(&a->task.ctl->all->docs, &a->view.meta, s, &a->task.err);
	return rc ? rc : count_data(a, &config, s);
}

/* Before the first commit: where a switch cannot carry what it has to, the ranks go on. */
static int switch_rank_state(struct agree *a, const struct ptc_state *s, struct ptc_etcd *e)
{
	struct ptc_rank_states_ask ask = { .docs = &a->task.ctl->all->docs,
					   .meta = &a->view.meta,
					   .from = a->view.to.config,
					   .to = a->to_config,
					   .hash = "",
					   .fence = a->fence };

	return a->to_config ? ptc_rank_states_switch(&ask, s, e, &a->rank_states, &a->task.err) : 0;
}

static int write_state(struct agree *a, struct ptc_etcd *e)
{
	struct ptc_state s = { 0 };
	char *json = NULL;
	size_t len;
	int rc = collect_state(a, &s);

	if (rc == 0)
		rc = switch_rank_state(a, &s, e);
	for (size_t i = 0; rc == 0 && i < s.ncursors; i++)
		rc = ptc_ledger_note(&a->cursors, &(struct ptc_ledger_entry){ .cursor = s.cursors[i].name,
									      .tag = s.cursors[i].tag,
									      .end = s.cursors[i].position });
	if (rc == 0)
		rc = ptc_state_doc_encode(&s, &json, &len, &a->task.err);
	if (rc == 0)
		rc = ptc_quota_document(a->task.ctl->all->cluster, a->view.meta.uid, len, "rank state", &a->task.err);
	if (rc == 0)
		rc = ptc_controller_put_blob(a->view.meta.uuid, a->fence, e, json, len, a->state_hash, &a->task.err);
	ptc_free(json);
	ptc_state_done(&s);
	return rc;
}

/* The replicas that nodes have listed as different. */
static int listed(const struct agree *a, const struct ptc_geometry *g, struct ptc_differing_list *l,
		  struct ptc_error *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < a->ncaptures; i++) {
		uint32_t node;

		if (ptc_geometry_node(g, a->captured_on[i], &node, NULL) == 0)
			rc = ptc_differing_add(l, g, node, a->captures[i], err);
	}
	return rc;
}

/* Replicas differ: the error names the first odd rank, or says why it is not known. */
static int find_odd(struct agree *a, const struct ptc_geometry *g, const struct ptc_differing_list *l)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2], more[48] = "";
	const struct ptc_odd_rank *o;
	struct ptc_digests *d = NULL;
	int rc = ptc_merge_collect(&a->merge, g, &d, &a->task.err);

	if (rc == 0)
		rc = ptc_odd_ranks(d, g, l, a->on_difference == PTC_JOB_DIFFERENCE_PRIMARY, &a->odd, &a->nodd,
				   &a->task.err);
	ptc_digests_free(d);
	if (rc == 0 && !a->nodd) /* a difference that no digest shows is one all the same */
		rc = ptc_error_set(&a->task.err, PTC_EDIGEST,
				   "replicas differ, and what nodes say of them does not tell which one is wrong");
	if (rc)
		return rc;
	o = &a->odd[0];
	if (a->nodd > 1)
		snprintf(more, sizeof more, " (and %zu more ranks)", a->nodd - 1);
	return ptc_error_set(&a->task.err, PTC_EDIGEST,
			     "rank %u on node %s, device %u%s: its replica of \"%.300s\" is not that of %u of the %u "
			     "ranks that have one",
			     o->rank, g->nodes[g->allocation.ranks[o->rank].node], g->allocation.ranks[o->rank].index,
			     more, ptc_geometry_item_name(g, o->item, name, sizeof name), o->against, o->of);
}

static int merge_differing(struct agree *a, const struct ptc_geometry *g)
{
	struct ptc_differing_list l = { 0 };
	int rc = ptc_merge_digests(&a->merge, g, NULL, 0, &a->items, &a->nitems, &a->task.err), rc_listed;

	if (rc && (!a->on_difference || rc != PTC_EDIGEST))
		return rc;
	rc_listed = listed(a, g, &l, &a->task.err);
	if (rc_listed == 0 && a->on_difference && (l.n || rc))
		rc = find_odd(a, g, &l);
	else if (rc_listed == 0 && l.n) /* asked for by a controller that has gone, or before the description changed */
		rc = ptc_error_set(&a->task.err, PTC_EDIGEST,
				   "ranks of one node hold the same part of the state with different bytes; replicas "
				   "must be equal");
	ptc_free(l.v);
	return rc_listed ? rc_listed : rc;
}

static void agree_failed(struct ptc_ctl_task *t)
{
	struct agree *a = (struct agree *)t;

	if (a->nodd)
		ptc_odd_devices_found(t->ctl, a->odd, a->nodd, t->err.text);
}

static void agree_merge(void *arg, struct ptc_etcd *e)
{
	struct ptc_geometry g;
	struct agree *a = arg;

	(void)e;
	a->task.status = ptc_view_geometry(a->task.ctl->all->agent, &a->view, true, &g, &a->task.err);
	if (a->task.status)
		return;
	a->merge.some = a->held;
	a->task.status = merge_differing(a, &g);
	ptc_geometry_done(&g);
}

static void agree_write(void *arg, struct ptc_etcd *e)
{
	struct agree *a = arg;

	if (a->task.status == 0)
		a->task.status = write_state(a, e);
}

static void agree_adopt(struct ptc_ctl_task *t)
{
	struct ptc_controller *ctl = t->ctl;
	struct agree *a = (struct agree *)t;

	ptc_free(ctl->digests);
	ctl->digests = a->items;
	ctl->ndigests = a->nitems;
	a->items = NULL;
	ptc_ledger_done(&ctl->cursors);
	ctl->cursors = a->cursors;
	a->cursors = (struct ptc_ledger){ 0 };
	memcpy(ctl->state_hash, a->state_hash, sizeof ctl->state_hash);
	memcpy(ctl->gone_blobs, a->gone_blobs, sizeof ctl->gone_blobs);
	ctl->rank_states = a->rank_states;
}

/* What a node has answered before it was left out. */
static void drop_left_out(struct ptc_controller *ctl)
{
	for (size_t i = ctl->npulls; i-- > 0;) {
		if (ptc_job_gives(ctl->core, ctl->pulls[i].node))
			continue;
		ptc_pull_result_done(&ctl->pulls[i]);
		ctl->pulls[i] = ctl->pulls[--ctl->npulls];
	}
}

void ptc_controller_agree(struct ptc_controller *ctl, uint64_t seq)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, agree_merge },
						      { PTC_TASK_ETCD, agree_write },
						      { 0 } };
	struct agree *a = ptc_ctl_task_new(ctl, sizeof *a, seq);

	a->task.answer = PTC_EV_AGREED;
	a->task.adopt = agree_adopt;
	a->task.failed = agree_failed;
	a->task.release = agree_release;
	a->fence = ctl->fence;
	a->held = ctl->intent.held;
	if (!a->held && ctl->recovery.has_elastic)
		a->on_difference = ctl->recovery.elastic.on_difference;
	a->step = ctl->capture_step;
	a->old_step = ctl->view.manifest.step;
	ptc_require(ptc_ledger_copy(&ctl->view.manifest.ledger, &a->ledger) == 0);
	if (ctl->view.to.world)
		ptc_require((a->to_config = ptc_strdup(ctl->view.to.config)) != NULL);
	view_of(ctl, &ctl->view.from, ctl->intent.from_generation, ctl->intent.to_snapshot, &a->view);
	drop_left_out(ctl);
	ptc_merge_take(&a->merge, ctl);
	a->captures = ptc_calloc(ctl->npulls, sizeof *a->captures);
	a->captured_on = ptc_calloc(ctl->npulls, sizeof *a->captured_on);
	ptc_require(a->captures && a->captured_on);
	for (size_t i = 0; i < ctl->npulls; i++) {
		ctl->captured_bytes += ctl->pulls[i].verified_bytes;
		if (ctl->pulls[i].capture) {
			a->captured_on[a->ncaptures] = a->merge.answers[i].node;
			a->captures[a->ncaptures++] = ctl->pulls[i].capture;
		}
		ctl->pulls[i].capture = NULL;
	}
	ptc_pull_results_done(ctl); /* what comes next are other answers */
	ptc_ctl_task_run(&a->task, steps);
}

/* ---- LAYOUT ------------------------------------------------------------------------- */

struct layout_task {
	struct ptc_ctl_task task;
	int64_t fence;
	struct ptc_view view; /* from: the old generation, with its state; to: the new one */
	Ptc__V1__WorkersReply **replies;
	size_t nreplies;
	char layout_hash[PTC_HASH_HEX], generation_hash[PTC_HASH_HEX];
	struct ptc_plan_pool *pool; /* borrows view */
	struct ptc_plan_report *plan;
	char *document; /* of the layout */
	size_t len;
};

static void layout_release(struct ptc_ctl_task *t)
{
	struct layout_task *l = (struct layout_task *)t;

	for (size_t i = 0; i < l->nreplies; i++)
		ptc_pb_free(&l->replies[i]->base);
	ptc_free(l->replies);
	ptc_plan_report_free(l->plan);
	ptc_plan_pool_free(l->pool);
	ptc_free(l->document);
	ptc_view_done(&l->view);
}

/* A document that goes with others in one revision; too long for that, it is written now. */
static int add_document(struct layout_task *l, struct ptc_etcd *e, const char *json, size_t len,
			char ret_hash[PTC_HASH_HEX], char key[PTC_BLOB_KEY], struct ptc_etcd_op *ops, size_t *nops)
{
	if (ptc_blob_op(l->view.meta.uuid, json, len, ret_hash, key, &ops[*nops])) {
		(*nops)++;
		return 0;
	}
	return ptc_controller_put_blob(l->view.meta.uuid, l->fence, e, json, len, ret_hash, &l->task.err);
}

/* Training waits meanwhile: both in one revision, if that is possible. */
static int put_documents(struct layout_task *l, struct ptc_etcd *e, const char *layout, size_t len)
{
	char keys[2][PTC_BLOB_KEY], lock[96];
	struct ptc_etcd_op ops[2];
	size_t n = 0;
	bool ok = true;
	ptc_auto_free char *generation = NULL;
	int rc = add_document(l, e, layout, len, l->layout_hash, keys[0], ops, &n);

	if (rc)
		return rc;
	memcpy(l->view.to.layout_hash, l->layout_hash, sizeof l->layout_hash);
	generation = ptc_generation_doc_encode(&l->view.to);
	if (!generation)
		return ptc_error_set(&l->task.err, PTC_ENOMEM, "out of memory for the generation");
	rc = add_document(l, e, generation, strlen(generation), l->generation_hash, keys[1], ops, &n);
	if (rc || n == 0)
		return rc;
	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", l->view.meta.uuid);
	rc = ptc_etcd_txn(e, &(struct ptc_etcd_compare){ lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(l->fence) }, 1,
			  ops, n, "etcd.blob", &ok, NULL, &l->task.err);
	if (rc == 0 && !ok)
		rc = ptc_error_set(&l->task.err, PTC_EFENCED, "%s changed meanwhile; nothing was written", lock);
	return rc;
}

static void layout_merge(void *arg, struct ptc_etcd *e)
{
	struct layout_task *l = arg;

	(void)e;
	l->task.status = ptc_declared_document(l->task.ctl->all, &l->view, l->replies, l->nreplies, &l->document,
					       &l->len, &l->task.err);
}

static void layout_write(void *arg, struct ptc_etcd *e)
{
	struct layout_task *l = arg;

	if (l->task.status == 0)
		l->task.status = ptc_quota_document(l->task.ctl->all->cluster, l->view.meta.uid, l->len,
						    "what the ranks declared", &l->task.err);
	if (l->task.status == 0)
		l->task.status = put_documents(l, e, l->document, l->len);
}

static void layout_plan(void *arg, struct ptc_etcd *e)
{
	struct layout_task *l = arg;

	(void)e;
	if (l->task.status == 0)
		l->task.status = ptc_plan_of_layout(l->pool, &l->view, &l->plan, &l->task.err);
}

static void layout_adopt(struct ptc_ctl_task *t)
{
	struct ptc_controller *ctl = t->ctl;
	struct layout_task *l = (struct layout_task *)t;

	memcpy(ctl->view.to.layout_hash, l->layout_hash, sizeof l->layout_hash);
	memcpy(ctl->intent.generation_hash, l->generation_hash, sizeof l->generation_hash);
	ptc_plan_report_inherit(l->plan, ctl->plan);
	ptc_plan_report_free(ctl->plan);
	ctl->plan = l->plan;
	l->plan = NULL;
}

void ptc_controller_layout(struct ptc_controller *ctl, uint64_t seq)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, layout_merge },
						      { PTC_TASK_ETCD, layout_write },
						      { PTC_TASK_COMPUTE, layout_plan },
						      { 0 } };
	struct layout_task *l = ptc_ctl_task_new(ctl, sizeof *l, seq);

	l->task.answer = PTC_EV_LAYOUT;
	l->task.adopt = layout_adopt;
	l->task.release = layout_release;
	l->fence = ctl->fence;
	l->view = (struct ptc_view){ .meta = ctl->meta,
				     .to_generation = ctl->intent.to_generation,
				     .to_snapshot = ctl->intent.to_snapshot };
	ptc_require(ptc_generation_doc_copy(&ctl->view.to, &l->view.to) == 0);
	if (ctl->intent.to_snapshot) { /* else nothing is moved, and nothing has to be the same */
		l->view.from_generation = ctl->intent.from_generation;
		l->view.from_snapshot = ctl->intent.to_snapshot;
		ptc_require(ptc_generation_doc_copy(&ctl->view.from, &l->view.from) == 0);
		if (!ctl->intent.run_from)
			ptc_require(ptc_copies_doc_copy(&ctl->view.copies, &l->view.copies) == 0);
	}
	ptc_require(ptc_view_nodes(&l->view) == 0);
	l->pool = ptc_plan_pool_new(ctl->all, &l->view);
	ptc_require(l->pool);
	l->replies = ptc_calloc(ctl->npulls, sizeof *l->replies);
	ptc_require(l->replies);
	for (size_t i = 0; i < ctl->npulls; i++) {
		if (ctl->pulls[i].layout)
			l->replies[l->nreplies++] = ctl->pulls[i].layout;
		ctl->pulls[i].layout = NULL;
	}
	ptc_pull_results_done(ctl);
	ptc_ctl_task_run(&l->task, steps);
}

/* ---- worker events -------------------------------------------------------------------------- */

static bool is_current(const struct ptc_controller *ctl, const struct ptc_worker_doc *w)
{
	return w->generation == ctl->record.generation && w->incarnation == ctl->record.incarnation;
}

/* The most important thing told: a failure, then the end, then the latest snapshot due. */
static const struct ptc_worker_view *newest(const struct ptc_controller *ctl, const struct ptc_job_view *j)
{
	const struct ptc_worker_view *best = NULL;

	for (size_t i = 0; i < j->nworkers; i++) {
		const struct ptc_worker_view *w = &j->workers[i];

		if (!is_current(ctl, &w->doc) || ptc_ending_ignores(ctl, j, &w->doc) ||
		    (w->doc.state == PTC_WORKER_DUE && ctl->record.snapshot && w->doc.step <= ctl->record.step))
			continue;
		if (!best || w->doc.state < best->doc.state ||
		    (w->doc.state == best->doc.state && w->doc.step > best->doc.step))
			best = w;
	}
	return best;
}

/* Whether the switch under way waits, or may wait, for ranks of this incarnation: others do for one that has failed,
 * and STOP and BUILD have no deadline of ours. Where a node is asked for the failed rank itself (CAPTURE), its answer
 * says so. */
static bool awaited(const struct ptc_controller *ctl, const struct ptc_worker_doc *w)
{
	const struct ptc_intent_doc *in = &ctl->intent;

	switch (ptc_job_phase(ctl->core)) {
	case PTC_JOB_STARTING:
		return (in->run_from && is_current(ctl, w)) ||
		       (w->generation == in->to_generation && w->incarnation == in->id);
	case PTC_JOB_WARMING:
	case PTC_JOB_ARMING:
		return in->run_from && is_current(ctl, w);
	case PTC_JOB_BUILDING:
	case PTC_JOB_LAYOUT:
	case PTC_JOB_PREPARING:
	case PTC_JOB_FILLING:
	case PTC_JOB_DIGESTING:
		return in->run_to && w->generation == in->to_generation && w->incarnation == in->id;
	default:
		return false;
	}
}

/* A rank that has failed ends the switch; if it was one of those that train, HALT follows. */
static void abort_for_failed(struct ptc_controller *ctl, const struct ptc_job_view *j)
{
	char text[PTC_JOB_TEXT_MAX], line[PTC_JOB_TEXT_MAX - PTC_NAME_MAX - 16];

	for (size_t i = 0; i < j->nworkers; i++) {
		const struct ptc_worker_view *w = &j->workers[i];

		if (w->doc.state != PTC_WORKER_FAILED || !awaited(ctl, &w->doc))
			continue;
		if (!is_current(ctl, &w->doc)) /* nothing else will tell */
			ptc_event(ctl->all->cluster, ctl->uuid, "failed", "node %s: %s", w->node, w->doc.text);
		snprintf(text, sizeof text, "node %s: %s", w->node,
			 ptc_worker_text_line(w->doc.text, line, sizeof line));
		ptc_controller_step(ctl, &(struct ptc_job_event){
						 .kind = PTC_EV_ABORT, .status = PTC_ESTATE, .text = text });
		return;
	}
}

/* After a switch that came to nothing. A failed rank has made it so perhaps: only a halt that failed itself is waited
 * after. Or a request waits for its turn, which snapshots in close order would not leave it. The tick comes back to it.
 */
static bool too_early(const struct ptc_controller *ctl, const struct ptc_worker_view *w)
{
	if (w->doc.state != PTC_WORKER_FAILED && ptc_recovery_holds(ctl))
		return true;
	if (w->doc.state == PTC_WORKER_DUE && ptc_leaving_puts_off(ctl))
		return true;
	/* Ranks wait at a due step, so another one than that which failed is not put off. */
	if (w->doc.state == PTC_WORKER_DUE)
		return ptc_sys_now_ns() < ctl->yield_until_ns ||
		       (w->doc.incarnation == ctl->due_incarnation && w->doc.step == ctl->due_step &&
			ptc_sys_now_ns() < ctl->event_after_ns);
	return (w->doc.state != PTC_WORKER_FAILED || ctl->intent.kind == PTC_SWITCH_HALT) &&
	       ptc_sys_now_ns() < ctl->event_after_ns;
}

/* False: what had waited for its turn has begun, or the controller has gone. */
static bool still_due(struct ptc_controller *ctl)
{
	bool idle;

	ptc_controller_ref(ctl);
	ctl->give_turn(ctl);
	idle = !ctl->gone && ptc_controller_idle(ctl);
	ptc_controller_unref(ctl);
	return idle;
}

void ptc_controller_event(struct ptc_controller *ctl)
{
	struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);
	struct ptc_switch_request r;
	struct ptc_error err = PTC_ERROR_INIT;
	const struct ptc_worker_view *w;

	if (j && !ptc_controller_idle(ctl))
		abort_for_failed(ctl, j);
	if (!j || !ptc_controller_idle(ctl) || !ctl->has_record || ctl->record.run != PTC_RUN_LIVE)
		return;
	w = newest(ctl, j);
	if (w && w->doc.state == PTC_WORKER_DUE && ctl->turn) {
		if (!still_due(ctl))
			return;
		w = newest(ctl, j);
	}
	if (!w || too_early(ctl, w))
		return;
	ptc_controller_request(ctl, PTC_SWITCH_SNAPSHOT, &r);
	r.run_from = true;
	r.stop = w->doc.step;
	r.run_to = w->doc.state == PTC_WORKER_DUE;
	r.end = PTC_RUN_FAILED;
	if (ptc_ending_asks(ctl, j, &w->doc, &r)) {
		r.watcher = ctl->heir;
		ctl->heir = NULL;
	}
	if (r.run_to) {
		ctl->due_incarnation = w->doc.incarnation;
		ctl->due_step = w->doc.step;
	}
	if (w->doc.state == PTC_WORKER_FAILED) {
		if (!ptc_recovery_judges(ctl, w, &r))
			return;
	}
	if (ctl->submit(ctl, &r, &err) == 0) {
		if (w->doc.state == PTC_WORKER_FAILED)
			ptc_recovery_begun(ctl, w);
		return;
	}
	ptc_warn("job", "job=%s %s", ctl->meta.name, err.text);
	if (r.watcher)
		ctl->heir = r.watcher;
}
