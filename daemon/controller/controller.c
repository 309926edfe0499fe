/* SPDX-License-Identifier: Apache-2.0 */
/* The shell around the job core: one controller per job whose lock this daemon holds. Feeds the core what happens
 * (mirror changes, answers, requests) and performs the core's updates. Decides nothing itself.
 *
 * Happy path: once the lock has our name, a controller is made. It loads record and intent, and starts the core.
 * Requests come through ptc_controller_submit(). The core's update DONE is passed to whoever waits. Failure modes: the
 * lock goes away (the core stops, the controller is dropped; answers still under way are ignored). */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>
#include <uv.h>

#define YIELD_NS       500000000 /* a request that waits tries again well within */
#define EVENT_RETRY_NS 5000000000

/* ---- life --------------------------------------------------------------------- */

/* May free ctl: the daemon's list held a reference. */
static void drop(struct ptc_controller *ctl)
{
	struct ptc_controllers *all = ctl->all;

	if (ctl->gone)
		return;
	ctl->gone = true;
	uv_timer_stop(ctl->timer);
	uv_timer_stop(ctl->retry);
	uv_timer_stop(ctl->next);
	ptc_controller_cancel(ctl, 0);
	ptc_copy_keeper_stop(ctl);
	ptc_archiver_stop(ctl);
	ptc_ahead_stop(ctl, PTC_EFENCED, "another daemon took over the job while its new ranks built; ask again");
	ptc_ahead_over(ctl);
	ptc_recovery_answer(ctl);
	ptc_watcher_finish(ctl->watcher, PTC_EFENCED, "another daemon took over the job; `ptcctl status` follows it",
			   NULL);
	ptc_watcher_finish(ctl->fill_watcher, PTC_EFENCED, "another daemon took over the job", NULL);
	ptc_ending_lost(ctl);
	for (size_t i = 0; i < all->n; i++)
		if (all->list[i] == ctl) {
			all->list[i] = all->list[--all->n];
			break;
		}
	ptc_controller_unref(ctl);
}

/* The core stops first, which may drop the controller already. */
static void lose(struct ptc_controller *ctl)
{
	ptc_controller_ref(ctl);
	ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_LOCK_LOST });
	drop(ctl);
	ptc_controller_unref(ctl);
}

/* May free ctl. */
static void tell_nodes(struct ptc_controller *ctl)
{
	struct ptc_cluster *c = ctl->all->cluster;
	size_t n = ptc_cluster_nnodes(c);

	if (n > ctl->nknown) {
		void *known = ptc_reallocarray(ctl->known, n, sizeof *ctl->known);

		ptc_require(known);
		ctl->known = known;
		memset(ctl->known + ctl->nknown, 0, (n - ctl->nknown) * sizeof *ctl->known);
		ctl->nknown = n;
	}
	ptc_controller_ref(ctl);
	for (uint32_t i = 0; i < n && !ctl->gone; i++) {
		const struct ptc_node *node = ptc_cluster_node(c, i);
		bool same = node->up == ctl->known[i].up && node->create_revision == ctl->known[i].revision;
		bool was_up = ctl->known[i].up;

		int64_t since = ctl->known[i].down_ns;

		ptc_controller_saw_node(ctl, i, node->up);
		if (same || (!node->up && !was_up))
			continue;
		ctl->known[i].up = node->up;
		ctl->known[i].revision = node->create_revision;
		if (was_up != node->up && (was_up || since))
			ptc_controller_tell_node(ctl, i, node->up, since);
		if (node->up && (was_up || since)) /* another life of it, too */
			ctl->known[i].back_ns = ptc_sys_now_ns();
		if (was_up)
			ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_NODE_DOWN, .node = i });
		ctl->recovery.retry_ns = 0;
		if (node->up && !ctl->gone)
			ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_NODE_UP, .node = i });
	}
	ptc_controller_tell_lost(ctl);
	ptc_controller_unref(ctl);
}

static void perform_step(struct ptc_controller *ctl, const struct ptc_job_event *event);
static void give_turn(struct ptc_controller *ctl);
static void soon(struct ptc_controller *ctl, uint64_t ms);

