/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees a controller in memory, and says for what it waits. References to a controller are counted, and the
 * last one frees the controller with everything of its switch. All other files of this folder use this file, which
 * calls none of them but the watcher. Loop thread, except for the function that writes a blob. Failure modes: memory,
 * if a function says so. */
#include "daemon/agent/geometry/geometry.h"
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/sys/sys.h"
#include "base/check.h"
#include "base/number/fence.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <string.h>
#include <uv.h>

#define TOGETHER_NS INT64_C(2000000000) /* nodes that end together are seen to end within that time */

struct ptc_controller *ptc_controller_find(const struct ptc_controllers *all, const char *uuid)
{
	for (size_t i = 0; i < all->n; i++)
		if (strcmp(all->list[i]->uuid, uuid) == 0)
			return all->list[i];
	return NULL;
}

struct ptc_controller *ptc_controller_ref(struct ptc_controller *ctl)
{
	ctl->refs++;
	return ctl;
}

void ptc_pull_result_done(struct ptc_pull_result *r)
{
	ptc_free(r->need_index);
	ptc_free(r->digests);
	ptc_free(r->links);
	if (r->capture)
		ptc_pb_free(&r->capture->base);
	if (r->layout)
		ptc_pb_free(&r->layout->base);
	memset(r, 0, sizeof *r);
}

void ptc_pull_results_done(struct ptc_controller *ctl)
{
	for (size_t i = 0; i < ctl->npulls; i++)
		ptc_pull_result_done(&ctl->pulls[i]);
	ptc_free(ctl->pulls);
	ctl->pulls = NULL;
	ctl->npulls = 0;
}

void ptc_controller_switch_done(struct ptc_controller *ctl)
{
	ptc_watcher_unref(ctl->watcher);
	ptc_watcher_unref(ctl->fill_watcher);
	ctl->watcher = ctl->fill_watcher = NULL;
	ctl->plan = ptc_plan_report_free(ctl->plan);
	ptc_free(ctl->emptied);
	ptc_free(ctl->from_config);
	ptc_free(ctl->digests);
	ctl->from_config = NULL;
	ctl->emptied = NULL;
	ctl->nemptied = 0;
	ctl->digests = NULL;
	ctl->ndigests = 0;
	ctl->state_hash[0] = '\0';
	memset(&ctl->rank_states, 0, sizeof ctl->rank_states);
	ctl->gone_blobs[0] = '\0';
	ptc_ledger_done(&ctl->cursors);
	ctl->captured_bytes = 0;
	memset(&ctl->device, 0, sizeof ctl->device);
	ptc_manifest_doc_done(&ctl->imported);
	ctl->imported = (struct ptc_manifest_doc){ 0 };
	ptc_view_done(&ctl->source);
	ptc_pull_results_done(ctl);
}

static void timer_closed(uv_handle_t *h)
{
	ptc_free(h);
}

void ptc_controller_unref(struct ptc_controller *ctl)
{
	if (--ctl->refs)
		return;
	ptc_controller_switch_done(ctl);
	ptc_view_done(&ctl->view);
	ptc_copies_doc_done(&ctl->copies);
	ptc_copies_doc_done(&ctl->maybe);
	ptc_copies_doc_done(&ctl->older.copies);
	ptc_free(ctl->recovery.hold.ranks);
	ptc_free(ctl->leaving);
	if (ctl->keeper_free)
		ctl->keeper_free(ctl->keeper);
	if (ctl->archiver_free)
		ctl->archiver_free(ctl->archiver);
	ptc_job_free(ctl->core);
	ptc_free(ctl->known);
	ptc_free(ctl->loss);
	ptc_free(ctl->recovery.stragglers);
	ptc_free(ctl->devices.odd);
	ptc_free(ctl->recovery.growth.offers);
	ptc_free(ctl->recovery.growth.quarantined);
	ptc_free(ctl->recovery.growth.seen);
	ptc_free(ctl->recovery.growth.planned);
	ptc_switch_summary_unref(ctl->resized);
	uv_close((uv_handle_t *)ctl->timer, timer_closed);
	uv_close((uv_handle_t *)ctl->retry, timer_closed);
	uv_close((uv_handle_t *)ctl->next, timer_closed);
	ptc_free(ctl);
}

void *ptc_ctl_task_new(struct ptc_controller *ctl, size_t size, uint64_t seq)
{
	struct ptc_ctl_task *t = ptc_calloc(1, size);

	ptc_require(t);
	t->ctl = ptc_controller_ref(ctl);
	t->seq = seq;
	return t;
}

