/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out where a job whose ranks are lost can go on: whether live nodes hold its snapshot, or else an older one, and
 * which configuration the remaining devices allow. Happy path: if there are enough devices, the configuration stays.
 * Otherwise it is the largest for fewer devices that the job's table, the planner or another dp gives, for at least
 * min_gpus. Failure modes: PTC_ELOST naming a tensor; PTC_ENODEVICES; what planning says. A node that is quarantined is
 * used only if a job whose ranks are lost cannot go on without it.
 *
 * The work is in rounds, one for each set of nodes and each snapshot that is tried. A round has two tasks, which have
 * copies of everything that they need. The first reads documents and asks nodes; the job's transactions do not wait for
 * it, for its lane is its own. The second plans, which may take seconds, on the pool for computation. All jobs share
 * PLAN_LANES lanes for that, so the pool has threads left for digests. */
#include "daemon/controller/internal.h"
#include "daemon/controller/leaving/leaving.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/documents/probed/probed.h"

#include <stdio.h>
#include <string.h>

#define TRIES_MAX  64  /* configurations that are planned */
#define PLAN_LANES 2   /* of the pool's four threads */
#define HINT_END   600 /* `waits` of struct ptc_recovery, without what is said around the error */

struct ptc_recovery_task {
	struct ptc_controller *ctl;
	struct ptc_controllers *all;
	struct ptc_meta_doc meta;
	struct ptc_record_doc record;
	enum ptc_recovery_for asked, what; /* what: it may become another as it is planned */
	void (*planned)(struct ptc_controller *ctl, struct ptc_recovery_plan *p);
	struct ptc_recovery_plan plan;
	struct ptc_view view; /* of the record, or of the snapshot `source` */
	struct ptc_older_doc older;
	uint64_t source;
	bool ctl_leaves;     /* some node leaves */
	bool passes_over;    /* some node is left out because it is quarantined */
	bool all_the_same;   /* none is */
	bool may_return;     /* a node with a part of the record's snapshot is down, and not lost */
	bool shares;         /* the job's `share_devices` */
	const char *without; /* the plan is of the loss of this node, which has not happened; NULL: it is of what is */
	uint64_t changes;    /* of nodes and devices, up to when it was planned */
	uint32_t devices;    /* of nodes that it may use, that no other job has */
	char **stay;         /* nodes are left out: all others that are up and not drained */
	size_t nstay;
	const struct ptc_job_desc *desc; /* of this round, with its reference */
	void *desc_ref;
	bool has_view, again;
	bool *has;            /* of each node of the view: ptc_lost_ask; NULL: nodes were not asked */
	int status;           /* of this round */
	struct ptc_error why; /* of rounds for older snapshots */
	int rc;
};

/* Its ranks run, and are to go on running while it is planned. */
static bool trains(const struct ptc_recovery_task *t)
{
	return t->what == PTC_RECOVERY_GROW || t->what == PTC_RECOVERY_AGAIN || t->what == PTC_RECOVERY_LEAVE;
}

static void forget_stay(struct ptc_recovery_task *t)
{
	for (size_t i = 0; i < t->nstay; i++)
		ptc_free(t->stay[i]);
	ptc_free(t->stay);
	t->stay = NULL;
	t->nstay = 0;
}

/* A quarantined node that has ranks of the job keeps them: a person has put them there. */
static bool is_passed_over(const struct ptc_recovery_task *t, const struct ptc_node *n)
{
	return !t->all_the_same && n->up && !n->drained && ptc_quarantine_left(&n->quarantine, ptc_sys_now_ns()) &&
	       !ptc_controller_ranks_on(t->ctl, n->doc.name);
}

/* Without those that are left out; where none is: every node, and no list. */
static int note_stay(struct ptc_recovery_task *t, const char *node)
{
	if (!t->ctl_leaves && !t->passes_over && !t->without)
		return 0;
	if (!PTC_MORE(t->stay, t->nstay))
		return PTC_ENOMEM;
	t->stay[t->nstay] = ptc_strdup(node);
	return t->stay[t->nstay] ? (t->nstay++, 0) : PTC_ENOMEM;
}