static void create(struct ptc_controllers *all, struct ptc_job_view *job)
{
	struct ptc_controller *ctl = ptc_calloc(1, sizeof *ctl);

	ptc_require(ctl && PTC_MORE(all->list, all->n));
	ctl->all = all;
	ctl->refs = 1;
	ctl->step = perform_step;
	ctl->submit = ptc_controller_submit;
	ctl->give_turn = give_turn;
	ctl->soon = soon;
	ctl->older.most = PTC_OLDER_MAX;
	ctl->recovery.marked_ns = ptc_sys_now_ns();
	ctl->meta = job->meta;
	ctl->view.meta = job->meta;
	ctl->fence = job->lock_fence;
	memcpy(ctl->uuid, job->uuid, sizeof ctl->uuid);
	ctl->timer = ptc_calloc(1, sizeof *ctl->timer);
	ctl->retry = ptc_calloc(1, sizeof *ctl->retry);
	ctl->next = ptc_calloc(1, sizeof *ctl->next);
	ptc_require(ctl->timer && ctl->retry && ctl->next &&
		    ptc_job_new(&(struct ptc_job_opts){ 0 }, &ctl->core, NULL) == 0);
	uv_timer_init(uv_default_loop(), ctl->timer);
	uv_timer_init(uv_default_loop(), ctl->retry);
	uv_timer_init(uv_default_loop(), ctl->next);
	ctl->timer->data = ctl->retry->data = ctl->next->data = ctl;
	all->list[all->n++] = ctl;
	ptc_info("job", "job=%s controlling it, fence=%lld", job->meta.name, (long long)ctl->fence);
	if (job->has_record || job->has_intent) /* else it has just been created, here */
		ptc_event(all->cluster, ctl->uuid, "takeover", "node %s controls the job now%s", all->node,
			  job->has_intent ? ", and goes on with the switch under way" : "");
	tell_nodes(ctl);
	ptc_controller_load(ctl, 0);
}

/* ---- the mirror -------------------------------------------------------------------- */

void ptc_controllers_changed(struct ptc_controllers *all, struct ptc_job_view *job)
{
	struct ptc_controller *ctl;
	bool ours;

	if (!job) {
		for (size_t i = all->n; i-- > 0;)
			if (i < all->n)
				tell_nodes(all->list[i]);
		ptc_unreachable_tick(all);
		for (size_t i = all->n; i-- > 0 && ptc_cluster_any_lost(all->cluster);)
			if (i < all->n) /* a machine may be known to be silent when its lease ends */
				give_turn(all->list[i]);
		return;
	}
	ctl = ptc_controller_find(all, job->uuid);
	ours = job->has_meta && job->has_lock && strcmp(job->lock_node, all->node) == 0;
	if (ctl && (!ours || ctl->fence != job->lock_fence)) {
		lose(ctl);
		ctl = NULL;
	}
	if (!ctl && ours && ptc_cluster_lease(all->cluster) && !atomic_load(all->stopping))
		create(all, job);
	else if (ctl)
		ptc_controller_event(ctl);
}

bool ptc_controllers_next(const struct ptc_controllers *all, size_t *at, const char **ret_uuid,
			  enum ptc_job_phase *ret_phase)
{
	while (*at < all->n) {
		const struct ptc_controller *ctl = all->list[(*at)++];

		if (ctl->gone)
			continue;
		*ret_uuid = ctl->uuid;
		*ret_phase = ptc_job_phase(ctl->core);
		return true;
	}
	return false;
}

size_t ptc_controllers_runs(void *arg, struct ptc_measuring_run *ret, size_t max)
{
	const struct ptc_controllers *all = arg;
	size_t n = 0;

	for (size_t i = 0; i < all->n && n < max; i++) {
		const struct ptc_controller *ctl = all->list[i];
		const struct ptc_generation_doc *g = &ctl->view.from;
		struct ptc_measuring_run *r = &ret[n];
		uint32_t node;

		if (ctl->gone || !ptc_controller_idle(ctl) || !ctl->has_record || ctl->record.run != PTC_RUN_LIVE ||
		    !g->world || !ptc_cluster_find_node(all->cluster, g->nodes[g->rank_node[0]], &node))
			continue;
		*r = (struct ptc_measuring_run){ .fence = ctl->fence,
						 .generation = ctl->record.generation,
						 .incarnation = ctl->record.incarnation,
						 .config = ptc_strdup(g->config) };
		if (!r->config)
			continue;
		memcpy(r->uuid, ctl->uuid, sizeof r->uuid);
		memcpy(r->spec_hash, ctl->meta.spec_hash, sizeof r->spec_hash);
		memcpy(r->layout_hash, g->layout_hash, sizeof r->layout_hash);
		snprintf(r->node, sizeof r->node, "%s", ptc_cluster_node(all->cluster, node)->doc.name);
		snprintf(r->address, sizeof r->address, "%s", ptc_cluster_node(all->cluster, node)->doc.address);
		n++;
	}
	return n;
}