static void task_done(void *arg)
{
	struct ptc_ctl_task *t = arg;
	struct ptc_controller *ctl = t->ctl;

	if (!ctl->gone) {
		if (t->status == 0)
			t->adopt(t);
		else if (t->failed)
			t->failed(t);
		ptc_agent_memory_short(ctl->all->agent, t->status, &t->err);
		ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = t->answer,
								  .seq = t->seq,
								  .status = t->status,
								  .text = t->err.text });
	}
	t->release(t);
	ptc_free(t);
	ptc_controller_unref(ctl);
}

void ptc_ctl_task_run(struct ptc_ctl_task *t, const struct ptc_task_step *steps)
{
	ptc_require(ptc_cluster_steps(t->ctl->all->cluster, t->ctl->uuid, steps, task_done, t) == 0);
}

bool ptc_controller_idle(const struct ptc_controller *ctl)
{
	return ptc_job_phase(ctl->core) == PTC_JOB_IDLE;
}

bool ptc_controller_ready(const struct ptc_controller *ctl)
{
	const struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);

	return j && ptc_controller_idle(ctl) && j->has_record == ctl->has_record &&
	       (!ctl->has_record || j->record_revision == ctl->record_revision);
}

uint32_t *ptc_controller_numbers(struct ptc_controller *ctl, const struct ptc_generation_doc *g)
{
	uint32_t *v = ptc_calloc(g->nnodes, sizeof *v);

	for (size_t i = 0; v && i < g->nnodes; i++)
		if (ptc_cluster_name_node(ctl->all->cluster, g->nodes[i], &v[i]) != 0) {
			ptc_free(v);
			return NULL;
		}
	return v;
}

uint32_t *ptc_controller_placed(struct ptc_controller *ctl, const struct ptc_intent_doc *intent, uint32_t *ret_n)
{
	const struct ptc_generation_doc *g = &ctl->view.from;
	uint32_t *v = ptc_controller_numbers(ctl, g), n = 0;

	for (size_t i = 0; v && i < g->nnodes; i++)
		if (ptc_manifest_placed(&ctl->view.manifest, g->nodes[i]) &&
		    !(intent && ptc_intent_without(intent, g->nodes[i])))
			v[n++] = v[i];
	*ret_n = n;
	return v;
}

struct ptc_switch ptc_controller_switch(const struct ptc_controller *ctl, const struct ptc_intent_doc *in,
					uint32_t *from, uint32_t nfrom, uint32_t *to)
{
	return (struct ptc_switch){ .id = in->id,
				    .kind = in->kind,
				    .from_generation = in->from_generation,
				    .from_snapshot = in->from_snapshot,
				    .to_generation = in->to_generation,
				    .to_snapshot = in->to_snapshot,
				    .from_nodes = from,
				    .nfrom = nfrom,
				    .to_nodes = to,
				    .nto = (uint32_t)ctl->view.to.nnodes,
				    .run_from = in->run_from,
				    .run_to = in->run_to,
				    .stop = in->stop,
				    .held = in->held };
}

const struct ptc_generation_doc *ptc_controller_current(const struct ptc_controller *ctl)
{
	bool rolled = ctl->view.to.world && ctl->record.generation == ctl->intent.to_generation;

	return rolled ? &ctl->view.to : &ctl->view.from;
}

bool ptc_controller_ranks_on(const struct ptc_controller *ctl, const char *node)
{
	return ptc_generation_doc_names(ptc_controller_current(ctl), node);
}

bool ptc_controller_is_new(const struct ptc_controller *ctl, const char *node)
{
	return ctl->has_record && ctl->record.run == PTC_RUN_LIVE && !ptc_controller_idle(ctl) &&
	       ctl->intent.run_from && ptc_generation_doc_names(&ctl->view.to, node) &&
	       !ptc_controller_ranks_on(ctl, node);
}

bool ptc_controller_gave_up(const struct ptc_controller *ctl, const char *node)
{
	return ctl->has_record && ctl->record.recovery && ctl->record.run != PTC_RUN_LIVE &&
	       ptc_controller_ranks_on(ctl, node);
}

/* With cut_off_after, its own ptcd ends its ranks before node_lost_after, and until then they may write. */
static bool may_be_passed(const struct ptc_controller *ctl, const struct ptc_node *n)
{
	return !ctl->all->cut_off && ptc_cluster_early(ctl->all->cluster, n);
}