static void look_on_loop(void *arg)
{
	struct ptc_recovery_task *t = arg;
	int rc = 0;

	t->ctl_leaves = ptc_leaving_any(t->ctl);
	t->passes_over = false;
	t->devices = 0;
	forget_stay(t);
	for (uint32_t i = 0; i < ptc_cluster_nnodes(t->all->cluster); i++)
		t->passes_over |= is_passed_over(t, ptc_cluster_node(t->all->cluster, i));
	for (uint32_t i = 0; i < ptc_cluster_nnodes(t->all->cluster) && !rc; i++) {
		const struct ptc_node *n = ptc_cluster_node(t->all->cluster, i);

		if (ptc_leaving_has(t->ctl, n->doc.name) || !n->up || n->drained || is_passed_over(t, n) ||
		    (t->without && strcmp(t->without, n->doc.name) == 0))
			continue;
		rc = note_stay(t, n->doc.name);
		for (uint32_t k = 0; k < n->doc.devices; k++)
			t->devices +=
				ptc_node_device_well(n, k, NULL) &&
				ptc_cluster_device_free(t->all->cluster, n->doc.name, k, t->meta.uuid, t->shares, NULL);
	}
	/* of ranks that run, copies are old; an older snapshot has its own */
	t->rc = rc || trains(t) || t->source ? rc : ptc_view_find_copies(&t->view, t->all->cluster);
	if (t->rc == 0)
		t->rc = ptc_view_locate(&t->view, t->all->cluster);
	for (size_t i = 0; i < t->view.nnodes && !t->source; i++) {
		uint32_t at;

		if (ptc_cluster_find_node(t->all->cluster, t->view.nodes[i], &at))
			t->may_return |= !ptc_cluster_node(t->all->cluster, at)->up &&
					 !ptc_cluster_node(t->all->cluster, at)->lost;
	}
}

static int check_covered(struct ptc_recovery_task *t, struct ptc_error *err)
{
	int rc = t->has ? ptc_lost_covered(t->all, &t->view, t->has, err) : 0;

	if (rc || !t->has || !t->source)
		return rc;
	ptc_generation_doc_done(&t->plan.back_to);
	return ptc_older_target(&t->view, t->has, &t->plan.back_to, err);
}

/* Whether to plan for so many devices: what would be no more than a guess is left out. */
static bool candidate(const struct ptc_job_desc *desc, const struct ptc_config *now, uint32_t n)
{
	if (desc->ngpus)
		return ptc_job_config_for(desc, n) != NULL;
	return desc->model || desc->space || n % (now->tp * now->pp * now->cp) == 0;
}

static int plan_as(struct ptc_recovery_task *t, uint32_t gpus, struct ptc_error *err)
{
	struct ptc_plan_request req = { .gpus = gpus, .or_same = gpus == 0, .at_rest = !trains(t) && !t->without };

	req.has = t->has;
	req.ranks = t->what != PTC_RECOVERY_ELSEWHERE;
	req.trains = trains(t);
	req.unattended = true;
	req.runs = gpus != 0; /* what is chosen is not less than min_gpus either */
	if (t->what == PTC_RECOVERY_SAME) {
		req.nodes = t->view.from.nodes;
		req.nnodes = t->view.from.nnodes;
	} else { /* empty if no node leaves: all of them */
		req.nodes = t->stay;
		req.nnodes = t->nstay;
	}
	return ptc_plan_switch(t->all, &t->view, &req, &t->plan.planned, err);
}

/* The most devices from `least` to n for which there is a configuration. */
static int plan_most(struct ptc_recovery_task *t, const struct ptc_job_desc *desc, uint32_t n, uint32_t least,
		     struct ptc_error *err)
{
	const struct ptc_job_elastic *e = &desc->elastic;
	ptc_auto_free struct ptc_config *now = ptc_calloc(1, sizeof *now);
	uint32_t tries = 0;
	struct ptc_error first = PTC_ERROR_INIT;
	int rc = now ? ptc_config_parse(t->view.from.config, now, err) : ptc_nomem(err);