void ptc_controllers_replan(void *arg, const char *uuid)
{
	struct ptc_controller *ctl = ptc_controller_find(arg, uuid);

	if (ctl)
		ctl->recovery.replan = true;
}

void ptc_controllers_tidy(struct ptc_controllers *all)
{
	if (!all->reconciled)
		ptc_tidy_store(all);
	for (size_t i = 0; i < all->n; i++)
		if (all->list[i]->untidy)
			ptc_controller_tidy(all->list[i]);
}

void ptc_controllers_lost(struct ptc_controllers *all)
{
	while (all->n)
		lose(all->list[0]);
}

void ptc_controllers_free(struct ptc_controllers *all)
{
	ptc_controllers_lost(all);
	ptc_unreachable_free(all);
	ptc_suspicion_free(all);
	ptc_free(all->list);
	all->list = NULL;
}

/* For a node that is down: its progress says for how long. */
static bool waits(const struct ptc_controller *ctl)
{
	for (uint32_t i = 0; i < ctl->nknown; i++)
		if (ptc_job_awaits_down(ctl->core, i))
			return true;
	return false;
}

static void tell_progress(struct ptc_controller *ctl)
{
	const char *phase, *text;
	uint64_t bytes, total;
	char waits[512];

	ptc_controller_status(ctl, &phase, &bytes, &total);
	text = ptc_controller_waits_text(ctl, waits, sizeof waits);
	ptc_watcher_progress(ctl->watcher, phase, bytes, total, text);
	ptc_watcher_progress(ctl->fill_watcher, phase, bytes, total, text);
}

/* What the rooms want to begin needs a moment without a switch. Where one snapshot that is due follows another, a tick
 * finds no such moment, so this is called before the next one begins, too. */
static void give_turn(struct ptc_controller *ctl)
{
	ptc_controller_ref(ctl);
	ctl->turn = !ptc_controller_idle(ctl);
	ptc_recovery_answer(ctl);
	ptc_leaving_tick(ctl);
	ptc_recovery_tick(ctl);
	ptc_ahead_tick(ctl);
	ptc_controller_unref(ctl);
}

/* Copies, and with them the next snapshot, wait for no tick: what has just ended may be all that they waited for. The
 * keeper of copies comes first: where the next snapshot is due at once, it would otherwise never find the job idle. */
static void do_next(uv_timer_t *timer)
{
	struct ptc_controller *ctl = timer->data;
	uint64_t id;

	ptc_controller_ref(ctl);
	ptc_copy_keeper_tick(ctl);
	ptc_controller_event(ctl);
	if (!ctl->gone && !ptc_ahead_builds(ctl, &id)) /* as in a tick */
		ptc_older_tick(ctl);
	ptc_controller_unref(ctl);
}

static void soon(struct ptc_controller *ctl, uint64_t ms)
{
	if (!ctl->gone && !(uv_is_active((uv_handle_t *)ctl->next) && uv_timer_get_due_in(ctl->next) <= ms))
		uv_timer_start(ctl->next, do_next, ms, 0);
}

void ptc_controllers_tick(struct ptc_controllers *all)
{
	uint64_t id;

	for (size_t i = all->n; i-- > 0 && ptc_cluster_any_lost(all->cluster);)
		if (i < all->n) /* whether that counts for a job is known once its record has been read */
			ptc_controller_tell_lost(all->list[i]);
	ptc_unreachable_tick(all);
	ptc_suspicion_tick(all);
	for (size_t i = all->n; i-- > 0;)
		if (i < all->n)
			ptc_silent_nodes_tick(all->list[i]);
	for (size_t i = 0; i < all->n; i++)
		if (all->list[i]->running || waits(all->list[i])) /* bytes move, or seconds are counted */
			tell_progress(all->list[i]);
	for (size_t i = all->n; i-- > 0;)
		if (i < all->n)
			ptc_controller_event(all->list[i]);
	for (size_t i = all->n; i-- > 0;)
		if (i < all->n)
			give_turn(all->list[i]);
	for (size_t i = all->n; i-- > 0;)
		if (i < all->n && !ptc_ahead_builds(all->list[i], &id)) /* whose requests its own would end */
			ptc_older_tick(all->list[i]);
	for (size_t i = 0; i < all->n; i++)
		ptc_copy_keeper_tick(all->list[i]);
	for (size_t i = 0; i < all->n; i++)
		ptc_device_keeper_tick(all->list[i]);
	for (size_t i = 0; i < all->n; i++)
		ptc_archiver_tick(all->list[i]);
	ptc_locks_tick(all);
}