/* Its ptcd may be restarted under ranks that live. But here it was down when a rank of another node failed: that rank's
 * peers there have gone, and if they have not, they have lost this one. A program that fails by itself at that moment
 * is started elsewhere, and loses no more than it would. Whoever goes down later, as for an upgrade, is waited for. */
static bool is_closed(const struct ptc_controller *ctl, const struct ptc_node *n, bool copies)
{
	const struct ptc_recovery *r = &ctl->recovery;
	bool node = copies ? r->mark_id == ctl->intent.id && r->mark.recovery == PTC_RECOVERY_NODE
			   : ctl->record.recovery == PTC_RECOVERY_NODE;

	return n->closed && node && n->down_ns <= r->marked_ns + TOGETHER_NS && may_be_passed(ctl, n);
}

bool ptc_controller_passes(const struct ptc_controller *ctl, uint32_t node)
{
	const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, node);
	bool copies = ctl->intent.held && !ptc_controller_idle(ctl) && ptc_controller_ranks_on(ctl, n->doc.name);
	bool gave_up, silent, is_new;

	if (n->up || node >= ctl->nknown)
		return false;
	silent = ctl->known[node].silent || n->unreachable;
	gave_up = ptc_controller_gave_up(ctl, n->doc.name);
	is_new = ptc_controller_is_new(ctl, n->doc.name);
	return ((silent || n->lost) && is_new) || (silent && copies) || (silent && gave_up && may_be_passed(ctl, n)) ||
	       ((copies || gave_up) && is_closed(ctl, n, copies));
}

bool ptc_controller_due(const struct ptc_controller *ctl)
{
	const struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);
	const struct ptc_record_doc *r = &ctl->record;
	bool due = false;

	for (size_t i = 0; j && ctl->has_record && r->run == PTC_RUN_LIVE && i < j->nworkers; i++) {
		const struct ptc_worker_doc *w = &j->workers[i].doc;

		due |= w->state == PTC_WORKER_DUE && w->generation == r->generation &&
		       w->incarnation == r->incarnation && (!r->snapshot || w->step > r->step);
	}
	return due;
}

bool ptc_controller_unreachable(const struct ptc_controller *ctl, uint32_t node, bool due)
{
	const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, node);
	bool silent = due && node < ctl->nknown && ctl->known[node].silent >= PTC_SILENT_PROBES;

	return !n->up && (n->unreachable || silent) && ctl->has_record && ctl->record.run == PTC_RUN_LIVE &&
	       ptc_controller_ranks_on(ctl, n->doc.name) && may_be_passed(ctl, n);
}

void ptc_controller_request(const struct ptc_controller *ctl, enum ptc_switch_kind kind, struct ptc_switch_request *ret)
{
	*ret = (struct ptc_switch_request){ .kind = kind,
					    .base_generation = ctl->record.generation,
					    .base_snapshot = ctl->record.snapshot };
	ptc_sys_random(&ret->id, sizeof ret->id, NULL);
	ret->id = (ret->id & PTC_ID_MASK) | 1;
}

void ptc_switch_request_plan(struct ptc_switch_request *r, struct ptc_planned *planned)
{
	r->to = planned->to;
	r->plan = planned->plan;
	r->emptied = planned->emptied;
	r->nemptied = planned->nemptied;
	*planned = (struct ptc_planned){ .stays = planned->stays };
}

void ptc_switch_request_done(struct ptc_switch_request *r)
{
	ptc_generation_doc_done(&r->to);
	ptc_view_done(&r->source_view);
	r->plan = ptc_plan_report_free(r->plan);
	ptc_free(r->emptied);
	r->emptied = NULL;
	r->nemptied = 0;
	ptc_watcher_unref(r->watcher);
	r->watcher = NULL;
}

const char *ptc_controller_waits(const struct ptc_controller *ctl)
{
	const struct ptc_recovery *r = &ctl->recovery;

	bool hang = ctl->record.run == PTC_RUN_LIVE && r->hang.incarnation == ctl->record.incarnation;

	return r->waits[0] || !hang ? r->waits : r->hang.text;
}

int ptc_controller_put_blob(const char *uuid, int64_t fence, struct ptc_etcd *e, const char *data, size_t len,
			    char ret_hash[PTC_HASH_HEX], struct ptc_error *err)
{
	char lock[96];

	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", uuid);
	return ptc_blob_put(e, uuid, &(struct ptc_etcd_compare){ lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(fence) },
			    data, len, ret_hash, err);
}