	if (rc)
		return rc;
	if (e->max_gpus)
		n = PTC_MIN(n, e->max_gpus);
	for (rc = PTC_ENODEVICES; n >= least && rc && rc != PTC_ELOST && tries < TRIES_MAX; n--)
		if (candidate(desc, now, n))
			rc = plan_as(t, n, tries++ ? NULL : &first);
	if (rc && tries)
		return ptc_error_set(err, rc, "%s", first.text);
	return rc == 0 ? 0
		       : ptc_error_set(err, rc, "%u devices are there, and the job has no configuration for %u to %u",
				       t->devices, least, n < least ? least : n);
}

/* Its configuration, if there are enough devices; else the largest for fewer. */
static int plan_any(struct ptc_recovery_task *t, const struct ptc_job_desc *desc, struct ptc_error *err)
{
	uint32_t most = desc->elastic.max_gpus ? desc->elastic.max_gpus : UINT32_MAX;

	if (!t->nstay && (t->passes_over || t->without)) /* an empty list means every node */
		return ptc_error_set(err, PTC_ENODEVICES, "no other node is up and not drained");
	if (t->view.from.world <= PTC_MIN(most, t->devices) && plan_as(t, 0, err) == 0)
		return 0;
	return plan_most(t, desc, PTC_MIN(t->devices, t->view.from.world - 1), PTC_MAX(desc->elastic.min_gpus, 1u),
			 err);
}

static int make_plan(struct ptc_recovery_task *t, const struct ptc_job_desc *desc, struct ptc_error *err)
{
	uint32_t most = desc->elastic.max_gpus ? desc->elastic.max_gpus : UINT32_MAX;
	int rc = trains(t) ? 0 : check_covered(t, err);

	if (rc)
		return rc;
	if (!t->view.from.world)
		return ptc_error_set(err, PTC_ESTATE, "the job has no configuration to go on with");
	if (!t->nstay && (t->passes_over || (t->ctl_leaves && !trains(t)))) /* an empty list means every node */
		return ptc_error_set(err, PTC_ENODEVICES, "no other node is up and not drained");
	if (t->what == PTC_RECOVERY_SAME || t->what == PTC_RECOVERY_ELSEWHERE)
		rc = plan_as(t, 0, err);
	if (t->what == PTC_RECOVERY_ELSEWHERE || (t->what == PTC_RECOVERY_SAME && !rc))
		return rc;
	if (t->what == PTC_RECOVERY_SAME) { /* a device there is not well any more: that is as if its node were lost */
		if (rc != PTC_ENODEVICES || desc->elastic.on_failure != PTC_JOB_SHRINK)
			return rc;
		t->what = PTC_RECOVERY_ANY;
	}
	if (t->what == PTC_RECOVERY_AGAIN)
		return plan_as(t, t->view.from.world, err);
	if (t->what == PTC_RECOVERY_GROW && t->view.from.world >= most)
		return ptc_error_set(err, PTC_ENODEVICES, "it has %u devices, and its max_gpus is %u",
				     t->view.from.world, most);
	if (t->what == PTC_RECOVERY_GROW)
		return plan_most(t, desc, t->devices, t->view.from.world + 1, err);
	return plan_any(t, desc, err);
}

/* Whether a plan with more nodes may be possible. */
static bool other_nodes_help(int status)
{
	return status && status != PTC_ELOST && status != PTC_ENOMEM && status != PTC_ECANCELED;
}

/* ---- a round's first task: it waits ---- */

static struct ptc_error *round_error(struct ptc_recovery_task *t)
{
	return t->source ? &t->why : &t->plan.err;
}

static void release_desc(struct ptc_recovery_task *t)
{
	if (t->desc_ref)
		ptc_specs_release(t->desc_ref);
	t->desc_ref = NULL;
	t->desc = NULL;
}

static int read_desc(struct ptc_recovery_task *t)
{
	struct ptc_recovery_plan *p = &t->plan;
	int rc = ptc_specs_get(t->all->docs.specs, t->meta.uuid, t->meta.spec_hash, &t->desc, &t->desc_ref,
			       round_error(t));

	if (rc || p->read)
		return rc;
	p->elastic = t->desc->elastic;
	t->shares = p->shares = t->desc->share_devices;
	p->first_step_ms = (int64_t)t->desc->run.build_timeout_ms;
	p->read = true;
	return 0;
}

/* What is lost may be in the job's archive, from which only a person can go on: an import is for a job without state. A
 * line too long for `waits` would be cut, so it stays as it is. */