/* ---- requests ------------------------------------------------------------------------ */

bool ptc_controller_passing(struct ptc_controller *ctl)
{
	switch (ptc_job_phase(ctl->core)) {
	case PTC_JOB_IDLE:
		return false;
	case PTC_JOB_NEW:
	case PTC_JOB_RELOADING:
	case PTC_JOB_FINISHING:
		return true;
	default:
		if (ctl->intent.kind != PTC_SWITCH_SNAPSHOT || !ctl->intent.run_to)
			return false;
		ctl->yield_until_ns = ptc_sys_now_ns() + YIELD_NS;
		return true;
	}
}

int64_t ptc_controller_fence(const struct ptc_controller *ctl)
{
	return ctl->fence;
}

void ptc_controller_status(const struct ptc_controller *ctl, const char **ret_phase, uint64_t *ret_done,
			   uint64_t *ret_total)
{
	uint64_t id;

	*ret_phase = ptc_job_phase_name(ptc_job_phase(ctl->core));
	if (ptc_controller_idle(ctl) && ptc_ahead_builds(ctl, &id))
		*ret_phase = ptc_job_phase_name(PTC_JOB_BUILDING);
	ptc_controller_bytes(ctl, ret_done, ret_total);
}

static int check_base(struct ptc_controller *ctl, const struct ptc_switch_request *r, struct ptc_error *err)
{
	uint64_t generation = ctl->has_record ? ctl->record.generation : 0;
	uint64_t snapshot = ctl->has_record ? ctl->record.snapshot : 0;

	if (!ptc_controller_idle(ctl))
		return ptc_error_set(err, PTC_ESTATE, "job %s is busy (%s); wait for it or `ptcctl abort %s`",
				     ctl->meta.name, ptc_job_phase_name(ptc_job_phase(ctl->core)), ctl->meta.name);
	if (generation != r->base_generation || snapshot != r->base_snapshot)
		return ptc_error_set(err, PTC_ECONFLICT, "job %s changed while the switch was planned; try again",
				     ctl->meta.name);
	if (r->source && !ptc_older_kept(ctl, r->source))
		return ptc_error_set(err, PTC_ENOTFOUND, "job %s does not keep snapshot %llu any more", ctl->meta.name,
				     (unsigned long long)r->source);
	if (r->kind == PTC_SWITCH_IMPORT && generation && !r->source)
		return ptc_error_set(err, PTC_ESTATE, "job %s has state already; delete it and create it again",
				     ctl->meta.name);
	if (r->kind != PTC_SWITCH_HALT && r->run_from != (ctl->has_record && ctl->record.run == PTC_RUN_LIVE))
		return ptc_error_set(err, PTC_ECONFLICT, "job %s %s meanwhile; try again", ctl->meta.name,
				     r->run_from ? "has ended" : "was started");
	return 0;
}

/* The generation and snapshot that a switch of this kind goes to; see struct ptc_switch. */
static void intent_target(struct ptc_intent_doc *in, const struct ptc_switch_request *r)
{
	bool nothing = r->run_to && !r->run_from && r->base_snapshot == 0;

	in->to_generation = r->base_generation;
	in->to_snapshot = r->base_snapshot;
	if (r->kind == PTC_SWITCH_HALT)
		return;
	in->to_snapshot = nothing ? 0 : r->base_snapshot + 1;
	if (r->kind != PTC_SWITCH_SNAPSHOT)
		in->to_generation = r->base_generation + 1;
}

static void set_intent(struct ptc_controller *ctl, const struct ptc_switch_request *r)
{
	ctl->intent = (struct ptc_intent_doc){
		.id = r->id,
		.kind = r->kind,
		.from_generation = r->base_generation,
		.from_snapshot = r->base_snapshot,
		.started_ms = ptc_sys_realtime_ms(),
		.run_from = r->run_from,
		.run_to = r->run_to,
		.end = r->end,
		.stop = r->stop,
		.held = r->held,
		.leaves = r->leaves,
		.reached = r->reached,
		.source = r->source,
		.skip_data = r->skip_data,
		.recovers = r->recovers,
	};
	intent_target(&ctl->intent, r);
	ctl->nphases = 0;
	ctl->plan_hash[0] = '\0';
}

static void step_switch(struct ptc_controller *ctl, uint32_t *from, uint32_t nfrom, uint32_t *to)
{
	struct ptc_switch sw = ptc_controller_switch(ctl, &ctl->intent, from, nfrom, to);

	sw.stored = ctl->intent.source != 0;
	ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_SWITCH, .request = &sw });
}