static void name_archive(const struct ptc_recovery_task *t, const struct ptc_job_desc *desc, struct ptc_error *err)
{
	ptc_auto_free char *hint = NULL;
	size_t n = strlen(err->text);

	if (!desc->archive.dir)
		return;
	hint = ptc_asprintf(
		"; if it stays lost, go on from the job's archive: `ptcctl stop %s --now`, `ptcctl job delete %s`, "
		"`ptcctl run -f FILE --from %s`",
		t->meta.name, t->meta.name, desc->archive.dir);
	if (hint && n + strlen(hint) < HINT_END)
		memcpy(err->text + n, hint, strlen(hint) + 1);
}

static int read_view(struct ptc_recovery_task *t)
{
	int rc = t->source ? ptc_view_older(t->all->docs.kept, &t->meta, &t->older, t->source, &t->view, &t->why)
			   : ptc_view_load(t->all->docs.kept, &t->meta, &t->record, NULL, &t->view, &t->plan.err);

	if (rc == 0) {
		t->has_view = true;
		ptc_probed_join(&t->all->docs, &t->view);
	}
	/* an older one's documents are gone; any other failure is none of the snapshot's */
	return rc == PTC_ENOTFOUND && t->source ? PTC_ELOST : rc;
}

static int look(struct ptc_recovery_task *t)
{
	t->rc = PTC_ECANCELED; /* unless the loop does it */
	ptc_loop_call(t->all->loop, look_on_loop, t);
	if (t->rc)
		return ptc_error_set(round_error(t), t->rc, "the job's nodes cannot be looked up");
	if (trains(t) || !t->view.from_snapshot)
		return 0;
	t->has = ptc_calloc(t->view.nnodes + 1, sizeof *t->has);
	if (!t->has)
		return ptc_nomem(round_error(t));
	ptc_lost_ask(t->all, &t->view, t->has);
	return 0;
}

static void ask_work(void *arg, struct ptc_etcd *etcd)
{
	struct ptc_recovery_task *t = arg;
	int rc;

	(void)etcd;
	t->passes_over = false;
	ptc_free(t->has);
	t->has = NULL;
	rc = read_desc(t);
	if (!rc && t->what != PTC_RECOVERY_READ && !t->has_view)
		rc = read_view(t);
	if (!rc && t->what != PTC_RECOVERY_READ)
		rc = look(t);
	t->status = rc;
}

/* ---- its second one: it computes ---- */

static void forget_view(struct ptc_recovery_task *t)
{
	ptc_view_done(&t->view);
	t->view = (struct ptc_view){ 0 };
	t->has_view = false;
}

/* The record's snapshot is lost, or the older one that was tried: to the next older one. False: there is none. */
static bool go_back(struct ptc_recovery_task *t)
{
	const struct ptc_job_desc *desc = t->desc;
	bool may = desc->elastic.on_failure == PTC_JOB_SHRINK && desc->copies.count > 1 && !t->may_return &&
		   (t->what == PTC_RECOVERY_ANY || t->what == PTC_RECOVERY_SAME);
	const struct ptc_older *o =
		t->source || may ? ptc_older_before(&t->older, t->source ? t->source : UINT64_MAX) : NULL;

	if (!o)
		return false;
	forget_view(t);
	t->source = o->snapshot;
	t->all_the_same = false;
	return true;
}

/* Whether another round may find a plan. */
static bool tries_again(struct ptc_recovery_task *t)
{
	if (t->what == PTC_RECOVERY_READ || !t->desc || (!t->has_view && !t->source))
		return false;
	if (t->passes_over && !trains(t) && other_nodes_help(t->status)) {
		t->all_the_same = true; /* else the job would wait */
		return true;
	}
	return t->status == PTC_ELOST && go_back(t);
}

/* After the last round. If no older snapshot will do, the error stays that of the record's. */
static void conclude(struct ptc_recovery_task *t)
{
	struct ptc_recovery_plan *p = &t->plan;

	p->status = t->status;
	if (t->source && p->status && p->status != PTC_ELOST)
		p->err = t->why;
	if (p->status == PTC_ELOST && t->desc)
		name_archive(t, t->desc, &p->err);
	if (t->source && p->status)
		ptc_generation_doc_done(&p->back_to);
	if (t->source && !p->status) {
		ptc_planned_done(&p->planned); /* it shows that the job can be started then */
		p->source = t->source;
		p->source_view = t->view;
		t->view = (struct ptc_view){ 0 };
	}
	forget_view(t);
}