/* New ranks may be building for a resize that has not begun. Snapshots are taken as ever; a switch that ends the
 * training ranks ends that resize. */
static int check_ahead(struct ptc_controller *ctl, struct ptc_switch_request *r, struct ptc_error *err)
{
	uint64_t id;

	if (!ptc_ahead_builds(ctl, &id) || (r->kind == PTC_SWITCH_SNAPSHOT && r->run_to))
		return 0;
	if (r->kind == PTC_SWITCH_RESIZE && r->run_from)
		return ptc_error_set(err, PTC_ESTATE, "job %s is busy (building); wait for it or `ptcctl abort %s`",
				     ctl->meta.name, ctl->meta.name);
	if (r->end == PTC_RUN_DONE &&
	    !r->watcher) /* no step is left to resize at: that it has finished is the answer */
		r->watcher = ptc_ahead_take_watcher(ctl);
	ptc_ahead_stop(ctl, PTC_ECANCELED, "the job's ranks end before the new ones have built");
	return 0;
}

/* That of the state which the switch carries. */
static void set_from_config(struct ptc_controller *ctl)
{
	const char *from = ctl->intent.source ? ctl->source.from.config : ctl->view.from.config;

	ctl->from_config = ptc_strdup(from ? from : "");
	ptc_require(ctl->from_config);
}

/* A switch of ranks that run is planned for their generation: snapshots that they have made since change nothing. A
 * HALT is not asked whether ranks run, and may have been meant for ranks that have ended with a later snapshot. */
static void count_from_now(const struct ptc_controller *ctl, struct ptc_switch_request *r)
{
	if (r->run_from && r->kind != PTC_SWITCH_HALT && ctl->has_record &&
	    ctl->record.generation == r->base_generation)
		r->base_snapshot = ctl->record.snapshot;
}

/* Leaves those of the nodes whose held ranks give their memory. Returns how many these are. */
static uint32_t only_giving(const struct ptc_controller *ctl, uint32_t *nodes, uint32_t n)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n; i++)
		if (ptc_recovery_gives(ctl, nodes[i]))
			nodes[kept++] = nodes[i];
	return kept;
}

/* What the request owns becomes the controller's. */
static void take_owned(struct ptc_controller *ctl, struct ptc_switch_request *r)
{
	ctl->watcher = r->watcher;
	ctl->plan = r->plan;
	ctl->emptied = r->emptied;
	ctl->nemptied = r->nemptied;
	r->watcher = NULL;
	r->plan = NULL;
	r->emptied = NULL;
	r->nemptied = 0;
}

static void tell_requested(const struct ptc_controller *ctl)
{
	const struct ptc_plan_build *b = ctl->plan ? &ctl->plan->build : NULL;
	const bool late = b && b->level && !ptc_plan_builds_ahead(ctl->plan);

	ptc_event(ctl->all->cluster, ctl->uuid, "switch", "%s %s -> %s requested%s%s", ptc_switch_name(ctl),
		  ctl->from_config[0] ? ctl->from_config : "nothing", ctl->view.to.config,
		  late ? "; its ranks build after the old ones have ended: " : "", late ? b->why : "");
}

int ptc_controller_submit(struct ptc_controller *ctl, struct ptc_switch_request *r, struct ptc_error *err)
{
	uint32_t *from, *to, nfrom;
	int rc;

	count_from_now(ctl, r);
	rc = ptc_fault("controller.submit") ? ptc_error_set(err, PTC_EIO, "a test wants no switch to begin")
					    : check_base(ctl, r, err);

	if (!rc)
		rc = check_ahead(ctl, r, err);
	if (!rc && r->ahead) {
		rc = ptc_ahead_begin(ctl, r, err);
		if (!rc)
			ptc_recovery_ask(ctl, true); /* the pace that its ranks slow down is seen before they do */
		return rc;
	}
	if (rc)
		return rc;
	ptc_generation_doc_done(&ctl->view.to);
	ctl->view.to = r->to;
	memset(&r->to, 0, sizeof r->to);
	from = ptc_controller_placed(ctl, NULL, &nfrom);
	to = ptc_controller_numbers(ctl, &ctl->view.to);
	if (!from || !to || ptc_view_nodes(&ctl->view) != 0) {
		ptc_free(from);
		ptc_free(to);
		return ptc_nomem(err);
	}
	if (r->held)
		nfrom = only_giving(ctl, from, nfrom);
	ptc_controller_switch_done(ctl);
	if (r->source) {
		ctl->source = r->source_view;
		memset(&r->source_view, 0, sizeof r->source_view);
		ptc_free(from);
		from = ptc_older_sources(ctl, &nfrom);
		ptc_require(from && ptc_older_aim(ctl) == 0);
	}
	take_owned(ctl, r);
	ptc_copy_keeper_committed(ctl);
	set_intent(ctl, r);
	set_from_config(ctl);
	if (ctl->view.to.config)
		tell_requested(ctl);
	step_switch(ctl, from, nfrom, to);
	ptc_free(from);
	ptc_free(to);
	return 0;
}

int ptc_controller_filled(struct ptc_controller *ctl, uint64_t id, struct ptc_manifest_doc *imported,
			  struct ptc_watcher *watcher, struct ptc_error *err)
{
	if (ctl->intent.id != id || ctl->intent.kind != PTC_SWITCH_IMPORT ||
	    ptc_job_phase(ctl->core) != PTC_JOB_FILLING || ctl->fill_watcher)
		return ptc_error_set(
			err, PTC_ESTATE,
			"import %llu of job %s is not open any more (aborted, or the controller changed); import again",
			(unsigned long long)id, ctl->meta.name);
	ctl->imported = *imported;
	*imported = (struct ptc_manifest_doc){ 0 };
	ctl->fill_watcher = watcher;
	ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_FILLED });
	return 0;
}

bool ptc_controller_import_layout(const struct ptc_controller *ctl, uint64_t id, char ret_hash[PTC_HASH_HEX])
{
	if (ctl->intent.id != id || ctl->intent.kind != PTC_SWITCH_IMPORT || ptc_controller_idle(ctl))
		return false;
	memcpy(ret_hash, ctl->view.to.layout_hash, PTC_HASH_HEX);
	return true;
}

int ptc_controller_abort(struct ptc_controller *ctl, uint64_t id, const char *why, struct ptc_error *err)
{
	enum ptc_job_phase phase = ptc_job_phase(ctl->core);
	uint64_t building;

	if (ptc_ahead_builds(ctl, &building) && (!id || id == building)) {
		ptc_ahead_stop(ctl, PTC_ECANCELED, why);
		return 0;
	}
	if (phase == PTC_JOB_IDLE || phase == PTC_JOB_NEW || phase == PTC_JOB_FINISHING || (id && id != ctl->intent.id))
		return ptc_error_set(err, PTC_ESTATE, "job %s has no switch under way that could be aborted",
				     ctl->meta.name);
	ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_ABORT, .status = PTC_ECANCELED, .text = why });
	return 0;
}

void ptc_controller_abandon(struct ptc_controller *ctl, uint64_t id)
{
	if (ctl->intent.id == id && !ctl->fill_watcher && !ptc_controller_idle(ctl))
		ptc_controller_abort(ctl, id, "the import's client went away", NULL);
}

/* ---- updates ------------------------------------------------------------------------------ */

/* After the second commit the new generation is the current one. */
static void roll(struct ptc_controller *ctl)
{
	ptc_generation_doc_done(&ctl->view.from);
	ctl->view.from = ctl->view.to;
	memset(&ctl->view.to, 0, sizeof ctl->view.to);
	ptc_copy_keeper_committed(ctl);
}

/* end NULL: no memory for it. */
static void committed(struct ptc_controller *ctl, const struct ptc_switch_end *end)
{
	if (ctl->view.to.world) {
		ptc_event_with(ctl->all->cluster, ctl->uuid, "committed", end,
			       "generation %llu, snapshot %llu, step %llu: %s",
			       (unsigned long long)ctl->intent.to_generation,
			       (unsigned long long)ctl->intent.to_snapshot, (unsigned long long)ctl->record.step,
			       ptc_switch_to_config(ctl));
		if (ctl->rank_states.review.text[0])
			ptc_event(ctl->all->cluster, ctl->uuid, "blobs", "generation %llu: %s",
				  (unsigned long long)ctl->intent.to_generation, ctl->rank_states.review.text);
		roll(ctl);
	} else {
		ptc_event_with(ctl->all->cluster, ctl->uuid, "committed", end, "%s: snapshot %llu, step %llu",
			       ptc_switch_name(ctl), (unsigned long long)ctl->record.snapshot,
			       (unsigned long long)ctl->record.step);
		if (ctl->intent.held)
			ptc_event(
				ctl->all->cluster, ctl->uuid, "survived",
				"snapshot %llu, of step %llu, was made from the memory of the ranks that are left%s%s",
				(unsigned long long)ctl->record.snapshot, (unsigned long long)ctl->record.step,
				ctl->gone_blobs[0] ? "; not in it: " : "", ctl->gone_blobs);
	}
	ptc_recovery_committed(ctl);
}