static void plan_work(void *arg, struct ptc_etcd *etcd)
{
	struct ptc_recovery_task *t = arg;

	(void)etcd;
	if (!t->status && t->what != PTC_RECOVERY_READ)
		t->status = make_plan(t, t->desc, round_error(t));
	t->again = t->status && tries_again(t);
	if (!t->again)
		conclude(t);
	release_desc(t);
}

void ptc_recovery_keep(struct ptc_controller *ctl, const struct ptc_recovery_plan *p)
{
	if (!p->read)
		return;
	ctl->recovery.elastic = p->elastic;
	ctl->recovery.shares = p->shares;
	ctl->recovery.first_step_ms = p->first_step_ms;
	ctl->recovery.has_elastic = true;
}

static void plan_done(struct ptc_recovery_plan *p)
{
	ptc_planned_done(&p->planned);
	ptc_generation_doc_done(&p->back_to);
	ptc_view_done(&p->source_view);
}

static void release(struct ptc_recovery_task *t)
{
	plan_done(&t->plan);
	forget_view(t);
	release_desc(t);
	ptc_free(t->has);
	forget_stay(t);
	ptc_controller_unref(t->ctl);
	ptc_free(t);
}

/* The job has other ranks by now; or a later snapshot, whose commit has dropped a document that was to be read. */
static bool is_outdated(const struct ptc_recovery_task *t)
{
	const struct ptc_record_doc *now = &t->ctl->record;

	return t->asked != PTC_RECOVERY_READ &&
	       (now->generation != t->record.generation || now->incarnation != t->record.incarnation ||
		(t->plan.status == PTC_ENOTFOUND && now->snapshot != t->record.snapshot));
}

/* Ranks go on after the switch under way: then an answer is still right. */
static bool waits_for_snapshot(const struct ptc_recovery_task *t)
{
	const struct ptc_intent_doc *in = &t->ctl->intent;

	return t->asked != PTC_RECOVERY_READ && !ptc_controller_idle(t->ctl) && in->kind == PTC_SWITCH_SNAPSHOT &&
	       in->run_to;
}

static uint64_t count_changes(const struct ptc_recovery_task *t)
{
	return ptc_cluster_epoch(t->all->cluster) + ptc_cluster_device_writes(t->all->cluster);
}

static void start(struct ptc_recovery_task *t);

static void finished(void *arg)
{
	struct ptc_recovery_task *t = arg;
	struct ptc_controller *ctl = t->ctl;

	ctl->recovery.planning = false;
	if (ctl->gone) {
		release(t);
	} else if (waits_for_snapshot(t)) {
		ctl->recovery.answer = t;
		ctl->turn = true;
	} else if (is_outdated(t) || (t->plan.source && count_changes(t) != t->changes)) { /* a node may be back */
		start(t);
	} else {
		t->planned(ctl, &t->plan);
		release(t);
	}
}

/* A node that leaves goes first: its switch is made, and then what was asked for is planned anew. */
static bool yields(const struct ptc_recovery_task *t)
{
	bool trains = t->asked == PTC_RECOVERY_GROW || t->asked == PTC_RECOVERY_AGAIN || t->asked == PTC_RECOVERY_LEAVE;

	return trains && !t->ctl->gone && ptc_leaving_puts_off(t->ctl);
}

void ptc_recovery_answer(struct ptc_controller *ctl)
{
	struct ptc_recovery_task *t = ctl->recovery.answer;

	if (!t || (!ctl->gone && !ptc_controller_idle(ctl)))
		return;
	ctl->recovery.answer = NULL;
	if (yields(t)) {
		ctl->recovery.replan |= t->asked == PTC_RECOVERY_AGAIN;
		release(t);
	} else if (!ctl->gone && count_changes(t) != t->changes) { /* a node may be drained by now, a device taken */
		start(t);
	} else {
		finished(t);
	}
}

static void run_round(struct ptc_recovery_task *t);