struct ptc_switch_tally ptc_switch_tally;

static void count(const struct ptc_controller *ctl, bool was_committed)
{
	struct ptc_switch_tally *t = &ptc_switch_tally;
	const int64_t now = ptc_sys_now_ns();
	struct ptc_switch_pause pause;

	for (size_t i = 0; i < ctl->npulls; i++) {
		t->between_bytes += ctl->pulls[i].wire_bytes;
		t->within_bytes += ctl->pulls[i].copied_bytes;
	}
	t->ended[ctl->intent.kind][was_committed]++;
	t->captured_bytes += ctl->captured_bytes;
	if (was_committed && ctl->intent.kind == PTC_SWITCH_RESIZE && ctl->intent.from_snapshot && ctl->plan)
		t->bound_bytes += (uint64_t)ctl->plan->totals.bound_any;
	if (was_committed && ctl->intent.run_from) {
		pause = ptc_switch_pause(ctl);
		ptc_histogram_add(&t->paused, (int64_t)(pause.total_ms * 1e6));
		ptc_histogram_add(&t->slowed, (int64_t)(PTC_MAX(0.0, pause.slowed_ms) * 1e6));
	}
	for (size_t i = 0; i < ctl->nphases; i++)
		ptc_histogram_add(&t->phases[ctl->phases[i].phase],
				  (i + 1 < ctl->nphases ? ctl->phases[i + 1].at_ns : now) - ctl->phases[i].at_ns);
}

static void compare_links(const struct ptc_controller *ctl)
{
	size_t n;
	struct ptc_link_use *links = ptc_switch_links(ctl, &n);

	ptc_measuring_links(ctl->all->measuring, links, n);
	ptc_free(links);
}

/* What became of the pause that the planner predicted. */
static void compare_pause(const struct ptc_controller *ctl)
{
	const bool ran = ctl->intent.run_from;
	const struct ptc_switch_pause p = ran ? ptc_switch_pause(ctl) : (struct ptc_switch_pause){ 0 };
	const struct ptc_plan_choice none = { 0 }, *choice = ctl->plan ? &ctl->plan->chosen.choice : &none;
	const struct ptc_measured_pause pause = { .resize = ran,
						  .pause_s = p.total_ms / 1e3,
						  .moving_s = p.move_ms / 1e3,
						  .predicted = choice->predicted,
						  .predicted_s = choice->pause_s };

	if (ctl->intent.run_to && ctl->intent.kind == PTC_SWITCH_RESIZE)
		ptc_measuring_switched(ctl->all->measuring, ctl->uuid, ctl->intent.to_generation, &pause);
}

static void keep_resized(struct ptc_controller *ctl, struct ptc_switch_summary *summary)
{
	if (!ctl->intent.run_from || !ctl->intent.run_to || ctl->intent.kind != PTC_SWITCH_RESIZE)
		return;
	ptc_switch_summary_unref(ctl->resized);
	ctl->resized = ptc_switch_summary_ref(summary);
}

static void done(struct ptc_controller *ctl, const struct ptc_job_update *up)
{
	struct ptc_switch_summary *summary = NULL;
	const struct ptc_switch_end *end;
	char why[1024];

	if (up->switch_id != ctl->intent.id)
		return; /* refused before it began; submit has said so */
	snprintf(why, sizeof why, "%s%s%s", up->text, up->status == PTC_ECOORD && ctl->etcd_said[0] ? ": " : "",
		 up->status == PTC_ECOORD ? ctl->etcd_said : "");
	if (up->waited_ms)
		ptc_controller_waited_text(ctl, up, why, sizeof why);
	if (up->lost)
		ptc_controller_lost_text(ctl, up, why, sizeof why);
	if (up->status == PTC_ENOSPC && strncmp(up->text, "warm:", 5) != 0) /* that one is of devices */
		ptc_older_make_room(ctl, up->node, why, sizeof why);
	count(ctl, up->status == 0);
	if (ctl->recovery.held)
		ctl->recovery.ended_ns = ptc_sys_now_ns();
	ctl->recovery.held = false;
	if (up->status == 0) {
		compare_pause(ctl);
		compare_links(ctl);
		summary = ptc_switch_summary_new(ctl, &end);
		keep_resized(ctl, summary);
		committed(ctl, end);
	} else {
		if (up->status != PTC_EFENCED) /* else it is the next controller's to say */
			ptc_event_with(ctl->all->cluster, ctl->uuid, "aborted",
				       &(struct ptc_switch_end){ up->switch_id, up->status, why }, "%s: %s",
				       ptc_status_name(up->status), why);
		ptc_generation_doc_done(&ctl->view.to);
		ptc_recovery_aborted(ctl, up->status, why);
		if (up->status == PTC_EFINISHED)
			ptc_ending_begins(ctl, why);
		else
			ctl->event_after_ns = ptc_sys_now_ns() + EVENT_RETRY_NS;
	}
	ptc_watcher_finish(ctl->watcher, up->status, why, summary);
	ptc_watcher_finish(ctl->fill_watcher, up->status, why, summary);
	if (up->status == 0)
		ptc_ending_over(ctl, summary);
	ptc_switch_summary_unref(summary);
	ptc_ahead_over(ctl);
	ptc_controller_switch_done(ctl);
	ptc_controller_tidy(ctl);
}

/* Ranks wait at a stop, or have come to a step where a snapshot is due before their switch arms them; an abort lets
 * them go on, and so does a FINISH. */
static bool may_hold(const struct ptc_controller *ctl, enum ptc_job_phase phase)
{
	return phase == PTC_JOB_ABORTING ||
	       (ctl->intent.run_from && phase >= PTC_JOB_INTENT && phase <= PTC_JOB_SEALING);
}

static void phase_changed(struct ptc_controller *ctl, enum ptc_job_phase phase)
{
	if (ctl->nphases < PTC_PHASES_KEPT) {
		ctl->phases[ctl->nphases].phase = phase;
		ctl->phases[ctl->nphases++].at_ns = ptc_sys_now_ns();
	}
	ctl->recovery.held |= may_hold(ctl, phase);
	ptc_debug("job", "job=%s phase %s", ctl->meta.name, ptc_job_phase_name(phase));
	tell_progress(ctl);
}

static void timer_fired(uv_timer_t *timer)
{
	struct ptc_controller *ctl = timer->data;

	ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_TIMER, .seq = ctl->timer_seq });
}

static void perform(struct ptc_controller *ctl, const struct ptc_job_update *up)
{
	switch (up->kind) {
	case PTC_UP_SEND:
		if (up->op == PTC_OP_CAPTURE)
			ctl->capture_step = up->stop;
		ctl->recovery.held |= up->op == PTC_OP_FINISH; /* see may_hold */
		ptc_controller_send(ctl, up);
		break;
	case PTC_UP_TXN:
		ptc_controller_txn(ctl, up);
		break;
	case PTC_UP_CHECK_DIGESTS:
		ptc_controller_check_digests(ctl, up->seq);
		break;
	case PTC_UP_AGREE:
		if (ctl->intent.run_from)
			ptc_controller_agree(ctl, up->seq);
		else
			ptc_controller_cover(ctl, up->seq);
		break;
	case PTC_UP_LAYOUT:
		ptc_controller_layout(ctl, up->seq);
		break;
	case PTC_UP_RELOAD:
		ptc_controller_load(ctl, up->seq);
		break;
	case PTC_UP_DONE:
		done(ctl, up);
		break;
	case PTC_UP_PHASE:
		phase_changed(ctl, up->phase);
		break;
	case PTC_UP_SET_TIMER:
		ctl->timer_seq = up->seq;
		uv_timer_start(ctl->timer, timer_fired, up->timer_ms, 0);
		break;
	case PTC_UP_CANCEL:
		ptc_controller_cancel(ctl, up->seq);
		break;
	case PTC_UP_STOPPED:
		ctl->stopped = true;
		break;
	}
}

static void perform_step(struct ptc_controller *ctl, const struct ptc_job_event *event)
{
	struct ptc_cluster *cluster = ctl->all->cluster;
	const bool was_idle = ptc_controller_idle(ctl);
	struct ptc_job_updates ups;

	if (ctl->gone)
		return;
	ptc_require(ptc_job_step(ctl->core, event, &ups) == 0);
	ptc_controller_ref(ctl);
	for (size_t i = 0; i < ups.n; i++)
		perform(ctl, &ups.v[i]);
	if (ctl->stopped)
		drop(ctl);
	if (!was_idle && ptc_controller_idle(ctl))
		soon(ctl, 0);
	if (ctl->record.recovery &&
	    ptc_controller_idle(ctl)) { /* ranks have just been given up: no tick is waited for */
		ptc_leaving_tick(ctl);  /* what only a leaving node has is copied first */
		ptc_recovery_tick(ctl);
	}
	ptc_controller_unref(ctl);
	ptc_cluster_changed(cluster);
}