static void round_done(void *arg)
{
	struct ptc_recovery_task *t = arg;

	if (t->again && !t->ctl->gone)
		run_round(t);
	else
		finished(t);
}

static void asked(void *arg)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, plan_work, true }, { 0 } };
	static unsigned turn;
	struct ptc_recovery_task *t = arg;
	char lane[PTC_LANE_MAX];
	int rc;

	snprintf(lane, sizeof lane, "plan-%u", turn++ % PLAN_LANES);
	rc = t->ctl->gone ? PTC_ECANCELED : ptc_cluster_steps(t->all->cluster, lane, steps, round_done, t);
	ptc_require(rc == 0 || rc == PTC_ECANCELED);
	if (rc) { /* the daemon stops, or another one has the job */
		t->ctl->recovery.planning = false;
		release(t);
	}
}

static void run_round(struct ptc_recovery_task *t)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_ETCD, ask_work }, { 0 } };
	char lane[PTC_LANE_MAX];

	snprintf(lane, sizeof lane, "r-%s", t->ctl->uuid);
	ptc_require(ptc_cluster_steps(t->all->cluster, lane, steps, asked, t) == 0);
}

/* For the present record. */
static void start(struct ptc_recovery_task *t)
{
	plan_done(&t->plan);
	t->plan = (struct ptc_recovery_plan){ .err = PTC_ERROR_INIT };
	t->why = (struct ptc_error)PTC_ERROR_INIT;
	t->older = t->ctl->older.doc;
	t->source = 0;
	t->may_return = false;
	t->record = t->ctl->record;
	t->what = t->asked;
	t->changes = count_changes(t);
	t->all_the_same = t->ctl->recovery.fails > 0; /* what was planned without them has failed */
	t->ctl->recovery.planning = true;
	run_round(t);
}

void ptc_recovery_plan(struct ptc_controller *ctl, enum ptc_recovery_for what,
		       void (*planned)(struct ptc_controller *ctl, struct ptc_recovery_plan *p))
{
	struct ptc_recovery_task *t;

	if (ctl->recovery.planning)
		return;
	if (ctl->recovery.answer)
		release(ctl->recovery.answer);
	ctl->recovery.answer = NULL;
	t = ptc_calloc(1, sizeof *t);
	ptc_require(t);
	*t = (struct ptc_recovery_task){
		.ctl = ptc_controller_ref(ctl), .all = ctl->all, .meta = ctl->meta, .asked = what, .planned = planned
	};
	start(t);
}

/* ---- were a node lost ---- */

/* The node counts as gone: its devices are left out, and its bytes are no source. */
static int plan_loss(struct ptc_recovery_task *t, const struct ptc_job_desc *desc, struct ptc_error *err)
{
	uint32_t at = ptc_view_number(&t->view, t->without);

	t->rc = PTC_ECANCELED;
	ptc_loop_call(t->all->loop, look_on_loop, t);
	if (t->rc)
		return ptc_error_set(err, t->rc, "the job's nodes cannot be looked up");
	if (at < t->view.nnodes)
		t->view.down[at] = true;
	return t->view.from.world ? plan_any(t, desc, err)
				  : ptc_error_set(err, PTC_ESTATE, "the job has no configuration to go on with");
}

int ptc_recovery_without(struct ptc_controller *ctl, const struct ptc_job_desc *desc, struct ptc_view *v,
			 const char *node, struct ptc_error *err)
{
	struct ptc_recovery_task *t = ptc_calloc(1, sizeof *t);
	int rc;

	if (!t)
		return ptc_nomem(err);
	t->ctl = ctl;
	t->all = ctl->all;
	t->meta = v->meta;
	t->what = PTC_RECOVERY_ANY;
	t->without = node;
	t->shares = desc->share_devices;
	t->view = *v;
	rc = plan_loss(t, desc, err);
	if (t->passes_over && other_nodes_help(rc)) { /* as a job that cannot go on otherwise would */
		t->all_the_same = true;
		ptc_planned_done(&t->plan.planned);
		rc = plan_loss(t, desc, err);
	}
	*v = t->view; /* its copies and addresses are new ones */
	plan_done(&t->plan);
	forget_stay(t);
	ptc_free(t);
	return rc;
}
